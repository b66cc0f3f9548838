"""Planted faults of training, and honest twins that compute the same in another way."""

from __future__ import annotations

from tasks.zoo.training import float8_faults, forward_faults, gradient_faults, honest, optimiser_faults
from tasks.zoo.training.planted import Planted

FAULTS: list[Planted] = [
    *forward_faults.FAULTS,
    *gradient_faults.FAULTS,
    *optimiser_faults.FAULTS,
    *float8_faults.FAULTS,
]
HONEST: list[Planted] = [*honest.HONEST, *float8_faults.HONEST]
