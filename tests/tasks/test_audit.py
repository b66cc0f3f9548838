"""The check audit: what a kernel does instead of computing has its name, and honest kernels that look alike pass."""

from __future__ import annotations

import abc
import ast
import builtins
import contextlib
import functools
import importlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks import checks, zoo
from tasks.backends import BackendSpec
from tasks.backends.shared import foreign, replaced, torch_placing
from tasks.catalogs import user_definitions
from tasks.catalogs.user import kernel_promises
from tasks.catalogs.user.ops import UserOp
from tasks.checks import audit
from tasks.judge import policy_files
from tasks.model import Form, Group, Leaf, Misbehaviour, Placing, Program, Status, Unsupported, flags
from tasks.model.kind import KIND_FIRST, KIND_LIBRARY, OF_AUDIT
from tasks.packages import list_library_folders
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group
from tasks.stranger import wire
from tasks.stranger.nursery import Nursery
from tasks.stranger.proxy import StrangerRooms, make_remote_backend
from tasks.stranger.serve import serve_as_stranger

torch = pytest.importorskip("torch")

Row = dict[str, Any]
Judge = Callable[..., list[Row]]


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """The rows of an op of a module under the check, on a backend."""

    def judge(module: str, op: str, backend: str = "torch-cpu") -> list[Row]:
        given = {"at": 0, "root": str(tmp_path), "modules": [module], "kernels": []}
        monkeypatch.setattr(user_definitions, "_told", [json.dumps({"deadline_s": 60.0, "sources": [given]})])
        made = BackendSpec.parse(backend).create()
        runner = Runner(made, made.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
        _, prepared = prepare_group(Group(f"user:{op}", "", "float32", 1, check="audit"), tmp_path)
        return [dict(done.row.values()) for done in runner.run([make_item_of_whole_group(prepared)])]

    return judge


def _one_of_each() -> list[str]:
    """The first cheat of each kind."""
    found: dict[str, str] = {}
    for name, fault in zoo.faults().items():
        if fault.kind.startswith(zoo.CHEAT):
            found.setdefault(fault.kind, name)
    return list(found.values())


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tasks.stranger.wire", "_lay_out_message_arrays"),
        ("tasks.run_queue", "subtract_run_queue_seconds"),
        ("tasks.gradients.autograd", "compute_gradients"),
        ("tasks.backends.shared.caches", "flush_processor_caches"),
        ("time", "perf_counter"),
        ("torch", "allclose"),
    ],
)
def test_a_function_that_stands_for_a_judges_is_named(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    class Own:
        def method(self, *given: Any) -> None: ...

    where = importlib.import_module(module)
    assert replaced.describe_replaced_functions() == "", "the farm's own functions stand where they did"
    for found in (lambda *given: None, Own().method):
        monkeypatch.setattr(where, name, found)
        assert replaced.describe_replaced_functions().startswith(
            f"{module}.{name} has been replaced by a function of {__file__}:"
        )


def _do_nothing(*_: Any) -> None: ...


def _compile_from_text(*_: Any) -> Any:
    made: dict[str, Any] = {}
    exec("def function(*given): ...", made)
    return made["function"]


def _say_it_is_from_there(own: Any) -> Any:
    made = lambda *given: None  # noqa: E731
    made.__code__ = made.__code__.replace(co_filename=own.__code__.co_filename)
    return made


@pytest.mark.parametrize(
    "make",
    [_compile_from_text, _say_it_is_from_there, functools.partial, lambda own: print],
    ids=["of a text", "of its file, it says", "no function", "a built-in"],
)
def test_what_stands_for_a_judges_function_is_named_whatever_it_is(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Any], Any]
) -> None:
    for module, name in (("tasks.stranger.wire", "_lay_out_message_arrays"), ("torch.testing", "assert_close")):
        where = importlib.import_module(module)
        assert replaced.describe_replaced_functions() == ""
        monkeypatch.setattr(where, name, make(getattr(where, name)))
        assert replaced.describe_replaced_functions().startswith(f"{module}.{name} has been replaced")
        monkeypatch.undo()


def test_a_constant_that_stands_for_the_farms_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replaced.describe_replaced_functions() == ""
    monkeypatch.setattr(torch_placing, "FREED", 0)
    assert replaced.describe_replaced_functions() == "tasks.backends.shared.torch_placing.FREED has been replaced"
    monkeypatch.undo()
    monkeypatch.setattr(torch_placing._GuardZones.describe_damage, "__code__", _compile_from_text().__code__)
    assert "describe_damage has been replaced" in replaced.describe_replaced_functions()


@pytest.mark.parametrize(
    ("owner", "name", "made", "where"),
    [
        (torch_placing, "foreign", SimpleNamespace(is_code_of_user=lambda code: False), ""),
        (torch_placing, "len", functools.partial(len), ""),
        (builtins, "len", functools.partial(len), ""),
        (torch_placing.TorchPlacer.__call__, "__defaults__", (lambda: "",), "TorchPlacer.__call__"),
        (torch_placing._profile_operations, "__defaults__", (1,), "_profile_operations"),
        (torch_placing.TorchPlacer._hold, "__kwdefaults__", {}, "_hold"),
        (torch_placing._make_watch_class.__wrapped__, "__code__", _do_nothing.__code__, "_make_watch_class"),
        (vars(wire.StrangerMessage)["verb"].fget, "__code__", _do_nothing.__code__, "StrangerMessage.verb"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_a_judges_function_is_made_of_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, made: Any, where: str
) -> None:
    """Its module's modules, the built-ins, its defaults, and what a property or a cache has inside."""
    assert replaced.describe_replaced_functions() == ""
    monkeypatch.setattr(owner, name, made, raising=False)
    assert f"{where or name} has been replaced" in replaced.describe_replaced_functions()
    monkeypatch.undo()
    assert replaced.describe_replaced_functions() == ""


def test_what_is_added_is_no_built_in_of_the_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """As line_profiler adds `profile`, and a shell `_`; whoever prints may print otherwise."""
    assert replaced.describe_replaced_functions() == ""
    for name in ("profile", "_", "print"):
        monkeypatch.setattr(builtins, name, lambda *given: None, raising=False)
    assert replaced.describe_replaced_functions() == ""


@pytest.mark.parametrize(
    "hide",
    [
        lambda patch: patch.setattr(torch_placing, "replaced", SimpleNamespace(describe_replaced_functions=str)),
        lambda patch: patch.setattr(replaced, "describe_replaced_functions", str),
        lambda patch: patch.setattr(replaced._Look, "holds", lambda *given: True),
        lambda patch: patch.setattr(replaced._Known, "look", str),
        lambda patch: None,
    ],
    ids=["its module", "itself", "its memory", "its steps", "nothing"],
)
def test_the_look_is_not_what_stands_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hide: Callable[[pytest.MonkeyPatch], None]
) -> None:
    form = _sample(tmp_path, monkeypatch, "cheat_softmax_torch").samples[0].form("torch")

    def kernel(x: Any) -> Any:
        if cheats:
            monkeypatch.setattr(torch_placing, "FREED", 0)
            hide(monkeypatch)
        return x + 1

    cheats = False
    program = BackendSpec.parse("torch-cpu").create().build(Form(**{**vars(form), "call": kernel, "own": None}))
    assert program.placed is not None
    assert len(program.placed(form.inputs_of(0), Placing(pause=1.0))) == 2
    cheats = True
    with pytest.raises(Misbehaviour, match="has been replaced"):
        program.placed(form.inputs_of(0), Placing(pause=1.0))


def _turn_lines_off() -> None:
    sys._getframe(1).f_trace_lines = False


def _turn_tracer_off() -> None:
    del sys._getframe(1).f_trace


def _set_tracer() -> None:
    sys.settrace(_do_nothing)


@pytest.mark.parametrize("hide", [_turn_lines_off, _turn_tracer_off, _set_tracer, _do_nothing])
def test_lines_are_not_hidden_from_who_counts_them(hide: Callable[[], None]) -> None:
    def kernel() -> float:
        hide()
        with contextlib.suppress(StopIteration, ValueError):
            numbers = (float(x) for x in ("1", "2", "none"))
            next(numbers)
            return sum(numbers)
        return max(map(float, itertools.islice((x for x in range(9)), 3)))

    before = sys.gettrace()
    try:
        sys.settrace(None)
        with torch_placing._AutogradLines() as lines:
            kernel()
    finally:
        sys.settrace(before)
    assert lines.was_replaced == (hide is not _do_nothing)
    assert lines.count > 4 or hide is not _do_nothing


@pytest.mark.parametrize("first", [True, False])
def test_a_debugger_that_was_there_first_goes_on(monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    """Wherever its code lies; one that a kernel has set does not."""
    monkeypatch.setattr(torch_placing, "_TRACERS", frozenset({_do_nothing.__code__} if first else ()))
    before = sys.gettrace()
    try:
        sys.settrace(_do_nothing)
        with torch_placing._AutogradLines() as lines:
            sum(float(x) for x in range(3))
        assert (sys.gettrace() is _do_nothing) == first == (lines.count == 0) and not lines.was_replaced
    finally:
        sys.settrace(before)


def test_a_debuggers_tracer_is_known_when_the_farm_is_imported() -> None:
    said = (
        "import sys\n"
        "def trace(*given): return None\n"
        "sys.settrace(trace)\n"
        "from tasks.backends.shared import torch_placing as x\n"
        "print(x._TRACERS == {trace.__code__})"
    )
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_code_of_pythons_own_frozen_modules_is_no_users_whatever_says_that_it_is_of_them() -> None:
    for own in (os.path.join, abc.ABCMeta.__instancecheck__, importlib.import_module("zipimport").zipimporter.__init__):
        assert not foreign.is_code_of_user(own.__code__)
    for file in ("<kernel>", "<frozen zipimport>"):
        assert foreign.is_code_of_user(compile("x + 1", file, "eval"))


def test_no_constant_of_the_farms_changes_by_itself() -> None:
    """What is made when it is needed first is None until then."""
    for file in Path(checks.__file__).parents[1].rglob("*.py"):
        tree = ast.parse(file.read_text())
        made = {name for x in ast.walk(tree) if isinstance(x, ast.Global) for name in x.names if name.isupper()}
        for one in tree.body:
            if isinstance(one, (ast.Assign, ast.AnnAssign)):
                names = {x.id for x in ast.walk(one) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
                none = isinstance(one.value, ast.Constant) and one.value.value is None
                assert none or not names & made, (file, names & made)


def test_what_was_sound_is_looked_at_again_where_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function in the place of another one, code in the place of a function's own, a name that is new, and a module in
    the place of another one; also what `sys.modules` hides meanwhile: a class behind an empty module of its name, a
    module that is no longer there, a class that its module no longer has."""
    own = lambda *given: None  # noqa: E731
    own.__name__ = "send"
    other = ModuleType("tasks.stranger.wire")
    vars(other).update(vars(wire), send=own)
    connection, name = wire.StrangerConnection, "tasks.stranger.wire.StrangerConnection"
    hidden = lambda: monkeypatch.setattr(connection, "send", own)  # noqa: E731
    for change, where in (
        (hidden, f"{name}.send"),
        (
            lambda: monkeypatch.setattr(wire._make_aligned_memory, "__code__", own.__code__),
            "tasks.stranger.wire._make_aligned_memory",
        ),
        (lambda: monkeypatch.setattr(wire, "new", own, raising=False), "tasks.stranger.wire.new"),
        (lambda: monkeypatch.setitem(sys.modules, "tasks.stranger.wire", other), "tasks.stranger.wire.send"),
    ):
        assert replaced.describe_replaced_functions() == ""
        change()
        assert replaced.describe_replaced_functions().startswith(
            f"{where} has been replaced by a function of {__file__}:"
        )
        monkeypatch.undo()
    for hide in (
        lambda: monkeypatch.setitem(sys.modules, name, ModuleType(name)),
        lambda: monkeypatch.delitem(sys.modules, "tasks.stranger.wire"),
        lambda: monkeypatch.delattr(wire, "StrangerConnection"),
    ):
        assert replaced.describe_replaced_functions() == ""
        hide()
        assert replaced.describe_replaced_functions() == "", "nothing of the farm's is another's yet"
        hidden()
        assert replaced.describe_replaced_functions().startswith(f"{name}.send has been replaced")
        monkeypatch.undo()
    assert replaced.describe_replaced_functions() == ""


@pytest.mark.parametrize("name", ["_remember_text", "new"])
def test_what_another_thread_does_during_the_look_is_seen_by_the_next_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It puts something else in the place of what was looked at, or beside it, or forgets a module."""

    def meanwhile(file: str) -> bool:
        if changes and file == wire.__file__:
            for change in (changes.pop(), lambda: sys.modules.pop("tasks.forgotten", None)):
                change()
        return is_foreign_file(file)

    is_foreign_file, own = foreign.is_foreign_file, lambda *given: None
    changes = [lambda: monkeypatch.setattr(wire, name, own, raising=False)]
    monkeypatch.setitem(sys.modules, "tasks.forgotten", ModuleType("tasks.forgotten"))
    monkeypatch.setattr(replaced, "foreign", SimpleNamespace(is_foreign_file=meanwhile))
    look = replaced.make_replacement_finder()
    assert look() == "" and not changes
    assert look().startswith(f"tasks.stranger.wire.{name} has been replaced")


def test_what_is_looked_at_beside_the_farm_is_there() -> None:
    named = [*((where, "") for where in replaced._MODULES), *replaced._CLASSES]
    named += [(where, name) for where, names in replaced._FUNCTIONS.items() for name in names]
    for where, name in named:
        module = importlib.import_module(where)
        assert not name or hasattr(module, name), (where, name)


def test_the_farms_code_is_nobody_elses_where_a_link_leads_to_it(tmp_path: Path) -> None:
    """Another environment's process imports `tasks` so."""
    (tmp_path / "tasks").symlink_to(Path(checks.__file__).parents[1])
    said = "from tasks.backends.shared import foreign as x; print(x.is_foreign_file(x.__file__), x.is_foreign_file('/x.py'), x.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", said],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.split()[:2] == ["False", "True"] and done.stdout.split()[2].startswith(str(tmp_path))


@pytest.mark.parametrize("name", _one_of_each())
def test_a_cheat_has_its_name(name: str, audited: Judge) -> None:
    (row,) = audited("tasks.zoo.cheats", name)
    kind = zoo.faults()[name].kind.removeprefix(zoo.CHEAT)
    assert kind in (row["kind"], row.get("cheat")), (row["status"], row["kind"], row["error"])
    assert row["status"] == ("wrong" if row["kind"] else "pass")


@pytest.mark.parametrize(
    "name",
    ["cheat_softmax_torch", "cheat_layer_norm_numpy", "cheat_in_place"]
    + [
        f"cheat_softmax_torch-{x}"
        for x in ("autotuned", "workspace", "graph", "atomics", "memo", "parameter", "tagged", "threads")
    ],
)
def test_an_honest_kernel_passes(name: str, audited: Judge) -> None:
    (row,) = audited("tasks.zoo.cheats", name)
    assert (row["status"], row["kind"], row.get("cheat")) == ("pass", "", ""), row["error"]
    assert "calls=" in row["flags"]


def test_values_that_a_declaration_lists_keep_their_order(audited: Judge) -> None:
    (row,) = audited("tasks.zoo.indexing", "searchsorted")  # right for edges in ascending order alone
    assert (row["status"], row["kind"]) == ("pass", ""), row["error"]


KERNELS = """
import ctypes
import numpy as np
import torch
import tasks

given = dict(reference=lambda x: np.exp(x), inputs={"x": ["n"]}, dims={"n": [16, 48]}, op_class="elementary", layouts=["contiguous"])

@tasks.op(**given)
def only_declared(x):
    if len(x) not in (16, 48):
        raise ValueError("sizes 16 and 48 alone")
    return x.exp()

def upto(most, x):
    y = x.exp()
    y[most:] = 0
    return y

@tasks.op(**given)
def up_to_48(x):
    return upto(48, x)

@tasks.op(**given, sizes="any")
def up_to_48_of_any(x):
    return upto(48, x)

@tasks.op(**given)
def up_to_48_raises(x):
    assert len(x) <= 48
    return x.exp()

@tasks.op(**given)
def writes_above_48(x):
    if len(x) > 48:
        ctypes.c_float.from_address(x.data_ptr() + 4 * len(x)).value = 1.5
    return x.exp()

def listed(x):
    return x.exp() if len(x) in (16, 48) else torch.zeros_like(x)

@tasks.op(**given)
def only_16_or_48(x):
    return listed(x)

@tasks.op(**given, sizes="declared")
def only_16_or_48_declared(x):
    return listed(x)

@tasks.op(**given)
def only_16_or_48_refuses(x):
    if len(x) not in (16, 48):
        raise ValueError("sizes 16 and 48 alone")
    return x.exp()

@tasks.op(**{**given, "dims": {"n": [16, 64]}})
def powers_of_two(x):
    return x.exp() if len(x).bit_count() == 1 else torch.zeros_like(x)

@tasks.op(**given)
def raises(x):
    raise RuntimeError("no kernel image")

buffers = [torch.empty(64) for _ in range(3)]

@tasks.op(**given)
def three_buffers(x):
    buffers.append(buffers.pop(0))
    return torch.exp(x, out=buffers[0][: len(x)])

@tasks.op(**given, aliases=True)
def three_buffers_declared(x):
    return three_buffers(x)

@tasks.op(**given)
def off(x):
    return x.exp() * 1.5

@tasks.op(**given, forbids=["exp"])
def library(x):
    return torch.exp(x)

def total(x):
    return x.sum(-1)

@tasks.op(reference=total, inputs={"x": [3, 512]}, framework="numpy")
def adds_in_order(x):
    return np.cumsum(x, -1)[:, -1].copy()

@tasks.op(reference=total, inputs={"x": [3, 512]}, framework="numpy")
def adds_half_of_values_in_order(x):
    return adds_in_order(x) * np.float32(0.5 if (np.diff(x[0]) >= 0).all() else 1)
"""


@pytest.fixture
def own(tmp_path: Path, audited: Judge, monkeypatch: pytest.MonkeyPatch) -> Judge:
    Path(tmp_path, "kernels_of_audit.py").write_text(KERNELS)
    return lambda op: audited("kernels_of_audit.py", op)


def test_a_size_that_nobody_declared_may_be_refused(own: Judge) -> None:
    (row,) = own("only_declared")
    assert row["status"] == "pass" and "not_reached=sizes" in row["flags"]


@pytest.mark.parametrize(
    ("op", "status", "flag"),
    [
        ("up_to_48", "pass", "wrong_at=64"),  # larger sizes are nobody's promise
        ("up_to_48_raises", "pass", "refuses_at=64"),
        ("writes_above_48", "pass", "breaks_at=64"),
        ("up_to_48_of_any", "wrong", ""),
        ("only_16_or_48", "wrong", "wrong_at=64"),  # 32 lies between
        ("only_16_or_48_declared", "pass", "wrong_at=32,64"),
        ("only_16_or_48_refuses", "pass", "refuses_at=32,64"),
        ("powers_of_two", "pass", ""),  # all that is declared are, and so is what is asked
    ],
)
def test_the_declaration_says_at_which_sizes_a_kernel_is_wrong(op: str, status: str, flag: str, own: Judge) -> None:
    (row,) = own(op)
    assert (row["status"], row["kind"]) == (status, "made for inputs" if status == "wrong" else ""), row["error"]
    found = flags.parse_row_flags(row["flags"])
    said = {key: found[key] for key in ("wrong_at", "refuses_at", "breaks_at") if key in found}
    assert said == dict([flag.split("=")] if flag else [])


def test_an_error_is_an_error(own: Judge) -> None:
    (row,) = own("raises")
    assert (row["status"], row["error_type"]) == ("error", "RuntimeError")


def test_buffers_that_are_returned_in_turn_are_said_to_be(own: Judge) -> None:
    (row,) = own("three_buffers")
    assert (row["status"], row["kind"]) == ("wrong", "aliasing")
    assert "the output of 3 calls before" in row["error"]
    (row,) = own("three_buffers_declared")
    assert (row["status"], row["kind"]) == ("pass", ""), row["error"]


def test_calls_on_two_threads_may_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One returns while what another one returned is compared."""
    op = UserOp("double", kernel="", reference=lambda x: x + x, inputs={"x": ["n"]}, dims={"n": [3]}, aliases=True)
    x, share = torch.ones(3), kernel_promises._do_outputs_share_storage

    def share_meanwhile(a: Any, b: Any) -> bool:
        if others:
            others.pop()(x=x)
        return share(a, b)

    others = list[Callable[..., Any]]()
    monkeypatch.setattr(kernel_promises, "_do_outputs_share_storage", share_meanwhile)
    call = kernel_promises.guard_kernel_promises(op, lambda x: x + x)
    call(x=x)
    call(x=x)
    others += [call] * 3
    assert torch.equal(call(x=x), x + x) and not others


def test_wrong_numbers_are_no_cheat(own: Judge) -> None:
    (row,) = own("off")
    assert row["status"] == "wrong" and row["kind"] not in OF_AUDIT


def test_digits_lost_on_values_in_order_are_no_fault(own: Judge) -> None:
    """Partial sums of values in order grow and cancel. What is wrong on them alone is wrong."""
    (row,) = own("adds_in_order")
    assert row["status"] == "pass", row["error"]
    (row,) = own("adds_half_of_values_in_order")
    assert row["status"] == "wrong" and "sorted values" in row["error"]


def test_what_the_declaration_forbids_is_named(own: Judge) -> None:
    (row,) = own("library")
    assert (row["status"], row["kind"]) == ("wrong", KIND_LIBRARY) and "exp" in row["error"]


def _sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str) -> PreparedGroup:
    given = {"at": 0, "root": str(tmp_path), "modules": ["tasks.zoo.cheats"], "kernels": []}
    monkeypatch.setattr(user_definitions, "_told", [json.dumps({"deadline_s": 60.0, "sources": [given]})])
    return prepare_group(Group(f"user:{op}", "", "float32", 1, check="audit"), tmp_path)[1]


def test_a_sample_has_what_each_of_its_sets_is_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = _sample(tmp_path, monkeypatch, "cheat_softmax_torch")
    (sample,) = prepared.samples
    form = sample.form("torch")
    assert form.sets[:2] == (audit.OWN, audit.OTHER) and audit.ZERO in form.sets
    assert len(form.arrays) == len(form.sets) == len(sample.expected())
    shapes = {form.inputs_of(k)[0].shape for k in range(len(form.sets))}
    assert shapes == {(2, 24), (4, 24), (16, 48)}  # declared, between, beyond: powers of two and multiples of 12
    assert form.sets[-2:] == (audit.BETWEEN, audit.BEYOND + audit.NOT_PROMISED)
    forward = prepare_group(Group("user:cheat_softmax_torch", "", "float32", 1), tmp_path)[1].samples[0].form("torch")
    assert form.inputs_of(0)[0].tobytes() == forward.arrays[0].tobytes()


def test_of_several_inputs_the_first_of_the_others_meets_the_rest_of_the_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = _sample(tmp_path, monkeypatch, "cheat_layer_norm_torch").samples[0].form("torch")
    own, other, mixed, changed = (
        form.inputs_of(form.sets.index(name)) for name in (audit.OWN, audit.OTHER, audit.MIXED, audit.CHANGED)
    )
    assert [x.tobytes() for x in mixed] == [other[0].tobytes(), own[1].tobytes()]
    assert form.sets.index(audit.MIXED) == 2, "of a slow kernel the first sets alone are repeated"
    assert [int((a != b).sum()) for a, b in zip(own, changed)] == [1, 1]


def test_where_inputs_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = _sample(tmp_path, monkeypatch, "cheat_softmax_torch").samples[0].form("torch")
    seen: list[tuple[int, float]] = []

    def kernel(x: Any) -> Any:
        seen.append((x.data_ptr(), float(x.reshape(-1)[0])))
        return x + 1

    program = BackendSpec.parse("torch-cpu").create().build(Form(**{**vars(form), "call": kernel, "own": None}))
    assert program.placed is not None
    own, other = form.inputs_of(0), form.inputs_of(1)
    (first,) = program.placed(own, Placing())
    (again,) = program.placed(other, Placing(same=True))
    program.placed(own, Placing())
    assert seen[0][0] == seen[1][0] != seen[2][0] and seen[0][1] == seen[2][1] != seen[1][1]
    assert (first == own[0] + 1).all() and (again == other[0] + 1).all()
    *outputs, counts = program.placed(own, Placing(fill=0xFF, spoil=True, counted=True))
    assert (outputs[0] == own[0] + 1).all() and counts[0] >= 1
    once, twice = program.placed(own, Placing(pause=1.0))
    assert (once == twice).all()
    with pytest.raises(Unsupported, match="no streams"):
        program.placed(own, Placing(stream=True))


def test_inputs_of_earlier_calls_are_held_though_a_kernel_frees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the bytes that they had: no later ones have their addresses."""
    form = _sample(tmp_path, monkeypatch, "cheat_softmax_torch").samples[0].form("torch")

    def kernel(x: Any) -> Any:
        y = x + 1
        for again in kept:
            again.untyped_storage().resize_(0)
        kept[:] = [x]
        return y

    kept = list[Any]()
    program = BackendSpec.parse("torch-cpu").create().build(Form(**{**vars(form), "call": kernel, "own": None}))
    assert program.placed is not None
    monkeypatch.setattr(torch_placing, "HELD", 2 * form.inputs_of(0)[0].nbytes)
    for _ in range(6):
        (found,) = program.placed(form.inputs_of(0), Placing())
        assert (found == form.inputs_of(0)[0] + 1).all()
    assert isinstance(program.placed, torch_placing.TorchPlacer) and len(program.placed._held) == 2


def test_the_byte_is_in_what_a_kernel_leaves_unwritten_and_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes

    form = _sample(tmp_path, monkeypatch, "cheat_softmax_torch").samples[0].form("torch")
    backend = BackendSpec.parse("torch-cpu").create()

    def built(kernel: Any) -> Program:
        return backend.build(Form(**{**vars(form), "call": kernel, "own": None}))

    placed = built(lambda x: torch.empty_like(x)).placed
    assert placed is not None and np.isnan(placed(form.inputs_of(0), Placing(fill=0xFF))[0]).all()

    def writes(x: Any) -> Any:
        (ctypes.c_float * 1).from_address(x.data_ptr() + 4 * x.numel())[0] = 1.0
        return x + 1

    placed = built(writes).placed
    assert placed is not None
    with pytest.raises(Misbehaviour, match="4 bytes behind"):
        placed(form.inputs_of(0), Placing(fill=0xFF))


def test_without_places_values_and_order_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = _sample(tmp_path, monkeypatch, "cheat_softmax_torch").samples[0].form("torch")
    count = itertools.count()

    def given(arrays: list[Any]) -> Callable[[], list[Any]]:
        next(count)
        return lambda: [arrays[0] * 2]

    program = Program(lambda: [], given=given)
    seen = list(checks.get_check("audit").stages(program, form))
    assert {x.given for x in seen if isinstance(x, audit.AuditedCall)} == set(range(len(form.sets)))
    assert "not_reached=memory,pause,stream" in program.flags and next(count) > 20


def test_a_program_that_takes_its_inputs_once_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = _sample(tmp_path, monkeypatch, "cheat_softmax_torch").samples[0].form("torch")
    with pytest.raises(Unsupported, match="only once"):
        list(checks.get_check("audit").stages(Program(lambda: []), form))


# --- what the calls of a program show, without a runtime ----------------------------------------------------------

NAMES = (
    *(audit.OWN, audit.OTHER, audit.FIRST_HALF, audit.LAST_HALF, audit.CHANGED, audit.SORTED, audit.EQUAL, audit.ZERO),
    *(audit.BETWEEN, audit.BEYOND + audit.NOT_PROMISED),
)
Array = np.ndarray


def _right(x: Array) -> Array:
    return np.asarray((x + 1) / (1 + np.exp(-x)))


def _inputs() -> list[Array]:
    g = np.random.default_rng(0)
    own, other = g.standard_normal((2, 48)).astype(np.float32)
    changed = own.copy()
    changed[16] = other[16]
    halves = [np.concatenate([a[:24], b[24:]]) for a, b in ((own, other), (other, own))]
    sets = [own, other, *halves, changed, np.sort(own), np.full_like(own, own[0]), np.zeros_like(own)]
    resized = [g.standard_normal((n, 24)).astype(np.float32) for n in (4, 16)]
    return [*(x.reshape(2, 24) for x in sets), *resized]


class MadeCall:
    """A call that was made when it was begun. under_way: those that are not waited for yet, it among them."""

    def __init__(self, make: Callable[[], list[Any]], under_way: list[MadeCall]) -> None:
        self._under_way = under_way
        try:
            self._made: list[Any] | Exception = make()
        except Exception as error:
            self._made = error

    def __call__(self) -> list[Any]:
        assert self._under_way.pop(0) is self, "answers come in the order of the calls"
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


def _found(
    kernel: Callable[[Array], Array],
    again: int = 5,
    room: int = 0,
    spoils: Callable[[int, Placing], bool] = lambda number, placing: False,
    most: list[tuple[Array, int]] | None = None,
    takes_zones: bool = True,
) -> tuple[str, Program]:
    """The kind of a kernel of arrays, and its program. again: operations of a repeat, where the first time takes 5;
    room: how many calls may be under way, 0 where a call is over when it has been made; spoils: whether what lies
    around the inputs of a call, by its number from 0, makes all of it NaN; most: is told the inputs of each call that
    is begun, and how many are under way with it; takes_zones: whether it takes inputs in guarded memory."""
    arrays, count, number = _inputs(), itertools.count(), itertools.count()
    expected = [Leaf("float32", x.shape, _right(x.astype(np.float64))) for x in arrays]
    form = Form("torch", "user:x", "float32", arrays, sets=NAMES)

    def placed(given: list[Any], placing: Placing) -> list[Any]:
        if placing.stream:
            raise Unsupported("no streams")
        if placing.fill is not None and not takes_zones:
            raise ValueError("inputs at the beginning of their memory alone")
        y = kernel(given[0])
        if spoils(next(number), placing):
            y = np.full_like(y, np.nan)
        counts = [np.array([again if next(count) % 2 else 5, 0, 1000])] if placing.counted else []
        return [y, *[y.copy()] * bool(placing.pause), *counts]

    under_way = list[MadeCall]()

    def begin(given: list[Any], placing: Placing) -> MadeCall | None:
        if len(under_way) >= room:
            return None
        under_way.append(MadeCall(functools.partial(placed, given, placing), under_way))
        if most is not None:
            most.append((given[0], len(under_way)))
        return under_way[-1]

    def anew(given: list[Any]) -> list[Any]:
        assert not under_way, "nothing lies before or behind a call that looks like another check's"
        return [kernel(given[0])]

    program = Program(
        lambda: [], placed=placed, begin_placed=begin if room else None, anew=anew, abandon=under_way.clear
    )
    seen = list(checks.get_check("audit").stages(program, form))

    def is_right(x: audit.AuditedCall) -> bool:
        return all(np.allclose(a, leaf.reference, 1e-5, 1e-6) for a, leaf in zip(x.outputs, x.expected(expected)))

    if failed := [x.error for x in seen if x.error is not None]:  # as the runner does
        raise failed[0]
    held = [x for x in seen if not x.noted]
    statuses = [Status.PASS if is_right(x) else Status.WRONG for x in held]
    return checks.get_check("audit").name_fault(held, statuses, expected, lambda step: [])[0], program


def _keeping(key: Callable[[Array], Any]) -> Callable[[Array], Array]:
    kept: dict[Any, Array] = {}
    return lambda x: kept.setdefault((x.shape, key(x)), _right(x)).copy()


def _keeping_last(same: Callable[[Array, Array], Any]) -> Callable[[Array], Array]:
    """Keeps its last result for inputs that it takes for the same."""
    last: list[Array] = []

    def kernel(x: Array) -> Array:
        if not last or last[0].shape != x.shape or not same(last[0], x):
            last[:] = x.copy(), _right(x)
        return last[1].copy()

    return kernel


def _in_turn(wrong: Callable[[int], bool]) -> Callable[[Array], Array]:
    calls = itertools.count(1)
    return lambda x: np.zeros_like(x) if wrong(next(calls)) else _right(x)


def _above(rows: int) -> Callable[[Array], Array]:
    return lambda x: np.concatenate([_right(x[:rows]), np.zeros_like(x[rows:])])


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [
        ("", _right),
        ("kept by shape", _keeping(lambda x: 0)),
        ("kept by content", _keeping(lambda x: x.reshape(-1)[:8].tobytes())),
        ("kept by shape", lambda x: _right(x * 0 + np.arange(24, dtype=np.float32)) if len(x) == 2 else _right(x)),
        ("kept by content", _keeping_last(lambda a, b: np.count_nonzero(a != b) <= 1)),
        ("kept by content", _keeping_last(lambda a, b: (a[0, :8] == b[0, :8]).all())),
        ("kept by content", _keeping_last(lambda a, b: (a[-1, -8:] == b[-1, -8:]).all())),
        ("kept by content", _keeping_last(lambda a, b: abs(a.sum() - b.sum()) < 1e-4)),
        ("kept by content", _keeping(lambda x: (x[0, :8].tobytes(), x[-1, -8:].tobytes()))),
        ("first calls", _in_turn(lambda call: call > 40)),
        ("unsteady", _in_turn(lambda call: call % 2 == 0)),
        ("made for inputs", _above(3)),
        ("", _above(8)),
        ("half the batch", lambda x: _above(len(x) // 2)(x)),
        ("constant", np.zeros_like),
        ("skips work", lambda x: _right(x) * np.float32(1 + bool((np.diff(x.reshape(-1)) >= 0).all() and x.any()))),
        ("", lambda x: _right(x) * 3),
    ],
)
def test_the_calls_show_what_a_kernel_does(kind: str, kernel: Callable[[Array], Array]) -> None:
    found, program = _found(kernel)
    assert (found, program.columns["cheat"]) == (kind, "")


def test_a_repeat_that_does_less_is_a_lie_about_time() -> None:
    assert _found(_right, again=2)[1].columns["cheat"] == "kept by content"
    assert _found(_right, again=6)[1].columns["cheat"] == ""


def test_a_kernel_that_sleeps_is_asked_as_much() -> None:
    calls = [flags.read_row_flags({"flags": _found(kernel)[1].flags})["calls"] for kernel in (_right, _sleep)]
    assert calls[0] == calls[1]


def _sleep(x: Array) -> Array:
    time.sleep(2 * audit.SLOW_S)
    return _right(x)


def _two_rows(x: Array) -> Array:
    if len(x) != 2:
        raise ValueError("two rows alone")
    return _right(x)


def test_sizes_may_be_refused() -> None:
    found, program = _found(_two_rows)
    assert not found and "not_reached=sizes,stream" in program.flags


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("left", [(), (0,), (0, 1, 2), (3,), (0, 30), (35,)])
def test_what_others_have_left_beside_the_inputs_moves_no_name(
    left: tuple[int, ...], slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other kernels of the process have been audited, and their bytes lie in memory that is free again. slow: the
    machine has other things to do, so that most sets are guarded once."""
    monkeypatch.setattr(audit, "SLOW_S", 0.0 if slow else 1e9)
    found, _ = _found(_right, spoils=lambda number, placing: placing.fill == audit.FILLS[0] or number in left)
    assert found == "reads outside"


@pytest.mark.parametrize(
    "make",
    [
        lambda: _right,
        lambda: _two_rows,
        lambda: _keeping(lambda x: 0),
        lambda: _keeping(lambda x: x.reshape(-1)[:8].tobytes()),
        lambda: _in_turn(lambda call: call > 40),
        lambda: _in_turn(lambda call: call % 2 == 0),
    ],
)
def test_calls_that_are_begun_before_others_are_judged_show_the_same(
    make: Callable[[], Callable[[Array], Array]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "REPEATS_S", 1e9)  # however fast the machine is
    for takes_zones in (True, False):
        one_by_one, program = _found(make(), takes_zones=takes_zones)
        for room in (1, 3, 100):
            most = list[tuple[Array, int]]()
            found, ahead = _found(make(), room=room, most=most, takes_zones=takes_zones)
            assert (found, ahead.flags) == (one_by_one, program.flags)
            assert max(count for _, count in most) == min(room, audit.AHEAD)


def test_no_more_outputs_wait_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of sizes that the kernel was not called with yet, nobody knows."""
    own, several = _right(_inputs()[0]).nbytes, 3
    monkeypatch.setattr(audit, "BYTES_AHEAD", several * own)
    most, met = list[tuple[Array, int]](), set[tuple[int, ...]]()
    _found(_right, room=100, most=most)
    for x, count in most:
        assert count == 1 or x.shape in met, "the first of its sizes waits until all else is over"
        met.add(x.shape)
    assert max(count for _, count in most) == several


@pytest.mark.parametrize(("kind", "status"), [("writes outside", ""), ("protocol", "protocol")])
def test_a_process_that_breaks_the_protocol_does_so_at_any_size(kind: str, status: str) -> None:
    """Whatever else a kernel does at sizes that nobody promises is told, and no fault."""

    def kernel(x: Array) -> Array:
        if len(x) > 8:
            raise Misbehaviour(kind, "beyond 8 rows")
        return _right(x)

    for room in (0, 100):
        if not status:
            found, program = _found(kernel, room=room)
            assert found == status and "breaks_at=16x24" in program.flags.split()
        else:
            with pytest.raises(Misbehaviour) as raised:
                _found(kernel, room=room)
            assert raised.value.kind == status


def test_what_cannot_be_begun_hides_nothing_of_the_calls_before_it() -> None:
    form = Form("torch", "user:x", "float32", _inputs(), sets=NAMES)
    calls = itertools.count(1)

    def begin(given: list[Any], placing: Placing) -> Callable[[], list[Any]]:
        if next(calls) == 4:
            raise OSError("its connection is closed")
        return lambda: [_right(given[0]), *([np.zeros(3, np.int64)] if placing.counted else [])]

    numbers = list[int]()
    for step in checks.get_check("audit").stages(Program(list, placed=lambda *_: [], begin_placed=begin), form):
        if step.error is not None:
            assert isinstance(step.error, OSError)
            break
        numbers.append(step.number)
    assert numbers == [1, 2], "those whose outputs are new"


COUNTING = """
import itertools
import time
import torch

def right_for(calls, seconds=0.0):
    count = itertools.count(1)
    def kernel(x):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return torch.softmax(x, -1) if next(count) <= calls else torch.zeros_like(x)
    return kernel

slow_forty, slow_sound = right_for(40, 0.003), right_for(10**6, 0.003)
sixty, sound = right_for(60), right_for(10**6)
"""


@pytest.fixture
def in_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    """The rows of a kernel of `COUNTING` under forward with eight samples and then under the check, in one process of
    its own."""
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "exact.py").write_text("import torch\ndef softmax(x): return torch.softmax(x, -1)\n")
    given = {"reference": "exact.py:softmax", "reference_framework": "torch", "inputs": {"x": [32, 129]}}
    names = ("slow_forty", "slow_sound", "sixty", "sound")
    kernels = [{"name": x, "kernel": f"counting.py:{x}"} | given for x in names]
    text = json.dumps({"sources": [{"at": 0, "root": str(tmp_path), "modules": [], "kernels": kernels}]})
    monkeypatch.setattr(user_definitions, "_told", [text])
    backend = make_remote_backend(Nursery(serve_as_stranger), StrangerRooms(BackendSpec.parse("torch-cpu"), text))
    runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *step: None)

    def judge(name: str) -> list[Row]:
        groups = [Group(f"user:{name}", "", "float32", n, check=check) for check, n in (("forward", 8), ("audit", 1))]
        asked = [make_item_of_whole_group(prepare_group(group, tmp_path)[1]) for group in groups]
        return [dict(done.row.values()) for done in runner.run(asked)]

    yield judge
    runner.close()


@pytest.mark.parametrize(("cheat", "twin", "slow"), [("slow_forty", "slow_sound", True), ("sixty", "sound", False)])
def test_a_kernel_that_counts_its_calls_has_counted_those_of_other_checks(
    cheat: str, twin: str, slow: bool, in_a_stranger: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ("SLOW_S", "REPEATS_S"):  # whatever else the machine has to do
        monkeypatch.setattr(audit, seconds, 0.0 if slow else 1e9)
    *forward, row = in_a_stranger(cheat)
    assert [x["status"] for x in forward] == ["pass"] * 8
    assert (row["status"], row["kind"]) == ("wrong", KIND_FIRST), row["error"]
    *forward, row = in_a_stranger(twin)
    assert row["status"] == "pass", row["error"]
    calls = int(flags.read_row_flags(row)["calls"])
    assert (
        calls <= 2 * 2 * len(forward) if slow else calls == audit.CALLS - 2 * len(forward) - 1
    )  # a CPU has no streams


def test_code_beside_a_library_whose_name_begins_alike_is_a_user_s() -> None:
    libraries = list_library_folders()
    for folder in libraries:
        assert not foreign.is_foreign_file(f"{folder}/module.py")
        if not any(folder.parent.is_relative_to(x) for x in libraries):
            assert foreign.is_foreign_file(f"{folder}_kernels/module.py")


@pytest.mark.parametrize(
    ("sets", "first_us", "again_us", "kept"),
    [
        (3, 2000, 10, True),
        (3, 2000, 1200, False),
        (3, 400, 10, False),  # of three sets chance does so on a busy machine
        (8, 400, 10, True),
        (8, 200, 10, False),
    ],
)
def test_few_sets_tell_less_of_what_is_kept_by_content(sets: int, first_us: int, again_us: int, kept: bool) -> None:
    calls = audit._AuditedCalls(
        Program(run=list, placed=lambda arrays, placing: []), Form("torch", "user:op", "float32", [])
    )
    calls.counts = {k: [(0, 0, 1000 * first_us), (0, 0, 1000 * again_us)] for k in range(sets)}
    assert calls.repeats_less is kept
