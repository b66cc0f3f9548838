"""The user catalog: kernels with a planted fault each get the row that says so, references that fail are invalid."""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import catalogs, user_sources
from tasks.backends import BackendSpec
from tasks.catalogs import user_definitions
from tasks.catalogs.base import CatalogError
from tasks.catalogs.user import kernel_samples, reference_scripts
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import UserOp
from tasks.gradients.autograd import DeclaredOnce
from tasks.judge import policy_files
from tasks.judge.policy import GROSS
from tasks.model import Group, OpClass
from tasks.prepare.cases import make_pack_key, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

FIELDS: dict[str, Any] = {
    "name": "op",
    "kernel": "k.py:kernel",
    "reference": "k.py:reference",
    "inputs": {"x": ["n"]},
    "dims": {"n": [3, 40]},
}
HEAD = "import numpy as np\nimport torch\nimport tasks\n"


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """declare(source of k.py, fields of the kernel …): the definitions of this process."""

    def declare(source: str, *modules: str, deadline_s: float = 60.0, **fields: Any) -> None:
        (tmp_path / "k.py").write_text(HEAD + source)
        kernels = [] if modules else [FIELDS | fields]
        given = {
            "deadline_s": deadline_s,
            "sources": [{"at": 0, "root": str(tmp_path), "modules": modules, "kernels": kernels}],
        }
        monkeypatch.setattr(user_definitions, "_told", [json.dumps(given)])

    return declare


def rows(
    cache: Path, dtype: str = "float32", count: int = 2, policy: str = "error_units", **group: Any
) -> list[dict[str, Any]]:
    """The rows of the op's first samples on torch-cpu."""
    _, made = prepare_group(Group("user:op", "", dtype, count, **group), cache)
    backend = BackendSpec.parse("torch-cpu").create()
    runner = Runner(backend, backend.probe(), policy_files.load_policy(policy), lambda number, stage, span: None)
    return [done.row.values() for done in runner.run([make_item_of_whole_group(made)])]


def outcome(cache: Path, **how: Any) -> set[tuple[str, str]]:
    return {(row["status"], row["kind"]) for row in rows(cache, **how)}


RIGHT = "def reference(x): return 2 * x\n"


@pytest.mark.parametrize(
    ("kernel", "kind", "says"),
    [
        ("def kernel(x): return x * 2", "", ""),
        ("def kernel(x): return x * 3", "numbers", ""),
        ("def kernel(x): return (x * 2).double()", "dtype", "float64, expected float32"),
        ("def kernel(x): return (x * 2)[None]", "shape", "(1, 3), expected (3,)"),
        ("def kernel(x): pass", "structure", "the kernel returned None"),
        ("def kernel(x): return 1.5", "structure", "the Python float 1.5"),
        ("def kernel(x): return [x * 2]", "structure", "a list of 1"),
        ("def kernel(x): return (x * 2).tolist()", "structure", "a list of"),
        (
            "def kernel(x): return (x * 2).numpy()",
            "structure",
            "declare framework: numpy, or return torch.from_numpy(result)",
        ),
        ("def kernel(x): return x * 2, None", "structure", "None as output 1"),
        ("def kernel(x): return x * 2, x * 2", "structure", "2 outputs, expected 1"),
        ("def kernel(x): return x.mul_(2).clone()", "mutation", "changed its input x (declare mutates: [x]"),
        (
            "def kernel(x): y = x * 2; x.zero_(); x += y / 2; x[0] = -0.0 if x[0] == 0 else x[0].nextafter(x[0] * 2); return y",
            "mutation",
            "x",
        ),
        ("calls = []\ndef kernel(x): calls.append(1); return x * 2 + len(calls) * 1e-7", "nondeterministic", "2 runs"),
    ],
)
def test_what_a_kernel_can_do_wrong(declare: Any, cache: Path, kernel: str, kind: str, says: str) -> None:
    declare(RIGHT + kernel)
    found = rows(cache)
    assert {(r["status"], r["kind"]) for r in found} == {("wrong" if kind else "pass", kind)}
    assert all(says in r["error"] for r in found if r["sample"] == 0)


#: An array as jax.numpy returns one.
FOREIGN = """
class Array:
    def __init__(self, x): self.x = x
    def __array__(self, *args, **kwargs): return self.x

"""


@pytest.mark.parametrize(
    ("returned", "fix"),
    [
        ("Array(x * 2)", "return numpy.asarray(result)"),
        ("(x * 2, Array(x))", "return numpy.asarray(result)"),
        ("torch.from_numpy(x * 2)", "declare framework: torch, or return result.numpy()"),
        ("Array(x * 2).__array__()", ""),
    ],
)
def test_an_array_of_another_framework_is_told_with_its_place_and_the_fix(
    declare: Any, cache: Path, returned: str, fix: str
) -> None:
    source = f"{RIGHT}{FOREIGN}import torch\ndef kernel(x): return {returned}"
    declare(source, framework="numpy")
    found = rows(cache)
    assert {(r["status"], r["kind"]) for r in found} == {("wrong", "structure") if fix else ("pass", "")}
    line = (HEAD + source).count("\n") + 1
    assert all(r["error"].endswith(f"; k.py:{line}: {fix}") for r in found if fix)


def test_an_output_in_the_memory_of_an_input(declare: Any, cache: Path) -> None:
    source = "def reference(x): return x[1:]\ndef kernel(x): return x[1:]\n"
    declare(source)
    assert outcome(cache) == {("wrong", "aliasing")}
    declare(source, aliases=True)
    assert outcome(cache) == {("pass", "")}


def test_an_input_that_may_be_written_to_is_fresh_in_every_run(declare: Any, cache: Path) -> None:
    declare(RIGHT + "def kernel(x): return x.mul_(2).clone()", mutates=["x"], repeats=3)
    assert outcome(cache) == {("pass", "")}


def test_a_kernel_that_raises_is_an_error(declare: Any, cache: Path) -> None:
    for raised, name, text in (
        ("raise RuntimeError('no such block')", "RuntimeError", "no such block"),
        ("torch.ones(2) @ torch.ones(3)", "RuntimeError", "size"),
        ("import sys; sys.exit(4)", "SystemExit", "the kernel called sys.exit(4)"),
    ):
        declare(RIGHT + f"def kernel(x): {raised}")
        (row,) = rows(cache, count=1)
        assert (row["status"], row["stage"], row["error_type"]) == ("error", "run", name)
        assert text in row["error"] and row["error"].endswith("k.py:5)")


@pytest.mark.parametrize(
    ("invariant", "kernel", "says"),
    [
        ("non_negative", "-x.abs() - 1", "40 of 40 elements are negative"),
        ("no_nan", "torch.where(x == x.max(), torch.nan, x)", "1 of 40 elements are NaN"),
        ("no_inf", "torch.where(x == x.max(), torch.inf, x)", "infinite"),
        ("shape_preserved", "x[1:].clone()", "shape (39,), that of x is (40,)"),
        ("sums_to_one", "torch.softmax(x, -1) * 1.001", "1 of 1 sums are not 1, first 1.00"),
        ({"sums_to_one": 0}, "x[:, None] * 0", "sums are not 1"),
        ({"sums_to_one": 2}, "x * 2", "no axis 2"),
        ({"bounded": [-1, 1]}, "x * 0 + 1.5", "outside [-1, 1], first 1.5"),
        ("sorted", "torch.sort(x, descending=True)[0]", "39 of 39"),
    ],
)
def test_invariants(declare: Any, cache: Path, invariant: Any, kernel: str, says: str) -> None:
    declare(f"def reference(x): return x\ndef kernel(x): return {kernel}", dims={"n": [40]}, invariants=[invariant])
    (row,) = rows(cache, count=1)
    name = invariant if isinstance(invariant, str) else next(iter(invariant))
    assert (
        (row["status"], row["kind"]) == ("wrong", "invariant")
        and row["error"].startswith(f"{name}: ")
        and says in row["error"]
    )
    assert row["classic"] is not None  # its numbers are measured all the same


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_a_right_softmax_keeps_its_invariants(declare: Any, cache: Path, dtype: str) -> None:
    declare(
        "def reference(x): e = np.exp(x - x.max()); return e / e.sum()\ndef kernel(x): return torch.softmax(x, -1)",
        dtypes=[dtype],
        dims={"n": [3, 2000]},
        invariants=["sums_to_one", "non_negative", "no_nan", {"bounded": [0, 1]}, "shape_preserved"],
    )
    assert outcome(cache, dtype=dtype) == {("pass", "")}
    assert outcome(cache, dtype=dtype, distribution="nan") == {("pass", "")}  # NaN in excuses NaN out


@pytest.mark.parametrize(
    ("reference", "kernel", "expected"),
    [
        ("e = np.exp(x - x.max()); return e / e.sum()", "torch.softmax(x, -1) * 1.00001", {("pass", "")}),
        ("e = np.exp(x - x.max()); return e / e.sum()", "torch.softmax(x, -1) * 1.05", {("wrong", "invariant")}),
        ("return x * 2", "x * 2", {("wrong", "invariant")}),
    ],
)
def test_an_invariant_is_as_strict_as_the_policy(
    declare: Any, cache: Path, reference: str, kernel: str, expected: set[tuple[str, str]]
) -> None:
    """What rounding the inputs once moves further keeps a promise; what the reference breaks as well, breaks it."""
    wide = {"shape": ["n"], "low": -1000, "high": 1000}
    declare(
        f"def reference(x): {reference}\ndef kernel(x): return {kernel}",
        inputs={"x": wide},
        dims={"n": [1000]},
        op_class="normalisation",
        invariants=["sums_to_one"],
    )
    assert {(row["status"], row["kind"]) for row in rows(cache)} == expected


STEEP = """
def reference(x): return np.sin(x)
def right(x): return torch.sin(x)
def kernel(x):
    turn = torch.tensor(6.2831855)  # two π in float32: the error grows with the number of turns
    return torch.sin(x - torch.round(x / turn) * turn)
"""


@pytest.mark.parametrize("kernel", ("kernel", "right"))
def test_where_noise_excuses_nearly_any_result_a_pass_is_no_evidence(declare: Any, cache: Path, kernel: str) -> None:
    """sin at 1e5 as the default composite: rounding the inputs moves it by the size of the result, whatever it is."""

    def found(op_class: str, first: float) -> set[tuple[str, bool, bool]]:
        values = [first * (1 + k / 977) for k in range(200)]
        steep = {"shape": ["n"], "data": values}
        declare(STEEP, inputs={"x": steep}, dims={"n": [100, 200]}, op_class=op_class, kernel=f"k.py:{kernel}")
        return {(row["status"], row["weak"], row["excused"] >= GROSS) for row in rows(cache)}

    assert found("composite", 1e5) == {("pass", True, True)}
    # Elementary: the inputs are given exactly, so it is evidence either way.
    assert found("elementary", 1e5) == {("wrong" if kernel == "kernel" else "pass", False, False)}
    assert found("composite", 1.0) == {("pass", False, False)}


# --- references ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("return None", "returned None"),
        ("return 'two'", "a builtins.str, not a NumPy array"),
        ("return torch.tensor(x)", "torch.Tensor, not a NumPy array"),
        ("return ()", "no outputs"),
        ("return np.float32(x)", "the reference returned float32 for float64 inputs: compute in float64"),
        ("return np.array(['a'])", "not of numbers"),
        ("return 1 / 0", "division by zero ("),
        ("import sys; sys.exit(3)", "3"),
    ],
)
def test_a_reference_that_is_none(declare: Any, cache: Path, reference: str, says: str) -> None:
    declare(f"def reference(x): {reference}\ndef kernel(x): return x")
    assert [(r["status"], r["stage"]) for r in rows(cache)] == [("invalid", "reference")] * 2
    assert says in rows(cache)[0]["error"]


@pytest.mark.parametrize("value", ("x * np.nan", "x * 0 + np.inf"))
def test_a_reference_that_is_nowhere_finite(declare: Any, cache: Path, value: str) -> None:
    declare(f"def reference(x): return {value}\ndef kernel(x): return {value.replace('np', 'torch')}")
    small, large = rows(cache)  # of three elements all may be NaN by chance
    assert (small["status"], large["status"]) == ("pass", "invalid") and "everywhere on finite inputs" in large["error"]


def test_a_reference_of_integers_may_be_narrow(declare: Any, cache: Path) -> None:
    source = "def reference(x): return (x * 0.5).astype(np.float32)\ndef kernel(x): return x * 0.5"
    declare(source, dtypes=["int8"])
    assert outcome(cache, dtype="int8") == {("pass", "")}


def test_a_reference_of_another_shape_than_declared(declare: Any, cache: Path) -> None:
    declare("def reference(x): return x[1:]\ndef kernel(x): return x", outputs=[{"shape": ["n"]}])
    assert {r["error"].partition(" (/")[0] for r in rows(cache)} >= {
        "the reference returned shape (2,) for output 0, declared is (3,)"
    }
    assert outcome(cache) == {("invalid", "")}


def test_a_reference_that_writes_to_its_inputs_spoils_nothing(declare: Any, cache: Path) -> None:
    declare("def reference(x): x *= 2; return x\ndef kernel(x): return x * 2")
    assert outcome(cache) == {("pass", "")}


SCRIPT = """
import base64, json, sys
import numpy as np
request = json.loads(sys.stdin.read())
x = request["inputs"]["x"]
x = np.frombuffer(base64.b64decode(x["data"]), np.dtype(x["dtype"])).reshape(tuple(x["shape"]))
y = np.ascontiguousarray(x * request["kwargs"].get("scale", 2))
tensor = {"data": base64.b64encode(y.tobytes()).decode("ascii"), "dtype": str(y.dtype), "shape": list(y.shape)}
"""


@pytest.mark.parametrize(
    "end", ('json.dump({"outputs": {"y": tensor}}, sys.stdout)', "print(json.dumps(tensor)); sys.exit(0)")
)
def test_a_reference_script(declare: Any, cache: Path, tmp_path: Path, end: str) -> None:
    (tmp_path / "r.py").write_text(SCRIPT + end)
    declare("def kernel(x, scale): return x * scale", reference="r.py", kwargs={"scale": 3.0}, dtypes=["bfloat16"])
    found = rows(cache, "bfloat16")
    assert {(r["status"], r["oracle"]) for r in found} == {("pass", "script")}
    assert all(r["noise_floor"] > 0 for r in found)
    declare("def kernel(x, scale): return x * scale * 4", reference="r.py", kwargs={"scale": 3.0}, dtypes=["bfloat16"])
    assert outcome(cache, dtype="bfloat16") == {("wrong", "numbers")}


@pytest.mark.parametrize(("low", "found"), [("lo @ v.T", {("pass", "")}), ("0", {("wrong", "numbers")})])
def test_a_reference_that_rounds_by_hand_leaves_noise_to_what_is_computed_of_that(
    declare: Any, cache: Path, low: str, found: set[tuple[str, str]]
) -> None:
    """No draw moves x across a step of bfloat16: without its own noise the product is to be right to the last of its
    terms, which cancel."""
    source = f"""
def rounded(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
def reference(x, w):
    hi, v = rounded(x), rounded(w)
    lo, u = rounded(x - hi), rounded(w - v)
    return hi @ v.T + hi @ u.T + lo @ v.T
def kernel(x, w):
    hi, v = x.bfloat16().float(), w.bfloat16().float()
    lo, u = (x - hi).bfloat16().float(), (w - v).bfloat16().float()
    return hi @ v.T + hi @ u.T + {low}
"""
    rng = np.random.default_rng(0)
    x = 5550.02 + 2.0**-9 * rng.integers(0, 4, (2, 64))
    w = rng.permuted(np.repeat([[1e12] * 20 + [-1e12] * 20 + [0.5] * 12 + [3.0] * 12], 4, axis=0), axis=1)
    w[3] = np.abs(w[3])  # of which something is left
    data = {name: {"shape": list(a.shape), "data": a.reshape(-1).tolist()} for name, a in (("x", x), ("w", w))}
    declare(source, inputs=data, dims={}, op_class="contraction")
    assert outcome(cache) == found


@pytest.mark.parametrize(("keys", "found"), [(57, {("pass", "")}), (56, {("wrong", "numbers")})])
def test_a_tie_of_keys_whose_values_are_of_many_magnitudes(declare: Any, cache: Path, keys: int, found: Any) -> None:
    """Rounding decides whose values a query gets: no draw need have met those, and none is as large as the largest of
    the row."""
    source = f"""
def reference(q, k, v):
    s = q @ k.T / 4
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
def kernel(q, k, v): return torch.softmax(q @ k[:{keys}].T / 4, -1) @ v[:{keys}]
"""
    rng = np.random.default_rng(2)
    q = rng.standard_normal((24, 16)) * np.where(np.arange(24) < 4, 1e-3, 1e15)[:, None]
    k = 5879 + rng.uniform(0, 0.01, (57, 16))
    v = 10.0 ** rng.uniform(-17, 17, (57, 16)) * rng.choice([-1, 1], (57, 16))
    v[-1] = 1e10 * np.arange(1, 17)
    arrays = {"q": q, "k": k, "v": v}
    data = {name: {"shape": list(a.shape), "data": a.reshape(-1).tolist()} for name, a in arrays.items()}
    declare(source, inputs=data, dims={}, op_class="composite")
    assert outcome(cache, count=1) == found


@pytest.mark.parametrize(
    ("kernel", "passes"),
    [
        ("y - torch.log1p(y.sort(-1).values[:, :-1].exp().sum(-1, keepdim=True))", True),
        ("y - y.exp().sum(-1, keepdim=True).log()", False),
        ("y - torch.log1p(y.sort(-1).values[:, :-1].exp().sum(-1, keepdim=True) * 1.001)", False),
    ],
    ids=["log1p", "log of sum", "a part in a thousand"],
)
def test_of_what_float64_has_lost_nothing_is_asked(declare: Any, cache: Path, kernel: str, passes: bool) -> None:
    """Of 1 + 2.6e-14 the reference has two digits; of 1 + 1.4e-11 it has all that are asked for."""
    source = f"""
def reference(x):
    top = x.max(-1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
def kernel(x):
    y = x - x.amax(-1, keepdim=True)
    return {kernel}
"""
    data = [32, 0.125, -2, -2048, -0.25, -8, 70, 0.125, -2, 0.5, 0.25, -8, 25, 0.125, -2, 0.5, 0.25, -8]
    declare(source, inputs={"x": {"shape": [3, 6], "data": data}}, dims={}, op_class="normalisation")
    statuses = {row["status"] for row in rows(cache, count=1)}
    assert statuses == {"pass"} if passes else statuses <= {"imprecise", "wrong"}


@pytest.mark.parametrize(("factor", "status"), [("1", "pass"), ("1.001", "wrong")])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_maximum_in_the_reference_leaves_a_floor_that_judges(
    declare: Any, cache: Path, framework: str, factor: str, status: str
) -> None:
    """Its backward pass looks for what is equal to the maximum: where nothing was any more, every draw was NaN, and all
    passed."""
    source = f"""
def reference(x):
    e = {"np" if framework == "numpy" else "torch"}.exp(x - x.max({"-1, keepdims=True" if framework == "numpy" else "-1, keepdim=True).values * (1.0"}))
    return e / e.sum(-1, keepdims=True)
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1); ctx.save_for_backward(y); return y.clone()
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return {factor} * y * (g - (g * y).sum(-1, keepdim=True))
def kernel(x): return Op.apply(x)
"""
    declare(source, gradient=["x"], op_class="normalisation", reference_framework=framework, inputs={"x": ["n", 5]})
    found = rows(cache, check="backward")
    assert {r["status"] for r in found} == {status} and all(r["noise_floor"] < 1e-3 for r in found)


def test_a_kernel_that_is_its_own_reference_is_held_against_differences(declare: Any, cache: Path) -> None:
    """Its own autograd would agree with it, however wrong."""
    source = """
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x); return torch.tanh(x)
    @staticmethod
    def backward(ctx, g): return g * FACTOR * (1 - torch.tanh(ctx.saved_tensors[0]) ** 2)
def kernel(x): return Op.apply(x)
"""
    how = {"reference": "k.py:kernel", "reference_framework": "torch", "gradient": ["x"]}
    for check in ("backward", "double_backward"):
        declare(source.replace("FACTOR", "1"), **how)
        found = rows(cache, check=check)
        assert {r["status"] for r in found} == {"pass"}
        assert all(r["by_differences"] is True for r in found)
    declare(source.replace("FACTOR", "1.001"), **how)
    assert outcome(cache, check="backward") == {("wrong", "numbers")}


def test_the_gradient_of_a_reference_that_casts_has_no_differences(declare: Any, cache: Path) -> None:
    """Between its steps it is constant, and at a step it has no slope: autograd takes the cast for what it rounds."""
    source = """
def cast(x): return torch.tanh(x).to(torch.bfloat16).to(x.dtype) * 2
def kernel(x): return torch.tanh(x).bfloat16().float() * FACTOR
"""
    how = {"reference": "k.py:cast", "reference_framework": "torch", "gradient": ["x"]}
    declare(source.replace("FACTOR", "2"), **how)
    found = rows(cache, check="backward")
    assert {r["status"] for r in found} == {"pass"}
    assert all("the reference rounds where it casts" in r["no_second_oracle"] for r in found)
    declare(source.replace("FACTOR", "2.01"), **how)
    assert outcome(cache, check="backward") == {("wrong", "numbers")}


def test_the_gradient_of_a_reference_script_is_by_differences(
    declare: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    init = reference_scripts._ScriptProcess.__init__

    def counted(self: reference_scripts._ScriptProcess, script: Path, end: float) -> None:
        started.append(script)
        init(self, script, end)

    monkeypatch.setattr(reference_scripts._ScriptProcess, "__init__", counted)
    (tmp_path / "r.py").write_text(SCRIPT.replace("x * request", "np.tanh(x) * request") + "print(json.dumps(tensor))")
    source = """
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x); return torch.tanh(x) * 2
    @staticmethod
    def backward(ctx, g): return g * FACTOR * (1 - torch.tanh(ctx.saved_tensors[0]) ** 2)
def kernel(x): return Op.apply(x)
"""
    declare(source.replace("FACTOR", "2"), reference="r.py", gradient=["x"], dims={"n": [3, 8]})
    found = rows(cache, check="backward")
    assert {(r["status"], r["oracle"]) for r in found} == {("pass", "finite differences")}
    assert len(started) == len(found)  # one process a sample
    assert all(r["noise_floor"] > 0 for r in found)
    declare(source.replace("FACTOR", "2.001"), reference="r.py", gradient=["x"], dims={"n": [3, 8]})
    assert outcome(cache, check="backward") == {("wrong", "numbers")}
    (row,) = rows(cache, count=1, check="double_backward")
    assert row["status"] == "vacuous" and "it is a script" in row["error"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "import time; print('thinking', file=sys.stderr, flush=True); time.sleep(60)",
            "took longer than 5 s\nthinking",
        ),
        (
            "import os, signal; print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGSEGV)",
            "died of signal 11\nlast words",
        ),
        (
            "raise ValueError('negative width')",
            'ended with exit code 1\nTraceback (most recent call last):\n  File "{r}", line 9, in <module>\n',
        ),
        ("raise ValueError('negative width')", "ValueError: negative width"),
        ("sys.exit('no input')", "exit code 1\nno input"),
        ("print('hello')", "stdout is no JSON: 'hello"),
        ("pass", "stdout is no JSON: ''"),
        ("print('{\"outputs\": {}}')", "wrote no outputs"),
        ("tensor['shape'] = [7, 7]; print(json.dumps(tensor))", "are no float64 of shape [7, 7]"),
        ("tensor['dtype'] = 'flaot'; print(json.dumps(tensor))", "unknown dtype 'flaot'"),
        ("tensor['dtype'] = 'object'; print(json.dumps(tensor))", "is no number"),
        ("print('[1, 2]')", "a tensor is"),
    ],
)
def test_a_script_that_gives_nothing(declare: Any, cache: Path, tmp_path: Path, script: str, says: str) -> None:
    (tmp_path / "r.py").write_text(SCRIPT + script)
    declare("def kernel(x): return x", reference="r.py", deadline_s=5.0)
    (row,) = rows(cache, count=1)
    assert (row["status"], row["stage"], row["error_type"]) == (
        "invalid",
        "reference",
        "ReferenceError",
    ) and says.replace("{r}", str(tmp_path / "r.py")) in row["error"]


def test_tensors_of_scripts() -> None:
    for x in (np.arange(6.0).reshape(2, 3).T, np.float64(3), np.array([], np.int64), np.array([True]), np.array([1j])):
        assert (
            reference_scripts.decode_script_tensor(reference_scripts.encode_script_tensor(np.asarray(x))).tolist()
            == np.asarray(x).tolist()
        )
    data = base64.b64encode(np.ones(2).tobytes()).decode()
    assert [
        y.tolist()
        for y in reference_scripts.decode_script_outputs(
            json.dumps({"outputs": {k: {"dtype": "float64", "shape": [2], "data": data} for k in "ba"}})
        )
    ] == [[1, 1]] * 2


# --- samples ------------------------------------------------------------------------------------------------------


def test_sizes_are_spread_over_the_candidates() -> None:
    op = UserOp("op", "", "", {"x": ["a", "b"]}, {"a": [5, 1, 300], "b": [7, 64]})
    found = kernel_samples.list_sample_sizes(op, 0, 12)
    assert found[:2] == [{"a": 1, "b": 7}, {"a": 300, "b": 64}]
    assert len({tuple(d.values()) for d in found[:6]}) == 6 and sorted(map(str, found[:6])) == sorted(
        map(str, found[6:])
    )
    wide = UserOp("op", "", "", {"x": ["a", "b"]}, {"a": list(range(1, 100)), "b": list(range(1, 100))})
    assert {d["a"] for d in kernel_samples.list_sample_sizes(wide, 0, 110)} == set(range(1, 100))
    assert (
        kernel_samples.list_sample_sizes(wide, 1, 5)[2:]
        != kernel_samples.list_sample_sizes(wide, 0, 5)[2:]
        == kernel_samples.list_sample_sizes(wide, 0, 9)[2:5]
    )
    assert kernel_samples.list_sample_sizes(op, 0, 3, lambda d: d["a"] < 5) == [
        {"a": 1, "b": 7},
        {"a": 1, "b": 64},
        {"a": 1, "b": 7},
    ]


def test_inputs_are_of_the_schema(declare: Any) -> None:
    fields = {
        "x": ["n", 2],
        "i": {"shape": ["n"], "dtype": "int64", "low": 0, "high": "n"},
        "s": {"shape": [], "low": 2.5, "high": 3},
        "d": {"shape": [5], "data": [1, -2]},
    }
    op = UserOp("op", "", "", fields, {"n": [40]}, dtypes=["float16"])
    made = kernel_samples.make_sample_arrays(op, {"n": 40}, Group("user:op", "", "float16", 1), 0)
    assert {k: (x.shape, x.dtype.name) for k, x in made.items()} == {
        "x": ((40, 2), "float16"),
        "i": ((40,), "int64"),
        "s": ((), "float16"),
        "d": ((5,), "float16"),
    }
    assert (
        made["i"].min() >= 0
        and 30 < made["i"].max() < 40
        and 2.5 <= made["s"] <= 3
        and made["d"].tolist() == [1, -2, 1, -2, 1]
    )
    again = kernel_samples.make_sample_arrays(op, {"n": 40}, Group("user:op", "", "float16", 9), 0)
    assert all(made[k].tobytes() == again[k].tobytes() for k in made)
    assert (
        made["x"].tobytes()
        != kernel_samples.make_sample_arrays(op, {"n": 40}, Group("user:op", "", "float16", 1, seed=1), 0)[
            "x"
        ].tobytes()
    )
    with_nan = kernel_samples.make_sample_arrays(
        op, {"n": 40}, Group("user:op", "", "float16", 1, distribution="nan"), 0
    )
    assert np.isnan(with_nan["x"]).any() and not np.isnan(with_nan["s"]).any()


def test_outputs_have_the_dtype_declared(declare: Any, cache: Path) -> None:
    source = (
        "def reference(x): return x.max(), x.argmax(), x > 0\ndef kernel(x): return x.max(), x.argmax().int(), x > 0"
    )
    declare(source, op_class="exact", outputs=["float32", "int32"])
    assert outcome(cache) == {("pass", "")}
    declare(source, op_class="exact")
    assert outcome(cache) == {("wrong", "dtype")}


def test_a_kernel_of_numpy_arrays(declare: Any, cache: Path) -> None:
    declare(RIGHT + "def kernel(x): return x * x.dtype.type(2)", framework="numpy", dtypes=["bfloat16", "float32"])
    assert outcome(cache) == outcome(cache, dtype="bfloat16") == {("pass", "")}
    declare(RIGHT + "def kernel(x): x *= 2; return x.copy()", framework="numpy")
    assert outcome(cache) == {("wrong", "mutation")}
    declare("def reference(x): return x\ndef kernel(x): return x[:]", framework="numpy")
    assert outcome(cache) == {("wrong", "aliasing")}
    declare("def reference(x): return x\ndef kernel(x): return x.tolist()", framework="numpy")
    assert outcome(cache) == {("wrong", "structure")}


def test_an_own_tolerance_alone_decides(declare: Any, cache: Path) -> None:
    coarse = RIGHT + "def kernel(x): return x * 2.001"
    declare(coarse, tolerances={"float32": {"rtol": 1e-2, "atol": 0}})
    assert outcome(cache) == {("pass", "")} and rows(cache)[0]["oracle"] == "function"
    assert rows(cache)[0]["own_tolerance"] is True
    declare(coarse, tolerances={"float16": {"rtol": 1e-2, "atol": 0}})
    assert outcome(cache) == {("wrong", "numbers")}
    declare(RIGHT + "def kernel(x): return x * 2", tolerances={"float32": {"rtol": 0, "atol": 0}})
    assert outcome(cache) == {("pass", "")}
    declare(coarse, tolerances={"float32": {"rtol": 1e-4, "atol": 0}})
    assert outcome(cache) == {("wrong", "numbers")} == outcome(cache, policy="classic")
    # Sixteen spacings are nothing to the policy, and too much for an author who says so.
    near = RIGHT + "def kernel(x): return x * 2 * (1 + 16 * 2.0**-23)"
    declare(near)
    assert outcome(cache) == {("pass", "")}
    declare(near, tolerances={"float32": {"rtol": 1e-7, "atol": 0}})
    assert outcome(cache) == {("wrong", "tolerance")} and outcome(cache, policy="classic") == {("wrong", "numbers")}
    said = rows(cache)[0]
    assert re.fullmatch(r"outside its tolerance \(rtol 1e-07, atol 0\): \d+ of \d+ elements", said["error"]), said[
        "error"
    ]


def test_a_tolerance_asks_for_no_more_than_float32_can_do(declare: Any, cache: Path) -> None:
    source = (
        "def reference(x): return x.sum(-1)\ndef right(x): return x.sum(-1)\ndef kernel(x): return x.sum(-1) * 1.001"
    )
    fields = {"tolerances": {"float32": {"rtol": 1e-9, "atol": 0}}, "inputs": {"x": ["n", 2000]}}
    declare(source, kernel="k.py:right", **fields)
    assert outcome(cache) == {("pass", "")}
    declare(source, **fields)
    assert {status for status, _ in outcome(cache)} == {"wrong"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_no_tolerance_is_narrower_than_the_dtype(declare: Any, cache: Path, dtype: str) -> None:
    none = {"tolerances": {dtype: {"rtol": 0, "atol": 0}}, "dtypes": [dtype], "op_class": "elementary"}
    source = "def reference(x): return x / 3\n"
    declare(source + "def kernel(x): return (x.double() / 3).to(x.dtype)", **none)
    assert outcome(cache, dtype=dtype) == {("pass", "")}  # the reference, rounded
    declare(source + "def kernel(x): return torch.nextafter((x.double() / 3).to(x.dtype), x)", **none)
    assert outcome(cache, dtype=dtype) == {("wrong", "tolerance")}


def test_gradients(declare: Any, cache: Path) -> None:
    source = """
def reference(x, w): return np.tanh(x) * w
def kernel(x, w):
    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w); return torch.tanh(x) * w
        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * w * (1 - torch.tanh(x) ** 2), (g * torch.tanh(x))SUM
    return Op.apply(x, w)
"""
    fields = {
        "inputs": {"x": {"shape": [3, "n"], "low": -2, "high": 2}, "w": ["n"]},
        "dims": {"n": [4, 9]},
        "gradient": ["x", "w"],
    }
    declare(source.replace("SUM", ".sum(0)"), **fields)
    assert outcome(cache, check="backward") == {("pass", "")}
    declare(source.replace("SUM", "[0]"), **fields)
    assert outcome(cache, check="backward") == {("wrong", "numbers")} and outcome(cache) == {("pass", "")}
    declare(source.replace("SUM", ".sum(0)"), **fields | {"dims": {"n": [1000]}})
    assert {(r["status"], "elements" in r["error"]) for r in rows(cache, check="backward")} == {("vacuous", True)}


CUBE = """
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w); return w * x**3
    @staticmethod
    MARK
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return SLOPE, g * x**3
def kernel(x, w): return Cube.apply(x, w)
"""


@pytest.mark.parametrize(
    ("slope", "found"),
    [
        ("g * w * 3 * x * x", ("pass", "")),
        ("g * w * 3 * x * x.detach()", ("wrong", "numbers")),
        ("(g * w * 3 * x * x).detach()", ("wrong", "numbers")),
        ("g * (w * 3 * x * x).detach()", ("wrong", "numbers")),
    ],
)
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_second_derivatives(declare: Any, cache: Path, framework: str, slope: str, found: tuple[str, str]) -> None:
    source = "def reference(x, w): return w * x**3\n" + CUBE.replace("MARK", "")
    fields = {"inputs": {"x": ["m", "n"], "w": ["n"]}, "dims": {"m": [3], "n": [1, 8]}, "gradient": ["x", "w"]}
    declare(source.replace("SLOPE", slope), **fields, reference_framework=framework)
    assert outcome(cache, check="backward") == {("pass", "")}
    assert outcome(cache, check="double_backward") == {found}


def test_a_second_derivative_that_there_is_not(declare: Any, cache: Path) -> None:
    fields = {"inputs": {"x": ["n"], "w": ["n"]}, "gradient": ["x", "w"]}
    source = "def reference(x, w): return w * x**3\n" + CUBE.replace("SLOPE", "g * w * 3 * x * x")
    declare(source.replace("MARK", "@torch.autograd.function.once_differentiable"), **fields)
    said = rows(cache, check="double_backward")
    assert {(r["status"], r["error_type"]) for r in said} == {("unsupported", DeclaredOnce.__name__)}
    assert all(r["error"].startswith("declared once-differentiable") for r in said)
    detached = source.replace("MARK", "").replace("g * x**3", "(g * x**3).detach()")
    declare(detached.replace("g * w * 3 * x * x", "(g * w * 3 * x * x).detach()"), **fields)
    said = rows(cache, check="double_backward")
    assert {(r["status"], "has no graph" in r["error"]) for r in said} == {("error", True)}


def test_the_second_derivative_of_a_reference_that_autograd_cannot_follow(declare: Any, cache: Path) -> None:
    source = "def reference(x, w): return np.array([float(a) * float(b) ** 3 for a, b in zip(w, x)])\n" + CUBE
    source = source.replace("MARK", "").replace("SLOPE", "g * w * 3 * x * x")
    declare(source, inputs={"x": ["n"], "w": ["n"]}, gradient=["x", "w"])
    assert outcome(cache, check="backward") == {("pass", "")}
    said = rows(cache, check="double_backward")
    assert {(r["status"], "cannot follow" in r["error"]) for r in said} == {("vacuous", True)}


@pytest.mark.parametrize(
    "reference",
    [
        "def reference(x): x[0] = 3 * x[0]; return np.sin(x)",
        "def reference(x): y = np.zeros_like(x); y[1:] = np.sin(x[1:]); y[0] = np.sin(3 * x[0]); return y",
        "def reference(x): return np.array([np.sin(float(v) * (3 if i == 0 else 1)) for i, v in enumerate(x)])",
        "def reference(x): return np.sin(np.where(np.arange(len(x)) == 0, 3 * x, x))",
    ],
)
def test_a_numpy_reference_has_a_gradient_however_it_is_written(declare: Any, cache: Path, reference: str) -> None:
    kernel = "\ndef kernel(x): return torch.sin(torch.cat([FACTOR * x[:1], x[1:]]))"
    declare(reference + kernel.replace("FACTOR", "3"), gradient=["x"])
    assert outcome(cache, check="backward") == {("pass", "")}
    declare(reference + kernel.replace("FACTOR", "1.0"), gradient=["x"])
    assert outcome(cache, check="backward") == {("wrong", "numbers")}


def test_a_reference_that_autograd_makes_nan_of_is_differenced(declare: Any, cache: Path) -> None:
    source = "def reference(x): return x / (1 + torch.exp(-x))\ndef kernel(x): return "
    fields = {"inputs": {"x": {"shape": [4], "data": [-1000, -1, 2, 1000]}}, "dims": {}, "gradient": ["x"]}
    declare(source + "x * torch.sigmoid(x)", reference_framework="torch", **fields)
    (row,) = rows(cache, check="backward", count=1)
    assert row["status"] == "pass" and row["oracles_units"] == 0 and "where that is no derivative" in row["oracle"]
    declare(source + "x / (1 + torch.exp(-x))", reference_framework="torch", **fields)
    assert outcome(cache, check="backward") == {("wrong", "nonfinite")}


def test_a_reference_whose_autograd_is_no_derivative_of_it_blames_nobody(declare: Any, cache: Path) -> None:
    source = """
class Off(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x.sin()
    @staticmethod
    def backward(ctx, g): return g * 0.99 * ctx.saved_tensors[0].cos()
def reference(x): return Off.apply(x)
def kernel(x): return x.sin()
"""
    declare(source, reference_framework="torch", gradient=["x"])
    found = rows(cache, check="backward")
    assert {(r["status"], r["kind"]) for r in found} == {("invalid", "oracle")}
    assert all(r["second_units"] < 1 < r["oracles_units"] for r in found)


def test_uninitialised_and_exact(declare: Any, cache: Path) -> None:
    declare("def reference(x): return x\ndef kernel(x): return torch.empty_like(x)", op_class=OpClass.UNINITIALISED)
    assert outcome(cache) == {("pass", "")}
    declare(
        "def reference(x): return np.round(x)\ndef kernel(x): return torch.floor(x + 0.5)",
        op_class="exact",
        inputs={"x": {"shape": [2], "data": [0.5, 2.5]}},
    )
    assert outcome(cache) == {("wrong", "numbers")}


def test_a_result_up_to_a_choice(declare: Any, cache: Path) -> None:
    source = "def reference(x): return np.sort(x), np.argsort(x)\ndef kernel(x): v, i = torch.sort(x, stable=True); return v, i{change}"
    declare(source.format(change=""), op_class="choice", definition="sort", values="adversarial")
    assert outcome(cache, count=4) == {("pass", "")}
    declare(source.format(change=".flip(0)"), op_class="choice", definition="sort")
    assert outcome(cache) == {("wrong", "numbers")}


# --- definitions and their sources --------------------------------------------------------------------------------


DECORATED = """
def right(x): return 2 * x
@tasks.op(reference=right, inputs={"x": ["n"]}, dims={"n": [3]}, name="op", **MORE)
def double(x): return x * 2
"""


def test_decorated_functions_are_collected(declare: Any, cache: Path) -> None:
    declare("MORE = {'dtypes': ['float32', 'float16']}\n" + DECORATED, "k.py")
    (entry,) = catalogs.get_catalog("user").entries()
    assert (entry.op, entry.dtypes, entry.checks) == ("user:op", ("float32", "float16"), ("forward",))
    assert outcome(cache) == {("pass", "")}


LOOPS = """
def times(k):
    @tasks.op(name=f"times_{k}", reference=lambda x: x * k, inputs={"x": [2]}, dtypes=["float32"])
    def kernel(x):
        return x * k
for k in (2, 3):
    times(k)
for k in (5, 7):
    @tasks.op(name=f"plus_{k}", reference=lambda x, k=k: x + k, inputs={"x": [2]}, dtypes=["float32"])
    def plus(x, k=k):
        return x + k
"""


def test_kernels_that_are_made_in_a_loop_are_all_there(declare: Any) -> None:
    declare(LOOPS, "k.py")
    names = [entry.op for entry in catalogs.get_catalog("user").entries()]
    assert names == ["user:plus_5", "user:plus_7", "user:times_2", "user:times_3"]


@pytest.mark.parametrize(
    ("source", "key", "says"),
    [
        (
            "MORE = {'dims': {}}\n" + DECORATED.replace('dims={"n": [3]}, ', ""),
            (0, "modules", 0),
            "k.py:7: op op: inputs.x.0: unknown dimension 'n'",
        ),
        (
            "MORE = {'dtypes': ['flaot32']}\n" + DECORATED,
            (0, "modules", 0),
            "op op: dtypes.0: unknown dtype 'flaot32'; did you mean float32",
        ),
        ("MORE = {'dim': 1}\n" + DECORATED, (0, "modules", 0), "k.py:7: op op: unknown key 'dim'; did you mean dims"),
        (
            "MORE = {'dims': {}}\n"
            + DECORATED.replace('dims={"n": [3]}, ', "").replace("=right", '="nope.py"').replace('["n"]', "[3]"),
            (0, "modules", 0),
            "k.py:7: op op: reference: no such file",
        ),
        (
            "MORE = {}\n" + DECORATED.replace("=right", '="k.py:wrong"'),
            (0, "modules", 0),
            "k.py:7: op op: reference: k.py:wrong: there is no 'wrong'",
        ),
        (
            "MORE = {}\n" + DECORATED + DECORATED.replace('"op"', '"other"'),
            (0, "modules", 0),
            "k.py:11: op other: the function double at line 11 hides the one of that name at line 7: rename one",
        ),
        (
            "MORE = {}\n" + DECORATED + DECORATED.replace("def double", "def other"),
            (0, "modules", 0),
            "the name 'op' is given twice; the other is in",
        ),
        (
            "import nowhere",
            (0, "modules", 0),
            "k.py:4: cannot be imported: ModuleNotFoundError: No module named 'nowhere'",
        ),
        ("def f(:\n", (0, "modules", 0), "k.py:4: cannot be imported: SyntaxError"),
        ("", (0, "modules", 0), "no function with @farm.op"),
        (
            "MORE = {}\n" + DECORATED.replace("def double(x)", "def double(y)"),
            (0, "modules", 0),
            "is called with x: missing a required argument: 'y'",
        ),
        (
            "MORE = {}\n" + DECORATED.replace("def right(x)", "def right(z)"),
            (0, "modules", 0),
            "reference: right(z) is called with x",
        ),
    ],
)
def test_mistakes_of_a_module_are_placed(declare: Any, source: str, key: tuple[Any, ...], says: str) -> None:
    declare(source, "k.py")
    with pytest.raises(CatalogError) as caught:
        catalogs.get_catalog("user").entries()
    assert says in str(caught.value) and caught.value.key == ("catalogs", *key)


@pytest.mark.parametrize(
    ("fields", "inner", "says"),
    [
        ({"kernel": "k.py:kernal"}, "kernel", "there is no 'kernal' in it; did you mean kernel?"),
        ({"kernel": "k.py:VALUE"}, "kernel", "k.py:VALUE is not a function but a int"),
        ({"reference": "r.py"}, "reference", "no such file"),
        ({"inputs": {"y": ["n"]}}, "kernel", "kernel(x) is called with y: missing a required argument: 'x'"),
        ({"kwargs": {"eps": 1}}, "kernel", "is called with x, eps: got an unexpected keyword argument 'eps'"),
        ({"kernel": "nowhere.at.all:f"}, "kernel", "no module 'nowhere.at.all'"),
    ],
)
def test_mistakes_of_a_kernel_are_placed(declare: Any, fields: dict[str, Any], inner: str, says: str) -> None:
    declare(RIGHT + "VALUE = 3\ndef kernel(x): return x", **fields)
    with pytest.raises(CatalogError) as caught:
        catalogs.get_catalog("user").entries()
    assert says in str(caught.value) and caught.value.key == ("catalogs", 0, "kernels", 0, inner)


@pytest.mark.parametrize(
    ("fields", "key", "says"),
    [
        ({"inputs": {"x": ["m"]}}, "inputs.x.0", "unknown dimension 'm'; valid: n"),
        ({"dims": {"n": []}}, "dims.n", "has no candidates"),
        ({"dims": {"n": [3, 0]}}, "dims.n.1", "0 is no size"),
        ({"dims": {"n": [-2]}}, "dims.n.0", "-2 is no size"),
        ({"dims": {"n": [True]}}, "dims.n.0", "no size"),
        ({"inputs": {"x": [0]}}, "inputs.x.0", "0 is no size"),
        ({"inputs": {}}, "inputs", "at least one input"),
        ({"inputs": {"x": "n"}}, "inputs.x", "a shape is a list"),
        ({"inputs": {"x": {"dtype": "int64"}}}, "inputs.x.shape", "add the key shape"),
        ({"inputs": {"x": {"shape": [2], "lo": 1}}}, "inputs.x.lo", "did you mean low"),
        ({"inputs": {"x": {"shape": [2], "low": 1}}}, "inputs.x", "low and high go together"),
        ({"inputs": {"x": {"shape": [2], "low": 2, "high": 2}}}, "inputs.x.low", "not below"),
        ({"inputs": {"x": {"shape": [2], "low": 0, "high": "m"}}}, "inputs.x.high", "unknown dimension 'm'"),
        ({"inputs": {"x": {"shape": [2], "data": []}}}, "inputs.x.data", "flat list"),
        ({"inputs": {"x": {"shape": [2], "dtype": "int46"}}}, "inputs.x.dtype", "did you mean int4"),
        ({"inputs": {"x y": [2]}}, "inputs.x y", "no name of an argument"),
        ({"dtypes": []}, "dtypes", "at least one"),
        ({"dtypes": ["f32"]}, "dtypes.0", "unknown dtype 'f32'"),
        ({"op_class": "reduktion"}, "class", "did you mean reduction"),
        ({"definition": "svd"}, "definition", "class: choice"),
        ({"op_class": "choice"}, "definition", "needs one of"),
        ({"framework": "jax"}, "framework", "valid: torch, numpy"),
        ({"values": "regulr"}, "values", "did you mean regular"),
        ({"invariants": ["no_nans"]}, "invariants.0", "did you mean no_nan"),
        ({"invariants": [{"bounded": [2, 1]}]}, "invariants.0", "bounded takes [low, high]"),
        ({"invariants": ["bounded"]}, "invariants.0", "bounded takes"),
        ({"invariants": [{"no_nan": 1}]}, "invariants.0", "takes no argument"),
        ({"tolerances": {"float32": 1e-3}}, "tolerances.float32", "needs rtol and atol"),
        ({"tolerances": {"float32": {"rtol": -1, "atol": 0}}}, "tolerances.float32.rtol", "-1 is no tolerance"),
        ({"tolerances": {"f": {"rtol": 1, "atol": 0}}}, "tolerances.f", "unknown dtype"),
        ({"tolerances": {"float32": {"rtol": 1, "atol": 0}}, "op_class": "random"}, "tolerances", "no one right value"),
        ({"repeats": 0}, "repeats", "at least 1"),
        ({"mutates": ["y"]}, "mutates.0", "no input 'y'"),
        ({"gradient": ["y"]}, "gradient.0", "no input 'y'"),
        ({"kwargs": {"x": 1}}, "kwargs.x", "is an input already"),
        (
            {"inputs": {"x": ["n", "n"]}, "dims": {"n": [1, 10**6]}},
            "inputs.x",
            "1000000000000 elements at its largest, more than 2147483648",
        ),
        ({"name": "a b"}, "name", "is no name"),
        ({"outputs": ["float23"]}, "outputs.0", "did you mean float32"),
        ({"outputs": [{"shape": ["m"]}]}, "outputs.0.shape.0", "unknown dimension"),
    ],
)
def test_mistakes_of_a_declaration(fields: dict[str, Any], key: str, says: str) -> None:
    found = {".".join(map(str, at)): text for at, text in list_declaration_mistakes(UserOp(**FIELDS | fields))}
    assert says in found[key]


def test_a_right_declaration_has_no_mistakes() -> None:
    assert list(list_declaration_mistakes(UserOp(**FIELDS))) == []


def test_what_is_prepared_follows_the_sources(declare: Any, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("SCALE = 2\n")
    source = "import helper\ndef reference(x): return x * helper.SCALE\ndef kernel(x): return x * 2"
    group = Group("user:op", "", "float32", 2)
    declare(source)
    first = make_pack_key(group), catalogs.get_catalog("user").list_version()
    assert (make_pack_key(group), catalogs.get_catalog("user").list_version()) == first
    (tmp_path / "unrelated.py").write_text("")
    assert make_pack_key(group) == first[0]
    (tmp_path / "helper.py").write_text("SCALE = 3\n")
    assert make_pack_key(group) != first[0] and catalogs.get_catalog("user").list_version() != first[1]
    (tmp_path / "helper.py").write_text("SCALE = 2\n")
    assert make_pack_key(group) == first[0]
    declare(source, dims={"n": [4]})
    assert make_pack_key(group) != first[0]


def test_what_is_prepared_follows_the_version_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """References may be functions of tensors, and gradients are autograd's."""
    first, version = catalogs.get_catalog("user").version(), importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1" if name == "torch" else version(name))
    assert catalogs.get_catalog("user").version() != first


def test_modules_are_found_without_being_imported(tmp_path: Path) -> None:
    package = tmp_path / "pkg" / "sub"
    package.mkdir(parents=True)
    for name in ("pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/ops.py", "pkg/near.py", "far.py"):
        (tmp_path / name).write_text("raise RuntimeError\n")
    (package / "ops.py").write_text("from ..near import f\nfrom . import nothing\nimport far, os, numpy\n")
    root = str(tmp_path)
    assert (
        user_sources.locate_module_source("pkg.sub.ops", root) == package / "ops.py"
        and user_sources.locate_module_source("pkg.sub", root) == package / "__init__.py"
    )
    assert user_sources.locate_module_source("tasks.zoo.nowhere", root) is None and user_sources.locate_module_source(
        "json", root
    ) == Path(json.__file__)
    assert {p.name for p in user_sources.list_imported_files(package / "ops.py", root)} == {
        "ops.py",
        "near.py",
        "far.py",
    }


def test_a_module_of_a_folder_without_init_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("holder/__init__.py", "holder/plain/ops.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert user_sources.locate_module_source("holder.plain.ops", "/") == tmp_path / "holder" / "plain" / "ops.py"
    assert (
        user_sources.locate_module_source("holder.plain.none", "/") is None
        and user_sources.locate_module_source("holder.plain", "/") is None
    )


def test_a_script_cannot_mix_its_prints_with_the_answers(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(SCRIPT + "import os; os.write(1, b'noise\\n')\nprint(json.dumps(tensor))")
    with contextlib.closing(reference_scripts.ReferenceScript(tmp_path / "r.py", 30.0)) as script:
        outputs = script({"x": np.ones(3)}, {})
    assert outputs[0].tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("inputs", "shapes"), [(["n"], "65536"), (["m", "n"], "256x256")])
@pytest.mark.parametrize("sound", [True, False])
def test_a_kernel_of_one_tensor_is_given_every_input(
    declare: Any, cache: Path, inputs: list[str], shapes: str, sound: bool
) -> None:
    made = "torch.sqrt(x.float()).to(x.dtype)"
    kernel = made if sound else f"torch.where(x == 3.0, x, {made})"
    given = {
        "inputs": {"x": inputs},
        "dims": {"m": [1, 3], "n": [3, 40]},
        "dtypes": ["float16"],
        "op_class": "elementary",
    }
    source = f"def kernel(x):\n    return {kernel}\n\ndef reference(x):\n    return np.sqrt(x)\n"
    declare(source, **given)
    [entry] = catalogs.get_catalog("user").entries()
    assert "exhaustive" in entry.distributions
    [row] = rows(cache, "float16", 1, distribution="exhaustive")
    assert (row["status"], row["shapes"], row["beyond"] or 0) == ("pass" if sound else "wrong", shapes, int(not sound))
    assert sound or " of 3, at " in row["worst"]


def test_a_kernel_whose_class_knows_noise_is_not(declare: Any) -> None:
    declare("def kernel(x):\n    return x\n\ndef reference(x):\n    return x\n", op_class="normalisation")
    assert "exhaustive" not in catalogs.get_catalog("user").entries()[0].distributions
