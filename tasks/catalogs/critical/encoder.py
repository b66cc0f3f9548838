"""BERT's encoder as an op: realistic weights, a reference in NumPy, the form in torch; other frameworks have it as a counterpart."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.catalogs.critical import reference as ref
from tasks.counterparts.encoder import EPSILON, PER_LAYER, bert_encoder

#: Width, heads and inner width of BERT-mini (Turc et al. 2019, arXiv:1908.08962), and half its layers.
WIDTH, HEADS, INNER, LAYERS = 256, 4, 1024, 2
BATCH, LENGTH = 2, 32


def draw_encoder_inputs(g: np.random.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Embeddings, a mask that hides the last quarter of the second text, and weights.

    Default initialisations hide faults (biases 0, gains 1): here weights have the variance 1/fan-in, those of query and
    key twice that, so that attention is not flat; biases, gains and shifts differ from 0 and 1.
    """

    def matrix(out: int, fan_in: int, gain: float = 1.0) -> np.ndarray:
        return g.standard_normal((out, fan_in)) * (gain / fan_in) ** 0.5

    def norm() -> list[np.ndarray]:
        return [np.exp(0.3 * g.standard_normal(WIDTH)), 0.2 * g.standard_normal(WIDTH)]

    weights: list[np.ndarray] = []
    for _ in range(LAYERS):
        for gain in (2.0, 2.0, 1.0, 1.0):
            weights += [matrix(WIDTH, WIDTH, gain), 0.1 * g.standard_normal(WIDTH)]
        weights += norm()
        weights += [matrix(INNER, WIDTH), 0.1 * g.standard_normal(INNER)]
        weights += [matrix(WIDTH, INNER), 0.1 * g.standard_normal(WIDTH)]
        weights += norm()
    assert len(weights) == LAYERS * PER_LAYER
    mask = np.zeros((BATCH, 1, 1, LENGTH))
    mask[1, ..., -LENGTH // 4 :] = -1e4  # BERT's own number for what is hidden; float16 holds it
    return (g.standard_normal((BATCH, LENGTH, WIDTH)), mask, *weights), {"heads": HEADS}


def encode_reference(x: np.ndarray, mask: np.ndarray, *weights: np.ndarray, heads: int) -> np.ndarray:
    """x (N, L, E), mask (N, 1, 1, L) added to scores, weights as `tasks.counterparts.encoder` has them -> (N, L, E).

    Devlin et al. 2018, arXiv:1810.04805.
    """
    for k in range(0, len(weights), PER_LAYER):
        attention, (g1, b1), dense, (g2, b2) = (
            weights[k + a : k + b] for a, b in ((0, 8), (8, 10), (10, 14), (14, 16))
        )
        query, key, value = (
            np.stack([ref.linear(x, *one) for one in zip(np.split(w, heads), np.split(b, heads))], axis=1)
            for w, b in zip(attention[:6:2], attention[1:6:2])
        )  # a head's rows of the matrix, not a head's columns of the product, as the forms have it
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]) + mask
        mixed = np.concatenate(list((ref.softmax(scores, -1) @ value).swapaxes(0, 1)), axis=-1)
        x = ref.layer_norm(x + ref.linear(mixed, *attention[6:]), g1.shape, g1, b1, EPSILON)
        inner = ref.gelu(ref.linear(x, *dense[:2]))
        x = ref.layer_norm(x + ref.linear(inner, *dense[2:]), g2.shape, g2, b2, EPSILON)
    return x


def make_encoder_in_torch(torch: Any) -> Callable[..., Any]:
    """The encoder in torch's functions."""

    def find_torch_function(name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = operator.attrgetter(name)(torch)
        return found

    def encoder(x: Any, mask: Any, *weights: Any, heads: int) -> Any:
        return bert_encoder(find_torch_function, x, mask, weights, heads)

    return encoder
