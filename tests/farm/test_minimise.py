"""farm minimise: a failing row of the lake becomes small and fails in the same way; what cannot is refused in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from planted_small import graph

from farm import lake
from farm.commands import findings, minimise, reproduce
from farm.commands import run as launch
from farm.commands.minimise import BAD_INPUT, FLAKY, NO_SCRIPT, SMALLER
from farm.fleet.child_process import Limits
from farm.hunt import issue_text as issue
from farm.hunt import show_minimal as show
from farm.hunt.minimise_row import _measure_sound_case_s
from farm.hunt.minimise_search import HANG_S, MinimiseRunner
from farm.lake import minimal
from farm.lake.key import RowKey
from farm.lake.minimal import make_finding_id
from farm.report.tables import defects
from farm.report.tables.coverage import keep_distinct_rows
from farm.reproduction.find_case import ReproduceError
from farm.work.job import Job
from tasks.arrays.tree import TensorSpec, encode_argument_tree, encode_tensor_spec
from tasks.backends import BackendSpec
from tasks.catalogs import user_definitions
from tasks.hunt.call_case import CallCase
from tasks.hunt.minimise.case_description import describe_minimal_case
from tasks.judge import policy_files
from tasks.model import Group
from tasks.prepare.cases import PreparedGroup
from tasks.runner import Runner as CaseRunner
from tasks.runner import make_item_of_whole_group

pytestmark = pytest.mark.usefixtures("no_environments", "children")

CONFIG = """
catalogs: [{{name: small, ops: {ops}, dtypes: [float32], samples: 1}}]
backends: [{backends}]
deadline_s: {deadline_s}
"""


def launched(folder: Path, ops: str, backends: str, *more: str, deadline_s: int = 3) -> pd.DataFrame:
    (folder / "small.yaml").write_text(CONFIG.format(ops=ops, backends=backends, deadline_s=deadline_s))
    launch.main([str(folder / "small.yaml"), "--on", "processes", "--results", str(folder / "results"), *more])
    rows = lake.read(folder / "results", lake.run_ids(folder / "results")[-1])
    return rows.set_index(["op", "backend"])


class Lake:
    """A folder with runs of planted faults."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.results = folder, folder / "results"

    def key(self, rows: pd.DataFrame, op: str, backend: str) -> str:
        row = rows.loc[(f"small:{op}", f"small-{backend}")]
        return f"{row.run_id}:{row.case_id}:small-{backend}"

    def minimised(self, key: str, *more: str) -> tuple[int, dict[str, Any]]:
        """(exit code, what is kept of the minimal case; {} where there is nothing)."""
        code = minimise.main([key, "--results", str(self.results), *more])
        found = [
            x for x in minimal.read_minimal_cases(self.results) if f"{x['run_id']}:{x['case_id']}:{x['backend']}" == key
        ]
        return code, found[-1] if found else {}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Lake, pd.DataFrame]:
    here = Lake(tmp_path_factory.mktemp("minimise"))
    return here, launched(here.folder, "[softmax, chain, gather, sigmoid, errors]", "small-numbers, small-dies")


Made = tuple[Lake, pd.DataFrame]


def test_an_ignored_attribute_is_what_is_left(made: Made) -> None:
    here, rows = made
    code, found = here.minimised(here.key(rows, "softmax", "numbers"))
    assert code == SMALLER and not found["flaky"]
    assert (found["nodes"], found["finding"]["ops"]) == ([1, 1], ["Softmax"])
    assert found["finding"]["attributes"] == {"Softmax.axis": 0}
    assert found["elements"] == [24, 2]
    assert (found["outcome"]["status"], found["outcome"]["kind"]) == ("wrong", "numbers")
    assert {x["what"]: x["fails"] for x in found["triggers"]}["without Softmax.axis"] is False
    assert found["runs"] <= 200
    assert fails_by_itself(Path(found["folder"]) / minimal.PACK) == ("wrong", "numbers", "onnx:Softmax")
    text = (Path(found["folder"]) / "run.py").read_text()
    assert "farm" not in text and "shows the wrong result" in found["script_said"]


def fails_by_itself(pack: Path) -> tuple[str, str, str]:
    """What a kept case does in a process that has nothing to do with the search: this one."""
    backend = BackendSpec.parse("small-numbers").create()
    runner = CaseRunner(
        backend, backend.start(), policy_files.load_policy("error_units"), lambda number, stage, together: None
    )
    (done,) = runner.run([make_item_of_whole_group(PreparedGroup(pack))])
    return done.row.status, done.row.kind, done.row.op


def test_of_a_graph_the_node_is_left_and_of_its_size_the_smallest_that_fails(made: Made) -> None:
    here, rows = made
    code, found = here.minimised(here.key(rows, "chain", "numbers"))
    assert code == NO_SCRIPT
    assert (found["nodes"], found["finding"]["ops"], found["shapes"][1]) == ([8, 1], ["Relu"], [[1, 5]])
    (given,) = found["inputs"]
    assert given["values"] == "[[0.0, 0.0, 0.0, 0.0, 0.0]]"


def test_what_the_lake_does_not_take_is_shown_and_written_elsewhere(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, rows = made
    monkeypatch.setattr(minimal, "FOLDER", "_run.json/x")  # a folder in a file: cannot be made, as on a full disk
    key = here.key(rows, "softmax", "numbers")
    code, _ = here.minimised(key, "--strategy", "binary-search-dims", "--out", str(tmp_path / "out"))
    said = capsys.readouterr()
    assert code == BAD_INPUT and "the minimal case cannot be kept" in said.err and "--out DIR" in said.err
    assert "elements 24 → " in said.out and "not kept" in said.out
    assert (tmp_path / "out" / "issue.md").exists()


def test_a_value_that_it_takes_is_kept(made: Made) -> None:
    here, rows = made
    _, found = here.minimised(here.key(rows, "gather", "numbers"))
    values = {x["name"]: x["values"] for x in found["inputs"]}
    assert (found["nodes"], found["elements"][1]) == ([1, 1], 3)
    assert "[-1]" in values.values()


def test_a_crash_is_made_smaller_in_processes_of_its_own_and_without_a_script_it_is_said_what_that_lacks(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    here, rows = made
    code, found = here.minimised(here.key(rows, "sigmoid", "dies"), "--strategy", "binary-search-dims", "--runs", "60")
    assert code == NO_SCRIPT and "run.py" not in found["files"]
    assert (found["outcome"]["status"], found["outcome"]["kind"]) == ("crash", "SIGSEGV")
    assert found["elements"][1] == 4
    said = " ".join(capsys.readouterr().out.split())
    assert "run.py none: " in said and "does NOT show the crash" in said


def test_an_error_stays_the_same_error(made: Made) -> None:
    here, rows = made
    code, found = here.minimised(here.key(rows, "errors", "dies"))
    assert code == NO_SCRIPT
    # The node before it raises another error when it is small: that is not taken for it.
    assert (found["finding"]["ops"], found["elements"][1]) == (["Abs"], 1)
    assert "no kernel for" in found["finding"]["words"] and "0x" not in found["finding"]["words"]


def test_a_hang_is_made_smaller(tmp_path: Path, cache: Path) -> None:
    here = Lake(tmp_path)
    rows = launched(tmp_path, "[tanh]", "small-hang")
    code, found = here.minimised(here.key(rows, "tanh", "hang"), "--strategy", "binary-search-dims", "--runs", "40")
    assert code == NO_SCRIPT
    assert (found["outcome"]["status"], found["shapes"][1]) == ("timeout", [[1, 3]])


def test_values_that_are_too_many_to_print_end_in_dots() -> None:
    assert (
        show._shorten_minimal_values("1.5, " * 200).endswith("1.5, …")
        and len(show._shorten_minimal_values("1.5, " * 200)) <= 302
    )
    assert show._shorten_minimal_values("1.5, 2.5") == "1.5, 2.5"


def test_what_hangs_is_given_as_long_as_cases_that_end_take(cache: Path) -> None:
    def waits(sound_s: float, deadline_s: float = 60.0, **more: Any) -> float:
        job = Job(name="x", cache=str(cache), limits=Limits(deadline_s))
        return MinimiseRunner(job, None, sound_s, lambda runs, status: None, **more)._impatient().deadline_s

    assert [waits(x) for x in (0.0, 0.02, 0.5, 7.0)] == [1.0, 1.0, 2.5, 10.0]
    assert waits(7.0, 3.0) == 3.0
    # Smaller cases of one that does not hang may hang.
    assert [waits(0.02, hangs=False, hung=n) for n in (0, 1, 2, 9)] == [10.0, 5.0, 2.5, 1.0]
    assert waits(7.0, hangs=False, hung=9) == 35.0


def test_how_long_cases_that_end_take_is_learned_from_wrong_ones_too(made: Made) -> None:
    here, rows = made
    wrong = rows.loc[("small:softmax", "small-numbers")]

    def learned(backend: str, status: str = "timeout") -> float | None:
        row = dict(wrong, status=status, op="small:softmax")
        case: Any = SimpleNamespace(row=row, key=RowKey(wrong.run_id, wrong.case_id, backend))
        return _measure_sound_case_s(case, lake.open_lake(here.results))

    assert wrong.status == "wrong"
    assert learned("small-numbers") == pytest.approx((wrong.build_ms + wrong.run_ms) / 1e3)
    assert learned("nobody") == HANG_S
    # One that ends says so itself; how long one takes to crash says nothing.
    assert learned("nobody", "wrong") == learned("small-numbers") and learned("nobody", "crash") is None


def test_a_crash_that_takes_an_earlier_case_names_it_and_its_sound_twin_says_nothing(
    tmp_path: Path, cache: Path
) -> None:
    here = Lake(tmp_path)
    rows = launched(tmp_path, "[gather, neg, relu, softmax]", "small-after, small-clean", "--cpus", "1")
    row = rows.loc[("small:neg", "small-after")]
    # By itself it is right: the row says what killed the process that it was in at first.
    assert row.status == "pass" and "died of SIGSEGV" in str(row["note"])
    assert "after forward/small:gather/float32/0 it does" in row["note"]
    assert json.loads(row["crash_after"]) == {
        "kind": "SIGSEGV",
        "stage": "run",
        "after": ["forward/small:gather/float32/0"],
    }
    others = rows.drop(("small:neg", "small-after"))
    assert set(others.status) == {"pass"} and others["crash_after"].isna().all()
    assert not others["note"].fillna("").str.contains("died").any()
    code, found = here.minimised(f"{row.run_id}:{row.case_id}:small-after")
    assert code == SMALLER
    assert found["after"] == ["forward/small:gather/float32/0"]
    first, last = (onnx.load(Path(found["folder"]) / name).graph.node for name in ("before_0.model.onnx", "model.onnx"))
    assert [x.op_type for x in (*first, *last)] == ["Gather", "Neg"]
    assert "shows the crash: it died of signal 6" in found["script_said"]
    assert (found["outcome"]["status"], found["outcome"]["kind"]) == ("crash", "SIGSEGV")
    assert "alone it does not fail" in " ".join(found["why"])


@pytest.mark.parametrize(("op", "device", "shown"), [("relu", "sometimes", "it failed"), ("tanh", "stalls", "it hung")])
def test_what_fails_at_times_is_said_to(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, op: str, device: str, shown: str
) -> None:
    monkeypatch.setenv("FARM_SMALL_RUNS", str(tmp_path / "runs"))
    here = Lake(tmp_path)
    rows = launched(tmp_path, f"[{op}]", f"small-{device}", deadline_s=1)
    code, found = here.minimised(here.key(rows, op, device), "--strategy", "shrink-values")
    assert code == FLAKY
    assert "times" in " ".join(found["why"]) or found["flaky"]
    assert f"{shown} 10 of 20 times" in found["script_said"]
    text = (Path(found["folder"]) / "issue.md").read_text()
    assert "It is intermittent" in text and "run it several times" in text


def test_a_model_with_its_inputs_is_run_and_made_small(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(user_definitions, "_told", [""])
    model = graph("a = Tanh(x)", "b = Softmax(a; axis=0)", "y = Neg(b)")
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 6]))
    onnx.save(model, "mine.onnx")
    np.savez("mine.npz", x=np.random.default_rng(0).uniform(-1, 1, (4, 6)).astype(np.float32))
    asked = ["--model", "mine.onnx", "--inputs", "mine.npz", "--backend"]
    assert minimise.main([*asked, "small-numbers", "--results", "lake"]) == SMALLER
    (found,) = minimal.read_minimal_cases("lake")
    assert (found["finding"]["ops"], found["finding"]["attributes"]) == (["Softmax"], {"Softmax.axis": 0})
    assert minimise.main([*asked, "small-clean", "--results", "lake"]) == BAD_INPUT
    assert "only failed" in capsys.readouterr().err


#: Backends with a fault in an operation of a torch module → the operations that are left of it.
MODULES = {"linear_1": ["linear"], "softmax.mul": ["mul", "softmax"], "getitem_1": ["chunk"]}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Lake, dict[str, str]]:
    """A module on each of them and on their sound twin; keys of the rows by device."""
    here = Lake(tmp_path_factory.mktemp("modules"))
    backends = ", ".join(f"faultytorch-{device}" for device in (*MODULES, "none"))
    (here.folder / "torch.yaml").write_text(f"catalogs: [{{name: tinytorch}}]\nlocalise_s: 0\nbackends: [{backends}]\n")
    launch.main([str(here.folder / "torch.yaml"), "--on", "processes", "--results", str(here.results)])
    rows = lake.read(here.results, lake.run_ids(here.results)[-1])
    return here, {x.backend.partition("-")[2]: f"{x.run_id}:{x.case_id}:{x.backend}" for x in rows.itertuples()}


@pytest.mark.parametrize(("device", "ops"), MODULES.items())
def test_of_a_torch_module_the_operations_are_left_that_fail_and_its_sound_twin_is_refused(
    modules: tuple[Lake, dict[str, str]], capsys: pytest.CaptureFixture[str], device: str, ops: list[str]
) -> None:
    here, keys = modules
    faulty, sound = keys[device], keys["none"]
    code, found = here.minimised(faulty)
    assert code == SMALLER, found
    assert (found["nodes"], found["finding"]["ops"]) == ([15, len(ops)], ops)
    assert found["elements"][1] <= 8 and found["op"] == f"torch:{'+'.join(ops)}"
    assert found["runs"] <= 200 and not found["flaky"]
    text = (Path(found["folder"]) / "program.py").read_text()
    assert f"torch.ops.aten.{ops[0]}." in text and "farm" not in text
    assert "shows the wrong result" in found["script_said"]
    capsys.readouterr()
    assert here.minimised(sound)[0] == BAD_INPUT and "only failed or imprecise" in capsys.readouterr().err


def test_of_a_torch_module_that_is_not_deterministic_the_operation_is_left_that_is_not(
    tmp_path: Path, cache: Path
) -> None:
    here = Lake(tmp_path)
    config = "catalogs: [{name: tinytorch}]\nchecks: [determinism]\nbackends: [faultytorch-turns._softmax]\n"
    (tmp_path / "torch.yaml").write_text(config)
    launch.main([str(tmp_path / "torch.yaml"), "--on", "processes", "--results", str(here.results)])
    (row,) = lake.read(here.results, lake.run_ids(here.results)[-1]).to_dict("records")
    assert row["kind"] == "nondeterministic"
    _, found = here.minimised(f"{row['run_id']}:{row['case_id']}:{row['backend']}")
    assert (found["finding"]["ops"], found["finding"]["modes"]) == (["softmax"], ["determinism"]), found["why"]
    assert found["outcome"]["kind"] == "nondeterministic"


def test_of_a_training_step_the_operation_is_left_that_fails_forward_or_backward(tmp_path: Path, cache: Path) -> None:
    here = Lake(tmp_path)
    op, twin = "native_layer_norm_backward", "no_such_operation"
    config = "catalogs: [{name: models, ops: [gpt2.small], samples: 1}]\nchecks: [backward]\ndtypes: [float32]\nlocalise_s: 0\n"
    (tmp_path / "step.yaml").write_text(config + f"backends: [faultytorch-each.{op}, faultytorch-each.{twin}]\n")
    launch.main([str(tmp_path / "step.yaml"), "--on", "processes", "--cpus", "1", "--results", str(here.results)])
    rows = lake.read(here.results, lake.run_ids(here.results)[-1]).set_index("backend")
    assert rows.status[f"faultytorch-each.{twin}"] == "pass"
    row = rows.loc[f"faultytorch-each.{op}"]
    code, found = here.minimised(f"{row.run_id}:{row.case_id}:{row.name}")
    assert code == SMALLER and found["finding"]["ops"] == [op] and found["nodes"][0] > 200, found
    assert found["finding"]["modes"] == []  # a backward operation is called as any other
    assert found["elements"][1] <= 8 and found["runs"] <= 60 and "shows the wrong result" in found["script_said"]


def test_what_cannot_be_made_smaller_is_refused_in_a_line(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, rows = made
    key = here.key(rows, "softmax", "numbers")
    refused = {
        (here.key(rows, "softmax", "dies"),): "only failed or imprecise",
        (key, "--strategy", "shrink-al"): "did you mean",
        (key, "--runs", "3"): "--runs: more than",
        ("nonsense",): "is no key",
        ("12345",): "no case of the seed 12345",
        (): "what is to be reduced",
        ("--model", "mine.onnx"): "--model takes --inputs",
        ("--inputs", "mine.npz"): "name it with --model",
        (key.replace("small-numbers", "small-gone"),): "no row of",
    }
    for arguments, words in refused.items():
        assert minimise.main([*arguments, "--results", str(here.results)]) == BAD_INPUT
        said = capsys.readouterr()
        assert said.err.startswith("error: ") and words in said.err and len(said.err.splitlines()) == 1


def test_an_error_of_a_word_is_told_with_its_type() -> None:
    outcome = {"status": "error", "kind": "", "error": "'num_heads'", "error_type": "KeyError"}
    finding = {"ops": ["Attention"], "attributes": {}, "modes": [], "status": "error"}
    record = {"backend": "tvm-cpu", "dtype": "float32", "flaky": False, "outcome": outcome, "finding": finding}
    assert issue.write_issue_title(record) == "[tvm-cpu] Attention: KeyError: 'num_heads'"
    outcome["error"] = "the axis 3 is out of range"
    assert issue.write_issue_title(record).endswith("Attention: the axis 3 is out of range")


@pytest.mark.parametrize(
    ("kind", "error", "failing", "searched"),
    [
        ("", "aicore exception, error code is 507015 in aten::relu",
         "crash (aicore exception, error code is 507015 in aten::relu)", "aicore exception error 507015"),
        ("SIGSEGV", "the process died of SIGSEGV", "crash (SIGSEGV)", "segfault"),
        ("SIGABRT", "", "crash (SIGABRT)", "SIGABRT"),
        ("exit code 3", "", "crash (exit code 3)", "exit code 3"),
        ("", "", "crash (the process ends)", "crash"),
    ],
)  # fmt: skip
def test_a_crash_is_told_and_searched_for_by_what_was_seen(kind: str, error: str, failing: str, searched: str) -> None:
    """A device that computes no more after an error gives no signal."""
    outcome = {"status": "crash", "kind": kind, "error": error, "error_type": "RuntimeError"}
    finding = {"ops": ["relu"], "attributes": {}, "modes": [], "status": "crash", "words": ""}
    record = {"backend": "torch-npu", "dtype": "float32", "flaky": False, "outcome": outcome, "finding": finding}
    assert issue.write_issue_title(record) == f"[torch-npu] relu: {failing}"
    assert issue._make_search_words(record).startswith(f"Search for duplicates with: `relu {searched}")


def test_another_version_of_the_runtime_is_said_and_offered(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    here, rows = made
    row = rows.loc[("small:softmax", "small-numbers")]
    path = here.results / f"run={row.run_id}" / "_run.json"
    record = json.loads(path.read_text())
    for backend in record["config"]["backends"]:
        if backend["name"] == "small-numbers":
            backend["options"] = {"version": "2.0"}
    before = path.read_text()
    path.write_text(json.dumps(record))
    try:
        key = here.key(rows, "softmax", "numbers")
        assert minimise.main([key, "--results", str(here.results)]) == BAD_INPUT
        said = capsys.readouterr().err
        assert "1.0, here is 2.0" in said and "==1.0" in said and "--here" in said
        assert reproduce.main([key, "--results", str(here.results)]) in (0, 1)
        said = " ".join(capsys.readouterr().out.split())
        assert "the row is of small-numbers 1.0, here is 2.0: --packages small==1.0 runs that version" in said

        def gone(case: Any) -> str:
            raise ReproduceError("small-numbers cannot be run here: it cannot be imported")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("farm.hunt.minimise_row.find_version_to_minimise", gone)
            assert minimise.main([key, "--results", str(here.results)]) == BAD_INPUT
        said = capsys.readouterr().err
        assert "cannot be imported; the row is of 1.0: --packages small==1.0 runs that version" in said
        code, found = here.minimised(key, "--here", "--strategy", "binary-search-dims")
        assert code in (SMALLER, NO_SCRIPT) and found["runtime_version"] == "2.0"
    finally:
        path.write_text(before)


def test_findings_are_the_distinct_defects_with_their_minimal_cases(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, rows = made
    if not any(x["finding"]["ops"] == ["Gather"] for x in minimal.read_minimal_cases(here.results)):
        here.minimised(here.key(rows, "gather", "numbers"))
    capsys.readouterr()
    out = tmp_path / "issues"
    code = findings.main(["--results", str(here.results), "--issues", str(out), "--csv", str(tmp_path / "defects.csv")])
    said = capsys.readouterr().out
    table = pd.read_csv(tmp_path / "defects.csv", dtype={"versions": str}).set_index("ops")
    assert code == 0 and "distinct defect" in said
    gather = table.loc["Gather"]
    assert (gather.backend, gather.status, gather.kind, gather.cases, gather.rows) == (
        "small-numbers",
        "wrong",
        "numbers",
        1,
        1,
    )
    assert (gather["first"], gather["last"]) == (rows.iloc[0].run_id, rows.iloc[0].run_id)
    assert gather.right == "small-dies" and gather.versions == "1.0"
    # What failed and is like none of these is counted apart.
    assert "small:errors" not in table.index and "have none yet" in said and "rows failed or are imprecise" in said
    bundle = out / f"small-numbers-Gather-{gather.finding}"
    text = (bundle / "issue.md").read_text()
    assert text.startswith("# [small-numbers] Gather") and "| one change | result |" in text
    assert "> [Gather](https://onnx.ai/onnx/operators/onnx__Gather.html): " in text and "Search for duplicates" in text
    assert fails_by_itself(bundle / minimal.PACK)[0] == "wrong"
    assert "(kind biased)" not in said


def test_what_only_leans_to_one_side_has_no_issue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    rows = launched(tmp_path, "[softmax]", "small-numbers").reset_index()
    key = {name: str(rows.loc[0, name]) for name in ("run_id", "case_id", "backend")}
    shared = {**key, "flaky": False, "runtime_version": "1.0", "nodes": [1, 1], "elements": [1, 1], "files": []}
    base = {
        "backend": key["backend"],
        "status": "imprecise",
        "words": "",
        "attributes": {},
        "modes": [],
        "after": False,
    }
    for number, kind in enumerate(("biased", "numbers")):
        record = {**shared, "case_id": f"{key['case_id']}{number}", "outcome": {"status": "imprecise", "kind": kind}}
        minimal.write_minimal_case(results, record | {"finding": {**base, "ops": [f"Op{kind}"], "kind": kind}}, {})
    assert findings.main(["--results", str(results), "--issues", str(tmp_path / "issues")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 distinct defects" in said
    assert "1 folder in" in said and "1 left out that only thousands of numbers show (kind biased)" in said
    assert [x.name.split("-")[2] for x in (tmp_path / "issues").iterdir()] == ["Opnumbers"]


def test_what_is_not_the_backends_is_counted_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    rows = launched(tmp_path, "[softmax]", "small-numbers").reset_index()
    key = {name: str(rows.loc[0, name]) for name in ("run_id", "case_id", "backend")}
    shared = {**key, "flaky": False, "runtime_version": "1.0", "nodes": [1, 1], "elements": [1, 1], "files": []}
    told = {"backend": key["backend"], "status": "wrong", "kind": "numbers", "words": "", "attributes": {}, "modes": []}
    for op, by_parts in (("softmax", ""), ("OpPass", "pass"), ("OpImprecise", "imprecise")):
        case = key["case_id"] if op == "softmax" else f"{key['case_id']}{op}"
        found = {"case_id": case, "by_parts": by_parts, "finding": {**told, "ops": [op], "after": False}}
        minimal.write_minimal_case(results, {**shared, **found, "outcome": {"status": "wrong", "kind": "numbers"}}, {})
    assert findings.main(["--results", str(results)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 distinct defects" in said
    assert (
        "1 more finding not counted against the backend: not settled: by the reference of its parts it is right" in said
    )
    known = tmp_path / "known.yaml"
    known.write_text("- {op: '*', backend: 'small-*', reason: defined otherwise, fault: open}\n")
    one = tmp_path / "one.yaml"
    one.write_text("- {op: '*', backend: 'small-*', reason: the axis is ignored}\n")
    assert findings.main(["--results", str(results), "--known", str(one)]) == 0
    assert "covered by known failures: 1 of them, 1 cause" in capsys.readouterr().out
    out = tmp_path / "issues"
    assert findings.main(["--results", str(results), "--known", str(known), "--issues", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("written: 1 folder in ") and len(list(out.iterdir())) == 1
    assert "left out that do not count against the backend" in lines[-1]
    assert (
        any(x.startswith("1 distinct defect:") for x in lines)
        and "1 more finding not counted against the backend: not settled" in lines
    )


@pytest.mark.parametrize(
    ("later", "now"),
    [
        ({}, "r2"),
        ({"runtime_version": "b 1.3"}, "r2"),
        ({"runtime_version": "b 1.1"}, ""),
        ({"status": "wrong"}, ""),
        ({"status": "unsupported"}, ""),
        ({"digest": "another"}, ""),
        ({"device": "another"}, ""),
        ({"case_id": "another"}, ""),
    ],
)
def test_what_a_later_run_got_right_is_no_open_defect(later: dict[str, str], now: str) -> None:
    row = {
        "run_id": "r1",
        "case_id": "c",
        "backend": "b",
        "op": "x:A",
        "status": "wrong",
        "kind": "numbers",
        "digest": "d",
    }
    row |= {"runtime_version": "b 1.2", "error": "", "stage": "", "error_type": "", "variant": "", "dtype": "float32"}
    rows = keep_distinct_rows(pd.DataFrame([row, {**row, "run_id": "r2", "status": "pass", "kind": "", **later}]))
    finding = {
        "backend": "b",
        "ops": ["A"],
        "status": "wrong",
        "kind": "numbers",
        "words": "",
        "attributes": {},
        "modes": [],
    }
    record = {**row, "folder": "", "flaky": False, "finding": {**finding, "id": "f"}}
    for runs in ({"r1": {}, "r2": {}}, {"2 runs": {}}):  # of a report over several runs there is one record
        (line,) = defects.list_defect_lines([record], rows, runs).to_dict("records")
        assert (line["passes"], line["fault"]) == (now, defects.GONE if now else defects.BACKENDS)
    by_chance = {"flaky": True}, {"finding": {**record["finding"], "after": True}}
    for more in by_chance:
        (line,) = defects.list_defect_lines([{**record, **more}], rows, {"r1": {}, "r2": {}}).to_dict("records")
        assert line["fault"] == defects.BACKENDS


def test_whole_numbers_are_off_by_a_number_and_not_by_ulps(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = {"op_class": "exact", "error_units": np.inf, "max_ulp": np.inf, "max_diff": 3.0, "limit": 0.0}
    assert show.describe_minimal_error({"outcome": outcome, "results": ["int64", "bool"]}) == "3; nothing is rounded"
    assert "ulps" in show.describe_minimal_error(
        {"outcome": outcome | {"max_ulp": 3.0, "error_units": 3.0}, "results": ["float32"]}
    )


def test_two_rows_of_one_defect_are_one_finding() -> None:
    base = {
        "backend": "b",
        "ops": ["Relu"],
        "status": "wrong",
        "kind": "numbers",
        "words": "",
        "modes": [],
        "after": False,
    }
    one, other = ({**base, "attributes": {"Relu.a": value}} for value in (1, 2))
    assert make_finding_id(one) == make_finding_id(other)
    assert make_finding_id(one) != make_finding_id({**one, "attributes": {}})
    assert make_finding_id(one) != make_finding_id({**one, "modes": ["open sizes"]})
    # What follows the first sentence prints a part of the graph (TVM).
    told = [
        {**one, "words": f"TypeError both must have one dtype. however, {part}"} for part in ("r.power", "x (type of")
    ]
    assert (
        make_finding_id(told[0])
        == make_finding_id(told[1])
        != make_finding_id({**one, "words": "TypeError both must have one rank."})
    )
    gelu, tanh = ({**base, "ops": ["gelu"], "attributes": {"gelu.approximate": x}} for x in ("none", "tanh"))
    assert make_finding_id(gelu) != make_finding_id(tanh)


def test_a_call_tells_its_arguments_and_what_its_inputs_are_like() -> None:
    args = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0, (2, 2), (4, 1))), 1]}
    case = CallCase(
        args,
        encode_argument_tree({"keepdim": True}),
        (np.ones(8, np.float32),),
        Group("torch:sum", "", "float32", 1),
        1,
    )
    found = describe_minimal_case(case)
    assert [x["name"] for x in found["inputs"]] == ["argument 0"]
    named = replace(case, args={"$": "tuple", "v": []}, kwargs=encode_argument_tree({"weight": TensorSpec(0)}))
    assert [x["name"] for x in describe_minimal_case(named)["inputs"]] == ["weight"]
    assert found["attributes"] == {"sum.argument 1": 1, "sum.keepdim": True}
    assert found["modes"] == ["input with gaps"]


def test_rows_that_failed_are_of_one_finding_or_of_none_yet_and_none_is_counted_twice() -> None:
    def failed(case: str, op: str = "x:A", status: str = "wrong", error: str = "3 of 4") -> dict[str, str]:
        return {
            "run_id": "r",
            "case_id": case,
            "backend": "b",
            "op": op,
            "status": status,
            "kind": "numbers",
            "error": error,
        }

    rows = keep_distinct_rows(
        pd.DataFrame(
            [
                failed("0"),
                failed("1"),
                failed("2", status="imprecise"),
                failed("3", "x:B"),
                failed("4", "x:B"),
                failed("5", "x:B"),
                {**failed("6"), "status": "pass", "kind": ""},
            ]
        )
    )
    found = [
        {"case_id": case, "backend": "b", "finding": {"id": name}}
        for case, name in (("0", "one"), ("3", "two"), ("4", "three"))
    ]
    of = defects.find_finding_of_rows(found, rows)
    # The second row of A failed as the first; of B nobody knows of which of its two defects the last is.
    assert of.tolist() == ["one", "one", "", "two", "three", ""]
    left = defects.list_rows_without_minimal(found, rows)
    assert left["rows"].sum() == 2 and (of != "").sum() + left["rows"].sum() == 6


def test_what_nobody_knows_is_made_small_first_and_backends_take_turns() -> None:
    def failed(case: str, backend: str, op: str, status: str = "wrong", numel: int = 1) -> dict[str, Any]:
        row = {
            "run_id": "r",
            "backend": backend,
            "op": op,
            "status": status,
            "kind": "numbers",
            "error": "",
            "numel": numel,
        }
        return {**row, "case_id": case, "stage": "", "error_type": "", "dtype": "float32"}

    rows = pd.DataFrame(
        [
            *(failed("0", "a", "x:A"), failed("1", "a", "x:B", "crash"), failed("2", "a", "x:C")),
            *(failed("3", "b", "x:A", "wrong", 9), failed("4", "b", "x:A", "wrong", 2), failed("5", "b", "x:D")),
            *(failed("6", "a", "x:E"), failed("7", "a", "x:F"), failed("8", "a", "x:G", "timeout")),
            failed("9", "a", "x:H", "imprecise"),
        ]
    )
    entries = [{"op": op, "backend": "a", "reason": "one cause"} for op in ("x:E", "x:F", "x:A")]
    runs = {"r": {"config": {"known_failures": entries}}}
    left = defects.sort_defects_by_worth(defects.list_rows_without_minimal([], rows), rows, runs)
    # The crash and b's smaller one, the next of each (of x:A the smaller case), a known cause once, what is imprecise,
    # what has the same cause last.
    assert left["case_id"].tolist() == ["1", "5", "2", "4", "8", "0", "9", "6", "7"]


def test_findings_of_a_lake_without_any_are_said(
    tmp_path: Path, made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    here, _ = made
    refused = [["--results", str(tmp_path / "none")], ["--results", str(here.results), "--run", "gone"]]
    for arguments in refused:
        assert findings.main(arguments) == BAD_INPUT
        assert capsys.readouterr().err.startswith("error: ")
