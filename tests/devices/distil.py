"""A folder of `tests/devices` out of a run on a real device: python -m tests.devices.distil LAKE_OR_PARQUET… FOLDER

Every way of failing, and a few passes, with what decides. What the folder says already of a row's `truth` stays; a row
that it does not know is taken at its word, for somebody to look at.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from tasks.model.errors import mask_error_details
from tests.devices import KEPT, KEY, TOLD

#: Characters of an error that are kept, and of a row's flags the words that name a device alone are not.
ERROR = 1000
_NAMES = ("uuid=", "ecc=")
#: Statuses of which one row stands for all that were refused in the same words.
_ALIKE = ("unsupported", "fallback", "invalid", "vacuous")


def read(sources: list[Path]) -> pd.DataFrame:
    """The rows of lakes and of files, those of one key once."""
    frame = pd.concat([pd.read_parquet(path) for path in sources], ignore_index=True)
    frame = frame.drop_duplicates([*KEY, "run_id"])
    flags = [" ".join(w for w in str(x or "").split() if not w.startswith(_NAMES)) for x in frame["flags"]]
    day = frame["started_at"].astype(str).str.slice(0, 10)
    return frame.assign(flags=flags, day=day, error=frame["error"].fillna("").str.slice(0, ERROR))


def distil(rows: pd.DataFrame) -> pd.DataFrame:
    """Of what was refused a row for each wording, of what failed each, of what passed one for each catalog and
    dtype."""
    words = [mask_error_details(error, [op.partition(":")[2]]) for error, op in zip(rows["error"], rows["op"])]
    catalog = rows["op"].str.partition(":")[0]
    alike = rows["status"].isin(_ALIKE)
    passed = rows["status"] == "pass"
    group = rows["backend"] + "\0" + rows["check"] + "\0" + rows["status"] + "\0" + catalog + "\0"
    own = rows[KEY].astype(str).agg("\0".join, axis=1)
    key = own.mask(passed, group + rows["dtype"]).mask(alike, group + pd.Series(words, index=rows.index))
    first = rows.assign(key=key, rows=key.map(key.value_counts())).drop_duplicates("key")
    return first.sort_values(KEY, kind="stable")[[*KEPT, "rows"]].reset_index(drop=True)


def with_truth(rows: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The rows with what is known of them."""
    file = folder / "rows.csv"
    rows = rows.assign(truth=rows["status"], why="")
    if file.exists():
        known = pd.read_csv(file, dtype=str, keep_default_na=False).set_index(KEY)[["truth", "why"]]
        places = pd.MultiIndex.from_frame(rows[KEY].fillna("").astype(str))
        told = known.reindex(places)
        for name in ("truth", "why"):
            rows[name] = told[name].where(told[name].notna(), rows[name].to_numpy()).to_numpy()
    return rows[[*KEPT, *TOLD]]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    *sources, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    made = with_truth(distil(read(sources)), folder)
    made.to_csv(folder / "rows.csv", index=False, lineterminator="\n", float_format="%.9g")
    print(f"{folder}/rows.csv: {len(made)} rows for {int(made['rows'].sum())}")
