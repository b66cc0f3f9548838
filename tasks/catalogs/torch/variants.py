"""An op of torch called otherwise: with out=, in place, as a method, with mixed dtypes; and the calls that it refuses."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.tree import decode_argument_tree, map_leaves
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.torch.arguments import clone_torch_argument, widen_torch_argument
from tasks.catalogs.torch.samples import OpInfoSampleMaker, is_op_seeded, unwrap_seeded_op
from tasks.checks.variants import REFUSED
from tasks.judge import op_classes
from tasks.model import WITHOUT_NOISE, Group, Leaf, OpClass, is_inexact_dtype
from tasks.model.errors import find_error_text
from tasks.older_python import zip_equal

OUT, IN_PLACE, METHOD, PROMOTION, REFUSES = "out", "inplace", "method", "promotion", "refuses"
#: What one tensor of two may be beside the dtype under test.
PARTNERS = ("float32", "int64", "float16", "bool", "bfloat16", "int32", "float64", "uint8", "int8")
#: Of each mixed call: which of the tensors is in another dtype, and whether it is 0-d, which promotes within its kind
#: alone.
WAYS = ((1, False), (0, False), (1, True), (0, True))
#: Ways of mixing that are tried for a sample: an op may refuse some.
TRIES = 4
#: Largest size of a value that becomes an integer: float16 and bfloat16 hold all whole numbers up to it.
WHOLE = 100


def list_variant_checks(info: Any) -> tuple[str, ...]:
    """The checks of this module that can be asked of an OpInfo. An op that draws random numbers has none but what it
    refuses."""
    found = [
        name
        for name, there in (
            (OUT, info.supports_out),
            (IN_PLACE, info.get_inplace() is not None),
            (METHOD, info.get_method() is not None),
            (PROMOTION, type(info).__name__ == "BinaryUfuncInfo" and not info.name.startswith("jiterator_")),
        )
        if there and not is_op_seeded(info.op)
    ]
    refuses = info.error_inputs_func is not None and not info.name.startswith("jiterator_")  # CUDA only
    return (*found, *([REFUSES] if refuses else []))


def make_variant_call(info: Any, check: str) -> Callable[..., Any]:
    """What a check of this module calls."""
    op = unwrap_seeded_op(info.op)
    if check == OUT:
        return into(op)
    if check == IN_PLACE:
        return _make_in_place_call(info.get_inplace())
    return info.get_method() if check == METHOD else op  # type: ignore[no-any-return]


def into(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op with out=: tensors of the right shape and dtype, with gaps between their elements. A finding has its
    source."""

    def call_into(*args: Any, **kwargs: Any) -> Any:
        import torch

        like = op(*args, **kwargs)
        given = make_gapped(like) if isinstance(like, torch.Tensor) else tuple([make_gapped(x) for x in like])
        op(*args, **kwargs, out=given)
        return given

    return call_into


def make_gapped(like: Any) -> Any:
    """A tensor like another for an op to write to."""
    import torch

    if like.dim() == 0 or torch.compiler.is_compiling():  # dynamo leaves what has gaps to eager torch
        return torch.ones_like(like, memory_format=torch.contiguous_format)
    return like.new_ones((*like.shape[:-1], 2 * like.shape[-1]))[..., ::2]


def _make_in_place_call(op: Callable[..., Any]) -> Callable[..., Any]:
    def in_place(first: Any, *args: Any, **kwargs: Any) -> Any:
        op(first, *args, **kwargs)
        return first

    return in_place


def select_usable_samples(check: str, made: list[Any]) -> list[Any]:
    """The samples of op_db that a check can use: for mixed dtypes, calls of two tensors with elements."""
    import torch

    def two(source: Any) -> bool:
        pair = (source.input, *source.args[:1])
        return len(pair) == 2 and all(
            isinstance(x, torch.Tensor) and x.layout == torch.strided and x.numel() for x in pair
        )

    return [x for x in made if two(x)] if check == PROMOTION else made


class VariantSampleMaker(OpInfoSampleMaker):
    """Makes the samples that eager torch takes in the way of a check; the others are vacuous, with eager's words."""

    def __init__(self, info: Any, group: Group, draws: int) -> None:
        super().__init__(info, group.dtype, draws)
        self.check, self.called = group.check, make_variant_call(info, group.check)
        #: Of a call of mixed dtypes, in which its reference is computed.
        self.common: Any = None

    def make(self, index: int, source: Any) -> Sample:
        import torch

        if self.check == PROMOTION:
            return self._make_mixed(index, source)
        args, kwargs = (source.input, *source.args), source.kwargs
        try:
            with torch.no_grad():
                found = self.called(*map_leaves(args, clone_torch_argument), **map_leaves(kwargs, clone_torch_argument))
                plain = self.op(*map_leaves(args, clone_torch_argument), **map_leaves(kwargs, clone_torch_argument))
        except Exception as error:
            return Sample(index, failure=Failure.vacuous(f"eager torch does not take it so: {find_error_text(error)}"))
        if [_find_tensor_kind(x) for x in torch_tree.list_output_tensors(found)] != [
            _find_tensor_kind(x) for x in torch_tree.list_output_tensors(plain)
        ]:
            return Sample(index, failure=Failure.vacuous("eager torch gives another dtype or shape so"))
        if self.check == IN_PLACE and found.numel() > args[0].numel():
            return Sample(index, failure=Failure.vacuous("eager torch makes the tensor longer that it writes to"))
        return super().make(index, source)

    def _make_mixed(self, index: int, source: Any) -> Sample:
        """A sample with one of the first two tensors in another dtype. Promotion is defined by the call with both in
        the result type (torch.result_type): its dtype is the one to give."""
        import torch

        placement = op_classes.find_op_class(self.name, self.variant, {}, self.dtype)
        first = zlib.crc32(f"{self.name}/{self.dtype}".encode()) / 2**32 + index
        rest, kwargs, refused = source.args[1:], source.kwargs, ""
        for turn in range(TRIES):
            pair = (source.input, source.args[0])
            mixed = _mix_dtypes_of_pair(first + turn / TRIES, pair, self.dtype, placement.op_class not in WITHOUT_NOISE)
            common = torch.result_type(*mixed)
            # A 0-d tensor may be of a wider dtype than the result: whether it is rounded before, devices do as they
            # like.
            mixed = tuple([x.to(common).to(x.dtype) for x in mixed])
            try:
                with torch.no_grad():
                    self.op(
                        *map(clone_torch_argument, mixed),
                        *map_leaves(rest, clone_torch_argument),
                        **map_leaves(kwargs, clone_torch_argument),
                    )
                    same = self.op(
                        *[x.to(common) for x in mixed],
                        *map_leaves(rest, clone_torch_argument),
                        **map_leaves(kwargs, clone_torch_argument),
                    )
                break
            except Exception as error:
                refused = find_error_text(error)
        else:
            return Sample(index, failure=Failure.vacuous(f"eager torch does not take it so: {refused}"))
        self.second = False  # the further oracle knows one dtype
        self.common = common if placement.own_dtype else widen_torch_argument(common)
        made = super().make(index, SimpleNamespace(input=mixed[0], args=(mixed[1], *rest), kwargs=kwargs))
        if made.failure is None:
            outputs = [torch_tree.name_torch_dtype(x.dtype) for x in torch_tree.list_output_tensors(same)]
            made.expected = [replace(leaf, dtype=name) for leaf, name in zip_equal(made.expected, outputs)]
            made.on_device = ()
        return made

    def _exact(self, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
        return super()._exact(self._promote_arguments(args), kwargs, change)

    def _compute_perturbed(self, args: Any, kwargs: Any) -> Any:
        return super()._compute_perturbed(self._promote_arguments(args), kwargs)

    def _promote_arguments(self, args: Any) -> Any:
        """The arguments of a call of mixed dtypes with both tensors in the common one, as wide as the reference is."""
        return args if self.common is None else (*[x.to(self.common) for x in args[:2]], *args[2:])


def _mix_dtypes_of_pair(turn: float, pair: tuple[Any, ...], dtype: str, rounded: bool) -> tuple[Any, ...]:
    """The tensors with one of them in another dtype, as its turn says (golden ratio). rounded: whether the
    op is judged by moving its inputs, which whole numbers cannot be."""
    import torch

    partners = [x for x in PARTNERS if x != dtype and (is_inexact_dtype(x) or not rounded)]
    number = int((turn * 0.6180339887) % 1.0 * len(partners) * len(WAYS))
    partner, (place, scalar) = partners[number % len(partners)], WAYS[number // len(partners)]
    x = pair[place].detach()
    if scalar and pair[1 - place].dim():
        x = x.reshape(-1)[0]
    target = getattr(torch, partner)
    if target == torch.bool:
        x = x > 0 if not x.is_complex() else x.real > 0
    elif not target.is_floating_point:
        whole = (
            (x.real if x.is_complex() else x)
            .double()
            .nan_to_num()
            .clamp(0 if partner == "uint8" else -WHOLE, WHOLE)
            .round()
        )
        x = torch.where(whole == 0, torch.ones_like(whole), whole).to(target)
    else:
        x = (x.real if x.is_complex() else x).to(target)
    return tuple(x if k == place else y for k, y in enumerate(pair))


def _find_tensor_kind(x: Any) -> Any:
    return (getattr(x, "dtype", type(x)), tuple(getattr(x, "shape", ())))


def make_refusal_samples(info: Any, group: Group) -> Iterator[Sample]:
    """The calls of a dtype that eager torch refuses, as they are after being stored: those that tensors sharing memory
    make invalid are valid then."""
    import torch

    op, index = unwrap_seeded_op(info.op), -1
    for wrong in info.error_inputs("cpu"):
        index += 1
        source = wrong.sample_input
        args, kwargs = (source.input, *source.args), source.kwargs
        tensors = [x for x in torch_tree.list_output_tensors((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not tensors or torch_tree.name_torch_dtype(tensors[0].dtype) != group.dtype:
            continue
        made = Sample(index, op_class=OpClass.EXACT, oracle="eager torch refuses it")
        try:
            made.args, made.kwargs, arrays = torch_tree.encode_torch_args(args, kwargs)
        except Exception:
            continue  # not to be stored, e.g. a device that is not here
        made.arrays = [a.copy() for a in arrays]
        leaf = torch_tree.make_tensor_decoder(made.arrays.__getitem__, "cpu")
        try:
            op(*decode_argument_tree(made.args, leaf), **decode_argument_tree(made.kwargs, leaf))
        except Exception:
            made.expected = [Leaf("bool", (2,), np.array(REFUSED))]
            yield made


__all__ = [
    "IN_PLACE",
    "METHOD",
    "OUT",
    "PROMOTION",
    "REFUSES",
    "VariantSampleMaker",
    "into",
    "list_variant_checks",
    "make_gapped",
    "make_refusal_samples",
    "make_variant_call",
    "select_usable_samples",
]
