"""A program whose parts are known, be it an ONNX model or a torch module: its nodes, their exact tensors, and pieces of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.hunt.dialogue import DialoguePiece
from tasks.model import culprit

#: What a tensor, by its name, becomes.
Move = Callable[[str, np.ndarray], np.ndarray]


class HuntProgram:
    """Base of both; by itself, one that nobody can take apart. feeds: inputs by name; dtype: of the case; outputs:
    names.

    A place is a node's number in the program's order.
    """

    #: What made the program of the model that was to be run.
    maker = "exporter"

    def __init__(self, feeds: Mapping[str, Any], dtype: str, outputs: Sequence[str] = ()) -> None:
        self.feeds, self.dtype, self.outputs = feeds, dtype, list(outputs)

    @property
    def places(self) -> list[int]:
        """Places of the nodes that compute."""
        raise NotImplementedError

    @property
    def producer(self) -> dict[str, int]:
        """The place of the node that makes a tensor."""
        raise NotImplementedError

    def evaluate(self, keep: Sequence[str] = (), move: Move | None = None) -> dict[str, Any]:
        """Its outputs, and the tensors ``keep``, in float64. move: what each result becomes. Raises NoOracle."""
        raise NotImplementedError

    @functools.cached_property
    def exact(self) -> dict[str, np.ndarray]:
        """Every tensor that a node makes, by the float64 evaluation, rounded to its dtype; the inputs as well. Raises
        NoOracle."""
        found = self.evaluate(keep=[name for place in self.places for name in self.makes(place) if name])
        return dict(self.feeds) | {name: self.rounded(name, value) for name, value in found.items()}

    def name(self, place: int) -> str:
        """The unique name of a node."""
        raise NotImplementedError

    def op(self, place: int) -> str:
        raise NotImplementedError

    def title(self, place: int) -> str:
        """A node for people."""
        return f"{self.name(place)} ({self.op(place)})"

    def blame(self, first: int, last: int | None = None) -> str:
        """A node as a culprit, or those from the first to the last."""
        if last is None or last == first:
            return culprit.name_node_culprit(self.name(first), self.op(first))
        return culprit.name_window_culprit(self.name(first), self.name(last))

    def makes(self, place: int) -> Sequence[str]:
        """Names of the tensors that a node makes."""
        raise NotImplementedError

    def border(self, place: int) -> tuple[list[str], list[str]]:
        """(inputs from other nodes, outputs that are taken) of one node."""
        raise NotImplementedError

    def of_node(self, place: int, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Outputs of a node by name, in float64, of its inputs from other nodes as in ``feeds``. Raises NoOracle."""
        raise NotImplementedError

    def spread_of(self, place: int, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What `floor_of` comes to, at the cost of one evaluation; nothing where that is not known."""
        return {}

    def floor_of(self, place: int, feeds: Mapping[str, np.ndarray], draws: int) -> dict[str, np.ndarray]:
        """The noise floors of a node's outputs by name. Raises NoOracle."""
        raise NotImplementedError

    def rounded(self, name: str, value: Any) -> Any:
        """A float64 value as the program's tensor of that name has it."""
        raise NotImplementedError

    def piece(self, places: Collection[int], given: Mapping[str, np.ndarray] | None = None) -> DialoguePiece:
        """Some nodes by themselves. given: what comes to them from others (default: what they make in float64,
        rounded)."""
        raise NotImplementedError

    def probed(self, names: Sequence[str]) -> DialoguePiece:
        """The whole program, whose outputs are followed by the tensors ``names``, those that are none yet."""
        raise NotImplementedError

    def attributes(self, place: int) -> dict[str, str]:
        """What a node takes beside tensors, for people."""
        raise NotImplementedError

    def takes(self, place: int) -> Sequence[str]:
        """Names of all that a node takes, in its order; "" for an input that is left out."""
        raise NotImplementedError

    def module(self, place: int) -> str:
        """The path of the module that a node is of; "" where there are none."""
        return ""

    @property
    def weights(self) -> Mapping[str, Any]:
        """Tensors that no node makes and that are no inputs."""
        return {}

    def describe(self, place: int) -> dict[str, Any]:
        """A node for people: name, op, module, attributes, and each tensor with its dtype and shape."""
        known = self.exact | dict(self.weights)

        def tensors(names: Sequence[str]) -> list[str]:
            return [f"{x} {_format_tensor_type(known[x])}" if x in known else x for x in names if x]

        found = {"name": self.name(place), "op": self.op(place), "module": self.module(place)}
        attributes = {name: x[:100] for name, x in self.attributes(place).items()}
        return {
            **found,
            "attributes": attributes,
            "inputs": tensors(self.takes(place)),
            "outputs": tensors(self.makes(place)),
        }

    def with_values(self, values: Mapping[str, np.ndarray]) -> list[Any]:
        """The outputs, when these tensors have these values and all else is exact. Raises whatever what follows
        raises."""
        raise NotImplementedError

    def with_moves(self, move: Move) -> list[Any]:
        """The outputs, when every result in float64 is what ``move`` makes of it. Raises NoOracle."""
        found = self.evaluate(move=move)
        return [self.rounded(name, np.asarray(found[name])) for name in self.outputs]


def _format_tensor_type(x: Any) -> str:
    """A tensor for people: "float32[2, 3]"."""
    return f"{x.dtype.name}[{', '.join(map(str, x.shape))}]" if isinstance(x, np.ndarray) else type(x).__name__
