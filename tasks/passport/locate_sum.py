"""Where the terms of an op's results lie among the arrays of a call, told from the numbers: which sum of these arrays gives that output.

No op is named: an output that is the products of rows and columns, the windows of a convolution or the sums along an
axis of the arrays of its call is computed as that, whatever the op is called.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np

from tasks.model import is_complex_dtype, is_inexact_dtype
from tasks.model.dtypes import name_numpy_dtype
from tasks.passport.device_sum import ELEMENTS, SumTerms

#: Elements of the output that a sum is tried on, and the share of them that it must give.
TRIED, GIVEN = 48, 0.9
#: How far a result may be from the sum, as a share of what its terms amount to: any adder leaves less, and another sum
#: of the same numbers more. What a result ought to be is nearer, so that no long sum whose terms cancel is taken for
#: another function of its terms.
NEAR, NEAR_EXACT = 1 / 64, 2.0**-16
#: Fewest terms of a sum.
FEWEST = 2
#: Strides of a convolution that are tried.
STRIDES = (1, 2, 4)

#: For places in the flat output [e]: places in the flat arrays of the terms' left factors [n, e] and of their right
#: ones, -1 where there is no such number (a window beyond the edge).
Places = Callable[[np.ndarray], tuple[np.ndarray, Optional[np.ndarray]]]


@dataclass(frozen=True)
class LocatedSum:
    """An output as sums of the numbers of some arrays: scale·(Σ left·right + alone), or the mean of left. The scale is
    a power of two, which rounds nothing.

    left, right, alone: numbers of the arrays, None where there is none; places: where the terms of some elements are;
    alone_at: the same of what is added to them; terms: how many a sum has, of these alone; divided: whether by their
    number.
    """

    left: int
    right: int | None
    alone: int | None
    places: Places
    alone_at: Callable[[np.ndarray], np.ndarray] | None
    terms: int
    divided: bool = False
    scale: float = 1.0

    def factors(self, arrays: Sequence[Any], at: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """(left, right) factors [e, terms] in float64 of the elements at some places of the flat output, what is added
        as the last term; right is None of plain sums."""
        left_at, right_at = self.places(at)
        left = _take_terms(arrays[self.left], left_at)
        right = None if self.right is None or right_at is None else _take_terms(arrays[self.right], right_at)
        if self.alone is not None and self.alone_at is not None:
            left = np.concatenate([left, _take_terms(arrays[self.alone], self.alone_at(at))[None]])
            right = None if right is None else np.concatenate([right, np.ones((1, len(at)))])
        return np.ascontiguousarray(left.T), None if right is None else np.ascontiguousarray(right.T)

    def list_places(self, at: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """(number of an array, places [terms, e] in it) of the left factors, the right ones and what is added, of
        elements at some places of the flat output."""
        left, right = self.places(at)
        found = [(self.left, left)]
        if self.right is not None and right is not None:
            found.append((self.right, right))
        if self.alone is not None and self.alone_at is not None:
            found.append((self.alone, self.alone_at(at)[None]))
        return found

    def at_element(self, place: int, arrays: int, where: str = "") -> SumTerms:
        """Where the terms of one element of the flat output lie. arrays: how many there are. Raises ValueError for one
        whose window lies beyond the edge."""
        at = np.array([place])
        left, right = self.places(at)
        if min(left.min(), left.min() if right is None else right.min()) < 0:
            raise ValueError("some of its terms are no numbers of an array")
        alone = () if self.alone is None or self.alone_at is None else (self.alone, int(self.alone_at(at)[0]))
        pair = () if self.right is None or right is None else (self.right, tuple(right[:, 0].tolist()))
        return SumTerms(
            place,
            (self.left, tuple(left[:, 0].tolist())),
            pair,
            alone,
            (1.0,) * arrays,
            self.divided,
            where,
            scale=self.scale,
        )

    def list_elements_beside(self, place: int, size: int, arrays: int, where: str = "") -> list[SumTerms]:
        """`at_element` of a place, then of the others of its block of ELEMENTS columns, of an output of so many, that one
        call can ask other questions: products that share their left factors, which then stand on the right. Of other
        sums the place alone. Raises ValueError as that does; a neighbour that has no terms of its own is left out."""
        own = self.at_element(place, arrays, where)
        if not own.right:
            return [own]
        block = range(place - place % ELEMENTS, size)[:ELEMENTS]
        first = replace(own, left=own.right, right=own.left)
        found = [first]
        for k in (k for k in block if k != place):
            with contextlib.suppress(ValueError):  # only the place that is asked for has to lie within the edge
                other = self.at_element(k, arrays)
                if other.left == own.left and other.right:
                    turned = replace(other, left=other.right, right=own.left)
                    found += [turned] if first.is_like(turned) else []
        return found


def _take_terms(array: Any, at: np.ndarray) -> np.ndarray:
    """Elements of a flat array in float64, 0 at -1."""
    flat = np.asarray(array).reshape(-1)[np.maximum(at, 0)].astype(np.float64)
    return np.asarray(np.where(at < 0, 0.0, flat))


def locate_sum_terms(arrays: Sequence[Any], output: Any, near: float = NEAR) -> LocatedSum | None:
    """The sum of a call's arrays that its output is; None where it is none that is known here. Arrays that are no
    floating numbers are no part of it. near: how far the output may be from it, as a share of what its terms amount
    to."""
    y = np.asarray(output)
    floats = [k for k, x in enumerate(arrays) if _is_real_array(x)]
    if not _is_real_array(y) or not y.size or len(floats) not in (1, 2, 3):
        return None
    at = np.unique(np.linspace(0, y.size - 1, TRIED).astype(np.int64))
    exact = y.reshape(-1)[at].astype(np.float64)
    with np.errstate(all="ignore"):
        for found in _list_located_sums([np.asarray(x) for x in arrays], floats, y.shape):
            left, right = found.factors(arrays, at)
            terms = left if right is None else left * right
            share = 1.0 / found.terms if found.divided else 1.0
            if right is not None and found.alone is None:
                found = replace(found, scale=_fit_sum_scale(terms.sum(1), exact))
                share = found.scale
            far = np.abs(share * terms.sum(1) - exact) - near * share * np.abs(terms).sum(1)
            if np.mean(far <= 0) >= GIVEN:
                return found
    return None


def _fit_sum_scale(sums: np.ndarray, results: np.ndarray) -> float:
    """The power of two by which results are most nearly sums; 1 where none is."""
    factor = float((sums * results).sum() / np.square(sums).sum())
    return 2.0 ** round(np.log2(factor)) if np.isfinite(factor) and factor > 0 else 1.0


def _is_real_array(x: Any) -> bool:
    name = name_numpy_dtype(np.asarray(x).dtype)
    return is_inexact_dtype(name) and not is_complex_dtype(name)


def _list_located_sums(
    arrays: Sequence[np.ndarray], floats: Sequence[int], shape: tuple[int, ...]
) -> Iterator[LocatedSum]:
    if len(floats) == 1:
        yield from _list_sums_along_axes(arrays[floats[0]].shape, floats[0], shape)
        return
    for a, b in itertools.permutations(floats, 2):
        others = [k for k in floats if k not in (a, b)]
        added = _spread_broadcast_terms(arrays[others[0]].shape, shape) if others else None
        alone = others[0] if others else None
        for places, terms, per_channel in _list_sums_of_products(arrays[a].shape, arrays[b].shape, shape):
            one = added
            if others and per_channel:
                one = _list_channel_sums(arrays[others[0]].shape, shape)
            if terms >= FEWEST and (not others or one is not None):
                yield LocatedSum(a, b, alone, places, one, terms)


def _spread_broadcast_terms(own: tuple[int, ...], shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray] | None:
    """Where what is added to some elements lies in an array that is broadcast to the output; None where it cannot
    be."""
    index = np.arange(int(np.prod(own))).reshape(own)
    try:
        flat = np.broadcast_to(index, shape)
    except ValueError:
        return None
    return lambda at: np.asarray(flat[np.unravel_index(at, shape)])


def _list_channel_sums(own: tuple[int, ...], shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray] | None:
    return (lambda at: np.asarray(np.unravel_index(at, shape)[1])) if own == shape[1:2] else None


def _list_sums_along_axes(own: tuple[int, ...], number: int, shape: tuple[int, ...]) -> Iterator[LocatedSum]:
    index = np.arange(int(np.prod(own))).reshape(own)
    dims = len(own)
    axes = [(k,) for k in range(dims - 1, -1, -1)] + [(-2, -1)] * (dims > 2) + [tuple(range(dims))] * (dims > 1)
    if own == shape:
        yield from (_locate_running_sum(own, number, axis) for axis in range(dims - 1, -1, -1) if own[axis] >= FEWEST)
        return
    for one in axes:
        kept = [k for k in range(dims) if k - dims not in one and k not in one]
        rest = tuple(own[k] for k in kept)
        if int(np.prod(rest)) != int(np.prod(shape)) or tuple(n for n in shape if n > 1) != tuple(
            n for n in rest if n > 1
        ):
            continue
        rows = np.transpose(index, (*[k for k in range(dims) if k not in kept], *kept)).reshape(-1, int(np.prod(rest)))
        if len(rows) < FEWEST:
            continue

        def places(at: np.ndarray, rows: np.ndarray = rows) -> tuple[np.ndarray, np.ndarray | None]:
            return rows[:, at], None

        for divided in (False, True):
            yield LocatedSum(number, None, None, places, None, len(rows), divided)


def _locate_running_sum(own: tuple[int, ...], number: int, axis: int) -> LocatedSum:
    """Running sums along an axis: an element is of those before it, so that of the others there is no number."""
    step = int(np.prod(own[axis + 1 :]))
    terms = np.arange(own[axis])[:, None]

    def places(at: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        last = at // step % own[axis]
        return np.where(terms <= last, at - (last - terms) * step, -1), None

    return LocatedSum(number, None, None, places, None, own[axis])


def _list_sums_of_products(
    a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]
) -> Iterator[tuple[Places, int, bool]]:
    """(places, terms, whether what is added is one number a channel) of the products of two arrays that have so many
    elements."""
    left, right = (np.arange(int(np.prod(x))).reshape(x) for x in (a, b))
    if min(len(a), len(b)) >= 1:
        for turned, rows in ((False, False), (True, False), (False, True)):
            if turned and len(b) < 2:
                continue
            other = np.swapaxes(right, -1, -2) if turned else right

            def products(
                at: np.ndarray, other: np.ndarray = other, rows: bool = rows
            ) -> tuple[np.ndarray, np.ndarray | None]:
                return pair_sum_factors(left, other, shape, at, rows)

            try:
                one = products(np.zeros(1, np.int64))[0]
            except ValueError:
                continue
            yield products, len(one), False
    if len(a) == len(b) == len(shape) >= 3 and shape[:2] == (a[0], b[0]) and a[1] % b[1] == 0:
        for stride, padding in _list_convolution_steps(a[2:], b[2:], shape[2:]):
            yield _locate_window_terms(a, b, shape, stride, padding), int(np.prod(b[1:])), True


def _list_convolution_steps(
    size: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """(stride, padding) of the convolutions, alike along all axes, that give this size."""
    for stride, padding in itertools.product(STRIDES, range(max(kernel))):
        if all((n + 2 * padding - k) // stride + 1 == m and n + 2 * padding >= k for n, k, m in zip(size, kernel, out)):
            yield stride, padding


def _locate_window_terms(
    x: tuple[int, ...], w: tuple[int, ...], shape: tuple[int, ...], stride: int, padding: int
) -> Places:
    """Where the terms of a convolution of x (N, C, …) with w (M, C / groups, …) lie."""
    groups = x[1] // w[1]
    channel, *inside = np.meshgrid(*(np.arange(n) for n in w[1:]), indexing="ij")
    channel, inside = channel.reshape(-1, 1), [k.reshape(-1, 1) for k in inside]

    def places(at: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        row, out, *spots = np.unravel_index(at, shape)
        first = out // (w[0] // groups) * w[1]
        spots = [o * stride - padding + k for o, k in zip(spots, inside)]
        there = np.logical_and.reduce([(s >= 0) & (s < n) for s, n in zip(spots, x[2:])])
        held = [np.clip(s, 0, n - 1) for s, n in zip(spots, x[2:])]
        left = np.ravel_multi_index(np.broadcast_arrays(row, first + channel, *held), x)
        right = np.ravel_multi_index(np.broadcast_arrays(out, channel, *inside), w)
        return np.where(there, left, -1), right

    return places


@dataclass(frozen=True)
class GatedProduct:
    """An output that is silu(x·w)·(x·v) of the matrices with these numbers."""

    x: int
    w: int
    v: int


def locate_gated_product(arrays: Sequence[Any], output: Any) -> GatedProduct | None:
    """The two products of a call's arrays, one of which is the gate of the other, that its output is; None where it is
    none."""
    y = np.asarray(output)
    given = [np.asarray(x) for x in arrays]
    if len(given) != 3 or not all(_is_real_array(x) for x in (*given, y)):
        return None
    for x, w, v in itertools.permutations(range(3)):
        a, b, c = (given[k] for k in (x, w, v))
        if b.ndim != 2 or b.shape != c.shape or a.shape[-1:] != b.shape[:1] or y.shape != (*a.shape[:-1], b.shape[1]):
            continue
        columns = np.unique(np.linspace(0, b.shape[1] - 1, TRIED).astype(np.int64))
        row = a.reshape(-1, a.shape[-1])[0].astype(np.float64)
        with np.errstate(all="ignore"):
            gate, value = (row @ one[:, columns].astype(np.float64) for one in (b, c))
            if _is_function_near(
                gate / (1 + np.exp(-gate)) * value, y.reshape(-1, b.shape[1])[0, columns].astype(np.float64)
            ):
                return GatedProduct(x, w, v)
    return None


def locate_order_terms(arrays: Sequence[Any], output: Any, place: int) -> SumTerms | None:
    """Where the terms of a sum lie that an op makes of its input and that only shows in a result at a place of the flat
    output: the denominator of a softmax or of its logarithm, the mean of a normalisation, all along the last axis of an
    array like the output; None where the output is none of these."""
    y = np.asarray(output)
    number = next((k for k, x in enumerate(arrays) if _is_real_array(x) and np.shape(x) == y.shape), None)
    if number is None or not _is_real_array(y) or not y.ndim or y.shape[-1] < FEWEST:
        return None
    width = y.shape[-1]
    x, exact = np.asarray(arrays[number]).astype(np.float64), y.astype(np.float64)
    row = place // width
    places = tuple(range(row * width, (row + 1) * width))
    with np.errstate(all="ignore"):
        shifted = x - x.max(-1, keepdims=True)
        weights = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
        for made in (weights, np.log(weights)):
            if _is_function_near(made, exact):
                return SumTerms(
                    places[0], (number, places), fill=(0.0,) * len(arrays), of="exponentials", outputs=places
                )
        beside = [k for k in range(len(arrays)) if k != number and np.shape(arrays[k]) == (width,)]
        scale, shift = (
            [np.asarray(arrays[k]).astype(np.float64) for k in beside] + [np.ones(1), np.zeros(1)][len(beside) :]
        )[:2]
        if len(beside) <= 2 and _is_function_near(
            (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * scale + shift, exact
        ):
            fills = {number: 1.0} | dict(zip(beside, (SCALE, 0.0)))
            fill = tuple(fills.get(k, 0.0) for k in range(len(arrays)))
            by = SCALE if beside else 1.0
            return SumTerms(places[0], (number, places), fill=fill, of="deviations", outputs=places, scale=by)
    return None


#: What the results of a normalisation are multiplied by where it is asked, so that a small range has them.
SCALE = 4096.0


def _is_function_near(made: np.ndarray, exact: np.ndarray) -> bool:
    """Whether two outputs are the same function of the same numbers, in whatever dtype: nearly all is nearer than
    another one would be."""
    return made.shape == exact.shape and bool(np.mean(np.abs(made - exact) <= NEAR * np.abs(exact) + 1e-6) >= GIVEN)


def pair_sum_factors(
    a: np.ndarray, b: np.ndarray, shape: tuple[int, ...], at: np.ndarray, rows: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The factors (n, e) of the elements of a·b at some places of its flat output of a shape: of matrices, or,
    ``rows``, of the same rows of both.

    Raises ValueError where the product is of another shape.
    """
    if rows:
        a, b = np.broadcast_arrays(a, b)
        if a.size // max(a.shape[-1], 1) != np.prod(shape):
            raise ValueError("a product of another shape")
        return a.reshape(-1, a.shape[-1])[at].T, b.reshape(-1, b.shape[-1])[at].T
    a, b = np.atleast_2d(a), np.swapaxes(b[:, None] if b.ndim == 1 else b, -1, -2)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    whole = (*batch, a.shape[-2], b.shape[-2])
    if a.shape[-1] != b.shape[-1] or np.prod(whole) != np.prod(shape):
        raise ValueError("a product of another shape")
    *places, row, column = np.unravel_index(at, whole)
    left, right = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return left[(*places, row)].T, right[(*places, column)].T
