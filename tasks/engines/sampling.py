"""How a token is drawn from logits, in NumPy: the plain engine's sampler."""

from __future__ import annotations

import numpy as np

from tasks.model.engine import Sampling
from tasks.operators.formulas import compute_softmax


def adjust_probabilities(logits: np.ndarray, how: Sampling) -> np.ndarray:
    """Probabilities (vocabulary,), float64, of what `Sampling` says, its steps in its order."""
    x = np.array(logits, np.float64)
    seen = sorted(set(how.before))
    x[seen] = np.where(x[seen] > 0, x[seen] / how.penalty, x[seen] * how.penalty)
    x /= how.temperature
    if 0 < how.top_k < x.size:
        x[x < np.sort(x)[-how.top_k]] = -np.inf
    shares = compute_softmax(x)
    order = np.argsort(-shares, kind="stable")
    before = np.cumsum(shares[order]) - shares[order]
    shares[order[before >= how.top_p]] = 0.0  # the likeliest always stays
    shares[shares < how.min_p * shares.max()] = 0.0
    return np.asarray(shares / shares.sum())


def draw_sampled_tokens(logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
    """``count`` tokens (int64)."""
    shares = adjust_probabilities(logits, how)
    return np.random.default_rng(seed).choice(shares.size, count, p=shares).astype(np.int64)
