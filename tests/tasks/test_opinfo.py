"""What the farm changes of op_db: quicker, smaller samples, and nothing else of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.catalogs.torch.opinfo import TorchOpInfo
from tasks.judge import policy_files
from tasks.judging import judge_outputs
from tasks.model import Group, RuntimeInfo, Status, Unsupported
from tasks.prepare import onnx_export
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

torch = pytest.importorskip("torch")


def _made(make: Any, shape: tuple[Any, ...], how: dict[str, Any]) -> Any:
    torch.manual_seed(7)
    try:
        return make(*shape, device="cpu", **how)
    except (TypeError, ValueError) as error:
        return repr(error)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "bool", "complex64"])
def test_tensors_are_those_of_torch_bit_for_bit(dtype: str) -> None:
    from torch.testing import make_tensor

    from tasks.catalogs.torch.opinfo import _build_quick_make_tensor

    for how in (
        {},
        {"low": -1, "high": 1},
        {"high": 3},
        {"low": 2.5, "high": None},
        {"exclude_zero": True},
        {"noncontiguous": True},
        {"requires_grad": True},
        {"memory_format": None, "noncontiguous": False},
        {"low": -1e30, "high": 1e30},
        {"low": float("nan")},
        {"low": 3, "high": 2},
    ):
        for shape in ((), ((),), ((2, 3),), (2, 3), ([4],), ((0, 3),)):
            ours, theirs = (
                _made(make, shape, {"dtype": getattr(torch, dtype), **how})
                for make in (_build_quick_make_tensor(), make_tensor)
            )
            if isinstance(theirs, str):
                assert ours == theirs
            else:
                assert ours.requires_grad == theirs.requires_grad and ours.stride() == theirs.stride()
                assert ours.dtype == theirs.dtype and torch.equal(ours.detach(), theirs.detach())


def test_a_large_op_keeps_modes_sizes_and_number_of_its_samples_but_not_their_images() -> None:
    from torch.testing._internal import common_methods_invocations

    from tasks.catalogs.torch import opinfo

    info = opinfo._load_op_db()["grid_sampler_3d", ""]
    ours = list(opinfo._unwrap_opinfo_sampler(info)(info, "cpu", torch.float32, False))
    own = common_methods_invocations.sample_inputs_grid_sampler_3d
    theirs = list(
        opinfo.with_make_tensor(own, lambda shape, **how: torch.empty(shape))(info, "cpu", torch.float32, False)
    )
    assert len(ours) == len(theirs) == 30
    for a, b in zip(ours, theirs):
        assert a.args[1:] == b.args[1:] and a.input.shape[2:] == b.input.shape[2:]
        assert a.args[0].shape[1:] == b.args[0].shape[1:] and a.args[0].shape[0] == a.input.shape[0]
        assert a.input.numel() <= 1 << 17 and a.args[0].numel() <= 1 << 17
    assert max(b.input.numel() for b in theirs) > 5_000_000


def test_a_dtype_that_only_devices_have_kernels_for_is_listed_for_them_and_can_be_prepared(tmp_path: Path) -> None:
    entries = {(e.op, e.variant): e for e in TorchOpInfo().entries()}
    there = {op for (op, _), e in entries.items() if ("cuda", "float16") in e.on_devices}
    assert {"torch:nn.functional.avg_pool3d", "torch:polygamma", "torch:round"} <= there
    assert not any({d for _, d in e.on_devices} & set(e.dtypes) for e in entries.values())
    made = prepare_group(Group("torch:nn.functional.avg_pool3d", "", "float16", 2), tmp_path)[1]
    assert [s.failure for s in made.samples] == [None] * 2
    assert {leaf.dtype for s in made.samples for leaf in s.expected()} == {"float16"}
    pairs = [op for (op, _), e in entries.items() if ("cuda", "complex32") in e.on_devices]
    assert "torch:exp" in pairs and len(pairs) > 30 and not any(op.startswith("torch:fft.") for op in pairs)
    made = prepare_group(Group("torch:exp", "", "complex32", 2), tmp_path)[1]
    assert {leaf.dtype for s in made.samples for leaf in s.expected()} == {"complex32"}


def test_complex_numbers_of_two_halves_are_judged_and_no_framework_without_them_is_given_them(tmp_path: Path) -> None:
    offered = [entry for entry in TorchOpInfo().entries() if "complex32" in entry.dtypes]
    assert len(offered) > 100
    _, made = prepare_group(Group("torch:mul", "", "complex32", 2), tmp_path)
    sample = made.samples[1]
    assert sample.expected()[0].dtype == "complex32"
    backend = BackendSpec.parse("torch-cpu").create()
    runner = Runner(backend, backend.probe(), policy_files.load_policy("error_units"), lambda *step: None)
    assert {done.row.status for done in runner.run([make_item_of_whole_group(made)])} == {Status.PASS}
    right = sample.expected()[0].reference
    assert right is not None
    off = np.conj(right).astype(np.complex64)
    assert (
        judge_outputs(sample, [[off]], policy_files.load_policy("error_units"), RuntimeInfo("1", "cpu")).status
        is Status.WRONG
    )
    with pytest.raises(Unsupported, match="jax has no complex32"):
        sample.form("jax")
    with pytest.raises(ValueError, match="ONNX has no complex32"):
        onnx_export.export_sample_to_onnx(sample)
