"""What backends have answered before: used to plan, forgotten with a change of version, asked anew when told so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from farm import lake
from farm.fleet import ask_backends, probe_answers
from farm.fleet.ask_backends import probe_backends
from farm.fleet.child_process import ChildProcess, name_compiler_caches
from tasks import wire
from tasks.backends import BackendSpec
from tasks.model import BackendInfo, RuntimeInfo
from tests.conftest import here

STRUCK = (2, 5)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    catalog = {"name": "planted", "ops": ["unsupported", "none"], "dtypes": ["float32"], "samples": 8}
    path.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": ["planted-cpu"]}))
    return path


def run(config: Path, results: Path, *more: str, **env: str) -> pd.DataFrame:
    done = here(config, "--on", "processes", "--results", results, *more, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return lake.read(results, lake.run_ids(results)[-1]).set_index(["op", "sample"]).sort_index()


def test_what_is_compiled_to_try_a_backend_is_kept_for_the_child_that_runs_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, str]] = []

    def asked(python: str, limits: Any, env: dict[str, str], *more: Any) -> Any:
        told.append(env)
        return ChildProcess.start_and_ask(python, limits, env, *more)

    monkeypatch.setattr(ask_backends, "ChildProcess", SimpleNamespace(start_and_ask=asked))
    answer = probe_backends([BackendSpec.parse("null-cpu")], tmp_path)["null-cpu"]
    assert isinstance(answer, BackendInfo) and answer.runtime.runtime_version == "null 1"
    assert told and name_compiler_caches(tmp_path).items() <= told[0].items()


def test_what_a_backend_does_not_implement_is_learned_and_planned_with(
    config: Path, results: Path, tmp_path: Path
) -> None:
    env = {"FARM_CACHE": str(tmp_path / "cache")}
    first = run(config, results, **env)
    second = run(config, results, **env)
    assert not second["note"].fillna("").str.startswith("as answered").any(), "what one run was told may have passed"
    again = run(config, results, **env)
    assert (first["status"] == again["status"]).all() and (first["error"] == again["error"]).all()
    learned = again["note"].fillna("").str.startswith("as answered in run")
    assert set(again[learned].index) == {("planted:unsupported", i) for i in STRUCK}
    assert (again[learned]["status"] == "unsupported").all() and (again[learned]["vendor"] == "Planted").all()
    assert not first["note"].fillna("").str.startswith("as answered").any()
    fresh = run(config, results, "--fresh", **env)
    assert not fresh["note"].fillna("").str.startswith("as answered").any()


def test_a_change_of_version_forgets_it(
    config: Path, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, info = BackendSpec.parse("ort-cpu"), RuntimeInfo("1", "cpu")
    support = probe_answers.ProbedSupport.load(spec, info, tmp_path)
    for run_id in ("run", "next"):
        support.learn("key", 3, {"stage": "build", "error": "no kernel"}, run_id)
    support.save()
    assert probe_answers.ProbedSupport.load(spec, info, tmp_path).find_unsupported("key", 3) == {
        "kind": "",
        "stage": "build",
        "error_type": "",
        "error": "no kernel",
        "run": "run",
    }
    for changed in ({"runtime_version": "2"}, {"driver_version": "590.44"}, {"device": "NVIDIA H200, sm_90"}):
        assert (
            probe_answers.ProbedSupport.load(spec, replace(info, **changed), tmp_path).find_unsupported("key", 3)
            is None
        ), changed
    optioned = BackendSpec.parse("ort-cpu", options={"graph_optimization": "all"})
    assert probe_answers.ProbedSupport.load(optioned, info, tmp_path).find_unsupported("key", 3) is None
    monkeypatch.setattr(probe_answers, "_digest_own_packages", lambda: "another onnxruntime")
    assert probe_answers.ProbedSupport.load(spec, info, tmp_path).find_unsupported("key", 3) is None


def test_a_refusal_counts_once_two_runs_were_given_the_same_words_and_for_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"stage": "build", "error": "no memory for the compiler"}
    support = probe_answers.ProbedSupport(tmp_path / "support.json")
    for run_id, words in (("first", told), ("first", told), ("second", told | {"error": "no kernel"})):
        support.learn("key", 0, words, run_id)
        assert support.find_unsupported("key", 0) is None, "one run, or other words"
    support.learn("key", 0, told | {"error": "no kernel"}, "third")
    assert (support.find_unsupported("key", 0) or {})["run"] == "second"
    now = probe_answers.time.time()
    monkeypatch.setattr(probe_answers.time, "time", lambda: now + 8 * 24 * 3600)
    assert support.find_unsupported("key", 0) is None


def test_what_cannot_be_written_is_kept_for_the_next_time_and_what_is_not_whole_is_asked_again(tmp_path: Path) -> None:
    words, path = dict.fromkeys(probe_answers.WORDS, ""), tmp_path / "support" / "one.json"
    path.parent.write_text("a file, where a folder is to be")
    support = probe_answers.ProbedSupport(path)
    support.forget()
    support.learn("key", 0, words, "run 1")
    support.save()
    path.parent.unlink()
    path.parent.mkdir()
    path.write_text('{"old:0": {"at": 1, "again": "x"}, "key:1": 7}')
    support.save()
    assert {*probe_answers._read_unsupported_cases(path)} == {"key:0"}
    path.write_text("[]")
    assert not probe_answers._read_unsupported_cases(path)


def test_runs_at_the_same_time_keep_what_each_of_them_has_learned(tmp_path: Path) -> None:
    spec, info, words = BackendSpec.parse("null-cpu"), RuntimeInfo("cpu", "1"), dict.fromkeys(probe_answers.WORDS, "")

    def read() -> probe_answers.ProbedSupport:
        return probe_answers.ProbedSupport.load(spec, info, tmp_path)

    first, second = read(), read()
    first.learn("key", 0, words, "run 1")
    first.save()
    second.learn("key", 1, words, "run 2")
    second.save()
    assert {*read().cases} == {"key:0", "key:1"}
    # One that has read an older answer does not write it over a newer one.
    third, fourth = read(), read()
    fourth.learn("key", 0, words, "run 4")
    fourth.save()
    third.learn("key", 2, words, "run 3")
    third.save()
    assert read().find_unsupported("key", 0) and {*read().cases} == {"key:0", "key:1", "key:2"}
    # Who asks anew forgets what was known before, and nothing that another run learns meanwhile.
    anew, other = read(), read()
    anew.forget()
    other.learn("key", 4, words, "run 6")
    other.save()
    anew.learn("key", 3, words, "run 5")
    anew.save()
    assert {*read().cases} == {"key:3", "key:4"}


def test_an_earlier_answer_to_hello_counts_unless_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = BackendSpec.parse("planted-cpu")
    asked = probe_backends([spec], tmp_path)[spec.name]
    assert isinstance(asked, BackendInfo) and asked.runtime.runtime_version == "planted 1"
    assert probe_answers.read_probe_answer(spec, tmp_path) == asked
    kept = replace(asked, runtime=replace(asked.runtime, runtime_version="kept"))
    probe_answers.keep_probe_answer(spec, kept, tmp_path)
    assert probe_backends([spec], tmp_path, fresh=False)[spec.name] == kept
    again = probe_backends([spec], tmp_path)[spec.name]
    assert isinstance(again, BackendInfo) and again.runtime == asked.runtime
    monkeypatch.setattr(probe_answers, "_digest_own_packages", lambda: "another version")
    assert probe_answers.read_probe_answer(spec, tmp_path) is None


def test_what_is_missing_is_asked_every_time(tmp_path: Path) -> None:
    spec = BackendSpec.parse("broken-unavailable")
    assert isinstance(probe_backends([spec], tmp_path, fresh=False)[spec.name], wire.Refused)
    assert probe_answers.read_probe_answer(spec, tmp_path) is None
