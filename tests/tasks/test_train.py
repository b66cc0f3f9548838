"""The check train: planted faults of a training loop are caught and named, the same loop without them is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.backends.inductor import Inductor
from tasks.model import Group, Program
from tasks.prepare.cases import prepare
from tasks.zoo import training as zoo
from tests.bench.training_faults import judge_all


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_training_runs_that_are_built_together_keep_their_sessions(cache: Path) -> None:
    """inductor compiles ops of one batch into one graph, whose programs have none."""
    form = prepare(Group("training:gpt", "", "float32", 1, 0, "train"), cache)[1].samples[0].form("torch")
    built = Inductor("inductor-cpu", "cpu", {}).build_all([form, form])
    assert [isinstance(one, Program) and one.session is not None for one in built] == [True, True]


def test_faults_are_named_and_the_honest_loop_passes(cache: Path) -> None:
    names = ("lost_gradient", "accumulation_not_divided", "plain")
    cases = [x for x in (*zoo.FAULTS, *zoo.HONEST) if x.name in names]
    found = {x.case.name: x for x in judge_all(cases, ("float32",), cache)}
    assert set(found) == set(names)
    assert not found["plain"].caught
    assert found["lost_gradient"].named and found["accumulation_not_divided"].named
