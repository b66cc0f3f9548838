"""Linear layers whose products are in FP8, forward and backward: each operand has a scale of its own, and is cast to 8 bits."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from tasks.arrays import noise
from tasks.model import EPS, LARGEST, Unsupported

#: What an operand is, and the dtype it is cast to: a gradient has a wider range and fewer digits.
INPUT, WEIGHT, GRADIENT = "input", "weight", "gradient"
DTYPES = {INPUT: "float8_e4m3fn", WEIGHT: "float8_e4m3fn", GRADIENT: "float8_e5m2"}
#: Matrix units take sides that are multiples of it; a layer with others stays as it is.
MULTIPLE = 16


@dataclass(frozen=True)
class Float8Operand:
    """values: a matrix, cast; scale: what it was multiplied by before, a float32 tensor of one element or a row."""

    values: torch.Tensor
    scale: torch.Tensor

    def transpose(self) -> Float8Operand:
        return Float8Operand(self.values.t(), self.scale)


class Float8Recipe:
    """How operands are scaled, cast and multiplied: one scale for a tensor, by its largest element, as it is now. Each
    part is a method, so that a stack of the user's, or a planted fault, takes the place of one. layer: the name of the
    module."""

    def quantize(self, x: torch.Tensor, role: str, layer: str) -> Float8Operand:
        """x: a matrix in float32."""
        scale = self.find_scale(x, role, layer)
        return Float8Operand(self.cast(x * scale, role), scale)

    def find_scale(self, x: torch.Tensor, role: str, layer: str) -> torch.Tensor:
        """By which the largest element becomes the largest of the dtype; 1 for zeros."""
        largest = self.measure(x, role, layer)
        return torch.where(largest > 0, LARGEST[DTYPES[role]] / largest, torch.ones_like(largest))

    def measure(self, x: torch.Tensor, role: str, layer: str) -> torch.Tensor:
        return x.abs().amax().float()

    def cast(self, x: torch.Tensor, role: str) -> torch.Tensor:
        """What lies beyond the dtype's largest value becomes that: torch's own cast makes NaN of it."""
        most = LARGEST[DTYPES[role]]
        return x.clamp(-most, most).to(getattr(torch, DTYPES[role]))

    def multiply(self, a: Float8Operand, b: Float8Operand) -> torch.Tensor:
        """a (m, k) by b (k, n), in float32. The sum over k is made longer by zeros where it has to be."""
        more = -a.values.shape[1] % MULTIPLE
        left, right = (_append_zero_columns(x, more) for x in (a.values, b.values.t()))
        scales = {"scale_a": a.scale.reciprocal(), "scale_b": b.scale.reciprocal()}
        return torch._scaled_mm(left, right.t(), out_dtype=torch.float32, **scales)  # type: ignore[no-any-return]


class MovedFloat8(Float8Recipe):
    """As float64 has it: an operand is not cast, but moved as a draw of the noise moves what a cast rounds."""

    draw: int | None = None
    places: Iterator[int] = iter(())

    def quantize(self, x: torch.Tensor, role: str, layer: str) -> Float8Operand:
        if self.draw is not None:
            moved = noise.perturb_by_noise(x.numpy(), EPS[DTYPES[role]] / 2, self.draw, next(self.places))
            x = torch.from_numpy(moved)
        return Float8Operand(x, torch.ones(()))

    def multiply(self, a: Float8Operand, b: Float8Operand) -> torch.Tensor:
        return a.values @ b.values


class _Product(torch.autograd.Function):
    """x (…, k) by the transpose of a weight (n, k)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, how: Float8Recipe, layer: str) -> torch.Tensor:
        given = how.quantize(x.detach().flatten(0, -2), INPUT, layer)
        own = how.quantize(weight.detach(), WEIGHT, layer)
        ctx.save_for_backward(given.values, given.scale, own.values, own.scale)
        ctx.how, ctx.layer = how, layer
        return how.multiply(given, own.transpose()).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        saved = ctx.saved_tensors  # asked for once: a checkpoint computes them again at the first time
        given, own = Float8Operand(*saved[:2]), Float8Operand(*saved[2:])
        after = ctx.how.quantize(g.flatten(0, -2), GRADIENT, ctx.layer)
        x = ctx.how.multiply(after, own).unflatten(0, g.shape[:-1]) if ctx.needs_input_grad[0] else None
        return x, ctx.how.multiply(after.transpose(), given), None, None


def convert_layers_to_float8(module: torch.nn.Module, how: Float8Recipe) -> None:
    """From here on the products of a module's linear layers are in FP8. Raises Unsupported where it has none that
    can be."""
    found = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.Linear) and not any(side % MULTIPLE for side in part.weight.shape)
    }
    if not found:
        raise Unsupported(
            f"no product of it can be in FP8: it has no torch.nn.Linear whose sides are multiples of {MULTIPLE}"
        )
    for name, part in found.items():
        part.forward = functools.partial(_compute_float8_layer, part, how, name)  # type: ignore[method-assign]


def _compute_float8_layer(part: torch.nn.Linear, how: Float8Recipe, name: str, x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _Product.apply(x, part.weight, how, name)  # type: ignore[no-untyped-call]
    return made if part.bias is None else made + part.bias


def _append_zero_columns(x: torch.Tensor, count: int) -> torch.Tensor:
    """Columns of zeros; row by row in memory."""
    return functional.pad(x.contiguous().view(torch.uint8), (0, count)).view(x.dtype)
