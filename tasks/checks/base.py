"""What a check is: what is asked of a program for one sample, of which samples, and what its rows say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.model import (
    DISTRIBUTIONS,
    FORWARD,
    Form,
    Leaf,
    OpClass,
    Program,
    Session,
    Stateless,
    Status,
    build_one_by_one,
    run_session,
)
from tasks.model.leaf import take_leaf_row
from tasks.model.stored_at_once import store_at_once

if TYPE_CHECKING:
    from tasks.backends.base import Backend
    from tasks.catalogs.base import Catalog, Entry
    from tasks.judging import Judgement
    from tasks.prepare.cases import PreparedSample
    from tasks.training.phases import OwnGradients


@store_at_once
@dataclass(frozen=True)
class Observation:
    """What was seen at one step of a check: outputs, flat, or what was raised.

    name: what was done; it is to blame if this is the first of the worst steps of its case ("level extended"). part:
    from which to which of the case's expected outputs these are; row: of all of them that row alone, the outputs of one
    step of a session. judged: whether they are held to what is expected; else only their bytes were compared with
    others', ``apart`` (`tasks.checks.same_bytes.APART`) says how far off they are, and ``kind`` what that makes the row.
    state: what the session keeps after the step. ms: how long the step took, where that is not the time until it was
    seen. noted: of what nobody has promised, where that is, in a word: it is no fault if it is wrong, and the flag
    `wrong_at` names it; "" of all else. ruled: what the check has judged them to be itself, on inputs that are not the case's. made_of: of a training run, the gradients that an optimiser makes these of. number, phase, rank: of a training run, which of its steps this is, what of the step, and
    whose where several ranks take it; ranks: how many these are; slopes: what is kept of its outputs once they are judged; owners: of places in the network, the rank that alone
    has them. present: of each output, which elements there are (bool), where not all are; the others are NaN, and
    expected to be.

    Outputs of several observations are each in memory of their own. Of several, and of one with a state, each is a row
    of the table ``trace`` (`tasks.model.trace`).
    """

    name: str
    outputs: Sequence[Any] = ()
    error: Exception | None = None
    part: tuple[int, int | None] = (0, None)
    row: int | None = None
    judged: bool = True
    kind: str = ""
    apart: float | None = None
    state: Mapping[str, Any] | None = None
    ms: float | None = None
    noted: str = ""
    held_to: Sequence[Any] | None = None
    inside: Observation | None = None
    ruled: Judgement | None = None
    made_of: OwnGradients | None = None
    number: int | None = None
    phase: str = ""
    rank: int | None = None
    ranks: int = 1
    owners: Callable[[str], int | None] | None = None
    present: Sequence[Any] | None = None
    slopes: Sequence[float] = ()

    @property
    def arranged(self) -> bool:
        """Whether the check has arranged the values of the inputs (sorted them): how a sum is added shows in the digits
        of its result then, and `forward` says what they are worth on values as they come."""
        return False

    def expected(self, leaves: list[Leaf]) -> list[Leaf]:
        """Those of a case's expected outputs that these outputs are held to."""
        some = leaves[slice(*self.part)]
        if self.held_to is not None:
            some = [replace(x, reference=np.asarray(y).astype(np.float64)) for x, y in zip(some, self.held_to)]
        if self.present is not None:
            references = [np.where(y, np.asarray(x.reference), np.nan) for x, y in zip(some, self.present)]
            some = [replace(x, reference=y) for x, y in zip(some, references)]
        return some if self.row is None else [take_leaf_row(x, self.row) for x in some]


#: See `Check.name_fault`.
FindBeyond = Callable[[Observation], list[np.ndarray]]
#: What an observation was called in 1.0.0.
Stage = Observation


class Check:
    """Base of all checks. A subclass without arguments is named in `tasks.checks.BUILT_IN`, or found by its entry point
    in the group "farm.checks", whose name is the check's.

    about: what it asks, in a line of a list. lacking: what an op does not have that it is not asked of ("no gradient");
    "" where its catalog alone can say. prepared: whether catalogs make samples of its own for it; else it takes those
    of the forward check. runs: whether its programs are run; what is only built says nothing about numbers. gradient:
    whether what it computes is a gradient, which needs a dtype with a rounding error. effect: whether it looks for the
    effect of a declared precision: what is as precise as the dtype itself does not obey a command, or does not use a
    permission. gives_inputs: whether it calls programs on other inputs than their own (`Program.given`). timed: whether it measures time, so that a device is not shared meanwhile. judges: whether it draws
    inputs of its own and judges their outputs itself (`Form.fresh`, `Form.judge`). own_call: whether the catalog's call
    is another one for it. forms: those that its samples have, because what it asks about is in them alone (a converted
    ONNX graph: the catalog's torch module is not converted); empty for all that the catalog has. without: classes of
    ops of which it asks nothing: their cases are vacuous. distributions: where the values of its samples may come from.
    """

    name: str = ""
    about: str = ""
    lacking: str = ""
    prepared: bool = False
    runs: bool = True
    gradient: bool = False
    without: tuple[OpClass, ...] = ()
    own_call: bool = False
    forms: tuple[str, ...] = ()
    effect: bool = False
    gives_inputs: bool = False
    timed: bool = False
    judges: bool = False
    distributions: tuple[str, ...] = DISTRIBUTIONS
    #: Whether it has a `name_fault` of its own, which is asked of a single step as well.
    names_faults: bool = False
    #: Whether a program that it has built is run once, as it is.
    _runs_as_it_is: bool = True
    #: How long a case of it takes in cases of the forward check, what is compiled left aside; see `Catalog.case_worth`.
    case_worth: float = 1.0
    #: Whether each of its cases takes the time of a race beside that (`race_s` of a config).
    races: bool = False
    #: How many deadlines a case of it may take: what is seen step by step has one a step, and one for its judging.
    deadlines: int = 1

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.names_faults = cls.name_fault is not Check.name_fault
        cls._runs_as_it_is = cls.runs and (cls.run, cls.stages) == (Check.run, Check.stages)

    @property
    def samples(self) -> str:
        """Name of the check whose samples these are."""
        return self.name if self.prepared else FORWARD

    @property
    def needs(self) -> str:
        """What a backend must name in its `checks`; if it does not, the row says that it does not run this check."""
        return self.samples

    @property
    def exported(self) -> bool:
        """Whether its samples are exported for backends that take no form of their catalog."""
        return self.samples == FORWARD

    @property
    def plain(self) -> bool:
        """Whether a row of it is about one program, built and run as any: what a finding can show."""
        own = type(self)
        return (own.build, own.run, own.stages) == (Check.build, Check.run, Check.stages)

    def graph(self, form: Form, culprit: str) -> Form | None:
        """A form with an ONNX model as a case of this check that is a graph with its inputs and no more, of what a row
        says of it; None where there is none."""
        return form if self.samples == FORWARD or self.plain or form.batched else None

    def unasked(self, entry: Entry, catalog: Catalog) -> str:
        """Why it is not asked of an op of a catalog; "" where it is."""
        if self.samples in entry.checks:
            return ""
        return catalog.lacking.get(self.samples) or self.lacking or f"the catalog makes no samples for {self.samples}"

    def unfit(self, backend: Backend) -> str:
        """Why there is nothing that it could ask of a backend, so that no cells are planned; "" where there is."""
        return ""

    def unanswered(self, backend: Backend) -> str:
        """Why a backend does not answer it, which is what its rows then say (`unsupported`); "" where it does."""
        if self.needs not in backend.checks:
            return f"{backend.name} does not run the {self.name} check"
        if self.forms and not set(self.forms) & set(backend.forms):
            asked, taken = (" or ".join(x) for x in (self.forms, backend.forms))
            return f"the {self.name} check is about the {asked} form, and {backend.name} takes {taken}"
        if (
            self.gives_inputs and backend.inputs_once
        ):  # said before anything is built: exporting and compiling take long
            return f"{backend.name} takes a program's inputs only once, and the {self.name} check calls it on others"
        return ""

    def wanted(self, samples: int) -> int:
        """How many samples an op has where a config asks for ``samples`` (not 0)."""
        return samples

    def precision(self, dtype: str) -> str:
        """The precision that it asks a backend to compute in, of samples of a dtype; "" where it asks for nothing."""
        return ""

    def build(self, backend: Backend, form: Form) -> Program:
        """Make one sample runnable as the check wants it; raises what `Backend.build` does.

        A check that builds more than once, or otherwise, overrides it: its samples are then never built together.
        """
        return backend.build_to_run(form) if self._runs_as_it_is else backend.build(form)

    def build_all(self, backend: Backend, forms: Sequence[Form]) -> list[Program | Exception]:
        """Build several samples of one op: by the backend's own way, or one after another where `build` is the
        check's."""
        if type(self).build is Check.build:
            return backend.build_all(forms)
        return build_one_by_one(lambda form: self.build(backend, form), forms)

    def run(self, program: Program, form: Form) -> Sequence[Any]:
        """Run ``program`` as the check wants it and return outputs, which are judged as those of the forward check.

        Raises `tasks.model.Misbehaviour` (kind, text) for what is wrong beside the numbers.
        """
        return program.run()

    def stages(self, program: Program, form: Form) -> Iterator[Observation]:
        """What is seen at the steps of the check: one, or several of which the first of the worst that are judged is
        the row's. The steps end at an error, which is then the row's."""
        yield Observation(program.way, self.run(program, form))
        for name, outputs in program.ways.items():
            yield Observation(name, outputs)

    def name_fault(
        self, seen: Sequence[Observation], statuses: Sequence[Status], expected: Sequence[Leaf], find_beyond: FindBeyond
    ) -> tuple[str, str]:
        """(kind, evidence in words) of a case of which judged steps are wrong, where all of them together say more than
        the first of the worst; ("", "") where they do not. expected: all outputs that are expected of the case;
        find_beyond: of a step, for each output the flat places of its elements beyond the policy's limit, the furthest
        first."""
        return "", ""

    def spend(self, seen: Observation, sample: PreparedSample) -> Observation:
        """What `conclude` needs of an observation that has been judged. Of a check that `spends`, each is judged when it
        is seen, and nothing else of it is held; what is large in a process of its own, while the backend takes its next
        step."""
        return seen

    @property
    def spends(self) -> bool:
        return type(self).spend is not Check.spend

    def conclude(
        self, seen: Sequence[Observation], found: Sequence[Judgement], sample: PreparedSample
    ) -> Judgement | None:
        """The judgement of a case by those of all its steps; None where it is that of the first of the worst."""
        return None


class Scenario(Check):
    """A check that calls a program more than once: `observe` drives its session, and yields what it sees.

    whole: whether each step is a call of the whole program, also where it has a session of its own, whose steps take a
    part of the inputs.
    """

    whole: bool = False

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        """What is seen of a session that has been started. program: whose session it is, for its flags and columns.

        Raises `tasks.model.Misbehaviour` for what only all steps together show."""
        raise NotImplementedError

    def stages(self, program: Program, form: Form) -> Iterator[Observation]:
        with run_session(self.open(program, form)) as session:
            yield from self.observe(session, program, form)

    def open(self, program: Program, form: Form) -> Session:
        """The session that is driven; a program's own unless the check needs another."""
        return Stateless(program) if self.whole else program.open()
