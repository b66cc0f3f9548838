"""What is missing says how to get it: the same words in the preflight, `farm doctor --list` and `farm doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from farm.__main__ import main
from farm.fleet import probe_answers
from farm.fleet.ask_backends import probe_backends
from farm.plan.config import read_config_backends
from tasks.backends import BackendSpec
from tasks.wire import Refused
from tests.conftest import here

NEEDY, NOTHING = "needy-cpu", "nothing-cpu"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `needy` needs; it is not there yet."""
    path = tmp_path / "tool"
    monkeypatch.setenv("NEEDY_TOOL", str(path))
    return path


def test_doctor_says_what_is_missing_and_the_command_that_installs_it(
    tool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", NEEDY, NOTHING, "torch-cuda", "inductor-cuda", "null-cpu"]) == 0
    said = capsys.readouterr().out
    assert "  missing    needy-cpu: no planted tool on this machine: " in said
    assert "  missing    nothing-cpu: Nothing.probe() returns a RuntimeInfo; it returned None" in said
    assert "  missing    torch-cuda, inductor-cuda: no NVIDIA device on this node" in said
    assert "1 of 5 backends can run here\n1 more after: " in said and said.rstrip().endswith(" planted-tool")
    tool.touch()
    assert main(["doctor", NEEDY, NOTHING, "null-cpu"]) == 0
    said = capsys.readouterr().out
    assert f"planted tool: {tool} (for needy-cpu)" in said
    assert f"  available  needy-cpu: needy 1, led to {tool}, emulated, on " in said and "more with" not in said


def test_what_doctor_says_to_build_is_built_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config's own names are known to nobody else."""
    config = tmp_path / "own.yaml"
    config.write_text(
        "catalogs: [{name: critical, ops: [relu]}]\ndtypes: [float32]\nbackends:\n  - {name: needy-older, like: needy-cpu, packages: [nothing==1]}\n"
        "  - {like: needy-cpu, packages: [nothing==2]}\n"
    )
    own = BackendSpec("needy-named", "needy", "cpu", packages=("nothing==3",))
    for what, said in (
        ([str(config)], [str(config)]),
        ([str(config), "needy-named"], [str(config), "needy-named"]),
        (["needy-named"], ["needy-named"]),
    ):
        specs = [
            *read_config_backends([x for x in what if x != "needy-named"], ""),
            *([own] if "needy-named" in what else []),
        ]
        monkeypatch.setattr("farm.commands.doctor.read_config_backends", lambda given, where, specs=specs: specs)
        assert main(["doctor", *what]) == 0
        *_, last = capsys.readouterr().out.strip().splitlines()
        command = last.partition(" envs build ")[2].split()
        assert "may run once" in last and command == said
    assert {x.packages for x in read_config_backends([str(config)], "")} == {("nothing==1",), ("nothing==2",)}


def test_doctor_names_a_backend_of_a_config_that_is_known_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config would build all that its other backends need, for devices that are not here."""
    monkeypatch.setenv("FARM_CACHE", str(tmp_path))
    config = tmp_path / "c.yaml"
    names = ["torch-rocm", "triton-sm_90", "triton-gfx942"]
    catalog = {"name": "critical", "ops": ["relu"]}
    config.write_text(yaml.safe_dump({"catalogs": [catalog], "checks": ["forward", "build"], "backends": names}))
    assert main(["doctor", str(config)]) == 0
    said = capsys.readouterr().out
    assert "  not built  triton-sm_90, triton-gfx942: " in said and said.rstrip().endswith(" envs build triton-sm_90")


def test_doctor_leaves_out_headings_without_a_line_and_says_what_no_command_brings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "ort-dnnl"]) == 0
    said = capsys.readouterr().out
    assert "system requirements" not in said and "\n\n\n" not in said
    assert "no wheel on PyPI has it: build onnxruntime with --use_dnnl" in said and "more with" not in said


def test_the_list_says_what_is_emulated_and_what_is_missing(tool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--list", NEEDY]) == 0
    assert "no planted tool on this machine: " in capsys.readouterr().out
    tool.touch()
    assert main(["doctor", "--list", NEEDY]) == 0
    said = "".join(capsys.readouterr().out.split())  # a long path is folded
    assert f"ledto{tool},emulated,on" in said


def test_the_list_is_no_wider_than_a_pipe_and_begins_each_backend_with_its_state(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["doctor", "--list", "--no-probe"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    (told,) = [line.split() for line in lines if line.startswith("torch-cpu ")]
    assert (told[1] == "Meta" and told[-1] == "not") or "not asked" in " ".join(told)


def test_the_preflight_ends_with_one_line_that_installs_the_rest(tool: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    catalog = {"name": "planted", "ops": ["none"], "dtypes": ["float32"]}
    config.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": [NEEDY, "planted-cpu"]}))
    done = here(config, "--on", "processes", "--dry-run", "--results", tmp_path / "results")
    assert done.returncode == 0, done.stderr
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("to enable ")]
    assert line.startswith("to enable needy-cpu: ") and line.endswith("install planted-tool")


def test_the_preflight_says_a_reason_once_with_those_it_is_said_of(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    modes = [{"name": f"mode-{n}", "like": "torch-cuda"} for n in (1, 2)]
    also = {"name": "flushing", "like": "torch-cpu", "options": {"flush_subnormals": True}}
    catalog = {"name": "critical", "ops": ["relu"], "dtypes": ["float32"]}

    def lines(*backends: object) -> list[list[str]]:
        config.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": list(backends)}))
        said = here(config, "--on", "processes", "--dry-run", "--results", tmp_path / "results").stdout
        return [x.partition("available")[0].split() for x in said.splitlines() if "available  " in x]

    own = ["torch-cpu,", "flushing"]
    assert lines(modes[0], "torch-cpu", modes[1], also) == [["mode-1,", "mode-2", "un"], own]
    # Devices of several vendors that are nowhere: one line, the last.
    assert lines(modes[0], "torch-cpu", modes[1], "torch-rocm", also) == [own, ["3", "backends", "un"]]


@pytest.mark.parametrize("change", ["variable", "runtime's variable", "need"])
def test_an_answer_counts_only_where_it_was_given(
    change: str, tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given with another LD_LIBRARY_PATH, or found what has gone since: asked again."""
    spec, cache = BackendSpec.parse(NEEDY), tmp_path / "cache"
    tool.touch()
    there = probe_backends([spec], cache, fresh=False)[NEEDY]
    assert probe_answers.read_probe_answer(spec, cache) == there
    monkeypatch.setenv("SHLVL", "7")  # decides nothing
    assert probe_answers.read_probe_answer(spec, cache) == there
    if change == "need":
        tool.unlink()
    else:
        monkeypatch.setenv("LD_LIBRARY_PATH" if change == "variable" else "NEEDY_PATH", str(tmp_path))
    assert probe_answers.read_probe_answer(spec, cache) is None
    assert isinstance(probe_backends([spec], cache, fresh=False)[NEEDY], Refused) == (change == "need")
