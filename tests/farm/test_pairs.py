"""Pairs of backends on the same bytes."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from farm.report.tables.pairs import list_backend_pairs, view_backend_pairs
from farm.report.words import format_report_number
from tests.farm.test_report import frame, make_row


def row(backend: str, output: str, units: float, diff: float, **more: Any) -> dict[str, Any]:
    made = {
        "digest": "in",
        "output_digest": output,
        "signature": [units],
        "error_units": units,
        "max_diff": diff,
        **more,
    }
    return make_row("pass", backend=backend, **made)


def test_the_furthest_apart_come_first_with_where_and_in_both_units() -> None:
    rows = frame(
        row("a", "x", 1.0, 0.5), row("b", "x", 1.0, 0.5), row("c", "y", 9.0, 2.0),
        row("a", "z", 0.0, 0.0, op="torch:other"), row("b", "u", 2.0, 0.25, op="torch:other"),
    )  # fmt: skip
    found = list_backend_pairs(rows).set_index(["one", "other"])
    assert list(found.index) == [("a", "c"), ("b", "c"), ("a", "b")]
    two: Any = found.loc[("a", "b")]
    assert (two["compared"], two["same"], two["units"], two["units_op"], two["diff"]) == (
        2,
        1,
        2.0,
        "torch:other",
        0.25,
    )
    far: Any = found.loc[("a", "c")]
    assert (far["compared"], far["same"], far["units"], far["diff"]) == (1, 0, 8.0, 2.5)


def test_what_is_within_its_limit_has_no_signature_and_lies_apart_all_the_same() -> None:
    """A signature is kept of what is far off alone: the other one's distance from the reference tells."""
    far, near = row("a", "x", 5e6, 0.01), row("b", "y", 1.0, 0.0, signature=None)
    (line,) = list_backend_pairs(frame(far, near)).to_dict("records")
    assert line["units"] == 5e6 - 1
    other = row("b", "y", 1.0, 0.0, signature=None, compute_precision="tf32")
    (line,) = list_backend_pairs(frame(far, other)).to_dict("records")
    assert pd.isna(line["units"]), "in units of another precision"
    for unknown in (row("b", "y", math.nan, 0.0, signature=None), row("b", "y", math.inf, 0.0, signature=None)):
        (line,) = list_backend_pairs(frame(row("a", "x", math.inf, 0.01), unknown)).to_dict("records")
        assert pd.isna(line["units"]), "both are off by what has no number"
    drawn = (row(name, name, units, 0.1, op_class="random", signature=None) for name, units in (("a", 0.2), ("b", 0.9)))
    (line,) = list_backend_pairs(frame(*drawn)).to_dict("records")
    assert pd.isna(line["units"]), "statistics are no distance"


def test_other_bytes_are_not_compared_and_what_is_not_known_is_no_number() -> None:
    rows = frame(row("a", "x", 1.0, 0.5), row("b", "y", 1.0, 0.5, digest="other"))
    assert list_backend_pairs(rows).empty and view_backend_pairs(rows).empty
    nothing = frame(row("a", "x", 1.0, math.nan, signature=None), row("b", "y", math.nan, math.nan, signature=None))
    (line,) = list_backend_pairs(nothing).to_dict("records")
    assert line["compared"] == 1 and pd.isna(line["units"]) and pd.isna(line["diff"])


def test_the_same_bytes_everywhere_are_no_distance() -> None:
    (line,) = list_backend_pairs(frame(row("a", "x", 1.0, 0.5), row("b", "x", 1.0, 0.5))).to_dict("records")
    assert (line["same"], line["units"], line["diff"]) == (1, 0.0, 0.0)


def test_figures_are_written_alike_whether_they_happen_to_be_whole_or_not() -> None:
    figures = (4210.0, 4213.6, 999.6, 99_999.0, 99_999.4, 123_456.7, 12.345, 0.00012345)
    told = ["4210", "4214", "1000", "99999", "99999", "1.23e+05", "12.3", "0.000123"]
    assert [format_report_number(value) for value in figures] == told
