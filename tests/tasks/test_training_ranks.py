"""Training on two ranks of gloo: right in three ways of spreading it, and each planted fault named, to the rank where one rank has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import planted_training
import pytest

from tasks.backends import BackendSpec
from tasks.backends.training_ranks import TrainingRanks
from tasks.judging import Judgement
from tasks.model import Group, Status
from tasks.prepare.cases import PreparedSample, prepare
from tests.bench.training_faults import judge_form

pytest.importorskip("torch")

VALUE = planted_training.VALUE
#: (backend, fault, kind, culprit).
PLANTED = [
    ("ddp-cpu", "sum_for_mean", "raw gradients", ""),
    ("ddp-cpu", "no_all_reduce", "raw gradients", ""),
    ("ddp-cpu", "lost_on_one_rank", "raw gradients", f"rank 1: {VALUE}"),
    ("ddp-cpu", "lost_before_reduction", "raw gradients", VALUE),
    ("ddp-cpu", "same_data", "loss", ""),
    ("ddp-cpu", "late_schedule", "weights", "rank 1: "),
    ("ddp-cpu", "skipped_parameter", "first moments", f"rank 1: {VALUE}"),
    ("ddp-cpu", "clipped_alone", "clipped gradients", "rank 1: "),
    ("fsdp-cpu", "sum_for_mean", "raw gradients", ""),
    ("tensor-cpu", "bias_twice", "forward", "blocks.0.down"),
    ("tensor-cpu", "broken_bias_gradient", "raw gradients", "blocks.0.up.bias"),
]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> PreparedSample:
    group = Group("training:gpt", "", "float32", 1, 0, "train")
    return prepare(group, tmp_path_factory.mktemp("cache"))[1].samples[0]


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that names what is planted when a loop is opened: the same ranks serve all tests of a backend."""
    file = tmp_path_factory.mktemp("ranks") / "fault"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(planted_training.FAULT, str(file))
        yield file


@pytest.fixture(scope="module")
def backends(fault: Path) -> Iterator[Callable[[str], TrainingRanks]]:
    made: dict[str, TrainingRanks] = {}

    def of(name: str) -> TrainingRanks:
        if name not in made:
            backend = BackendSpec.parse(name).create()
            assert isinstance(backend, TrainingRanks)
            backend.plant = "planted_training:plant"
            made[name] = backend
        return made[name]

    yield of
    for backend in made.values():
        backend._ready(backend.ranks).close()


def judge_ranks(sample: PreparedSample, backend: TrainingRanks, steps: int) -> Judgement:
    form = sample.form("torch")
    return judge_form(sample, backend, replace(form, arrays=[x[:steps] for x in form.arrays]))[0]


@pytest.mark.parametrize("name", ["ddp-cpu", "fsdp-cpu", "tensor-cpu"])
def test_ranks_that_are_right_pass(
    sample: PreparedSample, backends: Callable[[str], TrainingRanks], fault: Path, name: str
) -> None:
    fault.write_text("")
    # The fifth is not the step after the fourth: what a step leaves behind is not what the next begins with.
    found = judge_ranks(sample, backends(name), 5)
    assert found.status is Status.PASS, found.columns.get("error")


@pytest.mark.parametrize(("name", "planted", "kind", "culprit"), PLANTED)
def test_a_fault_of_ranks_is_named(
    sample: PreparedSample,
    backends: Callable[[str], TrainingRanks],
    fault: Path,
    name: str,
    planted: str,
    kind: str,
    culprit: str,
) -> None:
    fault.write_text(planted)
    found = judge_ranks(sample, backends(name), 2)
    said = str(found.columns.get("culprit", ""))
    assert (found.status, found.kind) == (Status.WRONG, kind), found.columns.get("error")
    assert said.startswith(culprit)
    assert said.startswith("rank") == culprit.startswith("rank")
