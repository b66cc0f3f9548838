"""ncnn: the ONNX form, converted by pnnx (its converter) and run in float32."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.arrays.pack import name_numpy_dtype
from tasks.backends.base import Backend, importing, smoke_test
from tasks.backends.shared import artefacts, onnx_graph
from tasks.backends.shared.native_output import capture_native_output
from tasks.backends.shared.onnx_form import make_probe_form, name_onnx_inputs
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_model
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported, Vacuous, errors
from tasks.packages import ONNX
from tasks.variables import count_compute_threads

_OPTIONS = ("use_packing_layout", "use_winograd_convolution", "use_sgemm_convolution")
#: Storage and arithmetic coarser than float32, which ncnn takes by itself where the processor can.
_COARSER = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
    "use_int8_packed",
    "use_int8_storage",
    "use_int8_arithmetic",
    "use_int8_inference",
    "use_vulkan_compute",
)
#: Most axes of an ncnn.Mat, beside the batch's.
_AXES = 4
_NO_BATCH = 233
#: Layers that hand on what they are given.
_IDLE = ("Input", "MemoryData", "Split", "Noop")
#: How the ONNX Runtime inside of pnnx says that it does not know an op, an attribute or a version.
_NOT_SUPPORTED = re.compile(
    r"Unsupported model IR version.*|Could not find an implementation for.*|Unrecognized attribute.*|is under development.*|unsupported tensor elem data type.*"
    r"|(is not a registered function/op|No [Oo]p registered for|No opset import for domain|No schema registered for).*"
)
#: Seconds that a conversion may take.
_CONVERT_S = 300.0
_PR_SET_PDEATHSIG = 1


class Ncnn(Backend):
    """ncnn on the CPU, one thread, all in float32 (its default would keep weights and blobs in 16 bits where it can).

    options, ncnn's own: ``use_packing_layout``, ``use_winograd_convolution``, ``use_sgemm_convolution`` (bool; true).
    """

    takes_threads = True
    vendor = "Tencent"
    forms = ("onnx",)
    takes = _OPTIONS
    #: pnnx's program needs no torch, its package asks for it: this version, so that no larger build is taken.
    packages = ("ncnn==1.0.20261020", "pnnx==20261020", "torch==2.13.0", ONNX)

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self._switches = {x: self.switch(x, True) for x in _OPTIONS}
        self._pnnx = Path()
        self._version = ""
        self._open = False

    def probe(self) -> RuntimeInfo:
        """Find ncnn and pnnx's program; convert and run a model of one Add. Raises Unavailable."""
        if self.device != "cpu":
            raise Unavailable(f"the farm only runs ncnn on the CPU, not on {self.device}")
        with importing("ncnn"):
            import ncnn
        found = importlib.util.find_spec("pnnx")
        folder = Path(found.origin).parent if found and found.origin else Path()
        self._pnnx = next((x for x in (folder / "pnnx", folder / "pnnx.exe") if x.is_file()), Path())
        if self._pnnx == Path():
            raise Unavailable("ncnn's converter pnnx is not installed")
        self._version = f"{ncnn.__version__} pnnx {importlib.metadata.version('pnnx')}"
        smoke_test("ncnn", lambda: self.build(make_probe_form()).run()[0])
        return RuntimeInfo(str(ncnn.__version__), "cpu")

    def build(self, form: Form) -> Program:
        """Convert and load the model, and make its inputs.

        Raises Unsupported (a dtype other than float32; 0-d, empty or too many axes; a layer that ncnn has not), Vacuous
        (the converter left no layer that computes); what pnnx or ncnn says otherwise, as RuntimeError.
        """
        values = list(name_onnx_inputs(form).values())
        graph = onnx_graph.read_onnx_graph(form.model or b"")
        for value, array in zip(graph.inputs, values):
            plain = isinstance(array, np.ndarray)
            _check_ncnn_mat(
                f"input {value.name}",
                "tensor" if plain else value.kind,
                name_numpy_dtype(array.dtype) if plain else "",
                array.shape if plain else None,
            )
        for value in graph.outputs:
            _check_ncnn_mat(f"output {value.name}", value.kind, value.dtype, value.shape)
        shapes = [list(x.shape) for x in values]
        others = [[n + (not k and i in form.batched) for k, n in enumerate(x)] for i, x in enumerate(shapes)]
        sizes = (shapes, others) if self._open else (shapes,)
        parts = (self._version, form.model or b"", json.dumps(sizes))
        model = json.loads(artefacts.load_or_make("pnnx", parts, lambda: self._convert(form.model or b"", *sizes)))
        if len(model["inputs"]) != len(values) or len(model["outputs"]) != len(graph.outputs):
            raise Unsupported(
                f"pnnx leaves {len(model['inputs'])} of {len(values)} inputs and {len(model['outputs'])} of {len(graph.outputs)} outputs"
            )
        net = self._load(model["param"], bytes.fromhex(model["bin"]))
        layers = _list_ncnn_layers(model["param"])
        placement = "CPU: " + ", ".join(x for x in layers if x not in _IDLE)
        flags = " ".join(["float32", "threads=1", *(f"{k}={int(v)}" for k, v in self._switches.items())])

        def bind_inputs(arrays: list[Any]) -> Callable[[], list[np.ndarray]]:
            others = name_onnx_inputs(form.with_arrays(arrays))
            return _make_ncnn_runner(net, list(others.values()), model["inputs"], model["outputs"])

        return Program(bind_inputs(form.arrays), placement, flags=flags, given=bind_inputs)

    def any_size(self) -> Backend:
        """Of any number of rows, where the form says which arrays have them."""
        return self.but(_open=True)

    def recipe(self, form: Form) -> ProgramRecipe:
        check_form_has_model(form)
        return ProgramRecipe(run_model, {"threads": 1}, (find_ncnn_batch_axis,))

    def _convert(self, model: bytes, *sizes: list[list[int]]) -> bytes:
        """pnnx's conversion as JSON: param, bin (hexadecimal), axis of the batch of each input and output.

        It is told the inputs' shapes alone: given their values (input=x.npy) it takes no more from them. What differs
        in a second set of shapes is left open.
        """
        with tempfile.TemporaryDirectory(prefix="pnnx-") as folder:
            path = Path(folder)
            (path / "model.onnx").write_bytes(model)
            command = [str(self._pnnx), "model.onnx", "fp16=0"]
            for name, shapes in zip(("inputshape", "inputshape2"), sizes):
                if shapes:
                    given = ",".join(f"[{','.join(map(str, shape))}]f32" for shape in shapes)
                    command.append(f"{name}={given}")
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_CONVERT_S,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                check=False,
            )
            text = done.stdout + "\n" + done.stderr
            words = _cut_pnnx_output(text)
            if done.returncode and (reason := _NOT_SUPPORTED.search(text)):
                raise Unsupported(f"pnnx: {reason[0]}")  # it goes on after that, and dies of what it has not
            if done.returncode < 0:
                raise RuntimeError(f"pnnx died of {signal.Signals(-done.returncode).name}: {words}")
            param, script = path / "model.ncnn.param", path / "model_ncnn.py"
            if not param.exists() or not script.exists():
                raise RuntimeError(f"pnnx made no model (exit code {done.returncode}): {words}")
            inputs, outputs = _read_batch_axes(script.read_text())
            made = {
                "param": param.read_text(),
                "bin": (path / "model.ncnn.bin").read_bytes().hex(),
                "inputs": inputs,
                "outputs": outputs,
            }
        return json.dumps(made).encode()

    def _load(self, param: str, weights: bytes) -> Any:
        import ncnn

        layers = _list_ncnn_layers(param)
        if missing := sorted({x for x in layers if ncnn.layer_to_index(x) < 0}):
            raise Unsupported(f"ncnn has no layer {', '.join(missing)}")
        if all(x in _IDLE for x in layers):
            raise Vacuous("pnnx left no layer that computes")
        net = ncnn.Net()
        net.opt.num_threads = count_compute_threads()
        for name in _COARSER:
            setattr(net.opt, name, False)
        for name, on in self._switches.items():
            setattr(net.opt, name, on)
        said: list[str] = []
        with tempfile.TemporaryDirectory(prefix="ncnn-") as folder, capture_native_output(said):
            path = Path(folder)
            (path / "param").write_text(param)
            (path / "bin").write_bytes(weights)
            code = net.load_param(str(path / "param")) or net.load_model(str(path / "bin"))
        if code:
            raise RuntimeError(f"ncnn does not load pnnx's model ({code}): {' '.join(' '.join(said).split())}")
        return net


def _check_ncnn_mat(what: str, kind: str, dtype: str, shape: tuple[int | None, ...] | None) -> None:
    """Raise Unsupported for what an ncnn.Mat cannot hold."""
    if kind != "tensor" or dtype != "float32":
        raise Unsupported(f"ncnn only computes float32 tensors, not {dtype} {kind}s ({what})".replace("  ", " "))
    if shape is not None:
        if not shape or 0 in shape:
            raise Unsupported(f"ncnn has no {'empty' if shape else '0-d'} tensors ({what})")
        if len(shape) > _AXES + 1:
            raise Unsupported(f"ncnn has tensors of up to {_AXES} axes and a batch's, not of {len(shape)} ({what})")


def _list_ncnn_layers(param: str) -> list[str]:
    """Types of the layers of a param file: its lines after the magic number and the counts."""
    return [line.split()[0] for line in param.splitlines()[2:] if line.strip()]


_INPUT = re.compile(r'ex\.input\("in(\d+)", ncnn\.Mat\(in\d+\.\w+\(\)(?:\.\w+\(\))*(?:, batch_index=(\d+))?\)')
_OUTPUT = re.compile(
    r'ex\.extract\("out(\d+)"\)\s*\n\s*out\.append\(torch\.from_numpy\(out\d+\.numpy\((?:batch_index=(\d+))?\)'
)


def _read_batch_axes(script: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """(blob, axis of the batch) of each input and output, from the script by which pnnx shows how its model is used."""
    found = []
    for kind, pattern in (("in", _INPUT), ("out", _OUTPUT)):
        found.append(
            [
                (f"{kind}{n}", int(axis or _NO_BATCH))
                for n, axis in sorted(pattern.findall(script), key=lambda x: int(x[0]))
            ]
        )
    return found[0], found[1]


def _cut_pnnx_output(text: str) -> str:
    """The end of what pnnx printed, without its tables and the list of its passes."""
    lines = [x.strip() for x in errors.drop_terminal_escapes(text).splitlines()]
    said = [
        x
        for x in lines
        if x
        and not x.startswith(
            (
                "│",
                "┌",
                "├",
                "└",
                "####",
                "pnnxparam",
                "pnnxbin",
                "pnnxpy",
                "pnnxonnx",
                "ncnn",
                "fp16",
                "optlevel",
                "device",
                "inputshape",
                "customop",
                "moduleop",
                "get inputshape",
            )
        )
        and "LogEarlyWarning" not in x
        and not re.search(r"\.\.\.\s+[\d.]+ms$", x)
    ]
    return " ".join(" | ".join(said[-6:]).split())[-800:]


def _die_with_parent() -> None:
    """A conversion that hangs must not outlive the process that is killed for it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _make_ncnn_runner(
    net: Any, values: list[np.ndarray], inputs: list[Any], outputs: list[Any]
) -> Callable[[], list[np.ndarray]]:
    """``run()`` of a net; outputs as numpy arrays of their own memory."""
    import ncnn

    # A Mat over a numpy array is a view that does not keep it alive: the array must outlive it, and a clone owns its
    # memory.
    arrays = [np.array(x, order="C") for x in values]
    for x, (blob, axis) in zip(arrays, inputs):
        if x.ndim > _AXES + (axis != _NO_BATCH):
            raise Unsupported(
                f"ncnn has tensors of up to {_AXES} axes, not of {x.ndim} without a batch's (input {blob})"
            )
    mats = [ncnn.Mat(x, batch_index=axis).clone() for x, (_, axis) in zip(arrays, inputs)]

    def run() -> list[np.ndarray]:
        said: list[str] = []
        results = []
        with capture_native_output(said):
            extractor = net.create_extractor()
            code = 0
            for (blob, _), mat in zip(inputs, mats):
                code = code or extractor.input(blob, mat.clone())
            for blob, axis in outputs:
                if not code:
                    code, mat = extractor.extract(blob)
                if not code:
                    results.append(np.array(mat.numpy(batch_index=axis)))
        if code:
            raise RuntimeError(f"ncnn computes nothing ({code}): {' '.join(' '.join(said).split())}")
        return results

    return run


def find_ncnn_batch_axis(code: str, name: str) -> int:
    """Which axis of a tensor is the batch's, as the code says that pnnx wrote; 233 for none."""
    import re

    found = re.findall(rf"\b{name}\b.*batch_index=(\d+)", code)
    return int(found[0]) if found else 233


def run_model(model: str, inputs: dict, threads: int) -> list:
    """Outputs of an ONNX model on ncnn, converted by pnnx."""
    import pathlib
    import shutil
    import subprocess
    import tempfile

    import ncnn
    import onnx
    import pnnx

    folder = pathlib.Path(tempfile.mkdtemp())
    shutil.copy(model, folder / "model.onnx")
    sizes = ",".join(f"[{','.join(map(str, x.shape))}]f32" for x in inputs.values())
    program = pathlib.Path(pnnx.__file__).parent / "pnnx"
    command = [str(program), "model.onnx", "fp16=0", f"inputshape={sizes}"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    if net.load_param(str(folder / "model.ncnn.param")) or net.load_model(str(folder / "model.ncnn.bin")):
        raise RuntimeError("ncnn does not load what pnnx wrote")
    code = (folder / "model_ncnn.py").read_text()
    extractor, got, held = net.create_extractor(), [], []
    for k, x in enumerate(inputs.values()):
        held.append(ncnn.Mat(x, batch_index=find_ncnn_batch_axis(code, f"in{k}")).clone())
        extractor.input(f"in{k}", held[-1])
    for k in range(len(onnx.load(model).graph.output)):
        found = extractor.extract(f"out{k}")[1]
        got.append(np.array(found.numpy(batch_index=find_ncnn_batch_axis(code, f"out{k}"))))
    return got
