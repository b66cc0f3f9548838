"""Functions of one or two numbers, and the formulas for them that lose digits."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tasks.diagnose.error_model import ErrorModel
from tasks.diagnose.formula import WrongFormula
from tasks.model import EPS
from tasks.model.kind import CAUSE_ARITHMETIC
from tasks.operators.formulas import (
    Function,
    compute_gelu,
    compute_gelu_tanh,
    compute_sigmoid,
    compute_softplus,
    erf,
    erfc,
)


def _round_function_once(function: Function) -> Function:
    """A function of NumPy's rounded once: its own of float32 are off by several bits, those of libraries by hardly
    one."""
    return lambda x: np.asarray(function(x.astype(np.float64)), np.float64).astype(x.dtype)


exp, exp2, log, log2, tanh, arcsin = map(_round_function_once, (np.exp, np.exp2, np.log, np.log2, np.tanh, np.arcsin))


def _compute_polynomial_erf(x: np.ndarray) -> np.ndarray:
    """Abramowitz and Stegun 7.1.26: off by 1.5e-7."""
    t = 1 / (1 + x.dtype.type(0.3275911) * np.abs(x))
    total = np.zeros_like(x)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        total = (total + x.dtype.type(factor)) * t
    return np.copysign(1 - total * exp(-x * x), x)


def _compute_fast_exp(x: np.ndarray) -> np.ndarray:
    """Schraudolph (1999): the exponent's bits are a linear function of x; off by up to 4 %."""
    bits = (12102203.161561485 * x.astype(np.float64) + 1064866805.0).clip(0, 2139095039)
    return bits.astype(np.int32).view(np.float32).astype(x.dtype)


def _compute_exp_by_exp2(x: np.ndarray) -> np.ndarray:
    return exp2(x * x.dtype.type(1 / math.log(2)))


def _compute_rational_tanh(x: np.ndarray) -> np.ndarray:
    """Lambert's continued fraction up to x⁷, held to ±1."""
    s = x * x
    return np.clip(x * (135135 + s * (17325 + s * (378 + s))) / (135135 + s * (62370 + s * (3150 + s * 28))), -1, 1)


def _reduce_angle_coarsely(function: Function) -> Function:
    """A function of an angle that is reduced by the dtype's own 2π."""

    def of(x: np.ndarray) -> np.ndarray:
        period = x.dtype.type(2 * math.pi)
        return function(x - np.round(x / period) * period)

    return of


def _compute_tanh_gelu(x: np.ndarray) -> np.ndarray:
    inner = x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x**3)
    return x.dtype.type(0.5) * x * (1 + tanh(inner))


_ROOT = math.sqrt(0.5)

#: Its exp is that of a library: rounded once.
_sigmoid = functools.partial(compute_sigmoid, exp=exp)

#: Of one number: the function, and its wrong ways by their words.
OF_ONE: Mapping[str, tuple[Function, Mapping[str, Function]]] = {
    "exp": (
        np.exp,
        {"fast exp (Schraudolph's)": _compute_fast_exp, "exp as 2 to the power x·log2 e": _compute_exp_by_exp2},
    ),
    "expm1": (np.expm1, {"expm1 as exp(x) - 1": lambda x: exp(x) - 1}),
    "log": (np.log, {"log as log2(x)·log 2": lambda x: log2(x) * x.dtype.type(math.log(2))}),
    "log1p": (np.log1p, {"log1p as log(1 + x)": lambda x: log(1 + x)}),
    "sqrt": (np.sqrt, {"sqrt as x/sqrt(x)": lambda x: x * (1 / np.sqrt(x))}),
    "sin": (np.sin, {"the angle is reduced by 2π of the dtype": _reduce_angle_coarsely(np.sin)}),
    "cos": (
        np.cos,
        {
            "the angle is reduced by 2π of the dtype": _reduce_angle_coarsely(np.cos),
            "cos as sin(π/2 - x)": lambda x: np.sin(x.dtype.type(math.pi / 2) - x),
        },
    ),
    "sinh": (np.sinh, {"sinh as (exp(x) - exp(-x))/2": lambda x: (exp(x) - exp(-x)) / 2}),
    "asinh": (np.arcsinh, {"asinh as log(x + sqrt(x² + 1))": lambda x: log(x + np.sqrt(x * x + 1))}),
    "acosh": (np.arccosh, {"acosh as log(x + sqrt(x² - 1))": lambda x: log(x + np.sqrt(x * x - 1))}),
    "atanh": (np.arctanh, {"atanh as log((1 + x)/(1 - x))/2": lambda x: log((1 + x) / (1 - x)) / 2}),
    "tan": (np.tan, {"the angle is reduced by 2π of the dtype": _reduce_angle_coarsely(np.tan)}),
    "acos": (np.arccos, {"acos as π/2 - asin(x)": lambda x: x.dtype.type(math.pi / 2) - arcsin(x)}),
    "tanh": (
        np.tanh,
        {
            "fast tanh (a rational function)": _compute_rational_tanh,
            "tanh as 1 - 2/(exp(2x) + 1)": lambda x: 1 - 2 / (exp(2 * x) + 1),
            "tanh as (1 - exp(-2x))/(1 + exp(-2x))": lambda x: (1 - exp(-2 * x)) / (1 + exp(-2 * x)),
            "tanh as 2·sigmoid(2x) - 1": lambda x: 2 / (1 + exp(-2 * x)) - 1,
            "tanh as (exp(2x) - 1)/(exp(2x) + 1)": lambda x: (exp(2 * x) - 1) / (exp(2 * x) + 1),
            "tanh as (exp(x) - exp(-x))/(exp(x) + exp(-x))": lambda x: (exp(x) - exp(-x)) / (exp(x) + exp(-x)),
        },
    ),
    "sigmoid": (
        _sigmoid,
        {
            "sigmoid as (1 + tanh(x/2))/2": lambda x: (1 + tanh(x / 2)) / 2,
            "sigmoid as exp(x)/(1 + exp(x))": lambda x: exp(x) / (1 + exp(x)),
            "sigmoid as 1/(1 + exp(-x))": lambda x: 1 / (1 + exp(-x)),
        },
    ),
    "silu": (
        lambda x: x * _sigmoid(x),
        {
            "sigmoid as exp(x)/(1 + exp(x))": lambda x: x * (exp(x) / (1 + exp(x))),
            "sigmoid as 1/(1 + exp(-x))": lambda x: x * (1 / (1 + exp(-x))),
        },
    ),
    "softplus": (
        compute_softplus,
        {
            "softplus as log(1 + exp(x))": lambda x: log(1 + exp(x)),
            "softplus as log(1 + exp(x)) up to 20": lambda x: np.asarray(np.where(x > 20, x, log(1 + exp(x)))),
            "softplus without a threshold": lambda x: np.log1p(exp(x)),
        },
    ),
    "elu": (
        lambda x: np.asarray(np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
        {"elu as exp(x) - 1": lambda x: np.asarray(np.where(x > 0, x, exp(np.minimum(x, 0)) - 1))},
    ),
    "erf": (erf, {"erf by a polynomial (Abramowitz and Stegun 7.1.26)": _compute_polynomial_erf}),
    "erfc": (erfc, {"erfc as 1 - erf(x)": lambda x: 1 - erf(x)}),
    "gelu": (
        compute_gelu,
        {
            "gelu by tanh": _compute_tanh_gelu,
            "gelu by a sigmoid": lambda x: x * _sigmoid(x.dtype.type(1.702) * x),
            "gelu as x/2·(1 + erf(x/√2))": lambda x: x.dtype.type(0.5) * x * (1 + erf(x * x.dtype.type(_ROOT))),
        },
    ),
    "gelu by tanh": (
        compute_gelu_tanh,
        {
            "gelu by erf, where tanh is asked for": compute_gelu,
            "gelu as x/2·(1 + tanh(…))": _compute_tanh_gelu,
            "π is taken for 22/7": lambda x: compute_gelu_tanh(x, math.sqrt(7 / 11), exp),
        },
    ),
    "reciprocal": (lambda x: 1 / x, {}),
    "rsqrt": (lambda x: 1 / np.sqrt(x), {}),
    "square": (np.square, {}),
    "half": (lambda x: x / 2, {}),
    "twice": (lambda x: x * 2, {}),
    "identity": (lambda x: x, {}),
    "round": (
        np.rint,
        {
            "halves are rounded away from zero": lambda x: np.trunc(x + np.copysign(x.dtype.type(0.5), x)),
            "round as floor(x + 1/2)": lambda x: np.floor(x + x.dtype.type(0.5)),
            "rounded down": np.floor,
            "truncated": np.trunc,
        },
    ),
}

#: Of two numbers.
OF_TWO: Mapping[str, tuple[Function, Mapping[str, Function]]] = {
    "add": (np.add, {}),
    "sub": (np.subtract, {"the operands are swapped": lambda a, b: b - a}),
    "mul": (np.multiply, {}),
    "div": (np.divide, {"a/b as a·(1/b)": lambda a, b: a * (1 / b), "the operands are swapped": lambda a, b: b / a}),
    "pow": (np.power, {"a^b as exp(b·log a)": lambda a, b: exp(b * log(a))}),
    "hypot": (np.hypot, {"hypot as sqrt(a² + b²)": lambda a, b: np.sqrt(a * a + b * b)}),
    "atan2": (np.arctan2, {"atan2 as atan(a/b)": lambda a, b: np.arctan(a / b)}),
    "fmod": (np.fmod, {"fmod as a - trunc(a/b)·b": lambda a, b: a - np.trunc(a / b) * b}),
    "difference of squares": (
        lambda a, b: (a - b) * (a + b),
        {"a² - b² of rounded squares": lambda a, b: a * a - b * b},
    ),
}


def formulas(floats: Sequence[np.ndarray], dtype: str) -> Iterator[WrongFormula]:
    """The functions that could be of these inputs."""
    table = OF_ONE if len(floats) == 1 else OF_TWO if len(floats) == 2 else {}
    for function, wrong in table.values():
        yield WrongFormula(
            functools.partial(_spread_floats, function),
            functools.partial(_list_wrong_functions, wrong, dtype),
            single=True,
        )


def _spread_floats(function: Function, floats: Sequence[np.ndarray]) -> np.ndarray:
    return function(*floats)


def _list_wrong_functions(
    wrong: Mapping[str, Function], dtype: str, floats: Sequence[np.ndarray]
) -> Iterator[ErrorModel]:
    for words, function in wrong.items():
        for name in list_computing_dtypes(dtype):
            given = [x.astype(name) for x in floats]
            made = np.asarray(function(*given)).astype(np.float64)
            # In 16 bits much is 0 that is not: that is no evidence of a formula.
            yield ErrorModel(
                f"{words}, in {name}",
                made,
                digits=name != dtype or name != list_computing_dtypes(dtype)[0],
                code=CAUSE_ARITHMETIC,
            )


def list_computing_dtypes(dtype: str) -> list[str]:
    """Dtypes that a kernel may compute in: its own or float32, then a coarser one."""
    own = dtype if dtype in ("float64", "float32") else "float32"
    coarse = "bfloat16" if dtype == "bfloat16" else "float16"
    return [own, *(x for x in ("float32", coarse) if EPS[x] > EPS[own])]
