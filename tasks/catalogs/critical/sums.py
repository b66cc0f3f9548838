"""Where the terms of a result lie, of the critical ops that add: a call of any number of rows and terms, for reading a device's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.passport import SumTerms, choose_sum_elements

#: Columns of a product, channels of a convolution's output.
COLUMNS = 8
#: Width of a head of attention.
HEAD = 16
#: Weights of a norm, and the largest square of one.
SCALE, SQUARE = 2.0**15, 64.0


@dataclass(frozen=True)
class SummedSample:
    """A call (args, kwargs) whose arrays are float64, and where the terms of some elements of its output lie."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    terms: tuple[SumTerms, ...]


#: Makes the call of so many rows and about so many terms.
Make = Callable[[np.random.Generator, int, int], SummedSample]


def _flatten_sum_places(shape: tuple[int, ...], *indices: Any) -> tuple[int, ...]:
    """Places in a flat array of elements at indices, each a number or an array of them."""
    return tuple(int(k) for k in np.ravel_multi_index(np.broadcast_arrays(*indices), shape).reshape(-1))


def make_product_sum(shared: int = 0, batch: int = 0, bias: int | None = None, transposed: bool = False) -> Make:
    """left (rows, K)·right (K, COLUMNS), or right (COLUMNS, K) where it lies ``transposed``. shared: number of the left
    array, which the right one follows; batch: of products beside each other, 0 for no such axis; bias: number of an
    array (COLUMNS) that is added."""

    def make(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
        front = (batch,) * bool(batch)
        left = (*front, rows, terms)
        right = (*front, COLUMNS, terms) if transposed else (*front, terms, COLUMNS)
        arrays = {shared: left, shared + 1: right} | ({} if bias is None else {bias: (COLUMNS,)})
        last = (batch - 1,) * bool(batch)

        def of(row: int, column: int, where: str) -> SumTerms:
            k, first = np.arange(terms), (0,) * bool(batch) if not row else last
            at = (column, k) if transposed else (k, column)
            alone = () if bias is None else (bias, column)
            (place,) = _flatten_sum_places((*front, rows, COLUMNS), *first, row, column)
            ones = (1.0,) * len(arrays)
            return SumTerms(
                place,
                (shared + 1, _flatten_sum_places(right, *first, *at)),
                (shared, _flatten_sum_places(left, *first, row, k)),
                alone,
                ones,
                False,
                where,
            )

        elements = tuple(of(*at) for at in choose_sum_elements(rows, COLUMNS))
        return SummedSample(tuple(g.standard_normal(arrays[n]) for n in sorted(arrays)), {}, elements)

    return make


def make_sum_along(scan: bool = False, divided: bool = False, **kwargs: Any) -> Make:
    """x (rows, K) along its last axis. scan: the last of running sums; divided: by K."""

    def make(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
        def of(row: int, where: str) -> SumTerms:
            place = row * terms + terms - 1 if scan else row
            return SumTerms(
                place,
                (0, _flatten_sum_places((rows, terms), row, np.arange(terms))),
                fill=(1.0,),
                divided=divided,
                where=where,
            )

        elements = tuple(of(*at) for at in choose_sum_elements(rows))
        return SummedSample((g.standard_normal((rows, terms)),), kwargs, elements)

    return make


def make_convolution_sum(
    kernel: tuple[int, ...], channels: Callable[[int], int], groups: Callable[[int], int] | None = None
) -> Make:
    """x (rows, C, 5, …), weight (C·groups or COLUMNS, C, *kernel), bias: the middle of the output. channels: C of a
    group for so many terms; groups: how many there are then, each with one channel of output a channel of its own."""

    def make(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
        own = channels(terms)
        many = groups(terms) if groups else 1
        out = many * own if groups else COLUMNS
        size = (5,) * len(kernel)
        x, w = (rows, own * many, *size), (out, own, *kernel)
        result = (rows, out, *size)  # of stride 1, padded by half of a kernel of 3
        grid = np.meshgrid(*(np.arange(n) for n in (own, *kernel)), indexing="ij")
        middle = tuple(2 for _ in kernel)

        def of(row: int, channel: int, where: str) -> SumTerms:
            first = channel // (out // many) * own
            at = [m + k - 1 for m, k in zip(middle, grid[1:])]
            (place,) = _flatten_sum_places(result, row, channel, *middle)
            left, right = (_flatten_sum_places(x, row, first + grid[0], *at), _flatten_sum_places(w, channel, *grid))
            return SumTerms(place, (1, right), (0, left), (2, channel), (1.0, 1.0, 1.0), False, where)

        arrays = tuple(g.standard_normal(shape) for shape in (x, w, (out,)))
        kwargs: dict[str, Any] = {"stride": 1, "padding": 1} | ({"groups": many} if groups else {})
        return SummedSample(arrays, kwargs, tuple(of(*at) for at in choose_sum_elements(rows, out)))

    return make


def sum_transposed_convolution(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
    """x (rows, C, 7, 7), weight (C, COLUMNS, 4, 4), bias: an element that all of the kernel reaches."""
    own = max(1, terms // 16)
    x, w, result = (rows, own, 7, 7), (own, COLUMNS, 4, 4), (rows, COLUMNS, 8, 8)
    c, i, j = np.meshgrid(np.arange(own), np.arange(4), np.arange(4), indexing="ij")

    def of(row: int, channel: int, where: str) -> SumTerms:
        (place,) = _flatten_sum_places(result, row, channel, 4, 4)  # y = input + kernel − padding
        left, right = (_flatten_sum_places(x, row, c, 5 - i, 5 - j), _flatten_sum_places(w, c, channel, i, j))
        return SumTerms(place, (1, right), (0, left), (2, channel), (1.0, 1.0, 1.0), False, where)

    arrays = tuple(g.standard_normal(shape) for shape in (x, w, (COLUMNS,)))
    elements = tuple(of(*at) for at in choose_sum_elements(rows, COLUMNS))
    return SummedSample(arrays, {"stride": 1, "padding": 1}, elements)


def make_attention_sum(heads: int = 1, causal: bool = False, **kwargs: Any) -> Make:
    """Two sums of an output (1, heads, rows, HEAD). Its weights are exponentials of the first elements of keys (1, 1,
    K, HEAD), since queries are 4 = √HEAD there; values are 1 where the largest weight is. Its values weigh the same
    where all keys are 0: their sum is divided by K. causal: there are as many rows as keys, and the last sees them
    all."""

    def make(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
        rows = terms if causal else rows
        query, key = (1, heads, rows, HEAD), (1, 1, terms, HEAD)
        k = np.arange(terms)

        def of(head: int, row: int, column: int, where: str) -> Iterator[SumTerms]:
            place = (head * rows + row) * HEAD + column
            values = (2, _flatten_sum_places(key, 0, 0, k, column))
            scores = (1, _flatten_sum_places(key, 0, 0, k, 0))
            yield SumTerms(place, values, fill=(0.0, 0.0, 1.0), divided=True, where=where, part="values", rows=rows)
            if not where:  # all elements share the scores
                return
            yield SumTerms(
                place,
                scores,
                values,
                fill=(4.0, 0.0, 0.0),
                where=where,
                part="weights",
                rows=rows,
                of="exponentials",
                outputs=(place,),
            )

        arrays = tuple(g.standard_normal(shape) for shape in (query, key, key))
        chosen = list(choose_sum_elements(heads, rows, HEAD))
        if causal:
            columns = range(HEAD - 1, HEAD - len(chosen), -1)
            chosen = [(heads - 1, rows - 1, column, "" if k else "last") for k, column in enumerate(columns)]
        elements = tuple(one for at in chosen for one in of(*at))
        return SummedSample(arrays, kwargs | ({"is_causal": True} if causal else {}), elements)

    return make


def make_normalised_sum(**kwargs: Any) -> Make:
    """x (rows, K) along its last axis: a softmax, or its logarithm. Its denominator is a sum of exponentials, which
    shows where the largest is."""

    def make(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
        def of(row: int, where: str) -> SumTerms:
            places = _flatten_sum_places((rows, terms), row, np.arange(terms))
            return SumTerms(places[0], (0, places), fill=(0.0,), where=where, of="exponentials", outputs=places)

        elements = tuple(of(*at) for at in choose_sum_elements(rows))
        return SummedSample((g.standard_normal((rows, terms)),), kwargs, elements)

    return make


def make_standardised_sum(groups: int = 0, each: bool = False) -> Make:
    """x (rows, K), or of images (rows, 2·groups, K/2) or (rows, 2, K, 1) where the mean is ``each`` channel's: x − mean
    over the root of the mean square of that. Of inputs ±M and ones it shows what is left of the ones in the mean.
    Weights scale the results, so that a small range has them."""

    def make(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
        terms -= terms % 2 if groups else 0
        shape = (rows, 2 * groups, terms // 2) if groups else (rows, 2, terms, 1) if each else (rows, terms)
        channels = shape[1]

        def of(start: int, where: str) -> SumTerms:
            places = tuple(range(start, start + terms))
            return SumTerms(
                places[0],
                (0, places),
                fill=(1.0, SCALE, 0.0),
                where=where,
                part="mean",
                of="deviations",
                outputs=places,
                scale=SCALE,
            )

        size = int(np.prod(shape))
        elements = tuple(of(k * terms, where) for k, where in choose_sum_elements(size // terms))
        kwargs: dict[str, Any] = {
            "weight": g.standard_normal(channels),
            "bias": g.standard_normal(channels),
            "eps": 1e-5,
        }
        kwargs |= {"num_groups": groups} if groups else {} if each else {"normalized_shape": (terms,)}
        return SummedSample((g.standard_normal(shape),), kwargs, elements)

    return make


def sum_root_mean_square(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
    """x (rows, K) over √(mean(x²) + eps), where eps takes the largest square away again: else the root hides the last
    bit of the sum."""

    def of(row: int, where: str) -> SumTerms:
        places = _flatten_sum_places((rows, terms), row, np.arange(terms))
        return SumTerms(
            places[0], (0, places), fill=(0.0, 1.0), where=where, of="squares", outputs=places, scale=SQUARE
        )

    x, weight = 4.0 * g.standard_normal((rows, terms)), g.standard_normal(terms)
    kwargs = {"normalized_shape": (terms,), "weight": weight, "eps": -SQUARE / terms}
    return SummedSample((x,), kwargs, tuple(of(*at) for at in choose_sum_elements(rows)))


def sum_mean_square(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
    """The mean over x (1, K) of (x − 0)²."""
    places = tuple(range(terms))
    x = (1, terms)
    one = SumTerms(0, (0, places), fill=(0.0, 0.0), where="first", rows=1, of="squares", outputs=(0,))
    return SummedSample((g.standard_normal(x), g.standard_normal(x)), {}, (one,))


def make_pool_sum(g: np.random.Generator, rows: int, terms: int) -> SummedSample:
    """x (rows, COLUMNS, 6, 6): the mean of a window of 3×3."""
    x = (rows, COLUMNS, 6, 6)
    i, j = np.meshgrid(np.arange(3), np.arange(3), indexing="ij")

    def of(row: int, channel: int, where: str) -> SumTerms:
        (place,) = _flatten_sum_places((rows, COLUMNS, 3, 3), row, channel, 1, 1)
        return SumTerms(
            place, (0, _flatten_sum_places(x, row, channel, 1 + i, 1 + j)), fill=(1.0,), divided=True, where=where
        )

    return SummedSample(
        (g.standard_normal(x),),
        {"kernel_size": 3, "stride": 2, "padding": 1},
        tuple(of(*at) for at in choose_sum_elements(rows, COLUMNS)),
    )
