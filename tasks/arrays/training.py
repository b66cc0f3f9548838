"""One training step of a torch module as a callable: its loss, every parameter's gradient, what the optimiser changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.model import EPS, Misbehaviour, Program, Stateless
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
    """A torch module with a loss and an optimiser; called with inputs and targets it returns the loss, a scalar. It is
    also a session of torch tensors (`tasks.backends.shared.torch_session.TorchSession`).

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
        """Of what is judged of a step: the loss and the gradients, in the order of `step`."""
        return ["the loss", *(f"the gradient of {name.removeprefix('model.')}" for name in self.named)]

    def before(self, name: str) -> Any:
        """The value of a parameter or buffer before the step."""
        return self._start[name]

    def __call__(self, *tensors: Any) -> Any:
        return self.loss(self.module(*tensors[: self.inputs]), tensors[self.inputs :])

    def opened(self) -> TrainingStep:
        """The session that it is itself: `start`, a `step` of the optimiser as often as is asked, the weights as its
        `state`."""
        return self

    def start(self, device: str, given: Mapping[str, Any] | None = None) -> None:
        """Go back to the first weights, with a new optimiser, on a device."""
        import torch

        self.module.to(device)
        with torch.no_grad():
            for name, x in self.module.state_dict(keep_vars=True).items():
                x.copy_(self._start[name])
        self._device, self._optimiser = device, self.optimiser.of(list(self.named.values()))

    def step(
        self, tensors: Sequence[Any], kwargs: Mapping[str, Any] | None = None, forward: Callable[..., Any] | None = None
    ) -> list[Any]:
        """Take a step from where it is: [loss, a gradient per parameter].

        forward: this object, or what a compiler made of it. Raises Misbehaviour for a parameter without gradient.
        """
        import torch

        self._optimiser.zero_grad()
        dtype = getattr(torch, self.autocast) if self.autocast else None
        with torch.enable_grad():
            with torch.autocast(self._device, dtype) if dtype else contextlib.nullcontext():
                loss = (forward or self)(*tensors).float()
            self.backward(loss * self.scale if self.scale != 1 else loss)
        gradients = []
        for name, p in self.named.items():
            if p.grad is None:
                raise Misbehaviour("no gradient", f"the parameter {name} has no gradient after the backward pass")
            gradients.append(p.grad.div_(self.scale).clone() if self.scale != 1 else p.grad.clone())
        self._optimiser.step()
        return [loss.detach(), *gradients]

    def state(self) -> dict[str, Any]:
        """The parameters as they are now, by name."""
        return {name: p.detach().clone() for name, p in self.named.items()}

    def close(self) -> None:
        """It holds nothing but its module."""

    def run_first_step(self, forward: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
        """The first step as one call: [loss, a gradient per parameter, each parameter after it]. As `step`
        otherwise."""
        self.start(next(x.device.type for x in tensors))
        return [*self.step(tensors, forward=forward), *self.state().values()]

    def consistent(self, outputs: Sequence[Any], weights: Mapping[str, Any]) -> list[np.ndarray]:
        """The loss and the gradients of the first step, the latter in `reshape_gradient_rows`. weights: the parameters
        after it, by name.

        Raises Misbehaviour where a parameter did not change as its own gradient says: whatever the gradient is worth,
        the optimiser computes in float32.
        """
        found = [np.asarray(x) for x in outputs]
        if len(found) != 1 + len(self.named) or len(weights) != len(self.named):
            return found  # counted as such by the judge
        for (name, after), gradient in zip(weights.items(), found[1:]):
            before = self._start[name].cpu().numpy()
            change = np.asarray(after) - before
            start = before.astype(np.float64)
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
        return [reshape_gradient_rows(x) for x in found]

    def backward(self, loss: Any) -> None:
        """Fill the gradients of all parameters."""
        loss.backward()


class FirstStep(Stateless):
    """The session of a training step on a backend that makes one program of it: each step is the first one again."""

    def __init__(self, program: Program, taken: TrainingStep) -> None:
        super().__init__(program)
        self._taken, self._weights = taken, dict[str, Any]()

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        found = super().step(inputs)
        count = 1 + len(self._taken.named)
        self._weights = dict(zip(self._taken.named, found[count:]))
        return found[:count] if len(found) == count + len(self._weights) else found

    def state(self) -> Mapping[str, Any]:
        return self._weights


def reshape_gradient_rows(gradient: np.ndarray) -> np.ndarray:
    """A gradient with one row per output channel: the kernels of a convolution, whose last axis is too short to be one,
    side by side."""
    return gradient if gradient.ndim < 3 else gradient.reshape(len(gradient), -1)
