"""Generated graphs: valid by construction, every pair in a few groups, the same for ever of their choices."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tasks.backends.shared.network import convert_onnx_to_torch
from tasks.catalogs.fuzz.catalog import Fuzz, draw_fuzzed_choices, make_variant_of_choices
from tasks.catalogs.fuzz.graphs import AND, VARIANT
from tasks.draw.choices import DrawnChoices
from tasks.draw.seeds import derive_seed
from tasks.fuzz.graphs import build
from tasks.model import Form, Group, OpClass


def digest(seed: int) -> str:
    """Of the models and inputs of some graphs."""
    total = hashlib.sha256()
    for n in range(12):
        made = build.build_fuzz_graph(build.DTYPES[n % 2], DrawnChoices.from_seed(derive_seed(seed, str(n))))
        total.update(made.model)
        for array in made.feeds.values():
            total.update(array.tobytes())
    return total.hexdigest()


def test_nearly_all_pairs_are_models_that_hold_both_operators() -> None:
    made = lacking = 0
    for n, first in enumerate(build.STEPS):
        for second in range(n % 5, len(build.PARTNERS), 5):
            dtype = build.DTYPES[second % 2]
            one = build.build_pair_graph(first, dtype, DrawnChoices.from_seed(derive_seed(n, dtype), [second]))
            model = onnx.load_from_string(one.model)
            onnx.checker.check_model(model, full_check=True)
            ops = [node.op_type for node in model.graph.node]
            made, lacking = made + 1, lacking + (first not in ops or build.PARTNERS[second] not in ops)
            assert len(ops) <= 6
    assert len(build.STEPS) >= 45 and lacking <= 0.05 * made


def test_a_few_groups_hold_every_pair() -> None:
    groups = [Group(f"fuzz:Conv{AND}", VARIANT, "float32", 8, seed) for seed in range(3 << 20, (3 << 20) + 8)]
    firsts = {draw_fuzzed_choices(group, n).int(0, len(build.PARTNERS) - 1) for group in groups for n in range(8)}
    assert firsts == set(range(len(build.PARTNERS)))


def test_graphs_are_models_of_three_to_fifteen_operators() -> None:
    for n in range(60):
        one = build.build_fuzz_graph(build.DTYPES[n % 2], DrawnChoices.from_seed(derive_seed(n, "graph")))
        model = onnx.load_from_string(one.model)
        onnx.checker.check_model(model, full_check=True)
        assert 3 <= len(model.graph.node) <= 30
        assert {x.name for x in model.graph.input} == set(one.feeds)


def test_what_is_written_otherwise_is_the_same_to_the_bit() -> None:
    for sample in Fuzz().samples(Group("fuzz:rewritten", VARIANT, "float32", 12, seed=2), 1):
        assert sample.failure is None and sample.twins and "rewrite=" in sample.columns["flags"]
        for one, twin in zip(sample.expected[: sample.twins], sample.expected[sample.twins :], strict=True):
            assert np.array_equal(one.reference, twin.reference)  # type: ignore[arg-type]


def test_the_simplest_choices_make_a_graph_of_each() -> None:
    for first in build.STEPS:
        build.build_pair_graph(first, "float32", DrawnChoices.from_list([]))
    build.build_fuzz_graph("float32", DrawnChoices.from_list([]))


def test_the_same_bytes_in_other_processes() -> None:
    code = "from tests.tasks.test_fuzz_graphs import digest; print(digest(5))"
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True, check=True
    ).stdout.strip()
    assert found.decode() == digest(5)


@pytest.mark.parametrize("op", ["MatMul+", "graph"])
def test_a_graph_is_made_again_of_its_choices(op: str) -> None:
    (first,) = Fuzz().samples(Group(f"fuzz:{op}", VARIANT, "float32", 1, seed=9), 1)
    (again,) = Fuzz().samples(Group(f"fuzz:{op}", make_variant_of_choices(first.columns["choices"]), "float32", 1), 1)
    assert first.failure is None and first.op_class is OpClass.MODEL and first.columns["second_oracle"]
    assert again.model == first.model
    assert [x.tobytes() for x in again.arrays] == [x.tobytes() for x in first.arrays]


def test_a_dtype_in_which_no_graph_begins_is_said_in_one_line() -> None:
    with pytest.raises(ValueError, match="graph does not take int8; it takes float32, float16"):
        list(Fuzz().samples(Group("fuzz:graph", VARIANT, "int8", 1), 1))


def test_a_graph_is_a_torch_program_of_its_own_operations() -> None:
    torch = pytest.importorskip("torch")
    for n in range(0, len(build.PARTNERS), 4):
        (made,) = Fuzz().samples(Group(f"fuzz:Conv{AND}", VARIANT, "float32", 1, seed=n << 20), 1)
        form = Form("torch", "fuzz:Conv+", "float32", made.arrays, model=made.model)
        found = convert_onnx_to_torch(form)(*[torch.from_numpy(x) for x in made.arrays])
        for y, leaf in zip(found, made.expected, strict=True):
            assert np.allclose(y.numpy(), leaf.reference, rtol=1e-3, atol=1e-3), made.columns["flags"]


def test_what_no_rewrite_takes_stays_as_it_is() -> None:
    """A Gather with an index of two axes makes six of five, and more than five axes are not rewritten."""
    made = build.build_graph_twice("float16", DrawnChoices.from_seed(99))
    model = onnx.load_from_string(made.model)
    onnx.checker.check_model(model, full_check=True)
    ranks = [len(x.type.tensor_type.shape.dim) for x in model.graph.output]
    assert 6 in ranks and len(ranks) % 2 == 0
