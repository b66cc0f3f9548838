"""The check switch: what a backend declares to compute in less than the dtype must show it, and stay within what it declares."""

from __future__ import annotations

from tasks.checks.base import Check
from tasks.model import OpClass


class Switch(Check):
    """Of a backend that declares a coarser precision, on products that show it. A switch that does nothing is `wrong`, of the kind
    "no effect": who turns it off has gained nothing, and who turns it on has measured something else."""

    name = "switch"
    about = (
        "for a backend that declares a coarser precision (TF32, bfloat16): its products exceed the dtype's own limit, but not the "
        "declared precision's"
    )
    without = tuple(x for x in OpClass if x is not OpClass.CONTRACTION)
    effect = True
