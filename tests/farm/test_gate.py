"""A gate: what closes it, what it cannot say, what is quarantined by evidence; JUnit, SARIF and Markdown that other tools read."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farm import lake
from farm.commands.gate import main
from farm.plan.config import load_config
from farm.plan.config_schema import ConfigError
from tasks.model import Status
from tests.conftest import ROOT
from tests.farm.test_report import HOSTILE, make_row

SCHEMAS = ROOT / "tests" / "schemas"
DAYS = [f"2026110{day}-020000-aaaa" for day in range(1, 7)]


def on(day: int, status: str = "pass", op: str = "torch:add", backend: str = "ort-cpu", **more: Any) -> dict[str, Any]:
    at = datetime.datetime(2026, 11, day + 1, 2, tzinfo=datetime.timezone.utc)
    kind = "numbers" if status == "wrong" else ""
    return make_row(status, op, backend, **{"run_id": DAYS[day], "started_at": at, "kind": kind, "digest": "d"} | more)


def made(tmp_path: Path, *rows: dict[str, Any], **config: Any) -> str:
    for run_id, some in pd.DataFrame(list(rows)).groupby("run_id"):
        folder = tmp_path / "lake" / f"run={run_id}"
        folder.mkdir(parents=True)
        record = {"run_id": run_id, "name": "c", "planned": len(some), "finished_at": "2026-11-07", "config": config}
        (folder / "_run.json").write_text(json.dumps(record))
        pq.write_table(
            pa.Table.from_pylist(some.astype(object).where(some.notna(), None).to_dict("records"), schema=lake.SCHEMA),
            folder / "part-0.parquet",
        )
    return str(tmp_path / "lake")


STALE = {"op": "torch:add", "reason": "mended long ago"}


@pytest.mark.parametrize(
    "gate, rows, code, says",
    (
        ({}, [on(0)], 0, "gate OPEN: 1 item holds"),
        ({}, [on(0, "wrong")], 1, "gate CLOSED: 1 cell with new failures"),
        ({"new": 1}, [on(0, "wrong"), on(0, "wrong", sample=1)], 0, "OPEN"),
        ({"coverage": [{"at_least": 0.5}]}, [on(0), on(0, "unsupported", "torch:mul")], 0, "OPEN"),
        ({"coverage": [{"at_least": 0.6}]}, [on(0), on(0, "unsupported", "torch:mul")], 1, "it is 50 % (1/2)"),
        ({"coverage": [{"at_least": 1, "ops": ["add"]}]}, [on(0), on(0, "unsupported", "torch:mul")], 0, "OPEN"),
        ({"coverage": [{"at_least": 0, "backends": ["tpu"]}]}, [on(0)], 3, "on tpu: nothing planned and valid"),
        (  # what was there holds
            {"coverage": [{"at_least": 0, "backends": ["ort-*", "tpu"]}]},
            [on(0)],
            3,
            "could not be judged: coverage at least 0 on ort-*, tpu: it is 100 % (1/1), but nothing ran on tpu",
        ),
        (
            {"coverage": [{"at_least": 0, "backends": ["tpu"]}]},
            [on(0, "wrong")],
            1,
            "gate CLOSED: 1 cell with new failures. Could not be judged: coverage at least 0 on tpu: nothing",
        ),
        ({"speedup": [{"at_least": 1.1}]}, [on(0, speedup=1.0, speedup_high=1.2)], 0, "OPEN"),
        (
            {"speedup": [{"at_least": 1.3}]},
            [on(0, speedup=1.0, speedup_high=1.2)],
            1,
            "1 of 1 case below it, torch:add on ort-cpu 1",
        ),
        ({"speedup": [{"at_least": 1}]}, [on(0)], 3, "no speedup was measured"),
        ({"known": "strict"}, [on(0)], 1, "1 known failure stale, expired or otherwise (stale: torch:add on *)"),
        ({"imprecise": 0}, [on(0)], 0, "OPEN"),
        ({}, [on(0, "imprecise")], 0, "OPEN"),
        ({"imprecise": 0}, [on(0, "imprecise")], 1, "gate CLOSED: 1 cell with imprecise results"),
        ({"imprecise": 1}, [on(0, "imprecise")], 0, "OPEN"),
        ({"less_precise": 0}, [on(0)], 0, "OPEN"),
        (
            {"less_precise": 0},
            [on(0, error_units=1.0), on(1, error_units=9.0)],
            1,
            "1 cell less precise than in 20261101",
        ),
        ({"less_precise": 0}, [on(0, error_units=1.0), on(1, error_units=2.0)], 0, "OPEN"),
    ),
)
def test_what_closes_a_gate_and_what_it_cannot_say(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    gate: dict[str, Any],
    rows: list[dict[str, Any]],
    code: int,
    says: str,
) -> None:
    listed = [STALE] if gate.get("known") else []
    results = made(tmp_path, *rows, gate=gate, known_failures=listed)
    assert main(["--results", results]) == code
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert says in last and last.endswith(f"(exit code {code})")


def test_a_failure_is_quarantined_by_evidence_alone_and_never_silently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """add comes and goes on the same inputs and version; mul broke on day 3 and stays so; sub came and went with a
    version."""
    rows = [on(day, "wrong" if day in (1, 3, 5) else "pass") for day in range(6)]
    rows += [on(day, "wrong" if day >= 3 else "pass", "torch:mul") for day in range(6)]
    rows += [on(day, "wrong" if day % 2 else "pass", "torch:sub", runtime_version=f"1.{day}") for day in range(6)]
    results = made(tmp_path, *rows, gate={"flaky": {"times": 2, "of": 6}})
    markdown = tmp_path / "gate.md"
    assert main(["--results", results, "--markdown", str(markdown)]) == 1
    said = capsys.readouterr().out
    assert "2 cells with new failures; 1 flaky cell in quarantine" in said
    assert "failed in 3 of 6 runs of the same inputs and version, and passed 2 times in between" in " ".join(
        markdown.read_text().split()
    )
    assert "| quarantined |" in markdown.read_text()
    plain = made(
        tmp_path / "d", on(0, "wrong", cause="scaled by 0.99", error_units=5e6, limit=32.0, op_class="reduction")
    )
    assert main(["--results", plain, "--markdown", str(markdown)]) == 1
    # A reader of a pull request is told what is wrong.
    assert "`scaled by 0.99; numbers; 5e+06 units, limit 32" in markdown.read_text()
    assert "| quarantined |" not in markdown.read_text()
    capsys.readouterr()
    only = made(tmp_path / "b", *rows[:6], gate={"flaky": {"times": 2, "of": 6}})
    assert main(["--results", only]) == 0 and "1 flaky cell in quarantine" in capsys.readouterr().out
    strict = made(tmp_path / "c", *rows[:6], gate={"flaky": {"times": 3, "of": 6}})
    assert main(["--results", strict]) == 1


def test_of_a_backend_that_fails_anywhere_a_case_is_quarantined_while_it_may_be_chance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every night another op fails; mul breaks on the fourth, and stays so. Of seven cases that chance has fail one
    night in eight, one in eleven nights fails twice in a row; of a hundred that seldom fail, none."""
    ops = [f"torch:op{n}" for n in range(6)]
    rows = [on(day, "wrong" if ops.index(op) == day else "pass", op) for day in range(6) for op in ops]
    rows += [on(day, "wrong" if day >= 3 else "pass", "torch:mul") for day in range(6)]
    rows += [on(day, "wrong" if day < 5 else "error", "torch:sub") for day in range(6)]  # its cause is known
    known = [{"op": "torch:sub", "status": "wrong", "reason": "it subtracts"}]
    few = made(tmp_path / "few", *rows, gate={"flaky": {"backend": 3}}, known_failures=known)
    rows += [on(day, "pass", f"torch:sound{n}") for day in range(6) for n in range(100)]
    many = made(tmp_path / "many", *rows, gate={"flaky": {"backend": 3}}, known_failures=known)
    quarantined = "; 2 flaky cells in quarantine"
    for results, day, code, says in (
        (few, 1, 1, "1 cell with new failures"),  # too early to say
        (few, 3, 0, quarantined),
        (few, 4, 0, quarantined),
        (few, 5, 1, "1 cell with new failures; 2 flaky cells in quarantine"),
        (many, 3, 0, quarantined),
        (many, 4, 1, "1 cell with new failures; 1 flaky cell in quarantine"),
    ):
        assert main(["--results", results, "--run", DAYS[day]]) == code
        assert says in capsys.readouterr().out, (results, day)


def test_a_gate_names_the_worst_new_cells_and_one_command_for_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [on(0, "wrong", f"torch:op{n}") for n in range(11)]
    assert main(["--results", made(tmp_path, *rows)]) == 1
    said = capsys.readouterr().out
    assert "New failures: 11 cells, 4 shown" in said and said.count("farm reproduce") == 1
    assert f"all 11 cells with their commands: farm report --run {DAYS[0]} --new" in said
    assert len(said.splitlines()) <= 20


def test_a_gate_of_other_known_failures_points_to_no_report_which_knows_the_runs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = [{"op": "torch:op0", "reason": "x"}]
    results = made(tmp_path, *[on(0, "wrong", f"torch:op{n}") for n in range(11)], known_failures=known)
    config = tmp_path / "c.yaml"
    for op, count, shown, points in (("op0", 10, 4, True), ("op[0-5]", 5, 5, False), ("op1", 10, 10, False)):
        listed = f"known_failures: [{{op: 'torch:{op}', reason: x}}]"
        config.write_text(f"catalogs: [torch]\nbackends: [torch-cpu]\n{listed}\n")
        assert main(["--results", results, "--config", str(config)]) == 1
        said = capsys.readouterr().out
        assert f"New failures: {count} cells" in said and said.count("\nwrong ") == shown
        assert ("farm report" in said) == points


def test_what_is_quarantined_stands_with_its_evidence_whatever_else_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [on(2, "wrong", f"torch:op{n}") for n in range(6)]
    rows += [on(day, status, f"torch:fl{n}") for n in range(3) for day, status in enumerate(("wrong", "pass", "wrong"))]
    results = made(tmp_path, *rows, gate={"flaky": {"times": 1, "of": 5}})
    assert main(["--results", results]) == 1
    said = capsys.readouterr().out
    flaky, new = said[said.index("Flaky, in quarantine: 3 cells") :].split("New failures: 6 cells, 4 shown")
    assert all(f"torch:fl{n}" in flaky and f"torch:fl{n}" not in new for n in range(3))
    assert "flaky: failed in 2 of 3 runs" in " ".join(flaky.split()) and new.count("\nwrong ") == 4
    assert "all 9 cells with their commands: farm report" in new, "a report knows no quarantine"


def test_junit_and_sarif_say_what_is_new_what_is_known_and_what_is_flaky(tmp_path: Path) -> None:
    rows = [
        *(on(0, "wrong", "torch:sin"), on(1, "pass", "torch:sin"), on(2, "wrong", "torch:sin")),  # flaky
        on(2, "error", "torch:mul", error=HOSTILE, stage="run"),
        on(2, "wrong", "torch:div"),  # known
        on(2, "imprecise", "torch:exp", kind="numbers", error_units=40.0),
        on(2, "pass", run_ms=1500.0),
        on(2, "unsupported", "torch:cos", error="no such op"),
    ]
    results = made(tmp_path, *rows, gate={"flaky": {}}, known_failures=[{"op": "div", "reason": "by <design>"}])
    files = {name: tmp_path / "out" / f"gate.{name}" for name in ("junit", "sarif", "markdown")}
    assert main(["--results", results, *(str(x) for name, file in files.items() for x in (f"--{name}", file))]) == 1
    root = ET.parse(files["junit"]).getroot()
    suites = {suite.get("name"): suite for suite in root.findall("testsuite")}
    cases = {case.get("name"): case for case in suites["ort-cpu"]}
    for suite in suites.values():
        assert int(suite.get("tests", "")) == len(suite.findall("testcase")) and suite.get("errors") == "0"
        assert int(suite.get("failures", "")) == len(suite.findall("*/failure"))
        assert int(suite.get("skipped", "")) == len(suite.findall("*/skipped"))
    failure = cases["forward/torch:mul/float32"].find("failure")
    assert failure is not None and "farm reproduce" in str(failure.text)
    skipped = {
        name: str(found.get("message")) for name, case in cases.items() if (found := case.find("skipped")) is not None
    }
    assert skipped["forward/torch:div/float32"] == "known: by <design>"
    assert skipped["forward/torch:sin/float32"].startswith("flaky: failed in 2 of 3 runs")
    assert "no such op" in skipped["forward/torch:cos/float32"]
    assert len(cases["forward/torch:add/float32"]) == 0 and cases["forward/torch:add/float32"].get("time") == "1.500"
    said = json.loads(files["sarif"].read_text())
    (run,) = said["runs"]
    assert said["version"] == "2.1.0" and {r["ruleId"] for r in run["results"]} == {
        r["id"] for r in run["tool"]["driver"]["rules"]
    }
    by_op = {r["locations"][0]["logicalLocations"][0]["name"]: r for r in run["results"]}
    assert set(by_op) == {"torch:sin", "torch:mul", "torch:div", "torch:exp"}
    assert by_op["torch:exp"]["level"] == "note" and by_op["torch:mul"]["level"] == "error"
    assert {op for op, r in by_op.items() if "suppressions" in r} == {"torch:sin", "torch:div"}
    assert "<script>" not in files["markdown"].read_text().replace("`", "")


def test_junit_and_sarif_are_valid_against_their_schemas(tmp_path: Path) -> None:
    """Those of OASIS (SARIF 2.1.0) and of Jenkins' JUnit plug-in."""
    rows = [on(0, one.value, f"torch:op{n}", error=HOSTILE, stage="run") for n, one in enumerate(Status)]
    results = made(tmp_path, *rows, gate={"speedup": [{"at_least": 1}]}, known_failures=[{"op": "op2", "reason": "x"}])
    xml, log = tmp_path / "gate.xml", tmp_path / "gate.sarif"
    assert main(["--results", results, "--junit", str(xml), "--sarif", str(log)]) == 1
    schema = json.loads((SCHEMAS / "sarif-2.1.0.json").read_text())
    jsonschema.Draft4Validator(schema).validate(json.loads(log.read_text()))
    xmlschema = pytest.importorskip("xmlschema")
    xmlschema.XMLSchema(str(SCHEMAS / "junit-10.xsd")).validate(str(xml))


def test_an_unfinished_run_is_not_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = made(tmp_path, on(0))
    record = Path(results) / f"run={DAYS[0]}" / "_run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"planned": 9}))
    assert main(["--results", results]) == 3
    assert "gate NOT PROVED, could not be judged: INCOMPLETE: 8 of 9" in capsys.readouterr().out


def test_a_run_without_record_is_not_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = made(tmp_path, on(0))
    (Path(results) / f"run={DAYS[0]}" / "_run.json").unlink()
    assert main(["--results", results]) == 3
    assert "so it may be incomplete" in capsys.readouterr().out
    results = made(tmp_path / "b", on(0, "wrong"))
    (Path(results) / f"run={DAYS[0]}" / "_run.json").unlink()
    assert main(["--results", results]) == 3
    assert "1 cell failed, and no record says which are known" in capsys.readouterr().out
    config = tmp_path / "c.yaml"
    for reason, code in (("torch:add", 3), ("torch:mul", 1)):
        known = f"known_failures: [{{op: '{reason}', reason: x}}]"
        config.write_text(f"catalogs: [torch]\nbackends: [torch-cpu]\n{known}\n")
        assert main(["--results", results, "--config", str(config)]) == code
        assert f"known failures: 1 of {config}, instead of no record of its own" in capsys.readouterr().out


def test_the_known_failures_of_a_config_that_is_named_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [{"op": "torch:mul", "reason": "of the run"}]
    results = made(tmp_path, on(0, "wrong"), on(0, "wrong", "torch:mul"), known_failures=entries)
    config = tmp_path / "c.yaml"
    bare = "catalogs: [torch]\nbackends: [torch-cpu]\ngate: {new: 1}\n"
    for more, code in (
        ("", 0),
        ("known_failures: [{op: '*', reason: x}]\n", 0),
        ("known_failures: [{op: no-op, reason: x}]\n", 1),
    ):
        config.write_text(bare + more)
        assert main(["--results", results, "--config", str(config)]) == code
        assert (f"known failures: 1 of {config}, instead of 1 of the run" in capsys.readouterr().out) == bool(more)


@pytest.mark.parametrize(
    "floor, says",
    (
        ({"backends": ["ort-cpuu"]}, "there is no backend ort-cpuu (did you mean ort-cpu"),
        ({"backends": ["ort-*", "tpuu"]}, "but nothing ran on tpuu, there is no backend tpuu"),
        ({"backends": ["torch-cuda"]}, "on torch-cuda: nothing planned and valid (exit"),
        ({"ops": ["torch:ad"]}, "the run has no op torch:ad (did you mean torch:add or torch:mul?)"),
        (
            {"ops": ["add", "mull"]},
            "it is 100 % (1/1), but nothing ran on mull, the run has no op mull (did you mean mul?)",
        ),
    ),
)
def test_names_that_nothing_has_are_told_from_what_was_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], floor: dict[str, Any], says: str
) -> None:
    results = made(tmp_path, on(0), on(0, "unsupported", "torch:mul"), gate={"coverage": [{"at_least": 0.5} | floor]})
    assert main(["--results", results]) == 3
    assert says in capsys.readouterr().out.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "text, place, says",
    (
        ("gate: {news: 0}", "3:8: gate.news", "did you mean new?"),
        ("gate: {coverage: [{least: 1}]}", "3:20: gate.coverage.0.least", "did you mean at_least?"),
        ("gate: {coverage: [{ops: [abs]}]}", "gate.coverage.0.at_least", "add the key at_least"),
        ("gate: {coverage: [{at_least: 95}]}", "3:20: gate.coverage.0.at_least", "less than or equal to 1"),
        ("gate: {known: maybe}", "3:8: gate.known", "strict"),
        ("gate: {flaky: {of: 1}}", "3:16: gate.flaky.of", "greater than or equal to 2"),
    ),
)
def test_a_bad_gate_is_refused_at_its_place(tmp_path: Path, text: str, place: str, says: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"catalogs: [torch]\nbackends: [torch-cpu]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert place in str(caught.value) and says in str(caught.value)
