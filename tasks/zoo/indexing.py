"""Indexing and data movement: which element goes where."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("indexing", __name__)


def _embedding(off: int = 0, wrap: int = 0, axis: int = 0) -> Kernel:
    """wrap: the row is computed modulo this, as an index of too few bits is."""

    def kernel(table: Any, index: Any) -> Any:
        index = (index + off).clamp_max(table.shape[0] - 1)
        return torch.index_select(table, axis, index % wrap if wrap else index)

    return kernel


THEME.add(
    "embedding",
    reference=lambda table, index: table[index],
    inputs={"table": [300, 300], "index": {"shape": ["n"], "dtype": "int64", "low": 0, "high": 300}},
    dims={"n": [31, 64]},
    dtypes=["float32", "bfloat16"],
    op_class="exact",
    right=_embedding(),
    wrong={
        "next_row": ("off by one", _embedding(off=1)),
        "uint8_index": ("index overflow", _embedding(wrap=256)),
        "columns": ("wrong axis", _embedding(axis=1)),
    },
)


def _copy(bits: int = 64) -> Kernel:
    """A copy by linear index, which wraps round at 2**(bits − 1) elements."""

    def kernel(x: Any) -> Any:
        flat, at = x.reshape(-1), torch.arange(x.numel())
        return flat[at % (1 << (bits - 1)) if bits < 64 else at].reshape(x.shape)

    return kernel


THEME.add(
    "large_copy",
    reference=lambda x: x,
    inputs={"x": ["rows", 257]},
    dims={"rows": [129]},
    dtypes=["float16"],
    op_class="exact",
    right=_copy(),
    wrong={"int16_offsets": ("index overflow", _copy(16))},
)


THEME.add(
    "copy",
    reference=lambda x: x,
    inputs={"x": ["n"]},
    dims={"n": [255, 300]},
    op_class="exact",
    right=_copy(),
    wrong={"uint8_offsets": ("index overflow", _copy(9))},
)


def _scatter_reference(x: np.ndarray, index: np.ndarray, source: np.ndarray) -> np.ndarray:
    out = x.copy()
    np.add.at(out, index, source)
    return out


def _scatter_add(add: bool = True, clear: bool = False) -> Kernel:
    def kernel(x: Any, index: Any, source: Any) -> Any:
        out = torch.zeros_like(x) if clear else x.clone()
        if add:
            return out.index_add_(0, index, source)
        out[index] = out[index] + source
        return out

    return kernel


THEME.add(
    "scatter_add",
    reference=_scatter_reference,
    inputs={"x": [10], "index": {"shape": ["n"], "dtype": "int64", "low": 0, "high": 10}, "source": ["n"]},
    dims={"n": [20, 65]},
    op_class="reduction",
    right=_scatter_add(),
    wrong={
        "duplicates_lost": ("race", _scatter_add(add=False)),
        "onto_zeros": ("argument ignored", _scatter_add(clear=True)),
    },
)

THEME.add(
    "roll",
    reference=lambda x: np.roll(x, 3, -1),
    inputs={"x": [2, "n"]},
    dims={"n": [7, 32]},
    op_class="exact",
    right=lambda x: x.roll(3, -1),
    wrong={"backwards": ("sign", lambda x: x.roll(-3, -1)), "flat": ("wrong axis", lambda x: x.roll(3))},
)

THEME.add(
    "tril",
    reference=lambda x: np.tril(x),
    inputs={"x": ["n", "n"]},
    dims={"n": [7, 33]},
    op_class="exact",
    right=lambda x: x.tril(),
    wrong={"without_diagonal": ("mask", lambda x: x.tril(-1)), "upper": ("sign", lambda x: x.triu())},
)


def _concatenate(off: int = 0, axis: int = -1) -> Kernel:
    def kernel(x: Any, y: Any) -> Any:
        n = x.shape[-1]
        out = torch.zeros(*x.shape[:-1], n + y.shape[-1])
        out[..., :n] = x
        out[..., n - off : n - off + y.shape[-1]] = y
        return out

    return kernel


THEME.add(
    "concatenate",
    reference=lambda x, y: np.concatenate([x, y], -1),
    inputs={"x": [2, "n"], "y": [2, "m"]},
    dims={"n": [7, 33], "m": [5]},
    op_class="exact",
    right=_concatenate(),
    wrong={"overlap": ("off by one", _concatenate(off=1))},
)

THEME.add(
    "repeat",
    reference=lambda x: np.repeat(x, 3, -1),
    inputs={"x": [2, "n"]},
    dims={"n": [7, 33]},
    op_class="exact",
    right=lambda x: x.repeat_interleave(3, -1),
    wrong={"tiled": ("order", lambda x: x.repeat(1, 3))},
)

THEME.add(
    "reflect_pad",
    reference=lambda x: np.pad(x, ((0, 0), (3, 3)), mode="reflect"),
    inputs={"x": [2, "n"]},
    dims={"n": [7, 33]},
    op_class="exact",
    right=lambda x: torch.nn.functional.pad(x, (3, 3), mode="reflect"),
    wrong={
        "with_the_edge": ("border", lambda x: torch.cat([x[:, :3].flip(-1), x, x[:, -3:].flip(-1)], -1)),
        "constant": ("argument ignored", lambda x: torch.nn.functional.pad(x, (3, 3))),
    },
)


def _topk(ordered: bool = True, largest: bool = True, first: int = 0) -> Kernel:
    def kernel(x: Any) -> Any:
        found = x.sort(-1, descending=largest).values[..., first : first + 5]
        return found if ordered else found.roll(1, -1)

    return kernel


THEME.add(
    "topk_values",
    reference=lambda x: -np.sort(-x, -1)[..., :5],
    inputs={"x": [3, "n"]},
    dims={"n": [9, 129]},
    op_class="exact",
    right=_topk(),
    wrong={
        "unsorted": ("order", _topk(ordered=False)),
        "smallest": ("sign", _topk(largest=False)),
        "second_on": ("off by one", _topk(first=1)),
    },
)


def _argsort(stable: bool) -> Kernel:
    def kernel(x: Any) -> Any:
        return x.argsort(dim=-1, stable=True) if stable else x.shape[-1] - 1 - x.flip(-1).argsort(dim=-1, stable=True)

    return kernel


THEME.add(
    "stable_argsort",
    reference=lambda x: np.argsort(x, -1, kind="stable"),
    outputs=["int64"],
    inputs={"x": {"shape": [2, "n"], "data": [3, 1, 2, 1, 3, 0, 2]}},
    dims={"n": [7, 33]},
    op_class="exact",
    right=_argsort(True),
    wrong={"unstable": ("index on ties", _argsort(False))},
)

THEME.add(
    "searchsorted",
    reference=lambda edges, x: np.searchsorted(edges, x),
    outputs=["int64"],
    op_class="exact",
    inputs={
        "edges": {"shape": [5], "data": [-1, 0, 0.5, 1, 2]},
        "x": {"shape": [7], "data": [-2, -1, 0.25, 0.5, 1.5, 2, 3]},
    },
    right=lambda edges, x: torch.searchsorted(edges, x),
    wrong={"right_side": ("off by one", lambda edges, x: torch.searchsorted(edges, x, right=True))},
)

THEME.add(
    "histogram",
    reference=lambda x: np.histogram(x, 4, (0, 4))[0].astype(np.int64),
    outputs=["int64"],
    op_class="exact",
    inputs={"x": {"shape": [9], "data": [0, 0.5, 1, 2, 3.5, 4, 4, 5, -1]}},
    right=lambda x: torch.histc(x, 4, 0, 4).long(),
    wrong={"last_edge_left_out": ("off by one", lambda x: torch.histc(x[x < 4], 4, 0, 4).long())},
)

THEME.add(
    "where",
    reference=lambda c, x, y: np.where(c, x, y),
    inputs={"c": {"shape": ["n"], "dtype": "bool"}, "x": ["n"], "y": ["n"]},
    dims={"n": [33, 128]},
    dtypes=["float32", "int32"],
    op_class="exact",
    right=lambda c, x, y: torch.where(c, x, y),
    wrong={"swapped": ("order", lambda c, x, y: torch.where(c, y, x))},
)

THEME.add(
    "row_bias",
    reference=lambda x, b: x + b,
    inputs={"x": ["n", "n"], "b": ["n"]},
    dims={"n": [7, 33]},
    op_class="elementary",
    right=lambda x, b: x + b,
    wrong={"column": ("broadcast", lambda x, b: x + b[:, None])},
)
