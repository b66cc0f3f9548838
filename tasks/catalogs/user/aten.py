"""torch's own operators by name, as references: `tasks.catalogs.user.aten:sin`. torch is imported by whoever asks for one."""

from __future__ import annotations

from typing import Any


def find(name: str) -> Any:
    """An operator of aten; ``name`` may end in its overload: "add", "add__Tensor", "add.Tensor". Raises AttributeError."""
    import torch

    op, _, overload = name.replace("__", ".", 1).partition(".")
    return getattr(getattr(torch.ops.aten, op), overload or _first(getattr(torch.ops.aten, op)))


def _first(packet: Any) -> str:
    """The overload that is meant where none is named: that of tensors."""
    there = packet.overloads()
    return str(next((x for x in ("default", "Tensor", "self") if x in there), there[0]))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return find(name)
