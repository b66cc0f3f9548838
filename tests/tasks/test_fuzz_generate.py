"""Generated cases: every op of the table makes models that onnx takes, the same in every process; open ones say so."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import onnx
import pytest

from tasks.catalogs.base import Sample
from tasks.catalogs.fuzz.catalog import VARIANT, Fuzz, make_variant_of_choices
from tasks.draw.choices import DrawnChoices
from tasks.draw.seeds import derive_seed
from tasks.fuzz import table
from tasks.fuzz.onnx import generate
from tasks.graphs.widening import NoOracle
from tasks.model import Group
from tasks.model.kind import KIND_SPEC


def digest(seed: int, ops: list[str]) -> str:
    """Of models, inputs and exact outputs of a case of each op in each dtype."""
    total = hashlib.sha256()
    for op in ops:
        for dtype in table.list_fuzz_dtypes(op):
            try:
                one = generate.generate_node_case(op, dtype, DrawnChoices.from_seed(derive_seed(seed, f"{op} {dtype}")))
                exact = generate.evaluate_generated_node(one)
            except NoOracle:
                continue
            total.update(generate.encode_generated_node(one, exact))
            for array in [*one.inputs, *exact]:
                total.update(array.tobytes())
    return total.hexdigest()


def test_there_are_at_least_ninety_ops() -> None:
    assert len(table.SPECS) >= 90
    assert all(table.list_fuzz_dtypes(op) for op in table.SPECS)


@pytest.mark.parametrize("part", range(4))
def test_nearly_all_cases_are_models_that_onnx_takes(part: int) -> None:
    made = refused = 0
    for op in sorted(table.SPECS)[part::4]:
        for dtype in table.list_fuzz_dtypes(op):
            for seed in range(4):
                made += 1
                try:
                    one = generate.generate_node_case(
                        op, dtype, DrawnChoices.from_seed(derive_seed(seed, f"{op} {dtype}"))
                    )
                    exact = generate.evaluate_generated_node(one)
                except NoOracle:
                    refused += 1
                    continue
                onnx.checker.check_model(
                    onnx.load_from_string(generate.encode_generated_node(one, exact)), full_check=True
                )
                assert [y.dtype.name for y in exact] == [
                    "float64" if name in ("float32", "float16", "bfloat16") else name
                    for name in generate.list_generated_dtypes(one)
                ], (op, one.words)
    assert refused <= 0.05 * made


def test_the_simplest_choices_make_a_case_of_every_op() -> None:
    for op in table.SPECS:
        for dtype in table.list_fuzz_dtypes(op)[:1]:
            generate.evaluate_generated_node(generate.generate_node_case(op, dtype, DrawnChoices.from_list([])))


def test_the_same_bytes_in_other_processes() -> None:
    ops = sorted(table.SPECS)[::5]
    code = f"from tests.tasks.test_fuzz_generate import digest; print(digest(5, {ops}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {digest(5, ops).encode()}


def _sample(group: Group) -> Sample:
    return next(iter(Fuzz().samples(group, 4)))


def test_a_case_is_made_again_of_its_choices() -> None:
    first = _sample(Group("fuzz:Conv", VARIANT, "float32", 1, seed=9))
    again = _sample(Group("fuzz:Conv", make_variant_of_choices(first.columns["choices"]), "float32", 1))
    assert again.model == first.model
    assert [x.tobytes() for x in again.arrays] == [x.tobytes() for x in first.arrays]
    assert [x.reference.tobytes() for x in again.expected] == [x.reference.tobytes() for x in first.expected]  # type: ignore[union-attr]


def test_what_the_specification_leaves_open_is_said() -> None:
    found = list(Fuzz().samples(Group("fuzz:ReduceL1", VARIANT, "float32", 60), 0))
    (said,) = {x.failure for x in found if x.failure}
    assert said.status == "invalid" and said.kind == KIND_SPEC and "noop_with_empty_axes" in said.error


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (Group("fuzz:Cnov", VARIANT, "float32", 1), "no op 'Cnov' is generated; did you mean Conv"),
        (Group("fuzz:Conv", "g0", "float32", 1), "the generator is g1 here, not 'g0'"),
        (Group("fuzz:Conv", VARIANT, "int8", 1), "Conv does not take int8; it takes float32, float16"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(group: Group, words: str) -> None:
    with pytest.raises(ValueError, match="^[^\n]*$") as raised:
        _sample(group)
    assert words in str(raised.value)
