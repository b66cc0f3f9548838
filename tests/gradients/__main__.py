"""What the farm says of gradients that are hard to judge: python -m tests.gradients [--dtype float32] [--check backward] [--only WORD]"""

from __future__ import annotations

import argparse

from tests.gradients import said
from tests.gradients.functions import FUNCTIONS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gradients", description=__doc__)
    parser.add_argument("--dtype", action="append", help="of the inputs: float32, float64; may be given again")
    parser.add_argument("--check", default="backward", choices=["backward", "double_backward"])
    parser.add_argument("--only", default="", help="functions with this in their name")
    args = parser.parse_args()
    chosen = tuple(f for f in FUNCTIONS if args.only in f.name)
    blamed = missed = rows = 0
    for dtype in args.dtype or ["float32", "float64"]:
        for one in said(chosen, dtype, args.check):
            rows += 1
            blamed, missed = blamed + one.blamed, missed + one.missed
            if not (one.blamed or one.missed or args.only or (not one.twin and one.row["status"] != "pass")):
                continue
            row = one.row
            units = ", ".join(
                f"{k} {row[k]:.3g}" for k in ("error_units", "second_units", "oracles_units") if row[k] is not None
            )
            print(
                f"{'twin' if one.twin else 'sound':5} {one.name} ({'plain, ' * one.plain}{one.reference}, {dtype}): {row['status']} {row['kind']} "
                f"[{units}] {row['oracle']}; {row['second_oracle']} {row['worst'] or ''} {row['error']}"
            )
    print(f"{len(chosen)} functions, {rows} kernels judged: {blamed} right ones blamed, {missed} wrong ones missed")
    return int(bool(blamed or missed))


if __name__ == "__main__":
    raise SystemExit(main())
