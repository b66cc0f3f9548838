"""The table trace: it comes and stays with the rows, whatever happens to the run, and is nowhere where no check takes steps."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from farm import lake
from farm.lake import LakeWarning, beside, manifest, store
from farm.report.faces import page
from farm.report.faces.page import STEPS
from tasks.model.row import Row
from tasks.model.trace import TraceStep
from tests.conftest import ROOT
from tests.farm.test_lake import CONSTANT, RUN, row
from tests.farm.test_page import Shown

ORIGIN = lake.Origin(**CONSTANT)


def steps(count: int, wrong: int = -1) -> tuple[TraceStep, ...]:
    return tuple(TraceStep(k, f"step {k}", "wrong" if k == wrong else "pass", error_units=k / 2) for k in range(count))


def write(opened: lake.Lake, sample: int, some: tuple[TraceStep, ...], **more: Any) -> None:
    case = Row(**row(sample, **more))
    beside.append_rows_and_beside(
        opened,
        RUN,
        [lake.make_row_batch([case], ORIGIN)],
        beside.read_beside_stream(beside.TRACE.to_stream([(case, some)], ORIGIN)),
    )


@pytest.fixture
def opened(results: Path) -> lake.Lake:
    return lake.open_lake(results)


def test_a_row_for_each_step_by_key(opened: lake.Lake) -> None:
    write(opened, 1, steps(3, wrong=2))
    write(opened, 0, steps(2))
    write(opened, 2, ())
    found = lake.read_trace(opened, RUN)
    assert list(zip(found["case_id"], found["step"])) == [
        *(("forward/torch:abs/float32/0", k) for k in range(2)),
        *(("forward/torch:abs/float32/1", k) for k in range(3)),
    ]
    assert found.columns.tolist() == lake.TRACE_SCHEMA.names and lake.TRACE_KEY == [*lake.KEY, "step"]
    assert lake.read_trace_steps(opened, RUN, "forward/torch:abs/float32/1", "torch-cpu") == list(steps(3, wrong=2))
    assert lake.read_trace_steps(opened, RUN, "forward/torch:abs/float32/2", "torch-cpu") == []
    assert len(lake.read_trace(opened, where={"case_id": ["forward/torch:abs/float32/0"]})) == 2
    assert lake.read_trace(opened, where={"op": ["torch:exp"]}).empty
    assert len(lake.read(opened, RUN)) == 3  # readers of rows see nothing of it


def test_a_run_that_cannot_be_listed_takes_no_other_runs_traces_off_a_page(
    opened: lake.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(opened, 1, steps(3, wrong=2))
    read, kept = lake.read_trace, lake.read(opened, RUN)
    gone = kept.assign(run_id="gone")

    def read_listed(results: Any, run_id: str) -> Any:
        if run_id == "gone":
            raise lake.LakeError("run=gone cannot be listed")
        return read(opened, run_id)

    monkeypatch.setattr(lake, "read_trace", read_listed)
    assert page._pack_page_traces(pd.concat([gone, kept, gone]), "somewhere")["length"] == 1
    assert page._pack_page_traces(gone, "somewhere")["length"] == 0
    assert page._pack_page_traces(kept, None)["length"] == 0


def test_rows_without_steps_write_no_file_and_a_lake_without_a_trace_reads_as_none(opened: lake.Lake) -> None:
    write(opened, 0, ())
    lake.compact_run(opened, RUN)
    assert not store.list_lake_parts(opened, RUN, "trace") and lake.read_trace(opened, RUN).empty
    assert beside.TRACE.to_stream([(Row(**row(0)), ())], ORIGIN) == b"" and beside.read_beside_stream(b"") == []


def test_a_case_that_was_run_again_has_the_steps_of_the_row_that_is_kept(opened: lake.Lake) -> None:
    write(opened, 0, steps(5), started_at=1.0)
    write(opened, 0, steps(3, wrong=1), started_at=2.0, attempts=2)
    for _ in range(2):  # before and after compaction
        assert lake.read_trace(opened, RUN)["status"].tolist() == ["pass", "wrong", "pass"]
        lake.compact_run(opened, RUN)
    assert len(store.list_lake_parts(opened, RUN, "trace")) == 1 and len(store.list_lake_parts(opened, RUN)) == 1


def test_no_row_is_without_its_steps_and_a_second_try_doubles_nothing(
    opened: lake.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **how: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(store, "append_part", full)
        write(opened, 0, steps(4))
    assert len(store.list_lake_parts(opened, RUN, "trace")) == 1 and lake.read_trace(opened, RUN).empty
    write(opened, 0, steps(4))
    assert lake.read_trace(opened, RUN)["step"].tolist() == [0, 1, 2, 3]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(pq, "write_table", full)
        write(opened, 1, steps(4))
    assert len(lake.read(opened, RUN)) == 1


def test_a_damaged_trace_is_told_and_kept_from_compaction(opened: lake.Lake) -> None:
    write(opened, 0, steps(2))
    write(opened, 1, steps(2))
    Path(store.list_lake_parts(opened, RUN, "trace")[0]).write_bytes(b"PAR1")
    with pytest.warns(LakeWarning, match="not a readable trace"):
        assert len(lake.read_trace(opened, RUN)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lake.compact_run(opened, RUN)
    assert len(store.list_lake_parts(opened, RUN, "trace")) == 2


def test_a_signature_holds_for_the_trace(opened: lake.Lake, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    write(opened, 0, steps(2))
    lake.write_run_record(opened, RUN, {"run_id": RUN})
    public = manifest.write_manifest_key(tmp_path / "key.pem")
    manifest.sign_run(opened, RUN, tmp_path / "key.pem")
    assert manifest.check_manifest(opened, RUN, public).good and manifest.check_manifest(opened, RUN, public).files == 3
    (path,) = store.list_lake_parts(opened, RUN, "trace")
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    assert manifest.check_manifest(opened, RUN, public).changed == (Path(path).name,)


def test_the_example_names_the_step_at_which_each_twin_goes_wrong(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from farm.__main__ import main

    assert main(["run", str(ROOT / "examples/own_session/farm.yaml"), "--on", "inline", "--results", str(results)]) == 1
    rows = lake.read(results, where={"check": ["steps"]})
    named = {op: set(some["culprit"]) for op, some in rows.groupby("op")}
    assert named == {
        "user:decode": {""},
        "user:decode_forgetting": {"step 8"},
        "user:descent": {""},
        "user:descent_restarted": {"step 5"},
    }
    steps = lake.read_trace(results)
    assert set(steps["case_id"].str.split("/").str[0]) == {"steps"}  # forward looks once
    wrong = steps[steps["status"] == "wrong"].groupby("case_id")["step"].min()
    assert set(wrong[wrong.index.str.contains("forgetting")]) == {8}
    named = " ".join(capsys.readouterr().out.split())
    assert (
        "first wrong at step 8 of 1" in named
        and "farm reproduce" in named
        and ":forward/user:decode_forgetting" not in named
    )
    case = "steps/user:decode_forgetting/float32/0"
    assert main(["report", str(results), "--case", case]) == 0
    assert "torch-cpu: first wrong at step 8 of 10." in " ".join(capsys.readouterr().out.split())
    assert main(["reproduce", f"last:{case}:torch-cpu", "--results", str(results)]) == 0
    assert capsys.readouterr().out.count("trace         first wrong at step 8 of 10") == 2


def test_a_sound_session_is_the_same_whenever_it_is_run_as_a_whole(results: Path, tmp_path: Path) -> None:
    """Its steps take a part of the inputs; a check that runs it again runs it from its start, on all of them."""
    pytest.importorskip("torch")
    from farm.__main__ import main

    given = (
        "checks: [replay, determinism]\ncatalogs: [{name: user, samples: 1, modules: [%s]}]\nbackends: [torch-cpu]\n"
    )
    (tmp_path / "c.yaml").write_text(given % (ROOT / "examples/own_session/sessions.py"))
    ops = ["--ops", "*decode", "*descent"]
    assert main(["run", str(tmp_path / "c.yaml"), "--on", "inline", "--results", str(results), *ops]) == 0
    rows = lake.read(results)
    assert len(rows) == 4 and set(rows["status"]) == {"pass"}, rows[["case_id", "status", "error"]].to_string()


def test_the_panel_of_a_row_shows_its_steps_and_the_first_that_is_off(opened: lake.Lake) -> None:
    off = (
        *steps(2),
        TraceStep(2, "all", "imprecise", error_units=40.0),
        TraceStep(3, "again", "wrong", apart_units=9.0),
    )
    for sample, (op, some) in enumerate(
        (("abs", steps(3)), ("exp", off), ("neg", ()), ("sin", steps(1000, wrong=700)))
    ):
        status = "wrong" if any(x.failed for x in some) else "pass"
        write(opened, sample, some, op=f"torch:{op}", status=status)
    shown = Shown.of(lake.read(opened, RUN), {"run_id": RUN})

    def panel(op: str) -> tuple[str, list[str], int]:
        shown.visit(sel=f"torch:{op}|torch-cpu")
        marked = [line["text"] for line in shown.lines("panel", "text") if line["text"].startswith("▼")]
        told = [line["text"] for line in shown.look("panel", ".why") + shown.look("panel", ".note")]
        return next((x for x in told if "step" in x), ""), marked, len(shown.lines("panel", "rect"))

    assert panel("abs") == ("all 3 steps are right", [], 3)
    assert panel("exp") == ("first wrong at step 3 of 4 (again)", ["▼ again"], 4)
    assert panel("neg") == ("", [], 0)
    assert panel("sin") == ("first wrong at step 700 of 1000", ["▼ step 700"], STEPS)
