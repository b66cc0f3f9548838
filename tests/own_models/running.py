"""Models of this folder through ``farm run``, as somebody runs them who wrote them, beside what is true of them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pandas as pd

from tasks.model import FAILED, Status, name_statuses
from tests.bench.running import newest, run, write_config
from tests.own_models.truth import EXPECTED, SAMPLES, Truth

HERE = Path(__file__).parent
BACKENDS = ("torch-cpu", "inductor-cpu")
#: Exit codes of a run that has judged everything.
ENDED = (0, 1)


@dataclass(frozen=True)
class Told:
    """What a row says of a model beside what is true of it."""

    module: str
    model: str
    backend: str
    truth: Truth
    status: str
    kind: str
    culprit: str
    error: str

    @property
    def differs(self) -> str:
        """What is not as it should be, "" where all is."""
        if self.status != self.truth.status:
            return f"{self.status} for {self.truth.status}"
        told = {"kind": self.truth.kind, "culprit": self.truth.culprit, "error": self.truth.says}
        wrong = (
            f"{name} {getattr(self, name)!r} for {x!r}"
            for name, x in told.items()
            if not re.search(x, getattr(self, name))
        )
        return next(wrong, "")

    @property
    def blamed(self) -> bool:
        """Whether a backend is said to be at fault that is not."""
        at_fault = {*name_statuses(FAILED), Status.IMPRECISE.value}
        return self.status in at_fault and self.truth.status not in at_fault


def models(patterns: Sequence[str] = ()) -> dict[str, list[str]]:
    """Names of classes by module; those of which the module or ``module.Class`` matches one of ``patterns``, all by
    default."""

    def asked(module: str, name: str) -> bool:
        return not patterns or any(fnmatch(x, p) for p in patterns for x in (module, f"{module}.{name}"))

    found = {module: [x for x in known if asked(module, x)] for module, known in EXPECTED.items()}
    return {module: some for module, some in found.items() if some}


def ask(
    module: str,
    some: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    seed: int,
    backends: Sequence[str] = BACKENDS,
) -> list[Told]:
    """The models of one module in one run, with its ``get_inputs()``: what a file does to torch is done to them
    alone."""
    folder.mkdir(parents=True)
    own = [{"name": x, "model": f"{HERE / module}.py:{x}"} for x in some]
    catalogs = [{"name": "models", "own": own, "samples": SAMPLES.get(module, 1)}]
    config = write_config(folder, module, catalogs, list(backends), dtypes=["float32"], seed=seed, deadline_s=600.0)
    run([sys.executable, "-m", "farm", "run", str(config), *_quietly(folder)], env, ENDED)
    return told(module, some, newest(folder / "lake"), backends)


def ask_alone(
    module: str, name: str, folder: Path, env: Mapping[str, str], backends: Sequence[str] = BACKENDS
) -> tuple[list[Told], float]:
    """One model on the command line; and the seconds that its author waits."""
    folder.mkdir(parents=True)
    asked = [
        "--model",
        f"{HERE / module}.py:{name}",
        "--backends",
        ",".join(backends),
        "--samples",
        str(SAMPLES.get(module, 1)),
    ]
    begun = time.perf_counter()
    run([sys.executable, "-m", "farm", "run", *asked, *_quietly(folder)], env, ENDED)
    seconds = time.perf_counter() - begun
    return told(module, [name], newest(folder / "lake"), backends), seconds


def _quietly(folder: Path) -> list[str]:
    return ["--on", "processes", "--results", str(folder / "lake")]


def told(module: str, some: Sequence[str], rows: pd.DataFrame, backends: Sequence[str] = BACKENDS) -> list[Told]:
    """Rows beside the truth, of several samples the first that differs; a model without a row is told as ``lost``."""
    by: dict[tuple[str, str], list[Told]] = {(name, backend): [] for name in some for backend in backends}
    for row in rows.astype(object).fillna("").to_dict("records"):
        name, backend = row["op"].partition(":")[2], row["backend"]
        by[name, backend].append(_one(module, name, backend, row))
    return [next((x for x in one if x.differs), one[0]) if one else _one(module, *key, {}) for key, one in by.items()]


def _one(module: str, name: str, backend: str, row: Mapping[Any, Any]) -> Told:
    words = (str(row.get(x, "")) for x in ("kind", "culprit", "error"))
    return Told(module, name, backend, EXPECTED[module][name].on(backend), str(row.get("status", "lost")), *words)
