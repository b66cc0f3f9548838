"""Conversions of every dtype: what they are to give, and faults at a few of their inputs, each beside its sound twin."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tasks import catalogs
from tasks.arrays import torch_tree
from tasks.backends import BackendSpec
from tasks.catalogs.casts import blocks, onnx_form, quantised, rules, values
from tasks.judge import policy_files
from tasks.judging import judge_outputs
from tasks.model import EXHAUSTIVE, LARGEST, Form, Group, RuntimeInfo, Status, Unsupported, get_numpy_dtype
from tasks.model.dtypes import ELEMENT_TYPE, TABLE
from tasks.prepare.cases import PreparedSample, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

#: Conversions that the runtimes of a plain CPU have right.
CONVERTED = [("to_int8", "bool"), ("to_float32", "float16"), ("to_float16", "uint8"), ("to_bool", "int8")]
#: The same of float64, which OpenVINO holds to float32's range (configs/known/casts.yaml).
CONVERTED_WIDE = [("to_float32", "float64"), ("to_float64", "float8_e5m2")]
POLICY, INFO = policy_files.load_policy("error_units"), RuntimeInfo("1", "cpu")


def sample(label: str, dtype: str) -> PreparedSample:
    op, _, variant = label.partition(".")
    group = Group(f"casts:{op}", variant, dtype, 1, distribution=EXHAUSTIVE)
    [found] = prepare_group(group, Path(os.environ["FARM_CACHE"]))[1].samples
    assert found.failure is None, found.failure
    return found


@pytest.mark.parametrize(
    "to", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
)
@pytest.mark.parametrize("source", ["float64", "float32", "float16", "bfloat16", "int16", "uint8", "float8_e5m2"])
def test_a_conversion_to_a_float_is_that_of_ml_dtypes(source: str, to: str) -> None:
    x = values.make_cast_inputs(source, to)
    found = rules.convert_cast_values(x, source, to, rules.list_cast_variants(to)[-1])
    with np.errstate(all="ignore"):
        other = x.astype(np.float64).astype(get_numpy_dtype(to)).astype(np.float64)
    same = (found.values == other) | (np.isnan(found.values) & np.isnan(other))
    assert same[~found.open].all() and found.open.mean() < 0.01


@pytest.mark.parametrize(
    ("source", "to"), [("int64", "float16"), ("uint64", "bfloat16"), ("int64", "float8_e5m2"), ("uint64", "float32")]
)
def test_an_integer_of_64_bits_is_rounded_once(source: str, to: str) -> None:
    x = values.make_cast_inputs(source, to)[::7]
    found = rules.convert_cast_values(x, source, to).values
    spacing = 2.0 ** -(TABLE[to].digits or 0)
    for exact, made in zip(x.tolist(), found.tolist()):
        if abs(made) < LARGEST[to] and exact:
            half = Fraction(2 ** (abs(exact).bit_length() - 1)) * Fraction(spacing) / 2
            assert abs(Fraction(made) - exact) <= half, (exact, made)


def test_integers_wrap_and_fractions_are_cut_off() -> None:
    assert rules.convert_cast_values(np.array([200, -129, 511]), "int64", "int8").values.tolist() == [-56, 127, -1]
    assert rules.convert_cast_values(np.array([-1, 17], np.int8), "int8", "uint4").values.astype(int).tolist() == [
        15,
        1,
    ]
    found = rules.convert_cast_values(np.array([1.9, -1.9, 128.0, np.nan]), "float64", "int8")
    assert found.values[:2].tolist() == [1, -1] and found.open.tolist() == [False, False, True, True]


def test_what_is_out_of_range_saturates_or_does_not() -> None:
    x = np.array([np.inf, -465.0, 464.0, np.nan])
    assert rules.convert_cast_values(x, "float64", "float8_e4m3fn").values[:3].tolist() == [448, -448, 448]
    assert np.isnan(rules.convert_cast_values(x, "float64", "float8_e4m3fn", rules.UNSATURATED).values[[0, 1, 3]]).all()
    assert rules.convert_cast_values(x[:3], "float64", "float4_e2m1fn").values.tolist() == [6, -6, 6]
    assert rules.convert_cast_values(np.array([1e6]), "float64", "float16").values[0] == np.inf


@pytest.mark.parametrize(
    ("variant", "expected"), [("", [4.0, 4.0, 2.0]), ("down", [2.0, 2.0, 2.0]), ("nearest", [4.0, 2.0, 2.0])]
)
def test_powers_of_two_are_rounded_as_asked(variant: str, expected: list[float]) -> None:
    assert (
        rules.convert_cast_values(np.array([3.0, 2.9, 2.0]), "float64", rules.E8M0, variant).values.tolist() == expected
    )


def test_there_is_a_conversion_between_any_two_dtypes() -> None:
    found = {(e.op, e.variant): e for e in catalogs.get_catalog("casts").entries()}
    for to in TABLE:
        if TABLE[to].family not in ("text", "precision"):
            assert len(found[f"casts:to_{to}", ""].dtypes) == 27
    assert all(e.distributions == (EXHAUSTIVE,) for e in found.values())


@pytest.mark.parametrize(
    ("label", "dtype", "forms"),
    [
        ("to_float8_e4m3fn", "float32", ("torch", "onnx")),
        ("to_float8_e5m2", "float16", ("onnx",)),
        ("to_int4", "int8", ("onnx",)),
        ("to_complex64", "float16", ("torch",)),
    ],
)
def test_each_runtime_is_given_what_it_has(label: str, dtype: str, forms: tuple[str, ...]) -> None:
    made = sample(label, dtype)
    for kind in ("torch", "onnx"):
        if kind in forms:
            assert made.form(kind).kind == kind
        else:
            with pytest.raises(Unsupported):
                made.form(kind)


@pytest.mark.parametrize(
    ("source", "to", "opset"),
    [
        ("float64", "float32", 13),
        ("int8", "float64", 13),
        ("float64", "float8_e5m2", 19),
        ("float64", "uint4", 21),
        ("float4_e2m1fn", "float64", 23),
        ("float32", "float8_e8m0fnu", 24),
        ("int2", "float16", 25),
        ("float6_e3m2fn", "float64", 28),
        ("float64", "complex64", None),
    ],
)
def test_a_model_asks_for_no_newer_onnx_than_its_dtypes_do(source: str, to: str, opset: int | None) -> None:
    """A runtime refuses what is newer than it: float64 was taken for a float6, by its first letters."""
    assert onnx_form.find_cast_opset("Cast", (source, to)) == opset


def test_a_dtype_converted_to_itself_is_no_case() -> None:
    group = Group("casts:to_int8", "", "int8", 1, distribution=EXHAUSTIVE)
    [found] = prepare_group(group, Path(os.environ["FARM_CACHE"]))[1].samples
    assert found.failure and "no op 'casts:to_int8' in int8" in found.failure.error


Fault = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from inputs and right outputs, as float64

#: Faults of at most 16 of all inputs: op, dtype, what becomes of the right outputs.
FAULTS: dict[str, tuple[str, str, Fault]] = {
    "below a power of two": ("to_bfloat16", "float32", lambda x, y: np.where((x == 2.0) & (y == 2.0), 1.9921875, y)),
    "a tie away from zero": ("to_int8", "bfloat16", lambda x, y: np.where(x == -3.5, -4.0, y)),
    "one power of two too low": ("to_float8_e8m0fnu.down", "float16", lambda x, y: np.where(x == 1.5, 0.5, y)),
    "a NaN that saturates": (
        "to_float8_e5m2",
        "float16",
        lambda x, y: np.where(np.isnan(x) & (np.cumsum(np.isnan(x)) == 3), 57344.0, y),
    ),
    "Inf that does not": ("to_float8_e5m2", "bfloat16", lambda x, y: np.where(x == np.inf, np.inf, y)),
    "one integer": ("to_int4", "int16", lambda x, y: np.where(x == 4711, 0.0, y)),
    "a NaN is false": (
        "to_bool",
        "float16",
        lambda x, y: np.where(np.isnan(x) & (np.cumsum(np.isnan(x)) == 1), 0.0, y),
    ),
    "a step of a scale": ("quantize_int8.tenth", "float16", lambda x, y: np.where(x == 1.0, y + 1, y)),
    "the wrong end": ("quantize_uint8.tenth", "float16", lambda x, y: np.where(x == np.inf, 0.0, y)),
    "the other half": ("dequantize_float32.third_lowest", "int4", lambda x, y: np.where(x == 3, y * 1.0001, y)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_conversion_that_is_wrong_at_a_few_inputs_is_told_and_its_sound_twin_is_not(name: str) -> None:
    label, dtype, fault = FAULTS[name]
    made = sample(label, dtype)
    [leaf], [given] = made.expected(), made.tensors()
    assert leaf.reference is not None
    right = leaf.reference.astype(np.float64)
    target = get_numpy_dtype(leaf.dtype)
    with np.errstate(all="ignore"):
        outputs = [y.astype(target) for y in (right, fault(given.astype(np.float64), right))]
    changed = outputs[0].astype(np.float64) != outputs[1].astype(np.float64)
    assert 0 < (changed & ~(np.isnan(right) & np.isnan(outputs[1].astype(np.float64)))).sum() <= 16
    found = [judge_outputs(made, [[y]], POLICY, INFO).status for y in outputs]
    assert found == [Status.PASS, Status.WRONG]


def test_quantising_rounds_the_quotient_then_adds_the_zero_point() -> None:
    made = quantised.quantise_values("float16", "int8", "half_odd", 0)
    assert made.zero == -3 - 1 and made.y[np.flatnonzero(made.x == 0.25)[0]] == made.zero  # 0.5 rounds to 0
    back = quantised.dequantise_values("int8", "float32", "half_odd")
    assert back.y[np.flatnonzero(back.x == 1)[0]] == (1 - float(back.zero)) * 0.5


@pytest.mark.parametrize(
    ("name", "label", "dtype"),
    [
        *[(name, *case) for name in ("torch-cpu", "ort-cpu", "openvino-cpu") for case in CONVERTED],
        *[(name, *case) for name in ("torch-cpu", "ort-cpu") for case in CONVERTED_WIDE],
    ],
)
def test_a_runtime_converts(name: str, label: str, dtype: str) -> None:
    group = Group(f"casts:{label}", "", dtype, 1, distribution=EXHAUSTIVE)
    made = prepare_group(group, Path(os.environ["FARM_CACHE"]))[1]
    backend = BackendSpec.parse(name).create()
    runner = Runner(backend, backend.probe(), POLICY, lambda *step: None)
    [row] = (done.row for done in runner.run([make_item_of_whole_group(made)]))
    assert row.status == Status.PASS, row.error


def test_a_function_that_was_called_has_no_attribute_to_ignore() -> None:
    group = Group("casts:to_float8_e8m0fnu", "nearest-unsaturated", "bfloat16", 1, distribution=EXHAUSTIVE)
    made = prepare_group(group, Path(os.environ["FARM_CACHE"]))[1]
    backend = BackendSpec.parse("torch-cpu").create()
    runner = Runner(backend, backend.probe(), POLICY, lambda *step: None)
    [row] = (done.row for done in runner.run([make_item_of_whole_group(made)]))
    assert row.status == Status.WRONG and "attribute" not in str(row.cause)
    # The same numbers from a runtime that was given the graph are those of an ignored attribute.
    import torch

    x = torch.from_numpy(made.samples[0].tensors()[0].view(np.int16)).view(torch.bfloat16)
    y = x.to(torch.float8_e8m0fnu).view(torch.uint8).numpy().view(get_numpy_dtype(rules.E8M0))
    forms = [Form("torch", "", "bfloat16", [], call=call) for call in (None, x.to)]
    found = [judge_outputs(made.samples[0], [[y]], POLICY, INFO, form=form) for form in forms]
    assert ["saturate is ignored" in x.columns["cause"] for x in found] == [True, False]


@pytest.mark.parametrize("label", ["block_quantize.mx-float8_e4m3fn", "block_quantize.mx-float8_e5m2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_quantises_by_blocks_as_the_specification_says(label: str, dtype: str) -> None:
    pytest.importorskip("torch")
    made, variant = sample(label, dtype), label.partition(".")[2]
    [given] = made.tensors()
    elements, scales = torch_tree.list_output_arrays(
        blocks.quantise_in_torch(variant, torch_tree.tensor_from_numpy(given))
    )
    wanted = [leaf.reference for leaf in made.expected()]
    assert all((a.astype(np.float64) == y).all() for a, y in zip((elements, scales), wanted))
    # A scale that is rounded up, as some kernels do, is told from it.
    largest = np.abs(given.astype(np.float64)).reshape(*scales.shape, -1).max(-1)
    up = np.exp2(np.ceil(np.log2(largest)) - np.floor(np.log2(LARGEST[variant.partition("-")[2]])))
    assert (up != wanted[1]).mean() > 0.5


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float6_e3m2fn", "float4_e2m1fn"])
def test_blocks_are_decoded_exactly(dtype: str) -> None:
    made = sample("block_dequantize.mx", dtype)
    elements, scales = made.tensors()
    exact = elements.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, -1)
    reference = made.expected()[0].reference
    assert reference is not None and np.array_equal(reference, exact, equal_nan=True)
    assert np.array_equal(exact.astype(np.float32).astype(np.float64), exact, equal_nan=True)
    assert (made.record.model is not None) == (dtype in ELEMENT_TYPE)
