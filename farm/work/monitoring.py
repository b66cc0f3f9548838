"""Metrics of a run for Ray's endpoint, to watch it with (a scrape can miss counts: the lake accounts), and the dashboard of them."""

from __future__ import annotations

import fcntl
import functools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from farm.work.claims import ONE
from farm.work.work_left import estimate_run_left
from tasks.backends import BackendSpec
from tasks.wire import Rows

if TYPE_CHECKING:
    from farm.work.run_state import RunState

#: Seconds between two exports of a driver's figures, two times that a Ray of the farm's own hands them on (ten by
#: itself), and two scrapes of `farm node monitor`.
EXPORT_S = REPORT_S = SCRAPE_S = 2.0
#: Variable by which Ray is told so, in milliseconds.
REPORT_VARIABLE = "RAY_metrics_report_interval_ms"
#: Where Ray is to put its dashboards for Grafana, and finds the farm's: the folder of its session is wiped when it
#: starts.
FOLDER_VARIABLE = "RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR"
#: What a driver tells: name → (kind, words, tags). Exported by Ray as ray_NAME, counters as ray_NAME_total.
DRIVER = {
    "farm_outcomes": ("counter", "Outcomes by backend and status", ("run", "backend", "status")),
    "farm_starts": ("counter", "Processes started to run or prepare cases", ("run", "backend")),
    "farm_lost": ("gauge", "Supervisors that were lost", ("run",)),
    "farm_cases": ("gauge", "Cases of the run, as far as they are known", ("run", "backend")),
    "farm_slots": ("gauge", "Slots that are there, and jobs that hold one", ("run", "state")),
    "farm_left_seconds": ("gauge", "Seconds that the run is likely to need still", ("run",)),
}
#: Panels of the dashboard: title, expression, legend, unit of Grafana's.
PANELS = (
    ("Cases per second", "sum by (backend) (rate(ray_farm_outcomes_total[1m]))", "{{backend}}", "cps"),
    ("Statuses by backend", "sum by (backend, status) (ray_farm_outcomes_total)", "{{backend}} {{status}}", "short"),
    ("Slots busy", "sum by (state) (ray_farm_slots)", "{{state}}", "short"),
    ("Processes started", "sum by (backend) (ray_farm_starts_total)", "{{backend}}", "short"),
    ("Supervisors lost", "sum by (run) (ray_farm_lost)", "{{run}}", "short"),
    ("Time left", "max by (run) (ray_farm_left_seconds)", "{{run}}", "s"),
    ("Cases done", "sum by (run) (ray_farm_outcomes_total) / sum by (run) (ray_farm_cases)", "{{run}}", "percentunit"),
)


class MetricsWatch:
    """Tells Ray what a driver knows of its run."""

    def __init__(self, run_id: str) -> None:
        from ray.util import metrics

        kinds = {"counter": metrics.Counter, "gauge": metrics.Gauge}
        self._made = {name: kinds[kind](name, words, tags) for name, (kind, words, tags) in DRIVER.items()}
        self._run, self._at = run_id, float("-inf")
        self._told: dict[tuple[str, ...], float] = {}

    def __call__(self, run: RunState) -> None:
        if time.monotonic() - self._at < EXPORT_S:
            return
        self._at = time.monotonic()
        for name, count in run.run_counts.counts.items():
            for status, number in count.status.items():
                self._add(number, "farm_outcomes", backend=name, status=status)
            self._set(max(count.planned, count.done), "farm_cases", backend=name)
        for name, spent in run.run_counts.spent.items():
            self._add(spent.get("starts", 0.0), "farm_starts", backend=name)
        self._set(run.run_counts.supervisors_lost, "farm_lost")
        self._set(run.plan.executor.slots(None, ONE), "farm_slots", state="there")
        self._set(sum(flight.begun for flight in run.flights.values()), "farm_slots", state="busy")
        self._set(estimate_run_left(run)[0], "farm_left_seconds")

    def close(self, run: RunState, cache: Path) -> None:
        """Tell the last figures, and wait for `farm node monitor`, if it runs, to see them: a Ray of the farm's own
        ends with the run."""
        self._at = float("-inf")
        self(run)
        if is_run_watched(cache):
            time.sleep(REPORT_S + 2 * SCRAPE_S)

    def _add(self, total: float, name: str, **tags: str) -> None:
        """Bring a counter to a total; a total that falls (a row that another replaced) leaves it as it is."""
        key = (name, *tags.values())
        if (more := total - self._told.get(key, 0.0)) > 0:
            self._told[key] = total
            self._made[name].inc(more, {"run": self._run, **tags})

    def _set(self, value: float, name: str, **tags: str) -> None:
        self._made[name].set(value, {"run": self._run, **tags})


@functools.cache
def _make_time_metrics() -> tuple[Any, Any]:
    from ray.util.metrics import Histogram

    bounds = [1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 60000]
    return (
        Histogram("farm_build_ms", "Time to build or compile a case, in ms", bounds, ("backend",)),
        Histogram("farm_run_ms", "Time to run a case, in ms", bounds, ("backend",)),
    )


def observe_case_times(backend: BackendSpec | None, rows: Rows) -> None:
    """Tell Ray, in a supervisor, what the cases of a message took: ray_farm_build_ms, ray_farm_run_ms."""
    name = backend.name if backend else ""
    # One observation a chunk, its mean: thousands of calls a second would cost more than the cells.
    for k, histogram in enumerate(_make_time_metrics()):
        histogram.observe(max(rows.spent_ms[k] / len(rows.numbers), 1e-3), {"backend": name})


def mark_as_watching(cache: Path) -> IO[str]:
    """Say that this process watches runs, for as long as the file is open. Raises OSError."""
    folder = cache / "prometheus"
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "watching").open("w")
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def is_run_watched(cache: Path) -> bool:
    """Whether some process of this machine does so."""
    try:
        with (cache / "prometheus" / "watching").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def make_grafana_dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it, over the data source that Ray provisions."""
    panels = [
        {
            "id": n + 1,
            "title": title,
            "type": "timeseries",
            "gridPos": {"h": 8, "w": 12, "x": 12 * (n % 2), "y": 8 * (n // 2)},
            "datasource": "${datasource}",
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [{"expr": expression, "legendFormat": legend, "refId": "A"}],
        }
        for n, (title, expression, legend, unit) in enumerate(PANELS)
    ]
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    return {
        "uid": "farm",
        "title": "Validation farm",
        "tags": ["farm"],
        "schemaVersion": 36,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


def write_grafana_dashboard(cache: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The variable that has Ray's Grafana show the farm's dashboard, which is written to where it looks; none if the
    folder cannot be written to."""
    folder = Path(variables.get(FOLDER_VARIABLE) or cache / "grafana")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "farm.json").write_text(json.dumps(make_grafana_dashboard(), indent=1))
    except OSError:
        return {}
    return {FOLDER_VARIABLE: str(folder)}
