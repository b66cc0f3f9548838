"""Rows of older lakes say in today's columns what they said in sentences."""

from __future__ import annotations

import pyarrow as pa

from farm.lake import upgrade


def upgrade_part(table: pa.Table) -> pa.Table:
    """A part with no more columns than these."""
    return upgrade.upgrade_lake_rows(table, table.column_names)


def test_how_a_case_ran_was_the_first_word_of_its_placement() -> None:
    before = ["emulated: HTP", "emulated", "interpreted: cpu", "unverified: it makes its own copies", "cuda", "", None]
    table = upgrade_part(pa.table({"placement": pa.array(before, pa.string())}))
    assert table["execution"].to_pylist() == ["emulated", "emulated", "interpreted", "unverified", "", "", None]
    assert table["placement"].to_pylist() == ["HTP", "", "cpu", "it makes its own copies", "cuda", "", None]


def test_an_oracle_named_its_tolerance_and_what_it_lacks() -> None:
    before = ["function, own tolerance", "float64 (no differences: a kink (at 0))", "complex step, finite differences"]
    before += ["autograd of the reference (no differences: NaN), complex step where that is no derivative", "float64"]
    table = upgrade_part(pa.table({"oracle": pa.array([*before, None], pa.string())}))
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
    assert upgrade_part(table).equals(table)


def test_a_part_of_today_of_which_few_columns_are_read_is_left_as_it_is() -> None:
    row = {"status": ["invalid"], "kind": ["oracle"], "error": ["suspect reference: a vote; it was wrong numbers: 3"]}
    table = pa.table(row)
    assert upgrade.upgrade_lake_rows(table, {*row, "acquitted"}).equals(table)
    assert upgrade_part(table)["error"].to_pylist() == ["3"], "an older part has no column for the vote"
