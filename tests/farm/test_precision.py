"""Declared compute precision: what is declared is allowed, what is coarser than that is caught, and the rows say it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from farm import lake
from farm.commands import run as launch
from farm.fleet.inventory import BackendOffer
from farm.work.fleet_changes import FleetChanges
from tasks.backends import BackendSpec
from tasks.backends.shared.onnx_form import make_probe_form
from tasks.model import BackendInfo, RuntimeInfo
from tasks.prepare.cases import WITH_PRODUCTS

CONFIG = """
dtypes: [float32]
catalogs:
  - {name: torch, ops: [mm, nn.functional.linear, sum, softmax, exp, atan, add, transpose, amax, nn.functional.layer_norm], samples: 3}
backends:
  - {name: plain, like: coarse-cpu}
  - {name: as-declared, like: coarse-cpu, options: {declares: bfloat16, computes: bfloat16}}
  - {name: finer, like: coarse-cpu, options: {declares: bfloat16, computes: float16}}
  - {name: coarser, like: coarse-cpu, options: {declares: float16, computes: float8_e4m3fn}}
  - {name: silent, like: coarse-cpu, options: {computes: tfloat32}}
  - {name: in-part, like: coarse-cpu, options: {declares: tfloat32, computes: tfloat32, of_products: true}}
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pd.DataFrame]:
    where = tmp_path_factory.mktemp("precision")
    (where / "coarse.yaml").write_text(CONFIG)
    assert (
        launch.main([str(where / "coarse.yaml"), "--on", "inline", "--results", str(where / "results")]) == launch.FOUND
    )
    yield lake.read(where / "results").set_index("op").sort_index()


def of(rows: pd.DataFrame, backend: str) -> pd.DataFrame:
    found = rows[rows["backend"] == backend]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("backend", ["plain", "as-declared", "finer"])
def test_what_is_declared_passes(rows: pd.DataFrame, backend: str) -> None:
    found = of(rows, backend)
    assert set(found["status"]) <= {"pass", "vacuous"}, found[found["status"] != "pass"][
        ["status", "error_units", "max_ulp", "limit"]
    ]
    assert set(found["compute_precision"]) == {"float32" if backend == "plain" else "bfloat16"}


@pytest.mark.parametrize("backend", ["coarser", "silent"])
def test_what_is_coarser_than_declared_is_caught(rows: pd.DataFrame, backend: str) -> None:
    """Not in every sample: one element may be rounded by chance as little as declared."""
    found = of(rows, backend)
    bad = found[found["status"] == "wrong"]
    assert set(bad.index) == set(found.index)
    assert set(bad.index) == set(found.index)
    assert len(bad) > 0.6 * len(found[found["status"] != "vacuous"])
    assert set(found["compute_precision"]) == {"float16" if backend == "coarser" else "float32"}


def test_a_declaration_of_products_holds_for_what_has_some_alone(rows: pd.DataFrame) -> None:
    found = of(rows, "in-part")
    named = ["torch:mm", "torch:nn.functional.linear"]
    assert set(found.loc[named, "status"]) <= {"pass", "vacuous"}
    assert set(found.loc[named, "compute_precision"]) == {"tfloat32"}
    rest = found.drop(named)
    assert set(rest["compute_precision"]) == {"float32"}
    assert set(rest.loc[rest["status"] == "wrong"].index) == set(rest.index)


SHARED = """
dtypes: [float32]
catalogs:
  - {{name: critical, ops: [swiglu, matmul, gelu], samples: 1}}
backends:
  - {{name: one, like: coarse-cpu, options: {{{options}}}}}
"""
#: Of a device whose matrix units round the factors of products, as it declares.
TF32 = "declares: tfloat32, computes: tfloat32, of_products: true"


def test_products_are_prepared_where_a_backend_of_the_plan_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that needs more than the cache has prepares it, and one that needs less takes what is there."""
    pytest.importorskip("torch")
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    packs: list[set[str]] = []
    for name, options in (("plain", ""), ("tf32", TF32), ("again", "")):
        (tmp_path / f"{name}.yaml").write_text(SHARED.format(options=options))
        launch.main([str(tmp_path / f"{name}.yaml"), "--on", "inline", "--results", str(tmp_path / name)])
        packs.append({x.name for x in (tmp_path / "cache" / "cases").rglob("*.pack")})
    with_products = {x for x in packs[1] if WITH_PRODUCTS in x}
    assert len(packs[0]) == len(with_products) == 3 and not packs[0] & with_products and packs[2] == packs[1]
    rows = {x: lake.read(tmp_path / x).set_index("op") for x in ("plain", "tf32", "again")}
    assert set(rows["tf32"].loc[["critical:swiglu", "critical:matmul"], "compute_precision"]) == {"tfloat32"}
    assert set(rows["tf32"].loc[["critical:swiglu", "critical:matmul"], "status"]) == {"pass"}
    told = ["status", "error_units", "compute_precision", "digest"]
    assert rows["plain"][told].to_dict() == rows["again"][told].to_dict()
    (record,) = (json.loads(x.read_text()) for x in (tmp_path / "tf32").rglob("_run.json"))
    assert record["inventory"]["backends"]["one"]["of_products"] is True


def test_a_node_with_coarser_products_than_those_a_run_began_with_is_not_admitted() -> None:
    """Its cases are prepared without what such products may be off by."""
    exact, coarse = (RuntimeInfo("1", "cuda", "", x, of_products=bool(x)) for x in ("", "tfloat32"))
    node = {"id": "2", "host": "new", "resources": {"CPU": 1.0}, "labels": {}}
    for first, admitted in ((exact, False), (coarse, True)):
        offer = BackendOffer("one", "", "", "CPU", [], False)
        offer.admit({**node, "id": "1", "host": "old"}, BackendInfo(runtime=first))
        state: Any = SimpleNamespace(plan=SimpleNamespace(offers={"one": offer}), notices=[])
        why = FleetChanges(state, cast(Any, None))._admit_node(offer, node, {"one": BackendInfo(runtime=coarse)})
        assert ("2" in offer.resources) is admitted and bool(why) is not admitted
        assert [x for x in state.notices if "one is not run on node new: its tfloat32 products" in x] == state.notices
        assert len(state.notices) == (not admitted)


def test_a_declaration_is_for_products_or_for_everything() -> None:
    info = RuntimeInfo("x", "cuda", "", "tfloat32", of_products=True)
    assert [info.precision_for(products=x) for x in (True, False)] == ["tfloat32", ""]
    assert RuntimeInfo("x", "npu", "", "float16").precision_for(products=False) == "float16"


CHAINS = """
dtypes: [float32]
catalogs:
  - {name: critical, ops: [bert_encoder, swiglu, gelu], samples: 1}
backends:
  - {name: tf32, like: lying-cpu, options: {computes: tfloat32, declares: tfloat32, of_products: true}}
  - {name: exact, like: lying-cpu, options: {declares: tfloat32, of_products: true}}
  - {name: bf16, like: lying-cpu, options: {computes: bfloat16, declares: tfloat32, of_products: true}}
  - {name: silent, like: lying-cpu, options: {computes: tfloat32}}
  - {name: rounded, like: lying-cpu, options: {returns: bfloat16, declares: tfloat32, of_products: true}}
"""


def test_a_chain_of_products_exported_to_onnx_is_held_to_what_rounding_each_factor_does(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    (tmp_path / "chains.yaml").write_text(CHAINS)
    assert (
        launch.main([str(tmp_path / "chains.yaml"), "--on", "inline", "--results", str(tmp_path / "r")]) == launch.FOUND
    )
    found = lake.read(tmp_path / "r").set_index(["backend", "op"])["status"].unstack()
    chains = ["critical:bert_encoder", "critical:swiglu"]
    assert set(found.loc[["tf32", "exact"], chains].to_numpy().ravel()) == {"pass"}, found
    assert set(found.loc[["bf16", "silent"], chains].to_numpy().ravel()) == {"wrong"}, found
    assert found["critical:gelu"].to_dict() == {x: "imprecise" for x in ("tf32", "exact", "bf16", "silent")} | {
        "rounded": "wrong"
    }


def test_a_precision_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="compute precision 'tf32' is none of"):
        RuntimeInfo("x", "y", "", "tf32")
    with pytest.raises(ValueError, match="backend o: compute_precision is one of"):
        BackendSpec.parse("o", "ort-cpu", {"compute_precision": "tf32"}).create()


def test_what_openvino_is_asked_for_is_what_it_declares() -> None:
    pytest.importorskip("openvino")
    for hint, declared in (("f32", "float32"), ("bf16", "bfloat16")):
        backend = BackendSpec.parse("o", "openvino-cpu", {"inference_precision": hint}).create()
        info = backend.probe()
        words = backend.build(make_probe_form()).flags.split()
        (read,) = (w.partition("=")[2] for w in words if w.startswith("inference_precision_hint="))
        # A CPU without bfloat16 units answers with float32, and that is what it then declares.
        assert info.compute_precision == (declared if read == hint else "float32"), read


NARROW = """
dtypes: [float32]
seed: 3
catalogs:
  - {name: fuzz, ops: [Sign, Round, Sqrt, Abs, IsInf, LessOrEqual, PRelu], samples: 24}
backends:
  - {name: silent, like: lying-cpu, options: {halves: rounded}}
  - {name: rounded, like: lying-cpu, options: {declares: float16, halves: rounded}}
  - {name: saturated, like: lying-cpu, options: {declares: float16, halves: saturated}}
  - {name: zeros, like: lying-cpu, options: {declares: float16, halves: rounded, returns: zeros}}
  - {name: exact, like: lying-cpu, options: {declares: float16}}
"""


def test_inputs_outside_a_declared_precisions_range_and_at_steps_are_as_it_rounds_them(tmp_path: Path) -> None:
    """Of inputs of 1e-10, 1e12 and -0.5000001 float16 makes 0, Inf or its largest number, and -0.5."""
    (tmp_path / "narrow.yaml").write_text(NARROW)
    arguments = [str(tmp_path / "narrow.yaml"), "--on", "inline", "--results", str(tmp_path / "results")]
    assert launch.main(arguments) == launch.FOUND
    found = lake.read(tmp_path / "results")
    rows = {name: found[found["backend"] == name].set_index("case_id") for name in set(found["backend"])}
    wrong = {name: set(x.index[x["status"].isin(["wrong", "imprecise"])]) for name, x in rows.items()}
    assert not wrong["rounded"] and not wrong["saturated"] and not wrong["exact"]
    by_rounding = rows["rounded"].index[rows["rounded"]["flags"].str.contains("rounds_inputs=float16", na=False)]
    assert len(by_rounding) > 10 and set(by_rounding) <= wrong["silent"]
    # What is wrong however its inputs are rounded stays wrong.
    assert len(wrong["zeros"]) > 40
    assert {x.partition(":")[2].partition(".")[0] for x in wrong["zeros"]} >= {"Sign", "Round", "Sqrt", "Abs", "PRelu"}
