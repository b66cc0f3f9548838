"""A torch module of the user's as samples: its outputs in float64, their floor, what it holds; no ONNX is made of it.

What is right is what eager torch does with float64: `tasks.graphs.torch_module`. The module is made once, here; every backend
is given its tensors as bytes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays import module_state, noise, torch_tree
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.models import parameters
from tasks.catalogs.models.own_models import OwnModelFile
from tasks.graphs import products, torch_module
from tasks.graphs.cast_roundings import CastRoundings, Round, compute_jumping_floor, leave_out_graph_cast
from tasks.graphs.widening import NoOracle
from tasks.judge import definitions
from tasks.judge.coarser_precision import SUSPECTS
from tasks.model import Leaf, OpClass, compute_row_floor, get_numpy_dtype, is_complex_dtype, is_inexact_dtype
from tasks.model.errors import format_error_essence

__all__ = ["OwnModule"]

#: Draws of a random module's reference, and how often a backend runs it where no two of them are alike (see
#: `tasks.catalogs.torch.samples`).
_RANDOM_DRAWS, _REPEATS = 32, 3
#: Seeds of two runs that a module without randomness answers alike.
_SEEDS = (1, 2)
#: Why a module cannot be judged that is another one once it was called.
_KEEPS = "it keeps something from one call to the next in an object that the farm does not look into"
#: What a module lacks that returns where gradients are recorded.
_NO_GRAD = "(forward is called under torch.no_grad: wrap what needs gradients in torch.enable_grad())"


class OwnModule:
    """A module made once for all of its samples."""

    def __init__(self, own: OwnModelFile) -> None:
        """Raises GivenError where it cannot be made."""
        self.own = own
        self.module = own.make_module()
        self._hidden: list[str] | None = None
        self._lazy = module_state.list_unmade_parameters(self.module)
        self.state: dict[str, np.ndarray] = module_state.copy_module_state(self.module)

    def sample(self, index: int, feeds: Mapping[str, np.ndarray], draws: int) -> Sample:
        """A sample with these inputs; where eager torch raises, its failure says so (`Failure.raised`). Raises
        NoOracle."""
        arrays = [np.array(x, order="C") for x in feeds.values()]
        made = Sample.of(index, arrays, op_class=OpClass.MODEL, columns={"licence": self.own.licence})
        self.module.written = ()
        given = torch_module.make_module_tensors(arrays)
        try:
            with module_state.seed_rng(_SEEDS[0]):
                first = torch_module.call_module(self.module, given)
        except Exception as error:
            made.failure = self._make_failure(error, arrays)
            self._hold(made)
            return made
        self._hold(made, _find_written_inputs(given, arrays))
        if not first:
            raise ValueError(f"{self.own.source}: forward returned no tensor and no number")
        if made.written:
            made.columns["flags"] = f"writes={','.join(x.removeprefix('model.') for x in made.written)}"
            self.module.written = made.written
            first = self._eager(arrays, _SEEDS[0])
            self._renew()
        arrays_of = _copy_module_outputs(first)
        try:
            seen, again = self._called_again(arrays, arrays_of)
        except Exception as error:
            raise ValueError(
                f"{self.own.source}: {_KEEPS}: called again it raises {format_error_essence(error)}"
            ) from None
        made.products = any(map(products.is_product_operation, seen.names))
        if _do_module_outputs_differ(arrays_of, again):
            names = ",".join(dict.fromkeys(seen.drawing)) or "numbers outside torch"
            made.columns["flags"] = f"{made.columns.get('flags', '')} random={names}".strip()
            self._random(made, arrays, first, [x.shape for x in again])
            return made
        self._exact(made, arrays, first, draws)
        return made

    def _called_again(
        self, arrays: Sequence[np.ndarray], first: Sequence[np.ndarray]
    ) -> tuple[torch_module.SeenOperations, list[np.ndarray]]:
        """What a call dispatches, and what the module returns with another seed. Raises ValueError for a module that
        returns something else than at ``first`` with the same seed, and what it raises."""
        with module_state.seed_rng(_SEEDS[0]):
            seen, found = torch_module.watch_module_run(self.module, arrays)
        self._renew()
        again = self._outputs(arrays, _SEEDS[1])
        # The watched call compiles nothing, so that it alone may differ; two more as the first was, one of them even
        # and one odd.
        apart = _do_module_outputs_differ(first, again) or _do_module_outputs_differ(first, _copy_module_outputs(found))
        if apart and any(_do_module_outputs_differ(first, self._outputs(arrays, _SEEDS[0])) for _ in range(2)):
            raise ValueError("something else with the same inputs, tensors and seeds")
        return seen, again

    def _make_failure(self, error: Exception, arrays: Sequence[np.ndarray]) -> Failure:
        """The failure of a module that raised: its own word if it raises as well when it is made anew, with gradients
        or without."""
        if self._returns_anew(arrays):
            told = ValueError(f"{self.own.source}: {_KEEPS}: called again it raises {format_error_essence(error)}")
            return Failure.of(told, "reference")
        if self._returns_anew(arrays, gradients=True):
            found = Failure.of(error, "reference")
            return replace(found, error=f"{found.error} {_NO_GRAD}")
        return Failure.of(error, "reference", raised=True)

    def _returns_anew(self, arrays: Sequence[np.ndarray], gradients: bool = False) -> bool:
        with contextlib.suppress(Exception), module_state.seed_rng(_SEEDS[0]):
            torch_module.run_module(self.own.anew(), arrays, gradients)
            return True
        return False

    def _hold(self, made: Sample, inputs: Sequence[int] = ()) -> None:
        """Give a sample the tensors that the module holds: after its first call, which makes those of lazy ones.
        inputs: places of those that the call wrote to."""
        now, plain = module_state.copy_module_state(self.module), module_state.digest_plain_attributes(self.module)
        self.state = self.state | {
            name: x for name, x in now.items() if name in self._lazy
        }  # what else is new, the call keeps
        self._renew()
        made.state, made.alike = self.state, module_state.digest_plain_attributes(self.module)
        changed = [
            x for x, before in self.state.items() if x not in now or _do_module_outputs_differ([before], [now[x]])
        ]
        made.writes = bool(changed) or now.keys() != self.state.keys() or plain != made.alike
        made.written = *(x for x in changed if x in now), *(f"inputs.{i}" for i in inputs)
        made.columns["weights"] = module_state.digest_module_state(self.state)

    def _renew(self) -> None:
        """As it was made: what a call writes to it is not the next one's."""
        module_state.load_module_state(self.module, self.state)

    def _eager(self, arrays: Sequence[np.ndarray], seed: int) -> list[Any]:
        with module_state.seed_rng(seed):
            return torch_module.run_module(self.module, arrays)

    def _outputs(self, arrays: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
        found = _copy_module_outputs(self._eager(arrays, seed))
        self._renew()
        return found

    def _exact(self, made: Sample, arrays: list[np.ndarray], first: Sequence[Any], draws: int) -> None:
        casts = CastRoundings()
        try:
            references = torch_module.evaluate_module_exactly(self.module, arrays, round=casts.first)
        except Exception as error:
            raise NoOracle(
                f"{self.own.source}: it cannot be evaluated in float64: {format_error_essence(error)}"
            ) from None
        if [y.shape for y in references] != [tuple(y.shape) for y in first]:
            raise NoOracle(f"{self.own.source}: in float64 its outputs have other shapes")

        returned, refused = 0, list[str]()

        def evaluate(
            drawn: Sequence[int], round: Callable[[], Round] = casts.again
        ) -> Iterator[list[np.ndarray] | None]:
            nonlocal returned
            for draw in drawn:
                try:
                    found = torch_module.evaluate_module_exactly(self.module, arrays, draw, round=round())
                except Exception as error:
                    refused.append(format_error_essence(error))
                    yield None  # a number moved across an edge: the result may be anything
                else:
                    returned += 1
                    yield found

        elements = sum(x.size for x in [*arrays, *self.state.values()])
        floors = noise.compute_noise_floor(references, evaluate, OpClass.MODEL, draws, elements)
        if refused and not returned:  # no edge, then: within limits that are infinite everything would pass
            raise NoOracle(f"{self.own.source}: it raises where its numbers are moved by their rounding: {refused[0]}")
        made.expected = [_make_module_leaf(y, exact, delta) for y, exact, delta in zip(first, references, floors)]
        rows = [compute_row_floor(np.zeros(y.shape) if d is None else d) for y, d in zip(references, floors)]
        if casts.open:
            either = functools.partial(evaluate, round=casts.either)
            further = noise.compute_noise_floor(references, either, OpClass.MODEL, draws, elements)
            jumps = [None if b is None else compute_jumping_floor(a, np.maximum(a, b)) for a, b in zip(rows, further)]
            made.expected = [replace(leaf, jumps=x) for leaf, x in zip(made.expected, jumps)]
            rows = [a if b is None else np.maximum(a, b) for a, b in zip(rows, jumps)]
        if casts.any:
            made.uncast = torch_module.evaluate_module_exactly(self.module, arrays, round=leave_out_graph_cast)
        self._hidden = parameters.find_unobserved_parameters(self.module, arrays, references, rows, self._hidden)
        self._renew()
        made.columns["unobserved"] = ", ".join(name.removeprefix("model.") for name in self._hidden)
        if made.products:
            made.coarse = {p: torch_module.evaluate_module_exactly(self.module, arrays, precision=p) for p in SUSPECTS}

    def _random(
        self, made: Sample, arrays: list[np.ndarray], first: Sequence[Any], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        """A module that draws is judged by the moments of what it draws; of few elements, by shapes and dtypes
        alone."""
        drawn = []
        for seed in range(_RANDOM_DRAWS):
            with module_state.seed_rng(seed):
                drawn.append(torch_module.evaluate_module_exactly(self.module, arrays))
        made.op_class, made.oracle = OpClass.RANDOM, "metadata"
        made.expected = [_make_module_leaf(y, exact, None) for y, exact in zip(first, drawn[0])]
        settled = all(x.shape == y.shape for run in drawn for x, y in zip(run, drawn[0]))
        if settled and all(np.isfinite(np.stack(many)).all() for many in zip(*drawn)):
            if (found := definitions.derive_of_draws("moments", drawn))[0]:
                made.derived = definitions.expect_moments(found, "float32")
                made.definition, made.oracle = "moments", "float64"
                made.repeats = _REPEATS if _count_repeated_runs(drawn) == 0 else 1


def _copy_module_outputs(outputs: Sequence[Any]) -> list[np.ndarray]:
    return [torch_tree.make_output_array(torch_tree.dense(y)) for y in outputs]


def _find_written_inputs(given: Sequence[Any], arrays: Sequence[np.ndarray]) -> list[int]:
    """Places of the inputs that a call has written to."""
    return [
        i
        for i, (x, before) in enumerate(zip(given, arrays))
        if _do_module_outputs_differ([torch_tree.tensor_to_numpy(x.detach())], [before])
    ]


def _count_repeated_runs(drawn: Sequence[Sequence[np.ndarray]]) -> int:
    """How many of some runs gave the bytes of one before."""
    return len(drawn) - len({b"".join(y.tobytes() for y in run) for run in drawn})


def _do_module_outputs_differ(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return len(some) != len(others) or any(
        a.shape != b.shape or a.dtype != b.dtype or a.tobytes() != b.tobytes() for a, b in zip(some, others)
    )


def _make_module_leaf(own: Any, exact: np.ndarray, floor: np.ndarray | None) -> Leaf:
    """An output in the dtype that eager torch returns, with what it is in float64."""
    dtype = torch_tree.name_torch_dtype(own.dtype)
    if is_inexact_dtype(dtype):
        exact = exact.astype(np.complex128 if is_complex_dtype(dtype) else np.float64, copy=False)
    elif exact.dtype.name != dtype:
        exact = exact.astype(get_numpy_dtype(dtype))
    return Leaf(dtype, exact.shape, exact, floor)
