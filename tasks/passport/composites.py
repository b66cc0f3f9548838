"""What an output is that sums are only a part of (a softmax, a norm, a variance, attention, a loss), told from the numbers: its formula, in NumPy.

No op is named: the formula of these arrays that gives the output is taken, whatever the op is called.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tasks.model import is_complex_dtype, is_inexact_dtype
from tasks.model.dtypes import name_numpy_dtype
from tasks.operators import formulas
from tasks.passport.bounded_arrays import DEVIATIONS, BoundedArray
from tasks.passport.locate_sum import GIVEN, NEAR

#: Numbers of an array beyond which no formula is tried.
LARGEST = 2**22
#: Share of the largest number below which one is as good as 0 in float64.
ZERO = 2.0**-44
#: Blocks of a norm that a formula is tried on.
TRIED = 4


@dataclass(frozen=True)
class Composite:
    """The formula of an output. of: what it is called; number: of the array that it sums; compute: it of the arrays in
    float64, or bounded, in their order."""

    of: str
    number: int
    compute: Callable[[Sequence[Any]], Any]


def find_composite_formula(arrays: Sequence[Any], output: Any) -> Composite | None:
    """The formula that gives an output, float64; None where none does that is known here."""
    y = np.asarray(output)
    given = [np.asarray(x) for x in arrays]
    floats = [
        k
        for k, x in enumerate(given)
        if is_inexact_dtype(name_numpy_dtype(x.dtype)) and not is_complex_dtype(name_numpy_dtype(x.dtype))
    ]
    if not floats or not y.size or max(x.size for x in (y, *given)) > LARGEST:
        return None
    wide = [x.astype(np.float64) if k in floats else x for k, x in enumerate(given)]
    with np.errstate(all="ignore"):
        for found in _list_composite_formulas(wide, floats, y):
            try:
                made = np.asarray(found.compute(wide))
            except ValueError:  # made for other shapes
                continue
            if _is_formula_near(made.reshape(y.shape) if made.size == y.size else made, y):
                return found
    return None


def _is_formula_near(made: np.ndarray, y: np.ndarray) -> bool:
    """Whether a formula gives an output: nearly all its numbers, the small ones among them, as along another axis it
    would not."""
    if made.shape != y.shape:
        return False
    sizes = np.abs(y)
    largest = sizes[np.isfinite(sizes)].max(initial=0.0)  # one that is infinite would leave all others near
    return bool(np.mean((made == y) | (np.abs(made - y) <= NEAR * sizes + ZERO * largest)) >= GIVEN)


def _list_composite_formulas(arrays: Sequence[np.ndarray], floats: Sequence[int], y: np.ndarray) -> Iterator[Composite]:
    """Those whose shapes fit, and of which a glance at the numbers does not say that they are another function."""
    first = floats[0]
    x = arrays[first]
    if len(floats) == 1 and len(arrays) == 1:
        yield from _list_composite_reductions(x, y, first)
    if len(floats) == 1 and len(arrays) == 2 and y.shape in ((), (1,), x.shape[:1]):
        (labels,) = (k for k in range(2) if k != first)
        yield from _list_composite_losses(arrays[labels], x, y, first, labels)
    if len(floats) == 2 and len(arrays) == 2 and y.size == 1 and arrays[0].shape == arrays[1].shape:
        yield Composite("mean square", 0, lambda given: np.square(given[0] - given[1]).mean())
    if 1 <= len(floats) <= 3:
        for number in (k for k in floats if arrays[k].shape == y.shape):
            yield from _list_composite_norms(arrays, floats, y, number)
    if len(floats) in (3, 4) and all(arrays[k].ndim == y.ndim >= 3 for k in floats[:3]):
        yield from _list_composite_attentions(arrays, floats, y)


def _list_composite_reductions(x: np.ndarray, y: np.ndarray, number: int) -> Iterator[Composite]:
    """Softmaxes, and what is made of one array along an axis."""
    for axis in range(x.ndim - 1, -1, -1):
        if x.shape[axis] < 2:
            continue
        kept = (*x.shape[:axis], *x.shape[axis + 1 :])
        ways: list[tuple[str, Callable[..., Any]]] = []
        if y.shape == x.shape:
            ways = [("softmax", formulas.compute_softmax), ("log softmax", formulas.compute_log_softmax)]
        elif y.size == math.prod(kept):
            ways = [
                ("standard deviation" if root else "variance", partial(_compute_spread_by_sums, ddof=ddof, root=root))
                for ddof, root in itertools.product((1, 0), (False, True))
            ]
            ways += [
                ("log of a sum of exponentials", partial(formulas.compute_log_sum_exp, keep=False)),
                ("norm", _compute_norm_by_sums),
            ]
        for of, way in ways:
            yield Composite(of, number, partial(_reduce_by_sum, number=number, axis=axis, way=way))


def _reduce_by_sum(given: Sequence[Any], number: int, axis: int, way: Callable[..., Any]) -> Any:
    return way(given[number], axis)


def _compute_norm_by_sums(x: Any, axis: int) -> Any:
    return np.sqrt(np.square(x).sum(axis))


def _compute_spread_by_sums(x: Any, axis: int, ddof: int, root: bool) -> Any:
    count = x.shape[axis]
    found = compute_variance_by_sums(x, axis)[1] * (count / (count - ddof) if count > ddof else math.nan)
    found = found.squeeze(axis)
    return np.sqrt(found) if root else found


def compute_variance_by_sums(x: Any, axis: int) -> tuple[Any, Any]:
    """(x − mean, biased variance) along an axis, which is kept. Of bounded numbers the variance is as far off as the
    way leaves it that leaves it furthest off: by squares of deviations, or by the mean of squares less the square of
    the mean (Chan, Golub & LeVeque 1983)."""
    x = x.called(DEVIATIONS) if isinstance(x, BoundedArray) else x
    apart = x - x.mean(axis=axis, keepdims=True)
    found = np.square(apart).mean(axis=axis, keepdims=True)
    if isinstance(found, BoundedArray):
        other: Any = formulas.compute_one_pass_variance(x, axis)
        found = BoundedArray.make(found, found.steps, np.maximum(found.off, other.off))
    return apart, found


def _list_composite_losses(
    labels: np.ndarray, x: np.ndarray, y: np.ndarray, number: int, place: int
) -> Iterator[Composite]:
    """Cross entropy of logits (N, C) and classes (N), of which others than 0 … C − 1 are left out; its mean, its sum,
    or each."""
    if x.ndim != 2 or labels.shape != x.shape[:1] or labels.dtype.kind not in "iu":
        return

    def lose(given: Sequence[Any], how: str) -> Any:
        kept = np.flatnonzero((given[place] >= 0) & (given[place] < x.shape[1]))
        each = -formulas.compute_log_softmax(given[number][kept], 1)[np.arange(kept.size), given[place][kept]]
        return each if how == "" else each.mean() if how == "mean" else each.sum()

    for how in ("mean", "sum") if y.size == 1 else ("",):
        yield Composite("cross entropy", number, partial(lose, how=how))


def _list_composite_norms(
    arrays: Sequence[np.ndarray], floats: Sequence[int], y: np.ndarray, number: int
) -> Iterator[Composite]:
    """Of neighbours: layer, group, instance and root mean square norms, with a scale and a shift that are broadcast or
    of a channel each."""
    shape, beside = y.shape, [k for k in floats if k != number]
    if y.ndim < 2 or any(arrays[k].size > y.size for k in beside):
        return
    sizes = {math.prod(shape[k:]) for k in range(1, y.ndim)}
    if y.ndim > 2:
        sizes |= {math.prod(shape[2:]) * n for n in range(1, shape[1] + 1) if shape[1] % n == 0}
    channels = [False, True] if beside and y.ndim > 2 else [False]
    blocks = y.reshape(-1)
    for size, by_channel, order in itertools.product(sorted(sizes), channels, itertools.permutations(beside)):
        if size < 2:
            continue

        def place(x: Any, by_channel: bool = by_channel) -> Any:
            return x.reshape(1, -1, *(1,) * (len(shape) - 2)) if by_channel else x

        try:
            ends = [np.broadcast_to(place(arrays[k]), shape).reshape(-1)[: TRIED * size] for k in order]
        except ValueError:
            continue
        some = arrays[number].reshape(-1)[: TRIED * size].reshape(-1, size)
        for centred, eps in itertools.product((True, False), formulas.EPSILONS):
            made = _apply_norm_ends(_standardise_by_sums(some, eps, centred).reshape(-1), ends)
            if _is_formula_near(made, blocks[: TRIED * size]):

                def norm(given: Sequence[Any], size: int = size, eps: float = eps, centred: bool = centred,
                         order: Sequence[int] = order, place: Callable[..., Any] = place) -> Any:  # fmt: skip
                    bare = _standardise_by_sums(given[number].reshape(-1, size), eps, centred).reshape(shape)
                    return _apply_norm_ends(bare, [place(given[k]) for k in order])

                yield Composite(
                    "norm by mean and variance" if centred else "norm by the root mean square", number, norm
                )


def _standardise_by_sums(x: Any, eps: float, centred: bool) -> Any:
    apart, squares = compute_variance_by_sums(x, -1) if centred else (x, np.square(x).mean(axis=-1, keepdims=True))
    return apart / np.sqrt(squares + eps)


def _apply_norm_ends(x: Any, ends: Sequence[Any]) -> Any:
    x = x * ends[0] if ends else x
    return x + ends[1] if len(ends) > 1 else x


def _list_composite_attentions(
    arrays: Sequence[np.ndarray], floats: Sequence[int], y: np.ndarray
) -> Iterator[Composite]:
    """Attention of queries (…, H, L, E), keys (…, G, S, E) and values (…, G, S, V), and a mask that is added."""
    query, key, value, *masks = floats
    masks += [k for k, x in enumerate(arrays) if x.dtype == bool]
    if len(masks) > 1 or arrays[query].shape[-1] != arrays[key].shape[-1] or arrays[query].shape[:-1] != y.shape[:-1]:
        return
    for causal in (False, True):

        def attend(given: Sequence[Any], causal: bool = causal) -> Any:
            mask = given[masks[0]] if masks else None
            return formulas.compute_attention(given[query], given[key], given[value], causal, mask)

        yield Composite("attention", key, attend)
