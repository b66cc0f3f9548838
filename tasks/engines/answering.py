"""Engines that answer requests and show logarithms of probabilities: what a sequence is to one whose caches nobody sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.model import Unsupported
from tasks.model.engine import LEFT, Decoder, Sampling, ServedModel


class Answering:
    """Base of a `tasks.model.engine.AnsweringEngine`. A sequence is its tokens, which are given anew with each request:
    whether they are computed again or found in a cache of prefixes is up to the engine.

    A subclass has `predict`, `echo`, `answer`, `complete` and what it loads. Logarithms are rows (…, vocabulary),
    float32, NaN of a token of which nothing is said.
    """

    gives_logprobs = True
    #: Completions of a prompt asked for at once.
    most = 1024

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._tokens: dict[int, list[int]] = {}
        self._next = 0

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        raise NotImplementedError

    def predict(self, prompts: list[list[int]]) -> np.ndarray:
        """What follows each of some prompts, asked for together: (prompts, vocabulary)."""
        raise NotImplementedError

    def echo(self, tokens: list[int]) -> np.ndarray:
        """What follows each token of a prompt but its last: (tokens − 1, vocabulary)."""
        raise NotImplementedError

    def answer(self, prompts: list[list[int]], count: int) -> list[tuple[list[int], np.ndarray]]:
        """The likeliest tokens behind each prompt, asked for together, and the logarithms (tokens, vocabulary) from
        which each was chosen."""
        raise NotImplementedError

    def complete(self, tokens: list[int], how: Sampling, length: int, count: int, seed: int) -> list[list[int]]:
        """``count`` completions of ``length`` tokens each."""
        raise NotImplementedError

    # --- what an engine is asked ----------------------------------------------------------------------------------

    def prefill(self, tokens: Sequence[int], after: int | None = None, cache: str = "") -> tuple[int, np.ndarray]:
        if cache:
            raise Unsupported("the engine chooses its cache when it is started")
        sequence = self._open([]) if after is None else after
        whole = self._tokens[sequence] = self._tokens[sequence] + [int(x) for x in tokens]
        # Engines with a cache of prefixes compute a prompt anew that is to be echoed, and no other: both ways are asked
        # for.
        last = self.predict([whole])
        before = self.echo(whole)[len(whole) - len(tokens) :] if len(tokens) > 1 else last[:0]
        return sequence, np.concatenate([before, last])

    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> tuple[list[int], np.ndarray]:
        if side != LEFT:
            raise Unsupported("the engine pads its batches in one way, whichever it is: padded_left asks for that")
        sequences = [self._open([int(x) for x in prompt]) for prompt in prompts]
        return sequences, self.predict([self._tokens[x] for x in sequences])

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        for sequence, token in zip(sequences, tokens):
            self._tokens[sequence].append(int(token))
        return self.predict([self._tokens[x] for x in sequences])

    def fork(self, sequence: int, length: int) -> int:
        return self._open(self._tokens[sequence][:length])

    def crop(self, sequence: int, length: int) -> None:
        del self._tokens[sequence][length:]

    def evict(self, sequence: int) -> None:
        raise Unsupported("the engine evicts when it likes")

    def free(self, sequence: int) -> None:
        del self._tokens[sequence]

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        raise Unsupported("the engine samples from logits of its own alone")

    def draw(self, tokens: Sequence[int], how: Sampling, count: int, seed: int) -> np.ndarray:
        found: list[int] = []
        while len(found) < count:
            some = min(self.most, count - len(found))
            made = self.complete(list(tokens), how, 1, some, seed * 1_000_003 + len(found))
            if len(made) != some:
                raise Unsupported(f"the engine gives {len(made)} completions of {some}")
            found += [x[0] for x in made]
        return np.asarray(found, np.int64)

    def _open(self, tokens: list[int]) -> int:
        self._next += 1
        self._tokens[self._next] = tokens
        return self._next

    def make_row(self, said: Mapping[int, float] | None) -> np.ndarray:
        """Logarithms by token as a row."""
        row = np.full(self.vocabulary, np.nan, np.float32)
        for token, value in (said or {}).items():
            row[token] = value
        return row


class Packaged(Answering):
    """Base of those that a package in this process serves; they load a checkpoint as transformers writes it. A subclass
    has `open_model`."""

    def __init__(self, decoder: Decoder, **options: Any) -> None:
        super().__init__(decoder.vocabulary)
        self._options, self._opened = options, ""
        self._engine: Any = None

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        from tasks.engines.checkpoint import keep_checkpoint

        self._tokens, self._next, self.vocabulary = {}, 0, model.decoder.vocabulary
        folder = str(keep_checkpoint(model))
        if (name := f"{folder} {compiled}") != self._opened:
            self.close()
            self._engine, self._opened = self.open_model(folder, model.dtype, compiled), name

    def open_model(self, folder: str, dtype: str, compiled: bool) -> Any:
        """The package's engine with a checkpoint loaded."""
        raise NotImplementedError

    def close(self) -> None:
        """Give its memory back before another model is opened."""
        if shutdown := getattr(self._engine, "shutdown", None):
            shutdown()
        self._engine, self._opened = None, ""
