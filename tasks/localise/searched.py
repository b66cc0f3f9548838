"""What a search asks of a failing program, be it an ONNX model or a torch module: its nodes, exact tensors, and parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.graphs.widening import NoOracle

#: How many times as far off as the failing model its outputs may be by the error that explains it.
FURTHER = 16.0


class Searched:
    """Base of both. feeds: inputs by name; fails: whether outputs, in the program's order and dtypes, are beyond the limit;
    dtype: of the case; precision: what the backend declares that it computes in ("" for the dtype); outputs: names.

    A place is a node's number in the program's order. What `piece` and `probed` return is what a backend is asked to run. maker: what
    made the program of the model that was to be run.
    """

    maker = "exporter"

    def __init__(
        self,
        feeds: Mapping[str, np.ndarray],
        fails: Callable[[Sequence[np.ndarray]], bool],
        dtype: str,
        precision: str,
        outputs: Sequence[str],
    ) -> None:
        self.feeds, self.fails, self.dtype, self.precision, self.outputs = feeds, fails, dtype, precision, list(outputs)
        #: What the backend returned for the whole; the search sets it.
        self.failing: Sequence[np.ndarray] | None = None

    @property
    def places(self) -> list[int]:
        """Places of the nodes that compute."""
        raise NotImplementedError

    @property
    def producer(self) -> dict[str, int]:
        """The place of the node that makes a tensor."""
        raise NotImplementedError

    @property
    def exact(self) -> dict[str, np.ndarray]:
        """Every tensor that a node makes, by the float64 evaluation, rounded to its dtype; the inputs as well."""
        raise NotImplementedError

    def name(self, place: int) -> str:
        """The unique name of a node."""
        raise NotImplementedError

    def op(self, place: int) -> str:
        raise NotImplementedError

    def title(self, place: int) -> str:
        """A node as a culprit is called."""
        return f"{self.name(place)} ({self.op(place)})"

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

    def piece(self, places: Collection[int]) -> tuple[Any, list[str], list[str]]:
        """(a model of some nodes, names of its inputs, of its outputs)."""
        raise NotImplementedError

    def probed(self, names: Sequence[str]) -> Any:
        """The whole model, whose outputs are followed by the tensors ``names``, those that are none yet."""
        raise NotImplementedError

    def described(self, place: int) -> dict[str, Any]:
        """A node for people: name, op, attributes, and each tensor with its dtype and shape."""
        raise NotImplementedError

    def with_values(self, values: Mapping[str, np.ndarray]) -> list[Any]:
        """The outputs, when these tensors have these values and all else is exact. Raises whatever what follows raises."""
        raise NotImplementedError

    def with_moves(self, move: Callable[[str, np.ndarray], np.ndarray]) -> list[Any]:
        """The outputs, when every result in float64 is what ``move`` makes of it. Raises NoOracle."""
        raise NotImplementedError

    def shaped(self, name: str, x: np.ndarray) -> np.ndarray:
        """A tensor that a backend was asked for, in its own shape if it differs by dimensions of 1 alone: some runtimes give
        an intermediate tensor in as many dimensions as they keep all in."""
        shape = np.shape(self.exact[name])
        lone = [n for n in shape if n != 1] == [n for n in x.shape if n != 1]
        return x.reshape(shape) if lone and name not in self.outputs else x

    def reaches(self, values: Mapping[str, np.ndarray]) -> bool:
        """Whether the model fails when these tensors have these values, and all else is exact, and no further off than the
        backend was: a tensor may be wrong only where it is asked for, or in a part, and then it explains nothing."""
        try:
            outputs = self.with_values(values)
        except Exception:  # a shape that what follows cannot take, an index out of range: no such output is right
            return True
        return self.fails(outputs) and not self._further(outputs)

    def _further(self, outputs: Sequence[np.ndarray]) -> bool:
        """Whether an output is FURTHER times as far off as the backend's, in the mean."""
        for name, made, got in zip(self.outputs, outputs, self.failing or ()):
            exact = np.asarray(self.exact[name])
            if exact.dtype.kind != "f" or not exact.shape == made.shape == got.shape:
                continue
            here, there = (_off(np.asarray(x), exact) for x in (made, got))
            if np.isfinite(there) and not here <= FURTHER * there:
                return True
        return False

    def reaches_all(self, values: Sequence[Mapping[str, np.ndarray]]) -> bool:
        """Whether the model fails when tensors are off by as much as these values of them are, wherever the others lead."""
        errors = {
            name: value.astype(np.float64) - self.exact[name].astype(np.float64)
            for one in values
            for name, value in one.items()
            if value.dtype.kind == "f" and value.shape == self.exact[name].shape
        }

        def moved(name: str, x: np.ndarray) -> np.ndarray:
            return x + errors[name] if name in errors and x.shape == errors[name].shape else x

        try:
            return self.fails(self.with_moves(moved))
        except NoOracle:
            return True


def _off(x: np.ndarray, exact: np.ndarray) -> float:
    """Root mean square of the differences."""
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.mean(np.square(x.astype(np.float64) - exact))))


def format_tensor_type(x: Any) -> str:
    """A tensor for people: "float32[2, 3]"."""
    return f"{x.dtype.name}[{', '.join(map(str, x.shape))}]" if isinstance(x, np.ndarray) else type(x).__name__


class Whole(Searched):
    """A program that nobody can take apart: what the backend's settings do to it can be told all the same."""

    def __init__(self, fails: Callable[[Sequence[np.ndarray]], bool], dtype: str, precision: str) -> None:
        super().__init__({}, fails, dtype, precision, [])

    def reaches(self, values: Mapping[str, np.ndarray]) -> bool:
        return False
