"""The one table of ONNX operators in float64: models, nodes, generated cases, ONNX's node suite and minimising ask it."""

from __future__ import annotations

from tasks.graphs import elementwise, movement, normalising, pooling, quantizing, recurrent, reductions, spatial
from tasks.graphs.call import Operator

#: By operator of ONNX's own domain. What is not here, or what one of these leaves (None), is done by onnx's evaluator where
#: that may be asked: never for a generated case, whose second oracle it is. tests/tasks/test_fuzz_references.py holds both
#: against each other, and `tasks.fuzz.onnx.second` says who is right where they differ.
OPERATORS: dict[str, Operator] = {
    **elementwise.OPERATORS,
    **movement.OPERATORS,
    **normalising.OPERATORS,
    **pooling.OPERATORS,
    **quantizing.OPERATORS,
    **recurrent.OPERATORS,
    **reductions.OPERATORS,
    **spatial.OPERATORS,
}
