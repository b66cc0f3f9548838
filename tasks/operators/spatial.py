"""Convolutions in float64, as matrix products and sums over the places of a kernel, and the window of a pool; any number of axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.operators.call import OperatorCall

#: Elements of a convolution's unfolded input that are held at a time (256 MiB of float64).
_UNFOLDED = 1 << 25


@dataclass(frozen=True)
class SpatialWindow:
    """How a kernel goes over an image: per spatial axis its size, stride, dilation, the pads at both ends, and the
    number of places it stands at."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    places: tuple[int, ...]

    def crop_kernel(self, shape: Sequence[int]) -> SpatialWindow:
        """It without the elements of its kernel that meet an image of this shape at no place: some networks take a
        global mean by a kernel of thousands, and nobody can pad for that."""
        axes = list(zip(shape, self.kernel, self.strides, self.dilations, self.begin, self.places))
        first = [max(-(((p - 1) * s - b) // d), 0) for n, k, s, d, b, p in axes]
        last = [min((n + b - 1) // d + 1, k) for n, k, s, d, b, p in axes]
        begin = tuple(b - f * d for b, f, d in zip(self.begin, first, self.dilations))
        return replace(self, kernel=tuple(e - f for e, f in zip(last, first)), begin=begin)

    def ends(self, shape: Sequence[int]) -> list[tuple[int, int]]:
        """(before, behind) by axis: by how much it goes beyond an image of this shape; below 0, what of it is never
        met."""
        axes = zip(shape, self.kernel, self.strides, self.dilations, self.begin, self.places)
        return [(b, (p - 1) * s + (k - 1) * d + 1 - b - n) for n, k, s, d, b, p in axes]

    def pad_image(self, x: np.ndarray, value: float) -> np.ndarray:
        """``x`` (N, C, …) as far as the window goes, filled up with ``value``."""
        ends = self.ends(x.shape[2:])
        met = (slice(max(-b, 0), n + min(e, 0)) for n, (b, e) in zip(x.shape[2:], ends))
        x = x[(slice(None), slice(None), *met)]
        ends = [(max(b, 0), max(e, 0)) for b, e in ends]
        return np.pad(x, [(0, 0), (0, 0), *ends], constant_values=value) if any(map(any, ends)) else x

    def counts(self, shape: Sequence[int], pads: bool) -> np.ndarray:
        """How many elements of the kernel meet an image of this shape (pads: or its pads) at each place: shape
        ``places``."""
        found = np.ones(())
        for axis, n in enumerate(shape):
            first, last = self.begin[axis], self.begin[axis] + n
            if pads:
                first, last = 0, last + self.end[axis]
            at, d = np.arange(self.places[axis]) * self.strides[axis], self.dilations[axis]
            below, above = np.maximum(-((at - first) // d), 0), np.minimum(-((at - last) // d), self.kernel[axis])
            found = np.multiply.outer(found, np.maximum(above - below, 0))
        return found

    def slices(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """For each element of the kernel: its index, and the slices of the padded image that it meets."""
        for at in itertools.product(*map(range, self.kernel)):
            first = [i * d for i, d in zip(at, self.dilations)]
            yield (at, tuple(slice(f, f + (n - 1) * s + 1, s) for f, n, s in zip(first, self.places, self.strides)))


def find_spatial_window(shape: Sequence[int], kernel: Sequence[int], attributes: Mapping[str, Any]) -> SpatialWindow:
    """The window that attributes of Conv or a pool describe, over spatial axes of these lengths."""
    dims = len(shape)
    strides = tuple(attributes.get("strides") or (1,) * dims)
    dilations = tuple(attributes.get("dilations") or (1,) * dims)
    pads = list(attributes.get("pads") or (0,) * (2 * dims))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    auto = attributes.get("auto_pad") or "NOTSET"
    if auto.startswith("SAME"):
        places = [-(-n // s) for n, s in zip(shape, strides)]
        total = [max((p - 1) * s + r - n, 0) for p, s, r, n in zip(places, strides, reach, shape)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = less + more if auto == "SAME_UPPER" else more + less
    elif auto == "VALID":
        pads = [0] * (2 * dims)
    begin, end = pads[:dims], pads[dims:]
    room = [n + b + e - r for n, b, e, r in zip(shape, begin, end, reach)]
    places = [m // s + 1 for m, s in zip(room, strides)]
    if attributes.get("ceil_mode"):
        # A window that would begin in the end pad does not count.
        places = [-(-m // s) + 1 for m, s in zip(room, strides)]
        places = [p - (((p - 1) * s) >= n + b) for p, s, n, b in zip(places, strides, shape, begin)]
    return SpatialWindow(tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(places))


def find_pool_window(call: OperatorCall) -> SpatialWindow:
    """The window of a pool."""
    return find_spatial_window(call.inputs[0].shape[2:], call.attributes["kernel_shape"], call.attributes)


def evaluate_conv(call: OperatorCall) -> list[np.ndarray]:
    """Conv: x (N, C, …), w (M, C/group, …), bias (M) or none."""
    x, w, bias = call.three()
    groups = int(call.attributes.get("group", 1))
    if x.shape[1] != w.shape[1] * groups:
        raise ValueError(f"{x.shape[1]} channels, the weights are for {w.shape[1] * groups}")
    window = find_spatial_window(x.shape[2:], w.shape[2:], call.attributes)
    padded = window.pad_image(x, 0.0)
    if groups == x.shape[1] and w.shape[1] == 1:
        y = _convolve_depthwise(padded, w, window)
    else:
        many, few = w.shape[0] // groups, w.shape[1]
        y = np.empty((x.shape[0], w.shape[0], *window.places))
        for n, g in itertools.product(range(x.shape[0]), range(groups)):
            part = w[g * many : (g + 1) * many].reshape(many, -1)
            _multiply_unfolded(padded[n, g * few : (g + 1) * few], part, window, y[n, g * many : (g + 1) * many])
    if bias is not None:
        y += bias.reshape(-1, *(1,) * (x.ndim - 2))
    return [y]


def _convolve_depthwise(padded: np.ndarray, w: np.ndarray, window: SpatialWindow) -> np.ndarray:
    n, c, times = padded.shape[0], padded.shape[1], w.shape[0] // padded.shape[1]
    kernel = w.reshape(c, times, *w.shape[2:])
    y = np.zeros((n, c, times, *window.places))
    for at, place in window.slices():
        of_channel: Any = (..., *at)
        one = kernel[of_channel].reshape(c, times, *(1,) * len(window.places))
        y += padded[(slice(None), slice(None), None, *place)] * one
    return y.reshape(n, c * times, *window.places)


def _multiply_unfolded(image: np.ndarray, w: np.ndarray, window: SpatialWindow, out: np.ndarray) -> None:
    """out (M, …) = w (M, C·kernel) times the unfolded ``image`` (C, …), some rows of the first axis at a time."""
    many = w.shape[0]
    if all(k == 1 for k in window.kernel):
        (_, place), *_ = window.slices()
        np.matmul(w, image[(slice(None), *place)].reshape(w.shape[1], -1), out=out.reshape(many, -1))
        return
    rows = max(1, _UNFOLDED // max(1, w.shape[1] * int(np.prod(window.places[1:]))))
    for at in range(0, window.places[0], rows):
        count = min(rows, window.places[0] - at)
        columns = np.empty((image.shape[0], int(np.prod(window.kernel)), count, *window.places[1:]))
        for i, (_, (first, *others)) in enumerate(window.slices()):
            begin, step = first.start + at * window.strides[0], window.strides[0]
            columns[:, i] = image[(slice(None), slice(begin, begin + (count - 1) * step + 1, step), *others)]
        out[:, at : at + count] = (w @ columns.reshape(w.shape[1], -1)).reshape(many, count, *window.places[1:])


def evaluate_conv_transpose(call: OperatorCall) -> list[np.ndarray]:
    """ConvTranspose: x (N, C, …), w (C, M/group, …), bias (M) or none."""
    x, w, bias = call.three()
    a = call.attributes
    dims, groups = x.ndim - 2, int(a.get("group", 1))
    strides = tuple(a.get("strides") or (1,) * dims)
    dilations = tuple(a.get("dilations") or (1,) * dims)
    more = tuple(a.get("output_padding") or (0,) * dims)
    kernel = w.shape[2:]
    whole = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(x.shape[2:], strides, kernel, dilations)]
    begin, sizes = _crop_conv_transpose(x.shape[2:], [n + m for n, m in zip(whole, more)], strides, a)
    few, many = x.shape[1] // groups, w.shape[1]
    y = np.zeros((x.shape[0], groups * many, *(max(n + m, b + o) for n, m, b, o in zip(whole, more, begin, sizes))))
    for n, g in itertools.product(range(x.shape[0]), range(groups)):
        flat = x[n, g * few : (g + 1) * few].reshape(few, -1)
        for at in itertools.product(*map(range, kernel)):
            place = tuple(
                slice(i * d, i * d + (m - 1) * s + 1, s) for i, d, m, s in zip(at, dilations, x.shape[2:], strides)
            )
            of_kernel: Any = (slice(g * few, (g + 1) * few), slice(None), *at)
            of_image: Any = (n, slice(g * many, (g + 1) * many), *place)
            y[of_image] += (w[of_kernel].T @ flat).reshape(many, *x.shape[2:])
    y = y[(slice(None), slice(None), *(slice(b, b + o) for b, o in zip(begin, sizes)))]
    return [y if bias is None else y + bias.reshape(-1, *(1,) * dims)]


def _crop_conv_transpose(
    shape: Sequence[int], full: Sequence[int], strides: Sequence[int], a: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
    """Where the output of ConvTranspose begins in the whole of it, and its sizes."""
    dims, auto = len(shape), a.get("auto_pad") or "NOTSET"
    wanted = a.get("output_shape") or ([n * s for n, s in zip(shape, strides)] if auto.startswith("SAME") else None)
    if wanted is None:
        pads = [0] * (2 * dims) if auto == "VALID" else list(a.get("pads") or (0,) * (2 * dims))
        return pads[:dims], [n - b - e for n, b, e in zip(full, pads[:dims], pads[dims:])]
    sizes = list(wanted)[-dims:]
    total = [max(n - o, 0) for n, o in zip(full, sizes)]
    return [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total], sizes
