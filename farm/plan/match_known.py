"""Which outcomes the known failures of a config cover, and which known failures nothing in a run meets."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from typing import TYPE_CHECKING, Any

import numpy as np
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from farm.plan.known_failure import KnownFailure
from farm.plan.patterns import list_pattern_names, make_pattern_matcher, select_names_by_pattern
from farm.plan.whose import WHOSE as WHOSE
from tasks.catalogs.base import Entry
from tasks.model import EPS, JUDGED, Status, flags, name_statuses
from tasks.model.errors import mask_error_details
from tasks.model.failing import describe_failure_manner
from tasks.model.kind import OF_NUMBERS

if TYPE_CHECKING:
    from farm.plan.config_schema import Config
    from farm.plan.matrix import Matrix

#: Columns that say whether a known failure covers an outcome, and what an older lake, which lacks some, means.
COLUMNS = {
    **{"op": "", "variant": "", "dtype": "", "backend": "", "check": "forward", "distribution": "own", "flags": ""},
    **{"status": "", "kind": "", "stage": "", "error_type": "", "error": "", "cause": "", "culprit": ""},
    **{"runtime_version": "", "started_at": "", "error_units": 0.0},
}
#: The column of the ops of a row's minimal case, sorted, if the rows are asked about them (`do_known_name_reduced`).
REDUCED = "reduced_ops"


@dataclass(frozen=True)
class Met:
    """Known failures beside the rows of a run.

    entry: per row the place of the first known failure that covers it, -1 for none; other: per row that none covers and
    that is not right, the place of the first that names its case and another way of failing, else -1; gone: the places
    of the stale known failures, in their order: they cover no row, and what was judged of what they name, but for rows
    that others cover, is some and all passed; stale: per row that passed the place of the first of these, else -1;
    idle: the places of those that name no row; covering: of those that cover some row, be it another's as well; first:
    per row whether some cover it, none of which has been seen on its backend.
    """

    entry: np.ndarray
    other: np.ndarray
    stale: np.ndarray
    gone: tuple[int, ...]
    idle: tuple[int, ...]
    covering: frozenset[int]
    first: np.ndarray


def was_known_seen_on(entry: KnownFailure, backend: str) -> bool:
    """Whether a known failure was seen on a backend that it names."""
    return not entry.seen or make_pattern_matcher(entry.seen)([backend])


def parse_known_entries(run: Mapping[str, Any]) -> list[KnownFailure] | None:
    """The known failures of a run's record; None where it holds no config (an older or damaged record)."""
    config = run.get("config")
    if not isinstance(config, Mapping):
        return None
    try:
        return [KnownFailure(**entry) for entry in config.get("known_failures") or ()]
    except (TypeError, ValueError):  # of another version
        return None


def put_known_entries(run: Mapping[str, Any], entries: Sequence[KnownFailure]) -> dict[str, Any]:
    """A run's record, with these known failures in place of its own."""
    config = run.get("config")
    told = {"known_failures": [entry.model_dump() for entry in entries]}
    return {**run, "config": {**(config if isinstance(config, Mapping) else {}), **told}}


def find_day_of_time(time: Any) -> str:
    """The day of a timestamp, as in 2027-01-31; "" for none."""
    return "" if time is None or time != time else str(time)[:10]


def do_known_name_reduced(entries: Sequence[KnownFailure]) -> bool:
    """Whether some of them name the ops of a case made small, which the rows are to have as `REDUCED`."""
    return any(k.reduced for k in entries)


def match_known_to_rows(rows: Any, entries: Sequence[KnownFailure]) -> Met:
    """Which of the known failures cover which rows of a lake; columns that the rows lack are as in `COLUMNS`."""
    if not entries:
        none = np.full(len(rows), -1)
        return Met(none, none, none, (), (), frozenset(), np.zeros(len(rows), dtype=bool))
    told = {
        c: np.array(rows[c].fillna(absent) if c in rows else [absent] * len(rows))
        for c, absent in _select_columns_of_known(entries)
    }
    if "started_at" in told:
        told["started_at"] = np.array([find_day_of_time(value) for value in told["started_at"]], dtype=object)
    told[REDUCED] = rows[REDUCED].to_numpy() if REDUCED in rows else np.full(len(rows), None)
    judged, right = np.isin(told["status"], name_statuses(JUDGED)), told["status"] == Status.PASS.value
    entry, other, near = np.full((3, len(rows)), -1)
    first = np.zeros(len(rows), dtype=bool)
    seen, unseen, tried, covering = set[int](), set[int](), set[int](), set[int]()
    for backend in dict.fromkeys(told["backend"]):  # few known failures are about one backend
        mine = np.array(
            [k for k, known in enumerate(entries) if make_pattern_matcher([known.backend])([backend])], dtype="int64"
        )
        places = np.flatnonzero(told["backend"] == backend)
        here = np.array([was_known_seen_on(entries[k], backend) for k in mine], dtype=bool)
        named, covered = _match_known_failures(
            [entries[k] for k in mine], {c: column[places] for c, column in told.items()}, here
        )
        entry[places] = _find_first_match(covered, mine)
        first[places] = covered.any(axis=0) & ~covered[here].any(axis=0)
        free = named & (entry[places] < 0) & judged[places]
        other[places] = np.where(right[places], -1, _find_first_match(free, mine))
        seen.update(mine[(covered | (free & ~right[places])).any(axis=1)].tolist())
        covering.update(mine[covered.any(axis=1)].tolist())
        unseen.update(mine[free.any(axis=1)].tolist())
        tried.update(mine[(named | covered).any(axis=1)].tolist())
    gone = unseen - seen
    for backend in dict.fromkeys(told["backend"]) if gone else ():
        mine = np.array(
            [k for k in sorted(gone) if make_pattern_matcher([entries[k].backend])([backend])], dtype="int64"
        )
        places = np.flatnonzero((told["backend"] == backend) & right & (entry < 0))
        here = np.array([was_known_seen_on(entries[k], backend) for k in mine], dtype=bool)
        named, _ = _match_known_failures(
            [entries[k] for k in mine], {c: column[places] for c, column in told.items()}, here
        )
        near[places] = _find_first_match(named, mine)
    idle = tuple(k for k in range(len(entries)) if k not in tried)
    return Met(entry, other, near, tuple(sorted(gone)), idle, frozenset(covering), first)


def _select_columns_of_known(entries: Sequence[KnownFailure]) -> Iterator[tuple[str, Any]]:
    """The columns that these known failures ask for, and what stands for one that is not there."""
    dear = {"started_at": "expires", "runtime_version": "versions", "error_units": "seen"}
    return ((c, x) for c, x in COLUMNS.items() if c not in dear or any(getattr(k, dear[c]) for k in entries))


def _match_known_failures(
    entries: Sequence[KnownFailure], told: Mapping[str, np.ndarray], here: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(named, covered), known failures × rows of a backend: the case is theirs, in a version and on a day for which
    they hold; it failed in their way too. here: which of them were seen on the backend.

    One that was not seen here says nothing of what passes or fails otherwise here. Two devices may be wrong in one op
    for two reasons: it covers no outcome for which a diagnosis gives a cause that it does not name, and no number that
    is further off than 0 would be, which no loss of digits explains.

    What fails in today's suite covers the case of that name in an older release's ("onnx-1.16:…" is covered by
    "onnx:…"), and is not asked of it: there it may be another model, and right. Nor are known failures of a case made
    small: only what failed is made small.
    """

    def match(globs: Sequence[Any], values: Any, called: Any = lambda value: [value]) -> np.ndarray:
        place = {value: k for k, value in enumerate(dict.fromkeys(values))}
        codes = np.array([place[value] for value in values], dtype="int64")
        index: dict[str, list[int]] = {}  # what values are called → their codes
        for value, code in place.items():
            for name in called(value):
                index.setdefault(name, []).append(code)
        said = {glob: np.zeros(len(place), dtype=bool) for glob in globs}
        for glob, hit in said.items():
            several = (glob,) if isinstance(glob, str) else glob
            named = select_names_by_pattern(several, index) if any(map(has_magic, several)) else several
            hit[[code for name in named for code in index.get(name, ())]] = True
        return np.array([said[glob][codes] for glob in globs], dtype=bool).reshape(len(globs), len(values))

    called = list(zip(told["op"], told["variant"]))
    ops = [k.op for k in entries]
    named = match(ops, called, lambda value: list_pattern_names(Entry(value[0], value[1], ())))
    covered = match(
        ops,
        called,
        lambda value: [x for op in _list_release_names(value[0]) for x in list_pattern_names(Entry(op, value[1], ()))],
    )
    for column in ("dtype", "distribution", "check"):
        theirs = match([getattr(k, column) for k in entries], told[column])
        named, covered = named & theirs, covered & theirs
    for key, column, holds in _LIFE:
        if any(asked := [getattr(k, key) for k in entries]):
            theirs = _match_known_values(asked, told[column], holds)
            named, covered = named & theirs, covered & theirs
    covered &= (told["status"] != Status.PASS.value) & match([k.kind for k in entries], told["kind"])
    covered &= match([k.status for k in entries], told["status"], _list_covering_statuses)
    if not here.all():
        named &= here[:, None]
        unnamed = np.array([k.cause == "*" for k in entries], dtype=bool)[:, None]
        eps = np.array([EPS.get(dtype, EPS["float32"]) for dtype in told["dtype"]])
        units = told["error_units"].astype(float)
        far = np.isin(told["kind"], OF_NUMBERS) & ~(units * eps <= 1.0)  # what cannot be measured is far off as well
        covered &= here[:, None] | ~((unnamed & (told["cause"] != "")) | far)
    for i, known in enumerate(entries):
        if known.reduced:
            named[i] = False
        if _does_known_ask_manner(known):
            for j in np.flatnonzero(covered[i]):
                covered[i, j] = _failed_as_known(known, {c: told[c][j] for c in (*_WAY, "status", "kind", REDUCED)})
    return named, covered


def _match_known_values(asked: Sequence[Any], values: np.ndarray, holds: Callable[[Any, Any], bool]) -> np.ndarray:
    """Known failures × rows: what each asks for holds for the row's value; what asks for nothing holds always."""
    place = {value: k for k, value in enumerate(dict.fromkeys(values))}
    codes = np.array([place[value] for value in values], dtype="int64")
    found = np.ones((len(asked), len(values)), dtype=bool)
    for i, what in enumerate(asked):
        if what:
            found[i] = np.array([holds(what, value) for value in place], dtype=bool)[codes]
    return found


@functools.cache
def _match_known_version(specifiers: str, told: str) -> bool:
    """Whether a runtime's version, the first that is told ("torch 2.13.0+cpu, …"), is one of these; what is none never
    is."""
    found = re.search(r"\d+(\.\d+)+[^\s,]*", told)
    try:
        version = Version(found[0]) if found else None
    except InvalidVersion:
        return False
    if version is not None and is_version_own_build(version):
        version = Version(version.base_version)
    return version is not None and SpecifierSet(specifiers).contains(version, prereleases=True)


def is_version_own_build(version: Version) -> bool:
    """Whether a version is that of somebody's build from source and not a release that an index has:
    "2.9.0a0+git1234abc", a vendor's "2.6.0a0+ecf3bae40a.nv25.09". PEP 440 has it before its release, of which it is
    neither `<` nor `>=`; its code is that of the release."""
    return version.is_prerelease and version.local is not None


def _is_by_day(last: str, day: str) -> bool:
    """Whether an outcome is of this day or before; one whose time is not told is."""
    return day <= last or not day


#: Which known failures hold for a case at all: their key, the column that it asks, and how.
_LIFE: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("versions", "runtime_version", _match_known_version),
    ("expires", "started_at", _is_by_day),
    ("flags", "flags", lambda globs, said: flags.matches_row_flags(said, globs)),
)
#: Columns of how an outcome failed, beside status and kind.
_WAY = ("stage", "error_type", "error", "cause", "culprit")


def _does_known_ask_manner(known: KnownFailure) -> bool:
    return bool(known.reduced) or any(getattr(known, name) not in ("*", "") for name in _WAY)


def _failed_as_known(known: KnownFailure, row: Mapping[str, Any]) -> bool:
    """Whether an outcome failed in the way of a known failure, as far as that says more than status and kind."""
    how = describe_failure_manner(row)
    return (
        all(fnmatchcase(getattr(how, name), getattr(known, name)) for name in ("stage", "error_type"))
        and all(fnmatchcase(row[name], getattr(known, name)) for name in ("cause", "culprit"))
        and mask_error_details(known.error) in how.words
        and (not known.reduced or sorted(known.reduced) == sorted(row[REDUCED] or ()))
    )


def _list_release_names(op: str) -> list[str]:
    """An op, and as it is called in today's release of its catalog: the suffix of a catalog's name is a version."""
    catalog, _, name = op.partition(":")
    return [op, *([f"{catalog.partition('-')[0]}:{name}"] if "-" in catalog else [])]


def _list_covering_statuses(status: str) -> list[str]:
    """The statuses of known failures that cover an outcome: what may be wrong may as well be imprecise."""
    return [status, Status.WRONG.value] if status == Status.IMPRECISE else [status]


def _find_first_match(matches: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Per column the place of the first row that is true, -1 for none."""
    if not len(places):
        return np.full(matches.shape[1], -1)
    return np.where(matches.any(axis=0), places[matches.argmax(axis=0)], -1)


def drop_known_rows(rows: Any, config: Config) -> Any:
    """The rows that no known failure of the config covers."""
    return rows[match_known_to_rows(rows, config.known_failures).entry < 0]


def explain_unmet_known(config: Config, matrix: Matrix) -> Iterator[str]:
    """One line about the known failures of the run's backends that name no op it plans: most likely misspelt or gone.

    Not of a catalog that the config does not have or takes a part of: lists of known failures are shared.
    """
    called = list({n for g in matrix.groups for n in list_pattern_names(Entry(g.op, g.variant, ()))})
    backends = [s.name for s in matrix.backends]
    parts = {c.name for c in config.catalogs if "*" not in c.ops or c.exclude}
    whole = {c.name for c in config.catalogs} - parts

    def here(op: str) -> bool:
        return op.partition(":")[0] in whole if ":" in op else not parts

    mine = [k for k in config.known_failures if here(k.op) and make_pattern_matcher([k.backend])(backends)]
    idle = [f"{k.op} on {k.backend}" for k in mine if not make_pattern_matcher([k.op])(called)]
    if idle:
        more = f", and {len(idle) - 3} more" if len(idle) > 3 else ""
        yield f"known_failures: {len(idle)} of {len(mine)} match no planned op: {', '.join(idle[:3])}{more}"
