"""Known failures have a life: they match by case and cause, hold for versions and until a day, go stale, and are written by a command."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from farm import lake
from farm.commands.known import main
from farm.lake import minimal
from farm.plan import known_lists, match_known
from farm.plan.config import load_known_failures
from farm.plan.config_schema import ConfigError, Gate
from farm.plan.known_failure import KnownFailure
from farm.report.faces.exchange import write_junit
from farm.report.tables.causes import add_standing_column
from farm.report.tables.gate import judge_run_gate
from farm.report.tables.known_failures import list_known_failures
from farm.report.tables.view import Report
from tests.farm.test_report import make_row

DAY = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.timezone.utc)
RUN = "20261122-120000-aaaa"
SHAPE = "Check failed: the 2 shapes of node 'a' do not fit (3 vs. 4)"


def row(status: str, op: str = "torch:add", **more: Any) -> dict[str, Any]:
    given = {"started_at": DAY, "run_id": RUN, "distribution": "own", "kind": "numbers" if status == "wrong" else ""}
    return make_row(status, op, **given | more)


def covered(entry: dict[str, Any], *rows: dict[str, Any]) -> list[bool]:
    found = match_known.match_known_to_rows(
        pd.DataFrame(list(rows)), [KnownFailure(**{"op": "add", "reason": "r"} | entry)]
    )
    return [bool(place >= 0) for place in found.entry]


@pytest.mark.parametrize(
    "entry, like, other",
    (
        ({"kind": "numbers"}, {}, {"kind": "nonfinite"}),
        ({"kind": ["shape", "numbers"]}, {}, {"kind": "dtype"}),
        ({"cause": "accumulated in *"}, {"cause": "accumulated in float16"}, {"cause": "zero everywhere"}),
        ({"culprit": "node a*"}, {"culprit": "node a (Add)"}, {"culprit": None}),
        ({"check": "forward"}, {}, {"check": "backward"}),
        ({"flags": ["tf32=on", "n=*"]}, {"flags": "n=3 tf32=on"}, {"flags": "n=3"}),
        ({"versions": ">=1.20,<1.25"}, {"runtime_version": "torch 1.24.1+cpu, x 9.0"}, {"runtime_version": "1.25.0"}),
        ({"versions": "==1.31.*"}, {"runtime_version": "1.31.1"}, {"runtime_version": "unknown"}),
        ({"expires": "2026-11-22"}, {}, {"started_at": DAY + datetime.timedelta(days=1)}),
    ),
)
def test_a_known_failure_covers_its_cases_with_its_cause_and_nothing_beside(
    entry: dict[str, Any], like: dict[str, Any], other: dict[str, Any]
) -> None:
    assert covered(entry, row("wrong", **like), row("wrong", **like | other)) == [True, False]


def test_errors_are_compared_without_what_is_their_own_cases() -> None:
    said = {"stage": "build", "error_type": "RuntimeError"}
    entry = {"status": "error", **said, "error": "shapes of node 'b' do not fit"}
    rows = [
        row("error", **said, error=SHAPE),
        row("error", **said, error=SHAPE.replace("'a'", "'xyz'").replace("2", "17")),
        row("error", **said, error="Check failed: no such kernel"),
        row("error", **said | {"stage": "run"}, error=SHAPE),
        row("error", **said | {"error_type": "KeyError"}, error=SHAPE),
    ]
    assert covered(entry, *rows) == [True, True, False, False, False]
    assert covered({"error": "do not fit"}, row("crash", kind="SIGSEGV", error=SHAPE)) == [False], "it prints anything"


def test_what_fails_otherwise_is_new_and_what_passes_is_stale() -> None:
    entries = [
        {"op": "add", "kind": "numbers", "reason": "sums"},
        {"op": "mul", "kind": "numbers", "reason": "mended"},
        {"op": "sub", "reason": "of old", "versions": "<1.0"},
        {"op": "div", "reason": "lapsed", "expires": "2026-11-21"},
        {"op": "pow", "reason": "elsewhere"},
        {"op": "add", "reason": "the same again", "kind": "num*"},
        {"op": "div", "reason": "a cause that nobody has", "cause": "the moon"},
        {"op": "div", "reason": "as it is"},
    ]
    rows = pd.DataFrame(
        [
            row("wrong"),
            row("wrong", sample=1, kind="shape"),
            row("pass", "torch:mul"),
            row("pass", "torch:sub"),
            row("wrong", "torch:div"),
        ]
    )
    run = {"config": {"known_failures": entries[:-2]}}
    assert list(add_standing_column(rows, run)["standing"]) == ["known", "new", "stale", "", "new"]
    found = list_known_failures(rows, [KnownFailure(**entry) for entry in entries])
    assert list(found["state"]) == ["met", "stale", "not tried", "expired", "not tried", "doubled", "not met", "met"]
    assert list(found["otherwise"]) == [1, *[0] * 7] and list(found["right"]) == [0, 1, *[0] * 6]
    assert list(found["instead"])[:3] == ["wrong shape", "pass", ""]


def made(
    tmp_path: Path, *rows: dict[str, Any], known_failures: list[dict[str, Any]] | None = None, path: str = ""
) -> str:
    """A lake with one run."""
    folder = tmp_path / "lake" / f"run={RUN}"
    folder.mkdir(parents=True)
    record = {
        "run_id": RUN,
        "name": "c",
        "config": {"known_failures": known_failures or []},
        "planned": len(rows),
        "path": path,
    }
    (folder / "_run.json").write_text(json.dumps(record))
    pq.write_table(pa.Table.from_pylist(list(rows), schema=lake.SCHEMA), folder / "part-0.parquet")
    return str(tmp_path / "lake")


def test_a_command_writes_the_entry_that_covers_a_row_and_what_failed_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"stage": "run", "error_type": "RuntimeError"}
    results = made(
        tmp_path,
        row("error", **said, error=SHAPE),
        row("error", **said, error=SHAPE.replace("3", "5"), sample=1),
        row("error", **said, error="no such kernel", sample=2),
        row("wrong", "torch:mul", cause="accumulated in float16"),
        row("pass", "torch:sub"),
    )
    file = tmp_path / "mine.yaml"
    file.write_text("# Of ours.\n- {op: abs, reason: another}\n")
    told = ["--results", results, "--file", str(file)]
    more = ["--owner", "ann", "--link", "https://x/1", "--versions", ">=1", "--expires", "2027-01-31"]
    assert main(["add", "last:forward/torch:add/float32/0:torch-cpu", "--reason", "it: a bug", *more, *told]) == 0
    assert "covers 2 rows" in capsys.readouterr().out
    assert main(["add", "last:forward/torch:mul/float32/0:torch-cpu", "--reason", "sums", *told]) == 0
    assert file.read_text().startswith("# Of ours.\n- {op: abs, reason: another}\n- op: torch:add\n")
    _, first, second = load_known_failures(file)
    assert (first.stage, first.error_type, first.error) == (
        "run",
        "RuntimeError",
        "Check failed: the 2 shapes of node 'a' do not fit",
    )
    assert (first.owner, first.link, first.expires, first.reason) == ("ann", "https://x/1", "2027-01-31", "it: a bug")
    assert (second.status, second.kind, second.cause) == ("wrong", "numbers", "accumulated in float16")
    frame = lake.read(results)
    assert list(match_known.match_known_to_rows(frame, [first, second]).entry) == [0, 0, -1, 1, -1]
    capsys.readouterr()
    for key, text in {
        "last:forward/torch:add/float32/1:torch-cpu": "is known already: it: a bug",
        "last:forward/torch:sub/float32/0:torch-cpu": "a case that is pass has not failed",
        "last:forward/torch:add/float32/9:torch-cpu": "no case",
    }.items():
        assert main(["add", key, "--reason", "r", *told]) == 2
        assert text in capsys.readouterr().err
    late = ["--reason", "r", "--expires", "2020-01-01", *told]
    assert main(["add", "last:forward/torch:add/float32/2:torch-cpu", *late]) == 2
    assert "it would not cover" in capsys.readouterr().err and len(load_known_failures(file)) == 3


def test_check_ends_with_1_for_what_somebody_has_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"op": "add", "reason": "sums"}
    bad = {"op": "sub", "reason": "mended long ago", "owner": "ann"}
    results = made(tmp_path, row("wrong"), row("pass", "torch:sub"), known_failures=[good])
    assert main(["check", "--results", results]) == 0
    assert "1 known failure: 1 met" in capsys.readouterr().out
    (tmp_path / "more.yaml").write_text(yaml.safe_dump([good, bad]))
    assert main(["check", str(tmp_path / "more.yaml"), "--results", results, "--csv", str(tmp_path / "t.csv")]) == 1
    said = capsys.readouterr().out
    assert "2 known failures: 1 met, 1 stale" in said and "mended long ago" in said
    assert list(pd.read_csv(tmp_path / "t.csv")["state"]) == ["stale"]
    (tmp_path / "cause.yaml").write_text(yaml.safe_dump([good | {"cause": "nobody has it"}]))
    assert main(["check", str(tmp_path / "cause.yaml"), "--results", results]) == 1
    said = capsys.readouterr().out
    assert "1 known failure: 1 otherwise" in said and "otherwise: its cases fail in another way" in said
    assert main(["list", str(tmp_path / "more.yaml"), "--results", results]) == 0
    assert "sums" in capsys.readouterr().out
    (tmp_path / "more.yaml").write_text(yaml.safe_dump([{"op": "nowhere", "reason": "untried"}, good]))
    assert main(["list", str(tmp_path / "more.yaml"), "--results", results]) == 0
    assert (said := capsys.readouterr().out).index("sums") < said.index("untried"), "what was tried comes first"
    (tmp_path / "more.yaml").write_text("- {ops: [add], reason: sums, op: add}")
    assert main(["list", str(tmp_path / "more.yaml"), "--results", results]) == 2
    assert "more.yaml:1:4: ops: unknown key; did you mean op?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "asked, code, says",
    (
        ("torch-cpu", 0, "1 known failure: 1 met"),  # its entry names it by a glob
        ("torch-c*", 0, "1 known failure: 1 met"),
        ("torch-cuda", 0, "1 known failure: 1 met"),  # an entry's, if no run's
        ("ort-cpu", 0, "0 known failures"),  # planned, without rows
        ("ort-c*", 0, "0 known failures"),
        ("ort-cpux", 2, "neither the run nor a known failure is of backend 'ort-cpux'; did you mean ort-cpu"),
    ),
)
@pytest.mark.parametrize("every", (False, True))
def test_a_backend_is_asked_for_by_its_name_whatever_its_entries_are_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str, code: int, says: str, every: bool
) -> None:
    """A nightly check of a backend that has no known failures is clean; one of a backend that is not there is none."""
    entries = [{"op": "add", "reason": "sums", "backend": "torch-c*"}]
    results = made(tmp_path, row("wrong"), row("wrong", "torch:mul"), known_failures=entries)
    record = Path(results) / f"run={RUN}" / "_run.json"
    told = json.loads(record.read_text())
    told["inventory"] = {"backends": {"ort-cpu": {"available": False}}}
    told["config"]["known_failures"] += [{"op": "mul", "reason": "of all"}] * every
    record.write_text(json.dumps(told))
    assert main(["check", "--results", results, "--backend", asked]) == code
    said = capsys.readouterr()
    counts = {"1 known failure: 1 met": "2 known failures: 2 met", "0 known failures": "1 known failure: 1 met"}
    assert (counts.get(says, says) if every else says) in (said.err if code else said.out)


def test_of_the_lists_of_a_run_what_nothing_tried_is_counted_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config may name the lists of all runtimes there are: what was met stands on the screen."""
    many = [{"op": f"nowhere{k}", "reason": "untried"} for k in range(30)]
    results = made(tmp_path, row("wrong"), known_failures=[{"op": "add", "reason": "sums"}, *many])
    csv = tmp_path / "all.csv"
    assert main(["list", "--results", results, "--csv", str(csv)]) == 0
    said = capsys.readouterr().out
    assert "sums" in said and "untried" not in said and len(said.splitlines()) < 12
    assert "31 known failures: 1 met, 30 not tried (shown where their list is named" in said
    assert len(pd.read_csv(csv)) == 31
    (tmp_path / "many.yaml").write_text(yaml.safe_dump(many))
    main(["check", str(tmp_path / "many.yaml"), "--results", results])
    assert "many.yaml:1: not tried: nowhere0" in capsys.readouterr().out, "of a list that is named the first are"
    assert main(["list", str(tmp_path / "many.yaml"), "--results", results]) == 0
    assert "nowhere29" in capsys.readouterr().out
    assert main(["check", "--results", results]) == 0 and "untried" not in capsys.readouterr().out


def test_a_generated_failure_is_known_by_what_is_left_of_it(tmp_path: Path) -> None:
    """Whatever graph it is found in: by the ops of its minimal case, and the words of its flags."""
    graph = {"catalog": "fuzz", "op": "fuzz:graph", "variant": "g1"}
    results = made(
        tmp_path,
        row("wrong", **graph, flags="Conv.group=2 Conv>Relu"),
        row("wrong", **graph, sample=1, flags="Add>Relu", kind="shape"),
        row("pass", **graph, sample=2),
    )
    cases = lake.read(results)["case_id"]
    for case_id, ops, attributes in ((cases[0], ["Conv", "Relu"], {"pads": "SAME"}), (cases[1], ["Add"], {})):
        finding = {
            "backend": "torch-cpu",
            "ops": ops,
            "status": "wrong",
            "kind": "",
            "words": "",
            "attributes": attributes,
        }
        minimal.write_minimal_case(
            results, {"run_id": RUN, "case_id": case_id, "backend": "torch-cpu", "finding": finding}, {}
        )
    file = tmp_path / "k.yaml"
    assert main(["add", f"last:{cases[0]}:torch-cpu", "--reason", "r", "--results", results, "--file", str(file)]) == 0
    (entry,) = load_known_failures(file)
    assert (entry.op, entry.reduced, entry.flags) == ("fuzz:*", ("Conv", "Relu"), ())
    run = {"config": {"known_failures": [entry.model_dump(mode="json")]}}
    assert list(add_standing_column(lake.read(results), run)["standing"]) == ["known", "new", ""]


def test_a_record_holds_what_an_entry_says_and_no_more_and_reads_back() -> None:
    entry = KnownFailure(op="add", reason="r", kind=["numbers", "shape"], expires=datetime.date(2027, 1, 31))  # type: ignore[arg-type]
    said = entry.model_dump(mode="json")
    assert said == {"op": "add", "kind": ["numbers", "shape"], "expires": "2027-01-31", "reason": "r"}
    assert match_known.parse_known_entries({"config": {"known_failures": [json.loads(json.dumps(said))]}}) == [entry]


@pytest.mark.parametrize(
    "wrong, says",
    (
        ({"versions": "1.2"}, "is not a pip version range"),
        ({"expires": "soon"}, "is not a date; write 2027-01-31"),
        ({"error": "'x' 12"}, "has only parts in which similar errors differ"),
        ({"cuase": "x"}, "cuase"),
    ),
)
def test_a_life_that_cannot_be_is_refused(wrong: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match="no known failure: ") as caught:
        known_lists.check_known_entry({"op": "add", "reason": "r"} | wrong)
    assert says in str(caught.value)


def test_a_list_that_cannot_take_another_entry_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "k.yaml"
    file.write_text(text := "[{op: abs, reason: r}]\n")
    with pytest.raises(ConfigError):
        known_lists.append_known_entry(file, KnownFailure(op="add", reason="r"))
    assert file.read_text() == text and [p.name for p in tmp_path.iterdir()] == ["k.yaml"]
    file.write_text("# none yet\n[]\n")
    known_lists.append_known_entry(file, KnownFailure(op="add", reason="r"))
    assert [k.op for k in load_known_failures(file)] == ["add"]


def test_a_day_that_is_none_in_a_list_of_known_failures_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- {op: x, backend: y, status: wrong, reason: z, expires: 2024-13-01}\n")
    with pytest.raises(ConfigError, match="list.yaml: not a YAML list .month must be in 1..12"):
        load_known_failures(tmp_path / "list.yaml")


def test_an_entry_is_named_with_its_line_and_what_the_rows_have_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of lists, of a config and what it names, and of the config that a run's record names as far as it is the same
    still."""
    results = made(tmp_path, row("wrong"), row("pass", "torch:mul"))
    (tmp_path / "mine.yaml").write_text(
        "# ours\n- {op: add, status: error, reason: a}\n- {op: mul, reason: b}\n- {op: never, reason: c}\n"
    )
    config = tmp_path / "c.yaml"
    config.write_text("catalogs: [torch]\nbackends: [torch-cpu]\nknown_failures: mine.yaml\n")
    record = tmp_path / "lake" / f"run={RUN}" / "_run.json"
    entries = [k.model_dump() for k in load_known_failures(tmp_path / "mine.yaml")]
    told = json.loads(record.read_text()) | {"path": str(config), "config": {"known_failures": entries}}
    record.write_text(json.dumps(told))
    for lists in ([str(tmp_path / "mine.yaml")], [str(config)], []):
        csv = tmp_path / "t.csv"
        assert main(["check", *lists, "--results", results, "--csv", str(csv)]) == 1
        assert f"{tmp_path}/mine.yaml:4: not tried: never on *: c" in capsys.readouterr().out
        found = pd.read_csv(csv)
        assert list(found["place"]) == [f"{tmp_path}/mine.yaml:{line}" for line in (2, 3)]
        assert list(found["instead"]) == ["wrong numbers", "pass"]
    config.unlink()
    assert main(["check", "--results", results]) == 1 and "not tried: never on *" in capsys.readouterr().out


#: ndtr loses all digits on the CPU; other devices of torch share its formula.
NDTR = {"op": "ndtr", "backend": "torch-*", "seen": ["torch-cpu", "torch-cuda*"], "status": "wrong", "kind": "numbers"}
ALL_LOST = {"kind": "numbers", "error_units": 1 / 2**-23}


def met_on(backend: str, entry: dict[str, Any] = NDTR, status: str = "wrong", **more: Any) -> str:
    """How an entry meets a row of another backend."""
    given = row(status, "torch:ndtr", backend=backend, **ALL_LOST | {"cause": ""} | more)
    found = match_known.match_known_to_rows(pd.DataFrame([given]), [KnownFailure(**{"reason": "r"} | entry)])
    return "first seen" if found.first[0] else "known" if found.entry[0] >= 0 else "new"


@pytest.mark.parametrize("backend", ["torch-cpu", "torch-cuda", "torch-cuda-flash"])
def test_a_formula_that_devices_share_is_known_where_it_was_seen(backend: str) -> None:
    assert met_on(backend) == "known"


def test_a_formula_that_devices_share_is_known_and_said_to_be_first_seen_elsewhere() -> None:
    assert met_on("torch-xpu") == "first seen" and met_on("jax-cpu") == "new"
    assert met_on("torch-xpu", NDTR | {"seen": []}) == "known", "who names no devices has seen it on all"


@pytest.mark.parametrize(
    "more",
    [
        {"status": "error", "kind": "", "stage": "run", "error_type": "RuntimeError", "error": "no such kernel"},
        {"kind": "nonfinite", "error_units": float("inf")},
        {"kind": "shape", "error_units": None},
        {"cause": "zero everywhere"},
        {"error_units": 1e9},
        {"op": "torch:erfcx"},
        {"check": "backward"},
        {"dtype": "float16"},
    ],
    ids=str,
)
def test_another_failure_of_the_same_op_on_another_device_is_new(more: dict[str, Any]) -> None:
    """Beside it the one that is alike. All digits lost is as far off as 0; what is further off no lost digits
    explain."""
    entry = NDTR | {"dtype": "float32", "check": "forward"}
    assert met_on("torch-xpu", entry) == "first seen"
    given = row("wrong", "torch:ndtr", backend="torch-xpu", **ALL_LOST | {"cause": ""}) | more
    found = match_known.match_known_to_rows(pd.DataFrame([given]), [KnownFailure(**{"reason": "r"} | entry)])
    assert found.entry[0] == -1 and not found.first[0]


def test_a_cause_that_the_entry_names_is_the_same_defect_on_another_device() -> None:
    entry = NDTR | {"cause": "1 + erf *"}
    assert met_on("torch-xpu", entry, cause="1 + erf in float32") == "first seen"
    assert met_on("torch-xpu", entry, cause="zero everywhere") == "new"


def test_an_entry_of_devices_that_nobody_has_looked_at_says_how_it_fails() -> None:
    for lacks in ({"kind": "*"}, {"status": "*"}):
        with pytest.raises(ConfigError, match="say how it fails, by status and kind or by error"):
            known_lists.check_known_entry(NDTR | lacks | {"reason": "r"})
    assert known_lists.check_known_entry(
        NDTR | {"status": "error", "kind": "*", "error": "no such kernel", "reason": "r"}
    )


def test_what_passes_where_a_failure_was_not_seen_makes_it_not_stale(tmp_path: Path) -> None:
    entry = NDTR | {"reason": "r"}
    for backend, state in (("torch-xpu", "not tried"), ("torch-cuda", "stale")):
        frame = pd.DataFrame([row("pass", "torch:ndtr", backend=backend)])
        assert list(list_known_failures(frame, [KnownFailure(**entry)])["state"]) == [state]
        standing = add_standing_column(frame, {"config": {"known_failures": [entry]}})["standing"]
        assert list(standing) == ["stale" * (state == "stale")]


def test_what_is_first_seen_on_a_device_is_told_apart_and_noted_by_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the verdict, in a table with the command, as a test that is skipped; the command edits nothing but the key."""
    file = tmp_path / "mine.yaml"
    text = (
        "# Ours.\n- op: ndtr\n  backend: 'torch-*'\n  seen: [torch-cpu]  # by ann\n  status: wrong\n  kind: numbers\n"
        "  reason: &tail lost in the tail\n- {op: mul, backend: 'torch-*', seen: torch-cpu, status: wrong, kind: numbers, reason: *tail}\n"
    )
    file.write_text(text)
    config = tmp_path / "c.yaml"
    config.write_text("catalogs: [torch]\nbackends: [torch-cpu]\nknown_failures: mine.yaml\n")
    entries = [k.model_dump(mode="json") for k in load_known_failures(file)]
    rows = [row("wrong", "torch:ndtr", backend=name, **ALL_LOST) for name in ("torch-cpu", "torch-xpu")]
    results = made(tmp_path, *rows, row("wrong", "torch:mul", backend="torch-hpu"), known_failures=entries)
    frame, run = lake.read(results), lake.read_run(results, RUN)
    report = Report.of(frame, run)
    assert report.verdict.sentence == "OK: 3 failures, all known, 2 of them first seen here"
    views = {view.name: view for view in report.views}
    assert sorted(line["backend"] for line in views["first_seen"].all_lines()) == ["torch-hpu", "torch-xpu"]
    assert "known seen --run" in views["first_seen"].see[0][1]
    assert [line["backends"] for line in views["causes"].all_lines()] == ["torch-cpu"], "what was seen is told apart"
    suites = write_junit(report, judge_run_gate(report, Gate())).decode()
    assert suites.count("known, first seen here: lost in the tail") == 2 and "known: lost in the tail" in suites
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list", "--results", results]) == 0
    said = capsys.readouterr().out
    assert "first seen on" in said and "torch-xpu" in said

    assert main(["seen", str(config), "--backend", "torch-x*", "--results", results]) == 0
    assert f"{file}:2: ndtr on torch-*: seen on torch-xpu" in capsys.readouterr().out
    assert file.read_text() == text.replace("[torch-cpu]", "[torch-cpu, torch-xpu]", 1)
    assert main(["seen", str(config), "--results", results]) == 0
    assert "seen: [torch-cpu, torch-hpu], status" in file.read_text() and "# by ann" in file.read_text()
    again = Report.of(frame, run | {"config": {"known_failures": [k.model_dump() for k in load_known_failures(file)]}})
    assert again.verdict.sentence == "OK: 3 failures, all known"
    assert main(["seen", str(config), "--results", results]) == 0
    assert "0 known failures of run" in capsys.readouterr().out


@pytest.mark.parametrize(
    "named, written",
    (
        ("known_failures: lists/", "lists/torch-cpu.yaml"),
        ("known_failures: ['lists/*.yaml']", "lists/torch-cpu.yaml"),
        ("known_failures: [{op: abs, reason: r}, lists/mine.yaml]", "lists/mine.yaml"),
        ("include: [other.yaml]", "lists/torch-cpu.yaml"),
        ("seed: 1", None),
    ),
)
def test_an_entry_goes_to_the_list_that_the_runs_config_names(
    named: str, written: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = made(tmp_path, row("wrong"), path="c/run.yaml")
    lists = tmp_path / "c" / "lists"
    lists.mkdir(parents=True)
    (lists / "mine.yaml").write_text("[]\n")
    (tmp_path / "c" / "other.yaml").write_text("known_failures: lists\n")
    (tmp_path / "c" / "run.yaml").write_text(f"catalogs: [torch]\nbackends: [torch-cpu]\n{named}\n")
    monkeypatch.chdir(tmp_path)
    key = "last:forward/torch:add/float32/0:torch-cpu"
    assert main(["add", key, "--reason", "sums", "--results", results]) == 0
    file = Path("c") / written if written else Path("known.yaml")
    assert [k.reason for k in load_known_failures(file)] == ["sums"]
    said = capsys.readouterr().out
    assert ("c/run.yaml names that list" in said) == bool(written) and ("To use it" in said) != bool(written)
