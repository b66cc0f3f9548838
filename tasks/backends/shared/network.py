"""A whole network in a framework that takes no ONNX: its graph, walked by the functions that the framework has for torch's names."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from tasks import counterparts
from tasks.backends.shared import onnx_graph
from tasks.counterparts import by_torch
from tasks.model import Form, Unsupported, get_numpy_dtype
from tasks.model.dtypes import DTYPE_OF_ELEMENT
from tasks.older_python import zip_equal
from tasks.operators import table as operators
from tasks.operators.call import OperatorCall
from tasks.operators.table import EVALUATED, NAMED
from tasks.operators.torch_names import OperatorOver

#: A constant of more elements than these is handed over as an input: compilers fold what they are told is constant.
LARGE = 64
#: What makes a tensor, by framework: its module and name.
TENSOR = {
    "jax": ("jax.numpy", "asarray"),
    "tensorflow": ("tensorflow", "convert_to_tensor"),
    "paddle": ("paddle", "to_tensor"),
    "mlx": ("mlx.core", "array"),
}


@dataclass(frozen=True)
class _NetworkStep:
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


class OnnxNetwork:
    """An ONNX model as a function of a framework ("jax", "tensorflow", "paddle", "mlx", "torch"): of the arrays of its
    inputs, then of `weights`.

    weights: its large constants in order. Raises Unsupported for what there is no counterpart of.
    """

    def __init__(self, framework: str, model: bytes) -> None:
        graph = onnx_graph.read_onnx_graph(model)
        self._framework, self._outputs = framework, [x.name for x in graph.outputs]
        self._opset, self._steps, constants = _read_whole_model(model)
        heavy = {name for name, x in constants.items() if x.size > LARGE and x.dtype.kind not in "iub"}
        self.weights = [x for name, x in constants.items() if name in heavy]
        self._given = [*(x.name for x in graph.inputs), *(name for name in constants if name in heavy)]
        self._constants = {name: x for name, x in constants.items() if name not in heavy}

    def __call__(self, *tensors: Any) -> list[Any]:
        """The outputs in order, of tensors of the inputs and the weights."""
        return self.by(get_framework_functions(self._framework), _get_tensor_maker(self._framework), tensors)

    def by(
        self, named: Callable[[str], Callable[..., Any]], tensor: Callable[[Any], Any], tensors: Sequence[Any]
    ) -> list[Any]:
        """The same by other functions: ``named`` of torch's name of one, ``tensor`` of what makes a tensor of an
        array."""
        values: dict[str, Any] = {**self._constants, **dict(zip_equal(self._given, tensors))}
        for step in self._steps:
            inputs: list[Any] = [values[name] if name else None for name in step.inputs]
            if step.op == "Shape":
                found: Any = np.array([int(n) for n in inputs[0].shape], np.int64)
            elif (constant := self._of_constants(step, inputs)) is not None:
                found = constant
            elif step.op in NAMED:
                found = self._of(
                    step, OperatorOver(inputs, step.attributes, self._opset, len(step.outputs), named, tensor)
                )
            else:
                raise Unsupported(f"no counterpart of ONNX's {step.op} for {self._framework}")
            values.update(zip(step.outputs, found if isinstance(found, list) else [found]))
        return [tensor(values[name]) for name in self._outputs]

    def _of_constants(self, step: _NetworkStep, inputs: list[Any]) -> list[np.ndarray] | None:
        """What is computed of constants, and of shapes, alone: it decides shapes. None for anything else."""
        if not all(x is None or isinstance(x, np.ndarray) for x in inputs):
            return None
        if step.op == "Cast":
            return [inputs[0].astype(get_numpy_dtype(step.attributes["to"]))]
        if not operators.find_operator(step.op).of_sizes:
            return None
        return EVALUATED[step.op](OperatorCall(inputs, step.attributes, self._opset, len(step.outputs)))

    def _of(self, step: _NetworkStep, over: OperatorOver) -> Any:
        try:
            found = NAMED[step.op](over)
        except ValueError as error:
            raise Unsupported(f"ONNX's {step.op} for {self._framework}: {error}") from None
        if found is None:
            raise Unsupported(f"no counterpart of ONNX's {step.op} with these attributes for {self._framework}")
        return found


@functools.lru_cache(maxsize=2)
def read_onnx_network(framework: str, model: bytes) -> OnnxNetwork:
    """The network of a model, read once for all that is asked of it."""
    return OnnxNetwork(framework, model)


def complete_torch_form(form: Form) -> Form:
    """A form of torch's that is a graph with that graph as its call, any other as it is: ONNX's operators are torch's
    too. Raises Unsupported."""
    return replace(form, call=convert_onnx_to_torch(form)) if form.kind == "torch" and form.call is None else form


def convert_onnx_to_torch(form: Form) -> Any:
    """An ONNX form as a torch program (a torch.fx.GraphModule) of its inputs: its graph of operations, weights within.
    Raises Unsupported for what torch has no function for."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    assert form.model is not None
    found = read_onnx_network("torch", form.model)
    weights = [torch.from_numpy(np.array(x)) for x in found.weights]
    given = [torch.from_numpy(np.array(x)) for x in form.arrays]
    with torch.no_grad():
        return make_fx(lambda *tensors: tuple(found(*tensors, *weights)), pre_dispatch=True)(*given)


def get_framework_functions(framework: str) -> Callable[[str], Callable[..., Any]]:
    """Functions of a framework by torch's names of them; counterparts, where it is another one. Raises Unsupported for
    what is in no row."""
    if framework == "torch":
        return by_torch.find_torch_counterpart
    rows = counterparts.index_counterpart_rows()

    def find_counterpart(name: str) -> Callable[..., Any]:
        row = rows.get(name)
        if row is None or not getattr(row, framework):
            raise Unsupported(f"no counterpart of {name} in the table for {framework}")
        return counterparts.Counterpart(framework, name, row.signature, getattr(row, framework))

    return functools.cache(find_counterpart)


def _get_tensor_maker(framework: str) -> Callable[[Any], Any]:
    """What makes a tensor of an array."""
    if framework == "torch":  # which takes no array that must not be written to
        import torch

        return lambda x: torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x
    module, name = TENSOR[framework]
    found: Callable[[Any], Any] = getattr(import_module(module), name)
    return found


def _read_whole_model(model: bytes) -> tuple[int, list[_NetworkStep], dict[str, np.ndarray]]:
    """(opset, nodes, constants by name) of a serialized ModelProto, by the field numbers of onnx.proto. Raises
    Unsupported."""
    versions = {
        onnx_graph.read_text_field(onnx_graph.get_last_field(x, 1)): _read_number_field(x, 2)
        for x in onnx_graph.list_field_bytes(memoryview(model), 8)
    }
    graph = onnx_graph.get_last_field(memoryview(model), 7)
    constants = {
        onnx_graph.read_text_field(onnx_graph.get_last_field(x, 8)): _read_tensor_proto(x)
        for x in onnx_graph.list_field_bytes(graph, 5)
    }
    steps = []
    for data in onnx_graph.list_field_bytes(graph, 1):
        node = onnx_graph.read_onnx_node(data)
        attributes = dict(map(_read_onnx_attribute, onnx_graph.list_field_bytes(data, 5)))
        if node.op == "Constant":
            (value,) = attributes.values()
            constants[node.outputs[0]] = np.asarray(value)
            continue
        if "to" in attributes:
            attributes["to"] = DTYPE_OF_ELEMENT[attributes["to"]]
        steps.append(_NetworkStep(node.op, node.inputs, node.outputs, attributes))
    return versions.get("", versions.get("ai.onnx", 1)), steps, constants


def _read_onnx_attribute(data: memoryview) -> tuple[str, Any]:
    name, kind = (onnx_graph.read_text_field(onnx_graph.get_last_field(data, 1)), _read_number_field(data, 20))
    if kind == 1:
        return name, struct.unpack("<f", onnx_graph.get_last_field(data, 2))[0]
    if kind == 2:
        return name, _read_number_field(data, 3)
    if kind == 3:
        return name, onnx_graph.read_text_field(onnx_graph.get_last_field(data, 4))
    if kind == 4:
        return name, _read_tensor_proto(onnx_graph.get_last_field(data, 5))
    if kind == 6:
        return name, np.frombuffer(b"".join(onnx_graph.list_field_bytes(data, 7)), "<f4").tolist()
    if kind == 7:
        return name, list(_read_number_fields(data, 8))
    raise Unsupported(f"an attribute {name!r} of kind {kind} (a subgraph is 5)")


def _read_tensor_proto(data: memoryview) -> np.ndarray:
    """A TensorProto, its bytes raw or number by number."""
    shape = list(_read_number_fields(data, 1))
    dtype = get_numpy_dtype(DTYPE_OF_ELEMENT[_read_number_field(data, 2)])
    if _read_number_field(data, 14):
        raise Unsupported("a weight lies in another file")
    if raw := onnx_graph.get_last_field(data, 9):
        return np.frombuffer(bytes(raw), dtype).reshape(shape)
    for number, of in ((4, "<f4"), (10, "<f8")):
        if parts := onnx_graph.list_field_bytes(data, number):
            return np.concatenate([np.frombuffer(bytes(x), of) for x in parts]).astype(dtype).reshape(shape)
    return (
        np.array([*_read_number_fields(data, 5), *_read_number_fields(data, 7)], np.int64).astype(dtype).reshape(shape)
    )


def _read_number_field(data: memoryview, number: int) -> int:
    return next(iter(_read_number_fields(data, number)), 0)


def _read_number_fields(data: memoryview, number: int) -> Iterator[int]:
    """The signed integers of a field, packed or one by one."""
    for found, value in onnx_graph.walk_message_fields(data):
        if found == number:
            for x in [value] if isinstance(value, int) else onnx_graph.read_packed_varints(value):
                yield x - (1 << 64) if x >= 1 << 63 else x
