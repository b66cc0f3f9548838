"""Training in JAX: every network of the catalog is right, and what is planted into a step is named, phase and place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")
pytest.importorskip("torch")

import jax.numpy as jnp

from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.judging import Judgement
from tasks.model import Group, Unsupported
from tasks.prepare.cases import prepare_group
from tasks.training.in_jax import parts
from tasks.training.in_jax.loop import JaxLoop
from tasks.training.in_jax.networks import LOSSES
from tasks.training.networks import BUILT_IN
from tests.bench.training_faults import judge_form


@pytest.fixture(scope="module")
def backend() -> Backend:
    made = BackendSpec.parse("optax-cpu").create()
    made.probe()
    return made


def judge(backend: Backend, cache: Path, network: str, dtype: str = "float32", variant: str = "") -> Judgement:
    sample = prepare_group(Group(f"training:{network}", variant, dtype, 1, 0, "train"), cache)[1].samples[0]
    return judge_form(sample, backend, sample.form("jax"))[0]


def test_every_network_is_written_in_jax() -> None:
    assert set(LOSSES) == set(BUILT_IN)


@pytest.mark.parametrize("network", ["gpt", "convolution"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_right_run_passes(network: str, dtype: str, backend: Backend, cache: Path) -> None:
    found = judge(backend, cache, network, dtype)
    assert found.status.value == "pass", found.columns


@pytest.mark.nightly  # more of the same mechanism
@pytest.mark.parametrize("network", ["llama", "experts", "vision", "diffusion"])
def test_the_other_networks_pass(network: str, backend: Backend, cache: Path) -> None:
    assert judge(backend, cache, network).status.value == "pass"


def _not_divided(loop: JaxLoop, own: Callable[..., Any], *given: Any) -> Any:
    gradients, *others = own(loop, *given)
    return {name: 2 * g for name, g in gradients.items()}, *others


def _lost(loop: JaxLoop, own: Callable[..., Any], *given: Any) -> Any:
    gradients, *others = own(loop, *given)
    return gradients | {"blocks.1.attention.value.weight": jnp.zeros((32, 32))}, *others


def _late(loop: JaxLoop, own: Callable[..., Any], number: Any, *given: Any) -> Any:
    return own(loop, number + 1, *given)


@pytest.mark.parametrize(
    ("method", "change", "kind", "culprit"),
    [
        ("accumulate", _not_divided, "raw gradients", ""),
        ("accumulate", _lost, "raw gradients", "blocks.1.attention.value.weight"),
        ("apply_optimiser", _late, "weights", ""),
    ],
)
def test_a_fault_of_a_step_is_named(
    method: str,
    change: Callable[..., Any],
    kind: str,
    culprit: str,
    backend: Backend,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = getattr(JaxLoop, method)
    monkeypatch.setattr(JaxLoop, method, lambda loop, *given: change(loop, own, *given))
    found = judge(backend, cache, "gpt")
    assert (found.status.value, found.kind) == ("wrong", kind)
    assert found.columns["culprit"].startswith(culprit)


def test_a_fault_of_a_module_is_located(backend: Backend, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = parts.JaxLayers.attention
    everywhere = lambda layers, name, x, heads, **how: own(layers, name, x, heads, causal="blocks.0" not in name)  # noqa: E731
    monkeypatch.setattr(parts.JaxLayers, "attention", everywhere)
    found = judge(backend, cache, "gpt")
    assert (found.kind, found.columns["culprit"]) == ("forward", "blocks.0.attention.out")


def test_what_jax_has_no_word_for_is_refused(backend: Backend, cache: Path) -> None:
    with pytest.raises(Unsupported, match="fused is a way of torch's optimisers"):
        judge(backend, cache, "gpt", variant="fused")
