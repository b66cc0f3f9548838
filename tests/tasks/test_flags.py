"""The modes of a row: one grammar for those who write and those who read them."""

from __future__ import annotations

import math

import pytest

from tasks.model import flags


def test_what_is_joined_is_parsed() -> None:
    text = flags.join_row_flags(flags.join_row_flags("", tf32="off", batches="2,17"), runs=3)
    assert text == "tf32=off batches=2,17 runs=3"
    assert flags.parse_row_flags(text + " TF32") == {"tf32": "off", "batches": "2,17", "runs": "3", "TF32": ""}


def test_a_mode_is_told_once() -> None:
    assert flags.join_row_flags("runs=2 TF32 tf32=off", runs=3, tf32=None) == "TF32 runs=3"


@pytest.mark.parametrize("nothing", [None, math.nan, ""])
def test_null_is_no_mode(nothing: object) -> None:
    assert (
        flags.parse_row_flags(nothing) == {}
        and not flags.matches_row_flags(nothing, ["*"])
        and flags.matches_row_flags(nothing, [])
    )


def test_a_sentence_is_no_flag() -> None:
    with pytest.raises(ValueError, match="story"):
        flags.join_row_flags("", story="it died")


def test_subnormals_taken_for_zero() -> None:
    assert flags.parse_flushed_flag("threads=1 flushes=float16,float32 flushes_inputs=float64") == (
        "float16",
        "float32",
    )
    assert flags.parse_flushed_flag("threads=1") == ()
