"""The first stage of a search: all tensors are asked for, and each node is judged on what the backend itself gave it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.graphs.widening import NoOracle
from tasks.hunt.dialogue import Ask, Ran, Search
from tasks.hunt.localise.question import CulpritQuestion
from tasks.hunt.program import HuntProgram
from tasks.judge.error_metrics import compare_outputs
from tasks.model import Leaf, OpClass
from tasks.model.dtypes import name_numpy_dtype
from tasks.operators import table as operators

#: Error units of a node's own floor beyond which it is suspected: the limit that models are judged by.
LIMIT = 32.0
#: Draws of a node's noise floor (`tasks.graphs.noise_floor.compute_node_floor` makes four times as many, nobody having computed the
#: node in its dtype): first where the result is not right without one, then where the node is beyond the limit by the
#: first, since of a million elements a few lie still through four draws.
DRAWS = (1, 8)
#: Bytes of tensors that are asked for in one run.
CHUNK = 1 << 30
#: Operators of torch whose terms a device may multiply in a coarser precision.
_PRODUCTS = (
    *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"),
    *("scaled_dot_product_attention",),
)
#: What float32 is computed in where a device is left to choose, the finest first.
COARSER = ("tfloat32", "bfloat16")
#: Error units of a precision within which a product is rounded in it; the next coarser one is eight times as wide.
ONCE = 6.0


@dataclass(frozen=True)
class SuspectNode:
    """A node and its own error units. values: what it makes of exact inputs if it errs as it did here, by tensor's name
    (none within the limit); feeds: the inputs that the backend gave it."""

    place: int
    units: float
    values: Mapping[str, np.ndarray]
    feeds: Mapping[str, np.ndarray]


@dataclass
class NodeProbe:
    """effect: what asking for tensors did to the model's outputs: "same" bits, "changed" and still failing, "healed";
    "" where the probed model does not run (``error``). suspects: in the graph's order; units: by place."""

    effect: str = ""
    error: str = ""
    suspects: list[SuspectNode] = field(default_factory=list)
    units: dict[int, float] = field(default_factory=dict)


#: The worst that happened to any part of a probe, the last the worst.
_EFFECTS = ("same", "changed", "healed")


def may_multiply_coarsely(op: str) -> bool:
    """Whether a device may multiply the terms of an operator, ONNX's or torch's, in a coarser precision."""
    return op in _PRODUCTS or operators.find_operator(op).multiplies


def probe_suspect_nodes(question: CulpritQuestion, first: Ran) -> Search[NodeProbe]:
    """Run the model with its tensors as further outputs, and judge each node, as long as there is time. first: what it
    returned unprobed.

    A part that heals is no evidence: its nodes are judged (their units are shown) and not suspected.
    """
    found, program = NodeProbe(), question.program
    assert first.outputs is not None
    for places, names in _iterate_probed_chunks(program, CHUNK):
        ran = yield Ask(program.probed(names))
        floats = [name for name in names if program.exact[name].dtype.kind == "f"]
        if ran.outputs is None and floats != names:  # a runtime may give no output of another dtype
            names = floats
            ran = yield Ask(program.probed(names))
        if ran.outputs is None:
            found.effect, found.error = "", ran.error
            return found
        count = len(program.outputs)
        own, wanted = list(ran.outputs[:count]), [x for x in names if x not in program.outputs]
        asked = {name: question.shaped(name, x) for name, x in zip(wanted, ran.outputs[count:])}
        values = dict(zip(program.outputs, own)) | asked | dict(program.feeds)
        effect = "healed" if not question.fails(own) else "same" if _have_same_bytes(own, first.outputs) else "changed"
        found.effect = max(found.effect or "same", effect, key=_EFFECTS.index)
        for place in places:
            if question.clock.over:
                break
            suspect = judge_suspect_node(question, place, values)
            if suspect is not None:
                found.units[place] = suspect.units
                if suspect.units > LIMIT and effect != "healed":
                    found.suspects.append(suspect)
    return found


def _have_same_bytes(some: Any, others: Any) -> bool:
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(some, others))


def _iterate_probed_chunks(program: HuntProgram, size: int) -> Iterator[tuple[list[int], list[str]]]:
    """Runs of nodes, and the tensors that judging them takes: what they make and what they read of other nodes."""
    places: list[int] = []
    names: dict[str, None] = {}
    total = 0
    for place in program.places:
        inputs, _ = program.border(place)
        needed = [
            x for x in (*inputs, *program.makes(place)) if x in program.producer and _is_probed_tensor(program, x)
        ]
        if places and total + _count_tensor_bytes(program, set(needed) - set(names)) > size:
            yield places, list(names)
            places, names, total = [], {}, 0
        places.append(place)
        total += _count_tensor_bytes(program, set(needed) - set(names))
        names |= dict.fromkeys(needed)
    if places:
        yield places, list(names)


def _count_tensor_bytes(program: HuntProgram, names: Iterable[str]) -> int:
    return sum(program.exact[name].nbytes for name in names)


def _is_probed_tensor(program: HuntProgram, name: str) -> bool:
    value = program.exact.get(name)
    return isinstance(value, np.ndarray) and value.dtype.kind not in "OUS"


def judge_suspect_node(question: CulpritQuestion, place: int, values: Mapping[str, np.ndarray]) -> SuspectNode | None:
    """A node's own error: what it made of its inputs, both as in ``values``, against float64 of those inputs.

    None for a node that cannot be judged: it draws at random, has an input or output that is no tensor, or no float64
    evaluation. Units are infinite where shapes differ.
    """
    program, precision = question.program, question.precision
    inputs, outputs = program.border(place)
    if (
        operators.find_operator(program.op(place)).draws
        or not outputs
        or not all(x in values for x in (*inputs, *outputs))
    ):
        return None
    feeds = {name: values[name] for name in inputs}
    try:
        exact = program.of_node(place, feeds)
        units = _measure_suspect_units(exact, {}, values, outputs, precision)
        if units > 1:  # else it is right without a floor
            made = program.spread_of(place, feeds) or program.floor_of(place, feeds, DRAWS[0])
            units = _measure_suspect_units(exact, made, values, outputs, precision)
        if LIMIT < units < math.inf:
            units = _measure_suspect_units(exact, program.floor_of(place, feeds, DRAWS[1]), values, outputs, precision)
    except NoOracle:
        return None
    return SuspectNode(place, units, _run_node_alone(program, exact, values, outputs) if units > LIMIT else {}, feeds)


def _measure_suspect_units(
    exact: Mapping[str, Any],
    floors: Mapping[str, Any],
    values: Mapping[str, np.ndarray],
    names: list[str],
    precision: str,
) -> float:
    """Error units of a node's outputs, the worst; without floors, an upper bound of them."""
    leaves = []
    for name in names:
        dtype = name_numpy_dtype(values[name].dtype)
        leaves.append(Leaf(dtype, exact[name].shape, exact[name], floors.get(name)))
    metrics = compare_outputs([values[name] for name in names], leaves, OpClass.COMPOSITE, precision)
    return math.inf if metrics.kind else float(metrics.error_units or 0.0)


def _run_node_alone(
    program: HuntProgram, exact: Mapping[str, Any], values: Mapping[str, np.ndarray], names: list[str]
) -> dict[str, np.ndarray]:
    """The node's outputs on exact inputs, with the error that it made on the inputs it was given.

    What is no float, or of another shape, stands as it is.
    """
    found = {}
    for name in names:
        truth, got = program.exact[name], values[name]
        if truth.dtype.kind not in "f" or got.shape != truth.shape or exact[name].shape != got.shape:
            found[name] = got
        else:
            with np.errstate(all="ignore"):
                found[name] = truth.astype(np.float64) + (got.astype(np.float64) - exact[name])
    return found


def find_coarser_precision(program: HuntProgram, suspect: SuspectNode) -> str:
    """The finest precision coarser than float32 that a suspect's result is rounded in once; "" where it is in none."""
    place = suspect.place
    names = [name for name in suspect.values if name]
    exact = {name: program.exact[name] for name in program.border(place)[0]}
    try:
        floors = program.floor_of(place, exact, DRAWS[0])
        truth = {name: np.asarray(program.exact[name], np.float64) for name in names}
    except (NoOracle, ValueError, TypeError):
        return ""
    got = {name: program.rounded(name, np.asarray(suspect.values[name])) for name in names}
    return next((p for p in COARSER if _measure_suspect_units(truth, floors, got, names, p) <= ONCE), "")
