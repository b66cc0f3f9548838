"""Rows of older lakes say in today's columns what they said in sentences."""

from __future__ import annotations

import pyarrow as pa

from farm.lake import upgrade


def test_how_a_case_ran_was_the_first_word_of_its_placement() -> None:
    before = ["emulated: HTP", "emulated", "interpreted: cpu", "unverified: it makes its own copies", "cuda", "", None]
    table = upgrade.upgrade_lake_rows(pa.table({"placement": pa.array(before, pa.string())}))
    assert table["execution"].to_pylist() == ["emulated", "emulated", "interpreted", "unverified", "", "", None]
    assert table["placement"].to_pylist() == ["HTP", "", "cpu", "it makes its own copies", "cuda", "", None]


def test_an_oracle_named_its_tolerance_and_what_it_lacks() -> None:
    before = ["function, own tolerance", "float64 (no differences: a kink (at 0))", "complex step, finite differences"]
    before += ["autograd of the reference (no differences: NaN), complex step where that is no derivative", "float64"]
    table = upgrade.upgrade_lake_rows(pa.table({"oracle": pa.array([*before, None], pa.string())}))
    assert table["oracle"].to_pylist() == [
        "function",
        "float64",
        "complex step, finite differences",
        "autograd of the reference, complex step where that is no derivative",
        "float64",
        None,
    ]
    assert table["own_tolerance"].to_pylist() == [True, *[None] * 5]
    assert table["by_differences"].to_pylist() == [None, None, True, *[None] * 3]
    assert table["no_second_oracle"].to_pylist() == [None, "a kink (at 0)", None, "NaN", None, None]


def test_a_part_of_today_is_left_as_it_is() -> None:
    table = pa.table({"placement": ["emulated: a word of the runtime's"], "execution": [""]})
    assert upgrade.upgrade_lake_rows(table).equals(table)
