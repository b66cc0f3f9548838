"""How many jobs share a device, by its memory and the CPUs; who has it alone, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farm.fleet.inventory import BackendOffer
from farm.work.claims import make_device_claim
from farm.work.state import HERE
from tasks.backends import BackendSpec
from tasks.checks import get_check
from tasks.model import BackendInfo, RuntimeInfo


def offer(devices: int = 1, resource: str = "GPU", **info: Any) -> BackendOffer:
    where = {HERE.node: devices}
    found = BackendInfo(RuntimeInfo("", "", memory=info.pop("memory", 0)), **info)
    return BackendOffer("torch-cuda", "NVIDIA", "nvidia", resource, [], False, True, devices=where, info=found)


def node(cpus: int) -> dict[str, Any]:
    return {"id": HERE.node, "host": "here", "resources": {"CPU": float(cpus)}, "labels": {}}


@pytest.mark.parametrize(
    ("gib", "devices", "cpus", "jobs"),
    [(141, 1, 16, 16), (24, 1, 16, 6), (141, 8, 16, 2), (141, 8, 4, 1), (80, 8, 128, 16), (3, 1, 16, 1)],
)
def test_memory_and_cpus_decide_how_many_jobs_share_a_device(gib: int, devices: int, cpus: int, jobs: int) -> None:
    claim = make_device_claim(offer(devices, memory=gib << 30), None, [node(cpus)])
    assert claim.fraction == pytest.approx(1 / jobs)
    assert claim.describe_sharing(devices).startswith(f"{jobs} jobs at once" if jobs > 1 else "one job at a time")


@pytest.mark.parametrize(
    ("info", "asked", "fraction", "why"),
    [
        ({"memory": 141 << 30, "exclusive": True}, 0.25, 1.0, "only one process"),
        ({"memory": 141 << 30, "alone": "it times"}, None, 1.0, "it times"),
        ({"memory": 141 << 30, "alone": "it times"}, 0.5, 0.5, ""),  # who says so has a reason
        ({}, None, 1.0, "set fraction"),
        ({}, 0.25, 0.25, ""),
        ({"memory": 16 << 30}, 0.25, 0.25, ""),
        (
            {"memory": 16 << 30},
            0.01,
            0.25,
            "fraction 0.01 is 0.16 GiB of 16 a job, a job needs 1; use 0.062 or more, or auto",
        ),
    ],
)
def test_who_has_a_device_alone_and_a_fraction_that_does_not_fit(
    info: dict[str, Any], asked: float | None, fraction: float, why: str
) -> None:
    claim = make_device_claim(offer(**info), asked, [node(16)])
    assert claim.fraction == fraction
    assert why in claim.why and bool(why) == bool(claim.why)


def test_ranks_have_devices_of_their_own_and_share_cpus_where_there_are_too_few() -> None:
    gang = replace(offer(8, memory=141 << 30), ranks=4)
    claim = make_device_claim(gang, 0.25, [node(16)])
    assert (claim.devices, claim.fraction, claim.size, claim.jobs_on(7)) == (4, 1.0, 4.0, 1)
    assert claim.describe_sharing(8).startswith("2 jobs at once on 4 of 8 devices each")
    assert make_device_claim(replace(offer(2, resource="CPU"), ranks=4), None, [node(2)]).devices == 2


@pytest.mark.parametrize(("counts", "few"), [((2, 2), ""), ((3,), "there are 3"), ((1,), "there is 1"), ((), "")])
def test_too_few_devices_for_a_gang_are_told(counts: tuple[int, ...], few: str) -> None:
    nodes = {f"n{i}": count for i, count in enumerate(counts)}
    made = replace(offer(), ranks=4, devices=nodes, resources=dict.fromkeys(nodes, "GPU"))
    assert few in made.too_few and bool(few) == bool(made.too_few)


def test_cpus_are_taken_whole() -> None:
    assert make_device_claim(offer(resource="CPU", memory=1 << 40), 0.25, [node(16)]).fraction == 1.0


@pytest.mark.parametrize(
    ("name", "options", "alone"),
    [
        ("tensorrt-cuda", {}, True),
        ("ort-tensorrt", {}, True),
        ("ort-tensorrt-rtx", {}, False),
        ("tensorrtrtx-cuda", {}, False),
        ("torch-cuda", {}, False),
        ("torch-cuda", {"convolution": "benchmark"}, True),
        ("tinygrad-cuda", {}, False),
        ("tinygrad-cuda", {"beam": 2}, True),
    ],
)
def test_what_chooses_kernels_by_timing_has_the_device_alone(name: str, options: dict[str, Any], alone: bool) -> None:
    assert bool(BackendSpec.parse(name, options=options).create().alone) == alone


def test_the_check_that_measures_time_has_the_device_alone() -> None:
    assert get_check("speedup").timed and not get_check("forward").timed
