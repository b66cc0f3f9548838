"""An op of torch called otherwise: with out=, in place, as a method; and the calls that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.tree import decode
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.torch.noise import clone, replaced
from tasks.catalogs.torch.samples import Maker, is_seeded, unseeded
from tasks.checks.variants import REFUSED
from tasks.model import Group, Leaf, OpClass
from tasks.model.errors import text_of

OUT, IN_PLACE, METHOD, REFUSES = "out", "inplace", "method", "refuses"


def offered(info: Any) -> tuple[str, ...]:
    """The checks of this module that can be asked of an OpInfo. An op that draws random numbers has none but what it refuses."""
    found = [
        name
        for name, there in (
            (OUT, info.supports_out),
            (IN_PLACE, info.get_inplace() is not None),
            (METHOD, info.get_method() is not None),
        )
        if there and not is_seeded(info.op)
    ]
    refuses = info.error_inputs_func is not None and not info.name.startswith("jiterator_")  # CUDA only
    return (*found, *([REFUSES] if refuses else []))


def call(info: Any, check: str) -> Callable[..., Any]:
    """What a check of this module calls."""
    op = unseeded(info.op)
    if check == OUT:
        return into(op)
    if check == IN_PLACE:
        return _in_place(info.get_inplace())
    return info.get_method() if check == METHOD else op  # type: ignore[no-any-return]


def into(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op with out=: tensors of the right shape and dtype, with gaps between their elements. A script has its source."""

    def written(*args: Any, **kwargs: Any) -> Any:
        import torch

        like = op(*args, **kwargs)
        given = gapped(like) if isinstance(like, torch.Tensor) else tuple([gapped(x) for x in like])
        op(*args, **kwargs, out=given)
        return given

    return written


def gapped(like: Any) -> Any:
    """A tensor like another for an op to write to."""
    import torch

    if like.dim() == 0 or torch.compiler.is_compiling():  # dynamo leaves what has gaps to eager torch
        return torch.ones_like(like, memory_format=torch.contiguous_format)
    return like.new_ones((*like.shape[:-1], 2 * like.shape[-1]))[..., ::2]


def _in_place(op: Callable[..., Any]) -> Callable[..., Any]:
    def in_place(first: Any, *args: Any, **kwargs: Any) -> Any:
        op(first, *args, **kwargs)
        return first

    return in_place


class VariantMaker(Maker):
    """Makes the samples that eager torch takes in the way of a check; the others are vacuous, with eager's words."""

    def __init__(self, info: Any, group: Group, draws: int) -> None:
        super().__init__(info, group.dtype, draws)
        self.check, self.called = group.check, call(info, group.check)

    def make(self, index: int, source: Any) -> Sample:
        import torch

        args, kwargs = (source.input, *source.args), source.kwargs
        try:
            with torch.no_grad():
                found = self.called(*replaced(args, clone), **replaced(kwargs, clone))
                plain = self.op(*replaced(args, clone), **replaced(kwargs, clone))
        except Exception as error:
            return Sample(index, failure=Failure.vacuous(f"eager torch does not take it so: {text_of(error)}"))
        if [_kind(x) for x in torch_tree.leaves(found)] != [_kind(x) for x in torch_tree.leaves(plain)]:
            return Sample(index, failure=Failure.vacuous("eager torch gives another dtype or shape so"))
        if self.check == IN_PLACE and found.numel() > args[0].numel():
            return Sample(index, failure=Failure.vacuous("eager torch makes the tensor longer that it writes to"))
        return super().make(index, source)


def _kind(x: Any) -> Any:
    return (getattr(x, "dtype", type(x)), tuple(getattr(x, "shape", ())))


def refused(info: Any, group: Group) -> Iterator[Sample]:
    """The calls of a dtype that eager torch refuses, as they are after being stored: those that tensors sharing memory make
    invalid are valid then."""
    import torch

    op, index = unseeded(info.op), -1
    for wrong in info.error_inputs("cpu"):
        index += 1
        source = wrong.sample_input
        args, kwargs = (source.input, *source.args), source.kwargs
        tensors = [x for x in torch_tree.leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not tensors or torch_tree.name_of(tensors[0].dtype) != group.dtype:
            continue
        made = Sample(index, op_class=OpClass.EXACT, oracle="eager torch refuses it")
        try:
            made.args, made.kwargs, arrays = torch_tree.encode_args(args, kwargs)
        except Exception:
            continue  # not to be stored, e.g. a device that is not here
        made.arrays = [a.copy() for a in arrays]
        leaf = torch_tree.decoder(made.arrays.__getitem__, "cpu")
        try:
            op(*decode(made.args, leaf), **decode(made.kwargs, leaf))
        except Exception:
            made.expected = [Leaf("bool", (2,), np.array(REFUSED))]
            yield made


__all__ = ["IN_PLACE", "METHOD", "OUT", "REFUSES", "VariantMaker", "call", "gapped", "into", "offered", "refused"]
