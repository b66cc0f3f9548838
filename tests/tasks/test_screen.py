"""What a device is given when it is screened, what its answers say, and who is blamed: planted faults beside sound twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tasks import wire
from tasks.backends import BackendSpec
from tasks.model import Form, Program
from tasks.model.dtypes import TABLE
from tasks.screen.decide import COMMON, DISSENT, RIGHT, WRONG, decide_devices
from tasks.screen.exercises import CORE, list_screen_exercises
from tasks.screen.forms import make_exercise_form
from tasks.screen.observed import ObservedExercise, OutputVariant
from tasks.screen.passes import describe_exercise_output, screen_device, view_as_bits
from tasks.screen.probe import screen_device_features
from tests.bench.screening import Made, blame_sound, flush, is_found, make_all, make_honest, truncate_bits
from tests.plugin.planted_screen import Fault, compute


@pytest.fixture(scope="module")
def made() -> list[Made]:
    return make_all()


# --- exercises ------------------------------------------------------------------------------------------------------


def test_an_exact_answer_is_that_of_every_honest_arithmetic(made: list[Made]) -> None:
    """Sums in any order and width, factors in TF32, results cut off, subnormals flushed."""
    for one in made:
        if one.answer.bound is None:
            outputs = make_honest(one)
            off = {name: describe_exercise_output(one.answer, x).wrong for name, x in outputs.items()}
            assert set(off.values()) == {0}, one.exercise.label


def test_every_bit_of_an_answer_takes_both_values_on_each_datapath(made: list[Made]) -> None:
    """Else a bit that is stuck at the one would never show."""
    ones, zeros = dict[tuple[str, str], int](), dict[tuple[str, str], int]()
    for one in made:
        path = (one.exercise.unit, one.exercise.dtype)
        if one.answer.bound is None:
            bits = view_as_bits(one.answer.expected)
            ones[path] = ones.get(path, 0) | int(np.bitwise_or.reduce(bits))
            zeros[path] = zeros.get(path, 0) | int(np.bitwise_or.reduce(~bits))
    for path in ones:
        all_bits = (1 << TABLE[path[1]].bits) - 1
        # The low bits of a float32 product are within what TF32 and the least wide adders leave.
        floor = 0 if path != ("matrix", "float32") else 0b1111
        # Integers of a product or a sum stay small: their high bits are those of the sign.
        missing = all_bits & ~floor & ~(ones[path] & zeros[path])
        assert not missing, (path, hex(missing))


def test_turned_operands_have_the_turned_answer(made: list[Made]) -> None:
    for one in made:
        if one.answer.bound is None:
            form = one.exercise.form("torch", one.exercise.turn(one.operands, 5), one.answer.expected.shape)
            assert (view_as_bits(compute(form)) == view_as_bits(np.roll(one.answer.expected, 5, 0))).all(), (
                one.exercise.label
            )


def test_operands_are_those_of_the_seed() -> None:
    def first(seed: int) -> bytes:
        return next(iter(list_screen_exercises(CORE, seed))).make()[0][0].tobytes()

    assert first(1) == first(1) != first(2)


@pytest.mark.parametrize("name", ["torch-cpu", "ort-cpu"])
def test_a_sound_backend_is_right_in_all_that_it_runs(name: str) -> None:
    backend = BackendSpec.parse(name).create()
    info = backend.start()
    seen = list(screen_device(backend, info.compute_precision, 0.01))
    assert {one.label for one in seen} == {x.label for x in list_screen_exercises(CORE)}
    ran = [one for one in seen if one.variants]
    assert len(ran) >= 10 and all(decide_devices({"it": one})["it"].kind == RIGHT for one in ran)
    assert all(one.passes == 1 and one.pass_s > 0 for one in ran)
    assert all(one.skipped for one in seen if not one.variants)


# --- who is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault("matrix", "float16", "element", 7, 0, "flip"),
        Fault("matrix", "bfloat16", "lane", 3, 15, "1"),
        Fault("vector", "float32", "warp", 2, 22, "0"),
        Fault("special", "float32", "lane", 5, 1, "flip"),
        Fault("integer", "int64", "element", 9, 63, "1"),
        Fault("memory", "int32", "element", 100, 4, "0"),
        Fault("reduction", "float32", "element", 8, 30, "flip", rate=0.3),
        Fault("matrix", "float64", "any", bit=51, rate=1e-5),
        Fault("matrix", "float32", "lane", 1, 20, "flip", after_s=40.0),
    ],
)
def test_a_planted_fault_is_found_and_its_sound_twin_is_not(made: list[Made], fault: Fault) -> None:
    assert is_found(made, fault, 1, pass_s=5.0)
    assert not is_found(made, replace(fault, rate=0.0), 1, pass_s=5.0)


def test_no_sound_device_is_blamed(made: list[Made]) -> None:
    told = blame_sound(made, 400, np.random.default_rng(8))
    assert told["quarantined"] == 0 and told["dissents"] > 0


def seen(*variants: OutputVariant, exact: bool = False, more: int = 0) -> ObservedExercise:
    passes = sum(v.count for v in variants)
    return ObservedExercise("full_matmul", "float32", "matrix", exact, passes, variants, more, elements=6400)


def inexact(digest: str, units: float = 0.001, count: int = 10, parts: str = "", **more: Any) -> OutputVariant:
    """parts: a letter for each part."""
    told = tuple(parts or digest * 64)
    return OutputVariant(digest, count, 1, units=units, parts=told, parts_units=(units,) * len(told), **more)


def test_a_dissent_that_nothing_decides_is_told() -> None:
    equals = {n: seen(inexact("a")) for n in ("one", "two", "three")} | {"four": seen(inexact("b", 0.002))}
    kinds = {name: d.kind for name, d in decide_devices(equals).items()}
    assert kinds == {"one": RIGHT, "two": RIGHT, "three": RIGHT, "four": DISSENT}


def test_a_spot_that_is_far_from_float64_is_a_fault() -> None:
    spot = inexact("b", 0.5, parts="b" + "a" * 63)
    equals = {n: seen(inexact("a")) for n in ("one", "two", "three")} | {"four": seen(spot)}
    assert decide_devices(equals)["four"].kind == WRONG
    once = seen(inexact("a", count=9), replace(spot, count=1))
    assert decide_devices({"it": once})["it"].kind == WRONG


def test_two_equals_have_no_majority() -> None:
    spot = inexact("b", 0.5, parts="b" + "a" * 63)
    assert {d.kind for d in decide_devices({"one": seen(inexact("a")), "two": seen(spot)}).values()} == {RIGHT}


def test_what_all_equals_get_wrong_alike_is_no_device_s_fault() -> None:
    off = seen(OutputVariant("w", 10, 1, wrong=3, bits="1"), exact=True)
    assert {d.kind for d in decide_devices({n: off for n in ("one", "two", "three")}).values()} == {COMMON}
    assert decide_devices({"alone": off})["alone"].kind == WRONG
    coarse = seen(OutputVariant("w", 10, 1, wrong=6000, bits="ff"), exact=True)
    assert decide_devices({"alone": coarse})["alone"].kind == COMMON


def test_observations_travel() -> None:
    one = seen(inexact("a"), inexact("b", 0.5))
    assert wire.decode_wire_message(wire.encode_wire_message(one)) == one


# --- how a device computes ------------------------------------------------------------------------------------------


class Arithmetic:
    """A stand-in backend that computes as ``multiply`` does."""

    forms, checks, resource = ("torch",), ("forward",), "GPU"

    def __init__(self, multiply: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        self.multiply = multiply

    def canary(self, form: Form) -> Program:
        if form.op == "probe_product":
            return Program(lambda: [self.multiply(*form.arrays).astype(form.arrays[0].dtype)])
        return Program(lambda: [compute(form)])


def add_in_groups(a: np.ndarray, b: np.ndarray, bits: int) -> np.ndarray:
    """A fused adder: all products of a step are aligned to the largest, and cut off so many bits below it."""
    products = a.astype(np.float64)[:, :, None] * b.astype(np.float64)[None]
    largest = np.abs(products).max(axis=1, keepdims=True)
    unit = 2.0 ** (np.floor(np.log2(np.where(largest, largest, 1))) - bits)
    return np.asarray((np.trunc(products / unit) * unit).sum(axis=1))


@pytest.mark.parametrize("bits", [23, 24, 25])
def test_the_known_product_tells_adders_apart(bits: int) -> None:
    told = dict(screen_device_features(Arithmetic(lambda a, b: add_in_groups(a, b, bits))))  # type: ignore[arg-type]
    assert told["known product float16"].startswith(f"{bits} bits, then cut off")


def test_products_that_are_rounded_first_are_told() -> None:
    def in_sequence(a: np.ndarray, b: np.ndarray, fused: bool) -> np.ndarray:
        total = np.zeros((len(a), b.shape[1]), np.float32)
        for k in range(a.shape[1]):
            product = a[:, k, None].astype(np.float64) * b[k].astype(np.float64)
            total = (total + (product if fused else product.astype(np.float32))).astype(np.float32)
        return total

    for fused in (True, False):
        told = dict(screen_device_features(Arithmetic(lambda a, b, fused=fused: in_sequence(a, b, fused))))  # type: ignore[arg-type, misc]
        assert told["fused in products float32"] == ("yes" if fused else "no")


def test_tf32_and_flushing_are_told() -> None:
    def coarse(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype == np.float32:
            a, b = truncate_bits(a, 13), truncate_bits(b, 13)
        return np.asarray(flush(a).astype(np.float64) @ flush(b).astype(np.float64))

    told = dict(screen_device_features(Arithmetic(coarse)))  # type: ignore[arg-type]
    assert told["digits of factors float32"] == "10 (as TF32)"
    assert told["digits of factors float16"] == "10"
    assert told["subnormals in products float16"] == "in flushed, out kept"
    assert told["subnormals float16"] == "in kept, out kept"


def test_a_form_of_onnx_has_the_shapes_of_its_operands() -> None:
    onnx = pytest.importorskip("onnx")
    arrays = [np.zeros((300, 2), np.float32), np.zeros((2, 5), np.float32)]
    form = make_exercise_form("onnx", "x", "float32", arrays, lambda a, b: a @ b, ("MatMul",), (300, 5))
    assert form.model is not None
    model = onnx.load_from_string(form.model)
    onnx.checker.check_model(model, full_check=True)
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [300, 2]
