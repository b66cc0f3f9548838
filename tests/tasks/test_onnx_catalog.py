"""The catalog of ONNX's node cases: complete, the same however it is loaded, right against two runtimes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from tasks.arrays.tree import TensorSpec
from tasks.backends.onnxruntime import OnnxRuntime
from tasks.catalogs.base import Entry, Sample
from tasks.catalogs.onnx import node_suite as onnx_node
from tasks.catalogs.onnx import pooling
from tasks.catalogs.onnx.node_suite import OnnxNode
from tasks.judge.error_metrics import get_classic_tolerance
from tasks.model import Form, Group, OpClass, get_numpy_dtype, get_wide_dtype, is_inexact_dtype

CATALOG = OnnxNode()


@pytest.fixture(scope="module")
def entries() -> dict[str, Entry]:
    return {x.variant: x for x in CATALOG.entries() if "own" in x.distributions}


def sample(op: str, variant: str, dtype: str = "float32") -> Sample:
    (made,) = CATALOG.samples(Group(op, variant, dtype, 4), 0)
    return made


def test_every_node_case_is_an_entry(entries: dict[str, Entry]) -> None:
    from onnx.backend.test.loader import load_model_tests

    names = {x.name.removeprefix("test_") for x in load_model_tests(kind="node")}
    assert set(entries) == names
    assert len(entries) >= 1884
    assert [x.op for x in entries.values()] == sorted(x.op for x in entries.values())


def test_an_expanded_function_body_belongs_to_its_op(entries: dict[str, Entry]) -> None:
    assert entries["gelu_default_1_expanded"].op == "onnx:Gelu"
    assert entries["layer_normalization_2d_axis0_expanded_ver18"].op == "onnx:LayerNormalization"
    assert entries["ai_onnx_ml_binarizer"].op == "onnx:Binarizer"


def test_the_dtype_is_that_of_the_first_floating_input(entries: dict[str, Entry]) -> None:
    assert entries["add"].dtypes == ("float32",)
    assert entries["add_int8"].dtypes == ("int8",)
    assert entries["where_example"].dtypes == ("float32",)
    assert entries["cast_INT4_to_FLOAT"].dtypes == ("int4",)
    assert entries["cast_FLOAT8E5M2_to_FLOAT"].dtypes == ("float8_e5m2",)
    assert entries["string_concat"].dtypes == ("str",)
    assert entries["constant"].dtypes == ("float32",)


def test_every_case_becomes_a_sample_or_says_why_not(entries: dict[str, Entry]) -> None:
    found: dict[OpClass, set[str]] = {}
    for entry in entries.values():
        made = sample(entry.op, entry.variant, entry.dtypes[0])
        assert made.failure is None
        assert made.model
        assert (made.oracle, [x.name for x in made.others]) in (("stored", []), ("float64", ["stored"]))
        found.setdefault(made.op_class, set()).add(entry.op)
        for leaf in made.expected:
            assert leaf.reference is not None
            assert leaf.reference.dtype == get_numpy_dtype(get_wide_dtype(leaf.dtype))
            assert leaf.shape == leaf.reference.shape
            # The suite's own tolerance, but for stored outputs that were rounded to 16 bits on the way, and transforms.
            inexact = is_inexact_dtype(leaf.dtype)
            assert leaf.rtol == max(
                get_classic_tolerance(leaf.dtype)[0],
                {"float16": 2**-8, "bfloat16": 2**-5}.get(leaf.dtype, 1e-3 * inexact),
            )
            assert leaf.atol is not None
            own = max(get_classic_tolerance(leaf.dtype)[1], 1e-7 * inexact)
            assert leaf.atol > own if entry.op in ("onnx:DFT", "onnx:STFT") else leaf.atol == own
        for array in made.arrays:
            assert array.flags.c_contiguous
    assert found[OpClass.RANDOM] == {"onnx:Bernoulli", "onnx:Dropout"}


def test_only_dropout_that_drops_is_random() -> None:
    assert sample("onnx:Dropout", "training_dropout").op_class is OpClass.RANDOM
    assert sample("onnx:Dropout", "training_dropout_zero_ratio").op_class is not OpClass.RANDOM
    assert sample("onnx:Dropout", "dropout_default_mask").op_class is not OpClass.RANDOM


def test_sequences_optionals_and_strings_keep_their_structure() -> None:
    made = sample("onnx:SequenceInsert", "sequence_insert_at_back")
    assert isinstance(made.args[0], list)
    assert isinstance(made.args[1], TensorSpec)
    assert len(made.expected) == len(made.args[0]) + 1
    assert sample("onnx:OptionalHasElement", "optional_has_element_empty_optional_input").args == (None,)
    text = sample("onnx:StringConcat", "string_concat", "str")
    assert text.expected[0].dtype == "str"
    assert {type(x) for x in text.arrays[0].ravel()} == {str}


def test_low_bit_inputs_are_dense_arrays_of_their_dtype() -> None:
    made = sample("onnx:Cast", "cast_INT4_to_FLOAT", "int4")
    assert made.arrays[0].dtype == get_numpy_dtype("int4")
    assert made.expected[0].dtype == "float32"


def test_an_unknown_case_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="test_nosuch"):
        list(CATALOG.samples(Group("onnx:Add", "nosuch", "float32", 1), 0))


def test_a_case_that_cannot_be_converted_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    case = onnx_node._find_suite_case("test_add", "Add")
    broken = type("Case", (), {**vars(case), "data_sets": [([object(), object()], [])]})()
    monkeypatch.setattr(onnx_node, "_find_suite_case", lambda name, op: broken)
    made = sample("onnx:Add", "add")
    assert made.failure is not None
    assert (made.failure.status, made.failure.stage) == ("invalid", "sample")


def test_a_model_without_a_node_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    case = onnx_node._find_suite_case("test_add", "Add")
    empty = type(case.model)()
    empty.CopyFrom(case.model)
    del empty.graph.node[:]
    monkeypatch.setattr(
        onnx_node, "_find_suite_case", lambda name, op: type("Case", (), {**vars(case), "model": empty})()
    )
    made = sample("onnx:Add", "add")
    assert made.failure is not None
    assert made.failure.status == "vacuous"


ALONE = """
import hashlib, sys
from tasks.catalogs.onnx import node_suite as onnx_node
from tasks.catalogs.onnx import pooling
from tasks.model import OpClass, Group
made = next(onnx_node.OnnxNode().samples(Group(sys.argv[1], sys.argv[2], "float32", 1), 0))
loaded = len(sys.modules[onnx_node._CASES]._NodeTestCases)
print(hashlib.sha256(b"".join(x.tobytes() for x in made.arrays) + made.model).hexdigest(), loaded)
"""


@pytest.mark.parametrize(("op", "variant"), [("onnx:Softmax", "softmax_axis_0"), ("onnx:LSTM", "lstm_defaults")])
def test_one_case_is_made_without_the_others_and_is_the_same(op: str, variant: str, entries: dict[str, Entry]) -> None:
    import hashlib

    made = sample(op, variant)
    digest = hashlib.sha256(b"".join(x.tobytes() for x in made.arrays) + (made.model or b"")).hexdigest()
    alone = subprocess.run(
        [sys.executable, "-c", ALONE, op, variant], capture_output=True, text=True, check=True, cwd=os.getcwd()
    )
    same, loaded = alone.stdout.split()
    assert same == digest
    assert int(loaded) < len(entries) / 10


def test_making_samples_leaves_numpys_generator_alone() -> None:
    code = (
        "import numpy as np; np.random.seed(7); a = np.random.get_state()[1].tolist()\n"
        "from tasks.catalogs.onnx.node_suite import _load_suite_modules, _CASES; _load_suite_modules((_CASES + '.softmax',))\n"
        "assert np.random.get_state()[1].tolist() == a"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def outcome(backend: OnnxRuntime, entry: Entry) -> str:
    made = sample(entry.op, entry.variant, entry.dtypes[0])
    form = Form("onnx", entry.op, entry.dtypes[0], made.arrays, args=made.args, model=made.model)
    actual: list[Any] = list(backend.build(form).run())
    assert len(actual) == len(made.expected)
    for value, leaf in zip(actual, made.expected):
        assert value.shape == leaf.shape
        assert leaf.reference is not None
        if value.dtype.kind in "OUS":
            assert value.tolist() == leaf.reference.tolist()
        else:
            assert value.dtype.name == leaf.dtype
            np.testing.assert_allclose(value.astype(get_wide_dtype(leaf.dtype)), leaf.reference, rtol=1e-3, atol=1e-7)
    return "pass"


@pytest.mark.parametrize(
    "variant",
    [
        "softmax_axis_0",
        "castlike_FLOAT_to_INT4",
        "castlike_BFLOAT16_to_FLOAT",
        "castlike_FLOAT_to_FLOAT8E5M2",
        "castlike_UINT4_to_UINT8",
        "sequence_insert_at_front",
        "split_to_sequence_1",
        "identity_sequence",
        "if_seq",
        "string_concat",
        "loop16_seq_none",
        "lstm_defaults",
        "constant",
    ],
)
def test_the_cases_hold_on_onnxruntime(variant: str, entries: dict[str, Entry]) -> None:
    pytest.importorskip("onnxruntime")
    assert outcome(OnnxRuntime("ort-cpu", "cpu", {}), entries[variant]) == "pass"


# --- pooling
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["AVG", "MAX"])
@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_pooling_has_the_bits_of_onnxs_own_loop(kind: str, count_include_pad: int, dtype: str) -> None:
    pooling.install_fast_pooling()
    (loop,) = pooling._loops
    random = np.random.default_rng(0)
    for kernel, strides, dilations, tail in (
        ((2, 3), (1, 1), (1, 1), 0),
        ((3, 3), (2, 3), (1, 2), 1),
        ((9, 9), (2, 2), None, 2),
    ):
        x = random.standard_normal((2, 3, 17, 19)).astype(dtype)
        pads = [1, 0, tail, 1]
        padded = np.pad(x, [(0, 0), (0, 0), (1, tail), (0, 1)], constant_values=0 if count_include_pad else np.nan)
        gaps = dilations or (1, 1)
        sizes = [n + pads[i] + pads[i + 2] - 1 - (kernel[i] - 1) * gaps[i] for i, n in enumerate(x.shape[2:])]
        out = [n // stride + 1 for n, stride in zip(sizes, strides)]
        given = (padded, x.shape, kernel, strides, out, kind, pads, pads, dilations, count_include_pad)
        np.testing.assert_array_equal(pooling.pool_windows(*given), loop(*given))
