"""Why a result is wrong: the case computed again under error models (formulas; sums in other orders and narrow accumulators; roundings to coarser formats, cuts, flushes; casts that lose digits); the first that gives the very result is the cause.

What an op computes is told from its numbers, not from its name: a formula that gives the exact result of these inputs
is the op's (`tasks.diagnose.formulas`), and then so are the ways in which it is known to go wrong. On numpy and nothing
else, so that it runs where the result is judged, in any vendor's environment; an ONNX graph is computed again without
its attributes where onnx is there (`tasks.diagnose.ignored_attributes`). No code of a user is called. Error models are imported
once a result is off: most cells need none.

The models: inputs, or the factors of a product, rounded or cut off to TF32, float16 or bfloat16; subnormals taken for
zero; sums in fewer bits, in several orders, or without their first, last or partial block of terms; products of float8
in the accumulators of known matrix units; the result rounded, cut off, saturated, flushed, with its sign inverted, in
another order, zero or not written from some element on; formulas that cancel or overflow (log of a sum without a shift,
1 + erf, exp(x) - 1, log(1 + x), E[x²] - E[x]²); fast exp and tanh; another ddof, eps or axis; a factor or an addend
left out; a program without one of its casts, or without all; an ONNX graph with up to two attributes or optional inputs
removed or changed, in all nodes of the operator at once; halves between pixels rounded up; key heads repeated in turn;
ignored targets in the mean.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tasks.diagnose.error_model import BETTER, ErrorCause, ErrorModel, WrongResult
from tasks.diagnose.error_model import NARROW as NARROW
from tasks.model import Leaf, OpClass, is_complex_dtype, is_inexact_dtype
from tasks.model.dtypes import name_numpy_dtype
from tasks.model.kind import CAUSE_ARITHMETIC, CAUSE_CAST, CAUSE_OTHER
from tasks.model.leaf import compute_model_floor

#: Numbers of all inputs and of an output from which on nothing is computed again: a diagnosis takes milliseconds.
LARGE = 1 << 18
#: Models that are named where several give the very same result.
MOST = 3


def find_error_model(
    inputs: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    expected: Sequence[Leaf],
    op_class: OpClass,
    model: Callable[[], bytes | None] = lambda: None,
    elementwise: bool = False,
    uncast: Sequence[np.ndarray] = (),
) -> ErrorCause:
    """The error model that explains a wrong or imprecise result.

    inputs: the tensors of the call, in their dtypes; actual: the outputs, shaped as ``expected``. Of several outputs
    the first is explained that is off. model: asked for the ONNX model that ``inputs`` are of, if it is one.
    elementwise: each result is of the elements in its place alone: a glance at some of many tells which cannot be
    explained. uncast: of a whole program that is no ONNX model, its outputs without its casts to narrower dtypes.
    """
    if sum(x.size for x in inputs) > LARGE or len(actual) != len(expected):
        return ErrorCause()
    from tasks.diagnose import ignored_attributes, lost_casts, results

    whole = op_class is OpClass.MODEL
    with np.errstate(all="ignore"):
        for place, (a, leaf) in enumerate(zip(actual, expected)):
            if leaf.reference is None or leaf.dtype == "str" or a.shape != leaf.reference.shape:
                continue
            if not whole and a.size > LARGE:
                continue
            result = WrongResult.of(a, replace(leaf, noise=compute_model_floor(leaf)) if whole else leaf, op_class)
            if not result.off.any():
                continue
            if uncast:
                return _choose_best_model(iter([lost_casts.model_lost_cast(uncast[place])]), result)
            told = functools.partial(_find_best_error_model, inputs=inputs, result=result, elementwise=elementwise)
            found = ErrorCause() if whole else told(functools.partial(_iterate_error_models, elementwise=elementwise))
            if not found.words and (graph := model()):
                found = _choose_best_model(lost_casts.models(graph, inputs, place), result)
                if not found.words and not whole:
                    found = _choose_best_model(ignored_attributes.models(graph, inputs, result, place), result)
            return found if found.words or whole else told(results.find_result_models)
    return ErrorCause()


def bound_accumulator_error(
    names: Sequence[str], inputs: Sequence[np.ndarray], leaf: Leaf, op_class: OpClass
) -> np.ndarray | None:
    """How far a product of matrices may move in the accumulators (`tasks.matrix_units.accumulators`) of these names that its
    factors' dtypes have there, shaped as the output; None where there is none, or the output is no such product."""
    from tasks.diagnose import products
    from tasks.matrix_units import accumulators

    dtypes = [name_numpy_dtype(x.dtype) for x in inputs]
    adders = [x for x in accumulators.list_accumulators_for_factors(dtypes) if x.name in names]
    if not adders or leaf.reference is None or sum(x.size for x in (*inputs, leaf.reference)) > LARGE:
        return None
    floats = [x.astype(np.float64) for x in inputs]
    return products.bound_product_in_adder(adders[0], floats, WrongResult.of(leaf.reference, leaf, op_class))


def explain_narrow_sums(
    inputs: Sequence[np.ndarray], actual: Sequence[np.ndarray], expected: Sequence[Leaf]
) -> ErrorCause:
    """How the sums of an output, of 16-bit numbers, lost digits that float32 would have kept (`tasks.diagnose.narrow_sums`),
    be they within the noise floor or not; none where they did not, or nothing is known of them."""
    if sum(x.size for x in (*inputs, *actual)) > LARGE:
        return ErrorCause()
    from tasks.diagnose import narrow_sums

    words = next(
        filter(None, (narrow_sums.explain_narrow_rounding(inputs, a, leaf) for a, leaf in zip(actual, expected))), ""
    )
    return ErrorCause(words, CAUSE_ARITHMETIC) if words else ErrorCause()


def explain_lost_cast(
    inputs: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    expected: Sequence[Leaf],
    graph: Callable[[], bytes | None],
) -> ErrorCause:
    """That outputs of a whole program, within their limits, are what its ONNX model gives without a cast that it
    compensates for."""
    if sum(x.size for x in (*inputs, *actual)) > LARGE or len(actual) != len(expected):
        return ErrorCause()
    from tasks.diagnose import lost_casts

    with np.errstate(all="ignore"):
        return (
            ErrorCause(lost_casts.MISSING, CAUSE_CAST)
            if lost_casts.is_cast_missing(graph, inputs, actual, expected)
            else ErrorCause()
        )


def _find_best_error_model(
    models: Callable[[Sequence[np.ndarray], WrongResult], Iterator[ErrorModel]],
    inputs: Sequence[np.ndarray],
    result: WrongResult,
    elementwise: bool,
) -> ErrorCause:
    """The best of the models. Of many elements each of which is made of those in its place alone some are looked at
    first."""
    if elementwise and result.some and all(x.size == result.off.size for x in inputs):
        at, few = result.some
        if not _choose_best_model(models([x.reshape(-1)[at] for x in inputs], few), few).words:
            return ErrorCause()
    return _choose_best_model(models(inputs, result), result)


def _choose_best_model(models: Iterator[ErrorModel], result: WrongResult) -> ErrorCause:
    """The model that explains the most elements bit for bit, the plainest of equals; of all that explain every element
    so, their words joined by "or", as nothing tells them apart. Its code is arithmetic if it may be that, else what
    they have in common."""
    named: list[ErrorModel] = []
    best = 0.0
    for model in models:
        if best == 1.0 and (model.slow or len(named) == MOST):
            break
        found = result.score_model(model)
        if found == best == 1.0:
            named += [model] * (model.words not in {x.words for x in named})
        elif found > best + BETTER * (best > 0):
            named, best = [model], found
    if not named:
        return ErrorCause()
    codes = {x.code for x in named}
    code = CAUSE_ARITHMETIC if CAUSE_ARITHMETIC in codes else codes.pop() if len(codes) == 1 else CAUSE_OTHER
    return ErrorCause(" or ".join(x.words for x in named), code)


def _iterate_error_models(inputs: Sequence[np.ndarray], result: WrongResult, elementwise: bool) -> Iterator[ErrorModel]:
    """Error models, the plainest first."""
    from tasks.diagnose import formulas, results

    yield from results.models(result)
    if is_inexact_dtype(result.dtype) and not is_complex_dtype(result.dtype):
        yield from formulas.models(inputs, result, elementwise)
