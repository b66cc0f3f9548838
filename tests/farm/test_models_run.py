"""Whole models from config to report: what must never pass, what was computed in less than asked, and its sound twins."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest

from farm import lake
from farm.commands import run as launch
from farm.policies.rejudge import rejudge_rows
from farm.report import Report
from farm.report.tables.models import table_model_lines
from tasks.judge import policy_files

CONFIG = """
dtypes: [float32]
catalogs: [{name: residual, samples: 2}]
backends:
  - ort-cpu
  - openvino-cpu
  - {name: zeros, like: lying-cpu, options: {returns: zeros}}
  - {name: other, like: lying-cpu, options: {returns: other}}
  - {name: rounded, like: lying-cpu, options: {returns: bfloat16}}
  - {name: bf16, like: lying-cpu, options: {computes: bfloat16}}
  - {name: tf32, like: lying-cpu, options: {computes: tfloat32}}
  - {name: bf16-declared, like: lying-cpu, options: {computes: bfloat16, declares: bfloat16}}
  - {name: tf32-declared-bf16, like: lying-cpu, options: {computes: tfloat32, declares: bfloat16}}
  - {name: bf16-declared-tf32, like: lying-cpu, options: {computes: bfloat16, declares: tfloat32}}
"""
SOUND = ("ort-cpu", "openvino-cpu")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pd.DataFrame]:
    where = tmp_path_factory.mktemp("models")
    (where / "models.yaml").write_text(CONFIG)
    assert launch.main([str(where / "models.yaml"), "--on", "inline", "--results", str(where / "lake")]) == launch.FOUND
    yield lake.read(where / "lake")


def of(rows: pd.DataFrame, *backends: str) -> pd.DataFrame:
    found = rows[(rows["op"] == "residual:sound") & rows["backend"].isin(backends)]
    assert len(found) == 2 * len(backends)
    return found


def test_sound_runtimes_pass_and_the_samples_are_evidence(rows: pd.DataFrame) -> None:
    found = of(rows, *SOUND)
    assert set(found["status"]) == {"pass"} and not found["weak"].any() and found["error_units"].max() < 10
    assert set(found["limit"]) == {32.0} and (found["strict_units"] >= found["error_units"]).all()
    assert (found["decisions"] == 8).all() and (found["flips"] == 0).all() and (found["divergence"] < 1e-9).all()
    assert set(found["licence"]) == {"MIT"} and set(found["unasked"].fillna("")) == {""}


@pytest.mark.parametrize("backend", ["zeros", "other", "rounded"])
def test_what_is_not_the_model_s_output_is_wrong(rows: pd.DataFrame, backend: str) -> None:
    found = of(rows, backend)
    assert set(found["status"]) == {"wrong"} and (found["error_units"] > 256).all()
    assert set(found["unasked"].fillna("")) == {""}
    if backend != "rounded":
        assert (found["flips"] > 0).all()


def test_a_floor_that_is_nan_makes_every_row_invalid(rows: pd.DataFrame) -> None:
    found = rows[rows["op"] == "residual:nan_floor"]
    assert len(found) == 20 and set(found["status"]) == {"invalid"} and set(found["kind"]) == {"oracle"}
    assert found["error"].str.contains("the noise floor is not finite").all()


@pytest.mark.parametrize(("backend", "precision"), [("bf16", "bfloat16"), ("tf32", "tfloat32")])
def test_coarser_than_asked_is_wrong_and_said(rows: pd.DataFrame, backend: str, precision: str) -> None:
    found = of(rows, backend)
    assert set(found["status"]) == {"wrong"} and set(found["unasked"]) == {precision}
    assert found["error"].str.contains(f"computed in {precision}, which nobody asked for").all()


def test_coarser_than_declared_is_said_also_where_the_units_cannot_tell(rows: pd.DataFrame) -> None:
    """bfloat16 has three digits less than TF32, and a floor has no room for that."""
    assert set(of(rows, "bf16-declared-tf32")["unasked"]) == {"bfloat16"}


@pytest.mark.parametrize("backend", ["bf16-declared", "tf32-declared-bf16"])
def test_as_coarse_as_declared_is_right(rows: pd.DataFrame, backend: str) -> None:
    found = of(rows, backend)
    assert set(found["status"]) == {"pass"} and set(found["compute_precision"]) == {"bfloat16"}
    assert set(found["unasked"].fillna("")) == {""} and set(found["limit"]) == {16.0}


def test_a_lake_of_models_is_judged_again_as_it_was(rows: pd.DataFrame) -> None:
    again = rejudge_rows(rows, policy_files.load_policy("error_units"))
    assert (again["status"] == rows["status"]).all() and (again["kind"] == rows["kind"].fillna("")).all()


def test_the_report_shows_them(rows: pd.DataFrame) -> None:
    found = table_model_lines(rows).set_index(["op", "backend"])
    assert found.loc[("residual:sound", "bf16"), "unasked"] == "bfloat16"
    shown = {view.name for view in Report.of(rows, {}).views}
    assert {"models", "models_not_right"} <= shown
