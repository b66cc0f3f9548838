"""A failing torch module with its inputs, as a search makes it smaller: a program of its operations, whose weights are inputs as well."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.layouts import make_array_contiguous
from tasks.arrays.training import TrainingStep
from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.catalogs.base import Sample
from tasks.graphs import traced_program
from tasks.graphs.traced_program import ProgramPart
from tasks.graphs.widening import NoOracle
from tasks.hunt import case as cases
from tasks.hunt.dialogue import Unfit
from tasks.hunt.torch_program import TorchProgram
from tasks.model import Form, Group, Leaf, OpClass


@dataclass(frozen=True, eq=False)
class TracedCase:
    """program: as `tasks.graphs.traced_program.encode_program` has it; arrays: its arguments by name, in their order; group:
    what it comes from; draws: of the noise floor."""

    program: Mapping[str, Any] = field(repr=False)
    arrays: dict[str, np.ndarray] = field(repr=False)
    group: Group
    draws: int

    @classmethod
    def trace_form(cls, form: Form, group: Group, draws: int) -> TracedCase:
        """That of a torch form. Raises Unsupported where that is no module, or training step, that can be traced."""
        given = traced_program.list_traced_arguments(form)
        if isinstance(form.call, TrainingStep):
            program, given = traced_program.trace_training_step(form.call, given)
        else:
            program = traced_program.trace_torch_module(form.call, given)
        return cls.of_program(program, traced_program.name_program_arguments(program, given), group, draws)

    @classmethod
    def of_program(cls, program: Any, feeds: Mapping[str, np.ndarray], group: Group, draws: int) -> TracedCase:
        """That of a traced program. Raises Unsupported for one that cannot be stored."""
        made, weights = traced_program.lift_program_weights(program)
        return cls(traced_program.encode_program(made), {**feeds, **weights}, group, draws)._tidy()

    @functools.cached_property
    def _operations(self) -> TorchProgram:
        return TorchProgram(traced_program.decode_program(self.program), self.arrays, self.group.dtype)

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> TracedCase:
        made = {name: make_array_contiguous(x) for name, x in arrays.items()}
        return replace(self, arrays={**self.arrays, **made})

    @property
    def _computing(self) -> list[tuple[int, dict[str, Any]]]:
        """(place, operation)."""
        return [(k, one) for k, one in enumerate(self.program["nodes"]) if "op" in one]

    @property
    def integers(self) -> dict[str, int]:
        given = ((("nodes", k, name), one[name]) for k, one in self._computing for name in ("args", "kwargs"))
        return dict(found for path, tree in given for found in cases.list_case_integers(tree, path))

    def with_integers(self, integers: Mapping[str, int]) -> TracedCase:
        return replace(self, program=cases.put_case_integers(self.program, integers))

    def simpler(self) -> Iterator[tuple[str, TracedCase]]:
        outputs = self.program["outputs"]
        for name in outputs if len(outputs) > 1 else ():
            yield f"output {name}", self._with(outputs=[x for x in outputs if x != name])
        for place, one in self._computing:
            for name, _, other in list_operation_options(one):
                nodes = [other if k == place else x for k, x in enumerate(self.program["nodes"])]
                yield f"{one['name']}.{name}", self._with(nodes=nodes)

    def _with(self, **parts: list[Any]) -> TracedCase:
        return replace(self, program={**self.program, **parts})._tidy()

    def _tidy(self) -> TracedCase:
        """Without the arguments and operations that no output needs."""
        part = traced_program.cut_program_part(
            traced_program.decode_program(self.program), ProgramPart(tuple(self.arrays), tuple(self.program["outputs"]))
        )
        used = {node.name for node in part.graph.nodes if node.op != "placeholder" or node.users}
        made = traced_program.encode_program(part)
        nodes = [one for one in made["nodes"] if one["name"] in used]
        return replace(
            self, program={**made, "nodes": nodes}, arrays={k: x for k, x in self.arrays.items() if k in used}
        )

    @property
    def places(self) -> list[int]:
        return self._operations.places

    def values(self) -> dict[str, np.ndarray]:
        """Its arguments and what every operation makes, in float64, in the dtypes that they have; nothing where that is
        not known."""
        try:
            return self._operations.exact
        except NoOracle:
            return {}

    def of(self, places: Collection[int], given: Mapping[str, np.ndarray]) -> TracedCase:
        """Some of its operations. given: values of the tensors that come to them from the others."""
        piece = self._operations.piece(places, given)
        made = traced_program.encode_program(traced_program.cut_program_part(self._operations.program, piece.program))
        return replace(self, program=made, arrays=dict(piece.feeds))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one["name"] for one in self.program["nodes"])

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(op for op, _ in self.operations)

    @property
    def operations(self) -> list[tuple[str, dict[str, Any]]]:
        """(what it is called, the operation as it is stored) of each that computes."""
        return [(one["op"].split(".")[1], one) for _, one in self._computing if one["op"] != traced_program.PICK]

    def make_sample(self) -> tuple[Group, Sample]:
        return self._made

    @functools.cached_property
    def _made(self) -> tuple[Group, Sample]:
        if not self.ops or not self.program["outputs"]:
            raise Unfit("no operation is left")
        try:
            exact, floors = self._operations.references(self.draws)
        except NoOracle as error:
            raise Unfit(str(error)) from None
        leaves = [self._leaf(name, y, floors[name]) for name, y in exact.items()]
        if any(0 in leaf.shape for leaf in leaves):
            raise Unfit("an output has no elements")
        args = tuple(TensorSpec(k) for k in range(len(self.arrays)))
        sample = Sample(
            0,
            args,
            arrays=list(self.arrays.values()),
            expected=leaves,
            op_class=OpClass.COMPOSITE,
            program=self.program,
        )
        return cases.build_searched_group("torch", self.ops, self.group.dtype), sample

    def _leaf(self, name: str, y: np.ndarray, floor: np.ndarray) -> Leaf:
        return Leaf(self._operations.tensors[name], y.shape, make_array_contiguous(y), floor if floor.any() else None)

    def key(self) -> Any:
        return cases.digest_searched_case(self.program, self.arrays)

    def shorten_names(self) -> TracedCase:
        """With short names of its arguments: x, x1 …"""
        names = {name: f"x{n}" if n else "x" for n, name in enumerate(self.arrays)}

        def called(node: Any) -> Any:
            if isinstance(node, list):
                return [called(x) for x in node]
            if not isinstance(node, dict):
                return node
            made = {key: called(x) for key, x in node.items()}
            return made | {"name": names.get(node["name"], node["name"])} if node.get("$", "node") == "node" else made

        outputs = [names.get(x, x) for x in self.program["outputs"]]
        program = {"nodes": called(self.program["nodes"]), "outputs": outputs}
        return replace(self, program=program, arrays={names[name]: x for name, x in self.arrays.items()})


def list_operation_options(one: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(name, encoded value, the operation without it) of each argument of an operation that is not the default."""
    known = () if one["op"] == traced_program.PICK else traced_program.find_traced_function(one["op"])._schema.arguments
    usual = {
        x.name: encode_argument_tree(x.default_value, torch_tree.encode_torch_word)
        for x in known
        if x.has_default_value()
    }
    args, kwargs = one["args"]["v"], one["kwargs"]["v"]
    for k, (argument, value) in enumerate(zip(known, args)):
        if argument.name in usual and value != usual[argument.name]:
            left = [*args[:k], usual[argument.name], *args[k + 1 :]]
            while left and left[-1] == usual.get(known[len(left) - 1].name, ...):
                left.pop()
            yield argument.name, value, {**one, "args": {"$": "tuple", "v": left}}
    for name, value in kwargs:
        if name in usual and value != usual[name]:
            yield name, value, {**one, "kwargs": {"$": "dict", "v": [x for x in kwargs if x[0] != name]}}
