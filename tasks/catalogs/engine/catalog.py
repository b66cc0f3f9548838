"""The catalog `engine`: small decoders that engines serve, one op for each relation that an engine keeps."""

from __future__ import annotations

import functools
import importlib.metadata
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Catalog, Entry, Failure, Sample
from tasks.catalogs.engine.samplers import SAMPLERS, make_sampler_sample
from tasks.checks.engine_answers import OP as OWN_ANSWERS
from tasks.checks.engine_answers import WAYS
from tasks.checks.engine_float64 import (
    compute_decoder_logits,
    compute_decoder_logprobs,
    make_int8_rounding,
    make_logits_move,
)
from tasks.checks.engine_greedy import OP as GREEDY
from tasks.checks.engine_relations import RELATIONS
from tasks.checks.engine_sampling import OP
from tasks.model import EPS, Group, Leaf, OpClass, get_numpy_dtype
from tasks.model.engine import SPECIAL, Decoder

#: Counts up whenever the bytes of a sample, a reference or a noise floor change.
CATALOG_VERSION = "2"
#: The check whose samples these are.
CHECK = "serving"
DTYPES = ("float32", "bfloat16", "float16")
#: Variant → decoder. No size is another one's: the builder of ONNX Runtime GenAI 0.18 takes the first product with as
#: many outputs as the vocabulary for the head.
DECODERS: dict[str, Decoder] = {
    "llama": Decoder(layers=3, width=64, heads=4, kv_heads=2, inner=96, vocabulary=128, positions=128),
    "window": Decoder(layers=2, width=64, heads=4, kv_heads=2, inner=96, vocabulary=128, positions=128, window=16),
}
#: Samples, the prompts of each, the shortest and longest of these, and the tokens that follow each.
SAMPLES, PROMPTS, SHORTEST, LONGEST, STEPS = 14, 4, 3, 40, 24


class Engines(Catalog):
    """A sample's arrays are prompts, the tokens that follow and the weights, in the order of
    `Decoder.weight_shapes`."""

    name = "engine"
    forms = ("engine",)
    case_worth = 100.0  # a second of a core: 96 cases on two engines took 107 s
    lacking: Mapping[str, str] = {"forward": "an engine is asked by the check serving"}

    def version(self) -> str:
        return f"{CATALOG_VERSION}+numpy{importlib.metadata.version('numpy')}"

    def entries(self) -> list[Entry]:
        return [
            Entry(f"{self.name}:{relation}", variant, DTYPES, checks=(CHECK,))
            for relation in sorted([*RELATIONS, GREEDY])
            for variant in sorted(DECODERS)
        ] + [
            Entry(f"{self.name}:{op}", variant, dtypes, checks=(CHECK,))
            for op, variants, dtypes in ((OWN_ANSWERS, WAYS, DTYPES), (OP, SAMPLERS, ("float32",)))
            for variant in sorted(variants)
        ]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        variants: dict[str, Collection[str]] = {OP: SAMPLERS, OWN_ANSWERS: WAYS}
        known = variants.get(group.op_name, DECODERS if group.op_name in (*RELATIONS, GREEDY) else ())
        if group.variant not in known or group.dtype not in DTYPES:
            raise ValueError(f"the catalog engine has no op {group.label!r} in {group.dtype}")
        for index in range(min(group.samples, SAMPLES)):
            if index in skip:
                yield Sample(index)
            elif group.op_name == OP:
                yield make_sampler_sample(group, index)
            elif group.op_name == OWN_ANSWERS:
                yield _make_engine_questions(group, index)
            else:
                yield _make_engine_sample(group, index, draws)

    def call(self, group: Group) -> Callable[..., Any]:
        return lambda *args: None  # an engine reads what is asked of it off the form

    def traced(self, group: Group) -> None:
        return None


#: Standard deviation of weights, in units of that which keeps the size of what they multiply: so drawn, a token changes
#: later logits by ten times their noise floor in bfloat16, and the floor leaves the likeliest token its lead.
SCALES = {"lm_head": 2.0, "down_proj": 0.3}


def derive_weights_seed(variant: str, seed: int) -> int:
    """That of a decoder's weights, which are the same in all samples of a run's seed: engines load them once."""
    return zlib.crc32(variant.encode()) + seed % 2**32


def draw_decoder_weights(decoder: Decoder, seed: int) -> dict[str, np.ndarray]:
    """Weights of a decoder, float64, by `Decoder.weight_shapes`' names."""
    generator = np.random.default_rng(seed)
    made = {}
    for name, shape in decoder.weight_shapes().items():
        drawn = generator.standard_normal(shape)
        part = name.split(".")[-2]
        if len(shape) == 1:
            made[name] = 1 + 0.1 * drawn
        else:
            made[name] = drawn if part == "embed_tokens" else drawn * SCALES.get(part, 1.0) / np.sqrt(shape[1])
    return made


def _make_engine_sample(group: Group, index: int, draws: int) -> Sample:
    cache = "" if group.op_name == GREEDY else RELATIONS[group.op_name].cache
    try:
        arrays, leaves = evaluate_decoder_sample(group.variant, group.dtype, index, group.seed, draws, cache)
    except Exception as error:
        return Sample(index, failure=Failure.of(error, "reference"))
    if group.op_name == GREEDY:
        leaves = [_expect_zero_units()]
    return Sample(
        index,
        tuple(TensorSpec(id=k) for k in range(len(arrays))),
        {"decoder": DECODERS[group.variant].values()},
        arrays=list(arrays),
        expected=list(leaves),
        op_class=OpClass.MODEL,
        oracle="numpy-float64",
        measured=group.op_name == GREEDY,
    )


def _make_engine_questions(group: Group, index: int) -> Sample:
    """Prompts for an engine whose answers are held to one another, and a decoder for one that takes weights."""
    decoder = "llama"
    given = _round_decoder_weights(decoder, group.dtype, group.seed)
    arrays = [*_join_engine_requests(*draw_requests(decoder, group.dtype, index, group.seed)), *given.values()]
    return Sample(
        index,
        tuple(TensorSpec(id=k) for k in range(len(arrays))),
        {"decoder": DECODERS[decoder].values(), "way": group.variant},
        arrays=arrays,
        expected=[_expect_zero_units()],
        op_class=OpClass.MODEL,
        oracle="own answers",
        measured=True,
    )


def _expect_zero_units() -> Leaf:
    """Of a number of units for each token: 0."""
    return Leaf("float32", (PROMPTS, STEPS), np.zeros((PROMPTS, STEPS)), np.ones((PROMPTS, STEPS)))


def _join_engine_requests(prompts: Sequence[Sequence[int]], following: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Requests as `tasks.checks.serving.read_engine_requests` reads them."""
    padded = np.full((PROMPTS, max(map(len, prompts))), -1, np.int64)
    for row, prompt in zip(padded, prompts):
        row[: len(prompt)] = prompt
    return [padded, np.asarray(following, np.int64)]


@functools.lru_cache(maxsize=16)
def evaluate_decoder_sample(
    variant: str, dtype: str, index: int, seed: int, draws: int, cache: str
) -> tuple[Sequence[np.ndarray], Sequence[Leaf]]:
    """The arrays of a sample, and what is expected: logits (prompts, steps, vocabulary); what the heads of all layers
    and these layers give on the way there, (prompts, steps, layers, 2, heads, head width); logarithms of the
    probabilities, for engines that give these instead of logits. The same of all relations but those of a cache."""
    decoder = DECODERS[variant]
    given = _round_decoder_weights(variant, dtype, seed)
    weights = {name: x.astype(np.float64) for name, x in given.items()}
    prompts, following = draw_requests(variant, dtype, index, seed)

    def compute(**how: Any) -> list[np.ndarray]:
        logits, layers = [], []
        for prompt, after in zip(prompts, following):
            inside: list[np.ndarray] = []
            logits.append(
                compute_decoder_logits(decoder, weights, [*prompt, *after[:-1]], inside=inside, **how)[-STEPS:]
            )
            pairs = np.stack(inside, 1)[-STEPS:]
            layers.append(pairs.reshape(STEPS, decoder.layers, 2, *pairs.shape[2:]))
        return [np.stack(logits), np.stack(layers), compute_decoder_logprobs(np.stack(logits))]

    def compute_moved(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
        for draw in drawn:
            more = {"move_cache": make_int8_rounding(draw)} if cache else {}
            yield compute(move=make_logits_move(EPS[dtype], draw), **more)

    references = compute()
    elements = sum(x.size for x in weights.values())
    floors = noise.compute_noise_floor(references, compute_moved, OpClass.MODEL, draws, elements)
    leaves = tuple(Leaf(dtype, y.shape, y, floor) for y, floor in zip(references, floors))
    return (*_join_engine_requests(prompts, following), *given.values()), leaves


def _round_decoder_weights(variant: str, dtype: str, seed: int) -> dict[str, np.ndarray]:
    drawn = draw_decoder_weights(DECODERS[variant], derive_weights_seed(variant, seed))
    return {name: x.astype(get_numpy_dtype(dtype)) for name, x in drawn.items()}


@functools.lru_cache(maxsize=16)
def draw_requests(variant: str, dtype: str, index: int, seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts of a sample and the tokens that follow each, whichever cache they are asked with: drawing these costs as
    much as the floor."""
    decoder = DECODERS[variant]
    weights = {name: x.astype(np.float64) for name, x in _round_decoder_weights(variant, dtype, seed).items()}
    generator = np.random.default_rng((index, seed % 2**64))
    lengths = [SHORTEST, *generator.integers(SHORTEST + 1, LONGEST, PROMPTS - 2), LONGEST]
    prompts = [generator.integers(SPECIAL, decoder.vocabulary, n).tolist() for n in lengths]
    return prompts, [_draw_following_tokens(decoder, weights, prompt, generator) for prompt in prompts]


def _draw_following_tokens(
    decoder: Decoder, weights: Mapping[str, np.ndarray], prompt: Sequence[int], generator: np.random.Generator
) -> list[int]:
    """Tokens as the decoder draws them itself: chosen the likeliest, a small one repeats a few."""
    tokens = list(prompt)
    for _ in range(STEPS):
        logits = compute_decoder_logits(decoder, weights, tokens)[-1]
        drawn = logits + generator.gumbel(size=logits.shape)
        tokens.append(SPECIAL + int(np.argmax(drawn[SPECIAL:])))
    return tokens[len(prompt) :]
