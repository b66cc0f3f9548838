"""The roundtrip check: torch, its exporter and a runtime are told apart, each with a planted fault beside the sound trip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tasks import catalogs
from tasks.arrays.tree import TensorSpec
from tasks.backends import BackendSpec
from tasks.catalogs.base import Catalog, Sample
from tasks.catalogs.models import exporting
from tasks.judge import policy_files
from tasks.model import Form, Group, Leaf, OpClass, Oracle, Program
from tasks.prepare import cases
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.prepare.derived import roundtrip
from tasks.runner import Runner, make_item_of_whole_group

torch = pytest.importorskip("torch")
GROUP = Group("tiny:norm", "", "float32", 2, check="roundtrip")


class Norm(torch.nn.Module):  # type: ignore[misc]
    """A layer, its norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.norm = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16, eps=1e-3)

    def forward(self, x: Any) -> Any:
        return (self.norm(self.linear(x)),)


@pytest.fixture(scope="module")
def exported() -> Any:
    return exporting.export_model_module(Norm().eval(), [torch.zeros(4, 8)], ("x",), ("y",))


@pytest.fixture(autouse=True)
def tiny(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tiny(Catalog):
        name = "tiny"
        forms = ("onnx", "torch")

        def version(self) -> str:
            return "1"

        def samples(self, group: Group, draws: int, skip: Any = ()) -> Iterator[Sample]:
            from tasks.graphs.evaluate_graph import EvaluatedGraph

            x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
            y = EvaluatedGraph(exported).run({"x": x})["y"]
            second = Norm().double()(torch.from_numpy(x.astype(np.float64)))[0].detach().numpy()
            yield Sample(
                0,
                (TensorSpec(0),),
                arrays=[x],
                expected=[Leaf("float32", y.shape, y, np.full(y.shape, 1e-6))],
                op_class=OpClass.MODEL,
                others=[Oracle("torch-float64", [second])],
                model=exported.SerializeToString(),
            )

        def call(self, group: Group) -> Any:
            return Norm().eval()

    made = Tiny()
    monkeypatch.setattr(catalogs, "get_catalog", lambda name: made)
    monkeypatch.setattr(catalogs, "get_catalog_if_installed", lambda name: made)
    monkeypatch.setattr(roundtrip, "_save_and_load", lambda module, base, first: exported)  # 5 s: one test does it
    cases._find_catalog_version.cache_clear()


def rows(cache: Path, change: Callable[[Program], Program] = lambda made: made) -> dict[int, dict[str, Any]]:
    """Rows by sample on ORT, whose programs ``change`` has changed."""
    backend = BackendSpec.parse("ort-cpu").create()
    info = backend.start()
    build = backend.build
    backend.build = lambda form: change(build(form))  # type: ignore[method-assign]
    _, made = prepare_group(GROUP, cache)
    runner = Runner(backend, info, policy_files.load_policy("error_units"), lambda *step: None)
    found = [
        done.row.values() for done in runner.run([make_item_of_whole_group(PreparedGroup(made.pack.path, "roundtrip"))])
    ]
    return {row["sample"]: row for row in found}


AGAIN = roundtrip._save_and_load


def test_a_sound_trip_passes_and_says_how_far_torch_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roundtrip, "_save_and_load", AGAIN)
    found = rows(tmp_path)
    assert {(row["status"], row["culprit"]) for row in found.values()} == {("pass", "")}, found[1]["error"]
    assert [found[k]["flags"] for k in (0, 1)] == ["exported=once", "exported=again"]
    assert all(0 <= row["torch_diff"] < 1e-5 for row in found.values())


def test_a_runtime_that_is_off_is_to_blame(tmp_path: Path) -> None:
    def off(made: Program) -> Program:
        run = made.run
        made.run = lambda: [x + np.float32(0.25) for x in run()]
        return made

    found = rows(tmp_path, off)
    assert {(row["status"], row["culprit"]) for row in found.values()} == {("wrong", "runtime")}
    assert all(abs(row["torch_diff"] - 0.25) < 1e-4 for row in found.values())


def test_torch_is_to_blame_where_the_runtime_agrees_with_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.backends.torch import TorchEager

    build = TorchEager.build

    def off(self: TorchEager, form: Form) -> Program:
        made = build(self, form)
        run = made.run
        made.run = lambda: [x * np.float32(1.5) for x in run()]
        return made

    monkeypatch.setattr(TorchEager, "build", off)
    assert {(row["status"], row["culprit"]) for row in rows(tmp_path).values()} == {("wrong", "torch")}


def test_an_exporter_that_drops_an_attribute_is_to_blame(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = onnx.ModelProto()
    other.CopyFrom(exported)
    node = next(x for x in other.graph.node if x.op_type == "LayerNormalization")
    next(x for x in node.attribute if x.name == "epsilon").f = 1e-5
    monkeypatch.setattr(roundtrip, "_save_and_load", lambda *_: other)
    found = rows(tmp_path)
    assert (found[0]["status"], found[0]["culprit"]) == ("pass", "")
    assert (found[1]["status"], found[1]["culprit"]) == ("invalid", "exporter")
    assert "exported again it is another function" in found[1]["error"]


def test_a_graph_that_is_not_the_module_is_the_exporters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Norm, "forward", lambda self, x: (self.linear(x),))
    found = rows(tmp_path)
    assert {(row["status"], row["culprit"]) for row in found.values()} == {("invalid", "exporter")}
    assert all("another function than the module" in row["error"] for row in found.values())
