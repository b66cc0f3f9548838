"""RKNN: the ONNX form converted for a Rockchip NPU, on the toolkit's simulator of it or on a board that is connected."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tasks.backends.base import Backend, smoke_test
from tasks.backends.shared.native_output import capture_native_output
from tasks.backends.shared.onnx_form import make_probe_form, name_onnx_tensors
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_model
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported
from tasks.older_python import zip_equal

_OPTIONS = ("connected", "optimization_level")

#: Chips that rknn-toolkit2 2.x builds for (its documentation of config's target_platform).
CHIPS = (
    "rk3562",
    "rk3566",
    "rk3568",
    "rk3576",
    "rk3588",
    "rv1103",
    "rv1103b",
    "rv1106",
    "rv1106b",
    "rv1126b",
    "rk2118",
)

#: rknn-toolkit2 2.5.0: "Unsupport onnx opset 20, need <= 19!"
_NEWEST_OPSET = 19
#: The toolkit says "unsupport" of data types and operators, and bounds the opset and the rank.
_UNSUPPORTED = re.compile(
    r"[Uu]nsupport|[Nn]ot support|not be supported|need <=|only support|[Ii]nvalid IR version|IR version .* higher",
    re.IGNORECASE,
)
#: What the toolkit raises, as its log has it; colours; a line of its log that tells of an error.
_RAISED = re.compile(r"^[ \t]*(?:E [^\n]*?)?(\w*(?:Error|Exception): [^\n]+)", re.MULTILINE)
_COLOURS = re.compile(r"\x1b?\[[\d;]+m")
_ERROR_LINE = re.compile(r"^E (\w+: [^\n]+)", re.MULTILINE)


class Rknn(Backend):
    """Rockchip's toolkit for one chip ("rk3588"), without quantization.

    Float tensors are float16 inside the NPU and its simulator, whatever the model's dtype. options: ``connected``
    (bool: run on a board that adb reaches instead of the simulator), ``optimization_level`` (0 to 3, the toolkit's own
    default).
    """

    vendor = "Rockchip"
    forms = ("onnx",)
    inputs_once = True
    takes = _OPTIONS
    devices, closed = CHIPS, True
    unsupported = _UNSUPPORTED
    # The toolkit imports pkg_resources.
    packages = ("rknn-toolkit2==2.5.0", "setuptools<81")

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self._level = self.choice("optimization_level", range(4), 3)
        self.emulated = not self.switch("connected")
        self.device_vendor, self.resource = ("", "CPU") if self.emulated else ("rockchip", "NPU")

    def probe(self) -> RuntimeInfo:
        """Convert a model of one Add and run it. Raises Unavailable with the toolkit's own words."""
        if sys.platform != "linux" or platform.machine().lower() not in ("x86_64", "amd64", "aarch64"):
            raise Unavailable(
                f"rknn-toolkit2 is made for Linux on x86-64 and ARM64, not for {sys.platform} on {platform.machine()}"
            )
        if self.emulated and platform.machine().lower() == "aarch64":
            raise Unavailable("rknn-toolkit2's simulator is for x86-64 only")
        try:
            with capture_native_output([]):
                import rknn.api  # noqa: F401
        except Exception as error:
            raise Unavailable(f"rknn-toolkit2 cannot be imported: {error}") from error
        smoke_test(self.device, lambda: self.build(make_probe_form()).run()[0])
        from importlib.metadata import version

        # Floats are float16 without quantization (user guide, "float_dtype": float16 is all that it may be).
        where = "simulator" if self.emulated else "board"
        return RuntimeInfo(
            f"rknn-toolkit2 {version('rknn-toolkit2')}",
            f"{self.device} ({where})",
            compute_precision="float16",
            unasked=True,
        )

    def build(self, form: Form) -> Program:
        """Convert the model and start the simulator or the board.

        Raises Unsupported where the toolkit says so, RuntimeError with its words otherwise (its functions return -1 and
        write the reason to stdout).
        """
        from rknn.api import RKNN

        arrays = name_onnx_tensors(form, "RKNN")
        if not all(value.ndim for value in arrays.values()):
            raise Unsupported("RKNN takes no input of 0 dimensions")
        said: list[str] = []
        toolkit, failed = None, ""
        halves: list[bool] = []
        with capture_native_output(said), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            try:
                model, halves = _lower_opset_for_rknn(form.model or b"")
                path.write_bytes(model)
                toolkit = RKNN(verbose=False)
                toolkit.config(target_platform=self.device, optimization_level=self._level)
                for step, run in self._steps(toolkit, path, arrays):
                    failed = step
                    if run() != 0:
                        break
                else:
                    failed = ""
            except Exception as error:
                failed = failed or "config"
                said.append(f"\n{type(error).__name__}: {error}\n")
        if failed:
            if toolkit is not None:
                toolkit.release()
            raise _make_rknn_refusal(failed, "".join(said))
        return Program(
            _RknnRun(toolkit, list(arrays.values()), halves), f"{self.device} {'simulator' if self.emulated else 'NPU'}"
        )

    def recipe(self, form: Form) -> ProgramRecipe:
        check_form_has_model(form)
        lowered, halves = _lower_opset_for_rknn(form.model or b"")
        opset = 0 if lowered == form.model else _NEWEST_OPSET
        settings = {"platform": self.device, "level": self._level, "emulated": self.emulated}
        return ProgramRecipe(run_model, {**settings, "opset": opset, "halves": list(halves)})

    def _steps(self, toolkit: Any, path: Path, arrays: dict[str, np.ndarray]) -> list[tuple[str, Any]]:
        names, sizes = list(arrays), [list(x.shape) for x in arrays.values()]
        target = None if self.emulated else self.device
        return [
            ("load_onnx", lambda: toolkit.load_onnx(model=str(path), inputs=names, input_size_list=sizes)),
            ("build", lambda: toolkit.build(do_quantization=False)),
            ("init_runtime", lambda: toolkit.init_runtime(target=target)),
        ]


class _RknnRun:
    """``run()`` of a converted model; the toolkit's memory is given back with it.

    halves: whether each output is float16 in the graph. The toolkit hands out every float as float32.
    """

    def __init__(self, toolkit: Any, arrays: list[np.ndarray], halves: list[bool]) -> None:
        self._toolkit, self._arrays, self._halves = toolkit, arrays, halves

    def __call__(self) -> list[np.ndarray]:
        said: list[str] = []
        with capture_native_output(said):
            # Without a format, what has four dimensions is taken as NHWC.
            found = self._toolkit.inference(inputs=self._arrays, data_format=["nchw"] * len(self._arrays))
        if found is None:
            raise _make_rknn_refusal("inference", "".join(said))
        with np.errstate(over="ignore"):
            return [np.array(x, np.float16 if half else None) for x, half in zip_equal(found, self._halves)]

    def __del__(self) -> None:
        with contextlib.suppress(Exception), capture_native_output([]):
            self._toolkit.release()


def _lower_opset_for_rknn(model: bytes) -> tuple[bytes, list[bool]]:
    """The model in the newest opset that the toolkit takes, and which of its outputs are float16.

    By onnx's own converter; where that has no rule, the model as it is.
    """
    import onnx
    from onnx import version_converter

    parsed = onnx.load_from_string(model)
    halves = [x.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for x in parsed.graph.output]
    if max((x.version for x in parsed.opset_import if x.domain in ("", "ai.onnx")), default=0) <= _NEWEST_OPSET:
        return model, halves
    try:
        return bytes(version_converter.convert_version(parsed, _NEWEST_OPSET).SerializeToString()), halves
    except Exception:
        return model, halves  # which the toolkit refuses in its own words


def _make_rknn_refusal(step: str, said: str) -> Exception:
    """The error of a step that failed, in the words that the toolkit logged."""
    plain = _COLOURS.sub("", said)
    lines = _RAISED.findall(plain)[-1:] or [
        x for x in _ERROR_LINE.findall(plain) if "====" not in x and "Traceback" not in x
    ]
    words = "; ".join(dict.fromkeys(lines)) or " ".join(plain.split())[-600:] or "no reason given"
    text = f"{step} failed: {words}"
    return Unsupported(text) if _UNSUPPORTED.search(words) else RuntimeError(text)


def run_model(model: str, inputs: dict, platform: str, level: int, emulated: bool, opset: int, halves: list) -> list:
    """Outputs of an ONNX model on an NPU of Rockchip's, or its simulator; opset: to be converted to, 0 for none."""
    import os
    import tempfile

    import onnx
    from rknn.api import RKNN

    if opset:
        older = onnx.version_converter.convert_version(onnx.load(model), opset)
        model = os.path.join(tempfile.mkdtemp(), "model.onnx")
        onnx.save(older, model)
    toolkit, sizes = RKNN(verbose=False), [list(x.shape) for x in inputs.values()]
    toolkit.config(target_platform=platform, optimization_level=level)
    steps = {
        "load_onnx": lambda: toolkit.load_onnx(model=model, inputs=list(inputs), input_size_list=sizes),
        "build": lambda: toolkit.build(do_quantization=False),
        "init_runtime": lambda: toolkit.init_runtime(target=None if emulated else platform),
    }
    for name, step in steps.items():
        if step():
            raise RuntimeError(f"{name} failed")
    found = toolkit.inference(inputs=list(inputs.values()), data_format=["nchw"] * len(inputs))
    return [np.array(x, np.float16 if half else None) for x, half in zip(found, halves)]
