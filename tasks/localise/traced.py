"""The failing torch program of a search: its operations, their exact tensors, and whether values given for some make it fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.graphs import program as programs
from tasks.graphs.program import Part
from tasks.graphs.widening import NoOracle
from tasks.localise.searched import Searched, typed
from tasks.model import OpClass
from tasks.model.dtypes import EPS, dtype_name, np_dtype


class Traced(Searched):
    """program: as `tasks.graphs.program.traced` makes it; feeds: its arguments by name. A node of several outputs stands for
    those that pick them out of it as well."""

    def __init__(
        self,
        program: Any,
        feeds: Mapping[str, np.ndarray],
        fails: Callable[[Sequence[np.ndarray]], bool],
        dtype: str = "float32",
        precision: str = "",
    ) -> None:
        super().__init__(feeds, fails, dtype, precision, programs.output_names(program))
        self.program = program
        self._graph = list(program.graph.nodes)

    @functools.cached_property
    def _parts(self) -> dict[int, list[str]]:
        """Tensors of each operation by its place: its own, or those picked out of it."""
        found = {}
        for place, node in enumerate(self._graph):
            if node.op == "call_function" and programs.operation(node) != "getitem":
                picked = [x.name for x in node.users if programs.operation(x) == "getitem"]
                found[place] = [x for x in picked or [node.name] if x in self._tensors]
        return {place: names for place, names in found.items() if names}

    @functools.cached_property
    def _tensors(self) -> dict[str, str]:
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

    def name(self, place: int) -> str:
        return str(self._graph[place].name)

    def op(self, place: int) -> str:
        return programs.operation(self._graph[place])

    def module(self, place: int) -> str:
        """The path of the module that an operation is of."""
        stack = self._graph[place].meta.get("nn_module_stack") or {"": ("", "")}
        return str(list(stack.values())[-1][0])

    def makes(self, place: int) -> list[str]:
        return self._parts[place]

    def _reads(self, place: int) -> list[str]:
        return [x.name for x in self._graph[place].all_input_nodes if x.name in self._tensors]

    def border(self, place: int) -> tuple[list[str], list[str]]:
        return self._reads(place), [x for x in self._parts[place] if x in self._taken]

    @functools.cached_property
    def _taken(self) -> set[str]:
        return {x.name for node in self._graph for x in node.all_input_nodes} | set(self.outputs)

    @functools.cached_property
    def exact(self) -> dict[str, np.ndarray]:
        found = self._run(keep=list(self.producer))
        return dict(self.feeds) | {name: self.rounded(name, value) for name, value in found.items()}

    def rounded(self, name: str, value: Any) -> Any:
        array = np.asarray(value)
        with np.errstate(all="ignore"):
            return array.astype(np_dtype(self._tensors.get(name, dtype_name(array.dtype))))

    def _run(self, **more: Any) -> dict[str, Any]:
        try:
            found = programs.evaluated(self.program, self.feeds, **more)
        except Exception as error:
            raise NoOracle(f"{type(error).__name__}: {error}") from None
        return {name: x.numpy() for name, x in found.items()}

    def of_node(self, place: int, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return self._of_node(place, feeds, None)

    def _of_node(self, place: int, feeds: Mapping[str, np.ndarray], move: Any) -> dict[str, Any]:
        inputs, outputs = self.border(place)
        try:
            found = programs.evaluated(self._alone(place), {name: feeds[name] for name in inputs}, move=move)
        except Exception as error:
            raise NoOracle(f"{type(error).__name__}: {error}") from None
        return {name: found[name].numpy() for name in outputs}

    @functools.cache  # noqa: B019  a search has one subject
    def _alone(self, place: int) -> Any:
        return programs.part(self.program, Part(*map(tuple, self.border(place))))

    def floor_of(self, place: int, feeds: Mapping[str, np.ndarray], draws: int) -> dict[str, np.ndarray]:
        inputs, outputs = self.border(place)
        exact = self.of_node(place, feeds)
        references = [np.asarray(exact[name]) for name in outputs]
        eps = EPS.get(self.dtype, 0.0)

        def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
            for draw in drawn:
                moved = {name: self._moved(feeds[name], draw, k) for k, name in enumerate(inputs)}

                def weight(name: str, x: np.ndarray, draw: int = draw) -> np.ndarray:
                    steps = name not in self._tensors
                    return noise.moved(x, eps, draw, len(inputs)) if steps else x

                found = self._of_node(place, moved, weight)
                yield [np.asarray(found[name]) for name in outputs]

        elements = sum(feeds[name].size for name in inputs)
        floors = noise.floor(references, evaluate, OpClass.COMPOSITE, draws, elements)
        return {
            name: np.zeros(y.shape) if delta is None else delta for name, y, delta in zip(outputs, references, floors)
        }

    def _moved(self, x: np.ndarray, draw: int, place: int) -> np.ndarray:
        if x.dtype.kind != "f":
            return x
        return noise.moved(x.astype(np.float64), EPS.get(dtype_name(x.dtype), EPS[self.dtype]), draw, place)

    def piece(self, places: Collection[int]) -> tuple[Part, list[str], list[str]]:
        inside = {name for place in places for name in self._parts[place]}
        read = [name for place in sorted(places) for name in self._reads(place)]
        inputs = list(dict.fromkeys(name for name in read if name not in inside))
        outside = {x for place in self._parts if place not in set(places) for x in self._reads(place)}
        outputs = [x for place in sorted(places) for x in self._parts[place] if x in outside or x in self.outputs]
        return Part(tuple(inputs), tuple(outputs)), inputs, outputs

    def probed(self, names: Sequence[str]) -> Part:
        further = [name for name in dict.fromkeys(names) if name not in self.outputs]
        return Part(tuple(self.feeds), (*self.outputs, *further))

    def with_values(self, values: Mapping[str, np.ndarray]) -> list[Any]:
        later = self._after(values)
        given = {name: x for name, x in self.exact.items() if name not in later and name not in self.feeds}
        return self._outputs(self._run(given=given | dict(values)))

    def with_moves(self, move: Callable[[str, np.ndarray], np.ndarray]) -> list[Any]:
        return self._outputs(self._run(move=move))

    def _outputs(self, found: Mapping[str, Any]) -> list[Any]:
        return [self.rounded(name, found[name]) for name in self.outputs]

    def _after(self, names: Collection[str]) -> set[str]:
        """Tensors that others reach, but for these themselves."""
        reached = set(names)
        for node in self._graph:
            if any(x.name in reached for x in node.all_input_nodes):
                reached.add(node.name)
        return reached - set(names)

    def described(self, place: int) -> dict[str, Any]:
        node = self._graph[place]
        schema = getattr(getattr(node.target, "_schema", None), "arguments", [])
        plain = {x.name: value for x, value in zip(schema, node.args) if isinstance(value, (int, float, bool, list))}
        words = {**plain, **node.kwargs}

        def tensors(names: Sequence[str]) -> list[str]:
            return [f"{x} {typed(self.exact[x])}" if x in self.exact else x for x in names]

        return {
            "name": self.name(place),
            "op": self.op(place),
            "module": self.module(place),
            "attributes": {k: str(v)[:100] for k, v in words.items() if not hasattr(v, "all_input_nodes")},
            "inputs": tensors([x.name for x in node.all_input_nodes]),
            "outputs": tensors(self._parts[place]),
        }
