"""The speedup check: right on inputs that change from run to run, and how many times as fast as its baseline."""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.arrays.varied import vary_input_arrays, vary_inputs_by_digest
from tasks.checks import paired_timing, roofline
from tasks.checks.base import Check, Observation
from tasks.model import (
    Chain,
    Form,
    Invalid,
    Misbehaviour,
    OpClass,
    Program,
    Status,
    Timed,
    TimedCalls,
    Unsupported,
    Vacuous,
    flags,
)
from tasks.model.errors import shorten_error
from tasks.model.kind import KIND_BASELINE, KIND_KEPT_RESULT, KIND_LATE, KIND_OTHER_INPUTS, KIND_ROOFLINE
from tasks.run_queue import RunQueueClock, subtract_run_queue_seconds, sum_run_queue_seconds

if TYPE_CHECKING:
    from tasks.backends.base import Backend, BaselineArm

#: Elements that are off by a tenth, of themselves and of the output's root mean square, are another result; half of the
#: elements, another output. What is finer is seen where a call is judged.
_OFF, _MOST = 0.1, 0.5
#: Of rounds, one in so many is looked at twice and not counted.
PROBED = 5
#: Rounds before the first that counts.
WARMING = 2
#: Share of the roofline beyond which a baseline shows that the work is counted wrongly.
BASELINE_MARGIN = 1.0
#: Characters of an error.
_LINE = 300
#: The arms: the program, what it is timed against, and that once more; the same with empty caches.
PROGRAM, BASELINE, NULL = ARMS = ("program", "baseline", "null")
COLD = "cold "
#: Calls of a race whose results are judged: the one that is farthest off its baseline, and one drawn at random.
FARTHEST, DRAWN = "farthest", "drawn"
#: Confidence of the interval whose upper end is what may be hidden; of what is surely hidden it is that of a speedup.
BOUND = 0.95
#: A doubt of a time: as much as all of a call may be hidden from the judge's clocks, and is counted in.
UNSEEN = "unseen"

Given = Callable[[list[Any]], Callable[[], Sequence[Any]]]
#: Share of the time of the baseline's calls for which the kernel's processes may work.
BUSY = 0.1
#: Calls are timed together until they take so many seconds, which hides the noise of the way there and back, and at
#: most so many.
CHAINED_S, CHAINED = 4e-3, 64
#: Bytes of a cache that are emptied in a second, by one thread that writes twice as many; and for how many times what a
#: race is given they may be emptied beside it.
EMPTIED, EMPTYING = 5e9, 4.0
#: `Program.timed`.
MakeCalls = Callable[[list[Any], Chain], TimedCalls]


@dataclass
class SpeedupRace(Program):
    """A program with the baseline that it is timed against. arrays: the inputs of the baseline's form; alike: whether
    those of the program's own form are the same, so that outputs on other inputs can be compared; on_cpu: whether this
    process's CPU time is that of the computation; declared: whether the baseline is one that a user names, and judged;
    products, work, views: see `Arm`; ceiling, cache_bytes: of the device (`Backend.ceiling`); cpu_clock: of the process
    that computes, of runs that do not say what they took; cpu_apart: see `Backend.cpu_apart_s`; open_queues: see
    `Backend.open_queues`."""

    eager: Given | None = None
    arrays: Sequence[Any] = ()
    alike: bool = True
    on_cpu: bool = True
    baseline: str = ""
    declared: bool = False
    timed_baseline: MakeCalls | None = None
    products: int | None = None
    work: tuple[int | None, int | None] = (None, None)
    views: bool = False
    ceiling: Callable[[str, bool], float | None] | None = None
    cache_bytes: int = 0
    cpu_clock: Callable[[], float] = time.process_time
    cpu_apart: Callable[[], tuple[dict[int, float], dict[int, float]]] = lambda: ({}, {})
    open_queues: Callable[[], list[RunQueueClock]] = list


class Speedup(Check):
    """Single runs of the program, of its baseline, and of the baseline once more (the null arm), in random order, each
    round on inputs that no round before had.

    The baseline is what the declaration of a kernel names; of any other op eager torch, on the same device and in the
    same process, where the sample has a form for torch and the environment has torch; else the same runtime at its
    lowest level of optimisation. A declared baseline is judged first. A call of a kernel is timed from the call until
    the device has finished, with its inputs there before; once with them in the caches and once with the caches
    emptied. Of one that is short several are timed together, each on inputs that hang on what the one before returned
    (`tasks.arrays.varied`): none can be made before it is its turn, nor two at once. That of any other program ends
    when its outputs are read back. By wall clock and, on a CPU, by CPU time; of a clock by which the baseline is not as
    fast as itself nothing is reported.
    """

    name = "speedup"
    about = (
        "speedup over a kernel's baseline or eager torch (or the runtime's lowest level), with an interval and a null arm; right on "
        "inputs that change from run to run"
    )
    timed = True
    gives_inputs = True
    judges = True
    races = True
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def build(self, backend: Backend, form: Form) -> Program:
        """Both arms; raises what building the program raises.

        Raises Unsupported where the runtime takes a program's inputs only once, or there is no baseline.
        """
        program = backend.build(form)
        if program.given is None:
            raise Unsupported(
                f"{backend.name} takes a program's inputs only once: runs on other inputs cannot be timed"
            )
        arm = backend.baseline(form)
        if arm.program.given is None:
            raise Unsupported(f"{arm.name} takes a program's inputs only once: nothing can be timed against it")
        race = make_speedup_race(program, form, arm, on_cpu=not backend.device_vendor)
        race.ceiling, race.cache_bytes, race.cpu_clock = backend.ceiling, backend.cache_bytes(), backend.cpu_s
        race.cpu_apart, race.open_queues = backend.cpu_apart_s, backend.open_queues
        return race

    def stages(self, program: Program, form: Form) -> Iterator[Observation]:
        """The first run's outputs, then those of the last run, both on the sample's own inputs; between them the
        race."""
        assert isinstance(program, SpeedupRace) and program.given is not None
        if program.declared:
            _judge_race_baseline(program, form)
        first = program.run()
        yield Observation("the first run", [np.array(x) for x in first])
        watch = _RaceWatch(program, form)
        taken = paired_timing.race_arms(
            watch.arms,
            watch.check_outputs,
            budget_s=form.race_s,
            uncounted=watch.is_probe,
            queued=lambda: sum_run_queue_seconds(watch.queues),
        )
        judged = watch.judge_calls()
        if not watch.told and not (judged and watch.changed):
            raise Vacuous("the outputs of the baseline do not depend on its inputs: a kept tensor would pass")
        program.flags = flags.join_row_flags(program.flags, judged=judged)
        wall = _make_race_columns(program, taken, watch.is_busy())
        _judge_roofline_share(program, form, first, taken, wall)
        if watch.imprecise is not None:
            yield watch.imprecise
        yield Observation("the last run", [np.array(x) for x in program.given(form.arrays)()])


def make_speedup_race(program: Program, form: Form, arm: BaselineArm, on_cpu: bool = True) -> SpeedupRace:
    """A program and its baseline."""
    own = {f.name: getattr(program, f.name) for f in fields(Program)}
    race = SpeedupRace(
        **own,
        eager=arm.program.given,
        arrays=arm.form.arrays,
        alike=_are_race_outputs_alike(form.arrays, arm.form.arrays),
        on_cpu=on_cpu,
        baseline=arm.name,
        declared=arm.declared,
        timed_baseline=arm.program.timed,
        products=arm.products,
        work=arm.work,
        views=arm.views,
    )
    race.columns["baseline"] = arm.name
    return race


def _judge_race_baseline(program: SpeedupRace, form: Form) -> None:
    """Raises Invalid where a declared baseline does not run, or is itself wrong."""
    assert program.eager is not None
    try:
        outputs = program.eager(list(program.arrays))()
    except (Unsupported, Misbehaviour):
        raise
    except Exception as error:
        text = f"the baseline {program.baseline} does not run: {type(error).__name__}: {shorten_error(error, _LINE)}"
        raise Invalid(text, KIND_BASELINE) from None
    found = form.judge(outputs) if form.judge is not None else None
    if found is not None and found.status is Status.WRONG:
        text = f"the baseline {program.baseline} is itself wrong ({_describe_wrong_race(found)}): nothing is timed against it"
        raise Invalid(text, KIND_BASELINE)


def _describe_wrong_race(found: Any) -> str:
    """How the outputs of a judgement are wrong."""
    how = f"{found.metrics.error_units:.3g} error units off" if found.metrics.error_units else ""
    return ": ".join(filter(None, (found.kind, found.metrics.detail or how)))


class _RaceWatch:
    """The arms of a race, each round on other inputs, and a look at what they return.

    told: whether a kept tensor would have been seen in some round; changed: whether some bytes of the baseline's
    outputs were others in some round, so that it is seen where a result is judged.
    """

    def __init__(self, program: SpeedupRace, form: Form) -> None:
        self.program, self.form, self.told, self.changed = program, form, False, False
        #: What the program and its baseline gave at the call before.
        self.before: tuple[list[np.ndarray], list[np.ndarray]] | None = None
        #: Nobody can foresee what the rounds will be, nor prepare their results.
        self.chance = random.SystemRandom()
        self.begin = self.chance.randrange(1 << 20)
        self.moved = self._accepts_moved_inputs()
        #: Whether there is time for calls with empty caches. Those of a large server (480 MB) take longer to empty than
        #: a search loop gives to the whole race.
        emptying = program.on_cpu * len(ARMS) * paired_timing.FEWEST * program.cache_bytes / EMPTIED
        self.cold = emptying < EMPTYING * form.race_s
        #: Whether there is time to draw inputs for each round.
        self.draws = True
        self.probes: dict[int, bool] = {}
        #: The program's inputs of a round by its arm: no result of one serves another.
        self.given: dict[str, list[Any]] = {}
        #: Calls that are judged, by why (`FARTHEST`, `DRAWN`): their inputs and outputs.
        self.judged: dict[str, tuple[list[Any], Sequence[Any]]] = {}
        #: The first of them that has lost digits.
        self.imprecise: Observation | None = None
        #: By how much the outputs of the farthest are off the baseline's; how many chains one was drawn from.
        self.distance, self.chains = -1.0, 0
        #: The calls of a round by their arm, and how they are chained.
        self.made: dict[str, tuple[TimedCalls, Chain]] = {}
        #: The least that a call of each arm took, with its inputs in the caches.
        self.least: dict[str, float] = {}
        self.queues = program.open_queues()
        #: CPU seconds of the kernel's processes while the baseline is called, and of the baseline's while the kernel
        #: is; and how long that took.
        self.meanwhile, self.waited = [0.0, 0.0], [0.0, 0.0]

    def _accepts_moved_inputs(self) -> bool:
        """Whether the baseline takes inputs whose elements stand elsewhere; else they are only scaled. Raises
        Vacuous."""
        assert self.program.eager is not None
        for moved in (True, False):
            try:
                self.program.eager(vary_input_arrays(self.program.arrays, self.begin, moved))()
                return moved
            except Exception as error:
                said = error
        raise Vacuous(f"the baseline takes no other inputs than the sample's: {said}")

    def is_probe(self, turn: int) -> bool:
        """Whether the calls of a round are looked at twice, and their times not kept. The first, which warm up and say
        how long a call takes, are of those."""
        return self.probes.setdefault(turn, turn < WARMING or not self.chance.randrange(PROBED))

    def arms(self, turn: int) -> dict[str, Callable[[], Callable[[], Timed]]]:
        program = self.program
        assert program.given is not None and program.eager is not None
        fresh, its = self._draw(turn, PROGRAM)
        if program.timed is None or program.timed_baseline is None:
            both = {PROGRAM: (program.given, fresh), BASELINE: (program.eager, its), NULL: (program.eager, its)}
            queued = (lambda: sum_run_queue_seconds(self.queues)) if program.on_cpu else lambda: None
            return {
                name: functools.partial(_time_whole_run, given, arrays, program.cpu_clock, queued)
                for name, (given, arrays) in both.items()
            }
        probe, longest = self.is_probe(turn), max(self.least.values(), default=math.inf)
        calls = 1 if probe else min(max(round(CHAINED_S / longest), 1), CHAINED)
        self.made = {}
        found: dict[str, Callable[[], Callable[[], Timed]]] = {}
        for cold in ("", COLD) if self.cold else ("",):
            fresh, its = (fresh, its) if not cold else self._draw(turn, COLD + PROGRAM)
            for name in ARMS:
                call, arrays = (program.timed, fresh) if name == PROGRAM else (program.timed_baseline, its)
                begin = f"{self.chance.getrandbits(128):x}"
                chain = Chain(1 if cold else calls, bool(cold), probe and name == PROGRAM, self.moved, begin)
                found[cold + name] = functools.partial(self._watch_both, cold + name, call, arrays, chain)
        return found

    def _watch_both(self, arm: str, call: MakeCalls, arrays: list[Any], chain: Chain) -> Callable[[], Timed]:
        """Calls during which it is seen what CPU time they take, and what those do that wait for them."""
        other, before = int(arm.endswith(PROGRAM)), self.program.cpu_apart()
        run = call(arrays, chain)
        self.made[arm] = run, chain

        def timed() -> Timed:
            begin = time.perf_counter()
            found = run()
            self.waited[other] += time.perf_counter() - begin
            after = self.program.cpu_apart()
            self.meanwhile[other] += sum(after[other].values()) - sum(before[other].values())
            spent_s = _compute_cpu_spent(before[1 - other], after[1 - other], chain.calls)
            # While it waits, a process of its own may work: then the system's count has to say by how much.
            waited_s = found.waited_s if spent_s is not None or not after[1 - other] else None
            return replace(found, spent_s=spent_s, waited_s=waited_s, calls=chain.calls)

        return timed

    def is_busy(self) -> bool:
        """Whether the kernel's processes work while its baseline is called, by more than threads that wait for work do
        of both."""
        kernel, baseline = (cpu / max(wall, 1e-9) for cpu, wall in zip(self.meanwhile, self.waited))
        return kernel > BUSY + 2 * baseline

    def _draw(self, turn: int, arm: str) -> tuple[list[Any], list[Any]]:
        """The inputs of an arm of the program's in a round, and its baseline's: drawn as the catalog draws them where
        it can and is fast, else the sample's own, moved and scaled."""
        seed, begin, found = self.begin + 2 * turn + (arm != PROGRAM), time.perf_counter(), None
        if self.draws and self.form.fresh is not None and self.program.alike:
            found = self.form.fresh(seed)
            self.draws = (time.perf_counter() - begin) * paired_timing.FEWEST < self.form.race_s / 2
        fresh = self.given[arm] = found or vary_input_arrays(self.form.arrays, seed, self.moved)
        return fresh, fresh if self.program.alike else vary_input_arrays(self.program.arrays, seed, self.moved)

    def check_outputs(self, turn: int, calls: Mapping[str, Timed]) -> None:
        """Raises Misbehaviour: kind "kept" for the bytes of the call before though the baseline's are others, "other
        inputs" for outputs far from the baseline's, "late" for those that changed after the call."""
        for name in (PROGRAM, COLD + PROGRAM):
            if name in calls:
                its, digests = self._read_results(name, calls[name]), calls[name].digests
                baseline = self._follow(name, digests, calls[name.replace(PROGRAM, BASELINE)])
                distances = [self._compare(name, now, same) for now, same in zip(its, baseline)]
                self._keep_to_judge(name, digests, its, distances)
        for name in ARMS:
            self.least[name] = min(calls[name].wall_s, self.least.get(name, math.inf))
        if not turn and COLD + PROGRAM in calls:
            once = sum(min(calls[name].wall_s, calls[COLD + name].wall_s) for name in ARMS)
            self.cold &= 2 * once * paired_timing.FEWEST < self.form.race_s

    def _read_results(self, arm: str, found: Timed) -> list[list[np.ndarray]]:
        """The outputs of each of an arm's calls. Raises Misbehaviour."""
        if arm not in self.made:
            return [[np.asarray(x) for x in found.outputs]]
        run, chain = self.made[arm]
        results = [[np.asarray(x) for x in outputs] for outputs in run.results()]
        if chain.probe and not have_same_bytes(*results):
            raise Misbehaviour(
                KIND_LATE, "its outputs changed after the call, and all that it asked of the device, was over"
            )
        return results[: chain.calls]

    def _follow(self, arm: str, digests: Sequence[str], found: Timed) -> list[list[np.ndarray]]:
        """What the baseline gives on the inputs of each of the calls of an arm of the program's."""
        chain = self.made[arm][1] if arm in self.made else Chain()
        if chain.calls == 1 or not self.program.alike:
            return self._read_results(arm.replace(PROGRAM, BASELINE), found)
        assert self.program.timed_baseline is not None
        again = self.program.timed_baseline(self.given[arm], replace(chain, digests=tuple(digests)))
        again()
        return [[np.asarray(x) for x in outputs] for outputs in again.results()]

    def _compare(self, arm: str, now: list[np.ndarray], baseline: list[np.ndarray]) -> float:
        """By how much outputs of a call are off the baseline's, at most; 0 where these are of other inputs. Raises
        Misbehaviour where they are none of the baseline's."""
        if arm == PROGRAM:
            if self.before:
                kept, its = self.before
                self.changed = self.changed or not have_same_bytes(baseline, its)
                is_kept = have_same_bytes(now, kept)
                # Whether the baseline's are another result takes longer to say, and one such round is enough unless
                # bytes are kept.
                if (is_kept or not self.told) and are_race_outputs_apart(baseline, its):
                    self.told = True
                    if is_kept:
                        raise Misbehaviour(
                            KIND_KEPT_RESULT, "other inputs give the same bytes: what is timed computes nothing"
                        )
            self.before = now, baseline
        if not self.program.alike:
            return 0.0
        share, most = measure_race_distance(now, baseline)
        if share > _MOST:
            raise Misbehaviour(
                KIND_OTHER_INPUTS, "on other inputs of the same shapes it gives another result than its baseline"
            )
        return most

    def _keep_to_judge(
        self, arm: str, digests: Sequence[str], results: Sequence[list[np.ndarray]], distances: Sequence[float]
    ) -> None:
        """Keep calls of a round to be judged. The farthest from the baseline of all: who computes less in some of the
        calls that are timed is found whichever these are. And one of any chain with the same probability (Vitter's
        algorithm R)."""
        chosen: dict[str, int] = {}
        if max(distances) > self.distance:
            self.distance, chosen[FARTHEST] = max(distances), int(np.argmax(distances))
        self.chains += 1
        if not self.chance.randrange(self.chains):
            chosen[DRAWN] = self.chance.randrange(len(results))
        for why, k in chosen.items():
            arrays = self.given[arm]
            self.judged[why] = vary_inputs_by_digest(arrays, digests[k - 1], self.moved) if k else arrays, results[k]

    def judge_calls(self) -> int:
        """Hold results of calls that were timed to float64, one at least, and as many as there is time for. Returns how
        many were judged. Raises Misbehaviour."""
        begin, count = time.perf_counter(), 0
        if (judge := self.form.judge) is None:
            return count
        for arrays, outputs in (self.judged[why] for why in (FARTHEST, DRAWN) if why in self.judged):
            found = judge(outputs, arrays)
            count += found is not None
            if found is not None and found.status is Status.WRONG:
                raise Misbehaviour(
                    KIND_OTHER_INPUTS, f"the result of a call that was timed is wrong ({_describe_wrong_race(found)})"
                )
            if found is not None and found.status is Status.IMPRECISE and self.imprecise is None:
                self.imprecise = Observation("a call that was timed", outputs, ruled=found)
            if time.perf_counter() - begin > self.form.race_s / 2:
                break
        return count


def _compute_cpu_spent(before: Mapping[int, float], after: Mapping[int, float], calls: int) -> float | None:
    """CPU seconds of some processes for each of some calls; None where one of them began or ended meanwhile, of which
    nobody knows what it took."""
    return (sum(after.values()) - sum(before.values())) / calls if after and before.keys() == after.keys() else None


def _time_whole_run(
    given: Given, arrays: list[Any], cpu_clock: Callable[[], float], queued: Callable[[], float | None]
) -> Callable[[], Timed]:
    """A run that is timed with its outputs read back."""
    run = given(arrays)

    def timed() -> Timed:
        before, cpu, begin = queued(), cpu_clock(), time.perf_counter()
        outputs = run()
        cpu, wall, waited_s = (
            cpu_clock() - cpu,
            time.perf_counter() - begin,
            subtract_run_queue_seconds(queued(), before),
        )
        return Timed([np.array(x) for x in outputs], wall, cpu, waited_s=waited_s)

    return timed


def have_same_bytes(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    """Whether outputs have the same bytes."""
    return all(a.tobytes() == b.tobytes() for a, b in zip(these, those))


def are_race_outputs_apart(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    """Whether one of the outputs is another one: of most elements even the sizes differ (signs may be a choice)."""
    return measure_race_distance(these, those)[0] > _MOST


def measure_race_distance(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> tuple[float, float]:
    """Of the sizes of outputs (signs may be a choice): the share of elements that are off, of the output where it is
    largest; by how much an element is off at most, in its own size and the output's root mean square. 1 and infinity
    where they are no such outputs."""
    if len(these) != len(those):
        return 1.0, math.inf
    share = most = 0.0
    for a, b in zip(these, those):
        if a.shape != b.shape:
            return 1.0, math.inf
        if a.dtype.kind in "OUS" or not a.size or (a.tobytes() == b.tobytes() and a.dtype == b.dtype):
            continue
        if (found := _measure_finite_distance(a, b)) is not None:
            share, most = max(share, found[0]), max(most, found[1])
            continue
        a, b = (np.abs(x.reshape(-1).astype(np.complex128 if x.dtype.kind == "c" else np.float64)) for x in (a, b))
        with np.errstate(all="ignore"):
            size = np.sqrt(np.mean(np.square(b[np.isfinite(b)]))) if np.isfinite(b).any() else 0.0
            off = np.abs(a - b) / (b + size)
            off[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
        off[np.isnan(off)] = math.inf
        # A baseline may overflow where the program does not.
        share = max(share, float(((off > _OFF) & ~np.isinf(b)).mean()))
        most = max(most, float(off.max()))
    return share, most


def _measure_finite_distance(a: np.ndarray, b: np.ndarray) -> tuple[float, float] | None:
    """`measure_race_distance` of outputs that are finite, in a fifth of the time; None of others: those with an infinity,
    NaN, or nothing but zeros."""
    if a.dtype.kind == "c" or b.dtype.kind == "c":
        return None
    with np.errstate(all="ignore"):
        off, size = a.reshape(-1).astype(np.float64), b.reshape(-1).astype(np.float64)
        np.abs(off, out=off)
        np.abs(size, out=size)
        square = float(np.dot(size, size)) / size.size
        if not (0 < square < math.inf and float(off.sum()) < math.inf):
            return None
        np.subtract(off, size, out=off)
        np.abs(off, out=off)
        size += math.sqrt(square)
        off /= size
    return float(np.count_nonzero(off > _OFF)) / off.size, float(off.max())


def _make_race_columns(program: SpeedupRace, taken: paired_timing.RaceTimes, busy: bool) -> dict[str, list[float]]:
    """Seconds of each arm's calls by the wall clock, as far as they are believed; columns and flags of a race; of each
    clock none while the null arm's interval excludes 1. Of a call that is so short that more may be hidden than it says
    it takes, the time and the speedup count that in: nobody is believed more than what the judge's clocks bear out."""
    program.flags = flags.join_row_flags(program.flags, rounds=taken.rounds)
    wall, cpu = taken.seconds("wall"), taken.seconds("cpu") if program.on_cpu else {}
    seen, whole, spent = taken.seconds("seen"), taken.seconds("whole"), taken.seconds("spent")
    told, told_cpu = taken.seconds("wall"), dict(cpu)
    # The CPU time of whole runs, and of calls in this process, is by the judge's own clock: nothing is missing in it.
    says_itself = program.timed is not None and program.timed_baseline is not None and any(program.cpu_apart())
    rest: dict[str, float] = {}  # seconds that may be hidden still, by the column that they would be missing in
    most: dict[str, float] = {}
    clocks = {"speedup": (wall, ""), "speedup_cpu": (cpu, ""), "cold_speedup": (wall, COLD)}
    for name, (times, which) in clocks.items():
        arm = which + PROGRAM
        if arm not in times:
            continue
        # What is hidden from a clock is work, and on a CPU takes CPU time, which the system counts as well where the
        # machine is busy.
        worked, work = find_hidden_time(told_cpu, (spent,), arm) if told_cpu and spent else (0.0, math.inf)
        unseen = work if spent or says_itself else 0.0
        surely, most[arm] = (0.0, unseen) if times is cpu else find_hidden_time(told, (seen, whole), arm)
        most[arm] = min(most[arm], work)
        surely = min(max(surely, worked), most[arm])
        rest[name] = most[arm] - surely
        times[arm] = [x + surely for x in times[arm]]
    short = {name for name, more in rest.items() if more > float(np.median(clocks[name][0][clocks[name][1] + PROGRAM]))}
    for name in rest:
        times, which = clocks[name]
        its = times[which + BASELINE]
        null, found = (paired_timing.compute_speed_ratio(its, times[which + arm]) for arm in (NULL, PROGRAM))
        if name in short:
            times[which + PROGRAM] = [x + rest[name] for x in times[which + PROGRAM]]
            least = paired_timing.compute_speed_ratio(its, times[which + PROGRAM])
            found = (
                None if found is None or least is None else paired_timing.SpeedRatio(least.value, least.low, found.high)
            )
        program.flags = flags.join_row_flags(program.flags, **{f"{name}_null": null})
        if null is not None and found is not None and not null.certain:
            program.columns |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
    program.columns["call_ms"] = float(np.median(wall[PROGRAM])) * 1e3
    if COLD + PROGRAM in wall:
        program.columns["cold_call_ms"] = float(np.median(wall[COLD + PROGRAM])) * 1e3
    if device := taken.seconds("device"):
        program.columns["device_ms"] = float(np.median(device[PROGRAM])) * 1e3

    bound = most[PROGRAM] if cpu and spent else math.inf
    doubt = [
        code
        for code, inner, outer, more in (
            ("clock", told, seen, bound),
            ("stream", taken.seconds("device"), told, math.inf),
            # Both clocks are the judge's, and what a call takes by it holds the way there and back: that noise is in
            # both.
            ("early", seen, whole, bound),
        )
        if _does_race_hide_work(inner, outer, 0.0 if code == "early" else _measure_clock_noise(inner, outer), more)
    ]
    doubt += ["busy"] * busy
    if not doubt and "speedup" in short:
        doubt.append(UNSEEN)
    program.columns["time_doubt"] = ",".join(doubt)
    if {"clock", "early", "busy"} & set(doubt):
        program.columns |= dict.fromkeys((f"{name}{end}" for name in clocks for end in ("", "_low", "_high")), None)
    return wall


def find_hidden_time(
    told: Mapping[str, list[float]], clocks: Sequence[Mapping[str, list[float]]], arm: str
) -> tuple[float, float]:
    """Between which two numbers of seconds, not below 0, lies what the calls of an arm of the program's take beyond
    what they are told to: what some clock of the judge's saw beyond that, and beyond what it saw so of the baseline's.
    The program's own process says what its calls take, and is believed by no more than nobody can see."""
    its, surely, most = arm.replace(PROGRAM, BASELINE), 0.0, 0.0
    for clock in clocks:
        if {arm, its} <= told.keys() & clock.keys():
            own, other = (np.subtract(clock[name], told[name]).tolist() for name in (arm, its))
            surely, most = (
                max(surely, paired_timing.compute_time_difference(own, other)[0]),
                max(most, paired_timing.compute_time_difference(own, other, BOUND)[1]),
            )
    return surely, most


def _does_race_hide_work(
    inner: Mapping[str, list[float]], outer: Mapping[str, list[float]], noise: float, most: float
) -> bool:
    """Whether the program takes longer than its baseline outside of what a clock sees, by most of what it gains there,
    and by more than ``noise``, by which the baseline differs from itself; most: that may be hidden by all that is
    known. In seconds."""
    if PROGRAM not in inner or PROGRAM not in outer:
        return False
    hidden = {arm: np.subtract(outer[arm], inner[arm]) for arm in (PROGRAM, BASELINE)}
    more = min(float(np.median(hidden[PROGRAM]) - np.median(hidden[BASELINE])), most)
    apart = paired_timing.compute_speed_ratio(
        [max(x, 1e-9) for x in hidden[PROGRAM]], [max(x, 1e-9) for x in hidden[BASELINE]]
    )
    told, gained = (float(np.median(inner[arm])) for arm in (PROGRAM, BASELINE))
    return bool(apart is not None and apart.low > 1 and more > max(told, (gained - told) / 2, noise))


def _measure_clock_noise(inner: Mapping[str, list[float]], outer: Mapping[str, list[float]]) -> float:
    """By how much what a clock does not see of the baseline differs from one call to the next, in nine of ten rounds; 0
    where a clock is missing."""
    if not {BASELINE, NULL} <= inner.keys() & outer.keys():
        return 0.0
    once, again = (np.subtract(outer[arm], inner[arm]) for arm in (BASELINE, NULL))
    return float(np.quantile(np.abs(again - once), 0.9))


def _judge_roofline_share(
    program: SpeedupRace,
    form: Form,
    outputs: Sequence[np.ndarray],
    taken: paired_timing.RaceTimes,
    believed: Mapping[str, list[float]],
) -> None:
    """Columns of the share of the roofline, of the seconds that are believed. Raises Misbehaviour, kind "roofline",
    where a call is faster than the device can be, or says so.

    Only what lies in memory is judged, less what of it may still be in a cache, and operations only that a user has
    declared: an algorithm may do fewer than the reference.
    """
    if program.ceiling is None or program.timed is None or program.timed_baseline is None:
        return
    ask, wall, seconds = program.ceiling, taken.seconds("wall"), believed[PROGRAM]
    work = roofline.count_call_work(form, outputs, program.products, program.work)
    if device := taken.seconds("device"):
        surely, _ = find_hidden_time(device, (taken.seconds("seen"), taken.seconds("whole")), PROGRAM)
        seconds = [x + surely for x in device[PROGRAM]]
    shown = roofline.find_roofline_share(work, seconds, form.dtype, lambda what: ask(what, False))
    program.columns |= {"moved_bytes": work.bytes, "flops": work.operations}
    if shown is None:
        return
    in_memory = work.bytes > 2 * program.cache_bytes
    bound = "cache" if shown.bound == roofline.MEMORY and not in_memory else shown.bound
    ends = {"roofline": shown.value, "roofline_low": shown.low, "roofline_high": shown.high}
    program.columns |= ends | {"roofline_of": bound}

    if program.views:
        return  # an output that is a view of an input moves nothing

    def beyond(work: roofline.CallWork, arm: str, again: bool, margin: float = roofline.MARGIN) -> bool:
        judged = replace(work, operations=work.operations if work.declared_operations else None)
        spared = program.cache_bytes if in_memory else work.bytes
        found = roofline.find_roofline_share(judged, wall[arm], form.dtype, lambda what: ask(what, again), spared)
        return found is not None and found.low > margin

    # The ceilings are measured once more: the machine may have been busy. What is true of the baseline as well is a
    # wrong count.
    if (
        not beyond(work, PROGRAM, False)
        or not beyond(work, PROGRAM, True)
        or beyond(work, BASELINE, False, BASELINE_MARGIN)
    ):
        return
    if work.declared_bytes is None and program.alike and program.eager is not None:
        eager = program.eager
        work = roofline.drop_unread_work(work, form, lambda arrays: eager(arrays)())
    if beyond(work, PROGRAM, False):
        speed, most = work.bytes / float(np.median(wall[PROGRAM])), ask(roofline.MEMORY, False) or 0.0
        raise Misbehaviour(
            KIND_ROOFLINE,
            f"faster than the device can be: {work.bytes} bytes in {np.median(wall[PROGRAM]) * 1e3:.3g} ms are {speed:.3g} bytes/s, and the "
            f"device moves {most:.3g}"
            + (f"; {work.operations} operations are declared" if work.declared_operations else ""),
        )


def _are_race_outputs_alike(these: Sequence[Any], those: Sequence[Any]) -> bool:
    return len(these) == len(those) and all(
        isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
        for a, b in zip(these, those)
    )
