"""Results defined up to a choice, judged by their definition: outputs and inputs to arrays that have one right value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.arrays.tree import decode_argument_tree, read_tensor_spec
from tasks.model import EPS, Leaf, is_inexact_dtype


@dataclass(frozen=True)
class Part:
    """One derived array with the size of its unavoidable error in units of the dtype's ε (0: it must be equal)."""

    value: np.ndarray
    scale: np.ndarray | float = 0.0


def derive_by_definition(
    name: str, args: Any, kwargs: Any, inputs: list[np.ndarray], outputs: list[np.ndarray]
) -> list[np.ndarray]:
    """What is compared instead of ``outputs``: float64 arrays (or exact ones) that do not depend on the choice.

    args, kwargs: the encoded argument trees (`tasks.arrays.tree`) over ``inputs``. Outputs of the right count, shapes
    and dtypes never raise, whatever their values. Raises KeyError for an unknown name.
    """
    return [part.value for part in _derive_parts(name, args, kwargs, inputs, outputs)]


def predict_defined_leaves(
    name: str, args: Any, kwargs: Any, inputs: list[np.ndarray], outputs: Sequence[np.ndarray], dtype: str
) -> list[Leaf]:
    """What `derive_by_definition` is to make of right outputs: its result on float64 reference ``outputs``, noise by formula.

    A factorisation of an m×n matrix A is right to ε·‖A‖·max(m, n), an orthogonal factor to ε·max(m, n): the test
    ratios of LAPACK (LAPACK Working Note 41, section 4; LAPACK Users' Guide, chapter 4, "Accuracy and Stability").
    ``dtype``: the one under test, whose ε it is.
    """
    eps, leaves = EPS.get(dtype, EPS["float32"]), []
    for part in _derive_parts(name, args, kwargs, inputs, list(outputs)):
        noise = np.broadcast_to(eps * np.asarray(part.scale, np.float64), part.value.shape)
        value = np.array(part.value, order="C")
        leaves.append(Leaf(value.dtype.name, value.shape, value, np.array(noise) if noise.any() else None))
    return leaves


def expect_moments(draws: Sequence[Sequence[np.ndarray]], dtype: str) -> list[Leaf]:
    """What the definition "moments" or "squashed moments" is to make of a random op's outputs, from many draws of
    the reference, each given as what `derive_by_definition` makes of it.

    Mean and standard deviation: noise is their standard deviation over the draws, so that error units count
    standard deviations. Smallest and largest: the noise is such that `RANGE_UNITS` units reach from the middle of what
    the draws had to its ends and `BEYOND` standard deviations further. No noise is below 4 ε of the largest value.
    """
    eps, leaves = EPS.get(dtype, EPS["float32"]), []
    for statistic in zip(*draws):
        seen = np.stack(statistic)  # (draws, 4): mean, standard deviation, smallest, largest
        rounding = 4 * eps * np.abs(seen[:, 2:]).max()
        spread = seen.std(axis=0, ddof=1)
        low, high = seen.min(axis=0), seen.max(axis=0)
        middle = np.concatenate([seen[:, :2].mean(axis=0), np.full(2, (low[2] + high[3]) / 2)])
        reach = (high[3] - low[2]) / 2 + BEYOND * spread[2:] + RANGE_UNITS * rounding
        # Where half of the elements are 0 and half 1 the deviation is at its largest: it then varies to one side alone.
        spread[1] = max(spread[1], spread[0] / 2)
        noise = np.concatenate([np.maximum(spread[:2], rounding), reach / RANGE_UNITS])
        leaves.append(Leaf("float64", (4,), middle, noise))
    return leaves


def derive_of_draws(name: str, draws: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """What `derive_by_definition` makes of each of many draws of a random op, whose arguments its definition does not ask for."""
    args: Any = {"$": "tuple", "v": []}
    kwargs: Any = {"$": "dict", "v": []}
    if any(len({y.shape for y in many}) > 1 for many in zip(*draws)):
        return [derive_by_definition(name, args, kwargs, [], list(draw)) for draw in draws]
    with np.errstate(all="ignore"):
        each = [np.stack([_widen_output(y) for y in many]) for many in zip(*draws)]
        found = [_compute_draw_statistics(y.reshape(len(y), -1), name) for y in each if y[0].size >= MOMENTS_FROM]
    return [[y[k] for y in found] for k in range(len(draws))]


def _compute_draw_statistics(rows: np.ndarray, name: str) -> np.ndarray:
    """Mean, standard deviation, smallest and largest of every row."""
    if name == "squashed moments":
        rows = rows / (1 + np.abs(rows))
    rows = np.concatenate([rows.real, rows.imag], 1) if rows.dtype.kind == "c" else rows.astype(np.float64, copy=False)
    return np.stack([rows.mean(1), rows.std(1), rows.min(1), rows.max(1)], 1)


def predict_drawn_leaves(
    name: str, args: Any, kwargs: Any, inputs: list[np.ndarray], draws: Sequence[Sequence[np.ndarray]], dtype: str
) -> list[Leaf]:
    """What `derive_by_definition` is to make of right outputs of an algorithm that draws numbers on its way, from many draws of the
    reference.

    What the numbers do not change is expected as by `predict_defined_leaves`. What they do may lie in the range that theory
    gives it (`RANGES`), else in that of the draws and `BEYOND` standard deviations further, as in `expect_moments`.
    """
    each = [predict_defined_leaves(name, args, kwargs, inputs, draw, dtype) for draw in draws]
    given = RANGES[name](*_decode_call(args, kwargs, inputs), draws) if name in RANGES else {}
    leaves = []
    for part, many in enumerate(zip(*each)):
        first = many[0]
        if first.noise is None or first.reference is None:
            leaves.append(first)
            continue
        seen = np.stack([leaf.reference for leaf in many if leaf.reference is not None])
        noise = np.stack([leaf.noise for leaf in many if leaf.noise is not None]).max(0)
        low, high = given.get(part, (seen.min(0), seen.max(0)))
        reach = (high - low) / 2 + (0 if part in given else BEYOND * seen.std(axis=0, ddof=1))
        leaves.append(replace(first, reference=(low + high) / 2, noise=noise + reach / RANGE_UNITS))
    return leaves


#: Error units at which the range of a random op ends: the limit of class "random" in the default policy.
RANGE_UNITS = 8.0
#: How far beyond the range that the draws had a value may lie, in standard deviations of the range's end.
BEYOND = 32.0
#: How often a right draw may lie beyond the range that theory gives it.
SELDOM = 1e-9
#: Outputs with fewer elements have no moments that could be told from chance.
MOMENTS_FROM = 16


def _derive_parts(name: str, args: Any, kwargs: Any, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> list[Part]:
    definition, double = DEFINITIONS[name], any(x.dtype == np.float64 for x in inputs)
    positional, named = _decode_call(args, kwargs, inputs)
    with np.errstate(all="ignore"):
        parts = definition([_widen_output(y) for y in outputs], *positional, **named)
    return [_view_as_integers(part) if double else part for part in parts]


def _decode_call(args: Any, kwargs: Any, inputs: list[np.ndarray]) -> tuple[Any, Any]:
    """The arguments of a call, with its tensors in float64."""

    def leaf(kind: str, node: dict[str, Any]) -> Any:
        if kind != "tensor":
            return node.get("name")
        spec = read_tensor_spec(node)
        return _widen_output(spec.view(inputs[spec.id]))

    return decode_argument_tree(args, leaf), decode_argument_tree(kwargs, leaf)


def _widen_output(array: np.ndarray) -> np.ndarray:
    name = array.dtype.name
    if not is_inexact_dtype(name):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _view_as_integers(part: Part) -> Part:
    """A float64 array that must be equal, as integers: between neighbouring float64 numbers there is no room for an
    ε."""
    if part.value.dtype != np.float64 or np.any(part.scale):
        return part
    values = np.where(np.isnan(part.value), np.nan, part.value + 0.0)  # one NaN, one zero
    return Part(np.ascontiguousarray(values).view(np.int64))


def _find_same_values(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | ((a != a) & (b != b))


# Selection -------------------------------------------------------------------------------------------------------


def _put_axis_last(x: np.ndarray, dim: int) -> np.ndarray:
    """``x`` with the axis ``dim`` last; 0-d as one row of one."""
    return np.moveaxis(np.atleast_1d(x), dim, -1)


def _compare_at_index(x: np.ndarray, index: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(index valid, value at the index equal to ``values``), per element; all along the last axis of ``x``."""
    size = x.shape[-1]
    valid = (index >= 0) & (index < size)
    found = np.take_along_axis(x, np.where(valid, index, 0), -1) if size else values
    return valid, _find_same_values(found, values)


def _find_distinct_index(index: np.ndarray) -> np.ndarray:
    """Per row, whether no index is there twice."""
    return np.asarray((np.diff(np.sort(index, -1), axis=-1) != 0).all(-1))


def _define_sort(
    outputs: list[np.ndarray], x: np.ndarray, dim: int = -1, descending: bool = False, stable: bool = False
) -> list[Part]:
    values, index = (_put_axis_last(y, dim) for y in outputs)
    valid, same = _compare_at_index(_put_axis_last(x, dim), index, values)
    return [
        Part(values),
        Part(valid),
        Part(same),
        Part(_find_distinct_index(index)),
        *([Part(index)] if stable else []),
    ]


def _define_argsort(
    outputs: list[np.ndarray], x: np.ndarray, dim: int = -1, descending: bool = False, stable: bool = False
) -> list[Part]:
    rows, index = _put_axis_last(x, dim), _put_axis_last(outputs[0], dim)
    values = np.take_along_axis(rows, np.clip(index, 0, max(rows.shape[-1] - 1, 0)), -1)
    return _define_sort(
        [np.moveaxis(values, -1, dim), np.moveaxis(index, -1, dim)], np.moveaxis(rows, -1, dim), dim, stable=stable
    )


def _define_topk(
    outputs: list[np.ndarray], x: np.ndarray, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Part]:
    values, index = (_put_axis_last(y, dim) for y in outputs)
    valid, same = _compare_at_index(_put_axis_last(x, dim), index, values)
    return [Part(values if sorted else np.sort(values, -1)), Part(valid), Part(same), Part(_find_distinct_index(index))]


def _define_kthvalue(
    outputs: list[np.ndarray], x: np.ndarray, k: int, dim: int = -1, keepdim: bool = False
) -> list[Part]:
    return _define_one_of_row(outputs, x, dim, keepdim)


def _define_median(
    outputs: list[np.ndarray], x: np.ndarray, dim: int | None = None, keepdim: bool = False
) -> list[Part]:
    return [Part(outputs[0])] if dim is None or len(outputs) < 2 else _define_one_of_row(outputs, x, dim, keepdim)


def _define_one_of_row(outputs: list[np.ndarray], x: np.ndarray, dim: int, keepdim: bool) -> list[Part]:
    values, index, rows = _align_reduction(outputs, x, dim, keepdim)
    valid, same = _compare_at_index(rows, index, values)
    return [Part(values), Part(valid), Part(same)]


def _align_reduction(outputs: list[np.ndarray], x: np.ndarray, dim: int, keepdim: bool) -> list[np.ndarray]:
    """Values and index (…, 1) and rows (…, n) of an op that reduces ``dim``."""
    whole = keepdim and x.ndim
    return [*(_put_axis_last(y, dim) if whole else y[..., None] for y in outputs), _put_axis_last(x, dim)]


def _define_mode(outputs: list[np.ndarray], x: np.ndarray, dim: int = -1, keepdim: bool = False) -> list[Part]:
    values, index, rows = _align_reduction(outputs, x, dim, keepdim)
    valid, same = _compare_at_index(rows, index, values)
    return [Part(_find_same_values(rows, values).sum(-1)), Part(valid), Part(same)]


def _define_cumulative(outputs: list[np.ndarray], x: np.ndarray, dim: int) -> list[Part]:
    values, index = (_put_axis_last(y, dim) for y in outputs)
    valid, same = _compare_at_index(_put_axis_last(x, dim), index, values)
    return [Part(values), Part(valid & (index <= np.arange(index.shape[-1]))), Part(same)]


def _define_max_pool(outputs: list[np.ndarray], x: np.ndarray, *args: Any, axes: int, **kwargs: Any) -> list[Part]:
    if len(outputs) < 2:
        return [Part(outputs[0])]
    values, index = (y.reshape(*y.shape[:-axes], -1) for y in outputs)
    valid, same = _compare_at_index(x.reshape(*x.shape[:-axes], -1), index, values)
    return [Part(values), Part(valid), Part(same)]


def _define_unique(
    outputs: list[np.ndarray],
    x: np.ndarray,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> list[Part]:
    values, rest = outputs[0], list(outputs[1:])
    free = not sorted and dim is None
    order = np.argsort(values, kind="stable") if free else slice(None)
    parts = [Part(values[order])]
    if return_inverse:
        inverse, axis = rest.pop(0), 0 if dim is None else dim
        valid = (inverse >= 0) & (inverse < values.shape[axis])
        back = np.take(values, np.where(valid, inverse, 0), axis) if values.shape[axis] else x
        parts += [Part(valid), Part(_find_same_values(back, x))]
    if return_counts:
        parts.append(Part(rest.pop(0)[order if free else slice(None)]))
    return parts


# Factorisations: every matrix is (…, m, n) -----------------------------------------------------------------------


def _take_adjoint(a: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(a, -1, -2))


def _compute_norm(a: np.ndarray) -> np.ndarray:
    """Frobenius norm (…, 1, 1)."""
    return np.sqrt((np.abs(a) ** 2).sum((-2, -1), keepdims=True))


def _measure_size(a: np.ndarray) -> int:
    return max(a.shape[-2:])


def _define_orthogonal(q: np.ndarray) -> Part:
    return Part(_take_adjoint(q) @ q, _measure_size(q))


def _define_falling(s: np.ndarray) -> Part:
    """Per row, whether real values are sorted from the largest down (NaN is not)."""
    return Part(np.asarray((np.diff(s, axis=-1) <= 0).all(-1)))


def _define_svd(
    outputs: list[np.ndarray], a: np.ndarray, full_matrices: bool = True, driver: str | None = None
) -> list[Part]:
    u, s, vh = outputs
    k, scale = s.shape[-1], _compute_norm(a) * _measure_size(a)
    product = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
    return [
        Part(s, scale[..., 0]),
        _define_falling(s),
        Part(s >= 0),
        Part(product, scale),
        _define_orthogonal(u),
        _define_orthogonal(_take_adjoint(vh)),
    ]


def _define_old_svd(outputs: list[np.ndarray], a: np.ndarray, some: bool = True, compute_uv: bool = True) -> list[Part]:
    u, s, v = outputs
    if compute_uv:
        return _define_svd([u, s, _take_adjoint(v)], a)
    return [*_define_spectrum([s], a), Part(u), Part(v)]


def _define_spectrum(outputs: list[np.ndarray], a: np.ndarray, *args: Any, **kwargs: Any) -> list[Part]:
    return [Part(outputs[0], (_compute_norm(a) * _measure_size(a))[..., 0])]


def _define_eigh(outputs: list[np.ndarray], a: np.ndarray, UPLO: str = "L") -> list[Part]:
    w, v = outputs
    half = np.tril(a, -1) if UPLO.upper() == "L" else np.triu(a, 1)
    diagonal = np.real(a) * np.eye(a.shape[-1])
    scale = _compute_norm(half + _take_adjoint(half) + diagonal) * _measure_size(a)
    return [
        Part(w, scale[..., 0]),
        _define_falling(-w),
        Part((v * w[..., None, :]) @ _take_adjoint(v), scale),
        _define_orthogonal(v),
    ]


def _define_eig(outputs: list[np.ndarray], a: np.ndarray) -> list[Part]:
    w, v = outputs
    residual = a @ v - v * w[..., None, :]
    lengths = (np.abs(v) ** 2).sum(-2)
    return [
        *_define_eigvals([w], a),
        Part(residual, _compute_norm(a) * _measure_size(a)),
        Part(lengths, _measure_size(a)),
    ]


#: Power sums of eigenvalues that are compared: higher ones add little and cost a product each.
POWERS = 16


def _define_eigvals(outputs: list[np.ndarray], a: np.ndarray) -> list[Part]:
    """Power sums Σλᵏ = tr Aᵏ, k = 1 … n: by Newton's identities they say what the multiset of eigenvalues is.

    The computed ones are exact for some A + E, ‖E‖ ≤ ε·n·‖A‖, which moves tr Aᵏ by k·tr(Aᵏ⁻¹E) to first order. So a
    defective matrix, whose single eigenvalues are badly conditioned, raises no alarm. All over ‖A‖, as powers overflow.
    """
    w, n = outputs[0].astype(np.complex128), a.shape[-1]
    norm = _compute_norm(a)
    norm = np.where(norm > 0, norm, 1.0)
    scaled, ratio = a / norm, w / norm[..., 0]
    power, term = np.broadcast_to(np.eye(n), a.shape), np.ones_like(ratio)
    sums, scales = [], []
    for k in range(1, min(n, POWERS) + 1):
        term = term * ratio
        sums.append(term.sum(-1))
        scales.append(k * n * _compute_norm(power)[..., 0, 0])
        power = power @ scaled
    if not sums:
        return [Part(w)]
    return [Part(np.stack(sums, -1), np.stack(scales, -1))]


def _define_qr(outputs: list[np.ndarray], a: np.ndarray, mode: str = "reduced") -> list[Part]:
    q, r = outputs
    norm = _compute_norm(a)
    below = Part(np.tril(r, -1))
    if mode == "r":
        return [below, Part(_take_adjoint(r) @ r, norm**2 * _measure_size(a)), Part(q)]
    return [below, Part(q @ r, norm * _measure_size(a)), _define_orthogonal(q)]


def _define_old_qr(outputs: list[np.ndarray], a: np.ndarray, some: bool = True) -> list[Part]:
    return _define_qr(outputs, a, "reduced" if some else "complete")


def _define_triangles(lower: np.ndarray, upper: np.ndarray, product: np.ndarray) -> Part:
    """The product of the factors; its error is that of the factors' size, which bad pivots make large."""
    return Part(product, _compute_norm(lower) * _compute_norm(upper) * _measure_size(product))


#: An element of L is at most 1 in |Re| + |Im|, by which LAPACK chooses a complex pivot, or √2 in modulus.
_LARGEST_MULTIPLIER = 1.5


def _define_lu(outputs: list[np.ndarray], a: np.ndarray, pivot: bool = True) -> list[Part]:
    p, lower, upper = outputs
    diagonal = np.diagonal(lower, axis1=-2, axis2=-1)
    parts = [Part(np.triu(lower, 1)), Part(diagonal), Part(np.tril(upper, -1))]
    if not pivot:
        return [*parts, Part(p), _define_triangles(lower, upper, lower @ upper)]
    permutes = ((p == 0) | (p == 1)).all((-2, -1)) & (p.sum(-1) == 1).all(-1) & (p.sum(-2) == 1).all(-1)
    bounded = (np.abs(lower) <= _LARGEST_MULTIPLIER).all((-2, -1))
    return [
        *parts,
        Part(np.asarray(permutes)),
        Part(np.asarray(bounded)),
        _define_triangles(lower, upper, p @ (lower @ upper)),
    ]


def _define_lu_factor(
    outputs: list[np.ndarray], a: np.ndarray, pivot: bool = True, *args: Any, **kwargs: Any
) -> list[Part]:
    packed, pivots = outputs[:2]
    m, n = packed.shape[-2:]
    k = min(m, n)
    lower, upper = np.tril(packed[..., :k], -1) + np.eye(m, k), np.triu(packed[..., :k, :])
    product = (lower @ upper).reshape(-1, m, n)
    place = pivots.reshape(-1, pivots.shape[-1]) - 1  # LAPACK counts from 1
    valid = (place >= np.arange(place.shape[-1])) & (place < m)
    for matrix, swaps in zip(product, np.where(valid, place, np.arange(place.shape[-1]))):
        for i in range(len(swaps) - 1, -1, -1):
            matrix[[i, swaps[i]]] = matrix[[swaps[i], i]]
    bounded = (np.abs(lower) <= _LARGEST_MULTIPLIER).all((-2, -1))
    infos = [Part(y) for y in outputs[2:]]
    return [
        Part(valid),
        Part(np.asarray(bounded)),
        _define_triangles(lower, upper, product.reshape(packed.shape)),
        *infos,
    ]


def _define_lstsq(
    outputs: list[np.ndarray], a: np.ndarray, b: np.ndarray, rcond: Any = None, driver: str | None = None
) -> list[Part]:
    """Normal equations AᴴAx = Aᴴb; for fewer rows than columns also that x has no part that A annihilates."""
    x, rest = outputs[0], outputs[1:]
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    x, b = (x[..., None], b[..., None]) if vector else (x, b)
    size, norm = _measure_size(a), _compute_norm(a)
    largest = norm * _compute_norm(x) + _compute_norm(b)
    parts = [Part(_take_adjoint(a) @ (a @ x), size * norm * largest)]
    if a.shape[-2] < a.shape[-1] and np.isfinite(a).all():
        inverse = np.linalg.pinv(a)
        parts.append(Part(x - inverse @ (a @ x), size * norm * _compute_norm(inverse) * _compute_norm(x)))
    for place, y in enumerate(rest):  # residuals, rank, singular values
        if place == 2 and y.size:
            parts += _define_spectrum([y], a)
        elif place == 0 and y.size:
            parts.append(Part(y, np.broadcast_to((size * largest**2)[..., 0], y.shape)))
        else:
            parts.append(Part(y))
    return parts


def _define_low_rank(
    outputs: list[np.ndarray], a: np.ndarray, b: np.ndarray, *, center: bool, M: np.ndarray | None = None, **how: Any
) -> list[Part]:
    """U, S, V of A = abᵀ, less M or the mean of its rows, by a random basis Q of q vectors: the svd of QQᴴA.

    Whatever Q is, the factors are orthogonal and UᴴA = SVᴴ exactly, or AV = US where A has fewer rows than columns;
    hence no value of S is beyond the spectrum. How close S comes to it is drawn (Halko, Martinsson and Tropp, SIAM
    Review 53, 2011).
    """
    u, s, v = outputs
    given = _multiply_low_rank(a, b, center, M)
    factors = (_compute_norm(a) * _compute_norm(b) + (0 if M is None else _compute_norm(M))) * (2 if center else 1)
    scale = factors * _measure_size(given)
    if given.shape[-2] < given.shape[-1]:
        projected = given @ v - u * s[..., None, :]
    else:
        projected = _take_adjoint(u) @ given - s[..., :, None] * _take_adjoint(v)
    return [
        Part(s, scale[..., 0]),
        _define_falling(s),
        Part(s >= 0),
        Part(projected, scale),
        _define_orthogonal(u),
        _define_orthogonal(v),
    ]


def _multiply_low_rank(a: np.ndarray, b: np.ndarray, center: bool, M: np.ndarray | None) -> np.ndarray:
    """abᵀ, less M, and less the mean of its rows if they are to be centred."""
    product = a @ np.swapaxes(b, -1, -2)
    if M is not None:
        product = product - M
    return product - product.mean(-2, keepdims=True) if center else product


def _define_low_rank_ranges(
    args: Any, kwargs: Any, draws: Sequence[Sequence[np.ndarray]], *, center: bool
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """The range of S, by its place among the parts of `_define_low_rank`: from what a basis may lose at worst to the spectrum
    itself.

    The i-th of q values loses a share 1 − (sᵢ/σᵢ)² that goes with ‖Ωᵢ⁺‖², where Ωᵢ is i × q and Gaussian. That has a
    heavy tail: P(‖Ωᵢ⁺‖ > x) falls as x^−(q−i+1) (Chen and Dongarra, SIAM J. Matrix Anal. Appl. 27, 2005; Halko,
    Martinsson and Tropp, proposition 10.4). From the share of a usual draw, the median of ``draws``, follows the one
    that a draw in 10⁹ exceeds.
    """
    a, b, *_ = args
    spectrum = np.linalg.svd(_multiply_low_rank(a, b, kwargs.get("center", center), kwargs.get("M")), compute_uv=False)
    count = draws[0][1].shape[-1]
    best, largest = spectrum[..., :count], spectrum[..., :1]
    with np.errstate(all="ignore"):
        lost = np.median([1 - (_widen_output(s) / best) ** 2 for _, s, _ in draws], axis=0)
        # Where A has no more than q values that are not 0, any basis has them all.
        lost = np.where(lost * best**2 > 64 * np.finfo(np.float64).eps * largest**2, lost, 0.0)
    lost = lost * SELDOM ** (-2.0 / np.arange(count, 0, -1))
    return {0: (best * np.sqrt(np.clip(1 - lost, 0, 1)), best)}


# Random numbers --------------------------------------------------------------------------------------------------


def _define_moments(outputs: list[np.ndarray], *args: Any, **kwargs: Any) -> list[Part]:
    parts = []
    for y in outputs:
        if y.size >= MOMENTS_FROM:
            parts.append(
                Part(_compute_draw_statistics(y.reshape(1, -1), "moments")[0], 1.0)
            )  # see `expect_moments` for the noise
    return parts


def _define_squashed_moments(outputs: list[np.ndarray], *args: Any, **kwargs: Any) -> list[Part]:
    """Moments of y/(1 + |y|), which every distribution has."""
    return _define_moments([y / (1 + np.abs(y)) for y in outputs])


DEFINITIONS: dict[str, Callable[..., list[Part]]] = {
    "sort": _define_sort,
    "argsort": _define_argsort,
    "topk": _define_topk,
    "kthvalue": _define_kthvalue,
    "median": _define_median,
    "mode": _define_mode,
    "cumulative": _define_cumulative,
    **{f"max_pool{axes}d": functools.partial(_define_max_pool, axes=axes) for axes in (1, 2, 3)},
    "unique": _define_unique,
    "svd": _define_svd,
    "old_svd": _define_old_svd,
    "spectrum": _define_spectrum,
    "eigh": _define_eigh,
    "eig": _define_eig,
    "eigvals": _define_eigvals,
    "qr": _define_qr,
    "old_qr": _define_old_qr,
    "lu": _define_lu,
    "lu_factor": _define_lu_factor,
    "lstsq": _define_lstsq,
    "low rank": functools.partial(_define_low_rank, center=False),
    "principal components": functools.partial(_define_low_rank, center=True),
    "moments": _define_moments,
    "squashed moments": _define_squashed_moments,
}
#: The ranges of what an algorithm's numbers change, by part of its definition, given its arguments and many of its
#: results.
RANGES: dict[str, Callable[..., dict[int, tuple[np.ndarray, np.ndarray]]]] = {
    "low rank": functools.partial(_define_low_rank_ranges, center=False),
    "principal components": functools.partial(_define_low_rank_ranges, center=True),
}
#: Definitions of what is drawn itself; any other of a random op is of a result that the numbers drawn may not change.
OF_DRAWS = ("moments", "squashed moments")
