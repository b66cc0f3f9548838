"""The power of a screening: which planted faults it finds on stand-in devices, and how many sound ones it blames.

The passes, the comparison with the right answers and the decision are `farm node screen`'s own; the devices compute in
NumPy, over small operands, beside three sound equals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tasks.model import Program
from tasks.model.dtypes import TABLE, get_numpy_dtype
from tasks.screen.decide import DISSENT, decide_devices
from tasks.screen.exercises import (
    CORE,
    DEVICE,
    TERMS,
    ExerciseAnswer,
    ExerciseSizes,
    ScreenExercise,
    list_screen_exercises,
)
from tasks.screen.observed import ObservedExercise, OutputVariant
from tasks.screen.passes import RunningExercise, describe_exercise_output, describe_exercise_pass
from tests.bench.record import Result
from tests.bench.running import Size
from tests.plugin.planted_screen import Fault, compute

#: Operands of a stand-in; its passes, of which a real one has more in a minute; sound equals of a faulty device.
SMALL = ExerciseSizes(32, 1 << 13, (1 << 12,))
PASSES, EQUALS = 12, 3
#: Seconds of a screening, and until when a device may become hot.
SECONDS, HOT_S = 60.0, 90.0
#: Rates per operation, and how often each is tried.
RATES = (1e-3, 1e-5, 1e-6, 3e-7, 1e-7, 3e-8, 1e-8, 1e-9)
#: Passes in a minute that the statement of rates is made for: 0.14 s each, as a core of a CPU takes.
PASSES_OF_MINUTE = 400


@dataclass(frozen=True)
class Made:
    """An exercise with its operands and answer, made once, and what a sound device gives."""

    exercise: ScreenExercise
    operands: list[np.ndarray]
    answer: ExerciseAnswer
    sound: ObservedExercise


def make_all(sizes: ExerciseSizes = SMALL) -> list[Made]:
    found = []
    for exercise in list_screen_exercises(sizes):
        operands, answer = exercise.make()
        right = compute(exercise.form("torch", operands, answer.expected.shape))
        found.append(Made(exercise, operands, answer, observe(exercise, answer, {0: (right, 1)})))
    return found


def observe(
    exercise: ScreenExercise, answer: ExerciseAnswer, outputs: Mapping[int, tuple[np.ndarray, int]]
) -> ObservedExercise:
    """What is seen of outputs, {first pass: (output, passes)}."""
    variants = [
        replace(describe_exercise_output(answer, output), first=first, count=count)
        for first, (output, count) in outputs.items()
    ]
    return of_variants(exercise, answer, variants)


def of_variants(exercise: ScreenExercise, answer: ExerciseAnswer, variants: list[OutputVariant]) -> ObservedExercise:
    passes, size = sum(v.count for v in variants), answer.expected.size
    ordered = tuple(sorted(variants, key=lambda v: -v.count))
    exact = answer.bound is None
    return ObservedExercise(exercise.name, exercise.dtype, exercise.unit, exact, passes, ordered, elements=size)


# --- faults ---------------------------------------------------------------------------------------------------------


def run_faulty(made: Made, fault: Fault, draw: np.random.Generator, passes: int, pass_s: float) -> ObservedExercise:
    """All passes of one exercise on a device with a fault."""
    form = made.exercise.form("torch", made.operands, made.answer.expected.shape)
    at = 0

    def give(arrays: list[np.ndarray]) -> Callable[[], list[np.ndarray]]:
        right = compute(replace(form, arrays=arrays))
        return lambda: [fault.spoil(right, made.exercise.steps, draw, at * pass_s)]

    program = Program(lambda: give(made.operands)(), given=give)
    running = RunningExercise(made.exercise, made.operands, made.answer, program, 0.0)
    for _ in range(passes):
        at += 1
        running.run(lambda: "")
    return describe_exercise_pass(running)


def is_found(all_made: list[Made], fault: Fault, seed: int, passes: int = PASSES, pass_s: float = 0.0) -> bool:
    """Whether a device with a fault is quarantined, beside sound equals."""
    draw = np.random.default_rng(seed)
    for made in all_made:
        if fault.touches(made.exercise.unit, made.exercise.dtype):
            seen = run_faulty(made, fault, draw, passes, pass_s)
            fleet = {"faulty": seen} | {f"sound {n}": made.sound for n in range(EQUALS)}
            if any(d.is_sick for name, d in decide_devices(fleet).items() if name != "faulty"):
                raise AssertionError("a sound device was blamed")
            if decide_devices(fleet)["faulty"].is_sick:
                return True
    return False


def draw_faults(all_made: list[Made], count: int, draw: np.random.Generator) -> Iterator[Fault]:
    """Persistent faults: any datapath, any bit, flipped or stuck, in one element, one lane or one warp."""
    paths = sorted({(m.exercise.unit, m.exercise.dtype) for m in all_made})
    for _ in range(count):
        unit, dtype = paths[draw.integers(len(paths))]
        yield Fault(
            unit,
            dtype,
            str(draw.choice(["element", "lane", "warp"])),
            int(draw.integers(1 << 20)),
            int(draw.integers(TABLE[dtype].bits)),
            str(draw.choice(["flip", "0", "1"])),
        )


def name_bit(fault: Fault) -> str:
    """Which part of a number a fault is in."""
    kind = TABLE[fault.dtype]
    if kind.digits is None:
        return "integer"
    return "mantissa" if fault.bit < kind.digits else "sign" if fault.bit == kind.bits - 1 else "exponent"


# --- sound devices --------------------------------------------------------------------------------------------------


def make_honest(made: Made) -> dict[str, np.ndarray]:
    """What honest algorithms give: sums in other orders and widths, factors in TF32, subnormals flushed, results
    truncated."""
    form = made.exercise.form("torch", made.operands, made.answer.expected.shape)
    right = compute(form)
    found = {"once rounded": right, "flushed": flush(right)}
    kind = get_numpy_dtype(made.exercise.dtype)
    if made.exercise.unit == "matrix" and kind.kind not in "iu":
        a, b, c = (x.astype(np.float64) for x in made.operands)
        wide = np.float64 if made.exercise.dtype == "float64" else np.float32
        for name, block in (("sequential", 1), ("blocks of 8", 8), ("blocks of 32", 32), ("split in 4", TERMS // 4)):
            found[name] = add_blocks(a, b, c, block, wide).astype(kind)
        found["into 16 bits"] = add_blocks(a, b, c, 16, kind if kind.itemsize == 2 else wide).astype(kind)
        if wide is np.float32:
            found["truncated"] = add_blocks(a, b, c, 4, wide, truncate=True).astype(kind)
        if made.exercise.dtype == "float32":
            a, b = (truncate_bits(x, 13).astype(np.float64) for x in (a, b))
            found["TF32"] = add_blocks(a, b, c, 8, wide).astype(kind)
    if made.exercise.unit == "special":
        ulp = np.spacing(right)
        last = np.random.default_rng(1).integers(-1, 2, right.shape)
        found["another library"] = (right + ulp * last[np.arange(right.size) % 1021]).astype(kind)
        ended = right.copy()  # the end of a vector, by other code
        ended[-15:] += ulp[-15:]
        found["another end"] = ended.astype(kind)
    return found


def add_blocks(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, block: int, wide: type | np.dtype, truncate: bool = False
) -> np.ndarray:
    """A @ B + C: sums of ``block`` products at once, added one after another in a format."""
    total = np.zeros(c.shape, wide)
    for k in range(0, a.shape[1], block):
        part = a[:, k : k + block] @ b[k : k + block]
        added = total.astype(np.float64) + part
        total = (truncate_bits(added, 0) if truncate else added).astype(wide)
    return (total.astype(np.float64) + c).astype(wide)


def truncate_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """float32, rounded to zero, without so many last bits of the significand."""
    near = values.astype(np.float32)
    near = np.where(np.abs(near) > np.abs(values), np.nextafter(near, np.float32(0)), near)
    return (near.view(np.uint32) & ~np.uint32((1 << bits) - 1)).view(np.float32)


def flush(values: np.ndarray) -> np.ndarray:
    """Subnormal numbers as zeros."""
    kind = values.dtype.name
    if kind not in TABLE or TABLE[kind].lowest is None:
        return values
    small = np.abs(values.astype(np.float64)) < 2.0 ** float(TABLE[kind].lowest or 0)
    return np.where(small, np.zeros((), values.dtype), values)


def blame_sound(all_made: list[Made], count: int, draw: np.random.Generator) -> Counter[str]:
    """How many of so many sound devices are quarantined, and of how many a dissent is told.

    Fleets of 1 to 16 equals, in one of five ways: all alike; a batch of another driver; one alone that is otherwise; an
    algorithm that each process chooses; one that each call chooses.
    """
    honest = [(m, [describe_exercise_output(m.answer, output) for output in make_honest(m).values()]) for m in all_made]
    told = Counter[str]()
    while told["devices"] < count:
        size = min(int(draw.integers(1, 17)), count - told["devices"])
        way = str(draw.choice(["alike", "batch", "alone", "process", "call"]))
        sick, dissents = set[str](), set[str]()
        for made, variants in honest:
            usual, other = (variants[n] for n in draw.integers(len(variants), size=2))
            fleet = {}
            for n in range(size):
                passes = int(draw.integers(20, 500))
                mine = {"batch": other if n < size // 2 else usual, "alone": other if n == 0 else usual}.get(way, usual)
                if way == "process":
                    mine = variants[draw.integers(len(variants))]
                seen = {mine.digest: replace(mine, count=passes)}
                if way == "call":
                    shares = draw.multinomial(passes, draw.dirichlet(np.ones(len(variants))))
                    seen = {}
                    for variant, times in zip(variants, shares):
                        had = seen[variant.digest].count if variant.digest in seen else 0
                        if times:
                            seen[variant.digest] = replace(variant, count=had + int(times))
                fleet[f"device {n}"] = of_variants(made.exercise, made.answer, list(seen.values()))
            for name, decision in decide_devices(fleet).items():
                sick |= {name} if decision.is_sick else set()
                dissents |= {name} if decision.kind == DISSENT else set()
        told.update(devices=size, quarantined=len(sick), dissents=len(dissents))
    return told


# --- the bench ------------------------------------------------------------------------------------------------------


def screening(folder: Path, size: Size) -> Result:
    """faults: persistent ones; tries: of each rate per operation; hot: devices that become faulty while they run;
    sound: devices."""
    draw, all_made = np.random.default_rng(4), make_all()
    found, total = Counter[str](), Counter[str]()
    for number, fault in enumerate(draw_faults(all_made, size["faults"], draw)):
        caught = is_found(all_made, fault, number)
        for group in ("all", fault.where, name_bit(fault), fault.unit):
            total[group] += 1
            found[group] += caught
    hot = [float(draw.uniform(0, HOT_S)) for _ in range(size["hot"])]
    faults = list(draw_faults(all_made, len(hot), draw))
    in_time = [replace(f, after_s=s) for f, s in zip(faults, hot) if s < SECONDS - SECONDS / PASSES]
    hot_found = sum(is_found(all_made, f, n, PASSES, SECONDS / PASSES) for n, f in enumerate(in_time))

    product = next(m for m in all_made if m.exercise.label == "matmul/float16")
    steps = product.answer.expected.size * product.exercise.steps * PASSES
    rates: list[tuple[float, float, float]] = []
    for rate in RATES:
        hits = 0
        for number in range(size["tries"]):
            fault = Fault("matrix", "float16", "any", bit=number % 16, rate=rate)
            hits += is_found([product], fault, number + len(rates) * size["tries"])
        rates.append((rate, hits / size["tries"], 1 - (1 - rate) ** steps))
    sound = blame_sound(all_made, size["sound"], draw)

    def share(group: str) -> float:
        return found[group] / max(total[group], 1)

    # Standard errors of a share of so many tries.
    off = max(abs(m - f) / max((f * (1 - f) / size["tries"]) ** 0.5, 1 / size["tries"]) for _, m, f in rates)
    minute = {
        name: sizes.side**2 * (2 * TERMS + 1) * PASSES_OF_MINUTE for name, sizes in (("core", CORE), ("device", DEVICE))
    }
    figures = {f"found_{group}": share(group) for group in sorted(total)} | {
        "found_hot": hot_found / max(len(in_time), 1),
        "rate_off_sigmas": off,
        "sound": float(sound["devices"]),
        "quarantined": float(sound["quarantined"]),
        "dissents": float(sound["dissents"]),
    }
    text = (
        f"{found['all']} of {total['all']} persistent faults found ({share('all'):.2%}: "
        + ", ".join(f"{group} {share(group):.2%}" for group in sorted(total) if group != "all")
        + f"); {hot_found} of {len(in_time)} that come when hot; by rate p per operation over n = {steps:,} operations, found and "
        + "1 − (1 − p)^n: "
        + ", ".join(f"{rate:g} {measured:.1%} {formula:.1%}" for rate, measured, formula in rates)
        + "; so in 400 passes of one product half of the faults are found from "
        + " and ".join(f"{np.log(2) / n:.1g} per operation on a {name}" for name, n in minute.items())
        + f"; {sound['quarantined']} of {sound['devices']:,} sound devices quarantined, a dissent told of {sound['dissents']:,}"
    )
    return Result(figures, text)
