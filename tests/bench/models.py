"""What is asked of models beside the numbers: harvested nodes, speed against eager torch, frameworks against one another.

They take the user's own cache, where environments and models are: nothing here times what is made for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from farm import lake
from farm.report.tables.coverage import FAILED_STATUSES, PASSED_STATUSES, keep_distinct_rows
from farm.report.tables.speedups import list_speedup_lines
from tasks.cache import default_cache
from tests.bench.record import ROOT, Result
from tests.bench.running import Size, environment, launch, run, write_config

#: Keeps a core busy in turns, as other people's work does.
BUSY = "import time\nwhile True:\n    end = time.perf_counter() + 0.05\n    while time.perf_counter() < end: pass\n    time.sleep(0.02)"


def rows_of(config: Path, folder: Path, *flags: str) -> pd.DataFrame:
    """The rows of a run, ready for tables."""
    launch(config, folder / "lake", environment(default_cache()), "--on", "processes", *flags)
    return keep_distinct_rows(lake.read(folder / "lake", lake.run_ids(folder / "lake")[-1]))


def of_config(name: str, folder: Path, size: Size, *flags: str) -> pd.DataFrame:
    """The rows of a config that comes with the farm; of a part of it, where the size has flags that say which."""
    return rows_of(ROOT / "configs" / f"{name}.yaml", folder, *flags, *size["flags"])


def _judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of which something was computed and compared."""
    return rows[rows["status"].isin([*PASSED_STATUSES, *FAILED_STATUSES])]


def top50(folder: Path, size: Size) -> Result:
    """configs/top50.yaml: of the commonest operations, how many each backend computes rightly, by dtype."""
    rows = _judged(of_config("top50", folder, size))
    figures: dict[str, float] = {"operations": rows["op"].nunique()}
    words = []
    for (backend, dtype), some in rows.groupby(["backend", "dtype"]):
        cells = some["status"].isin(PASSED_STATUSES).groupby([some["op"], some["variant"]]).all()
        figures |= {f"{backend} {dtype} cells": len(cells), f"{backend} {dtype} right": int(cells.sum())}
        words.append(f"{backend} {dtype} {int(cells.sum())} of {len(cells)} cells right")
    return Result(figures, f"{figures['operations']} operations: {'; '.join(words)}; an absent GPU has no column")


def roundtrip(folder: Path, size: Size) -> Result:
    """configs/roundtrip.yaml: how far a runtime is from torch and from float64, as exported once and again."""
    rows = rows_of(_round_trip(folder), folder) if size["tiny"] else of_config("roundtrip", folder, size)
    figures: dict[str, float] = {}
    words = []
    for line in rows.sort_values(["backend", "sample"]).to_dict("records"):
        name = f"{line['backend']} {('once', 'again')[line['sample']]}"
        figures |= {f"{name} to torch": line["torch_diff"], f"{name} to float64": line["max_diff"]}
        figures[f"{name} units"] = round(line["error_units"], 2)
        words.append(
            f"{name}: {line['torch_diff']:.1e} from torch, {line['max_diff']:.1e} from float64, {line['status']}"
        )
    return Result(figures, f"{size['of']}, exported once and again, the largest difference: {'; '.join(words)}")


def _race_beside_load(config: Path, folder: Path, load: int) -> pd.DataFrame:
    """The speedups of a config, measured beside ``load`` busy processes."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(load)]
    try:
        return list_speedup_lines(rows_of(config, folder, "--cpus", "1"))
    finally:
        for one in others:
            one.kill()
            one.wait()


def _count_undecided(found: pd.DataFrame, load: int) -> dict[str, float]:
    """How many races of what is the same found no difference; figures of a result."""
    unsure = int((found["says"] == "unsure").sum())
    none = int((found["says"] == "no difference").sum())
    return {"tries": len(found), "no difference": none + unsure, "unsure": unsure, "load": load}


def alike(folder: Path, size: Size) -> Result:
    """Eager torch against itself, ``tries`` times, beside ``load`` processes; and, of the same runs, another
    runtime."""
    catalog = {"name": "critical", "ops": size["ops"], "samples": size["tries"]}
    named = {"dtypes": ["float32"], "checks": ["speedup"]}
    config = write_config(folder, "alike", [catalog], ["torch-cpu", "ort-cpu"], **named)
    found = _race_beside_load(config, folder, size["load"])
    itself, other = found[found["backend"] == "torch-cpu"], found[found["backend"] == "ort-cpu"]
    figures = _count_undecided(itself, size["load"]) | {
        "ort-cpu tries": len(other),
        "ort-cpu told apart": int(other["says"].isin(["faster", "slower"]).sum()),
        "ort-cpu by CPU time": round(float(other["speedup_cpu"].median()), 3),
    }
    text = (
        f"eager torch against itself beside {figures['load']} busy processes: no difference in {figures['no difference']} of "
        f"{figures['tries']} tries ({figures['unsure']} unsure); in the same run ort-cpu, {figures['ort-cpu by CPU time']} times as "
        f"fast by CPU time, was told apart in {figures['ort-cpu told apart']} of {figures['ort-cpu tries']}"
    )
    return Result(figures, text)


#: A kernel that is its reference, and one that sleeps for a tenth of the CPU time of that: of the wall clock it would
#: be a tenth of what others take as well. Who sleeps wakes some 60 µs late.
_KERNELS = """
import time
import torch

def reference(a, b): return a @ b
def same(a, b): return a @ b

def tenth(a, b):
    begin = time.thread_time()
    made = a @ b
    time.sleep(max((time.thread_time() - begin) / 10 - 6e-5, 0))
    return made
"""


def baseline(folder: Path, size: Size) -> Result:
    """Kernels against their reference, ``tries`` times, beside ``load`` processes: one that is it, and one that sleeps
    a tenth."""
    (folder / "kernels.py").write_text(_KERNELS)
    common = {
        "reference": "kernels.py:reference",
        "reference_framework": "torch",
        "inputs": {"a": [700, 700], "b": [700, 700]},
    }
    kernels = [{"name": x, "kernel": f"kernels.py:{x}", **common} for x in ("same", "tenth")]
    catalog = {"name": "user", "samples": size["tries"], "root": str(folder), "kernels": kernels}
    config = write_config(folder, "baseline", [catalog], ["torch-cpu"], dtypes=["float32"], checks=["speedup"])
    found = _race_beside_load(config, folder, size["load"])
    same, tenth = (found[found["op"] == f"user:{name}"] for name in ("same", "tenth"))
    holds = (tenth["speedup_low"] <= 1 / 1.1) & (tenth["speedup_high"] >= 1 / 1.1)
    width = (same["speedup_high"] / same["speedup_low"]).median()
    figures = _count_undecided(same, size["load"]) | {
        "width": round(float(width), 3),
        "tenth tries": int(tenth["speedup"].notna().sum()),
        "tenth in the interval": int(holds.sum()),
        "tenth": round(float(tenth["speedup"].median()), 3),
    }
    text = (
        f"a kernel against an identical reference beside {figures['load']} busy processes: no difference in {figures['no difference']} of "
        f"{figures['tries']} tries ({figures['unsure']} unsure), high over low {figures['width']} (median); the interval of one that sleeps a tenth holds 0.909 in "
        f"{figures['tenth in the interval']} of {figures['tenth tries']} (median {figures['tenth']})"
    )
    return Result(figures, text)


def faster(folder: Path, size: Size) -> Result:
    """configs/speedup.yaml: how many times as fast as eager torch each backend is on each op, by CPU time."""
    found = list_speedup_lines(of_config("speedup", folder, size, "--cpus", "1"))
    figures: dict[str, float] = {}
    words = []
    for line in found.to_dict("records"):
        name, clock = f"{line['op'].partition(':')[2]} {line['backend']}", "speedup_cpu"
        if pd.isna(line[clock]):
            continue
        figures |= {f"{name}{end}": round(line[f"{clock}{end}"], 3) for end in ("", "_low", "_high")}
        words.append(f"{name} {line[clock]:.2f} [{line[f'{clock}_low']:.2f}, {line[f'{clock}_high']:.2f}]")
    figures["timed"] = len(found)
    return Result(figures, f"times as fast as eager torch by CPU time, with intervals (99.9 %): {'; '.join(words)}")


def parity(folder: Path, size: Size) -> Result:
    """configs/parity.yaml: every framework against float64, and how many of them gave the very same bytes."""
    judged = _judged(of_config("parity", folder, size))
    figures = {f"{line['backend']} units": round(line["error_units"], 2) for line in judged.to_dict("records")}
    figures |= {"frameworks": len(judged), "passed": int(judged["status"].isin(PASSED_STATUSES).sum())}
    figures["distinct outputs"] = int(judged["output_digest"].nunique())
    units = ", ".join(f"{line['backend']} {line['error_units']:.1f}" for line in judged.to_dict("records"))
    text = (
        f"BERT's encoder with the same weights: {figures['passed']} of {figures['frameworks']} backends right (error units: "
        f"{units}; limit 32), {'identical' if figures['distinct outputs'] == 1 else 'not identical'} byte for byte: "
        f"{figures['distinct outputs']} distinct outputs"
    )
    return Result(figures, text)


def harvest(folder: Path, size: Size) -> Result:
    """farm init harvest of models, and what backends make of the nodes."""
    options = size["models"] or _tiny(folder)
    command = [sys.executable, "-m", "farm", "init", "harvest", *options, "--out", str(folder / "nodes")]
    _, _, said = run(command, environment(default_cache()))
    (found,) = re.findall(r"(\d+) distinct of (\d+) nodes, (\d+) instances, (\d+) MiB; .* (\d+) s of CPU time", said)
    names = ("distinct", "nodes", "instances", "MiB", "CPU s")
    figures: dict[str, float] = dict(zip(names, map(int, found), strict=True))
    catalog = {"name": "nodes", "path": str(folder / "nodes")}
    rows = rows_of(write_config(folder, "nodes", [catalog], size["backends"]), folder)
    words = []
    for backend, some in rows.groupby("backend"):
        counts = some["status"].value_counts()
        figures |= {f"{backend} {status}": int(count) for status, count in counts.items()}
        words.append(f"{backend}: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    text = (
        f"{size['of']}: {figures['distinct']} distinct of {figures['nodes']} nodes, {figures['instances']} instances, "
        f"{figures['MiB']} MiB, {figures['CPU s']} s of CPU time; {'; '.join(words)}"
    )
    return Result(figures, text)


def _round_trip(folder: Path) -> Path:
    """configs/roundtrip.yaml with a model of one layer in a file."""
    import numpy as np

    (folder / "layer.py").write_text("import torch\n\n\ndef made():\n    return torch.nn.Linear(3, 2)\n")
    np.savez(folder / "x.npz", x=np.ones((2, 3), np.float32))
    own = [{"name": "layer", "model": "layer.py:made", "inputs": "x.npz"}]
    return write_config(folder, "layer", [{"name": "models", "own": own}], ["ort-cpu"], checks=["roundtrip"])


def _tiny(folder: Path) -> Sequence[str]:
    """A model of two nodes with its inputs, in files."""
    import numpy as np
    import onnx
    from onnx import parser

    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y) { t = Relu(x) y = Softmax(t) }'
    )
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    np.savez(folder / "m.npz", x=np.ones((2, 3), np.float32))
    return ["--model", str(folder / "m.onnx"), "--inputs", str(folder / "m.npz")]
