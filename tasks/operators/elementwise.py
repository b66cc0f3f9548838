"""ONNX operators of single elements, in float64: functions of one number, arithmetic, comparison, logic, rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.model.dtypes import DTYPE_OF_ELEMENT, NATIVE, get_integer_range, get_numpy_dtype, round_to_dtype
from tasks.operators import formulas
from tasks.operators.call import NARROW, Evaluate, OperatorCall
from tasks.operators.left_open import LeftOpen


def _read_float32_attribute(value: float) -> float:
    """A number as an attribute of a node holds it."""
    return float(np.float32(value))


def make_unary_operator(function: Callable[[np.ndarray], Any]) -> Evaluate:
    """An operator that is a function of each element."""
    return lambda call: [np.asarray(function(np.asarray(call.inputs[0])))]


def make_binary_operator(function: Callable[[np.ndarray, np.ndarray], Any]) -> Evaluate:
    """An operator that is a function of two broadcast tensors."""
    return lambda call: [np.asarray(function(np.asarray(call.inputs[0]), np.asarray(call.inputs[1])))]


def make_variadic_operator(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Evaluate:
    """An operator of any number of broadcast tensors, folded from the first on."""

    def operator(call: OperatorCall) -> list[np.ndarray]:
        first, *others = call.arrays()
        for x in others:
            first = function(first, x)
        return [np.array(first)]

    return operator


def _get_float_attribute(call: OperatorCall, name: str, default: float) -> float:
    return float(call.attributes.get(name, _read_float32_attribute(default)))


def evaluate_elu(call: OperatorCall) -> list[np.ndarray]:
    """Elu: α·(eˣ − 1) below 0."""
    (x,) = call.arrays()
    return [np.where(x < 0, _get_float_attribute(call, "alpha", 1.0) * np.expm1(np.minimum(x, 0.0)), x)]


def evaluate_celu(call: OperatorCall) -> list[np.ndarray]:
    """Celu: max(0, x) + min(0, α·(exp(x/α) − 1))."""
    (x,), alpha = call.arrays(), _get_float_attribute(call, "alpha", 1.0)
    return [np.maximum(0.0, x) + np.minimum(0.0, alpha * np.expm1(x / alpha))]


def evaluate_selu(call: OperatorCall) -> list[np.ndarray]:
    """Selu: γ·(α·eˣ − α) up to 0, γ·x above; the defaults are those of the operator's text."""
    (x,) = call.arrays()
    alpha, gamma = (
        _get_float_attribute(call, "alpha", 1.67326319217681884765625),
        _get_float_attribute(call, "gamma", 1.05070102214813232421875),
    )
    return [gamma * np.where(x <= 0, alpha * np.expm1(np.minimum(x, 0.0)), x)]


def evaluate_leaky_relu(call: OperatorCall) -> list[np.ndarray]:
    """LeakyRelu."""
    (x,) = call.arrays()
    return [np.where(x < 0, _get_float_attribute(call, "alpha", 0.01) * x, x)]


def evaluate_thresholded_relu(call: OperatorCall) -> list[np.ndarray]:
    """ThresholdedRelu: x above alpha, else 0."""
    (x,) = call.arrays()
    return [np.where(x > _get_float_attribute(call, "alpha", 1.0), x, 0.0)]


def evaluate_shrink(call: OperatorCall) -> list[np.ndarray]:
    """Shrink: x + bias below −lambd, x − bias above lambd, else 0."""
    (x,), bias, lambd = call.arrays(), _get_float_attribute(call, "bias", 0.0), _get_float_attribute(call, "lambd", 0.5)
    return [np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, np.zeros_like(x)))]


def evaluate_prelu(call: OperatorCall) -> list[np.ndarray]:
    """PRelu: slope·x below 0; the slope is broadcast to x, never x to the slope."""
    x, slope = call.arrays()
    if np.broadcast_shapes(x.shape, slope.shape) != x.shape:
        raise LeftOpen('PRelu: "slope … should be unidirectional broadcastable to input tensor X", and is larger')
    return [np.where(x < 0, slope * x, x)]


def evaluate_divide(call: OperatorCall) -> list[np.ndarray]:
    """Div; of integers towards zero."""
    a, b = call.arrays()
    if a.dtype.kind == "f":
        return [np.divide(a, b)]
    if not b.all():
        raise LeftOpen("Div of an integer by zero is left open")
    quotient = a // b
    cut = (quotient < 0) & (
        quotient * b != a
    )  # rounded down, though to zero is asked; the smallest number has no absolute value
    return [(quotient + cut).astype(a.dtype)]


def evaluate_modulo(call: OperatorCall) -> list[np.ndarray]:
    """Mod: the sign of the divisor, with fmod that of the dividend."""
    a, b = call.arrays()
    if a.dtype.kind != "f" and not b.all():
        raise LeftOpen("Mod of an integer by zero is left open")
    return [np.asarray(np.fmod(a, b) if call.attributes.get("fmod") else np.mod(a, b))]


def evaluate_power(call: OperatorCall) -> list[np.ndarray]:
    """Pow: of the type of the base."""
    x, y = call.arrays()
    if x.dtype.kind == "f" or y.dtype.kind == "f":
        found = np.power(x.astype(np.float64), y.astype(np.float64))
        return [found if x.dtype.kind == "f" else found.astype(x.dtype)]
    if (y < 0).any():
        raise LeftOpen("Pow of integers with a negative exponent is left open")
    return [np.power(x, y.astype(x.dtype))]


def evaluate_bit_shift(call: OperatorCall) -> list[np.ndarray]:
    """BitShift."""
    x, y = call.arrays()
    return [np.left_shift(x, y) if call.attributes["direction"] == "LEFT" else np.right_shift(x, y)]


def evaluate_clip(call: OperatorCall) -> list[np.ndarray]:
    """Clip: min(max, max(x, min)), also where the bounds are the wrong way round (all elements are then max)."""
    x, low, high = np.asarray(call.inputs[0]), call.at(1), call.at(2)
    x = x if low is None else np.maximum(x, np.asarray(low, x.dtype))
    return [np.array(x if high is None else np.minimum(x, np.asarray(high, x.dtype)))]


def evaluate_is_inf(call: OperatorCall) -> list[np.ndarray]:
    """IsInf."""
    (x,), a = call.arrays(), call.attributes
    positive, negative = a.get("detect_positive", 1), a.get("detect_negative", 1)
    return [(np.isposinf(x) if positive else np.zeros(x.shape, bool)) | (np.isneginf(x) & bool(negative))]


def evaluate_where(call: OperatorCall) -> list[np.ndarray]:
    """Where."""
    return [np.where(*(np.asarray(x) for x in call.inputs))]


def evaluate_cast(call: OperatorCall) -> list[np.ndarray] | None:
    """Cast between numbers: to a float by rounding, to an integer towards zero, to bool by ≠ 0."""
    (x,) = call.arrays()
    to = DTYPE_OF_ELEMENT[int(call.attributes["to"])]
    if to in NARROW or to == "float64":
        return [round_to_dtype(x.astype(np.float64), to)]
    if to == "bool":
        return [x != 0]
    if to not in NATIVE or to == "str" or x.dtype.kind not in "fiub":
        return None  # text, floats and integers of few bits
    low, high = get_integer_range(to)
    if x.dtype.kind != "f":
        return [x.astype(get_numpy_dtype(to))]
    if not np.isfinite(x).all() or ((np.trunc(x) < low) | (np.trunc(x) > high)).any():
        raise LeftOpen("Cast of a float outside the range of an integer is left open")
    return [np.trunc(x).astype(get_numpy_dtype(to))]


def evaluate_erf(call: OperatorCall) -> list[np.ndarray]:
    """Erf; onnx's rounds to float32."""
    return [formulas.erf(np.asarray(call.inputs[0]))]


def evaluate_gelu(call: OperatorCall) -> list[np.ndarray]:
    """Gelu, by erfc or by tanh."""
    (x,) = call.arrays()
    by_tanh = call.attributes.get("approximate", "none") == "tanh"
    return [(formulas.compute_gelu_tanh if by_tanh else formulas.compute_gelu)(x)]


def evaluate_hard_sigmoid(call: OperatorCall) -> list[np.ndarray]:
    """HardSigmoid; onnx's takes the default for an alpha or beta of 0."""
    (x,) = call.arrays()
    return [np.clip(_get_float_attribute(call, "alpha", 0.2) * x + _get_float_attribute(call, "beta", 0.5), 0.0, 1.0)]


def evaluate_hard_swish(call: OperatorCall) -> list[np.ndarray]:
    """HardSwish; its 1/6 is exact here."""
    (x,) = call.arrays()
    return [x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)]


def evaluate_mish(call: OperatorCall) -> list[np.ndarray]:
    """Mish: x·tanh(log(1 + exp(x)))."""
    (x,) = call.arrays()
    return [x * np.tanh(formulas.compute_softplus(x))]


def make_cosine_window(*a: float) -> Evaluate:
    """Σ (−1)ᵏ·aₖ·cos(2πkn/N) for n below the size; N is the size, or where it is not periodic one less."""

    def operator(call: OperatorCall) -> list[np.ndarray]:
        size = int(np.asarray(call.inputs[0]).reshape(-1)[0])
        turns = np.arange(size) / max(size if call.attributes.get("periodic", 1) else size - 1, 1)
        return [sum(((-1) ** k * x * np.cos(2 * np.pi * k * turns) for k, x in enumerate(a)), np.zeros(size))]

    return operator
