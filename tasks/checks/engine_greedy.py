"""Tokens that an engine chooses itself, judged beyond the float64 margin, since a near-tie may fall to either side; and the logarithms from which it chose them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.checks.engine_answers import EngineAnswer, ask_engine
from tasks.checks.engine_float64 import compute_decoder_logits, compute_decoder_logprobs, make_logits_move
from tasks.model import EPS, OpClass
from tasks.model.engine import SPECIAL, Engine, Requests, ServedModel

#: The op of the catalog `engine`, and what it compares.
OP, ABOUT = "greedy", "tokens that the engine chooses, beyond float64's margin, and what it chose them from"
#: Draws of the noise floor.
DRAWS = 4


def measure_greedy_margins(model: ServedModel, prompt: Sequence[int], answer: EngineAnswer) -> np.ndarray:
    """What float64 says to each token of an answer: (tokens,). By how much it prefers another token, over what rounding
    does to the two logits; or by how much the logarithms are off from which the token was chosen, over what rounding
    does to them, where that is more. Each step is judged behind the tokens that were chosen before it, so a near-tie
    changes nothing that comes after."""
    decoder = model.decoder
    weights = {name: np.asarray(x, np.float64) for name, x in model.weights.items()}
    whole = [*prompt, *answer.tokens][:-1]

    def compute(**how: Any) -> list[np.ndarray]:
        logits = compute_decoder_logits(decoder, weights, whole, **how)[-len(answer.tokens) :]
        return [logits, compute_decoder_logprobs(logits)]

    def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
        return (compute(move=make_logits_move(EPS[model.dtype], draw)) for draw in drawn)

    references = compute()
    elements = sum(x.size for x in weights.values())
    floors = []
    for y, floor in zip(references, noise.compute_noise_floor(references, evaluate, OpClass.MODEL, DRAWS, elements)):
        assert floor is not None
        # That of a row, as logits are judged.
        high = np.maximum(floor, np.sqrt(np.mean(np.square(floor), -1, keepdims=True)))
        floors.append(high + EPS[model.dtype] * np.abs(y))
    (logits, logprobs), (floor, lower) = references, floors
    rows, best, taken = np.arange(len(logits)), logits.argmax(-1), np.asarray(answer.tokens)
    margins = (logits[rows, best] - logits[rows, taken]) / (floor[rows, best] + floor[rows, taken])
    apart = np.abs(answer.logprobs - logprobs) / lower
    return np.asarray(np.maximum(margins, np.nan_to_num(apart, posinf=np.inf).max(-1)), np.float32)


def measure_greedy_choices(engine: Engine, requests: Requests, model: ServedModel) -> np.ndarray:
    """`measure_greedy_margins` of what an engine answers to each prompt: (prompts, steps); infinite where it stops without a
    token that ends a text."""
    steps = len(requests.following[0])
    found = np.zeros((len(requests.prompts), steps), np.float32)
    for row, prompt in zip(found, requests.prompts):
        (answer,) = ask_engine(engine, [prompt], steps, model.decoder.vocabulary)
        count = len(answer.tokens)
        if count < steps and not (count and answer.tokens[-1] < SPECIAL):
            row[count:] = np.inf
        if count:
            row[:count] = measure_greedy_margins(model, prompt, answer)
    return found
