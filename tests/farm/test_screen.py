"""`farm node screen` and `farm node detect --probe` over stand-in devices: placement, rows, exit codes, resuming, bad input."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm import lake
from farm.exits import open_command_door
from farm.fleet.child_process import Limits
from farm.screening import run as screening
from farm.work.each_device import run_on_each
from farm.work.executor import Executor
from farm.work.job import Job
from tasks import wire
from tasks.screen.exercises import CORE, list_screen_exercises
from tasks.wire import Place

EXERCISES = len(list(list_screen_exercises(CORE)))
#: Device 2 of the machine: a lane of its float16 matrix unit has a bit stuck.
SICK = {"2": {"unit": "matrix", "dtype": "float16", "where": "lane", "place": 5, "bit": 9, "how": "1"}}

screen, node, report, gate, reproduce = map(open_command_door, ("screen", "node", "report", "gate", "reproduce"))


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("FARM_VENDORS", "nvidia=4")
    return monkeypatch


def only_run(results: Path) -> str:
    (run_id,) = lake.run_ids(results)
    return run_id


def test_the_one_sick_device_is_named_with_evidence(
    four: pytest.MonkeyPatch, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    four.setenv("FARM_FAULTS", json.dumps(SICK))
    assert screen(["screened-nvidia", "--seconds", "1", "--results", str(results)]) == 1
    said = capsys.readouterr().out
    assert "1 of 4 devices wrong" in said and "-2 for screened-nvidia" in said and "bits 0x200 flipped" in said
    run_id = only_run(results)
    rows = lake.read(results, run_id)
    assert len(rows) == 4 * EXERCISES and set(rows["device_ids"]) == {"0", "1", "2", "3"}
    wrong = rows[rows["status"] == "wrong"]
    assert (
        set(wrong["device_ids"]) == {"2"} and set(wrong["dtype"]) == {"float16"} and "screen:matmul" in set(wrong["op"])
    )
    steps = lake.read_trace(results, run_id)
    assert len(steps) and set(steps["case_id"]) <= set(wrong["case_id"]) and set(steps["status"]) == {"wrong"}
    (record,) = lake.read_run(results, run_id)["quarantined"]
    assert (
        record["device"] == "2" and record["evidence"][0]["bits"] == "200" and record["evidence"][0]["unit"] == "matrix"
    )
    report([str(results)])
    assert "QUARANTINED: device 2" in capsys.readouterr().out
    assert gate(["--results", str(results)]) == 1
    capsys.readouterr()
    key = f"{run_id}:{wrong['case_id'].iloc[0]}:screened-nvidia"
    assert reproduce([key, "--results", str(results)]) == 2
    assert "screen it again with farm node screen screened-nvidia" in capsys.readouterr().err


def test_sound_devices_are_right(four: pytest.MonkeyPatch, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert screen(["screened-nvidia", "--seconds", "1", "--results", str(results)]) == 0
    assert set(lake.read(results, only_run(results))["status"]) == {"pass"}
    assert "no device of 4 is wrong" in capsys.readouterr().out
    assert not len(lake.read_trace(results, only_run(results)))


def test_an_exercise_that_kills_its_process_is_a_crash_and_the_others_are_judged(
    monkeypatch: pytest.MonkeyPatch, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_VENDORS", "nvidia=1")
    monkeypatch.setenv("FARM_FAULTS", json.dumps({"0": {"unit": "special", "dtype": "float32", "how": "crash"}}))
    assert screen(["screened-nvidia", "--seconds", "1", "--results", str(results)]) == 1
    rows = lake.read(results, only_run(results)).set_index("op")["status"]
    assert set(rows[["screen:power", "screen:divide"]]) == {"crash"}
    assert set(rows.drop(["screen:power", "screen:divide"])) == {"pass"} and len(rows) == EXERCISES


def test_nodes_that_share_a_name_are_told_apart() -> None:
    nodes = [{"id": f"{n}aaaabbbbcccc", "host": "h" if n < 2 else "own"} for n in range(3)]
    assert list(screening.name_screened_hosts(nodes).values()) == ["h.0aaaabbb", "h.1aaaabbb", "own"]


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["ray", "inline"])
def test_on_other_executors(how: str, four: pytest.MonkeyPatch, results: Path) -> None:
    four.setenv("FARM_FAULTS", json.dumps(SICK | {"0": SICK["2"]}))
    assert screen(["screened-nvidia", "--seconds", "1", "--on", how, "--results", str(results)]) == 1
    rows = lake.read(results, only_run(results))
    sick = {"0", "2"} if how == "ray" else {"0"}  # in this process there is the first device alone
    assert set(rows.loc[rows["status"] == "wrong", "device_ids"].replace("", "0")) == sick


def test_a_run_that_was_ended_goes_on_where_it_was(
    four: pytest.MonkeyPatch, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, write = [True], screening.Screening._write

    def end_after_first(self: Any, offer: Any, devices: Any) -> None:
        write(self, offer, devices)
        if once.pop():
            raise KeyboardInterrupt

    four.setattr(screening.Screening, "_write", end_after_first)
    backends = ["screened-nvidia", "torch-cpu"]
    assert screen([*backends, "--seconds", "1", "--results", str(results)]) == 3
    before = lake.read(results, only_run(results))
    assert set(before["backend"]) == {"screened-nvidia"}
    four.setattr(screening.Screening, "_write", write)
    assert screen(["--resume", "last", "--seconds", "1", "--results", str(results)]) == 0
    after = lake.read(results, only_run(results))
    assert set(after["backend"]) == set(backends) and not after.duplicated(lake.KEY).any()
    assert set(after.loc[after["backend"] == "screened-nvidia", "started_at"]) == set(before["started_at"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torch-cpu --seconds 0", "--seconds: 0 is no time"),
        ("torch-cpu --seconds 0.0001", "--seconds 0.0001: one pass takes"),
        ("torchh-cpu", "did you mean"),
        ("torch-cuda", "there is nothing to screen: torch-cuda"),
        ("", "the cores of a CPU are screened by name: farm node screen torch-cpu"),
        ("torch-cpu --on nowhere", "--on: no executor 'nowhere'"),
        ("torch-cpu --seed -1", "--seed: 0 or more"),
    ],
)
def test_bad_input_is_a_line(
    line: str, says: str, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_VENDORS", "")
    try:
        code = screen([*line.split(), "--results", str(results)])
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    said = capsys.readouterr().err
    assert code == 2 and says in said, said
    assert not lake.run_ids(results) if results.exists() else True


def test_one_device_alone_is_said_to_have_no_equals(
    monkeypatch: pytest.MonkeyPatch, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_VENDORS", "nvidia=1")
    assert screen(["screened-nvidia", "--seconds", "1", "--results", str(results)]) == 0
    assert "no equal device, no majority: by exact answers and bounds only" in capsys.readouterr().out


# --- how devices compute --------------------------------------------------------------------------------------------


def test_a_device_that_computes_otherwise_than_its_equals_is_named(
    four: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = {"1": {"unit": "matrix", "dtype": "float16", "how": "narrow"}}
    four.setenv("FARM_FAULTS", json.dumps(narrow))
    assert node(["detect", "--probe", "--backends", "screened-nvidia"]) == 1
    said = capsys.readouterr().out
    assert said.count("differs from its equals") == 1 and "-1 (screened-nvidia): known product float16: 23 bits" in said
    four.setenv("FARM_FAULTS", "{}")
    assert node(["detect", "--probe", "--backends", "screened-nvidia", "torch-cpu"]) == 0
    assert "torch-cpu" in capsys.readouterr().out


# --- placement ------------------------------------------------------------------------------------------------------


class OneAtATime(Executor):
    """A node of which one device is free at a time, and the first one whenever it may be: as a busy cluster hands them
    out."""

    def __init__(self, devices: int) -> None:
        self.nodes = [{"id": "n", "host": "n", "resources": {"GPU": devices}, "labels": {}}]
        self.waiting, self.came = deque[tuple[int, Job]](), deque[tuple[int, Any]]()
        self.held = dict[int, str]()
        self.ran, self.devices, self.next = list[str](), [str(n) for n in range(devices)], 0

    def slots(self, offer: Any, claim: Any) -> int:
        return len(self.devices)

    def submit(self, job: Job, offer: Any, claim: Any, among: Sequence[str] = ()) -> int:
        self.next += 1
        self.waiting.append((self.next, job))
        return self.next

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        free = [d for d in self.devices if d not in self.held.values()]
        if self.waiting and free:
            handle, job = self.waiting.popleft()
            place = Place("n", free[0])
            if place in job.avoid:
                self.held[handle] = free[0]
                yield handle, wire.Avoided(place)
                return
            yield handle, wire.Begun(place)
            if handle in self.cancelled:
                return
            self.ran.append(free[0])
            yield handle, wire.Probed({"on": free[0]})
            yield handle, None

    cancelled: set[int] = set()

    def cancel(self, handle: int) -> None:
        self.cancelled = {*self.cancelled, handle}
        self.held.pop(handle, None)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("done", [(), (Place("n", "1"),)])
def test_each_device_has_its_job_though_the_same_one_is_handed_out_again(done: tuple[Place, ...]) -> None:
    executor = OneAtATime(4)
    offer: Any = SimpleNamespace(resource="GPU", devices={"n": 4})
    job = Job(name="x", cache="", limits=Limits(), screen=wire.Screen(0.0, probe=True))
    told = list(run_on_each(executor, offer, lambda number: job, 0.0, done))
    ended = [place.device for place, message in told if message is None]
    assert sorted(ended) == sorted(executor.ran) == [d for d in "0123" if Place("n", d) not in done]
    assert not executor.held


def test_a_device_that_is_never_free_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.work.each_device.PATIENCE_S", 0.2)
    executor = OneAtATime(2)
    executor.held[99] = "1"  # somebody else's
    offer: Any = SimpleNamespace(resource="GPU", devices={"n": 2})
    job = Job(name="x", cache="", limits=Limits(), screen=wire.Screen(0.0, probe=True))
    told = list(run_on_each(executor, offer, lambda number: job, 0.0))
    assert [type(message) for _, message in told] == [wire.Probed, type(None), TimeoutError]
