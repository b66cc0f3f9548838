"""Samplers of engines, judged by the distribution of what they draw: χ² of many tokens from known logits."""

from __future__ import annotations

import numpy as np

from tasks.model import Unsupported
from tasks.model.engine import SPECIAL, AnsweringEngine, Engine, Sampling

#: Tokens drawn from each row of logits. Of a distribution that is off by Σ δ²/p = 0.01 (0.05 of its mass in other
#: tokens, say) χ² grows by 400, which at a hundred tokens is 25 standard deviations.
DRAWS = 40_000
#: Fewest expected draws of a token that is counted by itself; rarer ones are counted together (Cochran, 1954).
FEWEST = 5.0
#: The op of the catalog `engine`, and what it compares.
OP, ABOUT = "sampling", "tokens that are drawn, by their distribution"


#: How far a probability is from a threshold that cuts it off or not: float32's rounding decides nothing.
MARGIN = 1e-4
#: Prompts behind which an endpoint is asked to draw, until enough of them leave that margin; tokens of each.
PROMPTS, TOKENS = 40, 5


def compute_sampling_probabilities(logits: np.ndarray, how: Sampling) -> tuple[np.ndarray, float]:
    """Probabilities (vocabulary,) in float64, token by token from the definition, and the smallest distance to a
    threshold."""
    x = [float(v) for v in logits]
    for token in set(how.before):
        x[token] = x[token] / how.penalty if x[token] > 0 else x[token] * how.penalty
    weights = [float(np.exp(v / how.temperature)) for v in x]
    order = sorted(range(len(x)), key=lambda k: -weights[k])
    kept, apart = order[: how.top_k or len(order)], [1.0]
    if how.top_p < 1.0:
        mass, whole, stay = 0.0, sum(weights[k] for k in kept), []
        for k in kept:
            if mass / whole >= how.top_p:
                break
            stay.append(k)
            mass += weights[k]
            apart.append(abs(mass / whole - how.top_p))
        kept = stay
    if how.min_p:
        shares = {k: weights[k] / weights[kept[0]] for k in kept}
        apart += [abs(share - how.min_p) for share in shares.values()]
        kept = [k for k in kept if shares[k] >= how.min_p]
    made = np.zeros(len(x))
    made[kept] = [weights[k] for k in kept]
    return made / made.sum(), min(apart)


def measure_sampling_deviation(engine: Engine, logits: np.ndarray, shares: np.ndarray, how: Sampling) -> np.ndarray:
    """How far what is drawn from each row of logits (rows, vocabulary) is from its probabilities: z (rows,), float32,
    standard normal of a right sampler; infinite where a token is drawn that cannot be."""
    found = []
    for k, (row, share) in enumerate(zip(logits, shares)):
        found.append(
            _compute_sampling_deviation(np.asarray(engine.sample(np.array(row), how, DRAWS, seed=k + 1)), share)
        )
    return np.asarray(found, np.float32)


def measure_own_deviation(engine: AnsweringEngine, vocabulary: int, how: Sampling, rows: int) -> np.ndarray:
    """`measure_sampling_deviation` of an engine that draws from logits of its own: the probabilities are those that its
    logarithms say.

    Raises Unsupported where it does not say all of them. A penalty is of logits, which are not seen."""
    if how.penalty != 1.0:
        raise Unsupported("a penalty is of logits, and the engine shows probabilities alone")
    generator = np.random.default_rng(vocabulary)
    found: list[float] = []
    for k in range(PROMPTS):
        prompt = generator.integers(SPECIAL, vocabulary, TOKENS).tolist()
        sequence, said = engine.prefill(prompt)
        engine.free(sequence)
        if np.isnan(said[-1]).any():
            raise Unsupported(
                f"the engine gives logarithms of {np.isfinite(said[-1]).sum()} of {vocabulary} tokens alone"
            )
        shares, apart = compute_sampling_probabilities(said[-1], how)
        if apart > MARGIN:
            found.append(_compute_sampling_deviation(np.asarray(engine.draw(prompt, how, DRAWS, seed=k + 1)), shares))
        if len(found) == rows:
            break
    return np.asarray(found, np.float32)


def _compute_sampling_deviation(tokens: np.ndarray, shares: np.ndarray) -> float:
    counts = np.bincount(tokens, minlength=shares.size).astype(np.float64)
    impossible = len(counts) > shares.size or counts[shares == 0].any()
    return float("inf") if impossible else _standardise_chi_square(counts, DRAWS * shares)


def _standardise_chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
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
