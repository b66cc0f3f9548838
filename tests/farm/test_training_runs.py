"""The table of training runs: floors over steps and phases, and the place of the fault at the line that it is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm import lake
from farm.lake import beside
from farm.report.faces.heat import draw_heat_row
from farm.report.tables.training_runs import (
    PHASE_OF_KIND,
    _show_training_floors,
    list_training_runs,
    table_training_phases,
)
from tasks.checks.train import FLAG_SLOPE, KIND_FORWARD, KIND_REDUCTION, KIND_SLOPE
from tasks.model.row import Row
from tasks.model.trace import TraceStep
from tests.farm.test_lake import CONSTANT, RUN, row

ORIGIN = lake.Origin(**CONSTANT)


def step(at: int, number: int, phase: str, rank: int | None, units: float) -> TraceStep:
    status = "wrong" if units > 16 else "pass"
    return TraceStep(at, "for people alone", status, error_units=units, number=number, phase=phase, rank=rank)


@pytest.fixture
def opened(results: Path) -> lake.Lake:
    return lake.open_lake(results)


def test_the_place_stands_at_the_first_phase_that_is_off_on_its_rank(opened: lake.Lake) -> None:
    floors = {
        ("own gradients", 0): 1.0,
        ("own gradients", 1): 4e6,
        ("raw gradients", 0): 2e6,
        ("raw gradients", 1): 2e6,
    }
    every = [
        (number, phase, rank, units * (1 + number)) for number in (0, 1, 3) for (phase, rank), units in floors.items()
    ]
    some = tuple(step(k, *one) for k, one in enumerate(every))
    told = {"check": "train", "status": "wrong", "kind": "own gradients", "culprit": "rank 1: up.weight", "limit": 16.0}
    case = Row(**row(0, **told))
    beside.append_rows_and_beside(
        opened,
        RUN,
        [lake.make_row_batch([case], ORIGIN)],
        beside.read_beside_stream(beside.TRACE.to_stream([(case, some)], ORIGIN)),
    )
    table = table_training_phases(lake.read(opened, RUN), lake.read_trace(opened, RUN)).to_dict("records")
    found: dict[Any, dict[str, Any]] = {(line["phase"], line["rank"]): dict(line) for line in table}  # type: ignore[arg-type]
    assert {key: line["place"] for key, line in found.items()} == {
        ("own gradients", "0"): "",
        ("own gradients", "1"): "rank 1: up.weight",
        ("raw gradients", "0"): "",
        ("raw gradients", "1"): "",
    }
    assert found["raw gradients", "0"]["worst"] == 8e6
    assert [number for number, _, _ in found["own gradients", "1"]["steps"]] == [0, 1, 3]
    assert _show_training_floors(found["own gradients", "1"]).marked == (0,)
    assert _show_training_floors(found["raw gradients", "1"]).marked == ()
    assert table[0]["rank"] == "1"  # the rank that has the place comes first
    (run,) = list_training_runs(table_training_phases(lake.read(opened, RUN), lake.read_trace(opened, RUN)))
    assert (run["phase"], run["step"], run["place"]) == ("own gradients", "0", "rank 1: up.weight")
    assert run["floors"] == 4e6  # of that step, not of the furthest
    assert PHASE_OF_KIND[KIND_FORWARD] == "taps" and PHASE_OF_KIND[KIND_REDUCTION] == "raw gradients"


@pytest.mark.parametrize("phase", ["loss", "buffers", "raw gradients"])
def test_every_step_of_the_phase_is_marked_whose_slope_is_off(opened: lake.Lake, phase: str) -> None:
    phases = ("loss", "buffers", "raw gradients")
    some = tuple(step(3 * n + k, n, name, None, 2.0) for n in range(2) for k, name in enumerate(phases))
    flags = f"{FLAG_SLOPE}={phase.replace(' ', '_')}"
    told = {"check": "train", "status": "wrong", "kind": KIND_SLOPE, "culprit": "bn.running_var", "limit": 16.0}
    case = Row(**row(0, **told, flags=flags))
    beside.append_rows_and_beside(
        opened,
        RUN,
        [lake.make_row_batch([case], ORIGIN)],
        beside.read_beside_stream(beside.TRACE.to_stream([(case, some)], ORIGIN)),
    )
    table = table_training_phases(lake.read(opened, RUN), lake.read_trace(opened, RUN))
    lines = table.to_dict("records")
    assert [(x["phase"], x["step"]) for x in list_training_runs(table)] == [(phase, "all")]
    found = {line["phase"]: (line["place"], _show_training_floors(line).marked) for line in lines}  # type: ignore[arg-type]
    assert found == {x: ("bn.running_var", (0, 1)) if x == phase else ("", ()) for x in phases}


def test_a_square_is_stronger_the_further_off_and_the_marked_one_has_a_frame() -> None:
    drawn = str(draw_heat_row([(1.0, "step 0"), (160.0, "step 1"), (float("inf"), "<b>")], 16.0, (1,)))
    assert drawn.count('class="within"') == 1 and drawn.count('class="over"') == 1
    assert 'class="over marked"' in drawn and 'fill-opacity="0.25"' in drawn and 'fill-opacity="1.00"' in drawn
    assert "<b>" not in drawn
