"""What it costs to watch the accesses of Triton kernels in its interpreter."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

from tests.bench import running
from tests.bench.record import Result
from tests.bench.running import Size


def interpreted(folder: Path, size: Size) -> Result:
    """CPU time of kernels watched, over that of the same kernels unwatched. size: times."""
    if importlib.util.find_spec("triton") is None:
        return Result({"kernels": 0}, "Triton is not installed here: nothing was measured.")
    command = [sys.executable, "-m", "tests.bench.interpreted_kernels", str(size["times"])]
    _, _, said = running.run(command, running.environment(folder / "cache", TRITON_INTERPRET="1"))
    ratios = {name: after / before for name, (before, after) in json.loads(said.splitlines()[-1]).items()}
    worst = max(ratios, key=lambda name: ratios[name])
    text = (
        f"Triton's interpreter with races and bounds looked for takes {min(ratios.values()):.2f} to {ratios[worst]:.2f} "
        f"times the CPU time ({worst}) of {len(ratios)} kernels; 3 is the bound."
    )
    return Result({"kernels": len(ratios), **{f"{name}: times as long": x for name, x in ratios.items()}}, text)
