"""Where jobs go and what becomes of them on a simulated cluster: placement, sickness, nodes that come and go."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from farm import lake
from farm.fleet import inventory
from farm.fleet.child_process import ChildDeath, Limits
from farm.fleet.health import DeviceHealth, Place
from farm.plan import matrix
from farm.plan.config import BackendConfig, CatalogConfig, Config
from farm.plan.config_schema import Skip
from farm.plan.request import RunRequest
from farm.work.dispatcher import Dispatcher, count_silent_deadlines
from farm.work.earlier_runs import LearnedFromRuns
from farm.work.job import Job
from farm.work.local import DirectChildren
from farm.work.lost_work import NOT_BEGUN
from farm.work.run_groups import WHOLE, RunGroups
from farm.work.run_state import RunState
from farm.work.second_opinions import SecondOpinions
from farm.work.state import BudgetOrder, JobFlight, RunPlan
from farm.work.supervisor import STRIKES
from tasks import catalogs, wire
from tasks.backends.base import FRACTION
from tasks.judge import policy_files
from tasks.model import BackendInfo, Group, RuntimeInfo
from tasks.training.trajectory import STEPS
from tests.farm.simulated import Simulated, node

OPS, SAMPLES = 10, 30
#: Looks of the dispatcher until backends that are awaited answer.
LATE = 12
TOTAL = OPS * SAMPLES

Run = Callable[..., tuple[RunState, Simulated, pd.DataFrame]]


@pytest.fixture
def run(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run backends on simulated nodes; (the dispatcher after its end, the cluster, the rows)."""
    monkeypatch.setenv("FARM_LOAD_OPS", str(OPS))
    monkeypatch.setattr("farm.work.batching.BATCH_S", 0.2)  # of cases that say that they took 10 ms: batches of 20
    monkeypatch.setattr("farm.work.batching.BATCH_MIN_S", 0.2)
    monkeypatch.setattr("farm.work.batching.START_SHARE", 0.0)
    monkeypatch.setattr("farm.work.fleet_changes.REST_S", (0.05, 0.1))

    def do(
        backends: list[dict[str, Any]], cluster: Simulated, without: dict[str, list[str]] | None = None, **more: Any
    ) -> Any:
        models = more.pop("models", {})
        config = Config(
            catalogs=[CatalogConfig(name="load", dtypes=["float32"], samples=SAMPLES)],
            backends=[BackendConfig(**b) for b in backends],
            node_wait_s=more.pop("node_wait_s", 0.3),
            skip=more.pop("skip", []),
        )
        specs = [b.spec() for b in config.backends]
        answers = {
            n["id"]: {
                s.name: BackendInfo(RuntimeInfo("", models.get(n["id"], "d")), start_s=cluster.start_s)
                for s in specs
                if s.name not in (without or {}).get(n["id"], [])
            }
            for n in cluster.nodes
        }
        awaited = more.pop("awaited", {})  # by name: what a backend answers at last
        offers = inventory.join_node_offers(specs, cluster.nodes, answers, {b.name: b.labels for b in config.backends})
        for name in awaited:
            offers[name] = replace(offers[name], available=False, resources={}, nodes=[], node_ids=[], awaited=True)
            offers[name].joint = name in more.get("joint", ())
        looks = itertools.count()

        def late() -> list[inventory.BackendOffer]:
            if next(looks) != more.get("late", LATE):
                return []
            asked = [s for s in specs if s.name in awaited]
            new = inventory.join_node_offers(asked, cluster.nodes, {n["id"]: awaited for n in cluster.nodes}).values()
            return [replace(offer, joint=offers[offer.name].joint) for offer in new]

        lakes = lake.open_lake(tmp_path / "results")
        plan = matrix.build_matrix(config, {"load": catalogs.get_catalog("load").entries()})
        request = RunRequest(config, policy_files.load_policy("error_units"), lakes, cache)
        joint = [offers[s.name].joint for s in specs]
        order = BudgetOrder(np.full(plan.wanted.shape, 2, np.int8), np.where(joint, plan.wanted, 1))
        load = 3.0 * (os.cpu_count() or 1)
        with mock.patch("os.getloadavg", lambda: (load, load, load)):
            made = RunState(
                RunPlan(request, plan, cluster, offers, "r", late, order=order if more.get("ranked") else None)
            )
        assert made.slower == 2.5, "half of what waits for a processor counts"
        Dispatcher(made).run()
        assert not list(made.missing())
        rows = lake.read(tmp_path / "results", "r")
        assert rows["case_id"].groupby(rows["backend"]).nunique().eq(more.get("total", TOTAL)).all()
        assert all(made.run_counts.counts[name].done == len(of) for name, of in rows.groupby("backend"))
        assert all(
            {k: v for k, v in made.run_counts.counts[name].status.items() if v} == of["status"].value_counts().to_dict()
            for name, of in rows.groupby("backend")
        )
        return made, cluster, rows

    return do


class Killed(DirectChildren):
    """Somebody kills the first so many children that are to prepare, before they begin."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def get(self, job: Job) -> Any:
        if not job.prepare or not self.times:
            return super().get(job)
        self.times -= 1
        return ChildDeath("crash", "SIGKILL", "the process died of SIGKILL at stage idle", -1, "idle", 1, 0)


def test_preparers_that_are_killed_before_they_begin_cost_no_case_its_row(run: Run) -> None:
    cluster = Simulated([node("cpu", CPU=2)])
    cluster.children = Killed(STRIKES * (NOT_BEGUN - 1))
    _, _, rows = run([{"name": "null-cpu"}], cluster)
    assert set(rows["status"]) == {"pass"} and cluster.children.times == 0


def test_a_run_whose_preparers_are_all_killed_stops_and_blames_no_case(run: Run) -> None:
    cluster = Simulated([node("cpu", CPU=2)])
    cluster.children = Killed(10**6)
    with pytest.raises(OSError, match="no process lives long enough to prepare cases .*SIGKILL.*is memory short"):
        run([{"name": "null-cpu"}], cluster)


GPU = {"name": "gpu-nvidia"}
NVIDIA = {"vendor": "nvidia"}


def test_the_first_numbers_wait_for_a_few_groups_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.work.job_source.PREPARE_FIRST", 2)
    given: set[str] = set()
    prepared: list[int] = []  # groups that were prepared whenever a batch was under way

    def look(cluster: Simulated) -> None:
        jobs = [job for job, _, _ in cluster.jobs.values()]
        waiting = {item.group.op for job in jobs for item in job.prepare}
        given.update(waiting)
        prepared.extend(len(given - waiting) for job in jobs if job.run)

    run([{"name": "null-cpu"}], Simulated([node("cpu", CPU=2)], after=look))
    assert prepared[0] == 2  # of ten: those of the first preparing job


def test_within_a_budget_the_first_case_of_each_cell_is_run_before_any_second(run: Run) -> None:
    order: list[tuple[str, str, int]] = []
    seen: set[int] = set()

    def look(cluster: Simulated) -> None:
        for handle, (job, backend, _) in cluster.jobs.items():
            if handle not in seen:
                seen.add(handle)
                order.extend((backend, item.group.op, p) for item in job.run for p in item.positions)

    backends = [{"name": "null-cpu"}, {"name": "other", "like": "null-cpu"}]
    run(backends, Simulated([node("cpu", CPU=2)], after=look), ranked=True)
    assert len(order) == 2 * TOTAL
    second = next(k for k, (_, _, position) in enumerate(order) if position)
    assert len({(backend, op) for backend, op, _ in order[:second]}) >= 2 * OPS - 4, "what the first jobs were made of"


def test_a_preparing_job_is_as_long_as_what_groups_take_before_all_of_them_have_come(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _, _ = run([{"name": "null-cpu"}], Simulated([node("cpu", CPU=2)]))
    run_groups, clock = RunGroups(done.plan, [True], {}), SimpleNamespace(s=0.0)
    monkeypatch.setattr("farm.work.run_groups.time", SimpleNamespace(monotonic=lambda: clock.s))
    assert len(run_groups.take("prepare", 1)) == 10  # all: nobody has prepared any

    def came(seconds: float, number: int, flight: JobFlight) -> None:
        clock.s = seconds
        flight.done.add(number)
        run_groups.learn_group_time(flight)

    run_groups.queues["prepare"].extend(range(10))
    slow = JobFlight(SimpleNamespace(kind="prepare"), groups=list(range(10)))  # type: ignore[arg-type]
    came(5.0, 0, slow)
    came(5.001, 1, slow)
    came(25.0, 2, slow)  # ten seconds each: the next job has one, though this one has not ended
    assert len(run_groups.take("prepare", 1)) == 1
    came(25.1, 0, JobFlight(SimpleNamespace(kind="prepare"), groups=[9], began=25.0))  # type: ignore[arg-type]
    assert len(run_groups.take("prepare", 1)) == 9  # one that took a tenth of a second tells as well


def test_jobs_get_smaller_towards_the_end_so_that_all_slots_end_together(run: Run) -> None:
    done, _, _ = run([{"name": "null-cpu"}], Simulated([node("cpu", CPU=2)]))
    run_groups = RunGroups(done.plan, [True], {})
    run_groups.queues["prepare"] = deque(range(1000))
    run_groups.group_ms["prepare"] = 1.0  # 4000 would fit one job
    sizes, free, took_ms = [], [0.0] * 16, [100.0 if g >= 900 else 1.0 for g in range(1000)]  # the last ones are slow
    while run_groups.queues["prepare"]:
        groups = run_groups.take("prepare", 16)
        sizes.append(len(groups))
        first = free.index(min(free))
        free[first] += sum(took_ms[g] for g in groups)
    assert sizes[0] == 32 and sizes == sorted(sizes, reverse=True) and sizes[-1] == 1
    assert max(free) < 1.2 * sum(took_ms) / 16


def test_what_is_prepared_before_another_process_has_started_is_one_job(run: Run) -> None:
    done, _, _ = run([{"name": "null-cpu"}], Simulated([node("cpu", CPU=2)]))
    nothing = LearnedFromRuns.nothing(done.plan.matrix.wanted.shape)
    for each_ms, size in ((10.0, 10), (100.0, 3), (float("nan"), 3)):
        learned = replace(nothing, prepare_ms=nothing.prepare_ms.copy())
        learned.prepare_ms[:] = each_ms
        run_groups = RunGroups(replace(done.plan, learned=learned), [True], {})
        assert len(run_groups.take("prepare", 2)) == size


HERE = BackendInfo(RuntimeInfo("", "d"), resource="CPU")


@pytest.mark.parametrize("joint", [(), ("busy-cpu", "missing")])
def test_what_is_awaited_joins_late_or_has_no_part(run: Run, joint: tuple[str, ...]) -> None:
    backends: list[dict[str, Any]] = [
        {"name": "null-cpu"},
        {"name": "busy-cpu"},
        {"name": "missing", "like": "null-cpu"},
    ]
    awaited = {"busy-cpu": HERE, "missing": wire.Refused("planted: not here")}
    done, cluster, rows = run(backends, Simulated([node("cpu", CPU=2)]), awaited=awaited, joint=joint)
    assert rows["backend"].value_counts().to_dict() == {"null-cpu": TOTAL, "busy-cpu": TOTAL}
    order = [backend for backend, *_ in cluster.log]
    assert order[0] == "null-cpu" and "missing" not in order
    assert {name: c.planned for name, c in done.run_counts.counts.items()} == dict.fromkeys(order, TOTAL) | {
        "missing": 0
    }
    assert [(offer.name, offer.available) for offer in done.come] == [("busy-cpu", True), ("missing", False)]
    assert done.plan.offers["missing"].reason == "planted: not here"


def test_what_only_an_awaited_backend_needs_is_not_prepared_if_it_is_not_there(run: Run) -> None:
    """The one that is there wants fewer ops."""
    skip = Skip(ops=[f"load:op{i:06d}" for i in range(1, OPS)], backends=["null-cpu"], reason="planted")
    prepared: set[str] = set()

    def look(cluster: Simulated) -> None:
        prepared.update(item.group.op for job, *_ in cluster.jobs.values() for item in job.prepare)

    awaited = {"missing": wire.Refused("planted: not here")}
    cluster = Simulated([node("cpu", CPU=1)], after=look)
    backends = [{"name": "null-cpu"}, {"name": "missing", "like": "null-cpu"}]
    done, _, rows = run(backends, cluster, awaited=awaited, skip=[skip], late=0, total=SAMPLES)
    assert len(rows) == SAMPLES and len(prepared) < OPS and not any(done.run_groups.left.values())


def where(rows: pd.DataFrame, backend: str) -> set[str]:
    return set(rows[rows["backend"] == backend]["node"])


def test_vendor_resource_and_labels_decide_where_a_cell_goes(run: Run) -> None:
    nodes = [
        node("cpu", CPU=2),
        node("big", {"vendor": "nvidia", "device-model": "H200"}, GPU=2),
        node("small", {"vendor": "nvidia", "device-model": "A10"}, GPU=1),
        node("amd", {"vendor": "amd"}, GPU=1),
        node(
            "both",
            {"vendor": "nvidia", "farm.io/nvidia": "1", "farm.io/intel": "1", "device-model": "A10"},
            GPU=1,
            **{"intel-GPU": 1},
        ),
        node("npu", {"vendor": "huawei"}, NPU=4),
        node("intel", {"vendor": "intel"}, GPU=1),
    ]
    backends = [
        GPU,
        {"name": "gpu-amd"},
        {"name": "gpu-intel"},
        {"name": "npu-huawei"},
        {"name": "null-cpu"},
        {"name": "h", "like": "gpu-nvidia", "labels": {"device-model": "H*"}},
    ]
    _, _, rows = run(backends, Simulated(nodes))
    assert where(rows, "gpu-nvidia") == {"big", "small", "both"}
    assert where(rows, "gpu-intel") == {"both", "intel"}
    assert (where(rows, "gpu-amd"), where(rows, "npu-huawei"), where(rows, "null-cpu"), where(rows, "h")) == (
        {"amd"},
        {"npu"},
        {"cpu"},
        {"big"},
    )
    assert set(rows["status"]) == {"pass"}


@pytest.mark.parametrize("devices", [1, 3])
def test_a_device_that_fails_what_others_pass_is_quarantined(run: Run, devices: int) -> None:
    nodes = [node("cpu", CPU=1), node("well", NVIDIA, GPU=2), node("sick", NVIDIA, GPU=devices)]

    def status(backend: str, op: str, sample: int, on: str, device: str) -> str:
        # Every tenth case really fails, on every device.
        return "crash" if (on, device) == ("sick", "0") else "wrong" if sample % 10 == 3 else "pass"

    done, cluster, rows = run([GPU, {"name": "other", "like": "gpu-nvidia"}], Simulated(nodes, status))
    assert Counter(rows["status"]) == {"pass": 2 * TOTAL * 9 // 10, "wrong": 2 * TOTAL // 10}
    (record,) = done.health.records
    assert (record["scope"], record["node"], record["device"]) == ("nvidia", "sick", "0")
    assert record["backends"] == ["gpu-nvidia", "other"]
    assert all(e["status"] == "crash" and e["elsewhere"] == "pass" for e in record["evidence"])
    assert (rows["attempts"] > 1).sum() == record["failures"]
    last = max(i for i, (_, on, device, _) in enumerate(cluster.log) if (on, device) == ("sick", "0"))
    assert last < len(cluster.log) / 2  # no more jobs go there
    assert any("quarantined: device 0 of sick" in text for text in done.notices)


@pytest.mark.parametrize("fails", ["always", "now and then"])
def test_a_kernel_that_fails_everywhere_quarantines_nothing(run: Run, fails: str) -> None:
    tries: Counter[tuple[str, int]] = Counter()

    def status(backend: str, op: str, sample: int, on: str, device: str) -> str:
        tries[op, sample] += 1
        return "pass" if sample % 3 or (fails == "now and then" and tries[op, sample] > 1) else "wrong"

    done, _, rows = run(
        [GPU], Simulated([node("cpu", CPU=1), node("a", NVIDIA, GPU=1), node("b", NVIDIA, GPU=1)], status)
    )
    assert Counter(rows["status"]) == {"pass": TOTAL * 2 // 3, "wrong": TOTAL // 3}
    assert not done.health.records


def test_two_devices_of_one_node_do_not_wait_for_each_others_opinion(run: Run) -> None:
    def status(backend: str, op: str, sample: int, on: str, device: str) -> str:
        return "wrong" if sample % 3 == 0 else "pass"

    done, cluster, rows = run([GPU], Simulated([node("cpu", CPU=1), node("one", NVIDIA, GPU=2)], status))
    assert Counter(rows["status"]) == {"pass": TOTAL * 2 // 3, "wrong": TOTAL // 3}
    assert not done.health.records
    assert sum(cases for *_, cases in cluster.log) > TOTAL  # opinions were given


@pytest.mark.parametrize("models", [{"sick": "A10", "well": "H200"}, {}])
def test_another_model_is_no_witness(run: Run, models: dict[str, str]) -> None:
    def status(backend: str, op: str, sample: int, on: str, device: str) -> str:
        return "wrong" if on == "sick" and sample % 2 else "pass"

    done, _, rows = run(
        [GPU],
        Simulated([node("cpu", CPU=1), node("well", NVIDIA, GPU=1), node("sick", NVIDIA, GPU=1)], status),
        models=models,
    )
    assert bool(done.health.records) is not bool(models)
    assert ("wrong" in set(rows["status"])) is bool(models)


def test_two_jobs_that_miss_a_device_at_once_are_one_incident() -> None:
    health, place = DeviceHealth(), Place("n", "")
    began = time.monotonic()
    assert not health.note_absence(0, place, began)
    assert not health.note_absence(0, place, began)
    health.count_rows(0, place, 1000)
    assert not health.note_absence(0, place, time.monotonic())  # long ago
    assert health.note_absence(0, place, time.monotonic())


def test_a_device_that_a_new_child_does_not_find_is_left_to_the_others(run: Run) -> None:
    def status(backend: str, op: str, sample: int, on: str, device: str) -> str:
        return "gone" if on == "sick" and sample > 5 else "pass"

    done, _, rows = run(
        [GPU], Simulated([node("cpu", CPU=1), node("well", NVIDIA, GPU=1), node("sick", NVIDIA, GPU=1)], status)
    )
    assert set(rows["status"]) == {"pass"}
    assert [(r["scope"], r["node"]) for r in done.health.records] == [("gpu-nvidia", "sick")]
    assert (rows["attempts"] == 1).all()


def test_a_device_that_computes_otherwise_than_before_is_quarantined_at_once_for_all_backends(run: Run) -> None:
    def status(backend: str, op: str, sample: int, on: str, device: str) -> str:
        return "sick" if on == "sick" and sample > 5 else "pass"

    done, _, rows = run(
        [GPU, {"name": "again", "like": "gpu-nvidia"}],
        Simulated([node("cpu", CPU=1), node("well", NVIDIA, GPU=1), node("sick", NVIDIA, GPU=1)], status),
    )
    assert set(rows["status"]) == {"pass"} and (rows["attempts"] == 1).all()
    assert [(r["scope"], r["node"], r["why"]) for r in done.health.records] == [
        ("nvidia", "sick", "it computes otherwise")
    ]
    assert set(done.health.records[0]["backends"]) == {"gpu-nvidia", "again"}


def test_the_only_device_that_is_lost_leaves_rows_that_say_so(run: Run) -> None:
    seen: list[int] = []

    def status(backend: str, op: str, sample: int, on: str, device: str) -> str:
        if on == "one":
            seen.append(sample)
        return "gone" if len(seen) > 50 and on == "one" else "pass"

    _, _, rows = run([GPU, {"name": "null-cpu"}], Simulated([node("cpu", CPU=1), node("one", NVIDIA, GPU=1)], status))
    of = rows[rows["backend"] == "gpu-nvidia"]
    assert set(of["status"]) == {"pass", "unavailable"}
    assert of[of["status"] == "unavailable"]["error"].str.contains("gone since: it has fallen off the bus").all()
    assert set(rows[rows["backend"] == "null-cpu"]["status"]) == {"pass"}


def test_a_device_that_is_back_when_it_is_asked_again_costs_no_row(run: Run) -> None:
    asked: list[int] = []

    def status(backend: str, op: str, sample: int, on: str, device: str) -> str:
        asked.append(sample)
        return "gone" if 50 < len(asked) <= 53 else "pass"

    done, _, rows = run([GPU], Simulated([node("cpu", CPU=1), node("one", NVIDIA, GPU=1)], status))
    assert set(rows["status"]) == {"pass"}
    assert done.notices[:2] == [
        "a new process of gpu-nvidia cannot find device 0 of one: it has fallen off the bus; rerunning the rest of its cases",
        "gpu-nvidia will be probed again in 0.05 s: it has fallen off the bus",
    ]


@pytest.mark.parametrize("kills", ["at random", "by a case"])
def test_only_a_case_that_is_alone_when_its_supervisor_dies_again_and_again_is_blamed(run: Run, kills: str) -> None:
    culprit, chance = ("load:op000003", 7), random.Random(3)  # its position: samples are prepared in no order

    def status(backend: str, op: str, sample: int, on: str, device: str) -> str:
        struck = chance.random() < 0.02 if kills == "at random" else (op, sample) == culprit
        return "killed" if struck else "pass"

    _, _, rows = run([{"name": "null-cpu"}], Simulated([node("cpu", CPU=2)], status))
    crashed = rows[rows["status"] == "crash"]
    assert list(crashed["op"]) == ([culprit[0]] if kills == "by a case" else [])
    assert crashed["error"].str.contains("the only one in flight when its supervisor died a").all()
    assert (rows["attempts"] > 1).any()


def test_a_case_whose_supervisors_are_killed_before_they_begin_is_not_blamed(run: Run) -> None:
    culprit, unlucky, struck = ("load:op000003", 7), ("load:op000005", 7), itertools.count()

    def strikes(job: Job) -> bool:
        cases = {(item.group.op, position) for item in job.run for position in item.positions}
        return unlucky in cases and next(struck) < NOT_BEGUN - 2

    cluster = Simulated([node("cpu", CPU=2)])
    cluster.strikes = strikes
    cluster.status = lambda backend, op, sample, *on: "killed" if (op, sample) == culprit else "pass"
    _, _, rows = run([{"name": "null-cpu"}], cluster)
    assert list(rows.loc[rows["status"] == "crash", "op"]) == [culprit[0]]
    assert next(struck) > NOT_BEGUN - 2


@pytest.mark.parametrize(
    ("had", "prepared", "rows", "left"),
    [
        ({WHOLE}, [0, 1, 2], 1, []),  # given up in the launch before, and to be had in this one
        ({0, 1}, [WHOLE], 3, [0]),  # to be had in the launch before, and not in this one
        ({0, 1, WHOLE}, [0, 1, 2], 3, []),  # … and in the one after that again
        ({0, 1, WHOLE}, [WHOLE], 3, []),
        ({1}, [0, 1, 2], 3, [0, 2]),
        (set(), [WHOLE], 1, [0]),
    ],
)
def test_a_group_that_one_launch_could_not_prepare_and_another_could_has_each_row_once(
    run: Run, had: set[int], prepared: list[int], rows: int, left: list[int]
) -> None:
    done, _, _ = run([{"name": "null-cpu"}], Simulated([node("cpu", CPU=2)]))
    run_groups = RunGroups(done.plan, [True], {(0, 0): had})
    assert run_groups.count_stored_cases() == len(had)
    run_groups.samples[0] = prepared
    assert (run_groups.rows(0, 0), list(run_groups.positions(0, 0)), run_groups.count_stored_cases()) == (rows, left, 0)


@pytest.mark.parametrize(("leaves", "statuses"), [("second", {"pass", "unavailable"}), ("third", {"pass"})])
def test_a_gang_whose_devices_are_too_few_for_good_is_unavailable(run: Run, leaves: str, statuses: set[str]) -> None:
    """A job of four ranks, on nodes with two devices each. The third has none: nothing is lost with it."""

    def later(cluster: Simulated) -> None:
        if cluster.log and len(cluster.nodes) == 3:
            cluster.leave(leaves)

    nodes = [node(name, {"vendor": "huawei"}, CPU=2, NPU=2) for name in ("first", "second")]
    _, _, rows = run([{"name": "heldgloo-huawei"}], Simulated([*nodes, node("third", CPU=2)], after=later))
    assert set(rows["status"]) == statuses
    gone = rows[rows["status"] == "unavailable"]
    said = "takes 4 devices (NPU), one for each rank, and there are 2"
    assert gone["error"].str.contains(said, regex=False).all()


def test_nodes_that_leave_and_join_while_the_run_goes_on(run: Run) -> None:
    steps = iter(range(10**6))

    def after(cluster: Simulated) -> None:
        step = next(steps)
        if step == 8:
            cluster.leave("old")
        if step == 12:
            cluster.join(node("new", NVIDIA, GPU=2), ["gpu-nvidia", "null-cpu"])

    done, _, rows = run(
        [GPU, {"name": "null-cpu"}],
        Simulated([node("cpu", CPU=1), node("old", NVIDIA, GPU=1)], after=after),
        node_wait_s=60,
    )
    assert set(rows["status"]) == {"pass"}
    assert where(rows, "gpu-nvidia") <= {"old", "new"} and "new" in where(rows, "gpu-nvidia")
    assert where(rows, "null-cpu") == {"cpu"}  # the new one has no CPU
    assert done.notices == ["node old left", "node new joined with gpu-nvidia"]


def test_a_backend_whose_last_node_left_does_not_hang(run: Run) -> None:
    steps = iter(range(10**6))

    def after(cluster: Simulated) -> None:
        if next(steps) == 6:
            cluster.leave("one")

    done, _, rows = run(
        [GPU, {"name": "null-cpu"}], Simulated([node("cpu", CPU=1), node("one", NVIDIA, GPU=1)], after=after)
    )
    gone = rows[rows["status"] == "unavailable"]
    assert set(gone["backend"]) == {"gpu-nvidia"}
    assert gone["error"].str.contains("the last node that offered it left, and no other joined within 0.3 s").all()
    assert any("no longer available" in text for text in done.notices)


GANG = GPU | {"options": {"ranks": 4}}


def test_a_gang_that_the_nodes_that_are_left_cannot_take_does_not_hang(run: Run) -> None:
    steps = iter(range(10**6))

    def after(cluster: Simulated) -> None:
        if next(steps) == 8:
            cluster.leave("b")

    nodes = [node("cpu", CPU=1), node("a", NVIDIA, GPU=2), node("b", NVIDIA, GPU=2)]
    _, _, rows = run([GANG, {"name": "null-cpu"}], Simulated(nodes, after=after))
    gone = rows[rows["status"] == "unavailable"]
    assert set(gone["backend"]) == {"gpu-nvidia"} and set(rows["status"]) == {"pass", "unavailable"}
    why = "a job of gpu-nvidia takes 4 devices (GPU), one for each rank, and there are 2, and no other joined within 0.3 s"
    assert gone["error"].str.contains(why, regex=False).all()


def test_a_gang_is_not_sent_where_a_device_is_sick_and_what_it_fails_is_evidence_against_none(run: Run) -> None:
    """Of its devices one may be at fault or the wire between them: a second opinion of others would tell nothing."""

    def status(backend: str, op: str, position: int, at: str, device: str) -> str:
        return "wrong" if backend == "gpu-nvidia" else "sick" if (at, device) == ("a", "1") else "pass"

    nodes = [node("cpu", CPU=1), node("a", NVIDIA, GPU=4), node("b", NVIDIA, GPU=4)]
    done, _, rows = run([GANG, {"name": "single", "like": "gpu-nvidia"}], Simulated(nodes, status))
    assert {(q["node"], q["device"]) for q in done.health.records} == {("a", "1")}
    found = rows.groupby("backend")["status"].agg(set).to_dict()
    assert found == {"gpu-nvidia": {"wrong"}, "single": {"pass"}}
    assert len(rows) == len(rows.drop_duplicates(["case_id", "backend"])) and not done.case_queue.doubts[0]


def test_a_share_of_a_device_is_counted_by_device(run: Run) -> None:
    nodes = [node("cpu", CPU=1), node("a", NVIDIA, GPU=2)]
    cluster = Simulated(nodes)
    most: list[float] = []
    told: set[str] = set()

    def look(s: Simulated) -> None:
        of = [job for job, b, *_ in s.jobs.values() if b == "quarter"]
        most.append(len(of))
        told.update(str(job.env) for job in of)

    cluster.after = look
    run([{"name": "quarter", "like": "gpu-nvidia", "fraction": 0.25}], cluster)
    assert 8 < max(most) <= 2 * 2 * 4  # two jobs for each of four shares of two devices
    assert told == {str({FRACTION: "0.25"})}  # which bounds a runtime's memory


def test_a_child_that_is_slow_to_start_gets_long_batches_while_others_have_work(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches(start_s: float) -> int:
        cluster = Simulated([node("cpu", CPU=2)])
        cluster.start_s = start_s
        run([{"name": f"b{i}", "like": "null-cpu"} for i in range(4)], cluster)
        return len(cluster.log)

    monkeypatch.setattr("farm.work.batching.START_SHARE", 8.0)
    quick, slow = batches(0.01), batches(0.3)  # a batch is then to be worth 2.4 s of 3 s
    assert quick >= 4 * OPS  # a group each
    assert slow <= quick / 3


def test_what_children_cost_is_told_by_backend(run: Run) -> None:
    done, cluster, _ = run([GPU, {"name": "null-cpu"}], Simulated([node("cpu", CPU=1), node("a", NVIDIA, GPU=1)]))
    assert done.run_counts.spent["gpu-nvidia"]["cpu_s"] == sum(1.0 for name, *_ in cluster.log if name == "gpu-nvidia")
    assert {"gpu-nvidia", "null-cpu", "(prepare)"} <= set(done.run_counts.spent)


def test_shares_of_a_device_are_held_until_a_second_opinion_begins_elsewhere() -> None:
    """Ray gives a share of a device that has been begun rather than of an idle one: with one share held at a time,
    never of that."""
    ended: list[int] = []
    state: Any = SimpleNamespace(plan=SimpleNamespace(executor=SimpleNamespace(cancel=ended.append)))
    second_opinions = SecondOpinions(state, fleet_changes=None)  # type: ignore[arg-type]
    handles, asked = itertools.count(2), JobFlight(Job(name="j", cache="", limits=Limits()), asked=[None])  # type: ignore[list-item]
    for handle in range(1, 5):  # four quarters
        second_opinions.hold_device(handle, asked, lambda flight: next(handles))
        assert ended == []
    second_opinions.hold_device(
        100, asked, lambda flight: next(handles)
    )  # of another backend: two would wait for each other
    assert ended == [100]
    second_opinions.release_devices(5)
    assert ended == [100, 1, 2, 3, 4]
    second_opinions.hold_device(6, asked, lambda flight: 7)
    second_opinions.hold_device(7, asked, lambda flight: None)  # nowhere else any more
    assert ended[5:] == [6, 7]


def test_a_training_may_be_silent_for_all_its_steps() -> None:
    plain, training = Group("torch:abs", "", "float32", 4), Group("training:gpt", "", "float32", 1, check="train")
    steps = 2 * len(STEPS)
    assert count_silent_deadlines([], [plain], 1) == 1 and count_silent_deadlines([], [plain], 7) == 7
    assert count_silent_deadlines([plain], [], 1) == 4
    assert count_silent_deadlines([], [plain, training], 1) == count_silent_deadlines([training], [], 1) == steps
