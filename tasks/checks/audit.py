"""The check audit: whether a kernel computes what it returns, call by call, and if not, what it does in its place."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.checks.base import FindBeyond, Observation, Scenario
from tasks.checks.derived import Derived
from tasks.checks.same_bytes import copy_program_outputs
from tasks.model import (
    EPS,
    Form,
    Leaf,
    Misbehaviour,
    OpClass,
    Placing,
    Program,
    Session,
    Status,
    Unsupported,
    flags,
    is_inexact_dtype,
)
from tasks.model.kind import (
    KIND_CONSTANT,
    KIND_CONTENT,
    KIND_FIRST,
    KIND_HALF,
    KIND_LATE,
    KIND_MADE_FOR,
    KIND_POINTER,
    KIND_PROTOCOL,
    KIND_READS,
    KIND_SHAPE,
    KIND_SKIPS,
    KIND_STREAM,
    KIND_UNSTEADY,
    KIND_UNWRITTEN,
)

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: Sets of inputs (`tasks.prepare.derived.audit`).
OWN, OTHER = "own values", "other values"
#: Of several inputs the first one of the other values: all of them are known to the kernel, but not together.
MIXED = "the first input of the other values"
FIRST_HALF, LAST_HALF, CHANGED = "first half of the own values", "last half of the own values", "one value changed"
SORTED, EQUAL, ZERO = "sorted values", "equal values", "zeros"
#: Of other sizes than the declared ones, which divide as these do; what ends their names where nobody promises that the
#: kernel is right there.
BETWEEN, BEYOND, NOT_PROMISED = "sizes between the declared ones", "larger sizes", " (not promised)"
RESIZED = (BETWEEN, BEYOND, BETWEEN + NOT_PROMISED, BEYOND + NOT_PROMISED)
#: Sets that come beside one another, as they have the sum, all values but one, or a half in common: what keeps its last
#: result alone returns it there.
_BESIDE = (ZERO, EQUAL, SORTED, OWN, CHANGED, LAST_HALF, OTHER, FIRST_HALF)
#: Calls that a kernel's process is to have made, those of other checks among them, and how many if those in another
#: order take longer than some seconds; if they take twenty times as long, or the judge has waited so many seconds for
#: them, each set is given once.
CALLS, LEAST, REPEATS_S, WAIT_S = 64, 48, 0.05, 10.0
#: Calls that are under way at most, and bytes of their outputs, which wait in memory that is no process's.
AHEAD, BYTES_AHEAD = 8, 16 << 20
#: Seconds that a call works from which on most sets are given to guarded memory once alone, with one byte or the other.
SLOW_S = 2e-3
#: Bytes that fill what is not the kernel's: as floats of any width NaN, then a large number.
FILLS = (0xFF, 0x7B)
#: Milliseconds after which outputs are read again, and for which the kernel is left alone.
PAUSE_MS = 20.0
#: Sets of which what is repeated must do less than the first time, for that to be no chance.
_REPEATED = 3
#: The shortest time of a call of which a half is told from the whole: where most sets are repeated, and where
#: `_REPEATED` are.
_TOLD_NS, _TOLD_OF_FEW_NS = 300_000, 1_000_000
#: Results of one set of inputs that are nearer to one another than so many ε of their size need no other verdict.
_NEAR = 64
#: Of an element that is off: a share of itself and of the output's root mean square.
_OFF = 1e-3


@dataclass(frozen=True)
class AuditedCall(Observation):
    """One call. number: from 1; given: which set of inputs, of the name ``of``; times: its number and where its inputs
    lay, and the same of all later calls that gave these outputs; late: numbers of calls that gave them when they were
    read a second time."""

    number: int = 0
    given: int = 0
    of: str = ""
    late: list[int] = field(default_factory=list)
    times: list[tuple[int, Placing]] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether a call with nothing around it gave these outputs, in memory of its own."""
        return any(x.fill is None and not x.stream and not x.same for _, x in self.times)

    @property
    def arranged(self) -> bool:
        return self.of in (SORTED, EQUAL, ZERO)

    @property
    def numbers(self) -> list[int]:
        """Of the calls that gave these outputs."""
        return [number for number, _ in self.times]


class Audit(Derived, Scenario):
    """Calls of one program on several sets of inputs, of each of which it is known what it is to give.

    The own inputs; other ones in the same memory; both again in new memory; then each further set twice with red zones
    around inputs and outputs and with memory filled with a byte, another one each time, its inputs overwritten before
    the outputs are read (of a slow kernel most sets once); then all sets with nothing around them, each as a case of
    its own, and in one order and the other until the process of the kernel has made ``CALLS`` or their time is up; with
    outputs that are read twice; after a pause; on another stream.
    """

    name = "audit"
    gives_inputs = True
    whole = True
    of_model = False
    exported = True
    case_worth = 20.0  # two to three times the eight cases of the forward check
    about = (
        "whether the kernel computes what it returns: values, memory, order and number of calls change; names what it does instead (kept by "
        "pointer, shape or content, lazy, first calls only, reads or writes outside, …)"
    )
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)
    distributions = ("own",)  # of each further one it would ask the same

    def build(self, backend: Backend, form: Form) -> Program:
        program = backend.build(form)
        program.called = backend.count_calls(form)
        program.cpu_clock = backend.cpu_s
        if program.placed is not None:

            def run_anew(arrays: list[Any]) -> Sequence[Any]:
                return backend.build_to_run(replace(form, arrays=arrays, sets=())).run()

            program.anew = run_anew
        return program

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        with contextlib.closing(_AuditedCalls(program, form)) as calls:
            yield from calls.make()
        lists = {"not_reached": calls.not_reached, "refuses_at": calls.refused, "breaks_at": calls.broken}
        said = {"calls": calls.number} | {name: ",".join(x) for name, x in lists.items() if x}
        program.flags = flags.join_row_flags(program.flags, **said)
        program.columns = program.columns | {"cheat": KIND_CONTENT if calls.repeats_less else ""}

    def name_fault(
        self, seen: Sequence[Observation], statuses: Sequence[Status], expected: Sequence[Leaf], find_beyond: FindBeyond
    ) -> tuple[str, str]:
        calls = [x for x in seen if isinstance(x, AuditedCall)]
        return _AuditEvidence(calls, [x is Status.WRONG for x in statuses], expected).name()


# --- calls --------------------------------------------------------------------------------------------------------


#: Inputs with nothing around them, in memory of their own.
PLAIN = Placing()


@dataclass(frozen=True)
class Asked:
    """A call that is to be made: of which set of inputs, where these lie, and whether as a case of its own."""

    given: int
    placing: Placing = PLAIN
    anew: bool = False


@dataclass
class AwaitedCall:
    """A call whose outcome is still to be seen. make: makes it, or, where it is under way, waits for its outputs;
    outcome: these, or what it has raised, where that is known."""

    asked: Asked
    make: Callable[[], Sequence[Any]]
    is_under_way: bool
    outcome: list[Any] | Exception | None = None

    def wait(self) -> list[Any] | Exception:
        """Wait for what comes of it."""
        if self.outcome is None:
            try:
                self.outcome = copy_program_outputs(self.make())
            except Exception as error:
                self.outcome = error
        return self.outcome


class _AuditedCalls:
    """The calls of one program, one after another.

    number: how many were made; call_s: seconds that each of the first of them but one has worked; not_reached: what could not be done;
    refused: sizes that nobody has declared, for which the kernel raises; broken: those that nobody promises, for which
    it misbehaves; found_out: whether it did elsewhere; repeats_less: whether values that came again were computed by
    less.
    """

    def __init__(self, program: Program, form: Form) -> None:
        self.program = program
        self.names = form.sets or (OWN,)
        self.inputs = [form.inputs_of(k) for k in range(len(self.names))]
        #: The shapes of each set of inputs, in a word.
        self.sizes = ["+".join("x".join(map(str, x.shape)) for x in arrays) for arrays in self.inputs]
        self.number = 0
        self.call_s = 0.0
        self.not_reached: list[str] = []
        self.refused: list[str] = []
        self.broken: list[str] = []
        self.known: dict[int, list[AuditedCall]] = {}
        self.counts: dict[int, list[tuple[int, ...]]] = {}
        self.left_out: set[int] = set()
        #: In the order in which they were begun.
        self.awaited: deque[AwaitedCall] = deque()
        #: Bytes of the outputs of inputs of some sizes, of which a call is over.
        self.output_bytes: dict[str, int] = {}
        self.found_out = False
        if program.placed is None and program.again is None:
            raise Unsupported("the runtime takes a program's inputs only once")
        if program.placed is None:
            self.not_reached += ["memory", "pause", "stream"]
        if not set(RESIZED) & set(self.names):
            self.not_reached.append("sizes")

    @property
    def repeats_less(self) -> bool:
        """Whether every set of inputs did less the second time than the first, of at least `_REPEATED` (what is kept of
        one input alone, such as packed weights, is there for the first call with `MIXED` already): fewer operations or
        lines, or, where none are seen, in less of a time that is long enough to tell, and mostly in less than half; of
        few sets always."""
        pairs = [x for x in self.counts.values() if len(x) == 2]
        if len(pairs) < _REPEATED:
            return False
        done = [[pair[k][:2] for k in range(2)] for pair in pairs]
        if all(any(b < a for a, b in zip(*pair)) and not any(b > a for a, b in zip(*pair)) for pair in done):
            return True
        times = [(first[2], again[2]) for first, again in pairs]
        shares = sorted(again / max(first, 1) for first, again in times)
        few = len(pairs) == _REPEATED
        told, most = (_TOLD_OF_FEW_NS, shares[-1]) if few else (_TOLD_NS, shares[len(shares) // 2])
        return all(first >= told and again < first for first, again in times) and most < 0.5

    def make(self) -> Iterator[AuditedCall]:
        """All calls."""
        yield from self._see(iter([Asked(0)]))
        measure_spent = self._start_clock()  # the first one may have compiled
        yield from self._see(self.of_values())
        self.call_s = measure_spent() / max(self.number - 1, 1)
        for asked in (self.of_memory(), self.of_order(), self.of_time()):
            yield from self._see(asked)

    def _start_clock(self) -> Callable[[], float]:
        """What says how many seconds the kernel has worked from now on, by which it is asked less: by the wall clock, or
        by the CPU time of its process where that is less. Neither others that have the processors nor a kernel that
        sleeps makes it slow by this, nor threads that compute at the same time."""
        begin, worked = time.perf_counter(), self._read_cpu_clock()
        return lambda: max(min(time.perf_counter() - begin, self._read_cpu_clock() - worked), 0.0)

    def _read_cpu_clock(self) -> float:
        try:
            return self.program.cpu_clock()
        except OSError:  # its process has ended
            return 0.0

    def close(self) -> None:
        """Make no more calls: neither what is under way nor what a kernel that is found out leaves in its process must
        reach into the next case."""
        if (self.awaited or self.found_out) and self.program.abandon is not None:
            self.program.abandon()

    def of_values(self) -> Iterator[Asked]:
        """After a call with the own values: values change under one pointer, and pointers under the same values."""
        other = self.names.index(OTHER) if OTHER in self.names else 0
        yield Asked(other, Placing(same=True))
        yield Asked(0, Placing(same=True))
        yield Asked(other)
        yield Asked(0)

    def of_memory(self) -> Iterator[Asked]:
        """Every further set twice in guarded memory, then the first two as well; of a slow kernel `_REPEATED` of them
        twice."""
        order = [*range(2, len(self.names)), 0, 1][: len(self.names)]
        for k, given in enumerate(order if self.program.placed else ()):
            twice = k < _REPEATED or self.call_s < SLOW_S
            # Each byte comes first in turn: else what is wrong at every other call were wrong with one of them.
            fills = FILLS if k % 2 == 0 else FILLS[::-1]
            for fill in fills if twice else fills[:1]:
                yield Asked(given, Placing(fill=fill, spoil=True, counted=given > 1))

    def of_order(self) -> Iterator[Asked]:
        """One value changed under one pointer; all sets as cases of their own, each beside one that is nearly the same,
        then backwards in the same memory, in new memory and so on, until the calls are made or their time is up. A
        kernel that counts its calls has counted those of other checks too."""
        begin, measure_spent = time.perf_counter(), self._start_clock()
        beside = [self.names.index(x) for x in _BESIDE if x in self.names]
        order = [*(k for k in range(len(self.names)) if k not in beside), *beside]
        count, before = len(order), self.program.called + 4
        if CHANGED in self.names:  # where the own values have lain; not before what it does is counted
            yield Asked(self.names.index(CHANGED), Placing(same=True))
        for k in itertools.count():
            taken, (turn, place) = measure_spent(), divmod(k, count)
            late = taken > 20 * REPEATS_S or time.perf_counter() - begin > WAIT_S
            made = self.number + len(self.awaited) + before >= (CALLS if taken < REPEATS_S else LEAST)
            if turn and (made or late):
                return
            given = order[-1 - place if turn % 2 else place]
            yield Asked(given, Placing(same=bool(turn % 2)), anew=not turn)

    def of_time(self) -> Iterator[Asked]:
        """The outputs read twice; after a pause; on another stream."""
        if self.program.placed is None:
            return
        last = min(1, len(self.names) - 1)
        yield Asked(last)  # so that what was there before is another result
        yield Asked(0, Placing(pause=PAUSE_MS))
        yield Asked(last)
        yield Asked(last, Placing(stream=True))

    def _see(self, asked: Iterator[Asked]) -> Iterator[AuditedCall]:
        """What is seen of calls, of which some are begun before the ones before them are looked at: the kernel's
        process need not wait for its judge between them."""
        coming: Asked | None = next(asked, None)
        while coming is not None or self.awaited:
            while coming is not None and (coming.given in self.left_out or self._begin(coming)):
                coming = next(asked, None)
            if self.awaited:
                yield from self._see_one(self.awaited.popleft())

    def _begin(self, asked: Asked) -> bool:
        """Begin a call; False where those before it have to be over first: before one as a case of its own, which must
        look like one, with nothing behind it; and where nobody knows how large their outputs are."""
        if not self._may_begin(asked):
            return False
        begun: Callable[[], Sequence[Any]] | None = None
        outcome: Exception | None = None
        if self.program.begin_placed is not None and not self._is_anew(asked):
            try:
                begun = self.program.begin_placed(self.inputs[asked.given], asked.placing)
            except Exception as error:  # which must not hide what those before it have done
                outcome = error
        is_under_way = begun is not None or outcome is not None
        if self.awaited and not is_under_way:
            return False
        made = begun or functools.partial(self._run, asked)
        self.awaited.append(AwaitedCall(asked, made, is_under_way, outcome))
        return True

    def _may_begin(self, asked: Asked) -> bool:
        """Whether a call may be under way beside those that are."""
        if not self.awaited:
            return True
        if len(self.awaited) >= AHEAD or not all(x.is_under_way for x in self.awaited):
            return False
        sizes = [self.output_bytes.get(self.sizes[x.given]) for x in (asked, *(x.asked for x in self.awaited))]
        known = [x for x in sizes if x is not None]
        return len(known) == len(sizes) and sum(known) <= BYTES_AHEAD

    def _is_anew(self, asked: Asked) -> bool:
        return asked.anew and self.program.anew is not None

    def _see_one(self, call: AwaitedCall) -> Iterator[AuditedCall]:
        """What is seen of one call; nothing where its outputs are known, or a size is refused that nobody has
        declared."""
        given, placing = call.asked.given, call.asked.placing
        outcome = call.wait()
        if given in self.left_out:  # since it was begun
            return
        self.number += 1
        name = self.names[given]
        noted = self.sizes[given] if name.endswith(NOT_PROMISED) else ""
        seen = functools.partial(
            AuditedCall, f"call {self.number}: {name}", number=self.number, given=given, of=name, noted=noted
        )
        if isinstance(outcome, Misbehaviour):
            if noted and outcome.kind != KIND_PROTOCOL:  # which has ended its process
                self.left_out.add(given)
                self.broken.append(noted)
            else:
                self.found_out = True
                yield seen(error=outcome, judged=False, kind=outcome.kind)
            return
        if isinstance(outcome, Exception):
            self.number -= isinstance(outcome, Unsupported)
            if placing.stream and isinstance(outcome, Unsupported):
                self._leave_out("stream")
            elif name in RESIZED:
                self.left_out.add(given)
                self.refused.append(self.sizes[given])
                self._leave_out("sizes")
            elif placing.fill is not None and self._takes(given):
                self._leave_out("memory")
            else:
                yield seen(error=outcome)
            return
        outputs = outcome
        self.output_bytes[self.sizes[given]] = sum(x.nbytes for x in outputs if x is not None)
        if placing.counted:
            self.counts.setdefault(given, []).append(tuple(int(x) for x in np.ravel(outputs.pop())))
        halves = [outputs] if not placing.pause else [outputs[: len(outputs) // 2], outputs[len(outputs) // 2 :]]
        for late, found in enumerate(halves):
            known = self.known.setdefault(given, [])
            same = next((x for x in known if _are_audited_near(found, x.outputs)), None)
            if same is None:
                part = (given * len(found), (given + 1) * len(found))
                same = seen(found, part=part)
                known.append(same)
                yield same
            if late:
                same.late.append(self.number)
            else:
                same.times.append((self.number, placing))

    def _leave_out(self, what: str) -> None:
        if what not in self.not_reached:
            self.not_reached.append(what)

    def _run(self, asked: Asked) -> Sequence[Any]:
        arrays = self.inputs[asked.given]
        if self._is_anew(asked):
            assert self.program.anew is not None
            return self.program.anew(arrays)
        if self.program.placed is not None:
            return self.program.placed(arrays, asked.placing)
        assert self.program.again is not None
        return self.program.again(arrays)

    def _takes(self, given: int) -> bool:
        """Whether a set of inputs is taken in plain memory."""
        for call in self.awaited:  # whose answers come before
            call.wait()
        try:
            self._run(Asked(given))
        except Exception:
            return False
        return True


def _are_audited_near(these: Sequence[Any], those: Sequence[Any]) -> bool:
    """Whether outputs are the same but for an order of additions."""
    return len(these) == len(those) and all(map(_is_audited_near, these, those))


def _is_audited_near(a: Any, b: Any) -> bool:
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return a is b
    if a.dtype.kind == "O" or a.tobytes() == b.tobytes():
        return bool(a.dtype.kind != "O" or a.tolist() == b.tolist())
    return is_inexact_dtype(a.dtype.name) and not _find_elements_off(a, b, _NEAR * EPS.get(a.dtype.name, 0.0)).any()


def _find_elements_off(actual: np.ndarray, exact: np.ndarray, share: float) -> np.ndarray:
    """Which elements are off by more than a share of themselves and of the root mean square."""
    wide = np.complex128 if "c" in (actual.dtype.kind, exact.dtype.kind) else np.float64
    a, y = actual.astype(wide), exact.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.isfinite(y)
        size = np.sqrt(np.mean(np.square(np.abs(y[finite])))) if finite.any() else 0.0
        near = (np.abs(a - y) <= share * (np.abs(y) + size)) | (a == y) | (np.isnan(a) & np.isnan(y))
    return ~near


# --- what they show -----------------------------------------------------------------------------------------------


class _AuditEvidence:
    """The judged calls of a case, and which of them are wrong."""

    def __init__(self, calls: Sequence[AuditedCall], wrong: Sequence[bool], expected: Sequence[Leaf]) -> None:
        self.calls, self.expected = calls, expected
        self.wrong = [call for call, bad in zip(calls, wrong) if bad]
        self.right = [call for call, bad in zip(calls, wrong) if not bad]
        self.right_sets = {x.given for x in self.right}
        self._other = self._number(OTHER)
        self._short = {self._number(x) for x in (SORTED, EQUAL, ZERO)}

    def name(self) -> tuple[str, str]:
        if not self.wrong:
            return "", ""
        for look in (
            self._is_late,
            self._is_on_another_stream,
            self._is_unwritten,
            self._reads_outside,
            self._is_of_first_calls,
            self._is_kept,
            self._is_constant,
            self._is_unsteady,
            self._is_of_sizes,
            self._is_half,
            self._skips_work,
            self._is_made_for,
        ):
            if found := look():
                return found
        return "", ""

    def _is_late(self) -> tuple[str, str] | None:
        for call in self.right:
            if any(number in x.numbers for number in call.late for x in self.wrong if x.given == call.given):
                return KIND_LATE, f"{call.name}: right only when read again after {PAUSE_MS:g} ms"
        return None

    def _is_on_another_stream(self) -> tuple[str, str] | None:
        if all(x.times and all(p.stream for _, p in x.times) for x in self.wrong):
            return (
                KIND_STREAM,
                f"{self.wrong[0].name}: wrong where the caller's stream is busy and its own is not waited for",
            )
        return None

    def _is_unwritten(self) -> tuple[str, str] | None:
        """Elements are the byte that was there before, whichever that was: one alone may have come from elsewhere."""
        for given in {x.given for x in self.wrong}:
            found: dict[int, tuple[AuditedCall, int]] = {}
            for call in self.wrong:
                for fill in {p.fill for _, p in call.times if p.fill is not None} if call.given == given else ():
                    pairs = zip(call.outputs, self._leaves(call))
                    if count := sum(
                        int(_find_fill_elements(x, leaf, fill).sum()) for x, leaf in pairs if x.shape == leaf.shape
                    ):
                        found[fill] = call, count
            if len(found) == len(FILLS):
                call, count = next(iter(found.values()))
                total = sum(x.size for x in call.outputs)
                return KIND_UNWRITTEN, f"{call.name}: {count} of {total} elements are what lay there before"
        return None

    def _reads_outside(self) -> tuple[str, str] | None:
        """Wrong with bytes around its inputs and in its memory. A call without may find them as well, in memory that is
        free again, or those of other kernels that were audited before."""
        if not all(x.given in self.right_sets for x in self.wrong):
            return None
        filled = [n for x in self.calls for n, p in x.times if p.fill is not None]
        from_then_on = bool(filled) and all(
            min(x.numbers, default=0) >= min(filled) and any(p.fill is not None for _, p in x.times) for x in self.wrong
        )
        if from_then_on or self._hangs_on_byte():
            return KIND_READS, f"{self.wrong[0].name}: wrong only with other bytes around its inputs and in its memory"
        return None

    def _hangs_on_byte(self) -> bool:
        """Whether of the calls with bytes around their inputs those with one byte are wrong and those with the other
        right, each of at least `_REPEATED` sets."""
        right, wrong = (
            [(p.fill, x.given) for x in calls for _, p in x.times if p.fill is not None]
            for calls in (self.right, self.wrong)
        )
        if {fill for fill, _ in right} & {fill for fill, _ in wrong}:
            return False
        return min(len({given for _, given in x}) for x in (right, wrong)) >= _REPEATED

    def _is_constant(self) -> tuple[str, str] | None:
        first = self.calls[0]
        alike = {x.given for x in self.calls if _have_same_bytes(x.outputs, first.outputs)}
        same_sizes = {x.given for x in self.calls if _list_call_shapes(x) == _list_call_shapes(first)}
        if first in self.wrong and len(alike) > 1 and alike == same_sizes and self.right_sets <= self._short:
            return KIND_CONSTANT, f"{len(alike)} sets of inputs give the same bytes"
        if first in self.wrong and all(map(_is_call_uniform, self.wrong)) and self.right_sets <= self._short:
            return KIND_CONSTANT, "every output is one number, over and over"
        return None

    def _is_kept(self) -> tuple[str, str] | None:
        kept = [
            (call, source)
            for call in self.wrong
            if (source := next((x for x in self.right if x.given != call.given and self._gives(call, x)), None))
        ]
        if not kept:
            return self._was_kept_before()
        call, source = kept[0]
        words = f"{call.name}: the bytes of {source.name}"
        if not any(x.given == self._other and x.is_plain for x in self.right):
            return KIND_SHAPE, f"{words}, of the same shapes"
        if any(x.given == self._other and y.given == 0 and any(p.same for _, p in x.times) for x, y in kept):
            return KIND_POINTER, f"{words}, in the same memory"
        whole = {0, self._other}
        if not any({x.given, y.given} <= whole for x, y in kept) and all(
            any(x is y for y, _ in kept) for x in self.wrong if x.given in whole
        ):
            return KIND_CONTENT, f"{words}, which has a part of the same values"
        return None

    def _was_kept_before(self) -> tuple[str, str] | None:
        """Kept since a call of another check: of the first call's shapes every set of inputs gives the same numbers, and
        those of shapes that are new are right."""
        first = self.calls[0]
        alike = {x.given for x in self.calls if _have_same_bytes(x.outputs, first.outputs)}
        same_sizes = {x.given for x in self.calls if _list_call_shapes(x) == _list_call_shapes(first)}
        told = all(is_inexact_dtype(x.dtype.name) and np.isfinite(x).all() for x in first.outputs)
        if first not in self.wrong or len(alike) < 2 or alike != same_sizes or not self.right_sets:
            return None
        if not told or _is_call_uniform(first):
            return None
        return (
            KIND_SHAPE,
            f"{first.name}: the bytes of all {len(alike)} sets of inputs of the same shapes, not of others",
        )

    def _is_of_first_calls(self) -> tuple[str, str] | None:
        """Of inputs that have both, every right call comes before every wrong one of any."""
        both = {x.given for x in self.right} & {x.given for x in self.wrong}
        right = [n for x in self.right if x.given in both for n in x.numbers]
        wrong = [n for x in self.wrong for n in x.numbers]
        if both and right and wrong and max(right) < min(wrong):
            return KIND_FIRST, f"calls 1 to {max(right)} are right, and none from call {min(wrong)} on"
        return None

    def _is_unsteady(self) -> tuple[str, str] | None:
        for call in self.wrong:
            right = [n for x in self.right if x.given == call.given for n in x.numbers]
            if right and any(min(right) < n < max(right) for n in call.numbers):
                return KIND_UNSTEADY, f"{call.name}: wrong, and right before and after that"
        return None

    def _is_half(self) -> tuple[str, str] | None:
        parts = []
        for call in self.wrong:
            for x, leaf in zip(call.outputs, self._leaves(call)):
                if x.shape != leaf.shape or not x.ndim or x.shape[0] < 2 or leaf.reference is None:
                    return None
                off = _find_elements_off(x, leaf.reference, _OFF)
                if off.any():
                    rows = off.reshape(len(off), -1).mean(1)
                    parts.append((np.flatnonzero(rows), len(off), float(rows[rows > 0].mean())))
        if not parts:
            return None
        for places, count, share in parts:
            if len(places) > (count + 1) // 2 or share < 0.3 or np.diff(places).max(initial=1) > 1:
                return None
            if places[0] and places[-1] != count - 1:
                return None
        places, count, _ = parts[0]
        return (
            KIND_HALF,
            f"{self.wrong[0].name}: rows {places[0]} to {places[-1]} of {count} are wrong, the others right",
        )

    def _is_of_sizes(self) -> tuple[str, str] | None:
        resized = {self._number(x) for x in RESIZED}
        if {0, self._other} <= self.right_sets and {x.given for x in self.wrong} <= resized:
            if all(len(x) < 2 for call in self.right for x in call.outputs if x.ndim) and (half := self._is_half()):
                return half  # of one row there is none
            return (
                KIND_MADE_FOR,
                f"{self.wrong[0].name}: wrong, and right for the sizes that are declared; a kernel with a limit raises beyond it, and of one that "
                "is asked for no other sizes the declaration says sizes: declared",
            )
        return None

    def _skips_work(self) -> tuple[str, str] | None:
        if {0, self._other} <= self.right_sets and {x.given for x in self.wrong} <= self._short:
            return KIND_SKIPS, f"{self.wrong[0].name}: wrong, and right for values without an order"
        return None

    def _is_made_for(self) -> tuple[str, str] | None:
        if 0 in self.right_sets and not any(x.given == 0 for x in self.wrong):
            return KIND_MADE_FOR, f"{self.wrong[0].name}: wrong, and right for the inputs of the forward check"
        return None

    def _number(self, name: str) -> int:
        return next((x.given for x in self.calls if x.of == name), -1)

    def _leaves(self, call: AuditedCall) -> list[Leaf]:
        return call.expected(list(self.expected))

    def _gives(self, call: AuditedCall, source: AuditedCall) -> bool:
        """Whether a call gave what another set of inputs is to give, or gave when it was right, and is no number over
        and over."""
        return _have_same_bytes(call.outputs, source.outputs) and not _is_call_uniform(call)


def _find_fill_elements(x: np.ndarray, leaf: Leaf, fill: int) -> np.ndarray:
    """Which elements are a byte all over, and are to be something else."""
    size = x.dtype.itemsize
    held = (np.frombuffer(x.tobytes(), np.uint8).reshape(-1, size) == fill).all(axis=1).reshape(x.shape)
    if leaf.reference is None:
        return held
    return held & _find_elements_off(x, leaf.reference, _OFF)


def _have_same_bytes(these: Sequence[Any], those: Sequence[Any]) -> bool:
    return len(these) == len(those) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(these, those)
    )


def _list_call_shapes(call: AuditedCall) -> list[tuple[int, ...]]:
    return [x.shape for x in call.outputs]


def _is_call_uniform(call: AuditedCall) -> bool:
    return all(x.size > 1 and (x == x.reshape(-1)[0]).all() for x in call.outputs)
