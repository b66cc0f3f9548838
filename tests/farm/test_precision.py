"""Declared compute precision: what is declared is allowed, what is coarser than that is caught, and the rows say it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from farm import lake
from farm.commands import run as launch
from tasks.backends import BackendSpec
from tasks.backends.base import TF32_OPS
from tasks.backends.shared.onnx_form import one_add
from tasks.model import OpClass, RuntimeInfo

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
  - {name: in-part, like: coarse-cpu, options: {declares: tfloat32, computes: tfloat32, only: [contraction, "*:softmax*"]}}
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pd.DataFrame]:
    where = tmp_path_factory.mktemp("precision")
    (where / "coarse.yaml").write_text(CONFIG)
    assert launch.main([str(where / "coarse.yaml"), "--inline", "--results", str(where / "results")]) == launch.FOUND
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


def test_a_declaration_holds_for_what_it_names_alone(rows: pd.DataFrame) -> None:
    found = of(rows, "in-part")
    named = ["torch:mm", "torch:nn.functional.linear", "torch:softmax"]
    assert set(found.loc[named, "status"]) <= {"pass", "vacuous"}
    assert set(found.loc[named, "compute_precision"]) == {"tfloat32"}
    rest = found.drop(named)
    assert set(rest["compute_precision"]) == {"float32"}
    assert set(rest.loc[rest["status"] == "wrong"].index) == set(rest.index)


def test_tf32_is_declared_for_products_and_what_is_made_of_them() -> None:
    info = RuntimeInfo("x", "cuda", "", "tfloat32", TF32_OPS)
    assert info.precision_for(OpClass.CONTRACTION, "torch:mm") == "tfloat32"
    assert info.precision_for(OpClass.COMPOSITE, "torch:nn.functional.scaled_dot_product_attention") == "tfloat32"
    assert info.precision_for(OpClass.COMPOSITE, "torch:nn.functional.gelu") == ""
    assert info.precision_for(OpClass.REDUCTION, "torch:sum") == ""
    assert RuntimeInfo("x", "npu", "", "float16").precision_for(OpClass.EXACT, "torch:t") == "float16"


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
        words = backend.build(one_add()).flags.split()
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
    arguments = [str(tmp_path / "narrow.yaml"), "--inline", "--results", str(tmp_path / "results")]
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
