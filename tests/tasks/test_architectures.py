"""Architectures of the catalog models: the same bytes everywhere, no layer hidden, exported as what they are."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks import catalogs
from tasks.arrays.widened import compute_in_float64
from tasks.catalogs.models import architectures, exporting
from tasks.model import EPS, Group, Unsupported

NAMES = list(architectures.ARCHITECTURES)
LIMIT = 32.0
Outputs = list[np.ndarray]


def inputs(name: str) -> list[torch.Tensor]:
    return [torch.from_numpy(x) for x in architectures.draw_architecture_example(name, "small").values()]


def run(module: Any, given: list[torch.Tensor]) -> Outputs:
    with torch.no_grad():
        return [y.numpy().copy() for y in module(*given)]


def exact(module: Any, given: list[torch.Tensor]) -> tuple[Outputs, Outputs]:
    """The module in float64 and its row floor: what rounding every result once may do."""
    wide = [x.double() if x.is_floating_point() else x for x in given]
    module.double()
    with compute_in_float64():
        reference = run(module, wide)
    floors = [np.zeros_like(y) for y in reference]
    for draw in range(4):
        with compute_in_float64(EPS["float32"], draw):
            floors = [np.maximum(f, np.abs(y - m)) for f, y, m in zip(floors, reference, run(module, wide))]
    return reference, [np.maximum(f, np.sqrt((f * f).mean(-1, keepdims=True))) for f in floors]


def units(found: Outputs, reference: Outputs, floors: Outputs) -> float:
    return max(
        float((np.abs(a - y) / (EPS["float32"] * np.abs(y) + f + 1e-30)).max())
        for a, y, f in zip(found, reference, floors)
    )


@pytest.mark.parametrize("name", NAMES)
def test_float32_is_right_and_no_layer_is_hidden(name: str) -> None:
    """Every weight matrix, scaled by 1 + 2⁻⁶, moves the output beyond the limit; so the init hides none of them."""
    module, given = architectures.build_architecture(name, "small"), inputs(name)
    found = run(module, given)
    assert all(y.dtype == np.float32 and np.isfinite(y).all() and y.std() > 0.1 for y in found)
    reference, floors = exact(module, given)
    assert all(y.dtype == np.float64 for y in reference)
    assert units(found, reference, floors) < LIMIT / 4
    unobserved = []
    with compute_in_float64():
        for label, weight in module.named_parameters():
            if weight.ndim < 2:
                continue
            with torch.no_grad():
                weight.mul_(1 + 2**-6)
                if (
                    units(run(module, [x.double() if x.is_floating_point() else x for x in given]), reference, floors)
                    < LIMIT
                ):
                    unobserved.append(label)
                weight.div_(1 + 2**-6)
    assert not unobserved


def digest(name: str) -> str:
    return hashlib.sha256(
        b"".join(x.numpy().tobytes() for x in architectures.build_architecture(name, "small").state_dict().values())
    ).hexdigest()


def test_weights_are_the_same_bytes_in_every_process_and_on_every_processor() -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    mine = [digest(name) for name in ("efficientnet_b0", "llama_gqa", "unet")]
    assert torch.equal(torch.random.get_rng_state(), state)
    code = "from tests.tasks.test_architectures import digest; import torch; torch.manual_seed(7); torch.set_num_threads(2)\nfor name in ('efficientnet_b0', 'llama_gqa', 'unet'): print(digest(name))"
    env = os.environ | {"ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512_SKX AVX2 FMA3"}
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env=env,
        cwd=Path(__file__).parents[2],
    )
    assert said.stdout.split() == mine, said.stderr


@pytest.mark.parametrize("name", ["mixtral_moe"])
def test_the_exported_graph_computes_the_module(name: str, tmp_path: Path) -> None:
    import onnxruntime

    content = exporting.export_architecture(name, "small", tmp_path)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    module = architectures.build_architecture(name, "small")
    given = architectures.draw_architecture_example(name, "small")
    assert [x.name for x in session.get_inputs()] == list(given) == list(module.input_names)
    assert [x.name for x in session.get_outputs()] == list(module.output_names)
    assert units(session.run(None, given), *exact(module, inputs(name))) < LIMIT


def test_an_export_is_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = exporting.export_architecture("unet", "small", tmp_path)
    assert [p.suffix for p in tmp_path.iterdir()] == [".onnx"]
    monkeypatch.setattr(architectures, "build_architecture", lambda *_: pytest.fail("it is kept"))
    assert exporting.export_architecture("unet", "small", tmp_path) == content


def test_a_program_that_casts_by_itself_is_evaluated_in_float64() -> None:
    x = torch.linspace(0.1, 1, 7, dtype=torch.float64).requires_grad_()
    with compute_in_float64():
        y = (x.float() * torch.ones(7) / 3).to(torch.bfloat16)
        (gradient,) = torch.autograd.grad(y.sum(), x)
    assert (
        y.dtype == torch.float64
        and torch.equal(y, x / 3)
        and torch.equal(gradient, torch.full((7,), 1 / 3, dtype=torch.float64))
    )
    assert torch.get_default_dtype() == torch.float32


def test_what_is_missing_is_said_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = architectures._find_architectures_package
    monkeypatch.setattr(
        architectures, "_find_architectures_package", lambda p: "none" if p == "transformers" else installed(p)
    )
    assert (
        architectures.explain_missing_architecture("gpt2")
        == 'models:gpt2 needs transformers: pip install "validation-farm[models]"'
    )
    assert architectures.explain_missing_architecture("unet") == ""
    for check in ("forward", "backward"):
        with pytest.raises(Unsupported, match="models:gpt2 needs transformers"):
            catalogs.get_catalog("models").call(Group("models:gpt2", "small", "float32", 1, 0, check))
