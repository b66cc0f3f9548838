"""Specs of operators that move, pick or place data, and of those between floats and quantised integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.fuzz import values
from tasks.fuzz.onnx.spec import DrawnSpec, GivenInput, SpecDraw
from tasks.fuzz.values import ValueDomain


def draw_any_tensor(d: SpecDraw, least: int = 1, most: int = 4) -> GivenInput:
    return d.tensor(d.shape(least, most), values.ANY)


def draw_concat(d: SpecDraw) -> DrawnSpec:
    first = draw_any_tensor(d)
    shape, axis = list(first.array.shape), d.axis(first.array.ndim)
    more = []
    for _ in range(d.choose.of([1, 0, 2, 3])):
        shape[axis] = d.size(33)
        more.append(d.tensor(shape, values.ANY, "weight"))
    return DrawnSpec((first, *more), {"axis": axis})


def draw_slice(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d)
    axes = d.axes(x.array.ndim)
    starts: list[int] = []
    ends: list[int] = []
    steps: list[int] = []
    for axis in axes:
        n, step = x.array.shape[axis], d.choose.of([1, 2, -1, 3, -2])
        low = d.choose.int(0, n - 1)
        high = n - d.choose.int(0, n - 1 - low)
        start, end = (low, high) if step > 0 else (high - 1, low - 1)
        if end == -1 or d.choose.chance(1, 4):  # before the first: −1 would be the last
            end = d.choose.of([-n - 1, -(2**31) - 5, -(2**62)]) if step < 0 and end == -1 else end
        if step > 0 and high == n and d.choose.chance(1, 2):
            end = d.choose.of([n + 3, 2**31 - 1, 2**63 - 1])
        if d.choose.chance(1, 3):
            start = start - n if start < n else start
        if d.choose.chance(1, 3) and 0 < end < n:
            end -= n
        for found, value in ((starts, start), (ends, end), (steps, step)):
            found.append(value)
    given: list[GivenInput | None] = [GivenInput.of_ints(starts), GivenInput.of_ints(ends)]
    plain = all(step == 1 for step in steps)
    if axes == list(range(len(axes))) and d.choose.chance(1, 2):
        given += [] if plain else [None, GivenInput.of_ints(steps)]
    else:
        given += (
            [GivenInput.of_ints(axes)]
            if plain and d.choose.chance(1, 2)
            else [GivenInput.of_ints(axes), GivenInput.of_ints(steps)]
        )
    return DrawnSpec((x, *given))


def draw_transpose(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d, 1, 5)
    return DrawnSpec((x,), {"perm": d.choose.order(x.array.ndim)} if d.choose.chance(3, 4) else {})


def draw_reshape(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d, 0)
    left, wanted = x.array.size, []
    for _ in range(d.choose.int(0, 3)):
        factor = d.choose.of([n for n in (1, 2, 3, 4, 5, 7, 8) if left % n == 0])
        wanted.append(factor)
        left //= factor
    wanted.insert(d.choose.int(0, len(wanted)), left)
    for k, n in enumerate(wanted):
        if k < x.array.ndim and x.array.shape[k] == n and d.choose.chance(1, 3):
            wanted[k] = 0
    if d.choose.chance(1, 2):
        k = d.choose.int(0, len(wanted) - 1)
        wanted[k] = -1 if wanted[k] else 0
    more = d.maybe("allowzero", [0, 1]) if d.opset >= 14 and 0 not in wanted else {}
    return DrawnSpec((x, GivenInput.of_ints(wanted)), more)


def draw_flatten(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d)
    rank = x.array.ndim
    return DrawnSpec((x,), d.maybe("axis", [*range(rank + 1), *range(-rank, 0)]))


def draw_squeeze(d: SpecDraw) -> DrawnSpec:
    shape = list(d.shape(0, 3))
    for _ in range(d.choose.int(1, 2)):
        shape.insert(d.choose.int(0, len(shape)), 1)
    x = d.tensor(shape, values.ANY)
    ones = [k for k, n in enumerate(shape) if n == 1]
    if d.choose.chance(1, 3):
        return DrawnSpec((x,))
    axes = d.choose.some(ones, 1, len(ones))
    return DrawnSpec((x, GivenInput.of_ints([k - len(shape) if d.choose.chance(1, 3) else k for k in axes])))


def draw_unsqueeze(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d, 0, 3)
    count = d.choose.int(1, 3)
    rank = x.array.ndim + count
    axes = d.choose.some(range(rank), count, count)
    axes = [k - rank if d.choose.chance(1, 3) else k for k in axes]
    return DrawnSpec((x, GivenInput.of_ints([axes[k] for k in d.choose.order(count)])))


def draw_split(d: SpecDraw) -> DrawnSpec:
    parts = d.choose.int(1, 4)
    shape = list(d.shape(1))
    axis = d.axis(len(shape))
    kind = d.choose.of(["equal", "sizes"] if d.opset < 18 else ["equal", "sizes", "uneven"])
    attributes: dict[str, Any] = {} if axis == 0 and d.choose.chance(1, 2) else {"axis": axis}
    if kind == "sizes":
        sizes = [d.size(9) for _ in range(parts)]
        shape[axis] = sum(sizes)
        return DrawnSpec((d.tensor(shape, values.ANY), GivenInput.of_ints(sizes)), attributes, parts)
    chunk = d.size(9)
    shape[axis] = chunk * parts - (d.choose.int(0, chunk - 1) if kind == "uneven" else 0)
    if d.opset >= 18:
        attributes["num_outputs"] = parts
    return DrawnSpec((d.tensor(shape, values.ANY),), attributes, parts)


def draw_tile(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1, 4, 256), values.ANY)
    return DrawnSpec((x, GivenInput.of_ints([d.choose.of([2, 1, 3]) if k < 3 else 1 for k in range(x.array.ndim)])))


def draw_expand(d: SpecDraw) -> DrawnSpec:
    whole = d.shape(1)
    x = d.tensor(d.broadcast(whole), values.ANY)
    wanted = [1 if d.choose.chance(1, 4) else n for n in whole]
    return DrawnSpec(
        (x, GivenInput.of_ints(wanted[d.choose.int(0, len(wanted) - 1) if d.choose.chance(1, 4) else 0 :]))
    )


def draw_pad(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1, 4, 512), values.ANY)
    shape, mode = x.array.shape, d.choose.of(["constant", "reflect", "edge"] + ["wrap"] * (d.opset >= 19))
    axes = d.choose.some(range(len(shape)), 1, len(shape)) if d.opset >= 18 and d.choose.chance(1, 3) else None
    begin: list[int] = []
    end: list[int] = []
    for axis in range(len(shape)) if axes is None else axes:
        most = {"reflect": shape[axis] - 1, "wrap": shape[axis]}.get(mode, 4)
        least = -min(shape[axis] - 1, 2) if mode == "constant" else 0
        for side in (begin, end):
            amount = d.choose.int(0, min(most, 4))
            side.append(-d.choose.int(0, -least // 2) if least and d.choose.chance(1, 5) else amount)
    given: list[GivenInput | None] = [GivenInput.of_ints([*begin, *end])]
    if mode == "constant" and d.choose.chance(1, 2):
        given.append(d.tensor((), values.MILD, "weight"))
    if axes is not None:
        given += [None] * (2 - len(given))
        given.append(GivenInput.of_ints([k - len(shape) if d.choose.chance(1, 3) else k for k in axes]))
    return DrawnSpec((x, *given), {} if mode == "constant" and d.choose.chance(1, 2) else {"mode": mode})


def draw_depth_to_space(d: SpecDraw) -> DrawnSpec:
    block = d.choose.of([2, 1, 3])
    x = d.tensor((d.size(3), block**2 * d.choose.of([1, 2, 3]), d.size(9), d.size(9)), values.ANY)
    return DrawnSpec((x,), {"blocksize": block} | d.maybe("mode", ["DCR", "CRD"]))


def draw_space_to_depth(d: SpecDraw) -> DrawnSpec:
    block = d.choose.of([2, 1, 3])
    x = d.tensor((d.size(3), d.choose.of([1, 2, 3]), block * d.size(5), block * d.size(5)), values.ANY)
    return DrawnSpec((x,), {"blocksize": block})


def draw_trilu(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d, 2)
    k = (
        (GivenInput(np.asarray(d.choose.of([0, 1, -1, 2, -2, 5, -5]), np.int64), "parameter"),)
        if d.choose.chance(1, 2)
        else ()
    )
    return DrawnSpec((x, *k), d.maybe("upper", [1, 0]))


def draw_compress(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d)
    whole = d.choose.chance(1, 3)
    axis = 0 if whole else d.axis(x.array.ndim)
    count = x.array.size if whole else x.array.shape[axis]
    condition = d.tensor((count - d.choose.int(0, count // 2),), dtype="bool", role="weight").array.copy()
    condition[0] = True
    return DrawnSpec((x, GivenInput(condition, "weight")), {} if whole else {"axis": axis})


def draw_reverse_sequence(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d, 2)
    time = d.choose.int(0, 1)
    lengths = d.indices((x.array.shape[1 - time],), x.array.shape[time], negative=False).array.astype(np.int64) + 1
    given = {"time_axis": time, "batch_axis": 1 - time} if time or d.choose.chance(1, 2) else {}
    return DrawnSpec((x, GivenInput(lengths, "parameter")), given)


def draw_gather(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d)
    axis = d.axis(x.array.ndim)
    indices = d.indices(d.shape(0, 2, 64), x.array.shape[axis])
    return DrawnSpec((x, indices), {} if axis == 0 and d.choose.chance(1, 2) else {"axis": axis})


def draw_gather_elements(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d)
    axis, shape = d.axis(x.array.ndim), list(x.array.shape)
    reached = [n if d.choose.chance(1, 2) else 1 + d.choose.int(0, n - 1) for n in shape]
    reached[axis] = d.size(9)
    return DrawnSpec(
        (x, d.indices(reached, shape[axis])), {} if axis == 0 and d.choose.chance(1, 2) else {"axis": axis}
    )


def _draw_index_tuples(
    d: SpecDraw, shape: tuple[int, ...], count: tuple[int, ...], depth: int, negative: bool
) -> np.ndarray:
    """Indices (count…, depth) into the first axes of a shape."""
    parts = [d.indices(count, shape[k], negative).array.astype(np.int64) for k in range(depth)]
    return np.stack(parts, axis=-1)


def draw_gather_nd(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d, 2)
    shape, batch = x.array.shape, d.choose.of([0, 1])
    depth = d.choose.int(1, len(shape) - batch)
    count = (*shape[:batch], *(d.size(5) for _ in range(d.choose.of([1, 0, 2]))))
    indices = _draw_index_tuples(d, shape[batch:], count, depth, True)
    return DrawnSpec(
        (x, GivenInput(indices, "parameter")), {"batch_dims": batch} if batch or d.choose.chance(1, 4) else {}
    )


def _draw_scatter_reduction(d: SpecDraw) -> dict[str, Any]:
    kinds = ["none", "add", "mul"] if d.opset >= 16 and d.dtype != "bool" else ["none"]
    kinds += ["max", "min"] if d.opset >= 18 and d.dtype != "bool" else []
    return d.maybe("reduction", kinds) if len(kinds) > 1 else {}


def _draw_distinct_numbers(d: SpecDraw, count: int, of: int) -> list[int]:
    return d.choose.order(of)[:count]


def draw_scatter_elements(d: SpecDraw) -> DrawnSpec:
    more = _draw_scatter_reduction(d)
    domain = values.MILD if more.get("reduction") in ("add", "mul") else values.ANY
    if not d.is_float and domain is values.MILD:
        domain = ValueDomain(0, 2, ())
    x = d.tensor(d.shape(1, 3, 128), domain)
    axis, shape = d.axis(x.array.ndim), x.array.shape
    reached = [1 + d.choose.int(0, min(n, 9) - 1) for n in shape]
    order = np.asarray(_draw_distinct_numbers(d, reached[axis], min(shape[axis], 9)), np.int64)
    view = [1] * len(shape)
    view[axis] = -1
    indices = np.array(
        np.broadcast_to(order.reshape(view), reached)
    )  # without repetition: whose turn is last is left open
    if d.choose.chance(1, 3):
        indices = np.where(indices % 2 == 1, indices - shape[axis], indices)
    kind = d.choose.of([np.int64, np.int32])
    updates = d.tensor(reached, domain, "weight")
    attributes = more | ({} if axis == 0 and d.choose.chance(1, 2) else {"axis": axis})
    return DrawnSpec((x, GivenInput(indices.astype(kind), "parameter"), updates), attributes)


def draw_scatter_nd(d: SpecDraw) -> DrawnSpec:
    more = _draw_scatter_reduction(d)
    domain = values.MILD if more.get("reduction") in ("add", "mul") else values.ANY
    if not d.is_float and domain is values.MILD:
        domain = ValueDomain(0, 2, ())
    x = d.tensor(d.shape(1, 3, 256), domain)
    shape = x.array.shape
    depth, count = d.choose.int(1, len(shape)), 1 + d.choose.int(0, min(shape[0], 6) - 1)
    first = np.asarray(_draw_distinct_numbers(d, count, min(shape[0], 9)), np.int64)
    rest = [d.indices((count,), shape[k], False).array.astype(np.int64) for k in range(1, depth)]
    indices = np.stack([first, *rest], axis=-1)
    if d.choose.chance(1, 3):
        indices = np.where(indices % 2 == 1, indices - np.asarray(shape[:depth]), indices)
    return DrawnSpec((x, GivenInput(indices, "parameter"), d.tensor((count, *shape[depth:]), domain, "weight")), more)


def draw_one_hot(d: SpecDraw) -> DrawnSpec:
    depth = d.choose.of([3, 1, 2, 5, 8, 9])
    low = 0 if d.dtype in ("uint8", "uint64") else -depth
    indices = d.tensor(d.shape(1, 3, 128), ValueDomain(low, depth - 1, ()))
    kind = d.choose.of(["float32", "int32", "int64", "bool", "float16"])
    off_on = d.tensor((2,), values.MILD, "weight", kind)
    size = GivenInput(np.asarray(depth, d.choose.of([np.int64, np.int32])), d.choose.of(["constant", "parameter"]))
    rank = indices.array.ndim
    return DrawnSpec(
        (indices, size, off_on), d.maybe("axis", [-1, *range(rank + 1), *range(-rank - 1, -1)]), 1, (kind,)
    )


def draw_top_k(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d)
    axis = d.choose.of([-1, *range(x.array.ndim), *range(-x.array.ndim, -1)])
    k = 1 + d.choose.int(0, x.array.shape[axis] - 1)
    attributes = ({} if axis == -1 and d.choose.chance(1, 2) else {"axis": axis}) | d.maybe("largest", [1, 0])
    return DrawnSpec((x, GivenInput.of_ints([k])), attributes, 2)


def draw_non_zero(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1), ValueDomain(classes=("zeros", "halves")))
    return DrawnSpec((x,))


def draw_eye_like(d: SpecDraw) -> DrawnSpec:
    x = d.tensor((d.size(33), d.size(33)), values.MILD)
    return DrawnSpec((x,), d.maybe("k", [0, 1, -1, 2, -2, 40]), 1, (d.dtype,))


def draw_shape(d: SpecDraw) -> DrawnSpec:
    x = draw_any_tensor(d, 0)
    rank = x.array.ndim
    bounds = [0, *range(-rank - 1, rank + 2)]
    return DrawnSpec((x,), (d.maybe("start", bounds) | d.maybe("end", bounds)) if d.opset >= 15 else {})


def draw_range(d: SpecDraw) -> DrawnSpec:
    kind = np.dtype(d.dtype).type
    start, delta, count = d.choose.int(-5, 5), d.choose.of([1, 2, -1, 3, -2]), d.choose.of([3, 1, 8, 9, 65])
    half = d.choose.of([0.0, 0.5]) if d.is_float else 0.0
    limit = start + delta * count - (d.choose.int(0, abs(delta) - 1) * (1 if delta > 0 else -1))
    given = [GivenInput(np.asarray(kind(v)), "parameter") for v in (start + half, limit + half, delta)]
    return DrawnSpec(tuple(given))


def draw_quantize(d: SpecDraw) -> DrawnSpec:
    to = d.choose.of(["uint8", "int8"] + ["uint16", "int16"] * (d.opset >= 21))
    x = d.tensor(d.shape(1, 4, 512), ValueDomain(-64.0, 64.0, ("halves", "powers", "zeros", "large")))
    shape, more = _draw_scale_shape(d, x.array.shape)
    scale = d.tensor(shape, ValueDomain(0.125, 2.0, ("halves", "powers")), "weight")
    zero = d.tensor(shape, values.ANY, "weight", to) if to != "uint8" or d.choose.chance(1, 2) else None
    return DrawnSpec((x, scale, zero) if zero else (x, scale), more, 1, (to,))


def _draw_scale_shape(d: SpecDraw, shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Shape of a scale, and the attributes that say along what it goes."""
    if d.choose.chance(1, 2):
        return (), {}
    axis = d.axis(len(shape))
    return (shape[axis],), {} if axis == 1 and d.choose.chance(1, 2) else {"axis": axis}


def draw_dequantize(d: SpecDraw) -> DrawnSpec:
    x = d.tensor(d.shape(1, 4, 512), values.ANY)
    shape, more = _draw_scale_shape(d, x.array.shape)
    kind = d.choose.of(["float32", "float16"]) if d.opset >= 19 else "float32"
    scale = d.tensor(shape, ValueDomain(0.125, 2.0, ("halves", "powers")), "weight", kind)
    zero = (d.tensor(shape, values.ANY, "weight"),) if d.dtype != "int32" and d.choose.chance(1, 2) else ()
    return DrawnSpec((x, scale, *zero), more, 1, (kind,))
