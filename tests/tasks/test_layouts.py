"""Layouts of tensors: what each is, what is kept when a tensor is made smaller, and that kernels of the user's are given all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tasks.arrays import contiguous, layouts, torch_tree
from tasks.arrays.layouts import CONTIGUOUS, EXPANDED, LAYOUTS, REVERSED, identify_layout, lay_out_array, lay_out_like
from tasks.arrays.tree import TensorSpec
from tasks.backends import BackendSpec
from tasks.catalogs.user import input_layouts, load_kernels
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import UserOp
from tasks.draw.choices import DrawnChoices
from tasks.judge import policy_files
from tasks.model import FUZZ, Form, Group
from tasks.model.row import Row
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

torch = pytest.importorskip("torch")

SHAPES = [(), (1,), (5,), (5, 1), (1, 5), (3, 4), (2, 3, 4), (2, 3, 4, 5), (1, 3, 2, 2), (2, 3, 2, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "dtype", [np.float32, ml_dtypes.bfloat16, np.int16, np.bool_, np.complex64], ids=lambda x: x.__name__
)
def test_a_layout_has_the_values_and_is_what_it_is_called(shape: tuple[int, ...], dtype: Any) -> None:
    x = (np.arange(np.prod(shape)) % 5).reshape(shape).astype(dtype)
    for layout in layouts.list_fitting_layouts(shape):
        storage, spec = lay_out_array(x, layout, 3)
        seen = spec.view(storage)
        wanted = x[:1] if layout == EXPANDED else x
        assert seen.dtype == x.dtype and (seen == wanted).all() and spec.id == 3, layout
        assert identify_layout(spec) == layout or (layout, shape[-1]) == ("steps", 1), layout
        if layout != REVERSED:
            assert (
                torch_tree.tensor_from_numpy(storage).as_strided(spec.shape, spec.strides, spec.offset).shape == shape
            )


def test_what_lies_between_the_elements_shows_where_it_is_read() -> None:
    assert np.isnan(lay_out_array(np.zeros((3, 4), np.float32), "row_gaps")[0]).sum() == 6
    assert (lay_out_array(np.zeros((3, 4), np.int64), "steps")[0] == 77).sum() == 11
    assert lay_out_array(np.zeros(4, np.float32), "offset")[0].size == 4 + layouts.LEAD


def test_an_empty_tensor_and_one_without_the_layout_stay_as_they_are() -> None:
    for x, layout in (
        (np.zeros((0, 4)), "transposed"),
        (np.zeros(4), "transposed"),
        (np.zeros((2, 3)), "channels_last"),
    ):
        assert lay_out_array(x, layout)[0] is x
    assert layouts.list_fitting_layouts((0, 4)) == [] and layouts.list_fitting_layouts(()) == ["offset"]


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5)], ids=str)
def test_a_smaller_array_lies_in_memory_as_the_larger_one_did(shape: tuple[int, ...]) -> None:
    for layout in layouts.list_fitting_layouts(shape):
        x, smaller = (
            np.ones(shape, np.float32),
            np.arange(np.prod(shape) / shape[-1] * (shape[-1] - 1)).reshape(*shape[:-1], -1),
        )
        storage, spec = lay_out_like(smaller, lay_out_array(x, layout)[1])
        assert identify_layout(spec) == layout
        assert (spec.view(storage) == (smaller[:1] if layout == EXPANDED else smaller)).all()


def test_how_a_tensor_lies_in_memory_is_read_from_it() -> None:
    x = torch.arange(60.0)
    assert torch_tree.read_tensor_layout(x.view(6, 10)) == TensorSpec(0)
    assert torch_tree.read_tensor_layout(x.view(6, 10).t()) == TensorSpec(0, (10, 6), (1, 10), 0)
    assert torch_tree.read_tensor_layout(x.view(6, 10)[:, 2:8]) == TensorSpec(0, (6, 6), (10, 1), 2)
    assert torch_tree.read_tensor_layout(x[:10].expand(3, 10)) == TensorSpec(0, (3, 10), (0, 1), 0)
    y = np.arange(60.0, dtype=np.float32).reshape(6, 10)
    assert layouts.read_array_layout(y) == TensorSpec(0)
    assert layouts.read_array_layout(y[:, ::-1]) == TensorSpec(0, (6, 10), (10, -1), 9)
    assert layouts.read_array_layout(y[:, 2:8]) == TensorSpec(0, (6, 6), (10, 1), 2)
    assert layouts.read_array_layout(np.asfortranarray(y)) == TensorSpec(0, (6, 10), (1, 6), 0)
    assert layouts.read_array_layout(y.astype(ml_dtypes.bfloat16)[::2]) == TensorSpec(0, (3, 10), (20, 1), 0)


def test_the_form_of_contiguous_inputs_has_the_same_values() -> None:
    args, kwargs, arrays = torch_tree.encode_torch_args((), {"x": torch.arange(12.0).view(3, 4)[:, :3], "k": 2})
    form = Form("torch", "user:f", "float32", arrays, args=args, kwargs=kwargs)
    assert contiguous.find_strided_inputs(form) == {0: "x has a gap between its rows (strides [4, 1] of shape [3, 3])"}
    plain = contiguous.dense(form)
    assert not contiguous.find_strided_inputs(plain) and plain.arrays[0].shape == (3, 3)
    assert plain.arrays[0].tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]
    assert not contiguous.find_strided_inputs(Form("onnx", "user:f", "float32", arrays, args=args, kwargs=kwargs))


# --- kernels of the user's ----------------------------------------------------------------------------------------


def as_dense(x: Any, y: Any) -> Any:
    count = min(y.numel(), y.untyped_storage().nbytes() // y.element_size() - y.storage_offset())
    flat = torch.as_strided(y, (count,), (1,), y.storage_offset())
    return x + torch.nn.functional.pad(flat, (0, y.numel() - count)).view(y.shape)


def honest(x: Any, y: Any) -> Any:
    return x + y


def refusing(x: Any, y: Any) -> Any:
    if not (x.is_contiguous() and y.is_contiguous()):
        raise ValueError("x and y must be contiguous")
    return x + y


def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x + y


def op_of(kernel: Callable[..., Any], **settings: Any) -> UserOp:
    inputs = {"x": ["rows", "columns"], "y": ["rows", "columns"]}
    given = {"inputs": inputs, "dims": {"rows": [3, 8], "columns": [4, 17]}, "op_class": "elementary"} | settings
    return UserOp(kernel.__name__, kernel, reference, **given)


def rows_of(op: UserOp, folder: Path, samples: int = 8, backend: str = "torch-cpu", **group: Any) -> list[Row]:
    with load_kernels.lend_op(op, str(folder)):
        _, made = prepare_group(Group(f"user:{op.name}", "", op.dtypes[0], samples, **group), folder)
        one = BackendSpec.parse(backend).create()
        runner = Runner(one, one.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
        rows = [done.row for done in runner.run([make_item_of_whole_group(made)])]
    return sorted(rows, key=lambda row: row.sample)


def test_a_kernel_that_reads_as_if_dense_is_wrong_and_the_layout_is_named(tmp_path: Path) -> None:
    rows = rows_of(op_of(as_dense), tmp_path)
    bad = [row for row in rows if row.status == "wrong"]
    assert rows[0].status == "pass" and rows[0].layout is None and len(bad) > 2
    assert all(str(row.error).startswith("only where y has ") for row in bad)
    assert all("the same values in contiguous inputs pass" in str(row.error) for row in bad)


def test_its_sound_twin_passes_with_each_layout_of_each_input(tmp_path: Path) -> None:
    rows = rows_of(op_of(honest), tmp_path)
    assert {row.status for row in rows} == {"pass"} and not any(row.refused_layout for row in rows)
    said = " ".join(row.layout or "" for row in rows)
    for layout in layouts.list_fitting_layouts((8, 17)):
        if layout != REVERSED:
            assert all(f"{name} has {LAYOUTS[layout].words}" in said for name in "xy"), layout


def test_a_kernel_that_raises_has_refused_and_is_judged_on_contiguous_inputs(tmp_path: Path) -> None:
    rows = rows_of(op_of(refusing), tmp_path)
    assert {row.status for row in rows} == {"pass"}
    refused = [row for row in rows if row.refused_layout]
    assert refused and all("x and y must be contiguous" in str(row.refused_layout) and row.layout for row in refused)
    assert all(row.max_diff is not None for row in rows)  # its numbers are judged all the same


def test_what_is_declared_not_to_be_taken_is_given_once_and_must_not_be_wrong(tmp_path: Path) -> None:
    rows = rows_of(op_of(as_dense, layouts=[CONTIGUOUS]), tmp_path)
    given = [row.layout for row in rows if row.layout]
    assert len(given) == 5 and any(row.status == "wrong" for row in rows)
    assert {row.status for row in rows_of(op_of(refusing, layouts=[CONTIGUOUS]), tmp_path / "r")} == {"pass"}


def test_to_refuse_what_is_declared_to_be_taken_is_an_error(tmp_path: Path) -> None:
    rows = rows_of(op_of(refusing, layouts=[CONTIGUOUS, "row_gaps"]), tmp_path, 12)
    bad = [row for row in rows if row.status == "error"]
    assert bad and all("a gap between its rows" in str(row.error) for row in bad)


def test_what_fails_whatever_the_layout_says_nothing_of_it(tmp_path: Path) -> None:
    def minus(x: Any, y: Any) -> Any:
        return x - y

    rows = rows_of(op_of(minus), tmp_path)
    assert {row.status for row in rows} == {"wrong"} and not any("contiguous" in str(row.error) for row in rows)


def test_arrays_of_numpy_may_run_backwards(tmp_path: Path) -> None:
    def sizes_of_strides(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        lowest = x[tuple(slice(None, None, -1 if s < 0 else 1) for s in x.strides)]
        return np.lib.stride_tricks.as_strided(lowest, x.shape, [abs(s) for s in x.strides]) + y

    rows = rows_of(op_of(sizes_of_strides, framework="numpy"), tmp_path, 12)
    bad = [row for row in rows if row.status == "wrong"]
    assert bad and all("x has a negative stride along its last axis" in str(row.error) for row in bad)
    assert {row.status for row in rows_of(op_of(honest, framework="numpy"), tmp_path / "h", 12)} == {"pass"}


def test_an_input_that_is_written_to_is_never_expanded(tmp_path: Path) -> None:
    def into(x: Any, y: Any) -> Any:
        return y.copy_(x + y)

    rows = rows_of(op_of(into, mutates=["y"], aliases=True), tmp_path, 16)
    assert {row.status for row in rows} == {"pass"} and not any(row.refused_layout for row in rows)
    assert not any("y has stride 0" in (row.layout or "") for row in rows)


def test_gradients_are_checked_in_other_layouts_too(tmp_path: Path) -> None:
    op = op_of(honest, gradient=["x"], dims={"rows": [3], "columns": [4]})
    rows = rows_of(op, tmp_path, check="backward")
    assert {row.status for row in rows} == {"pass"} and any(row.layout for row in rows)


def test_a_case_that_is_drawn_without_its_last_choices_is_contiguous() -> None:
    op = op_of(honest)
    arrays = {name: np.ones((3, 4), np.float32) for name in "xy"}
    assert input_layouts.draw_layouts(op, DrawnChoices.from_list([]))(arrays) == {}
    found = [
        input_layouts.describe_input_layouts(
            arrays, input_layouts.draw_layouts(op, DrawnChoices.from_seed(seed))(arrays)
        )
        for seed in range(40)
    ]
    assert 10 < found.count("") < 35 and any("transposed" in said for said in found)


def test_one_fuzzed_case_of_many_has_no_elements_where_the_reference_takes_that(tmp_path: Path) -> None:
    rows = rows_of(op_of(honest), tmp_path, 120, distribution=FUZZ)
    empty = [row for row in rows if "no elements" in str(row.layout)]
    assert empty and {row.status for row in empty} == {"vacuous"}

    def refused(x: Any, y: Any) -> Any:
        if not x.numel():
            raise ValueError("x is empty")
        return x + y

    rows = rows_of(op_of(refused), tmp_path / "r", 120, distribution=FUZZ)
    assert {row.status for row in rows if "no elements" in str(row.layout)} == {"vacuous"}
    assert any("x is empty" in str(row.refused_layout) for row in rows)


def test_a_sum_of_nothing_is_judged(tmp_path: Path) -> None:
    def of_blocks(x: Any, y: Any) -> Any:
        out = x.new_full(x.shape[:1], 7.0)
        for at in range(0, x.shape[1], 4):
            out = (out if at else 0) + (x * y)[:, at : at + 4].sum(-1)
        return out

    def exact(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x * y).sum(-1)

    inputs = {"x": ["rows", "columns"], "y": ["rows", "columns"]}
    op = UserOp("dot", of_blocks, exact, inputs, dims={"rows": [1, 8], "columns": [1, 17]}, op_class="contraction")
    rows = rows_of(op, tmp_path, 150, distribution=FUZZ)
    assert {row.status for row in rows if "no elements" not in str(row.layout)} == {"pass"}
    assert any(row.status == "wrong" for row in rows)


def test_a_fuzzed_case_seldom_has_a_layout_that_is_declared_not_to_be_taken(tmp_path: Path) -> None:
    rows = rows_of(op_of(as_dense, layouts=[CONTIGUOUS]), tmp_path, 120, distribution=FUZZ)
    assert any(row.status == "wrong" for row in rows)
    assert 0 < sum(bool(row.layout) and "no elements" not in str(row.layout) for row in rows) < 20


def test_strides_that_are_declared_are_the_inputs_only_layout(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["rows", "columns"], "strides": ["2*columns", 1], "offset": 3}, "y": ["rows", "columns"]}
    rows = rows_of(op_of(honest, inputs=inputs), tmp_path)
    assert {row.status for row in rows} == {"pass"}
    assert all("x has a gap between its rows" in str(row.layout) for row in rows)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layouts": ["contigous"]}, "unknown layout 'contigous'; did you mean contiguous?"),
        ({"layouts": ["row_gaps"]}, "add contiguous: every kernel is given contiguous inputs"),
        ({"layouts": "contiguous"}, "'contiguous' is no list; give ['contiguous']"),
        (
            {"layouts": ["contiguous", "reversed"]},
            "torch has no negative strides; arrays of NumPy have (framework: numpy)",
        ),
        ({"inputs": {"x": {"shape": [3, 4], "strides": [4]}}}, "1 strides of 2 axes: one for each"),
        (
            {"inputs": {"x": {"shape": [4], "strides": [-1]}}},
            "-1: torch has no negative strides; arrays of NumPy have (framework: numpy)",
        ),
        ({"inputs": {"x": {"shape": [4], "strides": ["n"]}}}, "unknown dimension 'n'; valid: rows, columns"),
        ({"inputs": {"x": {"shape": [4], "offset": 2}}}, "goes with strides, those of a contiguous tensor too"),
    ],
)
def test_a_mistaken_declaration_is_told_in_one_line(settings: dict[str, Any], said: str) -> None:
    assert said in [text for _, text in list_declaration_mistakes(op_of(honest, **settings))]


def test_the_declaration_of_a_layout_is_part_of_a_configs_kernel() -> None:
    from tasks.catalogs.user.load_kernels import format_declaration

    assert json.loads(format_declaration(op_of(honest, layouts=[CONTIGUOUS])))["layouts"] == [CONTIGUOUS]


def _taken(dtype: Any) -> Callable[..., Any]:
    """A kernel that gathers rows by indices of one width, and refuses others."""

    def kernel(x: Any, ids: Any) -> Any:
        if ids.dtype != dtype:
            raise TypeError(f"ids must be {dtype}")
        return x[ids.long()]

    return kernel


def _read_as_64_bits(x: Any, ids: Any) -> Any:
    words = torch.nn.functional.pad(ids.contiguous(), (0, len(ids))).view(torch.int64)[: len(ids)]
    return x[words.remainder(len(x))]


IDS = {
    "inputs": {"x": ["n", 3], "ids": {"shape": ["n"], "dtype": "int64", "low": 0, "high": "n"}},
    "dims": {"n": [4, 7]},
}


@pytest.mark.parametrize(
    ("kernel", "statuses"),
    [
        (_read_as_64_bits, {"pass", "wrong"}),
        (_taken(torch.int64), {"pass"}),
        (lambda x, ids: x[ids.long()], {"pass"}),
        (lambda x, ids: (x[ids.long()], ids + 1), {"pass"}),
    ],
    ids=["reads_the_declared_width", "refuses", "takes_both", "returns_the_width"],
)
def test_whole_numbers_are_given_in_the_other_width(
    kernel: Callable[..., Any], statuses: set[str], tmp_path: Path
) -> None:
    two = len(statuses) == 1 and isinstance(kernel(torch.ones(2, 3), torch.tensor([0, 1])), tuple)
    outputs = ["float32", "int64"] if two else []
    right = (lambda x, ids: (x[ids], ids + 1)) if two else (lambda x, ids: x[ids])
    op = UserOp("gathered", kernel, right, op_class="exact", outputs=outputs, **IDS)
    rows = rows_of(op, tmp_path)
    assert {row.status for row in rows} == statuses
    narrow = [row for row in rows if "int32 for int64" in f"{row.layout} {row.error}"]
    assert bool(narrow) is not two
    if "wrong" in statuses:
        wrong = [row for row in rows if row.status == "wrong"]
        assert all("only where ids has another width than declared (int32 for int64)" in (x.error or "") for x in wrong)
    if kernel is not _read_as_64_bits and any(row.refused_layout for row in rows):
        assert all("ids must be torch.int64" in str(row.refused_layout) for row in narrow)
