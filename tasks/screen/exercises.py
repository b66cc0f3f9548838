"""What a device is given to compute when it is screened: one row for each of its datapaths and dtypes, with the right answer.

An exact exercise has an answer that every order of every sum gives: all partial sums are integers, times one power of
two, which the coarsest number format on the way holds; or each sum has one term that is not 0. Floats in it are odd or
of full length, so that no element of the answer is 0, whose sign might be either, and all exercises together give every
bit of an answer both values. Any other bytes are a fault, and nobody has to be asked. An inexact exercise has operands
of full length, float64 as answer, and a bound that holds whatever the order of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.model import Form
from tasks.model.dtypes import EPS, TABLE, get_numpy_dtype
from tasks.screen.forms import KINDS, make_exercise_form

#: Terms of each sum of a product, and of a sum over an axis. An odd number of odd terms has an odd sum.
TERMS, SUMMED = 128, 255
#: Most of an operand of a product: it fits the significand of bfloat16, in which a float32 unit may be permitted to
#: multiply.
LARGEST = 127
#: Copies of one number come after so many others: a prime, so that each number meets each lane of a vector unit.
PERIOD = 1021
#: OpenCL C, full profile, "Relative error as ULPs": pow 16, division 2.5.
POWER_ULPS, DIVISION_ULPS = 16.0, 2.5
#: Kinds whose arrays have the method ``sum``.
SUMMING = ("torch", "jax", "paddle", "mlx")


@dataclass(frozen=True)
class ExerciseSizes:
    """How much a device is given at once. side: rows and columns of a product; numbers: elements of a vector; memory:
    elements of each array of 32-bit words that is written and read back."""

    side: int
    numbers: int
    memory: tuple[int, ...]


#: A core of a CPU; and a device, whose every unit is to have a tile: 400 tiles of 128 × 128 are more than any has
#: units.
CORE = ExerciseSizes(256, 1 << 15, (1 << 12, 1 << 16, 1 << 20))
DEVICE = ExerciseSizes(2560, 1 << 22, (1 << 14, 1 << 20, 1 << 25))


def find_exercise_sizes(resource: str, emulated: bool) -> ExerciseSizes:
    """For a device that a resource of Ray's counts. One that is emulated would take minutes over what a real one is
    given."""
    return CORE if resource == "CPU" or emulated else DEVICE


@dataclass(frozen=True)
class ExerciseAnswer:
    """The right answer of an exercise. expected: of the exercise's dtype where it is exact, else float64; bound:
    absolute, of each element of an inexact one; copies: of how many numbers all elements are copies, one after another
    (0: of none)."""

    expected: np.ndarray
    bound: np.ndarray | None = None
    copies: int = 0


@dataclass(frozen=True)
class ScreenExercise:
    """unit: the datapath; call: Python's operators over arrays, ops: the same as ONNX has them (none: it cannot be
    asked so); make: operands and answer; steps: operations behind one element of the result."""

    name: str
    unit: str
    dtype: str
    call: Callable[..., Any]
    ops: tuple[str, ...]
    make: Callable[[], tuple[list[np.ndarray], ExerciseAnswer]]
    steps: int
    #: By operand, the axis along which it is turned so that the result is turned along its first axis; None: as it is.
    turned: tuple[int | None, ...] = ()
    kinds: tuple[str, ...] = KINDS

    @property
    def label(self) -> str:
        return f"{self.name}/{self.dtype}"

    def can_be_asked(self, kind: str) -> bool:
        return kind in self.kinds and (kind != "onnx" or bool(self.ops))

    def turn(self, arrays: Sequence[np.ndarray], by: int) -> list[np.ndarray]:
        """Operands whose result is that of ``arrays`` turned by so many places along its first axis: each element is
        then computed elsewhere. Its bytes are the same where the exercise is exact."""
        axes = self.turned or (0,) * len(arrays)
        return [x if axis is None else np.roll(x, by, axis) for x, axis in zip(arrays, axes)]

    def form(self, kind: str, arrays: Sequence[np.ndarray], shape: Sequence[int]) -> Form:
        return make_exercise_form(kind, self.name, self.dtype, arrays, self.call, self.ops, shape)


def list_screen_exercises(sizes: ExerciseSizes, seed: int = 0, declared: str = "") -> Iterator[ScreenExercise]:
    """All exercises, in the order of a pass. declared: the precision that a backend computes in, "" for each dtype's
    own."""

    def exercise(
        name: str,
        unit: str,
        dtype: str,
        call: Callable[..., Any],
        ops: tuple[str, ...],
        make: Any,
        steps: int,
        **more: Any,
    ) -> ScreenExercise:
        def operands() -> tuple[list[np.ndarray], ExerciseAnswer]:
            return make(dtype, sizes, np.random.default_rng([seed, *name.encode(), *dtype.encode()]), declared)

        return ScreenExercise(name, unit, dtype, call, ops, operands, steps, **more)

    def multiply(a: Any, b: Any, c: Any) -> Any:
        return a @ b + c

    def fuse(a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    floats, products, steps = ("float16", "bfloat16", "float32", "float64"), ("MatMul", "Add"), 2 * TERMS + 1
    rows = {"turned": (0, None, 0)}
    for dtype in (*floats, "int32"):
        yield exercise("matmul", "matrix", dtype, multiply, products, _make_exact_product, steps, **rows)
    for dtype in floats:
        yield exercise("permute", "matrix", dtype, multiply, products, _make_permutation_exercise, steps, **rows)
    for dtype in ("float16", "bfloat16", "float32"):
        yield exercise("full_matmul", "matrix", dtype, multiply, products, _make_full_product, steps)
    for dtype in floats:
        yield exercise("multiply_add", "vector", dtype, fuse, ("Mul", "Add"), _make_multiply_add_exercise, 2)
        yield exercise("scale", "vector", dtype, fuse, ("Mul", "Add"), _make_scaling_exercise, 2)
    for dtype in ("int32", "int64"):
        wrapping = ("Mul", "Add", "BitwiseXor")
        yield exercise(
            "integers", "integer", dtype, lambda a, b, c, d: (a * b + c) ^ d, wrapping, _make_integer_exercise, 3
        )
    yield exercise("power", "special", "float32", lambda a, b: a**b, ("Pow",), _make_power_exercise, 1)
    yield exercise("divide", "special", "float32", lambda a, b: a / b, ("Div",), _make_division_exercise, 1)
    columns = {"turned": (1,), "kinds": SUMMING}
    for dtype in ("float16", "bfloat16", "float32", "int32"):
        yield exercise("sum", "reduction", dtype, lambda a: a.sum(0), (), _make_sum_exercise, SUMMED, **columns)
    for count in sizes.memory:
        size = f"{count >> 18}MiB" if count >> 18 else f"{count >> 8}KiB"  # of four bytes each
        name, ops = f"memory_{size}", ("BitwiseXor",)

        def make(
            dtype: str, sizes: ExerciseSizes, draw: Any, declared: str, count: int = count
        ) -> tuple[list[np.ndarray], ExerciseAnswer]:
            return _make_memory_exercise(count, draw)

        yield exercise(name, "memory", "int32", lambda a, b: a ^ b, ops, make, 1)


# --- exact answers --------------------------------------------------------------------------------------------------


def _find_exercise_digits(dtype: str, declared: str) -> int:
    """Binary digits behind the point of the coarsest format on the way of a float; 62 of an integer that is as wide as
    it needs."""
    digits = TABLE[dtype].digits
    if digits is None:
        return 30
    coarser = TABLE[declared].digits if declared in EPS else None
    return min(digits, coarser if coarser is not None else digits)


def _draw_full_digits(draw: np.random.Generator, dtype: str, digits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of so many digits behind the point, of both signs and of all exponents in the middle third of the
    dtype's, as float64."""
    reach = -(TABLE[dtype].lowest or 0) // 3
    numbers = draw.integers(1 << digits, 2 << digits, shape) * 2.0 ** (draw.integers(-reach, reach + 1, shape) - digits)
    made: np.ndarray = numbers * draw.choice([-1.0, 1.0], shape)
    return made


def _draw_odd_integers(draw: np.random.Generator, largest: int, shape: tuple[int, ...]) -> np.ndarray:
    """Odd integers in ±``largest``, which is odd, as float64."""
    return 2.0 * draw.integers(-(largest + 1) // 2, (largest + 1) // 2, shape) + 1.0


def _make_odd_integer(number: float) -> int:
    """The largest odd integer up to a number that is at least 1."""
    return (int(number) - 1) // 2 * 2 + 1


def _find_scaling_reach(dtype: str, declared: str) -> int:
    """By which powers of two, both ways, rows and columns are multiplied: a quarter of what the exponent allows, so
    that products and sums stay far from its ends; none of integers."""
    lowest = TABLE[declared].lowest if declared in EPS and declared != "tfloat32" else None
    lowest = max(lowest or -(1 << 12), TABLE[dtype].lowest or 0) if TABLE[dtype].digits is not None else 0
    return 0 if not lowest else min(-lowest // 6, 20)


def _make_exact_product(
    dtype: str, sizes: ExerciseSizes, draw: np.random.Generator, declared: str
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """A @ B + C: no partial sum has more digits than the coarsest format has, in whatever order it is added."""
    most = 2.0 ** (_find_exercise_digits(dtype, declared) + 1)
    added = _make_odd_integer(min(LARGEST, most / 4))
    each = max((most - added) // TERMS, 1)
    cap = LARGEST if dtype != "float64" else 1 << 22
    first = _make_odd_integer(min(each**0.5, cap))
    second = _make_odd_integer(min(each // first, cap))
    n, reach = sizes.side, _find_scaling_reach(dtype, declared)
    a, b = _draw_odd_integers(draw, first, (n, TERMS)), _draw_odd_integers(draw, second, (TERMS, n))
    c = _draw_odd_integers(draw, added, (n, n)) + (TABLE[dtype].digits is None) * draw.integers(0, 2, (n, n))
    a[::2], b[:, ::2] = np.abs(a[::2]), np.abs(b[:, ::2])  # a quarter of the sums is as large as they may be
    rows = 2.0 ** draw.integers(-reach, reach + 1, (n, 1))
    columns = 2.0 ** draw.integers(-reach, reach + 1, (1, n))
    exact = (a @ b + c) * rows * columns
    kind = get_numpy_dtype(dtype)
    return [(a * rows).astype(kind), (b * columns).astype(kind), (c * rows * columns).astype(kind)], ExerciseAnswer(
        exact.astype(kind)
    )


def _make_permutation_exercise(
    dtype: str, sizes: ExerciseSizes, draw: np.random.Generator, declared: str
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """A @ B + 0 where each row of A has one power of two and zeros: a row of B, whose significands are as long as those
    of the factors may be (TF32's where they are float32)."""
    kind, n = get_numpy_dtype(dtype), sizes.side
    digits = _find_exercise_digits(dtype, declared or ("tfloat32" if dtype == "float32" else ""))
    b = _draw_full_digits(draw, dtype, digits, (TERMS, n))
    chosen, powers = draw.integers(0, TERMS, n), 2.0 ** draw.integers(-2, 3, n)
    a = np.zeros((n, TERMS))
    a[np.arange(n), chosen] = powers
    return [a.astype(kind), b.astype(kind), np.zeros((n, n), kind)], ExerciseAnswer(
        (b[chosen] * powers[:, None]).astype(kind)
    )


def _make_scaling_exercise(
    dtype: str, sizes: ExerciseSizes, draw: np.random.Generator, declared: str
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """a · b + 0 where b is a power of two, and a of full length."""
    kind, shape = get_numpy_dtype(dtype), (sizes.numbers,)
    a, b = (
        _draw_full_digits(draw, dtype, _find_exercise_digits(dtype, declared), shape),
        2.0 ** draw.integers(-2, 3, shape),
    )
    return [a.astype(kind), b.astype(kind), np.zeros(shape, kind)], ExerciseAnswer((a * b).astype(kind))


def _make_multiply_add_exercise(
    dtype: str, sizes: ExerciseSizes, draw: np.random.Generator, declared: str
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """a · b + c, fused or not: the product has at most the digits of the format less one, and so has the sum."""
    digits, reach = _find_exercise_digits(dtype, declared), _find_scaling_reach(dtype, declared)
    largest = _make_odd_integer(2.0 ** (digits // 2))
    shape = (sizes.numbers,)
    a, b = _draw_odd_integers(draw, largest, shape), _draw_odd_integers(draw, largest, shape)
    c = 2.0 * draw.integers(-largest, largest + 1, shape)
    scale, other = (2.0 ** draw.integers(-reach, reach + 1, shape) for _ in range(2))
    kind = get_numpy_dtype(dtype)
    operands = [(a * scale).astype(kind), (b * other).astype(kind), (c * scale * other).astype(kind)]
    return operands, ExerciseAnswer(((a * b + c) * scale * other).astype(kind))


def _make_integer_exercise(
    dtype: str, sizes: ExerciseSizes, draw: np.random.Generator, declared: str
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """(a · b + c) ^ d in two's complement, which wraps."""
    kind = get_numpy_dtype(dtype)
    ends = np.iinfo(kind)
    a, b, c, d = (draw.integers(ends.min, ends.max, sizes.numbers, dtype=kind, endpoint=True) for _ in range(4))
    with np.errstate(over="ignore"):
        return [a, b, c, d], ExerciseAnswer((a * b + c) ^ d)


def _make_sum_exercise(
    dtype: str, sizes: ExerciseSizes, draw: np.random.Generator, declared: str
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """Sums of odd integers over the first axis; of floats, every other sum has one term of full length and zeros. A sum
    of integers may come in a wider dtype, and is compared as a number."""
    largest = _make_odd_integer(min(2.0 ** (_find_exercise_digits(dtype, declared) + 1) / SUMMED, 1 << 15))
    kind, shape = get_numpy_dtype(dtype), (SUMMED, 4 * sizes.side)
    if TABLE[dtype].digits is None:
        a = draw.integers(-largest, largest + 1, shape).astype(np.float64)
    else:
        a, places = _draw_odd_integers(draw, largest, shape), np.arange(0, shape[1], 2)
        a[:, places] = 0
        numbers = _draw_full_digits(draw, dtype, _find_exercise_digits(dtype, declared), places.shape)
        a[draw.integers(0, SUMMED, len(places)), places] = numbers
    return [a.astype(kind)], ExerciseAnswer(a.sum(0).astype(kind))


def _make_memory_exercise(count: int, draw: np.random.Generator) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """Words of the patterns that stuck and coupled cells show in (all, none, every other bit, one alone, all but one) ^
    random ones."""
    walking = [1 << n for n in range(32)]
    words = np.array([0, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA, *walking, *(0xFFFFFFFF ^ w for w in walking)], np.uint32)
    a = np.resize(words, count).view(np.int32)
    b = np.resize(draw.integers(0, 1 << 32, PERIOD, dtype=np.uint32), count).view(np.int32)
    return [a, b], ExerciseAnswer(a ^ b)


# --- answers within a bound -----------------------------------------------------------------------------------------


def _make_full_product(
    dtype: str, sizes: ExerciseSizes, draw: np.random.Generator, declared: str
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """A @ B + C of full significands. The bound is that of recursive summation in any order (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.1), |error| ≤ ((n + 2)·u + 2·v)·(|A||B| + |C|), doubled for rounding by
    truncation: u is ε of the sums' format, at worst the dtype itself; v that of the factors, which may be rounded to
    TF32 where they are float32."""
    kind, n = get_numpy_dtype(dtype), sizes.side
    a, b, c = (draw.uniform(-1, 1, shape).astype(kind) for shape in ((n, TERMS), (TERMS, n), (n, n)))
    wide = [x.astype(np.float64) for x in (a, b, c)]
    eps = max(EPS[dtype], EPS.get(declared, 0.0))
    factors = max(eps, EPS["tfloat32"] if dtype == "float32" else 0.0)
    size = np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(wide[2])
    bound = ((TERMS + 2) * eps + 2 * factors) * size + float(np.finfo(np.float32).tiny)
    return [a, b, c], ExerciseAnswer(wide[0] @ wide[1] + wide[2], bound)


def _make_power_exercise(
    dtype: str, sizes: ExerciseSizes, draw: np.random.Generator, declared: str
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """a ^ b between 2^-8 and 2^8, far from where anybody flushes."""
    return _make_pairs_exercise(
        dtype, sizes, declared, draw.uniform(0.5, 2, PERIOD), draw.uniform(-8, 8, PERIOD), np.power, POWER_ULPS
    )


def _make_division_exercise(
    dtype: str, sizes: ExerciseSizes, draw: np.random.Generator, declared: str
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """a / b between 1/4 and 4."""
    a, b = (draw.uniform(1, 2, PERIOD) * 2.0 ** draw.integers(0, 2, PERIOD) for _ in range(2))
    return _make_pairs_exercise(dtype, sizes, declared, a, b, np.divide, DIVISION_ULPS)


def _make_pairs_exercise(
    dtype: str, sizes: ExerciseSizes, declared: str, a: np.ndarray, b: np.ndarray, call: Any, ulps: float
) -> tuple[list[np.ndarray], ExerciseAnswer]:
    """A function of two numbers, over copies of PERIOD pairs, right to so many ulps of the coarsest format on the
    way."""
    operands = [np.resize(x.astype(get_numpy_dtype(dtype)), sizes.numbers) for x in (a, b)]
    exact = call(*(x.astype(np.float64) for x in operands))
    # Where the inputs are rounded to a coarser format first, the result moves by as much as its own condition says:
    # 8·ln 2·… < 16.
    eps = EPS[dtype] * ulps if not EPS.get(declared, 0.0) > EPS[dtype] else 32 * EPS[declared]
    return operands, ExerciseAnswer(exact, eps * np.abs(exact), PERIOD)
