"""determinism, threads and batch_invariance: each planted reason for other bytes is found, beside its sound twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.checks import two_orders
from tasks.checks.batch_invariance import BATCHES, _make_batch_of_rows, take_batch_row
from tasks.checks.same_bytes import find_byte_difference
from tasks.judge import policy_files
from tasks.model import Group
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

pytest.importorskip("torch")


def rows(backend: str, check: str, cache: Path, *ops: str, explained: bool = True) -> list[dict[str, Any]]:
    made = BackendSpec.parse(backend).create()
    runner = Runner(made, made.start(), policy_files.load_policy("error_units"), lambda *step: None)
    groups = [prepare_group(Group(f"critical:{op}", "", "float32", 1, check=check), cache)[1] for op in ops]
    asked = [replace(make_item_of_whole_group(PreparedGroup(x.pack.path, check)), explained=explained) for x in groups]
    found = [d.row.values() for d in runner.run(asked)]
    runner.close()
    return found


@pytest.mark.parametrize(
    ("device", "check", "status", "kind"),
    [
        ("sound", "determinism", "pass", ""),
        ("runs", "determinism", "wrong", "nondeterministic"),
        ("process", "determinism", "wrong", "process"),
        ("dies", "determinism", "unsupported", ""),
        ("sound", "threads", "pass", ""),
        ("threads", "threads", "wrong", "threads"),
        ("sound", "batch_invariance", "pass", ""),
        ("batch", "batch_invariance", "wrong", "batch"),
        ("position", "batch_invariance", "wrong", "batch"),
        ("onesize", "batch_invariance", "unsupported", ""),
        ("bounded", "batch_invariance", "pass", ""),
    ],
)
def test_other_bytes_are_found(device: str, check: str, status: str, kind: str, cache: Path) -> None:
    (row,) = rows(f"same-{device}", check, cache, "softmax", explained=False)
    assert (row["status"], row["kind"]) == (status, kind), row["error"]
    if status == "pass":
        assert row["apart_units"] == 0.0 and row["numel"] > 1000
    if status == "wrong":
        assert 0 < row["apart_units"] < 32 and "units apart" in row["error"] and row["numel"] > 1000
    if check == "batch_invariance" and status == "pass":
        assert f"batches=2,17,33,128,257 programs={'each' if device == 'bounded' else 'one'}" in row["flags"]
    if device == "dies":
        assert "the device is open in another process" in row["error"]
    if device == "batch":
        assert "where the row is number 0 of 257 and not alone" in row["error"]
    if device == "position":
        assert "where the row is number 256 of 257" in row["error"] or "of 17" in row["error"]


@pytest.mark.parametrize(("device", "check"), [("runs", "determinism"), ("batch", "batch_invariance")])
def test_how_it_adds_is_read_of_a_case_that_is_to_be_explained_alone(
    device: str, check: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search tries a hundred cases, and each reading is thousands of calls."""
    for name in ("explain_two_runs", "explain_two_orders"):
        monkeypatch.setattr(two_orders, name, lambda *asked: {"cause": "read"})
    (told,) = rows(f"same-{device}", check, cache, "softmax")
    (bare,) = rows(f"same-{device}", check, cache, "softmax", explained=False)
    assert (told["cause"], bare["cause"]) == ("read", None)
    assert (told["status"], told["kind"], told["apart_units"]) == (bare["status"], bare["kind"], bare["apart_units"])


def test_what_is_no_batch_is_vacuous_and_every_size_is_run(cache: Path) -> None:
    loss, scatter, add = rows("torch-cpu", "batch_invariance", cache, "mse_loss", "scatter_add", "add")
    assert {loss["status"], scatter["status"]} == {"vacuous"} and "rows" in loss["error"]
    assert add["status"] == "pass" and add["flags"].startswith("batches=2,17,33,128,257 programs=one")


def test_an_op_that_takes_a_dtype_is_judged_too(cache: Path) -> None:
    made = BackendSpec.parse("torch-cpu").create()
    runner = Runner(made, made.start(), policy_files.load_policy("error_units"), lambda *step: None)
    _, group = prepare_group(Group("torch:softmax", "with_dtype", "float32", 1, check="batch_invariance"), cache)
    (done,) = runner.run([make_item_of_whole_group(PreparedGroup(group.pack.path, "batch_invariance"))])
    runner.close()
    assert done.row.status == "pass", done.row.error


def test_the_row_stands_first_in_the_middle_and_last() -> None:
    arrays = [np.arange(12.0).reshape(4, 3), np.ones(3)]
    made = [take_batch_row(arrays, (0,), k) for k in range(4)]
    for m in BATCHES:
        batch = _make_batch_of_rows(made, (0,), m)
        assert batch[0].shape == (m, 3) and batch[1] is arrays[1]
        same = (batch[0] == arrays[0][0]).all(axis=1)
        assert same[[0, m // 2, m - 1]].all() and (m < 4 or same.sum() == 3)


def test_a_distance_is_measured_against_the_size_of_the_output() -> None:
    a = np.float32([1e-9, 1.0, -1.0])
    b = a.copy()
    b[0] += np.float32(2.0**-23)
    found = find_byte_difference([a], [b])
    assert found is not None and found.units is not None and 1 < found.units < 1.5
    assert find_byte_difference([a], [a.copy()]) is None
    assert (other := find_byte_difference([a], [a.astype(np.float64)])) is not None and other.units is None
    assert (signed := find_byte_difference([np.float32([0.0])], [np.float32([-0.0])])) is not None and signed.units == 0


def test_a_scalar_is_as_far_apart_as_one_element() -> None:
    for one, other in ((1.5, 2.5), (1.5 + 1j, 2.5 + 0j)):
        a, b = np.array(one), np.array(other)
        scalar, element = (find_byte_difference([x], [y]) for x, y in ((a, b), (a[None], b[None])))
        assert scalar is not None and element is not None and scalar.units == element.units
        assert scalar.units is not None and scalar.units > 1000


def test_the_report_says_yes_or_no_per_backend_and_names_what_is_furthest_apart() -> None:
    pandas = pytest.importorskip("pandas")
    from farm.report.tables.same_bytes import list_same_bytes_answers

    def row(op: str, check: str, status: str, kind: str = "", units: float | None = None) -> dict[str, Any]:
        return {
            "run_id": "r", "case_id": f"{check}/{op}", "check": check, "op": op, "variant": "", "dtype": "float32", "sample": 0,
            "backend": "b", "status": status, "kind": kind, "apart_units": units, "attempts": 1,
        }  # fmt: skip

    found = list_same_bytes_answers(
        pandas.DataFrame(
            [
                row("c:exp", "determinism", "pass", units=0.0),
                row("c:mm", "determinism", "imprecise", units=0.0),
                row("c:exp", "batch_invariance", "wrong", "batch", 1.0),
                row("c:mm", "batch_invariance", "wrong", "batch", 3.0),
                row("c:loss", "batch_invariance", "vacuous"),
                row("c:sort", "batch_invariance", "error"),
            ]
        )
    )
    assert found.fillna({"units": -1.0}).to_dict("records") == [
        {"backend": "b", "check": "batch_invariance", "yes": 0, "no": 2, "neither": 1, "not_asked": 1, "units": 3.0, "ops": "c:mm c:exp"},
        {"backend": "b", "check": "determinism", "yes": 2, "no": 0, "neither": 0, "not_asked": 0, "units": -1.0, "ops": ""},
    ]  # fmt: skip


def test_its_samples_are_exported_for_runtimes_that_take_onnx(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    from farm.__main__ import main

    config = tmp_path / "same.yaml"
    config.write_text(
        "checks: [batch_invariance]\ncatalogs: [{name: critical, ops: [add, softmax, scaled_dot_product_attention], samples: 1}]\n"
        "dtypes: [float32]\nbackends: [ort-cpu]\n"
    )
    assert main(["run", str(config), "--on", "inline", "--results", str(tmp_path / "lake")]) == 0
    rows = pandas.read_parquet(tmp_path / "lake").set_index("op")
    assert rows.loc[["critical:add", "critical:softmax"], "status"].tolist() == ["pass", "pass"]
    # The exporter has written its number of rows into a Reshape.
    attention = rows.loc["critical:scaled_dot_product_attention"]
    assert attention["status"] == "unsupported" and attention["error"].startswith("it takes no other number of rows: ")
