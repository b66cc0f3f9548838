"""How many of the rows that depend on their batch, or differ from run to run, are explained by two named orders: python -m tests.devices.orders RESULTS…

RESULTS: a lake, the folder of one run, or a file of rows. A row is explained if its cause has the code "order": the
op's sum was read alone and in the batch, or as in both runs, and the two orders differ. To the bit: they also give both
results of all elements that were looked at.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import pandas as pd

from tasks.model.kind import CAUSE_ORDER

#: Kinds of the rows of which two results are not the same bytes.
KINDS = ("batch", "nondeterministic")
#: What a cause says of elements whose two results are given to the bit.
_PROVED = re.compile(r"both results of (\d+) of (\d+) elements that differ")


def read_failures(results: Sequence[str]) -> pd.DataFrame:
    """The rows of KINDS: backend, op, apart_units, cause, cause_code."""
    columns = ["run_id", "backend", "op", "dtype", "kind", "apart_units", "cause", "cause_code", "started_at"]
    rows = pd.concat([pd.read_parquet(x) for x in results]).reindex(columns=columns)
    key = ["backend", "op", "dtype", "kind"]
    return (
        rows[rows["kind"].isin(KINDS)]
        .sort_values("started_at", kind="stable")
        .drop_duplicates(key, keep="last")
        .sort_values(key)
    )


def is_proved(cause: str) -> bool:
    """Whether a cause gives both results of each element to the bit."""
    found = _PROVED.search(cause)
    return found is not None and found[1] == found[2]


def main(argv: Sequence[str]) -> int:
    """0 where nine of ten are explained, 1 where fewer are, 2 without such rows."""
    failed = read_failures(argv) if argv else pd.DataFrame()
    if failed.empty:
        print(
            "no row of kind batch or nondeterministic: python -m tests.devices.orders RESULTS, of a run with the checks batch_invariance and determinism"
        )
        return 2
    explained = failed["cause_code"] == CAUSE_ORDER
    for line, told in zip(failed.to_dict("records"), explained):
        print(
            f"{line['backend']:<13} {line['op']:<20} {line['apart_units']:>6.1f} units  {line['cause'] if told else '– not explained'}"
        )
    proved = sum(is_proved(x) for x in failed["cause"][explained])
    print(
        f"{explained.sum()} of {len(failed)} explained by two named orders ({explained.mean():.0%}), {proved} of them to the bit"
    )
    return 0 if explained.mean() >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
