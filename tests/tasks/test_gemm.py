"""The catalog gemm: every tile's edge, each planted fault of a product found beside its sound twin, the same in torch and ONNX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import catalogs
from tasks.arrays import torch_tree
from tasks.arrays.block_scaled import FORMATS, dequantise_blocks, pack_pairs, quantise_blocks, unpack_pairs
from tasks.arrays.tree import read_tensor_spec
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.catalogs.gemm import grouped
from tasks.catalogs.gemm.catalog import ALIGNED, OPS, SHAPES
from tasks.catalogs.gemm.onnx_form import SCALES
from tasks.judge import policy_files
from tasks.judge.error_metrics import compare_outputs
from tasks.matrix_units.accumulators import ACCUMULATORS
from tasks.model import Form, Group, Program, RuntimeInfo, get_numpy_dtype, round_to_dtype
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


def sound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)


def short(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The tail of the sum beyond whole tiles is left out."""
    k = a.shape[-1] // 16 * 16 or a.shape[-1]
    return sound(a[..., :k], b[..., :k, :])


def last_row(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The row behind whole tiles is the one before it."""
    made = sound(a, b)
    if made.shape[-2] % 16 == 1 and made.shape[-2] > 1:
        made[..., -1, :] = made[..., -2, :]
    return made


def coarse(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return sound(a, b).astype(np.float16).astype(a.dtype)


class Planted(Backend):
    """flips: whether it heeds which matrix is transposed; packed: whether it takes rows for adjoining."""

    forms = ("torch",)

    def __init__(self, product: Product = sound, flips: bool = True, packed: bool = False) -> None:
        super().__init__("planted-cpu", "cpu", {})
        self.product, self.flips, self.packed = product, flips, packed

    def build(self, form: Form) -> Program:
        specs = [read_tensor_spec(x) for x in form.args["v"]]
        a, b = (np.array(spec.view(form.arrays[spec.id])) for spec in specs)
        if self.packed and specs[0].strides is not None:
            a = np.nan_to_num(form.arrays[0][specs[0].offset :][: a.size].reshape(a.shape))
        variant = form.call.args[0]  # type: ignore[union-attr]
        if self.flips:
            a, b = (x.T if flip == "t" else x for x, flip in zip((a, b), variant))
        elif variant == "tt":
            a, b = (x.T.copy().reshape(x.T.shape)[::-1].copy() for x in (a, b))
        return Program(lambda: [self.product(a, b)])


def statuses(backend: Backend, group: Group, cache: Path) -> list[tuple[Any, Any]]:
    _, made = prepare_group(group, cache)
    info = backend.probe() if not isinstance(backend, Planted) else RuntimeInfo("1", "cpu")
    runner = Runner(backend, info, policy_files.load_policy("error_units"), lambda *step: None)
    return [(done.row.sample, done.row.status) for done in runner.run([make_item_of_whole_group(made)])]


def test_a_fault_at_a_tiles_edge_is_found_and_only_there(cache: Path) -> None:
    group = Group("gemm:mm", "nt", "float32", len(SHAPES))
    assert {s for _, s in statuses(Planted(), group, cache)} == {"pass"}
    off = {i for i, s in statuses(Planted(short), group, cache) if s == "wrong"}
    assert off == {i for i, (_, _, k) in enumerate(SHAPES) if k % 16 and k > 16}
    off = {i for i, s in statuses(Planted(last_row), group, cache) if s == "wrong"}
    assert off == {i for i, (m, _, _) in enumerate(SHAPES) if m % 16 == 1 and m > 1}
    assert {s for _, s in statuses(Planted(coarse), group, cache)} <= {"wrong", "imprecise"}


def test_transposes_and_gaps_that_are_not_heeded_are_found(cache: Path) -> None:
    group = Group("gemm:mm", "tt", "float32", 8)
    assert {s for _, s in statuses(Planted(flips=True), group, cache)} == {"pass"}
    assert "pass" not in {s for _, s in statuses(Planted(flips=False), group, cache)}
    found = dict(statuses(Planted(packed=True), Group("gemm:mm", "nn", "float32", len(SHAPES)), cache))
    assert (
        {i % 4 == 0 for i, s in found.items() if s == "pass"} <= {True, False}
        and found[1] == "wrong"
        and found[0] == "pass"
    )


@pytest.mark.parametrize(
    ("op", "variant", "dtype"),
    [
        ("mm", "tn", "bfloat16"),
        ("addmm", "tt", "float16"),
        ("bmm", "nt", "float32"),
        ("scaled_mm", "float32", "float8_e4m3fn"),
        ("scaled_mm", "bfloat16", "float8_e5m2"),
        ("int_mm", "", "int8"),
    ],
)
def test_torch_and_onnx_runtime_make_the_same_products(op: str, variant: str, dtype: str, cache: Path) -> None:
    group = Group(f"gemm:{op}", variant, dtype, 6)
    for name, taken in (("torch-cpu", True), ("ort-cpu", dtype != "bfloat16" and variant != "bfloat16")):
        pytest.importorskip({"torch-cpu": "torch", "ort-cpu": "onnxruntime"}[name])
        # Its optimiser makes MatMulIntegerToFloat of float8, which it does not take then.
        options = {"graph_optimization": "disable"} if (op, name) == ("scaled_mm", "ort-cpu") else {}
        said = {s for _, s in statuses(BackendSpec.parse(name, options=options).create(), group, cache)}
        assert said == ({"pass"} if taken else {"unsupported"}), name


def added_in(adder: str) -> Product:
    """A product of float8 in float32 as a matrix unit adds it; "" for exactly."""

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        wide = (a.astype(np.float64), b.astype(np.float64))
        made = ACCUMULATORS[adder].product(*wide) if adder else wide[0] @ wide[1]
        return (made * (SCALES[0] * SCALES[1])).astype(np.float32)

    return product


def in_bfloat16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Each partial sum is rounded to bfloat16."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        total = round_to_dtype(total + np.outer(a[:, k].astype(np.float64), b[k].astype(np.float64)), "bfloat16")
    return (total * (SCALES[0] * SCALES[1])).astype(np.float32)


def as_float8(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return added_in("")(a, b).astype(a.dtype).astype(np.float32)


def zeros(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.zeros((a.shape[0], b.shape[1]), np.float32)


@pytest.mark.parametrize(
    ("product", "declared", "status"),
    [
        (added_in(""), "hopper-float8", "pass"),
        (added_in("hopper-float8"), "hopper-float8", "imprecise"),
        (added_in("ada-float8"), "ada-float8", "imprecise"),
        (added_in("hopper-float8"), "", "wrong"),
        (in_bfloat16, "hopper-float8", "wrong"),
        (as_float8, "hopper-float8", "wrong"),
        (zeros, "hopper-float8", "wrong"),
    ],
)
def test_products_are_no_worse_than_the_adders_of_the_device_leave_them(
    product: Product, declared: str, status: str, cache: Path
) -> None:
    _, made = prepare_group(Group("gemm:scaled_mm", "float32", "float8_e4m3fn", len(ALIGNED)), cache)
    info = RuntimeInfo("1", "gpu", accumulators=tuple(filter(None, [declared])))
    runner = Runner(Planted(product), info, policy_files.load_policy("error_units"), lambda *step: None)
    rows = [done.row for done in runner.run([make_item_of_whole_group(made)])]
    assert {x.status for x in rows} == {status}, [(x.sample, x.status, x.error_units) for x in rows]
    if status == "imprecise":
        assert {(x.kind, x.cause) for x in rows} == {("accumulator", "accumulates in 13 bits")}


def test_the_adder_of_a_hopper_gives_the_numbers_that_one_gave() -> None:
    """Error units and bias of three shapes on an H200 (cuBLAS 13.1), digit for digit."""
    seen = {0: (408.683565, -22.516454), 7: (1441.414176, -57.336513), 35: (2692.363490, -79.259276)}
    samples = catalogs.get_catalog("gemm").samples(Group("gemm:scaled_mm", "float32", "float8_e4m3fn", len(ALIGNED)), 4)
    for sample in samples:
        if sample.index in seen:
            a, b = (spec.view(x) for spec, x in zip(sample.args, sample.arrays))
            found = compare_outputs([added_in("hopper-float8")(a, b)], sample.expected, sample.op_class)
            assert found.error_units is not None and found.bias is not None
            assert (found.error_units, found.bias) == pytest.approx(seen[sample.index], rel=1e-6)


def test_every_op_has_samples_in_every_dtype_and_no_two_alike() -> None:
    made = catalogs.get_catalog("gemm")
    assert sum(len(OPS[e.op.partition(":")[2]].shapes) * len(e.dtypes) for e in made.entries()) > 2000
    assert len(set(SHAPES)) == len(SHAPES) and len(set(ALIGNED)) == len(ALIGNED)
    first, second = made.samples(Group("gemm:mm", "nn", "float16", 2), 2)
    assert first.arrays[0].tobytes() != second.arrays[0].tobytes() and first.expected[0].noise is not None
    with pytest.raises(ValueError, match="gemm:mm.xx"):
        made.samples(Group("gemm:mm", "xx", "float16", 2), 2)


# --- scaled by blocks, and grouped --------------------------------------------------------------------------------


def forgets_scales(variant: str, *tensors: Any) -> Any:
    """The scales of the second matrix are those of its first block."""
    a, b, first, second = tensors
    return decoded(a, first) @ decoded(b, second[:, :1].expand(second.shape)).T


def decoded(elements: Any, scales: Any) -> Any:
    block = elements.shape[-1] // scales.shape[-1]
    return elements.float() * scales.float().repeat_interleave(block, -1)


def decodes(variant: str, *tensors: Any) -> Any:
    a, b, first, second = tensors
    return decoded(a, first) @ decoded(b, second).T


def verdicts_of(call: Callable[..., Any], group: Group) -> set[float]:
    """Whether the error of a function of tensors is within 32 units, for each sample of a group."""
    catalog, found = catalogs.get_catalog("gemm"), set()
    for sample in catalog.samples(group, 4):
        assert sample.failure is None, sample.failure
        tensors = [torch_tree.tensor_from_numpy(x) for x in sample.arrays]
        outputs = torch_tree.list_output_arrays(call(group.variant, *tensors))
        units = compare_outputs(outputs, sample.expected, sample.op_class).error_units
        found.add(units is not None and units < 32)
    return found


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_scale_is_of_its_own_block(dtype: str) -> None:
    pytest.importorskip("torch")
    group = Group("gemm:block_scaled_mm", "mx", dtype, 4)
    assert verdicts_of(decodes, group) == {True}
    assert False in verdicts_of(forgets_scales, group)


@pytest.mark.parametrize("variant", ["rows", "depth"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_groups_end_where_they_are_told_to(variant: str, dtype: str) -> None:
    pytest.importorskip("torch")
    group = Group("gemm:grouped_mm", variant, dtype, 6)
    assert verdicts_of(grouped.call, group) == {True}
    if variant == "rows":
        assert False in verdicts_of(one_group, group)


def one_group(variant: str, a: Any, b: Any, ends: Any) -> Any:
    """Every row is multiplied by the first group's matrix."""
    return a @ b[0]


def test_numbers_are_rounded_to_blocks_as_the_specification_says() -> None:
    """OCP MX 1.0, 6.3: the scale is 2^(⌊log2 of the largest⌋ − the largest exponent of an element); what is beyond the
    largest element saturates."""
    x = np.zeros((1, 32))
    x[0, :5] = 1.99, -1.0, 0.26, 2.0**-30, -1.99
    elements, scales = quantise_blocks(x, "float4_e2m1fn", FORMATS["mx"])
    assert scales.astype(float).tolist() == [[2.0**-2]]
    assert elements[0, :5].astype(float).tolist() == [6.0, -4.0, 1.0, 0.0, -6.0]
    elements, scales = quantise_blocks(x[:, :16] * 10, "float4_e2m1fn", FORMATS["nv"])
    assert scales.astype(float).tolist() == [[3.25]] and float(elements[0, 0]) == 6.0
    assert (dequantise_blocks(elements, scales)[0, :2] == [19.5, -9.75]).all()
    with pytest.raises(ValueError, match="30 elements are not whole blocks of 32"):
        quantise_blocks(x[:, :30], "float8_e4m3fn", FORMATS["mx"])
    x[0, 7] = np.nan
    assert np.isnan(quantise_blocks(x, "float8_e4m3fn", FORMATS["mx"])[1].astype(float)).all()
    pairs = np.arange(16, dtype=np.uint8).view(get_numpy_dtype("float4_e2m1fn"))[None]
    assert (unpack_pairs(pack_pairs(pairs)).view(np.uint8) == pairs.view(np.uint8)).all()
    assert pack_pairs(pairs)[0, 0] == 0x10  # the first in the lower half
