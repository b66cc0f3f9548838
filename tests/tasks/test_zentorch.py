"""zentorch without its package: whose nodes a graph has, and what follows for samples built together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tasks.backends.zentorch import ZenTorch
from tasks.model import Fallback, Form, Program, Unavailable


class Scripted(ZenTorch):
    """zentorch takes a node of the forms named in ``own``."""

    own: tuple[str, ...] = ()
    compiled: list[list[str]]

    def _compile(self, forms: Sequence[Form]) -> list[Program]:
        self.compiled.append([form.op for form in forms])
        self.taken = Counter("zentorch.zentorch_mm.default" for form in forms if form.op in self.own)
        if not self.taken or self.looking:
            raise Fallback("zentorch takes no node of the graph")
        return [Program(run=lambda: [], placement=self._where(0)) for _ in forms]


def build(own: tuple[str, ...], *names: str) -> tuple[list[Any], list[list[str]]]:
    backend = Scripted("zentorch-cpu", "cpu", {})
    backend.own, backend.compiled = own, []
    return backend.build_all([Form("torch", name, "float32", []) for name in names]), backend.compiled


def test_samples_none_of_which_it_takes_are_looked_at_once() -> None:
    built, compiled = build((), "a", "b", "c")
    assert compiled == [["a", "b", "c"]]
    assert all(isinstance(x, Fallback) for x in built)


def test_each_sample_answers_for_itself_where_it_takes_any() -> None:
    built, compiled = build(("b",), "a", "b")
    assert compiled == [["a", "b"], ["a"], ["b"]]
    assert isinstance(built[0], Fallback)
    assert built[1].placement == "zentorch: 1 zentorch_mm"


def test_the_rest_of_a_graph_is_told() -> None:
    backend = ZenTorch("zentorch-cpu", "cpu", {})
    assert backend._fallback(3) == "zentorch took no node of the graph"
    backend.taken.update({"zentorch.zentorch_mm.default": 2})
    assert backend._fallback(0) is None
    assert backend._where(1) == "zentorch: 2 zentorch_mm; inductor: 1 kernels"


def test_the_weight_cache_is_off_unless_asked_for() -> None:
    assert ZenTorch("zentorch-cpu", "cpu", {}).flags == "weight_cache=off"
    assert ZenTorch("z", "cpu", {"weight_cache": True}).flags == "weight_cache=on"
    with pytest.raises(ValueError, match="unknown option 'cache'; it takes weight_cache"):
        ZenTorch("zentorch-cpu", "cpu", {"cache": 1})


def test_it_is_for_the_cpu_alone_and_amds() -> None:
    assert ZenTorch("zentorch-cpu", "cpu", {}).vendor == "AMD"
    with pytest.raises(Unavailable, match="only runs on the CPU"):
        ZenTorch("zentorch-cuda", "cuda", {}).probe()
