"""The picture of a backend: which rows it shows, and that it is drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from farm.report.faces.plot import draw_plot, table_plot_distances


def rows(*some: dict[str, object]) -> pd.DataFrame:
    base = {
        "run_id": "r",
        "check": "forward",
        "variant": "",
        "dtype": "float32",
        "backend": "torch-cpu",
        "kind": "",
        "attempts": 1,
    }
    return pd.DataFrame([base | {"case_id": str(i)} | row for i, row in enumerate(some)])


ROWS = rows(
    {"op": "torch:sum", "op_class": "reduction", "status": "pass", "error_units": 0.5, "max_ulp": 9.0},
    {"op": "torch:sum", "op_class": "reduction", "status": "pass", "error_units": 2.0, "max_ulp": 1.0},
    {
        "op": "torch:exp",
        "op_class": "elementary",
        "status": "wrong",
        "error_units": 0.1,
        "max_ulp": 40.0,
        "kind": "numbers",
    },
    {"op": "torch:exp", "op_class": "elementary", "status": "pass", "error_units": 99.0, "max_ulp": 50.0},
    {
        "op": "torch:norm",
        "op_class": "reduction",
        "status": "wrong",
        "error_units": 7.0,
        "max_ulp": 7.0,
        "kind": "nonfinite",
    },
    {"op": "torch:svd", "op_class": "choice", "status": "crash", "error_units": None, "max_ulp": None},
)


def test_the_worst_row_of_every_op_in_its_own_measure() -> None:
    table = table_plot_distances(ROWS, "torch-cpu").set_index("label")
    assert table["distance"].to_dict() == {"torch:sum": 2.0, "torch:exp": 40.0, "torch:norm": math.inf}
    assert table["measure"].to_dict() == {"torch:sum": "units", "torch:exp": "ulps", "torch:norm": "units"}
    assert table["status"]["torch:exp"] == "wrong"
    with pytest.raises(ValueError, match="no judged row of backend 'ort-cpu'"):
        table_plot_distances(ROWS, "ort-cpu")


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    assert draw_plot(ROWS, "torch-cpu", tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
