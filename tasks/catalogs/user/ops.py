"""Your own kernels: `@op` marks a function as an op of the `user` catalog."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from tasks.arrays.layouts import NAMES
from tasks.catalogs.user.declaration_keys import (
    COUNT,
    FLAG,
    FUNCTION,
    LIST,
    MAPPING,
    NAME,
    REFERENCE,
    SIZE,
    TEXT,
    KeyNames,
    declare_key,
)
from tasks.catalogs.user.tensors import DTYPE
from tasks.model import DISTRIBUTIONS, DTYPES, EXHAUSTIVE, FUZZ, STRUCTURED, OpClass, is_inexact_dtype
from tasks.nearest import suggest_nearest_names

#: What of a declaration is a function or the name of one; the last two are "" where there is none.
FUNCTIONS = ("kernel", "reference", "backward", "baseline")
#: In ``bytes`` and ``flops``: the bytes of an element of the dtype under test.
ITEMSIZE = "itemsize"
EAGER, COMPILED, NUMPY = "eager", "compiled", "numpy"
#: What ``baseline`` may say in place of a function, and what it is.
BASELINES = {
    EAGER: "the reference in eager torch; one in NumPy runs by torch's own NumPy",
    COMPILED: "the same by `torch.compile`",
    NUMPY: "a reference in NumPy as it is, on a CPU",
}

#: What ``sizes`` says: right for the candidates of ``dims`` alone, for what lies between them, for all.
DECLARED, BETWEEN, ANY = SIZES = ("declared", "between", "any")

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


class DeclarationError(Exception):
    """A use of `@op` that cannot be meant; the text names the op."""


def list_kernel_definition_names(op: Any) -> Iterable[str]:
    from tasks.judge.definitions import DEFINITIONS

    return DEFINITIONS


def list_kernel_frameworks(op: Any) -> Iterable[str]:
    return ("torch", "numpy")


def list_kernel_input_names(op: UserOp) -> Iterable[str]:
    return op.inputs


@dataclass(frozen=True)
class UserOp:
    """One op of the `user` catalog. A config and `@op` have these keys, what the client is given become these fields,
    and the table of docs/kernels.md is made of them. What a value says beyond its kind and its names,
    `tasks.catalogs.user.declaration_schema` checks.

    kernel: called as ``kernel(**inputs, **kwargs)`` with tensors of ``framework``; reference: with float64 arrays (or
    tensors of ``reference_framework``) under the same names, integers and bools in their own dtype. backward: called as
    ``backward(gradient, **inputs, **kwargs)``, where ``gradient`` is that of the output, an array of its shape (a tuple
    of them if there are several outputs); returns the gradients of the inputs, arrays of their shapes and dtypes, one
    for each name of ``gradient`` in that order, or a dict by name; None for 0.
    """

    name: str = field(metadata=declare_key(TEXT, "the op is called `user:NAME`"))
    kernel: Callable[..., Any] | str = field(
        metadata=declare_key(
            FUNCTION,
            "what is judged: `module:function` or `file.py:function`, or a `torch.autograd.Function`. Files and modules are looked up beside "
            "the config (or in the catalog's `root`). Of a task, the name of the function in every [submission](leaderboards.md)",
        )
    )
    reference: Callable[..., Any] | str = field(
        metadata=declare_key(
            REFERENCE,
            "what is right, see [References](#references): a function in the same words, or the path of a script",
        )
    )
    inputs: Mapping[str, Any] = field(
        metadata=declare_key(
            MAPPING,
            "name → list of sizes (`[]`: 0-d), or a mapping with [more](#more-of-an-input). A size is a number, a dimension, or `+ - * //` "
            "of them: `[batch, 3*width]`",
        )
    )
    dims: Mapping[str, Sequence[int]] = field(
        default_factory=dict,
        metadata=declare_key(
            MAPPING,
            "dimension → candidate sizes. First all smallest, then all largest, then every candidate early on; no combination repeats until "
            "all have been used",
        ),
    )
    sizes: str = field(
        default=BETWEEN,
        metadata=declare_key(
            NAME,
            "for which sizes the kernel is to be right: `declared` (the candidates of `dims` alone), `between` (all between the smallest and the "
            "largest candidate, as `fuzz` draws them), `any`; see [Sizes](#sizes)",
            names=KeyNames("unknown sizes", lambda op: SIZES),
        ),
    )
    kwargs: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=declare_key(
            MAPPING, "further arguments of kernel and reference; `{k: {dim: width//2}}` is a size", shown="none"
        ),
    )
    dtypes: Sequence[str] = field(
        default=("float32",),
        metadata=declare_key(LIST, "dtypes under test, used by a run that names no `dtypes`", names=DTYPE),
    )
    framework: str = field(
        default="torch",
        metadata=declare_key(
            NAME,
            "what the kernel takes: `torch` or `numpy`",
            names=KeyNames("unknown framework", list_kernel_frameworks),
        ),
    )
    reference_framework: str = field(
        default="numpy",
        metadata=declare_key(
            NAME,
            "what the reference takes: `torch` or `numpy`",
            names=KeyNames("unknown framework", list_kernel_frameworks),
        ),
    )
    op_class: str = field(
        default="composite",
        metadata=declare_key(
            NAME,
            "how it is judged, see [How a verdict is made](verdict.md). Declare an element-by-element function as `elementary`: it must then be "
            "right on its inputs, however steep it is",
            names=KeyNames("unknown class", lambda op: (one.value for one in OpClass)),
            yaml="class",
        ),
    )
    definition: str = field(
        default="",
        metadata=declare_key(
            NAME,
            "of `class: choice`, which result is right",
            names=KeyNames("unknown definition", list_kernel_definition_names),
        ),
    )
    values: str = field(
        default="regular",
        metadata=declare_key(
            NAME,
            "distribution of the values of the `own` samples: `regular`, `boundary`, `adversarial`, `nan`",
            names=KeyNames(
                "unknown distribution",
                lambda op: (d for d in DISTRIBUTIONS if d not in ("own", STRUCTURED, FUZZ, EXHAUSTIVE)),
            ),
        ),
    )
    outputs: Sequence[Any] = field(
        default=(),
        metadata=declare_key(
            LIST,
            "dtypes of the outputs, or `{dtype, shape}`, which the reference must match",
            shown="floating outputs: the dtype under test; others: the reference's",
        ),
    )
    tolerances: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict,
        metadata=declare_key(
            MAPPING,
            "dtype → `{rtol, atol}`: what decides instead of the policy's limit, wider or narrower, see [below](#tolerances-of-your-own)",
            shown="none: the noise floor of the reference decides",
        ),
    )
    invariants: Sequence[Any] = field(
        default=(),
        metadata=declare_key(
            LIST,
            "`non_negative`, `no_nan`, `no_inf`, `shape_preserved` (or `{shape_preserved: input}`), `sums_to_one` and `sorted` (or with an "
            "axis), `{bounded: [low, high]}`; checked for inputs without NaN and Inf",
        ),
    )
    repeats: int = field(default=2, metadata=declare_key(COUNT, "how often every case is run; the bytes must agree"))
    mutates: Sequence[str] = field(
        default=(),
        metadata=declare_key(
            LIST,
            "inputs that the kernel, or its backward pass, may write to",
            names=KeyNames("no input", list_kernel_input_names),
        ),
    )
    forbids: Sequence[str] = field(
        default=(),
        metadata=declare_key(
            LIST,
            "operations of torch that the kernel is to replace and may not call, as the dispatcher names them (`softmax`, `mm`); the check `audit` "
            "asks for it",
        ),
    )
    aliases: bool = field(default=False, metadata=declare_key(FLAG, "whether an output may share memory with an input"))
    gradient: Sequence[str] = field(
        default=(),
        metadata=declare_key(
            LIST,
            "inputs to differentiate under `checks: [backward, double_backward]`; see [the two oracles](gradients.md). With a NumPy "
            "reference or a script at most 1000 elements",
            names=KeyNames("no input", list_kernel_input_names),
        ),
    )
    kept: bool = field(
        default=False,
        metadata=declare_key(
            FLAG,
            "the gradient is computed from the rounded output (tanh′ = 1 − y²) and may lose what that has lost: see "
            "[Gradients](gradients.md)",
        ),
    )
    refuses: Sequence[Mapping[str, Any]] = field(
        default=(),
        metadata=declare_key(
            LIST,
            "calls that the kernel must refuse under `checks: [refuses]`: see [What it must refuse](#what-it-must-refuse)",
        ),
    )
    backward: Callable[..., Any] | str = field(
        default="",
        metadata=declare_key(
            FUNCTION,
            "the gradient of a kernel of NumPy arrays, a function: see [Your own autograd](kernel_tests.md#your-own-autograd)",
            shown="the kernel's attribute `backward`",
        ),
    )
    baseline: Callable[..., Any] | str = field(
        default="",
        metadata=declare_key(
            FUNCTION,
            "what it is timed against under `checks: [speedup]`: `eager`, `compiled`, `numpy`, or a function of your own or a library's "
            "(`torch.nn.functional:softmax`): see [Speed](kernel_speed.md)",
            shown="`eager` for a reference in torch, `numpy` for one in NumPy on a CPU",
        ),
    )
    moved: int | str = field(
        default="",
        metadata=declare_key(
            SIZE,
            "bytes that a call has to move to and from memory, of the dimensions and `itemsize`: `2*rows*width*itemsize`, for its share of the "
            "[roofline](kernel_speed.md)",
            shown="all inputs and outputs, once each",
            yaml="bytes",
        ),
    )
    flops: int | str = field(
        default="",
        metadata=declare_key(
            SIZE,
            "operations that a call has to do: `2*M*N*K`",
            shown="those of the products in the reference, as torch counts them; they are shown, and nobody is blamed by them",
        ),
    )
    layouts: Sequence[str] | None = field(
        default=None,
        metadata=declare_key(
            LIST,
            "how its inputs may lie in memory: see [How inputs lie in memory](kernel_inputs.md#how-inputs-lie-in-memory)",
            shown="not said: all are tried, and it may refuse any but the contiguous one",
            names=KeyNames("unknown layout", lambda op: NAMES),
        ),
    )
    compute: str = field(
        default="",
        metadata=declare_key(
            NAME,
            "the dtype that the kernel computes in where it is wider than its inputs: see [What it computes in](#what-it-computes-in)",
            shown="told by what it dispatches, if it is a kernel of tensors",
            names=KeyNames("unknown floating dtype", lambda op: filter(is_inexact_dtype, DTYPES)),
        ),
    )
    steps: str = field(
        default="",
        metadata=declare_key(
            TEXT,
            "the kernel is a session, and this the dimension whose size is the number of its steps: see [Sessions](sessions.md)",
            shown="none: it is a function",
        ),
    )

    positions: Sequence[str] = field(
        default=(),
        metadata=declare_key(
            LIST,
            "inputs and kwargs that kernel and reference take by position, in that order",
            shown="none: they are given all by name",
            names=KeyNames("no input and no argument", lambda op: [*op.inputs, *op.kwargs]),
        ),
    )
    packed: bool = field(default=False, metadata=declare_key(FLAG, "whether those of `positions` come as one tuple"))
    init: Sequence[Any] = field(
        default=(),
        metadata=declare_key(
            LIST, "what a kernel and a reference that are classes of torch modules are made of, from seed 0"
        ),
    )

    def with_functions(self, change: Callable[[str, Any], Any]) -> UserOp:
        """The op with others for FUNCTIONS: what ``change`` makes of the name and the value of each."""
        functions: dict[str, Any] = {what: change(what, getattr(self, what)) for what in FUNCTIONS}
        return replace(self, **functions)

    @property
    def is_task(self) -> bool:
        """Whether it has no kernel of its own: submissions bring one each."""
        return isinstance(self.kernel, str) and ":" not in self.kernel

    @property
    def function_name(self) -> str:
        """What its function is called in a submission's file."""
        given = self.kernel if isinstance(self.kernel, str) else getattr(self.kernel, "__name__", "")
        return given.rpartition(":")[2] or self.name

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
    ``__farm_declared__``. Raises DeclarationError for an unknown setting, and where the function takes the name of
    another with `@op`.
    """

    def declare(kernel: _Kernel) -> _Kernel:
        called = name or kernel.__name__
        valid = [one.name for one in fields(UserOp) if one.name != "kernel"]
        for given in settings:
            if given not in valid:
                raise DeclarationError(f"op {called}: unknown key {given!r}{suggest_nearest_names(given, valid)}")
        if line := _find_shadowed_line(kernel):
            text = f"the function {kernel.__name__} at line {kernel.__code__.co_firstlineno} hides the one of that name at line {line}"
            raise DeclarationError(f"op {called}: {text}: rename one")
        made = UserOp(called, kernel, reference, inputs, **settings)
        kernel.__farm_ops__ = [*vars(kernel).get("__farm_ops__", ()), made]  # type: ignore[attr-defined]
        # A function that is made in a loop, or in another function, may have no name in its module.
        within = vars(sys.modules[kernel.__module__]) if isinstance(kernel, type) else {}
        getattr(kernel, "__globals__", within).setdefault("__farm_declared__", []).append(made)
        return kernel

    return declare


def _find_shadowed_line(kernel: Callable[..., Any]) -> int:
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
