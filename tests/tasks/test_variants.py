"""The other ways of calling an op of torch: a planted backend that does not write, or does not refuse, is found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks import catalogs, checks
from tasks.backends.torch import TorchEager
from tasks.judge import policy_files
from tasks.model import Form, Group, Program
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group


class Planted(TorchEager):
    """torch-cpu, whose calls are put otherwise."""

    def __init__(self, change: Callable[[Any], Any] | None) -> None:
        super().__init__("torch-cpu", "cpu", {})
        self.change = change

    def build(self, form: Form) -> Program:
        return super().build(form if self.change is None else replace(form, call=self.change(form.call)))


def found(
    cache: Path, op: str, check: str, change: Callable[[Any], Any] | None = None, dtype: str = "float32", count: int = 3
) -> set[tuple[str, str]]:
    made = prepare_group(Group(f"torch:{op}", "", dtype, count, 0, check), cache)[1]
    backend = Planted(change)
    runner = Runner(backend, backend.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
    done = [d.row for d in runner.run([make_item_of_whole_group(made)])]
    assert {r.check for r in done} == {check}
    return {(r.status, r.kind) for r in done if r.status != "vacuous"}


def writes_elsewhere(call: Any) -> Any:
    """Returns its first argument as it was."""
    return lambda first, *args, **kwargs: (call(first.clone(), *args, **kwargs), first)[1]


def without_gaps(call: Any) -> Any:
    """Writes the result as if the given tensor had none."""

    def into(*args: Any, **kwargs: Any) -> Any:
        right = call(*args, **kwargs)
        base = right._base
        flat = base.reshape(-1)
        flat[: right.numel()] = right.clone().reshape(-1)
        return right

    return into


def accepts(call: Any) -> Any:
    return lambda *args, **kwargs: torch.zeros(2)


class InductorError(Exception):
    pass


def breaks(call: Any) -> Any:
    def raises(*args: Any, **kwargs: Any) -> Any:
        raise InductorError("an assertion of the compiler's own")

    return raises


def refuses_otherwise(call: Any) -> Any:
    def raises(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("no")

    return raises


@pytest.mark.parametrize(
    ("check", "op", "change", "expected"),
    [
        ("inplace", "cumsum", None, ("pass", "")),
        ("inplace", "cumsum", writes_elsewhere, ("wrong", "numbers")),
        ("out", "cumsum", None, ("pass", "")),
        ("out", "cumsum", without_gaps, ("wrong", "numbers")),
        ("out", "sort", None, ("pass", "")),
        ("method", "logsumexp", None, ("pass", "")),
        ("refuses", "gather", None, ("pass", "")),
        ("refuses", "gather", refuses_otherwise, ("pass", "")),
        ("refuses", "gather", accepts, ("wrong", "accepted")),
        ("refuses", "gather", breaks, ("error", "")),
    ],
)
def test_a_fault_beside_its_sound_twin(
    cache: Path, check: str, op: str, change: Callable[[Any], Any] | None, expected: tuple[str, str]
) -> None:
    assert expected in found(cache, op, check, change)
    if expected == ("pass", ""):
        assert found(cache, op, check, change) == {expected}


def test_what_eager_torch_does_not_take_in_place_is_vacuous(cache: Path) -> None:
    made = prepare_group(Group("torch:add", "", "float32", 12, 0, "inplace"), cache)[1]
    refused = [s.failure.error for s in made.samples if s.failure]
    assert refused and all("eager torch does not take it so: output with shape" in text for text in refused)


def test_a_tensor_that_eager_torch_makes_longer_is_no_case(cache: Path) -> None:
    made = prepare_group(Group("torch:addbmm", "", "float32", 12, 0, "inplace"), cache)[1]
    assert {s.failure.error for s in made.samples if s.failure} == {
        "eager torch makes the tensor longer that it writes to"
    }
    assert found(cache, "addbmm", "inplace") == {("pass", "")}


def test_they_are_asked_of_ops_that_have_them_on_backends_of_torch() -> None:
    entries = {(e.op, e.variant): e for e in catalogs.get_catalog("torch").entries()}
    assert {"out", "inplace", "method"} <= set(entries["torch:add", ""].checks)
    assert "inplace" not in entries["torch:cat", ""].checks and "refuses" in entries["torch:cat", ""].checks
    assert not {"out", "method"} & set(entries["torch:normal", ""].checks)  # random
    for name in ("out", "inplace", "method", "refuses"):
        assert not checks.get_check(name).unfit(Planted(None)) and checks.name_samples_of_check(name) == name


def promotes_to_the_first(call: Any) -> Any:
    """Takes the dtype of its first tensor for the result's, as a compiler that does not promote."""
    return lambda first, second, *more, **kwargs: call(first, second, *more, **kwargs).to(first.dtype)


def rounds_the_other(call: Any) -> Any:
    """Rounds the wider tensor to eight bits before it computes."""

    def rounded(first: Any, second: Any, *more: Any, **kwargs: Any) -> Any:
        common = torch.result_type(first, second)
        return call(first, second.to(torch.bfloat16), *more, **kwargs).to(common)

    return rounded


@pytest.mark.parametrize("op", ["mul", "maximum", "atan2"])
def test_mixed_dtypes_give_what_the_common_one_does(op: str, cache: Path) -> None:
    assert found(cache, op, "promotion", count=8) == {("pass", "")}
    assert ("wrong", "dtype") in found(cache, op, "promotion", promotes_to_the_first, count=8)


def test_a_partner_that_is_rounded_is_wrong(cache: Path) -> None:
    assert ("wrong", "numbers") in found(cache, "mul", "promotion", rounds_the_other, dtype="float16", count=6)


def test_torch_itself_divides_mixed_dtypes_otherwise(cache: Path) -> None:
    """`Tensor.__rdiv__` takes the reciprocal in the divisor's own dtype (configs/known/torch-cpu.yaml)."""
    assert ("wrong", "dtype") in found(cache, "__rdiv__", "promotion", dtype="bfloat16", count=8)
