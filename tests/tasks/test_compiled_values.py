"""Compilers that keep something of the values that they were first called with, or break where a graph breaks: each beside a sound one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import runner as runners
from tasks.backends.inductor import PIECES, Inductor
from tasks.backends.torch import TorchEager
from tasks.catalogs import user_definitions
from tasks.judge import policy_files
from tasks.model import Group
from tasks.model.row import Row
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner

torch = pytest.importorskip("torch")

Run = Callable[..., Sequence[Any]]
X = np.random.default_rng(0).uniform(0.5, 2, (8, 16)).astype(np.float32)
WHOLE = "torch.tanh(x) * 3"
#: torch.compile breaks the graph at .item(), and takes it in where it is told to.
BROKEN = "torch.cos(x * (x.sum() / 64).item()) + 1"


def first_result(run: Run, sound: bool) -> Run:
    """Results by the shape of what they are computed of."""
    kept: dict[Any, Any] = {}
    return lambda *given: run(*given) if sound else kept.setdefault(_shapes(given), run(*given))


def first_inputs(run: Run, sound: bool) -> Run:
    """The addresses of the first call are read again."""
    first: list[Any] = []

    def call(*given: Any) -> Any:
        first[:] = given if sound or not first else first
        return run(*first)

    return call


def first_scale(run: Run, sound: bool) -> Run:
    """A scale that was calibrated at the first call."""
    scales: list[Any] = []

    def call(*given: Any) -> Any:
        x = next(x for x in given if isinstance(x, torch.Tensor))
        scales[:] = [x.abs().max()] if sound or not scales else scales
        return [
            torch.round(y / scales[0] * 2**22) * scales[0] / 2**22 * (x.abs().max() / scales[0]) for y in run(*given)
        ]

    return call


def workspace(run: Run, sound: bool) -> Run:
    """A workspace that results are added up in."""
    kept: dict[Any, Any] = {}

    def call(*given: Any) -> Any:
        made = run(*given)
        before = kept.get(_shapes(given), [torch.zeros_like(y) for y in made])
        kept[_shapes(given)] = [(0 if sound else a) + y for a, y in zip(before, made)]
        return kept[_shapes(given)]

    return call


def largest(run: Run, sound: bool) -> Run:
    """The largest so far, which begins anew with each call, or does not."""
    kept: dict[Any, Any] = {}

    def call(*given: Any) -> Any:
        made = run(*given)
        before = made if sound else kept.get(_shapes(given), made)
        kept[_shapes(given)] = [torch.maximum(a, y) for a, y in zip(before, made)]
        return kept[_shapes(given)]

    return call


def second_piece(run: Run, sound: bool) -> Run:
    """What comes after a break of the graph is computed of a number in the place of a tensor."""
    return lambda *given: [y if sound or _is_whole(given) else y * 1.5 for y in run(*given)]


def number_as_constant(run: Run, sound: bool) -> Run:
    """Numbers that go from one piece to the next are those of the first call."""
    first: list[Any] = []

    def call(*given: Any) -> Any:
        numbers = [x for x in given if not isinstance(x, torch.Tensor) or x.ndim == 0]
        first[:] = numbers if sound or not first else first
        kept = iter(first)
        return run(*[x if isinstance(x, torch.Tensor) and x.ndim else next(kept) for x in given])

    return call


def _shapes(given: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(x.shape) for x in given if isinstance(x, torch.Tensor))


_PIECES: list[int] = []


def _is_whole(given: Sequence[Any]) -> bool:
    return len(_PIECES) < 2


#: Of each compiler: the expression that shows its fault.
COMPILERS: dict[Callable[[Run, bool], Run], str] = {
    first_result: WHOLE,
    first_inputs: WHOLE,
    first_scale: WHOLE,
    workspace: WHOLE,
    largest: f"-{WHOLE}",
    second_piece: BROKEN,
    number_as_constant: BROKEN,
}


class Planted(Inductor):
    """Inductor with another compiler."""

    def _fallback(self, kernels: int) -> str | None:
        return None


def judged(tmp_path: Path, expression: str, compiler: Any) -> Row:
    source = f"import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return {expression}\n"
    (tmp_path / "own.py").write_text(source)
    np.savez(tmp_path / "x.npz", x=X)
    one = {"at": 0, "root": str(tmp_path), "name": "m", "model": "own.py:Model", "drawn": []}
    user_definitions.announce_definitions(json.dumps({"models": [one | {"inputs": [str(tmp_path / "x.npz")]}]}))
    group = prepare_group(Group("models:m", "", "float32", 1), tmp_path / "cache")[1]
    made = Planted("inductor-cpu", "cpu", {}).but(compiler=compiler)
    runner = Runner(made, TorchEager.probe(made), policy_files.load_policy("error_units"), lambda *step: None)
    (done,) = runner.run([runners.make_item_of_whole_group(group)])
    return done.row


@pytest.mark.parametrize("fault", COMPILERS, ids=lambda x: x.__name__)
def test_what_a_compiler_keeps_of_other_values_is_wrong(fault: Callable[[Run, bool], Run], tmp_path: Path) -> None:
    for sound in (True, False):

        def compiler(graph: Any, given: Sequence[Any], sound: bool = sound, **more: Any) -> Run:
            _PIECES.append(1)
            return fault(graph.forward, sound)

        _PIECES.clear()
        row = judged(tmp_path, COMPILERS[fault], compiler)
        assert row.status == ("pass" if sound else "wrong"), (fault.__name__, sound, row.error)
        if COMPILERS[fault] == BROKEN:
            assert "graph=whole,pieces" in (row.flags or "")


def test_the_way_that_is_wrong_is_the_culprit(tmp_path: Path) -> None:
    def compiler(graph: Any, given: Sequence[Any], **more: Any) -> Run:
        whole = any(node.target == "item" for node in graph.graph.nodes)
        return lambda *given: [y if whole else y * 2 for y in graph.forward(*given)]

    row = judged(tmp_path, BROKEN, compiler)
    assert (row.status, row.culprit) == ("wrong", PIECES) and "one graph (fullgraph=True) not" in (row.error or "")
