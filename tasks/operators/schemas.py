"""What ONNX's own schemas say of an operator: in which opset it takes which dtypes."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from tasks.model.dtypes import DTYPE_OF_ELEMENT

#: The oldest opset that a model has: runtimes take few older ones.
OLDEST = 13


@functools.cache
def list_operator_schemas(op: str) -> tuple[tuple[int, Any], ...]:
    """(opset, schema) of an operator of the default domain, from `OLDEST` on: the first of a model's opsets that a
    schema holds in. Empty of an operator that ONNX has not."""
    import onnx

    found = [x for x in onnx.defs.get_all_schemas_with_history() if x.name == op and x.domain == ""]
    found.sort(key=lambda x: x.since_version)
    later = [x.since_version for x in found[1:]] + [OLDEST + 1]
    return tuple((max(x.since_version, OLDEST), x) for x, end in zip(found, later) if end > OLDEST)


def name_schema_dtypes(end: Any) -> frozenset[str]:
    """The dtypes that an input or output of a schema takes; of those that it takes none is a sequence or a map."""
    return frozenset(
        DTYPE_OF_ELEMENT[number] for kind in end.types if (number := _count_element_type(kind)) in DTYPE_OF_ELEMENT
    )


@functools.cache
def find_oldest_opset(op: str, dtypes: Collection[str]) -> int | None:
    """The oldest opset in which an operator's inputs and outputs together take all of some dtypes; None where no opset
    does."""
    for opset, schema in list_operator_schemas(op):
        if set(dtypes) <= frozenset().union(*map(name_schema_dtypes, (*schema.inputs, *schema.outputs))):
            return opset
    return None


@functools.cache
def _count_element_type(kind: str) -> int:
    """Number of the elements of a type of a schema, "tensor(float16)"; 0 for what is no tensor."""
    import onnx

    name = kind.removeprefix("tensor(").removesuffix(")")
    found = {"float": "FLOAT", "double": "DOUBLE"}.get(name, name.upper())
    return int(getattr(onnx.TensorProto, found, 0)) if kind.startswith("tensor(") else 0
