"""Every input of an op of one tensor: all values of the dtype in one sample (`tasks.arrays.every`), in several layouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from tasks.arrays import every, torch_tree
from tasks.catalogs import exactly
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.torch.generated import laid_out
from tasks.catalogs.torch.templates import Path, rebuilt, tensors
from tasks.model import LARGEST, Group, Leaf

#: Layouts of the samples, in turn. A kernel's path may depend on them: vectorised, its tail, element by element.
LAYOUTS = ("contiguous", "strided", "transposed", "offset")
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


def offered(info: Any) -> bool:
    """Whether every input of an op can be tried."""
    from torch.testing._internal.opinfo.core import UnaryUfuncInfo

    more = info.name.removeprefix("nn.functional.") in MORE
    return (isinstance(info, UnaryUfuncInfo) or more) and info.name not in _NOT


def samples(
    group: Group, own: list[Any], make: Callable[[int, Any], Sample], skip: Collection[int] = ()
) -> Iterator[Sample]:
    """Up to ``group.samples`` samples of all values, one a layout; each further argument is that of one of the op's ``own``.

    A single vacuous sample says why there is none.
    """
    import torch

    if not every.has(group.dtype):
        yield Sample(-1, failure=Failure.vacuous(f"not every value of {group.dtype} can be tried"))
        return
    templates = [t for t in own if _is_template(t, getattr(torch, group.dtype))]
    if not templates:
        yield Sample(-1, failure=Failure.vacuous("no sample of the op's own has a tensor to be replaced"))
        return
    values = torch_tree.from_numpy(every.values(group.dtype, group.seed))
    for index in range(group.samples):
        if index in skip:
            yield Sample(index)
            continue
        made = laid_out(values.reshape(_shape(values.numel(), index)), LAYOUTS[index % len(LAYOUTS)])

        def replaced(path: Path, x: Any, made: Any = made) -> Any:
            return made if path == (0,) else x.detach() if isinstance(x, torch.Tensor) else x

        sample = make(index, rebuilt(templates[index % len(templates)], replaced))
        for oracle in sample.others:
            for leaf, other in zip(sample.expected, oracle.references):
                _agreed(made, leaf, other)
        first = sample.expected[0].reference if sample.expected else None
        if first is not None and _plain(sample):
            sample.others += exactly.oracle(group.op_name, torch_tree.to_numpy(made), first)
        yield sample


def _plain(sample: Sample) -> bool:
    """Whether the op is given the tensor alone, so that it is the function of its name."""
    args: Any = sample.args
    kwargs: Any = sample.kwargs
    return len(args["v"]) == 1 and all(pair == ["approximate", "none"] for pair in kwargs["v"])


def _agreed(given: Any, leaf: Leaf, other: np.ndarray) -> None:
    """Leave out of what a second oracle says what no two libraries need to agree on: NaN, Inf and signed zeros as inputs, and
    by how much a result is beyond the dtype's range. ``other`` is changed."""
    if leaf.reference is None or leaf.reference.shape != tuple(given.shape) or other.dtype.kind != "f":
        return
    x = torch_tree.to_numpy(given.double())
    with np.errstate(invalid="ignore"):
        beyond = np.abs(leaf.reference) > LARGEST[leaf.dtype]
        beyond &= (np.abs(other) > LARGEST[leaf.dtype]) & (np.sign(other) == np.sign(leaf.reference))
    np.copyto(other, leaf.reference, where=~np.isfinite(x) | (x == 0) | beyond)


def _is_template(source: Any, dtype: Any) -> bool:
    """Whether the first argument is the only tensor of the dtype that has more than one element."""
    found = {path: x for path, x in tensors(source).items() if x.dtype == dtype and x.numel() > 1}
    return set(found) == {(0,)}


def _shape(count: int, index: int) -> tuple[int, ...]:
    """One dimension, then two: of 65,536 values 256 rows of 256."""
    rows = 1 << ((count.bit_length() - 1) // 2)
    return (count,) if index % len(LAYOUTS) == 0 else (rows, count // rows)
