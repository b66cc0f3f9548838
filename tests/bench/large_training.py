"""A large GPT of one's own, trained on all processors, and on one: what processes beside the exact steps and beside the
backend save."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.bench.record import Result
from tests.bench.running import Size, environment, newest, run, run_command, write_config

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm({wide}), nn.LayerNorm({wide})
        self.split, self.join = nn.Linear({wide}, 3 * {wide}), nn.Linear({wide}, {wide})
        self.up, self.down = nn.Linear({wide}, 4 * {wide}), nn.Linear(4 * {wide}, {wide})

    def forward(self, x):
        parts = self.split(self.before(x)).unflatten(-1, (3, {heads}, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.join(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))

class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding({words}, {wide}), nn.Embedding({tokens}, {wide})
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range({deep}))), nn.LayerNorm({wide})
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, words, following):
        x = self.norm(self.blocks(self.words(words) + self.places.weight))
        return F.cross_entropy((x @ self.words.weight.T).flatten(0, 1), following.flatten())

def data():
    drawn = torch.Generator().manual_seed(1)
    while True:
        words = torch.randint({words}, (1, {tokens} + 1), generator=drawn)
        yield words[:, :-1], words[:, 1:]

def make():
    torch.manual_seed(0)
    module = Gpt()
    return module, data(), torch.optim.AdamW(module.parameters(), lr=3e-4), None, {{"clip": 1.0}}
"""
#: Runs a command on one processor.
ALONE = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.execv(sys.argv[1], sys.argv[1:])"


def large_training(folder: Path, size: Size) -> Result:
    """13 steps, prepared, run on torch-cpu and judged, each time with an empty cache. size: width, heads, blocks, words
    and tokens of the network, the backend's memory, and whether one processor is asked too."""
    (folder / "large.py").write_text(MODEL.format(**size))
    own = [{"name": "large", "model": f"{folder / 'large.py'}:make"}]
    catalogs = [{"name": "training", "ops": ["large"], "samples": 1, "own": own}]
    named = {"dtypes": ["float32"], "checks": ["train"], "deadline_s": 3000}
    backends = [{"name": "torch-cpu", "memory_gib": size["memory_gib"]}]
    config = write_config(folder, "large", catalogs, backends, **named)
    taken = {}
    for name, before in (("all", []), ("one", [sys.executable, "-c", ALONE]))[: 1 + size["one"]]:
        lake, env = folder / f"lake-{name}", environment(folder / f"cache-{name}")
        taken[name] = run([*before, *run_command(config, lake)], env, (0, 1))[0]
        row = newest(lake).iloc[0]
    wide, processors = size["wide"], len(os.sched_getaffinity(0))
    parameters = (size["words"] + size["tokens"] + 2 + size["deep"] * (12 * wide + 13)) * wide
    units = float(row["error_units"])
    figures = {"parameters": parameters, "processors": processors, "seconds": round(taken["all"])}
    text = f"13 steps of a GPT of {parameters / 1e6:.1f} million parameters take {taken['all']:.0f} s on {processors} processors"
    if size["one"]:
        times = round(taken["one"] / taken["all"], 2)
        figures |= {"seconds on one processor": round(taken["one"]), "times as fast": times}
        text += f", {times:.2f} times as fast as on one"
    return Result(figures | {"floors": round(units, 2)}, f"{text}: {row['status']}, {units:.1f} floors off at most")
