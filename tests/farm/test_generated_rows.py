"""Which rows of a lake are of generated cases."""

from __future__ import annotations

import pandas as pd
import pytest

from farm.report.tables.generated import are_rows_generated


@pytest.mark.parametrize("dtype", ["object", "category"])
def test_rows_of_a_catalog_that_generates_are_told_from_others(dtype: str) -> None:
    rows = pd.DataFrame(
        {"catalog": pd.Series(["fuzz", "torch", "fuzz", None, "gone"], dtype=dtype), "wrong": [True] * 5}
    )
    assert (are_rows_generated(rows) & rows["wrong"]).tolist() == [True, False, True, False, False]
