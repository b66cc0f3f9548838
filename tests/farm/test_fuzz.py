"""farm fuzz: rounds of generated cases in the lake, led by findings; resumed, replayed, and refused in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm import lake as lakes
from farm.commands import fuzz as command
from farm.commands import reproduce
from farm.hunt import fuzz_request
from farm.hunt import fuzz_rounds as fuzzing
from farm.hunt.fuzz_schedule import CHUNK, KEPT, QUIET, FuzzSchedule, make_fuzz_finding_key
from farm.reproduction import find_case
from tasks.catalogs.fuzz import catalog
from tasks.model import Group
from tasks.model.kind import KIND_UNDRAWN

PLUGIN = Path(__file__).resolve().parents[1] / "plugin"
sys.path.insert(0, str(PLUGIN)) if str(PLUGIN) not in sys.path else None


def row(backend: str, op: str, status: str = "pass", **values: Any) -> dict[str, Any]:
    blank = {"dtype": "float32", "seed": 0, "sample": 0, "kind": "", "error": "", "flags": "opset=21", "run_ms": 1.0}
    return {"backend": backend, "op": f"fuzz:{op}", "status": status, "build_ms": 0.0} | blank | values


def schedule(*backends: str) -> FuzzSchedule:
    return FuzzSchedule({"Add": ["float32"], "Conv": ["float32", "float16"]}, backends or ("ort-cpu",), seed=7)


def test_an_op_with_findings_is_run_more_often() -> None:
    plan = schedule()
    for op in ("Add", "Conv"):
        plan.learn(row("ort-cpu", op, sample=n) for n in range(400))
    assert plan.learn([row("ort-cpu", "Conv", "wrong", kind="numbers")]) == [
        ("ort-cpu", "fuzz:Conv", "wrong", "numbers", "")
    ]
    ops = [batch.op for batch in plan.round(0.2)]
    assert ops.count("Conv") > ops.count("Add")


def test_an_op_that_is_quiet_is_left_alone() -> None:
    plan = schedule()
    plan.learn(row("ort-cpu", "Add", sample=n, run_ms=0.01) for n in range(QUIET))
    plan.learn(row("ort-cpu", "Conv", sample=n) for n in range(CHUNK))
    assert {batch.op for batch in plan.round(0.2)} == {"Conv"}


def test_what_is_interesting_elsewhere_goes_to_the_expensive_ones() -> None:
    plan = schedule("ort-cpu", "iree-cpu")
    plan.learn(row("ort-cpu", "Add", sample=n) for n in range(8))
    plan.learn(row("iree-cpu", "Conv", sample=n, run_ms=500.0) for n in range(8))
    plan.learn([row("ort-cpu", "Add", "wrong", kind="numbers", seed=3, sample=5)])
    first, *others = plan.round(4.0)
    assert (first.op, first.seed, dict(first.wanted)) == ("Add", 3, {"iree-cpu": (5,)})
    assert all("ort-cpu" in batch.wanted for batch in others)


def test_who_comes_later_begins_with_a_few_cases() -> None:
    plan = schedule("ort-cpu")
    plan.learn(row("ort-cpu", "Add", sample=n) for n in range(8))
    plan.backends = ["ort-cpu", "iree-cpu"]
    batches = plan.round(4.0)
    assert sum("iree-cpu" in batch.wanted for batch in batches) == 1 < len(batches)
    plan.backends = []
    assert plan.round(4.0) == []


def test_what_cases_took_in_other_runs_is_known_from_the_first_round_on() -> None:
    earlier = [row("iree-cpu", "Add", sample=n, run_ms=500.0) for n in range(8)]
    earlier += [row("ort-cpu", op, sample=n) for op in ("Add", "Conv") for n in range(8)]
    blind, plan = schedule("ort-cpu", "iree-cpu"), schedule("ort-cpu", "iree-cpu")
    plan.remember(earlier)
    assert (blind.find_timed_backends(), plan.find_timed_backends()) == (set(), {"ort-cpu", "iree-cpu"})
    assert blind.cheap() == ["ort-cpu", "iree-cpu"] and plan.cheap() == ["ort-cpu"]
    assert (plan.ms("ort-cpu"), plan.ms("iree-cpu", "Add"), plan.ms("iree-cpu", "Conv")) == (1.0, 500.0, 500.0)
    assert not plan.had and not plan.triggers  # what they found and had is not this run's
    iree = [sum("iree-cpu" in batch.wanted for batch in one.round(4.0)) for one in (plan, blind)]
    assert iree[0] <= 2 < iree[1]


def test_a_case_that_does_not_end_takes_its_deadline() -> None:
    plan = FuzzSchedule({"Add": ["float32"]}, ["tvm-cpu"], 7, deadline_ms=60_000.0)
    plan.learn(row("tvm-cpu", "Add", "timeout", sample=n, run_ms=None, build_ms=None) for n in range(8))
    assert plan.ms("tvm-cpu", "Add") == 60_000.0


def test_who_takes_few_ops_begins_with_one_of_them() -> None:
    ops = {f"Op{n}": ["float32"] for n in range(100)}
    asked = {op: {"ort-cpu"} for op in ops} | {"Op7": {"ort-cpu", "torch-cpu"}, "Op9": {"jax-cpu"}}
    plan = FuzzSchedule(ops, ["ort-cpu", "torch-cpu", "jax-cpu", "idle-cpu"], 7, asked)
    plan.learn(row("ort-cpu", "Op0", sample=n) for n in range(8))
    given = {(batch.op, backend) for batch in plan.round(4.0) for backend in batch.wanted}
    assert {("Op7", "torch-cpu"), ("Op9", "jax-cpu")} <= given
    assert all(backend in asked[op] for op, backend in given)


def test_a_backend_that_compiles_begins_with_one_batch() -> None:
    """Guessed as an interpreter's, its first round would take minutes."""
    plan = schedule("torch-cpu", "inductor-cpu")
    plan.guess_ms = {"inductor-cpu": 800.0}
    batches = plan.round(6.0)
    assert [sorted(batch.wanted) for batch in batches] == [["inductor-cpu", "torch-cpu"]]


def test_each_backend_has_a_batch_in_the_first_round_however_little_time_there_is() -> None:
    asked = {"Add": {"inductor-cpu"}, "Conv": {"ort-cpu"}}
    plan = FuzzSchedule(
        {"Add": ["float32"], "Conv": ["float32"]}, ["inductor-cpu", "ort-cpu"], 7, asked, guess_ms={"inductor-cpu": 1e6}
    )
    assert {backend for batch in plan.round(0.1) for backend in batch.wanted} == {"inductor-cpu", "ort-cpu"}


def test_generated_cases_of_different_seeds_are_not_compiled_together() -> None:
    units = [Group("fuzz:graph", "g2", dtype, CHUNK, seed).unit for seed in (0, 1) for dtype in ("float32", "float16")]
    assert units[0] == units[1] != units[2] == units[3]


@pytest.mark.parametrize("own", ["", "threads=1 "])
def test_known_triggers_are_suppressed_but_not_for_ever(own: str) -> None:
    """Also of a backend whose own settings stand in the flags of its rows."""
    plan = schedule()
    plan.learn(row("ort-cpu", "Conv", flags=f"{own}opset=21 n={n}") for n in range(60))
    bad = [
        row("ort-cpu", "Conv", "error", error=f"no SAME at 0x{n}", flags=f"{own}auto_pad=SAME n={n}") for n in range(4)
    ]
    assert len(plan.learn(bad)) == 1  # one finding: addresses are masked
    known = [plan.should_skip("ort-cpu", "fuzz:Conv", ["auto_pad=SAME", "n=9"], k) for k in range(KEPT)]
    assert known == [False] + [True] * (KEPT - 1)
    assert not plan.should_skip("ort-cpu", "fuzz:Conv", ["opset=21"], 1)
    assert not plan.should_skip("openvino-cpu", "fuzz:Conv", ["auto_pad=SAME"], 1)


def test_a_key_does_not_hang_on_numbers() -> None:
    assert make_fuzz_finding_key(row("a", "X", "error", error="at 0x3: 5 of 7")) == make_fuzz_finding_key(
        row("a", "X", "error", error="at 0x9: 6 of 8")
    )
    assert make_fuzz_finding_key(row("a", "X", "wrong", error="3 of 4")) == make_fuzz_finding_key(
        row("a", "X", "wrong", error="of none")
    )


def fuzz(*args: object, results: Path) -> int:
    return command.main([*map(str, args), "--on", "inline", "--results", str(results)])


CONFIG = "catalogs: [{name: fuzz, dtypes: [float32, int64]}]\nbackends: [mutant-sound, mutant-tail]\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(CONFIG)
    return path


def test_a_mutant_is_found_and_its_twin_is_not(config: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz(config, "--cases", 400, "--ops", "Add,Abs,Neg,Relu", results=results) == 1
    rows = lakes.read(results)
    failed = rows[rows["status"] == "wrong"]
    assert len(rows) <= 400 and set(failed["backend"]) == {"mutant-tail"}
    assert not rows.duplicated(["case_id", "backend"]).any()
    said = capsys.readouterr().out
    assert "mutant-tail" in said and "farm reproduce" in said
    # any row again, by its case id alone
    key = next(line for line in said.splitlines() if "farm reproduce" in line).split("'")[1]
    assert reproduce.main([key, "--results", str(results)]) == 0
    assert "same status" in capsys.readouterr().out


def test_a_row_of_another_generator_is_made_of_its_choices(
    config: Path, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fuzz(config, "--cases", 16, "--ops", "Abs", results=results)
    first = lakes.read(results).iloc[0]
    with pytest.MonkeyPatch.context() as patch:  # the seed of its run, 0, is none of its own
        patch.setattr(catalog.Fuzz, "generator", lambda self, op: "g9")
        assert reproduce.main(["seed:0", "--results", str(results)]) == 2
    assert "no case of the seed 0" in capsys.readouterr().err
    key = f"last:{first['case_id'].replace('.g1/', '.g0/')}:{first['backend']}"
    whole = find_case.find_row_of_key

    def older(key: Any, lake: Any, change: Any = None) -> Any:
        row, rows = whole(find_case.RowKey(key.run_id, key.case_id.replace(".g0/", ".g1/"), key.backend), lake)
        return row | {"variant": "g0"} | (change or {}), rows

    monkeypatch.setattr(find_case, "find_row_of_key", older)
    assert reproduce.main([key, "--results", str(results)]) == 0
    monkeypatch.setattr(find_case, "find_row_of_key", lambda key, lake: older(key, lake, {"digest": "of others"}))
    assert reproduce.main([key, "--results", str(results)]) == 2
    said = capsys.readouterr().err
    assert "made by the generator g0; of the same choices the one here (g1) makes other inputs" in said


def test_a_run_that_was_cut_off_goes_on(
    config: Path, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = fuzzing.Dispatcher.run
    rounds = []

    def cut(self: Any) -> None:
        rounds.append(self)
        if len(rounds) == 2:
            raise OSError("the disk is full")
        whole(self)

    monkeypatch.setattr(fuzzing.Dispatcher, "run", cut)
    assert fuzz(config, "--cases", 600, "--seconds", 60, "--ops", "Add,Abs", "--seed", 5, results=results) == 3
    assert "the disk is full; fix that and continue with: farm fuzz --resume" in capsys.readouterr().err
    before = len(lakes.read(results))
    monkeypatch.setattr(fuzzing.Dispatcher, "run", whole)
    assert fuzz("--resume", "last", results=results) in (0, 1)
    rows = lakes.read(results)
    record = lakes.read_run(results, rows["run_id"].iloc[0])
    assert record["fuzz"]["budget"] == {"seconds": 60.0, "cases": 600} and len(rows) <= 600, "its own bounds"
    assert len(rows) == record["planned"] > before and record["finished_at"]
    assert not rows.duplicated(["case_id", "backend"]).any()


def test_a_case_that_cannot_be_made_is_a_row_and_its_group_goes_on(
    config: Path, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_CACHE", str(results.parent / "cache"))  # what is made here is nobody else's
    whole, count = catalog.generate.generate_node_case, iter(range(10_000))

    def broken(*args: Any) -> Any:
        if next(count) % CHUNK == 2:
            raise ValueError("no number from 0 to -1")
        return whole(*args)

    monkeypatch.setattr(catalog.generate, "generate_node_case", broken)
    asked = (config, "--backends", "mutant-sound", "--cases", 32, "--ops", "Abs", "--dtypes", "float32")
    assert fuzz(*asked, results=results) == 0
    rows = lakes.read(results)
    assert len(rows) == lakes.read_run(results, rows["run_id"].iloc[0])["planned"] == 32
    bad = rows[rows["status"] == "invalid"]
    assert len(bad) == 4 and set(bad["kind"]) == {KIND_UNDRAWN} and (rows["status"] == "pass").sum() == 28
    assert (
        "not made, by a fault of the generator: 4 rows\n  fuzz:Abs ×4: ValueError: no number" in capsys.readouterr().out
    )


def test_backends_have_equally_many_cases_where_cases_are_counted(results: Path, tmp_path: Path) -> None:
    """Whatever they take: 400 cases were 392 on one and 8 on the other, of which nothing was known at first."""
    plan = schedule("ort-cpu", "iree-cpu")
    plan.learn(row("ort-cpu", "Add", sample=n) for n in range(8))
    plan.even = True
    assert {frozenset(batch.wanted) for batch in plan.round(4.0)} == {frozenset({"ort-cpu", "iree-cpu"})}
    plan.learn(row("iree-cpu", "Add", sample=n, run_ms=5000.0) for n in range(8))
    assert {frozenset(batch.wanted) for batch in plan.round(4.0)} == {frozenset({"ort-cpu", "iree-cpu"})}


def test_a_round_is_as_long_as_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases of 0.2 ms whose preparation takes ten times that: a guess of 20 ms a case made 60 seconds 138."""
    now = [0.0]
    monkeypatch.setattr(fuzzing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(fuzzing.lakes, "write_run_record", lambda *args: None)
    run = object.__new__(fuzzing.FuzzRounds)
    run.plan = SimpleNamespace(executor=SimpleNamespace(slots=lambda *args: 2), request=SimpleNamespace(lake=None))  # type: ignore[assignment]
    run.run = SimpleNamespace(record={}, run_id="r")  # type: ignore[assignment]
    run.budget, run.schedule, run.rounds, run.planned = fuzzing.FuzzBudget(60.0), schedule(), 0, 0
    run._before, run._pace, run._asked = (
        0.0,
        1.0,
        {(op, d): {"ort-cpu"} for op in ("Add", "Conv") for d in ("float32", "float16")},
    )
    monkeypatch.setattr(run, "_look", lambda: None)

    def dispatched(batches: Any, had: Any) -> list[dict[str, Any]]:
        made = [
            row("ort-cpu", b.op, dtype=b.dtype, seed=b.seed, sample=n, run_ms=0.2)
            for b in batches
            for n in range(CHUNK)
        ]
        now[0] += 1.0 + 0.002 * len(made)
        return made

    monkeypatch.setattr(run, "_dispatch", dispatched)
    run.go()
    assert 60.0 <= now[0] < 66.0 and run.rounds > 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--ops", "Cnov"], "--ops: no op 'Cnov'; did you mean"),
        (["--backends", "ort-cup"], "backends"),
        (["--cases", "0"], "--cases 0: must be more than 0"),
        (["--seed", "-1"], "--seed -1: it is from 0 to"),
        (["--resume", "last"], "no run"),
        (["none.yaml"], "none.yaml: no such file"),
    ],
)
def test_bad_input_is_one_line(args: list[str], words: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz(*args, results=results) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and words in said and len(said.splitlines()) == 1


def test_a_config_without_generated_cases_is_refused(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text("catalogs: [{name: onnx}]\nbackends: [ort-cpu]\n")
    assert fuzz(tmp_path / "x.yaml", results=results) == 2
    assert "none is 'fuzz'" in capsys.readouterr().err


def test_without_a_config_the_lists_in_the_usual_folder_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lake = lakes.open_lake("lake")
    assert not fuzz_request.make_fuzz_request("", lake, CHUNK).config.known_failures
    (tmp_path / "configs" / "known").mkdir(parents=True)
    (tmp_path / "configs" / "known" / "fuzz.yaml").write_text("- {op: 'fuzz:Add', reason: sums}\n")
    assert [k.reason for k in fuzz_request.make_fuzz_request("", lake, CHUNK).config.known_failures] == ["sums"]
