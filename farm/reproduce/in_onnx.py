"""Scripts on the runtimes that take an ONNX model themselves: ONNX Runtime and OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.reproduce.source import Data, Runtime, Source
from tasks.backends.shared.few_lines import NoScript
from tasks.backends.shared.onnx_form import input_values, inputs_by_name, pack
from tasks.backends.shared.ort_lines import session_lines
from tasks.model.dtypes import NATIVE, PACKED_BITS, TABLE, dtype_name


def _exotic(source: Source, values: Sequence[Any]) -> bool:
    """True if some input or output has a dtype that numpy lacks."""
    names = {leaf.dtype for leaf in source.expected} | {dtype_name(a.dtype) for a in source.actual or ()}
    names |= {dtype_name(x.dtype) for x in _arrays(values)}
    return bool(names - NATIVE - {"str"})


def _arrays(values: Any) -> list[np.ndarray]:
    if isinstance(values, (list, tuple)):
        return [y for x in values for y in _arrays(x)]
    return [] if values is None else [values]


def _input(value: Any, data: Data) -> str:
    """Source of one input: array(i), raw(i, …) for a dtype that numpy lacks, a list, None."""
    if value is None:
        return "None"
    if isinstance(value, list):
        return f"[{', '.join(_input(x, data) for x in value)}]"
    name = dtype_name(value.dtype)
    if name == "str" or name in NATIVE:
        return f"array({data.add(value)})"
    if name in PACKED_BITS:
        packed, padded = pack(value), np.zeros(value.shape, np.uint8)
        padded.reshape(-1)[: packed.size] = packed
        return f"raw({data.add(padded)}, {data.add(packed)}, {name!r})"
    number = data.add(value.view(f"uint{TABLE[name].bits}"))
    return f"raw({number}, {number}, {name!r})"


def _model(source: Source, data: Data) -> int:
    if source.form.model is None:
        raise NoScript(f"no script: {source.group.op} has no ONNX model")
    return data.add(np.frombuffer(source.form.model, dtype=np.uint8))


def in_onnxruntime(source: Source, data: Data) -> Runtime:
    """How ONNX Runtime is called. Raises NoScript."""
    from tasks.backends.onnxruntime import _DTYPE_OF_TYPE

    backend: Any = source.backend
    inputs = input_values(source.form)
    values = {
        "inputs": [_input(x, data) for x in inputs],
        "exotic": _exotic(source, inputs),
        "names": repr(_DTYPE_OF_TYPE),
        "model": _model(source, data),
    }
    options, providers = session_lines(backend)
    return Runtime("ort.py.j2", values | {"options": options, "providers": providers}, "onnxruntime", "ort")


def in_openvino(source: Source, data: Data) -> Runtime:
    """How OpenVINO is called. Raises NoScript."""
    from tasks.backends.openvino import _DTYPE, _ELEMENT, _by_port

    backend: Any = source.backend
    named = inputs_by_name(source.form)
    model = _model(source, data)
    try:
        # OpenVINO drops and renames inputs: which array is for which port is settled here.
        ordered: list[Any] = _by_port(backend._compile(source.form.model).inputs, named)
    except Exception:  # the failure to be shown may be this one
        ordered = list(named.values())
    values = {
        "inputs": [_input(x, data) for x in ordered],
        "model": model,
        "target": repr(backend._target),
        "asked": repr(backend._asked),
        "names": repr(_DTYPE),
        "types": repr({k: v for k, v in _ELEMENT.items() if k not in NATIVE and k != "str"}),
    }
    return Runtime("openvino.py.j2", values, "openvino", "ov")
