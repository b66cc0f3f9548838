"""How reports write rates, numbers and text that came from elsewhere."""

from __future__ import annotations

from typing import Any

import pandas as pd

#: What was not measured.
DASH = "–"
#: Measured numbers between these are rounded to whole ones, and have no exponent.
WHOLE = (999.5, 99_999.5)


def format_percent(part: float, whole: float) -> str:
    """A rate with its denominator, "97.1 % (1520/1566)"; "–" when the denominator is 0.

    Only what is complete is shown as 100 %, only what is empty as 0 %.
    """
    part, whole = int(part), int(whole)
    if whole == 0:
        return DASH
    share = f"{100 * part / whole:.3g}"
    if share == "100" and part < whole:
        share = ">99.9"
    return f"{share} % ({part}/{whole})"


def format_report_number(value: Any) -> str:
    """A measured number with three digits, from 1,000 to 100,000 as a whole one: whether a figure happens to be whole
    does not change how it is written. "–" for what was not measured."""
    if value is None or pd.isna(value):
        return DASH
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < WHOLE[1]):
        return str(int(value))
    return f"{value:.0f}" if WHOLE[0] <= abs(value) < WHOLE[1] else f"{value:.3g}"
