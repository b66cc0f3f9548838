"""What a program gives if a cast to a narrower dtype is left out, as an optimiser leaves out one that is followed by the cast back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.diagnose.error_model import ErrorModel
from tasks.model import EPS, SMALLEST_NORMAL, Leaf, is_complex_dtype, is_inexact_dtype, round_to_dtype
from tasks.model.kind import CAUSE_CAST
from tasks.model.leaf import compute_model_floor

MISSING = "a cast that was asked for is missing"
#: Casts of a graph that are left out one at a time, at most.
CASTS = 8
#: Of errors that a missing cast explains: elements at least, their root mean square in units at least, and the share of
#: it that another cause may have.
FEWEST, LEAST, LEFT = 16, 1.0, 0.25


def model_lost_cast(result: np.ndarray) -> ErrorModel:
    """The error model of a program whose output without a cast is ``result``."""
    return ErrorModel(MISSING, np.asarray(result), code=CAUSE_CAST)


class _ProgramOfCasts:
    """An ONNX model that is evaluated without some of its casts to narrower dtypes. casts: their nodes' names."""

    def __init__(self, content: bytes, inputs: Sequence[np.ndarray]) -> None:
        """Raises ImportError, and NoOracle for a model without a float64 evaluation."""
        import onnx

        from tasks.graphs.evaluate_graph import EvaluatedGraph

        self._graph = EvaluatedGraph(onnx.load_from_string(content))
        self._feeds = dict(zip(self._graph.inputs, inputs))
        self.casts = list(self._graph.casts)

    def without(self, left: Collection[str], place: int) -> np.ndarray:
        """The output at a place where these casts are left out."""

        def round(x: np.ndarray, dtype: str, exact: bool, node: str) -> np.ndarray:
            return x if node in left else round_to_dtype(x, dtype)

        return np.asarray(self._graph.run(self._feeds, round=round)[self._graph.outputs[place]])


def models(graph: bytes, inputs: Sequence[np.ndarray], place: int) -> Iterator[ErrorModel]:
    """Error models of the output at a ``place`` of an ONNX model: without any of its casts to narrower dtypes, and
    without one. None where it has none, it has no float64 evaluation, or onnx is not there.

    inputs: of the graph, in its order.
    """
    with contextlib.suppress(ImportError, ValueError):
        program = _ProgramOfCasts(graph, inputs)
        for left in _word_lost_casts(program.casts):
            yield model_lost_cast(program.without(left, place))


def is_cast_missing(
    graph: Callable[[], bytes | None],
    inputs: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    expected: Sequence[Leaf],
) -> bool:
    """Whether outputs within their limits are those of an ONNX model without one of its casts, or without any: their
    errors are the difference that this makes, but for a share of LEFT.

    Only of a model that takes what a cast has lost (x - cast(x)), for that says that the digits of its casts count; in
    others, as in mixed precision, who keeps more digits is right. An error below LEAST of a unit is no evidence.
    """
    off = {}
    for place, (y, leaf) in enumerate(zip(actual, expected)):
        if leaf.reference is not None and _has_floating_leaf(leaf) and y.shape == leaf.shape and y.size >= FEWEST:
            unit = EPS[leaf.dtype] * np.abs(leaf.reference) + compute_model_floor(leaf) + SMALLEST_NORMAL[leaf.dtype]
            error = (y.astype(np.float64) - leaf.reference) / unit
            if np.isfinite(error).all() and np.sqrt(np.mean(np.square(error))) >= LEAST:
                off[place] = unit, error
    content = graph() if off else None
    if content is None or not _does_model_compensate_casts(content):
        return False
    program = _ProgramOfCasts(content, inputs)
    if not 0 < len(program.casts) <= CASTS:
        return False
    for place, (unit, error) in off.items():
        exact = np.asarray(expected[place].reference)

        def remainder(
            left: Collection[str], place: int = place, unit: Any = unit, error: Any = error, exact: Any = exact
        ) -> float:
            """What is left of the error where a program without these casts is right, as a share of it."""
            other = error - (program.without(left, place) - exact) / unit
            return float(np.sqrt(np.square(other).sum() / np.square(error).sum()))

        if remainder(program.casts) <= LEFT:
            return True
        found, least = frozenset[str](), 1.0
        while len(found) < len(program.casts):  # one after another, each the one that explains the most of what is left
            tried = {name: remainder(found | {name}) for name in program.casts if name not in found}
            best = min(tried, key=tried.__getitem__)
            if not tried[best] < least:
                break
            found, least = found | {best}, tried[best]
            if least <= LEFT:
                return True
    return False


def _has_floating_leaf(leaf: Leaf) -> bool:
    return leaf.reference is not None and is_inexact_dtype(leaf.dtype) and not is_complex_dtype(leaf.dtype)


def _does_model_compensate_casts(graph: bytes) -> bool:
    """Whether a model subtracts from a tensor, or a tensor from, what casts have made of it."""
    import onnx

    cast_of: dict[str, str] = {}
    for node in onnx.load_from_string(graph).graph.node:
        sources = [cast_of.get(name, name) for name in node.input]
        if node.op_type in ("Cast", "CastLike", "Identity"):
            cast_of[node.output[0]] = sources[0]
        elif node.op_type == "Sub" and sources[0] == sources[1] and node.input[0] != node.input[1]:
            return True
    return False


def _word_lost_casts(names: list[str]) -> Iterator[frozenset[str]]:
    if names:
        yield frozenset(names)
    if 1 < len(names) <= CASTS:
        yield from (frozenset([name]) for name in names)
