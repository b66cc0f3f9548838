"""TVM and IREE without their environments: what they refuse, what their words mean, what is compiled again."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import int4

from tasks.arrays.tree import TensorSpec
from tasks.backends import BackendSpec, iree, tvm
from tasks.backends.base import Backend
from tasks.backends.shared import artefacts
from tasks.backends.shared.onnx_form import PROBE_MODEL, make_probe_form
from tasks.model import Form, Unsupported


def backend(name: str, **options: Any) -> Backend:
    return BackendSpec.parse(name, options=options).create()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("tvm-cpu", {"targets": {}}, "'targets'; it takes target"),
        ("tvm-cpu", {"target": "llvm"}, "a mapping, not str"),
        ("tvm-cuda", {}, "its device is one of cpu, not 'cuda'"),
        ("iree-cpu", {"flag": []}, "'flag'; it takes flags, device_vendor, resource"),
        ("iree-cpu", {"flags": "-O3"}, "a list, not str"),
        ("iree-tpu", {}, "its device is one of cpu, vmvx, vulkan.*, not 'tpu'"),
    ],
)
def test_an_unknown_option_or_device_is_refused_by_name(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        backend(name, **options)


@pytest.mark.parametrize("name", ["tvm-cpu", "iree-cpu", "mnn-cpu"])
@pytest.mark.parametrize(
    ("args", "arrays", "words"),
    [
        ([[TensorSpec(0)]], [np.ones(2, np.float32)], "sequence"),
        ([None], [np.ones(2, np.float32)], "empty optional"),
        (None, [np.array(["a"], object)], "str"),
    ],
)
def test_inputs_that_no_tensor_holds_are_unsupported(
    name: str, args: Any, arrays: list[np.ndarray], words: str
) -> None:
    with pytest.raises(Unsupported, match=words):
        backend(name).build(Form("onnx", "onnx:test", "float32", arrays, args=args, model=PROBE_MODEL))


def test_tvm_is_given_no_tensor_of_four_bits() -> None:
    with pytest.raises(Unsupported, match="no tensor of int4"):
        backend("tvm-cpu").build(Form("onnx", "onnx:Cast", "int4", [np.ones(3, int4)], model=PROBE_MODEL))


@pytest.mark.parametrize(
    ("text", "unsupported"),
    [
        ("The following operators are not supported for frontend ONNX: LSTM", True),
        ("Only constant axes currently supported", True),
        ("TopK k must be a constant", True),
        ("Node  cannot handle ShapeExpr inputs.", True),
        ("Check failed: dtype.bits % 8 == 0 (4 vs. 0) :", True),
        ("CodeGenVM cannot emit this Relax operator directly.", True),
        ("'num_heads'", False),
        ("'NoneType' object is not iterable", False),
        ("Check failed: shape.size() == indices.size() (1 vs. 0)", False),
    ],
)
def test_tvm_is_unsupported_where_it_says_so_and_else_in_error(text: str, unsupported: bool) -> None:
    assert backend("tvm-cpu").is_unsupported(ValueError(text)) is unsupported


@pytest.mark.parametrize(
    ("text", "unsupported"),
    [
        ("failed to legalize operation 'torch.operator' that was explicitly marked illegal: onnx.If", True),
        ("unhandled torch type: '!torch.optional<vtensor<[],si32>>'", True),
        ("'tensor.cast' op operand type 'tensor<?x1xi1>' and result type 'tensor<2xi1>' are cast incompatible", False),
        ("'tensor.concat' op requires at least one input", False),
    ],
)
def test_iree_is_unsupported_where_no_lowering_exists_and_else_in_error(text: str, unsupported: bool) -> None:
    assert backend("iree-cpu").is_unsupported(RuntimeError(text)) is unsupported


@pytest.mark.parametrize(
    ("element", "declared", "dtype"),
    [
        ("FLOAT_32", "float64", "float32"),  # what it computed, not what was declared
        ("INT_32", "uint32", "uint32"),
        ("INT_32", "int64", "int32"),
        ("INT_4", "uint4", "uint4"),
        ("SINT_8", "uint8", "int8"),
        ("BOOL_8", "bool", "bool"),
        ("OPAQUE_8", "uint8", ""),
    ],
)
def test_only_an_integer_without_a_sign_takes_the_declared_dtype(element: str, declared: str, dtype: str) -> None:
    assert iree._name_element_dtype(element, declared) == dtype


def test_an_adapter_s_type_is_read_from_what_the_driver_says() -> None:
    said = "name: llvmpipe (LLVM 15.0.6, 256 bits)\ntype: cpu\ndriver_info: Mesa 22.3.6\nmemory_heaps: 1\n  [0] size=1 type: gpu\n"
    found = iree._parse_vulkan_properties(said)
    assert (found["name"], found["type"], found["driver_info"]) == (
        "llvmpipe (LLVM 15.0.6, 256 bits)",
        "cpu",
        "Mesa 22.3.6",
    )


def test_a_model_is_compiled_once_for_the_same_flags_and_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled: list[tuple[str, ...]] = []

    def made(model: bytes, flags: tuple[str, ...]) -> bytes:
        compiled.append(flags)
        return b"code"

    monkeypatch.setenv("FARM_ARTEFACTS", str(tmp_path))
    monkeypatch.setattr(iree, "_compile_iree_model", made)
    monkeypatch.setattr(iree, "_load_iree_module", lambda driver, code, dtypes: lambda views: [code])
    monkeypatch.setattr(iree, "_open_iree_device", lambda driver: (None, None, None))
    monkeypatch.setattr(iree, "_make_iree_buffer", lambda device, value: value)
    form = Form("onnx", "onnx:Add", "float32", [np.ones(2, np.float32)], model=PROBE_MODEL)
    version = "3.13.0"
    monkeypatch.setattr(iree, "_read_iree_version", lambda: version)
    for _ in range(2):
        assert backend("iree-cpu").build(form).run() == [b"code"]
    assert len(compiled) == 1
    backend("iree-cpu", flags=["--iree-opt-level=O3"]).build(form)
    version = "3.14.0"
    backend("iree-cpu").build(form)
    assert [flags[-1] for flags in compiled[1:]] == ["--iree-opt-level=O3", compiled[0][-1]]


def test_a_target_s_attributes_are_options_of_tvm() -> None:
    made = backend("tvm-cpu", target={"opt-level": 0})
    assert isinstance(made, tvm.Tvm)
    assert made._target == {"opt-level": 0}


@pytest.mark.parametrize(
    ("has", "target", "lacks"),
    [
        ((*iree.FLAGS, "--iree-rocm-target="), "--iree-rocm-target=gfx942", ""),
        (
            (*iree.FLAGS[:-1], "--iree-hip-target="),
            "--iree-hip-target=gfx942",
            "lacks=--iree-torch-emit-async-entry-points",
        ),
        (iree.FLAGS, "--iree-rocm-target=gfx942", ""),  # under no name: the compiler refuses it
    ],
)
def test_iree_leaves_out_what_its_version_does_not_know(
    has: tuple[str, ...], target: str, lacks: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(artefacts.FOLDER, str(tmp_path))  # where no code of another case is
    for name in ("iree", "iree.compiler", "iree.compiler.version", "iree.runtime"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["iree"].compiler = sys.modules["iree.compiler"]  # type: ignore[attr-defined]
    sys.modules["iree.compiler"].version = sys.modules["iree.compiler.version"]  # type: ignore[attr-defined]
    sys.modules["iree.compiler.version"].VERSION = "3.9.0"  # type: ignore[attr-defined]
    monkeypatch.setattr(iree, "_list_known_flags", lambda: frozenset(iree._name_iree_flag(x) for x in has))
    monkeypatch.setattr(iree, "_read_iree_version", lambda: "3.9.0")
    given: list[tuple[str, ...]] = []
    monkeypatch.setattr(iree, "_compile_iree_model", lambda model, flags: given.append(flags) or b"code")
    made = backend("iree-gfx942", flags=["--iree-own-flag=1"])
    made.start()
    assert target in given[0] and "--iree-own-flag=1" in given[0]
    assert [x for x in iree.FLAGS if x not in given[0]] == [x for x in iree.FLAGS if x not in has]
    assert made.build(make_probe_form()).flags.endswith(lacks)
