"""Graphs of eight nodes with a planted cause of one or two: whether making them small leaves exactly these, in how many runs."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tasks.backends import BackendSpec
from tasks.hunt.dialogue import Ask, DialoguePiece, NotFailing, Ran
from tasks.hunt.graph_case import GraphCase
from tasks.hunt.minimise.search import MinimalCase, search_minimal_case
from tasks.judge import policy_files
from tasks.model import Group
from tasks.model.row import Row
from tasks.prepare.cases import PreparedGroup, save_sample_alone
from tasks.runner import Runner, make_item_of_whole_group
from tests.bench.record import Result
from tests.bench.running import Size

#: Nodes of a graph.
NODES = 8
_UNARY = ("Tanh", "Sigmoid", "Neg", "Abs", "Softplus", "Sin", "Cos", "Erf", "Softsign", "Relu", "Softmax", "Exp")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")


def minimise(folder: Path, size: Size) -> Result:
    """Half of the causes are an op, half two ops one of which takes what the other makes."""
    seed = random.Random(size.get("seed", 1))
    counts: Counter[str] = Counter()
    runs: list[int] = []
    while sum(counts.values()) - counts["passes"] < size["graphs"] and counts["passes"] < 8 * size["graphs"]:
        lines, ops = _drawn(seed)
        pair = bool(sum(counts.values()) % 2)
        place = seed.randrange(NODES - 1)
        cause = [ops[place], ops[place + 1]] if pair else [ops[place]]
        found = _made_small(folder, lines, "small-" + ".".join(["pair" if pair else "op", *cause]))
        if found is None:
            counts["passes"] += 1
            continue
        exact = found.case is not None and sorted(found.case.ops) == sorted(cause)
        counts["exact" if exact else "other"] += 1
        runs.append(found.runs)
        if not exact:
            print(f"  {' ; '.join(lines)}: {cause}, found {found.case and found.case.ops} {found.why}", flush=True)
    planted = counts["exact"] + counts["other"]
    figures = {
        "graphs": planted,
        "exact": counts["exact"],
        "passed": counts["passes"],
        "median_runs": float(np.median(runs)),
        "most_runs": max(runs),
    }
    text = (
        f"{counts['exact']} of {planted} causes of one or two nodes in graphs of {NODES} left exactly (bound: 95 %), in a median of "
        f"{np.median(runs):.0f} runs of the backend, at most {max(runs)}"
    )
    return Result(figures, text)


def _drawn(seed: random.Random) -> tuple[list[str], list[str]]:
    """(lines of a graph, its ops in order, each only once): each node takes the one before it."""
    ops = seed.sample([*_UNARY, *_BINARY], NODES)
    lines = []
    for n, op in enumerate(ops):
        before = f"t{n - 1}" if n else "x"
        other = seed.choice(["x", "z", *(f"t{k}" for k in range(n - 1))])
        given = f"{before}, {other}" if op in _BINARY else before
        lines.append(f"t{n} = {op}({given})")
    return lines, ops


def _made_small(folder: Path, lines: list[str], device: str) -> MinimalCase | None:
    """What a search comes to on a backend with a fault; None where the graph passes."""
    from planted_small import graph

    model = graph(*lines)
    random_ = np.random.default_rng(len(lines[0]))
    feeds = {x.name: random_.uniform(-2, 2, (4, 6)).astype(np.float32) for x in model.graph.input}
    case = GraphCase(model, feeds, Group("onnx:bench", "", "float32", 1), 4)
    backend = BackendSpec.parse(device).create()
    runner = Runner(
        backend, backend.start(), policy_files.load_policy("error_units"), lambda number, stage, together: None
    )

    def judged(asked: Ask) -> Row:
        assert not isinstance(asked.case, DialoguePiece)
        group, sample = (asked.case or case).make_sample()
        save_sample_alone(folder / "case.pack", group, sample)
        (done,) = runner.run([make_item_of_whole_group(PreparedGroup(folder / "case.pack"))])
        return done.row

    stored = judged(Ask())
    if stored.status != "wrong":
        return None
    searching: Any = search_minimal_case(stored, lambda: case, "shrink-all", 200, triggers=False)
    try:
        asked = next(searching)
        while True:
            asked = searching.send(Ran(row=judged(asked)))
    except StopIteration as end:
        found: MinimalCase = end.value
        return found
    except NotFailing:
        return None
