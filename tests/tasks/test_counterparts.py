"""The table of counterparts: every row is well formed, torch's arguments arrive, and what a framework lacks is said."""

from __future__ import annotations

import ast
import builtins
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks import counterparts
from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.backends import BackendSpec
from tasks.backends.shared.function_form import describe_framework_call, invoke_counterpart, list_function_inputs
from tasks.counterparts import (
    Counterpart,
    algebra,
    arguments,
    elementwise,
    find_counterpart,
    index_counterpart_rows,
    movement,
    networks,
    reductions,
)
from tasks.counterparts.table import FRAMEWORKS
from tasks.model import Form, Group, Unsupported
from tasks.operators.torch_names import CASTS, name_framework_dtype
from tasks.prepare import cases as prepare


@pytest.fixture
def numpy_for_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy in jax.numpy's place: the adaptations are the same."""
    monkeypatch.setattr(counterparts, "_list_framework_words", lambda framework: vars(arguments) | {"jnp": np})


def words_of(framework: str) -> set[str]:
    """The names that a framework's module of words defines or imports, without importing the framework."""
    tree = ast.parse((Path(counterparts.__file__).parent / f"in_{framework}.py").read_text())
    found = set(vars(arguments)) | set(dir(builtins)) | {"named", "bert_encoder"}  # these are every framework's
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_expression_names_parameters_and_words_alone(framework: str) -> None:
    known = words_of(framework)
    for name, row in index_counterpart_rows().items():
        if text := getattr(row, framework):
            made = Counterpart(framework, name, row.signature, text)
            used = {node.id for node in ast.walk(ast.parse(made.text, mode="eval")) if isinstance(node, ast.Name)}
            assert used <= known | set(made.signature.parameters), name


def test_no_two_rows_have_a_name() -> None:
    areas = (elementwise, reductions, algebra, movement, networks)
    names = [name for area in areas for row in area.ROWS for name in row.names.split()]
    assert len(names) == len(set(names)) == len(index_counterpart_rows())


def test_every_name_is_an_op() -> None:
    pytest.importorskip("torch")
    from tasks.catalogs.critical.ops import OPS
    from tasks.catalogs.torch.opinfo import _load_op_db

    # Ops of the critical catalog may be called like functions that op_db knows by its variants only.
    torch_names = {f"{name}.{variant}" if variant else name for name, variant in _load_op_db()} | set(OPS)
    unknown = [
        n
        for n in index_counterpart_rows()
        if n.removeprefix("critical:") not in (OPS if n.startswith("critical:") else torch_names)
    ]
    assert unknown == []


def test_every_critical_op_has_counterparts() -> None:
    from tasks.catalogs.critical.ops import OPS

    missing = {}
    for framework in FRAMEWORKS:
        for name in OPS:
            try:
                find_counterpart(framework, f"critical:{name}", "", "float32")
            except Unsupported:
                missing.setdefault(framework, []).append(name)
    assert missing == {"jax": ["dropout"]}  # JAX itself has none


def test_arguments_arrive_under_torchs_names(numpy_for_jax: None) -> None:
    total = find_counterpart("jax", "torch:sum", "", "float32")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert total(x, dim=(), keepdim=True).tolist() == [[15]]  # no axis means all of them
    assert total(x, 1, dtype=np.float64).dtype == np.float64
    assert find_counterpart("jax", "critical:var", "", "float32")(x, dim=-1, correction=1).tolist() == [1, 1]
    assert find_counterpart("jax", "torch:add", "", "float32")(x, x, device="cpu", memory_format=None)[1, 2] == 10


def test_an_argument_that_the_expression_does_not_heed_is_refused(numpy_for_jax: None) -> None:
    add = find_counterpart("jax", "torch:add", "", "float32")
    x = np.ones(2, np.float32)
    assert add(x, x, alpha=1).tolist() == [2, 2]
    with pytest.raises(Unsupported, match=r"jnp.add\(x, other\), has no alpha"):
        add(x, x, alpha=2)
    with pytest.raises(Unsupported, match="does not take these arguments"):
        add(x, x, beta=2)
    with pytest.raises(Unsupported, match="ellipsis that the output leaves out"):
        find_counterpart("jax", "torch:einsum", "", "float32")([x], "...i -> i")
    embed = find_counterpart("jax", "torch:nn.functional.embedding", "", "float32")
    table = np.eye(3, dtype=np.float32)
    assert embed(np.array([2, 0]), table, padding_idx=1).argmax(1).tolist() == [2, 0]  # without effect on the result
    with pytest.raises(Unsupported, match="has no max_norm"):
        embed(np.array([0]), table, max_norm=1.0)


def test_what_the_table_does_not_have_is_said() -> None:
    for op, variant, dtype, text in (
        ("torch:svd_lowrank", "", "float32", "no counterpart of svd_lowrank in the table for jax"),
        ("critical:dropout", "", "float32", "no counterpart of dropout"),
        ("onnx:Relu", "", "float32", "no counterpart of Relu"),
        ("torch:max", "other", "float32", "no counterpart of max.other"),
        ("torch:sum", "", "int64", "floating and complex dtypes"),
    ):
        with pytest.raises(Unsupported, match=text):
            find_counterpart("jax", op, variant, dtype)


def test_conventions_are_turned_over() -> None:
    x = np.zeros((2, 3, 4))
    assert arguments.pad_widths(x, (1, 2, 3, 4)) == [(0, 0), (3, 4), (1, 2)]
    assert arguments.paddings("same", [4], [1], 1) == [(1, 2)]
    assert arguments.split_sizes(x, 2, 1) == [2, 1] and arguments.split_points(x, [1, 1, 1], 1) == [1, 2]
    assert arguments.expanded(x, (5, -1, 3, 4)) == (5, 2, 3, 4)
    assert arguments.cut_to_index(np.arange(6).reshape(2, 3), np.zeros((1, 5)), 1).tolist() == [[0, 1, 2]]
    assert arguments.ddof(None, None) == 1 and arguments.ddof(False, None) == 0 and arguments.ddof(None, 2) == 2
    for bad in (
        lambda: arguments.pad_widths(x, (-1, 0)),
        lambda: arguments.bounds(1, 0),
        lambda: arguments.require_rank(x, 4),
        lambda: arguments.repeat_for_axes((None, 2), 2),
    ):
        with pytest.raises(Unsupported):
            bad()


def test_tensors_of_a_form_are_contiguous_and_in_order() -> None:
    stored = np.arange(6, dtype=np.float32)
    transposed, scalar = TensorSpec(0, (3, 2), (1, 3), 0), TensorSpec(1)
    seen: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return [args[0], None, (args[1][0],)]

    form = Form(
        "jax",
        "torch:x",
        "float32",
        [stored, np.float32(7).reshape(())],
        call,
        encode_argument_tree((transposed, [scalar])),
        {
            "$": "dict",
            "v": [["dtype", {"$": "torch.dtype", "name": "float64"}], ["m", {"$": "torch.memory_format", "name": "x"}]],
        },
    )
    arrays = list_function_inputs(form)
    assert arrays[0].tolist() == [[0, 3], [1, 4], [2, 5]] and arrays[0].flags.c_contiguous and arrays[1].shape == ()
    out = invoke_counterpart(form, arrays, np.dtype)
    assert len(out) == 2 and out[0] is arrays[0] and out[1] is arrays[1]
    assert seen[0][1] == {"dtype": np.dtype("float64"), "m": None}
    sparse = Form(
        "jax",
        "torch:x",
        "float32",
        [],
        call,
        encode_argument_tree((TensorSpec(0, (2,), layout="sparse_coo", parts=(0, 1)),)),
        encode_argument_tree({}),
    )
    with pytest.raises(Unsupported, match="sparse_coo"):
        list_function_inputs(sparse)


def test_a_row_says_what_was_called() -> None:
    form = Form("jax", "critical:swiglu", "float32", [], find_counterpart("jax", "critical:swiglu", "", "float32"))
    assert describe_framework_call(form) == "composed=nn.silu(jnp.matmul(x,w))*jnp.matmul(x,v)"
    other = replace(form, call=find_counterpart("jax", "critical:exp", "", "float32"))
    assert describe_framework_call(other) == "function=jnp.exp(x)"


def test_a_prepared_sample_has_the_form(tmp_path: Path) -> None:
    _, group = prepare.prepare_group(Group("critical:exp", "", "float32", 1), tmp_path, draws=2)
    form = group.samples[0].form("paddle")
    assert isinstance(form.call, Counterpart) and form.call.text == "paddle.exp(x)"
    _, without = prepare.prepare_group(Group("critical:dropout", "", "float32", 1), tmp_path, draws=2)
    with pytest.raises(Unsupported, match="no counterpart"):
        without.samples[0].form("jax")


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("jax-cpu", {"jitt": True}, "it takes jit, precision"),
        ("jax-cpu", {"precision": "half"}, "precision is one of"),
        ("jax-npu", {}, "not 'npu'"),
        ("tensorflow-cpu", {"xla": True}, "it takes onednn, tf32"),
        ("tfxla-npu", {}, "not 'npu'"),
        ("litert-cpu", {"delegate": "gpu"}, "delegate is one of xnnpack, none"),
        ("litert-gpu", {}, "its device is one of cpu, not 'gpu'"),
        ("paddle-cpu", {"jit": True}, "it takes none"),
    ],
)
def test_unknown_options_and_devices_are_refused(name: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        BackendSpec.parse(name, options=options).create()


def test_a_refusal_of_the_converter_is_kept_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LiteRT's own package is not needed to repeat what the converter said."""
    import sys

    from tasks.backends import litert

    monkeypatch.setenv("FARM_ARTEFACTS", str(tmp_path))
    fake = SimpleNamespace(Interpreter=None, OpResolverType=None)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", SimpleNamespace(interpreter=fake))
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", fake)
    asked = []
    monkeypatch.setattr(
        litert, "_convert_to_litert", lambda form, arrays: asked.append(form.op) or b"R'tf.Erfc' op has no builtin"
    )
    backend = litert.LiteRt("litert-cpu", "cpu", {})
    backend._versions = ("litert 1", "tensorflow 1")
    call = find_counterpart("tensorflow", "torch:erfc", "", "float32")
    for dtype in (np.float32, np.float32, np.float16):
        form = Form(
            "tensorflow",
            "torch:erfc",
            "float32",
            [np.ones(2, dtype)],
            call,
            encode_argument_tree((TensorSpec(0),)),
            encode_argument_tree({}),
        )
        with pytest.raises(Unsupported, match=r"tf.Erfc"):
            backend.build(form)
    assert len(asked) == 2  # once for every dtype


@pytest.mark.parametrize(
    "told", ["torch.float32", "float32", "paddle.float32", "<dtype: 'float32'>", "mlx.core.float32"]
)
def test_a_dtype_is_known_by_its_name_however_a_framework_writes_it(told: str) -> None:
    class Dtype:
        def __str__(self) -> str:
            return told

    assert name_framework_dtype(SimpleNamespace(dtype=Dtype())) in CASTS
