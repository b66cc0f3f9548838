"""The models of a report: which backend computes them, what flips, who is to blame, and the error along the layers."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from farm.report import Report, write
from farm.report.faces.curve import BLOCKS, draw_curve_blocks, draw_curve_svg
from farm.report.faces.page import render_page_of_run
from farm.report.tables.models import table_model_lines
from tests.farm.test_report import RUN, frame, make_row, printed

OWN = [0.5, math.nan, 2.0, 5000.0, 31.0]


def row(name: str, backend: str, status: str = "pass", **more: Any) -> dict[str, Any]:
    """A row of a model that has logits: 128 decisions."""
    known = {"op_class": "model", "error_units": 3.0, "limit": 32.0, "decisions": 128, "flips": 0, "ties": 0}
    return make_row(
        status, f"models:{name}", backend, **{**known, "licence": "MIT", "unobserved": "", "node_units": None, **more}
    )


@pytest.fixture
def rows() -> pd.DataFrame:
    wrong = {"kind": "numbers", "error_units": 29163.0, "flips": 9, "ties": 2, "divergence": 0.02}
    found = [
        row("bert", "ort-cpu", error_units=1.5, unobserved="head.bias, pooler.bias"),
        row("bert", "ort-cpu", sample=1, error_units=8.25, unobserved="pooler.bias", ties=1, weak=True),
        row("bert", "openvino-cpu", "wrong", **wrong, unasked="bfloat16", error="computed in bfloat16, which nobody asked for"),
        row("bert", "openvino-cpu", "wrong", **wrong, sample=1, culprit="precision bfloat16", probe_effect="same", node_units=OWN),
        row("det", "ort-cpu", "imprecise", error_units=70.0, kind="numbers", overlap=0.98),
        row("det", "openvino-cpu", "unsupported", error_units=None, decisions=None, flips=None, ties=None, error="no Resize"),
        make_row(op="torch:add"),
    ]  # fmt: skip
    return pd.DataFrame(found)


def test_a_line_sums_up_the_samples_of_a_model_on_a_backend(rows: pd.DataFrame) -> None:
    found = table_model_lines(rows).set_index(["op", "backend"])
    assert len(found) == 4
    sound, bad = found.loc[("models:bert", "ort-cpu")], found.loc[("models:bert", "openvino-cpu")]
    assert (sound["status"], sound["error_units"], sound["samples"], sound["weak"]) == ("pass", 8.25, 2, 1)
    assert (sound["decisions"], sound["flips"], sound["ties"], sound["licence"]) == (256, 0, 1, "MIT")
    assert set(found.loc["models:bert", "unobserved"]) == {""}  # the rows of OpenVINO observe them all
    assert (bad["status"], bad["flips"], bad["unasked"]) == ("wrong", 18, "bfloat16")
    assert (bad["culprit"], bad["probe_effect"]) == ("precision bfloat16", "same") and list(bad["node_units"]) == OWN
    none = found.loc[("models:det", "openvino-cpu")]
    assert none["status"] == "unsupported" and math.isnan(none["error_units"]) and math.isnan(none["decisions"])
    only = table_model_lines(rows[rows["backend"] == "ort-cpu"]).set_index("op")
    assert only.loc["models:bert", "unobserved"] == "pooler.bias"


def test_every_face_shows_the_models(rows: pd.DataFrame, tmp_path: Path) -> None:
    paths = write(rows, RUN, tmp_path)
    text, page = printed(rows, RUN), paths["html"].read_text()
    for shown in (text, page, paths["markdown"].read_text()):
        assert "wrong 29163 units" in shown and "with 18 flips, 4 ties of 256; in bfloat16" in shown
        assert "precision bfloat16" in shown and "imprecise 70 units" in shown
        assert "unsupported" in shown
    assert draw_curve_blocks(OWN) in text and page.count("<svg class") == 1 and "node 4: 5000 units" in page
    assert len(paths["models"].read_text().splitlines()) == 5
    assert re.search(
        r"models:bert,float32,openvino-cpu,precision bfloat16,3,5000.0", paths["models_layers"].read_text()
    )


def test_a_run_without_models_says_nothing_of_them(tmp_path: Path) -> None:
    rows = frame(make_row(), make_row("wrong", op="torch:mm"))
    old = rows.drop(columns=["unasked", "licence", "unobserved", "flips", "ties", "decisions"])
    for given in (rows, old):
        assert not {"models", "models_not_right"} & {view.name for view in Report.of(given, RUN).views}
    assert "<svg class" not in render_page_of_run(rows, RUN)


def test_models_of_an_older_lake_have_no_more_columns_than_it_has(rows: pd.DataFrame) -> None:
    old = rows.drop(columns=["culprit", "probe_effect", "node_units"], errors="ignore")
    assert set(table_model_lines(old)["culprit"]) == {""} and "models_layers" not in {
        v.name for v in Report.of(old, RUN).views
    }


def test_a_curve_keeps_its_peak_however_narrow_it_is() -> None:
    assert (
        draw_curve_blocks([0.1, math.nan]) == "  "
        and draw_curve_blocks([]) == ""
        and draw_curve_blocks([1.0])[0] in "▁▂▃▄▅▆▇█"
    )
    many = [1.0] * 5000
    many[4321] = 1e6
    drawn = draw_curve_blocks(many)
    assert len(drawn) == BLOCKS and max(drawn) == drawn[4321 * BLOCKS // 5000] > min(drawn)
    picture = draw_curve_svg(many, 32.0)
    assert picture.count('class="over"') == 1 and "node 4322: 1e+06 units" in picture
    assert picture.count("<rect") <= 600
    assert draw_curve_svg([], None).count("<rect") == 0 and "no node was judged" in draw_curve_svg([], None)
    assert "nan" not in draw_curve_svg([math.nan, math.inf, 3.0], math.nan) and "inf" not in draw_curve_svg(
        [math.inf, 1.0], 32.0
    ).replace("inf units", "")
