"""What processes say to each other: frozen dataclasses, and the one pair that makes lines of them and back.

A command goes from a supervisor to its child, which says messages and ends with an answer; what a supervisor says to
the dispatcher are messages as well. Only the first two are ever lines: the rest travels as objects, through Ray or not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from tasks.backends import BackendSpec
from tasks.catalogs.base import Entry, Failure
from tasks.judge.policy_files import Limit, Policy
from tasks.model import RACE_S, UNASKED, BackendInfo, Group, RuntimeInfo
from tasks.model.row import Row
from tasks.model.stored_at_once import store_at_once
from tasks.model.trace import TraceStep
from tasks.passport import SumReading
from tasks.passport.known_passports import KnownSum, Passport
from tasks.screen.observed import ObservedExercise, OutputVariant

# --- items: the work of a command ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """A sample that killed the process that made or exported it; position: its place in the group's order."""

    position: int
    failure: Failure


@dataclass(frozen=True)
class ToPrepare:
    """A group whose samples are to be made. with_products: see `tasks.prepare.cases.prepare_group`."""

    group: Group
    bad: tuple[Bad, ...] = ()
    with_products: bool = True


@dataclass(frozen=True)
class ToExport:
    """A prepared group (the path of its pack) whose first ``count`` samples are to be exported."""

    group: Group
    pack: str
    form: str
    count: int
    bad: tuple[Bad, ...] = ()


@dataclass(frozen=True)
class ToRun:
    """Cases of a prepared group. positions: which of its samples, in the group's order.

    exported: path of the exported forms, "" where none is needed; keep: a file that the outputs of the last case are
    kept in, as a pack ("" = not kept); setting: of the backend (`tasks.backends.base.Backend.at`); part: a pack that
    names the part of a torch program to be run instead of the whole, with its inputs (`tasks.graphs.traced_program.cut_traced_program`);
    explained: whether a program that says why its outputs are off is asked (`tasks.model.Program.explain`).
    """

    group: Group
    pack: str
    positions: tuple[int, ...]
    exported: str = ""
    keep: str = ""
    setting: str = ""
    part: str = ""
    explained: bool = True

    def alone(self, position: int) -> ToRun:
        """One of these cases."""
        return replace(self, positions=(position,))


# --- commands to a child ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """Import a backend's runtime and find its device; without a backend: are you there? kernels: definitions of the
    user's own (`tasks.catalogs.user_definitions`); race_s: seconds that a race between programs may take; passports: of
    the backend, of one version or device each."""

    backend: BackendSpec | None = None
    policy: Policy | None = None
    kernels: str = ""
    race_s: float = RACE_S
    passports: tuple[Passport, ...] = ()


@dataclass(frozen=True)
class List:
    """Every entry of a catalog."""

    catalog: str
    kernels: str = ""


@dataclass(frozen=True)
class Prepare:
    """Prepare groups, but for the items in ``skip``."""

    items: tuple[ToPrepare, ...]
    cache: str
    skip: tuple[int, ...] = ()


@dataclass(frozen=True)
class Export:
    """Export forms of groups, but for the items in ``skip``."""

    items: tuple[ToExport, ...]
    cache: str
    skip: tuple[int, ...] = ()


@dataclass(frozen=True)
class Run:
    """Run cases, numbered through all items, but for those in ``skip``; those in ``solo`` are built by themselves.

    canary_s: seconds of cases after which the device is asked what it has answered before (`tasks.canary`), as it is at
    the end; 0 after each case, None never.
    """

    items: tuple[ToRun, ...]
    skip: tuple[int, ...] = ()
    solo: tuple[int, ...] = ()
    canary_s: float | None = None


@dataclass(frozen=True)
class Localise:
    """A search for what makes a model fail. policy: that says it does; seconds: that the search may take; info: what
    the backend answered to hello."""

    policy: Policy
    seconds: float
    info: BackendInfo = UNASKED


@dataclass(frozen=True)
class Minimise:
    """A search for a smaller case that fails as ``row`` says. strategy: of `tasks.hunt.minimise.search`; budget: runs
    that it may take; earlier: how many cases ran before it in its process."""

    row: Row
    strategy: str
    budget: int
    earlier: int = 0


@dataclass(frozen=True)
class Search:
    """Begin a search over a case (the one of ``item``) that failed on a backend. It is answered by Wants or Found, and
    goes on with Tried. folder: for what it wants run."""

    what: Localise | Minimise
    item: ToRun
    backend: BackendSpec
    folder: str


@dataclass(frozen=True)
class Tried:
    """What a search wanted has been run. Its outputs lie where they were to be kept, unless ``error`` says why there
    are none; row: what it was judged to be, of a search that goes by that."""

    error: str = ""
    row: Row | None = None


@dataclass(frozen=True)
class Screen:
    """Run known products on the backend's device for so many seconds (`tasks.screen.passes`), but for the exercises in
    ``skip``. core: which of the CPU's that this process may use, by place among them; -1: the device is none of the
    CPU's cores. probe: only say how it computes."""

    seconds: float
    seed: int = 0
    core: int = -1
    skip: tuple[int, ...] = ()
    probe: bool = False


# --- what a child says, and its supervisor hands on ---------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """An item is prepared: its content key, its pack and the indices of its samples, in the group's order.

    parcel: the bytes of the pack, where nodes share no cache.
    """

    number: int
    key: str
    path: str
    samples: tuple[int, ...]
    parcel: Any = None


@dataclass(frozen=True)
class Exported:
    """An item is exported to a pack of forms; parcel: as for `Prepared`."""

    number: int
    path: str
    parcel: Any = None


@store_at_once
@dataclass(frozen=True)
class Done:
    """A case has its row; number: which case, through all items of the command. trace: its steps, where a check looks
    at several; readings: what one has read of the backend's arithmetic."""

    number: int
    row: Row
    trace: tuple[TraceStep, ...] = ()
    readings: tuple[SumReading, ...] = ()


@dataclass(frozen=True)
class Canary:
    """The device was asked what it had answered before; changed: what it says now, "" if that."""

    changed: str = ""


@dataclass(frozen=True)
class Probed:
    """How the device computes, by feature (`tasks.screen.probe`)."""

    features: dict[str, str]


# --- answers: the last that a child says to a command ---------------------------------------------------------------


class Answer:
    """Ends a command."""


@dataclass(frozen=True)
class Finished(Answer):
    """All was said."""


@dataclass(frozen=True)
class Ready(Answer):
    """The runtime works. info: of the backend; UNASKED where hello named none."""

    info: BackendInfo = UNASKED


@dataclass(frozen=True)
class Refused(Answer):
    """The runtime or its device cannot be had. installs: (command, package) of what its machine lacks; absent: the
    vendor of whose devices the machine has no trace ("" if it has); broken: what the user gives it cannot be used
    (`tasks.model.Broken`)."""

    reason: str
    installs: tuple[tuple[str, str], ...] = ()
    absent: str = ""
    broken: bool = False


@dataclass(frozen=True)
class Listed(Answer):
    """A catalog's list."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Misconfigured(Answer):
    """A catalog cannot be listed: what is wrong, and the key of the config that says so. lacks: see `CatalogError`."""

    error: str
    key: tuple[Any, ...]
    lacks: str = ""


@dataclass(frozen=True)
class Wants(Answer):
    """A search wants a case run on the backend, its outputs kept. before: numbers of earlier cases that are to be run
    before it; fresh: in a new process; patient: a hang is one by its whole deadline."""

    item: ToRun
    before: tuple[int, ...] = ()
    fresh: bool = False
    patient: bool = False


@dataclass(frozen=True)
class Found(Answer):
    """A search is over. facts: what is known of what it found, as JSON has it; item: that as a case of its own, None
    where it is none: the culprit's nodes, the minimal case (the stored one where it could not be taken apart); row: of
    the minimal case; columns: of the stored row; error: why nothing was found."""

    facts: dict[str, Any] = field(default_factory=dict)
    item: ToRun | None = None
    row: Row | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Stopped(Answer):
    """No work can be done here: the cache's disk is full or cannot be written."""

    why: str


# --- what only a supervisor says ----------------------------------------------------------------------------------


class Place(NamedTuple):
    """A device: the id of its node and its numbers there as Ray gave them ("" for the node as a whole)."""

    node: str
    device: str


@dataclass(frozen=True)
class Begun:
    """A job runs here. From now on its silence counts. version, columns: of the farm that runs it, and of the rows that
    it will send (`farm.lake.origin_columns.digest_lake_columns`); "" where it does not say."""

    place: Place
    version: str = ""
    columns: str = ""


@dataclass(frozen=True)
class Avoided:
    """A job came to a place that it was to avoid, and holds it."""

    place: Place


@dataclass(frozen=True)
class Failing:
    """A case that failed: evidence, should its device turn out to be sick."""

    number: int
    status: str
    attempts: int
    error: str


@dataclass(frozen=True)
class Rows:
    """Rows of a batch as Arrow, the numbers of their cases, and counts. spent_ms: what building and what running them
    took in all. trace, passports: the steps and the readings of those cases that have some, as Arrow; no bytes where
    none has."""

    stream: bytes
    numbers: tuple[int, ...]
    status: dict[str, int]
    spent_ms: tuple[float, float] = (0.0, 0.0)
    failing: tuple[Failing, ...] = ()
    trace: bytes = b""
    passports: bytes = b""

    @property
    def busy_ms(self) -> float:
        return sum(self.spent_ms)


@dataclass(frozen=True)
class Failed:
    """An item of a preparing or exporting job that cannot be had."""

    number: int
    failure: Failure


@dataclass(frozen=True)
class Gone:
    """The backend's device, or a process that lives, cannot be had here any more: what is not done is to be done
    elsewhere, or later."""

    why: str


@dataclass(frozen=True)
class Sick:
    """The device computes what it is known to have computed otherwise: nothing of it is believed since it last was
    right, nor from now on."""

    why: str


@dataclass(frozen=True)
class Spent:
    """What children have cost since it was last told: CPU seconds; children started, seconds until they answered."""

    cpu_s: float = 0.0
    starts: int = 0
    start_s: float = 0.0


# --- lines --------------------------------------------------------------------------------------------------------

#: Types that may stand in a line, by name.
_TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Group, Entry, Failure, BackendSpec, BackendInfo, RuntimeInfo, Limit, Policy, Bad, ToPrepare, ToExport, ToRun),
        *(Hello, List, Prepare, Export, Run, Search, Localise, Minimise, Tried, Screen),
        *(
            Row,
            TraceStep,
            SumReading,
            KnownSum,
            Passport,
            Prepared,
            Exported,
            Done,
            Canary,
            ObservedExercise,
            OutputVariant,
            Probed,
        ),
        *(Finished, Ready, Refused, Listed, Misconfigured, Stopped, Wants, Found),
    )
}
#: Key that holds the name of a type.
_TAG = "is:"
#: Fields by type, and those of them that are tuples: JSON has only lists.
_FIELDS = {kind: [f.name for f in fields(kind)] for kind in _TYPES.values()}
_TUPLES = {kind: [f.name for f in fields(kind) if "tuple" in str(f.type)] for kind in _TYPES.values()}


def _make_plain_message(value: Any) -> Any:
    kind = type(value)
    if kind is Row:  # a row says what it knows, and nothing of the other columns
        return {_TAG: "Row", **value.__dict__}
    return {_TAG: kind.__name__, **{n: getattr(value, n) for n in _FIELDS[kind]}} if kind in _FIELDS else str(value)


def _decode_wire_object(found: dict[str, Any]) -> Any:
    kind = _TYPES.get(found.pop(_TAG, ""))
    if kind is None:
        return found
    for name in _TUPLES[kind]:
        if type(found.get(name)) is list:
            found[name] = tuple(found[name])
    return Row.read(found) if kind is Row else kind(**found)


_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_make_plain_message).encode
_loads = json.JSONDecoder(object_hook=_decode_wire_object).decode


def encode_wire_message(message: Any) -> bytes:
    """A command, message or answer as a line. Half of a surrogate pair, as an error's text may have it, becomes "?"."""
    return _dumps(message).encode(errors="replace") + b"\n"


def decode_wire_message(line: bytes | str) -> Any:
    """What `encode_wire_message` made a line of."""
    return _loads(line if isinstance(line, str) else line.decode())
