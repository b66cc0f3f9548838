"""What is trained: a torch module, batches for it, its loss, and the recipe that it is usually trained by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.training.recipe import TrainingRecipe

#: Draws the arrays of one micro-batch, or of a probe: what the loss takes after the module.
Draw = Callable[[np.random.Generator], "list[np.ndarray]"]


@dataclass(frozen=True)
class Network:
    """build: a module in float32 with seeded weights; draw: a batch of it; loss(module, *tensors): a scalar, in float32
    at least. recipe: what it is usually trained by; smooth: whether no rounding can make its gradients jump (a ReLU, a
    maximum or a router may); note: what is trained otherwise than its user trains it, in words."""

    build: Callable[[], Any]
    draw: Draw
    loss: Callable[..., Any]
    recipe: TrainingRecipe = field(default_factory=TrainingRecipe)
    smooth: bool = True
    note: str = ""
