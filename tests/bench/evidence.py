"""Benches of the verdict: what the policies catch, how near torch is to its references, how many samples are weak."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from unittest import mock

import pandas as pd

from farm.plan import config as configs
from farm.plan.match_known import drop_known_rows
from farm.policies.rejudge import rejudge_rows
from tasks.judge import policy as rules
from tasks.judge import policy_files
from tasks.model import FAILED, MEASURED, NOT_VALID, Status, name_statuses
from tasks.zoo import PRECISION, faults
from tests.bench.record import ROOT, Result
from tests.bench.running import Size, environment, launch, newest, run, write_config


def zoo(folder: Path, size: Size) -> Result:
    """The planted faults and their twins under every policy: what `farm policy selftest` prints."""
    narrow = [word for glob in size["ops"] for word in ("--ops", glob)]
    command = [sys.executable, "-m", "farm.selftest", "--results", str(folder / "zoo"), *narrow]
    _, _, out = run(command, environment(folder / "cache"), (0, 1))
    figures: dict[str, float] = {}
    lines = []
    for line in out.splitlines():
        if found := re.match(r"(\w+)-\d+: .*?(\d+)/(\d+).* of the faults caught.*?(\d+)/(\d+)", line):
            policy, caught, faults, blamed, twins = found.groups()
            figures |= {"faults": int(faults), "twins": int(twins)}
            figures |= {f"caught {policy}": int(caught), f"blamed {policy}": int(blamed)}
            if apart := re.search(r"(\d+) of them as imprecise", line):
                figures[f"imprecise {policy}"] = int(apart[1])
            lines.append(line)
        elif found := re.match(r"steep points: .*?(\d+)/(\d+).*?(\d+)/(\d+)", line):
            names = ("steep faults caught", "steep faults", "steep twins passed", "steep twins")
            figures |= dict(zip(names, map(int, found.groups())))
            lines.append(line)
    tried = bands(newest(folder / "zoo"))
    told = "; ".join(f"{name}: {', '.join(found) or 'none'}" for name, found in tried.items())
    lines.append(f"faults of logic that would be imprecise in a dtype, by the width of the band: {told}")
    return Result(figures | {name: len(found) for name, found in tried.items()}, "; ".join(lines))


def bands(rows: pd.DataFrame) -> dict[str, list[str]]:
    """By the width of the band beyond the limit: the faults of logic, each in a dtype, that it makes merely
    imprecise."""
    logic = {f"user:{name}" for name, fault in faults().items() if fault.kind not in PRECISION}
    rows, policy = rows[rows["op"].isin(logic)], policy_files.load_policy("error_units")

    def failed(band: float, digit: float) -> set[str]:
        with mock.patch.multiple(rules, BAND=band, DIGIT=digit):
            status = rejudge_rows(rows, policy)["status"]
        some = rows[status.isin(name_statuses(FAILED))]
        return set(some["op"].str.removeprefix("user:") + " " + some["dtype"])

    every = failed(1, 0)
    return {
        f"{band} limits{', a decimal digit right' if digit < rules.GROSS else ''}": sorted(every - failed(band, digit))
        for digit in (rules.GROSS, rules.DIGIT)
        for band in (4, 8, 16, 32)
    }


def verdicts(folder: Path, size: Size) -> Result:
    """torch's op_db on torch-cpu: how near it is to its references, and how many outcomes no cause is known of."""
    known = ROOT / "configs" / "known" / "torch-cpu.yaml"
    catalog = {"name": "torch", "samples": size["samples"], "ops": size["ops"]}
    config = write_config(folder, "verdicts", [catalog], ["torch-cpu"], known_failures=str(known))
    launch(config, folder / "verdicts", environment(folder / "cache"), "--on", "inline")
    rows = newest(folder / "verdicts")
    judged = rows[rows["status"].isin(name_statuses(MEASURED)) & ~rows["op_class"].isin(["random", "uninitialised"])]
    in_ulps = judged["op_class"].isin(["exact", "elementary"])
    distance = judged["max_ulp"].where(in_ulps, judged["error_units"])
    distance = distance.where(judged["kind"] != "nonfinite", float("inf")).fillna(0.0)
    cells = distance.groupby([judged["op"], judged["variant"], judged["dtype"]]).max()
    others = drop_known_rows(
        rows[~rows["status"].isin(name_statuses([Status.PASS, *NOT_VALID]))], configs.load_config(config)
    )
    figures: dict[str, float] = {"cases": len(rows), "cells": len(cells), "without a cause": len(others)}
    figures |= {f"within {n} %": 100 * float((cells <= n).mean()) for n in (2, 4)}
    figures |= {name: int((rows["status"] == name).sum()) for name in ("wrong", "imprecise", "error")}
    return Result(
        figures,
        f"{len(rows)} cases, {len(cells)} comparable cells: {figures['within 4 %']:.1f} % within 4 units or ulps "
        f"(bound: 95), {figures['within 2 %']:.1f} % within 2; {figures['wrong']} wrong, {figures['imprecise']} imprecise, "
        f"{figures['error']} errors, {len(others)} of them not in {known.relative_to(ROOT)} (bound: 0)",
    )


def weak(folder: Path, size: Size) -> Result:
    """Prepared samples that a zero or constant output would pass, among those that count as evidence."""
    command = [sys.executable, "-m", "tests.bench.weak", str(size["every"])]
    _, _, out = run(command, environment(folder / "cache"))
    figures: dict[str, float] = {}
    for line in out.splitlines():
        if found := re.match(
            r"weak: (\w+): (\d+) samples, (\d+) weak.*?(\d+) count as evidence.*?pass (\d+) .*? (\d+) \(", line
        ):
            names = ("samples", "weak", "evidence", "zero would pass", "a constant would pass")
            figures |= {f"{found[1]} {name}": int(value) for name, value in zip(names, found.groups()[1:])}
    return Result(figures, "; ".join(line.removeprefix("weak: ") for line in out.strip().splitlines()))
