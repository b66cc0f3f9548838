"""What goes wrong in FP8: scales, casts and the operands that the backward pass takes; and other ways of scaling that are right."""

from __future__ import annotations

import torch

from tasks.checks.train import KIND_FORWARD, KIND_SLOPE
from tasks.model import LARGEST
from tasks.training.float8 import DTYPES, GRADIENT, INPUT, WEIGHT, Float8Operand, Float8Recipe
from tasks.training.phases import RAW
from tasks.training.recipe import FLOAT8
from tasks.zoo.training.planted import Plant, Planted, around


class _Delayed(Float8Recipe):
    """The scale is that of the largest element of the calls before, with room for twice of it. room: another factor."""

    room = 2.0

    def __init__(self) -> None:
        self.history: dict[tuple[str, str], list[torch.Tensor]] = {}

    def measure(self, x: torch.Tensor, role: str, layer: str) -> torch.Tensor:
        known = self.history.setdefault((role, layer), [])
        now = super().measure(x, role, layer)
        largest = torch.stack(known[-16:]).amax() if known else now
        known.append(now)
        return largest * self.room


class _Stale(_Delayed):
    """The scale of the first call, of another loss scale by 2⁻⁸, is kept: what is larger saturates."""

    def measure(self, x: torch.Tensor, role: str, layer: str) -> torch.Tensor:
        known = self.history.setdefault((role, layer), [])
        if not known:
            known.append(super(_Delayed, self).measure(x, role, layer) * (2.0**-8 if role == GRADIENT else 1.0))
        return known[0]


class _NeverScaled(Float8Recipe):
    """Gradients are cast as they are, to the dtype of inputs, in which the small ones are zeros."""

    def find_scale(self, x: torch.Tensor, role: str, layer: str) -> torch.Tensor:
        return torch.ones(()) if role == GRADIENT else super().find_scale(x, role, layer)

    def cast(self, x: torch.Tensor, role: str) -> torch.Tensor:
        return super().cast(x, INPUT)


class _OfAnother(Float8Recipe):
    """The largest element of a weight is taken for that of the input."""

    def __init__(self) -> None:
        self.last = torch.ones(())

    def measure(self, x: torch.Tensor, role: str, layer: str) -> torch.Tensor:
        own = super().measure(x, role, layer)
        found, self.last = (self.last if role == INPUT else own), (own if role == WEIGHT else self.last)
        return found


class _Unsaturated(_Delayed):
    """The scale of the call before, without room, and torch's own cast: what is larger becomes NaN."""

    room = 1.0

    def cast(self, x: torch.Tensor, role: str) -> torch.Tensor:
        return x.to(getattr(torch, DTYPES[role]))


class _ScaleLeftOut(Float8Recipe):
    """The product of the backward pass with the input is not divided by the input's scale."""

    def multiply(self, a: Float8Operand, b: Float8Operand) -> torch.Tensor:
        backward = a.values.dtype is getattr(torch, DTYPES[GRADIENT])
        return super().multiply(a, Float8Operand(b.values, torch.ones_like(b.scale)) if backward else b)


class _Truncated(Float8Recipe):
    """Casts round toward zero."""

    def cast(self, x: torch.Tensor, role: str) -> torch.Tensor:
        made = super().cast(x, role)
        beyond = made.float().abs() > x.abs()
        return torch.where(beyond, made.view(torch.uint8) - 1, made.view(torch.uint8)).view(made.dtype)


class _GradientOfFewDigits(Float8Recipe):
    """Gradients keep one bit behind the leading one, as e5m1 would."""

    def cast(self, x: torch.Tensor, role: str) -> torch.Tensor:
        made = super().cast(x, role)
        return made if role != GRADIENT else (made.view(torch.uint8) & 0xFE).view(made.dtype)


class _Rows(Float8Recipe):
    """Each row of an input has a scale of its own where rows are what is multiplied; cast and undone, so that any
    product takes it."""

    def quantize(self, x: torch.Tensor, role: str, layer: str) -> Float8Operand:
        most = LARGEST[DTYPES[role]]
        scale = most / x.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        return Float8Operand(self.cast(x * scale, role).float() / scale, torch.ones(()))

    def multiply(self, a: Float8Operand, b: Float8Operand) -> torch.Tensor:
        return a.values @ b.values


class _Emulated(Float8Recipe):
    """Operands are cast and widened again, and multiplied in float32."""

    def multiply(self, a: Float8Operand, b: Float8Operand) -> torch.Tensor:
        return (a.values.float() / a.scale) @ (b.values.float() / b.scale)


class _ScaledByPowers(Float8Recipe):
    """Scales are powers of two."""

    def find_scale(self, x: torch.Tensor, role: str, layer: str) -> torch.Tensor:
        return torch.exp2(torch.floor(torch.log2(super().find_scale(x, role, layer))))


def _multiply_by(how: type[Float8Recipe]) -> Plant:
    return around("build_float8", lambda loop, own: how())


IN_FLOAT8 = (FLOAT8,)
#: Where a scale or a cast is off, what is computed first shows it.
FORWARD, BACKWARD = (KIND_FORWARD, KIND_SLOPE), (RAW, KIND_SLOPE)

FAULTS = [
    Planted("gradient_scale_stale", "gpt", _multiply_by(_Stale), BACKWARD, dtypes=IN_FLOAT8),
    Planted("gradient_not_scaled", "gpt", _multiply_by(_NeverScaled), BACKWARD, dtypes=IN_FLOAT8),
    Planted("scale_of_another_tensor", "gpt", _multiply_by(_OfAnother), FORWARD, "blocks.", dtypes=IN_FLOAT8),
    Planted("cast_not_saturating", "gpt", _multiply_by(_Unsaturated), (*FORWARD, RAW), dtypes=IN_FLOAT8),
    Planted("scale_left_out_backward", "gpt", _multiply_by(_ScaleLeftOut), BACKWARD, dtypes=IN_FLOAT8),
    Planted("cast_toward_zero", "gpt", _multiply_by(_Truncated), (*FORWARD, RAW), dtypes=IN_FLOAT8),
    Planted("gradient_of_few_digits", "gpt", _multiply_by(_GradientOfFewDigits), BACKWARD, dtypes=IN_FLOAT8),
]
HONEST = [
    Planted(name, network, _multiply_by(how), dtypes=IN_FLOAT8)
    for network in ("gpt", "llama", "experts", "vision")
    for name, how in (
        ("scales_delayed", _Delayed),
        ("scales_of_rows", _Rows),
        ("scales_of_two", _ScaledByPowers),
        ("emulated", _Emulated),
    )
]
