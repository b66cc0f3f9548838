"""Tokens that an engine chooses itself, judged beyond the float64 margin: a near-tie may fall to either side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.checks.engine_float64 import compute_logits, moved_by
from tasks.model import EPS, OpClass
from tasks.model.engine import SPECIAL, Engine, Requests, ServedModel

#: The op of the catalog `engine`, and what it compares.
OP, ABOUT = "greedy", "tokens that the engine chooses, beyond float64's margin"
#: Draws of the noise floor.
DRAWS = 4


def choose_tokens(engine: Engine, prompt: Sequence[int], count: int, vocabulary: int) -> list[int]:
    """The likeliest token behind a prompt, and so on: ``count`` of them, or fewer of an engine that ends a text."""
    if generate := getattr(engine, "generate", None):
        return [int(x) for x in generate(prompt, count)]
    sequence, logits = engine.prefill(prompt)
    made: list[int] = []
    while True:
        made.append(int(np.argmax(logits[-1][:vocabulary])))
        if len(made) == count:
            break
        logits = engine.decode([sequence], made[-1:])
    engine.free(sequence)
    return made


def measure_margins(model: ServedModel, prompt: Sequence[int], chosen: Sequence[int]) -> np.ndarray:
    """By how much float64 prefers another token to each chosen one, over what rounding does to the two logits: (tokens,), 0 where it chooses the
    same. Each step is judged behind the tokens that were chosen before it, so a near-tie changes nothing that comes after."""
    decoder = model.decoder
    weights = {name: np.asarray(x, np.float64) for name, x in model.weights.items()}
    whole = [*prompt, *chosen][:-1]

    def compute(**how: Any) -> np.ndarray:
        return compute_logits(decoder, weights, whole, **how)[-len(chosen) :]

    def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
        return ([compute(move=moved_by(EPS[model.dtype], draw))] for draw in drawn)

    logits = compute()
    elements = sum(x.size for x in weights.values())
    (floor,) = noise.floor([logits], evaluate, OpClass.MODEL, DRAWS, elements)
    assert floor is not None
    floor = np.maximum(
        floor, np.sqrt(np.mean(np.square(floor), -1, keepdims=True))
    )  # that of a row, as logits are judged
    floor = floor + EPS[model.dtype] * np.abs(logits)
    rows, best, taken = np.arange(len(chosen)), logits.argmax(-1), np.asarray(chosen)
    return np.asarray((logits[rows, best] - logits[rows, taken]) / (floor[rows, best] + floor[rows, taken]), np.float32)


def measure_choices(engine: Engine, requests: Requests, model: ServedModel) -> np.ndarray:
    """`measure_margins` of what an engine chooses behind each prompt: (prompts, steps); infinite where it stops without a token that ends a
    text."""
    steps = len(requests.following[0])
    found = np.zeros((len(requests.prompts), steps), np.float32)
    for row, prompt in zip(found, requests.prompts):
        chosen = choose_tokens(engine, prompt, steps, model.decoder.vocabulary)
        if len(chosen) < steps and not (chosen and chosen[-1] < SPECIAL):
            row[len(chosen) :] = np.inf
        if chosen:
            row[: len(chosen)] = measure_margins(model, prompt, chosen)
    return found
