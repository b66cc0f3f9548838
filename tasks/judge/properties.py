"""What mathematics promises of an op on all its inputs, whatever a reference says: order, symmetry, bounds, exact points.

A violation is shown by two inputs and what came out. Rounding keeps order, symmetry and bounds, so a correctly rounded
kernel breaks none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tasks.judge.ascending_inputs import AscendingInputs, sort_inputs_ascending
from tasks.judge.error_metrics import compute_ulp_spacing
from tasks.model import EPS, SMALLEST_NORMAL
from tasks.model.dtypes import format_number, get_numpy_dtype, name_numpy_dtype

_RISES = (
    "acosh asin asinh atan atanh ceil deg2rad erf erfinv exp exp2 expm1 floor hardsigmoid hardtanh log log10 log1p log2 logit logsigmoid "
    "ndtr rad2deg relu relu6 round sigmoid sign sinh softplus softsign sqrt tanh tanhshrink trunc"
).split()
_FALLS = "acos erfc neg".split()
_ODD = "asin asinh atan atanh deg2rad erf erfinv i1 i1e neg rad2deg round sign sin sinh softsign tan tanh tanhshrink trunc".split()
_EVEN = "abs cos cosh i0 i0e sinc square".split()
_AGAIN = "abs ceil floor hardtanh relu relu6 round sign trunc".split()
_BACK = ["neg"]
#: Smallest and largest value.
_BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys("tanh erf sin cos softsign".split(), (-1.0, 1.0)),
    **dict.fromkeys("sigmoid hardsigmoid ndtr".split(), (0.0, 1.0)),
    # Not rsqrt, which is -Inf of -0 (IEEE 754-2019, 9.2.1).
    **dict.fromkeys("exp exp2 sqrt abs square relu softplus acosh".split(), (0.0, np.inf)),
    "cosh": (1.0, np.inf),
    "expm1": (-1.0, np.inf),
    "erfc": (0.0, 2.0),
    "relu6": (0.0, 6.0),
}
#: Inputs at which the result is a number of every dtype.
_POINTS: Mapping[str, tuple[tuple[float, float], ...]] = {
    **dict.fromkeys(
        "sin tan asin atan sinh tanh asinh atanh erf expm1 log1p sqrt tanhshrink silu gelu mish".split(), ((0.0, 0.0),)
    ),
    **dict.fromkeys("exp cos cosh erfc erfcx sinc i0".split(), ((0.0, 1.0),)),
    **dict.fromkeys("log log2 log10 acosh".split(), ((1.0, 0.0),)),
    "exp2": ((0.0, 1.0), (1.0, 2.0), (3.0, 8.0), (-2.0, 0.25)),
    "rsqrt": ((1.0, 1.0), (4.0, 0.5)),
    "sigmoid": ((0.0, 0.5),),
    "square": ((1.0, 1.0), (-3.0, 9.0)),
}
_COMMUTES = (
    "add mul maximum minimum max min fmax fmin hypot logaddexp eq ne bitwise_and bitwise_or bitwise_xor gcd lcm logical_and logical_or "
    "logical_xor"
).split()
#: Spacings by which neighbours may be out of order or apart before it is told: what is computed in a wider dtype and
#: rounded is off by one where it falls near a midpoint (docs/verdict.md).
_SLACK = 1.0


class BrokenProperty(NamedTuple):
    """A promise that is not kept. code: which one ("rising", "falling", "odd", "even", "bounds", "point", "again",
    "inverse", "commutative", "power"); text: with the inputs that show it; values: of the promise: (smallest, largest),
    (input, result)."""

    code: str
    text: str
    values: tuple[float, ...] = ()


def find_broken_property(op: str, given: list[np.ndarray], actual: np.ndarray) -> BrokenProperty | None:
    """What an op ("torch:nn.functional.relu", "onnx:Relu") breaks first on all values of a dtype, or on all pairs; None
    where it keeps all that is known of it. Outputs of another shape or dtype than the input are none of it."""
    name = op.partition(":")[2].rpartition(".")[2].lower()
    if len(given) == 2 and given[0].ndim == 2 and given[0].shape == actual.shape == given[0].T.shape:
        return next(_check_properties_of_pairs(name, given[0], given[1], actual), None)
    if len(given) != 1 or given[0].shape != actual.shape or given[0].dtype != actual.dtype:
        return None
    if (dtype := name_numpy_dtype(actual.dtype)) not in EPS:
        return None
    with np.errstate(all="ignore"):
        return next(_check_properties_of_one(name, sort_inputs_ascending(given[0]), actual.reshape(-1), dtype), None)


def _check_properties_of_one(
    name: str, inputs: AscendingInputs, actual: np.ndarray, dtype: str
) -> Iterator[BrokenProperty]:
    """A NaN breaks nothing here: where none belongs, the judge says so."""
    actual = actual[inputs.order]
    x, y = inputs.values, actual.astype(np.float64)
    yield from _check_ascending_results(name, inputs, y, dtype)
    low, high = _BOUNDS.get(name, (-np.inf, np.inf))
    outside = (y < low) | (y > high)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        text = f"outside [{low:g}, {high:g}]: f({format_number(x[at])}) = {format_number(y[at])}"
        yield BrokenProperty("bounds", text, (low, high))
    for point, value in _POINTS.get(name, ()):
        missed = (x == point) & ((y < value) | (y > value))
        if missed.any():
            text = f"f({point:g}) = {format_number(y[missed][0])}, which is {value:g} exactly"
            yield BrokenProperty("point", text, (point, value))
    twice = ((_AGAIN, "again", "not the same once more", y), (_BACK, "inverse", "not its own inverse", x))
    for names, code, word, wanted in twice:
        if name in names:
            yield from (
                BrokenProperty(code, text)
                for text in _check_involution_property(word, x, y, inputs.places(actual), wanted)
            )


def _check_ascending_results(name: str, inputs: AscendingInputs, y: np.ndarray, dtype: str) -> Iterator[BrokenProperty]:
    """Order and symmetry of ``y``, results of the ascending inputs."""
    x = inputs.values

    def ulps(apart: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.abs(apart) / compute_ulp_spacing(np.abs(y[at]), EPS[dtype], SMALLEST_NORMAL[dtype])

    for names, sign, word in ((_RISES, 1.0, "rising"), (_FALLS, -1.0, "falling")):
        if name in names:
            highest = np.fmax.accumulate(sign * y)
            low = np.flatnonzero(highest > sign * y)
            drop = ulps(highest[low] - sign * y[low], low)
            if (drop > _SLACK).any():
                at = int(low[np.argmax(drop)])
                yield BrokenProperty(
                    word, _format_broken_pair(f"not {word}", x, y, int(np.nanargmax(sign * y[: at + 1])), at)
                )
    if not (name in _ODD or name in _EVEN):
        return
    opposite = inputs.mirror_places
    for names, sign, word in ((_ODD, -1.0, "odd"), (_EVEN, 1.0, "even")):
        if name in names:
            off = np.flatnonzero(np.abs(y[opposite] - sign * y) > 0)
            off = off[x[opposite[off]] == -x[off]]
            apart = ulps(y[opposite[off]] - sign * y[off], off)
            if (apart > 0).any():
                at = int(off[np.nanargmax(apart)])
                yield BrokenProperty(word, _format_broken_pair(f"not {word}", x, y, at, int(opposite[at])))


def _check_involution_property(
    word: str, x: np.ndarray, y: np.ndarray, place: np.ndarray, wanted: np.ndarray
) -> Iterator[str]:
    """f(f(x)), looked up among the inputs, which have every value; place: of each result among them."""
    again = y[place]
    off = (x[place] == y) & ((again < wanted) | (again > wanted))
    if off.any():
        at = int(np.flatnonzero(off)[0])
        yield _format_broken_pair(word, x, y, at, int(place[at]))


def _check_properties_of_pairs(name: str, a: np.ndarray, b: np.ndarray, actual: np.ndarray) -> Iterator[BrokenProperty]:
    first, second = (v.astype(np.float64) for v in (a, b))
    y = actual.astype(np.float64)
    if name in _COMMUTES and np.array_equal(first, second.T, equal_nan=True):
        off = ~((y == y.T) | (np.isnan(y) & np.isnan(y.T)))
        if off.any():
            i, j = (int(k) for k in np.argwhere(off)[0])
            sides = [
                f"f({format_number(first[k])}, {format_number(second[k])}) = {format_number(y[k])}"
                for k in ((i, j), (j, i))
            ]
            yield BrokenProperty("commutative", f"not commutative: {', '.join(sides)}")
    if name == "pow":
        ones = np.ones((), get_numpy_dtype(name_numpy_dtype(actual.dtype))).astype(np.float64)
        for exponent, wanted in ((0.0, np.broadcast_to(ones, y.shape)), (1.0, first)):
            off = (second == exponent) & (y != wanted) & ~np.isnan(wanted)
            if off.any():
                i, j = (int(k) for k in np.argwhere(off)[0])
                text = f"f({format_number(first[i, j])}, {exponent:g}) = {format_number(y[i, j])}, which is {format_number(wanted[i, j])} exactly"
                yield BrokenProperty("power", text)


def _format_broken_pair(word: str, x: np.ndarray, y: np.ndarray, i: int, j: int) -> str:
    return f"{word}: f({format_number(x[i])}) = {format_number(y[i])}, f({format_number(x[j])}) = {format_number(y[j])}"
