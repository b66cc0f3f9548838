"""From choices to a case: a model of one node, its inputs, and what the outputs are in float64."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.draw.choices import DrawnChoices
from tasks.fuzz import table
from tasks.fuzz.onnx.spec import DrawnSpec, SpecDraw
from tasks.graphs.widening import NoOracle, widen_model_value
from tasks.model.dtypes import ELEMENT_TYPE, name_numpy_dtype
from tasks.operators.call import OperatorCall
from tasks.operators.table import EVALUATED

#: Version of what choices mean: counts up with every change of a spec, a value class or the order of choices.
GENERATOR = 1


@dataclass(frozen=True)
class GeneratedNode:
    """A generated case.

    feeds: of each place of the node whether its input is one of the graph's (else an initializer); symbolic: whether
    the lengths of the graph's inputs are names; words: opset and modes, and attributes that are not left out, for
    people and for telling findings apart; choices: what made it.
    """

    op: str
    dtype: str
    opset: int
    made: DrawnSpec
    feeds: tuple[bool, ...]
    symbolic: bool
    words: str
    choices: tuple[int, ...]

    @property
    def inputs(self) -> list[np.ndarray]:
        """The arrays of the graph's inputs, in order."""
        return [x.array for x, fed in zip(self.made.inputs, self.feeds) if fed and x is not None]

    def call(self, arrays: list[np.ndarray | None]) -> OperatorCall:
        """The node on other arrays for its places, floats widened."""
        return OperatorCall(
            [widen_model_value(x) for x in arrays], _list_node_attributes(self.made), self.opset, self.made.outputs
        )


def generate_node_case(op: str, dtype: str, choose: DrawnChoices) -> GeneratedNode:
    """The case of some choices. Raises KeyError for an operator that is not in the table, ValueError for a dtype that
    it does not take, LeftOpen where the specification says nothing."""
    known = table.list_fuzz_opsets(op, dtype)
    if not known:
        raise ValueError(f"fuzz: {op} does not take {dtype}; it takes {', '.join(table.list_fuzz_dtypes(op))}")
    opset = choose.of(known)
    fed = choose.chance(1, 2)
    symbolic = choose.chance(1, 3)
    draw = SpecDraw(choose, dtype, opset)
    made = table.SPECS[op].make(draw)
    roles = ["" if x is None else x.role for x in made.inputs]
    if "data" not in roles:
        fed = True
    feeds = tuple(role == "data" or (fed and role in ("weight", "parameter")) for role in roles)
    words = [f"opset={opset}"]
    if any(role in ("weight", "parameter") for role in roles):
        words.append("parameters=run-time" if fed else "parameters=initializer")
    words += ["dims=symbolic"] * symbolic
    words += [f"{name}={_shorten_value(value)}" for name, value in sorted(made.attributes.items())]
    words += [f"values={name}" for name in draw.notes]
    return GeneratedNode(op, dtype, opset, made, feeds, symbolic, " ".join(words), tuple(choose.taken))


def _shorten_value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _list_node_attributes(made: DrawnSpec) -> dict[str, Any]:
    """Attributes as a node holds them: floats are of float32."""
    return {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in made.attributes.items()}


def evaluate_generated_node(one: GeneratedNode, arrays: list[np.ndarray | None] | None = None) -> list[np.ndarray]:
    """The outputs in float64 (integers in their own dtype), of the case's inputs or of others, which may be wider.

    Raises NoOracle where there is no reference, or the specification leaves the result open.
    """
    given = [None if x is None else x.array for x in one.made.inputs] if arrays is None else arrays
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = EVALUATED[one.op](one.call(given))
    if found is None:
        raise NoOracle(f"{one.op} has no reference of the farm's own for {one.words}")
    return [np.array(y, order="C") for y in found]


def list_generated_dtypes(one: GeneratedNode) -> list[str]:
    """Dtype of each output: as its operator says it by the types of the inputs, where the spec does not."""
    import onnx

    made = one.made
    if made.dtypes:
        return list(made.dtypes)
    schema = onnx.defs.get_schema(one.op, one.opset)
    known: dict[str, str] = {}
    for place, given in enumerate(made.inputs):
        if given is not None:
            known.setdefault(
                schema.inputs[min(place, len(schema.inputs) - 1)].type_str, name_numpy_dtype(given.array.dtype)
            )
    found = []
    for place in range(made.outputs):
        formal = schema.outputs[min(place, len(schema.outputs) - 1)]
        if formal.type_str in known:
            found.append(known[formal.type_str])
        else:
            (only,) = formal.types
            name = only.removeprefix("tensor(").removesuffix(")")
            found.append({"float": "float32", "double": "float64"}.get(name, name))
    return found


def encode_generated_node(one: GeneratedNode, outputs: list[np.ndarray]) -> bytes:
    """The case as ONNX; outputs: their shapes are declared, unless the case is symbolic."""
    from onnx import TensorProto, helper, numpy_helper

    names, inputs, constants = [], [], []
    for place, (given, fed) in enumerate(zip(one.made.inputs, one.feeds)):
        name = "" if given is None else f"x{place}"
        names.append(name)
        if given is None:
            continue
        kind = ELEMENT_TYPE[name_numpy_dtype(given.array.dtype)]
        if fed:
            inputs.append(
                helper.make_tensor_value_info(name, kind, list_generated_dims(given.array, name, one.symbolic))
            )
        elif name_numpy_dtype(given.array.dtype) == "bfloat16":
            constants.append(
                helper.make_tensor(name, TensorProto.BFLOAT16, given.array.shape, given.array.tobytes(), raw=True)
            )
        else:
            constants.append(numpy_helper.from_array(given.array, name))
    ends = [f"y{k}" for k in range(one.made.outputs)]
    node = helper.make_node(one.op, names, ends, **one.made.attributes)
    values = [
        helper.make_tensor_value_info(name, ELEMENT_TYPE[kind], list_generated_dims(y, name, one.symbolic))
        for name, kind, y in zip(ends, list_generated_dtypes(one), outputs)
    ]
    graph = helper.make_graph([node], one.op, inputs, values, constants)
    imports = [helper.make_opsetid("", one.opset)]
    version = helper.find_min_ir_version_for(imports)
    made = helper.make_model(graph, opset_imports=imports, ir_version=version, producer_name="farm")
    return bytes(made.SerializeToString(deterministic=True))


def list_generated_dims(array: np.ndarray, name: str, symbolic: bool) -> list[Any]:
    return [f"{name}_{k}" for k in range(array.ndim)] if symbolic else list(array.shape)
