"""Mistakes on the command line: exit code 2, one line that names place and fix, before any work is done."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from farm import lake
from farm.commands.run import main
from farm.exits import BAD_INPUT, INCOMPLETE, OK, run_command_guarded
from farm.work import ray_cluster
from tests.conftest import ROOT, launch

CONFIG = """
catalogs: [{name: torch, ops: [abs, add, std_mean], samples: 2}]
dtypes: [float32]
backends: [torch-cpu]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path / "c.yaml"


def refused(capsys: pytest.CaptureFixture[str], results: Path, *args: object) -> str:
    """What is said on stderr by a command that must end with 2, without a traceback and without a run."""
    assert main([*map(str, args), "--on", "inline", "--results", str(results)]) == BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "Traceback" not in said
    assert not results.exists() or lake.run_ids(results) == []
    return said


def test_no_config(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    assert "configs/quick.yaml" in refused(capsys, results)


def test_unknown_config_file(
    capsys: pytest.CaptureFixture[str], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    said = refused(capsys, results, "configs/quik.yaml")
    assert "configs/quik.yaml: no such file" in said and "configs/quick.yaml" in said


def test_bad_config_is_refused_with_its_place(capsys: pytest.CaptureFixture[str], results: Path, config: Path) -> None:
    config.write_text(CONFIG + "polcy: classic\n")
    assert f"{config}:5:1: polcy: unknown key; did you mean policy?" in refused(capsys, results, config)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--ops", "abss"), "--ops: no op 'abss'; did you mean abs"),
        (("--ops", "abs,torch:ad"), "no op 'torch:ad'"),
        (("--ops", "zzz*"), "--ops: no op 'zzz*'"),
        (("--dtypes", "flaot32"), "--dtypes: dtypes: unknown dtype 'flaot32'; did you mean float32"),
        (("--dtypes", "float32,f16"), "unknown dtype 'f16'"),
        (("--backends", "torch-gpux,trch-cpu"), "--backends: backends: unknown backend 'trch-cpu'"),
        (("--backends", "pytorch-cpu"), "torch-cpu"),
        (("--samples", "0"), "--samples: at least 1"),
        (("--samples", "-5"), "--samples"),
        (("--ops", "svd"), "the config plans no cell"),
        (("--dtypes", "int4"), "the config plans no cell"),
    ],
)
def test_bad_narrowing(
    capsys: pytest.CaptureFixture[str], results: Path, config: Path, args: tuple[str, ...], says: str
) -> None:
    assert says in refused(capsys, results, config, *args)


def test_an_op_that_the_config_names_and_the_catalog_lacks(
    capsys: pytest.CaptureFixture[str], results: Path, config: Path
) -> None:
    config.write_text(CONFIG.replace("std_mean", "std_meen"))
    said = refused(capsys, results, config)
    assert "no op 'std_meen'" in said and "std_mean" in said


def test_a_misspelt_op_of_an_included_config_is_told_with_its_place_there(
    capsys: pytest.CaptureFixture[str], results: Path, config: Path
) -> None:
    config.write_text("name: x\n" + CONFIG.replace("std_mean", "std_meen"))
    (config.parent / "top.yaml").write_text("include: [c.yaml]\n")
    assert f"error: {config}:3:42: catalogs.torch.ops: no op 'std_meen'" in refused(
        capsys, results, config.parent / "top.yaml"
    )


def test_a_distribution_that_an_op_has_not_is_told_with_those_that_it_has(
    capsys: pytest.CaptureFixture[str], results: Path, config: Path
) -> None:
    config.write_text(
        "dtypes: [float16]\nbackends: [torch-cpu]\n"
        "catalogs: [{name: torch, ops: [addcmul], samples: 1, distributions: [exhaustive]}]\n"
    )
    said = refused(capsys, results, config)
    assert "torch:addcmul: no samples of the distribution exhaustive, but own, regular" in said
    assert "exhaustive is for ops of one tensor" in said
    config.write_text(
        config.read_text().replace("ops: [addcmul], ", "")
    )  # the same of all ops, narrowed by the command
    assert "torch:addcmul: no samples of the distribution" in refused(capsys, results, config, "--ops", "addcmul")


def test_a_dtype_that_an_op_has_not_is_told_with_those_that_it_has(
    capsys: pytest.CaptureFixture[str], results: Path, config: Path
) -> None:
    config.write_text(
        "dtypes: [complex64]\nbackends: [torch-cpu]\n"
        "catalogs: [{name: torch, ops: [nn.functional.gelu], samples: 1, distributions: [exhaustive]}]\n"
    )
    assert "torch:nn.functional.gelu: not in complex64, but in bfloat16, float16" in refused(capsys, results, config)


def test_an_op_that_a_config_names_and_plans_nothing_of_is_told(
    capsys: pytest.CaptureFixture[str], results: Path, config: Path
) -> None:
    config.write_text(
        "dtypes: [float16]\nbackends: [torch-cpu]\n"
        "catalogs: [{name: torch, ops: [exp, addcmul, bitwise_and, 'addc*'], samples: 1, distributions: [exhaustive]}]\n"
    )
    assert main([str(config), "--results", str(results), "--dry-run", "--on", "inline"]) == OK
    said = capsys.readouterr().out
    assert "left out: torch:addcmul, torch:addc*: no samples of the distribution exhaustive, but own, regular" in said
    assert "left out: torch:bitwise_and: not in float16, but in bool, int16, int32" in said
    assert said.count("left out: ") == 2


def test_a_config_that_skips_everything(capsys: pytest.CaptureFixture[str], results: Path, config: Path) -> None:
    config.write_text(CONFIG + "skip: [{reason: all of it}]\n")
    assert "plans no cell" in refused(capsys, results, config)


@pytest.mark.parametrize("args", (("--samples", "many"), ("--cpus", "x"), ("--no-such-option",), ("a.yaml", "b.yaml")))
def test_what_argparse_refuses(capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == BAD_INPUT
    assert "usage:" in capsys.readouterr().err


# --- resume -----------------------------------------------------------------------------------------------------


def test_nothing_to_resume(capsys: pytest.CaptureFixture[str], results: Path, config: Path) -> None:
    assert "no run" in refused(capsys, results, "--resume", "last")
    assert "no run of c " in refused(capsys, results, config, "--resume", "last")
    assert "it holds no run" in refused(capsys, results, "--resume", "20260101-000000-aaaa")
    assert not results.exists()


def test_resuming_a_run_that_is_not_there(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    lake.write_run_record(lake.open_lake(results), "20260101-000000-aaaa", {"name": "other"})
    for args in (["--resume", "20260101-000000-aaab"], ["--resume", "20260101"]):
        assert main([*args, "--on", "inline", "--results", str(results)]) == BAD_INPUT
        said = capsys.readouterr().err
        assert f"no run '{args[1]}'" in said and "20260101-000000-aaaa" in said


@pytest.mark.parametrize("content", ("", "{", "[]"))
def test_resuming_a_run_whose_record_is_damaged(
    capsys: pytest.CaptureFixture[str], results: Path, content: str
) -> None:
    folder = results / "run=20260101-000000-aaaa"
    folder.mkdir(parents=True)
    (folder / "_run.json").write_text(content)
    assert main(["--resume", "20260101-000000-aaaa", "--on", "inline", "--results", str(results)]) == BAD_INPUT
    assert "_run.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "record", ({}, {"config": {}, "ops": []}, {"config": {"catalogs": ["torch"], "backends": ["gone-cpu"]}, "ops": []})
)
def test_resuming_a_run_of_another_version(
    capsys: pytest.CaptureFixture[str], results: Path, record: dict[str, object]
) -> None:
    lake.write_run_record(lake.open_lake(results), "20260101-000000-aaaa", record | {"run_id": "20260101-000000-aaaa"})
    assert main(["--resume", "20260101-000000-aaaa", "--on", "inline", "--results", str(results)]) == BAD_INPUT
    assert "error:" in capsys.readouterr().err


# --- places -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ("{file}/lake", "{file}", "/proc/lake", "foo://bucket/x"))
def test_results_that_cannot_be_written(capsys: pytest.CaptureFixture[str], config: Path, where: str) -> None:
    place = where.format(file=config)
    assert main([str(config), "--on", "inline", "--results", place]) == BAD_INPUT
    said = capsys.readouterr()
    assert said.err.startswith("error: results") and place.partition("://")[0] in said.err
    assert "available" not in said.out  # nothing was tried before


def test_a_lake_that_is_a_file(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    assert main(["--resume", "last", "--on", "inline", "--results", str(config)]) == BAD_INPUT
    assert "cannot be read" in capsys.readouterr().err


def test_a_cache_that_cannot_be_made(
    capsys: pytest.CaptureFixture[str], results: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_CACHE", f"{config}/cache")
    assert "FARM_CACHE" in refused(capsys, results, config)


# --- dry run ----------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_cells_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], results: Path, config: Path
) -> None:
    config.write_text(
        CONFIG.replace("[torch-cpu]", "[torch-cpu, torch-npu]")
        + "skip: [{ops: [add], backends: [torch-npu], reason: ticket 9}]\n"
    )
    assert main([str(config), "--dry-run", "--on", "inline", "--results", str(results)]) == OK
    said = capsys.readouterr().out
    assert "torch:abs float32: torch-cpu×2, torch-npu×2 (unavailable)" in said
    assert "torch:std_mean.unbiased float32" in said
    assert "torch:add float32 torch-npu: skipped, ticket 9" in said
    preflight = {line.split()[0]: line for line in said.splitlines() if line.startswith("  ")}
    assert "available" in preflight["torch-cpu"] and socket.gethostname() in preflight["torch-cpu"]
    assert "unavailable" in preflight["torch-npu"] and "npu" in preflight["torch-npu"].split("unavailable")[1]
    assert "7 cells planned, 4 on available backends, 1 skipped" in said
    assert not results.exists()


def test_a_dry_run_needs_no_writable_lake(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    assert main([str(config), "--dry-run", "--on", "inline", "--ops", "abs", "--results", f"{config}/lake"]) == OK
    assert "1 cell planned" in capsys.readouterr().out


@pytest.mark.parametrize("args", (("--dtypes", "float32,float32"), ("--backends", "torch-cpu,torch-cpu")))
def test_naming_something_twice_plans_it_once(
    capsys: pytest.CaptureFixture[str], results: Path, config: Path, args: tuple[str, ...]
) -> None:
    assert main([str(config), "--dry-run", "--on", "inline", "--ops", "abs", *args, "--results", str(results)]) == OK
    assert "1 cell planned" in capsys.readouterr().out


# --- through the shell ------------------------------------------------------------------------------------------


def test_the_exit_code_of_the_process(results: Path) -> None:
    done = launch("configs/quik.yaml", "--results", results)
    assert done.returncode == BAD_INPUT
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1 and done.stdout == ""


def test_no_cluster_at_the_address(results: Path, config: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"127.0.0.1:{held.getsockname()[1]}"
        done = launch(config, "--address", address, "--results", results, timeout=60)
    assert done.returncode == BAD_INPUT, done.stdout + done.stderr
    assert f"no Ray cluster at '{address}'" in done.stderr and "ray start" in done.stderr
    assert lake.run_ids(results) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--on", "ray"], "Ray did not start on this machine: The current node timed out during startup"),
        (["--address", "auto"], "the Ray cluster at 'auto' took no driver: The current node timed out during startup"),
    ],
)
def test_a_ray_that_does_not_start_in_time_is_told_as_that(
    args: list[str],
    said: str,
    results: Path,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def init(**options: object) -> None:
        raise Exception(
            "The current node timed out during startup. This could happen because some of the raylet failed"
        )

    monkeypatch.setattr("ray.init", init)
    assert run_command_guarded(main, [str(config), *args, "--results", str(results)]) == INCOMPLETE
    told = capsys.readouterr().err
    assert said in told and "the farm itself" not in told and "Traceback" not in told
    assert ("--on processes" if args == ["--on", "ray"] else "ray status") in told
    assert lake.run_ids(results) == []


#: Ray 2.60's and 2.49's own words: of a module that its dashboard misses, of a machine too busy for it, of a log that
#: it could not quote, of packages that it looks for itself.
QUOTED = "\nThe last 20 lines of {}/dashboard.log (it contains the error message from the dashboard): \n"
MISSING = (
    '    from ray.dashboard.optional_deps import aiohttp\n  File "optional_deps.py", line 6, in <module>\n    import aiohttp\n'
    "    ^^^^^^^^^^^^^^\nModuleNotFoundError: No module named 'aiohttp'"
)
BUSY = (
    "2026-11-26 13:58:00,264\tINFO head.py:296 -- Loaded 9 subprocess modules: [<ray.dashboard.subprocesses.handle>].\n"
)


@pytest.mark.parametrize(
    ("words", "log", "said"),
    [
        (QUOTED + MISSING, "", "machine: ModuleNotFoundError: No module named 'aiohttp'; is it busy"),
        (QUOTED, MISSING, "machine: ModuleNotFoundError: No module named 'aiohttp'; is it busy"),
        (QUOTED + BUSY, "", "machine: no answer in time, and no error at the end of {}/dashboard.log; is it busy"),
        (QUOTED, "", "machine: {}/dashboard.log is empty; is it busy"),
        ("Cannot include dashboard with missing packages.", "", "with missing packages; is it busy"),
    ],
)
def test_when_ray_does_not_start_the_last_line_of_its_log_is_the_reason(
    words: str, log: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "dashboard.log").write_text(log)
    told = str(ray_cluster._explain_no_ray(None, Exception(words.format(tmp_path))))
    assert said.format(tmp_path) in told and len(told.splitlines()) == 1
    assert told.endswith("Try again, or leave out the dashboard with --no-dashboard or Ray with --on processes")


def test_help_names_the_exit_codes() -> None:
    done = subprocess.run([sys.executable, "-m", "farm.launch", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == OK
    for word in ("--dry-run", "--resume", "--results", "exit code", "incomplete"):
        assert word in done.stdout
