"""Vendors' checklists: every item is a query over rows, proved, failed with a command, or not run with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farm import lake
from farm.commands.report import main
from farm.report.tables.checklists import (
    CHECKLISTS,
    FAILED,
    NOT_RUN,
    PARTLY,
    PROVED,
    is_checklist_proved,
    list_checklist,
)
from farm.report.tables.view import Report
from tests.farm.test_report import RUN, frame, make_row

GEMM = "cuBLAS GEMM is right in all dtypes"
TF32 = "TensorFloat32 is respected: off computes in float32, on within TF32"
ATEN = "All ATen ops dispatch to HIP kernels correctly"
IMPLEMENTED = "All ONNX ops are implemented in the execution provider"


def run_of(*backends: tuple[str, str], **unavailable: str) -> dict[str, Any]:
    """The record of a run with backends, each with what it is like, and others that no node offers, with the reason."""
    inventory = {name: {"vendor": "v", "available": True} for name, _ in backends}
    away = {
        name.replace("_", "-"): {"vendor": "v", "available": False, "reason": why} for name, why in unavailable.items()
    }
    config = {
        "backends": [{"name": name, "like": like} for name, like in backends],
        "catalogs": [{"name": name, "ops": ["*"], "exclude": [], "backends": ["*"]} for name in ("torch", "onnx")],
        "known_failures": [],
    }
    return RUN | {"config": config, "inventory": {"backends": inventory | away}}


def line(name: str, item: str, run: dict[str, Any], *rows: dict, backend: str = "") -> Any:
    found = list_checklist(Report.of(frame(*rows), run), name, backend)
    (one,) = [record for record in found.to_dict("records") if record["item"] == item]
    return one


def products(**more: Any) -> list[dict]:
    """A row of a product for each dtype that the item asks about, on torch-cuda."""
    dtypes = ("float32", "float16", "bfloat16")
    return [make_row(op="torch:mm", dtype=dtype, **{"backend": "torch-cuda", **more}) for dtype in dtypes]


def test_an_item_is_proved_where_every_cell_is() -> None:
    rows = [*products(), make_row(op="torch:mm", dtype="float32", sample=1, backend="torch-cuda", weak=True)]
    one = line("cuda", GEMM, run_of(("torch-cuda", "")), *rows, make_row("wrong", op="torch:sin", backend="torch-cuda"))
    assert (one["state"], one["proved"], one["cells"], one["backend"]) == (PROVED, 3, 3, "torch-cuda")
    assert one["said"] == "3 of 3 cells, 1 op" and not one["reproduce"]


def test_one_wrong_sample_fails_it_with_the_command_that_shows_it() -> None:
    wrong = make_row("wrong", op="torch:bmm", dtype="float16", backend="torch-cuda", error="1 element is off")
    one = line("cuda", GEMM, run_of(("torch-cuda", "")), *products(), wrong)
    assert (one["state"], one["failed"], one["known"], one["proved"], one["cells"]) == (FAILED, 1, 0, 3, 4)
    assert "torch:bmm float16 wrong (1 element is off)" in one["said"]
    assert one["reproduce"] == "farm reproduce 'r1:forward/torch:bmm/float16/0:torch-cuda'"


def test_a_known_failure_fails_it_too_and_is_counted_as_known() -> None:
    run = run_of(("torch-cuda", ""))
    run["config"]["known_failures"] = [{"op": "torch:bmm", "reason": "its accumulator is short"}]
    one = line("cuda", GEMM, run, *products(), make_row("wrong", op="torch:bmm", backend="torch-cuda"))
    assert (one["state"], one["failed"], one["known"]) == (FAILED, 1, 1) and "(1 known)" in one["said"]
    run["config"]["known_failures"][0]["fault"] = "suite"  # it says nothing about a backend
    one = line("cuda", GEMM, run, *products(), make_row("wrong", op="torch:bmm", backend="torch-cuda"))
    assert (one["state"], one["failed"], one["cells"]) == (PROVED, 0, 3)


@pytest.mark.parametrize(
    ("more", "said"),
    [({"status": "unsupported"}, "no proof: 1 unsupported"), ({"status": "fallback"}, "no proof: 1 fallback")],
)
def test_what_was_not_judged_is_no_proof(more: dict, said: str) -> None:
    other = make_row(op="torch:bmm", backend="torch-cuda", **more)
    one = line("cuda", GEMM, run_of(("torch-cuda", "")), *products(), other)
    assert (one["state"], one["proved"], one["cells"]) == (PARTLY, 3, 4) and said in one["said"]


def test_a_cell_of_weak_samples_alone_neither_proves_nor_hinders_and_is_said() -> None:
    weak = make_row(op="torch:bmm", backend="torch-cuda", weak=True)
    one = line("cuda", GEMM, run_of(("torch-cuda", "")), *products(), weak)
    assert (one["state"], one["proved"], one["cells"]) == (PROVED, 3, 3) and "1 cell more has only weak samples" in one[
        "said"
    ]
    alone = line("cuda", GEMM, run_of(("torch-cuda", "")), weak)
    assert (alone["state"], alone["cells"]) == (NOT_RUN, 0)
    half = make_row(op="torch:mm", dtype="bfloat16", backend="torch-cuda", weak=True)
    one = line("cuda", GEMM, run_of(("torch-cuda", "")), *products()[:2], half)
    assert one["state"] == PARTLY and "none of bfloat16" in one["said"]


def test_a_dtype_that_nobody_tried_is_named() -> None:
    one = line("cuda", GEMM, run_of(("torch-cuda", "")), *products()[:2])
    assert one["state"] == PARTLY and "none of bfloat16" in one["said"]


def test_modes_of_one_runtime_prove_an_item_together() -> None:
    run = run_of(("torch-cuda", ""), ("torch-cuda-tf32", "torch-cuda"))
    off = make_row(op="torch:mm", backend="torch-cuda", flags="tf32=off")
    on = make_row(op="torch:mm", backend="torch-cuda-tf32", flags="tf32=on")
    one = line("cuda", TF32, run, off, on)
    assert (one["state"], one["backend"], one["proved"]) == (PROVED, "torch-cuda, torch-cuda-tf32", 2)
    alone = line("cuda", TF32, run, off)
    assert alone["state"] == PARTLY and "none of tf32=on" in alone["said"]


def test_a_fallback_fails_an_item_about_where_ops_run_and_an_unsupported_op_one_about_what_there_is() -> None:
    rocm = run_of(("torch-rocm", ""))
    sound = make_row(backend="torch-rocm")
    assert line("rocm", ATEN, rocm, sound)["state"] == PROVED
    fell = make_row("fallback", op="torch:mul", backend="torch-rocm", error="it ran on the CPU")
    one = line("rocm", ATEN, rocm, sound, fell)
    assert (one["state"], one["failed"]) == (FAILED, 1) and "it ran on the CPU" in one["said"]
    npu = run_of(("ort-npu", ""), ("ort-cpu", ""))
    rows = [make_row(op="onnx:Add", backend=b) for b in ("ort-npu", "ort-cpu")]
    lacks = make_row("unsupported", op="onnx:Det", backend="ort-npu")
    assert line("onnx", IMPLEMENTED, npu, *rows)["backend"] == "ort-npu"  # ORT's own provider is nobody's device
    assert line("onnx", IMPLEMENTED, npu, *rows, lacks)["state"] == FAILED


def test_some_ops_are_no_proof_of_all() -> None:
    run = run_of(("torch-rocm", ""))
    sound = make_row(backend="torch-rocm")
    assert line("rocm", ATEN, run, sound)["state"] == PROVED
    for narrowed in (run | {"ops": ["add"]}, run | {"config": run["config"] | {"catalogs": []}}):
        one = line("rocm", ATEN, narrowed, sound)
        assert one["state"] == PARTLY and "the run covers only some ops of the catalog torch" in one["said"]


def test_a_cell_whose_flags_are_others_is_not_asked_but_one_that_failed_before_it_had_any_is() -> None:
    item = "torch.compile generates valid GPU code"
    run = run_of(("inductor-cuda", ""))
    compiled = make_row(backend="inductor-cuda", flags="kernels=1/1")
    other = make_row("fallback", op="torch:view", backend="inductor-cuda", flags="kernels=0/1")
    assert line("cuda", item, run, compiled, other)["state"] == PROVED
    died = make_row("crash", op="torch:sum", backend="inductor-cuda")
    assert line("cuda", item, run, compiled, other, died)["state"] == FAILED


def test_without_the_vendors_backend_every_item_is_not_run_with_its_reason() -> None:
    rows = frame(make_row(), make_row("wrong", op="torch:mm"))
    for name, asked in CHECKLISTS.items():
        found = list_checklist(Report.of(rows, run_of(("torch-cpu", ""))), name)
        assert found["item"].tolist() == [item.words for item in asked.items]
        assert set(found["state"]) == {NOT_RUN} and found["said"].str.len().gt(10).all()
        assert is_checklist_proved(found) is None
    gone = run_of(("torch-cpu", ""), torch_cuda="this torch was built without CUDA")
    assert (
        line("cuda", GEMM, gone, make_row())["said"] == "torch-cuda is unavailable: this torch was built without CUDA"
    )


def test_what_the_run_did_not_ask_is_said() -> None:
    run = run_of(("torch-cuda", ""))
    rows = [make_row(op="torch:sin", backend="torch-cuda")]
    assert "no valid row of the check forward with torch:mm" in line("cuda", GEMM, run, *rows)["said"]
    backward = line("cuda", "Autograd's backward pass matches the reference", run, *rows)
    assert backward["said"] == "torch-cuda: the run has no check backward; add it to the config's checks"


def test_rows_that_are_not_valid_say_why_nothing_is_proved() -> None:
    bad = [row | {"status": "invalid", "error": "no such package"} for row in products()]
    one = line("cuda", GEMM, run_of(("torch-cuda", "")), *bad)
    assert (one["state"], one["cells"]) == (NOT_RUN, 0) and "invalid (no such package)" in one["said"]


OPSETS = "Opsets 15 to 19"


def opset(number: int, status: str = "pass", op: str = "models:resnet", **more: Any) -> dict:
    flags = f"opset={number} own=20" if status == "pass" else ""
    return make_row(status, op=op, check="opsets", sample=number, flags=flags, backend="ort-npu", **more)


def test_an_item_is_proved_where_every_sample_of_every_op_was_judged() -> None:
    """Opsets 15 to 17 of two models out of three could not be made: the third met every flag, and the item was
    proved."""
    run = run_of(("ort-npu", ""))
    sound = [opset(n, op=f"models:{name}") for n in range(15, 20) for name in ("mlp", "resnet")]
    assert line("onnx", OPSETS, run, *sound)["state"] == PROVED
    refused = [opset(n, "invalid", "models:vit", error="the converter does not take it") for n in (15, 16, 17)]
    refused += [opset(n, op="models:vit") for n in (18, 19)]
    one = line("onnx", OPSETS, run, *sound, *refused)
    assert (one["state"], one["proved"], one["cells"]) == (PARTLY, 3, 3)
    assert "not judged: 3 samples: models:vit 15, 16, 17 invalid (the converter does not take it)" in one["said"]
    skipped = [opset(n, "skipped", "models:vit", error="hangs") for n in range(15, 20)]
    assert line("onnx", OPSETS, run, *sound, *skipped)["state"] == PARTLY


def test_what_an_opset_does_not_have_is_no_gap() -> None:
    run = run_of(("ort-npu", ""))
    lacking = [opset(n, "vacuous", "onnx:Gelu", error="opset 15 cannot say it") for n in range(15, 20)]
    sound = [opset(n) for n in range(15, 20)]
    assert line("onnx", OPSETS, run, *sound, *lacking)["state"] == PROVED
    assert line("onnx", OPSETS, run, *sound[1:], opset(15, "vacuous"), *lacking)["state"] == PARTLY


def test_a_list_may_be_asked_of_a_backend_of_ones_own() -> None:
    run = run_of(("mine-npu", ""))
    rows = [*products(backend="mine-npu")]
    assert line("cuda", GEMM, run, *rows)["state"] == NOT_RUN
    assert line("cuda", GEMM, run, *rows, backend="mine-*")["state"] == PROVED


@pytest.mark.parametrize(("status", "code"), [("wrong", 1), ("pass", 3)])
def test_the_command_prints_and_writes_it_and_its_exit_code_is_a_gate(
    status: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no cell is folded
    rows = [make_row(status, op="onnx:Add", backend="ort-npu")]
    table = pa.Table.from_pylist([row | {"started_at": None} for row in rows], schema=lake.SCHEMA)
    (tmp_path / "run=r1").mkdir()
    pq.write_table(table, tmp_path / "run=r1" / "part-0.parquet")
    assert main([str(tmp_path), "--run", "r1", "--checklist", "onnx", "--out", str(tmp_path / "out")]) == code
    said = capsys.readouterr().out
    assert IMPLEMENTED in said and ("farm reproduce 'r1:forward/onnx:Add" in said) == (status == "wrong")
    written = pd.read_csv(tmp_path / "out" / "checklist_onnx.csv")
    assert written["item"].tolist() == [item.words for item in CHECKLISTS["onnx"].items]
    assert IMPLEMENTED in (tmp_path / "out" / "checklist_onnx.md").read_text()
