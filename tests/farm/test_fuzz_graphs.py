"""Generated graphs: a compiler that errs only where it fuses two operators is found, and the pair is what is left."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

from farm import lake as lakes
from farm.commands import fuzz, minimise, reproduce
from farm.lake import minimal
from tasks.model import FAILED, name_statuses

PLUGIN = Path(__file__).resolve().parents[1] / "plugin"
sys.path.insert(0, str(PLUGIN)) if str(PLUGIN) not in sys.path else None
CONFIG = "catalogs: [{name: fuzz, dtypes: [float32]}]\nbackends: [fusing-sound, fusing-errs]\n"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """(lake, its rows) of pairs that begin with Sub."""
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "x.yaml").write_text(CONFIG)
    args = [str(folder / "x.yaml"), "--on", "inline", "--ops", "Sub+", "--cases", "130", "--seconds", "60"]
    assert fuzz.main([*args, "--results", str(folder / "results")]) == 1
    return folder / "results", lakes.read(folder / "results")


def test_the_fused_pair_is_found_and_the_sound_twin_is_not_blamed(found: tuple[Path, pd.DataFrame]) -> None:
    rows = found[1][found[1]["status"].isin(name_statuses(FAILED))]
    assert set(rows["backend"]) == {"fusing-errs"}
    assert all("Sub>Tanh" in flags.split() for flags in rows["flags"])


def test_a_graph_written_otherwise_shows_a_compiler_that_contradicts_itself(tmp_path: Path, results: Path) -> None:
    (tmp_path / "x.yaml").write_text(CONFIG.replace("errs", "negates"))
    args = [str(tmp_path / "x.yaml"), "--on", "inline", "--ops", "rewritten", "--cases", "160", "--seconds", "60"]
    assert fuzz.main([*args, "--results", str(results)]) == 1
    rows = lakes.read(results)
    failed = rows[rows["status"].isin(name_statuses(FAILED))]
    assert set(failed["backend"]) == {"fusing-negates"} and set(failed["kind"]) == {"contradicted"}
    assert all("rewrite=negated" in flags for flags in failed["flags"])


def test_the_pair_is_what_is_left(found: tuple[Path, pd.DataFrame]) -> None:
    results, rows = found
    row = rows[rows["status"] == "wrong"].iloc[0]
    key = f"{row['run_id']}:{row['case_id']}:fusing-errs"
    assert reproduce.main([key, "--results", str(results)]) == 0
    assert minimise.main([key, "--results", str(results)]) == minimise.NO_SCRIPT  # of a stand-in there is none
    (kept,) = minimal.read_minimal_cases(results)
    assert kept["finding"]["ops"] == ["Sub", "Tanh"]
    assert kept["nodes"][1] == 2 and kept["elements"][1] <= 4
