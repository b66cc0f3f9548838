"""Every input of an op of one tensor, in one sample and several layouts; of an op of two every pair of 8 bits (`tasks.arrays.every_value`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from tasks.arrays import every_value, torch_tree
from tasks.arrays.every_value import FLOAT8
from tasks.arrays.layouts import CONTIGUOUS
from tasks.catalogs import mpmath_oracle
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.torch.generated import lay_out_generated_tensor
from tasks.catalogs.torch.templates import Path, list_template_tensors, rebuild_template
from tasks.model import LARGEST, Group, Leaf, get_numpy_dtype, is_inexact_dtype, label_op

#: Layouts of the samples, in turn. A kernel's path may depend on them: vectorised, its tail, element by element.
LAYOUTS = (CONTIGUOUS, "steps", "transposed", "offset")
#: Ops of one tensor, element by element, that op_db does not list as unary.
MORE = "gelu hardswish leaky_relu silu mish softplus elu celu selu relu6 hardtanh logsigmoid".split()
#: Unary ones that are not given every input, by why.
NOT = {
    "they draw numbers, ignore what they are given, or are of CUDA alone": "nn.functional.rrelu fill jiterator_unary",
    "torch's float64 reflection is a number of chance at a negative integer, a pole, and SciPy takes a step per unit to get "
    "there": "polygamma special.polygamma",
    "what a number beyond the range of an integer becomes is not defined": "byte char short int long",
}
_NOT = frozenset(" ".join(NOT.values()).split())
#: Ops of two tensors that are given every pair of 8 bits: of their own dtype, or of a float8 as numbers of a wider one.
PAIRS = (
    "add sub rsub mul div.no_rounding_mode div.trunc_rounding div.floor_rounding true_divide fmod remainder floor_divide atan2 hypot "
    "pow xlogy special.xlog1py logaddexp copysign fmax fmin maximum minimum max.binary min.binary eq ne ge gt le lt logical_and "
    "logical_or logical_xor bitwise_and bitwise_or bitwise_xor gcd lcm heaviside nextafter"
).split()
#: Those of an integer of which a zero as the second number, or a negative one, is refused by torch: it is a 1.
_DIVIDES, _RAISES = ("div", "fmod", "remainder", "floor_divide"), ("pow",)


def takes_every_input(info: Any) -> bool:
    """Whether every input of an op can be tried."""
    from torch.testing._internal.opinfo.core import UnaryUfuncInfo

    more = info.name.removeprefix("nn.functional.") in MORE
    return takes_every_pair(info) or ((isinstance(info, UnaryUfuncInfo) or more) and info.name not in _NOT)


def takes_every_pair(info: Any) -> bool:
    """Whether it is an op of two tensors that is given every pair."""
    return label_op(info.name, info.variant_test_name) in PAIRS


def _make_every_value_of_op(info: Any, group: Group, index: int) -> list[np.ndarray]:
    """What stands for the tensors of a sample: (n,) all values, or twice (256, 256) all pairs."""
    if not takes_every_pair(info):
        made = every_value.list_every_value(group.dtype, group.seed)
        return [made.reshape(_choose_every_input_shape(made.size, index))]
    if is_inexact_dtype(group.dtype):
        return list(every_value.pair_every_value(group.dtype, FLOAT8[index % len(FLOAT8)]))
    first, second = every_value.pair_every_value(group.dtype)
    if info.name in _DIVIDES or info.name in _RAISES:
        bad = second == 0 if info.name in _DIVIDES else second < 0
        second = np.where(bad, np.ones((), second.dtype), second)
        # The quotient of the smallest integer by -1 is none of the dtype.
        first = np.where((second == -1) & (first == first.min()), np.ones((), first.dtype), first)
    return [first, second]


def samples(
    group: Group, info: Any, own: list[Any], make: Callable[[int, Any], Sample], skip: Collection[int] = ()
) -> Iterator[Sample]:
    """Up to ``group.samples`` samples of all values, one a layout; each further argument is that of one of the op's
    ``own``.

    A single vacuous sample says why there is none.
    """
    import torch

    two = takes_every_pair(info)
    if not every_value.has_every_value(group.dtype) or (
        two and not is_inexact_dtype(group.dtype) and get_numpy_dtype(group.dtype).itemsize > 1
    ):
        what = "pair of values" if two else "value"
        yield Sample(-1, failure=Failure.vacuous(f"not every {what} of {group.dtype} can be tried"))
        return
    templates = [t for t in own if _is_every_input_template(t, getattr(torch, group.dtype), 1 + two)]
    if not templates:
        yield Sample(-1, failure=Failure.vacuous("no sample of the op's own has a tensor to be replaced"))
        return
    for index in range(group.samples):
        if index in skip:
            yield Sample(index)
            continue
        layout = LAYOUTS[index // (len(FLOAT8) if two else 1) % len(LAYOUTS)]
        made = [
            lay_out_generated_tensor(torch_tree.tensor_from_numpy(x), layout)
            for x in _make_every_value_of_op(info, group, index)
        ]

        def replace_leaf(path: Path, x: Any, made: list[Any] = made) -> Any:
            at = int(path[0]) if len(path) == 1 and isinstance(path[0], int) else len(made)
            if at < len(made):
                return made[at].requires_grad_() if x.requires_grad else made[at]
            return x.detach() if isinstance(x, torch.Tensor) else x

        template = templates[index % len(templates)]
        sample = make(index, rebuild_template(template, replace_leaf))
        for oracle in sample.others:
            for leaf, other in zip(sample.expected, oracle.references):
                _mask_special_values(made, leaf, other)
        first = sample.expected[0].reference if sample.expected else None
        if first is not None and _takes_tensor_alone(sample) and group.check == "forward":
            sample.others += mpmath_oracle.compute_mpmath_oracle(
                group.op_name, torch_tree.tensor_to_numpy(made[0]), first
            )
        yield sample


def _takes_tensor_alone(sample: Sample) -> bool:
    """Whether the op is given the tensor alone, so that it is the function of its name."""
    args: Any = sample.args
    kwargs: Any = sample.kwargs
    return len(args["v"]) == 1 and all(pair == ["approximate", "none"] for pair in kwargs["v"])


def _mask_special_values(given: list[Any], leaf: Leaf, other: np.ndarray) -> None:
    """Leave out of what a second oracle says what no two libraries need to agree on: NaN, Inf and signed zeros as
    inputs, and by how much a result is beyond the dtype's range. ``other`` is changed."""
    if leaf.reference is None or leaf.reference.shape != tuple(given[0].shape) or other.dtype.kind != "f":
        return
    numbers = [torch_tree.tensor_to_numpy(x.detach().double()) for x in given]
    unlike = np.logical_or.reduce([~np.isfinite(x) | (x == 0) for x in numbers])
    with np.errstate(invalid="ignore"):
        beyond = np.abs(leaf.reference) > LARGEST[leaf.dtype]
        beyond &= (np.abs(other) > LARGEST[leaf.dtype]) & (np.sign(other) == np.sign(leaf.reference))
    np.copyto(other, leaf.reference, where=unlike | beyond)


def _is_every_input_template(source: Any, dtype: Any, count: int) -> bool:
    """Whether the first ``count`` arguments are the only tensors of the dtype that have more than one element, and of
    one shape."""
    found = {path: x for path, x in list_template_tensors(source).items() if x.dtype == dtype and x.numel() > 1}
    return set(found) == {(k,) for k in range(count)} and len({x.shape for x in found.values()}) == 1


def _choose_every_input_shape(count: int, index: int) -> tuple[int, ...]:
    """One dimension, then two: of 65,536 values 256 rows of 256."""
    rows = 1 << ((count.bit_length() - 1) // 2)
    return (count,) if index % len(LAYOUTS) == 0 else (rows, count // rows)
