"""Derivatives of functions of one or two numbers, and of softmaxes, each by a formula of its own that keeps its digits in float64.

torch differentiates many a function by its rounded result: tanh′ = 1 − y², which is 0 from 19.1 on in float64, where
tanh′ is 1e-16. In here (`use_own_derivatives`) torch's kernels stand with these derivatives instead, first and second, wherever a
composite op calls them. The formulas are those of NIST's DLMF (4.20, 4.34, 7.2, 10.29) and of the papers that define
the activations, written so that nothing nearly equal is subtracted. torch is imported inside functions.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NAME = "own derivatives"
#: 2/√π, the slope of erf at 0.
_ERF = 2 / math.sqrt(math.pi)
_LN2 = math.log(2.0)
#: From here on an asymptotic series of few terms has all digits of float64.
_FAR = 16.0

Tensor = Any
Unary = Callable[..., Tensor]


class NoRule(Exception):
    """A function is called with what its derivative in here is not for: complex numbers."""


@dataclass(frozen=True)
class DerivativeRule:
    """The derivative of one aten operator.

    backward: from the output's gradient and the operator's arguments to a gradient per tensor among them, in operations
    that torch differentiates again; several: whether it has further outputs, which are not differentiated; kept:
    whether torch, and every other framework, computes the derivative from the rounded result (1 − y²), which loses
    digits that the input still tells; along: whether it is a function of numbers along a dimension.
    """

    operator: str
    backward: Callable[..., Sequence[Tensor]]
    several: bool = False
    kept: bool = False
    along: bool = False


def _make_unary_rule(operator: str, first: Unary, second: Unary | None = None, **facts: bool) -> DerivativeRule:
    """first, second: derivatives of a function of the first argument, given what the operator is given."""

    def backward(gradient: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Sequence[Tensor]:
        if second is None:
            return (gradient * first(x, *args, **kwargs),)
        return (gradient * _make_slope_function().apply(first, second, (args, kwargs), x),)

    return DerivativeRule(operator, backward, **facts)


def _make_slope_function() -> Any:
    """A derivative as a function with a derivative of its own."""
    import torch

    global _SLOPE
    if _SLOPE is None:

        class Slope(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, first: Unary, second: Unary, more: Any, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)
                ctx.how = second, more
                return first(x, *more[0], **more[1])

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Any:
                (x,), (second, (args, kwargs)) = ctx.saved_tensors, ctx.how
                return None, None, None, gradient * second(x, *args, **kwargs)

        _SLOPE = Slope
    return _SLOPE


_SLOPE: Any = None


# ---- functions of one number; every formula in float64 alone


def _choose_derivative_where(condition: Tensor, one: Tensor, other: Tensor) -> Tensor:
    import torch

    return torch.where(condition, one, other)


def _derive_tanh(x: Tensor) -> Tensor:
    e = (-2 * x.abs()).exp()
    return 4 * e / (1 + e).square()


def _derive_sigmoid(x: Tensor) -> Tensor:
    """σ(x)·σ(−x)."""
    e = (-x.abs()).exp()
    return e / (1 + e).square()


def _derive_silu(x: Tensor) -> Tensor:
    return x.sigmoid() * (1 + x * (-x).sigmoid())


def _compute_normal_density(x: Tensor) -> Tensor:
    return (-0.5 * x.square()).exp() / math.sqrt(2 * math.pi)


def _derive_gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return 0.5 * (-math.sqrt(0.5) * x).erfc() + x * _compute_normal_density(x)
    u, du = _compute_gelu_inner(x)
    return (2 * u).sigmoid() + 2 * x * _derive_sigmoid(2 * u) * du


def _derive_gelu2(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return _compute_normal_density(x) * (2 - x.square())
    u, du = _compute_gelu_inner(x)
    curve = math.sqrt(2 / math.pi) * 6 * 0.044715 * x
    return _derive_sigmoid(2 * u) * (4 * du + 2 * x * curve - 4 * x * du.square() * u.tanh())


def _compute_gelu_inner(x: Tensor) -> tuple[Tensor, Tensor]:
    """u = √(2/π)·(x + 0.044715·x³) of GELU's approximation, and its derivative."""
    k = math.sqrt(2 / math.pi)
    return k * (x + 0.044715 * x**3), k * (1 + 3 * 0.044715 * x.square())


def _derive_mish(x: Tensor) -> Tensor:
    """t + x·(1 − t²)·σ(x) with t = tanh(log(1 + eˣ)), by w = e^−|x|."""
    t, s = _tanh_of_softplus(x)
    return t + x * s * x.sigmoid()


def _derive_mish2(x: Tensor) -> Tensor:
    """(1 − t²)·σ(x)·(2 + x·(σ(−x) − 2·t·σ(x)))."""
    t, s = _tanh_of_softplus(x)
    return s * x.sigmoid() * (2 + x * ((-x).sigmoid() - 2 * t * x.sigmoid()))


def _tanh_of_softplus(x: Tensor) -> tuple[Tensor, Tensor]:
    """(t, 1 − t²): t = n/(n + 2) with n = e²ˣ + 2eˣ."""
    w = (-x.abs()).exp()
    n, d = w.square() + 2 * w, w.square() + 2 * w + 2
    right, all_ = 1 + 2 * w, 1 + 2 * w + 2 * w.square()
    t = _choose_derivative_where(x < 0, n / d, right / all_)
    s = _choose_derivative_where(
        x < 0, 4 * (1 + w).square() / d.square(), 4 * w.square() * (1 + w).square() / all_.square()
    )
    return t, s


def _derive_softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return _choose_derivative_where(x * beta > threshold, x.new_ones(()), (x * beta).sigmoid())


def _derive_softplus2(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return _choose_derivative_where(x * beta > threshold, x.new_zeros(()), beta * _derive_sigmoid(x * beta))


def _derive_erfcx(x: Tensor) -> Tensor:
    """2·x·erfcx(x) − 2/√π (DLMF 7.10)."""
    import torch

    return _choose_derivative_where(x > _FAR, _derive_erfcx_asymptotically(x, 1), 2 * x * torch.special.erfcx(x) - _ERF)


def _derive_erfcx2(x: Tensor) -> Tensor:
    """(2 + 4·x²)·erfcx(x) − 4·x/√π."""
    import torch

    near = (2 + 4 * x.square()) * torch.special.erfcx(x) - 2 * _ERF * x
    return _choose_derivative_where(x > _FAR, _derive_erfcx_asymptotically(x, 2), near)


def _derive_erfcx_asymptotically(x: Tensor, order: int) -> Tensor:
    """The first or second derivative of Σ (−1)ᵏ·(2k − 1)!!/2ᵏ·x^−(2k + 1)/√π, which erfcx is far from 0 (DLMF
    7.12.1)."""
    import torch

    total, factor = torch.zeros_like(x), _ERF / 2
    for k in range(11):
        n = 2 * k + 1
        slope = -n / x ** (n + 1) if order == 1 else n * (n + 1) / x ** (n + 2)
        total, factor = total + factor * slope, -factor * n / 2
    return total


def _derive_sinc(x: Tensor) -> Tensor:
    """(cos πx − sinc x)/x; within a quarter of 0 its Taylor series, as both are nearly 1 there."""
    import torch

    z = math.pi * x
    q = z.square()
    term, total = -z / 3, torch.zeros_like(z)
    for k in range(1, 16):  # of sin z/z: Σ (−1)ᵏ·2k·z²ᵏ⁻¹/(2k+1)!
        total = total + term
        term = term * (-q) * (k + 1) / (k * (2 * k + 2) * (2 * k + 3))
    return _choose_derivative_where(x.abs() < 0.25, math.pi * total, (z.cos() - torch.sinc(x)) / x)


def _root_of_minus_square(x: Tensor) -> Tensor:
    """1/√(1 − x²)."""
    return ((1 - x) * (1 + x)).rsqrt()


def _one_over_hypot(x: Tensor) -> Tensor:
    return 1 / x.hypot(x.new_ones(()))


def _derive_acosh(x: Tensor) -> Tensor:
    return 1 / ((x - 1).sqrt() * (x + 1).sqrt())


def _derive_erfinv(x: Tensor) -> Tensor:
    return x.erfinv().square().exp() / _ERF


def _derive_atanh(x: Tensor) -> Tensor:
    return 1 / ((1 - x) * (1 + x))


def _derive_elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return _choose_derivative_where(x > 0, x.new_full((), scale), alpha * scale * input_scale * (input_scale * x).exp())


def _derive_elu2(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return _choose_derivative_where(x > 0, x.new_zeros(()), alpha * scale * input_scale**2 * (input_scale * x).exp())


def _derive_celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return _choose_derivative_where(x > 0, x.new_ones(()), (x / alpha).exp())


def _derive_celu2(x: Tensor, alpha: float = 1.0) -> Tensor:
    return _choose_derivative_where(x > 0, x.new_zeros(()), (x / alpha).exp() / alpha)


# ---- functions of two numbers


def _derive_hypot(gradient: Tensor, x: Tensor, y: Tensor) -> Sequence[Tensor]:
    r = x.hypot(y)
    return (gradient * (x / r)).sum_to_size(x.shape), (gradient * (y / r)).sum_to_size(y.shape)


def _derive_atan2(gradient: Tensor, y: Tensor, x: Tensor) -> Sequence[Tensor]:
    r = y.hypot(x)
    return (gradient * (x / r / r)).sum_to_size(y.shape), (gradient * (-y / r / r)).sum_to_size(x.shape)


def _derive_logaddexp(scale: float) -> Callable[..., Sequence[Tensor]]:
    def backward(gradient: Tensor, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        apart = scale * (x - y)
        return (gradient * apart.sigmoid()).sum_to_size(x.shape), (gradient * (-apart).sigmoid()).sum_to_size(y.shape)

    return backward


# ---- along a dimension


def _derive_softmax(gradient: Tensor, x: Tensor, dim: int, *more: Any) -> Sequence[Tensor]:
    """p·(g − Σ g·p), g taken from its value at the largest p: then 1 − p appears nowhere."""
    import torch

    p = torch.softmax(x, dim)
    if not x.dim() or not x.numel():
        return (gradient * 0 * p,)
    top = x.detach().argmax(dim, keepdim=True)
    from_top = gradient - gradient.gather(dim, top)
    return (p * (from_top - (from_top * p).sum(dim, keepdim=True)),)


def _derive_log_softmax(gradient: Tensor, x: Tensor, dim: int, *more: Any) -> Sequence[Tensor]:
    """g − p·Σ g; at the largest p: g·(1 − p) − p·(Σ g − g), both sums without that element."""
    import torch

    p = torch.softmax(x, dim)
    if not x.dim() or not x.numel():
        return (gradient * 0 * p,)
    is_top = torch.zeros_like(x, dtype=torch.bool).scatter_(dim, x.detach().argmax(dim, keepdim=True), True)
    others = _choose_derivative_where(is_top, x.new_zeros(()), p).sum(dim, keepdim=True)
    rest = _choose_derivative_where(is_top, x.new_zeros(()), gradient).sum(dim, keepdim=True)
    return (
        _choose_derivative_where(is_top, gradient * others - p * rest, gradient - p * gradient.sum(dim, keepdim=True)),
    )


def _derive_logsumexp(gradient: Tensor, x: Tensor, dim: Any, keepdim: bool = False) -> Sequence[Tensor]:
    import torch

    dims = [d % max(x.dim(), 1) for d in ([dim] if isinstance(dim, int) else dim or range(x.dim()))]
    if not x.dim():
        return (gradient * torch.ones_like(x),)
    if not keepdim:
        for d in sorted(dims):
            gradient = gradient.unsqueeze(d)
    kept = [d for d in range(x.dim()) if d not in dims]
    p = torch.softmax(x.permute(*kept, *dims).flatten(len(kept)), -1).reshape([x.shape[d] for d in kept + dims])
    back = [(kept + dims).index(d) for d in range(x.dim())]
    return (gradient * p.permute(back),)


def _derive_glu(gradient: Tensor, x: Tensor, dim: int = -1) -> Sequence[Tensor]:
    import torch

    a, b = x.chunk(2, dim)
    slope = _make_slope_function().apply(_derive_sigmoid, lambda y: -_derive_sigmoid(y) * (y / 2).tanh(), ((), {}), b)
    return (torch.cat((gradient * b.sigmoid(), gradient * a * slope), dim),)


def _derive_bce_with_logits(
    gradient: Tensor, x: Tensor, target: Tensor, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Sequence[Tensor]:
    """(1 − t)·σ(x) − p·t·σ(−x), p the weight of positive targets, t the target."""
    import torch

    p = x.new_ones(()) if pos_weight is None else pos_weight
    by_x = (1 - target) * x.sigmoid() - p * target * (-x).sigmoid()
    by_target = -x + (p - 1) * torch.nn.functional.softplus(-x, threshold=1e9)
    scale = gradient / x.numel() if reduction == 1 else gradient
    scale = scale if weight is None else scale * weight
    more = [None for w in (weight, pos_weight) if w is not None]
    return ((scale * by_x).sum_to_size(x.shape), (scale * by_target).sum_to_size(target.shape), *more)


#: By the node of torch's graph that stands for it.
RULES: Mapping[str, DerivativeRule] = {
    "TanhBackward0": _make_unary_rule("tanh", _derive_tanh, lambda x: -2 * x.tanh() * _derive_tanh(x), kept=True),
    "SigmoidBackward0": _make_unary_rule(
        "sigmoid", _derive_sigmoid, lambda x: -_derive_sigmoid(x) * (x / 2).tanh(), kept=True
    ),
    "SiluBackward0": _make_unary_rule("silu", _derive_silu, lambda x: _derive_sigmoid(x) * (2 - x * (x / 2).tanh())),
    "GeluBackward0": _make_unary_rule("gelu", _derive_gelu, _derive_gelu2),
    "MishBackward0": _make_unary_rule("mish", _derive_mish, _derive_mish2),
    "SoftplusBackward0": _make_unary_rule("softplus", _derive_softplus, _derive_softplus2),
    "LogSigmoidBackward0": _make_unary_rule(
        "log_sigmoid_forward", lambda x: (-x).sigmoid(), lambda x: -_derive_sigmoid(x), several=True
    ),
    "EluBackward0": _make_unary_rule("elu", _derive_elu, _derive_elu2),
    "CeluBackward0": _make_unary_rule("celu", _derive_celu, _derive_celu2),
    "ExpBackward0": _make_unary_rule("exp", lambda x: x.exp(), lambda x: x.exp()),
    "Exp2Backward0": _make_unary_rule("exp2", lambda x: _LN2 * x.exp2(), lambda x: _LN2**2 * x.exp2()),
    "Expm1Backward0": _make_unary_rule("expm1", lambda x: x.exp(), lambda x: x.exp(), kept=True),
    "LogBackward0": _make_unary_rule("log", lambda x: 1 / x, lambda x: -1 / x.square()),
    "Log1PBackward0": _make_unary_rule("log1p", lambda x: 1 / (1 + x), lambda x: -1 / (1 + x).square()),
    "Log2Backward0": _make_unary_rule("log2", lambda x: 1 / (x * _LN2), lambda x: -1 / (x.square() * _LN2)),
    "Log10Backward0": _make_unary_rule(
        "log10", lambda x: 1 / (x * math.log(10)), lambda x: -1 / (x.square() * math.log(10))
    ),
    "SinBackward0": _make_unary_rule("sin", lambda x: x.cos(), lambda x: -x.sin()),
    "CosBackward0": _make_unary_rule("cos", lambda x: -x.sin(), lambda x: -x.cos()),
    "TanBackward0": _make_unary_rule("tan", lambda x: 1 / x.cos().square(), lambda x: 2 * x.tan() / x.cos().square()),
    "SinhBackward0": _make_unary_rule("sinh", lambda x: x.cosh(), lambda x: x.sinh()),
    "CoshBackward0": _make_unary_rule("cosh", lambda x: x.sinh(), lambda x: x.cosh()),
    "AsinBackward0": _make_unary_rule("asin", _root_of_minus_square, lambda x: x * _root_of_minus_square(x) ** 3),
    "AcosBackward0": _make_unary_rule(
        "acos", lambda x: -_root_of_minus_square(x), lambda x: -x * _root_of_minus_square(x) ** 3
    ),
    "AtanBackward0": _make_unary_rule(
        "atan", lambda x: _one_over_hypot(x).square(), lambda x: -2 * x * _one_over_hypot(x) ** 4
    ),
    "AsinhBackward0": _make_unary_rule("asinh", _one_over_hypot, lambda x: -x * _one_over_hypot(x) ** 3),
    "AcoshBackward0": _make_unary_rule("acosh", _derive_acosh, lambda x: -x * _derive_acosh(x) ** 3),
    "AtanhBackward0": _make_unary_rule("atanh", _derive_atanh, lambda x: 2 * x * _derive_atanh(x).square()),
    "ErfBackward0": _make_unary_rule(
        "erf", lambda x: _ERF * (-x.square()).exp(), lambda x: -2 * x * _ERF * (-x.square()).exp()
    ),
    "ErfcBackward0": _make_unary_rule(
        "erfc", lambda x: -_ERF * (-x.square()).exp(), lambda x: 2 * x * _ERF * (-x.square()).exp()
    ),
    "ErfinvBackward0": _make_unary_rule(
        "erfinv", _derive_erfinv, lambda x: 2 * x.erfinv() * _derive_erfinv(x).square()
    ),
    "SpecialErfcxBackward0": _make_unary_rule("special_erfcx", _derive_erfcx, _derive_erfcx2),
    "SincBackward0": _make_unary_rule("sinc", _derive_sinc),
    "SqrtBackward0": _make_unary_rule("sqrt", lambda x: 0.5 / x.sqrt(), lambda x: -0.25 / (x * x.sqrt())),
    "RsqrtBackward0": _make_unary_rule(
        "rsqrt", lambda x: -0.5 / (x * x.sqrt()), lambda x: 0.75 / (x.square() * x.sqrt())
    ),
    "ReciprocalBackward0": _make_unary_rule("reciprocal", lambda x: -1 / x.square(), lambda x: 2 / (x.square() * x)),
    "SpecialEntrBackward0": _make_unary_rule("special_entr", lambda x: -x.log() - 1, lambda x: -1 / x),
    "HypotBackward0": DerivativeRule("hypot", _derive_hypot),
    "Atan2Backward0": DerivativeRule("atan2", _derive_atan2),
    "LogaddexpBackward0": DerivativeRule("logaddexp", _derive_logaddexp(1.0)),
    "Logaddexp2Backward0": DerivativeRule("logaddexp2", _derive_logaddexp(_LN2)),
    "SoftmaxBackward0": DerivativeRule("_softmax", _derive_softmax, kept=True, along=True),
    "SafeSoftmaxBackward0": DerivativeRule("_safe_softmax", _derive_softmax, kept=True, along=True),
    "LogSoftmaxBackward0": DerivativeRule("_log_softmax", _derive_log_softmax, kept=True, along=True),
    "LogsumexpBackward0": DerivativeRule("logsumexp", _derive_logsumexp, kept=True, along=True),
    "GluBackward0": DerivativeRule("glu", _derive_glu),
    "BinaryCrossEntropyWithLogitsBackward0": DerivativeRule(
        "binary_cross_entropy_with_logits", _derive_bce_with_logits
    ),
}


def select_known_derivatives(nodes: Collection[str]) -> list[str]:
    """The nodes of a graph, by the names of their classes, that have a derivative in here, sorted."""
    return sorted(RULES.keys() & set(nodes))


def list_digit_losing_nodes(nodes: Collection[str]) -> list[str]:
    """Those of ``nodes`` whose derivative torch computes from the rounded result, and loses digits by it."""
    return [name for name in nodes if RULES[name].kept]


@contextlib.contextmanager
def use_own_derivatives(nodes: Collection[str]) -> Iterator[None]:
    """In here torch's kernels on the CPU for these nodes have the derivatives of RULES. What is called with complex
    numbers raises NoRule."""
    import torch

    library = torch.library.Library("aten", "IMPL", "AutogradCPU")
    try:
        for name in nodes:
            library.impl(RULES[name].operator, _make_derivative_kernel(RULES[name]))
        yield
    finally:
        library._destroy()


def _make_derivative_kernel(rule: DerivativeRule) -> Callable[..., Any]:
    import torch

    packet = getattr(torch.ops.aten, rule.operator)
    names = [a.name for a in packet.default._schema.arguments if not a.kwarg_only]

    def call(*args: Any, **kwargs: Any) -> Any:
        # By position: only what stands there is differentiated.
        given = list(args)
        for name in names[len(args) :]:
            if name not in kwargs:
                break
            given.append(kwargs.pop(name))
        if any(isinstance(x, torch.Tensor) and x.is_complex() for x in given):
            raise NoRule(f"{rule.operator} of complex numbers")
        return _make_derivative_function().apply(rule, packet, kwargs, *given)

    return call


def _make_derivative_function() -> Any:
    import torch

    global _FUNCTION
    if _FUNCTION is None:

        class Own(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, rule: DerivativeRule, packet: Any, kwargs: Mapping[str, Any], *given: Any) -> Any:
                places = [k for k, x in enumerate(given) if isinstance(x, torch.Tensor)]
                ctx.how = rule, kwargs, places, [None if k in places else x for k, x in enumerate(given)]
                ctx.save_for_backward(*(given[k] for k in places))
                with torch._C._AutoDispatchBelowAutograd():
                    made = packet(*given, **kwargs)
                if rule.several:
                    ctx.mark_non_differentiable(*made[1:])
                return made

            @staticmethod
            def backward(ctx: Any, gradient: Any, *others: Any) -> Any:
                rule, kwargs, places, given = ctx.how
                for k, x in zip(places, ctx.saved_tensors):
                    given[k] = x
                found = iter(rule.backward(gradient, *given, **kwargs))
                made = [next(found, None) if k in places else None for k in range(len(given))]
                return None, None, None, *made

        _FUNCTION = Own
    return _FUNCTION


_FUNCTION: Any = None
