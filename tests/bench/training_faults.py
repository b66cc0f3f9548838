"""Planted faults of training and their honest twins: how many are found, named, and blamed without reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tasks import checks
from tasks.backends.base import Backend
from tasks.backends.torch import TorchEager
from tasks.checks.train import measure_training_slopes
from tasks.judge import policy_files
from tasks.judging import Judgement, judge_steps
from tasks.model import Form, Group, OwnKernel, RuntimeInfo, Status
from tasks.prepare.cases import PreparedSample, prepare_group
from tasks.training.loop import TrainingLoop
from tasks.zoo import training as zoo
from tasks.zoo.training.planted import Planted
from tests.bench.record import Result
from tests.bench.running import Size


@dataclass(frozen=True)
class Found:
    """What the judge says of a planted loop. slope: the largest score of a gradient's slope."""

    case: Planted
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
    form = replace(sample.form("torch"), own=OwnKernel(session=lambda: loop))
    return judge_form(sample, TorchEager("torch-cpu", "cpu", {}), form)


def judge_form(sample: PreparedSample, backend: Backend, form: Form) -> tuple[Judgement, float]:
    """The same of a form on a backend."""
    program, check = backend.build(form), checks.get_check("train")
    stages = list(check.stages(program, form))
    found = judge_steps(sample, stages, policy_files.load_policy("error_units"), RuntimeInfo("planted", "cpu"), form)
    stages = [check.spend(x, sample) for x in stages]
    concluded = check.conclude(stages, found, sample)
    assert concluded is not None
    return concluded, max((abs(x.score) for x in measure_training_slopes(stages, sample)), default=0.0)


def judge_all(cases: Sequence[Planted], dtypes: Sequence[str], cache: Path, seed: int = 0) -> Iterator[Found]:
    """Each case in each dtype. seed: of the batches."""
    for dtype in dtypes:
        for case in (x for x in cases if x.has(dtype)):
            group = Group(f"training:{case.network}", case.variant, dtype, 1, seed, "train")
            sample = prepare_group(group, cache)[1].samples[0]
            if sample.failure:
                raise RuntimeError(f"{group.label}: {sample.failure.error}")
            yield Found(case, dtype, *judge_loop(sample, case.make(group)))


def training_faults(folder: Path, size: Size) -> Result:
    """Faults found and named per dtype, honest twins blamed, over some seeds; the names of what is missed, misnamed and
    blamed."""
    torch.set_num_threads(1)
    faults, honest = ([x for x in cases if x.network in size["networks"]] for cases in (zoo.FAULTS, zoo.HONEST))
    figures: dict[str, float] = {}
    words: list[str] = []
    for dtype in size["dtypes"]:
        found = list(judge_all(faults, [dtype], folder))
        caught, named = ([x for x in found if getattr(x, what)] for what in ("caught", "named"))
        twins = [x for seed in size["seeds"] for x in judge_all(honest, [dtype], folder, seed)]
        blamed = [x for x in twins if x.caught]
        figures |= {
            f"{dtype} {k}": float(v)
            for k, v in (("caught", len(caught)), ("named", len(named)), ("blamed", len(blamed)))
        }
        lists = {
            "missed": [x.case.name for x in found if not x.caught],
            "named wrongly": [x.case.name for x in caught if not x.named],
            "blamed": [f"{x.case.network} {x.case.name}" for x in blamed],
        }
        told = "".join(f"; {what}: {', '.join(names)}" for what, names in lists.items() if names)
        worst = max(x.judgement.metrics.error_units or 0.0 for x in twins)
        words.append(
            f"{dtype}: {len(caught)} of {len(found)} faults found, {len(named)} named; {len(blamed)} of {len(twins)} honest twins blamed, "
            f"the furthest {worst:.2g} floors, slope {max(x.slope for x in twins):.2g}{told}"
        )
    return Result(figures, ". ".join(words))
