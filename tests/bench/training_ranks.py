"""Planted faults of training on several ranks, and runs without one: how many are found and named, to the rank where one rank has it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import torch

from tasks.backends import BackendSpec
from tasks.backends.collectives import Gloo
from tasks.backends.training_ranks import TrainingRanks
from tasks.checks.train import KIND_FORWARD, KIND_REDUCTION
from tasks.judging import Judgement
from tasks.model import Group, Status
from tasks.prepare.cases import prepare_group
from tasks.training.phases import CLIPPED, FIRST, LOSS, RAW, SHARES, WEIGHTS
from tests.bench.record import Result
from tests.bench.running import PLUGIN, Size
from tests.bench.training_faults import judge_form

#: Steps that are judged of a run without a fault, and of one with.
HONEST, PLANTED = 3, 2
VALUE = "blocks.1.attention.value.weight"


@dataclass(frozen=True)
class RanksCase:
    """fault: of `tests/plugin/planted_training.py`, "" for none; kind, culprit: of the row, the latter as it begins."""

    way: str
    ranks: int
    fault: str = ""
    kind: str = ""
    culprit: str = ""
    variant: str = "micro"
    network: str = "gpt"


CASES = (
    *(RanksCase(way, ranks) for way in ("ddp", "fsdp", "tensor", "sequence", "pipeline") for ranks in (2, 4)),
    *(RanksCase("ddp", ranks, variant="compressed") for ranks in (2, 4)),
    *(RanksCase("expert", ranks, variant="", network="experts") for ranks in (2, 4)),
    RanksCase("ddp", 2, "sum_for_mean", KIND_REDUCTION),
    RanksCase("ddp", 2, "no_all_reduce", RAW),
    RanksCase("ddp", 2, "lost_on_one_rank", RAW, f"rank 1: {VALUE}"),
    RanksCase("ddp", 2, "lost_before_reduction", SHARES, f"rank 1: {VALUE}"),
    RanksCase("ddp", 2, "same_data", LOSS, "rank 1: ", ""),
    RanksCase("ddp", 2, "late_schedule", WEIGHTS, "rank 1: "),
    RanksCase("ddp", 2, "skipped_parameter", FIRST, f"rank 1: {VALUE}"),
    RanksCase("ddp", 2, "clipped_alone", CLIPPED, "rank 1: "),
    RanksCase("ddp", 2, "first_micro_batch_lost", SHARES, "rank 1: "),
    RanksCase("ddp", 2, "stale_share", SHARES, "rank 1: "),
    RanksCase("ddp", 4, "lost_on_last_rank", SHARES, f"rank 3: {VALUE}"),
    RanksCase("ddp", 4, "sent_in_eight_bits", KIND_REDUCTION),
    RanksCase("ddp", 4, "averaged_over_half", KIND_REDUCTION),
    RanksCase("ddp", 4, "left_out_of_bucket", KIND_REDUCTION, VALUE),
    RanksCase("fsdp", 2, "sum_for_mean", RAW),
    RanksCase("tensor", 2, "bias_twice", KIND_FORWARD, "blocks.0.down"),
    RanksCase("tensor", 2, "broken_bias_gradient", RAW, "blocks.0.up.bias"),
    RanksCase("tensor", 4, "part_left_out", KIND_FORWARD, "blocks.0.act"),
    RanksCase("sequence", 2, "norm_of_own_tokens", RAW, "blocks.0.norm2.weight"),
    RanksCase("sequence", 2, "norm_eps_of_one_rank", KIND_FORWARD, "blocks.0.norm2"),
    RanksCase("pipeline", 2, "tied_gradients_apart", RAW, "words.weight"),
    RanksCase("pipeline", 4, "mask_of_another", KIND_FORWARD, "rank 1: blocks.0"),
    RanksCase("pipeline", 4, "stage_not_divided", RAW, "rank 1: blocks.0"),
    RanksCase("expert", 2, "experts_crossed", KIND_FORWARD, "blocks.0.experts", "", "experts"),
    RanksCase("expert", 2, "expert_not_learning", RAW, "rank 1: blocks.1.experts.down.3.weight", "", "experts"),
    RanksCase("expert", 4, "tokens_detached", RAW, "rank 1: blocks.", "", "experts"),
)


@dataclass(frozen=True)
class FoundOnRanks:
    """What the judge says of a case."""

    case: RanksCase
    judgement: Judgement

    @property
    def caught(self) -> bool:
        return self.judgement.status is Status.WRONG

    @property
    def named(self) -> bool:
        """Whether kind and culprit are right, and a rank is named where one rank has the fault."""
        said = str(self.judgement.columns.get("culprit", ""))
        whose = said.startswith("rank") == self.case.culprit.startswith("rank")
        return self.caught and self.judgement.kind == self.case.kind and said.startswith(self.case.culprit) and whose

    @property
    def words(self) -> str:
        case, found = self.case, self.judgement
        told = f"{found.kind}, {found.columns.get('culprit')}" if self.caught else f"{found.metrics.error_units:.2g}"
        return f"{case.way} on {case.ranks}: {case.fault or 'no fault'} {case.variant} {found.status.value} ({told})"


def judge_ranks(cases: Sequence[RanksCase], cache: Path) -> Iterator[FoundOnRanks]:
    """Each case in turn. Ranks as many as a case has serve all ways: what they import takes longer than most cases."""
    torch.set_num_threads(1)
    told = cache / f"fault-{os.getpid()}"
    path = os.pathsep.join(filter(None, [str(PLUGIN), os.environ.get("PYTHONPATH")]))
    serving: dict[int, Gloo] = {}
    with (
        mock.patch.dict(os.environ, {"PLANTED_TRAINING": str(told), "PYTHONPATH": path}),
        contextlib.ExitStack() as ends,
    ):
        for (way, ranks), some in itertools.groupby(sorted(cases, key=_key), _key):
            backend = BackendSpec.parse(f"{way}-cpu").create().but(ranks=ranks, plant="planted_training:plant")
            assert isinstance(backend, TrainingRanks)
            if ranks not in serving:
                serving[ranks] = Gloo("gloo-cpu", "cpu", {"ranks": ranks})
                ends.callback(serving[ranks].close)
            with mock.patch.object(backend, "_ready", serving[ranks]._ready):
                for case in some:
                    told.write_text(case.fault)
                    yield FoundOnRanks(case, _judge(case, backend, cache))


def _key(case: RanksCase) -> tuple[str, int]:
    return case.way, case.ranks


def _judge(case: RanksCase, backend: TrainingRanks, cache: Path) -> Judgement:
    group = Group(f"training:{case.network}", case.variant, "float32", 1, 0, "train")
    form = (sample := prepare_group(group, cache)[1].samples[0]).form("torch")
    steps = PLANTED if case.fault else HONEST
    return judge_form(sample, backend, replace(form, arrays=[x[:steps] for x in form.arrays]))[0]


def training_ranks(folder: Path, size: Size) -> Result:
    """Faults found and named, runs without a fault blamed; the words of those that are not as they should be."""
    found = list(judge_ranks([x for x in CASES if x.way in size["ways"]], folder))
    faults, honest = ([x for x in found if bool(x.case.fault) is planted] for planted in (True, False))
    caught, named, blamed = sum(x.caught for x in faults), sum(x.named for x in faults), sum(x.caught for x in honest)
    odd = [x.words for x in found if (not x.named if x.case.fault else x.caught)]
    words = f"{caught} of {len(faults)} faults found, {named} named; {blamed} of {len(honest)} runs without one blamed"
    return Result({"caught": float(caught), "named": float(named), "blamed": float(blamed)}, "; ".join([words, *odd]))
