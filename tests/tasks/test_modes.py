"""Modes of a runtime are backends that say what they compute in and take: a switch without effect is found."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.arrays.tree import decode_argument_tree, read_tensor_spec
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.graphs import products
from tasks.judge import policy_files
from tasks.model import Form, Group, Program, RuntimeInfo, Unsupported
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group
from tests import prepared


class Product(Backend):
    """A matrix product of float32 whose inputs are rounded to a precision first."""

    forms = ("torch",)

    def __init__(self, really: str) -> None:
        super().__init__("product-cpu", "cpu", {})
        self.really = really

    def build(self, form: Form) -> Program:
        arrays = [form.arrays[read_tensor_spec(x).id].astype(np.float64) for x in form.args["v"]]
        if self.really:
            arrays = [_rounded(x, self.really) for x in arrays]
        return Program(lambda: [(arrays[0] @ arrays[1]).astype(np.float32)])


def _rounded(x: np.ndarray, precision: str) -> np.ndarray:
    """To nearest even, in so many bits of a float32."""
    cut = {"tfloat32": 13, "bfloat16": 16}[precision]
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + ((1 << (cut - 1)) - 1) + (bits >> cut & 1)) >> cut << cut).view(np.float32).astype(np.float64)


def run(backend: Backend, info: RuntimeInfo, op: str, cache: Path, check: str = "forward") -> dict[str, Any]:
    _, made = prepare_group(Group(f"critical:{op}", "", "float32", 1), cache)
    runner = Runner(backend, info, policy_files.load_policy("error_units"), lambda *step: None)
    return next(iter(runner.run([make_item_of_whole_group(PreparedGroup(made.pack.path, check))]))).row.values()


@pytest.mark.parametrize(
    ("declared", "really", "permission", "status", "kind", "unused"),
    [
        ("tfloat32", "tfloat32", False, "pass", "", None),
        ("tfloat32", "tfloat32", True, "pass", "", None),
        ("tfloat32", "", False, "wrong", "no effect", None),
        ("tfloat32", "", True, "pass", "", "tfloat32"),
        ("tfloat32", "bfloat16", False, "wrong", "numbers", None),
        ("tfloat32", "bfloat16", True, "wrong", "numbers", None),
        ("", "", False, "vacuous", "", None),
        ("bfloat16", "bfloat16", True, "pass", "", None),
        ("bfloat16", "", True, "pass", "", "bfloat16"),
    ],
)
def test_a_command_is_to_be_obeyed_and_a_permission_may_stay_unused(
    declared: str, really: str, permission: bool, status: str, kind: str, unused: str | None, cache: Path
) -> None:
    info = RuntimeInfo("1", "cpu", "", declared, of_products=bool(declared), permission=permission)
    row = run(Product(really), info, "matmul", cache, "switch")
    assert (row["status"], row["kind"], row["unused_permission"]) == (status, kind, unused), row["error"]
    if kind == "no effect":
        assert row["error"].startswith("told to compute in tfloat32, it is as precise as float32")
    if kind != "numbers":
        assert (
            run(Product(really), info, "matmul", cache)["status"] == "pass"
        )  # the forward check alone does not see it


@pytest.mark.parametrize(
    ("name", "options", "precision", "permits"),
    [
        ("torch-cuda", {"tf32": True}, "tfloat32", True),
        ("torch-npu", {"hf32": True}, "tfloat32", True),
        ("torch-xla", {"bf16_matmul": True}, "bfloat16", True),
        ("torch-neuron", {"auto_cast": True}, "bfloat16", False),
        ("jax-cpu", {"precision": "tensorfloat32"}, "tfloat32", True),
        ("tensorflow-cuda", {"tf32": True}, "tfloat32", True),
        ("ort-cuda", {"provider_options": {"use_tf32": "1"}}, "tfloat32", True),
        ("ort-tensorrt", {"provider_options": {"trt_fp16_enable": "1"}}, "float16", True),
        ("ort-qnn", {}, "float16", False),
        ("ort-migraphx", {"provider_options": {"migraphx_fp16_enable": "1"}}, "float16", False),
        ("openvino-cpu", {"inference_precision": "bf16"}, "bfloat16", False),
    ],
)
def test_each_runtime_says_whether_a_precision_is_allowed_or_ordered(
    name: str, options: dict[str, Any], precision: str, permits: bool
) -> None:
    assert BackendSpec.parse("x", name, options).create().permits(precision) is permits


class Composed(Backend):
    """What torch composes, in float64 and rounded once, the factors of every product being rounded to a precision
    first. loses: what it does to the inputs of the op as a whole instead."""

    forms = ("torch",)

    def __init__(self, really: str, loses: str = "") -> None:
        super().__init__("composed-cpu", "cpu", {})
        self.really, self.loses = really, loses

    def build(self, form: Form) -> Program:
        import torch

        def wide(kind: str, node: Any) -> Any:
            x = read_tensor_spec(node).view(form.arrays[read_tensor_spec(node).id])
            if x.dtype != np.float32:
                return torch.from_numpy(x)
            return torch.from_numpy(_rounded(x, self.loses) if self.loses else x.astype(np.float64))

        def change(x: np.ndarray, place: int) -> np.ndarray:
            return _rounded(x, self.really) if self.really else x

        def compute() -> list[np.ndarray]:
            assert form.call is not None
            with torch.no_grad(), products.watch_products_in_torch(change):
                found = form.call(*decode_argument_tree(form.args, wide), **decode_argument_tree(form.kwargs, wide))
            return [found.numpy().astype(np.float32)]

        return Program(compute)


@pytest.mark.parametrize("op", ["bert_encoder", "swiglu", "scaled_dot_product_attention_gqa"])
def test_a_chain_of_products_is_held_to_what_rounding_each_factor_does(op: str, cache: Path) -> None:
    pytest.importorskip("torch")
    allowed = RuntimeInfo("1", "cpu", "", "tfloat32", of_products=True, permission=True)
    found = {x: run(Composed(x), allowed, op, cache) for x in ("tfloat32", "", "bfloat16")}
    assert {x: row["status"] for x, row in found.items()} == {"tfloat32": "pass", "": "pass", "bfloat16": "wrong"}
    assert found["tfloat32"]["compute_precision"] == "tfloat32"
    assert run(Composed("tfloat32"), RuntimeInfo("1", "cpu"), op, cache)["status"] == "wrong"  # nobody declared it


def test_what_has_no_products_is_held_to_the_dtype(cache: Path) -> None:
    """Whatever the op is called: a declaration of matrix units says nothing of gelu."""
    pytest.importorskip("torch")
    allowed = RuntimeInfo("1", "cpu", "", "tfloat32", of_products=True, permission=True)
    for op in ("softmax", "gelu", "sum", "layer_norm"):
        row = run(Composed("", loses="tfloat32"), allowed, op, cache)
        assert (row["status"], row["compute_precision"]) == ("wrong", None), op


CHILD = """
import json, sys
from pathlib import Path
from tests.tasks.test_modes import run
from tasks.backends import BackendSpec
made = BackendSpec.parse("torch-cpu", options=json.loads(sys.argv[1])).create()
print(json.dumps({op: {k: str(v) for k, v in run(made, made.start(), op, Path(sys.argv[2])).items()} for op in sys.argv[3:]}))
"""


def torch_rows(options: str, cache: Path, *ops: str) -> dict[str, dict[str, str]]:
    """In a process of its own: these switches are torch's, for a whole process."""
    import json
    import sys

    done = prepared.run([sys.executable, "-c", CHILD, options, str(cache), *ops], check=True)
    found: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_attention_runs_the_kernel_that_was_asked_for_or_says_that_it_does_not(cache: Path) -> None:
    pytest.importorskip("torch")
    ops = ("scaled_dot_product_attention", "scaled_dot_product_attention_gqa", "matmul")
    made = {mode: torch_rows(f'{{"sdpa": "{mode}"}}', cache, *ops) for mode in ("flash", "math", "efficient")}
    for mode in ("flash", "math"):
        assert {row["status"] for row in made[mode].values()} == {"pass"}, made[mode]
        assert f"sdpa={mode}" in made[mode][ops[0]]["flags"]
    assert made["flash"][ops[0]]["output_digest"] != made["math"][ops[0]]["output_digest"]
    assert [made["efficient"][x]["status"] for x in ops] == ["unsupported", "unsupported", "pass"]


def test_a_kernel_of_attention_is_asked_for_a_call_before_it_is_made() -> None:
    torch = pytest.importorskip("torch")
    from tasks.backends.shared.torch_modes import TorchModes

    called = {"flash": torch.randn(1, 2, 8, 8), "with dropout": torch.randn(1, 2, 8, 8)}

    def ask(dropout: float) -> str:
        q = called["flash"]
        try:
            with torch.no_grad(), TorchModes(sdpa="flash").watch_fallbacks(Program(lambda: [])):
                torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=dropout)
        except Unsupported as error:
            return str(error)
        return ""

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        assert ask(0.0) == ""
        assert ask(0.5) == (
            "torch has no flash attention for this call: Both fused kernels do not support non-zero dropout."
        )


def test_cuda_has_a_question_for_each_kernel_and_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from tasks.backends.shared import torch_modes

    asked: list[tuple[str, Any]] = []

    def answer(name: str) -> Any:
        def able(params: Any, debug: bool) -> bool:
            asked.append((name, params.enable_gqa))
            if params.enable_gqa and name == "efficient":
                for words in ("Memory efficient kernel not used because:", "q, k and v have other numbers of heads."):
                    warnings.warn(words, stacklevel=1)
            return not params.enable_gqa

        return able

    for name in ("flash", "efficient", "cudnn"):
        monkeypatch.setattr(torch.backends.cuda, f"can_use_{name}_attention", answer(name))
    monkeypatch.setattr(torch_modes, "_is_asked_by_name", lambda query: True)
    q, k = torch.randn(1, 4, 8, 8), torch.randn(1, 2, 8, 8)
    assert [torch_modes.explain_attention_refusal(x, q, q, q) for x in ("flash", "efficient", "cudnn", "math")] == [
        ""
    ] * 4
    assert torch_modes.explain_attention_refusal("efficient", q, k, k, enable_gqa=True) == (
        "torch has no efficient attention for this call: q, k and v have other numbers of heads."
    )
    assert torch_modes.explain_attention_refusal("cudnn", q, k, k, enable_gqa=True).endswith("it does not say why")
    assert asked == [(x, False) for x in ("flash", "efficient", "cudnn")] + [("efficient", True), ("cudnn", True)]


def test_a_convolution_says_which_algorithm_it_took(cache: Path) -> None:
    pytest.importorskip("torch")
    ops = ("conv2d", "conv_transpose2d")
    native = torch_rows('{"convolution": "native"}', cache, *ops)
    onednn = torch_rows('{"convolution": "onednn"}', cache, *ops)
    assert {row["status"] for row in (*native.values(), *onednn.values())} == {"pass"}
    assert "took=Slow2d" in native[ops[0]]["flags"] and "took=SlowTranspose2d" in native[ops[1]]["flags"]
    assert "took=Mkldnn" in onednn[ops[0]]["flags"] and "took=MkldnnTranspose" in onednn[ops[1]]["flags"]


def test_what_was_taken_in_place_of_what_was_asked_for_is_a_fallback() -> None:
    torch = pytest.importorskip("torch")
    from tasks.backends.shared.torch_modes import TorchModes

    q = torch.randn(1, 2, 8, 8)
    for asked, said in (("flash", None), ("math", "asked for sdpa math, it ran flash")):
        program = Program(lambda: [])
        with torch.no_grad(), TorchModes(sdpa=asked).watch_fallbacks(program):  # not set: torch takes flash
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
        assert program.fallback == said
    program = Program(lambda: [])
    x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with torch.no_grad(), TorchModes(convolution="onednn").watch_fallbacks(program):
        torch.nn.functional.conv2d(x, w)
    assert (program.fallback is None) == ("Mkldnn" in program.flags)


def test_a_mode_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="sdpa is one of flash, efficient, cudnn, math, not 'fast'"):
        BackendSpec.parse("torch-cpu", options={"sdpa": "fast"}).create()
    with pytest.raises(ValueError, match="convolution is one of onednn, native"):
        BackendSpec.parse("torch-cpu", options={"convolution": "benchmark"}).create()
    with pytest.raises(ValueError, match="unknown option 'sdpa'"):
        BackendSpec.parse("inductor-cpu", options={"sdpa": "math"}).create()


class Flushing(Backend):
    """A softmax of float16 that makes 0 of what is smaller than ``below``."""

    forms = ("torch",)

    def __init__(self, below: float) -> None:
        super().__init__("flushing-cpu", "cpu", {})
        self.below = below

    def build(self, form: Form) -> Program:
        x = form.arrays[0].astype(np.float64)
        y = np.exp(x - x.max(-1, keepdims=True))
        y /= y.sum(-1, keepdims=True)
        return Program(lambda: [np.where(y < self.below, 0, y).astype(np.float16)])


@pytest.mark.parametrize(
    ("below", "declared", "right"),
    [(0, True, True), (2.0**-14, True, True), (2.0**-14, False, False), (2.0**-12, True, False)],
)
def test_what_is_flushed_is_right_where_the_device_does_so(
    below: float, declared: bool, right: bool, cache: Path
) -> None:
    _, made = prepare_group(Group("critical:softmax", "", "float16", 1), cache)
    info = RuntimeInfo("1", "cpu", flushes=("float16",) if declared else ())
    runner = Runner(Flushing(below), info, policy_files.load_policy("error_units"), lambda *step: None)
    (row,) = (x.row for x in runner.run([make_item_of_whole_group(made)]))
    assert (row.status == "pass") == right, (row.status, row.error_units)


def test_flushing_is_measured(cache: Path) -> None:
    pytest.importorskip("torch")
    row = torch_rows('{"flush_subnormals": true}', cache, "exp")["exp"]
    assert "flushes=float32" in row["flags"] and row["status"] == "pass"
    assert "flushes" not in torch_rows("{}", cache, "exp")["exp"]["flags"]
