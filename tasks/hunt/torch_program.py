"""A traced torch program on given arguments: its operations, their exact tensors, how far rounding moves its results, pieces of it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.graphs import traced_program
from tasks.graphs.traced_program import ProgramPart
from tasks.graphs.widening import NoOracle
from tasks.hunt.dialogue import DialoguePiece
from tasks.hunt.program import HuntProgram, Move
from tasks.model import Form, OpClass
from tasks.model.dtypes import EPS, get_numpy_dtype, name_numpy_dtype


class TorchProgram(HuntProgram):
    """program: as `tasks.graphs.traced_program.trace_torch_module` makes it; feeds: its arguments by name. A node of several outputs
    stands for those that pick them out of it as well."""

    maker = "capture"

    def __init__(self, program: Any, feeds: Mapping[str, np.ndarray], dtype: str = "float32") -> None:
        super().__init__(feeds, dtype, traced_program.list_program_outputs(program))
        self.program, self._graph = program, list(program.graph.nodes)

    @classmethod
    def traced(cls, form: Form, dtype: str) -> TorchProgram:
        """That of a torch form. Raises Unsupported where it is no module that can be traced."""
        given = traced_program.list_traced_arguments(form)
        program = traced_program.trace_torch_module(form.call, given)
        return cls(program, traced_program.name_program_arguments(program, given), dtype)

    @functools.cached_property
    def _parts(self) -> dict[int, list[str]]:
        """Tensors of each operation by its place: its own, or those picked out of it."""
        found = {}
        for place, node in enumerate(self._graph):
            if node.op == "call_function" and traced_program.name_traced_operation(node) != traced_program.PICK:
                picked = [x.name for x in node.users if traced_program.name_traced_operation(x) == traced_program.PICK]
                found[place] = [x for x in picked or [node.name] if x in self.tensors]
        return {place: names for place, names in found.items() if names}

    @functools.cached_property
    def tensors(self) -> dict[str, str]:
        """Dtype by name of everything that is a tensor of values."""
        import torch

        return {
            node.name: str(node.meta["val"].dtype).rpartition(".")[2]
            for node in self._graph
            if node.op in ("call_function", "placeholder") and isinstance(node.meta.get("val"), torch.Tensor)
        }

    @functools.cached_property
    def places(self) -> list[int]:
        return list(self._parts)

    @functools.cached_property
    def producer(self) -> dict[str, int]:
        return {name: place for place, names in self._parts.items() for name in names}

    def op(self, place: int) -> str:
        return traced_program.name_traced_operation(self._graph[place])

    def _reads(self, place: int) -> list[str]:
        return [x.name for x in self._graph[place].all_input_nodes if x.name in self.tensors]

    def rounded(self, name: str, value: Any) -> Any:
        array = np.asarray(value)
        with np.errstate(all="ignore"):
            return array.astype(get_numpy_dtype(self.tensors.get(name, name_numpy_dtype(array.dtype))))

    def evaluate(
        self, keep: Sequence[str] = (), move: Move | None = None, given: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """given: tensors that are these, whatever would make them."""
        return self._evaluate(self.program, self.feeds, keep=keep, move=move, given=given)

    def _evaluate(self, program: Any, feeds: Mapping[str, Any], **more: Any) -> dict[str, np.ndarray]:
        try:
            found = traced_program.evaluate_program(program, feeds, **more)
        except Exception as error:
            raise NoOracle(f"{type(error).__name__}: {error}") from None
        return {name: x.numpy() for name, x in found.items()}

    def references(self, draws: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(the program's outputs in float64, their noise floors), by name. Raises NoOracle."""
        exact = self.evaluate()
        return exact, self._floors(self.program, self.feeds, exact, draws)

    def _floors(
        self, program: Any, feeds: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], draws: int
    ) -> dict[str, np.ndarray]:
        """Of the outputs ``exact``: arguments and weights move, and of several operations what each of them makes."""
        references = [np.asarray(y) for y in exact.values()]
        made = [
            x.name
            for x in program.graph.nodes
            if x.op == "call_function" and traced_program.name_traced_operation(x) != traced_program.PICK
        ]
        still = set(made) if len(made) == 1 else set[str]()
        still |= {
            x.name
            for x in program.graph.nodes
            if still and traced_program.name_traced_operation(x) == traced_program.PICK
        }
        places = {node.name: k for k, node in enumerate(program.graph.nodes)}

        def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
            for draw in drawn:

                def move(name: str, x: np.ndarray, draw: int = draw) -> np.ndarray:
                    eps = EPS.get(self.tensors.get(name, self.dtype), 0.0)
                    return x if name in still else noise.perturb_by_noise(x, eps, draw, places[name])

                found = self._evaluate(program, feeds, move=move)
                yield [found[name] for name in exact]

        elements = sum(x.size for x in feeds.values())
        floors = noise.compute_noise_floor(references, evaluate, OpClass.COMPOSITE, draws, elements)
        return {
            name: np.zeros(y.shape) if delta is None else delta for name, y, delta in zip(exact, references, floors)
        }

    def piece(self, places: Collection[int], given: Mapping[str, np.ndarray] | None = None) -> DialoguePiece:
        inside = {name for place in places for name in self._parts[place]}
        read = [name for place in sorted(places) for name in self._reads(place)]
        inputs = tuple(dict.fromkeys(name for name in read if name not in inside))
        outside = {x for place in self._parts if place not in set(places) for x in self._reads(place)}
        taken = outside.union(self.outputs)
        outputs = tuple(x for place in sorted(places) for x in self._parts[place] if x in taken)
        known = {**(self.exact if given is None else given), **self.feeds}
        return DialoguePiece(
            ProgramPart(inputs, outputs), {name: known[name] for name in inputs if name in known}, outputs
        )

    def name(self, place: int) -> str:
        return str(self._graph[place].name)

    def module(self, place: int) -> str:
        """The path of the module that an operation is of."""
        stack = self._graph[place].meta.get("nn_module_stack") or {"": ("", "")}
        return str(list(stack.values())[-1][0])

    def makes(self, place: int) -> list[str]:
        return self._parts[place]

    def border(self, place: int) -> tuple[list[str], list[str]]:
        return self._reads(place), [x for x in self._parts[place] if x in self._taken]

    @functools.cached_property
    def _taken(self) -> set[str]:
        return {x.name for node in self._graph for x in node.all_input_nodes} | set(self.outputs)

    def of_node(self, place: int, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        inputs, outputs = self.border(place)
        found = self._evaluate(self._alone(place), {name: feeds[name] for name in inputs})
        return {name: found[name] for name in outputs}

    @functools.cache  # noqa: B019  a search has one subject
    def _alone(self, place: int) -> Any:
        return traced_program.cut_program_part(self.program, ProgramPart(*map(tuple, self.border(place))))

    def floor_of(self, place: int, feeds: Mapping[str, np.ndarray], draws: int) -> dict[str, np.ndarray]:
        inputs, outputs = self.border(place)
        exact = self.of_node(place, feeds)
        found = self._floors(self._alone(place), {name: feeds[name] for name in inputs}, exact, draws)
        return {name: found[name] for name in outputs}

    def probed(self, names: Sequence[str]) -> DialoguePiece:
        outputs = (*self.outputs, *(name for name in dict.fromkeys(names) if name not in self.outputs))
        return DialoguePiece(ProgramPart(tuple(self.feeds), outputs), self.feeds, outputs)

    def with_values(self, values: Mapping[str, np.ndarray]) -> list[Any]:
        later = self._after(values)
        given = {name: x for name, x in self.exact.items() if name not in later and name not in self.feeds}
        found = self.evaluate(given=given | dict(values))
        return [self.rounded(name, found[name]) for name in self.outputs]

    def _after(self, names: Collection[str]) -> set[str]:
        """Tensors that others reach, but for these themselves."""
        reached = set(names)
        for node in self._graph:
            if any(x.name in reached for x in node.all_input_nodes):
                reached.add(node.name)
        return reached - set(names)

    def attributes(self, place: int) -> dict[str, str]:
        node = self._graph[place]
        schema = getattr(getattr(node.target, "_schema", None), "arguments", [])
        plain = {x.name: value for x, value in zip(schema, node.args) if isinstance(value, (int, float, bool, list))}
        return {k: str(v) for k, v in {**plain, **node.kwargs}.items() if not hasattr(v, "all_input_nodes")}

    def takes(self, place: int) -> list[str]:
        return [x.name for x in self._graph[place].all_input_nodes]
