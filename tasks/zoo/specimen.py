"""A specimen: one op of the zoo with its right kernel and, beside it, the same kernel with one planted fault each."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tasks.catalogs.user.ops import UserOp
from tasks.model.kind import KIND_STREAM, OF_AUDIT

#: Stands between the op and the fault in the name of a faulty kernel: ``user:softmax--zero_padding``.
MARK = "--"
#: Stands between the op and what a further right kernel does: ``user:softmax-workspace``.
ALSO = "-"

#: Every class of fault, and what goes wrong in a kernel that has it.
FAULTS = {
    "acc= for acc+=": "the accumulator of a loop over blocks is overwritten",
    "aliasing": "the output shares memory with an input",
    "argument ignored": "an attribute of the op has no effect",
    "biased variance": "n for n − 1, or the other way round",
    "border": "padding on the wrong side, counted or not, ceil_mode",
    "broadcast": "a vector is spread over the wrong axis",
    "cancellation": "a formula that subtracts what is nearly equal",
    "cast left out": "a cast to a narrower dtype, or a quantisation, that is part of the function is missing",
    "coarse precision": "products or intermediates in a coarser dtype than the inputs",
    "cruder formula": "an approximation in the place of the function: tanh for erf",
    "double rounding": "rounded to an intermediate dtype first",
    "dropped last block": "the last, partial block is not computed",
    "epsilon": "a wrong epsilon, or one in the wrong place",
    "gradient not summed": "the gradient of a broadcast or repeated input is not summed over its copies",
    "gradient term": "a term or factor of the gradient is missing",
    "grouping": "a wrong number of groups, or heads mapped to the wrong group",
    "index on ties": "the last of equal elements instead of the first",
    "index overflow": "an index computed in too narrow an integer",
    "Inf clamped": "infinity becomes the largest finite value",
    "integer overflow": "an accumulator or intermediate too narrow; saturates where it wraps, or the reverse",
    "low-precision accumulation": "a float16 or bfloat16 accumulator",
    "mask": "a causal or window mask off by one, or one that lets NaN through",
    "missing rescale": "old partial results are not rescaled when the maximum or the mean moves",
    "missing scale": "a factor is left out, or inverted",
    "mutation": "an input is changed in place",
    "NaN swallowed": "NaN in, number out",
    "off by one": "bounds, offsets or positions off by one",
    "order": "right elements in the wrong order",
    "overflow": "an intermediate overflows where the result does not",
    "padding value": "the masked tail is filled with a value that takes part",
    "pairing": "elements that belong together are looked for in the wrong place",
    "quantisation scale": "a scale taken over the wrong elements: of a tensor, not of a row",
    "race": "lost updates, stale workspaces, orders that change from run to run",
    "raises": "an assumption about sizes that the inputs do not meet",
    "reduction identity": "a reduction begins with 0 where it must begin with its identity",
    "rounded result kept": "a derivative computed from the rounded result (1 − y² of a tanh), which has lost what the input still tells",
    "rounding": "another rounding than to nearest even",
    "second derivative": "the gradient is right, and its own gradient is not",
    "sign": "a sign, or the sign of zero, is wrong",
    "small beside large": "small results are lost because they stand beside large ones",
    "stale state": "what is kept from step to step is lost, stale, or of another step",
    "steep point": "an argument where the function is steep or its reduction hard",
    "stride ignored": "storage is read as if it were contiguous",
    "structure of inputs": "right only for indices, lengths, masks or values without a pattern",
    "subnormals flushed": "subnormal numbers become zero",
    "uninitialised": "a part of the output is never written",
    "width assumed": "whole numbers are read as if they were as wide as declared, which they are not",
    "wrong axis": "reduces, normalises or indexes along another axis",
    "wrong dtype": "the output has another dtype",
    "wrong shape": "the output has another shape (keepdim)",
    "wrong structure": "a Python number, a list or None instead of a tensor",
}

#: Begins the class of a kernel that does not compute what it returns; the rest is the kind that the check `audit` gives
#: it.
CHEAT = "cheat: "
#: Of a kernel on another stream there is none here: it takes a device that has streams.
FAULTS |= {CHEAT + kind: words for kind, words in OF_AUDIT.items() if kind != KIND_STREAM}

#: Classes whose faults lose digits and no more: there, `imprecise` is a finding.
PRECISION = (
    "cancellation",
    "coarse precision",
    "low-precision accumulation",
    "rounded result kept",
    "small beside large",
)

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Specimen:
    """One op: its theme, its right kernel as a user op, further right ones, and the faulty ones with the class of
    each."""

    theme: str
    right: UserOp
    wrong: Mapping[str, UserOp] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    honest: Mapping[str, UserOp] = field(default_factory=dict)

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that judge it: those with a gradient are there for their gradient."""
        if any(kind.startswith(CHEAT) for kind in self.faults.values()):
            return ("audit",)
        return ("backward",) if self.right.gradient else ("steps",) if self.right.steps else ("forward",)


class Theme:
    """Specimens of one module, in the order in which they are declared: to the `user` catalog, like a function with
    @op."""

    def __init__(self, name: str, module: str) -> None:
        self.name, self.__module__ = name, module
        self.specimens: list[Specimen] = []
        self.__farm_ops__: list[UserOp] = []

    def add(
        self,
        name: str,
        *,
        right: Kernel,
        wrong: Mapping[str, tuple[str, Kernel] | tuple[str, Kernel, Sequence[str]]],
        reference: Kernel,
        inputs: Mapping[str, Any],
        honest: Mapping[str, Kernel] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        """Declare an op: ``wrong`` maps the name of a fault to its class (of FAULTS), its kernel, and the dtypes in
        which it is a fault, if not all of the op's; ``honest`` the name of what a further right kernel does to that.

        ``settings`` are `UserOp`'s, the same for all; raises ValueError for an unknown class.
        """
        if unknown := {kind for kind, *_ in wrong.values()} - set(FAULTS):
            raise ValueError(f"zoo: {name}: unknown class of fault {sorted(unknown)[0]!r}")

        def op(name: str, kernel: Kernel, dtypes: Sequence[str] = ()) -> UserOp:
            return UserOp(name, kernel, reference, inputs, **settings | ({"dtypes": dtypes} if dtypes else {}))

        planted = {f"{name}{MARK}{fault}": op(f"{name}{MARK}{fault}", *how) for fault, (_, *how) in wrong.items()}
        faults = {f"{name}{MARK}{fault}": kind for fault, (kind, *_) in wrong.items()}
        also = {f"{name}{ALSO}{what}": op(f"{name}{ALSO}{what}", kernel) for what, kernel in honest.items()}
        self.specimens.append(Specimen(self.name, op(name, right), planted, faults, also))
        self.__farm_ops__ += [self.specimens[-1].right, *also.values(), *planted.values()]


class _Torch:
    """torch, imported when a kernel first needs it: to list the zoo needs numpy alone."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch: Any = _Torch()

INF = math.inf
NAN = math.nan
#: Elements that the blocked kernels handle at a time.
BLOCK = 128
#: Sizes of the blocked axis: just below, at and just above a block, and several blocks with a tail.
SIZES = (127, 129, 300, 128)


def blocks(count: int, drop_last: bool = False) -> Iterator[slice]:
    """The blocks of range(count), the last one partial; ``drop_last`` forgets a partial one."""
    end = count - count % BLOCK if drop_last else count
    for at in range(0, end, BLOCK):
        yield slice(at, min(at + BLOCK, end))


def padded(x: Any, value: float) -> Any:
    """A torch tensor with its last axis filled up to whole blocks."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % BLOCK), value=value)
