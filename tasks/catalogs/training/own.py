"""The user's own training: a function that returns a torch module, its data, an optimiser, and a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks import user_sources
from tasks.arrays import module_state
from tasks.catalogs import user_definitions
from tasks.catalogs.base import CatalogError
from tasks.catalogs.user import load_kernels
from tasks.graphs.given_model import GivenError
from tasks.model import errors
from tasks.training.networks.base import Network
from tasks.training.recipe import ParameterGroup, TrainingRecipe
from tasks.training.trajectory import STEPS

#: What the function may return.
FORM = "(module, data, optimiser), behind them a loss, and behind that {'accumulate': micro-batches of a step, 'clip': largest norm}"
#: What is called with what where a loss is returned.
_WITH_LOSS = "the module takes the tensors of a batch but the last, and the loss its output and the last: without a loss, the module takes all"
#: Why the module alone may give none, and the fix.
_WITHOUT_LOSS = f"a module without a loss takes the whole batch and gives it; return a loss as the fourth value: {FORM}"


@dataclass(frozen=True)
class OwnTraining:
    """source: "module:function" or "file.py:function"; root: the folder that modules are looked up in."""

    name: str
    source: str
    root: str

    def digest(self) -> str:
        """Digest of the files that decide its samples."""
        found = user_sources.locate_module_source(self.source.rpartition(":")[0], self.root)
        return user_sources.digest_source_files(user_sources.list_imported_files(found, self.root) if found else [])

    def network(self) -> Network:
        """What is trained, and how. Batches are those of the data, in its order: each network that this returns begins
        with the first.

        Raises GivenError, in one line with what to do.
        """
        module, data, optimiser, loss, more = self._call()
        named = (*module.named_parameters(), *module.named_buffers())
        if other := [f"{name} is {x.dtype}" for name, x in named if x.is_floating_point() and x.itemsize != 4]:
            raise GivenError(
                f"{self.source}: {other[0]}: give a module in float32; the config's dtypes say what autocast computes in"
            )
        recipe = replace(read_optimiser_recipe(optimiser, module, self.source), **more)
        again = self._call()[1]
        first, second = (self._read(next(iter(x), None)) for x in (data, again))  # which takes it from a generator
        if any(a.tobytes() != b.tobytes() for a, b in zip(first, second)):
            raise GivenError(
                f"{self.source}: the data comes in another order at each call: draw it by a seed (torch.Generator)"
            )
        batches = self._batches(self._call()[1], recipe.accumulate)
        compute = _make_own_loss(loss, self.source)

        def build() -> Any:
            made = self._call()[0]
            _turn_dropout_off(made)
            return made

        off = ", ".join(_turn_dropout_off(module))
        note = f"dropout is turned off, as each device would draw another mask: {off}" if off else ""
        network = Network(build, lambda rng: next(batches), compute, recipe, note=note)
        self._check_steady(
            build(), compute, first, f"; {_WITH_LOSS if loss else f'no loss is returned: {_WITHOUT_LOSS}'}"
        )
        return network

    def _call(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        import torch

        try:
            with module_state.seed_rng():
                found = load_kernels.resolve_user_name(self.source, self.root)()
        except CatalogError as error:
            raise GivenError(str(error)) from None
        except Exception as error:
            raise GivenError(f"{self.source}: {errors.describe_error_with_place(error)}") from None
        if not isinstance(found, tuple) or len(found) not in (3, 4, 5) or not isinstance(found[0], torch.nn.Module):
            raise GivenError(f"{self.source}: it must return {FORM}, not {type(found).__name__}")
        module, data, optimiser, loss, more = (*found, None, None)[:5]
        more = more or {}
        if not isinstance(more, dict) or not set(more) <= {"accumulate", "clip"}:
            raise GivenError(f"{self.source}: what is behind the loss is {more!r:.60}: it must return {FORM}")
        return module, data, optimiser, loss, more

    def _read(self, batch: Any) -> list[np.ndarray]:
        import torch

        if batch is None:
            raise GivenError(f"{self.source}: the data is empty")
        parts = batch if isinstance(batch, (tuple, list)) else [batch]
        if wrong := [x for x in parts if not isinstance(x, torch.Tensor)]:
            raise GivenError(f"{self.source}: a batch must be a tensor or a tuple of tensors, not {wrong[0]!r:.60}")
        return [x.detach().cpu().numpy() for x in parts]

    def _batches(self, data: Any, accumulate: int) -> Iterator[list[np.ndarray]]:
        count = 0
        for batch in data:
            count += 1
            yield self._read(batch)
        raise GivenError(
            f"{self.source}: the data ran out after {count} batches: a step takes {accumulate} and its probe another, which makes "
            f"{(max(STEPS) + 1) * (accumulate + 1)}"
        )

    def _check_steady(self, module: Any, loss: Callable[..., Any], batch: list[np.ndarray], fix: str) -> None:
        """Raises GivenError where the loss of a batch is another at each call, or cannot be computed; fix: what to do
        then."""
        import torch

        tensors = [torch.from_numpy(x) for x in batch]
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                found = [float(loss(module.train(), *tensors)) for _ in range(2)]
        except GivenError:
            raise
        except Exception as error:
            raise GivenError(f"{self.source}: {errors.describe_error_with_place(error)}{fix}") from None
        if not all(map(math.isfinite, found)):
            raise GivenError(f"{self.source}: the loss of the first batch is {found[0]}: begin with other weights")
        if found[0] != found[1] and not any(True for _ in module.buffers()):
            raise GivenError(
                f"{self.source}: the loss of one batch is {found[0]:.6g} and {found[1]:.6g}: it draws random numbers; take "
                "torch.nn.Dropout, which is turned off, or give masks with the data"
            )


def _turn_dropout_off(module: Any) -> list[str]:
    """The names of the modules that drop out, which do so no more: a drawn mask would be another on each device."""
    from torch.nn.modules.dropout import _DropoutNd

    found = [name for name, part in module.named_modules() if isinstance(part, _DropoutNd) and part.p]
    for name in found:
        module.get_submodule(name).p = 0.0
    return found


def _make_own_loss(loss: Callable[..., Any] | None, source: str) -> Callable[..., Any]:
    """loss(module, *batch): the given one is called with the module's output and the last tensor of a batch."""

    def compute(module: Any, *batch: Any) -> Any:
        found = module(*batch) if loss is None else loss(module(*batch[:-1]), batch[-1])
        if getattr(found, "ndim", None) != 0:
            raise GivenError(f"{source}: the loss must be a scalar: {_WITHOUT_LOSS}")
        return found

    return compute


def read_optimiser_recipe(optimiser: Any, module: Any, source: str) -> TrainingRecipe:
    """What an optimiser of torch does. Raises GivenError for one whose formulas are not known here."""
    import torch

    kinds = {torch.optim.AdamW: "adamw", torch.optim.Adam: "adam", torch.optim.SGD: "sgd"}
    kind = kinds.get(type(optimiser))
    if kind is None:
        known = ", ".join(x.__name__ for x in kinds)
        raise GivenError(
            f"{source}: no formulas are known of the optimiser {type(optimiser).__name__}; known are {known}"
        )
    names = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    stepped = [id(p) for group in optimiser.param_groups for p in group["params"] if p.requires_grad]
    if lacking := [name for place, name in names.items() if place not in stepped]:
        raise GivenError(
            f"{source}: the optimiser has {len(names) - len(lacking)} of {len(names)} parameters: freeze the others "
            f"(requires_grad): {', '.join(lacking[:3])}"
        )
    if foreign := len(set(stepped) - set(names)):
        raise GivenError(
            f"{source}: {foreign} of the optimiser's parameters are not the module's: make them a part of it"
        )
    recipes = [_read_group_recipe(kind, type(optimiser).__name__, group, source) for group in optimiser.param_groups]
    if len({(recipe.optimiser, recipe.way, recipe.has_first) for recipe in recipes}) > 1:
        raise GivenError(
            f"{source}: give all groups of parameters the same `fused`, `foreach` and `decoupled_weight_decay`, and momentum to "
            "all or to none"
        )
    groups = [
        ParameterGroup(tuple(names[id(p)] for p in group["params"] if p.requires_grad), own)
        for own, group in zip(recipes, optimiser.param_groups)
        if own != recipes[0]
    ]
    return replace(recipes[0], groups=tuple(groups))


def _read_group_recipe(kind: str, optimiser: str, group: Mapping[str, Any], source: str) -> TrainingRecipe:
    """What an optimiser does with the parameters of one of its groups. optimiser: its name."""
    odd = [name for name in ("amsgrad", "maximize", "dampening") if group.get(name)]
    if odd:
        raise GivenError(f"{source}: {odd[0]} of {optimiser} is not known: leave it out")
    if group.get("decoupled_weight_decay"):
        kind = "adamw"
    way = "fused" if group.get("fused") else "foreach" if group.get("foreach") else ""
    common: dict[str, Any] = {"rate": float(group["lr"]), "decay": float(group["weight_decay"]), "way": way}
    if kind == "sgd":
        return TrainingRecipe(kind, momentum=float(group["momentum"]), nesterov=bool(group["nesterov"]), **common)
    return TrainingRecipe(
        kind, betas=(float(group["betas"][0]), float(group["betas"][1])), eps=float(group["eps"]), **common
    )


def list_own_trainings() -> dict[str, OwnTraining]:
    """The trainings that this process was told of, by name."""
    told = user_definitions.read_definitions().get("trainings", [])
    return {one["name"]: OwnTraining(one["name"], one["source"], one["root"]) for one in told}
