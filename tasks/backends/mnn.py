"""MNN: the ONNX form, converted in this process and run as a Module on the CPU in the precision asked for."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tasks.arrays.pack import name_numpy_dtype
from tasks.backends.base import Backend, importing, smoke_test
from tasks.backends.shared import onnx_graph
from tasks.backends.shared.native_output import capture_native_output
from tasks.backends.shared.onnx_form import make_probe_form, name_onnx_tensors
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_model
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported
from tasks.packages import ONNX
from tasks.variables import count_compute_threads

_OPTIONS = ("precision", "optimize_level")
_PRECISIONS = ("high", "normal", "low")

#: Names of MNN.expr's dtypes by dtype of the farm. int64 and bool tensors are int32 in MNN (its converter's
#: onnxOpConverter maps both to it): as inputs they hold the same values there, as outputs they are another dtype.
_EXPR = {"float32": "float", "int32": "int", "int64": "int", "bool": "int", "uint8": "uint8", "int8": "int8"}
_RESULTS = ("float32", "int32", "uint8", "int8")

#: How the converter and the engine say so; 2 is ErrorCode's NOT_SUPPORT.
_NOT_SUPPORTED = re.compile(
    r"[Nn]ot [Ss]upport|[Uu]nsupport|[Dd]on't support|only support|does not support|code=2 in onForward"
)
#: What they print beside the reason: greetings, and the time and line of a message.
_NOISE = re.compile(
    r"Start to .*|\[[\d:]*\] :\d+: (ONNX Model (ir|opset) version.*)?|Converted (Failed|Success)!|The device supports.*"
    r"|(input|output)Tensors ?: \[.*\]|MNN use .* precision"
)


class Mnn(Backend):
    """MNN on the CPU, one thread.

    options: ``precision`` ("high" by default; "normal", "low": where the CPU has float16 arithmetic, "low" computes in
    it), ``optimize_level`` of the converter (1, its default; 0: the graph as it is; 2).
    """

    takes_threads = True
    vendor = "Alibaba"
    forms = ("onnx",)
    takes = _OPTIONS
    oldest = "3.2.0"
    packages = ("MNN==3.6.1", ONNX)
    unsupported = _NOT_SUPPORTED

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self._precision = self.choice("precision", _PRECISIONS, "high")
        self._level = self.choice("optimize_level", "012", "1")
        self._runtime: Any = None

    def probe(self) -> RuntimeInfo:
        """Convert and run a model of one Add. Raises Unavailable: no package, another device than the CPU, or it
        fails."""
        if (
            self.device != "cpu"
        ):  # for any other the package says "Can't Find type=3 backend, use 0 instead", and computes on the CPU
            raise Unavailable(f"MNN's Python package only computes on the CPU, not on {self.device}")
        said: list[str] = []
        with importing("MNN"):
            with capture_native_output(said):
                import _tools  # noqa: F401
                import MNN
        smoke_test("MNN", lambda: self.build(make_probe_form()).run()[0])
        found = re.search(r"The device supports: (.*)", "".join(said))
        units = found[1].strip() if found else ""
        return RuntimeInfo(
            runtime_version=str(MNN.version()),
            device="cpu",
            # BackendConfig's Precision_Low asks for float16 where the CPU has it, which its backend for that then
            # takes: a command.
            compute_precision="float16" if self._precision == "low" and "fp16:1" in units else "",
        )

    def build(self, form: Form) -> Program:
        """Convert and load the model, and make its inputs.

        Raises Unsupported (what MNN's converter or loader names as not supported; a dtype that MNN has no tensors of).
        """
        values = name_onnx_tensors(form, "MNN")
        graph = onnx_graph.read_onnx_graph(form.model or b"")
        for output in graph.outputs:
            if output.kind != "tensor" or output.dtype not in _RESULTS:
                raise Unsupported(f"MNN has no {output.dtype} {output.kind} for the output {output.name}")
        feeds = [_make_mnn_input(name, value) for name, value in values.items()]
        module = self._load(form.model or b"", list(values), [x.name for x in graph.outputs])
        narrowed = sorted(
            {name_numpy_dtype(x.dtype) for x in values.values() if name_numpy_dtype(x.dtype) in ("int64", "bool")}
        )
        flags = [f"precision={self._precision}", f"threads={count_compute_threads()}", f"optimize_level={self._level}"]
        flags += [f"{x}_inputs_as=int32" for x in narrowed]

        def bind_inputs(arrays: list[Any]) -> Callable[[], list[Any]]:
            others = name_onnx_tensors(form.with_arrays(arrays), "MNN")
            return _make_mnn_runner(module, [_make_mnn_input(name, value) for name, value in others.items()])

        return Program(_make_mnn_runner(module, feeds), "CPU", flags=" ".join(flags), given=bind_inputs)

    def recipe(self, form: Form) -> ProgramRecipe:
        check_form_has_model(form)
        return ProgramRecipe(run_model, {"precision": self._precision, "level": self._level, "threads": 1})

    def _load(self, model: bytes, inputs: list[str], outputs: list[str]) -> Any:
        """The Module of a converted model. Raises Unsupported, RuntimeError in the words of the converter or loader."""
        # Not through MNN.tools: its import installs a package with pip and sends statistics home.
        import _tools
        import MNN.nn

        said: list[str] = []
        with tempfile.TemporaryDirectory(prefix="mnn-") as folder:
            source, target = Path(folder) / "model.onnx", Path(folder) / "model.mnn"
            source.write_bytes(model)
            with capture_native_output(said):
                _tools.mnnconvert(
                    [
                        "mnnconvert",
                        "-f",
                        "ONNX",
                        "--modelFile",
                        str(source),
                        "--MNNModel",
                        str(target),
                        "--bizCode",
                        "farm",
                        "--keepInputFormat=1",
                        f"--optimizeLevel={self._level}",
                    ]
                )
            if not target.exists():  # its result is True whatever happened
                _raise_mnn_failure("MNN's converter", said)
            try:
                with capture_native_output(said):
                    if self._runtime is None:
                        config = {"backend": "CPU", "precision": self._precision, "numThread": count_compute_threads()}
                        self._runtime = MNN.nn.create_runtime_manager((config,))
                    return MNN.nn.load_module_from_file(str(target), inputs, outputs, runtime_manager=self._runtime)
            except Exception as error:
                _raise_mnn_failure("MNN's loader", said, error)


def _raise_mnn_failure(who: str, said: list[str], error: Exception | None = None) -> NoReturn:
    """Raise Unsupported or RuntimeError with what MNN printed and, of a SystemError, what Python was told beneath
    it."""
    beneath = [str(error.__cause__ or error)] if error else []
    words = f"{who}: {' '.join(_NOISE.sub('', ' '.join([*said, *beneath])).split()) or 'no reason given'}"
    raise (Unsupported if _NOT_SUPPORTED.search(words) else RuntimeError)(words) from error


def _make_mnn_input(name: str, value: np.ndarray) -> tuple[np.ndarray, str]:
    """An input as MNN takes it: its array and the name of its dtype in MNN.expr. Raises Unsupported."""
    dtype = name_numpy_dtype(value.dtype)
    if dtype not in _EXPR:
        raise Unsupported(f"MNN has no tensors of {dtype} (input {name})")
    if dtype == "bool":
        value = value.astype(np.int32)
    if dtype == "int64":
        narrow = value.astype(np.int32)
        if not np.array_equal(narrow, value):
            raise Unsupported(f"MNN has no tensors of int64, and the input {name} does not fit into int32")
        value = narrow
    return value, _EXPR[dtype]


def _make_mnn_runner(module: Any, feeds: list[tuple[np.ndarray, str]]) -> Callable[[], list[Any]]:
    """``run()`` of a Module over its inputs; outputs as numpy arrays of their own memory."""
    import MNN.expr as expr

    def run() -> list[Any]:
        said: list[str] = []
        try:
            with capture_native_output(said):
                given = [expr.const(x, list(x.shape), expr.NCHW, getattr(expr, dtype)) for x, dtype in feeds]
                arrays = [_copy_mnn_output(x) for x in module.forward(given)]
        except Exception as error:
            _raise_mnn_failure("MNN", said, error)
        if not arrays:
            _raise_mnn_failure("MNN computed nothing", said)
        return arrays

    return run


def _copy_mnn_output(value: Any) -> np.ndarray:
    """A numpy copy of an output. Raises what MNN raises where it could not compute it."""
    import MNN.expr as expr

    if 0 in (value.shape or ()):  # there is nothing to read, which `read` takes for an error
        dtype = next((x for x in _RESULTS if getattr(expr, _EXPR[x]) == value.dtype), "float32")
        return np.empty(value.shape, dtype)
    if value.data_format == expr.NC4HW4:  # channels padded to four: only the runtime knows how to undo it
        value = expr.convert(value, expr.NCHW)
    return np.array(value.read())


def run_model(model: str, inputs: dict, precision: str, level: int, threads: int) -> list:
    """Outputs of an ONNX model on MNN."""
    import os
    import tempfile

    import _tools  # of MNN
    import MNN.expr as expr
    import MNN.nn
    import onnx

    target = os.path.join(tempfile.mkdtemp(), "model.mnn")
    command = ["mnnconvert", "-f", "ONNX", "--modelFile", model, "--MNNModel", target, "--bizCode", "x"]
    _tools.mnnconvert([*command, "--keepInputFormat=1", f"--optimizeLevel={level}"])
    runtime = MNN.nn.create_runtime_manager(({"backend": "CPU", "precision": precision, "numThread": threads},))
    outputs = [x.name for x in onnx.load(model).graph.output]
    module = MNN.nn.load_module_from_file(target, list(inputs), outputs, runtime_manager=runtime)
    kinds = {np.float32: expr.float, np.int32: expr.int, np.uint8: expr.uint8}
    given, got = [], []
    for x in inputs.values():
        x = x.astype(np.int32) if x.dtype in (np.int64, bool) else x
        given.append(expr.const(x, list(x.shape), expr.NCHW, kinds[x.dtype.type]))
    for x in module.forward(given):
        x = expr.convert(x, expr.NCHW) if x.data_format == expr.NC4HW4 else x
        got.append(np.array(x.read()))
    if not got:
        raise RuntimeError("MNN computed nothing")
    return got
