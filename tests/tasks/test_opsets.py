"""The opsets check: whose fault it is that a converted model is another one, or is not taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import version_converter

from farm.report.tables.opsets import count_opset_matrix, list_opset_lines
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.judge import policy_files
from tasks.model import Form, Group, Program, Unsupported
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

SOFTMAX = ("onnx:Softmax", "softmax_axis_0")


def prepared(tmp_path: Path, op: str = SOFTMAX[0], variant: str = SOFTMAX[1]) -> Any:
    return prepare_group(Group(op, variant, "float32", 7, check="opsets"), tmp_path)[1]


def rows(backend: Backend, made: Any) -> dict[int, dict[str, Any]]:
    runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *step: None)
    found = [done.row.values() | {"case_id": done.row.case_id} for done in runner.run([make_item_of_whole_group(made)])]
    return {row["sample"]: row for row in found}


def ort() -> Backend:
    return BackendSpec.parse("ort-cpu").create()


def test_every_opset_is_a_case_of_its_number(tmp_path: Path) -> None:
    found = rows(ort(), prepared(tmp_path))
    assert sorted(found) == [15, 16, 17, 18, 19, 21, 23]
    assert {row["status"] for row in found.values()} == {"pass"} and {row["culprit"] for row in found.values()} == {""}
    assert found[17]["flags"].startswith("opset=17 own=")


def changing(model: Any, target: int) -> Any:
    """Converts, and changes an attribute on the way."""
    made = convert(model, target)
    made.graph.node[0].attribute[0].i = 1
    return made


def refusing(model: Any, target: int) -> Any:
    raise RuntimeError("No Adapter From Version $18 for Softmax")


def breaking(model: Any, target: int) -> Any:
    """Converts to a graph whose output nobody makes."""
    made = convert(model, target)
    made.graph.output[0].name = "nowhere"
    return made


def squeezing(model: Any, target: int) -> Any:
    """Converts, and declares its input without the first dimension, as onnx does of a Scan with a batch."""
    made = convert(model, target)
    del made.graph.input[0].type.tensor_type.shape.dim[0]
    return made


def opening(model: Any, target: int) -> Any:
    """Converts, and declares the first dimension -1, as Paddle's converter does of one that is open."""
    made = convert(model, target)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    return made


convert = version_converter.convert_version


@pytest.mark.parametrize(
    ("converter", "text"),
    [
        (changing, "it is another function: output 0 differs by"),
        (refusing, "does not take it from opset"),
        (breaking, "does not take it from opset"),
        (squeezing, "it takes x in the shape [4, 5], and not [3, 4, 5]"),
    ],
)
def test_a_converter_that_makes_another_model_is_to_blame(
    converter: Callable[[Any, int], Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_converter, "convert_version", converter)
    found = rows(ort(), prepared(tmp_path))
    assert {(row["status"], row["culprit"]) for row in found.values()} == {("invalid", "converter")}
    assert all(text in row["error"] for row in found.values())


def test_a_dimension_of_minus_one_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_converter, "convert_version", opening)
    assert {row["status"] for row in rows(ort(), prepared(tmp_path)).values()} == {"pass"}


def test_an_opset_that_lacks_the_op_is_nobodys_fault(tmp_path: Path) -> None:
    found = rows(ort(), prepared(tmp_path, "onnx:Gelu", "gelu_default_1"))
    assert {k: row["status"] for k, row in found.items()} == {
        15: "vacuous",
        16: "vacuous",
        17: "vacuous",
        18: "vacuous",
    } | {k: "pass" for k in (21, 23)} | {19: "vacuous"}
    assert "cannot say it" in found[15]["error"]


class Elder(Backend):
    """A runtime of opset 18: it refuses what is newer, and takes the wrong axis in 16."""

    forms = ("onnx",)

    def probe(self) -> Any:
        return ort().probe()

    def build(self, form: Form) -> Program:
        opset = onnx.load_model_from_string(form.model or b"").opset_import[0].version
        if opset > 18:
            raise Unsupported(f"opset {opset} is too new")
        wide = np.exp(form.arrays[0].astype(np.float64))
        made = (wide / wide.sum(axis=1 if opset == 16 else 0, keepdims=True)).astype(np.float32)
        return Program(lambda: [made], fallback="on another device" if opset == 17 else None)


def test_the_matrix_says_native_fallback_refused(tmp_path: Path) -> None:
    made = prepared(tmp_path)
    found = rows(Elder("elder-cpu", "cpu", {}), made)
    assert {k: row["status"] for k, row in found.items()} == {
        15: "pass",
        16: "wrong",
        17: "fallback",
        18: "pass",
        19: "unsupported",
        21: "unsupported",
        23: "unsupported",
    }
    both = pd.DataFrame(
        [
            row | {"backend": name, "run_id": "r", "vendor": "v"}
            for name, some in (("elder", found), ("ort", rows(ort(), made)))
            for row in some.values()
        ]
    )
    table = list_opset_lines(both).set_index("backend")
    assert table.loc["elder", ["15", "16", "17", "19"]].tolist() == ["pass", "wrong", "fallback", "unsupported"]
    counts = count_opset_matrix(both).set_index(["backend", "opset"])
    assert counts.loc[("elder", 19), "refused"] == 1 and counts.loc[("ort", 19), "native"] == 1
