"""The check switch: what a backend declares to compute in less than the dtype must show it, and stay within what it declares."""

from __future__ import annotations

from tasks.checks.base import Check
from tasks.model import OpClass


class Switch(Check):
    """Of a backend that declares a coarser precision, on products that show it. A command that is not obeyed (the
    precision of an engine) is `wrong`, of the kind "no effect": who gives it measures something else. A permission may
    stay unused, as a library that may take TF32 chooses a kernel of float32: a `pass` with the column
    `unused_permission`."""

    name = "switch"
    about = (
        "for a backend that declares a coarser precision (TF32, bfloat16): its products exceed the dtype's own limit, but not the "
        "declared precision's; a permission that is not used is noted (`unused_permission`)"
    )
    without = tuple(x for x in OpClass if x is not OpClass.CONTRACTION)
    effect = True
