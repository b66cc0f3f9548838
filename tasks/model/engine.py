"""An engine that serves a decoder: what it is loaded with, and what it is asked while requests come and go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tasks.model.session import Session

#: On which side the shorter prompts of a batch are padded.
LEFT, RIGHT = "left", "right"
#: The first tokens of a vocabulary are special ones (padding, begin, end), which engines may take out or stop at: none
#: of them is asked.
SPECIAL = 3
#: Kinds of cache that relations ask for. An int8 cache keeps a scale for each token and head.
DYNAMIC, STATIC, PAGED, INT8 = "dynamic", "static", "paged", "int8"


@dataclass(frozen=True)
class Decoder:
    """The shape of a decoder of Llama's family: RMS norms, rotary positions, grouped queries, a gated SiLU."""

    layers: int
    width: int
    heads: int
    #: Heads of keys and values; each serves ``heads`` ÷ ``kv_heads`` neighbouring queries.
    kv_heads: int
    #: Width inside the gated product.
    inner: int
    vocabulary: int
    #: Tokens that a sequence may have.
    positions: int
    #: How many tokens a query attends to, itself among them; 0: all before it.
    window: int = 0
    rotary_base: float = 10000.0
    #: Of the norms.
    epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def values(self) -> dict[str, int | float]:
        return dataclasses.asdict(self)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes (outputs, inputs) of the weights, by the names that checkpoints of Llama give them."""
        kv = self.kv_heads * self.head_width
        block = {
            "input_layernorm": (self.width,),
            "self_attn.q_proj": (self.width, self.width),
            "self_attn.k_proj": (kv, self.width),
            "self_attn.v_proj": (kv, self.width),
            "self_attn.o_proj": (self.width, self.width),
            "post_attention_layernorm": (self.width,),
            "mlp.gate_proj": (self.inner, self.width),
            "mlp.up_proj": (self.inner, self.width),
            "mlp.down_proj": (self.width, self.inner),
        }
        blocks = {f"model.layers.{k}.{name}.weight": x for k in range(self.layers) for name, x in block.items()}
        ends = {"model.norm.weight": (self.width,), "lm_head.weight": (self.vocabulary, self.width)}
        return {"model.embed_tokens.weight": (self.vocabulary, self.width), **blocks, **ends}


@dataclass(frozen=True)
class ServedModel:
    """What an engine loads. weights: in the dtype that it is to compute in, by `Decoder.weight_shapes`' names."""

    decoder: Decoder
    dtype: str
    weights: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from logits. Applied in this order, as vLLM and transformers do: penalty, temperature,
    top-k, top-p, min-p.

    top_k: 0 for all tokens; top_p: the fewest likeliest tokens whose probabilities reach it; min_p: tokens of at least
    this share of the likeliest one's probability; penalty: a positive logit of a token that was there before is divided
    by it, a negative one multiplied.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalty: float = 1.0
    #: Tokens that were there before.
    before: tuple[int, ...] = field(default=())


class Engine(Protocol):
    """What every engine can be asked. A sequence is a number that the engine gives; a sequence's tokens are those that
    it was given and has not lost by `crop`. Logits are arrays (tokens, vocabulary) of any floating dtype. What it does
    not have, it refuses: Unsupported."""

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        """Take a model's weights. Sequences of another model are gone."""

    def prefill(self, tokens: Sequence[int], after: int | None = None, cache: str = "") -> tuple[int, np.ndarray]:
        """Read tokens as a new sequence, whose cache is of a kind ("" the usual one), or behind those of the sequence
        ``after``. Returns the sequence, and the logits behind each token that was read."""

    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> tuple[list[int], np.ndarray]:
        """Read several prompts at once, the shorter ones padded on a side. Returns their sequences, and the logits
        behind each one's last token."""

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """Append a token to each of some sequences, computed together: one alone, or those of one `batch` in its order.
        Returns the logits behind these."""

    def fork(self, sequence: int, length: int) -> int:
        """A new sequence that begins with the first ``length`` tokens of another, whose cache is not computed again."""

    def crop(self, sequence: int, length: int) -> None:
        """Forget all but the first ``length`` tokens of a sequence."""

    def evict(self, sequence: int) -> None:
        """Give the memory of a sequence's cache to others. The next call with it brings it back, computed again or
        copied."""

    def free(self, sequence: int) -> None:
        """Forget a sequence."""

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        """``count`` tokens (int64) drawn from float32 logits (vocabulary,)."""


class WatchedEngine(Engine, Protocol):
    """An engine that also shows what it computes inside."""

    def watch(self) -> None:
        """From now on put behind the logits of each token, layer by layer, what the heads gave for it before they are
        joined, and what the layer gave: (tokens, vocabulary + layers × 2 × width)."""


class AnsweringEngine(Engine, Protocol):
    """An engine that chooses tokens itself, as one behind an endpoint, and whose logits nobody sees: what it returns
    instead are logarithms of probabilities, NaN of a token of which it says nothing."""

    gives_logprobs: bool
    vocabulary: int

    def answer(self, prompts: Sequence[Sequence[int]], count: int) -> list[tuple[list[int], np.ndarray]]:
        """The tokens that it chooses behind each of some prompts given together, the likeliest each time, and the
        logarithms (tokens, vocabulary) from which it chose each; fewer tokens where one of them ends the text. An
        engine that lacks it is asked token by token."""

    def draw(self, tokens: Sequence[int], how: Sampling, count: int, seed: int) -> np.ndarray:
        """``count`` tokens (int64) drawn for the place behind some; those before are ``tokens``."""


class SpreadEngine(Engine, Protocol):
    """An engine that several ranks may compute together, each in a process of its own. A rank is made by its class
    alone and is an Engine that is loaded with the whole model, of which it keeps its part; `torch.distributed`'s
    default group is there, and all ranks are asked the same."""

    #: "module:Class" of a rank.
    rank_class: str


class EngineSession(Session, Protocol):
    """The session of a program that is an engine with its model loaded."""

    engine: Any
    #: What ways gave for the same requests in earlier cases of this process; the check fills it.
    kept: dict[Any, np.ndarray]

    def load(self, compiled: bool, ranks: int = 1) -> Engine:
        """The engine with its model loaded again, spread over so many ranks. Raises Unsupported."""


@dataclass(frozen=True)
class Requests:
    """What an engine is asked: prompts of several lengths, and tokens that follow each, whatever the engine would have
    chosen."""

    #: One row a prompt.
    prompts: tuple[tuple[int, ...], ...]
    #: One row a prompt, all of the same length.
    following: tuple[tuple[int, ...], ...]

    @property
    def whole(self) -> list[list[int]]:
        """Each prompt with what follows; the last token is the last to be predicted and never read."""
        return [[*a, *b[:-1]] for a, b in zip(self.prompts, self.following)]
