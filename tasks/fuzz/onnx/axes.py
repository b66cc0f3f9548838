"""Specs of operators along axes: reductions, softmax, normalisations, products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.fuzz import values
from tasks.fuzz.onnx.spec import DrawnSpec, GivenInput, SpecDraw
from tasks.fuzz.values import ValueDomain
from tasks.model.dtypes import ELEMENT_TYPE, get_integer_range
from tasks.operators.left_open import LeftOpen

_NOOP = (
    "noop_with_empty_axes: 'When axes is empty and this attribute is set to true, input tensor will not be reduced, and the "
    "output tensor would be equivalent to input tensor': whether each element is still squared, or its logarithm taken, is "
    "not said before operator set 24"
)
_CONSTANT = (
    "MeanVarianceNormalization of equal numbers: its text says (X-EX)/sqrt(E(X-EX)^2), which is 0/0, its body adds 1e-9 to the "
    "deviation"
)
_NO_NORM = (
    "LpNormalization of zeros: 'When the Lp norm is zero, the output is defined to be zero' stands in the operator's text from set "
    "22 on"
)
_SUMS = ValueDomain(-8.0, 8.0, ("halves", "powers", "zeros", "tiny"))
ABOVE_0 = ValueDomain(0.25, 8.0, ("halves", "powers"))


def choose_domain_of_sums(d: SpecDraw) -> ValueDomain:
    return _SUMS if d.is_float else ValueDomain(-5, 5, ("zeros",))


def choose_factor_domain(d: SpecDraw) -> ValueDomain:
    """Factors: their product is to stay small."""
    return ValueDomain(0.75, 1.25, ()) if d.is_float else ValueDomain(1, 1, ())


def draw_reduction(
    domain: Callable[[SpecDraw], ValueDomain], axes_input: int = 18, still: bool = True
) -> Callable[[SpecDraw], DrawnSpec]:
    """axes_input: the operator set from which on axes are an input; still: whether an element alone is reduced to
    itself."""

    def make(d: SpecDraw) -> DrawnSpec:
        x = d.tensor(d.shape(1), domain(d))
        attributes: dict[str, Any] = d.maybe("keepdims", [1, 0])
        axes = d.axes(x.array.ndim) if d.choose.chance(3, 4) else None
        if d.opset < axes_input:
            return DrawnSpec((x,), attributes | ({} if axes is None else {"axes": axes}))
        if axes is None:
            attributes |= d.maybe("noop_with_empty_axes", [0, 1])
            if attributes.get("noop_with_empty_axes") and not still:
                raise LeftOpen(_NOOP)
            return DrawnSpec((x,), attributes)
        return DrawnSpec((x, GivenInput.of_ints(axes)), attributes)

    return make


def draw_arg_extreme(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1), values.ANY)
    attributes = d.maybe("axis", _list_every_axis(x.array.ndim)) | d.maybe("keepdims", [1, 0])
    return DrawnSpec((x,), attributes | d.maybe("select_last_index", [0, 1]))


def _list_every_axis(rank: int) -> list[int]:
    return [*range(rank), *range(-rank, 0)]


def draw_cumulative(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1), choose_domain_of_sums(d))
    axis = d.axis(x.array.ndim)
    place = GivenInput(np.asarray(axis, d.choose.of([np.int64, np.int32])), "parameter")
    return DrawnSpec((x, place), d.maybe("exclusive", [0, 1]) | d.maybe("reverse", [0, 1]))


def draw_softmax(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1), values.REAL)
    return DrawnSpec((x,), d.maybe("axis", _list_every_axis(x.array.ndim)))


def draw_layer_norm(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1), _SUMS)
    rank, attributes = x.array.ndim, d.maybe("epsilon", [1e-5, 1e-3, 1e-2, 0.1])
    axis = d.choose.of([-1, *range(rank), *range(-rank, -1)]) if d.choose.chance(1, 2) else -1
    if axis != -1:
        attributes["axis"] = axis
    if d.dtype == "float64":
        attributes["stash_type"] = ELEMENT_TYPE["float64"]  # else its first stage is of float32
    shape = x.array.shape[axis % rank :]
    bias = d.tensor(shape, values.MILD, "weight") if d.choose.chance(1, 2) else None
    return DrawnSpec((x, d.tensor(shape, values.MILD, "weight"), *([bias] if bias else [])), attributes)


def draw_rms_norm(d: SpecDraw) -> DrawnSpec:
    made = draw_layer_norm(d)
    return DrawnSpec(made.inputs[:2], made.attributes)


def _draw_image(d: SpecDraw, least: int = 1, most: int = 3, channels: int = 0) -> tuple[int, ...]:
    """A shape (N, C, …)."""
    return (
        d.size(3),
        channels or d.size(9),
        *(d.size(24) for _ in range(d.choose.of(sorted(range(least, most + 1), key=lambda n: abs(n - 2))))),
    )


def draw_batch_norm(d: SpecDraw) -> DrawnSpec:
    shape = _draw_image(d, 0)
    scale, bias, mean = (d.tensor((shape[1],), values.MILD, "weight") for _ in range(3))
    var = d.tensor((shape[1],), ABOVE_0, "weight")
    attributes = d.maybe("epsilon", [1e-5, 1e-3, 0.1]) | d.maybe("momentum", [0.9, 0.5])
    return DrawnSpec((d.tensor(shape, _SUMS), scale, bias, mean, var), attributes)


def draw_instance_norm(d: SpecDraw) -> DrawnSpec:
    shape = _draw_image(d)
    scale, bias = (d.tensor((shape[1],), values.MILD, "weight") for _ in range(2))
    return DrawnSpec((d.tensor(shape, _SUMS), scale, bias), d.maybe("epsilon", [1e-5, 1e-3, 0.1]))


def draw_group_norm(d: SpecDraw) -> DrawnSpec:
    groups, each = d.choose.of([1, 2, 3, 4]), d.choose.of([1, 2, 3])
    shape = _draw_image(d, channels=groups * each)
    scale, bias = (d.tensor((shape[1],), values.MILD, "weight") for _ in range(2))
    attributes = {"num_groups": groups} | d.maybe("epsilon", [1e-5, 1e-3, 0.1])
    if d.dtype == "float64":
        attributes["stash_type"] = ELEMENT_TYPE["float64"]
    return DrawnSpec((d.tensor(shape, _SUMS), scale, bias), attributes)


def draw_lrn(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(_draw_image(d, 2, 2), _SUMS)
    attributes = d.maybe("alpha", [1e-4, 0.1, 1.0]) | d.maybe("beta", [0.75, 0.5, 1.0]) | d.maybe("bias", [1.0, 2.0])
    return DrawnSpec((x,), {"size": d.choose.of([3, 1, 2, 4, 5, 7])} | attributes)


def draw_lp_norm(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1), ValueDomain(-8.0, 8.0, ("halves", "powers", "tiny", "zeros")))
    attributes = d.maybe("axis", _list_every_axis(x.array.ndim))
    if d.opset < 22 and not np.abs(x.array).astype(np.float64).sum(axis=attributes.get("axis", -1)).all():
        raise LeftOpen(_NO_NORM)
    return DrawnSpec((x,), attributes | d.maybe("p", [2, 1]))


def draw_mean_variance_norm(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(_draw_image(d, 2, 2), ValueDomain(-8.0, 8.0, ("halves",)))
    axes: list[int] = d.choose.of([[0, 2, 3], [2, 3], [1, 2, 3], [0], [1], [-1], [-2, -1]])
    if not np.ptp(x.array, axis=tuple(axes)).all():
        raise LeftOpen(_CONSTANT)
    return DrawnSpec((x,), {"axes": axes})  # without them onnx's checker fails on the body of the function


def draw_matmul(d: SpecDraw) -> DrawnSpec:
    n, k, m = d.size(65), d.size(129), d.size(65)
    domain = choose_domain_of_sums(d) if d.is_float or get_integer_range(d.dtype)[1] > 2**20 else ValueDomain(0, 3, ())
    kind = d.choose.of(["2x2", "batch", "batch by one", "vector", "by vector", "broadcast"])
    batch = tuple(d.size(4) for _ in range(d.choose.int(1, 2))) if "b" in kind and kind != "by vector" else ()
    a, b = (*batch, n, k), (*batch, k, m)
    if kind == "batch by one":
        b = (k, m)
    elif kind == "vector":
        a, b = (k,), (k, m)
    elif kind == "by vector":
        a, b = (n, k), (k,)
    elif kind == "broadcast":
        b = (*(1 for _ in batch), k, m)
    return DrawnSpec((d.tensor(a, domain), d.tensor(b, domain, "weight")))


def draw_gemm(d: SpecDraw) -> DrawnSpec:
    n, k, m = d.size(65), d.size(129), d.size(65)
    attributes: dict[str, Any] = d.maybe("transA", [0, 1]) | d.maybe("transB", [0, 1])
    if d.is_float:
        attributes |= d.maybe("alpha", [1.0, 0.5, 2.0, 0.25]) | d.maybe("beta", [1.0, 0.5, 2.0, 0.0])
    a = d.tensor((k, n) if attributes.get("transA") else (n, k), choose_domain_of_sums(d))
    b = d.tensor((m, k) if attributes.get("transB") else (k, m), choose_domain_of_sums(d), "weight")
    shape = d.choose.of([None, (m,), (n, m), (1, m), (n, 1), (1,), (1, 1), ()])
    return DrawnSpec(
        (a, b) if shape is None else (a, b, d.tensor(shape, choose_domain_of_sums(d), "weight")), attributes
    )


def draw_matmul_integer(d: SpecDraw) -> DrawnSpec:
    n, k, m = d.size(33), d.size(65), d.size(33)
    other = d.choose.of(["uint8", "int8"])
    a, b = d.tensor((n, k), values.ANY), d.tensor((k, m), values.ANY, "weight", other)
    if not d.choose.chance(1, 2):
        return DrawnSpec((a, b))
    zero_a = d.tensor((), values.ANY, "weight")
    if not d.choose.chance(1, 2):
        return DrawnSpec((a, b, zero_a))
    return DrawnSpec((a, b, zero_a, d.tensor(d.choose.of([(), (m,)]), values.ANY, "weight", other)))


_EQUATIONS = (
    ("ij,jk->ik", 2),
    ("bij,bjk->bik", 2),
    ("ij->ji", 1),
    ("ii->i", 1),
    ("ij->", 1),
    ("ij->i", 1),
    ("ij,ij->ij", 2),
    ("i,j->ij", 2),
    ("bhid,bhjd->bhij", 2),
    ("abc,cd->abd", 2),
    ("ij,jk,kl->il", 3),
    ("ij,kj->ik", 2),
    ("ijk->kji", 1),
    ("ij,jk", 2),
)


def draw_einsum(d: SpecDraw) -> DrawnSpec:
    equation, _ = d.choose.of(_EQUATIONS)
    sizes: dict[str, int] = {}
    operands = []
    for part in equation.partition("->")[0].split(","):
        for letter in part:
            if letter not in sizes:
                sizes[letter] = d.size(9)
        operands.append(tuple(sizes[letter] for letter in part))
    given = [d.tensor(shape, _SUMS, "data" if k == 0 else "weight") for k, shape in enumerate(operands)]
    return DrawnSpec(tuple(given), {"equation": equation})


_WHOLE = ("int32", "int64")
