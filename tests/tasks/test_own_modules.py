"""A torch module of one's own: one model for everybody, evaluated in float64 as eager torch runs it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import runner as runners
from tasks.arrays import module_state
from tasks.backends import BackendSpec
from tasks.backends.torch import TorchEager
from tasks.catalogs import user_definitions
from tasks.graphs import torch_module as modules
from tasks.judge import policy_files
from tasks.model import Form, Group, Program
from tasks.model.row import Row
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner

torch = pytest.importorskip("torch")

X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
BEGIN = "import random\nimport numpy as np\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., PreparedGroup]:
    """Of the source of a class Model: its group, prepared."""

    def made(source: str, x: np.ndarray = X, check: str = "forward") -> PreparedGroup:
        (tmp_path / "own.py").write_text(BEGIN + source)
        np.savez(tmp_path / "x.npz", x=x)
        one = {"at": 0, "root": str(tmp_path), "name": "m", "model": "own.py:Model", "drawn": []}
        user_definitions.announce_definitions(json.dumps({"models": [one | {"inputs": [str(tmp_path / "x.npz")]}]}))
        return prepare_group(Group("models:m", "", "float32", 1, check=check), tmp_path / "cache")[1]

    return made


def judged(group: PreparedGroup, backend: str = "torch-cpu") -> Row:
    made = BackendSpec.parse(backend).create()
    runner = Runner(made, made.start(), policy_files.load_policy("error_units"), lambda *step: None)
    (done,) = runner.run([runners.make_item_of_whole_group(group)])
    return done.row


def module(source: str) -> Any:
    space: dict[str, Any] = {}
    exec(BEGIN + source, space)

    class Tupled(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = space["Model"]()

        def forward(self, *inputs: Any) -> Any:
            made = self.model(*inputs)
            return made if isinstance(made, tuple) else (made,)

    return Tupled().eval()


#: What draws its weights, in every place where a module may keep them.
DRAWN = {
    "layers": "s.net = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8))|s.net(x)",
    "an attribute": "s.w = torch.randn(16, 4)|x @ s.w",
    "a buffer that is not saved": "s.register_buffer('b', torch.rand(16), persistent=False)|torch.tanh(x * s.b)",
    "a list in a dict": "s.d = {'w': [torch.randn(16), torch.randn(16)]}|x * s.d['w'][0] + s.d['w'][1]",
    "a shared weight": "s.a = nn.Linear(16, 16); s.b = nn.Linear(16, 16); s.b.weight = s.a.weight|s.b(torch.tanh(s.a(x)))",
    "a lazy layer": "s.l = nn.LazyLinear(4)|s.l(x)",
    "the number of layers": "s.ls = nn.ModuleList(nn.Linear(16, 16) for _ in range(random.randint(1, 5)))|s.ls[-1](x)",
    "a number": "s.p = float(np.random.rand())|torch.sin(x * s.p)",
    "half a module": "s.l = nn.Linear(16, 16).bfloat16()|s.l(x.bfloat16()).float()",
    "a recurrent layer": "s.r = nn.GRU(16, 8, batch_first=True)|s.r(x[None])",
}


def of(parts: str) -> str:
    held_, _, returned = parts.partition("|")
    return f"class Model(nn.Module):\n  def __init__(s):\n    super().__init__(); {held_}\n  def forward(s, x):\n    return {returned}\n"


@pytest.mark.parametrize("what", DRAWN)
def test_what_a_module_draws_is_the_same_for_all(prepared: Callable[..., PreparedGroup], what: str) -> None:
    group = prepared(of(DRAWN[what]))
    row = judged(group)
    assert (row.status, row.error) == ("pass", "")
    assert row.weights == module_state.digest_module_state(group.samples[0].state())
    from tasks.catalogs.models import own_models

    own_models._load_own_module.cache_clear()  # as another process makes it
    again = judged(group)
    assert (again.status, again.output_digest) == ("pass", row.output_digest)


@pytest.mark.parametrize(
    ("source", "status", "says"),
    [
        ("s.w = nn.Parameter(torch.from_numpy(G.standard_normal((16, 4)).astype('f4')))|x @ s.w", "pass", ""),
        ("s.k = float(G.random())|x * s.k", "invalid", "made again it is another module: a number"),
        (
            "s.w = nn.Parameter(torch.rand(int(G.integers(1, 1 << 40)) % 97 + 2, 16))|x @ s.w.t()",
            "invalid",
            "model.w is",
        ),
    ],
)
def test_what_no_seed_decides_travels_or_is_said(
    prepared: Callable[..., PreparedGroup], source: str, status: str, says: str
) -> None:
    group = prepared("G = np.random.default_rng()\n" + of(source))
    from tasks.catalogs.models import own_models

    own_models._load_own_module.cache_clear()  # a factory that another process calls draws something else
    row = judged(group)
    assert row.status == status and says in row.error


#: What a tracer, a conversion to float64 or a dtype that is written down would stumble over.
WRITTEN = {
    "a dtype that is asked for": "|(x / (1 if x.dtype == torch.float32 else 0)).masked_fill(x < 0, torch.finfo(x.dtype).min / 2)",
    "dtypes of several widths": "|torch.frexp(x)",
    "in place": "|(x.mul_(2).view(-1)[::3].add_(1), x)[1] + 1",
    "bits": "|(x.view(torch.int32) & 0x7fffffff).view(torch.float32)",
    "the next number": "|torch.nextafter(x, torch.zeros(()))",
    "control flow": "|x if x.sum().item() > 1e9 else torch.cos(x)",
    "a size that data decides": "|x[x > 0].cumsum(0)",
    "a number as an output": "|(x.sum(), float(x.shape[0]))",
    "the same output twice": "|(x.t(), x, x)",
    "a gradient inside": "s.l = nn.Linear(16, 1)|_gradient(s.l, x)",
    "NumPy inside": "|torch.from_numpy(np.tanh(x.numpy()))",
    "rounded as asked": "|(x * 1.5).to(torch.bfloat16).float() * 2",
    "autocast": "s.l = nn.Linear(16, 16)|_cast(s.l, x)",
    "a count of calls": "s.n = 0|_count(s, x)",
    "a buffer that is written to": "s.register_buffer('n', torch.zeros(1))|x * s.n.add_(1)",
    "attention of a parameter": "s.k = nn.Parameter(torch.randn(1, 1, 8, 16))|F.scaled_dot_product_attention(x[None, None], s.k, s.k)",
    "whole numbers": "s.e = torch.tensor([2.0, 3.0] * 8)|x ** s.e",
    "an index that is computed": "s.e = nn.Embedding(8, 4)|s.e((torch.linspace(0, 1, 8) * 7).long()) + x.sum()",
}
HELPERS = """
def _gradient(layer, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(torch.tanh(layer(x)).sum(), x)[0]
def _cast(layer, x):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x)
def _count(s, x):
    s.n += 1
    return x * s.n
"""


@pytest.mark.parametrize("what", WRITTEN)
def test_eager_torch_is_right_about_what_it_runs(prepared: Callable[..., PreparedGroup], what: str) -> None:
    row = judged(
        prepared(HELPERS + of(WRITTEN[what].replace("|", "pass|", 1) if WRITTEN[what][0] == "|" else WRITTEN[what]))
    )
    assert (row.status, row.error) == ("pass", "")
    assert row.error_units is not None and row.error_units < 2


def test_an_operator_that_takes_one_dtype_is_computed_in_it(prepared: Callable[..., PreparedGroup]) -> None:
    source = """
@torch.library.custom_op("tests_own_modules::narrow", mutates_args=())
def narrow(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32: raise RuntimeError("expected float32")
    return torch.exp(x)
class Model(nn.Module):
    def forward(self, x): return narrow(x) * 3
"""
    assert judged(prepared(source)).status == "pass"


def test_a_module_is_exact_and_moves_by_the_rounding_of_its_own_dtype() -> None:
    made = module(of("s.l = nn.Linear(16, 16)|torch.softmax(s.l(x), -1)"))
    weight, bias = (p.detach().double().numpy() for p in (made.model.l.weight, made.model.l.bias))
    z = X.astype(np.float64) @ weight.T + bias
    right = np.exp(z - z.max(-1, keepdims=True))
    right /= right.sum(-1, keepdims=True)
    (exact,) = modules.evaluate_module_exactly(made, [X])
    assert np.abs(exact - right).max() < 1e-14
    (moved,) = modules.evaluate_module_exactly(made, [X], draw=0)
    assert 1e-8 < np.abs(moved - right).max() < 1e-5
    (coarse,) = modules.evaluate_module_exactly(made, [X], precision="bfloat16")
    assert 1e-5 < np.abs(coarse - right).max() < 1e-2
    assert made.model.l.weight.dtype == torch.float32


@pytest.mark.parametrize(
    "mask", ["", ", attn_mask=torch.zeros(4, 4)", ", attn_mask=(x[0] * 0), is_causal=False", ", is_causal=True"]
)
def test_attention_that_drops_nothing_out_is_exact(mask: str) -> None:
    """Its kernel may draw numbers, and draws none."""
    made = module(f"class Model(nn.Module):\n  def forward(s, x): return F.scaled_dot_product_attention(x, x, x{mask})")
    x = np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype(np.float32)
    wide = torch.from_numpy(x).double()
    scores = wide @ wide.mT / 2
    if "causal=True" in mask:
        scores = scores.masked_fill(~torch.ones(4, 4, dtype=torch.bool).tril(), -torch.inf)
    (exact,) = modules.evaluate_module_exactly(made, [x])
    assert np.abs(exact - (scores.softmax(-1) @ wide).numpy()).max() < 1e-14


def test_dropout_draws_what_eager_torch_draws() -> None:
    made = module("class Model(nn.Module):\n  def forward(s, x): return F.dropout(x, 0.5, True) + torch.rand(16)")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        (eager,) = modules.run_module(made, [X])
        torch.manual_seed(3)
        (exact,) = modules.evaluate_module_exactly(made, [X])
    assert np.abs(exact - np.asarray(eager)).max() < 1e-6


def test_a_narrow_module_moves_further() -> None:
    made = module(of("s.l = nn.Linear(16, 16).half()|s.l(x.half()).float()"))
    (exact,), (moved,) = modules.evaluate_module_exactly(made, [X]), modules.evaluate_module_exactly(made, [X], draw=0)
    assert 1e-5 < np.abs(moved - exact).max() < 1e-2


def test_whole_numbers_do_not_move() -> None:
    made = module("class Model(nn.Module):\n  def forward(s, x): return (torch.arange(16.0) * 3).long() + x.long() * 0")
    assert all((modules.evaluate_module_exactly(made, [X], draw)[0] == np.arange(16) * 3).all() for draw in range(8))


def test_a_resized_view_is_evaluated_and_moved() -> None:
    made = module(
        "class Model(nn.Module):\n  def forward(s, x):\n    y = x * 2; y.view(-1).resize_(1000); return y - 1"
    )
    for draw in (None, 0, 1):
        assert np.abs(modules.evaluate_module_exactly(made, [X], draw)[0] - (X.astype(np.float64) * 2 - 1)).max() < 1e-5


@pytest.mark.parametrize(
    ("pieces", "factor", "status"),
    [(True, 1.0, "fallback"), (True, 2.0, "wrong"), (False, 2.0, "fallback")],
    ids=["right", "wrong", "not_its_own"],
)
def test_a_wrong_result_of_pieces_is_wrong(
    prepared: Callable[..., PreparedGroup], monkeypatch: pytest.MonkeyPatch, pieces: bool, factor: float, status: str
) -> None:
    build = TorchEager.build

    def in_pieces(self: TorchEager, form: Form) -> Program:
        made = build(self, form)
        run = made.run
        return replace(made, run=lambda: [x * factor for x in run()], fallback="graph break: here", pieces=pieces)

    monkeypatch.setattr(TorchEager, "build", in_pieces)
    row = judged(prepared(of("pass|x + 1")))
    assert (row.status, row.error) == (status, "graph break: here")


def test_what_a_module_draws_in_forward_is_judged_by_its_moments(prepared: Callable[..., PreparedGroup]) -> None:
    row = judged(prepared(of("pass|F.dropout(x, 0.5, training=True)"), np.ones((64, 64), np.float32)))
    assert (row.status, row.op_class) == ("pass", "random") and "random=" in (row.flags or "")
    outside = judged(prepared(of("pass|x * float(np.random.rand())"), np.ones((64, 64), np.float32)))
    assert (outside.status, outside.flags) == ("pass", "random=numbers outside torch")


def test_a_backend_that_accepts_what_eager_torch_refuses_is_wrong(prepared: Callable[..., PreparedGroup]) -> None:
    group = prepared(of("pass|x @ x"))
    row = judged(group)
    assert (row.status, row.stage) == ("invalid", "reference") and "cannot be multiplied (8x16 and 8x16)" in row.error
    made = BackendSpec.parse("torch-cpu").create()
    runner = Runner(made, made.start(), policy_files.load_policy("error_units"), lambda *step: None)
    build = made.build
    made.build = lambda form: replace(build(form), run=lambda: [np.zeros((8, 8), np.float32)])  # type: ignore[method-assign]
    (done,) = runner.run([runners.make_item_of_whole_group(group)])
    assert done.row.status == "invalid"  # eager torch itself accepts what it refuses where the module is to blame
    made.is_eager_cpu = False
    (done,) = runner.run([runners.make_item_of_whole_group(group)])
    assert (done.row.status, done.row.kind) == ("wrong", "accepted")
    assert "it returned a result where eager torch raises RuntimeError" in done.row.error


#: Modules that nobody can judge, and what is said of them.
UNJUDGED = {
    "toggles at each call": ("torch.sin(x) if _counted() % 2 else torch.cos(x)", "does not look into"),
    "another one at the second call": ("torch.sin(x) if _counted() < 2 else torch.cos(x)", "does not look into"),
    "raises at the second call": ("torch.sin(x) if _counted() < 2 else 1 / 0", "does not look into.*ZeroDivisionError"),
    "records gradients": ("torch.autograd.grad(x.requires_grad_().sin().sum(), x)[0]", "wrap what needs gradients in"),
    "raises where it is moved": ("x if x[0, 0].item() * 8 % 1 == 0 else 1 / 0", "moved by their rounding: ZeroDiv"),
}


@pytest.mark.parametrize("what", UNJUDGED)
def test_what_is_no_function_of_its_inputs_is_not_judged(prepared: Callable[..., PreparedGroup], what: str) -> None:
    returned, says = UNJUDGED[what]
    counted = "class Calls: n = 0\ndef _counted():\n  Calls.n += 1\n  return Calls.n\n"
    row = judged(prepared(counted + of(f"pass|{returned}"), np.full((8, 16), 0.125, np.float32) + X * (what[0] != "r")))
    assert row.status == "invalid" and re.search(says, row.error or ""), row.error


def test_a_used_module_that_raises_is_made_anew(prepared: Callable[..., PreparedGroup]) -> None:
    source = """
class Other: pass
class Model(nn.Module):
    def __init__(s): super().__init__(); s.other = Other(); s.other.n = 0
    def forward(s, x):
        s.other.n += 1
        if s.other.n > 3: raise RuntimeError("no more")
        return torch.sin(x)
"""
    prepared(source)
    from tasks.catalogs.models import own_models
    from tasks.catalogs.models.modules import OwnModule

    network = OwnModule(own_models.list_own_models()["m"])
    for _ in range(4):
        with contextlib.suppress(RuntimeError):
            network.module(torch.zeros(8, 16))
    failure = network.sample(0, {"x": X}, 1).failure
    assert failure is not None and not failure.raised and "does not look into: called again it raises" in failure.error


def test_a_compiled_module_that_computes_something_else_is_wrong(prepared: Callable[..., PreparedGroup]) -> None:
    source = """
class Model(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(16, 16)
    def forward(self, x):
        y = torch.softmax(self.l(x), -1)
        return y * 1.001 if torch.compiler.is_compiling() else y * 1.0
"""
    group = prepared(source)
    assert judged(group).status == "pass"
    found = judged(group, "inductor-cpu")
    assert (found.status, found.kind) == ("wrong", "numbers")


#: Attributes|what a call leaves in one of them, or in x; Z is 1 where nothing compiles.
LEFT = [
    "s.register_buffer('m', torch.zeros(16))|s.m.copy_(x.mean(0) * Z)",
    "s.kept = {'m': [torch.zeros(16)]}|s.kept['m'][0].add_(x.mean(0) * Z)",
    "s.register_buffer('n', torch.zeros((), dtype=torch.int64))|s.n.add_(round(1000 * Z))",
    "s.register_buffer('h', torch.zeros(1))|setattr(s, 'h', x.mean(0) * Z)",
    "|x.mul_(Z)",
]


@pytest.mark.parametrize("what", LEFT)
def test_what_a_call_leaves_behind_is_judged(prepared: Callable[..., PreparedGroup], what: str) -> None:
    attributes, _, left = what.partition("|")
    source = f"""
class Model(nn.Module):
    def __init__(s): super().__init__(); s.l = nn.Linear(16, 16); {attributes}
    def forward(s, x):
        y = s.l(x)
        Z = FACTOR
        {left}
        return y * 1.0
"""
    sound = prepared(source.replace("FACTOR", "1.5"))
    assert [judged(sound, backend).status for backend in ("torch-cpu", "inductor-cpu")] == ["pass", "pass"]
    faulty = prepared(source.replace("FACTOR", "1.51 if torch.compiler.is_compiling() else 1.5"))
    assert judged(faulty).status == "pass"
    found = judged(faulty, "inductor-cpu")
    assert (found.status, found.kind) == ("wrong", "numbers")


def test_a_wrong_weight_is_seen(prepared: Callable[..., PreparedGroup], monkeypatch: pytest.MonkeyPatch) -> None:
    group = prepared(of("s.l = nn.Linear(16, 16)|s.l(x)"))

    def another(call: Any, state: Any) -> None:
        load(call, {name: x * np.float32(1 + 2**-12) for name, x in state.items()})

    load = module_state.load_module_state
    monkeypatch.setattr(module_state, "load_module_state", another)
    assert judged(group).status == "wrong"


@pytest.mark.parametrize(("what", "together"), [("a buffer that is not saved", True), ("s.n", False)])
def test_two_threads_do_not_share_what_a_call_writes_to(
    prepared: Callable[..., PreparedGroup], what: str, together: bool
) -> None:
    group = prepared(of(DRAWN.get(what, "s.register_buffer('n', torch.zeros(1))|x * s.n.add_(1)")))
    backend = BackendSpec.parse("torch-cpu").create()
    backend.start()
    assert backend.build(group.samples[0].form("torch")).threads is together


def test_a_state_is_loaded_where_it_lies() -> None:
    made = module(of("s.a = nn.Linear(16, 4); s.v = s.a.weight.detach()[0]; s.n = [torch.rand(2)]|s.a(x) + s.v.sum()"))
    state = module_state.copy_module_state(made)
    assert sorted(state) == ["model.a.bias", "model.a.weight", "model.n.0", "model.v"]
    with torch.no_grad():
        made.model.a.weight.zero_()
    module_state.load_module_state(made, state)
    assert made.model.v.data_ptr() == made.model.a.weight.data_ptr() and module_state.digest_module_state(
        module_state.copy_module_state(made)
    ) == module_state.digest_module_state(state)
    with pytest.raises(module_state.NotAlike, match="model.n.0 is there in one of them only"):
        module_state.load_module_state(made, {name: x for name, x in state.items() if name != "model.n.0"})


def test_seeds_are_left_as_they_were() -> None:
    def draw() -> list[float]:
        import random

        return [float(torch.rand(())), float(np.random.rand()), random.random()]

    torch.manual_seed(7)
    np.random.seed(7)
    first = draw()
    torch.manual_seed(7)
    np.random.seed(7)
    with module_state.seed_rng():
        inside = draw()
    with module_state.seed_rng():
        assert draw() == inside
    assert draw()[:2] == first[:2]
