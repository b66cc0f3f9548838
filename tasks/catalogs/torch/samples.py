"""Samples of torch's ops: arguments, float64 reference, noise floor, expected metadata; random ops by their moments."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.torch import reference as torch_reference
from tasks.catalogs.torch.noise import clone, moved, replaced, widen
from tasks.judge import definitions
from tasks.judge import op_classes as classes
from tasks.model import EPS, WITHOUT_NOISE, Leaf, OpClass, is_complex, is_inexact, np_dtype


def is_random(op: Callable[..., Any]) -> bool:
    """OpInfo wraps every op that draws random numbers in a lambda that seeds first."""
    code = getattr(op, "__code__", None)
    return code is not None and "wrapper_set_seed" in code.co_names


def unseeded(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op without that wrapper, which makes every call return the same numbers; any other op as it is."""
    if not is_random(op):
        return op
    names = op.__globals__ | {"wrapper_set_seed": lambda drawn, *args, **kwargs: drawn(*args, **kwargs)}
    return types.FunctionType(op.__code__, names, op.__name__, op.__defaults__, op.__closure__)


#: Draws of a random op's reference: enough that a range seldom lacks a value that occurs.
_RANDOM_DRAWS = 64
#: Draws of the noise floor of a step, which stands still in most of them: to be found, an edge needs more.
_STEP_DRAWS = 32
#: Elements of the inputs from which on no op gets further draws: one is then a matter of seconds.
_LARGE = 1 << 18
#: Where torch on the CPU itself is off by more than FAR units, the floor is drawn MORE_DRAWS times: a rare element that
#: hardly moved in the first draws is no false alarm then (`python -m tests.bench noise`).
FAR, MORE_DRAWS = 2.0, 16


class Maker:
    """Makes Samples of one (op, dtype): arguments, float64 reference, noise floor, expected metadata."""

    def __init__(self, info: Any, dtype: str, draws: int) -> None:
        self.info, self.op, self.dtype, self.draws = info, unseeded(info.op), dtype, draws
        self.seeded = is_random(info.op)
        self.name, self.variant = f"torch:{info.name}", info.variant_test_name
        self.settled = torch_reference.settled(info, widen)

    def make(self, index: int, source: Any) -> Sample:
        import torch

        args, kwargs = (source.input, *source.args), source.kwargs
        placement = classes.of(self.name, self.variant, {str(i): x for i, x in enumerate(args)} | kwargs, self.dtype)
        op_class = placement.op_class
        random: list[list[np.ndarray]] = []
        if self.seeded and op_class is not OpClass.UNINITIALISED:
            random = self._random(args, kwargs)
            # Drawn or not is a matter of the arguments: dropout with p=0 draws nothing.
            op_class = OpClass.RANDOM if random else OpClass.COMPOSITE if op_class is OpClass.RANDOM else op_class
        numeric = op_class not in (OpClass.RANDOM, OpClass.UNINITIALISED)
        wider = clone if placement.own_dtype else widen
        made = Sample(
            index, op_class=op_class, oracle="metadata" if not numeric else "numpy" if self.settled else "float64"
        )
        try:
            # Stored as JSON nodes already: the trees hold torch objects that only this side knows.
            encoded_args, encoded_kwargs, arrays = torch_tree.encode_args(args, kwargs)
        except Exception as error:
            made.failure = Failure("invalid", "store", type(error).__name__, str(error))
            return made
        # A copy, as the op is about to run on this memory and may write to it.
        made.arrays = [a.copy() for a in arrays]
        made.args, made.kwargs = encoded_args, encoded_kwargs
        with torch.no_grad():
            try:
                torch.set_default_dtype(torch.float64)
                try:
                    exact = [torch_tree.dense(x) for x in torch_tree.leaves(self._exact(args, kwargs, wider))]
                finally:
                    torch.set_default_dtype(torch.float32)
            except Exception as error:
                made.failure = Failure("invalid", "reference", type(error).__name__, str(error))
                return made
            try:
                own = [torch_tree.dense(x) for x in torch_tree.leaves(self._run(args, kwargs, clone))]
            except Exception:
                own = None  # the CPU lacks this dtype; another backend may have it
            if own is not None and len(own) != len(exact):
                made.failure = Failure("invalid", "reference", "", "the number of outputs depends on the dtype")
                return made
            # Of elementary ops as well, with few draws: a device that declares a coarser precision rounds their inputs.
            moving = numeric and op_class not in (OpClass.EXACT, OpClass.CHOICE)
            large = sum(a.size for a in made.arrays) > _LARGE
            steps = self.draws if large else _STEP_DRAWS
            draws = {OpClass.DISCONTINUOUS: steps, OpClass.ELEMENTARY: 2}.get(op_class, self.draws)
            noise = self._noise(args, kwargs, exact, range(draws)) if moving else [None] * len(exact)
            refine = moving and not large and op_class not in WITHOUT_NOISE and draws < MORE_DRAWS
            if refine and own is not None and self._far(own, exact, noise):
                more = self._noise(args, kwargs, exact, range(draws, MORE_DRAWS))
                noise = [a if b is None else b if a is None else torch.maximum(a, b) for a, b in zip(noise, more)]
            if placement.constants:
                noise = [_of_constants(y, self.dtype) for y in exact]
        for i, (y, delta) in enumerate(zip(exact, noise)):
            leaf = self._leaf(y, own[i] if own is not None else None, delta)
            made.expected.append(replace(leaf, reference=None) if op_class is OpClass.UNINITIALISED else leaf)
        try:
            self._define(made, placement.definition, random)
        except Exception as error:
            made.failure = Failure("invalid", "reference", type(error).__name__, str(error))
        if numeric and not made.definition and not made.failure and not placement.own_dtype:
            self._ask_second(args, kwargs, made)
        return made

    def _define(self, made: Sample, definition: str, random: list[list[np.ndarray]]) -> None:
        """Say by which definition the sample is judged, if by one, and what that is to give."""
        if made.op_class is OpClass.CHOICE:
            references = [leaf.reference for leaf in made.expected if leaf.reference is not None]
            made.definition = definition
            made.derived = definitions.expected(definition, made.args, made.kwargs, made.arrays, references, self.dtype)
        elif made.op_class is OpClass.RANDOM and random and all(np.isfinite(y).all() for draw in random for y in draw):
            name = definition or "moments"
            found = [definitions.derive(name, made.args, made.kwargs, made.arrays, draw) for draw in random]
            different = len({b"".join(y.tobytes() for y in draw) for draw in random})
            if not found[0] or different == 1:
                return  # so few elements that any could be chance, or one seldom drawn
            made.definition, made.oracle, made.derived = name, "float64", definitions.moments(found, self.dtype)
            made.repeats = 2 if different == len(random) else 1

    def _random(self, args: Any, kwargs: Any) -> list[list[np.ndarray]]:
        """Outputs of many float64 runs with different seeds; none at all if no random number was drawn."""
        import torch

        found: list[list[np.ndarray]] = []
        torch.set_default_dtype(torch.float64)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                for seed in range(_RANDOM_DRAWS):
                    torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every device's module first
                    untouched = torch.get_rng_state()
                    drawn = torch_tree.leaves(self._run(args, kwargs, widen))
                    found.append([torch_tree.output(torch_tree.dense(x)).copy() for x in drawn])
                    if seed == 0 and torch.equal(torch.get_rng_state(), untouched):
                        return []
        except Exception:
            return []
        finally:
            torch.set_default_dtype(torch.float32)
        return found

    def _ask_second(self, args: Any, kwargs: Any, made: Sample) -> None:
        import torch

        torch.set_default_dtype(torch.float64)
        try:
            made.others.append(torch_reference.oracle(self.info, args, kwargs, made.expected, widen))
        except torch_reference.NoOracle:
            pass
        finally:
            torch.set_default_dtype(torch.float32)

    def _run(self, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
        return self.op(*replaced(args, change), **replaced(kwargs, change))

    def _exact(self, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
        """The op in float64: torch's own, or the reference where torch's is known to be wrong."""
        if self.settled is None:
            return self._run(args, kwargs, change)
        return self.settled(*replaced(args, change), **replaced(kwargs, change))

    def _leaf(self, exact: Any, own: Any, delta: Any) -> Leaf:
        import torch

        array = torch_tree.output(exact)
        if own is None:
            dtype = array.dtype.name
            if dtype in ("float64", "complex128") and isinstance(exact, torch.Tensor):
                real = {"complex64": "float32", "complex128": "float64"}.get(self.dtype, self.dtype)
                dtype = (real if is_inexact(real) else "float32") if dtype == "float64" else self.dtype
        else:
            dtype = (
                torch_tree.name_of(own.dtype) if isinstance(own, torch.Tensor) else torch_tree.output(own).dtype.name
            )
        if dtype == "object":
            dtype = "str"
        shape = tuple(exact.shape) if isinstance(exact, torch.Tensor) else ()
        if is_inexact(dtype):
            array = array.astype(np.complex128 if is_complex(dtype) else np.float64)
        elif dtype != "str" and array.dtype.name != dtype:
            array = array.astype(np_dtype(dtype))
        return Leaf(dtype, shape, array, None if delta is None else torch_tree.to_numpy(delta))

    def _far(self, own: list[Any], exact: list[Any], noise: list[Any]) -> bool:
        """Whether torch's own result is so far off that it may be the noise floor that has been drawn too low."""
        import torch

        for a, y, delta in zip(own, exact, noise):
            if isinstance(y, torch.Tensor) and y.numel() and y.is_floating_point() and a.is_floating_point():
                eps = EPS.get(torch_tree.name_of(a.dtype), 0.0)
                allowed = y.abs().mul_(eps)
                if delta is not None:
                    allowed += delta
                if bool(((a.double() - y).abs() > FAR * allowed).any()):
                    return True
        return False

    def _noise(self, args: Any, kwargs: Any, exact: list[Any], draws: Iterable[int]) -> list[Any]:
        """δ per output: how far it moves when every floating input moves by a relative ±ε; None for nowhere.

        Integers that an op turns into floats are moved as such, of several tensors the first alone: the others may be
        indices. A tensor that counts or names a degree (`Placement.fixed`) stays.
        """
        import torch

        eps = EPS.get(self.dtype, EPS["float32"])
        fixed = classes.of(self.name, self.variant).fixed
        inexact = [y for y in exact if isinstance(y, torch.Tensor) and (y.is_floating_point() or y.is_complex())]
        turned = bool(inexact) and not is_inexact(self.dtype)
        floating = [False]
        total: list[Any] = [None] * len(exact)
        torch.set_default_dtype(torch.float64)
        try:
            for draw in draws:
                count = [0]

                def move(x: Any, draw: int = draw, count: list[int] = count) -> Any:
                    first = turned and not count[0]
                    if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex() or first):
                        count[0] += 1
                        if count[0] in fixed:
                            return widen(x)
                        floating[0] = True
                        if first and not (x.is_floating_point() or x.is_complex()):
                            x = x.double()
                        # A float32 weight of a float64 op is only as good as float32.
                        return moved(x, max(eps, EPS.get(torch_tree.name_of(x.dtype), eps)), draw, count[0])
                    return widen(x)

                try:
                    found = [torch_tree.dense(x) for x in torch_tree.leaves(self._exact(args, kwargs, move))]
                except Exception:
                    if turned:
                        return [None] * len(exact)  # integers that cannot be floats are exact
                    found = None  # off the op's domain by one ulp: the result may be anything
                if not floating[0]:
                    return total
                for i, y in enumerate(exact):
                    if not isinstance(y, torch.Tensor):
                        continue
                    p = found[i] if found is not None and len(found) == len(exact) else None
                    if p is None or p.shape != y.shape:
                        total[i] = torch.full(y.shape, float("inf"), dtype=torch.float64)
                        continue
                    if y.dtype == torch.bool or not (y.is_floating_point() or y.is_complex()):
                        d = (p.double() - y.double()).abs()
                    else:
                        d = (p - y).abs()
                        top = d.max().item() if d.numel() else 0.0
                        if top == 0:
                            continue
                        if not top < float("inf"):
                            same = (torch.isnan(p) & torch.isnan(y)) | (p == y)
                            d = torch.where(same, 0.0, torch.where(torch.isfinite(d), d, float("inf")))
                        d = d.double()
                    total[i] = d if total[i] is None else torch.maximum(total[i], d)
        finally:
            torch.set_default_dtype(torch.float32)
        return [t if t is None or bool(t.any()) else None for t in total]


def _of_constants(y: Any, dtype: str) -> Any:
    """The noise floor of an output whose rounding errors come from numbers inside the op: ε of the largest element."""
    import torch

    if not isinstance(y, torch.Tensor) or not y.is_floating_point() or not y.numel():
        return None
    return torch.full(y.shape, EPS.get(dtype, EPS["float32"]) * y.abs().max().item(), dtype=torch.float64)
