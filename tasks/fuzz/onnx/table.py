"""Every operator of which cases are generated, by name."""

from __future__ import annotations

import functools

from tasks.fuzz.onnx import axes, elements, moves, windows
from tasks.fuzz.onnx.spec import OPSETS, Spec
from tasks.model.dtypes import TABLE

SPECS: dict[str, Spec] = {spec.op: spec for part in (elements, axes, windows, moves) for spec in part.SPECS}


@functools.cache
def opsets(op: str, dtype: str) -> tuple[int, ...]:
    """Operator sets in which an operator takes a first input of a dtype, the simplest first; none where it never does."""
    spec = SPECS[op]
    if dtype not in spec.dtypes:
        return ()
    within = [version for version in OPSETS if spec.since <= version <= spec.until]
    return tuple(version for version in within if takes(op, version, dtype, spec.place))


@functools.cache
def takes(op: str, opset: int, dtype: str, place: int) -> bool:
    """Whether an operator takes an input of a dtype at a place in an operator set (`onnx.defs`)."""
    import onnx

    if not onnx.defs.has(op, opset):
        return False
    schema = onnx.defs.get_schema(op, opset)
    name = "tensor(" + {"float32": "float", "float64": "double"}.get(dtype, dtype) + ")"
    return not schema.deprecated and name in schema.inputs[min(place, len(schema.inputs) - 1)].types


#: Dtypes in the order in which they are fuzzed: those of other code paths first. The others follow as they come.
_ORDER = ("float32", "int64", "float16", "uint8", "int32", "bfloat16", "int8", "bool", "uint64")


def dtypes(op: str) -> tuple[str, ...]:
    """Dtypes that an operator has in any operator set."""
    known = dict.fromkeys((*_ORDER, *TABLE))
    return tuple(name for name in known if name in SPECS[op].dtypes and opsets(op, name))
