"""Rows of older lakes say in today's columns what they said in sentences."""

from __future__ import annotations

import pyarrow as pa

from farm.lake import upgrade


def test_how_a_case_ran_was_the_first_word_of_its_placement() -> None:
    before = ["emulated: HTP", "emulated", "interpreted: cpu", "unverified: it makes its own copies", "cuda", "", None]
    table = upgrade.upgrade(pa.table({"placement": pa.array(before, pa.string())}))
    assert table["execution"].to_pylist() == ["emulated", "emulated", "interpreted", "unverified", "", "", None]
    assert table["placement"].to_pylist() == ["HTP", "", "cpu", "it makes its own copies", "cuda", "", None]


def test_a_part_of_today_is_left_as_it_is() -> None:
    table = pa.table({"placement": ["emulated: a word of the runtime's"], "execution": [""]})
    assert upgrade.upgrade(table).equals(table)
