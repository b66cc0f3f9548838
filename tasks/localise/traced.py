"""The failing torch program of a search: its operations, their exact tensors, and whether values given for some make it fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.graphs import program as programs
from tasks.graphs.operations import Operations
from tasks.graphs.program import Part
from tasks.graphs.widening import NoOracle
from tasks.localise.searched import Searched, format_tensor_type


class Traced(Operations, Searched):
    """program, feeds: see `Operations`."""

    maker = "capture"

    def __init__(
        self,
        program: Any,
        feeds: Mapping[str, np.ndarray],
        fails: Callable[[Sequence[np.ndarray]], bool],
        dtype: str = "float32",
        precision: str = "",
    ) -> None:
        Operations.__init__(self, program, feeds, dtype)
        Searched.__init__(self, feeds, fails, dtype, precision, self.outputs)

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
        try:
            found = programs.evaluate_program(self._alone(place), {name: feeds[name] for name in inputs})
        except Exception as error:
            raise NoOracle(f"{type(error).__name__}: {error}") from None
        return {name: found[name].numpy() for name in outputs}

    @functools.cache  # noqa: B019  a search has one subject
    def _alone(self, place: int) -> Any:
        return programs.part(self.program, Part(*map(tuple, self.border(place))))

    def floor_of(self, place: int, feeds: Mapping[str, np.ndarray], draws: int) -> dict[str, np.ndarray]:
        inputs, outputs = self.border(place)
        exact = self.of_node(place, feeds)
        found = self._floors(self._alone(place), {name: feeds[name] for name in inputs}, exact, draws)
        return {name: found[name] for name in outputs}

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
            return [f"{x} {format_tensor_type(self.exact[x])}" if x in self.exact else x for x in names]

        return {
            "name": self.name(place),
            "op": self.op(place),
            "module": self.module(place),
            "attributes": {k: str(v)[:100] for k, v in words.items() if not hasattr(v, "all_input_nodes")},
            "inputs": tensors([x.name for x in node.all_input_nodes]),
            "outputs": tensors(self._parts[place]),
        }
