"""A standalone script says what the farm says: on every class of ops, dtype and policy, and on planted faults."""

from __future__ import annotations

import ast
import contextlib
import io
import math
import os
import re
import subprocess
import sys
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm import lake
from farm.commands.reproduce import main as reproduce
from farm.commands.run import FOUND
from farm.commands.run import main as launch
from farm.reproduce import trial
from farm.reproduce.offending import MOST, offending
from farm.reproduce.script import JUDGE, PROMISES, _policy, generate, import_lines, judge_source
from farm.reproduce.source import EVERY, Data, Source, templates
from farm.reproduce.trial import LABELS
from tasks.backends import BackendSpec
from tasks.catalogs import told
from tasks.judge import verdict
from tasks.judge.meaning import interpret
from tasks.judge.plain import compare
from tasks.judge.policy import OWN_TOLERANCE, Policy, judge, only_stored
from tasks.model import DTYPES, EPS, EXHAUSTIVE, Form, Group, Leaf, OpClass, is_complex, is_inexact, np_dtype, wide
from tests import prepared

POLICIES = {name: verdict.load(name) for name in verdict.names()}
#: Values at which comparing goes astray: zeros, subnormals, ties, the border of overflow, infinities, NaN.
EDGES = [0.0, -0.0, 1.0, -1.0, 1.001, 6e-8, 1e-30, 448.0, 465.0, 3e4, 65504.0, 65519.0, 65520.0, 7e4, -7e4, 3.4e38]
EDGES += [3.5e38, 1e300, np.inf, -np.inf, np.nan]
BACKEND = BackendSpec.parse("torch-cpu").create()


def source(expected: list[Leaf], dtype: str, op_class: OpClass, policy: Policy, oracle: str, precision: str) -> Source:
    """A case of an op that any script can call: what it is called with is not what these tests look at."""
    import torch

    form = Form("torch", "torch:add", dtype, [], torch.add, {"$": "tuple", "v": []}, {"$": "dict", "v": []})
    group = Group("torch:add", "", dtype, 1)
    return Source("", "", BACKEND, "torch", form, expected, group, policy, op_class, oracle, precision, "", "")


def run_script(text: str, actual: list[np.ndarray]) -> tuple[int, dict[str, str]]:
    """Exit code and printed lines of a script whose operation gives ``actual``."""
    module = sys.modules["standalone_script"] = types.ModuleType("standalone_script")
    space: dict[str, Any] = vars(module)
    space["__file__"] = "/nowhere/standalone_script.py"  # whose folder a script takes off the path
    exec(compile(text, "standalone_script", "exec"), space)
    space["run"], space["named"] = lambda: actual, lambda x: space["widened"](np.asarray(x))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = space["main"]()
    return code, {m[1]: m[2] for m in re.finditer(r"^(\w[\w ]{,13}?) {2,}(.*)$", out.getvalue(), re.M)}


def values(dtype: str, shape: tuple[int, ...], g: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(what came out, what was exact): now equal, now near, now at an edge of the dtype."""
    if dtype == "str":
        y = g.choice(np.array(["", "a", "é"], object), shape)
        return np.where(g.random(shape) < 0.7, y, "b").astype(object), y.astype(object)
    if not is_inexact(dtype):
        target = np_dtype(dtype)
        y = g.integers(0, 2**63, shape, dtype=np.uint64).astype(target)
        a = np.where(g.random(shape) < 0.7, y, y[::-1] if y.ndim else y).astype(target)
        return a, y
    y = g.choice(EDGES, shape)
    a = np.where(g.random(shape) < 0.6, y * (1 + g.normal(0, 4 * EPS[dtype], shape)), g.choice(EDGES, shape))
    if is_complex(dtype):
        y, a = y + 1j * g.choice(EDGES, shape), a + 1j * g.choice(EDGES, shape)
    if g.random() < 0.5:
        y = y.astype(np_dtype(dtype)).astype(wide(dtype))
    return a.astype(np_dtype(dtype)), y.astype(wide(dtype))


@pytest.mark.parametrize("op_class", list(OpClass), ids=str)
@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    policy=st.sampled_from(sorted(POLICIES)),
    precision=st.sampled_from(["", "", "bfloat16", "tfloat32", "float8_e4m3fn"]),
    oracle=st.sampled_from(["torch float64", "stored", "metadata", "numpy" + OWN_TOLERANCE]),
    shape=st.sampled_from([(), (0,), (1,), (5,), (2, 3)]),
    given_noise=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_script_says_what_the_farm_says(
    op_class: OpClass,
    dtype: str,
    policy: str,
    precision: str,
    oracle: str,
    shape: tuple[int, ...],
    given_noise: bool,
    seed: int,
) -> None:
    g = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        a, y = values(dtype, shape, g)
        noise = np.abs(g.choice([0.0, 1e-3, 1.0, 1e4, np.inf], shape)) if given_noise and dtype != "str" else None
        own = (0.1, 1e-3) if oracle.endswith(OWN_TOLERANCE) else (None, None)
        leaf = Leaf(dtype, shape, None if oracle == "metadata" else y, noise, *own)
        if op_class is OpClass.MODEL and shape:
            leaf = replace(leaf, meaning=str(g.choice(["", "logits", "probabilities axis 0", "mask above 0.3"])))
        rules, case = POLICIES[policy], ("torch:add", op_class.value, dtype)
        metrics = compare([a], [leaf], op_class, precision)
        if op_class is OpClass.MODEL:
            interpret(metrics, [a], [leaf], op_class, precision, rules.limit_value(*case[:3], precision))
        status, kind = judge(metrics, rules, "torch:add", op_class.value, dtype, oracle, precision)
    code, said = run_script(generate(source([leaf], dtype, op_class, rules, oracle, precision)), [a])
    assert (said["verdict"], said.get("kind", "")) == (status.value, kind)
    assert code == (status.value == "wrong")
    if only_stored(oracle, op_class):
        metrics.error_units = None
    for name, label in LABELS.items():
        wanted = getattr(metrics, name)
        assert label not in said if wanted is None else float(said[label]) == wanted or np.isnan(wanted), (name, said)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("op_class", list(OpClass), ids=str)
def test_the_limits_that_a_script_takes_along_are_those_that_hold(op_class: OpClass, policy: str) -> None:
    whole = POLICIES[policy]
    if whole.rule != "error_units":
        return
    for dtype in DTYPES:
        for precision in ("", "bfloat16", "tfloat32", "float16", "float8_e4m3fn"):
            part = _policy(source([], dtype, op_class, whole, "", precision))
            key = ("torch:add", op_class.value, dtype, precision)
            assert part.limit(*key) == whole.limit(*key) and len(part.limits) < 12


@pytest.mark.parametrize("files", [JUDGE, JUDGE + PROMISES], ids=["judge", "promises"])
def test_the_judge_of_a_script_stands_by_itself(files: tuple[str, ...]) -> None:
    found, text = judge_source(files)
    imports = import_lines(found)
    assert not re.search(
        r"\b(tasks|farm)\b", "\n".join([*imports, text]).replace("of the farm", "").replace("farm's", "")
    )
    names = Counter(node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    assert set(names.values()) == {1}, "a name that stands twice would hide the first"
    code = "\n".join([*imports, "import numpy as np, sys", "import enum", "sys.modules['ml_dtypes'] = None"])
    code += "\nStatus = enum.Enum('Status', [('PASS', 'pass'), ('WRONG', 'wrong')], type=str)\n" + text
    code += "\nprint(compare([np.array([np.inf])], [Leaf('bfloat16', (1,), np.array([3e38]))], dtypes=['bfloat16']))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "nonfinite=0" in done.stdout, done.stderr


KERNELS = """
def right(x, y): return x + y
def off_by_one(x, y): return x + y + 1
"""
CONFIG = """
catalogs:
- name: user
  samples: 2
  kernels:
  - {name: add, kernel: "k.py:off_by_one", reference: "k.py:right", dims: {n: [5]}, inputs: {x: [n], y: [n]},
     dtypes: [int32], class: CLASS}
backends: [torch-cpu]
"""


@pytest.mark.parametrize("op_class", ["elementary", "composite", "exact"])
def test_an_integer_that_is_off_by_one_is_wrong_in_the_farm_and_in_its_script(
    op_class: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told, "_told", [""])
    monkeypatch.setattr(trial, "subprocess", prepared.SUBPROCESS)
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "k.py").write_text(KERNELS)
    (tmp_path / "c.yaml").write_text(CONFIG.replace("CLASS", op_class))
    results, script = str(tmp_path / "results"), tmp_path / "s.py"
    assert launch([str(tmp_path / "c.yaml"), "--inline", "--results", results]) == FOUND
    rows = lake.read(results)
    assert set(rows["status"]) == {"wrong"} and set(rows["dtype"]) == {"int32"}
    assert reproduce([f"last:{rows['case_id'].iloc[0]}:torch-cpu", "--results", results, "--script", str(script)]) == 0
    assert "shows the failure (wrong) with the same numbers" in capsys.readouterr().out
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = prepared.run([sys.executable, "-I", str(script)], cwd="/", env=env)
    assert done.returncode == 1 and re.search("^verdict +wrong$", done.stdout, re.M), done.stderr


def test_every_value_of_a_dtype_is_made_by_the_script_and_nothing_else_is() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    other = every.copy()
    other[7] = 1.0
    data = Data()
    for array in (every, every.view(np.int16).reshape(256, 256), np.arange(256, dtype=np.uint8), other, every[:-1]):
        data.add(array)
    assert [size == EVERY for *_, size in data.index] == [True, True, True, False, False]
    source = templates().get_template("script.py.j2")
    text = Path(str(source.filename)).read_text()
    made: dict[str, Any] = {"np": np, "math": math, "DATA": b"".join(data.chunks), "ARRAYS": data.index}
    exec(
        text[
            text.index("def array(i):") : text.index("return np.frombuffer")
            + len("return np.frombuffer(bytes_, dtype).reshape(shape).copy()")
        ],
        made,
    )
    for k, array in enumerate((every, every.view(np.int16).reshape(256, 256), np.arange(256, dtype=np.uint8), other)):
        assert made["array"](k).tobytes() == array.tobytes() and made["array"](k).shape == array.shape


def test_a_script_shows_what_mathematics_promises_and_a_kernel_breaks() -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        exact = np.tanh(x.astype(np.float64))
    right = exact.astype(np.float16)
    wrong = right.copy()
    at = int(np.flatnonzero(x == 0.75)[0])
    wrong[at : at + 2] = np.nextafter(right[at : at + 2], np.float16([1, 0]))  # within the limit, and not rising
    leaf = Leaf("float16", x.shape, exact, np.zeros(x.shape))
    made = source([leaf], "float16", OpClass.ELEMENTARY, POLICIES["error_units"], "", "")
    made = replace(made, group=replace(made.group, op="torch:tanh"), promised=(x,))
    shown = [run_script(generate(made), [actual])[1] for actual in (right, wrong)]
    assert [x["verdict"] for x in shown] == ["pass", "imprecise"] and "not rising: f(" in shown[1]["breaks"], shown


def test_of_every_input_a_script_holds_those_that_are_furthest_off() -> None:
    x = np.linspace(1, 2, 1000).astype(np.float32)
    leaf = Leaf("float32", x.shape, np.exp(x.astype(np.float64)), np.zeros(x.shape))
    right = np.exp(x)
    wrong = right.copy()
    wrong[[7, 9]] *= np.float32([1.01, 1.1])
    row = {"status": "wrong", "limit": 4.0}
    policy = POLICIES["error_units"]
    made = replace(source([leaf], "float32", OpClass.ELEMENTARY, policy, "", ""), actual=[wrong])
    made.form.arrays.append(x)
    every = replace(made, group=replace(made.group, distribution=EXHAUSTIVE))
    few = offending(every, row)
    assert few is not None and few.form.arrays[0].tolist() == [x[9], x[7]] * (MOST // 2)
    [held] = few.expected
    assert held.shape == (MOST,) and held.reference is not None and leaf.reference is not None
    assert held.reference[:2].tolist() == [leaf.reference[9], leaf.reference[7]]
    # What is right, what is no exhaustive case, and what is wrong in no element are left whole.
    assert offending(replace(every, actual=[right]), row) is None and offending(made, row) is None
    assert offending(every, {**row, "status": "error"}) is None
