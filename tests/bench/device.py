"""A bench of `torch-<device>` on a device that is the CPU's memory: all of op_db, each verdict against the CPU's."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.record import Result
from tests.bench.running import Size, environment, launch, newest, write_config

ON_CPU, ON_DEVICE = "torch-cpu", "memory-memory"
#: What the device of `tests/plugin/device_of_memory.cpp` says that it has no kernels for.
WITHOUT = r"SparseCsr|layout Sparse"


def on_memory(folder: Path, size: Size) -> Result:
    """Samples in float32: how many there are, how many ran elsewhere, and on how many the device's verdict is another
    one, beyond what it says that it has not."""
    catalog = {"name": "torch", "samples": size["samples"], "ops": size["ops"], "dtypes": ["float32"]}
    config = write_config(folder, "device", [catalog], [ON_CPU, ON_DEVICE])
    wall = launch(config, folder / "results", environment(folder / "cache"), "--on=processes", *size.get("flags", ()))
    rows = newest(folder / "results")
    of = {name: rows[rows["backend"] == name].set_index("case_id") for name in (ON_CPU, ON_DEVICE)}
    there = of[ON_DEVICE].join(of[ON_CPU]["status"], rsuffix="_on_cpu")
    declared = (there["status"] == "unsupported") & there["error"].str.contains(WITHOUT, regex=True)
    other = there[(there["status"] != there["status_on_cpu"]) & ~declared]
    for case_id, row in other.head(20).iterrows():
        print(f"{case_id}: {row['status_on_cpu']}, on the device {row['status']} {row['error']}", file=sys.stderr)
    fallback = int((there["status"] == "fallback").sum())
    figures = {
        "samples": len(there),
        "cells": int(there.groupby(["op", "variant"]).ngroups),
        "fallback": fallback,
        "declared": int(declared.sum()),
        "other verdicts": len(other),
        "wall s": round(wall, 1),
    }
    return Result(
        figures,
        f"op_db in float32 on a device that is the CPU's memory: {len(there)} samples of {figures['cells']} ops, {fallback} "
        f"fallback (bound: 0), {figures['declared']} unsupported as the device declares (sparse tensors), {len(other)} with "
        f"another verdict than on the CPU (bound: 0), in {wall:.0f} s",
    )
