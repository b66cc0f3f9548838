"""Why a result is wrong: the case computed again under error models; the first that gives the very result is the cause.

What an op computes is told from its numbers, not from its name: a formula that gives the exact result of these inputs is
the op's (`tasks.diagnose.formulas`), and then so are the ways in which it is known to go wrong. On numpy and nothing else,
so that it runs where the result is judged, in any vendor's environment; an ONNX graph is computed again without its attributes where
onnx is there (`tasks.diagnose.ignored`). No code of a user is called.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tasks.arrays import accumulators
from tasks.diagnose import casts, formulas, ignored, narrow, products, results
from tasks.diagnose.model import BETTER, Model, Result
from tasks.model import Leaf, OpClass, is_complex, is_inexact
from tasks.model.dtypes import dtype_name
from tasks.model.leaf import model_floor

#: Numbers of all inputs and of an output from which on nothing is computed again: a diagnosis takes milliseconds.
LARGE = 1 << 18
#: Models that are named where several give the very same result.
MOST = 3
#: How the words of a model begin or end that is the op's own formula, computed with fewer digits or in a way that loses them.
_ARITHMETIC = re.compile(
    r", in (b?float\d+)$|^(accumulate[sd]|computed|squares) in |^sums are rounded to |^(inputs|input \d+|factors) (is|are) (rounded|truncated) to "
)


def cause(
    inputs: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    expected: Sequence[Leaf],
    op_class: OpClass,
    model: Callable[[], bytes | None] = lambda: None,
    elementwise: bool = False,
) -> str:
    """The error model that explains a wrong or imprecise result, in words; "" where none does.

    inputs: the tensors of the call, in their dtypes; actual: the outputs, shaped as ``expected``. Of several outputs the
    first is explained that is off. model: asked for the ONNX model that ``inputs`` are of, if it is one. elementwise: each
    result is of the elements in its place alone: a glance at some of many tells which cannot be explained.
    """
    if sum(x.size for x in inputs) > LARGE or len(actual) != len(expected):
        return ""
    with np.errstate(all="ignore"):
        for place, (a, leaf) in enumerate(zip(actual, expected)):
            if leaf.reference is None or leaf.dtype == "str" or a.shape != leaf.reference.shape or a.size > LARGE:
                continue
            result = Result.of(a, leaf, op_class)
            if result.off.any():
                found = _told(functools.partial(_models, elementwise=elementwise), inputs, result, elementwise)
                if not found and (graph := model()):
                    found = _best(casts.models(graph, inputs, place), result)
                    found = found or _best(ignored.models(graph, inputs, result, place), result)
                return found or _told(results.described, inputs, result, elementwise)
    return ""


def missing_cast(
    inputs: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    expected: Sequence[Leaf],
    graph: bytes | None,
    uncast: Sequence[np.ndarray] = (),
) -> str:
    """Whether a whole program's outputs are what it gives without a cast to a narrower dtype that it asks for, in words; "" where they
    are not. graph: the ONNX model of ``inputs``, if there is one; uncast: else the outputs without all such casts."""
    if sum(x.size for x in inputs) > LARGE or len(actual) != len(expected):
        return ""
    with np.errstate(all="ignore"):
        for place, (a, leaf) in enumerate(zip(actual, expected)):
            if leaf.reference is None or leaf.dtype == "str" or a.shape != leaf.reference.shape:
                continue
            result = Result.of(a, replace(leaf, noise=model_floor(leaf)), OpClass.MODEL)
            if result.off.any():
                known = iter([Model(casts.MISSING, uncast[place])] if uncast else [])
                return _best(known if uncast or graph is None else casts.models(graph, inputs, place), result)
    return ""


def within(names: Sequence[str], inputs: Sequence[np.ndarray], leaf: Leaf, op_class: OpClass) -> np.ndarray | None:
    """How far a product of matrices may move in the accumulators (`tasks.arrays.accumulators`) of these names that its factors' dtypes
    have there, shaped as the output; None where there is none, or the output is no such product."""
    dtypes = [dtype_name(x.dtype) for x in inputs]
    adders = [x for x in accumulators.for_factors(dtypes) if x.name in names]
    if not adders or leaf.reference is None or sum(x.size for x in (*inputs, leaf.reference)) > LARGE:
        return None
    floats = [x.astype(np.float64) for x in inputs]
    return products.floor_in(adders[0], floats, Result.of(leaf.reference, leaf, op_class))


def narrow_sums(inputs: Sequence[np.ndarray], actual: Sequence[np.ndarray], expected: Sequence[Leaf]) -> str:
    """How the sums of an output, of 16-bit numbers, lost digits that float32 would have kept (`tasks.diagnose.narrow`), be they within
    the noise floor or not; "" where they did not, or nothing is known of them."""
    if sum(x.size for x in (*inputs, *actual)) > LARGE:
        return ""
    return next(filter(None, (narrow.cause(inputs, a, leaf) for a, leaf in zip(actual, expected))), "")


def is_arithmetic(cause: str) -> bool:
    """Whether a `cause` may be that the op's own formula was computed with fewer digits, or in a way that loses them: its exact value is
    then the reference."""
    return any(_ARITHMETIC.search(words) for words in cause.split(" or "))


def _told(
    models: Callable[[Sequence[np.ndarray], Result], Iterator[Model]],
    inputs: Sequence[np.ndarray],
    result: Result,
    elementwise: bool,
) -> str:
    """The best of the models, in words. Of many elements each of which is made of those in its place alone some are looked at first."""
    if elementwise and result.some and all(x.size == result.off.size for x in inputs):
        at, few = result.some
        if not _best(models([x.reshape(-1)[at] for x in inputs], few), few):
            return ""
    return _best(models(inputs, result), result)


def _best(models: Iterator[Model], result: Result) -> str:
    """The words of the model that explains the most elements bit for bit, the plainest of equals; of all that explain every
    element so, joined by "or": nothing tells them apart."""
    words, best = [""], 0.0
    for model in models:
        if best == 1.0 and (model.slow or len(words) == MOST):
            break
        found = result.explained(model)
        if found == best == 1.0:
            words += [model.words] * (model.words not in words)
        elif found > best + BETTER * (best > 0):
            words, best = [model.words], found
    return " or ".join(words)


def _models(inputs: Sequence[np.ndarray], result: Result, elementwise: bool) -> Iterator[Model]:
    """Error models, the plainest first."""
    yield from results.models(result)
    if is_inexact(result.dtype) and not is_complex(result.dtype):
        yield from formulas.models(inputs, result, elementwise)
