"""Whether a backend takes subnormal numbers for zero: measured by a product, since few runtimes say so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tasks import counterparts
from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.counterparts.table import FRAMEWORKS
from tasks.model import SMALLEST_NORMAL, Flushes, Form, Unsupported, get_numpy_dtype
from tasks.model.dtypes import ELEMENT_TYPE

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: Dtypes that have subnormal numbers and arithmetic.
DTYPES = ("float32", "float16", "bfloat16", "float64")


def measure_backend_flushing(backend: Backend, dtype: str) -> Flushes:
    """What the backend makes 0 in a dtype: half the smallest normal number as a result, and as an input, four times
    which is normal again. Nothing where it cannot multiply."""
    if dtype not in DTYPES:
        return Flushes()
    smallest = SMALLEST_NORMAL[dtype]
    results = _multiply_on_backend(backend, dtype, smallest, 0.5) == 0
    inputs = _multiply_on_backend(backend, dtype, smallest / 2, 4.0) == 0
    return Flushes((dtype,) * results, (dtype,) * inputs)


def _multiply_on_backend(backend: Backend, dtype: str, x: float, y: float) -> float | None:
    """x · y as the backend computes it for several elements at once; None where it does not."""
    arrays = [np.full(16, value).astype(get_numpy_dtype(dtype)) for value in (x, y)]
    try:
        [found] = backend.build(_make_product_form(backend, dtype, arrays)).run()
        return float(np.abs(np.asarray(found).astype(np.float64)).max())
    except Exception:  # whatever it says: the case itself has been judged
        return None


def _make_product_form(backend: Backend, dtype: str, arrays: list[np.ndarray]) -> Form:
    """The product in the first form that the backend takes. Raises Unsupported."""
    args, kwargs = encode_argument_tree((TensorSpec(0), TensorSpec(1))), encode_argument_tree({})
    for kind in backend.forms:
        form = Form(kind, "torch:mul", dtype, arrays, args=args, kwargs=kwargs)
        if kind == "torch":
            import torch

            return replace(form, call=torch.mul)
        if kind in FRAMEWORKS:
            return replace(form, call=counterparts.find_counterpart(kind, "torch:mul", "", dtype))
        if kind == "onnx":
            return replace(form, model=_make_product_model(dtype))
    raise Unsupported(f"{backend.name} takes no form of a product")


def _make_product_model(dtype: str) -> bytes:
    from onnx import helper

    a, b, y = (helper.make_tensor_value_info(name, ELEMENT_TYPE[dtype], [16]) for name in "aby")
    graph = helper.make_graph([helper.make_node("Mul", ["a", "b"], ["y"])], "product", [a, b], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
