"""Planted faults of training and their honest twins: how many are found, named, and blamed without reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tasks import checks
from tasks.backends.torch import TorchEager
from tasks.checks.train import score_slopes
from tasks.judge import verdict
from tasks.judging import Judgement, judge_steps
from tasks.model import Group, OwnKernel, Status
from tasks.prepare.cases import PreparedSample, prepare
from tasks.training.loop import TrainingLoop
from tasks.zoo import training as zoo


@dataclass(frozen=True)
class Found:
    """What the judge says of a planted loop. slope: the largest score of a gradient's slope."""

    case: zoo.Planted
    dtype: str
    judgement: Judgement
    slope: float

    @property
    def caught(self) -> bool:
        return self.judgement.status is Status.WRONG

    @property
    def named(self) -> bool:
        """Whether the phase is the right one, and the culprit lies in the module or is the parameter."""
        culprit = str(self.judgement.columns.get("culprit", ""))
        return self.caught and self.judgement.kind in self.case.kinds and culprit.startswith(self.case.place)


def judge_loop(sample: PreparedSample, loop: TrainingLoop) -> tuple[Judgement, float]:
    """What a run would say of a loop, eager on the CPU; (judgement, largest score of a slope)."""
    backend, check = TorchEager("torch-cpu", "cpu", {}), checks.get("train")
    form = replace(sample.form("torch"), own=OwnKernel(session=lambda: loop))
    program = backend.build(form)
    stages = list(check.stages(program, form))
    found = judge_steps(sample, stages, verdict.load("error_units"), backend.probe(), form)
    concluded = check.conclude(stages, found, sample)
    assert concluded is not None
    return concluded, max(map(abs, score_slopes(stages, sample).values()), default=0.0)


def judge_all(cases: list[zoo.Planted], dtypes: tuple[str, ...], cache: Path, seed: int = 0) -> Iterator[Found]:
    for dtype in dtypes:
        for case in cases:
            group = Group(f"training:{case.network}", case.variant, dtype, 1, seed, "train")
            sample = prepare(group, cache)[1].samples[0]
            if sample.failure:
                raise RuntimeError(f"{group.label}: {sample.failure.error}")
            yield Found(case, dtype, *judge_loop(sample, case.make(group)))
