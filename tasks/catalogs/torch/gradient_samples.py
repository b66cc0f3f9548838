"""Samples of the torch catalog for the backward checks: cotangents, float64 gradients, their noise floor, differences."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.tree import decode_argument_tree, map_leaves
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.torch.arguments import clone_torch_argument, widen_torch_argument
from tasks.catalogs.torch.differentiable import PROCESS, name_output_processing
from tasks.catalogs.torch.samples import OpInfoSampleMaker, draw_random_outputs, read_rng_state
from tasks.gradients import autograd as gradients
from tasks.gradients import differences, floors, oracle
from tasks.judge import op_classes
from tasks.model import Group, Leaf, OpClass, is_complex_dtype, is_inexact_dtype

if TYPE_CHECKING:
    from tasks.prepare.cases import PreparedSample


#: Ops whose gradient is not the derivative of what they compute, and why: finite differences have nothing to say.
NO_DIFFERENCES = {
    **dict.fromkeys(
        ("half", "bfloat16", "chalf", "float", "cfloat"), "a cast rounds in steps, and its gradient is the identity's"
    ),
    **dict.fromkeys(
        ("nn.functional.max_unpool1d", "nn.functional.max_unpool2d", "nn.functional.max_unpool3d"),
        "which of the elements with one index is written is not defined",
    ),
    "as_strided_scatter": "which of the elements at one address is written is not defined",
}


class GradientSampleMaker(OpInfoSampleMaker):
    """Makes Samples whose expected outputs are gradients: of the tensors that require one, in their order.

    info: name, variant_test_name, op and ref, as an OpInfo has them; call: the op as OpInfo's gradient tests call it
    (see `TorchOpInfo.call`).
    """

    def __init__(self, info: Any, group: Group, draws: int, call: Callable[..., Any]) -> None:
        super().__init__(info, group.dtype, draws)
        self.name = group.op
        self.settled = None  # a reference of the outputs, not of gradients
        self.group, self.call = group, call
        self.wrt: tuple[int, ...] = ()
        #: What is differentiated of the sample that is made; of its floor, the number of the draw, and the nodes that
        #: keep what they have rounded.
        self.derivative: oracle.Derivative
        self.draw = 0
        self.kept: Collection[str] = ()

    def make(self, index: int, source: Any) -> Sample:
        import torch

        args, kwargs = (source.input, *source.args), dict(source.kwargs)
        named: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        op_class = gradients.class_gradient_of(
            op_classes.find_op_class(self.name, self.variant, named, self.dtype).op_class
        )
        if process := name_output_processing(source):
            kwargs[PROCESS] = process
        made = Sample(index, op_class=op_class)
        try:
            made.args, made.kwargs, arrays = torch_tree.encode_torch_args(args, kwargs)
        except Exception as error:
            made.failure = Failure.of(error, "store")
            return made
        made.arrays = [a.copy() for a in arrays]
        places = gradients.list_argument_tensors(args, kwargs)
        made.wrt = tuple(i for i, x in enumerate(places) if x.requires_grad and gradients.is_argument_differentiable(x))
        if not made.wrt:
            made.failure = Failure.vacuous("no input of the sample is differentiable", "reference")
            return made
        torch.set_default_dtype(torch.float64)
        try:
            with use_attention_formula(self.group.check):
                made.wrt = self._differentiable(args, kwargs, made.wrt)
                wide = self._starts(args, kwargs, made.wrt, widen_torch_argument)
            torch.set_default_dtype(torch.float32)
            given = gradients.draw_cotangents(
                self._metadata(args, kwargs, made.wrt, wide), f"{self.group.label}/{self.dtype}/{index}"
            )
            if not given:
                made.failure = Failure.vacuous("no output depends on a differentiable input", "reference")
                return made
            torch.set_default_dtype(torch.float64)
            with use_attention_formula(self.group.check):
                return self._add_gradients(made, args, kwargs, wide, given)
        except Exception as error:
            made.failure = Failure.of(error, "reference")
            return made
        finally:
            torch.set_default_dtype(torch.float32)

    def _differentiable(self, args: Any, kwargs: Any, wrt: tuple[int, ...]) -> tuple[int, ...]:
        """Those of some inputs by which the op can be differentiated, by torch's word: a norm's running mean is none.
        All of them where it takes none, for the sake of what it says."""

        def can_start(some: tuple[int, ...]) -> bool:
            try:
                self._starts(args, kwargs, some, widen_torch_argument)
            except Exception:
                return False
            return True

        if len(wrt) == 1 or can_start(wrt):
            return wrt
        return tuple(i for i in wrt if can_start((i,))) or wrt

    def _differentiate(self, check: str, point: oracle.Point, **hooks: Any) -> list[np.ndarray]:
        (own, named), given = point.inputs, point.cotangents
        if not point.disposable:  # an op may write to its arguments
            own, named, given = map_leaves((own, named, list(given)), widen_torch_argument)
        found = gradients.differentiate_backward(check, self.call, own, named, self.wrt, given, **hooks)
        return [torch_tree.make_output_array(torch_tree.dense(g)) for g in found]

    def _pose(self, check: str, point: oracle.Point) -> gradients.GradientProblem:
        own, named, given = map_leaves((*point.inputs, list(point.cotangents)), widen_torch_argument)
        return gradients.make_gradient_problem(check, self.call, own, named, self.wrt, given)

    def _compute_perturbed(self, args: Any, kwargs: Any) -> Any:
        """The gradient of moved arguments, in the next draw."""
        own, named, given = args
        self.draw += 1
        found = self.derivative.move(oracle.Point((own, named), given, disposable=True), self.draw, self.kept)
        return [torch_tree.tensor_from_numpy(y) for y in found]

    def _starts(self, args: Any, kwargs: Any, wrt: Sequence[int], change: Callable[[Any], Any]) -> list[Any]:
        return gradients.list_differentiable_outputs(
            self.group.check, self.call, map_leaves(args, change), map_leaves(kwargs, change), wrt
        )

    def _metadata(
        self, args: Any, kwargs: Any, wrt: Sequence[int], exact: list[Any]
    ) -> list[tuple[tuple[int, ...], str]]:
        """(shape, dtype) of what a cotangent is needed for, the dtype as the op returns it in the dtype under test."""
        try:
            own = self._starts(args, kwargs, wrt, clone_torch_argument)
        except Exception:
            own = []  # the CPU lacks this dtype; another backend may have it
        found = []
        for i, y in enumerate(exact):
            if y is None:
                continue
            if len(own) == len(exact) and own[i] is not None:
                dtype = torch_tree.name_torch_dtype(own[i].dtype)
            elif is_complex_dtype(self.dtype):
                dtype = self.dtype if y.is_complex() else {"complex64": "float32"}.get(self.dtype, "float64")
            else:
                dtype = self.dtype if is_inexact_dtype(self.dtype) and not y.is_complex() else "complex64"
            found.append((tuple(y.shape), dtype))
        return found

    def _add_gradients(self, made: Sample, args: Any, kwargs: Any, wide: list[Any], given: list[np.ndarray]) -> Sample:
        """``made`` with its cotangents, expected gradients and second oracle."""
        base = len(made.arrays)
        made.arrays += given
        numbers = iter(range(base, len(made.arrays)))
        made.cotangents = tuple(-1 if y is None else next(numbers) for y in wide)
        passed = [None if i < 0 else torch_tree.tensor_from_numpy(made.arrays[i]) for i in made.cotangents]
        self.wrt, self.draw = made.wrt, 0
        check, dtype = self.group.check, self.dtype
        self.derivative = oracle.Derivative(check, dtype, oracle.TORCH_OP, self._differentiate, self._pose)
        point = oracle.Point((args, kwargs), passed)
        before = read_rng_state()
        arrays = self.derivative.follow(point)
        drawn = read_rng_state() != before
        if drawn and draw_random_outputs(lambda: self._differentiate(check, point)):
            made.op_class, made.oracle = OpClass.RANDOM, "metadata"
        numeric = made.op_class is not OpClass.RANDOM
        strict: floors.Floors = [None] * len(arrays)
        noisy = list(strict)
        forward = [
            torch_tree.make_output_array(torch_tree.dense(y))
            for y in wide[: self._outputs(wide, made)]
            if y is not None
        ]
        if numeric:
            own = self._own((args, kwargs, passed), len(arrays))
            silent = self._explain_silence(drawn, arrays)
            exact = oracle.by_autograd(self.derivative, point, arrays, forward, silent)
            arrays, made.oracle = exact.values, exact.name
            made.others = [exact.other] if exact.other else []
            made.columns |= exact.columns
            own_error = floors.measure_derivative_roundoff(self.derivative, point, arrays)
            tensors = [torch_tree.tensor_from_numpy(y) for y in arrays]

            def floor(kept: Collection[str], last: bool) -> floors.Floors:
                self.kept = kept
                return self._noise((args, kwargs, passed), {}, tensors, arrays, made.op_class, own if last else [])

            noisy, least = floors.measure_floors(self.derivative, floor)
            if least is not None:
                strict = [
                    floors.add_gradient_floors(np.zeros(y.shape), s, e) for y, s, e in zip(arrays, least, own_error)
                ]
            left = floors.measure_derivative_remainders(self.derivative, arrays, lambda change: _move(point, change))
            noisy = [floors.add_gradient_floors(f, e, r) for f, e, r in zip(noisy, own_error, left)]
        places = gradients.list_argument_tensors(args, kwargs)
        sources = [places[i] for i in made.wrt] + [c for c in passed[: self._outputs(wide, made)] if c is not None]
        if numeric:
            dtypes = [torch_tree.name_torch_dtype(x.dtype) for x in sources]
            noisy = [floors.widen_gradient_floor(y, delta, forward, d) for y, delta, d in zip(arrays, noisy, dtypes)]
        ties = self._ties(places, wide, made) if numeric else [None] * len(arrays)
        for x, array, delta, bare, tied in zip(sources, arrays, noisy, strict, ties):
            made.expected.append(
                Leaf(torch_tree.name_torch_dtype(x.dtype), array.shape, array, delta, kept=bare, ties=tied)
            )
        return made

    def _explain_silence(self, drawn: bool, arrays: Sequence[np.ndarray]) -> str:
        """Why differences say nothing of the gradients; "" where they do."""
        if drawn:
            return "the outputs are drawn"
        if why := NO_DIFFERENCES.get(self.group.label.partition(":")[2]):
            return why
        if op_classes.find_op_class(self.name, self.variant).op_class is OpClass.EXACT and not any(
            y.any() for y in arrays
        ):
            return "it is constant between its steps"
        if self.group.distribution == "adversarial" and sum(y.size for y in arrays) >= gradients.FULL_JACOBIAN:
            return "ties and sizes far apart: a direction through all elements meets kinks"
        return ""

    def _ties(self, places: list[Any], wide: list[Any], made: Sample) -> list[np.ndarray | None]:
        """Per gradient, what is equal of its input or, of a cotangent's, of its output, where the op chooses among
        equals and is not told which by integers that it is given."""
        chosen = [places[i] for i in made.wrt]
        outputs = [y for y in wide[: self._outputs(wide, made)] if y is not None]
        if self.derivative.graph.choice is None or not all(gradients.is_argument_differentiable(x) for x in places):
            return [None] * (len(chosen) + len(outputs))
        dim = self.derivative.graph.choice.dim
        return [
            _number_equal_elements(torch_tree.make_output_array(torch_tree.dense(x.detach())), dim)
            for x in (*chosen, *outputs)
        ]

    def _own(self, args: Any, count: int) -> list[Any] | None:
        """torch's own gradients in the dtype under test; None where it has none on the CPU, or another number of
        them."""
        import torch

        torch.set_default_dtype(torch.float32)
        try:
            own, named, given = map_leaves(args, clone_torch_argument)
            found = gradients.differentiate_backward(self.group.check, self.call, own, named, self.wrt, given)
            return [torch_tree.dense(g) for g in found] if len(found) == count else None
        except Exception:
            return None
        finally:
            torch.set_default_dtype(torch.float64)

    def _outputs(self, wide: list[Any], made: Sample) -> int:
        """How many of the cotangents belong to the op's outputs."""
        return len(wide) - (len(made.wrt) if self.group.check == "double_backward" else 0)


def _number_equal_elements(x: np.ndarray, dim: int | None) -> np.ndarray | None:
    """A number for each element of ``x``, shaped as it, that those which are equal share, along a dimension or
    anywhere; None where none are."""
    distinct, numbers = np.unique(x, return_inverse=True)
    numbers = numbers.reshape(x.shape)
    if dim is not None and x.ndim and x.size:
        lines = np.moveaxis(np.arange(x.size // x.shape[dim]).reshape(*np.delete(x.shape, dim), 1), -1, dim)
        numbers = numbers + lines * len(distinct)
    return None if len(np.unique(numbers)) == x.size else numbers.astype(np.int64)


def use_attention_formula(check: str) -> contextlib.AbstractContextManager[None]:
    """Where attention is its formula, which can be differentiated twice. A first derivative is that of the fused
    kernel, whose noise floor has what rounding its saved result does to Σ g·p, where a softmax of one key would give
    nothing."""
    if check != "double_backward":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    context: contextlib.AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return context


def _move(point: oracle.Point, change: Callable[[Any], Any]) -> oracle.Point:
    """The point with the float64 twin of each of its tensors changed."""
    import torch

    def change_wide(x: Any) -> Any:
        y = widen_torch_argument(x)
        return change(y) if isinstance(y, torch.Tensor) else y

    inputs, cotangents = map_leaves((point.inputs, list(point.cotangents)), change_wide)
    return oracle.Point(inputs, cotangents, disposable=True)


def measure_difference_curve(sample: PreparedSample, steps: np.ndarray) -> np.ndarray | None:
    """Relative errors of central differences along a random direction against the function's own gradient in float64,
    one per step.

    None where there is nothing to relate to: the gradient along the direction is zero or not finite. An error of
    nothing is shown as 1e-17.
    """
    import torch

    form = sample.form("torch")
    assert form.call is not None
    leaf = torch_tree.make_tensor_decoder(form.arrays.__getitem__, "cpu")
    args, kwargs = (
        map_leaves(decode_argument_tree(node, leaf), widen_torch_argument) for node in (form.args, form.kwargs)
    )
    given = [
        None if i < 0 else widen_torch_argument(torch_tree.tensor_from_numpy(form.arrays[i].copy()))
        for i in form.cotangents
    ]
    problem = gradients.make_gradient_problem(form.check, form.call, args, kwargs, form.wrt, given)
    if not any(x.size for x in problem.inputs):
        return None
    direction = differences.draw_directions(problem.inputs, 1)[0]
    torch.set_default_dtype(torch.float64)
    try:
        found = gradients.differentiate_backward(form.check, form.call, args, kwargs, form.wrt, given)
        exact = differences.project_gradient(
            [torch_tree.make_output_array(torch_tree.dense(g)) for g in found], direction
        )
        if exact == 0 or not np.isfinite(exact):
            return None
        line = differences.DifferencesAlong(problem.function, problem.inputs, problem.cotangents, direction)
        with np.errstate(all="ignore"):
            return np.maximum(np.abs(np.array([line.central(float(h)) for h in steps]) - exact) / abs(exact), 1e-17)
    finally:
        torch.set_default_dtype(torch.float32)
