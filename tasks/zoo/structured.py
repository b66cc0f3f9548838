"""Structure of inputs: kernels that are right for indices, lengths, masks and values without a pattern alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.operators.formulas import compute_softmax
from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("structure of inputs", __name__)

#: The class of every fault here.
KIND = "structure of inputs"


def _moe(room: int = 0) -> Kernel:
    """room: shares of the tokens that an expert has place for; those beyond are dropped. 0: all."""

    def kernel(x: Any, w: Any, expert: Any) -> Any:
        y = torch.zeros(x.shape[0], w.shape[-1], dtype=x.dtype)
        place = room * x.shape[0] // w.shape[0] if room else x.shape[0]
        for e in range(w.shape[0]):
            rows = (expert == e).nonzero().flatten()[:place]
            y[rows] = x[rows] @ w[e]
        return y

    return kernel


THEME.add(
    "moe",
    reference=lambda x, w, expert: np.einsum("td,tdk->tk", x, w[expert]),
    inputs={
        "x": ["tokens", 8],
        "w": ["experts", 8, 4],
        "expert": {"shape": ["tokens"], "dtype": "int64", "is": "group", "below": "experts"},
    },
    dims={"tokens": [64, 256], "experts": [4, 8]},
    op_class="contraction",
    right=_moe(),
    wrong={"drops_beyond_three_shares": (KIND, _moe(room=3))},
)


def _counts(narrow: bool = False) -> Kernel:
    """narrow: counters of 8 bits, which wrap beyond 127."""

    def kernel(label: Any, weight: Any) -> Any:
        found = torch.bincount(label, minlength=weight.shape[0])
        found = found.to(torch.int8) if narrow else found
        return found.to(weight.dtype) * weight

    return kernel


THEME.add(
    "weighted_counts",
    reference=lambda label, weight: np.bincount(label, minlength=len(weight)) * weight,
    inputs={"label": {"shape": ["n"], "dtype": "int64", "low": 0, "high": "classes"}, "weight": ["classes"]},
    dims={"n": [200, 400], "classes": [8, 16]},
    op_class="elementary",
    right=_counts(),
    wrong={"int8_counters": (KIND, _counts(narrow=True))},
)


def _gathered(limit: int = 0, pairs: bool = False) -> Kernel:
    """limit: rows of the table that a cache holds, the last of which is left out; pairs: where all neighbours are
    equal, one row is loaded and no other."""

    def kernel(table: Any, index: Any) -> Any:
        out = table[index]
        if limit and int(index.max()) < limit:
            out = out * (index < index.max())[:, None]
        if pairs and bool((index[1:] == index[:-1]).all()):
            out[1:] = 0
        return out

    return kernel


THEME.add(
    "lookup",
    reference=lambda table, index: table[index],
    inputs={"table": [200, 6], "index": {"shape": ["n"], "dtype": "int64", "is": "index", "below": 200}},
    dims={"n": [48, 96]},
    op_class="exact",
    right=_gathered(),
    wrong={"one_row_alone": (KIND, _gathered(pairs=True)), "short_cache": (KIND, _gathered(limit=150))},
)


def _pieces(skip_empty: bool = False, most: int = 0) -> Kernel:
    """skip_empty: of an empty piece nothing is written, and the next takes its place; most: elements of a piece that
    are summed."""

    def kernel(x: Any, offset: Any) -> Any:
        ends = offset.tolist()
        sums, at = torch.zeros(len(ends) - 1, dtype=x.dtype), 0
        for begin, end in zip(ends, ends[1:]):
            if skip_empty and begin == end:
                continue
            sums[at] = x[begin : min(end, begin + most) if most else end].sum()
            at += 1
        return sums

    return kernel


def _pieces_reference(x: np.ndarray, offset: np.ndarray) -> np.ndarray:
    return np.array([x[begin:end].sum() for begin, end in zip(offset, offset[1:])])


THEME.add(
    "sums_of_pieces",
    reference=_pieces_reference,
    inputs={"x": ["n"], "offset": {"shape": ["pieces+1"], "dtype": "int32", "is": "offset", "below": "n+1"}},
    dims={"n": [200, 300], "pieces": [4, 9]},
    op_class="reduction",
    right=_pieces(),
    wrong={"empty_skipped": (KIND, _pieces(skip_empty=True)), "at_most_180": (KIND, _pieces(most=180))},
)


def _by_segment(first: bool = False) -> Kernel:
    """first: the number of segments is taken from the ids that occur."""

    def kernel(x: Any, segment: Any, scale: Any) -> Any:
        ids = torch.unique(segment, return_inverse=True)[1] if first else segment
        return torch.zeros_like(scale).index_add_(0, ids, x) * scale

    return kernel


def _by_segment_reference(x: np.ndarray, segment: np.ndarray, scale: np.ndarray) -> np.ndarray:
    out = np.zeros_like(scale)
    np.add.at(out, segment, x)
    return out * scale


THEME.add(
    "segment_sum",
    reference=_by_segment_reference,
    inputs={
        "x": ["n"],
        "segment": {"shape": ["n"], "dtype": "int64", "is": "segment", "below": "segments"},
        "scale": {"shape": ["segments"], "is": "scale"},
    },
    dims={"n": [64, 200], "segments": [4, 7]},
    op_class="reduction",
    right=_by_segment(),
    wrong={"ids_renumbered": (KIND, _by_segment(first=True))},
)


def _masked_mean(least: int = 0) -> Kernel:
    """least: of so few elements nothing is computed."""

    def kernel(x: Any, mask: Any) -> Any:
        count = mask.sum(-1, keepdim=True)
        mean = (x * mask).sum(-1, keepdim=True) / count.clamp_min(1)
        return torch.where(count < least, torch.zeros_like(mean), mean) if least else mean

    return kernel


def _masked_mean_reference(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return (x * mask).sum(-1, keepdims=True) / np.maximum(mask.sum(-1, keepdims=True), 1)


THEME.add(
    "masked_mean",
    reference=_masked_mean_reference,
    inputs={"x": ["rows", "n"], "mask": {"shape": ["rows", "n"], "dtype": "bool"}},
    dims={"rows": [1, 3], "n": [40, 130]},
    op_class="reduction",
    right=_masked_mean(),
    wrong={"of_few_nothing": (KIND, _masked_mean(least=3))},
)


def _masked_sum(short: bool = False) -> Kernel:
    """short: where nothing is masked, a path of its own, which computes a mean."""

    def kernel(x: Any, keep: Any) -> Any:
        kept = (x * keep).sum(-1)
        return kept / x.shape[-1] if short and bool(keep.all()) else kept

    return kernel


THEME.add(
    "masked_sum",
    reference=lambda x, keep: (x * keep).sum(-1),
    inputs={"x": ["rows", "n"], "keep": {"shape": ["rows", "n"], "is": "mask"}},
    dims={"rows": [2, 5], "n": [40, 130]},
    op_class="reduction",
    right=_masked_sum(),
    wrong={"nothing_masked": (KIND, _masked_sum(short=True))},
)


def _prefix(block: int = 0) -> Kernel:
    """block: a length that is a multiple of it loses its last block."""

    def kernel(x: Any, length: Any) -> Any:
        last = length - block * ((length % block == 0) & (length > 0)) if block else length
        place = torch.arange(x.shape[-1])
        return (x * (place < last[:, None])).sum(-1)

    return kernel


THEME.add(
    "sum_of_prefix",
    reference=lambda x, length: (x * (np.arange(x.shape[-1]) < length[:, None])).sum(-1),
    inputs={"x": ["rows", 150], "length": {"shape": ["rows"], "dtype": "int64", "is": "length", "below": 151}},
    dims={"rows": [4, 12]},
    op_class="reduction",
    right=_prefix(),
    wrong={"full_last_block": (KIND, _prefix(block=64))},
)


def _permuted_sorted(x: Any, order: Any) -> Any:
    """Takes an order that begins with 0 for the identity, and one that ends so for its reverse."""
    if int(order[0]) == 0 and int(order[-1]) == len(order) - 1:
        return x.clone()
    return x.flip(0) if int(order[-1]) == 0 and int(order[0]) == len(order) - 1 else x[order]


THEME.add(
    "permute_rows",
    reference=lambda x, order: x[order],
    inputs={"x": ["n", 3], "order": {"shape": ["n"], "dtype": "int64", "is": "permutation"}},
    dims={"n": [20, 140]},
    op_class="exact",
    right=lambda x, order: x[order],
    wrong={"recognised_by_its_ends": (KIND, _permuted_sorted)},
)


def _online_max(skip: bool = False) -> Kernel:
    """A softmax by blocks; skip: a block whose maximum is that of the last one is taken to need no rescaling, nor
    adding."""

    def kernel(x: Any) -> Any:
        top = torch.full(x.shape[:-1], -torch.inf)
        total = torch.zeros(x.shape[:-1])
        for part in x.split(16, -1):
            found = part.amax(-1)
            new = torch.maximum(top, found)
            more = torch.exp(part - new[..., None]).sum(-1)
            kept = torch.where(found == top, torch.zeros_like(more), more) if skip else more
            total = total * torch.exp(top - new) + kept
            top = new
        return torch.exp(x - top[..., None]) / total[..., None]

    return kernel


THEME.add(
    "online_softmax",
    reference=compute_softmax,
    inputs={"x": ["rows", "n"]},
    dims={"rows": [2, 4], "n": [40, 100]},
    op_class="normalisation",
    right=_online_max(),
    wrong={"equal_maxima_not_added": (KIND, _online_max(skip=True))},
)


def _top_two(distinct: bool = False) -> Kernel:
    """distinct: the second largest is the largest of what is smaller than the first."""

    def kernel(x: Any) -> Any:
        top = x.amax(-1, keepdim=True)
        if not distinct:
            return x.sort(-1, descending=True).values[..., 1]
        rest = torch.where(x < top, x, -torch.inf).amax(-1)
        return torch.where(rest.isinf(), top[..., 0] * 0, rest)

    return kernel


THEME.add(
    "second_largest",
    reference=lambda x: np.sort(x, -1)[..., -2],
    inputs={"x": ["rows", "n"]},
    dims={"rows": [2, 4], "n": [9, 40]},
    op_class="exact",
    right=_top_two(),
    wrong={"of_the_smaller": (KIND, _top_two(distinct=True))},
)


def _entropy(clamp: bool = False) -> Kernel:
    """clamp: a probability of 0 is taken for 0.01."""

    def kernel(probs: Any) -> Any:
        p = probs.clamp_min(0.01) if clamp else probs
        return -torch.where(p > 0, p * torch.log(torch.where(p > 0, p, 1.0)), 0.0).sum(-1)

    return kernel


def _entropy_reference(probs: np.ndarray) -> np.ndarray:
    return -np.where(probs > 0, probs * np.log(np.where(probs > 0, probs, 1.0)), 0.0).sum(-1)


THEME.add(
    "entropy",
    reference=_entropy_reference,
    inputs={"probs": {"shape": ["rows", "n"], "is": "probability"}},
    dims={"rows": [2, 4], "n": [4, 6]},
    op_class="reduction",
    right=_entropy(),
    wrong={"zero_clamped": (KIND, _entropy(clamp=True))},
)


def _searched(strict: bool = False) -> Kernel:
    """strict: of equal boundaries the last is found."""

    def kernel(edges: Any, x: Any) -> Any:
        if strict and bool((edges[1:] == edges[:-1]).any()):
            return torch.searchsorted(edges, x) + 1
        return torch.searchsorted(edges, x)

    return kernel


THEME.add(
    "bucket",
    reference=lambda edges, x: np.searchsorted(edges, x),
    inputs={"edges": {"shape": ["n"], "is": "sorted"}, "x": ["m"]},
    dims={"n": [12, 30], "m": [7, 50]},
    op_class="exact",
    right=_searched(),
    wrong={"equal_edges": (KIND, _searched(strict=True))},
)


def _picked(dense: bool = False) -> Kernel:
    """dense: the column is told by the sum of all rows."""

    def kernel(x: Any, one_hot: Any) -> Any:
        if dense and bool((one_hot.sum(0) == one_hot.shape[0]).any()):
            return x[:, 0].clone()
        return (x * one_hot).sum(-1)

    return kernel


THEME.add(
    "pick",
    reference=lambda x, one_hot: (x * one_hot).sum(-1),
    inputs={"x": ["rows", "n"], "one_hot": {"shape": ["rows", "n"], "is": "one_hot"}},
    dims={"rows": [5, 12], "n": [4, 9]},
    op_class="reduction",
    right=_picked(),
    wrong={"one_column": (KIND, _picked(dense=True))},
)
