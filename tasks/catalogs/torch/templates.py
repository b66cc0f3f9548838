"""What generated samples are varied from: an op's own samples as templates, the ranges that their values keep to."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.catalogs.torch.differentiable import PROCESS
from tasks.model import Group, is_complex_dtype, is_inexact_dtype

#: Most elements of all tensors of a sample.
ELEMENTS = 1 << 14
#: Own samples that are looked at for templates and ranges.
LOOKED_AT = 200
#: A range is believed from this many values on.
BELIEVED = 8
#: An argument with so many values at most, all of them whole, is given these alone.
FEW = 3

#: Ops besides torch's binary ones whose tensors broadcast against each other. Others are never asked to: some of them
#: read beyond a tensor that is too small.
BROADCASTING = ("where", "lerp", "addcmul", "addcdiv", "clamp", "masked_fill", "nn.functional.mse_loss")


Path = tuple[Any, ...]
Sizes = dict[int, int]
Shapes = dict[Path, tuple[int, ...]]
#: Begin of the step of a path into a list or tuple.
IN_LIST = "in list "


class SampleTemplates:
    """The own samples that can be varied, one of each structure, and the range of every argument's values."""

    def __init__(self, group: Group, own: list[Any], info: Any) -> None:
        import torch

        self.call = info.op
        self.broadcasts = type(info).__name__ == "BinaryUfuncInfo" or info.name in BROADCASTING

        dtype = getattr(torch, group.dtype)
        self.reason = "the op has no tensor of the dtype under test among its arguments"
        self.ranges: dict[Path, TemplateRange] = {}
        structures: dict[Any, Any] = {}
        scalars: dict[Any, Any] = {}
        step = max(1, len(own) // LOOKED_AT)
        for source in own[::step]:
            held = list_template_tensors(source)
            if any(x.layout != torch.strided for x in held.values()):
                self.reason = "all its own samples have sparse tensors"
                continue
            values = {p: x for p, x in held.items() if x.dtype == dtype}
            for path, x in values.items():
                self.ranges.setdefault(path, TemplateRange()).see(x)
            if "sorter" in source.kwargs:
                continue  # the order that it gives is that of the template's own values
            if not values or any(x.numel() > ELEMENTS for x in held.values()):
                continue
            kept = structures if any(x.numel() > 1 for x in values.values()) else scalars
            kept.setdefault(describe_template_structure(source), source)
        self.list = list(structures.values()) or list(scalars.values())

    def of(self, index: int, attempt: int) -> Any:
        """A template for sample ``index``: neighbouring indices take templates far from each other (golden ratio)."""
        place = int((index * 0.6180339887) % 1.0 * len(self.list))
        return self.list[(place + attempt) % len(self.list)]


class TemplateRange:
    """The range that an argument's values keep to in the op's own samples."""

    def __init__(self) -> None:
        self.low, self.high, self.count, self.zeros = np.inf, -np.inf, 0, False
        self.distinct: set[float] = set()

    def see(self, tensor: Any) -> None:
        values = torch_tree.tensor_to_numpy(tensor.detach().contiguous())
        if values.dtype.kind in "cb" or not values.size:
            return
        values = values.astype(np.float64).ravel()
        values = values[np.isfinite(values)]
        if values.size:
            self.low, self.high = min(self.low, values.min()), max(self.high, values.max())
            self.zeros |= bool((values == 0).any())
            self.count += values.size
            if len(self.distinct) <= FEW:
                self.distinct.update(np.unique(values)[: FEW + 1].tolist())

    @property
    def choices(self) -> list[float]:
        """The values of an argument that takes a few whole ones alone, such as the target ±1 of a loss."""
        few = len(self.distinct) <= FEW and self.count >= BELIEVED and all(v == int(v) for v in self.distinct)
        return sorted(self.distinct) if few else []

    def fold(self, values: np.ndarray, dtype: str) -> np.ndarray:
        """``values`` (of ``dtype``) in the range: [−1, 1], [0, 1], one sign, no zero; unchanged where there is none."""
        if self.count < BELIEVED or is_complex_dtype(dtype) or dtype == "bool":
            return values
        if not is_inexact_dtype(dtype):
            made = values
            if self.low >= 0 and not dtype.startswith("u"):
                made = made % np.array(min(self.high, np.iinfo(made.dtype).max - 1) + 1).astype(made.dtype)
            if not self.zeros and self.count >= 2 * BELIEVED:
                # A divisor: neither 0 nor −1, of which the smallest integer has no quotient.
                made = np.where((made == 0) | (made == np.array(-1).astype(made.dtype)), np.ones_like(made), made)
            return made
        wide = values.astype(np.float64)
        with np.errstate(all="ignore"):
            if -1 <= self.low and self.high <= 1:
                wide = np.where(np.isinf(wide), np.sign(wide), wide / (1 + np.abs(wide)))
                wide = np.abs(wide) if self.low >= 0 else wide
            elif self.low >= 0:
                wide = np.abs(wide) + self.low
            elif self.high <= 0:
                wide = -np.abs(wide)
            else:
                return values
            return wide.astype(values.dtype)


def list_template_tensors(source: Any) -> dict[Path, Any]:
    import torch

    found: dict[Path, Any] = {}

    def keep(path: Path, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            found[path] = x
        return x

    rebuild_template(source, keep)
    return found


def describe_template_structure(source: Any) -> Any:
    """What tells templates apart: ranks, dtypes, and the arguments that are no tensors."""
    import torch

    parts: list[Any] = []

    def keep(path: Path, x: Any) -> Any:
        parts.append((path, x.dim(), x.dtype, x.numel() > 1) if isinstance(x, torch.Tensor) else (path, repr(x)))
        return x

    rebuild_template(source, keep)
    return tuple(parts)


def rebuild_template(source: Any, change: Callable[[Path, Any], Any]) -> Any:
    """A source whose tensors and scalars are ``change(path, x)``."""

    def walk(value: Any, path: Path) -> Any:
        kind = type(value)
        if kind in (tuple, list):
            return kind([walk(x, (*path, f"{IN_LIST}{i}")) for i, x in enumerate(value)])
        if kind is dict:
            return {k: walk(x, (*path, k)) for k, x in value.items()}
        return change(path, value)

    return SimpleNamespace(
        input=walk(source.input, (0,)),
        args=tuple(walk(x, (i + 1,)) for i, x in enumerate(source.args)),
        kwargs={k: walk(x, (k,)) for k, x in source.kwargs.items()},
        **({PROCESS: getattr(source, PROCESS)} if hasattr(source, PROCESS) else {}),  # a gradient's maker asks for it
    )
