"""What a program gives if a cast to a narrower dtype is left out, as an optimiser leaves out one that is followed by the cast back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tasks.diagnose.model import Model
from tasks.model import rounded
from tasks.model.kind import KIND_CAST

MISSING = "a cast that was asked for is missing"
#: Casts of a graph that are left out one at a time, at most.
CASTS = 8


def left_out(result: np.ndarray) -> Model:
    """The error model of a program whose output without a cast is ``result``."""
    return Model(MISSING, np.asarray(result), kind=KIND_CAST)


def models(graph: bytes, inputs: Sequence[np.ndarray], place: int) -> Iterator[Model]:
    """Error models of the output at a ``place`` of an ONNX model: without any of its casts to narrower dtypes, and without one. None where
    it has none, it has no float64 evaluation, or onnx is not there.

    inputs: of the graph, in its order.
    """
    try:
        import onnx

        from tasks.graphs.evaluate import Graph
        from tasks.graphs.widening import NoOracle
    except ImportError:
        return
    try:
        made = Graph(onnx.load_from_string(graph))
        for left in _left_out(list(made.casts)):

            def round(x: np.ndarray, dtype: str, exact: bool, node: str, left: frozenset[str] = left) -> np.ndarray:
                return x if node in left else rounded(x, dtype)

            found = made.run(dict(zip(made.inputs, inputs)), round=round)
            yield left_out(found[made.outputs[place]])
    except NoOracle:
        return


def _left_out(names: list[str]) -> Iterator[frozenset[str]]:
    if names:
        yield frozenset(names)
    if 1 < len(names) <= CASTS:
        yield from (frozenset([name]) for name in names)
