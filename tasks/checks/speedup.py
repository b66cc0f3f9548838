"""The speedup check: right on inputs that change from run to run, and how many times as fast as its baseline."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.checks import paired, roofline
from tasks.checks.base import Check, Observation
from tasks.model import (
    Form,
    Invalid,
    Misbehaviour,
    OpClass,
    Program,
    Status,
    Timed,
    Unsupported,
    Vacuous,
    flags,
    is_inexact,
)
from tasks.model.errors import shorten_error
from tasks.model.kind import KIND_BASELINE, KIND_KEPT_RESULT, KIND_LATE, KIND_OTHER_INPUTS, KIND_ROOFLINE

if TYPE_CHECKING:
    from tasks.backends.base import Arm, Backend

#: Elements that are off by a tenth, of themselves and of the output's root mean square, are another result; half of the
#: elements, another output. What is finer is seen where a call is judged.
_OFF, _MOST = 0.1, 0.5
#: Of rounds, one in so many is looked at twice and not counted; of as many calls, drawn at random, the result is judged.
PROBED, JUDGED = 5, 2
#: Share of the roofline beyond which a baseline shows that the work is counted wrongly.
BASELINE_MARGIN = 1.0
#: Characters of an error.
_LINE = 300
#: The arms: the program, what it is timed against, and that once more; the same with empty caches.
PROGRAM, BASELINE, NULL = ARMS = ("program", "baseline", "null")
COLD = "cold "
#: A doubt of a time: as much as all of a call may be hidden from the judge's clock.
UNSEEN = "unseen"

Given = Callable[[list[Any]], Callable[[], Sequence[Any]]]
#: Share of the time of the baseline's calls for which the kernel's processes may work.
BUSY = 0.1
#: `Program.timed`.
TimedCall = Callable[[list[Any], bool, bool], Callable[[], Timed]]


@dataclass
class Race(Program):
    """A program with the baseline that it is timed against. arrays: the inputs of the baseline's form; alike: whether
    those of the program's own form are the same, so that outputs on other inputs can be compared; on_cpu: whether this
    process's CPU time is that of the computation; declared: whether the baseline is one that a user names, and judged; products, work, views: see `Arm`;
    ceiling, cache_bytes: of the device (`Backend.ceiling`); cpu_clock: of the process that computes, of runs that do not say what they took;
    cpu_apart: see `Backend.cpu_apart_s`."""

    eager: Given | None = None
    arrays: Sequence[Any] = ()
    alike: bool = True
    on_cpu: bool = True
    baseline: str = ""
    declared: bool = False
    timed_baseline: TimedCall | None = None
    products: int | None = None
    work: tuple[int | None, int | None] = (None, None)
    views: bool = False
    ceiling: Callable[[str, bool], float | None] | None = None
    cache_bytes: int = 0
    cpu_clock: Callable[[], float] = time.process_time
    cpu_apart: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)


class Speedup(Check):
    """Single runs of the program, of its baseline, and of the baseline once more (the null arm), in random order, each round
    on inputs that no round before had.

    The baseline is what the declaration of a kernel names; of any other op eager torch, on the same device and in the same process, where
    the sample has a form for torch and the environment has torch; else the same runtime at its lowest level of optimisation. A
    declared baseline is judged first. A call of a kernel is timed from the call until the device has finished, with its inputs handed over
    before; once with them in the caches and once with the caches emptied. That of any other program ends when its outputs are read
    back. By wall clock and, on a CPU, by CPU time; of a clock by which the baseline is not as fast as itself nothing is reported.
    """

    name = "speedup"
    about = (
        "speedup over a kernel's baseline or eager torch (or the runtime's lowest level), with an interval and a null arm; right on "
        "inputs that change from run to run"
    )
    timed = True
    judges = True
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
        race = make_race(program, form, arm, on_cpu=not backend.device_vendor)
        race.ceiling, race.cache_bytes, race.cpu_clock = backend.ceiling, backend.cache_bytes(), backend.cpu_s
        race.cpu_apart = backend.cpu_apart_s
        return race

    def stages(self, program: Program, form: Form) -> Iterator[Observation]:
        """The first run's outputs, then those of the last run, both on the sample's own inputs; between them the race."""
        assert isinstance(program, Race) and program.given is not None
        if program.declared:
            _judge_baseline(program, form)
        first = program.run()
        yield Observation("the first run", [np.array(x) for x in first])
        watch = _Watch(program, form)
        taken = paired.race(watch.arms, watch.check_outputs, budget_s=form.race_s, uncounted=watch.is_probe)
        judged = watch.judge_calls()
        if not watch.told and not (judged and watch.changed):
            raise Vacuous("the outputs of the baseline do not depend on its inputs: a kept tensor would pass")
        program.flags = flags.join(program.flags, judged=judged)
        _make_race_columns(program, taken, watch.is_busy())
        _judge_share(program, form, first, taken)
        yield Observation("the last run", [np.array(x) for x in program.given(form.arrays)()])


def make_race(program: Program, form: Form, arm: Arm, on_cpu: bool = True) -> Race:
    """A program and its baseline."""
    own = {f.name: getattr(program, f.name) for f in fields(Program)}
    race = Race(
        **own,
        eager=arm.program.given,
        arrays=arm.form.arrays,
        alike=_alike(form.arrays, arm.form.arrays),
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


def _judge_baseline(program: Race, form: Form) -> None:
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
        text = f"the baseline {program.baseline} is itself wrong ({_describe(found)}): nothing is timed against it"
        raise Invalid(text, KIND_BASELINE)


def _describe(found: Any) -> str:
    """How the outputs of a judgement are wrong."""
    how = f"{found.metrics.error_units:.3g} error units off" if found.metrics.error_units else ""
    return ": ".join(filter(None, (found.kind, found.metrics.detail or how)))


class _Watch:
    """The arms of a race, each round on other inputs, and a look at what they return.

    told: rounds in which a kept tensor would have been seen; changed: whether some bytes of the baseline's outputs were others in some
    round, so that it is seen where a result is judged.
    """

    def __init__(self, program: Race, form: Form) -> None:
        self.program, self.form, self.told, self.changed = program, form, 0, False
        self.before: dict[str, list[np.ndarray]] = {}
        #: Nobody can foresee what the rounds will be, nor prepare their results.
        self.chance = random.SystemRandom()
        self.begin = self.chance.randrange(1 << 20)
        self.moved = self._accepts_moved_inputs()
        #: Whether there is time for calls with empty caches.
        self.cold = True
        #: Whether there is time to draw inputs for each round.
        self.draws = True
        self.probes: dict[int, bool] = {}
        #: The program's inputs of a round by its arm: no result of one serves another.
        self.given: dict[str, list[Any]] = {}
        self.judged: list[tuple[list[Any], Sequence[Any]]] = []
        #: CPU seconds of the kernel's processes while the baseline is called, and of the baseline's while the kernel is; and how long that took.
        self.meanwhile, self.waited = [0.0, 0.0], [0.0, 0.0]

    def _accepts_moved_inputs(self) -> bool:
        """Whether the baseline takes inputs whose elements stand elsewhere; else they are only scaled. Raises Vacuous."""
        assert self.program.eager is not None
        for moved in (True, False):
            try:
                self.program.eager(vary_inputs(self.program.arrays, self.begin, moved))()
                return moved
            except Exception as error:
                said = error
        raise Vacuous(f"the baseline takes no other inputs than the sample's: {said}")

    def is_probe(self, turn: int) -> bool:
        """Whether the calls of a round are looked at twice, and their times not kept. The first, which warms up, is one of those."""
        return self.probes.setdefault(turn, not turn or not self.chance.randrange(PROBED))

    def arms(self, turn: int) -> dict[str, Callable[[], Callable[[], Timed]]]:
        program = self.program
        assert program.given is not None and program.eager is not None
        fresh, its = self._draw(turn, PROGRAM)
        if program.timed is None or program.timed_baseline is None:
            both = {PROGRAM: (program.given, fresh), BASELINE: (program.eager, its), NULL: (program.eager, its)}
            return {
                name: functools.partial(_time_whole, given, arrays, program.cpu_clock)
                for name, (given, arrays) in both.items()
            }
        probe = self.is_probe(turn)
        found: dict[str, Callable[[], Callable[[], Timed]]] = {}
        for cold in ("", COLD) if self.cold else ("",):
            fresh, its = (fresh, its) if not cold else self._draw(turn, COLD + PROGRAM)
            for name in ARMS:
                call, arrays = (program.timed, fresh) if name == PROGRAM else (program.timed_baseline, its)
                made = functools.partial(call, arrays, bool(cold), probe and name == PROGRAM)
                found[cold + name] = functools.partial(self._watch_both, name, made)
        return found

    def _watch_both(self, name: str, make: Callable[[], Callable[[], Timed]]) -> Callable[[], Timed]:
        """A call during which it is seen what CPU time it takes, and what those do that wait for it."""
        run, other = make(), int(name == PROGRAM)

        def timed() -> Timed:
            before, begin = self.program.cpu_apart(), time.perf_counter()
            found = run()
            self.waited[other] += time.perf_counter() - begin
            after = self.program.cpu_apart()
            self.meanwhile[other] += after[other] - before[other]
            return replace(found, spent_s=after[1 - other] - before[1 - other])

        return timed

    def is_busy(self) -> bool:
        """Whether the kernel's processes work while its baseline is called, by more than threads that wait for work do of both."""
        kernel, baseline = (cpu / max(wall, 1e-9) for cpu, wall in zip(self.meanwhile, self.waited))
        return kernel > BUSY + 2 * baseline

    def _draw(self, turn: int, arm: str) -> tuple[list[Any], list[Any]]:
        """The inputs of an arm of the program's in a round, and its baseline's: drawn as the catalog draws them where it can and is fast,
        else the sample's own, moved and scaled."""
        seed, begin, found = self.begin + 2 * turn + (arm != PROGRAM), time.perf_counter(), None
        if self.draws and self.form.fresh is not None and self.program.alike:
            found = self.form.fresh(seed)
            self.draws = (time.perf_counter() - begin) * paired.FEWEST < self.form.race_s / 2
        fresh = self.given[arm] = found or vary_inputs(self.form.arrays, seed, self.moved)
        return fresh, fresh if self.program.alike else vary_inputs(self.program.arrays, seed, self.moved)

    def check_outputs(self, turn: int, calls: Mapping[str, Timed]) -> None:
        """Raises Misbehaviour: kind "kept" for the bytes of the round before though the baseline's are others, "other inputs"
        for outputs far from the baseline's, "late" for those that changed after the call."""
        now = {name: [np.asarray(x) for x in found.outputs] for name, found in calls.items()}
        for name in (PROGRAM, COLD + PROGRAM):
            if name in calls and (later := calls[name].later) is not None:
                if any(a.tobytes() != np.asarray(b).tobytes() for a, b in zip(now[name], later)):
                    raise Misbehaviour(
                        KIND_LATE, "its outputs changed after the call, and all that it asked of the device, was over"
                    )
        if self.before:
            self.changed |= any(a.tobytes() != b.tobytes() for a, b in zip(now[BASELINE], self.before[BASELINE]))
        if self.before and far_apart(now[BASELINE], self.before[BASELINE]):
            self.told += 1
            if all(a.tobytes() == b.tobytes() for a, b in zip(now[PROGRAM], self.before[PROGRAM])):
                raise Misbehaviour(KIND_KEPT_RESULT, "other inputs give the same bytes: what is timed computes nothing")
        for name in (PROGRAM, COLD + PROGRAM):
            its = now.get(name.replace(PROGRAM, BASELINE), [])
            if self.program.alike and name in now and far_apart(now[name], its):
                raise Misbehaviour(
                    KIND_OTHER_INPUTS, "on other inputs of the same shapes it gives another result than its baseline"
                )
        self.before = {name: now[name] for name in (PROGRAM, BASELINE)}
        if not turn and COLD + PROGRAM in calls:
            once = sum(min(calls[name].wall_s, calls[COLD + name].wall_s) for name in ARMS)
            self.cold = 2 * once * paired.FEWEST < self.form.race_s
        # Each round is among those that are judged with the same probability (Vitter's algorithm R).
        for name in (PROGRAM, COLD + PROGRAM):
            if name in now:
                place = len(self.judged) if len(self.judged) < JUDGED else self.chance.randrange(2 * (turn + 1))
                if place < JUDGED:
                    self.judged[place : place + 1] = [(self.given[name], now[name])]

    def judge_calls(self) -> int:
        """Hold results of calls that were timed to float64, one at least, and as many as there is time for. Returns how many were judged.
        Raises Misbehaviour."""
        begin, count = time.perf_counter(), 0
        if (judge := self.form.judge) is None:
            return count
        for arrays, outputs in self.judged:
            found = judge(outputs, arrays)
            count += found is not None
            if found is not None and found.status is Status.WRONG:
                raise Misbehaviour(
                    KIND_OTHER_INPUTS, f"the result of a call that was timed is wrong ({_describe(found)})"
                )
            if time.perf_counter() - begin > self.form.race_s / 2:
                break
        return count


def _time_whole(given: Given, arrays: list[Any], cpu_clock: Callable[[], float]) -> Callable[[], Timed]:
    """A run that is timed with its outputs read back."""
    run = given(arrays)

    def timed() -> Timed:
        cpu, begin = cpu_clock(), time.perf_counter()
        outputs = run()
        cpu, wall = cpu_clock() - cpu, time.perf_counter() - begin
        return Timed([np.array(x) for x in outputs], wall, cpu)

    return timed


def vary_inputs(arrays: Sequence[Any], turn: int, moved: bool) -> list[Any]:
    """Inputs that no other round has, of the same dtypes and shapes and as valid: floating elements times a factor from 1/2
    to 1 and, if ``moved``, all elements turned by some part of the whole."""
    part = (turn + 1) * 0.6180339887498949 % 1  # by the golden section: no two of them are near one another

    def one(array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":
            return array
        made = np.roll(array.reshape(-1), int(part * array.size)).reshape(array.shape) if moved else array
        return (made * array.dtype.type(0.5 + 0.5 * part)).astype(array.dtype) if is_inexact(array.dtype.name) else made

    return [one(x) for x in arrays]


def far_apart(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    """Whether one of the outputs is another one: of most elements even the sizes differ (signs may be a choice)."""
    if len(these) != len(those):
        return True
    for a, b in zip(these, those):
        if a.shape != b.shape:
            return True
        if a.dtype.kind in "OUS" or not a.size:
            continue
        a, b = (np.abs(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)) for x in (a, b))
        with np.errstate(all="ignore"):
            size = np.sqrt(np.mean(np.square(b[np.isfinite(b)]))) if np.isfinite(b).any() else 0.0
            off = ~((np.abs(a - b) <= _OFF * (b + size)) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if off.mean() > _MOST:
            return True
    return False


def _make_race_columns(program: Race, taken: paired.Taken, busy: bool) -> None:
    """Columns and flags of a race; of each clock none while the null arm's interval excludes 1."""
    program.flags = flags.join(program.flags, rounds=taken.rounds)
    wall, cpu = taken.seconds("wall"), taken.seconds("cpu") if program.on_cpu else {}
    seen, whole, spent = taken.seconds("seen"), taken.seconds("whole"), taken.seconds("spent")
    hidden_s = add_hidden_time(wall, (seen, whole), PROGRAM)
    add_hidden_time(wall, (seen, whole), COLD + PROGRAM)
    add_hidden_time(cpu, (spent,), PROGRAM)
    clocks = {"speedup": (wall, ""), "speedup_cpu": (cpu, ""), "cold_speedup": (wall, COLD)}
    for name, (times, which) in clocks.items():
        if which + PROGRAM not in times:
            continue
        null, found = (paired.ratio(times[which + BASELINE], times[which + arm]) for arm in (NULL, PROGRAM))
        program.flags = flags.join(program.flags, **{f"{name}_null": null})
        if null is not None and found is not None and not null.certain:
            program.columns |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
    program.columns["call_ms"] = float(np.median(wall[PROGRAM])) * 1e3
    if COLD + PROGRAM in wall:
        program.columns["cold_call_ms"] = float(np.median(wall[COLD + PROGRAM])) * 1e3
    if device := taken.seconds("device"):
        program.columns["device_ms"] = float(np.median(device[PROGRAM])) * 1e3

    told = taken.seconds("wall")
    doubt = [
        code
        for code, inner, outer in (("clock", told, seen), ("stream", taken.seconds("device"), told))
        if _hides_work(inner, outer, _noise(inner, outer))
    ]
    # Both clocks are the judge's, and what a call takes by it holds the way there and back: that noise is in both.
    doubt += ["early"] * _hides_work(seen, whole) + ["busy"] * busy
    if not doubt and PROGRAM in wall and hidden_s > float(np.median(wall[PROGRAM])):
        doubt.append(UNSEEN)
    program.columns["time_doubt"] = ",".join(doubt)
    if {"clock", "early", "busy"} & set(doubt):
        program.columns |= dict.fromkeys((f"{name}{end}" for name in clocks for end in ("", "_low", "_high")), None)


def add_hidden_time(told: dict[str, list[float]], clocks: Sequence[Mapping[str, list[float]]], arm: str) -> float:
    """Add to what the calls of an arm of the program's are told to take what some clock of the judge's surely saw beyond that, and beyond what it saw so of
    the baseline's: the program's own process says what its calls take, and is believed by no more than nobody can see. Returns how much
    may be hidden still, in seconds."""
    its, surely, most = arm.replace(PROGRAM, BASELINE), 0.0, 0.0
    for clock in clocks:
        if not {arm, its} <= told.keys() & clock.keys():
            continue
        apart = [np.subtract(clock[name], told[name]).tolist() for name in (arm, its)]
        low, high = paired.difference(*apart)
        surely, most = max(surely, low), max(most, high)
    if surely > 0:
        told[arm] = [x + surely for x in told[arm]]
    return most - surely


def _hides_work(inner: Mapping[str, list[float]], outer: Mapping[str, list[float]], noise: float = 0.0) -> bool:
    """Whether the program takes longer than its baseline outside of what a clock sees, by most of what it gains there, and by more than
    ``noise``, in seconds: by which the baseline differs from itself."""
    if PROGRAM not in inner or PROGRAM not in outer:
        return False
    hidden = {arm: np.subtract(outer[arm], inner[arm]) for arm in (PROGRAM, BASELINE)}
    more = float(np.median(hidden[PROGRAM]) - np.median(hidden[BASELINE]))
    apart = paired.ratio([max(x, 1e-9) for x in hidden[PROGRAM]], [max(x, 1e-9) for x in hidden[BASELINE]])
    told, gained = (float(np.median(inner[arm])) for arm in (PROGRAM, BASELINE))
    return bool(apart is not None and apart.low > 1 and more > max(told, (gained - told) / 2, noise))


def _noise(inner: Mapping[str, list[float]], outer: Mapping[str, list[float]]) -> float:
    """By how much what a clock does not see of the baseline differs from one call to the next, in nine of ten rounds; 0 where a clock is
    missing."""
    if not {BASELINE, NULL} <= inner.keys() & outer.keys():
        return 0.0
    once, again = (np.subtract(outer[arm], inner[arm]) for arm in (BASELINE, NULL))
    return float(np.quantile(np.abs(again - once), 0.9))


def _judge_share(program: Race, form: Form, outputs: Sequence[np.ndarray], taken: paired.Taken) -> None:
    """Columns of the share of the roofline. Raises Misbehaviour, kind "roofline", where a call is faster than the device can be.

    Only what lies in memory is judged, less what of it may still be in a cache, and operations only that a user has declared: an
    algorithm may do fewer than the reference.
    """
    if program.ceiling is None or program.timed is None or program.timed_baseline is None:
        return
    ask, wall = program.ceiling, taken.seconds("wall")
    work = roofline.count_work(form, outputs, program.products, program.work)
    shown = roofline.find_share(
        work, (taken.seconds("device") or wall)[PROGRAM], form.dtype, lambda what: ask(what, False)
    )
    program.columns |= {"moved_bytes": work.bytes, "flops": work.operations}
    if shown is None:
        return
    in_memory = work.bytes > 2 * program.cache_bytes
    bound = "cache" if shown.bound == roofline.MEMORY and not in_memory else shown.bound
    ends = {"roofline": shown.value, "roofline_low": shown.low, "roofline_high": shown.high}
    program.columns |= ends | {"roofline_of": bound}

    if program.views:
        return  # an output that is a view of an input moves nothing

    def beyond(work: roofline.Work, arm: str, again: bool, margin: float = roofline.MARGIN) -> bool:
        judged = replace(work, operations=work.operations if work.declared_operations else None)
        spared = program.cache_bytes if in_memory else work.bytes
        found = roofline.find_share(judged, wall[arm], form.dtype, lambda what: ask(what, again), spared)
        return found is not None and found.low > margin

    # The ceilings are measured once more: the machine may have been busy. What is true of the baseline as well is a wrong count.
    if (
        not beyond(work, PROGRAM, False)
        or not beyond(work, PROGRAM, True)
        or beyond(work, BASELINE, False, BASELINE_MARGIN)
    ):
        return
    if work.declared_bytes is None and program.alike and program.eager is not None:
        eager = program.eager
        work = roofline.without_unread(work, form, lambda arrays: eager(arrays)())
    if beyond(work, PROGRAM, False):
        speed, most = work.bytes / float(np.median(wall[PROGRAM])), ask(roofline.MEMORY, False) or 0.0
        raise Misbehaviour(
            KIND_ROOFLINE,
            f"faster than the device can be: {work.bytes} bytes in {np.median(wall[PROGRAM]) * 1e3:.3g} ms are {speed:.3g} bytes/s, and the "
            f"device moves {most:.3g}"
            + (f"; {work.operations} operations are declared" if work.declared_operations else ""),
        )


def _alike(these: Sequence[Any], those: Sequence[Any]) -> bool:
    return len(these) == len(those) and all(
        isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
        for a, b in zip(these, those)
    )
