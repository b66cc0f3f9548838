"""farm bisect: the release that broke or mended a case is named, by halving, with an environment for each version asked."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from farm.commands.bisect import main
from farm.fleet import pip_settings
from farm.reproduction.bisect import VersionAnswer, list_asked_versions, search_versions
from farm.reproduction.find_case import ReproduceError
from tests.conftest import here
from tests.wheels import NAME, release

VERSIONS = [f"1.{n}" for n in range(32)]


@pytest.mark.parametrize("broken", range(1, 32))
@pytest.mark.parametrize("silent", ((), (5, 6, 16), tuple(range(3, 29))))
def test_the_release_is_found_wherever_it_is_and_what_tells_nothing_is_stepped_over(
    broken: int, silent: tuple[int, ...]
) -> None:
    def ask(version: str) -> VersionAnswer:
        n = VERSIONS.index(version)
        return VersionAnswer(version, "" if n in silent else "failed" if n >= broken else "right", "wrong")

    found = search_versions(VERSIONS, ask)
    assert found.before and found.after
    before, after = (VERSIONS.index(x.version) for x in (found.before, found.after))
    assert before < broken <= after and set(range(before + 1, after)) <= set(silent)
    assert silent or len(found.asked) <= 2 + math.ceil(math.log2(len(VERSIONS) - 1))
    assert len({x.version for x in found.asked}) == len(found.asked), "no version is asked twice"


def test_ends_that_are_alike_or_tell_nothing_are_said() -> None:
    assert search_versions(VERSIONS, lambda v: VersionAnswer(v, "failed", "wrong")).after is None
    with pytest.raises(ReproduceError, match=r"1\.0 tells nothing \(no wheel\)"):
        search_versions(VERSIONS, lambda v: VersionAnswer(v, "", "unavailable", "no wheel"))


def test_versions_are_a_list_or_a_range_and_anything_else_is_refused() -> None:
    assert list_asked_versions("1.10.0, 1.9.1,1.9.1", "x") == ["1.9.1", "1.10.0"]
    for bad in ("1.x..2", "1..2..3", "a,b"):
        with pytest.raises(ReproduceError, match="--versions"):
            list_asked_versions(bad, "x")


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`farm-fake-runtime` 1.0 to 1.7, wrong from 1.5 on; 1.4 cannot be installed."""
    folder = tmp_path / "wheels"
    for n in range(8):
        release(folder, f"1.{n}", 0.25 if n >= 5 else 0, needs=f"{NAME}==1.0" if n == 4 else "")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{folder} {os.environ.get('PIP_FIND_LINKS', '')}".strip())
    pip_settings.read_pip_settings.cache_clear()
    yield
    pip_settings.read_pip_settings.cache_clear()


def test_a_planted_regression_is_named_with_its_version(
    releases: None, tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = {"name": "released-cpu", "packages": ["farm-fake-runtime==1.7"]}
    catalog = {"name": "planted", "ops": ["none"], "samples": 1}
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump({"catalogs": [catalog], "backends": [backend], "dtypes": ["float32"]})
    )
    done = here(tmp_path / "c.yaml", "--on", "processes", "--results", results)
    assert done.returncode == 1, done.stdout + done.stderr
    case = ["forward/planted:none/float32/0", "released-cpu", "--results", str(results)]
    assert main([*case, "--versions", "1.0..1.7"]) == 0
    said = capsys.readouterr().out
    assert (
        "broken by farm-fake-runtime 1.5: wrong, pass in 1.3; or by 1.4 between them, which could not be judged" in said
    )
    assert main([*case, "--versions", "1.0,1.2"]) == 1
    assert "give the same outcome, pass" in capsys.readouterr().out
    for bad, says in (
        ([*case, "--versions", "1.0..1.9"], "1.9 is no release that pip finds here; there is 1."),
        ([*case, "--versions", "1.7..1.0"], "the older one comes first: 1.0..1.7"),
        ([case[0], *case[2:], "--versions", "1.0..1.7"], "on which backend?"),
        ([*case, "--versions", "1.0"], "at least two"),
        ([case[0], "none-cpu", *case[2:], "--versions", "1.0..1.7"], "none-cpu"),
    ):
        assert main(bad) == 2
        assert says in capsys.readouterr().err
