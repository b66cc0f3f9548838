"""What is looked at in a training step, in the order in which it is computed: the first phase that is off is where the fault is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

TAPS, LOSS, BUFFERS, SHARES = "taps", "loss", "buffers", "own gradients"
RAW, CLIPPED = "raw gradients", "clipped gradients"
FIRST, SECOND, WEIGHTS, PROBE = "first moments", "second moments", "weights", "probe"
#: The phases in order. Taps are outputs of modules: they locate and never convict, since another layout of the same
#: function may change one (a rotation of queries and keys alike). Own gradients: those of a rank's own micro-batches,
#: before ranks reduce them. Probe: the loss of a batch of its own after the step.
PHASES = (TAPS, LOSS, BUFFERS, SHARES, RAW, CLIPPED, FIRST, SECOND, WEIGHTS, PROBE)
#: Each has a value per parameter.
OF_PARAMETERS = (SHARES, RAW, CLIPPED, FIRST, SECOND, WEIGHTS)
#: Judged alone: the reference is given the run's own gradients, and the state that the step began with. Adam's first
#: step is the sign of a gradient, so that a gradient off by a rounding may move a weight by twice the rate.
ALONE = (CLIPPED, FIRST, SECOND, WEIGHTS)
#: Looked at over all steps together as well: what is off by the same share at each is found below the floor of one.
ALONG = (LOSS, BUFFERS, RAW)


def split(phases: Sequence[str]) -> list[tuple[str, int, int]]:
    """(phase, from, to) of the outputs of a step. phases: of each output, in order."""
    found, at = [], 0
    for phase, some in itertools.groupby(phases):
        count = len(list(some))
        found.append((phase, at, at + count))
        at += count
    return found
