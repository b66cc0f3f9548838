"""Whether products are computed is asked of what a sample runs, in torch, in NumPy and in an ONNX graph, whatever its op is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import catalogs
from tasks.arrays.pack import PackError
from tasks.catalogs.base import Sample
from tasks.checks.base import Observation
from tasks.graphs import products
from tasks.graphs.coarse_products import CoarseProducts, round_coarse_factor
from tasks.judge import policy_files
from tasks.judging import judge_outputs
from tasks.model import EPS, Group, OpClass, RuntimeInfo, Status
from tasks.prepare import cases
from tasks.prepare import products as told
from tests import residual_model


def prepared(op: str, cache: Path, dtype: str = "float32", variant: str = "", check: str = "forward") -> Any:
    _, made = cases.prepare_group(Group(op, variant, dtype, 1, check=check), cache)
    return made.samples[0]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("critical:matmul", True),
        ("critical:conv2d_depthwise", True),
        ("critical:swiglu", True),
        ("critical:scaled_dot_product_attention_causal", True),
        ("critical:gelu", False),
        ("critical:layer_norm", False),
        ("critical:sum", False),
        ("torch:cdist", True),
        ("torch:cov", True),
        ("torch:linalg.solve", True),
        ("torch:matrix_exp", True),
        ("torch:linalg.vecdot", True),  # its class says sums of products, though torch multiplies and sums
        ("torch:nn.functional.multi_head_attention_forward", True),
        ("torch:fft.fft", False),  # no matrix unit computes it
        ("torch:logsumexp", False),
        ("torch:nn.functional.cross_entropy", False),
        ("onnx:LSTM", True),
        ("onnx:MatMul", True),
        ("onnx:DFT", False),
        ("onnx:Softmax", False),
    ],
)
def test_products_are_told_by_what_is_run(op: str, expected: bool, cache: Path) -> None:
    pytest.importorskip({"onnx": "onnx"}.get(op.partition(":")[0], "torch"))
    entry = next(x for x in catalogs.get_catalog(op.partition(":")[0]).entries() if x.op == op)
    assert prepared(op, cache, variant=entry.variant).products is expected


def test_other_dtypes_are_not_what_a_matrix_unit_takes_coarser(cache: Path) -> None:
    pytest.importorskip("torch")
    assert not any(prepared("critical:matmul", cache, dtype).products for dtype in ("float64", "float16", "bfloat16"))
    assert prepared("torch:mm", cache, "complex64").products


def test_a_gradient_has_the_products_of_its_op(cache: Path) -> None:
    pytest.importorskip("torch")
    assert prepared("torch:mm", cache, check="backward").products
    assert not prepared("torch:nn.functional.softplus", cache, check="backward").products


def test_a_chain_has_a_floor_of_its_own_and_a_single_product_has_none(cache: Path) -> None:
    pytest.importorskip("torch")
    for op, own in (("critical:swiglu", True), ("critical:matmul", False), ("critical:gelu", False)):
        (leaf,) = prepared(op, cache).expected(of_products=True)
        assert (leaf.of_products is not None) is own
        assert prepared(op, cache).expected()[0].of_products is None  # asked for by whoever declares products alone


def test_products_that_nobody_asks_for_are_not_looked_into_and_more_is_prepared_beside(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    group = Group("critical:swiglu", "", "float32", 1)
    name, less = cases.prepare_group(group, tmp_path, with_products=False)
    with pytest.raises(
        PackError, match="critical:swiglu in float32 was prepared for backends that compute in the dtype"
    ):
        _ = less.samples[0].products
    with pytest.raises(PackError, match="prepare it again with products"):
        less.samples[0].expected(of_products=True)
    assert (
        cases.find_pack_key(group, tmp_path, with_products=False) == name
        and cases.find_pack_key(group, tmp_path) is None
    )
    other, more = cases.prepare_group(group, tmp_path)
    assert more.samples[0].products and more.samples[0].expected(of_products=True)[0].of_products is not None
    assert other != name and cases.find_pack_key(group, tmp_path) == other
    here, there = less.samples[0], more.samples[0]
    assert here.record.digest == there.record.digest
    for one, two in zip(here.expected(), there.expected(), strict=True):
        assert np.array_equal(one.reference, two.reference) and np.array_equal(one.noise, two.noise)


def test_what_has_more_than_is_asked_for_serves(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    group = Group("critical:swiglu", "", "float32", 1)
    more, _ = cases.prepare_group(group, tmp_path)
    assert cases.prepare_group(group, tmp_path, with_products=False)[0] == more
    cases.find_pack_path(tmp_path, more).write_bytes(b"torn")  # a machine that crashed
    assert cases.prepare_group(group, tmp_path, with_products=False)[0] != more


def test_a_dtype_without_such_products_has_one_pack(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    group = Group("critical:swiglu", "", "float16", 1)
    name, made = cases.prepare_group(group, tmp_path, with_products=False)
    assert not made.samples[0].products and cases.make_pack_key(group) == name


def swiglu(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    gate = x @ w
    return np.asarray(gate / (1 + np.exp(-gate)) * np.einsum("ij,jk->ik", x, v))


def by_hand(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.asarray((x[:, :, None] * w[None]).sum(1))


def test_a_numpy_function_tells_its_products() -> None:
    drawn = np.random.default_rng(1)
    x, w, v = (drawn.normal(size=shape) for shape in ((4, 8), (8, 5), (8, 5)))
    seen = products.ProductsInNumpy()
    made = swiglu(*map(seen.watch, (x, w, v)))
    assert seen.found == ["matmul", "einsum"] and np.array_equal(made, swiglu(x, w, v))
    unseen = products.ProductsInNumpy()
    by_hand(unseen.watch(x), unseen.watch(w))
    np.linalg.norm(unseen.watch(x))
    assert not unseen.found
    changed = products.ProductsInNumpy(lambda factor, place: round_coarse_factor(factor, "tfloat32"))
    narrow = [round_coarse_factor(y, "tfloat32") for y in (x, w, v)]
    assert np.array_equal(np.asarray(swiglu(*map(changed.watch, (x, w, v)))), swiglu(*narrow))


def test_an_added_matrix_is_no_factor() -> None:
    torch = pytest.importorskip("torch")
    c, a, b = (torch.ones(2, 2, dtype=torch.float64) for _ in range(3))
    with products.watch_products_in_torch(lambda x, place: x * 2.0) as found:
        made = torch.addmm(c, a, b)
    assert found == ["addmm"] and made.tolist() == [[9.0, 9.0]] * 2  # 1 + 2·2·2
    image, kernel, bias = torch.ones(1, 1, 2, 2).double(), torch.ones(1, 1, 2, 2).double(), torch.ones(1).double()
    with products.watch_products_in_torch(lambda x, place: x * 2.0):
        assert torch.nn.functional.conv2d(image, kernel, bias).item() == 17.0


def test_a_graph_tells_its_products_and_takes_other_factors() -> None:
    pytest.importorskip("onnx")
    model = residual_model.residual()
    graph = CoarseProducts(model)
    exact = graph.run(residual_model.inputs(model))
    assert graph.found.count("MatMul") == sum(x.op_type == "MatMul" for x in model.graph.node) > 2
    coarse = CoarseProducts(model, lambda x, place: round_coarse_factor(x, "tfloat32")).run(
        residual_model.inputs(model)
    )
    apart = max(float(np.abs(coarse[x] - exact[x]).max()) for x in exact)
    assert 0 < apart < 100 * EPS["tfloat32"]


def test_what_nobody_can_look_inside_is_what_its_class_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def traced(self, group: Group) -> None:
            return None

    monkeypatch.setattr(catalogs, "get_catalog", lambda name: Closed())
    for op_class, expected in ((OpClass.CONTRACTION, True), (OpClass.COMPOSITE, False)):
        sample = Sample(0, op_class=op_class)
        told.fill_in_products(sample, Group("user:mine", "", "float32", 1), 4)
        assert sample.products is expected


def _round_factor(x: np.ndarray, place: int) -> np.ndarray:
    return round_coarse_factor(x, "tfloat32")


def _scale_factor(x: np.ndarray, place: int) -> np.ndarray:
    return x * x.dtype.type(1.05)


@pytest.mark.parametrize(("stand_in", "passes"), [(_round_factor, True), (_scale_factor, False)])
@pytest.mark.parametrize("check", ["forward", "audit"])
def test_other_inputs_and_the_sets_of_an_audit_have_floors_of_products(
    cache: Path, check: str, stand_in: products.Change, passes: bool
) -> None:
    torch = pytest.importorskip("torch")
    info = RuntimeInfo("stand-in", "", compute_precision="tfloat32", of_products=True)
    sample = prepared("critical:swiglu", cache, check=check)
    call = catalogs.get_catalog("critical").call(sample.owner.group)

    def judge(one: Any, arrays: Sequence[Any], **part: Any) -> Status:
        given = [torch.from_numpy(np.array(x)).double() for x in arrays]
        with products.watch_products_in_torch(stand_in):
            out = call(*given).float()
        step = Observation("", **part)
        return judge_outputs(one, [[out.numpy()]], policy_files.load_policy("error_units"), info, step=step).status

    given, sets = sample.inputs(), sample.record.sets or ("",)
    count = len(given) // len(sets)
    assert all(leaf.of_products is not None for leaf in sample.expected(of_products=True))
    seen = [judge(sample, given[k * count : (k + 1) * count], part=(k, k + 1)) for k in range(len(sets))]
    if check == "forward":
        other = sample.of_other_inputs([-x for x in given])
        assert other is not None and other.products
        seen.append(judge(other, other.inputs()))
    assert len(seen) > 1 and (set(seen) <= {Status.PASS, Status.IMPRECISE}) is passes


def test_a_case_that_stands_alone_is_told_its_products_where_its_origin_was(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    group = Group("critical:swiglu", "", "float32", 1)
    for with_products in (False, True):
        sample = cases.prepare_group(group, tmp_path / str(with_products), with_products=with_products)[1].samples[0]
        cases.save_sample_alone(tmp_path / "alone.pack", group, sample.again(), with_products)
        alone = cases.PreparedGroup(tmp_path / "alone.pack")
        other = sample.of_other_inputs(sample.inputs())
        assert other is not None and alone.with_products is other.owner.with_products is with_products
        if with_products:
            assert alone.samples[0].products and alone.samples[0].expected(True)[0].of_products is not None
