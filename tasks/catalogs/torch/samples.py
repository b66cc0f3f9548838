"""Samples of torch's ops: arguments, float64 reference, noise floor, expected metadata; random ops by their moments."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays import noise, torch_tree
from tasks.arrays.tree import map_leaves
from tasks.catalogs.base import Failure, Metadata, Sample
from tasks.catalogs.torch import declared
from tasks.catalogs.torch import reference as torch_reference
from tasks.catalogs.torch.arguments import TorchArguments, clone_torch_argument, widen_torch_argument
from tasks.judge import definitions, op_classes
from tasks.model import EPS, Leaf, OpClass, get_numpy_dtype, is_complex_dtype, is_inexact_dtype


def is_op_seeded(op: Callable[..., Any]) -> bool:
    """Whether OpInfo wraps an op in a lambda that seeds first: its tests want the same numbers of every call.

    Whether a call draws is asked of the call itself (`draw_random_outputs`).
    """
    code = getattr(op, "__code__", None)
    return code is not None and "wrapper_set_seed" in code.co_names


def unwrap_seeded_op(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op without that wrapper; any other op as it is."""
    if not is_op_seeded(op):
        return op
    names = op.__globals__ | {"wrapper_set_seed": lambda drawn, *args, **kwargs: drawn(*args, **kwargs)}
    return types.FunctionType(op.__code__, names, op.__name__, op.__defaults__, op.__closure__)


#: Draws of a random op's reference: enough that a range seldom lacks a value that occurs. Where no two of them are
#: alike a backend is run REPEATS times, which are to differ: three, so that an op of a few hundred outcomes, whose
#: draws may all differ by chance, is not blamed for two runs that agree by chance.
_RANDOM_DRAWS, REPEATS = 32, 3


def draw_random_outputs(run: Callable[[], list[np.ndarray]]) -> list[list[np.ndarray]]:
    """The outputs of many runs, each with another seed; none at all where they are the same whatever the seed.

    An op that draws numbers and returns the same in all of them is not random: of one that does something else once in
    n calls, at most 1 % are taken for such (n = 33).
    """
    import torch

    found: list[list[np.ndarray]] = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(_RANDOM_DRAWS):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every device's module first
            found.append([x.copy() for x in run()])
    return found if count_different_draws(found) > 1 else []


def count_different_draws(found: Sequence[Sequence[np.ndarray]]) -> int:
    """How many of some runs gave other bytes than those before."""
    return len({b"".join(y.tobytes() for y in run) for run in found})


def read_rng_state() -> bytes:
    """The state of torch's random numbers on the CPU. A run that leaves it as it was has drawn none: it cannot depend
    on a seed."""
    import torch

    return torch.default_generator.get_state().numpy().tobytes()


class OpInfoSampleMaker:
    """Makes Samples of one (op, dtype): arguments, float64 reference, noise floor, expected metadata."""

    def __init__(self, info: Any, dtype: str, draws: int) -> None:
        self.info, self.op, self.dtype, self.draws = info, unwrap_seeded_op(info.op), dtype, draws
        self.name, self.variant = f"torch:{info.name}", info.variant_test_name
        self.settled = torch_reference.make_settled_reference(info, widen_torch_argument)
        #: Whether there is a further oracle, for some arguments at least.
        self.second = info.ref is not None and self.settled is None
        #: The state of torch's random numbers as the last reference left it, if it drew none. Reading it takes as long
        #: as many an op; should anything else have drawn since, the next reference is only run more often than it need
        #: be (`draw_random_outputs`).
        self._rng_state = b""
        #: Kinds of calls, by mode and tensors, of which a device returns dtypes and shapes as the CPU does.
        self._alike_there: set[Any] = set()

    def make(self, index: int, source: Any) -> Sample:
        import torch

        args, kwargs = (source.input, *source.args), source.kwargs
        placement = op_classes.find_op_class(
            self.name, self.variant, {str(i): x for i, x in enumerate(args)} | kwargs, self.dtype
        )
        op_class = placement.op_class
        wider = clone_torch_argument if placement.own_dtype else widen_torch_argument
        uninitialised = op_class is OpClass.UNINITIALISED
        made = Sample(
            index, op_class=op_class, oracle="metadata" if uninitialised else "numpy" if self.settled else "float64"
        )
        try:
            # Stored as JSON nodes already: the trees hold torch objects that only this side knows.
            encoded_args, encoded_kwargs, arrays = torch_tree.encode_torch_args(args, kwargs)
        except Exception as error:
            made.failure = Failure.of(error, "store")
            return made
        # A copy, as the op is about to run on this memory and may write to it.
        made.arrays = [a.copy() for a in arrays]
        made.args, made.kwargs = encoded_args, encoded_kwargs
        random: list[list[np.ndarray]] = []
        with torch.no_grad():
            try:
                torch.set_default_dtype(torch.float64)
                try:
                    before = self._rng_state or read_rng_state()
                    exact = [
                        torch_tree.dense(x) for x in torch_tree.list_output_tensors(self._exact(args, kwargs, wider))
                    ]
                    drew = (after := read_rng_state()) != before
                    self._rng_state = b"" if drew else after
                    if drew and not uninitialised:
                        given = TorchArguments(args, kwargs)
                        random = draw_random_outputs(
                            lambda: torch_tree.list_output_arrays(
                                self._compute_perturbed(*given.of(list(map(widen_torch_argument, given.leaves))))
                            )
                        )
                finally:
                    torch.set_default_dtype(torch.float32)
            except Exception as error:
                made.failure = Failure.of(error, "reference")
                return made
            try:
                own = [
                    torch_tree.dense(x)
                    for x in torch_tree.list_output_tensors(self._run(args, kwargs, clone_torch_argument))
                ]
            except Exception:
                own = None  # the CPU lacks this dtype; another backend may have it
            if own is not None and len(own) != len(exact):
                made.failure = Failure("invalid", "reference", "", "the number of outputs depends on the dtype")
                return made
            if random:  # a matter of the arguments: dropout with p=0 draws nothing
                made.op_class, made.oracle = OpClass.RANDOM, "metadata"
            op_class, numeric = made.op_class, not (random or uninitialised)
            arrays = [torch_tree.make_output_array(y) for y in exact]
            floors: list[np.ndarray | None] = [None] * len(exact)
            if placement.constants:
                floors = [_compute_constants_floor(y, self.dtype) for y in exact]
            elif numeric and op_class not in (OpClass.EXACT, OpClass.CHOICE):
                floors = self._noise(args, kwargs, exact, arrays, op_class, own)
        for i, (y, array, delta) in enumerate(zip(exact, arrays, floors)):
            leaf = self._leaf(y, array, own[i] if own is not None else None, delta)
            made.expected.append(replace(leaf, reference=None) if op_class is OpClass.UNINITIALISED else leaf)
        made.on_device = self._on_device(args, kwargs, made)
        try:
            self._define(made, placement.definition, random)
        except Exception as error:
            made.failure = Failure.of(error, "reference")
        if self.second and numeric and not made.definition and not made.failure and not placement.own_dtype:
            self._ask_second(args, kwargs, made)
        return made

    def _define(self, made: Sample, definition: str, random: list[list[np.ndarray]]) -> None:
        """Say by which definition the sample is judged, if by one, and what that is to give."""
        if made.op_class is OpClass.CHOICE:
            references = [leaf.reference for leaf in made.expected if leaf.reference is not None]
            made.definition = definition
            made.derived = definitions.predict_defined_leaves(
                definition, made.args, made.kwargs, made.arrays, references, self.dtype
            )
        elif random and all(np.isfinite(np.stack(many)).all() for many in zip(*random)):
            name = definition or "moments"
            if name not in definitions.OF_DRAWS:  # what is drawn is the way, not the result
                made.derived = definitions.predict_drawn_leaves(
                    name, made.args, made.kwargs, made.arrays, random, self.dtype
                )
            elif (found := definitions.derive_of_draws(name, random))[0]:
                made.derived = definitions.expect_moments(found, self.dtype)
                made.repeats = REPEATS if count_different_draws(random) == len(random) else 1
            else:
                return  # so few elements that any could be chance
            made.definition, made.oracle = name, "float64"

    def _on_device(self, args: Any, kwargs: Any, made: Sample) -> list[Metadata]:
        """`Sample.on_device`. What is alike of a call is alike of all of its mode whose tensors have the same dtypes and
        ranks: a meta kernel takes milliseconds."""
        if not declared.may_device_dtypes_differ(self.dtype, len(made.expected)):
            return []
        tensors = tuple((x.dtype, x.ndim, x.size == 0) for x in made.arrays)
        kind = declared.describe_call_modes(made.args, made.kwargs), tensors
        if kind in self._alike_there:
            return []
        there = declared.infer_meta_outputs(self.op, args, kwargs)
        here: list[Metadata] = [(leaf.dtype, leaf.shape) for leaf in made.expected]
        if there is None or (len(there) != len(here) and None in there):
            return []
        found = [x or here[place] for place, x in enumerate(there)]
        if found != here:
            return found
        self._alike_there.add(kind)
        return []

    def _ask_second(self, args: Any, kwargs: Any, made: Sample) -> None:
        import torch

        torch.set_default_dtype(torch.float64)
        try:
            made.others.append(
                torch_reference.compute_opinfo_oracle(self.info, args, kwargs, made.expected, widen_torch_argument)
            )
        except torch_reference.NoOracle:
            pass
        finally:
            torch.set_default_dtype(torch.float32)

    def _run(self, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
        return self.op(*map_leaves(args, change), **map_leaves(kwargs, change))

    def _exact(self, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
        """The op in float64: torch's own, or the reference where torch's is known to be wrong."""
        if self.settled is None:
            return self._run(args, kwargs, change)
        return self.settled(*map_leaves(args, change), **map_leaves(kwargs, change))

    def _leaf(self, exact: Any, array: np.ndarray, own: Any, delta: np.ndarray | None) -> Leaf:
        import torch

        if own is None:
            dtype = array.dtype.name
            if dtype in ("float64", "complex128") and isinstance(exact, torch.Tensor):
                real = {"complex64": "float32", "complex128": "float64"}.get(self.dtype, self.dtype)
                dtype = (real if is_inexact_dtype(real) else "float32") if dtype == "float64" else self.dtype
        else:
            dtype = (
                torch_tree.name_torch_dtype(own.dtype)
                if isinstance(own, torch.Tensor)
                else torch_tree.make_output_array(own).dtype.name
            )
        if dtype == "object":
            dtype = "str"
        shape = tuple(exact.shape) if isinstance(exact, torch.Tensor) else ()
        if is_inexact_dtype(dtype):
            array = array.astype(np.complex128 if is_complex_dtype(dtype) else np.float64, copy=False)
        elif dtype != "str" and array.dtype.name != dtype:
            array = array.astype(get_numpy_dtype(dtype))
        return Leaf(dtype, shape, array, delta)

    def _noise(
        self,
        args: Any,
        kwargs: Any,
        exact: list[Any],
        arrays: list[np.ndarray],
        op_class: OpClass,
        own: list[Any] | None,
    ) -> list[np.ndarray | None]:
        """δ per output of ``exact`` (as ``arrays``), as `tasks.arrays.noise` draws it; ``own``: what torch itself
        returns.

        Integers that an op turns into floats are moved as such, of several tensors only the first: the others may be
        indices. A tensor that counts or names a degree (`Placement.fixed`) stays.
        """
        import torch

        nothing: list[np.ndarray | None] = [None] * len(exact)
        numbers = [isinstance(y, torch.Tensor) for y in exact]
        inexact = any(is_number and y.dtype.kind in "fc" for is_number, y in zip(numbers, arrays))
        turned = inexact and not is_inexact_dtype(self.dtype)
        given = TorchArguments(args, kwargs)
        movable = given.movable(turned, op_classes.find_op_class(self.name, self.variant).fixed)
        if not movable:
            return nothing
        eps = EPS.get(self.dtype, EPS["float32"])

        def evaluate(draws: Sequence[int]) -> Iterator[list[np.ndarray] | None]:
            for part in _split_draws(draws, given.leaves):
                for leaves in given.perturb(movable, eps, part):
                    try:
                        yield torch_tree.list_output_arrays(self._compute_perturbed(*given.of(leaves)))
                    except Exception:
                        if turned:
                            raise
                        yield None  # off the op's domain by one ulp: the result may be anything

        elements = sum(x.numel() for x in given.leaves if isinstance(x, torch.Tensor) and x.layout == torch.strided)
        witness = None if own is None else map(_compute_witness, own)  # few are asked: the rest are not even widened
        torch.set_default_dtype(torch.float64)
        try:
            floors = noise.compute_noise_floor(arrays, evaluate, op_class, self.draws, elements, witness)
        except Exception:
            if not turned:
                raise
            return nothing  # integers that cannot be floats are exact
        finally:
            torch.set_default_dtype(torch.float32)
        return [delta if is_number else None for delta, is_number in zip(floors, numbers)]

    def _compute_perturbed(self, args: Any, kwargs: Any) -> Any:
        """What the float64 reference returns for moved arguments."""
        return (self.settled or self.op)(*args, **kwargs)


def _split_draws(draws: Sequence[int], leaves: list[Any]) -> Iterator[Sequence[int]]:
    """The draws, all at once where their tensors are small."""
    import torch

    large = sum(x.numel() for x in leaves if isinstance(x, torch.Tensor)) * len(draws) > 1 << 20
    yield from ([draw] for draw in draws) if large else (draws,)


def _compute_witness(own: Any) -> tuple[np.ndarray, float] | None:
    import torch

    if not isinstance(own, torch.Tensor) or not own.is_floating_point():
        return None
    return torch_tree.tensor_to_numpy(own.double()), EPS.get(torch_tree.name_torch_dtype(own.dtype), 0.0)


def _compute_constants_floor(y: Any, dtype: str) -> np.ndarray | None:
    """The noise floor of an output whose rounding errors come from numbers inside the op: ε of the largest element."""
    import torch

    if not isinstance(y, torch.Tensor) or not y.is_floating_point() or not y.numel():
        return None
    return np.full(tuple(y.shape), EPS.get(dtype, EPS["float32"]) * y.abs().max().item())
