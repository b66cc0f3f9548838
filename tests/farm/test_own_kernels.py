"""Kernels of one's own as they are written: sizes that follow others, files that import the farm, references without a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import farm
from farm import lake
from farm.commands import minimise
from farm.commands import run as launch
from farm.exits import BAD_INPUT
from farm.lake import minimal
from farm.reproduction import finding_requirements
from tasks import user_sources
from tasks.catalogs.user import load_kernels
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.load_kernels import DeclaredKernel
from tasks.catalogs.user.ops import UserOp
from tasks.gradients import autograd
from tasks.model import Group

KERNELS = """
import farm
import numpy as np
import tasks
import torch


def half_ref(x, window):
    a, b = np.split(x, 2, -1)
    return a * b * window


@tasks.op(reference=half_ref, dims={"b": [1, 4], "h": [5, 64]}, inputs={"x": ["b", "2*h"]}, kwargs={"window": {"dim": "h//2"}})
def half(x, window):
    a, b = x.chunk(2, -1)
    y = a * b * window
    return y + 1 if a.shape[-1] > 20 else y
"""


@pytest.mark.usefixtures("cache", "no_environments")
def test_a_dimension_of_an_expression_is_searched_and_sizes_are_told_as_they_were_run(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(KERNELS)
    (tmp_path / "f.yaml").write_text("catalogs: [{name: user, modules: [k.py], samples: 2}]\nbackends: [torch-cpu]\n")
    results = tmp_path / "results"
    launch.main([str(tmp_path / "f.yaml"), "--on", "inline", "--results", str(results)])
    rows = lake.read(results, lake.run_ids(results)[-1])
    (row,) = (x for _, x in rows[rows.status == "wrong"].iterrows())
    assert minimise.main([f"last:{row.case_id}:torch-cpu", "--results", str(results)]) == minimise.SMALLER
    (found,) = minimal.read_minimal_cases(results)
    assert found["shapes"][1] == [[1, 42]] and found["attributes"] == {"half.window": 10}
    program, run = ((Path(found["folder"]) / name).read_text() for name in ("program.py", "run.py"))
    assert "window=10" in program and "shows the wrong result" in found["script_said"]
    assert run.splitlines()[2].endswith(" numpy")  # torch itself does not bring it


def test_a_finding_takes_what_the_kernels_file_imports(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import hypothesis\n")
    (tmp_path / "k.py").write_text("import beside, os, numpy, rich.table\ndef f(x): return x\n")
    assert user_sources.list_imports_outside(tmp_path / "k.py", str(tmp_path)) == {"os", "numpy", "rich"}
    op = UserOp("f", f"{tmp_path}/k.py:f", reference=np.sin, inputs={"x": [3]}, dims={})
    one = DeclaredKernel(op, (), str(tmp_path))
    assert one.outside() == {"os", "numpy", "rich", "hypothesis"}
    with load_kernels.lend_op(op, str(tmp_path)):
        named = {
            x.partition("==")[0]
            for x in finding_requirements.pin_module_requirements(
                finding_requirements._list_imported_packages(Group("user:f", "", "", 1))
            )
        }
    assert named == {"rich", "hypothesis"}


class _WritesToGiven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g.mul_(x.cos())


def _sin(x: Any) -> Any:
    return np.sin(x)


def _sound(x: Any) -> Any:
    return x.sin()


SIZES: dict[str, Any] = {"inputs": {"x": ["n"]}, "dims": {"n": (1, 40)}, "cases": 4, "backward": True}


def test_a_backward_pass_that_writes_to_the_gradient_it_was_given_says_so() -> None:
    found = farm.fuzz(_WritesToGiven, reference=_sin, results=None, **SIZES)
    assert (found.passed, found.failed) == (4, 4)
    assert {f.kind for f in found.findings} == {"mutation"} and "the gradient that the backward pass was given" in str(
        found
    )
    assert farm.fuzz(_sound, reference=_sin, results=None, **SIZES).failed == 0


def _norm(x: Any) -> Any:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def _norm_of_a_root(x: Any) -> Any:
    """ε stands beside the root."""
    return x / ((x * x).mean(-1, keepdim=True).sqrt() + 1e-6)


def _offsets_in_16_bits(x: Any) -> Any:
    flat, n = x.reshape(-1).clone(), x.shape[1]
    starts = (torch.arange(x.shape[0]) * n).to(torch.int16)  # wraps from 32768 elements on
    return flat[(starts.long()[:, None] + torch.arange(n)) % flat.numel()]


def _rounds_up(x: Any) -> Any:
    return torch.floor(16 * x.double() + 0.5).to(x.dtype)


@pytest.mark.parametrize("seed", range(3))
def test_few_cases_show_where_an_epsilon_stands_and_what_overflows_at_the_largest_sizes(seed: int) -> None:
    given = {"inputs": {"x": ["b", "n"]}, "dims": {"b": (1, 300), "n": (1, 200)}, "cases": 40, "seed": seed}
    given |= {"op_class": "normalisation", "reference": _norm, "reference_framework": "torch", "results": None}
    assert farm.fuzz(_norm, **given).failed == 0 < farm.fuzz(_norm_of_a_root, **given).failed
    given |= {"op_class": "exact", "reference": lambda x: x}
    assert farm.fuzz(lambda x: x.clone(), **given).failed == 0 < farm.fuzz(_offsets_in_16_bits, **given).failed
    # What is halfway between two steps of 2⁻⁴.
    given |= {"reference": lambda x: torch.round(16 * x)}
    assert farm.fuzz(lambda x: torch.round(16 * x), **given).failed == 0 < farm.fuzz(_rounds_up, **given).failed


_kept: dict[Any, Any] = {}


def _into_one_buffer(x: Any) -> Any:
    return torch.sin(x, out=_kept.setdefault(x.shape, torch.empty_like(x)))


def test_a_kernel_that_returns_one_buffer_at_every_call_says_so() -> None:
    given = {"reference": _sin, "inputs": {"x": ["n"]}, "dims": {"n": (1, 40)}, "cases": 4, "results": None}
    found = farm.fuzz(_into_one_buffer, **given)
    assert found.failed == 4 and {f.kind for f in found.findings} == {"aliasing"}
    assert "reuses the memory of the previous call's output" in str(found)
    assert farm.fuzz(_into_one_buffer, aliases=True, **given).failed == farm.fuzz(_sound, **given).failed == 0


class _WritesToSaved(_WritesToGiven):
    """Its result is what it saved, and a mask beside it."""

    what = ""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y, mask = x.exp(), x > 0
        ctx.save_for_backward(x, y, mask)
        return y

    @classmethod
    def backward(cls, ctx: Any, g: Any) -> Any:
        x, y, mask = ctx.saved_tensors
        made = g * y
        if cls.what:
            {"x": x, "y": y, "mask": mask}[cls.what].data.logical_not_()
        return made


@pytest.mark.parametrize("what", ["", "x", "y", "mask"])
def test_a_backward_pass_that_writes_to_what_was_saved_is_found_by_fuzz_as_by_the_check_of_functions(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_WritesToSaved, "what", what)
    found = farm.fuzz(_WritesToSaved, reference=lambda x: np.exp(x), results=None, **SIZES)
    looked = farm.validate_autograd_function(_WritesToSaved, (torch.linspace(-2, 2, 5),))
    assert ("saved" in {c.name for c in looked.checks if not c.passed}) is bool(what)
    if what:
        assert [f.kind for f in found.findings] == ["mutation"] and found.failed >= 3
        words = "input 0" if what == "x" else f"saved tensor {'xy'.index(what) if what != 'mask' else 2}"
        assert words in str(found) and words in looked.message
    else:
        assert found.failed == 0
    # A saved input may be written to where the input may be.
    may = farm.fuzz(_WritesToSaved, reference=lambda x: np.exp(x), results=None, mutates=["x"], **SIZES)
    assert (may.failed == 0) is (what in ("", "x"))
    x = torch.linspace(-2, 2, 5, requires_grad=True)
    with farm.validate(_WritesToSaved, {"x": x}, reference=lambda x: np.exp(x), backward=True) as v:
        v.output = _WritesToSaved.apply(x)
    assert [o.kind for o in v.outcomes] == ["", "mutation" if what else ""]


def test_what_a_backward_pass_must_leave_alone_is_watched_in_the_first_run_of_a_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched: list[Any] = []
    monkeypatch.setattr(autograd.UntouchedInputs, "note_outputs", lambda self, outputs: watched.append(self))
    found = farm.fuzz(_sound, reference=_sin, results=None, repeats=4, **SIZES)
    assert found.passed == 8 and len(watched) == 4


def test_a_kernel_that_differentiates_inside_is_looked_at_like_any_other() -> None:
    def doubled(x: Any) -> Any:
        y, back = torch.func.vjp(torch.sin, x.detach())
        return x * back(torch.ones_like(y))[0].detach()

    found = farm.validate_autograd_function(lambda x: doubled(x) - doubled(x), (torch.linspace(-2, 2, 5),))
    assert "saved: 0 saved tensors" in str(found)


@pytest.mark.usefixtures("cache")
def test_a_row_whose_reference_is_a_lambda_says_why_no_command_runs_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = farm.fuzz(_WritesToGiven, reference=lambda x: np.sin(x), results=tmp_path, **SIZES)
    assert minimise.main([found.findings[0].key, "--results", str(tmp_path)]) == BAD_INPUT
    assert "is <lambda>, which no other process can import: give it a name" in capsys.readouterr().err.replace(
        "test_a_row_whose_reference_is_a_lambda_says_why_no_command_runs_it_again.<locals>.", ""
    )


def test_inputs_are_held_to_the_sizes_that_are_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    for x in (torch.ones(6), torch.ones(2, 7)):
        with pytest.raises(farm.ClientError, match=r"inputs: half: .*declared: \{'x': \['b', '2\*h'\]\}"):
            with farm.validate("k.py:half", {"x": x}) as v:
                v.output = x
    with farm.validate("k.py:half", {"x": torch.ones(2, 8)}) as v:
        v.output = torch.full((2, 4), 2.0)  # its window, which nobody said, is that of the sizes: 4//2
    assert v.outcome.status == "pass", v.outcome


def test_a_size_below_0_is_named_before_anything_runs() -> None:
    op = UserOp("f", len, reference=len, inputs={"x": ["n-3"]}, dims={"n": [1, 5]})
    assert list(list_declaration_mistakes(op)) == [(("inputs", "x", 0), "n-3 is -2 where n is 1: no size")]
    assert not list(
        list_declaration_mistakes(UserOp("f", len, reference=len, inputs={"x": ["n-1"]}, dims={"n": [1, 5]}))
    )
