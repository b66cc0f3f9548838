"""torch's own operators by name, as references: `tasks.catalogs.user.aten:sin`. torch is imported by whoever asks for one."""

from __future__ import annotations

from typing import Any


def find_aten_operator(name: str) -> Any:
    """An operator of aten; ``name`` may end in its overload: "add", "add__Tensor", "add.Tensor". Raises
    AttributeError."""
    import torch

    op, _, overload = name.replace("__", ".", 1).partition(".")
    return getattr(getattr(torch.ops.aten, op), overload or _find_first_overload(getattr(torch.ops.aten, op)))


def _find_first_overload(packet: Any) -> str:
    """The overload that is meant where none is named: that of tensors alone, where there is one. "default" is of
    numbers, of add and its like."""
    there = packet.overloads()
    usual = [x for x in ("default", "Tensor", "self") if x in there]
    return str(
        next((x for x in (*usual, *there) if _takes_tensors_alone(getattr(packet, x)._schema)), (*usual, *there)[0])
    )


def _takes_tensors_alone(schema: Any) -> bool:
    """Whether an overload needs tensors and nothing else, and returns new ones."""
    needed = [str(x.type) for x in schema.arguments if not x.has_default_value()]
    return set(needed) == {"Tensor"} and not schema.is_mutable


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return find_aten_operator(name)
