"""Gradients of functions of torch tensors, held against differences in float64; autograd.Functions as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.client.judging import assert_correct
from farm.client.kernels import ClientError, find_kernel, refuse_negative, split_given_inputs
from farm.client.process import isolate_client_settings
from tasks.arrays import torch_tree
from tasks.catalogs.user import functions, interpreted, kernel_promises
from tasks.catalogs.user.load_kernels import DeclaredKernel
from tasks.gradients import autograd
from tasks.judge.error_metrics import USUAL_UNITS
from tasks.judge.weak_samples import compare_two_oracles
from tasks.model import Leaf, OpClass

#: Said of a function that no differences can be taken of, nor a gradient be checked by them.
RANDOM = (
    "the function is random: two runs on the same inputs differ; seed every call (def seeded(x): torch.manual_seed(0); "
    "return dropout(x)), or pass its draws as an input"
)


#: A step is unfit whose error estimate is so many times that of one that fits, and more than this of the slope.
UNFIT, GOOD = 100.0, 1e-6
#: Beside the inputs, or 1: outputs no larger are what cancelling left.
TINY = 1e-12
#: Said of a function that rounds to less than float64 inside or at its end.
COARSE = (
    "differences of {0} say nothing about a gradient; compute in the inputs' dtype, or compare with a reference: farm.fuzz(…, "
    "backward=True)"
)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. units: how far it is off, in error units of float64, beyond the differences' own
    error; judged: False where nothing could be said."""

    name: str
    passed: bool
    units: float | None
    message: str
    judged: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {'not judged: ' * (not self.judged)}{'failed: ' * (not self.passed)}{self.message}"


@dataclass(frozen=True)
class GradientVerdict:
    """What was found of a function's gradients."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong. A gradient that could not be judged has not passed."""
        return not self._bad

    @property
    def _bad(self) -> list[Check]:
        return [c for c in self.checks if not c.passed or (c.name == "backward" and not c.judged)]

    @property
    def message(self) -> str:
        return "; ".join(map(str, self._bad or self.checks))

    def check(self) -> None:
        """Raise AssertionError unless all passed."""
        __tracebackhide__ = True  # pytest shows the test's line
        if not self.passed:
            raise AssertionError(self.message)

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))


@isolate_client_settings()
def check_autograd(
    function: Callable[..., Any] | None = None,
    inputs: Sequence[Any] | Any = (),
    eps: float | None = None,
    atol: float = 0.0,
    rtol: float = 0.0,
    double: bool = False,
    *,
    func: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
) -> GradientVerdict:
    """Hold the gradients that autograd gives of ``function(*inputs)`` against finite differences of it, both in
    float64.

    Floating inputs are taken as float64, whatever they are given as; those that require a gradient are differentiated,
    or all of them. The differences tell their own error, which is taken off first, so no tolerance is needed; atol and
    rtol, if given, forgive more. eps: by how much every number is moved, instead of a step that fits it; the result
    says where it does not fit. double: the gradient of the gradient too. func: another name of ``function``. Of a
    function of NumPy arrays the gradient is what ``backward`` computes, or the function's own attribute of that name
    (see `farm.UserOp` and `farm.autograd`). Raises ClientError where nothing can be differentiated.
    """
    refuse_negative(eps=eps, atol=atol, rtol=rtol)
    if eps == 0:
        raise ClientError("eps: 0 is no step; omit it to use one that fits the values")
    if function is not None and func is not None:
        raise ClientError("function and func are both given: func is another name of function")
    call, args = _as_tensor_function(_check_callable(func if function is None else function), inputs, backward)
    checks = ["backward", *["double_backward"] * double]
    return GradientVerdict(tuple(GradientCase.of(name, call, args).judge(eps, atol, rtol) for name in checks))


def _check_callable(function: Any) -> Any:
    if not callable(function):
        raise ClientError(f"{function!r} is not a function: pass the kernel itself")
    return function


def _as_tensor_function(
    function: Callable[..., Any], inputs: Sequence[Any] | Any, backward: Callable[..., Any] | None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(the function, its arguments), as tensors where they are NumPy arrays: ``backward``, or the function's own, is
    then what autograd computes. Raises ClientError."""
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if not any(isinstance(x, np.ndarray) for x in args):
        if backward is not None:
            raise ClientError("backward: it is for a function of NumPy arrays, and no input is one")
        own: Any = function
        return own.apply if functions.find_callable_function(own) is not own else own, args
    arrays, others = split_given_inputs(function, args)
    specs = {name: {"shape": list(x.shape), "dtype": x.dtype.name} for name, x in arrays.items()}
    kernel = find_kernel(function, function, specs, backward=backward or True, framework="numpy", kwargs=others)
    one = DeclaredKernel(kernel.op, (), kernel.root)
    call = kernel_promises.guard_kernel_promises(kernel.op, function, one.backward)

    def by_position(*tensors: Any) -> Any:
        return call(**dict(zip(arrays, tensors)), **others)

    return by_position, tuple(torch_tree.tensor_from_numpy(x.copy()) for x in arrays.values())


@dataclass(frozen=True)
class GradientCase:
    """A gradient of a function at some inputs. check: backward, or double_backward, the gradient of the gradient;
    function: as it is given; args: in float64; wrt: the places, among its tensors, of those that are differentiated."""

    check: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    wrt: list[int]

    @classmethod
    def of(cls, check: str, function: Callable[..., Any], args: Sequence[Any]) -> GradientCase:
        """The case of inputs of any dtype, on their device. Raises ClientError where nothing can be differentiated."""
        import torch

        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        floating = [i for i, x in enumerate(tensors) if x.is_floating_point() or x.is_complex()]
        if not floating:
            libraries = (x for x in args if callable(getattr(x, "backward", None)) and not torch.is_tensor(x))
            own = next((type(x).__name__ for x in libraries), "")
            how = f"; an input is a {own}: pass its NumPy array, and put @farm.autograd({own}) before the function"
            raise ClientError(f"no input is a floating tensor: nothing can be differentiated{how * bool(own)}")
        asked = [i for i in floating if tensors[i].requires_grad]

        def widen(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            wide = torch.complex128 if x.is_complex() else torch.float64 if x.is_floating_point() else x.dtype
            return x.detach().to(wide).clone()

        return cls(check, function, tuple(map(widen, args)), asked or floating)

    def again(self) -> GradientCase:
        """The same case, whose inputs nothing has written to yet."""
        return replace(self, args=tuple(x.clone() if hasattr(x, "clone") else x for x in self.args))

    def call(self, *args: Any) -> Any:
        """The function. Raises ClientError where it gives less than float64, or Triton's interpreter cannot run it."""
        import torch

        try:
            with interpreted.prepare_triton_interpreter():
                result = self.function(*args)
        except Exception as error:
            if text := interpreted.explain_not_interpreted(error):
                raise ClientError(text) from error
            raise
        for y in torch_tree.list_output_tensors(result):
            if isinstance(y, torch.Tensor) and y.is_floating_point() and y.dtype != torch.float64:
                name = torch_tree.name_torch_dtype(y.dtype)
                raise ClientError(f"the function returns {name} for float64 inputs: {COARSE.format(name)}")
        return result

    def outputs(self, args: Sequence[Any] | None = None) -> list[Any]:
        """What the function computes of its inputs, or of others, without a graph; it may write to them."""
        import torch

        given = self.args if args is None else args
        with torch.no_grad():
            return torch_tree.list_output_tensors(
                self.call(*(x.clone() if isinstance(x, torch.Tensor) else x for x in given))
            )

    def starts(self, check: str = "backward") -> list[Any]:
        """What a check's gradients begin at; None for what has no graph."""
        return autograd.list_differentiable_outputs(check, self.call, self.args, {}, self.wrt)

    def draw(self, starts: Sequence[Any], seed: str) -> list[Any]:
        """The gradients that are handed to what they begin at."""
        shapes = [(tuple(y.shape), torch_tree.name_torch_dtype(y.dtype)) for y in starts if y is not None]
        left = iter(autograd.draw_cotangents(shapes, seed))
        return [None if y is None else torch_tree.tensor_from_numpy(next(left)).to(y.device) for y in starts]

    def differentiate(self, given: Sequence[Any], check: str = "", **more: Any) -> list[Any]:
        return autograd.differentiate_backward(check or self.check, self.call, self.args, {}, self.wrt, given, **more)

    def problem(self, given: Sequence[Any]) -> autograd.GradientProblem:
        """The function whose gradient the check computes."""
        return autograd.make_gradient_problem(self.check, self.call, self.args, {}, self.wrt, given)

    def judge(self, eps: float | None = None, atol: float = 0.0, rtol: float = 0.0) -> Check:
        """The gradient by autograd against differences. Raises ClientError, and what the function itself raises."""
        starts = self.starts()
        if all(y is None for y in starts):
            return self._judge_unconnected()
        try:
            if self.check != "backward":
                first, starts = starts, self.starts(self.check)
                if lost := self._find_lost(first, starts[len(first) :]):
                    return Check(self.check, False, None, lost)
            return self._compare(starts, eps, atol, rtol)
        except ClientError:
            raise
        except Exception as error:
            return _judge_gradcheck_error(self.check, error)

    def unjudged(self, why: str) -> Check:
        return Check(self.check, True, None, why, judged=False)

    def _find_lost(self, outputs: Sequence[Any], starts: Sequence[Any]) -> str:
        """What is to be said of a gradient that autograd cannot differentiate, though it is not 0; "" if there is none.
        starts: of the gradients, None for such a one, and for a sparse one, of which nothing is known."""
        import torch

        found = self.differentiate([None if y is None else torch.ones_like(y) for y in outputs], "backward")
        seen = [
            (at, g) for at, g, y in zip(self.wrt, found, starts) if y is None and autograd.is_argument_differentiable(g)
        ]
        lost = [at for at, g in seen if g.any()]
        if not lost:
            return ""
        return (
            f"the gradient of tensor {lost[0]} has no graph, so its own gradient would be 0 without a word: mark the backward pass "
            "with once_differentiable, or compute in it what autograd can differentiate"
        )

    def _judge_unconnected(self) -> Check:
        """Of outputs that autograd knows no way to from the inputs: whether they depend on them all the same."""
        import torch

        floating = [y if autograd.is_argument_differentiable(y) else None for y in self.outputs()]
        if all(y is None for y in floating):
            return self.unjudged("no output is a floating tensor")
        problem = replace(self, check="backward").problem([None if y is None else torch.ones_like(y) for y in floating])
        places = enumerate(autograd.list_argument_tensors(self.args, {}))
        oracle, why = autograd.compute_second_gradient_oracle(
            problem, [np.zeros(x.shape) for i, x in places if i in self.wrt]
        )
        if oracle is None:
            return self.unjudged(self._find_random() or why)
        if any(np.any(y) for y in oracle.references):
            words = "the outputs depend on the inputs, but autograd finds no path between them: something detaches them"
            return Check(self.check, False, None, words)
        if random := self._find_random():  # of draws, differences may say that they are 0 within their error
            return self.unjudged(random)
        return Check(self.check, True, None, "no output depends on a differentiable input")

    def _compare(self, starts: Sequence[Any], eps: float | None, atol: float, rtol: float) -> Check:
        given = self.draw(starts, self.check)
        found = [torch_tree.make_output_array(torch_tree.dense(g)).copy() for g in self.differentiate(given)]
        problem = self.problem(given)
        oracle, why = autograd.compute_second_gradient_oracle(problem, found, eps=eps)
        unfit = "" if eps is None else _find_unfit_step(problem, eps)
        if oracle is None:
            silent = f"differences say nothing: {why}"
            if eps is not None:
                silent = f"with eps={eps:g} {silent}; omit it, and a step is taken that fits"
            return self.unjudged(self._find_random() or self._find_coarse() or unfit or silent)
        pairs = list(zip(found, oracle.references))
        compared = compare_two_oracles(
            found, [Leaf(g.dtype.name, g.shape, np.asarray(y)) for g, y in pairs], OpClass.COMPOSITE
        )
        units = float(compared["units"])
        passed = units <= USUAL_UNITS
        if atol or rtol:
            passed |= all(np.allclose(g, y, rtol, atol, equal_nan=True) for g, y in pairs)
        if not passed and (coarse := self._find_coarse()):
            return self.unjudged(coarse)
        said = f"{units:.3g} error units from differences in float64, {compared['detail']}"
        if oracle.name == autograd.ZERO:
            said = "0 within the differences' error"
        elif not passed:
            places = self.wrt if self.check == "backward" and len(found) > 1 else ()
            each = problem.elements < autograd.FULL_JACOBIAN or oracle.name != autograd.DIFFERENCES
            said += _describe_worst_gradient(pairs, places, each)
        more = [unfit, "" if passed else self._find_random()]
        return Check(self.check, passed, units, "; ".join([said, *filter(None, more)]))

    def _find_random(self) -> str:
        """What is to be said of a function whose runs on the same inputs differ, "" if they do not. Some runs of those
        that drop few of few elements are alike."""
        first = self.outputs()
        pairs = (pair for _ in range(8) for pair in zip(first, self.outputs()))
        return (
            ""
            if all(torch_tree.have_same_tensor_bits(x, y) for x, y in pairs if autograd.is_argument_differentiable(x))
            else RANDOM
        )

    def _find_coarse(self) -> str:
        """What is to be said of a function that computes in float32 or less inside: of float64 inputs that no float32
        is, an output is one, element by element, and so it is of numbers near 1; "" if none is."""
        import torch

        generator = torch.Generator().manual_seed(0)

        def tame(x: Any) -> Any:
            return torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)

        changed = (lambda x: x * (1 + 1e-9), tame)
        given = [[f(x) if autograd.is_argument_differentiable(x) else x for x in self.args] for f in changed]
        # 0.5 is a float32: a softmax of ties is no evidence, a softmax of random numbers is.
        seen, near = ([_is_float32(y, TINY * _find_largest_input(xs)) for y in self.outputs(xs)] for xs in given)
        if any(x and y is not False for x, y in zip(seen, near)):
            return f"it always computes in float32 or less internally: {COARSE.format('that')}"
        return ""

    def check_unchanged(self) -> Check:
        """Whether inputs and saved tensors are as they were after both passes."""
        given = self.draw(self.starts(), "saved")
        left = autograd.UntouchedInputs(autograd.list_argument_tensors(self.args, {}), given)
        self.differentiate(given, made=left.note_outputs)
        changed = left.describe_change()
        return Check(
            "saved", not changed, None, changed or f"{left.saved} saved tensors and all inputs are as they were"
        )

    def run_both(self) -> list[Any]:
        """What both passes give, as tensors."""
        given = self.draw(self.starts(), "saved")
        return [
            *(y.detach() for y in torch_tree.list_output_tensors(self.call(*self.args)) if hasattr(y, "detach")),
            *self.differentiate(given),
        ]


def _judge_gradcheck_error(check: str, error: Exception) -> Check:
    text = " ".join(str(error).split())
    if check == "double_backward" and "once_differentiable" in text:
        return Check(check, True, None, autograd.DECLARED_ONCE)
    if unsupported := interpreted.explain_not_interpreted(error):
        return Check(check, True, None, unsupported, judged=False)
    return Check(check, False, None, f"raised {type(error).__name__}: {text}")


def _describe_worst_gradient(pairs: Sequence[tuple[np.ndarray, Any]], places: Sequence[int], each: bool) -> str:
    """At which element gradients are furthest from their references, and of which tensor, if they have ``places`` among
    them. That takes a difference of ``each`` element: the change that explains projections is spread over all."""
    if not each:
        return " in random projections"
    gaps = [np.where(g == y, 0.0, np.nan_to_num(np.abs(g - y), nan=np.inf)) for g, y in pairs]
    most = int(np.argmax([gap.max(initial=0.0) for gap in gaps]))
    at = np.unravel_index(int(np.argmax(gaps[most])), gaps[most].shape)
    whose = f"gradient of tensor {places[most]}, " if places else ""
    found, right = (x[at] for x in pairs[most])
    return f" ({whose}at [{', '.join(map(str, at))}]: {found:.6g}, by differences {right:.6g})"


def _find_unfit_step(problem: autograd.GradientProblem, eps: float) -> str:
    """What is to be said of a step that is far worse for the values than one that fits; "" if it is not."""
    asked, fitting = autograd.fit_slope_step(problem, eps)
    off, scale = asked.error, abs(fitting.value) + abs(asked.value if asked.value == asked.value else 0.0)
    if fitting.why or not off > max(UNFIT * fitting.error, GOOD * scale):
        return ""
    how = asked.why or f"its differences may be off by {off:.2g}"
    return f"eps={eps:g} does not fit these values ({how}): omit it, and a step is taken that does"


def _find_largest_input(args: Sequence[Any]) -> float:
    """The largest number among differentiable inputs, 1 at most."""
    sizes = [float(x.abs().max()) for x in args if autograd.is_argument_differentiable(x) and x.numel()]
    return min([1.0, *sizes])


def _is_float32(y: Any, tiny: float) -> bool | None:
    """Whether every number of an output that is not whole is a float32; None where none says anything. What is left of
    terms that cancel says nothing: a few multiples of their last bit, no larger than ``tiny``."""
    import torch

    if not autograd.is_argument_differentiable(y):
        return None
    y = torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
    fractions = y[(y != y.round()) & y.isfinite() & (y.abs() > tiny)]
    return torch.equal(fractions, fractions.float().double()) if fractions.numel() else None


@isolate_client_settings()
def validate_autograd_function(
    function: Any, inputs: Sequence[Any], reference: Callable[..., Any] | None = None, **settings: Any
) -> GradientVerdict:
    """Look at a `torch.autograd.Function` (or anything that calls one) on inputs: forward, backward, saved tensors,
    double backward, repeats.

    forward: against ``reference`` (see `farm.assert_correct`, which takes the settings), if one is given. backward and
    double_backward: against differences in float64; a function whose backward cannot be differentiated twice has none,
    which must be said (`once_differentiable`). saved: neither pass changes an input or what is kept for the backward
    pass. repeats: both passes give the same bytes twice.
    """
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    call, args = _as_tensor_function(_check_callable(function), given, settings.pop("backward", None))
    checks = []
    if reference is not None:
        of_arrays = {"framework": "numpy"} if any(isinstance(x, np.ndarray) for x in given) else {}
        checks.append(_check_forward_function(function, given, reference, of_arrays | settings))
    for name, look in (
        ("backward", GradientCase.judge),
        ("saved", GradientCase.check_unchanged),
        ("double_backward", GradientCase.judge),
        ("repeats", _run_both_twice),
    ):
        try:
            made = GradientCase.of(name if name == "double_backward" else "backward", call, args)
            checks.append(look(made))
        except ClientError:
            raise
        except Exception as error:  # of one check, which is no reason to be silent of the others
            checks.append(_judge_gradcheck_error(name, error))
    return GradientVerdict(tuple(checks))


def _check_forward_function(
    function: Any, args: Sequence[Any], reference: Callable[..., Any], settings: dict[str, Any]
) -> Check:
    try:
        found = assert_correct(function, args, reference, **settings)
    except AssertionError as error:
        return Check("forward", False, None, str(error))
    return Check("forward", True, float(found.rows["error_units"].max()), "equals the reference")


def _run_both_twice(case: GradientCase) -> Check:
    """Both passes twice on the same inputs."""
    runs = [case.again().run_both() for _ in range(2)]
    same = all(torch_tree.have_same_tensor_bits(a, b) for a, b in zip(*runs))
    words = "the same bytes twice" if same else "two runs on the same inputs gave different bytes"
    return Check("repeats", same, None, words)
