"""A large training of one's own on one processor and on all: what processes beside the exact steps and a judge in threads
save."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.bench.record import Result
from tests.bench.running import Size, environment, newest, run, run_command, write_config

MODEL = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

def data():
    drawn = torch.Generator().manual_seed(1)
    while True:
        words = torch.randint({words}, (1, {tokens} + 1), generator=drawn)
        yield words[:, :-1], words[:, 1:]

def make():
    torch.manual_seed(0)
    layers = [nn.Embedding({words}, {wide})]
    for _ in range({deep}):
        layers += [nn.Linear({wide}, 4 * {wide}), nn.GELU(), nn.Linear(4 * {wide}, {wide}), nn.LayerNorm({wide})]
    module = nn.Sequential(*layers, nn.Linear({wide}, {words}))
    loss = lambda found, right: cross_entropy(found.flatten(0, 1), right.flatten())
    return module, data(), torch.optim.AdamW(module.parameters(), lr=3e-4), loss, {{"clip": 1.0}}
"""
#: Runs a command on one processor.
ALONE = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.execv(sys.argv[1], sys.argv[1:])"


def large_training(folder: Path, size: Size) -> Result:
    """13 steps, prepared, run on torch-cpu and judged, each time with an empty cache. size: width, blocks, words and
    tokens of the network."""
    (folder / "large.py").write_text(MODEL.format(**size))
    own = [{"name": "large", "model": f"{folder / 'large.py'}:make"}]
    catalogs = [{"name": "training", "ops": ["large"], "samples": 1, "own": own}]
    named = {"dtypes": ["float32"], "checks": ["train"], "deadline_s": 3000}
    backends = [{"name": "torch-cpu", "memory_gib": 16}]
    config = write_config(folder, "large", catalogs, backends, **named)
    taken = {}
    for name, before in (("one", [sys.executable, "-c", ALONE]), ("all", [])):
        lake, env = folder / f"lake-{name}", environment(folder / f"cache-{name}")
        taken[name] = run([*before, *run_command(config, lake)], env, (0, 1))[0]
        row = newest(lake).iloc[0]
    units = float(row["error_units"])
    parameters = size["wide"] * (2 * size["words"] + size["deep"] * (8 * size["wide"] + 7)) + size["words"]
    processors = len(os.sched_getaffinity(0))
    times = taken["one"] / taken["all"]
    figures = {"parameters": parameters, "processors": processors, "times as fast": round(times, 2)}
    figures |= {
        "seconds": round(taken["all"]),
        "seconds on one processor": round(taken["one"]),
        "floors": round(units, 2),
    }
    text = (
        f"13 steps of a training of {parameters / 1e6:.1f} million parameters take {taken['all']:.0f} s on {processors} "
        f"processors, {times:.2f} times as fast as on one: {row['status']}, {units:.1f} floors off at most"
    )
    return Result(figures, text)
