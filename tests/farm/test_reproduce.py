"""farm.reproduce: a row's key brings its numbers back bit for bit, and a script brings them to others."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farm import lake
from farm.commands import reproduce
from farm.commands import run as launch
from farm.commands.reproduce import BAD_INPUT, DIFFERENT, SAME
from farm.fleet import envs
from farm.plan.config import Config
from farm.reproduction import find_case, finding_trial, pinned_versions
from farm.reproduction.in_torch import write_torch_literal
from farm.reproduction.show_case import METRICS, conclude_reproduction
from tasks.backends import BackendSpec
from tasks.backends.shared.recipe import NoProgram
from tasks.model import Group
from tests import prepared

CONFIG = """
catalogs:
  - {name: torch, ops: [log_softmax, transpose, std, nn.functional.dropout, linalg.inv], dtypes: [float16, bfloat16],
     samples: 4, samples_for: {"ort-*": 2}}
  - {name: critical, ops: [rotary_embedding], dtypes: [float32], samples: 1, backends: ["torch-*"]}
backends: [torch-cpu, ort-cpu]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lake with one inline run of a few ops on torch and ONNX Runtime."""
    where = tmp_path_factory.mktemp("reproduce")
    (where / "small.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARM_CACHE", str(where / "cache"))
        code = launch.main([str(where / "small.yaml"), "--on", "inline", "--results", str(where / "results")])
        assert code in (launch.OK, launch.FOUND)
        yield where / "results"


@pytest.fixture(scope="module")
def rows(results: Path) -> pd.DataFrame:
    return lake.read(results, lake.run_ids(results)[-1])


def key_of(row: pd.Series) -> str:
    return f"{row.run_id}:{row.case_id}:{row.backend}"


def pick(rows: pd.DataFrame, **want: str) -> pd.Series:
    found = rows
    for column, value in want.items():
        found = found[found[column] == value]
    assert len(found), f"the run has no row with {want}"
    return found.iloc[0]


def plant(results: Path, tmp_path: Path, row: pd.Series, **change: object) -> Path:
    """A copy of the lake in which one row says something else."""
    lake_copy = tmp_path / "planted"
    (lake_copy / f"run={row.run_id}").mkdir(parents=True)
    (lake_copy / f"run={row.run_id}" / "_run.json").write_bytes(
        (results / f"run={row.run_id}" / "_run.json").read_bytes()
    )
    table = lake.read_table(results, row.run_id).to_pylist()
    for one in table:
        if one["case_id"] == row.case_id and one["backend"] == row.backend:
            one |= change
    pq.write_table(pa.Table.from_pylist(table, schema=lake.SCHEMA), lake_copy / f"run={row.run_id}" / "part-0.parquet")
    return lake_copy


def run_isolated(folder: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    # farm and tasks are made impossible to import, so that a program that did would fail. In a fork that has torch
    # imported: plainly started it is in test_findings_folder.
    path = str(folder / "run.py")
    code = (
        "import sys, runpy\nsys.modules['farm'] = sys.modules['tasks'] = None\n"
        f"sys.argv = [{path!r}]\nrunpy.run_path({path!r}, run_name='__main__')"
    )
    command = [sys.executable, "-I", "-c", code]
    return prepared.run(command, cwd=cwd, env=env, timeout=300)


def test_every_row_is_reproduced_bit_for_bit(
    results: Path, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {"wrong", "pass"} <= set(rows.status)
    for _, row in rows.iterrows():
        assert reproduce.main([key_of(row), "--results", str(results)]) == SAME, row.case_id
        assert capsys.readouterr().out.splitlines()[-1] == "reproduced: same status and same metrics", row.case_id


def test_it_prints_the_worst_element_and_both_sets_of_metrics(
    results: Path, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pick(rows, op="torch:log_softmax", dtype="float16", backend="torch-cpu", status="wrong")
    assert reproduce.main([key_of(row), "--results", str(results)]) == SAME
    text = capsys.readouterr().out
    units = re.escape(repr(float(row.error_units)))
    assert re.search(rf"^error_units +{units} +{units}$", text, re.M)
    for name in ("worst", "  expected", "  actual", "  difference", "  noise floor", "  ulps"):
        assert re.search(rf"^{name} ", text, re.M), name
    assert f"{row.digest} (as stored)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_last_names_the_newest_run(results: Path, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    row = pick(rows, status="pass", backend="torch-cpu")
    assert reproduce.main([f"last:{row.case_id}:{row.backend}", "--results", str(results)]) == SAME


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda r: "nonsense", "is no key"),
        (lambda r: f"20200101-000000-0000:{r.case_id}:{r.backend}", r"no run '20200101-000000-0000'.*there is "),
        (
            lambda r: f"{r.run_id}:{r.case_id.replace('log_softmax', 'log_softmaxx')}:{r.backend}",
            r"no case .*did you mean forward/torch:log_softmax",
        ),
        (lambda r: f"{r.run_id}:{r.case_id}:torch-cuda", "no row of .* on backend 'torch-cuda'; it ran on .*torch-cpu"),
    ],
)
def test_a_wrong_key_is_answered_with_what_there_is(
    results: Path, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str], make: object, wanted: str
) -> None:
    row = pick(rows, op="torch:log_softmax", backend="torch-cpu")
    assert reproduce.main([make(row), "--results", str(results)]) == BAD_INPUT  # type: ignore[operator]
    assert re.search(wanted, capsys.readouterr().err)


def test_another_outcome_than_stored_is_told(
    results: Path, rows: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pick(rows, status="pass", backend="torch-cpu", op="torch:transpose")
    planted = plant(results, tmp_path, row, status="wrong", kind="numbers")
    assert reproduce.main([key_of(row), "--results", str(planted)]) == DIFFERENT
    assert capsys.readouterr().out.splitlines()[-1] == "NOT reproduced: stored wrong, now pass"


@pytest.mark.parametrize("column", [m for m in METRICS if m != "classic"])
def test_a_single_other_bit_of_a_metric_is_told(rows: pd.DataFrame, column: str) -> None:
    found = pick(rows, op="torch:log_softmax", backend="torch-cpu", status="wrong")
    row = {str(k): v for k, v in found.items()}
    row[column] = 0.5 if pd.isna(row[column]) else row[column]
    other = row | {column: row[column] + 1 if isinstance(row[column], int) else float(np.nextafter(row[column], 1e9))}
    case = find_case.StoredCase(
        find_case.RowKey(row["run_id"], row["case_id"], row["backend"]),
        row,
        row,
        {},
        None,
        None,  # type: ignore[arg-type]
        BackendSpec.parse("torch-cpu"),
        None,
        Path(),
        None,
        None,  # type: ignore[arg-type]
    )
    assert conclude_reproduction(case, row) == (True, "reproduced: same status and same metrics")
    same, line = conclude_reproduction(case, other)
    assert same and line.startswith(f"reproduced the status, metrics differ: {column} ")


def test_other_inputs_than_stored_are_told(
    results: Path, rows: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pick(rows, status="pass", backend="torch-cpu", op="torch:transpose")
    planted = plant(results, tmp_path, row, digest="0123456789abcdef")
    reproduce.main([key_of(row), "--results", str(planted)])
    assert "NOT the stored 0123456789abcdef" in capsys.readouterr().out


def test_a_case_can_be_run_on_another_backend(
    results: Path, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pick(rows, op="torch:log_softmax", dtype="float16", backend="torch-cpu", status="wrong")
    code = reproduce.main([key_of(row), "--results", str(results), "--backend", "ort-cpu"])
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"(the same|another) status: stored wrong on torch-cpu, now \w+ on ort-cpu", line)
    assert code == (SAME if line.startswith("the same") else DIFFERENT)


def test_a_stored_crash_is_warned_of_and_can_be_kept_in_a_child(
    results: Path, rows: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pick(rows, status="pass", backend="torch-cpu", op="torch:transpose")
    planted = plant(results, tmp_path, row, status="crash", kind="SIGSEGV")
    assert reproduce.main([key_of(row), "--results", str(planted)]) == DIFFERENT
    assert "the stored outcome is crash" in capsys.readouterr().err
    assert reproduce.main([key_of(row), "--results", str(results), "--child"]) == SAME
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "reproduced: same status and same metrics" and "warning" not in said.err


@pytest.mark.parametrize(
    ("backend", "op", "dtype", "status"),
    [
        ("torch-cpu", "torch:log_softmax", "float16", "wrong"),
        ("torch-cpu", "torch:log_softmax", "bfloat16", "wrong"),
        ("torch-cpu", "torch:transpose", "bfloat16", "pass"),
        ("torch-cpu", "torch:nn.functional.dropout", "float16", "pass"),
        ("torch-cpu", "critical:rotary_embedding", "float32", "pass"),
        ("ort-cpu", "torch:std", "float16", "pass"),
        ("ort-cpu", "torch:transpose", "bfloat16", "pass"),
    ],
)
def test_a_finding_alone_shows_the_outcome(
    results: Path,
    rows: pd.DataFrame,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    op: str,
    dtype: str,
    status: str,
) -> None:
    row = pick(rows, backend=backend, op=op, dtype=dtype, status=status)
    folder = tmp_path / "finding"
    assert reproduce.main([key_of(row), "--results", str(results), "--out", str(folder)]) == SAME
    assert re.search(rf"^finding .*shows the {status}", capsys.readouterr().out, re.M)
    for path in folder.glob("*.py"):
        text = path.read_text()
        assert "import farm" not in text and "from farm" not in text and "tasks" not in text
    (tmp_path / "elsewhere").mkdir()
    done = run_isolated(folder, tmp_path / "elsewhere")
    assert done.returncode == (1 if status == "wrong" else 0), done.stderr
    assert "got " in done.stdout and "expected " in done.stdout
    # It says what to install.
    module = {"torch-cpu": "torch", "ort-cpu": "onnxruntime"}[backend]
    version = metadata.version(module).partition("+")[0]
    assert f"    pip install {module}=={version}" in (folder / "run.py").read_text()


def test_a_finding_that_does_not_show_the_failure_is_not_claimed_to(
    results: Path, rows: pd.DataFrame, tmp_path: Path
) -> None:
    row = pick(rows, op="torch:log_softmax", backend="torch-cpu", status="wrong")
    for text in ("print('wrong')", "raise SystemExit(0)", "raise SystemExit(2)", "raise ValueError('wrong')"):
        (tmp_path / "run.py").write_text(text)
        shown, words = finding_trial.try_finding(tmp_path, {str(k): v for k, v in row.items()}, 60)
        assert not shown and "does NOT show the wrong" in words


def test_nothing_of_an_argument_becomes_code() -> None:
    hostile = '\');import os;os.abort()#\n"""@data@'
    assert eval(write_torch_literal({"$": "tuple", "v": [hostile, {"$": "dict", "v": [[hostile, 1]]}]}, str)) == (
        hostile,
        {hostile: 1},
    )
    for node in ({"$": "torch.dtype", "name": "float32;x"}, {"$": "torch.dtype", "name": "load"}, {"$": hostile}):
        with pytest.raises(NoProgram):
            write_torch_literal(node, str)


def test_a_run_whose_record_is_of_another_version_is_refused(
    results: Path, rows: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = rows.iloc[0]
    planted = plant(results, tmp_path, row)
    record = planted / f"run={row.run_id}" / "_run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"config": {"unknown": 1}}))
    assert reproduce.main([key_of(row), "--results", str(planted)]) == BAD_INPUT
    assert "holds no config of this version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("catalog", "planned"),
    [({"dtypes": ["*"]}, True), ({"dtypes": ["float32"]}, False), ({}, True), ({"exclude": ["abs"]}, False)],
)
def test_the_part_of_the_config_that_planned_a_row_is_found(catalog: dict[str, object], planned: bool) -> None:
    config = Config.model_validate({"catalogs": [{"name": "torch", **catalog}], "backends": ["torch-cpu"]})
    row = {"op": "torch:abs", "variant": "", "dtype": "float16", "catalog": "torch"}
    assert bool(find_case._list_catalog_configs_of_row(row, config)) is planned


@pytest.mark.parametrize(
    ("skip", "forms", "count"),
    [([], ["onnx"], 5), (["ort-other"], ["onnx"], 2), (["ort-*"], ["onnx"], 1), ([], ["no export of torch's"], 1)],
)
def test_as_many_samples_are_exported_again_as_the_run_exported(skip: list[str], forms: list[str], count: int) -> None:
    config = Config.model_validate(
        {
            "catalogs": [
                {"name": "torch", "ops": ["abs"], "samples": 9, "samples_for": {"ort-cpu": 2, "ort-other": 5}}
            ],
            "backends": ["torch-cpu", "ort-cpu", {"name": "ort-other", "like": "ort-cpu"}],
            "skip": [{"ops": ["abs"], "backends": skip, "reason": "none"}] if skip else [],
        }
    )
    offers = {"torch-cpu": ["torch"], "ort-cpu": forms, "ort-other": forms}
    record = {"inventory": {"backends": {n: {"available": True, "forms": f} for n, f in offers.items()}}}
    assert find_case._count_exported_samples(config, record, Group("torch:abs", "", "float16", 9, 0)) == count


@pytest.mark.parametrize(("code", "shown"), [(3, True), (4, False)])
def test_a_finding_that_exits_as_stored_shows_the_crash(tmp_path: Path, code: int, shown: bool) -> None:
    (tmp_path / "run.py").write_text(f"import os\nos._exit({code})\n")
    said = finding_trial.try_finding(tmp_path, {"status": "crash", "kind": "exit code 3"}, 30)
    assert said[0] is shown and f"exit code {code}" in said[1]


def test_a_finding_that_raises_something_else_says_what(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("raise AssertionError('Torch not compiled with CUDA enabled')")
    row = {"status": "crash", "kind": "", "error_type": "RuntimeError", "error": "HIP error: an illegal memory access"}
    said = "does NOT show the crash: it raises AssertionError: Torch not compiled with CUDA enabled"
    assert finding_trial.try_finding(tmp_path, row, 30) == (False, said)


def test_a_backend_with_an_environment_is_run_in_it_and_its_finding_says_what_to_install(
    results: Path,
    rows: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = pick(rows, op="torch:log_softmax", dtype="float16", backend="ort-cpu", status="pass")
    planted = plant(results, tmp_path, row)
    record = json.loads((planted / f"run={row.run_id}" / "_run.json").read_text())
    record["config"]["backends"][1] |= {"packages": ["onnxruntime==1.0", "numpy<9"], "python": "3.11"}
    (planted / f"run={row.run_id}" / "_run.json").write_text(json.dumps(record))
    asked: list[envs.Environment] = []

    def build(environment: envs.Environment, cache: Path, *more: object, **others: object) -> Path:
        asked.append(environment)
        return Path(sys.executable)

    monkeypatch.setattr(envs, "build_environment", build)
    monkeypatch.setattr(
        reproduce, "run_case_here", lambda case: pytest.fail("it was run in the farm's own environment")
    )
    folder = tmp_path / "case"
    assert reproduce.main([key_of(row), "--results", str(planted), "--out", str(folder)]) == SAME
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "reproduced: same status and same metrics"
    assert {e.packages for e in asked} == {("onnxruntime==1.0", "numpy<9")}
    assert re.search(r"^environment .*\n +Python 3.11: onnxruntime==1.0 numpy<9$", said, re.M)
    assert re.search(r"^actual ", said, re.M) and re.search(
        r"^worst ", said, re.M
    )  # its outputs come back from the child
    assert "    pip install onnxruntime==1.0 'numpy<9'" in (folder / "run.py").read_text()
    assert "shows the pass: it ends with exit code 0" in said


def test_an_environment_that_cannot_be_built_is_an_error_with_the_installers_words(
    results: Path,
    rows: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = pick(rows, backend="ort-cpu", status="pass")
    planted = plant(results, tmp_path, row)
    record = json.loads((planted / f"run={row.run_id}" / "_run.json").read_text())
    record["config"]["backends"][1] |= {"packages": ["no-such-package==1"]}
    (planted / f"run={row.run_id}" / "_run.json").write_text(json.dumps(record))

    def build(environment: envs.Environment, cache: Path, *more: object, **others: object) -> Path:
        raise envs.EnvError("its environment cannot be built: no-such-package was not found")

    monkeypatch.setattr(envs, "build_environment", build)
    assert reproduce.main([key_of(row), "--results", str(planted)]) == BAD_INPUT
    assert "no-such-package was not found" in capsys.readouterr().err


_ROCM = ("--extra-index-url=https://download.pytorch.org/whl/rocm7.2", "torch==2.13.0+rocm7.2", "expecttest", "scipy")
_GAUDI = ("--extra-index-url=https://vault.example/simple", "habana-torch-plugin==1.23.*", "scipy")


@pytest.mark.parametrize(
    ("backend", "own", "stored", "wanted"),
    [
        ("torch-rocm", _ROCM, "torch 2.12.0+rocm7.1, ROCm 7.1.25424, MIOpen 3005001",
         "--extra-index-url=https://download.pytorch.org/whl/rocm7.1 torch==2.12.0+rocm7.1 expecttest scipy"),
        ("torch-cuda", (), "torch 2.12.0+cu130, CUDA 13.0, cuDNN 91000, cuBLAS 13.1.0",
         "--extra-index-url=https://download.pytorch.org/whl/cu130 torch==2.12.0+cu130 expecttest scipy setuptools"),
        ("torch-cpu", (), "torch 2.12.0+cpu", "torch==2.12.0 expecttest scipy setuptools"),
        ("torch-hpu", _GAUDI, "torch 2.12.0, habana_torch_plugin 1.22.0.740, SynapseAI 1.22.0-740",
         "--extra-index-url=https://vault.example/simple habana-torch-plugin==1.22.0.740 scipy torch==2.12.0"),
        ("torch-hpu", _GAUDI, "torch 2.12.0, habana_frameworks.torch.core",  # as rows of old said it
         "--extra-index-url=https://vault.example/simple 'habana-torch-plugin==1.23.*' scipy torch==2.12.0"),
        ("torch-npu", ("torch==2.13.0", "torch-npu==2.13.0", "pyyaml"), "torch 2.12.0+cpu, torch_npu 2.12.0, CANN 8.0.RC1",
         "torch==2.12.0 torch-npu==2.12.0 pyyaml"),
        ("torch-xla", ("torch==2.9.0", "torch_xla[tpu]==2.9.0"), "torch 2.8.0+cpu, torch_xla 2.8.1", "torch==2.8.0 'torch-xla[tpu]==2.8.1'"),
        ("ort-cann", ("onnxruntime-cann==1.24.4", "numpy<2"), "1.23.0, CANN 8.0.RC1", "onnxruntime-cann==1.23.0 'numpy<2'"),
        ("ort-cpu", (), "1.20.1", "onnxruntime==1.20.1"),
    ],
)  # fmt: skip
def test_another_version_is_offered_as_its_packages_are_had(
    backend: str, own: tuple[str, ...], stored: str, wanted: str
) -> None:
    environment = envs.Environment(own) if own else None
    case: Any = types.SimpleNamespace(spec=BackendSpec.parse(backend), environment=environment)
    said = pinned_versions.suggest_packages_of_row(case, stored)
    assert said == f"--packages {wanted} runs that version in an environment of its own"
    if own:  # and it is a list that an environment can be made of
        assert envs.Environment(tuple(shlex.split(said.partition(" runs ")[0])[1:])).requirements
