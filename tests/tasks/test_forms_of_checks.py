"""A check names the forms that it is about: nobody is judged on another one, and none is made of another module."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tasks import catalogs, checks
from tasks.arrays.tree import TensorSpec
from tasks.backends import BUILT_IN, BackendSpec
from tasks.backends.base import Backend
from tasks.catalogs.base import Catalog, Sample
from tasks.catalogs.models import exporting
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.judge import policy_files
from tasks.model import Form, Group, Leaf, OpClass, Program, RuntimeInfo, Unsupported
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

torch = pytest.importorskip("torch")
#: Checks about the ONNX form alone.
GRAPHS = ("opsets", "quantized", "roundtrip")


class Taking(Backend):
    """A backend of one form, which computes what it is given by that form."""

    vendor = "none"
    takes = None

    def __init__(self, form: str) -> None:
        super().__init__(f"of-{form}", "cpu", {})
        self.forms = (form,)
        self.built: list[Form] = []

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("1", "cpu")

    def build(self, form: Form) -> Program:
        self.built.append(form)
        raise Unsupported("built")


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.norm = torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4)
        self.norm.running_mean.normal_()

    def forward(self, x: Any) -> Any:
        return (torch.relu(self.norm(self.conv(x))).mean((2, 3)),)


class Tiny(Catalog):
    """One network as a torch module and its export; ``ways``: how it is exported at an operator set."""

    name = "tiny"
    forms = ("onnx", "torch")
    ways: Any = None

    def version(self) -> str:
        return "1"

    def samples(self, group: Group, draws: int, skip: Any = ()) -> Iterator[Sample]:
        x = np.random.default_rng(1).standard_normal((2, 2, 8, 8)).astype(np.float32)
        proto = self.exported(exporting.PLAIN)
        y = np.asarray(EvaluatedGraph(proto).run({"x": x})["y"])
        floor = np.full(y.shape, 1e-7)
        yield Sample(
            0,
            (TensorSpec(0),),
            arrays=[x],
            expected=[Leaf("float32", y.shape, y, floor)],
            op_class=OpClass.MODEL,
            model=proto.SerializeToString(),
        )

    def exported(self, how: exporting.ModelExport) -> Any:
        return exporting.export_model_module(Net().eval(), [torch.zeros(2, 2, 8, 8)], ("x",), ("y",), how)

    def at_opset(self, group: Group, made: Sample, opset: int) -> Iterator[tuple[str, bytes | Exception]]:
        yield from type(self).ways(self, opset)

    def call(self, group: Group) -> Any:
        return Net().eval()


def honest(catalog: Tiny, opset: int) -> Iterator[tuple[str, bytes | Exception]]:
    for how in exporting.list_model_exports(opset)[-1:]:
        yield how.way, catalog.exported(how).SerializeToString()


def raising(catalog: Tiny, opset: int) -> Iterator[tuple[str, bytes | Exception]]:
    yield "torchscript", RuntimeError("Exporting the operator 'aten::diff' is not supported")


def spoiling(catalog: Tiny, opset: int) -> Iterator[tuple[str, bytes | Exception]]:
    """Another function: its first weight is another number."""
    made = next(content for _, content in honest(catalog, opset))
    assert isinstance(made, bytes)
    proto = onnx.load_model_from_string(made)
    weight = max(proto.graph.initializer, key=lambda x: len(x.dims))
    changed = np.array(onnx.numpy_helper.to_array(weight))
    changed[0] *= 2
    weight.CopyFrom(onnx.numpy_helper.from_array(changed, weight.name))
    yield "torchscript", proto.SerializeToString()


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tiny()
    whole_get = catalogs.get_catalog
    monkeypatch.setattr(catalogs, "get_catalog", lambda name: made if name == "tiny" else whole_get(name))
    monkeypatch.setattr(catalogs, "get_catalog_if_installed", lambda name: made if name == "tiny" else whole_get(name))
    monkeypatch.setattr(Tiny, "ways", honest)


def rows(backend: Backend, made: Any) -> list[dict[str, Any]]:
    runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *step: None)
    return [done.row.values() for done in runner.run([make_item_of_whole_group(made)])]


def prepared(check: str, folder: Path, samples: int = 1) -> Any:
    return prepare_group(Group("tiny:net", "", "float32", samples, check=check), folder)[1]


@pytest.mark.parametrize("check", GRAPHS)
def test_a_backend_of_another_form_is_unsupported_and_nothing_is_built(check: str, tmp_path: Path) -> None:
    made = prepared(check, tmp_path)
    other = Taking("torch")
    found = rows(other, made)
    assert {row["status"] for row in found} == {"unsupported"} and not other.built
    assert all(f"the {check} check is about the onnx form" in row["error"] for row in found)
    own = Taking("onnx")
    rows(own, made)
    assert own.built and all(form.kind == "onnx" for form in own.built)
    forward = Taking("torch")  # its sound twin: the forward check is about every form
    rows(forward, prepared("forward", tmp_path))
    assert [form.kind for form in forward.built] == ["torch"]


@pytest.mark.parametrize("once", [True, False])
def test_nothing_is_built_for_other_inputs_of_a_runtime_that_takes_them_once(once: bool, tmp_path: Path) -> None:
    group = Group("critical:sum", "", "float32", 1, check="arithmetic")
    other = Taking("torch")
    other.inputs_once = once
    [row] = rows(other, prepare_group(group, tmp_path)[1])
    assert row["status"] == "unsupported" and bool(other.built) is not once
    assert ("takes a program's inputs only once" in row["error"]) is once


class Summing(Taking):
    """Sums the rows of its only array; wide: with an axis too many, as each element alone."""

    wide = False

    def build(self, form: Form) -> Program:
        def bind_inputs(arrays: list[Any]) -> Any:
            return lambda: [np.array(arrays[0]) if self.wide else np.sum(arrays[0], axis=-1)]

        return Program(bind_inputs(form.arrays), given=bind_inputs)


def test_a_result_of_another_shape_has_no_reading(tmp_path: Path) -> None:
    made = prepare_group(Group("critical:sum", "", "float32", 1, check="arithmetic"), tmp_path)[1]
    for wide in (True, False):
        backend = Summing("torch")
        backend.wide = wide
        runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *step: None)
        [done] = runner.run([make_item_of_whole_group(made)])
        row = done.row.values()
        codes = {(reading.code, reading.tree is None) for reading in done.readings}
        if wide:
            assert (row["status"], row["kind"]) == ("wrong", "shape") and "sums=0" in row["flags"]
            assert codes == {("another shape", True)} and "not (8,)" in done.readings[0].words
        else:
            assert row["status"] == "pass" and all(code == "" and not unread for code, unread in codes)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_runtime_that_takes_inputs_once_says_so(name: str) -> None:
    """Read off the source, as few of these runtimes are installed anywhere: what has no `given` is built with them."""
    try:
        made = BackendSpec.parse(f"{name}-cpu").create()
    except ValueError:
        pytest.skip("it has no such device")
    if made.inputs_once:
        for of in type(made).__mro__[: type(made).__mro__.index(Backend)]:
            assert not re.search(r"\bgiven=|\.given = |bind_inputs\)", inspect.getsource(of)), of


def test_what_a_check_is_held_against_may_be_another_form(tmp_path: Path) -> None:
    """roundtrip runs torch beside the runtime."""
    sample = prepared("roundtrip", tmp_path).samples[0]
    with pytest.raises(Unsupported, match="about the onnx form, not torch"):
        sample.form("torch")
    form = sample.form("onnx")
    assert form.also is not None and form.also("torch").kind == "torch"


@pytest.mark.parametrize("name", checks.BUILT_IN)
def test_every_check_on_every_backend_is_planned_answered_or_left_out(name: str) -> None:
    """The table of docs/config.md: who takes none of a check's forms does not answer it."""
    check = checks.BUILT_IN[name]
    for backend in (
        "torch-cpu",
        "inductor-cpu",
        "ort-cpu",
        "jax-cpu",
        "tensorflow-cpu",
        "litert-cpu",
        "executorch-cpu",
    ):
        made = BackendSpec.parse(backend).create()
        foreign = bool(check.forms) and not set(check.forms) & set(made.forms)
        once = check.gives_inputs and made.inputs_once
        assert bool(check.unanswered(made)) == (foreign or once or check.needs not in made.checks)
    assert bool(check.forms) == (name in (*GRAPHS, "serving")), "what takes a graph or an engine says so"


def test_a_module_is_exported_at_the_operator_set_and_below_18_by_tracing(tmp_path: Path) -> None:
    assert [how.way for how in exporting.list_model_exports(17)] == ["torchscript"]
    assert [how.way for how in exporting.list_model_exports(18)] == ["dynamo", "torchscript"]
    found = {row["sample"]: row for row in rows(BackendSpec.parse("ort-cpu").create(), prepared("opsets", tmp_path, 7))}
    assert {row["status"] for row in found.values()} == {"pass"}
    assert "opset=17" in found[17]["flags"] and "by=torchscript" in found[17]["flags"]


@pytest.mark.parametrize(("ways", "why"), [(raising, "aten::diff"), (spoiling, "it is another function in float64")])
def test_what_nobody_exports_is_converted_and_both_are_named(
    ways: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tiny, "ways", ways)
    found = {row["sample"]: row for row in rows(BackendSpec.parse("ort-cpu").create(), prepared("opsets", tmp_path, 7))}
    assert found[21]["status"] == "pass" and "by=onnx.version_converter not=torchscript" in found[21]["flags"]
    refused = found[17]  # the converter knows no attribute of ReduceMean there
    assert (refused["status"], refused["culprit"]) == ("invalid", "converter")
    assert why in refused["error"] and "onnx.version_converter does not take it" in refused["error"]
