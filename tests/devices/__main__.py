"""The recorded rows beside today's rules: python -m tests.devices [FOLDER…] [--all]"""

from __future__ import annotations

import argparse

import pandas as pd

from tests.devices import devices, recorded
from tests.devices.today import standing, today


def compared(device: str) -> pd.DataFrame:
    """The rows of a device with the columns today, rule, standing."""
    rows = recorded(device)
    found = [today(row) for row in rows.to_dict("records")]
    rows = rows.assign(today=[x.status for x in found], rule=[x.rule for x in found])
    return rows.assign(standing=standing(rows.assign(status=rows["today"])))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.devices", description=__doc__)
    parser.add_argument("devices", nargs="*", default=devices())
    parser.add_argument("--all", action="store_true", help="every row whose recorded status was not the true one")
    args = parser.parse_args()
    for device in args.devices:
        rows = compared(device)
        by = rows.groupby(["status", "truth", "today", "standing", "rule"], sort=True)
        counts = by.agg(distinct=("rows", "size"), rows=("rows", "sum")).reset_index()
        print(f"{device}: recorded, true and today's status\n{counts.to_string(index=False)}")
        shown = rows[(rows["today"] != rows["truth"]) | ((rows["status"] != rows["truth"]) & args.all)]
        columns = ["backend", "check", "op", "dtype", "sample", "status", "truth", "today", "rule", "why"]
        if len(shown):
            print(shown[columns].to_string(index=False))
        false = int((rows["today"] != rows["truth"]).sum())
        print(
            f"{false} of {len(rows)} differ from the truth, {int((rows['standing'] == 'new').sum())} failures are not known"
        )


if __name__ == "__main__":
    main()
