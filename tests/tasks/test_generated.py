"""Generated samples of the torch catalog: accepted, reproducible, laid out as they say, and finding what own samples miss."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.arrays.tree import decode_argument_tree
from tasks.catalogs.torch.generated import PLANS, lay_out_generated_tensor
from tasks.judge.error_metrics import compare_outputs
from tasks.model import Group
from tasks.prepare.cases import PreparedGroup, PreparedSample, prepare_group

torch = pytest.importorskip("torch")

from tasks.arrays import torch_tree  # noqa: E402

Kernel = Callable[..., Any]


def prepared(op: str, distribution: str, dtype: str = "float32", samples: int = 8, seed: int = 0) -> PreparedGroup:
    return prepare_group(Group(f"torch:{op}", "", dtype, samples, seed, distribution=distribution), Path(_cache()))[1]


def _cache() -> str:
    import os

    return os.environ["FARM_CACHE"]


def arguments(sample: PreparedSample) -> tuple[Any, Any]:
    arrays = sample.inputs()
    leaf = torch_tree.make_tensor_decoder(lambda i: arrays[i], "cpu")
    return decode_argument_tree(sample.record.args, leaf), decode_argument_tree(sample.record.kwargs, leaf)


def units(sample: PreparedSample, kernel: Kernel) -> float:
    """Error units of a kernel on a sample; infinite where it raises or returns another shape."""
    args, kwargs = arguments(sample)
    try:
        outputs = [
            torch_tree.tensor_to_numpy(torch_tree.dense(x))
            for x in torch_tree.list_output_tensors(kernel(*args, **kwargs))
        ]
    except (RuntimeError, IndexError):
        return float("inf")
    metrics = compare_outputs(outputs, sample.expected(), sample.op_class)
    return float("inf") if metrics.kind else metrics.error_units or 0.0


def caught(op: str, kernel: Kernel, *distributions: str) -> bool:
    samples = [s for d in distributions for s in prepared(op, d).samples]
    assert samples and not any(s.failure for s in samples)
    return any(units(s, kernel) > 32 for s in samples)


@pytest.mark.parametrize(
    "op", ["add", "sum", "softmax", "matmul", "nn.functional.layer_norm", "gather", "cat", "where"]
)
@pytest.mark.parametrize("distribution", ["regular", "boundary", "adversarial", "nan"])
def test_samples_are_accepted_and_torch_passes(op: str, distribution: str) -> None:
    kernel = {"cat": torch.cat, "add": torch.add, "where": lambda a, c, b: torch.where(c, a, b)}.get(op)
    if kernel is None:
        from tasks import catalogs

        kernel = catalogs.get_catalog("torch").call(Group(f"torch:{op}", "", "float32", 1))
    found = prepared(op, distribution).samples
    assert len(found) == 8 and not any(s.failure for s in found), [s.failure for s in found]
    assert {s.index: units(s, kernel) for s in found if units(s, kernel) > 32} == {}


def test_solvers_get_well_conditioned_matrices_of_other_sizes() -> None:
    found = prepared("linalg.inv", "regular").samples
    assert {s.record.shapes for s in found} - {
        s.record.shapes for s in prepared("linalg.inv", "own", samples=100).samples
    }
    assert {s.index: units(s, torch.linalg.inv) for s in found if units(s, torch.linalg.inv) > 8} == {}


def test_sizes_are_those_of_blocks_and_their_neighbours() -> None:
    sizes = {
        int(n)
        for s in prepared("add", "regular", samples=28).samples
        for n in s.record.shapes.replace(" ", "x").split("x")
        if n.isdigit()
    }
    assert len(sizes & {31, 32, 33}) and len(sizes & {127, 128, 129}) and len(sizes & {255, 256, 257, 1025})
    long = [s for s in prepared("sum", "regular", samples=28).samples if PLANS[s.index % len(PLANS)] == "long"]
    assert max(s.inputs()[0].size for s in long) >= 10007


def test_binary_ops_get_broadcast_pairs() -> None:
    shapes = [
        s.record.shapes.split() for s in prepared("mul", "regular", samples=28).samples if s.index % len(PLANS) == 2
    ]
    assert any(len(pair) == 2 and pair[0] != pair[1] and pair[1] != "scalar" for pair in shapes)


def test_layouts_are_really_what_they_are_called() -> None:
    x = torch.arange(120.0).view(2, 3, 4, 5)
    assert lay_out_generated_tensor(x, "transposed").stride() == (60, 20, 1, 4)
    assert (
        lay_out_generated_tensor(x, "steps").stride()[-1] == 2
        and not lay_out_generated_tensor(x, "steps").is_contiguous()
    )
    assert lay_out_generated_tensor(x[0], "offset").storage_offset() > 0
    assert lay_out_generated_tensor(x, "expanded").stride()[0] == 0
    assert lay_out_generated_tensor(x, "channels_last").is_contiguous(memory_format=torch.channels_last)
    for layout in ("contiguous", "transposed", "steps", "offset", "channels_last"):
        assert torch.equal(lay_out_generated_tensor(x, layout), x), layout


def test_what_reads_memory_by_strides_of_its_own_is_laid_out_as_the_reference_is() -> None:
    assert not caught("as_strided", torch.as_strided, "regular")
    assert not caught("view", torch.Tensor.view, "regular")


def test_layouts_survive_storing() -> None:
    found = {PLANS[s.index % len(PLANS)]: s for s in prepared("nn.functional.relu", "regular", samples=28).samples}
    first = {plan: arguments(s)[0][0] for plan, s in found.items()}
    assert not first["transposed"].is_contiguous() and not first["long"].is_contiguous()
    assert first["offset"].storage_offset() > 0
    assert 0 in first["expanded"].stride()


def test_empty_and_zero_dimensional_tensors_come_when_there_is_room() -> None:
    shapes = [s.record.shapes for s in prepared("nn.functional.relu", "regular", samples=84).samples]
    assert "scalar" in shapes and any("0" in shape.split("x") for shape in shapes)


def test_values_keep_the_range_of_a_restricted_domain() -> None:
    for s in prepared("nn.functional.binary_cross_entropy", "adversarial").samples:
        probabilities = arguments(s)[0][0]
        assert s.failure is None and (
            not probabilities.numel() or (probabilities.min() >= 0 and probabilities.max() <= 1)
        )


def test_special_matrices_stay_special() -> None:
    for s in prepared("linalg.cholesky", "regular").samples:
        (matrix,), _ = arguments(s)
        assert torch.equal(matrix, matrix.mH) and bool((torch.linalg.eigvalsh(matrix.double()) > 0).all())


def test_an_op_without_tensors_says_why_it_has_no_generated_sample() -> None:
    [sample] = prepared("arange", "regular").samples
    assert (
        sample.failure
        and sample.failure.status == "vacuous"
        and "no generated sample is accepted" in sample.failure.error
    )


def test_random_and_uninitialised_ops_have_their_own_samples_alone() -> None:
    from tasks import catalogs

    listed = {e.op: e.distributions for e in catalogs.get_catalog("torch").entries()}
    assert listed["torch:nn.functional.dropout"] == listed["torch:empty_like"] == ("own",)
    assert listed["torch:add"] == ("own", "regular", "boundary", "adversarial", "nan", "exhaustive")


def digest() -> str:
    return " ".join(s.record.digest for d in ("regular", "nan") for s in prepared("mul", d, samples=5).samples)


def test_samples_are_the_same_in_another_process(tmp_path: Path) -> None:
    import os

    code = "from tests.tasks.test_generated import digest; print(digest())"
    env = os.environ | {"FARM_CACHE": str(tmp_path), "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert other.stdout.strip() == digest()


def test_seed_and_distribution_change_the_values() -> None:
    digests = [prepared("mul", d, seed=k).samples[0].record.digest for d in ("regular", "adversarial") for k in (0, 1)]
    assert len(set(digests)) == 4


def ignores_strides(x: Any) -> Any:
    """relu of a tensor's storage from its start, as if it were contiguous."""
    return torch.relu(torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset()))


def ignores_the_offset(x: Any) -> Any:
    return torch.relu(torch.as_strided(x, x.shape, x.stride(), 0))


def swallows_nan(x: Any) -> Any:
    return torch.from_numpy(np.asarray(np.fmax(x.numpy(), np.float32(0))))


def drops_the_last_block(x: Any) -> Any:
    """relu in blocks of 512 elements; where there are several, the last, unfinished one is forgotten."""
    made = torch.relu(x).contiguous()
    if made.numel() > 512 and made.numel() % 512:
        made.view(-1)[made.numel() // 512 * 512 :] = 0
    return made


def overflows(x: Any) -> Any:
    """sigmoid as eˣ/(1 + eˣ): NaN from 89 on."""
    return torch.exp(x) / (1 + torch.exp(x))


@pytest.mark.parametrize(
    ("op", "kernel", "distribution"),
    [
        ("nn.functional.relu", ignores_strides, "regular"),
        ("nn.functional.relu", ignores_the_offset, "regular"),
        ("nn.functional.relu", swallows_nan, "nan"),
        ("nn.functional.relu", drops_the_last_block, "regular"),
        ("sigmoid", overflows, "adversarial"),
    ],
)
def test_planted_faults_are_caught_by_generated_samples_and_not_by_own_ones(
    op: str, kernel: Kernel, distribution: str
) -> None:
    assert not caught(op, kernel, "own")
    assert caught(op, kernel, distribution)


def test_weak_samples_make_way_for_strong_ones() -> None:
    group = prepared("add", "own", samples=3)
    assert not any(s.record.weak for s in group.samples)


def test_one_element_is_evidence_where_neither_zero_nor_one_constant_passes() -> None:
    strong = [
        s
        for s in prepared("sum", "own", samples=100).samples
        if s.expected()[0].reference.size == 1 and s.inputs()[0].size > 1
    ]
    assert strong and not any(s.record.weak for s in strong)


def test_generated_samples_have_gradients(tmp_path: Path) -> None:
    _, made = prepare_group(Group("torch:mul", "", "float32", 3, check="backward", distribution="regular"), tmp_path)
    assert len(made.samples) == 3 and not any(sample.failure for sample in made.samples)
