"""The noise floor of a NumPy reference: how far its exact result moves when every floating input moves by one ε."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

#: Perturbed evaluations per noise draw. An output of the critical catalog has up to 10⁶ elements, and the floor of its
#: quietest element is what decides: on the first float32 sample of every op, torch on the CPU reaches 34 error units
#: with four evaluations and 13 with eight (GELU apart, whose tail it computes with cancellation).
EVALUATIONS = 2


def streams(seed: Sequence[int], draws: int) -> Iterator[np.random.Generator]:
    """A generator for every perturbed evaluation of ``draws`` draws."""
    for place in range(draws * EVALUATIONS):
        yield np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(place,)))


def moved(x: np.ndarray, eps: float, g: np.random.Generator) -> np.ndarray:
    """``x`` (float64 or complex128), every element times 1 + eps·u, u of random sign and of random size in [1/2, 1].

    Each evaluation has a stream of its own and sizes vary: were they all 1, or the signs of one draw those of another
    turned round, then the movements of two terms would cancel in every draw at some of 10⁵ elements, which would
    be left without a noise floor.
    """
    u = g.uniform(-0.5, 0.5, x.shape)
    u += np.copysign(0.5, u)
    u *= eps
    u += 1.0
    return np.multiply(u, x, out=u) if x.dtype == np.float64 else u * x


def distance(moved: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """|moved − reference| in float64; 0 where both are the same NaN or infinity, infinite where only one is."""
    kind = np.complex128 if reference.dtype.kind == "c" else np.float64
    a, b = np.asarray(moved, kind), np.asarray(reference, kind)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def floor(
    reference: Sequence[np.ndarray],
    evaluate: Callable[[np.random.Generator], Sequence[np.ndarray]],
    seed: Sequence[int],
    draws: int,
) -> list[np.ndarray | None]:
    """δ per output of ``reference``: the largest distance of ``draws``·EVALUATIONS evaluations; None for zero everywhere.

    ``evaluate(g)``: the outputs for inputs moved with ``g``. Raises ValueError where their shapes are others.
    """
    total = [np.zeros(y.shape) for y in reference]
    for g in streams(seed, draws):
        found = evaluate(g)
        if [y.shape for y in found] != [y.shape for y in reference]:
            raise ValueError("the shapes of the reference's outputs depend on the values of its inputs")
        for delta, y, exact in zip(total, found, reference):
            np.maximum(delta, distance(y, exact), out=delta)
    return [delta if delta.any() else None for delta in total]
