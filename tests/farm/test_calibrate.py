"""farm.calibrate: the rule on rows made by hand, the policy it writes, and what it must not accommodate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from farm import lake
from farm.commands.calibrate import BAD_INPUT, main
from farm.policies import calibrate
from farm.policies.calibrate import FEWEST_OPS, LEAST, LEAST_ROUNDED_ONCE, round_to_power_of_two
from tasks.judge import policy_files
from tasks.model.row import Row

RUN = "20260101-000000-aaaa"


def row(op: str, units: float, sample: int = 0, **more: Any) -> dict[str, Any]:
    status = "pass" if units <= 32 else "imprecise"
    return {
        "check": "forward",
        "distribution": "own",
        "catalog": "torch",
        "op": f"torch:{op}",
        "variant": "",
        "dtype": "float32",
        "op_class": "reduction",
        "sample": sample,
        "seed": 0,
        "attempts": 1,
        "status": status,
        "kind": "" if status == "pass" else "numbers",
        "started_at": 1.0,
        "numel": 3,
        "error_units": units,
        "max_ulp": units,
        "max_diff": 1e-9,
        "classic": True,
        "mismatched": 0,
        "nonfinite": 0,
        "limit": 32.0,
        "oracle": "float64",
        "weak": False,
    } | more


#: Ops that op_db has: a policy's own lines are checked against the catalogs.
NAMES = ("sum", "mean", "std", "var", "prod", "cumsum", "logsumexp", "norm", "trace", "sinc")
ROWS = [row(name, 0.5 + 0.1 * k, sample) for k, name in enumerate(NAMES) for sample in range(3)]


def make(path: Path, *more: dict[str, Any], rows: list[dict[str, Any]] = ROWS) -> str:
    constant = {"run_id": RUN, "backend": "torch-cpu", "vendor": "Meta", "device": "x", "runtime_version": "torch 9"}
    opened = lake.open_lake(path)
    lake.append_part(opened, RUN, [lake.make_row_batch([Row(**r) for r in (*rows, *more)], lake.Origin(**constant))])
    lake.append_part(
        opened,
        RUN,
        [lake.make_row_batch([Row(**row("sum", 1e9))], lake.Origin(**(constant | {"backend": "shaky-cpu"})))],
    )
    lake.write_run_record(opened, RUN, {"run_id": RUN})
    return str(path)


def run(results: str, out: Path, *more: str) -> policy_files.Policy:
    assert main(["--results", results, "--backends", "torch-cpu", "--out", str(out), *more]) == 0
    return policy_files.load_policy(str(out))


def found(
    path: Path, *more: dict[str, Any], rows: list[dict[str, Any]] = ROWS, apart: tuple[str, ...] = ()
) -> dict[tuple[str, str], calibrate.CalibratedLimit]:
    frame = lake.read(make(path, *more, rows=rows))
    return {
        (x.op_class, x.dtype): x
        for x in calibrate.calibrate_limits(calibrate.select_calibration_evidence(frame, ["torch-cpu"]), 0.9, apart)
    }


@pytest.mark.parametrize(("value", "power"), [(1, 1), (1.01, 2), (4, 4), (4.1, 8), (0.3, 0.5), (33, 64)])
def test_power_of_two(value: float, power: float) -> None:
    assert round_to_power_of_two(value) == power


def test_the_rule(tmp_path: Path) -> None:
    small = found(tmp_path / "a")["reduction", "float32"]
    assert (small.limit, len(small.ops), small.cases, small.beyond) == (LEAST, len(NAMES), 30, {})
    # Twice the 0.9 quantile of the maxima over samples (here 12.8, of the last op but one), to the next power of two.
    large = found(tmp_path / "b", *(row(name, 12 + 0.1 * k, 5) for k, name in enumerate(NAMES)))["reduction", "float32"]
    assert (large.limit, large.largest) == (32, ("torch:sinc", 12.9))
    half = found(tmp_path / "c", rows=[one | {"dtype": "float16"} for one in ROWS])["reduction", "float16"]
    assert half.limit == LEAST_ROUNDED_ONCE
    assert not found(
        tmp_path / "d", rows=[one | {"dtype": "float64"} for one in ROWS]
    )  # nor is it resolved by its reference


def test_what_lies_beyond_is_named_and_does_not_raise_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = make(tmp_path / "lake", row("sinc", 400.0, 7))
    policy = run(results, tmp_path / "p.json")
    text = capsys.readouterr().out
    assert "failed: torch:sinc 400 error units" in text
    limit = policy.limit("torch:sum", "reduction", "float32")
    assert limit.units == LEAST and "beyond: torch:sinc 400" in limit.evidence
    assert policy.limit("torch:sinc", "reduction", "float32") == limit


def test_wrong_rows_and_other_backends_are_no_evidence(tmp_path: Path) -> None:
    bad = row("mean", 20.0, 7, status="wrong", kind="numbers", classic=False)
    one = found(
        tmp_path,
        bad,
        row("std", 0.0, 8, status="wrong", kind="shape"),
        row("var", 9.0, 8, oracle="stored", error_units=None),
    )["reduction", "float32"]
    assert one.failed == one.beyond == {"torch:mean": 20.0} and "torch:mean" not in one.ops
    assert one.limit == LEAST and one.cases == 27


def test_too_few_ops_are_no_evidence_for_a_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = [row(name, 1.0, dtype="float16") for name in NAMES[: FEWEST_OPS - 1]]
    results = make(tmp_path / "lake", *few)
    policy = run(results, tmp_path / "p.json", "--policy", _plain(tmp_path))
    assert "fewer than 8 ops" in capsys.readouterr().out
    assert policy.limit("torch:sum", "reduction", "float16") == policy.limits[0]


def test_an_op_with_a_reason_gets_a_limit_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = make(tmp_path / "lake", row("sinc", 40.0, 7))
    policy = run(results, tmp_path / "p.json", "--op", "torch:sin[c]=it takes a quotient of zeros")
    own = policy.limit("torch:sinc", "reduction", "float32")
    assert own.units == 128 and own.evidence.startswith(
        "it takes a quotient of zeros; 4 cases on torch-cpu (torch 9), the largest 40"
    )
    assert policy.limit("torch:sum", "reduction", "float32").units == LEAST
    assert "torch:sin[c] float32: 128 error units" in capsys.readouterr().out
    # One that needs no more than its class gets none.
    assert len(run(results, tmp_path / "q.json", "--op", "torch:sum=a reason").limits) == len(policy.limits) - 1


def test_every_line_has_value_evidence_and_date_and_the_version_goes_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = make(tmp_path / "lake")
    before, first = policy_files.load_policy("error_units"), run(results, tmp_path / "1.json")
    again = run(results, tmp_path / "2.json", "--policy", str(tmp_path / "1.json"))
    assert (first.version, again.version) == (before.version + 1, before.version + 2)
    assert again.limits == first.limits  # the lines of an earlier calibration are replaced, not added to
    for limit in before.limits:
        assert limit in first.limits or (limit.classes, limit.dtypes) == (("reduction",), ("float32",))
    line = first.limit("torch:sum", "reduction", "float32")
    assert (
        "30 cases of 10 ops on torch-cpu (torch 9)" in line.evidence and "0.95 quantile" in line.evidence and line.date
    )
    data = json.loads((tmp_path / "1.json").read_text())
    assert {"units", "evidence", "date", "classes", "dtypes"} == set(
        next(x for x in data["limits"] if x.get("classes") == ["reduction"] and x["evidence"] == line.evidence)
    )
    assert policy_files.load_policy(str(tmp_path / "1.json")).limit(
        "torch:exp", "elementary", "float32"
    ) == before.limit("torch:exp", "elementary", "float32")


def test_what_would_change_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = make(tmp_path / "lake", row("sinc", 40.0, 7, status="pass", kind=""))
    run(results, tmp_path / "p.json", "--policy", _plain(tmp_path))
    text = capsys.readouterr().out
    assert "plain-1 → p-2" in text and "pass → imprecise" in text and "torch:sinc float32 on torch-cpu" in text


def _plain(path: Path) -> str:
    limit = {"units": 64, "evidence": "a beginning", "date": "2026-11-20"}
    (path / "plain.json").write_text(
        json.dumps({"name": "plain", "version": 1, "rule": "error_units", "reason": "r", "limits": [limit]})
    )
    return str(path / "plain.json")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backends", "torch-cpuu"], "no row of 'torch-cpuu'; did you mean torch-cpu"),
        (["--quantile", "0"], "--quantile 0"),
        (["--quantile", "1.5"], "--quantile 1.5"),
        (["--op", "torch:sum"], "GLOB=REASON"),
        (["--op", "torch:nosuch=why"], "no op with such rows"),
        (["--policy", "classic"], "its rule is classic"),
        (["--policy", "none.json"], "no such file"),
        (["--out", "p.yaml"], "a .json file"),
        (["--run", "nosuch"], "nosuch"),
    ],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    results = make(tmp_path / "lake")
    assert main(["--results", results, "--backends", "torch-cpu", *arguments]) == BAD_INPUT
    text = capsys.readouterr().err
    assert says in text and text.count("\n") == 1


def test_rows_without_a_class_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = make(tmp_path / "lake", row("abs", 1.0, op_class=None))
    assert main(["--results", results, "--backends", "torch-cpu"]) == BAD_INPUT
    assert "older schema" in capsys.readouterr().err


def test_findings_are_frames_of_the_evidence_alone(tmp_path: Path) -> None:
    frame = lake.read(make(tmp_path, row("exp", 2.0, op_class="elementary"), row("sum", 9.0, 9, check="backward")))
    made = calibrate.select_calibration_evidence(frame, ["torch-cpu"])
    assert set(made["op_class"]) == {"reduction"} and made["error_units"].max() < 9
    assert isinstance(made, pd.DataFrame) and len(made) == 30


def test_without_a_limit_the_largest_is_that_of_all_ops() -> None:
    assert calibrate.CalibratedLimit("reduction", "float32", {"a": 1.0, "b": 3.0}, {}, 2, None).largest == ("b", 3.0)


def test_a_policy_is_called_as_its_file(tmp_path: Path) -> None:
    assert run(make(tmp_path / "lake"), tmp_path / "mine.json").name == "mine"
