"""Every ONNX operator that has a float64 reference of the farm's own: by these alone generated cases are judged."""

from __future__ import annotations

from tasks.graphs import elementwise, movement, ops, pooling, quantizing, reductions
from tasks.graphs.call import Operator

#: By operator of ONNX's own domain. What `tasks.graphs.ops` has as well is the same function there for floats.
REFERENCES: dict[str, Operator] = {
    **elementwise.OPERATORS,
    **reductions.OPERATORS,
    **movement.OPERATORS,
    **{name: operator for name, operator in ops.OPERATORS.items() if name not in ("MatMul", "MaxPool")},
    **pooling.OPERATORS,
    **quantizing.OPERATORS,
}
