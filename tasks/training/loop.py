"""The training loop that a device runs: from a given state one step, with all that is looked at in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.training.exact import list_step_outputs
from tasks.training.layout import StepLayout
from tasks.training.networks.base import Network
from tasks.training.phases import BUFFERS, CLIPPED, FIRST, LOSS, PHASES, PROBE, RAW, SECOND, SHARES, TAPS, WEIGHTS
from tasks.training.recipe import FLOAT8, TrainingRecipe
from tasks.training.state import StatePlaces, cut_state_vector
from tasks.training.watching import watch_modules


class TrainingLoop:
    """A session of torch's tensors (`tasks.model.TensorSession`) whose every step begins with a state that it is given.

    Each part of a step is a method, so that a stack of the user's, or a planted fault, takes the place of one.
    precision: what autocast computes in, FLOAT8, or "" for float32; compile: what a compiler makes of the function from
    (module, *tensors) to the loss.
    """

    def __init__(self, network: Network, recipe: TrainingRecipe, precision: str = "") -> None:
        self.network, self.recipe, self.precision = network, recipe, precision
        self.compile: Callable[[Any], Any] | None = None

    #: Whether several ranks reduce the gradients, each of its own micro-batches.
    reduces = False

    # --- the session ---

    def start(self, device: str, given: Mapping[str, Any] | None = None) -> None:
        self.device = device
        self.places = StatePlaces.of(self.network.build())
        self.module = self.build_module().to(device).train()
        named = {self.name_of(name): p for name, p in self.module.named_parameters()}
        self.named = {name: named[name] for name in self.places.parameters}
        self.optimiser = self.build_optimiser(list(self.named.values()))
        self._loss = self.network.loss if self.compile is None else self.compile(self.network.loss)

    def step(self, args: Sequence[Any], own: Mapping[str, Any]) -> list[Any]:
        """A `StepLayout` and the outputs of one step. own: the vectors of a state, ``number`` of the step, and as
        ``batch0``, ``probe0``, … what the loss takes."""
        import torch

        tensors = {
            kind: [own[f"{kind}{k}"] for k in range(len(own)) if f"{kind}{k}" in own] for kind in ("batch", "probe")
        }
        number = int(own["number"].item())
        self.load_state(number, own)
        taps: dict[str, Any] = {}
        found: dict[str, list[Any]] = {}
        loss = self.accumulate(list(zip(*tensors["batch"])), taps)
        self.unscale_gradients()
        found[TAPS], found[LOSS] = list(taps.values()), [loss]
        found[BUFFERS] = [b.clone() for b in self._buffers()]
        found[SHARES] = self.read_shares()
        found[RAW] = self.read_gradients()
        self.clip_gradients()
        found[CLIPPED] = self.read_gradients()
        self.set_rate(number)
        self.apply_optimiser(number)
        found[FIRST], found[SECOND], found[WEIGHTS] = self.read_state()
        found[PROBE] = [self.evaluate(tensors["probe"])]
        expected = {phase for phase, _ in list_step_outputs(self.recipe, self.places, list(taps))}
        outputs = {phase: found[phase] for phase in PHASES if phase in expected and found[phase]}
        layout = StepLayout({phase: len(some) for phase, some in outputs.items()}, tuple(taps), self.list_owners())
        return [torch.from_numpy(layout.encode()), *(x.float() for some in outputs.values() for x in some)]

    def state(self) -> Mapping[str, Any]:
        """Nothing: every step is given its own."""
        return {}

    def close(self) -> None:
        """It holds nothing but its module."""

    # --- the parts of a step ---

    def build_module(self) -> Any:
        made = self.network.build()
        if self.recipe.checkpoint:
            made.checkpoint = True
        if self.precision == FLOAT8:
            from tasks.training.float8 import convert_layers_to_float8

            convert_layers_to_float8(made, self.build_float8())
        return made

    def build_float8(self) -> Any:
        """A `tasks.training.float8.Float8Recipe`, which multiplies in the linear layers of a run in FP8."""
        from tasks.training.float8 import Float8Recipe

        return Float8Recipe()

    def watched(self) -> Any:
        """The network within what was built, of whose modules the taps are."""
        return self.module

    def build_optimiser(self, parameters: list[Any]) -> Any:
        """torch's own."""
        import torch

        recipe = self.recipe
        way = {"foreach": {"foreach": True}, "fused": {"fused": True}, "": {"foreach": False}}[recipe.way]
        groups = []
        for own, held in self._part_by_group(parameters):
            common = {"params": held, "lr": own.rate, "weight_decay": own.decay}
            if recipe.optimiser == "sgd":
                groups.append(common | {"momentum": own.momentum, "nesterov": own.nesterov})
            else:
                groups.append(common | {"betas": own.betas, "eps": own.eps})
        made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimiser]
        return made(groups, **way)

    def _part_by_group(self, parameters: Sequence[Any]) -> list[tuple[TrainingRecipe, list[Any]]]:
        """(recipe, parameters) of each group of the recipe, and of all that are in none."""
        names = {id(p): name for name, p in self.named.items()}
        found: dict[TrainingRecipe, list[Any]] = {}
        for p in parameters:
            found.setdefault(self.recipe.of_parameter(names.get(id(p), "")), []).append(p)
        return list(found.items())

    def build_scaler(self) -> Any:
        """torch's own, a new one for each step, so that its scale stays the recipe's; it does nothing unless float16
        computes."""
        import torch

        narrow = self.precision == "float16"
        return torch.amp.GradScaler(self.device, self.recipe.scale, enabled=narrow)

    def load_state(self, number: int, own: Mapping[str, Any]) -> None:
        """Put weights, buffers and the optimiser's moments to what a step begins with."""
        import torch

        shapes = list(self.places.parameters.values())
        parts = [cut_state_vector(own[name], shapes) for name in ("weights", "first", "second")]
        self.optimiser.zero_grad()
        self.scaler = self.build_scaler()
        with torch.no_grad():
            for b, value in zip(self._buffers(), cut_state_vector(own["buffers"], list(self.places.buffers.values()))):
                b.copy_(value)
            for p, weight, first, second in zip(self.named.values(), *parts):
                self.copy_weight(p, weight)
                kept: dict[str, Any] = {"momentum_buffer": first.clone()}
                if self.recipe.has_second:
                    kept = {"exp_avg": first.clone(), "exp_avg_sq": second.clone()}
                    kept["step"] = torch.tensor(
                        float(number), device=self.device if self.recipe.way == "fused" else "cpu"
                    )
                self.optimiser.state[p] = kept

    def copy_weight(self, p: Any, value: Any) -> None:
        p.copy_(value)

    def name_of(self, name: str) -> str:
        """The name in the network of what the built module calls so."""
        return name

    def accumulate(self, batches: Sequence[Sequence[Any]], taps: dict[str, Any]) -> Any:
        """The mean loss of the micro-batches, whose gradients are added up. taps: is given what modules return at the
        first."""
        total: Any = 0
        for number, micro in enumerate(batches):
            with (
                watch_modules(self.watched(), taps) if self.compile is None and not number else contextlib.nullcontext()
            ):
                loss = self.compute_loss(micro)
            self.backward(loss / len(batches))
            total = total + loss.detach() / len(batches)
        return total

    def compute_loss(self, tensors: Sequence[Any]) -> Any:
        import torch

        dtype = getattr(torch, self.precision) if self.precision not in ("", FLOAT8) else None
        with torch.autocast(self.device, dtype) if dtype else contextlib.nullcontext():
            return self._loss(self.module, *tensors)

    def backward(self, loss: Any) -> None:
        self.scaler.scale(loss).backward()

    def unscale_gradients(self) -> None:
        """The gradients as they are before clipping; where they are exchanged in a narrower dtype, as that has them."""
        import torch

        self.scaler.unscale_(self.optimiser)
        if self.recipe.compress and not self.reduces:
            for p in self.named.values():
                p.grad = p.grad.to(getattr(torch, self.recipe.compress)).to(p.grad.dtype)

    def read_gradients(self) -> list[Any]:
        import torch

        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.named.values()]

    def read_shares(self) -> list[Any]:
        """The gradients of this rank's own micro-batches, where it is one of several and shows them."""
        return []

    def list_owners(self) -> dict[str, int]:
        """Of each parameter that one rank alone holds, that rank."""
        return {}

    def clip_gradients(self) -> None:
        import torch

        if self.recipe.clip:
            torch.nn.utils.clip_grad_norm_(list(self.named.values()), self.recipe.clip)

    def set_rate(self, number: int) -> None:
        trained = set(map(id, self.named.values()))  # a script's optimiser may hold frozen parameters as well
        for group in self.optimiser.param_groups:
            for own, _ in self._part_by_group([p for p in group["params"] if id(p) in trained]):
                group["lr"] = own.rate_at(number)

    def apply_optimiser(self, number: int) -> None:
        self.scaler.step(self.optimiser)

    def read_state(self) -> tuple[list[Any], list[Any], list[Any]]:
        """(first moments, second moments, weights) after the step."""
        names = ("exp_avg", "exp_avg_sq") if self.recipe.has_second else ("momentum_buffer" * self.recipe.has_first, "")
        kept = [self.optimiser.state[p] for p in self.named.values()]
        first, second = ([x[name].clone() for x in kept] if name else [] for name in names)
        return first, second, [p.detach().clone() for p in self.named.values()]

    def evaluate(self, tensors: Sequence[Any]) -> Any:
        import torch

        with torch.no_grad():
            return self.compute_loss(tensors)

    def _buffers(self) -> list[Any]:
        return [b for b in self.module.buffers() if b.is_floating_point()]
