"""The client: planted faults are found, told by seed and key, and shown again; sound twins pass; mistakes are lines."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import farm
from farm import lake
from farm.client import minimising, one_sample, process
from farm.commands.report import main as report
from farm.commands.reproduce import main as command
from farm.hunt import minimise_search as searching
from farm.lake.key import RowKey
from tasks.backends.shared import torch_devices
from tasks.backends.torch import TorchEager
from tasks.catalogs.user import fuzzed_samples, load_kernels
from tests.kernels import called, norms
from tests.kernels.norms import DIMS, INPUTS, Norm, WrongNorm, exact, exact_in_torch, refuses, rms_norm, tail_lost

DEADLY = """
import os, time
def exact(x): return 2 * x
def dies(x): os.kill(os.getpid(), 11)
def hangs(x): time.sleep(600)
"""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def fuzz(kernel: Any, **more: Any) -> Any:
    given = {"reference": exact, "inputs": INPUTS, "dims": DIMS, "op_class": "normalisation", "cases": 8, "seed": 7}
    return farm.fuzz(kernel, **(given | more))


def test_a_planted_fault_is_found_and_its_sound_twin_passes() -> None:
    good = fuzz(rms_norm, dtypes=["float32", "bfloat16"], cases=24)
    assert (good.passed, good.failed, good.findings) == (48, 0, ())
    good.check()
    bad = fuzz(tail_lost, cases=24)
    (found,) = bad.findings
    assert bad.failed == found.count > 3 and found.status == "wrong" and found.kind == "numbers"
    with pytest.raises(AssertionError, match="farm reproduce"):
        bad.check()
    # The finding is the failing case with the fewest elements.
    sizes = [
        sum(np.prod(list(map(int, s.split("x")))) for s in x.split()) for x in bad.rows.query("status=='wrong'").shapes
    ]
    assert sum(np.prod(list(map(int, s.split("x")))) for s in found.shapes.split()) == min(sizes)


def test_a_finding_is_shown_again_by_its_seed_by_its_key_and_by_the_command(capsys: Any) -> None:
    found = fuzz(tail_lost).findings[0]
    by_seed, by_key = farm.reproduce(seed=found.seed), farm.reproduce(found.key)
    for again in (by_seed, by_key):
        assert again.same and not again.passed and again.error_units == found.error_units
        assert [*again.inputs] == ["x", "weight"] and again.actual[0].shape == again.inputs["x"].shape
        assert np.abs(again.expected[0] - again.actual[0]).max() == pytest.approx(again.max_diff)
    assert by_key.told == ()
    for file in Path("results").glob("run=*/*.parquet"):  # as another version of torch would have left it
        table = pq.read_table(file)
        place = table.schema.get_field_index("runtime_version")
        field = table.schema.field(place)
        pq.write_table(table.set_column(place, field, pa.array(["torch 2.0.0"] * len(table), field.type)), file)
    for again in (farm.reproduce(found.key), farm.minimise(found.key)):
        assert "the row is of torch 2.0.0, here is torch" in again.told[-1]
    load_kernels._load_declared_kernels.cache_clear()
    for named in (found.key, f"seed:{found.seed}"):
        assert command([named]) == 0 and "reproduced" in capsys.readouterr().out
    assert command(["seed:x"]) == 2 and "'seed:x' is no seed: seed:NUMBER" in capsys.readouterr().err
    assert report([]) in (0, 1) and "user:tail_lost" in capsys.readouterr().out


def adds_one(x: Any, weight: Any) -> Any:
    return rms_norm(x, weight) + 1


def test_a_seed_of_several_kernels_that_fail_asks_which_one(capsys: Any) -> None:
    found = fuzz(tail_lost).findings[0]
    fuzz(rms_norm)  # its case of this seed passes: it is not meant
    assert farm.reproduce(seed=found.seed).key == found.key
    other = fuzz(adds_one)
    key = next(
        str(RowKey.of(r))
        for r in other.rows.to_dict("records")
        if fuzzed_samples.derive_kernel_case_seed(7, r["sample"]) == found.seed
    )
    for call in (farm.reproduce, farm.minimise):
        with pytest.raises(farm.ClientError, match="2 kernels have a case of the seed") as raised:
            call(seed=found.seed)
        assert f"'{found.key}'" in str(raised.value) and f"'{key}'" in str(raised.value)
        assert call(seed=found.seed, run=other.run_id).key == call(key).key == key
    assert command([f"seed:{found.seed}"]) == 2 and found.key in capsys.readouterr().err
    for n in range(3):
        fuzz(lambda x, weight: rms_norm(x, weight) - 1, name=f"less_{n}")
    with pytest.raises(farm.ClientError, match="5 kernels have a case of the seed") as raised:
        farm.reproduce(seed=found.seed)
    assert str(raised.value).count(":forward/user:") == 3 and " …; farm.reproduce" in str(raised.value)


@pytest.mark.parametrize(
    ("strategy", "rows", "plain"),
    [("binary-search-dims", 1, False), ("shrink-values", 4, True), ("shrink-all", 1, True)],
)
def test_a_case_is_made_small_and_fails_as_before(strategy: str, rows: int, plain: bool) -> None:
    found = farm.assert_correct  # a case that is not small: 4 rows of 300
    with pytest.raises(AssertionError):
        found(tail_lost, (torch.randn(4, 300), torch.randn(300)), exact, "normalisation", results="kept")
    (key,) = [f"{r.run_id}:{r.case_id}:{r.backend}" for r in lake.read("kept").itertuples()]
    small = farm.minimise(key, strategy=strategy, results="kept")
    assert (small.status, small.kind, small.passed, small.flaky) == ("wrong", "numbers", False, False)
    assert small.original_shapes == {"x": (4, 300), "weight": (300,)} and small.shapes["x"][0] <= rows
    assert (small.shapes["x"][1] < 300) is (rows == 1) and small.runs <= 200
    assert bool((small.inputs["x"] == np.round(small.inputs["x"])).all()) is plain
    # It fails as it is shown.
    with pytest.raises(AssertionError, match="wrong numbers"):
        farm.assert_correct(tail_lost, small.inputs, exact, "normalisation")


def _in_16_bits(a: Any, b: Any) -> Any:
    return (a.to(torch.int16) * b.to(torch.int16)).to(a.dtype)


def _past_a_block(x: Any, index: Any) -> Any:
    return torch.where(index > 20, x[index] + 1, x[index])


def test_whole_numbers_are_made_small_to_where_the_fault_begins() -> None:
    whole = {"shape": ["n"], "dtype": "int32", "low": -30000, "high": 30000}
    index = {"shape": ["n"], "dtype": "int64", "low": 0, "high": "m"}
    given = {"op_class": "exact", "cases": 4, "seed": 1}
    bad = farm.fuzz(_in_16_bits, lambda a, b: a * b, {"a": whole, "b": whole}, {"n": (1, 40)}, ["int32"], **given)
    a, b = sorted(abs(int(x[0])) for x in farm.minimise(bad.findings[0].key).inputs.values())
    assert 1 <= a <= 9 and a * (b - 1) <= 2**15 <= a * b + 1
    dims = {"n": (1, 40), "m": (400, 600)}
    bad = farm.fuzz(_past_a_block, lambda x, index: x[index], {"x": ["m"], "index": index}, dims, **given)
    small = farm.minimise(bad.findings[0].key)
    assert small.inputs["index"].tolist() == [21] and small.status == "wrong"


def _a_bit_more(x: Any, index: Any) -> Any:
    return torch.sqrt(x[index]) * 1.001


def test_a_case_is_made_small_within_what_its_inputs_may_be() -> None:
    index = {"shape": ["m"], "dtype": "int64", "low": 3, "high": "n"}
    inputs = {"x": {"shape": ["n"], "low": 0.5, "high": 0.7}, "index": index}
    given = {
        "dims": {"n": (5, 40), "m": (1, 9)},
        "dtypes": ["bfloat16", "float32"],
        "cases": 4,
        "op_class": "elementary",
    }
    for found in farm.fuzz(_a_bit_more, lambda x, index: np.sqrt(x[index]), inputs, **given).findings:
        small = farm.minimise(found.key).inputs
        assert small["index"].tolist() == [3] and len(small["x"]) == 4
        assert ((small["x"] >= 0.5) & (small["x"].astype(float) < 0.71)).all()


def test_a_case_that_fails_otherwise_when_it_is_run_again_says_how() -> None:
    calls: list[int] = []

    def right_once(x: Any) -> Any:
        calls.append(1)
        return x.sum() * min(len(calls), 2)

    more = {"inputs": {"x": ["n"]}, "dims": {"n": (3, 3)}, "cases": 1, "op_class": "contraction"}
    (found,) = farm.fuzz(right_once, lambda x: x.sum(), **more).findings
    assert found.kind == "nondeterministic"
    with pytest.raises(farm.ClientError, match="it is wrong numbers, not wrong nondeterministic: is something"):
        farm.minimise(found.key)


def test_what_explains_a_failure_warns_nobody(recwarn: pytest.WarningsRecorder) -> None:
    more = {"inputs": {"x": ["n"]}, "dims": {"n": (2, 2)}, "cases": 2, "results": None}
    assert farm.fuzz(lambda x: x.var() * 1.5, lambda x: x.var(ddof=1), **more).failed
    assert not [w for w in recwarn if w.category is RuntimeWarning]


@pytest.mark.parametrize("judged", [False, True])
def test_a_kernel_that_hangs_while_it_is_made_small_is_interrupted(
    judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the time is up while the farm judges what it gave."""

    def hangs_where_few(x: Any) -> Any:
        if x.numel() < 20 and not judged:
            time.sleep(600)
        return 2 * x + 1

    def slow(group: Any, sample: Any, *more: Any) -> Any:
        if sample.arrays[0].size < 20:
            time.sleep(600)
        return one_sample.judge_kernel_sample(group, sample, *more)

    monkeypatch.setattr(minimising, "judge_kernel_sample", slow if judged else one_sample.judge_kernel_sample)
    monkeypatch.setattr(searching, "HANG_S", 0.3)
    monkeypatch.setattr(searching, "LEAST_S", 0.3)
    more = {"inputs": {"x": ["n"]}, "dims": {"n": (60, 60)}, "cases": 1}
    (found,) = farm.fuzz(hangs_where_few, lambda x: 2 * x, **more).findings
    small = farm.minimise(found.key, strategy="binary-search-dims")
    assert small.shapes == {"x": (20,)} and small.status == "wrong"
    assert any("the kernel hangs there" in text for text in small.told), small.told
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_cannot_be_made_smaller_is_told() -> None:
    found = fuzz(tail_lost)
    for more, says in (
        ({"strategy": "shrink-al"}, "did you mean shrink-all"),
        ({"budget": 3}, r"more than \d+ runs, not 3"),
    ):
        with pytest.raises(farm.ClientError, match=says):
            farm.minimise(found.findings[0].key, **more)
    good = found.rows.query("status=='pass'").iloc[0]
    with pytest.raises(farm.ClientError, match="is pass: only failed"):
        farm.minimise(f"{good.run_id}:{good.case_id}:{good.backend}")


def test_the_same_seed_makes_the_same_cases_and_another_seed_others() -> None:
    def digests(seed: int, cases: int = 8) -> list[str]:
        return list(fuzz(rms_norm, seed=seed, cases=cases).rows.sort_values("sample").digest)

    first = digests(1)
    assert digests(1) == first and set(first).isdisjoint(digests(2))
    assert digests(1, 4) == first[:4]  # the case of a seed does not depend on how many there are


def test_a_known_failure_is_not_a_new_one() -> None:
    known = {"op": "user:tail_lost", "status": "wrong", "kind": "numbers", "reason": "the tail of a row is lost"}
    found = fuzz(tail_lost, known_failures=[known], cases=24)
    assert (found.failed, found.findings) == (0, ()) and found.known > 3


@pytest.mark.parametrize("reference", ["numpy", "torch"])
def test_gradients_of_an_autograd_function_are_judged(reference: str) -> None:
    more = {
        "reference": exact if reference == "numpy" else exact_in_torch,
        "reference_framework": reference,
        "dims": {"b": (1, 2), "n": (2, 24)},
        "cases": 6,
        "backward": True,
        "results": None,
    }
    assert fuzz(Norm, **more).failed == 0
    bad = fuzz(WrongNorm, **more)
    assert [(f.row["check"], f.message[:10]) for f in bad.findings] == [("backward", "backward: ")]


def test_a_crash_and_a_hang_are_rows_in_child_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    deadly = importlib.import_module("deadly")
    given = {"reference": deadly.exact, "inputs": {"x": ["n"]}, "dims": {"n": (1, 4)}, "cases": 1, "isolate": True}
    for kernel, status in ((deadly.dies, "crash"), (deadly.hangs, "timeout")):
        assert [f.status for f in farm.fuzz(kernel, deadline_s=5.0, **given).findings] == [status]


def test_given_inputs_are_judged_in_every_dtype() -> None:
    x, weight = torch.randn(2, 200), torch.randn(200)
    dtypes = ["float32", "bfloat16"]
    assert farm.assert_correct(rms_norm, (x, weight), dtypes=dtypes).passed == 2
    with pytest.raises(AssertionError, match="2 of 2 cases failed") as raised:
        farm.assert_correct(tail_lost, {"x": x, "weight": weight}, exact, "normalisation", dtypes)
    assert "seed" not in str(raised.value)  # none makes these inputs
    with pytest.raises(AssertionError, match="^user:tail_lost|^forward/user:tail_lost") as raised:
        farm.assert_correct(tail_lost, {"x": x, "weight": weight}, exact, "normalisation")
    assert "of 1" not in str(raised.value)
    large = torch.randn(64, 200)  # its values are in a file of the cache
    done = farm.assert_correct(rms_norm, (large, weight), results="kept")
    row = lake.read("kept").iloc[0]
    assert command([f"{done.run_id}:{row.case_id}:torch-cpu", "--results", "kept"]) == 0


def nothing_finite(x: Any, weight: Any) -> Any:
    """No element of it can be subtracted from what is right."""
    return rms_norm(x, weight) * torch.nan


@pytest.mark.parametrize(("kernel", "status"), [(rms_norm, "pass"), (tail_lost, "wrong"), (nothing_finite, "wrong")])
def test_what_a_block_computed_is_judged(kernel: Any, status: str) -> None:
    x, weight = torch.randn(2, 200), torch.randn(200)
    with farm.validate(rms_norm, {"x": x, "weight": weight}, results="kept") as v:
        v.output = kernel(x, weight)
    assert v.outcome.status == status and lake.read("kept", v.run_id).status.tolist() == [status]
    assert v.outcome.message in repr(v.outcome) and "\n" not in repr(v.outcome) and "Row(" not in repr(v.outcome)
    if status != "pass":
        with pytest.raises(AssertionError, match="error units"):
            v.check()


@pytest.mark.parametrize(("function", "failing"), [(Norm, []), (WrongNorm, ["backward"])])
def test_gradients_of_a_block_are_judged(function: Any, failing: list[str]) -> None:
    x, weight = torch.randn(2, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    given = {"reference": exact_in_torch, "reference_framework": "torch", "op_class": "normalisation"}
    with farm.validate(function, {"x": x, "weight": weight}, backward=True, **given) as v:
        v.output = function.apply(x, weight)
    assert [o.row.check for o in v.outcomes if not o.passed] == failing


def test_a_changed_input_and_a_missing_output_are_told() -> None:
    x, weight = torch.randn(2, 5), torch.randn(5)
    with farm.validate(lambda x, weight: x, {"x": x, "weight": weight}, exact) as v:
        v.output = rms_norm(x, weight)
        x.zero_()
    assert (v.outcome.status, v.outcome.kind) == ("wrong", "mutation")
    with pytest.raises(farm.ClientError, match=r"v\.output was not set"):
        with farm.validate(rms_norm, {"x": x, "weight": weight}):
            pass


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class WrongSwish(Swish):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s)


class Detached(Swish):
    """Its gradient is right, and has none of its own."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x.detach())
        return g * (s + x.detach() * s * (1 - s))


class WithoutGraph(Swish):
    """As a backward pass that launches a kernel: autograd sees none of it."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        with torch.no_grad():
            return Swish.backward(ctx, g)


class Spoils(Swish):
    """Writes to what it saved."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        made = g * (s + x * s * (1 - s))
        x.data.mul_(2)
        return made


@pytest.mark.parametrize(
    ("function", "failing"),
    [
        (Swish, []),
        (WrongSwish, ["backward"]),
        (Detached, ["double_backward"]),
        (WithoutGraph, ["double_backward"]),
        (Spoils, ["backward", "saved", "double_backward"]),
    ],
)
def test_an_autograd_function_as_a_whole(function: Any, failing: list[str]) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    found = farm.validate_autograd_function(function, (x,), lambda x: x / (1 + np.exp(-x)))
    assert [c.name for c in found.checks if not c.passed] == failing, found.message
    assert found.passed is (not failing) and len(found.checks) == 5


def test_differences_need_float64() -> None:
    assert farm.check_autograd(lambda x: x.sin().sum(), torch.randn(3)).passed
    with pytest.raises(farm.ClientError, match="returns float32 for float64 inputs"):
        farm.check_autograd(lambda x: x.float().sin(), (torch.randn(3),))
    with pytest.raises(farm.ClientError, match="no input is a floating tensor"):
        farm.check_autograd(lambda x: x, (torch.arange(3),))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"reference": None}, "has no reference: give reference="),
        ({"inputs": None}, "has no inputs"),
        ({"dims": None}, "the dimension 'b' has no sizes: give dims="),
        ({"inputs": INPUTS | {"x": ["b", "m"]}}, "inputs.x.1: unknown dimension 'm'"),
        ({"inputs": {"x": ["b", "n"]}}, "is called with x: missing a required argument: 'weight'"),
        ({"op_class": "normalization"}, "unknown class 'normalization'; did you mean normalisation"),
        ({"dtypes": ["flot32"]}, "unknown dtype 'flot32'; did you mean float32"),
        ({"clas": "exact"}, "unknown argument 'clas'; did you mean op_class"),
        ({"iterations": 100}, "unknown argument 'iterations'; here it is cases"),
        ({"cases": 0}, "cases: at least 1, not 0"),
        ({"backend": "torch-cuda"}, "torch-cuda is unavailable here"),
        ({"policy": "strict"}, "no policy 'strict'"),
        ({"inputs": ["x", "weight"]}, "inputs: ['x', 'weight'] is not a mapping of names"),
        ({"dims": [4]}, "dims: [4] is not a mapping"),
        ({"dims": DIMS | {"n": (64, 1)}}, "dims.n: (64, 1) ends before it begins; give (smallest, largest): (1, 64)"),
        ({"dims": DIMS | {"x": (1, 3)}}, "dims: no shape has the dimension 'x'"),
        ({"dims": DIMS | {"nn": (1, 3)}}, "dims: no shape has the dimension 'nn'; did you mean n?"),
        ({"kwargs": {"eps": object()}}, "kwargs.eps: a object is no number, text, list or mapping"),
        ({"tolerances": 1e-3}, "tolerances: 0.001 is not a mapping of names"),
        ({"invariants": "no_nan"}, "invariants: 'no_nan' is no list; give ['no_nan']"),
        ({"reference": 3}, "reference: 3 is neither a function nor the name of one"),
        ({"known_failures": "x"}, "known_failures.0: "),
        ({"results": ""}, "results '': name a directory or a URI"),
        ({"backend": "torch-cp"}, "knows no device type 'cp' (is its plugin installed?); did you mean torch-cpu?"),
    ],
)
def test_a_call_that_cannot_be_meant_is_a_line(more: dict[str, Any], says: str) -> None:
    with pytest.raises(farm.ClientError) as raised:
        fuzz(tail_lost, **more)
    assert says in str(raised.value) and "\n" not in str(raised.value)


def _validated(output: Any, **more: Any) -> Any:
    with farm.validate(rms_norm, {"x": torch.ones(2, 3), "weight": torch.ones(3)}, **more) as v:
        v.output = output
    return v.outcome


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: farm.assert_correct(Swish, (torch.eye(3).to_sparse(),), exact),
            "torch.sparse_coo on cpu, has no values",
        ),
        (lambda: farm.assert_correct(Swish, (torch.empty(3, device="meta"),), exact), "on meta, has no values"),
        (lambda: farm.assert_correct(Swish, (np.array([None]),), exact), "inputs.x: object, an array, has no values"),
        (lambda: farm.assert_correct(Swish, (torch.ones(0, 3),), exact), "inputs.x: has no elements, shape [0, 3]"),
        (lambda: _validated(torch.ones(2, 3), atol="1"), "atol: a number of at least 0, not '1'"),
        (lambda: _validated(torch.ones(2, 3), rtol=-1), "rtol: a number of at least 0, not -1"),
        (
            lambda: farm.assert_correct(rms_norm, {"x": torch.ones(2, 3), "weights": torch.ones(3)}),
            "inputs: 'weight' is missing; 'weights' is unknown; did you mean weight?; rms_norm is declared with x, weight",
        ),
        (lambda: farm.assert_correct(rms_norm, {"x": torch.ones(2, 3)}), "inputs: 'weight' is missing; rms_norm is"),
        (lambda: farm.check_autograd(Swish.apply, (torch.ones(3),), eps=0), "eps: 0 is no step"),
        (lambda: farm.check_autograd(None, (torch.ones(3),)), "None is not a function"),
        (lambda: farm.validate_autograd_function(None, (torch.ones(3),)), "None is not a function"),
        (lambda: farm.reproduce(3), "3 is no key"),
        (lambda: farm.minimise(seed=3, budget="many"), "runs, not 'many'"),
        (lambda: farm.strategies.cases(rms_norm, seed=1), "seed: Hypothesis decides it"),
    ],
)
def test_arguments_that_cannot_be_meant_are_lines(call: Any, says: str) -> None:
    with pytest.raises(farm.ClientError) as raised:
        call()
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_what_is_no_tensor_is_told_and_a_row_that_was_not_kept_names_no_command() -> None:
    assert (_validated("abc").status, _validated("abc").kind) == ("wrong", "structure")
    (found,) = fuzz(tail_lost, results=None).findings
    assert found.command == ""
    with pytest.raises(farm.ClientError, match="its row was not kept: to rerun it, give results="):
        assert found.minimal
    (gone,) = fuzz(rms_norm, reference=lambda x, weight: exit(3), cases=1, results=None).rows.error
    assert "the reference called sys.exit(3)" in gone


def test_a_kernel_that_this_process_alone_has_is_shown_again_by_a_call() -> None:
    bad = fuzz(tail_lost, reference=lambda x, weight: exact(x, weight))
    (found,) = bad.findings
    call, _, why = found.command.partition("  # ")
    assert "<lambda> is defined inside another function" in why
    with pytest.raises(AssertionError, match=re.escape(call)):
        bad.check()
    assert eval(call, {"farm": farm}).same
    assert fuzz(tail_lost).findings[0].command.startswith("farm reproduce '")


def test_names_that_name_nothing_are_lines() -> None:
    for call, says in (
        (lambda: farm.fuzz("no.where:kernel"), "no module 'no.where'"),
        (lambda: farm.fuzz(f"{norms.__file__}:rms_nor"), "there is no 'rms_nor' in it; did you mean rms_norm"),
        (lambda: farm.fuzz("rms_norm"), "no farm.yaml in"),
        (lambda: fuzz(lambda x, weight: x, isolate=True), "is defined inside another function"),
        (lambda: fuzz(eval("lambda x, weight: x", globals()), isolate=True), "a lambda that no name of its module"),
        (lambda: farm.reproduce(seed=3, results="none"), "no runs in 'none': there is no such place"),
        (lambda: farm.reproduce(), "name a case"),
    ):
        with pytest.raises(farm.ClientError) as raised:
            call()
        assert says in str(raised.value)
    fuzz(rms_norm, cases=1)
    with pytest.raises(farm.ClientError, match="no case of the seed 3"):
        farm.reproduce(seed=3)


def test_a_reference_that_raises_is_told_and_nothing_passes() -> None:
    found = fuzz(rms_norm, reference=refuses, cases=2)
    assert found.counts == {"invalid": 2} and "no reference today" in str(found)
    with pytest.raises(AssertionError, match="nothing was judged: invalid: no reference today"):
        found.check()
    found = fuzz(rms_norm, reference=lambda x, weight: x.double(), cases=1)
    with pytest.raises(
        AssertionError, match="has no attribute 'double'.*: a function of tensors says reference_framework: torch"
    ):
        found.check()


KERNELS = """
import numpy as np
import tasks, torch

def rms_norm_f64(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight

@tasks.op(reference=rms_norm_f64, inputs={"x": ["b", "n"], "weight": ["n"]}, dims={"b": [1, 4], "n": [1, 64]}, op_class="normalisation")
def rms_norm(x, weight):
    kept = x.shape[-1] // 16 * 16 if x.shape[-1] > 16 else x.shape[-1]
    mean = x.square()[..., :kept].sum(-1, keepdim=True) / x.shape[-1]
    return x * torch.rsqrt(mean + 1e-6) * weight
"""


def test_the_code_of_the_manual_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernel_tests.md").read_text()
    (code,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "farm.reproduce(" in b]
    (tmp_path / "kernels.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    kernels = importlib.import_module("kernels")
    x, w = torch.randn(2, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    names = {"x": x, "w": w, "MyFunction": Swish, "exact": lambda x: x / (1 + np.exp(-x)), **vars(kernels)}
    fewer = code.replace("cases=200", "cases=5").replace('"n": (1, 2048)', '"n": (1, 40)')
    assert fewer.count("cases=5") == fewer.count("(1, 40)") == 1
    exec(fewer, names)
    assert names["v"].outcome.status == "pass" and names["again"].same and not names["again"].passed


ELSEWHERE = """
import tasks

def exact(x):
    return 2 * x

@tasks.op(reference=exact, inputs={"x": ["n"]}, dims={"n": [4]}, op_class="elementary")
def twice(x):
    return x + x
"""


def test_a_kernel_of_a_file_in_another_folder_is_validated_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "twice.py").write_text(ELSEWHERE)
    monkeypatch.chdir(tmp_path)
    with farm.validate("project/twice.py:twice", {"x": torch.ones(4)}, results=None) as v:
        v.output = torch.ones(4) * 2
    assert v.outcome.status == "pass", v.outcome.message


def test_a_script_that_calls_the_farm_where_it_is_imported_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import farm\n\ndef double(x):\n    return x + x\n\n"
        "farm.fuzz(double, double, {'x': ['n']}, {'n': (1, 4)}, cases=1, results=None)\n"
    )
    with pytest.raises(
        load_kernels.CatalogError,
        match=r"script.py:6: .*script.py calls the farm while it is imported .* under `if __name__",
    ):
        load_kernels.load_user_module("script.py", str(tmp_path), ())


def test_a_kernel_is_judged_on_the_device_that_is_here_whosever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the CPU in silence; what is given on the CPU was computed there."""
    cpu, there = torch.ones(2), torch.ones(2, device="meta")
    assert (
        process.name_backend_here() == process.name_backend_of_tensors([there]) == "torch-cpu"
        and process.move_to_client_device(cpu) is cpu
    )
    for name, target in (("xpu", "xpu"), ("rocm", "cuda"), ("neuron", "xla"), ("meta", "meta")):
        monkeypatch.setattr(torch_devices, "name_torch_device_here", lambda name=name: name)
        assert (
            process.name_backend_here()
            == process.name_backend_of_tensors([there])
            == process.name_backend_of_tensors([np.ones(2)])
            == f"torch-{name}"
        )
        assert process.name_backend_of_tensors([cpu]) == "torch-cpu" and torch_devices.find_torch_device(
            name
        ).target in ("", target)
    assert process.move_to_client_device(cpu).device.type == "meta"
    with pytest.raises(farm.ClientError, match="torch-xpu is unavailable here"):
        monkeypatch.setattr(torch_devices, "name_torch_device_here", lambda: "xpu")
        farm.assert_correct(lambda x: x, (cpu,), lambda x: x, op_class="elementary")


def test_a_function_is_called_what_its_module_calls_it(capsys: Any) -> None:
    """Also one that Python calls <lambda>. Of a small module: three processes import it."""
    for name in ("twice", "made_by_a_call"):
        good = farm.fuzz(vars(called)[name], called.twice, {"x": ["n"]}, {"n": (1, 9)}, cases=2, isolate=True)
        assert good.counts == {"pass": 2} and set(good.rows.op) == {f"user:{name}"}


def in_float16(a: Any, b: Any) -> Any:
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total


def in_float32(a: Any, b: Any) -> Any:
    return (a.float() @ b.float()).to(a.dtype)


def product(a: Any, b: Any) -> Any:
    return a @ b


def _factors(k: int) -> tuple[Any, Any]:
    g = torch.Generator().manual_seed(3)
    return torch.randn(8, k, generator=g).half(), torch.randn(k, 8, generator=g).half()


def test_what_adds_in_float16_is_imprecise_and_that_can_be_asked_for() -> None:
    a, b = _factors(512)
    found = farm.assert_correct(in_float16, (a, b), product)
    (lost,) = found.imprecise
    assert (found.passed, found.findings, lost.kind) == (1, (), "accumulator")
    assert lost.message.endswith("accumulated in float16") and lost.message in str(found)
    with pytest.raises(AssertionError, match="imprecise accumulator.*accumulated in float16"):
        found.check(imprecise=False)
    with pytest.raises(AssertionError, match="accumulated in float16"):
        farm.assert_correct(in_float16, (a, b), product, imprecise=False)
    with farm.validate(in_float16, {"a": a, "b": b}, product) as v:
        v.output = in_float16(a, b)
    v.check()
    with pytest.raises(AssertionError, match="accumulated in float16"):
        v.check(imprecise=False)
    for k in (512, 2048):
        assert farm.assert_correct(in_float32, _factors(k), product, imprecise=False).imprecise == ()


def test_a_runtime_that_says_it_adds_in_16_bits_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = TorchEager.probe
    monkeypatch.setattr(TorchEager, "probe", lambda self: replace(probe(self), accumulators=("float16", "bfloat16")))
    farm.assert_correct(in_float16, _factors(512), product, imprecise=False)


def test_tolerances_are_taken_everywhere_and_decide_both_ways() -> None:
    a, b = _factors(512)
    tight, wide = {"rtol": 1e-2, "atol": 1e-2}, {"rtol": 1e-2, "atol": 10.0}
    for more, ok in ((tight, False), ({"tolerances": {"float16": tight}}, False), (wide, True), ({"rtol": 1e9}, True)):
        try:
            farm.assert_correct(in_float16, (a, b), product, imprecise=False, **more)
            assert ok
        except AssertionError as error:
            assert not ok and "outside its tolerance (rtol 0.01, atol 0.01)" in str(error)
        with farm.validate(in_float16, {"a": a, "b": b}, product, **more) as v:
            v.output = in_float16(a, b)
        assert v.outcome.passed is ok and (ok or v.outcome.kind == "tolerance")
    farm.assert_correct(in_float32, (a, b), product, **tight)
    given = {"inputs": {"a": ["m", 300], "b": [300, "n"]}, "dims": {"m": (1, 9), "n": (1, 9)}, "dtypes": ["float16"]}
    assert farm.fuzz(in_float32, product, **given, cases=20, results=None, **tight).failed == 0
    assert farm.fuzz(in_float16, product, **given, cases=40, results=None, **tight).failed > 5


def test_one_thread_computes_and_the_script_has_its_own_back() -> None:
    seen = set()

    def kernel(x: Any) -> Any:
        seen.add(torch.get_num_threads())
        return 2 * x

    def reference(x: Any) -> Any:
        seen.add(torch.get_num_threads())
        return 2 * x

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        farm.fuzz(kernel, reference, {"x": ["n"]}, {"n": (1, 9)}, cases=2, results=None, reference_framework="torch")
        farm.check_autograd(kernel, (torch.ones(3),))
        assert seen == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


BLAS = """
import numpy  # before the farm, which tells libraries that are loaded later
from farm.client import process
numbers = lambda: [number() for _, number in process._find_blas_threads()]
for put, _ in process._find_blas_threads(): put(3)
with process.isolate_client_settings():
    print(numbers())
print(numbers())
"""


def test_a_library_that_was_loaded_first_has_one_thread_as_well() -> None:
    done = subprocess.run([sys.executable, "-c", BLAS], capture_output=True, text=True, check=True)
    one, again = map(ast.literal_eval, done.stdout.splitlines())
    assert set(one) <= {1} and set(again) <= {3} and len(one) == len(again)


INTERRUPTED = """
import os, signal, farm, kernels
try:
    farm.fuzz(kernels.kernel, kernels.exact, {"x": ["n"]}, {"n": (1, 9)}, cases=50, repeats=1)
except KeyboardInterrupt:
    print("the script's own")
    raise
print("went on")
"""
AND_THEN = """
import os, signal, time
calls = []
def exact(x): return 2 * x
def kernel(x):
    calls.append(1)
    time.sleep(0.15)  # longer than rows are collected before they are handed on
    if len(calls) == 6:
        os.kill(os.getpid(), signal.SIGINT)
    return 2 * x
"""


def test_ctrl_c_ends_a_script_and_what_was_judged_is_kept() -> None:
    Path("kernels.py").write_text(AND_THEN)
    heed = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, preexec_fn=lambda: heed() and None
    )
    assert done.returncode == -signal.SIGINT and done.stdout == "the script's own\n"
    said = re.search(r"^interrupted: the rows so far are run (\S+) of results$", done.stderr, re.M)
    assert said and set(lake.read("results", said[1]).status) == {"pass"}


def test_a_lambda_in_a_declaration_is_found_again_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "import tasks\n@tasks.op(reference=lambda x: 2 * x, inputs={'x': ['n']}, dims={'n': [3]})\ndef thrice(x): return 3 * x\n"
    (tmp_path / "in_place.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (found, *_) = farm.fuzz(importlib.import_module("in_place").thrice, cases=2).findings
    assert found.command.startswith("farm reproduce ")
    assert command([found.key]) == 0 and "same status and same metrics" in capsys.readouterr().out
