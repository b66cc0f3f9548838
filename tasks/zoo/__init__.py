"""The zoo: kernels with one planted fault each, every one beside its correct twin; what `farm policy selftest` is run on.

A fault is planted as it is met in real kernels, and wrong only where such a kernel would be; the inputs are chosen so
that it shows by more than the rounding of the inputs could. What stays below that is no fault to the farm: a layer norm
whose mean is rounded to float16, or 32 bfloat16 accumulators over 4096 elements, are at most 2.3 error units off.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.catalogs.user.ops import UserOp
from tasks.zoo.specimen import CHEAT, FAULTS, MARK, PRECISION, Specimen, Theme

#: One theme each.
MODULES = (
    "masking",
    "reductions",
    "normalisation",
    "moments",
    "attention",
    "activations",
    "convolution",
    "indexing",
    "integers",
    "memory",
    "layouts",
    "widths",
    "partial",
    "gradients",
    "steep",
    "structured",
    "narrowing",
    "casting",
    "tails",
    "sessions",
    "cheats",
)
#: Those of Triton kernels, which need Triton to be installed: configs/zoo_triton.yaml.
TRITON = ("races", "cheats_triton")


@dataclass(frozen=True)
class Fault:
    """A planted fault: its kernel, the class of the fault (of FAULTS), its theme, the name of its right twin, and those
    of the further right kernels of its op."""

    op: UserOp
    kind: str
    theme: str
    twin: str
    honest: tuple[str, ...] = ()


def themes(modules: Sequence[str] = MODULES) -> list[Theme]:
    """Every theme of the zoo, with its specimens."""
    return [importlib.import_module(f"{__name__}.{name}").THEME for name in modules]


def specimens(modules: Sequence[str] = MODULES) -> list[Specimen]:
    """Every op of the zoo."""
    return [specimen for theme in themes(modules) for specimen in theme.specimens]


def faults(modules: Sequence[str] = MODULES) -> dict[str, Fault]:
    """Every planted fault by the name of its op."""
    return {
        name: Fault(op, one.faults[name], one.theme, one.right.name, tuple(one.honest))
        for one in specimens(modules)
        for name, op in one.wrong.items()
    }


def twins() -> dict[str, UserOp]:
    """Every right kernel by its name."""
    return {op.name: op for one in specimens() for op in (one.right, *one.honest.values())}


__all__ = [
    "CHEAT",
    "FAULTS",
    "MARK",
    "MODULES",
    "PRECISION",
    "TRITON",
    "Fault",
    "Specimen",
    "faults",
    "specimens",
    "themes",
    "twins",
]
