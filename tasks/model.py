"""The vocabulary of the farm: statuses, groups, cases, forms and the errors a backend may raise."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Status(str, enum.Enum):
    """What happened to one case on one backend; a closed set, defined in the README."""

    PASS = "pass"
    IMPRECISE = "imprecise"
    WRONG = "wrong"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OOM = "oom"
    FALLBACK = "fallback"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"
    VACUOUS = "vacuous"
    UNAVAILABLE = "unavailable"
    SKIPPED = "skipped"
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


#: What can be checked of a case: its outputs; the gradient of its inputs; the gradient of that; that a program is built.
CHECKS = ("forward", "backward", "double_backward", "build")
#: Those of them whose samples a catalog prepares; every other check, of other packages too, takes those of "forward".
PREPARED = ("forward", "backward", "double_backward")
#: The check of compilers without a device: a pass says that a program was made, nothing of its numbers.
BUILD = "build"

#: Where a sample's values come from: the op's own list, or generated (see `tasks.inputs`).
DISTRIBUTIONS = ("own", "regular", "boundary", "adversarial", "nan")


class OpClass(str, enum.Enum):
    """How the result of an op can be right; `tasks.classes` says which op is of which class, and why."""

    EXACT = "exact"  # equal to the reference rounded to the output dtype
    ELEMENTARY = "elementary"  # ulps of the result, whatever the conditioning
    CONTRACTION = "contraction"  # this and the next four: error units
    REDUCTION = "reduction"
    NORMALISATION = "normalisation"
    LINEAR_ALGEBRA = "linear algebra"
    COMPOSITE = "composite"
    CHOICE = "choice"  # by its definition: see `tasks.definitions`
    RANDOM = "random"  # shape, dtype, range, moments
    UNINITIALISED = "uninitialised"  # shape and dtype
    DISCONTINUOUS = "discontinuous"  # equal, or within a jump that the noise floor shows

    def __str__(self) -> str:
        return self.value


#: Classes whose inputs are taken as exactly given: the noise floor is not consulted.
WITHOUT_NOISE = (OpClass.EXACT, OpClass.ELEMENTARY, OpClass.UNINITIALISED)

#: Statuses that say the numbers of a backend were looked at (the denominator of the pass rate).
JUDGED = (Status.PASS, Status.IMPRECISE, Status.WRONG, Status.ERROR, Status.CRASH, Status.TIMEOUT, Status.OOM)
#: Judged and not acceptable.
FAILED = (Status.WRONG, Status.ERROR, Status.CRASH, Status.TIMEOUT, Status.OOM)
#: Says nothing about a backend: the case itself computes or compares nothing.
NOT_VALID = (Status.INVALID, Status.VACUOUS, Status.SKIPPED)


class Unavailable(Exception):
    """The backend cannot run in this process; the text says why."""


class Unsupported(Exception):
    """The backend says that it does not implement this case."""


class Fallback(Exception):
    """The backend could run this case only somewhere else than asked (and did not)."""


class Vacuous(Exception):
    """There is nothing to compute or to compare in this case."""


class Misbehaviour(Exception):
    """The kernel broke a promise beside its numbers; ``kind`` is the row's: "mutation", "aliasing", "invariant", …

    outputs: what it returned all the same, flat, to be measured; None where there is nothing to measure.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.outputs: list[np.ndarray] | None = None


class Invalid(Exception):
    """The case itself is bad: it cannot be made, widened to float64, or its reference raises."""


@dataclass(frozen=True)
class Group:
    """All samples of one (check, op, variant, dtype, distribution) of a catalog: what is prepared in one go.

    ``samples`` is the number asked for; the catalog may have fewer. ``op`` carries its catalog
    ("torch:nn.functional.gelu"). ``check`` is one of CHECKS, ``distribution`` one of DISTRIBUTIONS.
    """

    op: str
    variant: str
    dtype: str
    samples: int
    seed: int = 0
    check: str = "forward"
    distribution: str = "own"

    @property
    def catalog(self) -> str:
        return self.op.partition(":")[0]

    @property
    def op_name(self) -> str:
        return self.op.partition(":")[2]

    @property
    def label(self) -> str:
        """Short name without the dtype: ``torch:std_mean.unbiased``."""
        return f"{self.op}.{self.variant}" if self.variant else self.op

    @property
    def computed(self) -> str:
        """The check whose samples these are: those of the forward check, unless they were prepared for another."""
        return self.check if self.check in PREPARED else "forward"

    @property
    def unit(self) -> str:
        """What a joint backend may build together: samples of one op and check."""
        return self.label if self.check == "forward" else f"{self.check}/{self.label}"

    def case_id(self, sample: int) -> str:
        """Stable name of one case: check/op[.variant]/dtype[/distribution]/sample[@seed]."""
        seed = f"@{self.seed}" if self.seed else ""
        source = "" if self.distribution == "own" else f"{self.distribution}/"
        return f"{self.check}/{self.label}/{self.dtype}/{source}{sample}{seed}"


@dataclass(frozen=True)
class Leaf:
    """One expected output of a case.

    dtype: name of the dtype the backend must return; shape: its shape; reference: the exact result
    (float64 for floating dtypes, complex128 for complex ones, the dtype itself for integers, bool and
    strings), None when only the metadata is defined; noise: the noise floor δ, float64, same shape,
    or None for zero everywhere; rtol/atol: the classic tolerance when the case brings its own.
    """

    dtype: str
    shape: tuple[int, ...]
    reference: np.ndarray | None
    noise: np.ndarray | None = None
    rtol: float | None = None
    atol: float | None = None


@dataclass
class Form:
    """One sample in a representation some backend can run; ``kind`` names the representation.

    kind "torch": ``call(*args, **kwargs)`` where tensors of the trees are ``TensorSpec`` nodes over ``arrays``.
    kind "onnx": ``model`` is a serialized ModelProto; ``arrays`` are its inputs in the graph's order.
    kind "jax", "tensorflow", "paddle": ``call`` is a `tasks.counterparts.Counterpart`, for torch's arguments and that framework's tensors.
    Complex tensors enter and leave an exported model as real ones with a last axis of two (`paired`).
    """

    kind: str
    op: str
    dtype: str
    arrays: list[Any]
    call: Callable[..., Any] | None = None
    args: Any = None
    kwargs: Any = None
    model: bytes | None = None
    #: Outputs that come as pairs of real numbers in a last axis of two: complex ones, in ONNX.
    paired: tuple[int, ...] = ()
    #: What is computed: the outputs ("forward") or gradients of the inputs in ``wrt``, by place among the tensors.
    check: str = "forward"
    wrt: tuple[int, ...] = ()
    #: Arrays of `arrays` that are gradients of the outputs, given for a check other than "forward".
    cotangents: tuple[int, ...] = ()


@dataclass
class Program:
    """A built case: ``run()`` returns the flat list of outputs as numpy arrays.

    placement: where it really runs, in the runtime's own words. fallback: why that is not where it was
    asked to run (None when it is).
    """

    run: Callable[[], Sequence[Any]]
    placement: str = ""
    fallback: str | None = None
    flags: str = ""


@dataclass(frozen=True)
class RuntimeInfo:
    """What a backend says of itself once it has been imported."""

    runtime_version: str
    device: str
    driver_version: str = ""
    compute_precision: str = ""  # "" = that of the dtype
    precision_of: tuple[str, ...] = ()  # what it holds for: classes of ops, or globs over labels ("*:cdist"); () = all
    details: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.compute_precision and self.compute_precision not in EPS:
            raise ValueError(f"compute precision {self.compute_precision!r} is none of {', '.join(EPS)}")

    def precision_for(self, op_class: OpClass, label: str) -> str:
        """The declared compute precision of an op (`Group.label`); "" where it is that of the dtype."""
        named = any(x == op_class.value or (":" in x and fnmatch.fnmatchcase(label, x)) for x in self.precision_of)
        return self.compute_precision if named or not self.precision_of else ""


_EXTENDED = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "int4",
    "uint4",
    "int2",
    "uint2",
)


def np_dtype(name: str) -> np.dtype:
    """numpy dtype of a dtype name of the farm ("bfloat16" included, through ml_dtypes).

    Raises TypeError for a name that is no dtype.
    """
    if name in _EXTENDED:
        import ml_dtypes

        try:
            return np.dtype(getattr(ml_dtypes, name))
        except AttributeError:
            raise TypeError(f"this ml_dtypes has no dtype {name!r}") from None
    if name == "str":
        return np.dtype(object)
    return np.dtype("complex64" if name == "complex32" else name)  # numpy has no complex32: it travels widened


#: Spacing of a dtype at 1 (the ε of error units), smallest normal, largest finite value, bits of the significand.
EPS: dict[str, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "complex128": 2.0**-52,
    "complex64": 2.0**-23,
    "complex32": 2.0**-10,
    "tfloat32": 2.0**-10,  # a compute precision only: no array has it
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "float8_e8m0fnu": 1.0,
    "float4_e2m1fn": 2.0**-1,
}
SMALLEST_NORMAL: dict[str, float] = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "complex128": 2.0**-1022,
    "complex64": 2.0**-126,
    "complex32": 2.0**-14,
    "float8_e4m3fn": 2.0**-6,
    "float8_e4m3fnuz": 2.0**-7,
    "float8_e5m2": 2.0**-14,
    "float8_e5m2fnuz": 2.0**-15,
    "float8_e8m0fnu": 2.0**-127,
    "float4_e2m1fn": 1.0,
}
LARGEST: dict[str, float] = {
    "float64": float(np.finfo(np.float64).max),
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "complex128": float(np.finfo(np.float64).max),
    "complex64": float(np.finfo(np.float32).max),
    "complex32": 65504.0,
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
    "float8_e8m0fnu": 2.0**127,
    "float4_e2m1fn": 6.0,
}


#: Every dtype by name. Exact by nature, then with a rounding error (tfloat32 is a compute precision only).
DTYPES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "int2",
    "int4",
    "uint2",
    "uint4",
    "str",
    *(name for name in EPS if name != "tfloat32"),
)


def is_complex(dtype: str) -> bool:
    return dtype.startswith("complex")


def is_inexact(dtype: str) -> bool:
    """True for floating and complex dtypes: those with a rounding error."""
    return dtype in EPS


def wide(dtype: str) -> str:
    """Dtype in which the reference of ``dtype`` is computed: float64, complex128, or the dtype itself."""
    return "complex128" if is_complex(dtype) else "float64" if is_inexact(dtype) else dtype
