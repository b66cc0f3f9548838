"""OpenVINO: the ONNX form on an Intel device, in the precision that was asked for and read back."""

from __future__ import annotations

import functools
import glob
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays.low_bits import pack_low_bits
from tasks.arrays.pack import name_numpy_dtype
from tasks.backends.base import Backend, BaselineArm, importing, smoke_test
from tasks.backends.needs import Missing, Need
from tasks.backends.shared.onnx_form import PROBE_MODEL, name_onnx_tensors, read_onnx_tensor_bytes
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_model
from tasks.devices import find_device_number
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported
from tasks.model.dtypes import NATIVE, PACKED_BITS
from tasks.variables import count_compute_threads

#: Names of ov.Type's members (what ov.Type.to_string gives) by dtype name of the farm.
_ELEMENT = {
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "bool": "boolean",
    "str": "string",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int4": "i4",
    "uint4": "u4",
    "uint2": "u2",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "float8_e8m0fnu": "f8e8m0",
    "float4_e2m1fn": "f4e2m1",
}
_DTYPE = {v: k for k, v in _ELEMENT.items()}

_OPTIONS = ("inference_precision", "execution_mode", "threads", "properties")

#: compute_precision of an INFERENCE_PRECISION_HINT: with f32, double is computed in it too. "dynamic" leaves every node
#: in the model's own precision.
_PRECISION = {"f32": "float32", "dynamic": "", "bf16": "bfloat16", "f16": "float16"}

#: What a row says where a compiled model does not tell: as an NPU's, which computes in float16.
_UNTOLD = "unknown"

#: The value of inference_precision that asks for nothing.
_DEFAULT = "default"

_UNSUPPORTED = re.compile(
    r"No conversion rule|only supported|must be a constant|Shape\{1\} constant|attribute must be set to|Bad format for f8|not supported|[Uu]nsupported|[Nn]ot implemented|NOT_IMPLEMENTED"
    r"|doesn't support|does not support|[Cc]annot convert|No translator found|Not supported|isn't supported"
)
_OUT_OF_MEMORY = re.compile(
    r"bad_alloc|out of memory|OUT_OF_(HOST_|DEVICE_)?(MEMORY|RESOURCES)|Failed to allocate", re.IGNORECASE
)
_STICKY = re.compile(r"DEVICE_LOST|device lost|CL_OUT_OF_RESOURCES|CL_INVALID_COMMAND_QUEUE", re.IGNORECASE)

#: What OpenVINO finds devices of each kind by (its page "Additional Configurations for Hardware"); of an NPU's no
#: system has a package.
_DRIVERS = {
    "GPU": Need(
        "Intel's OpenCL driver",
        lambda: "",
        {"apt-get": "intel-opencl-icd", "dnf": "intel-compute-runtime", "pacman": "intel-compute-runtime"},
    ),
    "NPU": Need("Intel's NPU driver (https://github.com/intel/linux-npu-driver)", lambda: ""),
}

#: The property of an NPU that says it (openvino/runtime/intel_npu/properties.hpp); a GPU has none.
_NPU_DRIVER = "NPU_DRIVER_VERSION"

#: Properties as read back, in the order of `OpenVino._flags`.
_READ_BACK = ("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT", "INFERENCE_NUM_THREADS", "NUM_STREAMS")

#: Properties of the CPU plugin (the switches of its developers; unknown ones are an error of its own): no code for
#: whole subgraphs, no low precision transformations.
_NOTHING_FUSED = {"SNIPPETS_MODE": "DISABLE", "LP_TRANSFORMS_MODE": "NO"}


@functools.lru_cache(maxsize=1)
def _open_openvino_core() -> Any:
    """The process's one Core: it holds the loaded plugins, which take a second to load."""
    import openvino

    return openvino.Core()


class OpenVino(Backend):
    """OpenVINO on one device ("cpu", "gpu", "gpu.1", "npu").

    options: ``inference_precision`` ("f32" by default, since a CPU with bfloat16 units would else use them; "default":
    as OpenVINO likes, and its rows say what that was), ``execution_mode`` ("accuracy"), ``count_compute_threads`` (1) and
    ``properties`` (further properties by name).
    """

    takes_threads = True
    vendor = "Intel"
    forms = ("onnx",)
    takes = _OPTIONS
    devices = ("cpu", "gpu", "npu")
    numbered = True
    sticky, unsupported, out_of_memory = _STICKY, _UNSUPPORTED, _OUT_OF_MEMORY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        kind = device.partition(".")[0].lower()
        self.device_vendor = {"cpu": "", "npu": "intel-npu"}.get(kind, "intel")
        self.resource = kind.upper() if kind in ("cpu", "gpu", "npu") else "CPU"
        self._target = device.upper()
        self.oldest = "2023.3.0" if kind == "cpu" else ""
        #: What it can compute in; known once it is probed.
        self._able = {"FP32"}
        precision = str(options.get("inference_precision", "f32"))
        self._asked: dict[str, Any] = {"EXECUTION_MODE_HINT": str(options.get("execution_mode", "accuracy")).upper()}
        if precision == _DEFAULT:
            del self._asked["EXECUTION_MODE_HINT"]  # "accuracy" asks for float32
        else:
            self._asked["INFERENCE_PRECISION_HINT"] = precision
        if kind == "cpu":
            self._asked |= {"INFERENCE_NUM_THREADS": self.number("threads", count_compute_threads()), "NUM_STREAMS": 1}
        self._asked |= {str(k): v for k, v in self.many("properties", dict).items()}

    def probe(self) -> RuntimeInfo:
        """Find the device and run a model of one Add on it.

        Raises Unavailable: the package is missing, the device is not among those OpenVINO finds (which it
        names), or it does not work (in OpenVINO's words).
        """
        with importing("openvino"):
            import openvino
        core = _open_openvino_core()
        found = list(core.available_devices)
        if number := find_device_number() if self._target in ("GPU", "NPU") else 0:
            self._target = f"{self._target}.{number}"
        # A number is asked for by it, a kind alone is the first of it.
        if self._target not in (found if number else (*found, *(x.partition(".")[0] for x in found))):
            raise self._not_found(found)
        self._asked = self._possible(core)
        read: dict[str, str] = {}

        def compute() -> Any:
            compiled = self._compile(PROBE_MODEL)
            read.update(_read_openvino_properties(compiled))
            return self._program(compiled, {"x": np.ones(2, np.float32)}).run()[0]

        smoke_test(f"OpenVINO's {self._target}", compute)
        # What is read back from a compiled model is what it computes in: a hint that was taken is a command.
        hint, known = read["INFERENCE_PRECISION_HINT"], core.get_property(self._target, "SUPPORTED_PROPERTIES")
        if hint == _UNTOLD:
            hint = "f32" if "FP32" in self._able else "f16"
        return RuntimeInfo(
            runtime_version=openvino.__version__.partition("-")[0],
            device=str(core.get_property(self._target, "FULL_DEVICE_NAME")),
            driver_version=str(core.get_property(self._target, _NPU_DRIVER)) if _NPU_DRIVER in known else "",
            compute_precision=_PRECISION.get(hint, hint),
            unasked=hint not in (str(self._asked.get("INFERENCE_PRECISION_HINT")), "f32", "dynamic"),
        )

    def _not_found(self, found: Sequence[str]) -> Unavailable:
        """That the device is not there, and what brings its kind where there is none of that."""
        said = f"OpenVINO finds no device {self._target}; it finds {', '.join(found) or 'none'}"
        kind = self._target.partition(".")[0]
        if kind not in _DRIVERS or any(x.startswith(kind) for x in found):
            return Unavailable(said)
        nodes = self.hardware.files if self.hardware else ()
        if not any(map(glob.glob, nodes)):  # a driver brings nothing where there is no device
            return Unavailable(f"{said}; there is no {' and no '.join(nodes)} here")
        return Missing([_DRIVERS[kind]], f"{said}; {_DRIVERS[kind].what} is missing, or access to its device is denied")

    def _possible(self, core: Any) -> dict[str, Any]:
        """What is asked of the device, without what it cannot be asked: a precision that it has not (an NPU has no
        float32), hints that it does not know. What the user asks for by name stays: its refusal is the answer."""
        asked, named = dict(self._asked), {*self.many("properties", dict), *self.options}
        known = set(core.get_property(self._target, "SUPPORTED_PROPERTIES"))
        self._able = {str(x) for x in core.get_property(self._target, "OPTIMIZATION_CAPABILITIES")}
        if "FP32" not in self._able and "inference_precision" not in named:
            asked.pop("INFERENCE_PRECISION_HINT", None)
        own = {"EXECUTION_MODE_HINT": "execution_mode", "INFERENCE_PRECISION_HINT": "inference_precision"}
        return {k: v for k, v in asked.items() if k in known or k in named or own.get(k) in named}

    def build(self, form: Form) -> Program:
        """Convert and compile the model, and make its inputs.

        Raises Unsupported (no conversion rule, a type or an attribute OpenVINO does not take); OpenVINO's other
        errors as they are. A program that was placed elsewhere says so in ``fallback``.
        """
        values = name_onnx_tensors(form, "OpenVINO")
        compiled = self._compile(form.model or b"")

        def bind_inputs(arrays: list[Any]) -> Callable[[], list[Any]]:
            others = name_onnx_tensors(form.with_arrays(arrays), "OpenVINO")
            return _make_openvino_runner(
                compiled, [_make_openvino_tensor(x) for x in _map_values_to_ports(compiled.inputs, others)]
            )

        return replace(self._program(compiled, values), given=bind_inputs, threads=True)

    def recipe(self, form: Form) -> ProgramRecipe:
        check_form_has_model(form)
        return ProgramRecipe(run_model, {"device": self._target, "properties": dict(self._asked)})

    def eager(self, form: Form) -> BaselineArm:
        return self.eager_torch(form)

    def levels(self) -> Mapping[str, Backend]:
        """The CPU without what makes code for whole subgraphs and without integer kernels for quantised ones;
        itself."""
        if not self._target.startswith("CPU"):
            return {}
        return {"disable": self.but(_asked=_NOTHING_FUSED | self._asked), "all": self}

    def precise(self) -> Backend | None:
        hint = "INFERENCE_PRECISION_HINT"
        return (
            None
            if self._asked.get(hint) == "f32" or "FP32" not in self._able
            else self.but(_asked=self._asked | {hint: "f32"})
        )

    def _compile(self, model: bytes) -> Any:
        core = _open_openvino_core()
        try:
            return core.compile_model(core.read_model(model), self._target, self._asked)
        except Exception as error:
            text = str(error)
            if isinstance(error, NotImplementedError) or _UNSUPPORTED.search(text):
                raise Unsupported(text) from error
            raise

    def _program(self, compiled: Any, values: dict[str, np.ndarray]) -> Program:
        devices = [str(x) for x in compiled.get_property("EXECUTION_DEVICES")]
        fallback = None
        if any(x.strip("()").partition(".")[0] != self._target.partition(".")[0] for x in devices):
            fallback = f"asked for {self._target}, it was compiled for {', '.join(devices)}"
        tensors = [_make_openvino_tensor(x) for x in _map_values_to_ports(compiled.inputs, values)]
        return Program(_make_openvino_runner(compiled, tensors), ",".join(devices), fallback, self._flags(compiled))

    def _flags(self, compiled: Any) -> str:
        """The compiled model's properties, and which of them are not what was asked."""
        read = _read_openvino_properties(compiled)
        words = [f"{k.lower()}={v}" for k, v in read.items()]
        words += [
            f"asked:{k.lower()}={self._asked[k]}"
            for k, v in read.items()
            if k in self._asked and v != str(self._asked[k])
        ]
        return " ".join(words)


def _read_openvino_properties(compiled: Any) -> dict[str, str]:
    """What the compiled model says of itself; a device without a property leaves it out."""
    supported = set(compiled.get_property("SUPPORTED_PROPERTIES"))
    found = {}
    for name in _READ_BACK:
        if name in supported:
            value = compiled.get_property(name)
            found[name] = value.to_string() if hasattr(value, "to_string") else str(value).rpartition(".")[2]
    found.setdefault("INFERENCE_PRECISION_HINT", _UNTOLD)
    return found


def _map_values_to_ports(ports: list[Any], values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The value of each input port of a compiled model.

    OpenVINO drops inputs that no node uses, and renames one to the output of a node that it removed behind it
    (Dropout). So a port is matched by name, else by being the only value of its type and shape that is left.
    Raises ValueError where that is not unique.
    """
    found = [next((x for x in values if x in port.names), "") for port in ports]
    left = {k: v for k, v in values.items() if k not in found}
    for i, port in enumerate(ports):
        if found[i]:
            continue
        element = port.element_type.to_string()
        fitting = [
            k
            for k, v in left.items()
            if _ELEMENT.get(name_numpy_dtype(v.dtype)) == element and _fits_openvino_port(port, v)
        ]
        if len(fitting) != 1:
            raise ValueError(
                f"OpenVINO's input {sorted(port.names)} ({element}{port.partial_shape}) may be any of the graph's "
                f"inputs {fitting or list(left)}"
            )
        found[i] = fitting[0]
        del left[found[i]]
    return [values[x] for x in found]


def _fits_openvino_port(port: Any, array: np.ndarray) -> bool:
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        return True
    return len(shape) == array.ndim and all(d.is_dynamic or d.get_length() == n for d, n in zip(shape, array.shape))


def _make_openvino_tensor(array: np.ndarray) -> tuple[Any, np.ndarray]:
    """An ov.Tensor in the array's true dtype and the memory it may be a view of. Raises Unsupported."""
    import openvino

    if array.dtype.kind in "OSU":
        # OpenVINO takes fixed-width text only.
        text = np.array(array.ravel().tolist(), dtype=np.str_).reshape(array.shape)
        return openvino.Tensor(text), text
    name = array.dtype.name
    element = getattr(openvino.Type, _ELEMENT.get(name, "none"), None)
    if element is None:
        raise Unsupported(f"OpenVINO has no element type {name}")
    if name in NATIVE:
        return openvino.Tensor(array), array
    raw = (
        pack_low_bits(array)
        if name in PACKED_BITS
        else array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    )
    flat = raw.reshape(-1)  # before 2025 no memory of 0 dimensions is taken, nor any without elements
    if not flat.size:
        return openvino.Tensor(element, openvino.Shape(list(array.shape))), flat
    return openvino.Tensor(flat, list(array.shape), element), flat


def _make_openvino_runner(compiled: Any, tensors: list[tuple[Any, np.ndarray]]) -> Callable[[], list[Any]]:
    """``run()`` of a compiled model over its input tensors, each with its memory; numpy outputs."""

    def request() -> Any:
        made = compiled.create_infer_request()
        for i, (tensor, _) in enumerate(tensors):
            made.set_input_tensor(i, tensor)
        return made

    def infer(made: Any) -> list[Any]:
        made.infer()
        return [_copy_openvino_tensor(made.get_output_tensor(i)) for i in range(len(compiled.outputs))]

    if any(x.element_type.to_string() == "string" for x in [*compiled.inputs, *compiled.outputs]):
        # Freeing a request that hands strings through aborts the process (2026.4.1). Made and freed inside the
        # run, it takes down the case that caused it, not the next one.
        return lambda: infer(request())
    made = request()

    def run(held: list[tuple[Any, np.ndarray]] = tensors) -> list[Any]:
        return infer(made)  # over memory that lives as long as what holds it

    return run


def _copy_openvino_tensor(tensor: Any) -> np.ndarray:
    """A numpy copy of a tensor in its true dtype. Raises TypeError for a type without one."""
    element = tensor.element_type.to_string()
    shape = tuple(tensor.shape)
    if element == "string":
        return tensor.str_data.astype(object).reshape(shape)
    dtype = _DTYPE.get(element)
    if dtype is None:
        raise TypeError(f"OpenVINO returned a tensor of {element}, which has no numpy dtype")
    if tensor.size == 0:
        return read_onnx_tensor_bytes(np.empty(0, np.uint8), dtype, shape)
    return read_onnx_tensor_bytes(np.array(tensor.data).reshape(-1).view(np.uint8), dtype, shape)


def run_model(model: str, inputs: dict, device: str, properties: dict) -> list:
    """Outputs of an ONNX model on OpenVINO."""
    import onnx
    import openvino as ov

    core = ov.Core()
    compiled = core.compile_model(core.read_model(model), device, properties)
    given, held, got = {}, [], []
    for port in compiled.inputs:  # an input that nothing takes is not among them
        name = next(x for x in inputs if x in port.names)
        x = inputs[name]
        if x.dtype.isbuiltin != 1 and x.dtype.kind not in "OU":  # which numpy lacks: its bytes, as ONNX has them
            held.append(np.frombuffer(onnx.numpy_helper.from_array(x).raw_data, f"u{x.itemsize}").copy())
            given[name] = ov.Tensor(held[-1], list(x.shape), port.element_type)
        else:
            given[name] = x
    request = compiled.create_infer_request()
    found = request.infer(given)
    kinds = [x.type.tensor_type.elem_type for x in onnx.load(model).graph.output]
    for port, kind in zip(compiled.outputs, kinds):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        if dtype.isbuiltin == 1 or dtype.kind == "O":
            got.append(np.array(found[port]))
        else:
            tensor = request.get_tensor(port)
            raw = np.array(tensor.data).tobytes()
            made = onnx.TensorProto(dims=list(tensor.shape), data_type=kind, raw_data=raw)
            got.append(onnx.numpy_helper.to_array(made))
    return got
