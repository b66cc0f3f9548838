"""The code of a row's cause, also in lakes that have the sentence alone: the one place that reads it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tasks.model.kind import CAUSE_ARITHMETIC, CAUSE_OTHER

if TYPE_CHECKING:
    import pandas as pd

#: How a sentence of a farm before 1.0 began or ended that told of the op's own formula, computed with fewer digits.
_ARITHMETIC = re.compile(
    r", in (b?float\d+)$|^(accumulate[sd]|computed|squares) in |^sums are rounded to "
    r"|^(inputs|input \d+|factors) (is|are) (rounded|truncated) to "
)


def codes(rows: pd.DataFrame) -> pd.Series:
    """The codes of some rows' causes (`tasks.model.kind`), "" for none. A row without a code is of an older farm: its sentence tells
    arithmetic from the rest."""
    said = rows["cause"].fillna("").astype(str)
    code = rows["cause_code"].fillna("").astype(str)
    return code.where((code != "") | (said == ""), said.map(_of_sentence))


def _of_sentence(said: str) -> str:
    return CAUSE_ARITHMETIC if any(_ARITHMETIC.search(words) for words in said.split(" or ")) else CAUSE_OTHER
