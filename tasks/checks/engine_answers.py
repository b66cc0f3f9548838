"""An engine judged by its own answers alone: for one whose weights nobody has, so that neither float64 nor a noise floor of it is known.

The engine chooses tokens itself, the likeliest each time, and says the logarithms of their probabilities. What it says
of a prompt may not hang on the way to it. A unit is what its other ways do to the same numbers, and no less than
rounding does to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.checks.engine_float64 import compute_decoder_logprobs
from tasks.model import EPS, Unsupported
from tasks.model.engine import LEFT, Engine

#: The op of the catalog `engine`, and what it compares.
OP, ABOUT = "own_answers", "its answers to the same prompts, asked in several ways; nobody needs its weights"
#: The least unit, in the dtype's ε times the root mean square of a token's logarithms.
RESOLUTION = 2.0
#: Share of the tokens of which one way gives logarithms that another has to give as well; of those of which both do,
#: they are compared.
SHARED = 0.5


@dataclass(frozen=True)
class EngineAnswer:
    """Tokens that an engine chose behind a prompt, as many as it gave, and logarithms (tokens, vocabulary) from which
    it chose each; NaN of a token of which it says nothing."""

    tokens: tuple[int, ...]
    logprobs: np.ndarray


#: Of an engine, prompts, and what it answers to each alone: answers, and at which token of the usual answer each
#: begins.
Way = Callable[[Engine, Sequence[Sequence[int]], Sequence[EngineAnswer]], tuple[list[EngineAnswer], int]]


def ask_engine(
    engine: Engine, prompts: Sequence[Sequence[int]], count: int, vocabulary: int | None = None
) -> list[EngineAnswer]:
    """What an engine answers to prompts that it is given together, up to ``count`` tokens each. vocabulary: tokens that
    the decoder has, where an engine may give logits of more."""
    if answer := getattr(engine, "answer", None):
        return [EngineAnswer(tuple(tokens), rows) for tokens, rows in answer([list(x) for x in prompts], count)]
    if len(prompts) > 1:
        sequences, last = engine.batch(prompts, LEFT)
    else:
        sequence, logits = engine.prefill(prompts[0])
        sequences, last = [sequence], logits[-1:]
    rows = [_read_engine_logprobs(engine, last, vocabulary)]
    chosen = [np.nanargmax(rows[-1], -1)]
    while len(rows) < count:
        rows.append(_read_engine_logprobs(engine, engine.decode(sequences, [int(x) for x in chosen[-1]]), vocabulary))
        chosen.append(np.nanargmax(rows[-1], -1))
    for sequence in sequences:
        engine.free(sequence)
    return [EngineAnswer(tuple(map(int, tokens)), x) for tokens, x in zip(np.stack(chosen, 1), np.stack(rows, 1))]


def _read_engine_logprobs(engine: Engine, said: Any, vocabulary: int | None = None) -> np.ndarray:
    """Logarithms (rows, vocabulary) of what an engine says. Of logits that are no numbers they are infinite: NaN is a
    token of which nothing is said."""
    rows = np.asarray(said, np.float32)[:, :vocabulary]
    if getattr(engine, "gives_logprobs", False):
        return rows
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(compute_decoder_logprobs(rows), nan=np.inf, posinf=np.inf, neginf=-np.inf).astype(
            np.float32
        )


def ask_engine_alone(engine: Engine, prompts: Sequence[Sequence[int]], count: int) -> list[EngineAnswer]:
    """What an engine answers to each prompt by itself."""
    return [ask_engine(engine, [prompt], count)[0] for prompt in prompts]


def _ask_engine_again(
    engine: Engine, prompts: Sequence[Sequence[int]], usual: Sequence[EngineAnswer]
) -> tuple[list[EngineAnswer], int]:
    return ask_engine_alone(engine, prompts, len(usual[0].tokens)), 0


def _ask_engine_to_recompute(
    engine: Engine, prompts: Sequence[Sequence[int]], usual: Sequence[EngineAnswer]
) -> tuple[list[EngineAnswer], int]:
    made = []
    for prompt, one in zip(prompts, usual):
        sequence, said = engine.prefill([*prompt, *one.tokens[:-1]])
        engine.free(sequence)
        made.append(EngineAnswer(one.tokens, _read_engine_logprobs(engine, said[-len(one.tokens) :])))
    return made, 0


def _ask_engine_in_batches(
    engine: Engine, prompts: Sequence[Sequence[int]], usual: Sequence[EngineAnswer]
) -> tuple[list[EngineAnswer], int]:
    return ask_engine(engine, prompts, len(usual[0].tokens)), 0


def _ask_engine_permuted(
    engine: Engine, prompts: Sequence[Sequence[int]], usual: Sequence[EngineAnswer]
) -> tuple[list[EngineAnswer], int]:
    return ask_engine(engine, prompts[::-1], len(usual[0].tokens))[::-1], 0


def _ask_engine_with_prefix(
    engine: Engine, prompts: Sequence[Sequence[int]], usual: Sequence[EngineAnswer]
) -> tuple[list[EngineAnswer], int]:
    """Each prompt behind another one that begins as it does and goes on otherwise."""
    made = []
    for k, prompt in enumerate(prompts):
        ask_engine(engine, [[*prompt[: max(1, len(prompt) // 2)], *prompts[k - 1][::-1]]], 2)
        made += ask_engine(engine, [prompt], len(usual[k].tokens))
    return made, 0


def _ask_engine_to_resume(
    engine: Engine, prompts: Sequence[Sequence[int]], usual: Sequence[EngineAnswer]
) -> tuple[list[EngineAnswer], int]:
    """Each prompt with the first half of its answer, as a new request."""
    half = min(len(x.tokens) for x in usual) // 2
    whole = [[*prompt, *one.tokens[:half]] for prompt, one in zip(prompts, usual)]
    return ask_engine_alone(engine, whole, len(usual[0].tokens) - half), half


#: Variants of the op, and how the prompts are asked in each.
WAYS: Mapping[str, Way] = {
    "again": _ask_engine_again,
    "recomputed": _ask_engine_to_recompute,
    "batched": _ask_engine_in_batches,
    "permuted": _ask_engine_permuted,
    "prefix_reused": _ask_engine_with_prefix,
    "resumed": _ask_engine_to_resume,
}


def measure_answer_distances(
    usual: Sequence[EngineAnswer], others: Sequence[EngineAnswer], begin: int, dtype: str
) -> np.ndarray:
    """How far each token's logarithms are apart, in ε of the dtype times their root mean square, or 1: (prompts, tokens
    of the usual answer), 0 where nothing is compared.

    An answer is compared as far as it has the same tokens before it. A token that an answer has chosen and to which its
    own logarithms prefer another is as far off as they say. Infinite where an answer is missing, or speaks of other
    tokens."""
    found = np.zeros((len(usual), max(len(x.tokens) for x in usual)))
    for row, one, other in zip(found, usual, others):
        for step in range(begin, len(one.tokens)):
            at = step - begin
            if at >= len(other.tokens):
                row[step] = np.inf
                break
            a, b = (np.asarray(x, np.float64) for x in (one.logprobs[step], other.logprobs[at]))
            both = np.isfinite(a) & np.isfinite(b)
            if both.sum() < max(1.0, SHARED * max(np.isfinite(a).sum(), np.isfinite(b).sum())):
                row[step] = np.inf
                break
            # At least that of a probability: where it is nearly 1 its logarithm is nearly 0, and no nearer than that is
            # rounded.
            unit = EPS[dtype] * max(np.sqrt(np.mean(np.square(a[both]))), 1.0)
            behind = b[both].max() - b[other.tokens[at]] if other.tokens[at] < b.size else 0.0
            row[step] = max(np.sqrt(np.mean(np.square(a[both] - b[both]))), np.nan_to_num(behind)) / unit
            if one.tokens[step] != other.tokens[at]:
                break
    return found


def count_answer_units(name: str, distances: Mapping[str, np.ndarray], dtype: str) -> np.ndarray:
    """Distances of a way in units: the least that another way is off, where it is at all; no less than RESOLUTION, no
    more than √ε of the numbers, since an engine that has lost half of the digits on every way has not rounded. A fault
    that only some ways have does not move the least."""
    levels = [float(x.max()) for way, x in distances.items() if way != name and x.max(initial=0.0) > 0]
    least = min(levels, default=0.0)
    return np.asarray(distances[name] / max(RESOLUTION, min(least, EPS[dtype] ** -0.5)), np.float32)


def measure_engine_answers(
    engine: Engine, name: str, prompts: Sequence[Sequence[int]], count: int, dtype: str, kept: dict[Any, Any]
) -> np.ndarray:
    """`count_answer_units` of a way: (prompts, count). kept: what the engine has answered to the same prompts in earlier
    cases; each way is asked once."""
    key = (OP, dtype, count, tuple(tuple(x) for x in prompts))
    if key not in kept:
        kept[key] = _ask_engine_every_way(engine, prompts, count, dtype)
    found = kept[key]
    if isinstance(found[name], Unsupported):
        raise Unsupported(str(found[name]))
    units = count_answer_units(name, {way: x for way, x in found.items() if not isinstance(x, Unsupported)}, dtype)
    made = np.zeros((len(prompts), count), np.float32)
    made[:, : units.shape[1]] = units
    return made


def _ask_engine_every_way(
    engine: Engine, prompts: Sequence[Sequence[int]], count: int, dtype: str
) -> dict[str, np.ndarray | Unsupported]:
    usual = ask_engine_alone(engine, prompts, count)
    found: dict[str, np.ndarray | Unsupported] = {}
    for way, how in WAYS.items():
        try:
            found[way] = measure_answer_distances(usual, *how(engine, prompts, usual), dtype)
        except Unsupported as error:
            found[way] = error
    return found
