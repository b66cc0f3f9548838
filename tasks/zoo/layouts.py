"""What a kernel assumes of how its inputs lie in memory: each is right on contiguous ones, and its twin on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("layouts", __name__)
KIND = "stride ignored"
X = {"x": ["rows", "columns"]}
#: Several dtypes: each begins with other layouts.
SETTINGS: dict[str, Any] = {"dims": {"rows": [5, 9], "columns": [6, 33]}, "dtypes": ["float32", "float64", "float16"]}


def _memory(x: Any) -> Any:
    """All of a tensor's storage, as a kernel has it that is given the pointer of it."""
    return torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def _read(x: Any, strides: Any, offset: int | None = None) -> Any:
    """What a kernel reads that addresses ``x`` by some strides; past the end of the storage the last element of it."""
    at = torch.tensor(x.storage_offset() if offset is None else offset, device=x.device)
    for n, s in zip(x.shape, strides):
        at = at[..., None] + torch.arange(n, device=x.device) * s
    memory = _memory(x)
    return memory[at.clamp(max=memory.numel() - 1)]


def _dense(shape: Any) -> list[int]:
    return [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]


def _row_sums(strides: Callable[[Any], Any]) -> Kernel:
    return lambda x: _read(x, strides(x)).sum(-1)


THEME.add(
    "row_sums",
    reference=lambda x: x.sum(-1),
    inputs=X,
    op_class="reduction",
    right=_row_sums(lambda x: x.stride()),
    wrong={
        "rows_without_gaps": (KIND, _row_sums(lambda x: (x.shape[1] * x.stride(1), x.stride(1)))),
        "inner_stride_of_one": (KIND, _row_sums(lambda x: (x.stride(0), 1))),
        "strides_swapped": (
            KIND,
            _row_sums(lambda x: (x.stride(0), 1) if x.stride(0) > x.stride(1) else x.stride()[::-1]),
        ),
    },
    **SETTINGS,
)

THEME.add(
    "add_pair",
    reference=lambda x, y: x + y,
    inputs={"x": ["rows", "columns"], "y": ["rows", "columns"]},
    op_class="elementary",
    right=lambda x, y: _read(x, x.stride()) + _read(y, y.stride()),
    wrong={
        "strides_of_the_first": (KIND, lambda x, y: _read(x, x.stride()) + _read(y, x.stride())),
        "second_is_dense": (KIND, lambda x, y: _read(x, x.stride()) + _read(y, _dense(y.shape))),
    },
    **SETTINGS,
)

THEME.add(
    "scale_rows",
    reference=lambda x, w: x * w[:, None],
    inputs={"x": ["rows", "columns"], "w": ["rows"]},
    op_class="elementary",
    right=lambda x, w: x * _read(w, w.stride())[:, None],
    wrong={"scale_is_dense": (KIND, lambda x, w: x * _read(w, (1,))[:, None])},
    **SETTINGS,
)


def _written_flat(like: Callable[[Any], Any]) -> Kernel:
    """Computes element by element and writes the results one after another to what is allocated."""

    def kernel(x: Any) -> Any:
        out = like(x)
        flat = torch.as_strided(out, (x.numel(),), (1,))
        flat.copy_((x + 1).reshape(-1))
        return out

    return kernel


THEME.add(
    "increment",
    reference=lambda x: x + 1,
    inputs=X,
    op_class="elementary",
    right=_written_flat(lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device)),
    wrong={"allocated_like_its_input": (KIND, _written_flat(lambda x: torch.empty_like(x)))},
    **SETTINGS,
)


def _vectors(offset: Callable[[Any], int]) -> Kernel:
    """Loads four elements at a time, from an address that it takes as aligned."""
    return lambda x: 2 * _read(x, x.stride(), offset(x))


THEME.add(
    "double_vectors",
    reference=lambda x: 2 * x,
    inputs={"x": ["columns"]},
    op_class="elementary",
    right=_vectors(lambda x: x.storage_offset()),
    wrong={
        "offset_rounded_down": (KIND, _vectors(lambda x: x.storage_offset() // 4 * 4)),
        "offset_forgotten": (KIND, _vectors(lambda x: 0)),
    },
    **SETTINGS,
)

THEME.add(
    "mean_of_all",
    reference=lambda x: np.asarray(x.mean()),
    inputs=X,
    op_class="reduction",
    right=lambda x: x.sum() / x.numel(),
    wrong={"counted_by_storage": (KIND, lambda x: x.sum() / _memory(x).numel())},
    **SETTINGS,
)

THEME.add(
    "batch_sums",
    reference=lambda x: x.sum((1, 2)),
    inputs={"x": [3, "rows", "columns"]},
    op_class="reduction",
    right=lambda x: _read(x, x.stride()).sum((1, 2)),
    wrong={"batch_of_whole_rows": (KIND, lambda x: _read(x, (x.shape[1] * x.stride(1), *x.stride()[1:])).sum((1, 2)))},
    **SETTINGS,
)


def _pooled(strides: Callable[[Any], Any]) -> Kernel:
    return lambda x: _read(x, strides(x)).mean((2, 3))


THEME.add(
    "image_means",
    reference=lambda x: x.mean((2, 3)),
    inputs={"x": [2, "rows", 4, 6]},
    op_class="reduction",
    right=_pooled(lambda x: x.stride()),
    wrong={
        "channels_first": (KIND, _pooled(lambda x: _dense(x.shape))),
        "pixels_side_by_side": (KIND, _pooled(lambda x: (x.stride(0), x.stride(1), 6, 1))),
    },
    dims={"rows": [5, 9]},
    dtypes=["float32", "float64", "float16"],
)


def _product(leading: Callable[[Any], int]) -> Kernel:
    """Given the leading dimension of b, as BLAS is; the rows of it are what is told."""
    return lambda a, b: a @ _read(b, (leading(b), b.stride(1)))


THEME.add(
    "gemm_ld",
    reference=lambda a, b: a @ b,
    inputs={"a": ["rows", "columns"], "b": ["columns", 7]},
    op_class="contraction",
    right=_product(lambda b: b.stride(0)),
    wrong={"leading_dimension_of_shape": (KIND, _product(lambda b: b.shape[1]))},
    **SETTINGS,
)

THEME.add(
    "table_rows",
    reference=lambda table, i: table[i],
    inputs={"table": ["rows", "columns"], "i": {"shape": [12], "dtype": "int64", "low": 0, "high": "rows"}},
    op_class="exact",
    right=lambda table, i: _read(table, table.stride())[i],
    wrong={
        "rows_of_width": (KIND, lambda table, i: _read(table, (table.shape[1], 1))[i]),
        "indices_are_dense": (KIND, lambda table, i: table[_read(i, (1,)) % table.shape[0]].clone()),
    },
    **SETTINGS,
)


def _into(flat: bool) -> Kernel:
    def kernel(x: Any, out: Any) -> Any:
        if flat:
            count = min(out.numel(), _memory(out).numel() - out.storage_offset())
            torch.as_strided(out, (count,), (1,), out.storage_offset()).copy_((x * x).reshape(-1)[:count])
        else:
            out.copy_(x * x)
        return out

    return kernel


def _past_rows(x: Any, out: Any) -> Any:
    """Writes rows in whole blocks of four, without a mask: what comes after a row is the next one's, which is written
    later, or nobody's."""
    if out.stride(1) == 1 and out.stride(0) >= out.shape[1]:
        width = min(-(-out.shape[1] // 4) * 4, out.stride(0))
        room = out[:-1].as_strided((out.shape[0] - 1, width), out.stride(), out.storage_offset())
        room.zero_()
    out.copy_(x * x)
    return out


THEME.add(
    "square_into",
    reference=lambda x, out: x * x,
    inputs={"x": ["rows", "columns"], "out": ["rows", "columns"]},
    op_class="elementary",
    mutates=["out"],
    aliases=True,
    right=_into(flat=False),
    wrong={"output_is_dense": (KIND, _into(flat=True)), "past_the_end_of_rows": ("off by one", _past_rows)},
    **SETTINGS,
)


def _from_memory(x: np.ndarray, strides: Any) -> np.ndarray:
    """What a kernel reads that is given the address of the first element, and some strides in bytes."""
    return np.lib.stride_tricks.as_strided(x, x.shape, strides).copy()


def _c_order(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(x.tobytes("A"), x.dtype).reshape(x.shape)


def _prefixes(read: Callable[[np.ndarray], np.ndarray]) -> Kernel:
    return lambda x: np.cumsum(read(x).astype(np.float64), -1).astype(x.dtype)


def _forwards(x: np.ndarray) -> np.ndarray:
    """By the size of its strides, from its lowest address."""
    lowest = x[tuple(slice(None, None, -1 if s < 0 else 1) for s in x.strides)]
    return _from_memory(lowest, [abs(s) for s in x.strides])


THEME.add(
    "running_sums",
    reference=lambda x: np.cumsum(x, -1),
    inputs=X,
    op_class="reduction",
    framework="numpy",
    right=_prefixes(lambda x: _from_memory(x, x.strides)),
    wrong={
        "no_sign_of_strides": (KIND, _prefixes(_forwards)),
        "bytes_in_memory_order": (KIND, _prefixes(_c_order)),
        "ravelled_as_it_lies": (KIND, _prefixes(lambda x: x.ravel("K").reshape(x.shape))),
    },
    **SETTINGS,
)
