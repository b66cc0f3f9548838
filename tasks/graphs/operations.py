"""A traced torch program on given arguments: its operations, their exact tensors, how far rounding moves its results."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.graphs import program as programs
from tasks.graphs.program import Part
from tasks.graphs.widening import NoOracle
from tasks.model import OpClass
from tasks.model.dtypes import EPS, dtype_name, np_dtype


class Operations:
    """program: as `tasks.graphs.program.trace_module` makes it; feeds: its arguments by name; dtype: of the case. A node of several outputs
    stands for those that pick them out of it as well."""

    def __init__(self, program: Any, feeds: Mapping[str, np.ndarray], dtype: str = "float32") -> None:
        self.program, self.feeds, self.dtype, self.outputs = program, feeds, dtype, programs.output_names(program)
        self._graph = list(program.graph.nodes)

    @functools.cached_property
    def _parts(self) -> dict[int, list[str]]:
        """Tensors of each operation by its place: its own, or those picked out of it."""
        found = {}
        for place, node in enumerate(self._graph):
            if node.op == "call_function" and programs.operation(node) != programs.PICK:
                picked = [x.name for x in node.users if programs.operation(x) == programs.PICK]
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
        return programs.operation(self._graph[place])

    def _reads(self, place: int) -> list[str]:
        return [x.name for x in self._graph[place].all_input_nodes if x.name in self.tensors]

    @functools.cached_property
    def exact(self) -> dict[str, np.ndarray]:
        found = self._run(keep=list(self.producer))
        return dict(self.feeds) | {name: self.rounded(name, value) for name, value in found.items()}

    def rounded(self, name: str, value: Any) -> Any:
        array = np.asarray(value)
        with np.errstate(all="ignore"):
            return array.astype(np_dtype(self.tensors.get(name, dtype_name(array.dtype))))

    def _run(self, **more: Any) -> dict[str, Any]:
        try:
            found = programs.evaluate_program(self.program, self.feeds, **more)
        except Exception as error:
            raise NoOracle(f"{type(error).__name__}: {error}") from None
        return {name: x.numpy() for name, x in found.items()}

    def references(self, draws: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(the program's outputs in float64, their noise floors), by name. Raises NoOracle."""
        exact = self._run()
        return exact, self._floors(self.program, self.feeds, exact, draws)

    def _floors(
        self, program: Any, feeds: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], draws: int
    ) -> dict[str, np.ndarray]:
        """Of the outputs ``exact``: arguments and weights move, and of several operations what each of them makes."""
        references = [np.asarray(y) for y in exact.values()]
        made = [
            x.name for x in program.graph.nodes if x.op == "call_function" and programs.operation(x) != programs.PICK
        ]
        still = set(made) if len(made) == 1 else set[str]()
        still |= {x.name for x in program.graph.nodes if still and programs.operation(x) == programs.PICK}
        places = {node.name: k for k, node in enumerate(program.graph.nodes)}

        def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
            for draw in drawn:

                def move(name: str, x: np.ndarray, draw: int = draw) -> np.ndarray:
                    eps = EPS.get(self.tensors.get(name, self.dtype), 0.0)
                    return x if name in still else noise.perturb_values(x, eps, draw, places[name])

                try:
                    found = programs.evaluate_program(program, feeds, move=move)
                except Exception as error:
                    raise NoOracle(f"{type(error).__name__}: {error}") from None
                yield [found[name].numpy() for name in exact]

        elements = sum(x.size for x in feeds.values())
        floors = noise.floor(references, evaluate, OpClass.COMPOSITE, draws, elements)
        return {
            name: np.zeros(y.shape) if delta is None else delta for name, y, delta in zip(exact, references, floors)
        }

    def piece(self, places: Collection[int]) -> tuple[Part, list[str], list[str]]:
        inside = {name for place in places for name in self._parts[place]}
        read = [name for place in sorted(places) for name in self._reads(place)]
        inputs = list(dict.fromkeys(name for name in read if name not in inside))
        outside = {x for place in self._parts if place not in set(places) for x in self._reads(place)}
        outputs = [x for place in sorted(places) for x in self._parts[place] if x in outside or x in self.outputs]
        return Part(tuple(inputs), tuple(outputs)), inputs, outputs
