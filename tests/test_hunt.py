"""The corpus of public reports is what it says it is; `python -m tests.hunt` asks the farm all of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.arrays import torch_tree
from tasks.catalogs.user import kernel_samples
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.model import Group
from tests.hunt import kernels, pointed
from tests.hunt.reports import ITSELF, MISSED, POINTED, REPORTS
from tests.hunt.running import BEST, Found

ROOT = Path(__file__).parents[1]
OPS = {op.name: op for op in kernels.THEME.__farm_ops__}


def test_there_are_thirty_reports_and_none_is_a_known_failure() -> None:
    assert len({r.where for r in REPORTS}) == len(REPORTS) >= 30
    known = "".join(path.read_text() for path in (ROOT / "configs" / "known").glob("*.yaml"))
    for report in REPORTS:
        name, number = report.where.split("#")
        assert not re.search(rf"{re.escape(name)}/(issues|pull)/{number}\b", known), report.where


def test_every_planted_fault_is_of_a_report_and_stands_beside_its_twin() -> None:
    asked = {r.op.partition(":")[2]: r.twin.partition(":")[2] for r in REPORTS if r.op.startswith("user:")}
    planted = {name for one in kernels.THEME.specimens for name in one.wrong}
    assert set(asked) == planted and set(asked.values()) <= set(OPS)
    assert [
        found for op in (*OPS.values(), *pointed.THEME.__farm_ops__) for found in list_declaration_mistakes(op)
    ] == []


def test_the_table_of_the_manual_has_every_report() -> None:
    text = (ROOT / "tests" / "hunt" / "README.md").read_text()
    assert [r.where for r in REPORTS if f"[{r.where}]({r.link})" not in text] == []


@pytest.mark.parametrize("report", [r for r in REPORTS if r.pointed], ids=lambda r: r.where)
def test_what_points_at_a_fault_shows_it_beside_a_sound_twin(report: object) -> None:
    ops = {op.name: op for op in pointed.THEME.__farm_ops__}
    fault, twin = (f"{x.partition(':')[2]}{pointed.MARK}" for x in (report.op, report.twin))  # type: ignore[attr-defined]
    op, differ = ops[fault], False
    for number, dims in enumerate(kernel_samples.list_sample_sizes(op, 0, 8)):
        arrays = kernel_samples.make_sample_arrays(op, dims, Group(f"user:{op.name}", "", op.dtypes[0], 8), number)

        def results(name: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
            given = {k: torch_tree.tensor_from_numpy(x.copy()) for k, x in arrays.items()}
            for k in ops[name].gradient:
                given[k].requires_grad_()
            found = ops[name].kernel(**given, **ops[name].kwargs)
            found = list(found) if isinstance(found, tuple) else [found]
            if not op.gradient:
                return [x.double().numpy() for x in found]
            weights = [torch.linspace(0.5, 1, x.numel()).reshape(x.shape) for x in found]
            return [x.numpy() for x in torch.autograd.grad(found, [given[k] for k in op.gradient], weights)]

        differ |= any(not np.allclose(a, b, 1e-3, 1e-3) for a, b in zip(results(fault, arrays), results(twin, arrays)))
    assert differ


def test_what_is_found_may_be_better_than_said_and_not_worse() -> None:
    report = next(r for r in REPORTS if r.found == POINTED and r.pointed)
    assert Found(report, "pass", "pass", "wrong", "pass").differs == ""
    assert Found(report, "wrong", "pass", "wrong", "pass").differs == ""
    assert "missed" in Found(report, "pass", "pass", "pass", "pass").differs
    assert "twin" in Found(report, "wrong", "wrong", "wrong", "pass").differs
    assert BEST == (ITSELF, POINTED, MISSED)
