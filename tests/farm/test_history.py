"""History: since when an outcome is as it is, and what came then, along runs and along versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farm import lake
from farm.__main__ import main as farm_main
from farm.commands.history import main
from farm.report.tables.history import list_history_changes, list_outcome_spans, load_history_rows, sort_version_texts
from tests.farm.test_report import make_row

DAYS = [f"2026110{day}-020000-aaaa" for day in range(1, 7)]


def made(tmp_path: Path, *rows: dict[str, Any]) -> str:
    """A lake of these rows, each run with a part of its own."""
    for run_id, some in pd.DataFrame(list(rows)).groupby("run_id"):
        folder = tmp_path / f"run={run_id}"
        folder.mkdir()
        pq.write_table(pa.Table.from_pylist(some.to_dict("records"), schema=lake.SCHEMA), folder / "part-0.parquet")
    return str(tmp_path)


def on(day: int, status: str, op: str = "torch:add", backend: str = "ort-cpu", **more: Any) -> dict[str, Any]:
    at = pd.Timestamp(f"2026-11-0{day + 1}T02:00", tz="UTC").to_pydatetime()
    kind = "numbers" if status == "wrong" else ""
    return make_row(status, op, backend, **{"run_id": DAYS[day], "started_at": at, "kind": kind} | more)


def test_an_outcome_has_a_first_day_a_last_one_and_the_day_it_was_fixed(tmp_path: Path) -> None:
    statuses = ["pass", "wrong", "wrong", "crash", "pass", "pass"]
    rows = [on(day, status) for day, status in enumerate(statuses)]
    rows += [on(day, "pass", sample=1) for day in range(6)]  # the worst sample tells
    rows += [on(0, "wrong", "torch:mul"), on(3, "wrong", "torch:mul"), on(4, "unsupported", "torch:mul")]
    told = list_outcome_spans(load_history_rows(made(tmp_path, *rows)))
    add = told[told["op"] == "torch:add"]
    assert add[["status", "first", "last", "steps", "then", "ended", "now"]].values.tolist() == [
        ["pass", DAYS[0], DAYS[0], 1, "wrong", DAYS[1], False],
        ["wrong", DAYS[1], DAYS[2], 2, "crash", DAYS[3], False],
        ["crash", DAYS[3], DAYS[3], 1, "pass", DAYS[4], False],
        ["pass", DAYS[4], DAYS[5], 2, "", "", True],
    ]
    (mul,) = told[told["op"] == "torch:mul"].to_dict("records")
    assert (mul["first"], mul["last"], mul["steps"], mul["now"]) == (DAYS[0], DAYS[3], 2, True), (
        "what was not judged tells nothing"
    )
    assert list(list_history_changes(told)["op"]) == ["torch:mul", "torch:add", "torch:add"], (
        "what fails now comes first"
    )


def test_along_versions_every_version_of_a_backend_is_one_line(tmp_path: Path) -> None:
    of = {"1.9.0": "wrong", "1.10.2": "wrong", "1.20.1": "pass", "1.31.1": "wrong"}
    rows = [
        on(day, status, backend=f"ort-cpu@{version}" if version != "1.31.1" else "ort-cpu", runtime_version=version)
        for day, (version, status) in zip((3, 0, 1, 2), of.items())
    ]
    rows.append(on(5, "pass", backend="ort-cpu@1.9.0", runtime_version="1.9.0"))
    told = list_outcome_spans(load_history_rows(made(tmp_path, *rows)), "runtime")
    assert set(told["backend"]) == {"ort-cpu"}
    assert told[["status", "first", "last", "ended"]].values.tolist() == [
        ["pass", "1.9.0", "1.9.0", "1.10.2"],  # its newest run
        ["wrong", "1.10.2", "1.10.2", "1.20.1"],
        ["pass", "1.20.1", "1.20.1", "1.31.1"],
        ["wrong", "1.31.1", "1.31.1", ""],
    ]
    assert sorted(["torch 2.13.0+cpu", "1.9", "", "1.31.1rc1"], key=sort_version_texts) == [
        "",
        "1.9",
        "1.31.1rc1",
        "torch 2.13.0+cpu",
    ]


def test_commits_of_one_release_are_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    """Their labels are digests: fff… may be older than 000…, and what has changes after what has none."""
    of = {"0.9.0": "pass", "1.0.0+gfff00000": "wrong", "1.0.0+gfff00000.dirty": "pass", "1.0.0+g00000000": "wrong"}
    rows = [on(day, status, farm_version=version) for day, (version, status) in enumerate(of.items())]
    told = list_outcome_spans(load_history_rows(made(tmp_path, *rows), along="farm"), "farm")
    assert told[["first", "ended"]].values.tolist() == [list(one) for one in zip(of, [*list(of)[1:], ""])]


def test_the_command_reads_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        on(0, "wrong"),
        on(1, "pass"),
        on(1, "wrong", "torch:std", variant="unbiased"),
        on(1, "crash", backend="b-cpu"),
    ]
    results = ["--results", made(tmp_path, *rows)]
    for ops, shown, hidden in (
        ([], "std", "nothing"),
        (["add"], "torch:add", "std"),
        (["torch:std.unbiased"], "torch:std.unbiased", "torch:add"),
        (["torch:a*", "--backend", "ort-*"], f"fixed in {DAYS[1]}", "b-cpu"),
    ):
        assert main([*ops, *results]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert shown in said and hidden not in said
    assert main(["--csv", str(tmp_path / "t.csv"), *results]) == 0 and len(pd.read_csv(tmp_path / "t.csv")) == 4
    for bad, says in (
        (["torch:ad"], "no rows of op torch:ad; did you mean torch:add"),
        (["add", "--backend", "c-cpu"], "no rows"),
    ):
        assert main([*bad, *results]) == 2
        assert says in capsys.readouterr().err


def test_a_copied_run_counts_once_and_clocks_that_disagree_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = made(tmp_path, on(0, "wrong"), on(1, "wrong", started_at=pd.Timestamp("2026-11-01", tz="UTC")))
    for run_id in DAYS[:2]:
        (tmp_path / f"run={run_id}" / "_run.json").write_text(json.dumps({"run_id": run_id, "finished_at": "x"}))
    assert main(["add", "--results", results]) == 0
    said = capsys.readouterr()
    words = f"{DAYS[1]} by 1 days 02:00:00; runs are in the order of their ids"
    assert words in said.err
    for _ in range(2):  # the second time from a summary, which only ended runs have
        for command in (
            ["report", results, "--out", str(tmp_path / "r")],
            ["gate", "--results", results],
            ["report", "site", str(tmp_path / "s"), results],
        ):
            farm_main(command)
            assert capsys.readouterr().err.count(words) == 1, command
    shutil.copytree(tmp_path / f"run={DAYS[0]}", tmp_path / f"run={DAYS[0]} copy")
    with pytest.warns(lake.LakeWarning, match=f"run={DAYS[0]} copy is a copy of run {DAYS[0]} and is left out"):
        assert lake.run_ids(results) == DAYS[:2] and len(lake.read(results)) == 2
    with pytest.warns(lake.LakeWarning):
        assert main(["add", "--results", results]) == 0
    assert capsys.readouterr().out == said.out
    assert main([results]) == 2 and f"say: farm report history --results {results}" in capsys.readouterr().err


def test_parts_of_other_schemas_cost_their_columns_or_a_line(tmp_path: Path) -> None:
    results = made(tmp_path, on(0, "wrong"), on(1, "wrong"), on(2, "pass"))
    for day, change in enumerate(
        (
            lambda table: table.drop_columns(["farm_version", "kind", "attempts", "variant"]),
            lambda table: table.append_column("backend", table["backend"]),
            lambda table: table.drop_columns(["status"]).append_column("status", pa.array([["wrong"]])),
        )
    ):
        path = tmp_path / f"run={DAYS[day]}" / "part-0.parquet"
        pq.write_table(change(pq.read_table(path, partitioning=None)), path)
    with pytest.warns(lake.LakeWarning, match="part-0") as told:
        rows = load_history_rows(results, ["torch:add"])
    assert len(told) == 2 and "2 columns backend" in str(told[0].message)
    assert list_outcome_spans(rows)[["status", "first", "steps"]].values.tolist() == [["wrong", DAYS[0], 1]]
