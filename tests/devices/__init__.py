"""What real devices said, in folders; `python -m tests.devices` holds it against what the farm's rules say today.

`distil` makes a folder of a lake, `today` asks the rules, `tests/tasks/test_recorded_devices.py` wants no difference.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
#: What tells one row from another.
KEY = ["backend", "check", "op", "variant", "dtype", "distribution", "sample", "status", "kind"]
#: Columns of a row that are kept, as the lake has them, and the day it is of.
KEPT = [
    *(
        *KEY,
        "seed",
        "op_class",
        "oracle",
        "stage",
        "error_type",
        "error",
        "cause",
        "culprit",
        "compute_precision",
        "flags",
    ),
    *("runtime_version", "max_ulp", "error_units", "oracles_units", "flip_units", "mismatched", "nonfinite", "numel"),
    *("classic", "day"),
]
#: Beside them: how many rows of the lake it stands for, what it should have said, and why.
TOLD = ["rows", "truth", "why"]


def devices() -> list[str]:
    """Names of the folders."""
    return sorted(path.parent.name for path in HERE.glob("*/rows.csv"))


def recorded(device: str) -> pd.DataFrame:
    """The rows of a folder, with TOLD."""
    rows = pd.read_csv(HERE / device / "rows.csv", keep_default_na=False, na_values={c: [""] for c in _numbers()})
    return rows.astype({"classic": object}).assign(classic=rows["classic"].map({"True": True, "False": False}))


def _numbers() -> list[str]:
    return [c for c in KEPT if c.startswith(("max_", "error_u", "oracles_", "flip_", "mism", "nonf", "numel"))]
