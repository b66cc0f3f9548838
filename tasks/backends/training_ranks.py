"""Training of several ranks with torch's own ways, a process each: gloo on the CPU, NCCL and RCCL on GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.backends.collectives import Collectives, RankConnections
from tasks.backends.shared.training_form import TrainingForm
from tasks.model import Form, Program, Unsupported
from tasks.training import spreading
from tasks.training.recipe import FLOAT8

#: What makes a rank's loop.
OPENS = f"{spreading.__name__}:{spreading.open_rank_loop.__name__}"


class TrainingRanks(Collectives):
    """``ranks``: 2 unless an option says otherwise. A gang as the collectives are: each rank on a device of its own,
    those of gloo share the CPUs there are. way: of `tasks.training.spreading.WAYS`; plant: "module:function" that is
    given each rank's loop, for what tests plant."""

    forms = ("torch",)
    checks: tuple[str, ...] = ("train",)
    devices = ("cpu", "cuda", "rocm")
    vendor = "Meta"
    way = ""
    plant = ""

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, ({"ranks": 2} if "ranks" in (self.takes or ()) else {}) | options)
        self.library = "gloo" if device == "cpu" else "nccl"

    def build(self, form: Form) -> Program:
        if not form.phases:
            raise Unsupported(f"{self.name} runs training loops alone")
        given = TrainingForm.read(form)
        way = spreading.find_spread_loop(self.way)
        if given.network not in way.networks:
            raise Unsupported(f"{self.name} trains {' and '.join(way.networks)} of the catalog")
        if given.precision == FLOAT8 and not way.float8:
            raise Unsupported(f"{self.name} does not train in FP8")
        place = "cpu" if self.device == "cpu" else "cuda"
        loop = [self.way, given.network, given.recipe, given.precision, place]
        session = lambda: SessionOverRanks(self._ready(self.ranks), loop, given, self.plant, OPENS)  # noqa: E731
        return Program(lambda: [], self.device, flags=self.flags, session=session)


class SessionOverRanks:
    """A `tasks.model.Session` whose outputs are those of the first rank, then of the next ones."""

    def __init__(
        self, group: RankConnections, loop: Sequence[Any], given: TrainingForm, plant: str, opens: str
    ) -> None:
        self._group, self._loop, self._given, self._plant, self._opens = group, list(loop), given, plant, opens

    def start(self) -> None:
        self._group.ask({"open": self._opens, "arguments": self._loop, "plant": self._plant}, {})

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        if inputs is None:
            raise Unsupported("a training loop is given its inputs")
        arrays = self._given.name_arrays(inputs)
        return [x for rank in self._group.ask({"step": list(arrays)}, arrays) for x in rank]

    def state(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        """The ranks stay, for the next."""


class Ddp(TrainingRanks):
    way = "ddp"


class Fsdp(TrainingRanks):
    way = "fsdp"


class TensorRanks(TrainingRanks):
    way = "tensor"


class SequenceParallel(TrainingRanks):
    way = "sequence"


class PipelineRanks(TrainingRanks):
    way = "pipeline"


class ExpertRanks(TrainingRanks):
    way = "expert"
