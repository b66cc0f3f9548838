"""Passes through all exercises on one device, for as many seconds as are given, and what they gave."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tasks.backends.base import Backend
from tasks.model import Program, Unsupported
from tasks.screen.exercises import ExerciseAnswer, ScreenExercise, find_exercise_sizes, list_screen_exercises
from tasks.screen.forms import find_screen_form_kind
from tasks.screen.observed import PARTS, ObservedExercise, OutputVariant

#: Different outputs of one exercise that are kept.
KEPT = 8
#: By how many places more the operands of an exact or elementwise exercise are turned in each pass: a prime, so that
#: each element comes to each lane.
TURN = 37
#: Characters of an error's text.
ERROR = 300


@dataclass
class _Seen:
    """An output, and how often it came."""

    output: np.ndarray
    digest: str
    first: int
    count: int = 1
    turned: int = 0
    heat: str = ""


@dataclass
class RunningExercise:
    """An exercise that a device can run."""

    exercise: ScreenExercise
    operands: list[np.ndarray]
    answer: ExerciseAnswer
    program: Program
    build_ms: float
    seen: list[_Seen] = field(default_factory=list)
    passes: int = 0
    more: int = 0
    run_s: float = 0.0

    def run(self, measure: Callable[[], str]) -> None:
        """A pass. Raises what the program does."""
        exact, given = self.answer.bound is None, self.program.given
        turns = given is not None and (exact or self.answer.copies > 0)
        by = TURN * self.passes % len(self.answer.expected) if turns else 0
        run = given(self.exercise.turn(self.operands, by)) if by and given is not None else self.program.run
        began = time.perf_counter()
        made = np.asarray(run()[0])
        self.run_s += time.perf_counter() - began
        self.passes += 1
        made = np.roll(made, -by, 0) if by else made
        if exact:
            made = np.asarray(made, dtype=self.answer.expected.dtype)
            if not self.seen:
                self.seen.append(_Seen(self.answer.expected, digest_exercise_bytes(self.answer.expected), 0, 0))
        for seen in self.seen:
            if has_same_bytes(seen.output, made):
                seen.count += 1
                return
        if len(self.seen) < KEPT:
            self.seen.append(_Seen(made.copy(), digest_exercise_bytes(made), self.passes, turned=by, heat=measure()))
        else:
            self.more += 1


def has_same_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same shape and bytes: a NaN is like itself, and −0 is not 0."""
    return (
        one.shape == other.shape and one.dtype == other.dtype and bool((view_as_bits(one) == view_as_bits(other)).all())
    )


def view_as_bits(array: np.ndarray) -> np.ndarray:
    """An array as unsigned integers of the same width, flat."""
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")


def digest_exercise_bytes(array: np.ndarray) -> str:
    """SHA-256 of dtype, shape and bytes, first 16 hexadecimal digits."""
    head = f"{array.dtype.name}{array.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).view(np.uint8).tobytes()).hexdigest()[:16]


def screen_device(
    backend: Backend,
    declared: str,
    seconds: float,
    seed: int = 0,
    tick: Callable[[int], None] = lambda number: None,
    measure: Callable[[], str] = lambda: "",
    skip: Sequence[int] = (),
) -> Iterator[ObservedExercise]:
    """Run all exercises over and over for ``seconds``, at least once; what each gave, or why it was not run.

    declared: the precision that the backend computes in; tick: told the number of each exercise before it is built or
    run; measure: what the device says of its temperature and clock; skip: numbers of exercises that are left out. The
    seconds begin when all is built.
    """
    kind = find_screen_form_kind(backend)
    sizes = find_exercise_sizes(backend.resource, backend.emulated)
    running: list[tuple[int, RunningExercise]] = []
    for number, exercise in enumerate(list_screen_exercises(sizes, seed, declared)):
        if number in skip:
            continue
        tick(number)
        made = _build_screen_exercise(backend, kind, exercise)
        if isinstance(made, ObservedExercise):
            yield made
        else:
            running.append((number, made))
    began, pass_s, failed = time.monotonic(), 0.0, list[ObservedExercise]()
    while running and (not pass_s or time.monotonic() - began < seconds):
        for number, one in list(running):
            if pass_s and time.monotonic() - began >= seconds:
                break
            tick(number)
            try:
                one.run(measure)
            except Exception as error:
                running.remove((number, one))
                failed.append(_tell_exercise_error(one.exercise, error, one.passes))
        pass_s = pass_s or time.monotonic() - began
    heat = measure()
    yield from failed
    for _, one in running:
        yield replace(describe_exercise_pass(one), pass_s=pass_s, heat=heat)


def _build_screen_exercise(backend: Backend, kind: str, exercise: ScreenExercise) -> RunningExercise | ObservedExercise:
    """An exercise that is ready, its first output thrown away; or why the backend does not run it."""
    known = ObservedExercise(exercise.name, exercise.dtype, exercise.unit)
    if not exercise.can_be_asked(kind):
        return replace(known, skipped=f"it cannot be asked in a form that {backend.name} takes")
    operands, answer = exercise.make()
    began = time.perf_counter()
    try:
        program = backend.canary(exercise.form(kind, operands, answer.expected.shape))
        made = np.asarray(program.run()[0])
    except Unsupported as error:
        return replace(known, skipped=str(error)[:ERROR] or "not supported")
    except Exception as error:
        return replace(known, skipped=f"{type(error).__name__}: {' '.join(str(error).split())[:ERROR]}")
    if program.fallback:
        return replace(known, skipped=program.fallback)
    if made.shape != answer.expected.shape:
        return replace(known, skipped=f"its result has the shape {made.shape}, not {answer.expected.shape}")
    return RunningExercise(exercise, operands, answer, program, 1e3 * (time.perf_counter() - began))


def _tell_exercise_error(exercise: ScreenExercise, error: Exception, passes: int) -> ObservedExercise:
    """An exercise that ran and then raised."""
    words = " ".join(str(error).split())[:ERROR]
    name = type(error).__name__
    known = ObservedExercise(exercise.name, exercise.dtype, exercise.unit, passes=passes)
    return replace(known, error_type=name, skipped=f"pass {passes + 1}: {name}: {words}")


def describe_exercise_pass(one: RunningExercise) -> ObservedExercise:
    exercise, answer = one.exercise, one.answer
    seen = sorted((s for s in one.seen if s.count), key=lambda s: -s.count)
    variants = tuple(
        replace(
            describe_exercise_output(answer, s.output, s.digest, s.turned), count=s.count, first=s.first, heat=s.heat
        )
        for s in seen
    )
    return ObservedExercise(
        exercise.name,
        exercise.dtype,
        exercise.unit,
        answer.bound is None,
        one.passes,
        variants,
        one.more,
        answer.expected.size,
        answer.expected.size * exercise.steps,
        one.build_ms,
        1e3 * one.run_s / max(one.passes, 1),
        shapes=str(list(answer.expected.shape)),
        placement=one.program.placement,
    )


def describe_exercise_output(
    answer: ExerciseAnswer, output: np.ndarray, digest: str = "", turned: int = 0
) -> OutputVariant:
    """How an output compares with the right answer. turned: by how many places the operands were, so that the first
    wrong element is told where the device computed it."""
    digest = digest or digest_exercise_bytes(output)
    if answer.bound is None:
        flipped = np.roll(
            (view_as_bits(output) ^ view_as_bits(answer.expected)).reshape(output.shape), turned, 0
        ).reshape(-1)
        at = np.flatnonzero(flipped)
        bits = f"{int(np.bitwise_or.reduce(flipped[at])):x}" if len(at) else ""
        return OutputVariant(digest, 1, 1, len(at), bits, int(at[0]) if len(at) else -1)
    split = tuple(digest_exercise_bytes(part) for part in _split_exercise_output(output))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(output.astype(np.float64) - answer.expected)
        units = np.where(np.isfinite(error), error / answer.bound, np.inf).reshape(-1)
    at = np.flatnonzero(units > 1)
    odd, farther = _compare_output_copies(output.reshape(-1), units, answer.copies) if answer.copies else (0.0, 0.0)
    return OutputVariant(
        digest,
        1,
        1,
        len(at),
        "",
        int(at[0]) if len(at) else -1,
        float(min(units.max(), 1e30)),
        split,
        tuple(float(min(part.max(), 1e30)) for part in _split_exercise_output(units)),
        odd,
        farther,
    )


def _split_exercise_output(array: np.ndarray) -> Sequence[np.ndarray]:
    return np.array_split(array.reshape(-1), min(PARTS, max(array.size, 1)))


def _compare_output_copies(output: np.ndarray, units: np.ndarray, period: int) -> tuple[float, float]:
    """(share of the copies of a number that have other bytes than most of them, share of those that are farther from
    float64)."""
    rows = len(output) // period
    bits = view_as_bits(output)[: rows * period].reshape(rows, period)
    usual = np.sort(bits, axis=0)[rows // 2]  # whatever more than half have stands in the middle
    off = bits != usual
    if not off.any():
        return 0.0, 0.0
    near = units[: rows * period].reshape(rows, period)
    of_usual = np.where(off, -1.0, near).max(axis=0)
    farther = (near > of_usual)[off]
    return float(off.mean()), float(farther.mean())
