"""A device is asked between cases what it has answered before: what was computed since it last said so is not believed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from farm import lake
from tasks import canary, wire
from tasks.backends import BackendSpec
from tasks.backends.torch import TorchEager
from tasks.child import Child
from tasks.relay import PAGE_SIZE, ProgressPage
from tests.conftest import here

OPS, SAMPLES = 4, 5


def run(tmp_path: Path, *backends: object, **env: str) -> tuple[Any, pd.DataFrame]:
    file, results = tmp_path / "c.yaml", tmp_path / "results"
    catalog = {"name": "load", "dtypes": ["float32"], "samples": SAMPLES}
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": list(backends)}))
    done = here(file, "--on", "processes", "--results", results, FARM_LOAD_OPS=str(OPS), **env)
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert rows.groupby("backend")["case_id"].nunique().eq(OPS * SAMPLES).all()
    return done, rows


def gpu(name: str, **options: object) -> dict[str, object]:
    return {"name": name, "like": "gpu-nvidia", "options": options}


@pytest.mark.parametrize("every_s", [0.0, 60.0])
def test_nothing_is_believed_that_a_device_did_after_its_answer_changed(
    every_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.work.supervisor.EVERY_S", every_s)
    done, rows = run(tmp_path, gpu("failing", bad_after=7), FARM_BAD=str(tmp_path / "bad"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert set(rows["status"]) <= {"pass", "unavailable"}
    believed = int((rows["status"] == "pass").sum())
    assert believed == 6 if every_s == 0 else believed < 6  # those of whole batches
    why = rows.loc[rows["status"] == "unavailable", "error"]
    assert why.str.contains("it no longer gives the known answer of a small product in bfloat16, float16").all()
    assert "quarantined: " in done.stdout


def test_a_device_that_computes_is_believed(tmp_path: Path) -> None:
    done, rows = run(tmp_path, gpu("sound", bad_after=0))
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(rows["status"]) == {"pass"} and set(rows["attempts"]) == {1}


def test_a_process_that_computes_otherwise_once_is_no_sick_device(tmp_path: Path) -> None:
    """Its first seven cases, of twenty, are all that any one process gets right: each is followed by a new one."""
    done, rows = run(tmp_path, gpu("spoilt", spoils=3))
    assert "quarantined" not in done.stdout
    of = rows.groupby(rows["sample"] == 3)
    assert set(of.get_group(False)["status"]) == {"pass"}
    guilty = of.get_group(True)
    assert set(guilty["status"]) == {"crash"} and set(guilty["kind"]) == {"spoilt"}
    assert guilty["error"].str.contains("its process no longer computes as before, and a new one does").all()


def test_a_killed_child_takes_no_row_along_that_was_not_confirmed(tmp_path: Path) -> None:
    done, rows = run(tmp_path, gpu("killed", bad_after=0, killed_at=12))
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(rows["status"]) == {"pass"} and rows["attempts"].max() == 2


@pytest.mark.parametrize(("name", "dtypes"), [("torch-cpu", set(canary.DTYPES)), ("ort-cpu", {"float32", "float64"})])
def test_the_known_answer_is_exact(name: str, dtypes: set[str]) -> None:
    backend = BackendSpec.parse(name).create()
    backend.start()
    backend.resource = "GPU"
    assert set(canary.Canary(backend).dtypes) >= dtypes


def test_a_backend_of_the_cpu_is_not_asked() -> None:
    backend = TorchEager("torch-cpu", "cpu", {})
    backend.start()
    assert canary.Canary(backend).dtypes == ()


@pytest.mark.parametrize("broken", [True, False])
def test_a_device_that_an_error_has_spoilt_is_not_asked(broken: bool) -> None:
    """It would answer nothing: three such errors in a batch would look like a sick device."""
    file = os.memfd_create("page")
    os.ftruncate(file, PAGE_SIZE)
    child = Child(ProgressPage(file))
    child.runner = SimpleNamespace(run=lambda *asked: iter(["its row"]), broken=broken)
    child.canary = SimpleNamespace(dtypes=("float32",), due=lambda every_s: True, describe_change=lambda: "it raises")
    item: Any = SimpleNamespace(group=SimpleNamespace(catalog="torch"), positions=(0,))
    said = list(child.steps(wire.Run((item,), (), (), 0.0)))
    assert said == ["its row", *([] if broken else [wire.Canary("it raises")]), wire.Finished()]
