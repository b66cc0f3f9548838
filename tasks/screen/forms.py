"""A chain of operators over arrays as a form that each framework, or ONNX, can run: what a device is asked known answers in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.backends.base import Backend
from tasks.model import FORWARD, Form
from tasks.model.dtypes import ELEMENT_TYPE

#: Kinds of forms in which a device can be asked: Python's operators mean the same to all of these frameworks.
KINDS = ("torch", "jax", "tensorflow", "paddle", "mlx", "onnx")
#: ONNX's opset: from 18 on it has bitwise operators. Products and sums are asked in 13, which older runtimes read.
OPSET, BITWISE_OPSET = 13, 18


def find_screen_form_kind(backend: Backend) -> str:
    """The kind in which a backend can be asked; "" for one that takes none of them, or whose programs are not run."""
    return next((k for k in backend.forms if k in KINDS), "") if FORWARD in backend.checks else ""


def make_exercise_form(
    kind: str,
    name: str,
    dtype: str,
    arrays: Sequence[np.ndarray],
    call: Callable[..., Any],
    ops: Sequence[str],
    shape: Sequence[int],
) -> Form:
    """A call of arrays, whose result has ``shape``, as a form of a kind of KINDS. As an ONNX graph it is ``ops``, each
    of what the one before gave and the next array."""
    args, kwargs = encode_argument_tree(tuple(map(TensorSpec, range(len(arrays))))), encode_argument_tree({})
    shapes = [x.shape for x in arrays]
    model = build_screen_model(name, ELEMENT_TYPE[dtype], shapes, ops, shape) if kind == "onnx" else None
    return Form(kind, name, dtype, list(arrays), call, args, kwargs, model)


def build_screen_model(
    name: str, element: int, shapes: Sequence[Sequence[int]], ops: Sequence[str], shape: Sequence[int]
) -> bytes:
    """Ops of two inputs, one after another, over tensors of an element type of ONNX: (a op b) op c … (IR 7), by the
    field numbers of onnx.proto."""
    from tasks.backends.shared.onnx_graph import encode_onnx_message, encode_varint

    def node(op: str, inputs: str, output: str) -> bytes:
        return (
            b"".join(encode_onnx_message(1, x.encode()) for x in inputs)
            + encode_onnx_message(2, output.encode())
            + encode_onnx_message(4, op.encode())
        )

    def value(name: str, shape: Sequence[int]) -> bytes:
        dims = encode_onnx_message(2, b"".join(encode_onnx_message(1, b"\x08" + encode_varint(n)) for n in shape))
        return encode_onnx_message(1, name.encode()) + encode_onnx_message(
            2, encode_onnx_message(1, b"\x08" + bytes([element]) + dims)
        )

    inputs, made = "abcdefg"[: len(ops) + 1], "a"
    graph = encode_onnx_message(2, name.encode()) + b"".join(
        encode_onnx_message(11, value(x, s)) for x, s in zip(inputs, shapes)
    )
    for op, operand, output in zip(ops, inputs[1:], "tuvwxyz"):
        graph, made = graph + encode_onnx_message(1, node(op, made + operand, output)), output
    graph += encode_onnx_message(12, value(made, shape))
    opset = BITWISE_OPSET if any(op.startswith("Bitwise") for op in ops) else OPSET
    return b"\x08\x07" + encode_onnx_message(7, graph) + encode_onnx_message(8, b"\x10" + bytes([opset]))
