"""Of an exhaustive case what its script needs: the inputs that the backend gets wrong, not all there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from farm.reproduce.source import Source
from tasks.arrays.tree import tensor_specs
from tasks.judge.worst import beyond
from tasks.model import EXHAUSTIVE, Status

#: Elements of such a script: the furthest off, over and over where there are fewer, so that vectors are filled as in the whole.
MOST = 64


def offending(source: Source, row: Mapping[str, Any]) -> Source | None:
    """What a script of the offending elements is made of; None where the case is no exhaustive one, or is none of elements alone."""
    far = source.group.distribution == EXHAUSTIVE and row["status"] in (Status.WRONG, Status.IMPRECISE) and row["limit"]
    form, expected, actual = source.form, source.expected, source.actual or []
    if not far or len(expected) != 1 or len(actual) != 1 or expected[0].reference is None:
        return None
    [leaf], [found] = expected, actual
    shape = tuple(leaf.shape)
    plain = all(x.layout == "strided" and x.strides is None for x in tensor_specs([form.args, form.kwargs]))
    if not plain or found.shape != shape or any(np.shape(x) != shape for x in form.arrays):
        return None
    places = beyond(found, leaf, source.op_class, float(row["limit"]), source.precision)[:MOST]
    if not len(places):
        return None
    places = np.resize(places, MOST)

    def some(x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(x.reshape(-1)[places])

    noise = None if leaf.noise is None else some(leaf.noise)
    few = replace(leaf, shape=(MOST,), reference=some(expected[0].reference), noise=noise)
    model = _resized(form.model, shape) if form.model is not None else None
    form = replace(form, arrays=[some(x) for x in form.arrays], model=model)
    title = f"{source.title}: {MOST} of its {found.size:,} elements, the furthest off"
    return replace(source, title=title, form=form, expected=[few], actual=[some(found)])


def _resized(model: bytes, shape: tuple[int, ...]) -> bytes:
    """A graph whose tensors of a shape have `MOST` elements."""
    import onnx

    made = onnx.load_from_string(model)
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        dims = value.type.tensor_type.shape.dim
        if tuple(x.dim_value for x in dims) == shape:
            del dims[1:]
            dims[0].dim_value = MOST
    return made.SerializeToString()
