"""A second oracle: its agreement is in the row, its disagreement is a finding that blames nobody."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import catalogs
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.catalogs.base import ROUNDING, Catalog, Entry, Oracle, Sample
from tasks.catalogs.torch.opinfo import TorchOpInfo, _load_op_db
from tasks.catalogs.torch.reference import _far_airy_ai
from tasks.judge import policy_files
from tasks.judge.weak_samples import compare_two_oracles
from tasks.model import Form, Group, Leaf, OpClass, Program, RuntimeInfo
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

X = np.arange(1, 9, dtype=np.float32)


class Oracled(Catalog):
    """x + 1 with a second oracle, planted by the op's name."""

    name = "oracled"
    forms = ("oracled",)

    def version(self) -> str:
        return "1"

    def entries(self) -> list[Entry]:
        return [
            Entry(f"oracled:{name}", "", ("float32",)) for name in ("agrees", "near", "wrong", "shape", "nan", "none")
        ]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        y = X.astype(np.float64) + 1
        second = {
            "agrees": y,
            "near": y * (1 + 2.0**-23),
            "wrong": y * np.array([1] * 7 + [1.01]),
            "shape": y[:-1],
            "nan": np.where(y == y[3], np.nan, y),
        }
        others = [Oracle("planted", [second[group.op_name]])] if group.op_name in second else []
        yield Sample(0, arrays=[X], expected=[Leaf("float32", y.shape, y, np.full(y.shape, 1e-7))], others=others)

    def call(self, group: Group) -> Any:
        return None


class Plus(Backend):
    """x + ``added``."""

    vendor = "here"
    forms = ("oracled",)
    added = 1.0

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("1", "cpu")

    def build(self, form: Form) -> Program:
        return Program(lambda: [X + np.float32(self.added)])


@pytest.fixture
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(catalogs.BUILT_IN, "oracled", f"{__name__}:Oracled")

    def run(op: str, added: float = 1.0, policy: str = "error_units") -> dict[str, Any]:
        _, prepared = prepare_group(Group(f"oracled:{op}", "", "float32", 1), tmp_path)
        backend = Plus("plus-cpu", "cpu", {})
        backend.added = added
        runner = Runner(backend, backend.probe(), policy_files.load_policy(policy), lambda *_: None)
        (done,) = runner.run([make_item_of_whole_group(prepared)])
        made = done.row.values()
        return dict(made)

    return run


def test_an_oracle_that_agrees_adds_columns_and_changes_no_verdict(row: Any) -> None:
    made = row("agrees")
    assert (made["status"], made["second_oracle"], made["second_units"], made["oracles_units"]) == (
        "pass",
        "planted",
        0,
        0,
    )
    near = row("near")
    assert near["status"] == "pass" and 0 < near["oracles_units"] <= 1 and 0 < near["second_units"] <= 1
    assert row("agrees", added=1.5)["status"] == "wrong"


def test_without_a_second_oracle_the_columns_are_absent(row: Any) -> None:
    assert row("none")["second_oracle"] is None


@pytest.mark.parametrize("policy", ["error_units", "classic", "absolute"])
@pytest.mark.parametrize("op", ["wrong", "nan"])
def test_a_wrong_reference_is_a_finding_of_its_own_under_every_policy(row: Any, op: str, policy: str) -> None:
    made = row(op, policy=policy)
    assert (made["status"], made["kind"]) == ("invalid", "oracle")
    assert "float64 and planted disagree" in made["error"] and "this backend agrees with float64" in made["error"]


def test_a_backend_that_agrees_with_neither_oracle_is_not_blamed_either(row: Any) -> None:
    made = row("wrong", added=2.0)
    assert (made["status"], made["kind"]) == ("invalid", "oracle") and "agrees with neither" in made["error"]


def test_rounding_of_float64_is_no_disagreement_where_an_op_sums() -> None:
    y = np.array([1.0, 0.0])
    leaf = Leaf("float32", (2,), y)
    off = [y + np.array([0, 1e-16])]
    assert compare_two_oracles(off, [leaf], OpClass.COMPOSITE)["units"] > 1e20
    assert compare_two_oracles(off, [leaf], OpClass.COMPOSITE, ROUNDING)["units"] <= 1


# -- torch's references -----------------------------------------------------------------------------------


def samples(name: str, dtype: str = "float32", variant: str = "", count: int = 8) -> list[Sample]:
    return list(TorchOpInfo().samples(Group(f"torch:{name}", variant, dtype, count), 2))


def units(sample: Sample) -> float:
    (other,) = sample.others
    return float(compare_two_oracles(other.references, sample.expected, sample.op_class, other.rounding)["units"])


@pytest.mark.parametrize(
    "name", ["exp", "pow", "sum", "fft.ihfft2", "nn.functional.layer_norm", "round", "argmax", "masked.sum"]
)
def test_the_reference_of_an_op_agrees_with_torch(name: str) -> None:
    made = samples(name)
    assert any(s.others for s in made)
    assert max(units(s) for s in made if s.others) <= 4


def test_a_planted_wrong_reference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load_op_db()["exp", ""], "ref", np.exp2)
    assert max(map(units, samples("exp"))) > 1e4


@pytest.mark.parametrize(
    "reference",
    [
        lambda x: 1 / 0,
        lambda x: (x, x),
        lambda x: np.exp(x)[..., None],
        lambda x: np.exp(x.astype(np.float32)),
        lambda x: np.exp(x) + 0j,
        lambda x: np.array("text"),
    ],
)
def test_a_reference_that_says_nothing_comparable_is_no_oracle(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load_op_db()["exp", ""], "ref", reference)
    made = samples("exp")
    assert made and all(not s.others and not s.failure for s in made)


def test_references_that_are_not_meant_for_some_arguments() -> None:
    told = [s for s in samples("std") if "correction" in str(s.kwargs) or "unbiased" in str(s.kwargs)]
    assert any(s.others for s in told)
    assert not any(s.others for s in samples("std") if str(s.kwargs) not in map(str, (t.kwargs for t in told)))
    assert not any(s.others for s in samples("nn.functional.conv_transpose2d"))


def test_ai_has_a_reference_wherever_it_has_a_value() -> None:
    import mpmath

    far = np.array([-2e6, -12345678.9, 2e6])  # beyond SciPy's range
    with np.errstate(all="ignore"):
        given = np.concatenate([far, [-1e205, -5e205, -1.7e308, np.inf, -np.inf, np.nan]])
        found = _far_airy_ai(given)
    assert found[:2] == pytest.approx([float(mpmath.airyai(x)) for x in far[:2]], rel=1e-5) and found[2] == 0
    assert (np.abs(found[3:6]) <= 1 / np.sqrt(np.pi * np.sqrt(-given[3:6]))).all()  # where the phase overflows too
    assert (found[6:8] == 0).all() and np.isnan(found[8])


def test_where_torch_is_known_to_be_wrong_in_float64_the_reference_is_the_first_oracle() -> None:
    import torch

    info = _load_op_db()["special.ndtr", ""]
    far = torch.tensor([-9.0])
    from tasks.catalogs.torch.samples import OpInfoSampleMaker

    class Source:
        input, args, kwargs = far, (), {}

    made = OpInfoSampleMaker(info, "float32", 4).make(0, Source())
    assert made.oracle == "numpy" and not made.others
    reference = made.expected[0].reference
    # Φ(−9) = erfc(9/√2)/2, from math's own erfc; torch's float64 gives 0.
    assert reference is not None and reference[0] == pytest.approx(math.erfc(9 / math.sqrt(2)) / 2, rel=1e-12)
    assert torch.special.ndtr(far.double()).item() == 0


# -- the critical catalog ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "embedding", "cross_entropy"])
def test_torch_in_float64_is_the_second_oracle_of_the_critical_ops(name: str) -> None:
    (made,) = catalogs.get_catalog("critical").samples(Group(f"critical:{name}", "", "float16", 1), 2)
    assert (made.oracle, made.others[0].name) == ("numpy-float64", "torch-float64")
    assert units(made) <= 1


def test_a_wrong_critical_reference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.catalogs.critical.ops import OPS

    planted = replace(
        OPS["layer_norm"], reference=lambda x, **kwargs: OPS["layer_norm"].reference(x, **kwargs | {"eps": 1e-2})
    )
    catalog = catalogs.get_catalog("critical")
    monkeypatch.setattr(catalog, "_op", lambda group: planted)
    (made,) = catalog.samples(Group("critical:layer_norm", "", "float32", 1), 2)
    assert units(made) > 1e3


# -- the ONNX node suite ---------------------------------------------------------------------------------------


def case(op: str, variant: str) -> Sample:
    (made,) = catalogs.get_catalog("onnx").samples(Group(f"onnx:{op}", variant, "float32", 1), 4)
    return made


@pytest.mark.parametrize(
    ("op", "variant"),
    [("Softmax", "softmax_axis_0"), ("LSTM", "lstm_with_peepholes"), ("Gelu", "gelu_default_2_expanded")],
)
def test_a_node_case_is_evaluated_in_float64_and_agrees_with_what_the_suite_stored(op: str, variant: str) -> None:
    made = case(op, variant)
    assert (made.oracle, made.others[0].name, made.others[0].rounded) == ("float64", "stored", True)
    leaf, other = made.expected[0], made.others[0].references[0]
    assert leaf.reference is not None and leaf.noise is not None and leaf.noise.max() < 1e-5
    assert (leaf.reference.astype(np.float32) != leaf.reference).any()  # more digits than float32 has
    assert compare_two_oracles([other], made.expected[:1], made.op_class)["classic"]


def test_a_case_that_moves_rounds_or_selects_keeps_its_stored_output() -> None:
    for op, variant in (("Cast", "cast_FLOAT_to_FLOAT16"), ("Relu", "relu"), ("TopK", "top_k")):
        made = case(op, variant)
        assert (made.oracle, made.op_class, made.others) == ("stored", OpClass.EXACT, [])


def test_a_float64_evaluation_of_another_op_disagrees_with_the_stored_output(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.catalogs.onnx import float64 as onnx_float64

    run = onnx_float64.EvaluatedGraph.run
    monkeypatch.setattr(
        onnx_float64.EvaluatedGraph, "run", lambda self, feeds: {k: y * 1.01 for k, y in run(self, feeds).items()}
    )
    made = case("Softmax", "softmax_axis_0")
    found = compare_two_oracles(made.others[0].references, made.expected, made.op_class)
    assert not found["classic"] and found["units"] > 1e3


def test_scales_that_would_change_a_shape_are_not_moved() -> None:
    made = case("Resize", "resize_upsample_scales_linear")
    assert made.op_class is OpClass.COMPOSITE
    assert made.expected[0].noise is not None and np.isfinite(made.expected[0].noise).all()
    assert case("Resize", "resize_upsample_scales_nearest").op_class is OpClass.DISCONTINUOUS


def test_a_graph_whose_result_onnx_leaves_undefined_is_the_exporters() -> None:
    from onnx import TensorProto, helper

    from tasks.prepare.onnx_export import NotFaithful, _check_by_evaluator

    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [0]), ("y", []))]
    graph = helper.make_graph([helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0)], "mean", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(NotFaithful, match="undefined"):
        _check_by_evaluator(model, [np.zeros(0, np.float32)], [Leaf("float32", (), np.array(np.nan))], [])


class Refuses(Backend):
    """Builds nothing."""

    forms = ("onnx",)

    def build(self, form: Form) -> Program:
        raise RuntimeError("no such graph")


@pytest.mark.parametrize(
    ("op", "status", "stage", "says"),
    [
        # A sum of float16 is divided by a count in int64, with no Cast between them.
        ("masked.std", "unsupported", "export", "the exported graph is invalid: .*op_type:Div.*inconsistent.*; "),
        ("abs", "error", "build", ""),
    ],
)
def test_who_refuses_an_exported_graph_that_onnx_forbids_is_not_to_blame(
    tmp_path: Path, op: str, status: str, stage: str, says: str
) -> None:
    from tasks.prepare.forms import export_prepared_forms

    prepared = prepare_group(Group(f"torch:{op}", "", "float16", 1), tmp_path)[1]
    exported = str(export_prepared_forms(Path(prepared.pack.path), tmp_path, "onnx", 1, {}, lambda place: None))
    refuses = Refuses("refuses-cpu", "cpu", {})
    backends = {refuses: "no such graph", BackendSpec.parse("openvino-cpu").create(): "Div"}
    for backend, words in backends.items():
        info = RuntimeInfo("1", "none") if backend is refuses else backend.start()
        runner = Runner(backend, info, policy_files.load_policy("error_units"), lambda *step: None)
        (row,) = (done.row for done in runner.run([replace(make_item_of_whole_group(prepared), exported=exported)]))
        if status == "error" and backend is not refuses:
            assert row.status == "pass"
        else:
            assert (row.status, row.stage) == (status, stage) and re.match(f"{says}.*{words}", row.error, re.S)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("op", "faithful"), [("Add", True), ("Mul", False)])
def test_a_graph_of_another_meaning_is_the_exporters_in_every_dtype(dtype: str, op: str, faithful: bool) -> None:
    from onnx import helper

    from tasks.model.dtypes import ELEMENT_TYPE, get_numpy_dtype
    from tasks.prepare.onnx_export import NotFaithful, _check_by_evaluator

    ends = [helper.make_tensor_value_info(n, ELEMENT_TYPE[dtype], [8]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node(op, ["x", "x"], ["y"])], "twice", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    x = X.astype(get_numpy_dtype(dtype))
    twice = [Leaf(dtype, (8,), 2 * x.astype(np.float64))]
    if faithful:
        _check_by_evaluator(model, [x], twice, [])
    else:
        with pytest.raises(NotFaithful, match="something else than the op: 7 of 8 elements"):
            _check_by_evaluator(model, [x], twice, [])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_graph_that_gives_a_number_where_nan_belongs_is_the_exporters(dtype: str) -> None:
    """torch.onnx exports angle as Where(x < 0, π, 0)."""
    from onnx import helper, numpy_helper

    from tasks.model.dtypes import ELEMENT_TYPE, get_numpy_dtype
    from tasks.prepare.onnx_export import NotFaithful, _check_by_evaluator

    x = np.array([1, -1, np.nan], get_numpy_dtype(dtype))
    one = numpy_helper.from_array(np.ones((), x.dtype), "one")
    ends = [helper.make_tensor_value_info(n, ELEMENT_TYPE[dtype], [3]) for n in ("x", "y")]
    nodes = [helper.make_node("Less", ["x", "one"], ["less"]), helper.make_node("Where", ["less", "x", "one"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "least", ends[:1], ends[1:], [one]), opset_imports=[helper.make_opsetid("", 18)]
    )
    _check_by_evaluator(model, [x[:2]], [Leaf(dtype, (2,), np.array([1.0, -1.0]))], [])
    with pytest.raises(NotFaithful, match="1 of 3 elements"):
        _check_by_evaluator(model, [x], [Leaf(dtype, (3,), np.array([1.0, -1.0, np.nan]))], [])
