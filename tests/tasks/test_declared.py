"""What a device is expected to give and may refuse: by torch's meta kernels and op_db, not by what the CPU happens to do."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.arrays import torch_tree
from tasks.arrays.tree import encode_argument_tree, map_leaves
from tasks.backends import BackendSpec
from tasks.catalogs.torch import declared, opinfo
from tasks.catalogs.torch.arguments import clone_torch_argument
from tasks.catalogs.torch.opinfo import TorchOpInfo
from tasks.catalogs.torch.samples import OpInfoSampleMaker, unwrap_seeded_op
from tasks.judge import policy_files
from tasks.model import Form, Group, OpClass, Program, Status
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group
from tasks.wire import Done

torch: Any = pytest.importorskip("torch")
SampleInput: Any = pytest.importorskip("torch.testing._internal.opinfo.core").SampleInput

Compute = Callable[[Any, Form], Sequence[Any]]


def own(backend: Any, form: Form) -> Sequence[Any]:
    """What the CPU gives."""
    args, kwargs = backend.arguments(form)
    return torch_tree.list_output_tensors(form.call(*args, **kwargs))  # type: ignore[misc]


def refused(backend: Any, form: Form) -> Sequence[Any]:
    raise RuntimeError("the device would rather not")


def rows(prepared: PreparedGroup, device: str, compute: Compute | None = None) -> dict[int, dict[str, Any]]:
    """The rows of all samples, by index, on a device of torch's that computes so, or as the CPU does."""
    backend = BackendSpec.parse("torch-cpu").create().but(torch_device=device)

    def build(form: Form) -> Program:
        assert compute is not None
        return Program(run=lambda: [torch_tree.make_output_array(torch_tree.dense(x)) for x in compute(backend, form)])

    if compute is not None:
        vars(backend)["build"] = build
    runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *step: None)
    made: list[Done] = list(runner.run([make_item_of_whole_group(prepared)]))
    return {row["sample"]: row for row in (done.row.values() for done in made)}


# Outputs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def batch_norm(tmp_path_factory: pytest.TempPathFactory) -> PreparedGroup:
    return prepare_group(Group("torch:native_batch_norm", "", "float16", 2), tmp_path_factory.mktemp("cases"))[1]


def kept_in_float32(backend: Any, form: Form) -> Sequence[Any]:
    """As CUDA computes a normalisation of halves: its statistics stay what they were added in."""
    args, kwargs = backend.arguments(form)
    wide = map_leaves(args, lambda x: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x)
    result, *statistics = form.call(*wide, **kwargs)  # type: ignore[misc]
    return [result.half(), *statistics]


def test_the_statistics_of_a_device_are_expected_as_its_meta_kernels_say(batch_norm: PreparedGroup) -> None:
    for sample in batch_norm.samples:
        here, there = ([leaf.dtype for leaf in sample.on(x).expected()] for x in ("", "cuda"))
        assert here == ["float16"] * 3 and there == ["float16", "float32", "float32"]
        assert all(leaf.reference is not None for leaf in sample.on("xpu").expected())
        assert sample.on("cuda").on("cuda").expected()[1].dtype == "float32"


def test_halves_where_a_device_keeps_float32_are_wrong_there_and_right_on_the_cpu(batch_norm: PreparedGroup) -> None:
    assert {row["status"] for row in rows(batch_norm, "").values()} == {Status.PASS}
    assert {row["status"] for row in rows(batch_norm, "cuda", kept_in_float32).values()} == {Status.PASS}
    for row in rows(batch_norm, "cuda").values():
        assert (row["status"], row["kind"]) == (Status.WRONG, "dtype") and "expected float32" in row["error"]
    assert {row["kind"] for row in rows(batch_norm, "", kept_in_float32).values()} == {"dtype"}


def test_a_wrong_statistic_in_the_right_dtype_is_wrong(batch_norm: PreparedGroup) -> None:
    def off(backend: Any, form: Form) -> Sequence[Any]:
        result, mean, deviation = kept_in_float32(backend, form)
        return [result, mean + 1, deviation]

    assert {(row["status"], row["kind"]) for row in rows(batch_norm, "hpu", off).values()} == {
        (Status.WRONG, "numbers")
    }


def test_an_output_that_only_a_device_has_is_expected_by_its_metadata(batch_norm: PreparedGroup) -> None:
    sample = batch_norm.samples[0]
    other = [("float16", [1, 2, 3]), ("float32", [2, 1]), ("int64", [2]), ("uint8", [0])]
    leaves = replace(sample, record=replace(sample.record, on_device=other)).on("cuda").expected()
    assert [(leaf.dtype, list(leaf.shape)) for leaf in leaves] == other
    assert [leaf.reference is None for leaf in leaves] == [False, True, True, True]


def test_only_calls_with_several_outputs_give_other_dtypes_on_a_device() -> None:
    """The rule by which meta kernels are asked (`declared.may_device_dtypes_differ`), over op_db: one sample of every op in
    bfloat16."""
    different = set()
    for (name, variant), info in opinfo._load_op_db().items():
        if torch.bfloat16 not in info.supported_dtypes("cpu") or variant == "partial_views" or "jiterator" in name:
            continue
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            sample = next(iter(opinfo._unwrap_opinfo_sampler(info)(info, "cpu", torch.bfloat16, False)))
            args, kwargs, op = (sample.input, *sample.args), sample.kwargs, unwrap_seeded_op(info.op)
            there = declared.infer_meta_outputs(op, args, kwargs)
            made = torch_tree.list_output_tensors(
                op(*map_leaves(args, clone_torch_argument), **map_leaves(kwargs, clone_torch_argument))
            )
        here = [
            (torch_tree.name_torch_dtype(x.dtype), tuple(x.shape)) if isinstance(x, torch.Tensor) else None
            for x in made
        ]
        if there is not None and there != here:
            assert declared.may_device_dtypes_differ("bfloat16", len(here)), (name, variant, here, there)
            different.add(name)
    assert different >= {"native_batch_norm", "native_layer_norm", "_native_batch_norm_legit"}


def test_calls_of_a_kind_are_alike_on_a_device_or_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a kind that is alike one call is asked, of one that is not every call."""
    asked: list[Any] = []
    infer = declared.infer_meta_outputs

    def infer_and_count(*call: Any) -> Any:
        asked.append(call)
        return infer(*call)

    monkeypatch.setattr(declared, "infer_meta_outputs", infer_and_count)
    calls = {}
    for op in ("split", "unbind", "std_mean", "native_layer_norm", "native_batch_norm", "frexp"):
        group = Group(f"torch:{op}", "", "bfloat16", 8)
        asked.clear()
        once = [x.record.on_device for x in prepare_group(group, tmp_path / "once")[1].samples]
        calls[op] = len(asked)
        with monkeypatch.context() as every:
            every.setattr(declared, "describe_call_modes", lambda *call: object())
            each = [x.record.on_device for x in prepare_group(group, tmp_path / "every")[1].samples]
        assert once == each, op
    assert calls["split"] < 8 <= calls["native_batch_norm"]


def test_weights_in_another_dtype_are_calls_of_another_kind() -> None:
    """native_layer_norm returns its statistics in the dtype that its weights are in."""
    maker = OpInfoSampleMaker(opinfo._load_op_db()["native_layer_norm", ""], "bfloat16", 1)
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        weights = torch.ones(3, dtype=dtype)
        sample = maker.make(0, SampleInput(x, args=((3,), weights, weights, 1e-5)))
        found.append(sample.on_device)
    assert found[0] != found[1]


def test_what_has_no_meta_kernel_or_depends_on_the_values_is_left_to_the_cpu() -> None:
    for op, x in ((torch.nonzero, torch.ones(2, 2)), (torch.unique, torch.ones(3)), (torch.geqrf, torch.eye(2))):
        assert declared.infer_meta_outputs(op, (x,), {}) is None
    assert declared.infer_meta_outputs(torch.arange, (3,), {"device": "cpu"}) == [("int64", (3,))]
    assert declared.infer_meta_outputs(torch.equal, (3, 3), {}) is None
    assert not declared.may_device_dtypes_differ("float32", 3) and not declared.may_device_dtypes_differ("bfloat16", 1)


# Dtypes and calls ------------------------------------------------------------------------------------------------


def test_a_dtype_that_op_db_leaves_out_for_a_device_is_unsupported_there_whatever_its_words(tmp_path: Path) -> None:
    halves = prepare_group(Group("torch:histc", "", "float16", 2), tmp_path)[1]
    singles = prepare_group(Group("torch:histc", "", "float32", 2), tmp_path)[1]
    for row in rows(halves, "cuda", refused).values():
        assert row["status"] == Status.UNSUPPORTED and row["stage"] == "run"
        assert row["error"] == "torch's op_db declares no histc in float16 for cuda: the device would rather not"
    for prepared, device in ((singles, "cuda"), (halves, ""), (halves, "npu"), (halves, "mps")):
        for row in rows(prepared, device, refused).values():
            assert (row["status"], row["error"]) == (Status.ERROR, "the device would rather not"), device


def test_what_a_device_computes_though_it_is_not_declared_is_judged_as_usual(tmp_path: Path) -> None:
    halves = prepare_group(Group("torch:histc", "", "float16", 2), tmp_path)[1]
    assert {row["status"] for row in rows(halves, "cuda").values()} == {Status.PASS}
    off = rows(halves, "cuda", lambda backend, form: [own(backend, form)[0] + 1])
    assert {row["status"] for row in off.values()} == {Status.WRONG}


def test_a_call_that_op_db_has_for_the_cpu_alone_is_unsupported_elsewhere_and_one_of_its_own_is_not(
    tmp_path: Path,
) -> None:
    prepared = prepare_group(Group("torch:linalg.lstsq", "", "float32", 2), tmp_path)[1]
    drivers = {s.index: dict(s.record.kwargs["v"])["driver"] for s in prepared.samples}
    assert sorted(drivers.values()) == ["gels", "gelsd"]
    on_cuda, on_mps = rows(prepared, "cuda", refused), rows(prepared, "mps", refused)
    for index, driver in drivers.items():
        own_call = driver == "gels"
        assert on_cuda[index]["status"] == (Status.ERROR if own_call else Status.UNSUPPORTED)
        assert on_mps[index]["status"] == Status.ERROR, "only CUDA has samples of its own"
    assert "has this call of linalg.lstsq for the CPU and not for cuda" in on_cuda[35]["error"]


def test_a_gradient_has_its_own_declaration() -> None:
    catalog = TorchOpInfo()
    info = opinfo._load_op_db()["cdist", ""]
    forward, backward = (
        declared.list_declared_dtypes(info, "cuda"),
        declared.list_declared_dtypes(info, "cuda", gradient=True),
    )
    assert forward is not None and backward is not None and "float32" in backward
    assert declared.list_declared_dtypes(info, "xpu", gradient=True) is None, "op_db has no list of it"
    assert declared.list_declared_dtypes(info, "npu") is None and declared.list_declared_dtypes(info, "cpu") is None
    args, kwargs = encode_argument_tree(()), encode_argument_tree({})
    group = Group("torch:to_sparse", "", "float16", 1, check="backward")
    assert "gradient" not in catalog.undeclared(group, args, kwargs, "cuda")
    assert "no gradient of to_sparse in float16 for hpu" in catalog.undeclared(group, args, kwargs, "hpu")


def test_a_catalog_that_cannot_be_asked_acquits_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = prepare_group(Group("torch:histc", "", "float16", 1), tmp_path)[1]

    def broken(*args: Any) -> str:
        raise ImportError("no module named expecttest")

    monkeypatch.setattr(TorchOpInfo, "undeclared", broken)
    assert {row["status"] for row in rows(halves, "cuda", refused).values()} == {Status.ERROR}


def test_the_modes_of_a_call_are_all_but_its_sizes_and_numbers() -> None:
    def of(*args: Any, **kwargs: Any) -> str:
        trees = torch_tree.encode_torch_args(args, kwargs)
        return declared.describe_call_modes(*trees[:2])

    a, b = torch.ones(2, 3), torch.ones(5, 5).T
    assert of(a, 2, dim=(0, 1), driver="gels") == of(b, 7, dim=(3, -1), driver="gels")
    assert of(a, float("inf")) == of(b, 0.5) == of(a, 3)
    modes = {of(a), of(a, b), of(a, driver="gels"), of(a, driver="gelsy"), of(a, dtype=torch.float64)}
    assert len(modes | {of(a, stable=True), of(a, stable=False), of(a, None), of([a])}) == 9


def test_samples_of_a_device_that_is_not_here_are_made_in_the_cpus_memory_and_disturb_nobodys_numbers() -> None:
    with declared.make_device_samples_on_cpu("cuda"):
        assert torch.empty(2, device="cuda").is_cpu and torch.ones(1).to(torch.device("cuda:0")).is_cpu
        assert torch.device("cuda").type == "cuda" and torch.empty(1, device="meta").is_meta
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    state = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    info = opinfo._load_op_db()["linalg.lstsq", ""]
    gpu, cpu = (
        declared.list_sample_modes(opinfo._unwrap_opinfo_sampler(info), info, x, "float32", False)
        for x in ("rocm", "cpu")
    )
    assert gpu < cpu
    assert torch.equal(state[0], torch.get_rng_state()) and random.getstate() == state[2]
    assert np.random.get_state()[1].tolist() == state[1]  # type: ignore[index]


def test_what_a_recorded_row_was_to_be_is_told_without_its_device() -> None:
    catalog = TorchOpInfo()

    def told(op: str, dtype: str, index: int, device: str) -> opinfo.OnDevice:
        return catalog.on_device(Group(f"torch:{op}", "", dtype, 2), index, device)

    assert [dtype for dtype, _ in told("native_layer_norm", "bfloat16", 0, "cuda").outputs] == [
        "bfloat16",
        "float32",
        "float32",
    ]
    assert told("histc", "float16", 0, "cuda").undeclared and not told("histc", "float32", 0, "cuda").undeclared
    assert told("linalg.lstsq", "float32", 35, "cuda").undeclared
    assert not told("linalg.lstsq", "float32", 0, "cuda").undeclared
    with pytest.raises(IndexError):
        told("histc", "float32", 10_000, "cuda")


def test_a_dtype_that_one_devices_kernels_alone_have_is_listed_for_it() -> None:
    entries = {(e.op, e.variant): e for e in TorchOpInfo().entries()}
    bessel = set(entries["torch:special.bessel_j0", ""].on_devices)
    assert ("mps", "float16") in bessel and not {("cuda", "float16"), ("npu", "float16"), ("", "float16")} & bessel
    pool = set(entries["torch:nn.functional.avg_pool3d", ""].on_devices)
    assert {("cuda", "float16"), ("rocm", "float16"), ("npu", "float16"), ("", "float16")} <= pool
    assert not any(device == "cpu" for device, _ in bessel | pool)


# Random numbers --------------------------------------------------------------------------------------------------


def made(op: Callable[..., Any], x: Any) -> Any:
    """The sample of an op that no list knows."""
    import types

    from tasks.catalogs.torch.samples import OpInfoSampleMaker

    info = types.SimpleNamespace(name="planted", op=op, variant_test_name="", ref=None)
    return OpInfoSampleMaker(info, "float32", 2).make(0, types.SimpleNamespace(input=x, args=(), kwargs={}))


def test_an_op_that_draws_is_found_by_drawing_and_one_that_ignores_what_it_drew_is_not_random() -> None:
    x = torch.linspace(0, 1, 64)
    drawn = made(lambda x: x + torch.rand_like(x), x)
    assert (drawn.op_class, drawn.definition, drawn.oracle) == (OpClass.RANDOM, "moments", "float64")
    for still in (lambda x: x + 0 * torch.rand_like(x), lambda x: x * 1.0):
        sample = made(still, x)
        assert (sample.op_class, sample.definition, sample.repeats) == (OpClass.COMPOSITE, "", 1)
        assert np.array_equal(sample.expected[0].reference, x.double().numpy())
    sometimes = made(lambda x: torch.rand(()) < 0.5, x)
    assert sometimes.op_class is OpClass.RANDOM and not sometimes.definition


@pytest.mark.parametrize("op", ["svd_lowrank", "pca_lowrank"])
def test_a_random_algorithm_of_a_determined_result_is_judged_by_what_defines_it(op: str, tmp_path: Path) -> None:
    prepared = prepare_group(Group(f"torch:{op}", "", "float32", 16), tmp_path)[1]
    assert all(s.op_class is OpClass.RANDOM and s.record.definition for s in prepared.samples)
    for seed in (1, 2):
        torch.manual_seed(seed)
        assert {row["status"] for row in rows(prepared, "").values()} == {Status.PASS}

    def turned(u: Any, s: Any, v: Any) -> Sequence[Any]:
        return -u, s, -v  # another sign of both is as good

    def longer(u: Any, s: Any, v: Any) -> Sequence[Any]:
        return u, s * 1.01, v

    def one_turned(u: Any, s: Any, v: Any) -> Sequence[Any]:
        return -u, s, v

    def not_orthogonal(u: Any, s: Any, v: Any) -> Sequence[Any]:
        return u * 2, s / 2, v

    def nothing(u: Any, s: Any, v: Any) -> Sequence[Any]:
        return u * 0, s * 0, v * 0

    for change, status in (
        (turned, Status.PASS),
        (longer, Status.WRONG),
        (one_turned, Status.WRONG),
        (not_orthogonal, Status.WRONG),
        (nothing, Status.WRONG),
    ):
        found = rows(prepared, "", lambda backend, form, change=change: change(*own(backend, form)))  # type: ignore[misc]
        assert {row["status"] for row in found.values()} == {status}, change.__name__


def test_a_gradient_through_drawn_numbers_is_random_and_one_without_is_judged_by_its_numbers(tmp_path: Path) -> None:
    prepared = prepare_group(Group("torch:nn.functional.dropout", "", "float32", 19, 0, "backward"), tmp_path)[1]
    by_p = {dict(s.record.kwargs["v"]).get("p", 0.5): s.op_class for s in prepared.samples if not s.failure}
    assert by_p[0.0] is OpClass.COMPOSITE and by_p[0.5] is OpClass.RANDOM
    assert {row["status"] for row in rows(prepared, "").values()} <= {Status.PASS, Status.VACUOUS}
