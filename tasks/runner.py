"""Runs prepared cases on one backend, one after another: the core of the child and of --on inline; `tasks.judging` judges."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from tasks import catalogs, checks, heap, trace, variables
from tasks.arrays import contiguous
from tasks.arrays.pack import ArrayPack, save_pack
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.catalogs import user_definitions
from tasks.catalogs.user_definitions import USER
from tasks.forks import Forks
from tasks.judge import worst_element
from tasks.judge.error_metrics import Metrics
from tasks.judge.policy import Policy
from tasks.judging import Judgement, choose_worst_step, judge_outputs, judge_steps
from tasks.model import (
    FILES,
    RACE_S,
    Fallback,
    Flushes,
    Form,
    Hung,
    Invalid,
    Misbehaviour,
    Program,
    RuntimeInfo,
    Status,
    Unsupported,
    Vacuous,
    flags,
)
from tasks.model.errors import shorten_error
from tasks.model.kind import KIND_ACCEPTED
from tasks.model.row import EMULATED, NAMES, Row
from tasks.model.trace import TraceStep
from tasks.passport.known_passports import Passport
from tasks.passport.own_arithmetic import OwnArithmetic
from tasks.prepare.cases import PreparedGroup, PreparedSample, list_prepared_columns
from tasks.relay import STAGES
from tasks.twin import TwinProcesses
from tasks.wire import Done, ToRun

#: Exit code of a process whose device was lost while several samples were built together.
LOST_DEVICE = 70

#: Places of `STAGES`.
IDLE, LOAD, BUILD, RUN, JUDGE = range(5)

#: Columns that are metrics of the same name.
METRICS = tuple(f.name for f in fields(Metrics) if f.name in NAMES and f.name != "kind")
_measured = operator.attrgetter(*METRICS)
#: Longest error text kept in a row, in characters.
ERROR_LIMIT = 2000
#: Bytes of the outputs of an observation from which on they are judged while the backend takes its next step: less is
#: judged before another process is there.
LARGE = 1 << 24
#: How often a large step's outputs are in memory, about: as tensors, as the backend returns them, and as they are held.
STEP_COPIES = 4


class RunItem:
    """Samples that are to be run, and the number of the first within the batch.

    The packs are read when their turn comes and dropped after it: a batch has thousands.
    """

    def __init__(self, asked: ToRun, first: int) -> None:
        self.asked, self.first = asked, first
        self._group = _in_hand.get((asked.pack, asked.group.check))
        self._exported: ArrayPack | None = None

    @property
    def group(self) -> PreparedGroup:
        if self._group is None:
            self._group = PreparedGroup(self.asked.pack, self.asked.group.check)
        return self._group

    @property
    def exported_pack(self) -> ArrayPack | None:
        if self._exported is None and self.asked.exported:
            self._exported = ArrayPack(self.asked.exported)
        return self._exported

    def release(self) -> None:
        """Forget what was read."""
        self._group = self._exported = None


#: Groups that were given to `make_item_of_whole_group` and are still there, by pack and check: what is run in their process
#: reads none again.
_in_hand: weakref.WeakValueDictionary[tuple[str, str], PreparedGroup] = weakref.WeakValueDictionary()


def make_item_of_whole_group(prepared: PreparedGroup) -> ToRun:
    """All samples of a prepared group."""
    _in_hand[prepared.pack.path, prepared.check] = prepared
    group = prepared.group if prepared.group.check == prepared.check else replace(prepared.group, check=prepared.check)
    return ToRun(group, prepared.pack.path, tuple(range(len(prepared.samples))))


@dataclass
class CaseRun:
    """One case of a batch on its way: its number in the batch, its sample and where in its group that stands, what was
    built, what went wrong; refused: what its kernel raised at the layout of its inputs, in whose place it was given
    contiguous ones."""

    number: int
    sample: PreparedSample
    item: RunItem
    position: int = 0
    form: Form | None = None
    program: Program | None = None
    error: BaseException | None = None
    stage: int = LOAD
    culprit: str = ""
    refused: str = ""
    #: What was seen at the steps of its check.
    seen: list[trace.TracedSteps] = field(default_factory=list)
    #: The judgements of those of a check that spends them (`tasks.checks.Check.spend`), and how long these took.
    spent: list[Judgement] | None = None
    judge_s: float = 0.0
    build_ms: float | None = None
    started_at: float = 0.0

    @property
    def raises(self) -> bool:
        """Whether the reference raises, so that the backend is to raise as well."""
        return self.sample.failure is not None and self.sample.failure.raised


class Spending:
    """Judges what a case's check has seen, and holds of it only what that concludes from.

    What is large is judged a step at a time, in a process of its own (`tasks.forks`), while the backend takes the next
    ones. The backend is not to blame for how long that takes.

    At its end all that is left is waited for. Raises what judging raises, of the first that it cannot judge, which comes
    before what a later step has raised; where nothing but an end is asked for (Ctrl-C), what is left is not judged."""

    def __init__(self, runner: Runner, case: CaseRun, check: checks.Check) -> None:
        self._runner, self._case, self._check = runner, case, check
        self._forks = Forks(closes=True)
        self._large, self._kept = False, contextlib.ExitStack()  # memory is kept from the first large outputs on
        self._waiting: list[int] = []  # of one step, which is being seen
        self._handed: list[int] = []  # to other processes
        self._spent: dict[int, list[Judgement]] = {}  # by place
        self._failed = False

    def take(self, place: int) -> None:
        """Judge what has been seen there, or have it judged with the rest of its step."""
        what = self._case.seen[place].what
        if self._waiting and (what.row is None or self._case.seen[self._waiting[0]].what.row != what.row):
            self._judge_waiting()
        size = sum(getattr(x, "nbytes", 0) for x in what.outputs)  # a backend may return what is no array
        if self._waiting or size >= LARGE:
            if not self._large:
                self._large = True
                self._kept.enter_context(heap.keep_freed_arrays(STEP_COPIES * self._measure_step()))
            if not self._waiting and what.row is not None:
                self._read_ahead(what.row + 1)
            self._waiting.append(place)
            if what.part[1] == len(self._case.sample.record.expected) and what.rank in (None, what.ranks - 1):
                self._judge_waiting()  # no more comes of this step
        else:
            with self._judging():
                self._keep(place, *self._judge(place))

    def __enter__(self) -> Spending:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        try:
            if not _is_end_asked_for(error):
                self._finish()
        except BaseException:
            self._runner.broken |= error is not None and self._runner.has_lost_device(error)
            raise
        finally:
            self._forks.end()
            self._kept.close()
            judged = itertools.takewhile(self._spent.__contains__, self._list_judged())
            self._case.spent = [one for place in judged for one in self._spent[place]]

    def _finish(self) -> None:
        self._judge_waiting()
        while any(place not in self._spent for place in self._handed):
            with self._judging():
                if not self._forks.take_next():
                    break
        # Of steps that could not be judged elsewhere: the first that raises an error does so here.
        for place in [x for x in self._handed if x not in self._spent]:
            with self._judging():
                self._keep(place, *self._judge(place))

    def _read_ahead(self, row: int) -> None:
        """Have the inputs and references of a step read from the pack before they are asked for."""
        form, expected = self._case.form, self._case.sample.expected()
        stepped = [form.arrays[k] for k in form.stepped] if form is not None else []
        for x in (*stepped, *(leaf.reference for leaf in expected)):
            if isinstance(x, np.ndarray) and row < len(x):
                heap.read_ahead(x[row : row + 1])

    def _measure_step(self) -> int:
        """Bytes of the outputs of a step, in float32."""
        return sum(4 * math.prod(x.shape[1:]) for x in self._case.sample.record.expected)

    def _list_judged(self) -> list[int]:
        """Places of what is judged, as far as it has been seen."""
        return [k for k, x in enumerate(self._case.seen) if x.what.judged and x.what.error is None]

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """The backend waits in here, and what it does next begins anew. The stage stays where judging raises."""
        begin, self._case.stage = time.perf_counter(), JUDGE
        self._runner.progress(self._case.number, JUDGE, 1)
        yield
        self._case.stage = RUN
        self._runner.progress(self._case.number, RUN, 1)
        self._case.judge_s += time.perf_counter() - begin

    def _judge_waiting(self) -> None:
        places, self._waiting = self._waiting, []

        def judge() -> list[tuple[int, list[Judgement], checks.Observation]] | None:
            try:
                return [(place, *self._judge(place)) for place in places]
            except Exception:  # which is raised where the step is judged again, after those before it
                return None

        def keep(found: list[tuple[int, list[Judgement], checks.Observation]] | None) -> None:
            self._failed |= found is None
            for one in found or ():
                self._keep(*one)

        if places:
            self._handed += places
            with self._judging():
                self._forks.do(judge, keep)
            self._case.sample.owner.pack.release()
        if self._failed:
            self._failed = False
            self._finish()

    def _judge(self, place: int) -> tuple[list[Judgement], checks.Observation]:
        """The judgements of what has been seen there, and what is concluded from."""
        case, what = self._case, self._case.seen[place].what
        found = judge_steps(case.sample, [what], self._runner.policy, self._runner.info, case.form)
        kept = self._check.spend(what, case.sample)
        case.sample.owner.pack.release()
        return found, kept

    def _keep(self, place: int, found: list[Judgement], kept: checks.Observation) -> None:
        self._spent[place] = found
        self._case.seen[place] = replace(self._case.seen[place], what=kept)


class Runner:
    """Runs cases on ``backend``; ``progress(number, stage, together)`` is told before each step.

    together: how many cases, from ``number`` on, the step is for (more than one in a joint build or run). race_s:
    seconds that a race between programs may take. passport: how the backend adds, where that is known.
    """

    def __init__(
        self,
        backend: Backend,
        info: RuntimeInfo,
        policy: Policy,
        progress: Callable[[int, int, int], None],
        race_s: float = RACE_S,
        passport: Passport | None = None,
    ) -> None:
        self.backend, self.info, self.policy, self.progress, self._race_s = backend, info, policy, progress, race_s
        self._passport = passport
        #: Set when the device of this process is unusable: the owner must replace the process.
        self.broken = False
        self._twins: TwinProcesses | None = None  # as soon as a check asks them
        self._measured_flushes: dict[str, Flushes] = {}

    def close(self) -> None:
        """End what it has started."""
        if self._twins is not None:
            self._twins.close()
        self.backend.close()

    def run(
        self, asked: Sequence[ToRun], skip: Collection[int] = (), solo: Collection[int] = (), first: int = 0
    ) -> Iterator[Done]:
        """Rows of all cases but those numbered in ``skip``, counted from ``first``; ``solo`` cases are built by
        themselves.

        Stops early when the device broke (`broken`).
        """
        firsts = itertools.accumulate((len(item.positions) for item in asked), initial=first)
        items = [RunItem(item, first) for item, first in zip(asked, firsts)]
        if not self.backend.joint:
            for item in items:
                for case in self._case_runs(item, skip):
                    yield self._held_against_contiguous(case, self._alone(case))
                    if self.broken:
                        return
                item.release()
            return
        # Neighbours of one op and check (any dtype) are built together.
        for _, neighbours in itertools.groupby(items, lambda item: item.asked.group.unit):
            unit = list(neighbours)
            cases = [case for item in unit for case in self._case_runs(item, skip)]
            together = [c for c in cases if c.number not in solo]
            yield from self._joint(together)
            for case in cases:
                if case.number in solo and not self.broken:
                    self.progress(case.number, LOAD, 1)
                    yield self._held_against_contiguous(case, self._alone(case))
            if self.broken:
                return
            for item in unit:
                item.release()

    def _case_runs(self, item: RunItem, skip: Collection[int]) -> Iterator[CaseRun]:
        for number, position in enumerate(item.asked.positions, item.first):
            if number not in skip:
                self.progress(number, LOAD, 1)  # reading the pack is part of the case
                sample = item.group.samples[position]
                if device := self.backend.torch_device:
                    sample = sample.on(device)
                yield CaseRun(number, sample, item, position)

    def _alone(self, case: CaseRun) -> Done:
        """Build and run a case by itself."""
        case.started_at = time.time()
        begin = time.perf_counter()
        try:
            case.form = form = case.form or self._form(case)
            case.stage = BUILD
            self.progress(case.number, BUILD, 1)
            begin = time.perf_counter()
            backend = self.backend.at(case.item.asked.setting)
            case.program = checks.get_check(case.sample.owner.check).build(backend, form)
        except BaseException as error:
            case.error = _is_error_of_case(error)
        case.build_ms = (time.perf_counter() - begin) * 1e3
        return self._finish(case, 1)

    def _joint(self, cases: list[CaseRun]) -> Iterator[Done]:
        if not cases:
            return
        started = time.time()
        ready = []
        for case in cases:
            case.started_at = started
            self.progress(case.number, LOAD, 1)
            try:
                case.form = self._form(case)
                self._ask_eagerly(case)
                ready.append(case)
            except BaseException as error:
                case.error = _is_error_of_case(error)
        if ready:
            self.progress(ready[0].number, BUILD, len(ready))
            begin = time.perf_counter()
            try:
                check = checks.get_check(ready[0].sample.owner.check)  # neighbours are of one check
                built = check.build_all(self.backend, [c.form for c in ready if c.form])
            except Exception as error:
                if len(ready) > 1 and self.backend.is_sticky(error):
                    # The device is lost to all of them. With this process the blame is open: each is built alone in a
                    # new one.
                    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    os._exit(LOST_DEVICE)
                built = [error] * len(ready)
            share = (time.perf_counter() - begin) * 1e3 / len(ready)
            for case, made in zip(ready, built):
                case.stage, case.build_ms = BUILD, share
                if isinstance(made, BaseException):
                    case.error = made
                else:
                    case.program = made
        for k, case in enumerate(cases):
            yield self._held_against_contiguous(case, self._finish(case, len(cases) - k))
            if self.broken:
                return

    def _held_against_contiguous(self, case: CaseRun, done: Done) -> Done:
        """A case of a kernel whose inputs are not contiguous: where it fails, what the same values in contiguous ones
        say.

        If those pass, the layout is to blame, and of several the first one that is alone. A kernel that need not take
        the layout and raises has refused it, which is no failure: the row is that of the contiguous inputs.
        """
        row, layout = done.row, case.sample.record.columns.get("layout")
        if not layout or case.form is None:
            return done
        if case.refused:
            return replace(done, row=row.with_values({"refused_layout": case.refused}))
        inputs = contiguous.find_strided_inputs(case.form)
        if contiguous.has_empty_input(
            case.form
        ):  # which a kernel may refuse as well, and nothing is to be compared then
            refused = self._explain_refusal(case)
            nothing = {
                "status": Status.VACUOUS.value,
                "kind": "",
                "stage": "",
                "error_type": "",
                "error": "no elements",
            }
            return replace(done, row=row.with_values(nothing | {"refused_layout": refused})) if refused else done
        if not inputs:  # the form has no strides
            return replace(done, row=row.with_values({"layout": f"contiguous: {case.form.kind} has no strides"}))
        refused = "" if case.sample.record.takes else self._explain_refusal(case)
        if self.broken or not (refused or Status(row.status).finding or Status(row.status) in contiguous.REFUSED):
            return done
        plain = self._with(case, contiguous.dense(case.form))
        if refused and Status(plain.row.status) not in contiguous.REFUSED:
            return replace(plain, row=plain.row.with_values({"refused_layout": refused}))
        if Status(plain.row.status) is not Status.PASS:
            return done  # it fails whatever the layout
        for number, which in inputs.items() if len(inputs) > 1 else ():
            alone = self._with(case, contiguous.dense(case.form, number)).row
            if (alone.status, alone.kind) == (row.status, row.kind):
                return replace(done, row=contiguous.blame_input_layout(alone, which))
        return replace(done, row=contiguous.blame_input_layout(row, "; ".join(inputs.values())))

    def _ask_eagerly(self, case: CaseRun) -> None:
        """Give a case that is to be compiled with others contiguous inputs if its kernel refuses them as they lie: it
        would end the compilation of all of them, and each would be compiled alone."""
        if case.sample.record.takes or not contiguous.find_strided_inputs(case.form):
            return
        assert case.form is not None
        try:
            self.backend.eager(case.form).program.run()
        except (Unsupported, Misbehaviour):
            return
        except Exception as error:
            if not self.has_lost_device(error):
                case.refused = f"{type(error).__name__}: {shorten_error(error, ERROR_LIMIT)}"
                case.form = contiguous.dense(case.form)

    def _with(self, case: CaseRun, form: Form) -> Done:
        """What comes of a case that is given another form."""
        return self._alone(CaseRun(case.number, case.sample, case.item, case.position, form=form))

    def _explain_refusal(self, case: CaseRun) -> str:
        """What a case raised instead of a result, in words; "" where it did not, or a misbehaviour or a lost device is
        what it is."""
        error = case.error
        if isinstance(error, Fallback):
            return str(error) if error.raises else ""
        if (
            error is None
            or isinstance(error, (Misbehaviour, Invalid, Vacuous))
            or self._blame(case)[0] not in contiguous.REFUSED
        ):
            return ""
        return f"{type(error).__name__}: {shorten_error(error, ERROR_LIMIT)}"

    def _form(self, case: CaseRun) -> Form:
        own, check = case.sample.owner.group.catalog, checks.get_check_or_default(case.sample.owner.check)
        if (why := check.unanswered(self.backend)) and not case.sample.failure:
            raise Unsupported(why)
        if case.sample.op_class in check.without and not case.sample.failure:
            raise Vacuous(f"the {check.name} check asks nothing of an op that is {case.sample.op_class}")
        reason: Exception | None = None
        spec = self.backend.spec
        elsewhere = None if spec is None else functools.partial(self._outputs_elsewhere, spec, case)
        for kind in self.backend.forms:
            try:
                form = case.sample.form(kind, case.item.exported_pack, elsewhere, self.backend.by_name)
            except Unsupported as error:
                # That it is no file of the runtime's own is true of nearly everything.
                reason = reason if kind in FILES else reason or error
                continue
            if form.kind == "torch" and form.call is None:  # a graph of ONNX's operators, which are torch's too
                from tasks.backends.shared.network import complete_torch_form

                form = complete_torch_form(form)
            if check.judges:
                judge = functools.partial(self._judge_other, case)
                form = replace(form, fresh=case.sample.draw_inputs, judge=judge, race_s=self._race_s)
            if case.item.asked.part:
                from tasks.graphs.traced_program import cut_traced_program

                form = cut_traced_program(form, ArrayPack(case.item.asked.part))
            return form
        if case.raises:  # and the backend takes nothing that it could be asked with
            raise Invalid(str(reason))
        raise Unsupported(str(reason or f"{self.backend.name} takes no form of the {own} catalog"))

    def _judge_other(
        self, case: CaseRun, outputs: Sequence[Any], arrays: Sequence[Any] | None = None
    ) -> Judgement | None:
        """The judgement of outputs of a case, as those of other inputs where these are given; None of such without a
        reference."""
        asked = (self.policy, self.info, case.form)
        if arrays is None:
            return judge_outputs(case.sample, [list(outputs)], *asked, measure_flushes=self._flushes)
        sample = case.sample.of_other_inputs(arrays)
        return None if sample is None else judge_outputs(sample, [list(outputs)], *asked, measure_flushes=self._flushes)

    def _outputs_elsewhere(self, spec: BackendSpec, case: CaseRun, threads: int, **how: Any) -> Sequence[Any]:
        self._twins = self._twins or TwinProcesses(spec)
        return self._twins.outputs(case.item.asked.alone(case.position), threads, **how)

    def _finish(self, case: CaseRun, together: int) -> Done:
        found: Judgement | None = None
        run_ms: float | None = None
        outputs: list[list[Any]] = []
        stages: list[checks.Observation] = []
        of_steps: Sequence[Judgement] = ()
        broken: Misbehaviour | None = None
        check = checks.get_check_or_default(case.sample.owner.check)
        only_built = not check.runs
        if case.program is not None and not only_built:
            case.stage = RUN
            self.progress(case.number, RUN, together)
            begin = time.perf_counter()
            try:
                stages = self._observe_program(case, case.program)
                outputs.append(trace.join_outputs_of_steps(stages))
                run_ms = (time.perf_counter() - begin - case.judge_s) * 1e3
                if case.item.asked.keep and not case.raises:
                    save_pack(case.item.asked.keep, {"outputs": len(outputs[0])}, [np.array(x) for x in outputs[0]])
                # A session's steps are repeated by the check replay.
                for _ in range(case.sample.record.repeats - 1 if stages[0].row is None else 0):
                    if not self.backend.by_name:  # whose outputs lie in memory that nobody writes to
                        outputs[-1] = [
                            np.array(x) for x in outputs[-1]
                        ]  # an op in place writes to the same memory again
                    outputs.append(list(case.program.run()))
            except BaseException as error:
                run_ms = run_ms or (time.perf_counter() - begin - case.judge_s) * 1e3
                if isinstance(error, Misbehaviour) and error.outputs is not None and self._matches_as_numbers(case):
                    broken, outputs = error, [list(error.outputs)]  # its numbers may be wrong as well
                else:
                    case.error = _is_error_of_case(error)
        if case.raises:
            case.error = self._held_to_refusal(case)
        if case.error is None and not only_built:
            case.stage = JUDGE
            self.progress(case.number, JUDGE, 1)
            try:
                asked = (self.policy, self.info, case.form)
                if broken is None and (len(stages) > 1 or stages[0].row is not None or check.names_faults):
                    of_steps = judge_steps(case.sample, stages, *asked) if case.spent is None else case.spent
                    found = self._judge_case(case, stages, of_steps)
                else:
                    adds = None if self._passport is None else self._find_own_arithmetic(case, self._passport)
                    found = judge_outputs(case.sample, outputs, *asked, measure_flushes=self._flushes, own=adds)
                    of_steps = [found]
            except Exception as error:
                case.error = error
        if found is not None and broken is not None:
            said = {"stage": STAGES[RUN], "error": str(broken)[:ERROR_LIMIT]}
            found = found.rule(Status.WRONG, broken.kind, said)
        program = case.program
        if found is not None and program is not None and program.fallback and found.status is not Status.VACUOUS:
            # What a compiler makes of the pieces of a model is its own, wrong results too; and a kernel of the user's
            # is wrong wherever it ran.
            own = program.pieces or case.sample.owner.group.catalog == USER
            if not (own and found.status is Status.WRONG):
                found = found.rule(Status.FALLBACK, "")
        if program is not None and program.explain is not None and case.item.asked.explained:
            try:
                program.columns = program.columns | dict(program.explain())
            except Exception as error:  # what it did not think of must not cost the finding
                program.flags = flags.join_row_flags(program.flags, unexplained=type(error).__name__)
        row, steps = self._row(case, found, run_ms), self._trace(case, of_steps)
        readings: tuple[Any, ...] = ()
        if program is not None:
            readings = program.readings
            program.release()
        return Done(case.number, row, steps, readings)

    @staticmethod
    def _find_own_arithmetic(case: CaseRun, passport: Passport) -> OwnArithmetic | None:
        """How the backend adds in the case's op and dtype, by its passport; None where nothing is known."""
        group, program = case.sample.owner.group, case.program
        if not (device := passport.list_readings(group.dtype)):
            return None
        known, parts = passport.find(group.op, group.dtype), passport.find_parts(group.op, group.dtype)
        again, form = (program.again if program is not None else None), case.form
        ask = None if again is None or form is None else contiguous.call_with_packed_arrays(form, again)
        return OwnArithmetic(known, ask, parts, device)

    def _judge_case(
        self, case: CaseRun, stages: Sequence[checks.Observation], of_steps: Sequence[Judgement]
    ) -> Judgement:
        """The judgement of a case by those of its steps; what nobody has promised is said in the flags."""
        check = checks.get_check_or_default(case.sample.owner.check)
        if check.spends and case.spent is None:
            stages = [check.spend(x, case.sample) for x in stages]
        if (concluded := check.conclude(stages, of_steps, case.sample)) is not None:
            return concluded
        held = [k for k, x in enumerate(stages) if not x.noted]
        noted = dict.fromkeys(x.noted for x, y in zip(stages, of_steps) if x.noted and y.status is Status.WRONG)
        promised = [stages[k] for k in held], [of_steps[k] for k in held]
        found = choose_worst_step(*promised)
        if found.status is Status.WRONG:
            found = self._name_fault(case, *promised, found)
        return found.flag(wrong_at=",".join(noted)) if noted else found

    @staticmethod
    def _name_fault(
        case: CaseRun, stages: Sequence[checks.Observation], of_steps: Sequence[Judgement], found: Judgement
    ) -> Judgement:
        """The judgement with what the check makes of all steps together."""
        check, sample = checks.get_check_or_default(case.sample.owner.check), case.sample
        expected, limit = sample.expected(), found.columns.get("limit") or 0.0

        def find_beyond(step: checks.Observation) -> list[np.ndarray]:
            leaves = step.expected(expected)
            return [
                worst_element.list_elements_beyond(np.asarray(a), x, sample.op_class, limit)
                for a, x in zip(step.outputs, leaves)
            ]

        kind, words = check.name_fault(stages, [x.status for x in of_steps], expected, find_beyond)
        said = {
            "error": words,
            "cause": None,
            "cause_code": None,
        }  # what explains one step's numbers is beside the point
        return found.rule(Status.WRONG, kind, said) if kind else found

    def _held_to_refusal(self, case: CaseRun) -> BaseException:
        """What a case is worth whose reference raises: the case is invalid where the backend raises or runs eagerly as
        well, whatever it says; that it returned a result is wrong, unless it is eager torch itself."""
        failure, error = case.sample.failure, case.error
        assert failure is not None
        if error is None:
            if self.backend.is_eager_cpu:  # the module raises at some calls only
                return Invalid(failure.error)
            text = f"it returned a result where eager torch raises {failure.error_type}: {failure.error}"
            return Misbehaviour(KIND_ACCEPTED, text)
        return error if self.has_lost_device(error) else Invalid(failure.error)

    def has_lost_device(self, error: BaseException) -> bool:
        """Whether nothing is to be computed in this process after what was raised."""
        return isinstance(error, Exception) and (self.backend.is_sticky(error) or self.backend.is_out_of_memory(error))

    def _flushes(self, dtypes: Sequence[str]) -> Flushes:
        """What the backend takes for zero in some dtypes; measured when a verdict may hang on it."""
        for dtype in dtypes:
            if dtype not in self._measured_flushes:
                self._measured_flushes[dtype] = self.backend.measure_flushing(dtype)
        return functools.reduce(operator.or_, (self._measured_flushes[x] for x in dtypes), Flushes())

    @staticmethod
    def _matches_as_numbers(case: CaseRun) -> bool:
        """Whether what a misbehaving program returned is what the case expects, as its numbers."""
        check = checks.get_check_or_default(case.sample.owner.group.check)
        return check.needs == checks.FORWARD and not check.own_call

    def _observe_program(self, case: CaseRun, program: Program) -> list[checks.Observation]:
        """What is judged of a program, run as the case's check wants it. Raises what one of its steps raised."""
        assert case.form is not None, "a program is built of a form"
        check = checks.get_check(case.sample.owner.check)
        steps = check.stages(program, case.form)
        spends = check.spends and not case.item.asked.keep
        with Spending(self, case, check) if spends else contextlib.nullcontext() as spending:
            begin = time.perf_counter()
            try:
                for seen in steps:
                    case.seen.append(trace.TracedSteps.of(seen, (time.perf_counter() - begin) * 1e3))
                    if seen.error is not None:
                        case.culprit = seen.name if seen.judged else ""
                        raise seen.error
                    if spending is not None and seen.judged:
                        spending.take(len(case.seen) - 1)
                    begin = time.perf_counter()
            finally:
                if isinstance(steps, Generator):  # a session is closed here, and not when somebody forgets it
                    steps.close()
        return [x.what for x in case.seen if x.what.judged]

    def _trace(self, case: CaseRun, found: Sequence[Judgement]) -> tuple[TraceStep, ...]:
        """The rows of the table ``trace``. found: the judgements of the steps that are judged."""
        if len(case.seen) == 1 and not case.seen[0].state_digest:  # as nearly all cases
            return ()
        complete = [x.what for x in case.seen if x.what.judged and x.what.error is None]
        if case.spent is not None:  # nothing is held that could be judged again
            return trace.list_trace_rows(case.seen, case.spent)
        if len(case.seen) > 1 and len(found) < len(complete):  # a later step has ended the case
            with contextlib.suppress(Exception):  # what cannot be judged has its error, and costs nobody the row
                found = judge_steps(case.sample, complete, self.policy, self.info, case.form)
        return trace.list_trace_rows(case.seen, found if len(found) == len(complete) else ())

    def _row(self, case: CaseRun, found: Judgement | None, run_ms: float | None) -> Row:
        """The row of a case by its judgement, or by what it raised; of a case that is only built there is neither."""
        row = list_prepared_columns(case.sample)
        program, metrics = case.program, found.metrics if found else None
        status, kind, stage, error_type, text = Status.PASS, "", "", "", ""
        if case.error is not None:
            status, stage, error_type, text = self._blame(case)
            if isinstance(case.error, Misbehaviour):
                kind = case.error.kind
            elif isinstance(case.error, Invalid):
                kind = case.sample.failure.kind if case.sample.failure else case.error.kind
        elif found is not None:
            status, kind = found.status, found.kind
        elif program is not None and program.fallback:
            status = Status.FALLBACK
        if case.error is None and metrics is not None:
            if metrics.kind:
                text = metrics.detail
            elif metrics.nonfinite:
                text = f"{metrics.nonfinite} of {metrics.numel} elements are NaN or Inf where the reference is not, or the other way round"
        if program is not None:
            row["placement"] = program.placement
            row["execution"] = EMULATED if self.backend.emulated else program.execution
            row["flags"] = " ".join(filter(None, (row.get("flags"), program.flags, variables.HERE)))
            row |= program.columns
            if program.fallback and not text:
                text = program.fallback
        if self.backend.identity:
            row["flags"] = " ".join(filter(None, (row.get("flags"), *self.backend.identity)))
        row |= {
            "status": status.value,
            "kind": kind,
            "stage": stage,
            "error_type": error_type,
            "culprit": case.culprit,
            "error": text[:ERROR_LIMIT],
            "build_ms": case.build_ms,
            "run_ms": run_ms,
            "started_at": case.started_at,
            "policy": self.policy.id,
        }
        if metrics is not None:
            row |= zip(METRICS, _measured(metrics))
        if found is not None:
            columns = dict(found.columns)
            if measured := columns.pop("flags", ""):
                row["flags"] = f"{row.get('flags') or ''} {measured}".strip()
            row |= columns
        return Row.of(row)

    def _blame(self, case: CaseRun) -> tuple[Status, str, str, str]:
        """(status, stage, error type, text) of what was raised."""
        error, stage = case.error, STAGES[case.stage]
        assert error is not None
        name, text = type(error).__name__, shorten_error(error, ERROR_LIMIT)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            text = text or f"the case raised {name}"
        if isinstance(error, Invalid):
            failure = case.sample.failure
            if failure is None:  # what only this process could tell
                return Status.INVALID, stage, "", text
            case.culprit = failure.culprit
            return Status(failure.status), failure.stage, failure.error_type, failure.error
        if isinstance(error, Misbehaviour):
            return Status.WRONG, stage, "", text
        if self._is_excuse(error):
            return Status.ERROR, stage, name, text
        if isinstance(error, Vacuous):
            return Status.VACUOUS, stage, "", text
        if isinstance(error, Unsupported):
            code = "" if type(error) is Unsupported else name  # whose class says why
            return Status.UNSUPPORTED, "export" if case.stage == LOAD else stage, code, text
        if isinstance(error, Fallback):
            return Status.FALLBACK, stage, "", text
        if isinstance(error, Hung):
            return Status.TIMEOUT, stage, "", text
        if self.backend.is_sticky(error):
            self.broken = True
            return Status.CRASH, stage, name, text
        if self.backend.is_out_of_memory(error):
            self.broken = True
            return Status.OOM, stage, name, text
        if self.backend.is_unsupported(error):
            return Status.UNSUPPORTED, stage, name, text
        if case.form is not None and case.form.invalid:
            return Status.UNSUPPORTED, "export", name, f"the exported graph is invalid: {case.form.invalid}; {text}"
        if stage in (STAGES[BUILD], STAGES[RUN]) and (why := self._explain_undeclared(case.sample, error)):
            return Status.UNSUPPORTED, stage, name, f"{why}: {text}"
        return Status.ERROR, stage, name, text

    def _is_excuse(self, error: BaseException) -> bool:
        """Whether the process of a submission says that it need not answer. What its task declares it has to; and whose
        word that is, the backend's or the kernel's, nobody can tell from outside."""
        if not hasattr(error, "told") or not user_definitions.are_kernels_of_submission():
            return False
        return isinstance(error, (Vacuous, Unsupported, Fallback)) or self.backend.is_unsupported(error)

    def _explain_undeclared(self, sample: PreparedSample, error: BaseException) -> str:
        """Why the device need not compute a case that it refused; "" where it is declared to, or nobody says."""
        group, device = sample.owner.group, self.backend.torch_device
        if not self.backend.refuses(error):
            return ""
        catalog = catalogs.get_catalog_if_installed(group.catalog) if device else None
        try:
            return catalog.undeclared(group, sample.record.args, sample.record.kwargs, device) if catalog else ""
        except Exception:
            return ""  # what cannot be asked acquits nobody


def _is_end_asked_for(error: BaseException | None) -> bool:
    """Whether it is Ctrl-C where that raises KeyboardInterrupt: in a process of the user's, as children do not heed
    it."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _is_error_of_case(error: BaseException) -> BaseException:
    """What a case raised. An end that is asked for is no case's."""
    if _is_end_asked_for(error):
        raise error
    return error
