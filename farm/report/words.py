"""How reports write rates, numbers and text that came from elsewhere."""

from __future__ import annotations

from typing import Any

import pandas as pd

#: What was not measured.
DASH = "–"


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
    """A measured number with three digits; "–" for what was not measured."""
    if value is None or pd.isna(value):
        return DASH
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e5):
        return str(int(value))
    return f"{value:.3g}"
