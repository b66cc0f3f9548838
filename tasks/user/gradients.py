"""The gradient of a kernel's reference: what the `backward` check expects of the kernel."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tasks import gradients, noise
from tasks.catalogs.base import Failure, Sample
from tasks.model import EPS, WITHOUT_NOISE, Leaf, OpClass, is_inexact
from tasks.user_ops import UserOp

Arrays = Mapping[str, np.ndarray]


def fill(
    made: Sample, op: UserOp, reference: Callable[[Arrays], list[np.ndarray]], arrays: Arrays, exact: Arrays,
    outputs: list[Leaf], seed: tuple[int, ...], draws: int,
) -> None:  # fmt: skip
    """Give ``made`` (a forward Sample over ``arrays``) its cotangents and the gradients of the inputs in ``op.gradient``.

    ``reference``: its outputs for inputs by name; ``exact``: the inputs widened; ``outputs``: its Leafs. The gradients
    are those of extrapolated finite differences, whose own error counts as noise. Raises ValueError for outputs of
    which none is floating.
    """
    floating = [i for i, leaf in enumerate(outputs) if is_inexact(leaf.dtype)]
    if not floating:
        raise ValueError("no output is floating: there is no gradient")
    names = list(arrays)
    made.wrt = tuple(names.index(name) for name in op.gradient)
    given = gradients.cotangents([(outputs[i].shape, outputs[i].dtype) for i in floating], " ".join(map(str, seed)))
    made.cotangents = tuple(len(names) + floating.index(i) if i in floating else -1 for i in range(len(outputs)))
    made.arrays = [*made.arrays, *given]
    wide = [c.astype(np.complex128 if c.dtype.kind == "c" else np.float64) for c in given]

    def slopes(inputs: Arrays, cotangents: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return gradients.numpy_vjp(lambda **x: [reference(x)[i] for i in floating], inputs, op.gradient, cotangents)

    def moved(g: np.random.Generator) -> list[np.ndarray]:
        inputs = {k: noise.moved(x, EPS[arrays[k].dtype.name], g) if is_inexact(arrays[k].dtype.name) else x for k, x in exact.items()}
        return slopes(inputs, [noise.moved(c, EPS[a.dtype.name], g) for c, a in zip(wide, given)])[0]

    found, errors = slopes(exact, wide)
    if all(np.isinf(e).all() for e in errors):
        made.failure = Failure("vacuous", "reference", "", "the reference is nowhere differentiable at these inputs")
        return
    made.op_class = gradients.class_of(OpClass(op.op_class))
    floor = noise.floor(found, moved, seed, draws if made.op_class not in (*WITHOUT_NOISE, OpClass.RANDOM) else 0)
    made.expected = [
        Leaf(arrays[name].dtype.name, y.shape, y, error if delta is None else delta + error)
        for name, y, delta, error in zip(op.gradient, found, floor, errors)
    ]
    made.oracle += " by differences"
    made.definition, made.derived = "", []
