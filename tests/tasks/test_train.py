"""The check train: planted faults of a training loop are caught and named, the same loop without them is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks import wire
from tasks.arrays import pack
from tasks.backends.inductor import Inductor
from tasks.checks.train import KIND_SLOPE
from tasks.child import Child
from tasks.model import Group, Program
from tasks.prepare.cases import prepare_group
from tasks.relay import PAGE_SIZE, ProgressPage
from tasks.training.recipe import FLOAT8
from tasks.zoo import training as zoo
from tests.bench.training_faults import judge_all


def test_training_runs_that_are_built_together_keep_their_sessions(cache: Path) -> None:
    """inductor compiles ops of one batch into one graph, whose programs have none."""
    form = prepare_group(Group("training:gpt", "", "float32", 1, 0, "train"), cache)[1].samples[0].form("torch")
    built = Inductor("inductor-cpu", "cpu", {}).build_all([form, form])
    assert [isinstance(one, Program) and one.session is not None for one in built] == [True, True]


@pytest.mark.parametrize("full_at", ["made", "written"])
def test_a_full_disk_is_no_case_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: str) -> None:
    """Nor one that takes no larger file: nothing is kept that says so of the network."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if full_at == "made":
        monkeypatch.setattr(pack, "SPOOLED", 1 << 12)
    file = os.memfd_create("page")
    os.ftruncate(file, PAGE_SIZE)
    asked = wire.Prepare((wire.ToPrepare(Group("training:convolution", "", "float32", 1, 0, "train")),), str(tmp_path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        said = list(Child(ProgressPage(file)).steps(asked))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [type(x) for x in said] == [wire.Stopped] and "File too large" in said[0].why
    assert not [x for x in tmp_path.rglob("*") if x.is_file()]


def test_faults_are_named_and_the_honest_loop_passes(cache: Path) -> None:
    names = ("lost_gradient", "accumulation_not_divided", "plain")
    cases = [x for x in (*zoo.FAULTS, *zoo.HONEST) if x.network == "gpt" and x.name in names]
    found = {x.case.name: x for x in judge_all(cases, ("float32",), cache)}
    assert set(found) == set(names)
    assert not found["plain"].caught
    assert found["lost_gradient"].named and found["accumulation_not_divided"].named


def test_what_goes_wrong_in_fp8_is_named_and_other_scales_are_right(cache: Path) -> None:
    wrong = ("gradient_not_scaled", "scale_left_out_backward", "cast_toward_zero")
    cases = [
        x for x in (*zoo.FAULTS, *zoo.HONEST) if x.network == "gpt" and x.name in (*wrong, "plain", "scales_delayed")
    ]
    found = {x.case.name: x for x in judge_all(cases, (FLOAT8,), cache)}
    assert {name: x.named for name, x in found.items()} == {
        **dict.fromkeys(wrong, True),
        "plain": False,
        "scales_delayed": False,
    }
    assert not found["plain"].caught and not found["scales_delayed"].caught


def test_a_loss_that_is_off_by_the_same_share_at_all_steps_is_found_below_its_floor(cache: Path) -> None:
    cases = [
        x for x in (*zoo.FAULTS, *zoo.HONEST) if x.network == "experts" and x.name in ("balance_left_out", "plain")
    ]
    found = {x.case.name: x for x in judge_all(cases, ("bfloat16",), cache)}
    assert not found["plain"].caught
    assert found["balance_left_out"].judgement.kind == KIND_SLOPE and found["balance_left_out"].named
