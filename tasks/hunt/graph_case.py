"""A failing ONNX model with its inputs, as a search makes it smaller."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.graphs.cut_graph import list_node_reads
from tasks.graphs.expected_outputs import compute_graph_leaves
from tasks.graphs.widening import NoOracle
from tasks.hunt.case import build_searched_group
from tasks.hunt.dialogue import Unfit
from tasks.hunt.onnx_program import OnnxProgram
from tasks.model import Group, Leaf, OpClass, get_numpy_dtype
from tasks.model.dtypes import ELEMENT_TYPE, name_numpy_dtype
from tasks.model.errors import find_error_text
from tasks.older_python import zip_equal
from tasks.operators import table as operators
from tasks.prepare.derived.batch_invariance import does_reference_go_by_row


@dataclass(frozen=True, eq=False)
class GraphCase:
    """model: a ModelProto; feeds: by the names of its inputs, an array each, a list of them or None; group: what it
    comes from; draws: of the noise floor; judged: whether it has a float64 reference, else what ONNX's checker takes is
    valid; whole: how many nodes it had at first and the class that its op is judged by, which holds as long as it has
    them all; batched: the inputs whose rows must be computed each by itself, of a case of batch_invariance."""

    model: Any = field(repr=False)
    feeds: Mapping[str, Any] = field(repr=False)
    group: Group
    draws: int
    judged: bool = True
    whole: tuple[int, OpClass] | None = None
    batched: tuple[str, ...] = ()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        from onnx import numpy_helper

        given = {k: x for k, x in self.feeds.items() if isinstance(x, np.ndarray) and x.dtype.kind not in "OUS"}
        weights = {x.name: np.asarray(numpy_helper.to_array(x)) for x in self.model.graph.initializer}
        return given | {k: x for k, x in weights.items() if k not in given and x.dtype.kind not in "OUS"}

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> GraphCase:
        from onnx import numpy_helper

        model = copy_searched_model(self.model)
        for place, tensor in enumerate(model.graph.initializer):
            if tensor.name in arrays and tensor.name not in self.feeds:
                made = numpy_helper.from_array(np.ascontiguousarray(arrays[tensor.name]), tensor.name)
                made.dims[:] = arrays[tensor.name].shape
                model.graph.initializer[place].CopyFrom(made)
        feeds = {name: arrays.get(name, value) for name, value in self.feeds.items()}
        for value in model.graph.input:
            if isinstance(feeds.get(value.name), np.ndarray):
                _set_graph_case_shape(value, feeds[value.name].shape)
        return replace(self, model=model, feeds=feeds)

    @property
    def integers(self) -> dict[str, int]:
        found = {}
        for n, node in enumerate(self.model.graph.node):
            for attribute in node.attribute:
                if attribute.type == attribute.INT:
                    found[f"{n}.{attribute.name}.0"] = int(attribute.i)
                elif attribute.type == attribute.INTS:
                    found |= {f"{n}.{attribute.name}.{k}": int(x) for k, x in enumerate(attribute.ints)}
        return found

    def with_integers(self, integers: Mapping[str, int]) -> GraphCase:
        model = copy_searched_model(self.model)
        for place, value in integers.items():
            number, name, k = place.split(".")
            attribute = next(x for x in model.graph.node[int(number)].attribute if x.name == name)
            if attribute.type == attribute.INT:
                attribute.i = value
            else:
                attribute.ints[int(k)] = value
        return replace(self, model=model)

    def simpler(self) -> Iterator[tuple[str, GraphCase]]:
        graph = self.model.graph
        outputs = [x.name for x in graph.output]
        for name in outputs if len(outputs) > 1 else ():
            model = copy_searched_model(self.model)
            model.graph.output.remove(model.graph.output[outputs.index(name)])
            yield f"output {name}", replace(self, model=model).tidy()
        if any(node.op_type == "Constant" for node in graph.node):
            yield "constants as initializers", self.without_constants()
        for n, node in enumerate(graph.node):
            for attribute in node.attribute:
                if not (attribute.HasField("g") or attribute.graphs):
                    yield f"{node.op_type}.{attribute.name}", self._without_attribute(n, attribute.name)
            for k in reversed(range(1, len(node.input))):
                if node.input[k]:
                    yield f"{node.op_type} input {k}", self._without_input(n, k)

    def _without_attribute(self, place: int, name: str) -> GraphCase:
        model = copy_searched_model(self.model)
        node = model.graph.node[place]
        kept = [x for x in node.attribute if x.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        return replace(self, model=model)

    def _without_input(self, place: int, k: int) -> GraphCase:
        model = copy_searched_model(self.model)
        names = list(model.graph.node[place].input)
        names[k] = ""
        while names and not names[-1]:
            names.pop()
        model.graph.node[place].input[:] = names
        return replace(self, model=model).tidy()

    def without_constants(self) -> GraphCase:
        """With what nodes Constant give as initializers."""
        from onnx import helper, numpy_helper

        model = copy_searched_model(self.model)
        kept = []
        for node in model.graph.node:
            value = helper.get_attribute_value(node.attribute[0]) if node.op_type == "Constant" else None
            if node.op_type != "Constant" or isinstance(value, bytes) or node.attribute[0].name == "sparse_value":
                kept.append(node)
                continue
            if node.attribute[0].name != "value":
                kind = np.float32 if "float" in node.attribute[0].name else np.int64
                value = numpy_helper.from_array(np.asarray(value, kind))
            made = model.graph.initializer.add()
            made.CopyFrom(value)
            made.name = node.output[0]
        del model.graph.node[:]
        model.graph.node.extend(kept)
        return replace(self, model=model)

    @cached_property
    def _program(self) -> OnnxProgram:
        return OnnxProgram(self.model, self.feeds, self.group.dtype)

    @property
    def places(self) -> list[int]:
        return self._program.places

    def values(self) -> dict[str, np.ndarray]:
        """What every node makes, by the float64 evaluation, in the dtypes that the tensors have; nothing where there is
        none."""
        try:
            found = self._program.exact if self.judged else {}
        except NoOracle:
            return {}
        return {name: x for name, x in found.items() if isinstance(x, np.ndarray) and x.dtype.kind not in "OUS"}

    def of(self, places: Collection[int], given: Mapping[str, Any]) -> GraphCase:
        """Some of its nodes, with the constants that they read. given: values of the tensors that come to them from the
        others."""
        piece = self._program.piece(places, given)
        model, feeds = piece.program, piece.feeds
        inputs = [
            x if x.name in self.feeds else _find_graph_case_value(x.name, feeds[x.name])
            for x in model.graph.input
            if x.name in feeds
        ]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        return replace(self, model=model, feeds=feeds).tidy()

    def tidy(self) -> GraphCase:
        """Without the inputs and weights that no node reads, and without what is told of tensors in between."""
        model = copy_searched_model(self.model)
        read = {name for node in model.graph.node for name in list_node_reads(node)} | {
            x.name for x in model.graph.output
        }
        for values in (model.graph.input, model.graph.initializer):
            kept = [x for x in values if x.name in read]
            del values[:]
            values.extend(kept)
        del model.graph.value_info[:]
        feeds = {name: x for name, x in self.feeds.items() if name in read}
        return replace(self, model=model, feeds=feeds)

    @property
    def names(self) -> tuple[str, ...]:
        graph = self.model.graph
        tensors = [name for node in graph.node for name in (*node.input, *node.output)]
        return tuple(dict.fromkeys([graph.name, *(node.name for node in graph.node), *tensors]))

    @property
    def ops(self) -> tuple[str, ...]:
        found = [f"{x.domain}.{x.op_type}" if x.domain not in ("", "ai.onnx") else x.op_type for x in self._computing]
        return tuple(found)

    @property
    def _computing(self) -> list[Any]:
        return [x for x in self.model.graph.node if x.op_type != "Constant"]

    @property
    def _is_whole(self) -> bool:
        return self.whole is not None and 1 < self.whole[0] == len(self._computing)

    @property
    def label(self) -> Group:
        """The group of the case: its ops instead of the one that it comes from, unless it has all of its nodes."""
        if self._is_whole:
            return Group(f"onnx:{self.group.op_name}", self.group.variant, self.group.dtype, 1)
        return build_searched_group("onnx", self.ops, self.group.dtype)

    def make_sample(self) -> tuple[Group, Sample]:
        return self._made

    @cached_property
    def _made(self) -> tuple[Group, Sample]:
        if not self._computing or not self.model.graph.output:
            raise Unfit("no node is left")
        self._check_zeros()
        leaves, op_class = self._compute_expected() if self.judged else ([], OpClass.COMPOSITE)
        if self.whole is not None and self._is_whole:
            op_class = self.whole[1]
        model = copy_searched_model(self.model)
        for value, leaf in zip(model.graph.output, leaves):
            if leaf.dtype != "str" and leaf.dtype in ELEMENT_TYPE:
                value.type.tensor_type.elem_type = ELEMENT_TYPE[leaf.dtype]
                _set_graph_case_shape(value, leaf.shape)
        self._check(model)
        arrays: list[np.ndarray] = []
        args = tuple(_encode_graph_input(self.feeds[x.name], arrays) for x in model.graph.input if x.name in self.feeds)
        content, batched = model.SerializeToString(deterministic=True), self._places(arrays)
        return self.label, Sample(
            0, args, arrays=arrays, expected=leaves, op_class=op_class, model=content, batched=batched
        )

    def _places(self, arrays: Sequence[np.ndarray]) -> tuple[int, ...]:
        """Of the inputs whose rows are computed each by itself. Raises Unfit where none are, and some must be."""
        if not self.batched:
            return ()
        names = [x.name for x in self.model.graph.input if x.name in self.feeds]
        places = tuple(k for k, name in enumerate(names) if name in self.batched)
        graph = self._program.evaluated

        def reference(given: list[np.ndarray]) -> list[np.ndarray]:
            return list(graph.run(dict(zip_equal(names, given))).values())

        if not places or not does_reference_go_by_row(reference, arrays, places):
            raise Unfit("no input has rows computed independently")
        return places

    def _compute_expected(self) -> tuple[list[Leaf], OpClass]:
        try:
            leaves, op_class = compute_graph_leaves(self._program.evaluated, self.feeds, self.draws)
        except NoOracle as error:
            raise Unfit(str(error)) from None
        except Exception as error:  # shape inference, a reader: whatever it is, this is no case
            raise Unfit(f"{type(error).__name__}: {error}") from None
        if any(0 in leaf.shape for leaf in leaves):
            raise Unfit("an output has no elements")
        return leaves, op_class

    def _check_zeros(self) -> None:
        arrays = self.arrays
        for node in self._computing:
            for place in operators.find_operator(node.op_type).not_zero:
                given = arrays.get(node.input[place]) if place < len(node.input) else None
                if given is not None and not given.all():
                    raise Unfit(f"input {place} of {node.op_type} is 0: the specification does not say what that is")

    def _check(self, model: Any) -> None:
        import onnx

        try:
            onnx.checker.check_model(model)
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        except Exception as error:
            raise Unfit(f"ONNX's checker: {find_error_text(error)}") from None

    def key(self) -> Any:
        digest = hashlib.sha256(self.model.SerializeToString(deterministic=True))
        for name in sorted(self.feeds):
            value = self.feeds[name]
            for x in value if isinstance(value, list) else [value]:
                if x is not None:
                    digest.update(repr((name, x.shape, x.dtype)).encode())
                    digest.update(x.tobytes() if x.dtype.kind != "O" else repr(x.tolist()).encode())
        return digest.digest()

    def shorten_names(self) -> GraphCase:
        """With short names: inputs x, x1 …, weights w …, what nodes make y …; nodes have none."""
        model, names = copy_searched_model(self.model), {"": ""}
        if any(a.HasField("g") or a.graphs for node in model.graph.node for a in node.attribute):
            return self  # what is inside reads names from outside
        graph = model.graph
        fed, made = [x.name for x in graph.input], [x for node in graph.node for x in node.output if x]
        for letter, group in (("x", fed), ("w", [x.name for x in graph.initializer if x.name not in fed]), ("y", made)):
            names |= {name: letter + (str(n) if n else "") for n, name in enumerate(dict.fromkeys(group))}
        for node in graph.node:
            node.name = ""
            node.input[:] = [names[x] for x in node.input]
            node.output[:] = [names[x] for x in node.output]
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = names[value.name]
        graph.name, graph.doc_string, model.doc_string = "minimal", "", ""
        feeds = {names[k]: x for k, x in self.feeds.items()}
        return replace(self, model=model, feeds=feeds, batched=tuple(names.get(k, k) for k in self.batched))


def copy_searched_model(model: Any) -> Any:
    """A ModelProto of its own."""
    import onnx

    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _set_graph_case_shape(value: Any, shape: Sequence[int]) -> None:
    """Say the sizes of a tensor whose sizes are said; those that are open stay so."""
    kind = value.type.tensor_type
    if not kind.HasField("shape") or len(kind.shape.dim) != len(shape):
        kind.ClearField("shape")
        for size in shape:
            kind.shape.dim.add().dim_value = size
        return
    for dim, size in zip(kind.shape.dim, shape):
        if dim.HasField("dim_value"):
            dim.dim_value = size


def _find_graph_case_value(name: str, value: Any) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _encode_graph_input(value: Any, arrays: list[np.ndarray]) -> Any:
    """An input as a tree over ``arrays``."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_encode_graph_input(x, arrays) for x in value]
    made = np.asarray(value, order="C")
    get_numpy_dtype(name_numpy_dtype(made.dtype))
    arrays.append(made)
    return TensorSpec(len(arrays) - 1)
