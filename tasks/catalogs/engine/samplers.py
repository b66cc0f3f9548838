"""Samples of samplers: rows of logits, what is done to them, and the probabilities that float64 makes of that."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.checks.engine_sampling import MARGIN, compute_sampling_probabilities
from tasks.model import Group, Leaf, OpClass
from tasks.model.engine import Sampling

ROWS, VOCABULARY = 4, 64
#: Variant → what is done. Before the row were two tokens, one likely and one not.
SAMPLERS: dict[str, Sampling] = {
    "plain": Sampling(),
    "temperature": Sampling(temperature=0.7),
    "top_k": Sampling(top_k=8),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.15),
    "penalty": Sampling(penalty=2.0, before=(5, 9)),
    "hot_top_p": Sampling(temperature=1.6, top_p=0.8),
    "all": Sampling(temperature=0.8, top_k=24, top_p=0.9, min_p=0.05, penalty=1.2, before=(5, 9)),
}


def make_sampler_sample(group: Group, index: int) -> Sample:
    """A sample of a sampler: its arrays are logits (rows, vocabulary) and their probabilities, of which the check makes
    one number a row."""
    how = SAMPLERS[group.variant]
    generator = np.random.default_rng((77, index, group.seed % 2**64))
    rows: list[np.ndarray] = []
    shares: list[np.ndarray] = []
    while len(rows) < ROWS:
        row = (1.2 * generator.standard_normal(VOCABULARY)).astype(np.float32)
        row[5], row[9] = abs(row[5]) + 1, -abs(row[9]) - 0.5
        made, apart = compute_sampling_probabilities(row, how)
        if apart > MARGIN:
            rows.append(row)
            shares.append(made)
    said: dict[str, Any] = {
        "temperature": how.temperature,
        "top_k": how.top_k,
        "top_p": how.top_p,
        "min_p": how.min_p,
        "penalty": how.penalty,
    }
    return Sample(
        index,
        (TensorSpec(id=0), TensorSpec(id=1)),
        {"sampling": said | {"before": list(how.before)}},
        arrays=[np.stack(rows), np.stack(shares)],
        expected=[Leaf("float32", (ROWS,), np.zeros(ROWS), np.ones(ROWS))],
        op_class=OpClass.MODEL,
        oracle="numpy-float64",
        measured=True,
    )
