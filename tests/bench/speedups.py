"""What the check speedup says of eager torch against itself while the machine is loaded: nothing, every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from farm import lake
from farm.report.tables.coverage import distinct
from farm.report.tables.speedups import speedups
from tests.bench.record import Result
from tests.bench.running import Size
from tests.conftest import launch

#: Keeps a core busy in turns, as other people's work does.
BUSY = "import time\nwhile True:\n    end = time.perf_counter() + 0.05\n    while time.perf_counter() < end: pass\n    time.sleep(0.02)"


def alike(folder: Path, size: Size) -> Result:
    """Eager against itself, ``tries`` times, beside ``load`` processes; and, of the same runs, what was found to differ."""
    catalog = {"name": "critical", "ops": size["ops"], "samples": size["tries"]}
    config = folder / "alike.yaml"
    config.write_text(
        yaml.safe_dump(
            {"dtypes": ["float32"], "checks": ["speedup"], "catalogs": [catalog], "backends": ["torch-cpu", "ort-cpu"]}
        )
    )
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(size["load"])]
    try:
        done = launch(config, "--inline", "--results", folder / "lake", timeout=3600)
    finally:
        for one in others:
            one.kill()
            one.wait()
    assert done.returncode == 0, done.stdout + done.stderr
    found = speedups(distinct(lake.read(folder / "lake", lake.run_ids(folder / "lake")[-1])))
    itself = found[found["backend"] == "torch-cpu"]["says"]
    other = found[found["backend"] == "ort-cpu"]
    figures = {
        "tries": len(itself),
        "no difference": int(itself.isin(["no difference", "unsure"]).sum()),
        "unsure": int((itself == "unsure").sum()),
        "load": size["load"],
        "ort-cpu differs": int(other["says"].isin(["faster", "slower"]).sum()),
        "ort-cpu median": round(float(other["speedup"].median()), 3),
    }
    text = (
        f"eager torch against itself beside {figures['load']} busy processes: no difference in {figures['no difference']} of "
        f"{figures['tries']} tries (unsure in {figures['unsure']}); ort-cpu in the same runs {figures['ort-cpu median']} times as "
        f"fast, told apart in {figures['ort-cpu differs']}"
    )
    return Result(figures, text)
