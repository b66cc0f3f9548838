"""What is looked at in a training step, in the order in which it is computed: the first phase that is off is where the fault is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TAPS, LOSS, BUFFERS, SHARES = "taps", "loss", "buffers", "own gradients"
RAW, CLIPPED = "raw gradients", "clipped gradients"
FIRST, SECOND, WEIGHTS, PROBE = "first moments", "second moments", "weights", "probe"
_OF_OPTIMIZER = "alone: what the optimizer makes of the run's own gradients"
#: Phase → what it is, in order.
ABOUT = {
    TAPS: "outputs of modules: they locate a fault and never convict, since another layout of the same function (a rotation of queries "
    "and keys alike) may change one",
    LOSS: "of all micro-batches",
    BUFFERS: "a batch norm's running statistics",
    SHARES: "of a rank's own micro-batches, before ranks reduce them",
    RAW: "per parameter, before clipping, which would hide a sum in place of a mean",
    CLIPPED: "alone: what clipping makes of the run's own gradients",
    FIRST: _OF_OPTIMIZER,
    SECOND: _OF_OPTIMIZER,
    WEIGHTS: _OF_OPTIMIZER,
    PROBE: "the loss of another batch after the step",
}
PHASES = tuple(ABOUT)
#: Each has a value per parameter.
OF_PARAMETERS = (SHARES, RAW, CLIPPED, FIRST, SECOND, WEIGHTS)
#: Judged alone: the reference is given the run's own gradients, and the state that the step began with. Adam's first
#: step is the sign of a gradient, so that a gradient off by a rounding may move a weight by twice the rate.
ALONE = (CLIPPED, FIRST, SECOND, WEIGHTS)
#: The flag of a run whose gradients are all clipped by another factor, as the order in which float32 adds up their norm
#: leaves it: by what share, at the step where it is furthest off.
FLAG_NORM = "norm_off"
#: Looked at over all steps together as well: what is off by the same share at each is found below the floor of one.
ALONG = (LOSS, BUFFERS, RAW)


@dataclass(frozen=True, eq=False)
class OwnGradients:
    """What a run gave as the gradients of one step, by parameter: the optimiser and the clipping are judged by them. Two
    are the same only if they are one object."""

    arrays: Sequence[np.ndarray]


def split_step_phases(phases: Sequence[str]) -> list[tuple[str, int, int]]:
    """(phase, from, to) of the outputs of a step. phases: of each output, in order."""
    found, at = [], 0
    for phase, some in itertools.groupby(phases):
        count = len(list(some))
        found.append((phase, at, at + count))
        at += count
    return found
