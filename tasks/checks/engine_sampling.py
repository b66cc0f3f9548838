"""Samplers of engines, judged by the distribution of what they draw: χ² of many tokens from known logits."""

from __future__ import annotations

import numpy as np

from tasks.model.engine import Engine, Sampling

#: Tokens drawn from each row of logits. Of a distribution that is off by Σ δ²/p = 0.01 (0.05 of its mass in other tokens, say) χ² grows by
#: 400, which at a hundred tokens is 25 standard deviations.
DRAWS = 40_000
#: Fewest expected draws of a token that is counted by itself; rarer ones are counted together (Cochran, 1954).
FEWEST = 5.0
#: The op of the catalog `engine`.
OP = "sampling"


def measure_deviation(engine: Engine, logits: np.ndarray, shares: np.ndarray, how: Sampling) -> np.ndarray:
    """How far what is drawn from each row of logits (rows, vocabulary) is from its probabilities: z (rows,), float32, standard normal of a right
    sampler; infinite where a token is drawn that cannot be."""
    found = []
    for k, (row, share) in enumerate(zip(logits, shares)):
        tokens = np.asarray(engine.sample(np.array(row), how, DRAWS, seed=k + 1))
        counts = np.bincount(tokens, minlength=row.size).astype(np.float64)
        found.append(
            np.inf if len(counts) > row.size or counts[share == 0].any() else _standardise(counts, DRAWS * share)
        )
    return np.asarray(found, np.float32)


def _standardise(counts: np.ndarray, expected: np.ndarray) -> float:
    """χ² of counts as a standard normal number (Wilson and Hilferty, 1931); 0 of a single possible token."""
    rare = expected < FEWEST
    seen = np.append(counts[~rare], counts[rare].sum())
    mean = np.append(expected[~rare], expected[rare].sum())
    seen, mean = seen[mean >= FEWEST], mean[mean >= FEWEST]
    free = len(mean) - 1
    if free < 1:
        return 0.0
    chi = float((np.square(seen - mean) / mean).sum())
    return ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / (2 / (9 * free)) ** 0.5
