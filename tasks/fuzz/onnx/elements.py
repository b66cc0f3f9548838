"""Specs of operators of single elements: functions, arithmetic, comparison, logic, rounding, casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.fuzz import values
from tasks.fuzz.onnx.spec import EVERY, FLOATS, SIGNED, UNSIGNED, DrawnSpec, GivenInput, SpecDraw
from tasks.fuzz.values import ValueDomain
from tasks.model.dtypes import ELEMENT_TYPE, LARGEST, get_integer_range, get_numpy_dtype

#: A function that grows: its results are to be finite in every dtype.
GROWS = ValueDomain(-8.0, 8.0, ("halves", "powers", "zeros", "tiny"))
#: A function that is written with exp(x) − 1: near 0 that loses digits, and the operator's text says no other way.
LOSES = ValueDomain(classes=("halves", "powers", "zeros", "large"))
UNIT = ValueDomain(-1.0, 1.0, ("halves", "powers", "zeros", "tiny"))
ANGLE = ValueDomain(-32.0, 32.0, ("halves", "powers", "zeros", "tiny"))


def draw_function(domain: ValueDomain, **attributes: Sequence[Any]) -> Callable[[SpecDraw], DrawnSpec]:
    """A function of one number, of numbers of a domain; attributes: what each may be."""

    def make(d: SpecDraw) -> DrawnSpec:
        given: dict[str, Any] = {}
        for name, options in attributes.items():
            given |= d.maybe(name, options)
        return DrawnSpec((d.tensor(d.shape(), domain),), given)

    return make


def draw_plain(domain: ValueDomain = values.ANY) -> Callable[[SpecDraw], DrawnSpec]:
    """A function of one tensor of a domain, without attributes."""
    return lambda d: DrawnSpec((d.tensor(d.shape(), domain),))


def choose_sum_domain(d: SpecDraw) -> ValueDomain:
    """Numbers whose sums and differences do not overflow."""
    if d.is_float:
        return values.REAL
    low, high = get_integer_range(d.dtype)
    return ValueDomain(low // 2, high // 2, values.ANY.classes)


def choose_product_domain(d: SpecDraw) -> ValueDomain:
    """Numbers whose products do not overflow."""
    if d.is_float:
        return values.REAL
    low, high = get_integer_range(d.dtype)
    root = int(high**0.5)
    return ValueDomain(-root if low else 0, root, values.ANY.classes)


def _draw_pair(d: SpecDraw, first: ValueDomain, second: ValueDomain | None = None) -> tuple[GivenInput, GivenInput]:
    """Two tensors that are broadcast to each other; either may be the smaller one, the second perhaps an
    initializer."""
    whole = d.shape()
    one, other = whole, d.broadcast(whole)
    if d.choose.chance(1, 4):
        one, other = other, one
    second = first if second is None else second
    return d.tensor(one, first), d.tensor(other, second, "weight")


def draw_two(domain: Callable[[SpecDraw], ValueDomain]) -> Callable[[SpecDraw], DrawnSpec]:
    """A function of two tensors of the domain that a case has."""
    return lambda d: DrawnSpec(_draw_pair(d, domain(d)))


def choose_any_domain(d: SpecDraw) -> ValueDomain:
    return values.ANY


def draw_subtract(d: SpecDraw) -> DrawnSpec:
    if d.dtype in UNSIGNED:
        high = get_integer_range(d.dtype)[1]
        return DrawnSpec(
            _draw_pair(
                d, ValueDomain(high // 2 + 1, high, values.ANY.classes), ValueDomain(0, high // 2, values.ANY.classes)
            )
        )
    return DrawnSpec(_draw_pair(d, choose_sum_domain(d)))


def draw_divide(d: SpecDraw) -> DrawnSpec:
    if d.is_float:
        return DrawnSpec(_draw_pair(d, values.REAL, values.POSITIVE))
    low, high = get_integer_range(d.dtype)
    return DrawnSpec(
        _draw_pair(
            d, ValueDomain(low + 1 if low else 0, high, values.ANY.classes), ValueDomain(1, high, values.ANY.classes)
        )
    )


def draw_modulo(d: SpecDraw) -> DrawnSpec:
    if d.is_float:
        return DrawnSpec(_draw_pair(d, values.MILD, ValueDomain(0.5, 8.0, ("halves",))), {"fmod": 1})
    low, high = get_integer_range(d.dtype)
    a, b = _draw_pair(
        d, ValueDomain(low + 1 if low else 0, high, values.ANY.classes), ValueDomain(1, high, ("powers", "large"))
    )
    if low and d.choose.chance(1, 2):
        b = GivenInput(np.negative(b.array), b.role)
    return DrawnSpec((a, b), d.maybe("fmod", [0, 1]))


def draw_power(d: SpecDraw) -> DrawnSpec:
    whole = d.shape()
    if d.is_float:
        kind = d.choose.of(["same", "int32", "int64"]) if d.dtype == "float32" else "same"
        kind = "float32" if d.dtype == "bfloat16" else kind
        exponents = d.tensor(
            d.broadcast(whole), ValueDomain(-3.0, 3.0, ("halves",)), "weight", "" if kind == "same" else kind
        )
        return DrawnSpec((d.tensor(whole, ValueDomain(0.25, 4.0, ("halves", "powers"))), exponents))
    exponents = d.tensor(d.broadcast(whole), ValueDomain(0, 3, ()), "weight")
    return DrawnSpec((d.tensor(whole, ValueDomain(-60, 60, ())), exponents))


def draw_prelu(d: SpecDraw) -> DrawnSpec:
    whole = d.shape(1)
    return DrawnSpec((d.tensor(whole, values.REAL), d.tensor(d.broadcast(whole), values.REAL, "weight")))


def draw_shift(d: SpecDraw) -> DrawnSpec:
    bits = 8 * get_numpy_dtype(d.dtype).itemsize
    pair = _draw_pair(d, values.ANY, ValueDomain(0, bits - 1, ()))
    return DrawnSpec(pair, {"direction": d.choose.of(["LEFT", "RIGHT"])})


def draw_variadic(domain: Callable[[SpecDraw], ValueDomain]) -> Callable[[SpecDraw], DrawnSpec]:
    """A function of one to four tensors of the domain that a case has."""

    def make(d: SpecDraw) -> DrawnSpec:
        whole, count = d.shape(), d.choose.of([2, 1, 3, 4])
        some = domain(d)
        if count > 2 and np.isfinite(some.high):
            some = ValueDomain(some.low / 2, some.high / 2, some.classes)
        first = d.tensor(whole, some)
        return DrawnSpec((first, *(d.tensor(d.broadcast(whole), some, "weight") for _ in range(count - 1))))

    return make


def draw_clip(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(), values.ANY)
    bounds: list[GivenInput | None] = [None, None]
    low, high = sorted([d.tensor((), values.MILD, "weight").array, d.tensor((), values.MILD, "weight").array])
    kind = d.choose.of(["both", "low", "high", "none"])
    if kind in ("both", "low"):
        bounds[0] = GivenInput(np.asarray(low), "weight")
    if kind in ("both", "high"):
        bounds[1] = GivenInput(np.asarray(high), "weight")
    while bounds and bounds[-1] is None:
        bounds.pop()
    return DrawnSpec((x, *bounds))


def draw_is_inf(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1), values.ANY)
    marks = d.tensor(x.array.shape, ValueDomain(0, 3, ()), dtype="int32").array
    array = np.where(marks == 1, np.inf, np.where(marks == 2, -np.inf, np.where(marks == 3, np.nan, x.array)))
    attributes = d.maybe("detect_negative", [1, 0]) | d.maybe("detect_positive", [1, 0])
    return DrawnSpec((GivenInput(array.astype(x.array.dtype)),), attributes)


def draw_is_nan(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1), values.ANY)
    marks = d.tensor(x.array.shape, ValueDomain(0, 2, ()), dtype="int32").array
    array = np.where(marks == 1, np.inf, np.where(marks == 2, np.nan, x.array))
    return DrawnSpec((GivenInput(array.astype(x.array.dtype)),))


def draw_shrink(d: SpecDraw) -> DrawnSpec:
    attributes = d.maybe("bias", [0.0, 0.5, 1.0]) | d.maybe("lambd", [0.5, 0.0, 1.5])
    return DrawnSpec((d.tensor(d.shape(), values.MILD),), attributes)


def draw_where(d: SpecDraw) -> DrawnSpec:
    whole = d.shape()
    shapes = [whole, d.broadcast(whole), d.broadcast(whole)]
    order = d.choose.order(3)
    condition = d.tensor(shapes[order[0]], values.ANY, dtype="bool")
    x, y = (d.tensor(shapes[k], values.ANY, role) for k, role in zip(order[1:], ("data", "weight")))
    return DrawnSpec((condition, x, y))


def draw_cast(d: SpecDraw) -> DrawnSpec:
    to = d.choose.of([x for x in EVERY if x != d.dtype and not (x == "bfloat16" and d.opset < 13)])
    domain = values.ANY
    low, high = -np.inf, np.inf
    if to not in FLOATS and to != "bool":
        low, high = get_integer_range(to)
    if d.is_float and np.isfinite(high):
        reach = min(high, LARGEST[d.dtype]) / 2
        domain = ValueDomain(max(low, -reach), reach, ("halves", "powers", "zeros", "large"))
    elif np.isfinite(high) and d.dtype != "bool":
        own = get_integer_range(d.dtype)
        domain = ValueDomain(max(low, own[0]), min(high, own[1]), values.ANY.classes)
    elif to == "float16" and not d.is_float and d.dtype != "bool":
        own = get_integer_range(d.dtype)
        domain = ValueDomain(max(-60000, own[0]), min(60000, own[1]), values.ANY.classes)
    return DrawnSpec((d.tensor(d.shape(), domain),), {"to": ELEMENT_TYPE[to]}, 1, (to,))


_WHOLE = (*SIGNED, *UNSIGNED)
