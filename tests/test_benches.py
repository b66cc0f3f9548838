"""Every bench runs, in a size of seconds: its figures mean nothing there, but they are all written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import prepared
from tests.bench import running
from tests.bench.__main__ import BENCHES
from tests.bench.record import Result, write

#: Of benches that differ in nothing but a config that both leave out here, one.
DISTINCT = {(bench.run, str(bench.small)): name for name, bench in BENCHES.items()}
#: Of which the CPU time of commands is divided by that of their imports: a fork has imported them, and tells its parent
#: no CPU time.
PLAIN = {"waiting"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", DISTINCT.values())
def test_every_bench_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name not in PLAIN:
        monkeypatch.setattr(running, "subprocess", prepared.SUBPROCESS)
    result = BENCHES[name].run(tmp_path, BENCHES[name].small)
    assert result.text and result.figures
    assert all(isinstance(value, (int, float)) for value in result.figures.values())


def test_figures_are_kept_in_one_file_by_bench(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    for text in ("first", "second"):
        write("a", Result({"x": 1.5}, text), "here", path)
        write("b", Result({"y": 2}, text), "there", path)
    kept = json.loads(path.read_text())
    assert list(kept) == ["a", "b"] and kept["a"]["figures"] == {"x": 1.5} and kept["b"]["text"] == "second"
    assert (kept["a"]["machine"], kept["b"]["machine"]) == ("here", "there")
    assert set(kept["a"]) == {"command", "when", "machine", "figures", "text"}
