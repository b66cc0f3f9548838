"""The same graph written otherwise: between its operators stand nodes that change nothing, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tasks.fuzz.graphs.grown import GrownGraph, GrownTensor, Refused
from tasks.model.dtypes import ELEMENT_TYPE

#: Puts nodes after a tensor that give the very same one.
Rewrite = Callable[[GrownGraph, GrownTensor], GrownTensor]
#: Steps of a graph of which one in so many inputs is rewritten.
OFTEN = 3


def _transpose_twice(g: GrownGraph, x: GrownTensor) -> GrownTensor:
    order = g.choose.order(x.rank)[::-1]
    (y,) = g.add("Transpose", [x], perm=order)
    return g.add("Transpose", [y], perm=[order.index(k) for k in range(x.rank)])[0]


def _reshape_twice(g: GrownGraph, x: GrownTensor) -> GrownTensor:
    (y,) = g.add("Reshape", [x, g.ints([-1])])
    return g.add("Reshape", [y, g.ints(x.shape)])[0]


def _split_and_concat(g: GrownGraph, x: GrownTensor) -> GrownTensor:
    axis = g.choose.int(0, x.rank - 1)
    if x.shape[axis] < 2:
        raise Refused("one element is not split")
    first = g.choose.int(1, x.shape[axis] - 1)
    parts = g.add("Split", [x, g.ints([first, x.shape[axis] - first])], 2, axis=axis)
    return g.add("Concat", parts, axis=axis)[0]


def _unsqueeze_and_squeeze(g: GrownGraph, x: GrownTensor) -> GrownTensor:
    axes = g.ints([g.choose.int(0, x.rank)])
    return g.add("Squeeze", [*g.add("Unsqueeze", [x, axes]), axes])[0]


def _reverse_twice(g: GrownGraph, x: GrownTensor) -> GrownTensor:
    axis = g.choose.int(0, x.rank - 1)
    backwards = [g.ints([-1]), g.ints([-x.shape[axis] - 1]), g.ints([axis]), g.ints([-1])]
    return g.add("Slice", [*g.add("Slice", [x, *backwards]), *backwards])[0]


def _select_itself(g: GrownGraph, x: GrownTensor) -> GrownTensor:
    return g.add("Where", [g.constant(np.asarray(True)), x, x], dtype=x.dtype)[0]


def _cast_wider_and_back(g: GrownGraph, x: GrownTensor) -> GrownTensor:
    to = "float64" if x.dtype == "float32" else "float32"
    (y,) = g.add("Cast", [x], dtype=to, to=ELEMENT_TYPE[to])
    return g.add("Cast", [y], dtype=x.dtype, to=ELEMENT_TYPE[x.dtype])[0]


def _rewrite_with_constant(op: str, number: float) -> Rewrite:
    return lambda g, x: g.add(op, [x, g.number(number, x)])[0]


#: By name, with the least rank of the tensor.
REWRITES: Mapping[str, tuple[Rewrite, int]] = {
    "transposed": (_transpose_twice, 2),
    "reshaped": (_reshape_twice, 0),
    "split": (_split_and_concat, 1),
    "squeezed": (_unsqueeze_and_squeeze, 0),
    "backwards": (_reverse_twice, 1),
    "selected": (_select_itself, 0),
    "wider": (_cast_wider_and_back, 0),
    "plus 0": (_rewrite_with_constant("Add", 0.0), 0),
    "times 1": (_rewrite_with_constant("Mul", 1.0), 0),
    "by 1": (_rewrite_with_constant("Div", 1.0), 0),
    "negated": (lambda g, x: g.add("Neg", g.add("Neg", [x]))[0], 0),
    "identity": (lambda g, x: g.add("Identity", [x])[0], 0),
    "padded": (lambda g, x: g.add("Pad", [x, g.ints([0] * 2 * x.rank)])[0], 1),
    "largest": (lambda g, x: g.add("Max", [x, x])[0], 0),
}


def rewrite_grown_steps(g: GrownGraph, ends: list[GrownTensor]) -> list[GrownTensor]:
    """What the same steps once more make of the same inputs, some of them rewritten: twins of ``ends`` in order."""
    twins: dict[str, GrownTensor] = {}
    known = {t.name: t for t in g.made}
    for step in list(g.steps):
        inputs = [twins.get(x) or known.get(x) or g.tensors.get(x) for x in step.inputs]
        place = g.choose.int(0, len(inputs) - 1) if g.choose.chance(1, OFTEN) else -1
        inputs = [_rewrite_one_tensor(g, x) if k == place and x is not None else x for k, x in enumerate(inputs)]
        dtype = known[step.outputs[0]].dtype
        made = g.add(step.op, inputs, len(step.outputs), dtype, **step.attributes)
        twins.update(zip(step.outputs, made))
    return [_rewrite_one_tensor(g, twins[t.name]) if t.dtype in ("float32", "float16") else twins[t.name] for t in ends]


def _rewrite_one_tensor(g: GrownGraph, x: GrownTensor) -> GrownTensor:
    """A tensor after a rewrite; as it is where it takes none."""
    if x.dtype not in ("float32", "float16") or x.name in g.weights:
        return x
    fitting = [name for name, (_, rank) in REWRITES.items() if rank <= x.rank < 6]
    if not fitting:  # six axes, from a Gather: more than many runtimes transpose or slice
        return x
    name = g.choose.of(fitting)
    before = len(g.steps), len(g.made)
    try:
        made = REWRITES[name][0](g, x)
    except Refused:
        del g.steps[before[0] :], g.made[before[1] :]
        return x
    g.words.append(f"rewrite={name.replace(' ', '-')}")
    return made
