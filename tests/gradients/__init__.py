"""Gradients that are hard to judge: what the farm says of right kernels and of their twins, by references of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.client import judging, running
from tests.gradients.functions import FUNCTIONS, Function


@dataclass(frozen=True)
class Said:
    """What was said of one kernel. twin: whether it has the planted fault; plain: whether its inputs are not the hard
    ones."""

    name: str
    reference: str
    dtype: str
    twin: bool
    plain: bool
    row: dict[str, Any]

    @property
    def blamed(self) -> bool:
        return not self.twin and self.row["status"] not in ("pass", "imprecise")

    @property
    def missed(self) -> bool:
        """Whether the fault is not found on inputs on which it is to be seen."""
        return self.twin and self.plain and self.row["status"] != "wrong"


def judge(
    function: Function,
    kernel: Callable[..., Any],
    reference: str,
    dtype: str,
    check: str = "backward",
    plain: bool = False,
) -> dict[str, Any]:
    """The row of a kernel on a function's inputs, against its reference of "numpy" arrays or "torch" tensors."""
    values = function.plain if plain else function.inputs
    inputs = {name: np.asarray(x, np.float32).astype(dtype) for name, x in values.items()}
    call = getattr(function, reference)
    named: Callable[..., Any] = (lambda x, y: call(x, y)) if len(inputs) > 1 else (lambda x: call(x))
    given = judging.build_given_kernel(kernel, inputs, named, backward=True, reference_framework=reference)
    (row,) = running.run(given, running.KernelRunOptions("torch-cpu"), samples=1, checks=[check]).rows.to_dict(
        "records"
    )
    return dict(row)


def said(functions: Sequence[Function] = FUNCTIONS, dtype: str = "float32", check: str = "backward") -> Iterator[Said]:
    """Of every function and reference what is said of the kernel and of its twin, on the hard inputs and on plain
    ones."""
    for function in functions:
        for reference in ("numpy", "torch"):
            for twin, plain in ((False, False), (False, True), (True, False), (True, True)):
                kernel = function.twin if twin else function.kernel
                row = judge(function, kernel, reference, dtype, check, plain)
                yield Said(function.name, reference, dtype, twin, plain, row)
