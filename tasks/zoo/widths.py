"""What a kernel assumes of the width of whole numbers: each is right in the width that is declared, and its twin in both, or refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.zoo.specimen import INF, Theme, torch

THEME = Theme("widths of integers", __name__)
KIND = "width assumed"
#: Several dtypes: each begins with other layouts.
SETTINGS: dict[str, Any] = {"dims": {"rows": [6, 9], "columns": [5, 8]}, "dtypes": ["float32", "float64", "float16"]}
X = ["rows", "columns"]


def _ids(dtype: str, shape: Any = ("rows",), high: Any = "rows") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype, "low": 0, "high": high}


def _words(x: Any, width: int) -> Any:
    """What a kernel reads that is given the pointer of ``x`` and takes it for numbers of so many bits: past the end,
    zeros."""
    wanted = {32: torch.int32, 64: torch.int64}[width]
    flat = x.contiguous().flatten()
    if x.dtype == wanted:
        return x.long()
    flat = torch.nn.functional.pad(flat, (0, flat.numel())) if width == 64 else flat
    return flat.view(wanted)[: x.numel()].reshape(x.shape).long()


def _within(ids: Any, count: int) -> Any:
    """Rows that there are: what is read beyond a table is another row of it here, and no crash."""
    return ids.remainder(count)


THEME.add(
    "gather_rows",
    reference=lambda x, ids: x[ids],
    inputs={"x": X, "ids": _ids("int64")},
    op_class="exact",
    right=lambda x, ids: x[ids.long()],
    wrong={"ids_of_64_bits": (KIND, lambda x, ids: x[_within(_words(ids, 64), len(x))])},
    **SETTINGS,
)

THEME.add(
    "gather_rows_of_32_bits",
    reference=lambda x, ids: x[ids],
    inputs={"x": X, "ids": _ids("int32")},
    op_class="exact",
    right=lambda x, ids: x[ids.long()],
    wrong={"ids_of_32_bits": (KIND, lambda x, ids: x[_within(_words(ids, 32), len(x))])},
    **SETTINGS,
)


def _refusing(x: Any, zero: Any) -> Any:
    if zero.dtype != torch.int64:
        raise TypeError(f"zero must be int64, not {zero.dtype}")
    return x - zero.to(x.dtype)[:, None]


THEME.add(  # the sound one refuses
    "minus_zero_point",
    reference=lambda x, zero: x - zero[:, None],
    inputs={"x": X, "zero": {"shape": ["rows"], "dtype": "int64", "low": -20, "high": 20}},
    right=_refusing,
    wrong={"zero_of_64_bits": (KIND, lambda x, zero: x - _words(zero, 64).to(x.dtype)[:, None])},
    **SETTINGS,
)


def _scattered(x: Any, slots: Any) -> Any:
    return torch.zeros_like(x).index_add(0, slots, x)


def _scattered_reference(x: np.ndarray, slots: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    np.add.at(out, slots, x)
    return out


THEME.add(
    "add_to_slots",
    reference=_scattered_reference,
    inputs={"x": X, "slots": _ids("int32")},
    op_class="reduction",
    right=lambda x, slots: _scattered(x, slots.long()),
    wrong={"slots_of_32_bits": (KIND, lambda x, slots: _scattered(x, _within(_words(slots, 32), len(x))))},
    **SETTINGS,
)


def _up_to(x: Any, lengths: Any) -> Any:
    return torch.where(torch.arange(x.shape[1]) < lengths[:, None], x, 0).sum(1)


THEME.add(
    "sum_of_lengths",
    reference=lambda x, lengths: np.where(np.arange(x.shape[1]) < lengths[:, None], x, 0).sum(1),
    inputs={"x": X, "lengths": _ids("int64", high="columns+1")},
    op_class="reduction",
    right=lambda x, lengths: _up_to(x, lengths),
    wrong={"lengths_of_64_bits": (KIND, lambda x, lengths: _up_to(x, _words(lengths, 64)))},
    **SETTINGS,
)


def _picked(x: Any, target: Any) -> Any:
    return torch.logsumexp(x, 1) - torch.gather(x, 1, target[:, None])[:, 0]


def _picked_reference(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    top = x.max(1)
    return top + np.log(np.exp(x - top[:, None]).sum(1)) - np.take_along_axis(x, target[:, None], 1)[:, 0]


THEME.add(
    "loss_of_targets",
    reference=_picked_reference,
    inputs={"x": {"shape": X, "low": -4, "high": 4}, "target": _ids("int64", high="columns")},
    gradient=["x"],
    right=lambda x, target: _picked(x, target.long()),
    wrong={"target_of_64_bits": (KIND, lambda x, target: _picked(x, _within(_words(target, 64), x.shape[1])))},
    **SETTINGS | {"dtypes": ["float32", "float64"]},
)


def _turned(x: Any, at: Any) -> Any:
    angles = at.to(x.dtype)[:, None] * 0.125
    return x * torch.cos(angles)


THEME.add(
    "turned_by_position",
    reference=lambda x, at: x * np.cos(at[:, None] * 0.125),
    inputs={"x": X, "at": _ids("int32", high=20)},
    right=_turned,
    wrong={"positions_of_32_bits": (KIND, lambda x, at: _turned(x, _words(at, 32)))},
    **SETTINGS,
)


def _masked(x: Any, segments: Any) -> Any:
    same = segments[:, None] == segments[None, :]
    return torch.softmax(torch.where(same, x @ x.T, -INF), 1)


def _masked_reference(x: np.ndarray, segments: np.ndarray) -> np.ndarray:
    s = np.where(segments[:, None] == segments[None, :], x @ x.T, -np.inf)
    e = np.exp(s - s.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


THEME.add(
    "attention_within_segments",
    reference=_masked_reference,
    inputs={"x": {"shape": X, "low": -1, "high": 1}, "segments": _ids("int64", high=3)},
    right=_masked,
    wrong={"segments_of_64_bits": (KIND, lambda x, segments: _masked(x, _words(segments, 64)))},
    **SETTINGS,
)
