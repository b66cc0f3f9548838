"""Engines of packages that serve on devices, around stand-ins with the packages' own interface."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tasks.backends import BackendSpec
from tasks.catalogs.engine import catalog
from tasks.model import Group
from tasks.model.row import Row
from tests.bench.engine_faults import judge_backend
from tests.tasks.fake_serving import make_sglang, make_tensorrt_llm, make_vllm

pytest.importorskip("transformers")

PACKAGES = {"vllm": make_vllm, "sglang": make_sglang, "tensorrtllm": make_tensorrt_llm}
#: Op and variant.
ASKED = [
    *((f"engine:{op}", "llama") for op in ("float64", "recomputed", "padded_left", "prefix_reused", "greedy")),
    ("engine:sampling", "top_k"),
    ("engine:own_answers", "batched"),
]


def judge(name: str, asked: list[tuple[str, str]], cache: Path) -> dict[str, Row]:
    groups = [Group(op, variant, "float32", 1, check=catalog.CHECK) for op, variant in asked]
    backend = BackendSpec.parse(f"{name}-cuda").create()
    try:
        return {row.op: row for row in judge_backend(backend, groups, cache)}
    finally:
        backend.close()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_packages_engine_is_asked_by_its_interface(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make: Callable[..., ModuleType] = PACKAGES[name]
    package = make()
    monkeypatch.setitem(sys.modules, package.__name__, package)
    rows = judge(name, ASKED, cache)
    assert {op: row.status for op, row in rows.items()} == dict.fromkeys((op for op, _ in ASKED), "pass"), rows

    monkeypatch.setitem(sys.modules, package.__name__, make(rolled=True))
    rows = judge(name, [("engine:float64", "llama"), ("engine:padded_left", "llama")], cache)
    assert {op: row.status for op, row in rows.items()} == {"engine:float64": "pass", "engine:padded_left": "wrong"}
