"""ONNX operators that move, pick or place data: every element of the output is one of an input, or a constant."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tasks.model.dtypes import DTYPE_OF_ELEMENT, get_numpy_dtype, get_wide_dtype
from tasks.operators.call import OperatorCall
from tasks.operators.left_open import LeftOpen
from tasks.operators.reductions import get_operator_axes


def _read_ints_input(value: Any) -> list[int]:
    return [int(x) for x in np.asarray(value).reshape(-1)]


def evaluate_concat(call: OperatorCall) -> list[np.ndarray]:
    """Concat."""
    return [np.concatenate(call.arrays(), axis=int(call.attributes["axis"]))]


def evaluate_slice(call: OperatorCall) -> list[np.ndarray]:
    """Slice: bounds beyond an axis are those of the axis; backwards the end −1 − n is before the first."""
    x = np.asarray(call.inputs[0])
    starts, ends = _read_ints_input(call.inputs[1]), _read_ints_input(call.inputs[2])
    axes = range(len(starts)) if call.at(3) is None else _read_ints_input(call.at(3))
    steps = [1] * len(starts) if call.at(4) is None else _read_ints_input(call.at(4))
    for axis, start, end, step in zip(axes, starts, ends, steps):
        n = x.shape[axis]
        start, end = (k + n if k < 0 else k for k in (start, end))
        if step > 0:
            first, last = min(max(start, 0), n), min(max(end, 0), n)
        else:
            first, last = min(max(start, 0), n - 1), min(max(end, -1), n - 1)
        at: list[Any] = [slice(None)] * x.ndim
        at[axis] = slice(first, None if last < 0 else last, step)
        x = x[tuple(at)]
    return [x]


def evaluate_transpose(call: OperatorCall) -> list[np.ndarray]:
    """Transpose."""
    (x,) = call.arrays()
    return [np.transpose(x, call.attributes.get("perm"))]


def evaluate_reshape(call: OperatorCall) -> list[np.ndarray]:
    """Reshape: 0 copies the size of the input, unless allowzero."""
    x, wanted = np.asarray(call.inputs[0]), _read_ints_input(call.inputs[1])
    if not call.attributes.get("allowzero"):
        wanted = [x.shape[k] if n == 0 else n for k, n in enumerate(wanted)]
    return [x.reshape(wanted)]


def evaluate_flatten(call: OperatorCall) -> list[np.ndarray]:
    """Flatten to two axes; ``axis`` may be the rank itself."""
    (x,) = call.arrays()
    axis = int(call.attributes.get("axis", 1))
    axis = axis + x.ndim if axis < 0 else axis
    return [x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1 if x.size else 0)]


def evaluate_squeeze(call: OperatorCall) -> list[np.ndarray]:
    """Squeeze; all axes of length 1 where none are given."""
    x = np.asarray(call.inputs[0])
    axes = get_operator_axes(call, 1, x.ndim)
    return [np.squeeze(x) if axes is None else np.squeeze(x, axes)]


def evaluate_unsqueeze(call: OperatorCall) -> list[np.ndarray]:
    """Unsqueeze: axes are those of the output."""
    x = np.asarray(call.inputs[0])
    given = call.attributes.get("axes")
    given = _read_ints_input(call.inputs[1]) if given is None else list(given)
    return [np.expand_dims(x, tuple(k % (x.ndim + len(given)) for k in given))]


def evaluate_split(call: OperatorCall) -> list[np.ndarray]:
    """Split: by sizes, else into equal chunks, of which the last may be smaller (opset 18)."""
    x, axis = np.asarray(call.inputs[0]), int(call.attributes.get("axis", 0))
    if call.at(1) is not None:
        sizes = _read_ints_input(call.at(1))
    else:
        many = int(call.attributes.get("num_outputs", call.outputs))
        chunk = -(-x.shape[axis] // many)
        sizes = [chunk] * (many - 1)
        sizes.append(x.shape[axis] - sum(sizes))
    if sum(sizes) != x.shape[axis] or min(sizes) < 0 or len(sizes) != call.outputs:
        raise LeftOpen("Split into sizes that are not those of its outputs is left open")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def evaluate_tile(call: OperatorCall) -> list[np.ndarray]:
    """Tile."""
    return [np.tile(call.inputs[0], _read_ints_input(call.inputs[1]))]


def evaluate_expand(call: OperatorCall) -> list[np.ndarray]:
    """Expand: broadcast both ways."""
    x = np.asarray(call.inputs[0])
    return [np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(_read_ints_input(call.inputs[1])))))]


def evaluate_pad(call: OperatorCall) -> list[np.ndarray]:
    """Pad; what is negative is cut off first."""
    x, pads = np.asarray(call.inputs[0]), _read_ints_input(call.inputs[1])
    axes = range(x.ndim) if call.at(3) is None else [k % x.ndim for k in _read_ints_input(call.at(3))]
    half = len(pads) // 2
    ends = [(0, 0)] * x.ndim
    for axis, begin, end in zip(axes, pads[:half], pads[half:]):
        ends[axis] = (begin, end)
    cut = tuple(slice(max(-b, 0), n - max(-e, 0)) for (b, e), n in zip(ends, x.shape))
    x, ends = x[cut], [(max(b, 0), max(e, 0)) for b, e in ends]
    mode = call.attributes.get("mode", "constant")
    if mode == "constant":
        value = 0 if call.at(2) is None else np.asarray(call.at(2)).reshape(-1)[0]
        return [np.pad(x, ends, constant_values=value)]
    return [np.pad(x, ends, mode=mode)]


def evaluate_depth_to_space(call: OperatorCall) -> list[np.ndarray]:
    """DepthToSpace, DCR or CRD."""
    (x,), b = call.arrays(), int(call.attributes["blocksize"])
    n, c, h, w = x.shape
    if call.attributes.get("mode", "DCR") == "DCR":
        found = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        found = x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return [found.reshape(n, c // b**2, h * b, w * b)]


def evaluate_space_to_depth(call: OperatorCall) -> list[np.ndarray]:
    """SpaceToDepth, in the order of DepthToSpace's DCR or of its CRD."""
    (x,), b = call.arrays(), int(call.attributes["blocksize"])
    n, c, h, w = x.shape
    if call.attributes.get("mode") == "CRD":
        found = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 1, 3, 5, 2, 4)
        return [found.reshape(n, c * b * b, h // b, w // b)]
    found = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return [found.reshape(n, c * b * b, h // b, w // b)]


def evaluate_trilu(call: OperatorCall) -> list[np.ndarray]:
    """Trilu."""
    x, k = np.asarray(call.inputs[0]), 0 if call.at(1) is None else int(np.asarray(call.at(1)))
    return [np.triu(x, k) if call.attributes.get("upper", 1) else np.tril(x, k)]


def evaluate_compress(call: OperatorCall) -> list[np.ndarray]:
    """Compress: of the flattened input without an axis; a condition that is too short leaves the rest out."""
    x, condition = np.asarray(call.inputs[0]), np.asarray(call.inputs[1]).astype(bool)
    axis = call.attributes.get("axis")
    return [np.compress(condition, x, axis=axis)]


def evaluate_reverse_sequence(call: OperatorCall) -> list[np.ndarray]:
    """ReverseSequence: of each batch element the first so many along time."""
    x, lengths = np.asarray(call.inputs[0]), _read_ints_input(call.inputs[1])
    time, batch = int(call.attributes.get("time_axis", 0)), int(call.attributes.get("batch_axis", 1))
    if any(not 0 <= length <= x.shape[time] for length in lengths):
        raise LeftOpen("ReverseSequence of more than there is along time is left open")
    moved = np.moveaxis(x, (time, batch), (0, 1)).copy()
    for k, length in enumerate(lengths):
        moved[:length, k] = moved[:length, k][::-1].copy()
    return [np.ascontiguousarray(np.moveaxis(moved, (0, 1), (time, batch)))]


def evaluate_gather(call: OperatorCall) -> list[np.ndarray]:
    """Gather."""
    x, indices = np.asarray(call.inputs[0]), np.asarray(call.inputs[1])
    axis = int(call.attributes.get("axis", 0))
    return [np.asarray(np.take(x, _wrap_negative_indices(indices, x.shape[axis]), axis=axis))]


def _wrap_negative_indices(indices: np.ndarray, count: int) -> np.ndarray:
    if ((indices < -count) | (indices >= count)).any():
        raise LeftOpen("an index outside of its axis is left open")
    return np.where(indices < 0, indices + count, indices)


def evaluate_gather_elements(call: OperatorCall) -> list[np.ndarray]:
    """GatherElements; onnx's fails where the data has one row."""
    data, indices = call.arrays()
    axis = int(call.attributes.get("axis", 0)) % data.ndim
    reached = tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(indices.shape))
    return [np.take_along_axis(data[reached], indices, axis)]


def evaluate_gather_nd(call: OperatorCall) -> list[np.ndarray]:
    """GatherND."""
    x, indices = np.asarray(call.inputs[0]), np.asarray(call.inputs[1])
    batch, depth = int(call.attributes.get("batch_dims", 0)), indices.shape[-1]
    shape = indices.shape[:-1] + x.shape[batch + depth :]
    found = np.empty(shape, x.dtype)
    for at in itertools.product(*map(range, indices.shape[:-1])):
        place = tuple(int(k) for k in indices[at])
        found[at] = x[at[:batch] + place]
    return [found]


def _combine_scattered_values(kind: str, old: Any, new: Any) -> Any:
    if kind == "add":
        return old + new
    if kind == "mul":
        return old * new
    return max(old, new) if kind == "max" else min(old, new) if kind == "min" else new


def evaluate_scatter_elements(call: OperatorCall) -> list[np.ndarray]:
    """ScatterElements, one element after the other."""
    x, indices, updates = (np.asarray(v) for v in call.inputs)
    axis, kind = int(call.attributes.get("axis", 0)) % x.ndim, call.attributes.get("reduction", "none")
    found = x.copy()
    for at in itertools.product(*map(range, indices.shape)):
        place = (*at[:axis], int(indices[at]), *at[axis + 1 :])
        found[place] = _combine_scattered_values(kind, found[place], updates[at])
    return [found]


def evaluate_scatter_nd(call: OperatorCall) -> list[np.ndarray]:
    """ScatterND, one slice after the other."""
    x, indices, updates = (np.asarray(v) for v in call.inputs)
    kind = call.attributes.get("reduction", "none")
    join = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(kind)
    found = x.copy()
    for at in itertools.product(*map(range, indices.shape[:-1])):
        place = tuple(int(k) for k in indices[at])
        found[place] = updates[at] if join is None else join(found[place], updates[at])
    return [found]


def evaluate_one_hot(call: OperatorCall) -> list[np.ndarray]:
    """OneHot: an index outside of the depth gives a row of the off value; "in case 'indices' is of non-integer type,
    the values will be casted to int64 before use"."""
    indices, depth, (off, on) = (
        np.asarray(call.inputs[0]).astype(np.int64),
        int(np.asarray(call.inputs[1]).reshape(-1)[0]),
        call.inputs[2],
    )
    axis = int(call.attributes.get("axis", -1))
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    shape = [1] * (indices.ndim + 1)
    shape[axis] = depth
    places = np.arange(depth).reshape(shape)
    known = np.expand_dims(np.where(indices < 0, indices + depth, indices), axis)
    return [np.where(known == places, on, off).astype(np.asarray(call.inputs[2]).dtype)]


def evaluate_top_k(call: OperatorCall) -> list[np.ndarray]:
    """TopK, sorted; of equal elements the one with the lower index comes first."""
    x, k = np.asarray(call.inputs[0]), int(np.asarray(call.inputs[1]).reshape(-1)[0])
    axis, largest = int(call.attributes.get("axis", -1)), call.attributes.get("largest", 1)
    if largest:
        order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    order = np.take(order, range(k), axis)
    return [np.take_along_axis(x, order, axis), np.asarray(order, np.int64)]


def evaluate_non_zero(call: OperatorCall) -> list[np.ndarray]:
    """NonZero: indices, an axis a row."""
    (x,) = call.arrays()
    return [np.asarray(np.array(np.nonzero(x)), np.int64).reshape(x.ndim, -1)]


def evaluate_eye_like(call: OperatorCall) -> list[np.ndarray]:
    """EyeLike, of the input's own type or of another one."""
    (x,) = call.arrays()
    if to := call.attributes.get("dtype"):
        x = x.astype(get_numpy_dtype(get_wide_dtype(DTYPE_OF_ELEMENT[int(to)])))
    return [np.eye(x.shape[0], x.shape[1], k=int(call.attributes.get("k", 0)), dtype=x.dtype)]


def evaluate_shape(call: OperatorCall) -> list[np.ndarray]:
    """Shape, from start to end."""
    (x,) = call.arrays()
    return [np.asarray(x.shape[slice(call.attributes.get("start", 0), call.attributes.get("end"))], np.int64)]


def evaluate_range(call: OperatorCall) -> list[np.ndarray]:
    """Range: start + k·delta, ⌈(limit − start) / delta⌉ of them."""
    start, limit, delta = (np.asarray(x).reshape(()) for x in call.inputs)  # bodies of functions give them an axis
    count = max(int(np.ceil((float(limit) - float(start)) / float(delta))), 0)
    return [(start + np.arange(count) * delta).astype(start.dtype)]


def evaluate_constant_of_shape(call: OperatorCall) -> list[np.ndarray] | None:
    """ConstantOfShape without a value: zeros of float32."""
    return None if "value" in call.attributes else [np.zeros(_read_ints_input(call.inputs[0]))]
