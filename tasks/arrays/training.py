"""One training step of a torch module as a callable: its loss, every parameter's gradient, what the optimiser changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.model import EPS, Misbehaviour
from tasks.model.dtypes import SMALLEST_NORMAL

#: How many roundings, of a parameter and of what is added to it, an optimiser's step may be off by.
ROUNDINGS = 8.0


@dataclass(frozen=True)
class Optimiser:
    """How parameters change: "sgd" with momentum, or "adamw"; both with weight decay, as torch.optim defines them."""

    name: str
    rate: float
    decay: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def of(self, parameters: Sequence[Any]) -> Any:
        """torch's own optimiser of these parameters."""
        import torch

        if self.name == "sgd":
            return torch.optim.SGD(parameters, self.rate, momentum=self.momentum, weight_decay=self.decay)
        return torch.optim.AdamW(parameters, self.rate, self.betas, self.eps, self.decay)

    def change(self, parameter: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """What its first step adds to a parameter, float64: the formulas of torch's documentation.

        SGD: −η(g + λp), the momentum's buffer being the first gradient itself. AdamW, whose averages of the first step
        are the gradient and its square once their bias is corrected: −η(λp + g / (|g| + ε)).
        """
        if self.name == "sgd":
            return -self.rate * (gradient + self.decay * parameter)
        return -self.rate * (self.decay * parameter + gradient / (np.abs(gradient) + self.eps))


class TrainingStep:
    """A torch module with a loss and an optimiser; called with inputs and targets it returns the loss, a scalar.

    loss(outputs, targets); inputs: how many of the arguments are the module's, the rest are targets; autocast: dtype
    name that `torch.autocast` is to compute in ("" for none); scale: by which the loss is multiplied before the
    backward pass and its gradients are divided after it, so that narrow dtypes hold them.
    """

    def __init__(
        self,
        module: Any,
        loss: Callable[..., Any],
        inputs: int,
        optimiser: Optimiser,
        autocast: str = "",
        scale: float = 1.0,
    ) -> None:
        self.module, self.loss, self.inputs = module.train(), loss, inputs
        self.optimiser, self.autocast, self.scale = optimiser, autocast, scale
        self.named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._start = {name: x.detach().clone() for name, x in module.state_dict(keep_vars=True).items()}

    @property
    def names(self) -> list[str]:
        """Of what is judged of a step: the loss and the gradients, in the order of `taken`."""
        return ["the loss", *(f"the gradient of {name.removeprefix('model.')}" for name in self.named)]

    def start(self, name: str) -> Any:
        """The value of a parameter or buffer before the step."""
        return self._start[name]

    def __call__(self, *tensors: Any) -> Any:
        return self.loss(self.module(*tensors[: self.inputs]), tensors[self.inputs :])

    def taken(self, forward: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
        """Take the step from the first weights: [loss, a gradient per parameter, the change of each parameter].

        forward: this object, or what a compiler made of it. Raises Misbehaviour for a parameter without gradient.
        """
        import torch

        device = next(x.device.type for x in tensors)
        self.module.to(device)
        with torch.no_grad():
            for name, x in self.module.state_dict(keep_vars=True).items():
                x.copy_(self._start[name])
        optimiser = self.optimiser.of(list(self.named.values()))
        optimiser.zero_grad()
        dtype = getattr(torch, self.autocast) if self.autocast else None
        with torch.enable_grad():
            with torch.autocast(device, dtype) if dtype else contextlib.nullcontext():
                loss = forward(*tensors).float()
            self.backward(loss * self.scale if self.scale != 1 else loss)
        gradients = []
        for name, p in self.named.items():
            if p.grad is None:
                raise Misbehaviour("no gradient", f"the parameter {name} has no gradient after the backward pass")
            gradients.append(p.grad.div_(self.scale).clone() if self.scale != 1 else p.grad.clone())
        optimiser.step()
        changes = [p.detach() - self._start[name].to(device) for name, p in self.named.items()]
        return [loss.detach(), *gradients, *changes]

    def consistent(self, outputs: Sequence[Any]) -> list[np.ndarray]:
        """The loss and the gradients among the outputs of `taken`, the latter in `rows`.

        Raises Misbehaviour where a parameter did not change as its own gradient says: whatever the gradient is worth, the
        optimiser computes in float32.
        """
        found = [np.asarray(x) for x in outputs]
        count = len(self.named)
        if len(found) != 1 + 2 * count:
            return found  # counted as such by the judge
        for name, gradient, change in zip(self.named, found[1 : 1 + count], found[1 + count :]):
            start = self._start[name].numpy().astype(np.float64)
            right = self.optimiser.change(start, gradient.astype(np.float64))
            off = np.abs(change - right) / (
                EPS["float32"] * (np.abs(start) + np.abs(right)) + SMALLEST_NORMAL["float32"]
            )
            if not (off <= ROUNDINGS).all() and np.isfinite(right).all():
                worst = int(np.nanargmax(off))
                raise Misbehaviour(
                    "optimiser step",
                    f"{name} changes by {change.ravel()[worst]:.6g} where {self.optimiser.name} makes "
                    f"{right.ravel()[worst]:.6g} of its gradient {gradient.ravel()[worst]:.6g}",
                )
        return [rows(x) for x in found[: 1 + count]]

    def backward(self, loss: Any) -> None:
        """Fill the gradients of all parameters."""
        loss.backward()


def rows(gradient: np.ndarray) -> np.ndarray:
    """A gradient with one row per output channel: the kernels of a convolution, whose last axis is too short to be one, side
    by side."""
    return gradient if gradient.ndim < 3 else gradient.reshape(len(gradient), -1)
