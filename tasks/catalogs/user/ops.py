"""Your own kernels: `@op` marks a function as an op of the `user` catalog."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from tasks.nearest import nearest

#: What of a declaration is a function or the name of one; the last is "" where there is none.
FUNCTIONS = ("kernel", "reference", "backward")

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


class DeclarationError(Exception):
    """A use of `@op` that cannot be meant; the text names the op."""


@dataclass(frozen=True)
class UserOp:
    """One op of the `user` catalog, as a config or `@op` declares it.

    kernel: what is judged, called as ``kernel(**inputs, **kwargs)`` with tensors of ``framework``.
    reference: the right result, a function of float64 NumPy arrays (or tensors of ``reference_framework``) under the same
    names (integers and bools keep their dtype), or the path of a script that speaks JSON (see `tasks.catalogs.user`).
    dims: dimension name → candidate sizes; inputs: input name → list of sizes (numbers, dimensions, expressions of them:
    `tasks.catalogs.user.dims`), or a mapping with "shape" and optionally "dtype" (default: the dtype under test), "low" and
    "high" (uniform values, or integers below high; sizes) or "data" (the values, or the .npy file that holds them, repeated
    until the shape is full), whatever the distribution, and "strides" with "offset" (in elements; sizes), its one layout. kwargs: further arguments, {"dim": size} one that is a size.
    dtypes: under test. op_class, definition: see `tasks.judge.op_classes`. values: name of a distribution (`tasks.arrays.inputs`).
    outputs: output dtypes where they are not the dtype under test, or mappings with "dtype" and "shape" (what the
    reference must return; default: what it returns, floating results in the dtype under test).
    tolerances: dtype → {"rtol", "atol"}: what alone tells right outputs from wrong ones, |a - y| <= atol + rtol·|y|, be it wider or
    narrower than what the policy allows.
    invariants: names, or {name: argument} (see `tasks.catalogs.user.promises`), which hold for inputs without NaN and Inf.
    repeats: runs of every case, whose bytes must agree; mutates: inputs that the kernel may write to;
    aliases: whether an output may share memory with an input; gradient: names of the inputs to be differentiated;
    kept: whether the gradient is computed from the rounded output (tanh′ = 1 − y²), and may lose what that has lost.
    layouts: how its inputs may lie in memory (`tasks.arrays.layouts`): those must come out right; others are given once each, and must be
    right or refused. None: all are given in turn, and it may refuse any but the contiguous one.
    refuses: calls that the kernel must refuse, as its reference does: for each, what is otherwise of some inputs and kwargs.
    backward: the gradient of a kernel of NumPy arrays, called as ``backward(gradient, **inputs, **kwargs)``. gradient: that of
    the output, an array of its shape (a tuple of them if there are several outputs); returns the gradients of the inputs:
    arrays of their shapes and dtypes, one for each name of ``gradient`` in that order, or a dict by name; None for 0.
    Default: the kernel's attribute ``backward``, which `tasks.autograd` gives it.
    steps: of a kernel that is a session, the dimension whose size is the number of its steps: each step is given its row of the inputs that
    have it as their first size (`tasks.catalogs.user.sessions`). The kernel is a class then; its reference is a function of all inputs,
    whose outputs have a row for each step.
    compute: the dtype that it computes in where that is wider than its inputs, which are then no excuse. Default: told by what it
    dispatches, if it is a kernel of tensors that can be run without data.
    """

    name: str
    kernel: Callable[..., Any] | str
    reference: Callable[..., Any] | str
    inputs: Mapping[str, Any]
    dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Sequence[str] = ("float32",)
    framework: str = "torch"
    reference_framework: str = "numpy"
    op_class: str = "composite"
    definition: str = ""
    values: str = "regular"
    outputs: Sequence[Any] = ()
    tolerances: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    invariants: Sequence[Any] = ()
    repeats: int = 2
    mutates: Sequence[str] = ()
    aliases: bool = False
    gradient: Sequence[str] = ()
    kept: bool = False
    refuses: Sequence[Mapping[str, Any]] = ()
    backward: Callable[..., Any] | str = ""
    layouts: Sequence[str] | None = None
    compute: str = ""
    steps: str = ""

    @property
    def alone(self) -> bool:
        """Whether the kernel is its own reference: what autograd says of that is what is judged."""
        return bool(self.reference == self.kernel)

    @property
    def differenced(self) -> bool:
        """Whether gradients may be had by differences alone, element by element."""
        return self.alone or self.reference_framework == "numpy"


def op(
    *, reference: Callable[..., Any] | str, inputs: Mapping[str, Any], name: str = "", **settings: Any
) -> Callable[[_Kernel], _Kernel]:
    """Declare the decorated function as a kernel of the `user` catalog; see `UserOp` for the settings.

    The function is returned as it was, with a list of its declarations in ``__farm_ops__``; its module has one of all,
    ``__farm_declared__``. Raises DeclarationError for an unknown setting, and where the function takes the name of another
    with `@op`.
    """

    def declare(kernel: _Kernel) -> _Kernel:
        called = name or kernel.__name__
        valid = [f.name for f in fields(UserOp) if f.name != "kernel"]
        for key in settings:
            if key not in valid:
                raise DeclarationError(f"op {called}: unknown key {key!r}{nearest(key, valid)}")
        if line := _hidden(kernel):
            text = f"the function {kernel.__name__} at line {kernel.__code__.co_firstlineno} hides the one of that name at line {line}"
            raise DeclarationError(f"op {called}: {text}: rename one")
        made = UserOp(called, kernel, reference, inputs, **settings)
        kernel.__farm_ops__ = [*vars(kernel).get("__farm_ops__", ()), made]  # type: ignore[attr-defined]
        # A function that is made in a loop, or in another function, may have no name in its module.
        within = vars(sys.modules[kernel.__module__]) if isinstance(kernel, type) else {}
        getattr(kernel, "__globals__", within).setdefault("__farm_declared__", []).append(made)
        return kernel

    return declare


def _hidden(kernel: Callable[..., Any]) -> int:
    """Line of the declared function of the same module whose name ``kernel`` is about to take; 0 if there is none."""
    other = getattr(kernel, "__globals__", {}).get(kernel.__name__)
    if not inspect.isfunction(other) or not inspect.isfunction(kernel) or not hasattr(other, "__farm_ops__"):
        return 0
    old, new = other.__code__, kernel.__code__
    # The same line is a module that is imported anew, another file a cell of a notebook that is run again.
    if (
        old.co_filename != new.co_filename
        or other.__qualname__ != kernel.__qualname__
        or old.co_firstlineno == new.co_firstlineno
    ):
        return 0
    return old.co_firstlineno
