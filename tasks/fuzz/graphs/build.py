"""From choices to a graph: two operators, the second on what the first makes, or three to fifteen; rewritten at times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.draw.choices import DrawnChoices
from tasks.fuzz import values
from tasks.fuzz.graphs.grown import GrownGraph, GrownTensor, Refused
from tasks.fuzz.graphs.rewrites import rewrite_grown_steps
from tasks.fuzz.onnx.generate import list_generated_dims
from tasks.fuzz.onnx.spec import OPSETS
from tasks.fuzz.table import SPECS, STEPS, FuzzSpec, find_first_fuzz_opset
from tasks.fuzz.values import ValueDomain
from tasks.model.dtypes import ELEMENT_TYPE, name_numpy_dtype

#: Dtypes in which graphs begin.
DTYPES = ("float32", "float16")
#: Version of what choices mean: counts up with every change of a step or of the order of choices.
GENERATOR = 2
#: Numbers that most functions take as they are.
_NEAR = ValueDomain(-1.0, 1.0, ("halves", "zeros"))
#: What is put in the place of a step that does not go.
_SIMPLEST = "Relu"


@dataclass(frozen=True)
class FuzzedGraph:
    """A generated graph. model: serialized; feeds: an array for each of its inputs, in order; words: see `GrownGraph`."""

    model: bytes
    feeds: dict[str, np.ndarray]
    words: str
    choices: tuple[int, ...]


def build_pair_graph(first: str, dtype: str, choose: DrawnChoices) -> FuzzedGraph:
    """A graph of two operators, the second on what ``first`` makes; nodes between them where it takes no such tensor.
    The first choice says which is the second (`PARTNERS`). Raises KeyError for an operator that is not in STEPS."""
    second = choose.of(PARTNERS)
    grown = _start_grown_graph(dtype, choose, max(map(find_first_fuzz_opset, (first, second))))
    x = _put_first_input(grown)
    for name in (first, second):
        x = _put_operator(grown, SPECS[name], x)
    return _choose_grown_outputs(grown)


def build_fuzz_graph(dtype: str, choose: DrawnChoices) -> FuzzedGraph:
    """A graph of three to fifteen operators, each on one of the tensors that are there, mostly the latest."""
    grown = _start_grown_graph(dtype, choose, 13)
    x = _put_first_input(grown)
    names = [name for name in STEPS if find_first_fuzz_opset(name) <= grown.opset]
    for _ in range(choose.int(3, 15)):
        with choose.span("step"):
            there = grown.made[::-1] or [x]
            x = there[choose.int(0, len(there) - 1)] if choose.chance(1, 4) else there[0]
            x = _put_operator(grown, SPECS[choose.of(names)], x)
    return _choose_grown_outputs(grown)


def build_graph_twice(dtype: str, choose: DrawnChoices) -> FuzzedGraph:
    """A graph of two to six operators, and the same once more, written otherwise: the second half of the outputs is to
    be the first."""
    grown = _start_grown_graph(dtype, choose, 13)
    x = _put_first_input(grown)
    names = [name for name in STEPS if find_first_fuzz_opset(name) <= grown.opset]
    for _ in range(choose.int(2, 6)):
        with choose.span("step"):
            x = _put_operator(grown, SPECS[choose.of(names)], x)
    taken = grown.find_read_tensors()
    ends = [t for t in grown.made if t.name not in taken]
    return _finish_grown_graph(grown, [*ends, *rewrite_grown_steps(grown, ends)])


PARTNERS = tuple(STEPS)


def _start_grown_graph(dtype: str, choose: DrawnChoices, since: int) -> GrownGraph:
    opset = choose.of([n for n in OPSETS if n >= since])
    return GrownGraph(choose, dtype, opset, fed=choose.chance(1, 3))


def _put_first_input(grown: GrownGraph) -> GrownTensor:
    """The first input: most often an image."""
    rank = grown.choose.weighted([(4, 5), (2, 2), (3, 2), (1, 1), (5, 1)])
    left, shape = 256, []
    for place in range(rank):
        with grown.choose.span("dim"):
            most = 3 if rank > 2 and place == 0 else 9 if rank > 3 else 33
            shape.append(grown.size(min(most, left)))
        left = max(left // shape[-1], 1)
    return grown.input(shape, grown.choose.of([values.MILD, _NEAR]))


def _put_operator(grown: GrownGraph, spec: FuzzSpec, x: GrownTensor) -> GrownTensor:
    """What an operator makes of a tensor; of one that it does not take, after a node that makes it fit. Where that does
    not go either, what the simplest operator makes."""
    before = len(grown.steps), len(grown.made)
    try:
        made = STEPS[spec.op](grown, _fit_rank(grown, spec, x))
    except Refused:
        del grown.steps[before[0] :], grown.made[before[1] :]
        made = STEPS[_SIMPLEST](grown, x)
    return made[grown.choose.int(0, len(made) - 1)]


def _fit_rank(grown: GrownGraph, spec: FuzzSpec, x: GrownTensor) -> GrownTensor:
    if x.rank in spec.ranks and not (spec.op == "Squeeze" and 1 not in x.shape):
        return x
    least, most = spec.ranks[0], spec.ranks[-1]
    if x.rank > most:
        keep = x.shape[x.rank - most + 1 :] if most > 1 else ()
        return grown.add("Reshape", [x, grown.ints([-1, *keep])])[0]
    axes = list(range(max(least - x.rank, 1)))
    return grown.add("Unsqueeze", [x, grown.ints(axes)])[0]


def _choose_grown_outputs(grown: GrownGraph) -> FuzzedGraph:
    """The graph with what nobody takes as its outputs, at times also something that is taken."""
    taken = grown.find_read_tensors()
    ends = [t for t in grown.made if t.name not in taken]
    inner = [t for t in grown.made if t.name in taken]
    if inner and grown.choose.chance(1, 5):
        ends.append(inner[grown.choose.int(0, len(inner) - 1)])
        grown.words.append("outputs=inner")
    return _finish_grown_graph(grown, ends)


def _finish_grown_graph(grown: GrownGraph, ends: list[GrownTensor]) -> FuzzedGraph:
    taken = grown.find_read_tensors()
    words = [f"opset={grown.opset}"]
    if grown.fed:
        words.append("parameters=run-time")
    symbolic = grown.choose.chance(1, 4)
    words += ["dims=symbolic"] * symbolic
    words += [*dict.fromkeys(grown.words), *(f"values={name}" for name in grown.notes)]
    read = {name: x for name, x in grown.feeds.items() if name in taken}
    return FuzzedGraph(
        _encode_grown_model(grown, ends, read, symbolic), read, " ".join(words), tuple(grown.choose.taken)
    )


def _encode_grown_model(
    grown: GrownGraph, ends: list[GrownTensor], feeds: dict[str, np.ndarray], symbolic: bool
) -> bytes:
    from onnx import helper, numpy_helper

    nodes = [helper.make_node(s.op, s.inputs, s.outputs, **s.attributes) for s in grown.steps]

    def value(name: str, dtype: str, array: np.ndarray) -> Any:
        return helper.make_tensor_value_info(name, ELEMENT_TYPE[dtype], list_generated_dims(array, name, symbolic))

    inputs = [value(name, name_numpy_dtype(x.dtype), x) for name, x in feeds.items()]
    outputs = [value(t.name, t.dtype, t.value) for t in ends]
    taken = grown.find_read_tensors()
    weights = [numpy_helper.from_array(x, name) for name, x in grown.weights.items() if name in taken]
    imports = [helper.make_opsetid("", grown.opset)]
    made = helper.make_model(
        helper.make_graph(nodes, "graph", inputs, outputs, weights),
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports),
        producer_name="farm",
    )
    return bytes(made.SerializeToString(deterministic=True))
