"""Models of this folder through ``farm run``, as somebody runs them who wrote them, beside what is true of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tests.bench.running import newest, run, write_config
from tests.own_models.truth import EXPECTED, Truth

HERE = Path(__file__).parent
BACKENDS = ("torch-cpu", "inductor-cpu")
#: Exit codes of a run that has judged everything.
ENDED = (0, 1)


@dataclass(frozen=True)
class Told:
    """What a row says of a model beside what is true of it; seconds: its preparation, its build and its run."""

    module: str
    model: str
    backend: str
    truth: Truth
    status: str
    kind: str
    culprit: str
    error: str
    seconds: float

    @property
    def differs(self) -> str:
        """What is not as it should be, "" where all is."""
        if self.status != self.truth.status:
            return f"{self.status} for {self.truth.status}"
        columns = ("kind", self.truth.kind), ("culprit", self.truth.culprit), ("error", self.truth.says)
        return next(
            (
                f"{name} {getattr(self, name)!r} for {x!r}"
                for name, x in columns
                if not re.search(x, getattr(self, name))
            ),
            "",
        )

    @property
    def blamed(self) -> bool:
        """Whether a backend that is right is said to be at fault."""
        return self.truth.status in ("pass", "fallback", "invalid") and self.status in _FAILURES


_FAILURES = ("wrong", "imprecise", "error", "crash", "timeout", "oom")


def models(patterns: Sequence[str] = ()) -> dict[str, list[str]]:
    """Names of classes by module; those of which ``module.Class`` matches one of ``patterns``, all by default."""
    from fnmatch import fnmatch

    def asked(module: str, name: str) -> bool:
        return not patterns or any(fnmatch(x, p) for p in patterns for x in (module, f"{module}.{name}"))

    found = {module: [x for x in known if asked(module, x)] for module, known in EXPECTED.items()}
    return {module: names for module, names in found.items() if names}


def write_inputs(module: str, path: Path, seed: int) -> None:
    """What ``get_inputs()`` of a module draws, in an .npz of its arguments in their order."""
    import numpy as np
    import torch

    torch.manual_seed(seed)
    source = HERE / f"{module}.py"
    text = source.read_text()
    space: dict[str, Any] = {"torch": torch}
    # The function alone: a file may not import, and may change torch where it does.
    exec(compile(text[text.index("def get_inputs") :], str(source), "exec"), space)
    np.savez(path, **{f"x{i}": x.numpy() for i, x in enumerate(space["get_inputs"]())})


def ask(module: str, names: Sequence[str], folder: Path, env: Mapping[str, str], seed: int) -> list[Told]:
    """The models of one module in one run: what a file does to torch is done to them alone."""
    folder.mkdir(parents=True)
    write_inputs(module, folder / "inputs.npz", seed)
    own = [{"name": x, "model": f"{HERE / module}.py:{x}", "inputs": str(folder / "inputs.npz")} for x in names]
    config = write_config(
        folder, module, [{"name": "models", "own": own}], list(BACKENDS), dtypes=["float32"], deadline_s=600.0
    )
    command = [sys.executable, "-m", "farm", "run", str(config), "--no-ray", "--results", str(folder / "lake")]
    run(command, env, ENDED)
    return told(module, names, newest(folder / "lake"))


def told(module: str, names: Sequence[str], rows: pd.DataFrame) -> list[Told]:
    """Rows beside the truth; a model without a row is told as ``lost``."""
    by = {(x["op"].partition(":")[2], x["backend"]): x for x in rows.fillna("").to_dict("records")}
    return [_one(module, name, backend, by.get((name, backend), {})) for name in names for backend in BACKENDS]


def _one(module: str, name: str, backend: str, row: Mapping[str, Any]) -> Told:
    words = (str(row.get(x, "")) for x in ("kind", "culprit", "error"))
    seconds = sum(float(row.get(f"{x}_ms") or 0) for x in ("prepare", "build", "run")) / 1e3
    truth = EXPECTED[module][name].on(backend)
    return Told(module, name, backend, truth, str(row.get("status", "lost")), *words, seconds)
