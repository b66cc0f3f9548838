"""BERT's encoder written once over torch's names of its operations, for torch and for every framework with counterparts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.operators.torch_names import Named

#: Weights of a layer, in their order: of query, key, value and output projection, of the first norm, of the two dense
#: layers, of the second norm, each a matrix (out, in) or gain, and a bias.
PER_LAYER = 16
#: BERT's ε of layer normalisation.
EPSILON = 1e-12


def bert_encoder(named: Named, x: Any, mask: Any, weights: Sequence[Any], heads: int) -> Any:
    """x (N, L, E), mask (N, 1, 1, L) added to scores, ``weights`` as PER_LAYER says -> (N, L, E).

    Post-norm layers with GELU by erf: Devlin et al. 2018, arXiv:1810.04805, after Vaswani et al. 2017,
    arXiv:1706.03762.
    """
    linear, norm, gelu = (named(f"nn.functional.{name}") for name in ("linear", "layer_norm", "gelu"))
    reshape, transpose, matmul, softmax = map(named, ("reshape", "transpose", "matmul", "softmax"))
    n, length, width = x.shape

    def split(y: Any) -> Any:
        return transpose(reshape(y, (n, length, heads, width // heads)), 1, 2)

    for k in range(0, len(weights), PER_LAYER):
        wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, w_in, b_in, w_out, b_out, g2, b2 = weights[k : k + PER_LAYER]
        query, key, value = split(linear(x, wq, bq)), split(linear(x, wk, bk)), split(linear(x, wv, bv))
        scores = matmul(query, transpose(key, 2, 3)) * (width // heads) ** -0.5 + mask
        mixed = reshape(transpose(matmul(softmax(scores, -1), value), 1, 2), (n, length, width))
        x = norm(x + linear(mixed, wo, bo), (width,), g1, b1, EPSILON)
        inner = gelu(linear(x, w_in, b_in))
        x = norm(x + linear(inner, w_out, b_out), (width,), g2, b2, EPSILON)
    return x
