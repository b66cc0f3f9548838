"""farm.rejudge: the same policy changes nothing, another one what it should; no row is dropped without a word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from farm import lake
from farm.commands import run as launch
from farm.commands.rejudge import BAD_INPUT, CHANGED, SAME, main
from farm.lake import SCHEMA
from farm.policies.rejudge import find_rejudged_changes, rejudge_rows
from tasks.judge import policy_files

CONFIG = """
checks: [forward]
catalogs:
  - {name: torch, ops: [log_softmax, transpose, exp, empty, nn.functional.dropout, sum, sort, floor_divide, linalg.inv],
     dtypes: [float32, float16, int32, complex64], samples: 4, backends: [torch-cpu]}
  # Of an exporter few: each form takes it half a second.
  - {name: torch, ops: [log_softmax, empty, floor_divide, linalg.inv], dtypes: [float16, int32], samples: 1, backends: [ort-cpu]}
  - {name: onnx, ops: [Cast, Softmax, StringConcat, Reshape], dtypes: ["*"], samples: 1}
backends: [torch-cpu, ort-cpu]
"""
WHY: dict[str, Any] = {"evidence": "a test", "date": "2026-11-20"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lake with one inline run."""
    where = tmp_path_factory.mktemp("rejudge")
    (where / "small.yaml").write_text(CONFIG)
    code = launch.main([str(where / "small.yaml"), "--on", "inline", "--results", str(where / "results")])
    assert code in (launch.OK, launch.FOUND)
    yield where / "results"


@pytest.fixture(scope="module")
def rows(results: Path) -> pd.DataFrame:
    return lake.read(results)


def policy(*limits: dict[str, Any], **change: Any) -> policy_files.Policy:
    return policy_files.read_policy_json(
        {"name": "p", "version": 1, "rule": "error_units", "reason": "r", "limits": [WHY | x for x in limits]} | change
    )


@pytest.mark.parametrize("name", policy_files.list_policy_names())
def test_judged_again_is_what_a_run_under_that_policy_says(
    results: Path, rows: pd.DataFrame, tmp_path: Path, name: str
) -> None:
    """The whole way: what the farm writes when it judges under a policy is what rejudging makes of another run's
    rows."""
    (tmp_path / "again.yaml").write_text(CONFIG + f"policy: {name}\n")
    launch.main([str(tmp_path / "again.yaml"), "--on", "inline", "--results", str(tmp_path / "results")])
    keys = ["case_id", "backend"]
    fresh = lake.read(tmp_path / "results").set_index(keys)[["status", "kind", "limit"]].sort_index()
    again = rejudge_rows(rows, policy_files.load_policy(name))
    assert (again["why"] == "").all()
    assert {"pass", "wrong"} <= set(again["status"])
    made = again.set_index(pd.MultiIndex.from_frame(rows[keys]))[["status", "kind", "limit"]].sort_index()
    judged = fresh["status"].isin(["pass", "imprecise", "wrong"])
    pd.testing.assert_frame_equal(made[judged], fresh[judged], check_dtype=False)
    assert (made["status"] == fresh["status"]).all() and (made["kind"] == fresh["kind"]).all()


def test_nothing_changes_under_the_runs_own_policy(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--policy", "error_units", "--results", str(results)]) == SAME
    assert "nothing changes" in capsys.readouterr().out


def write(path: Path, *limits: dict[str, Any]) -> str:
    (path / "p.json").write_text(
        json.dumps(
            {"name": "p", "version": 7, "rule": "error_units", "reason": "r", "limits": [WHY | x for x in limits]}
        )
    )
    return str(path / "p.json")


def test_it_says_what_changes(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lax = write(tmp_path, {"units": 1e9})
    assert (
        main(["--policy", lax, "--results", str(results), "--all", "--out", str(tmp_path / "rows.parquet")]) == CHANGED
    )
    text = capsys.readouterr().out
    assert "wrong → pass" in text and "judged again under p-7" in text
    assert "torch:log_softmax float16 on torch-cpu" in text and "error units" in text and "→ 1e+09" in text
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.schema.equals(SCHEMA)
    made, old = table.to_pandas(), lake.read(results)
    assert len(made) == len(old)
    row = made[(made["op"] == "torch:log_softmax") & (made["dtype"] == "float16") & (made["error_units"] > 32)].iloc[0]
    assert (row["status"], row["limit"], row["policy"]) == ("pass", 1e9, "p-7")
    still = made[~made["status"].isin(["pass", "imprecise", "wrong"])]
    assert set(still["policy"]) <= {"error_units-2", "error_units-3", policy_files.load_policy("error_units").id, ""}
    assert main(["--policy", lax, "--results", str(results), "--out", str(tmp_path / "rows.csv")]) == CHANGED
    assert len(pd.read_csv(tmp_path / "rows.csv")) == len(old)


def row(**more: Any) -> dict[str, Any]:
    return {
        "run_id": "r",
        "case_id": "c",
        "check": "forward",
        "catalog": "torch",
        "op": "torch:nothing",
        "variant": "",
        "dtype": "float32",
        "op_class": "composite",
        "distribution": "own",
        "sample": 0,
        "backend": "torch-cpu",
        "status": "pass",
        "kind": "",
        "limit": 32.0,
        "nonfinite": 0,
        "error_units": 3.0,
        "max_ulp": 3.0,
        "max_diff": 1e-9,
        "mismatched": 0,
        "numel": 4,
        "classic": True,
        "oracle": "float64",
        "compute_precision": "float32",
    } | more


def again(policy: policy_files.Policy, **more: Any) -> tuple[str, str, Any, str]:
    made = rejudge_rows(pd.DataFrame([row(**more)]), policy).iloc[0]
    return made["status"], made["kind"], None if pd.isna(made["limit"]) else made["limit"], made["why"]


STRICT, LAX = policy({"units": 1}), policy({"units": 1e9})


def test_only_what_a_policy_decides_is_judged() -> None:
    assert again(STRICT) == ("imprecise", "numbers", 1, "")
    assert again(LAX, status="wrong", kind="numbers", error_units=1e6, classic=False) == ("pass", "", 1e9, "")
    for status, kind in (
        ("wrong", "shape"),
        ("wrong", "mutation"),
        ("wrong", "nondeterministic"),
        ("invalid", "oracle"),
        ("crash", "SIGSEGV"),
        ("fallback", ""),
        ("unsupported", ""),
        ("vacuous", "no elements"),
        ("error", ""),
    ):
        assert again(LAX, status=status, kind=kind) == (status, kind, 32, "")
    # A misplaced NaN is wrong under any policy.
    lost = {"status": "wrong", "kind": "nonfinite", "nonfinite": 1, "error_units": float("inf"), "classic": False}
    for one in (STRICT, LAX, policy_files.load_policy("classic"), policy_files.load_policy("absolute")):
        assert again(one, **lost)[:2] == ("wrong", "nonfinite")


def test_a_lost_cast_stays_one() -> None:
    """Its kind is of what explains the numbers, and within the limit it is imprecise as well."""
    within = again(policy({"units": 32}), status="imprecise", kind="cast", error_units=2.0, max_diff=1e-9)
    assert within[:2] == ("imprecise", "cast")
    assert again(policy({"units": 32}), status="wrong", kind="cast", error_units=1e6, classic=False)[:2] == (
        "wrong",
        "cast",
    )


def test_what_is_declared_coarser_is_judged_as_such() -> None:
    near = policy({"units": 1})
    assert again(near, error_units=2.0**6)[0] == "imprecise"
    assert again(near, error_units=2.0**6, compute_precision="bfloat16")[0] == "wrong"


def test_what_cannot_be_judged_again_stays_and_says_why() -> None:
    for name, value, why in (
        ("classic", None, "classic is missing"),
        ("numel", None, "numel is missing"),
        ("error_units", None, "error_units is missing"),
    ):
        status, kind, limit, said = again(STRICT, **{name: value})
        assert (status, kind, limit) == ("pass", "", 32) and why in said
    assert again(policy_files.load_policy("classic"), error_units=None)[3] == ""  # it needs none
    assert again(STRICT, oracle="stored", error_units=None) == ("pass", "", 1, "")
    apart = again(STRICT, oracles_units=5.0)[3]
    assert "oracles are further apart (5) than the limit (1), and rows do not tell whether" in apart
    assert again(LAX, oracles_units=5.0)[3] == ""


OLD = {"op_class": None, "distribution": None, "limit": None, "nonfinite": None}


def test_rows_of_an_older_schema_are_given_their_class() -> None:
    assert again(STRICT, **OLD) == ("imprecise", "numbers", 1, "")
    # A garbage sin that the noise floor of its input excused when composites and functions were one.
    assert again(
        policy_files.load_policy("error_units"),
        **OLD | {"op": "torch:sin", "error_units": 0.5, "max_ulp": 1e4, "classic": True},
    )[:2] == ("wrong", "numbers")
    assert again(
        policy_files.load_policy("error_units"), **OLD | {"op": "torch:transpose", "error_units": 0.0, "max_ulp": 0.0}
    )[:2] == ("pass", "")
    old_nan = OLD | {"status": "wrong", "kind": "nonfinite", "error_units": float("inf"), "classic": False}
    assert again(LAX, **old_nan)[:2] == ("wrong", "nonfinite")
    assert "depends on" in again(LAX, **OLD | {"op": "torch:add"})[3]
    assert "another formula" in again(LAX, **OLD | {"op": "torch:linalg.svd"})[3]
    assert again(policy_files.load_policy("classic"), **OLD | {"op": "torch:linalg.svd"})[3] == ""


def test_rows_without_the_new_columns(capsys: pytest.CaptureFixture[str]) -> None:
    old = pd.DataFrame([row(), row(sample=1, status="wrong", kind="numbers", error_units=1e6, classic=False)]).drop(
        columns=["op_class", "distribution", "limit", "nonfinite"]
    )
    made = rejudge_rows(old, LAX)
    assert made["status"].tolist() == ["pass", "pass"]
    assert find_rejudged_changes(old.assign(distribution="own", limit=None), made)["new_status"].tolist() == ["pass"]


def test_a_lake_of_an_older_schema_is_judged_and_counted(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lake.run_ids(results)[-1]
    table = lake.read_table(results, run).drop_columns(["op_class", "distribution", "limit", "nonfinite"])
    (tmp_path / f"run={run}").mkdir()
    (tmp_path / f"run={run}" / "_run.json").write_bytes((results / f"run={run}" / "_run.json").read_bytes())
    pq.write_table(table, tmp_path / f"run={run}" / "part-0.parquet")
    assert main(["--policy", "error_units", "--results", str(tmp_path)]) in (SAME, CHANGED)
    text = capsys.readouterr().out
    assert f"{table.num_rows} rows" in text and "not judged again" in text and "torch:sort" in text


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (
            {"ops": ["torch:log_sofmax"]},
            "limits[1].ops: no op matches 'torch:log_sofmax'; did you mean torch:log_softmax",
        ),
        ({"ops": ["log_softmax"]}, "limits[1].ops: 'log_softmax' names no catalog; did you mean torch:log_softmax?"),
        ({"ops": ["troch:sum"]}, "limits[1].ops: 'troch:sum': unknown catalog 'troch'"),
        ({"ops": ["torch:zzz*"]}, "limits[1].ops: no op matches 'torch:zzz*'"),
        ({"dtypes": ["flaot16"]}, "limits[1].dtypes: unknown 'flaot16'"),
        ({"evidence": ""}, "limits[1]: a limit needs its evidence"),
        ({"units": -1}, "limits[1].units must be a positive number"),
    ],
)
def test_a_bad_policy_names_file_and_key(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: dict[str, Any], says: str
) -> None:
    bad = write(tmp_path, {"units": 4}, {"units": 8} | limit)
    assert main(["--policy", bad, "--results", str(results)]) == BAD_INPUT
    text = capsys.readouterr().err
    assert "p.json" in text and says in text and text.count("\n") == 1
    # The launcher says the same.
    (tmp_path / "c.yaml").write_text(
        f"policy: {bad}\ncatalogs: [{{name: torch, ops: [sum], samples: 1}}]\nbackends: [torch-cpu]\n"
    )
    assert (
        launch.main([str(tmp_path / "c.yaml"), "--on", "inline", "--dry-run", "--results", str(tmp_path)]) == BAD_INPUT
    )
    assert says in capsys.readouterr().err


def test_a_policy_may_name_ops_of_catalogs_that_the_run_does_not_have(results: Path, tmp_path: Path) -> None:
    fine = write(tmp_path, {"units": 1e9}, {"units": 8, "ops": ["critical:gelu", "*:sum", "torch:log_soft*"]})
    assert main(["--policy", fine, "--results", str(results)]) == CHANGED


def test_the_policies_that_come_with_the_farm_name_ops_that_there_are() -> None:
    from farm.plan import policies
    from farm.work.catalog_lists import list_entries_here
    from tasks.cache import default_cache

    labels = {
        c: [f"{e.op}.{e.variant}" if e.variant else e.op for e in list_entries_here(c, default_cache())]
        for c in ("torch", "onnx", "critical")
    }
    for name in policy_files.list_policy_names():
        policies.check_policy_ops(policy_files.load_policy(name), f"{name}.json", labels)


@pytest.mark.parametrize(
    "arguments",
    [["--policy", "clasic"], ["--policy", "classic", "--out", "x.txt"], ["--policy", "classic", "--run", "nosuch"]],
)
def test_bad_input(results: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main([*arguments, "--results", str(results)]) == BAD_INPUT
    assert capsys.readouterr().err.startswith("error: ")
