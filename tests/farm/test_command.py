"""The one command: every command behind it says what it does, in plain English, and ends with the documented codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from farm import exits, lake
from farm.__main__ import main
from farm.command_names import COMMANDS, DIVIDED, FORMER, LEAVES, PARTS
from farm.exits import BAD_INPUT, INCOMPLETE, OK
from farm.help import TOPICS
from tasks.model import UNASKED
from tasks.model.row import Row
from tests.conftest import PATIENCE_S
from tests.farm.test_resume import wait_for


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == OK
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) < 80
    assert len(COMMANDS) <= 17 and len(said.splitlines()) < 56
    for name, text in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", said, re.MULTILINE)
        for part, words in PARTS.get(name, {}).items():
            assert re.search(rf"^    {part} +{re.escape(words)}$", said, re.MULTILINE)


@pytest.mark.parametrize("topic", TOPICS)
def test_help_on_a_topic_fits_eighty_columns(
    topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["help", topic]) == OK
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) < 80
    assert all(re.search(rf"^  {re.escape(name)} ", said, re.MULTILINE) for name in TOPICS[topic][1]())


def test_help_on_what_has_none_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "unit"]) == BAD_INPUT
    assert "farm has no help on 'unit'; did you mean units" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--no-probe"], ["report", "--diff", "a", "b"]])
def test_a_reader_that_leaves_changes_no_exit_code(arguments: list[str], tmp_path: Path) -> None:
    """As `farm report | head` is read: what is left to say goes nowhere. Of a diff the code tells whether anything is
    worse."""
    rows = [
        {"op": "load:x", "dtype": "float32", "sample": 0, "status": s, "started_at": 1.0} for s in ("pass", "wrong")
    ]
    for name, row in zip("ab", rows, strict=True):
        lake.append_part(
            lake.open_lake(tmp_path / "results"),
            "r",
            [lake.make_row_batch([Row.of(row)], lake.Origin.of("r", name, UNASKED))],
        )
    ends, codes = os.pipe(), []
    os.close(ends[0])
    for out in (subprocess.DEVNULL, ends[1]):
        done = subprocess.run(
            [sys.executable, "-m", "farm", *arguments], stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        assert "error" not in done.stderr and "Traceback" not in done.stderr
        codes.append(done.returncode)
    assert codes == [int("--diff" in arguments)] * 2
    unknown = [sys.executable, "-m", "farm", "report", "--results", "none"]
    assert subprocess.run(unknown, stdout=ends[1], stderr=ends[1], cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_explains_itself_in_eighty_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == OK and max(map(len, said.splitlines())) <= 80
    assert said.startswith(f"usage: farm {name}")
    for word in (" anew", "go on with", " alone "):  # translated English
        assert word not in said


@pytest.mark.parametrize("name", LEAVES)
def test_an_unknown_option_is_bad_input(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--no-such-option"])
    assert ended.value.code == BAD_INPUT
    assert "usage: farm " in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(PARTS.keys() - DIVIDED))
def test_a_command_with_parts_beside_its_own_work_lists_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "-h"])
    said = capsys.readouterr().out
    assert all(f"  farm {name} {part} " in said for part in PARTS[name])


def test_a_lake_that_is_called_like_a_part_is_read_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    for line in (["report", "sites"], ["report", "./site"]):
        assert main(line) == BAD_INPUT and "no run" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(DIVIDED))
def test_a_command_of_several_parts_lists_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line, code in (([name, "-h"], OK), (["help", name], OK), ([name], BAD_INPUT)):
        assert main(line) == code
        said = "".join(capsys.readouterr())
        assert said.startswith(f"usage: farm {name} PART") and max(map(len, said.splitlines())) < 80
        assert all(re.search(rf"^  {part} ", said, re.MULTILINE) for part in PARTS[name])


@pytest.mark.parametrize(("name", "now"), FORMER.items())
def test_a_command_of_an_earlier_version_works_and_says_what_it_is_now(
    name: str, now: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "-h"])
    said = capsys.readouterr()
    assert ended.value.code == OK and said.out.startswith("usage: farm " + " ".join(w for w in now if w[0] != "-"))
    assert said.err == f"warning: farm {name} is farm {' '.join(now)} now\n"


def test_a_command_that_does_not_exist_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == BAD_INPUT
    assert "farm has no command 'rnu'; did you mean run?" in capsys.readouterr().err


@pytest.mark.parametrize(("door", "name"), [("launch", "run"), ("report", "report"), ("envs", "doctor envs")])
def test_a_module_is_a_door_to_its_command(door: str, name: str) -> None:
    done = subprocess.run([sys.executable, "-m", f"farm.{door}", "--help"], capture_output=True, text=True)
    assert done.returncode == OK and done.stdout.startswith(f"usage: farm {name}")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            KeyError("x"),
            r"error: the farm itself failed: KeyError: 'x' \(.*test_command\.py:\d+\); please report it .*",
        ),
        (OSError(28, "No space left on device"), r"error: \[Errno 28\] No space left on device"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_no_failure_of_the_farms_own_looks_like_wrong_numbers(
    raised: BaseException, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: object) -> int:
        raise raised

    monkeypatch.setattr("farm.commands.envs.main", fail)
    for entry in (lambda: main(["doctor", "envs", "list"]), lambda: exits.open_command_door("envs")(["list"])):
        assert entry() == INCOMPLETE
        assert re.fullmatch(said, capfd.readouterr().err.strip())


def test_a_report_that_cannot_be_written_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake.append_part(
        lake.open_lake(tmp_path),
        "r",
        [
            lake.make_row_batch(
                [Row.of({"op": "load:x", "dtype": "float32", "sample": 0, "status": "pass", "started_at": 1.0})],
                lake.Origin.of("r", "b", UNASKED),
            )
        ],
    )
    (tmp_path / "file").touch()
    assert main(["report", str(tmp_path), "--run", "all", "--out", str(tmp_path / "file" / "x")]) == BAD_INPUT
    assert re.search("error: cannot write: .*file.*; choose another place with --out", capsys.readouterr().err)


#: Runs the farm's command line, with a start that takes its time at a place of its own.
SLOW = """
import subprocess, sys, time
from farm import exits, lake
def start(argv):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(child.pid, flush=True)
    while True:
        try:
            WHERE
        except BaseException:
            pass
exits.import_module = lambda name: type("", (), {"main": staticmethod(start)})
sys.exit(exits.open_command_door("run")())
"""


@pytest.mark.parametrize(
    "where",
    [
        "time.sleep(1)",
        "import concurrent.futures as c\n            with c.ThreadPoolExecutor() as p: p.submit(time.sleep, 600)",
    ],
)
def test_ctrl_c_ends_the_start_and_all_that_it_started_even_where_an_exception_is_lost(where: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW.replace("WHERE", where)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (INCOMPLETE, "interrupted\n")
    wait_for(
        lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE,
        "the killed child",
    )


#: Starts child processes of the farm's, and a new one whenever one has died, as probes do.
RESTLESS = """
import os, pathlib, sys, threading, time
from farm import exits
from farm.fleet.child_process import ChildProcess, Limits
def start(argv):
    def again():
        while True:
            child = ChildProcess(sys.argv[1], Limits())
            os.write(1, f"{child.process.pid}\\n".encode())  # print would write number and newline apart
            child.process.wait()
    for _ in range(12):
        threading.Thread(target=again, daemon=True).start()
    time.sleep(600)
exits.import_module = lambda name: type("", (), {"main": staticmethod(start)})
sys.exit(exits.open_command_door("run")())
"""


def test_ctrl_c_leaves_no_process_that_was_started_meanwhile(tmp_path: Path) -> None:
    idle = tmp_path / "idle"
    idle.write_text("#!/bin/sh\nexec sleep 600\n")
    idle.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-c", RESTLESS, str(idle)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    assert process.stdout is not None
    first = "".join(process.stdout.readline() for _ in range(12))
    process.send_signal(signal.SIGINT)
    more, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (INCOMPLETE, "interrupted\n")
    started = [psutil.Process(pid) for pid in map(int, (first + more).split()) if psutil.pid_exists(pid)]
    _, left = psutil.wait_procs(started, timeout=5)
    for one in left:
        one.kill()
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("module", ["farm", "farm.launch"])
def test_ctrl_c_while_the_command_line_is_imported_shows_no_traceback(module: str, tmp_path: Path) -> None:
    (tmp_path / "traceback.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (-signal.SIGINT, "")
