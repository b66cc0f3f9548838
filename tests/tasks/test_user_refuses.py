"""Calls that a kernel is to refuse: a planted kernel that takes them is found, and no reference's mistake blames a sound one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.backends import BackendSpec
from tasks.catalogs import get_catalog, user_definitions
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import UserOp
from tasks.judge import policy_files
from tasks.model import Group
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

SOURCE = """
import numpy as np
import torch

def sound(x, w, k=1):
    if x.shape[1] != w.shape[0] or k < 1:
        raise ValueError("sizes")
    if x.dtype != w.dtype:
        raise TypeError("dtypes")
    return k * (x @ w)

def careless(x, w, k=1):
    n = min(x.shape[1], w.shape[0])
    return k * (x[:, :n] @ w[:n].to(x.dtype))

def nothing(x, w, k=1):
    return x @ w if x.shape[1] == w.shape[0] and x.dtype == w.dtype and k > 0 else None

def right(x, w, k=1):
    if w.dtype.kind != "f" or k < 1:
        raise TypeError("w is to be floating")
    return k * (x @ w)

def lenient(x, w, k=1):
    return x @ w[: x.shape[1]]

def mistaken(x, w, k=1):
    return x @ w if x.shape[1] == w.shape[0] else undefined

def broken(x, w, k=1):
    raise ValueError("always")
"""
INNER, INTEGERS, ARGUMENT = {"w": ["k+1", "n"]}, {"w": {"dtype": "int64"}}, {"k": 0}
FIELDS: dict[str, Any] = {
    "name": "op",
    "dims": {"m": [1, 4], "k": [1, 8], "n": [3]},
    "inputs": {"x": ["m", "k"], "w": ["k", "n"]},
    "kwargs": {"k": 2},
    "refuses": [INNER, INTEGERS, ARGUMENT],
}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """rows(kernel, reference, backend, fields …): status, kind and error of every refused call."""

    def rows(kernel: str, reference: str, backend: str = "torch-cpu", **fields: Any) -> list[tuple[str, str, str]]:
        (tmp_path / "k.py").write_text(SOURCE)
        (tmp_path / "script.py").write_text(SCRIPT)
        named = reference if reference.endswith(".py") else f"k.py:{reference}"
        kernel = FIELDS | {"kernel": f"k.py:{kernel}", "reference": named} | fields
        source = {"at": 0, "root": str(tmp_path), "modules": [], "kernels": [kernel]}
        monkeypatch.setattr(user_definitions, "_told", [json.dumps({"deadline_s": 60.0, "sources": [source]})])
        (entry,) = get_catalog("user").entries()
        assert "refuses" in entry.checks
        made = prepare_group(Group("user:op", "", "float32", 8, 0, "refuses"), tmp_path / "cache")[1]
        on = BackendSpec.parse(backend).create()
        runner = Runner(on, on.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
        found = sorted((d.row for d in runner.run([make_item_of_whole_group(made)])), key=lambda r: r.sample)
        return [(r.status, r.kind, r.error) for r in found]

    return rows


SCRIPT = """
import base64, json, sys
import numpy as np
given = json.load(sys.stdin)
x, w = (np.frombuffer(base64.b64decode(t["data"]), t["dtype"]).reshape(t["shape"]) for t in given["inputs"].values())
if w.dtype.kind != "f" or given["kwargs"]["k"] < 1:
    sys.exit("refused")
y = given["kwargs"]["k"] * (x @ w)
print(json.dumps({"dtype": y.dtype.name, "shape": y.shape, "data": base64.b64encode(y.tobytes()).decode()}))
"""


@pytest.mark.parametrize("reference", ["right", "script.py"])
def test_what_the_reference_refuses_the_kernel_must(rows: Any, reference: str) -> None:
    assert rows("sound", reference) == [("pass", "", "")] * 3
    wrong = ("wrong", "accepted", "it returned a result where the reference raises")
    assert rows("careless", reference) == [wrong] * 3
    assert rows("nothing", reference) == [wrong] * 3, "None is no refusal"


def test_a_compiler_that_leaves_the_raising_to_eager_torch_refuses(rows: Any) -> None:
    assert [x[:2] for x in rows("sound", "right", "inductor-cpu")] == [("pass", "")] * 3
    assert [x[:2] for x in rows("careless", "right", "inductor-cpu")] == [("wrong", "accepted")] * 3


def test_a_reference_s_own_mistakes_blame_no_kernel(rows: Any) -> None:
    for kernel in ("sound", "careless"):
        first, *others = rows(kernel, "mistaken")
        assert first[0] == "invalid" and "name 'undefined' is not defined" in first[2] and "k.py:" in first[2]
        assert all(x[0] == "invalid" and "the reference takes it: let the reference raise" in x[2] for x in others)
        assert all(x[0] == "invalid" and "refuses." in x[2] for x in rows(kernel, "lenient"))
        assert all(x[0] == "invalid" and "always" in x[2] for x in rows(kernel, "broken")), "it takes nothing at all"


@pytest.mark.parametrize(
    ("refuses", "key", "says"),
    [
        ([{}], ("refuses", 0), "what is otherwise of an input or an argument"),
        ([{"wx": ["k"]}], ("refuses", 0, "wx"), "no input and no argument 'wx'; did you mean"),
        ([{"w": ["q", "n"]}], ("refuses", 0, "w", "shape", 0), "unknown dimension 'q'"),
        ([{"w": {"dtype": "flt"}}], ("refuses", 0, "w", "dtype"), "unknown dtype 'flt'"),
        ([{"w": {"shapes": []}}], ("refuses", 0, "w", "shapes"), "unknown key"),
        ({"w": ["k"]}, ("refuses",), "is no list"),
    ],
)
def test_mistakes_of_a_declaration_are_named(refuses: Any, key: tuple[Any, ...], says: str) -> None:
    op = UserOp(kernel="k.py:sound", reference="k.py:right", **(FIELDS | {"refuses": refuses}))
    found = list(list_declaration_mistakes(op))
    assert [k for k, _ in found] == [key] and says in found[0][1]
    good = UserOp(kernel="k.py:sound", reference="k.py:right", **FIELDS)
    assert not list(list_declaration_mistakes(good))
