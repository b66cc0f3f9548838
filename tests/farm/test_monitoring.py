"""What a run tells Ray's metrics, and the dashboard of it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.commands import monitor
from farm.exits import BAD_INPUT
from farm.work import monitoring
from farm.work.run_counts import BackendCount


class Metric:
    """Stands in for one of Ray's: values by tags."""

    made: dict[str, Metric] = {}

    def __init__(self, name: str, words: str, tags: tuple[str, ...]) -> None:
        self.tags, self.values = tags, dict[tuple[str, ...], float]()
        self.made[name] = self

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0
        self.set(self.values.get(tuple(tags.values()), 0.0) + value, tags)

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert tuple(tags) == self.tags
        self.values[tuple(tags.values())] = value


def test_a_driver_tells_totals_once_and_states_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for kind in ("Counter", "Gauge"):
        monkeypatch.setattr(f"ray.util.metrics.{kind}", Metric)
    monkeypatch.setattr(monitoring, "EXPORT_S", 0.0)
    counts = {"ort-cpu": BackendCount(planned=10, done=3, status={"pass": 2, "wrong": 1})}
    run_counts = SimpleNamespace(counts=counts, spent={"ort-cpu": {"starts": 2.0}}, supervisors_lost=1)
    flights = {1: SimpleNamespace(begun=True), 2: SimpleNamespace(begun=False)}
    plan = SimpleNamespace(executor=SimpleNamespace(slots=lambda offer, claim: 4))
    run: Any = SimpleNamespace(run_counts=run_counts, flights=flights, plan=plan)
    monkeypatch.setattr(monitoring, "estimate_run_left", lambda run: (7.0, "about"))
    watch = monitoring.MetricsWatch("r")
    watch(run)
    counts["ort-cpu"].status = {"pass": 5, "wrong": 0}  # one was run again elsewhere
    watch(run)
    told = {name: metric.values for name, metric in Metric.made.items()}
    assert told["farm_outcomes"] == {("r", "ort-cpu", "pass"): 5, ("r", "ort-cpu", "wrong"): 1}
    assert told["farm_starts"] == {("r", "ort-cpu"): 2} and told["farm_lost"] == {("r",): 1}
    assert told["farm_slots"] == {("r", "there"): 4, ("r", "busy"): 1}
    counts["ort-cpu"].status = {"pass": 6}
    monkeypatch.setattr(monitoring, "EXPORT_S", 60.0)
    waited: list[float] = []
    monkeypatch.setattr(monitoring.time, "sleep", waited.append)
    watch.close(run, tmp_path)  # the last rows are told, however soon they come
    assert Metric.made["farm_outcomes"].values["r", "ort-cpu", "pass"] == 6 and not waited
    with monitoring.mark_as_watching(tmp_path):
        watch.close(run, tmp_path)
    assert waited == [monitoring.REPORT_S + 2 * monitoring.SCRAPE_S]
    watch.close(run, tmp_path)
    assert len(waited) == 1, "nobody watches any more"
    assert told["farm_cases"] == {("r", "ort-cpu"): 10} and told["farm_left_seconds"] == {("r",): 7.0}


def test_every_panel_asks_for_metrics_that_a_driver_tells(tmp_path: Path) -> None:
    (folder,) = monitoring.write_grafana_dashboard(tmp_path, {}).values()
    shown = json.loads((Path(folder) / "farm.json").read_text())
    asked = {
        name for p in shown["panels"] for t in p["targets"] for name in re.findall(r"ray_(farm_[a-z_]+)", t["expr"])
    }
    told = {f"{name}_total" if kind == "counter" else name for name, (kind, *_) in monitoring.DRIVER.items()}
    assert asked == told
    assert (
        monitoring.write_grafana_dashboard(tmp_path, {monitoring.FOLDER_VARIABLE: str(tmp_path / "own")})
        .popitem()[1]
        .endswith("own")
    )
    (tmp_path / "file").touch()
    assert monitoring.write_grafana_dashboard(tmp_path / "file", {}) == {}  # a run does without


def test_without_prometheus_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitor.shutil, "which", lambda name: None)
    assert monitor.main([]) == BAD_INPUT
    said = capsys.readouterr().err
    assert "prometheus is not installed: apt-get install prometheus" in said and said.count("\n") == 1


@pytest.mark.parametrize(("dead", "option"), [("prometheus", "--port"), ("grafana", "--grafana-port")])
def test_whichever_of_both_ends_by_itself_is_named_and_the_other_is_ended(
    dead: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("prometheus", "grafana"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n" + ("exit 7" if name == dead else f"echo $$ > {tmp_path}/alive; exec sleep 60"))
        program.chmod(0o755)
    (tmp_path / "ray/session_latest/metrics/grafana").mkdir(parents=True)
    (tmp_path / "ray/session_latest/metrics/grafana/grafana.ini").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    assert monitor.main([]) == BAD_INPUT
    said = capsys.readouterr().err
    assert f"{dead} exited (exit code 7)" in said and option in said and said.count("\n") == 1
    alive = tmp_path / "alive"
    assert not alive.exists() or not Path(f"/proc/{alive.read_text().strip()}").exists()
