"""How a script of few lines calls each runtime that takes ONNX models: `model` and `feeds` are there, `got` is to be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.reproduce.in_onnx import session_lines
from farm.reproduce.source import NoScript
from tasks.model.dtypes import NATIVE, dtype_name


@dataclass(frozen=True)
class Called:
    """before: lines before all imports; imports: of the runtime; lines: that make ``got``, a list of arrays."""

    imports: tuple[str, ...]
    lines: tuple[str, ...]
    before: tuple[str, ...] = ()


def called(runtime: str, backend: Any, model: Any, feeds: Mapping[str, Any]) -> Called:
    """How a backend's runtime is called. Raises NoScript for one that takes more lines than a few."""
    if runtime not in _CALLS:
        raise NoScript(f"no short script: none is known for {runtime}")
    arrays = [x for x in feeds.values() if isinstance(x, np.ndarray)]
    if runtime != "ort" and any(dtype_name(x.dtype) not in NATIVE for x in arrays):
        raise NoScript("no short script: numpy lacks the dtype of an input")
    return _CALLS[runtime](backend, model)


def _ort(backend: Any, model: Any) -> Called:
    options, providers = session_lines(backend)
    make = f"session = ort.InferenceSession(model.SerializeToString(), options, providers={providers})"
    return Called(("import onnxruntime as ort",), (*options, make, "got = session.run(None, feeds)"))


def _openvino(backend: Any, model: Any) -> Called:
    return Called(
        ("import openvino as ov",),
        (
            "core = ov.Core()",
            f"compiled = core.compile_model(core.read_model(model.SerializeToString()), {backend._target!r}, {backend._asked!r})",
            "found = compiled(feeds)",
            "got = [np.array(found[port]) for port in compiled.outputs]",
        ),
    )


def _tvm(backend: Any, model: Any) -> Called:
    return Called(
        ("import tvm", "from tvm.relax.frontend.onnx import from_onnx"),
        (
            'target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})',
            "machine = tvm.relax.VirtualMachine(tvm.compile(from_onnx(model), target), tvm.cpu())",
            'found = machine["main"](*[tvm.runtime.tensor(x) for x in feeds.values()])',
            "got = [x.numpy() for x in ([found] if hasattr(found, 'numpy') else found)]",
        ),
    )


def _tinygrad(backend: Any, model: Any) -> Called:
    variables = {k: v for k, v in backend._variables.items() if v != "0"}
    compiler = _found(backend)
    return Called(
        ("from tinygrad import Tensor", "from tinygrad.nn.onnx import OnnxRunner"),
        (
            'onnx.save(model, "minimal.onnx")',
            'found = OnnxRunner("minimal.onnx")({k: Tensor(x) for k, x in feeds.items()})',
            "got = [x.numpy() for x in found.values()]",
        ),
        ("import os", f"os.environ.update({variables | compiler!r})"),
    )


def _found(backend: Any) -> dict[str, str]:
    """The compiler that is on this machine, where tinygrad is led to one."""
    import os

    return {"CC": os.environ["CC"]} if os.environ.get("CC") else {}


def _mnn(backend: Any, model: Any) -> Called:
    convert = (
        '_tools.mnnconvert(["mnnconvert", "-f", "ONNX", "--modelFile", "minimal.onnx", "--MNNModel", "minimal.mnn", '
        f'"--bizCode", "x", "--keepInputFormat=1", "--optimizeLevel={backend._level}"])'
    )
    manager = (
        f'MNN.nn.create_runtime_manager(({{"backend": "CPU", "precision": "{backend._precision}", "numThread": 1}},))'
    )
    load = f'MNN.nn.load_module_from_file("minimal.mnn", list(feeds), [x.name for x in model.graph.output], runtime_manager={manager})'
    return Called(
        ("import _tools  # of MNN", "import MNN.nn", "import MNN.expr as expr"),
        (
            'onnx.save(model, "minimal.onnx")',
            convert,
            f"module = {load}",
            "feeds = [x.astype(np.int32) if x.dtype in (np.int64, bool) else x for x in feeds.values()]",
            "kinds = {np.float32: expr.float, np.int32: expr.int, np.uint8: expr.uint8}",
            "given = [expr.const(x, list(x.shape), expr.NCHW, kinds[x.dtype.type]) for x in feeds]",
            "found = [expr.convert(x, expr.NCHW) if x.data_format == expr.NC4HW4 else x for x in module.forward(given)]",
            "got = [np.array(x.read()) for x in found]",
        ),
    )


def _iree(backend: Any, model: Any) -> Called:
    from tasks.backends.iree import FLAGS

    flags = [x for x in (*FLAGS, *backend._flags) if "input-type" not in x]
    return Called(
        ("import subprocess", "import sys", "import iree.compiler", "import iree.runtime"),
        (
            'onnx.save(onnx.shape_inference.infer_shapes(model, data_prop=True), "minimal.onnx")',
            'command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", "minimal.onnx", "-o", "minimal.mlir"]',
            "subprocess.run(command, check=True)",
            f'code = iree.compiler.compile_file("minimal.mlir", input_type="onnx", extra_args={flags!r})',
            f'module = iree.runtime.load_vm_flatbuffer(code, driver="{backend._target.driver}")',
            "found = module[model.graph.name](*feeds.values())",
            "got = [np.array(x) for x in (found if isinstance(found, (tuple, list)) else [found])]",
        ),
    )


def _ncnn(backend: Any, model: Any) -> Called:
    return Called(
        ("import pathlib", "import subprocess", "import ncnn", "import pnnx"),
        (
            'onnx.save(model, "minimal.onnx")',
            'program = str(pathlib.Path(pnnx.__file__).parent / "pnnx")',
            'sizes = ",".join(f"[{\',\'.join(map(str, x.shape))}]f32" for x in feeds.values())',
            'subprocess.run([program, "minimal.onnx", "fp16=0", f"inputshape={sizes}"], check=True)',
            "net = ncnn.Net()",
            "net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = net.opt.use_bf16_storage = False",
            'assert not net.load_param("minimal.ncnn.param") and not net.load_model("minimal.ncnn.bin")',
            "extractor = net.create_extractor()",
            "for k, x in enumerate(feeds.values()):",
            '    extractor.input(f"in{k}", ncnn.Mat(x, batch_index=233).clone())',
            'got = [np.array(extractor.extract(f"out{k}")[1].numpy()) for k in range(len(model.graph.output))]',
        ),
    )


_CALLS: dict[str, Callable[[Any, Any], Called]] = {
    "ort": _ort,
    "openvino": _openvino,
    "tvm": _tvm,
    "tinygrad": _tinygrad,
    "mnn": _mnn,
    "iree": _iree,
    "ncnn": _ncnn,
}
