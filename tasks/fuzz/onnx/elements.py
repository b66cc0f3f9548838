"""Specs of operators of single elements: functions, arithmetic, comparison, logic, rounding, casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.fuzz import values
from tasks.fuzz.onnx.spec import EVERY, FLOATS, SIGNED, UNSIGNED, Draw, Given, Made
from tasks.fuzz.values import Domain
from tasks.model.dtypes import ELEMENT_TYPE, LARGEST, integers, np_dtype

#: A function that grows: its results are to be finite in every dtype.
GROWS = Domain(-8.0, 8.0, ("halves", "powers", "zeros", "tiny"))
#: A function that is written with exp(x) − 1: near 0 that loses digits, and the operator's text says no other way.
LOSES = Domain(classes=("halves", "powers", "zeros", "large"))
UNIT = Domain(-1.0, 1.0, ("halves", "powers", "zeros", "tiny"))
ANGLE = Domain(-32.0, 32.0, ("halves", "powers", "zeros", "tiny"))


def draw_function(domain: Domain, **attributes: Sequence[Any]) -> Callable[[Draw], Made]:
    """A function of one number, of numbers of a domain; attributes: what each may be."""

    def make(d: Draw) -> Made:
        given: dict[str, Any] = {}
        for name, options in attributes.items():
            given |= d.maybe(name, options)
        return Made((d.tensor(d.shape(), domain),), given)

    return make


def draw_plain(domain: Domain = values.ANY) -> Callable[[Draw], Made]:
    """A function of one tensor of a domain, without attributes."""
    return lambda d: Made((d.tensor(d.shape(), domain),))


def choose_sum_domain(d: Draw) -> Domain:
    """Numbers whose sums and differences do not overflow."""
    if d.is_float:
        return values.REAL
    low, high = integers(d.dtype)
    return Domain(low // 2, high // 2, values.ANY.classes)


def choose_product_domain(d: Draw) -> Domain:
    """Numbers whose products do not overflow."""
    if d.is_float:
        return values.REAL
    low, high = integers(d.dtype)
    root = int(high**0.5)
    return Domain(-root if low else 0, root, values.ANY.classes)


def _draw_pair(d: Draw, first: Domain, second: Domain | None = None) -> tuple[Given, Given]:
    """Two tensors that are broadcast to each other; either may be the smaller one, the second perhaps an
    initializer."""
    whole = d.shape()
    one, other = whole, d.broadcast(whole)
    if d.choose.chance(1, 4):
        one, other = other, one
    second = first if second is None else second
    return d.tensor(one, first), d.tensor(other, second, "weight")


def draw_two(domain: Callable[[Draw], Domain]) -> Callable[[Draw], Made]:
    """A function of two tensors of the domain that a case has."""
    return lambda d: Made(_draw_pair(d, domain(d)))


def choose_any_domain(d: Draw) -> Domain:
    return values.ANY


def draw_subtract(d: Draw) -> Made:
    if d.dtype in UNSIGNED:
        high = integers(d.dtype)[1]
        return Made(
            _draw_pair(d, Domain(high // 2 + 1, high, values.ANY.classes), Domain(0, high // 2, values.ANY.classes))
        )
    return Made(_draw_pair(d, choose_sum_domain(d)))


def draw_divide(d: Draw) -> Made:
    if d.is_float:
        return Made(_draw_pair(d, values.REAL, values.POSITIVE))
    low, high = integers(d.dtype)
    return Made(
        _draw_pair(d, Domain(low + 1 if low else 0, high, values.ANY.classes), Domain(1, high, values.ANY.classes))
    )


def draw_modulo(d: Draw) -> Made:
    if d.is_float:
        return Made(_draw_pair(d, values.MILD, Domain(0.5, 8.0, ("halves",))), {"fmod": 1})
    low, high = integers(d.dtype)
    a, b = _draw_pair(d, Domain(low + 1 if low else 0, high, values.ANY.classes), Domain(1, high, ("powers", "large")))
    if low and d.choose.chance(1, 2):
        b = Given(np.negative(b.array), b.role)
    return Made((a, b), d.maybe("fmod", [0, 1]))


def draw_power(d: Draw) -> Made:
    whole = d.shape()
    if d.is_float:
        kind = d.choose.of(["same", "int32", "int64"]) if d.dtype == "float32" else "same"
        kind = "float32" if d.dtype == "bfloat16" else kind
        exponents = d.tensor(
            d.broadcast(whole), Domain(-3.0, 3.0, ("halves",)), "weight", "" if kind == "same" else kind
        )
        return Made((d.tensor(whole, Domain(0.25, 4.0, ("halves", "powers"))), exponents))
    exponents = d.tensor(d.broadcast(whole), Domain(0, 3, ()), "weight")
    return Made((d.tensor(whole, Domain(-60, 60, ())), exponents))


def draw_prelu(d: Draw) -> Made:
    whole = d.shape(1)
    return Made((d.tensor(whole, values.REAL), d.tensor(d.broadcast(whole), values.REAL, "weight")))


def draw_shift(d: Draw) -> Made:
    bits = 8 * np_dtype(d.dtype).itemsize
    pair = _draw_pair(d, values.ANY, Domain(0, bits - 1, ()))
    return Made(pair, {"direction": d.choose.of(["LEFT", "RIGHT"])})


def draw_variadic(domain: Callable[[Draw], Domain]) -> Callable[[Draw], Made]:
    """A function of one to four tensors of the domain that a case has."""

    def make(d: Draw) -> Made:
        whole, count = d.shape(), d.choose.of([2, 1, 3, 4])
        some = domain(d)
        if count > 2 and np.isfinite(some.high):
            some = Domain(some.low / 2, some.high / 2, some.classes)
        first = d.tensor(whole, some)
        return Made((first, *(d.tensor(d.broadcast(whole), some, "weight") for _ in range(count - 1))))

    return make


def draw_clip(d: Draw) -> Made:
    x = d.tensor(d.shape(), values.ANY)
    bounds: list[Given | None] = [None, None]
    low, high = sorted([d.tensor((), values.MILD, "weight").array, d.tensor((), values.MILD, "weight").array])
    kind = d.choose.of(["both", "low", "high", "none"])
    if kind in ("both", "low"):
        bounds[0] = Given(np.asarray(low), "weight")
    if kind in ("both", "high"):
        bounds[1] = Given(np.asarray(high), "weight")
    while bounds and bounds[-1] is None:
        bounds.pop()
    return Made((x, *bounds))


def draw_is_inf(d: Draw) -> Made:
    x = d.tensor(d.shape(1), values.ANY)
    marks = d.tensor(x.array.shape, Domain(0, 3, ()), dtype="int32").array
    array = np.where(marks == 1, np.inf, np.where(marks == 2, -np.inf, np.where(marks == 3, np.nan, x.array)))
    attributes = d.maybe("detect_negative", [1, 0]) | d.maybe("detect_positive", [1, 0])
    return Made((Given(array.astype(x.array.dtype)),), attributes)


def draw_is_nan(d: Draw) -> Made:
    x = d.tensor(d.shape(1), values.ANY)
    marks = d.tensor(x.array.shape, Domain(0, 2, ()), dtype="int32").array
    array = np.where(marks == 1, np.inf, np.where(marks == 2, np.nan, x.array))
    return Made((Given(array.astype(x.array.dtype)),))


def draw_shrink(d: Draw) -> Made:
    attributes = d.maybe("bias", [0.0, 0.5, 1.0]) | d.maybe("lambd", [0.5, 0.0, 1.5])
    return Made((d.tensor(d.shape(), values.MILD),), attributes)


def draw_where(d: Draw) -> Made:
    whole = d.shape()
    shapes = [whole, d.broadcast(whole), d.broadcast(whole)]
    order = d.choose.order(3)
    condition = d.tensor(shapes[order[0]], values.ANY, dtype="bool")
    x, y = (d.tensor(shapes[k], values.ANY, role) for k, role in zip(order[1:], ("data", "weight")))
    return Made((condition, x, y))


def draw_cast(d: Draw) -> Made:
    to = d.choose.of([x for x in EVERY if x != d.dtype and not (x == "bfloat16" and d.opset < 13)])
    domain = values.ANY
    low, high = -np.inf, np.inf
    if to not in FLOATS and to != "bool":
        low, high = integers(to)
    if d.is_float and np.isfinite(high):
        reach = min(high, LARGEST[d.dtype]) / 2
        domain = Domain(max(low, -reach), reach, ("halves", "powers", "zeros", "large"))
    elif np.isfinite(high) and d.dtype != "bool":
        own = integers(d.dtype)
        domain = Domain(max(low, own[0]), min(high, own[1]), values.ANY.classes)
    elif to == "float16" and not d.is_float and d.dtype != "bool":
        own = integers(d.dtype)
        domain = Domain(max(-60000, own[0]), min(60000, own[1]), values.ANY.classes)
    return Made((d.tensor(d.shape(), domain),), {"to": ELEMENT_TYPE[to]}, 1, (to,))


_WHOLE = (*SIGNED, *UNSIGNED)
