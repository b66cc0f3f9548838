"""The corpus of models of one's own: it is what it says it is, and some of it is judged as is true of it.

`python -m tests.own_models` judges all of it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tasks.cache import default_cache
from tests.bench.running import environment
from tests.conftest import here
from tests.own_models import running
from tests.own_models.running import HERE, ask, models
from tests.own_models.truth import EXPECTED, PASS

OF_THE_CORPUS = ("__init__", "__main__", "running", "truth")


def classes(module: str) -> set[str]:
    """Models of a file: its classes with a ``forward`` that takes an instance, of their own or inherited."""
    found = {x.name: x for x in ast.parse((HERE / f"{module}.py").read_text()).body if isinstance(x, ast.ClassDef)}

    def forwards(one: ast.ClassDef) -> bool:
        own = any(isinstance(x, ast.FunctionDef) and x.name == "forward" and not x.decorator_list for x in one.body)
        return own or any(isinstance(b, ast.Name) and b.id in found and forwards(found[b.id]) for b in one.bases)

    return {name for name, one in found.items() if forwards(one)}


def test_every_model_has_a_truth_and_every_file_draws_its_inputs() -> None:
    files = {x.stem for x in HERE.glob("*.py")} - set(OF_THE_CORPUS)
    assert files == set(EXPECTED)
    for module in files:
        assert set(EXPECTED[module]) == classes(module), module
        assert "\ndef get_inputs():" in (HERE / f"{module}.py").read_text(), module


def test_nothing_in_them_is_seeded() -> None:
    assert [x.stem for x in HERE.glob("*.py") if "manual_seed" in x.read_text() and x.stem != "drawing"] == []


def test_there_are_enough_and_every_file_of_faults_has_a_sound_model() -> None:
    assert sum(map(len, EXPECTED.values())) >= 100
    for module, known in EXPECTED.items():
        if any(x.inductor.status == "wrong" for x in known.values()):
            assert any(x.inductor == x.torch == PASS for x in known.values()), module


def run_here(command: Sequence[str], env: Mapping[str, str], codes: Sequence[int]) -> None:
    """`farm run` in this process, whose children have torch's compiler from one test to the next."""
    assert command[:4] == [sys.executable, "-m", "farm", "run"]
    done = here(*command[4:], **env)
    assert done.returncode in codes, done.stdout + done.stderr


@pytest.mark.parametrize(
    "patterns",
    [
        ["document_first"],
        ["document_matrix"],
        ["compiled.Twin", "compiled.Numbers", "compiled.Accepts"],
        ["fused.PassWrong", "fused.PassTwin"],
    ],
    ids=["document", "another document", "compiled", "fused"],
)
def test_what_is_said_of_them_is_true(patterns: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run", run_here)
    for module, some in models(patterns).items():
        found = ask(module, some, tmp_path / module, environment(default_cache()), 0)
        assert len(found) == 2 * len(some)
        assert [f"{x.model} {x.backend}: {x.differs}" for x in found if x.differs] == []
