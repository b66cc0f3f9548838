"""farm training loss: which difference of two losses is normal, and what is said of losses that are not, or of a bad question."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farm.commands.loss import main
from tasks.training import networks
from tasks.training.exact import ExactTraining
from tasks.training.free_running import JUMP, LossSpread, measure_loss_spread

pytest.importorskip("torch")

STEPS = 3


@pytest.fixture(scope="module")
def spread() -> LossSpread:
    network = networks.get_training_network("llama")
    return measure_loss_spread(ExactTraining(network, network.recipe), 0, STEPS)


def ask(path: Path, losses: np.ndarray) -> int:
    path.write_text("\n".join(map(repr, losses.tolist())))
    return main(["llama", "--losses", str(path)])


def test_rounding_is_normal_and_a_wrong_loss_is_not(
    spread: LossSpread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.txt"
    assert ask(file, spread.losses + spread.apart) == 0
    assert "Yours is normal at all 3 steps" in capsys.readouterr().out
    off = spread.losses.copy()
    off[1] *= 1 + 1e-4
    assert ask(file, off) == 1
    assert "Yours is off from step 1 on" in capsys.readouterr().out
    off[1] = np.nan
    assert ask(file, off) == 1


def test_a_jump_of_the_weights_ends_what_can_be_compared() -> None:
    grown = np.array([1.0, 2.0, 2.0 * JUMP + 1.0, 30.0]) * 1e-7
    assert LossSpread(np.ones(4), np.ones(4), grown).horizon == 2
    assert LossSpread(np.ones(4), np.ones(4), np.array([1.0, 2.0, 3.0, 4.0])).horizon == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lama"], "no training is called 'lama'"),
        (["gpt", "--dtype", "int8"], "--dtype: no training in 'int8'"),
        (["gpt", "--steps", "1"], "--steps: at least 2"),
        (["gpt", "--losses", "none.txt"], "none.txt: No such file"),
        (["gpt", "--losses", "words.txt"], "words.txt:2: 'two' is no number"),
    ],
)
def test_a_bad_question_is_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("1.0\ntwo\n")
    assert main(words) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1
