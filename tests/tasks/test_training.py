"""Training steps of models: right ones pass in float32 and under autocast, each planted fault is wrong, its twin is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.arrays.training import Optimiser, TrainingStep
from tasks.backends.torch import TorchEager
from tasks.catalogs.models import training
from tasks.judge import policy_files
from tasks.model import Form, Group, Program
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

Plant = Callable[[TrainingStep], None]


def prepared(name: str, cache: Path, check: str = "backward", dtype: str = "float32") -> PreparedGroup:
    return prepare_group(Group(f"models:{name}", "small", dtype, 1, 0, check), cache)[1]


class Planted(TorchEager):
    """torch eager whose training step ``plant`` has changed."""

    def __init__(self, plant: Plant) -> None:
        super().__init__("torch-cpu", "cpu", {})
        self.plant = plant

    def build(self, form: Form) -> Program:
        assert isinstance(form.call, TrainingStep)
        self.plant(form.call)
        return super().build(form)


def row(group: PreparedGroup, plant: Plant = lambda step: None) -> dict[str, Any]:
    backend = Planted(plant)
    runner = Runner(backend, backend.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
    (done,) = runner.run([make_item_of_whole_group(group)])
    return done.row.values()


def norm(step: TrainingStep) -> torch.nn.LayerNorm:
    """A norm in the middle of GPT-2."""
    found = dict(step.module.named_modules())["model.transformer.h.1.ln_1"]
    assert isinstance(found, torch.nn.LayerNorm)
    return found


def instead(module: Any, function: Callable[..., Any]) -> None:
    module.forward = lambda x: function(x, module)


# --- sound steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["gpt2", "bert_base", "vit_b16", "llama_gqa", "mixtral_moe", "mamba2", "whisper_encoder", "unet"]
)
def test_a_step_in_float32_is_right_by_both_oracles(name: str, cache: Path) -> None:
    found = row(prepared(name, cache))
    assert (found["status"], found["weak"]) == ("pass", False), found["error"]
    assert found["error_units"] < found["limit"] / 8
    assert found["second_oracle"] == "finite differences" and found["oracles_units"] < 1
    assert found["gradient_divergence"] < 1e-4 and found["loss_divergence"] < 1e-6


@pytest.mark.parametrize("dtype", training.AUTOCAST)
@pytest.mark.parametrize("name", ["gpt2", "unet", "mixtral_moe"])
def test_autocast_is_judged_in_its_own_precision(name: str, dtype: str, cache: Path) -> None:
    found = row(prepared(name, cache, "amp", dtype))
    assert found["status"] == "pass", found["error"]
    assert found["compute_precision"] == dtype and found["flags"] == f"autocast={dtype}"
    plain = row(prepared(name, cache))
    assert plain["gradient_divergence"] * 100 < found["gradient_divergence"] < 1


def test_autocast_that_is_not_asked_for_is_wrong(cache: Path) -> None:
    def coarse(step: TrainingStep) -> None:
        step.autocast = "bfloat16"

    assert row(prepared("gpt2", cache), coarse)["status"] == "wrong"


# --- planted faults, each beside its sound twin -------------------------------------------------------------------


def own_norm(of_mean: bool) -> Plant:
    """A layer norm with a backward pass of its own; without the term of the mean it is the commonest mistake."""

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
            var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
            scale = torch.rsqrt(var + eps)
            unit = (x - mean) * scale
            ctx.save_for_backward(unit, scale, weight)
            return unit * weight + bias

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
            unit, scale, weight = ctx.saved_tensors
            inner = g * weight
            mean = inner.mean(-1, keepdim=True) if of_mean else 0
            x = scale * (inner - mean - unit * (inner * unit).mean(-1, keepdim=True))
            return x, (g * unit).sum((0, 1)), g.sum((0, 1)), None

    return lambda step: instead(norm(step), lambda x, m: Norm.apply(x, m.weight, m.bias, m.eps))


def own_product(dtype: torch.dtype) -> Plant:
    """GPT-2's linear layer whose gradient of the weight is summed in ``dtype``."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
            ctx.save_for_backward(x, weight)
            return x @ weight + bias

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
            x, weight = ctx.saved_tensors
            rows, grads = x.flatten(0, 1).to(dtype), g.flatten(0, 1).to(dtype)
            return g @ weight.t(), (rows.t() @ grads).float(), g.sum((0, 1))

    return lambda step: instead(
        dict(step.module.named_modules())["model.transformer.h.0.mlp.c_fc"],
        lambda x, m: Product.apply(x, m.weight, m.bias),
    )


def hooked(change: Callable[[Any], Any]) -> Plant:
    def plant(step: TrainingStep) -> None:
        norm(step).weight.register_hook(change)

    return plant


def with_eps(eps: float) -> Plant:
    def plant(step: TrainingStep) -> None:
        norm(step).eps = eps

    return plant


def detached(step: TrainingStep) -> None:
    instead(
        norm(step), lambda x, m: torch.nn.functional.layer_norm(x, m.normalized_shape, m.weight.detach(), m.bias, m.eps)
    )


def optimised(**other: Any) -> Plant:
    """An optimiser that is told other constants than it was asked to use."""

    def plant(step: TrainingStep) -> None:
        asked = step.optimiser

        class Told(Optimiser):
            def of(self, parameters: Any) -> Any:
                return torch.optim.AdamW(
                    parameters,
                    **{"lr": asked.rate, "betas": asked.betas, "eps": asked.eps, "weight_decay": asked.decay, **other},
                )

        step.optimiser = Told(asked.name, asked.rate, asked.decay, asked.momentum, asked.betas, asked.eps)

    return plant


FAULTS: dict[str, tuple[Plant, Plant, str, str]] = {
    "no term of the mean": (own_norm(False), own_norm(True), "numbers", "the gradient of transformer"),
    "summed in bfloat16": (own_product(torch.bfloat16), own_product(torch.float32), "numbers", "h.0.mlp.c_fc.weight"),
    "a gradient of zeros": (
        hooked(torch.zeros_like),
        hooked(torch.clone),
        "zero gradient",
        "transformer.h.1.ln_1.weight is zero",
    ),
    "no gradient": (detached, with_eps(1e-5), "no gradient", "transformer.h.1.ln_1.weight has no gradient"),
    "another eps of a norm": (with_eps(1e-3), with_eps(1e-5), "numbers", "units off"),
    "another eps of the optimiser": (optimised(eps=1e-6), optimised(), "optimiser step", "adamw makes"),
    "no decay": (optimised(weight_decay=0.0), optimised(betas=(0.8, 0.99)), "optimiser step", "adamw makes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_wrong_and_its_twin_is_not(fault: str, cache: Path) -> None:
    wrong, right, kind, text = FAULTS[fault]
    group = prepared("gpt2", cache)
    found = row(group, wrong)
    assert (found["status"], found["kind"]) == ("wrong", kind) and text in found["error"], found
    assert row(group, right)["status"] == "pass"


def test_a_scaled_loss_whose_gradients_stay_scaled_is_wrong(cache: Path) -> None:
    group = prepared("gpt2", cache, "amp", "float16")

    def scaled(step: TrainingStep) -> None:
        assert step.scale > 1
        backward = step.backward

        def forgets(loss: Any) -> None:
            backward(loss)
            step.scale = 1.0

        step.backward = forgets  # type: ignore[method-assign]

    found = row(group, scaled)
    assert (found["status"], found["kind"]) == ("wrong", "numbers") and found["gradient_divergence"] > 100
    assert row(group)["status"] == "pass"


def test_a_gradient_of_zeros_is_wrong_where_the_floor_would_excuse_it(cache: Path) -> None:
    """Through twenty rectified layers in bfloat16 the first norm's gradient is hardly known: zero is wrong all the
    same."""

    def zero(step: TrainingStep) -> None:
        dict(step.module.named_parameters())["model.down.0.1.bias"].register_hook(torch.zeros_like)

    found = row(prepared("unet", cache, "amp", "bfloat16"), zero)
    assert (found["status"], found["kind"]) == ("wrong", "zero gradient"), found


# --- what is prepared ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_optimisers_formula_is_torchs(name: str) -> None:
    optimiser = Optimiser(name, 1e-2, 0.1)
    rng = np.random.default_rng(0)
    start, gradient = rng.normal(size=50), rng.normal(size=50)
    parameter = torch.from_numpy(start.copy()).requires_grad_()
    parameter.grad = torch.from_numpy(gradient.copy())
    optimiser.of([parameter]).step()
    assert np.abs(parameter.detach().numpy() - start - optimiser.change(start, gradient)).max() < 1e-15


def test_networks_without_steps_say_so() -> None:
    with pytest.raises(ValueError, match="no training step; architectures have, as variant 'small'"):
        next(training.make_training_samples(Group("models:unet", "", "float32", 1, 0, "backward"), 4))


def test_the_catalog_offers_steps_in_float32_and_autocast_in_16_bits() -> None:
    from tasks import catalogs

    entries = {(e.op, e.variant, e.dtypes): e.checks for e in catalogs.get_catalog("models").entries()}
    assert entries["models:gpt2", "small", ("float32",)] == ("forward", "backward")
    assert entries["models:gpt2", "small", training.AUTOCAST] == ("amp",)
    assert entries["models:gpt2", "", ("float32",)] == ("forward",)
