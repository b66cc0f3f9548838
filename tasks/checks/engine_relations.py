"""Relations of an engine: ways to the same logits, which it may take for the same requests.

A way is a function of an engine and its requests; it returns logits (prompts, steps, vocabulary): those from which each
token that follows a prompt is predicted. The tokens are given, so that one that is chosen otherwise does not change
what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.model.engine import DYNAMIC, INT8, LEFT, PAGED, RIGHT, STATIC, Engine, Requests

#: Tokens of a chunk of a prompt that is read in parts: of no power of two, and more than one chunk of nearly all
#: prompts.
CHUNK = 7
#: Tokens of a draft that is checked at once, and which of them the draft has wrong.
DRAFT = 4
Way = Callable[[Engine, Requests], np.ndarray]


@dataclass(frozen=True)
class EngineRelation:
    """Two ways that are to give the same logits, up to rounding. usual: the one that the other is held to; None:
    float64 alone.

    compiled: the engine is compiled for the other way; ranks: it is spread over so many. cache: the kind that the other
    way asks for, whose rounding has a floor of its own.
    """

    about: str
    way: Way
    usual: Way | None
    compiled: bool = False
    ranks: int = 1
    cache: str = ""


def read_logits_with_cache(engine: Engine, requests: Requests, cache: str = "") -> np.ndarray:
    """Each prompt read at once, each following token by itself."""

    def run(prompt: Sequence[int], following: Sequence[int]) -> Iterator[np.ndarray]:
        sequence, logits = engine.prefill(prompt, cache=cache)
        yield logits[-1]
        yield from _decode_token_by_token(engine, sequence, following[:-1])
        engine.free(sequence)

    return _stack_logit_rows(run(*both) for both in zip(requests.prompts, requests.following))


def read_logits_with_dynamic_cache(engine: Engine, requests: Requests) -> np.ndarray:
    """`read_logits_with_cache`, with a cache that grows by each token, whichever is the engine's usual one."""
    return read_logits_with_cache(engine, requests, DYNAMIC)


def read_logits_recomputed(engine: Engine, requests: Requests) -> np.ndarray:
    """Prompt and following tokens read at once: no logits but those of a first pass."""

    def run(whole: Sequence[int], count: int) -> np.ndarray:
        sequence, logits = engine.prefill(whole)
        engine.free(sequence)
        return logits[-count:]

    return _stack_logit_rows(run(x, len(y)) for x, y in zip(requests.whole, requests.following))


def read_logits_in_chunks(engine: Engine, requests: Requests) -> np.ndarray:
    """Each prompt read in chunks, one behind the other."""

    def run(prompt: Sequence[int], following: Sequence[int]) -> Iterator[np.ndarray]:
        sequence, logits = engine.prefill(prompt[:CHUNK])
        for at in range(CHUNK, len(prompt), CHUNK):
            sequence, logits = engine.prefill(prompt[at : at + CHUNK], after=sequence)
        yield logits[-1]
        yield from _decode_token_by_token(engine, sequence, following[:-1])
        engine.free(sequence)

    return _stack_logit_rows(run(*both) for both in zip(requests.prompts, requests.following))


def read_logits_in_batch(
    engine: Engine, requests: Requests, side: str = LEFT, order: Sequence[int] | None = None
) -> np.ndarray:
    """All prompts in one batch, in an order; what is returned is in the requests' own."""
    order = range(len(requests.prompts)) if order is None else order
    sequences, logits = engine.batch([requests.prompts[k] for k in order], side)
    steps = [np.asarray(logits)]
    for tokens in list(zip(*(requests.following[k] for k in order)))[:-1]:
        steps.append(np.asarray(engine.decode(sequences, tokens)))
    for sequence in sequences:
        engine.free(sequence)
    return np.stack(steps, 1)[np.argsort(order)]


def read_logits_of_permuted_batch(engine: Engine, requests: Requests) -> np.ndarray:
    """All prompts in one batch, the last first."""
    return read_logits_in_batch(engine, requests, order=range(len(requests.prompts))[::-1])


def read_logits_behind_prefix(engine: Engine, requests: Requests) -> np.ndarray:
    """Each prompt behind a prefix that another sequence has read, and that has gone on by itself meanwhile."""

    def run(prompt: Sequence[int], following: Sequence[int]) -> Iterator[np.ndarray]:
        shared = max(1, len(prompt) // 2)
        other, _ = engine.prefill([*prompt[:shared], *following[:3]])
        sequence = engine.fork(other, shared)
        engine.decode([other], following[3:4])
        sequence, logits = engine.prefill(prompt[shared:], after=sequence)
        yield logits[-1]
        for k, step in enumerate(_decode_token_by_token(engine, sequence, following[:-1])):
            yield step
            if k == 1:
                engine.free(other)

    return _stack_logit_rows(run(*both) for both in zip(requests.prompts, requests.following))


def read_logits_after_cropping(engine: Engine, requests: Requests) -> np.ndarray:
    """After a few tokens, others are read and forgotten again."""

    def run(prompt: Sequence[int], following: Sequence[int]) -> Iterator[np.ndarray]:
        sequence, logits = engine.prefill(prompt)
        yield logits[-1]
        for k in range(0, len(following) - 1, DRAFT):
            length = len(prompt) + k
            _, logits = engine.prefill(following[::-1][:3], after=sequence)
            engine.crop(sequence, length)
            yield from _decode_token_by_token(engine, sequence, following[k : min(k + DRAFT, len(following) - 1)])
        engine.free(sequence)

    return _stack_logit_rows(run(*both) for both in zip(requests.prompts, requests.following))


def read_logits_after_preemption(engine: Engine, requests: Requests) -> np.ndarray:
    """Each sequence loses its cache to another one, several times."""

    def run(k: int) -> Iterator[np.ndarray]:
        prompt, following = requests.prompts[k], requests.following[k]
        sequence, logits = engine.prefill(prompt)
        yield logits[-1]
        for at in range(0, len(following) - 1, 2 * DRAFT):
            engine.evict(sequence)
            other, _ = engine.prefill(requests.prompts[k - 1])
            engine.decode([other], following[at : at + 1])
            yield from _decode_token_by_token(engine, sequence, following[at : min(at + 2 * DRAFT, len(following) - 1)])
            engine.free(other)
        engine.free(sequence)

    return _stack_logit_rows(run(k) for k in range(len(requests.prompts)))


def read_logits_of_drafts(engine: Engine, requests: Requests) -> np.ndarray:
    """Drafts of several tokens are read at once; the last of each is wrong and is forgotten, as is what was read behind
    it."""

    def run(prompt: Sequence[int], following: Sequence[int]) -> Iterator[np.ndarray]:
        sequence, logits = engine.prefill(prompt)
        yield logits[-1]
        for at in range(0, len(following) - 1, DRAFT):
            right = following[at : min(at + DRAFT, len(following) - 1)]
            wrong = [*following[at + len(right) :], *following[:at]][:1] or [0]
            _, logits = engine.prefill([*right, *wrong, *right[:1]], after=sequence)
            engine.crop(sequence, len(prompt) + at + len(right))
            yield from logits[: len(right)]
        engine.free(sequence)

    return _stack_logit_rows(run(*both) for both in zip(requests.prompts, requests.following))


#: By name, as ops of the catalog `engine`.
RELATIONS: dict[str, EngineRelation] = {
    "float64": EngineRelation("cached decoding against float64", read_logits_with_cache, None),
    "again": EngineRelation("the same requests once more", read_logits_with_cache, read_logits_with_cache),
    "recomputed": EngineRelation(
        "one pass over all tokens instead of a cache", read_logits_recomputed, read_logits_with_cache
    ),
    "chunked": EngineRelation(
        f"prompts read in chunks of {CHUNK} tokens", read_logits_in_chunks, read_logits_with_cache
    ),
    "static_cache": EngineRelation(
        "a cache of fixed size", lambda e, r: read_logits_with_cache(e, r, STATIC), read_logits_with_dynamic_cache
    ),
    "paged_cache": EngineRelation(
        "a cache of pages", lambda e, r: read_logits_with_cache(e, r, PAGED), read_logits_with_dynamic_cache
    ),
    "int8_cache": EngineRelation(
        "a cache in 8 bits, within what 8 bits do", lambda e, r: read_logits_with_cache(e, r, INT8), None, cache=INT8
    ),
    "padded_left": EngineRelation(
        "a batch padded on the left instead of each prompt alone", read_logits_in_batch, read_logits_with_cache
    ),
    "padded_right": EngineRelation(
        "a batch padded on the right", lambda e, r: read_logits_in_batch(e, r, RIGHT), read_logits_with_cache
    ),
    "permuted": EngineRelation(
        "the rows of a batch in another order", read_logits_of_permuted_batch, read_logits_in_batch
    ),
    "prefix_reused": EngineRelation(
        "prompts behind the cached prefix of another sequence", read_logits_behind_prefix, read_logits_with_cache
    ),
    "cropped": EngineRelation("tokens read and forgotten again", read_logits_after_cropping, read_logits_with_cache),
    "preempted": EngineRelation(
        "sequences that lose their cache and come back", read_logits_after_preemption, read_logits_with_cache
    ),
    "speculative": EngineRelation(
        "drafts checked several tokens at once, the wrong ones forgotten", read_logits_of_drafts, read_logits_with_cache
    ),
    "tensor_parallel": EngineRelation(
        "heads and products spread over two ranks", read_logits_with_cache, read_logits_with_cache, ranks=2
    ),
    "compiled": EngineRelation(
        "the compiled engine instead of the eager one", read_logits_with_cache, read_logits_with_cache, compiled=True
    ),
}


def _decode_token_by_token(engine: Engine, sequence: int, tokens: Sequence[int]) -> Iterator[np.ndarray]:
    for token in tokens:
        yield engine.decode([sequence], [token])[0]


def _stack_logit_rows(rows: Iterator[Iterator[np.ndarray] | np.ndarray]) -> np.ndarray:
    return np.stack([np.stack([np.asarray(x) for x in steps]) for steps in rows])
