"""The ways in which a training run is spread over ranks, by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from tasks.training import networks
from tasks.training.parallel import ParallelLoop
from tasks.training.recipe import TrainingRecipe

#: Way → "module:class" of its loop.
WAYS = {
    "ddp": "tasks.training.parallel:DataParallel",
    "fsdp": "tasks.training.parallel:FullySharded",
    "tensor": "tasks.training.parallel:TensorParallel",
    "sequence": "tasks.training.parallel:SequenceParallel",
    "pipeline": "tasks.training.pipeline:PipelineLoop",
    "expert": "tasks.training.expert_parallel:ExpertParallel",
}


def find_spread_loop(name: str) -> type[ParallelLoop]:
    """The loop of a way."""
    module, _, of = WAYS[name].partition(":")
    found: type[ParallelLoop] = getattr(importlib.import_module(module), of)
    return found


def open_rank_loop(way: str, network: str, recipe: Mapping[str, Any], precision: str, device: str) -> ParallelLoop:
    """A rank's loop, started."""
    loop = find_spread_loop(way)(networks.get_training_network(network), TrainingRecipe.read(dict(recipe)), precision)
    loop.device = device
    loop.start(device)
    return loop
