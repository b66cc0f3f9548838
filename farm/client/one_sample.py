"""A kernel on one sample in this process: prepared, run, judged, its outputs kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farm.fleet import scratch_folders
from farm.reproduction.run_again import Started, read_kept_outputs
from tasks.backends.base import Backend
from tasks.catalogs.base import Sample
from tasks.judge.policy import Policy
from tasks.model import Form, Group, Leaf, Program, RuntimeInfo, Status
from tasks.model.row import Row
from tasks.prepare.cases import PreparedGroup, save_sample_alone
from tasks.runner import make_item_of_whole_group


@dataclass(frozen=True)
class TriedSample:
    """What became of a sample. actual: the outputs, None where there were none."""

    row: Row
    expected: list[Leaf]
    actual: list[np.ndarray] | None


def row_passes(row: Row, imprecise: bool = True) -> bool:
    """Whether a row has passed. imprecise: whether its results may have lost digits."""
    return row.status == Status.PASS or (imprecise and row.status == Status.IMPRECISE)


def judge_kernel_sample(group: Group, sample: Sample, here: Started, policy: Policy) -> TriedSample:
    """Run a sample on a backend of this process and judge it."""
    with tempfile.TemporaryDirectory(dir=scratch_folders.make_scratch_folder()) as folder:
        path = Path(folder, "case.pack")
        save_sample_alone(path, group, sample)
        return judge_prepared_sample(PreparedGroup(path), 0, here, policy, Path(folder))


def judge_prepared_sample(
    prepared: PreparedGroup, place: int, here: Started, policy: Policy, folder: Path
) -> TriedSample:
    """Run the sample at a place of a prepared group. folder: where its outputs are kept for a moment."""
    asked = replace(make_item_of_whole_group(prepared), positions=(place,), keep=str(folder / "outputs.pack"))
    (done,) = here.run(asked, policy)
    return TriedSample(
        done.row, prepared.samples[place].on(here.backend.torch_device).expected(), read_kept_outputs(asked)
    )


def start_computed_backend(outputs: Callable[[Form], list[Any]], execution: str = "") -> Started:
    """A backend of outputs that somebody has computed already: all that is left is to judge them. outputs: of a form,
    raises what they do; execution: how they were computed (`tasks.model.row`), as far as that is known."""
    backend = _Computed(outputs, execution)
    return Started(backend, backend.probe())


class _Computed(Backend):
    name = "given"
    forms = ("torch",)
    checks = ("forward", "backward", "double_backward")

    def __init__(self, outputs: Callable[[Form], list[Any]], execution: str) -> None:
        super().__init__("given", "cpu", {})
        self.outputs, self.execution = outputs, execution

    def probe(self) -> RuntimeInfo:
        import torch

        return RuntimeInfo(f"torch {torch.__version__}", "as given")

    def build(self, form: Form) -> Program:
        return Program(run=lambda: self.outputs(form), execution=self.execution)
