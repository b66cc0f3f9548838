"""ExecuTorch without its package: exporting, choosing weights, telling who runs what, the words of its runtime."""

from __future__ import annotations

import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tasks.arrays.tree import TensorSpec, encode_tensor_spec
from tasks.backends import BackendSpec, tosa
from tasks.backends import executorch as module
from tasks.backends.executorch import ExecuTorch
from tasks.model import Fallback, Form, Unavailable, Unsupported, Vacuous, get_numpy_dtype

torch: Any = pytest.importorskip("torch")


def backend(device: str = "cpu") -> ExecuTorch:
    return ExecuTorch(f"executorch-{device}", device, {})


def form(call: Callable[..., Any], *shapes: tuple[int, ...]) -> Form:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    args = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(i)) for i in range(len(shapes))]}
    return Form("torch", "torch:x", "float32", arrays, call=call, args=args, kwargs={"$": "dict", "v": []})


def constants(call: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[int, ...]:
    made = form(call, *shapes)
    _, found = backend("xnnpack")._export(made, backend()._tensors(made))
    return found


def test_weights_of_products_are_constants_for_xnnpack_and_inputs_elsewhere() -> None:
    linear = form(torch.nn.functional.linear, (2, 3), (4, 3), (4,))
    exported, found = backend("xnnpack")._export(linear, backend()._tensors(linear))
    assert found == (1, 2)
    assert sum(node.op == "placeholder" for node in exported.graph.nodes) == 3  # one input, two constants
    assert backend("cpu")._export(linear, backend()._tensors(linear))[1] == ()


def test_what_is_not_a_weight_alone_stays_an_input() -> None:
    assert constants(torch.add, (2, 2), (2, 2)) == ()
    assert constants(lambda x, y: torch.mm(x, y) + y, (2, 2), (2, 2)) == ()
    assert constants(torch.mm, (2, 2), (2, 2)) == (1,)
    assert constants(lambda y: torch.mm(y, y), (2, 2)) == ()  # something must be computed


def test_the_key_of_a_program_holds_its_graph_and_its_constants() -> None:
    def key(call: Callable[..., Any], device: str = "xnnpack", scale: float = 1) -> Any:
        made = form(call, (2, 3), (3, 4))
        made.arrays[1] = made.arrays[1] * np.float32(scale)
        exported, _ = backend(device)._export(made, backend()._tensors(made))
        real = module.metadata.version
        module.metadata.version = lambda name: "1.5.1" if name == "executorch" else real(name)  # type: ignore[assignment]
        try:
            return backend(device)._key(exported)
        finally:
            module.metadata.version = real

    assert key(torch.mm) == key(torch.mm)
    different = [
        key(torch.mm),
        key(torch.mm, scale=2),
        key(torch.mm, "cpu"),
        key(lambda x, y: torch.mm(x, y) * 0.1),
        key(lambda x, y: torch.mm(x, y) * 0.1000001),
    ]
    assert len(set(different)) == len(different)


def test_strided_arguments_are_given_contiguous() -> None:
    args = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0, (2, 3), (1, 2)))]}
    made = replace(form(torch.neg, (6,)), args=args)
    (tensor,) = backend()._tensors(made)
    assert tensor.is_contiguous() and tensor.tolist() == made.arrays[0].reshape(3, 2).T.tolist()


def test_an_empty_argument_has_no_strides_of_zero() -> None:
    (tensor,) = backend()._tensors(form(torch.neg, (0, 0, 5)))
    assert 0 not in tensor.stride()


def test_what_cannot_be_exported_is_unsupported_in_torchs_words() -> None:
    made = form(lambda x: x if x.sum() > 0 else -x, (2,))
    with pytest.raises(Unsupported, match="not exported: .*data-dependent"):
        backend()._export(made, backend()._tensors(made))


@pytest.mark.parametrize(
    ("device", "kernels", "delegated", "outcome"),
    [
        ("cpu", {"aten.add.out": 1}, {}, None),
        ("cpu", {}, {}, Vacuous),
        ("xnnpack", {}, {"aten.add.Tensor": 1}, None),
        ("xnnpack", {"aten.squeeze_copy.dims_out": 1}, {"aten.convolution.default": 1}, None),
        ("xnnpack", {"aten.squeeze_copy.dims_out": 1}, {}, Fallback),
        ("xnnpack", {"aten.mm.out": 1}, {"aten._softmax.default": 1}, Fallback),
    ],
)
def test_who_runs_the_nodes_decides(
    device: str, kernels: dict[str, int], delegated: dict[str, int], outcome: Any
) -> None:
    header = {"kernels": kernels, "delegated": delegated}
    if outcome is None:
        return backend(device)._describe_placement(header)
    with pytest.raises(outcome) as caught:
        backend(device)._describe_placement(header)
    if delegated:
        assert str(caught.value) == "XNNPACK takes 1 of 2 nodes; the CPU kernels have 1 aten.mm.out"
    return None


def test_what_tosa_does_not_take_is_no_work_of_the_reference_model() -> None:
    """Not even what only moves bytes: nothing else is there to run it."""
    tosa = BackendSpec.parse("tosa-cpu").create()
    assert isinstance(tosa, ExecuTorch) and tosa.emulated and tosa.vendor == "Arm"
    tosa._describe_placement({"kernels": {}, "delegated": {"aten.add.Tensor": 1}})
    with pytest.raises(Fallback, match="TOSA takes 1 of 2 nodes; the CPU kernels have 1 aten.view_copy.default"):
        tosa._describe_placement({"kernels": {"aten.view_copy.default": 1}, "delegated": {"aten.add.Tensor": 1}})


def test_a_result_of_another_size_is_for_the_judge() -> None:
    bits = np.array([0x3F80, 0x4000], dtype=np.uint16)
    known = tosa._read_tosa_result(bits.view("V2"), get_numpy_dtype("bfloat16"), [2])
    assert known.dtype == get_numpy_dtype("bfloat16") and known.astype(float).tolist() == [1, 2]
    assert tosa._read_tosa_result(bits.view("V2"), np.dtype(bool), [2]).dtype == get_numpy_dtype(
        "bfloat16"
    )  # isreal of bfloat16 in 1.5.1
    assert tosa._read_tosa_result(np.ones(2, np.float32), np.dtype(bool), [2]).dtype == np.float32


def test_an_operator_outside_the_core_set_is_kept_as_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Operator torch._ops.aten.erfinv.default is not in Core ATen opset"

    def lowering(error: Exception) -> None:
        def fail(*args: Any, **kwargs: Any) -> Any:
            raise error

        monkeypatch.setitem(sys.modules, "executorch", types.ModuleType("executorch"))
        monkeypatch.setitem(sys.modules, "executorch.exir", types.SimpleNamespace(to_edge_transform_and_lower=fail))  # type: ignore[arg-type]

    lowering(RuntimeError(f"\n{said}\nmore"))
    header, program = module._split_kept_program(backend()._lower(None))
    assert header["unsupported"] == f"not lowered: {said}" and program == b""
    lowering(AssertionError("broken pass"))
    with pytest.raises(AssertionError, match="broken pass"):
        backend()._lower(None)


@pytest.fixture
def stderr() -> Iterator[int]:
    """A file in the place of stderr, as a child process has it."""
    real = os.dup(2)
    with tempfile.TemporaryFile(mode="w+b", buffering=0) as file:
        os.dup2(file.fileno(), 2)
        try:
            yield 2
        finally:
            os.dup2(real, 2)
            os.close(real)


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        (
            "[operator_registry.cpp:256] kernel 'aten::sort.values' not found.\n[method.cpp:724] Missing operator: [0] aten::sort.values\n",
            Unsupported,
            "Missing operator: [0] aten::sort.values",
        ),
        (
            "[kernel_ops_util.cpp:387] Check failed (in.dim() == 3 || in.dim() == 4): Expect input tensor to be 3-D or 4-D, but got, 5.\n",
            Unsupported,
            "Expect input tensor to be 3-D or 4-D, but got, 5. (code 18)",
        ),
        ("[op_x.cpp:30] Check failed (n > 0): 0\n", RuntimeError, "code 18: Check failed (n > 0): 0"),
    ],
)
def test_the_runtimes_words_on_stderr_are_its_errors(said: str, error: type[Exception], text: str, stderr: int) -> None:
    os.write(stderr, b"[method.cpp:1] Missing operator: of another case\n")

    def fail() -> Any:
        os.write(stderr, said.encode())
        raise RuntimeError("code 18")

    with pytest.raises(error) as caught:
        module._call_with_stderr(fail)
    assert text in str(caught.value) and "another case" not in str(caught.value)


def test_it_is_registered_and_refuses_what_it_does_not_know() -> None:
    assert BackendSpec.parse("executorch-xnnpack").create().packages
    with pytest.raises(ValueError, match="unknown option 'x'"):
        ExecuTorch("executorch-cpu", "cpu", {"x": 1})
    with pytest.raises(Unavailable, match="not on 'vulkan'"):
        backend("vulkan").probe()
