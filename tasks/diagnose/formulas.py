"""Which formula an op is, told by its exact result, and what comes out where its inputs or itself are taken coarsely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tasks.diagnose import elementwise, norms, products, rounding, sums
from tasks.diagnose.error_model import ErrorModel, WrongResult
from tasks.diagnose.formula import WrongFormula
from tasks.matrix_units import accumulators
from tasks.model import is_complex_dtype, is_inexact_dtype
from tasks.model.dtypes import name_numpy_dtype
from tasks.model.kind import CAUSE_ARITHMETIC


def models(inputs: Sequence[np.ndarray], result: WrongResult, alone: bool = False) -> Iterator[ErrorModel]:
    """Error models of the formulas that give the exact result of these inputs; none where no formula is known to.
    alone: each result is of the elements in its place."""
    names = [name_numpy_dtype(x.dtype) for x in inputs]
    floats = [
        x.astype(np.float64) for x, name in zip(inputs, names) if is_inexact_dtype(name) and not is_complex_dtype(name)
    ]
    if not floats or any(is_complex_dtype(name) for name in names):
        return
    found = elementwise.formulas(floats, result.dtype) if alone else _list_right_formulas(floats, names, result)
    for formula in found:
        if _fits_formula(formula, floats, result):
            yield from _list_wrong_formulas(formula, floats, result.dtype)


def _list_right_formulas(
    floats: Sequence[np.ndarray], names: Sequence[str], result: WrongResult
) -> Iterator[WrongFormula]:
    # Half of the functions of one number give 0, 1 or -1 of some large one: which it is, that does not tell.
    if not np.isin(result.exact, (-1, 0, 1)).all():
        yield from elementwise.formulas(floats, result.dtype)
    yield from sums.formulas(floats, result.dtype, result.exact.shape)
    adders = accumulators.list_accumulators_for_factors([x for x in names if is_inexact_dtype(x)])
    yield from products.formulas(floats, result.dtype, result.exact, adders)
    yield from norms.formulas(floats, result.dtype)


def _list_wrong_formulas(formula: WrongFormula, floats: Sequence[np.ndarray], dtype: str) -> Iterator[ErrorModel]:
    yield from formula.wrong(floats)
    yield from _list_formulas_of_coarse_inputs(formula, floats, dtype)


def _is_formula_open(formula: WrongFormula, floats: Sequence[np.ndarray], result: WrongResult) -> bool:
    """Whether a few elements leave it open that the op is this formula and one of its wrong ways its result: most are
    not."""
    if not formula.single or result.some is None or any(x.shape != result.exact.shape for x in floats):
        return True
    at, few = result.some
    given = [x.reshape(-1)[at] for x in floats]
    if not result.is_exact(np.asarray(formula.exact(given)), at):
        return False
    return any(few.gives(model) for model in _list_wrong_formulas(formula, given, result.dtype))


def _fits_formula(formula: WrongFormula, floats: Sequence[np.ndarray], result: WrongResult) -> bool:
    try:
        return _is_formula_open(formula, floats, result) and result.is_exact(np.asarray(formula.exact(floats)))
    except (ValueError, IndexError):
        return False  # made for other shapes


def _list_formulas_of_coarse_inputs(
    formula: WrongFormula, floats: Sequence[np.ndarray], dtype: str
) -> Iterator[ErrorModel]:
    """The formula on inputs that were rounded, cut off or flushed before it: all of them, or one."""
    for name in rounding.list_coarser_formats(dtype):
        for words, change in (
            (rounding.word_rounding(name), rounding.round_to_format),
            (f"truncated to {name}", rounding.cut_to_format),
        ):
            changed = [change(x, name) for x in floats]
            yield ErrorModel(f"inputs are {words}", formula.exact(changed), digits=True, code=CAUSE_ARITHMETIC)
            for place in range(len(floats) if len(floats) > 1 else 0):
                some = [changed[k] if k == place else x for k, x in enumerate(floats)]
                yield ErrorModel(f"input {place} is {words}", formula.exact(some), digits=True, code=CAUSE_ARITHMETIC)
    yield ErrorModel(
        f"subnormal inputs are taken for zero in {dtype}",
        formula.exact([rounding.flush_subnormals_in_model(x, dtype) for x in floats]),
    )
