"""TensorRT: engines built from the ONNX form for an NVIDIA GPU, in one declared precision."""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.backends.base import TIMES_KERNELS, Backend, importing, smoke_test
from tasks.backends.shared import artefacts, onnx_graph, tensorrt_network
from tasks.backends.shared.onnx_form import make_probe_form, name_onnx_tensors, put_onnx_constants
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_model
from tasks.backends.shared.tensorrt_run import NARROW, NARROWING, build_engine, run_engine, run_model, share, start_cuda
from tasks.devices import cuda_driver
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported, get_numpy_dtype
from tasks.packages import NVIDIA, ONNX

#: Members of tensorrt.DataType by dtype name of the farm; what is not here (float64, int16, …) TensorRT does not have.
DATA_TYPE = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
    "float8_e4m3fn": "FP8",
    "float8_e8m0fnu": "E8M0",
}
_DTYPE = {v: k for k, v in DATA_TYPE.items()}

#: precision option → declared compute precision. INT8 rounds to 255 even steps up to the largest value: for all values
#: from a sixteenth of it that is at least as fine as float8_e4m3fn, the nearest type with an ε.
PRECISIONS = {"fp32": "", "tf32": "tfloat32", "fp16": "float16", "bf16": "bfloat16", "int8": "float8_e4m3fn"}

_OPTIONS = ("precision", "optimization_level", "workspace_mib", "builder_flags")

#: Of the parser's and the builder's words: they do not implement this.
_UNSUPPORTED = re.compile(
    r"[Uu]nsupported|UNSUPPORTED|[Nn]ot supported|(does|do) not support|doesn't support|don't support|[Oo]nly supports?"
    r"|No importer registered|[Nn]ot implemented|Plugin not found|failed to load \w+ plugin|has no runners that implement it"
    r"|[Cc]ould not find any implementation|requires inputs with type|but must have type|cannot be used together with"
    r"|but is not (produced|consumed) by|Key and Value must have the same shape|build-time constant|not an initializer"
    r"|is not a constant|is a shape tensor and must have type"
)
#: They want a constant where the model has an input.
_WANTS_CONSTANT = re.compile(
    r"build-time constant|not an initializer|as an initializer|is_weights|is not a constant|is a shape tensor and must have type|isInFlight"
)
#: Noise of a machine without a GPU, where engines are built all the same.
_NO_DRIVER = re.compile(r"^.*catchCudaError.*\n?", re.MULTILINE)
_OUT_OF_MEMORY = cuda_driver.OUT_OF_MEMORY


class TensorRtError(RuntimeError):
    """TensorRT returned nothing; the text is what it logged."""


class TensorRt(Backend):
    """TensorRT on one GPU ("cuda", "cuda.1").

    options: ``precision`` ("fp32": TF32 off; "tf32", "fp16", "bf16", "int8": calibrated on the case's own inputs);
    ``optimization_level`` of the builder (0 to 5); ``workspace_mib`` (1024); ``builder_flags``: further ones by name.

    What is no float32 model is computed in its own types, in a strongly typed network: "fp16", "bf16" and "int8" do not
    take it. For float32 models up to TensorRT 10 they are builder flags of a weakly typed network; since 11, which has
    neither those nor calibrators, they are casts or quantisation written into the network.
    """

    vendor = "NVIDIA"
    device_vendor = "nvidia"
    resource = "GPU"
    alone = TIMES_KERNELS
    forms = ("onnx",)
    inputs_once = True
    takes = _OPTIONS
    devices: tuple[str, ...] = ("cuda",)
    packages: tuple[str, ...] = (NVIDIA, "tensorrt-cu13==11.4.0.106", ONNX)
    sticky, out_of_memory = cuda_driver.STICKY, _OUT_OF_MEMORY
    module, title = "tensorrt", "TensorRT"

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.precision = self.choice("precision", PRECISIONS, "fp32")
        kind, _, ordinal = device.partition(".")
        if kind not in self.devices or (ordinal and not ordinal.isdigit()):
            raise ValueError(f"backend {name}: its device is one of {', '.join(self.devices)}, not {device!r}")
        self._level = self.choice("optimization_level", range(6), None)
        self._workspace = self.number("workspace_mib", 1024) << 20
        self._more_flags = [str(x) for x in self.many("builder_flags", list)]
        self.ordinals = (int(ordinal or 0),)
        self._gpu: cuda_driver.CudaDevice | None = None

    # -- the device --------------------------------------------------------------------------------------------

    def probe(self) -> RuntimeInfo:
        """Find the GPU, build a model of one Add and run it.

        Raises Unavailable: no package, no driver, no device (in CUDA's words), or the model does not run.
        """
        trt = self._import()
        try:
            self._gpu = gpu = cuda_driver.CudaDevice(cuda_driver.load_cuda_driver(), self.ordinals[0])
        except OSError as error:
            raise Unavailable(f"no NVIDIA driver: {error}") from error
        except cuda_driver.CudaError as error:
            raise Unavailable(f"no NVIDIA GPU: {error}") from error
        # The coarsest precision is right in the first digit.
        smoke_test(self.title, lambda: self.build(make_probe_form()).run()[0], within=0.1)
        return self._info(trt, gpu.name, gpu.driver_version)

    def _import(self) -> Any:
        with importing(f"{self.module}"):
            return importlib.import_module(self.module)

    def _info(self, trt: Any, device: str, driver: str = "") -> RuntimeInfo:
        return RuntimeInfo(
            runtime_version=f"{self.title} {trt.__version__}",
            device=device,
            driver_version=driver,
            compute_precision=PRECISIONS[self.precision],
            of_products=self.precision == "tf32",
        )

    def permits(self, precision: str) -> bool:
        """The builder's flags allow: TF32 "but not require", the others "enable layer selection, with FP32 fallback".
        Where there are none, the precision is written into a strongly typed network, which the builder has to keep."""
        return precision == "tfloat32" or self._flag(self._import()) != ""

    # -- one sample --------------------------------------------------------------------------------------------

    def levels(self) -> Mapping[str, Backend]:
        """The builder's levels from 0 to the one that is asked for, 3 by TensorRT's own default."""
        last = 3 if self._level is None else self._level
        return {str(x): self.but(_level=x) for x in range(last)} | {str(last): self}

    def build(self, form: Form) -> Program:
        """Build the engine of a model, or take it from what was kept, and load it.

        Raises Unsupported (the parser or the builder does not implement something, a type TensorRT does not have),
        TensorRtError with what TensorRT logged, CudaError.
        """
        if self.precision not in ("fp32", "tf32") and form.dtype != "float32":
            raise Unsupported(
                f"precision {self.precision} is a mode of float32 models; a {form.dtype} one runs in its own type"
            )
        trt = importlib.import_module(self.module)
        assert self._gpu is not None, "probe() finds the device"
        inputs = self._inputs(form)
        outputs = _list_tensorrt_outputs(form, self.title)
        log = _make_tensorrt_logger(trt)
        where = (self.module, trt.__version__, self._gpu.name, self._gpu.capability)
        data = artefacts.load_or_make(
            "tensorrt", (*where, *self._content(form, inputs)), lambda: self._engine(trt, form, inputs, where)
        )
        log.clear()
        engine = _open_tensorrt_runtime(trt).deserialize_cuda_engine(data)
        if engine is None:
            raise TensorRtError(f"the engine cannot be loaded: {log.words()}")
        flags = self._flags() + f" engine={len(data)}B"
        loaded = _LoadedEngine(trt, self._gpu, engine, inputs, outputs, log)
        program = Program(lambda: [], f"{self.title} on {self._gpu.name}", None, flags)

        def run() -> list[np.ndarray]:
            made = loaded.run()
            program.flags = f"{flags} gpu_ms={loaded.milliseconds:.4g}"
            return made

        program.run = run
        return program

    def recipe(self, form: Form) -> ProgramRecipe:
        uses = (*NARROWING, build_engine, start_cuda, share, run_engine)
        settings = {"dtypes": dict(_DTYPE), "ordinal": self.ordinals[0], **self._engine_settings(form)}
        return ProgramRecipe(run_model, settings, uses)

    def _engine_settings(self, form: Form) -> dict[str, Any]:
        """Arguments of `build_engine` with which it builds as `_configure` does. Raises NoProgram."""
        check_form_has_model(form)
        return {
            "module": self.module,
            "flags": [*self._more_flags, *["TF32"] * (self.precision == "tf32")],
            "workspace": self._workspace,
            "level": self._level,
            "precision": self.precision if form.dtype == "float32" and self.precision in NARROW else "",
            "threads": 1,
        }

    def _inputs(self, form: Form) -> dict[str, np.ndarray]:
        """The values of the graph's inputs by name. Raises Unsupported for what is no tensor of TensorRT's."""
        values = name_onnx_tensors(form, self.title)
        for value in values.values():
            if value.dtype.name not in DATA_TYPE:
                name = "string" if value.dtype.kind in "OSU" else value.dtype.name
                raise Unsupported(f"{self.title} takes no {name} tensor as an input")
        return values

    def _content(self, form: Form, inputs: dict[str, np.ndarray]) -> tuple[bytes | str, ...]:
        """What beside versions and device decides an engine: the options, the model, and what of the inputs is built
        in."""
        digest = hashlib.sha256()
        for name, value in inputs.items():
            digest.update(f"{name} {value.dtype.name} {value.shape}".encode())
            # Small ones may be shapes, for which the engine is built, or become constants of it; int8 is calibrated on
            # values.
            if self.precision == "int8" or value.size <= _LARGEST_SHAPE:
                digest.update(value.tobytes())
        return repr(sorted(self.options.items())), form.model or b"", digest.digest()

    def _flags(self) -> str:
        parts = [
            f"precision={self.precision}",
            *(f"{k}={v}" for k, v in sorted(self.options.items()) if k != "precision"),
        ]
        return " ".join(parts)

    # -- building ----------------------------------------------------------------------------------------------

    def _engine(self, trt: Any, form: Form, inputs: dict[str, np.ndarray], where: tuple[str, ...]) -> bytes:
        """The serialized engine of a form. Raises Unsupported, TensorRtError.

        Where TensorRT wants a constant (axes, scales, a number of classes), the small inputs after the first become
        some.
        """
        try:
            return self._build_engine(trt, form, inputs, where)
        except (Unsupported, TensorRtError) as error:
            small = {k: v for k, v in list(inputs.items())[1:] if v.ndim < 2 and v.size <= _LARGEST_SHAPE}
            if not small or not _WANTS_CONSTANT.search(str(error)):
                raise
        fixed = replace(form, model=put_onnx_constants(form.model or b"", small))
        return self._build_engine(trt, fixed, inputs, where)

    def _build_engine(self, trt: Any, form: Form, inputs: dict[str, np.ndarray], where: tuple[str, ...]) -> bytes:
        log = _make_tensorrt_logger(trt)
        log.clear()
        builder = trt.Builder(log)
        builder.max_threads = 1
        flags = self._builder_flags(trt, form)
        weak = any(name in flags for name in ("FP16", "BF16", "INT8"))
        network = builder.create_network(0 if weak else 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, log)
        if not parser.parse(form.model or b""):
            raise _make_tensorrt_parse_error([parser.get_error(i) for i in range(parser.num_errors)], log.words())
        self._check_types(network, inputs)
        config = builder.create_builder_config()
        config.clear_flag(trt.BuilderFlag.TF32)
        for name in flags:
            config.set_flag(getattr(trt.BuilderFlag, name))
        self._configure(trt, config)
        rewritten = self._narrow(trt, network, form, inputs, weak)
        calibrator = None
        if "INT8" in flags:
            assert self._gpu is not None
            config.int8_calibrator = calibrator = tensorrt_network.make_tensorrt_calibrator(trt, self._gpu, inputs)
        profile = _make_optimisation_profile(builder, network, inputs)
        if profile is not None:
            config.add_optimization_profile(profile)
        timings = artefacts.recall_artefact("tensorrt-timings", where) or b""
        cache = config.create_timing_cache(timings) if where else None
        if cache is not None:
            config.set_timing_cache(cache, False)
        made = builder.build_serialized_network(network, config)
        if calibrator is not None:
            calibrator.release()
        if made is None:
            words = log.words() or f"{self.title} built no engine and logged nothing"
            if self.sticky.search(words) or self.out_of_memory.search(words) or "insufficient" in words:
                raise TensorRtError(words)
            if rewritten:
                raise Unsupported(f"not with {self.precision} casts in its network: {words}")
            raise Unsupported(words) if _UNSUPPORTED.search(words) else TensorRtError(words)
        if cache is not None and (told := config.get_timing_cache()) is not None:
            grown = bytes(told.serialize())
            if len(grown) != len(timings):
                artefacts.keep_artefact("tensorrt-timings", where, grown)
        return bytes(made)

    def _builder_flags(self, trt: Any, form: Form) -> list[str]:
        """Names of the builder flags to be set; TF32 has been cleared. Raises ValueError for one that this version
        lacks."""
        flags = list(self._more_flags)
        if self.precision == "tf32":
            flags.append("TF32")
        if form.dtype == "float32" and (by_flag := self._flag(trt)):
            flags.append(by_flag)
        for name in flags:
            if not hasattr(trt.BuilderFlag, name):
                raise ValueError(f"{self.title} {trt.__version__} has no builder flag {name}")
        return flags

    def _flag(self, trt: Any) -> str:
        """The builder's flag that allows the precision of 16 or 8 bits, "" where it has none."""
        name = self.precision.upper()
        return name if name in ("FP16", "BF16", "INT8") and hasattr(trt.BuilderFlag, name) else ""

    def _configure(self, trt: Any, config: Any) -> None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, self._workspace)
        if self._level is not None:
            config.builder_optimization_level = self._level

    def _narrow(self, trt: Any, network: Any, form: Form, inputs: dict[str, np.ndarray], weak: bool) -> bool:
        """Write the precision into a strongly typed network of a float32 model; whether that was done."""
        if weak or form.dtype != "float32" or self.precision in ("fp32", "tf32"):
            return False
        if self.precision == "int8":
            tensorrt_network.quantize_tensorrt_network(trt, network, inputs)
        else:
            tensorrt_network.cast_tensorrt_network(
                trt, network, getattr(trt.DataType, "HALF" if self.precision == "fp16" else "BF16")
            )
        return True

    def _check_types(self, network: Any, inputs: dict[str, np.ndarray]) -> None:
        """Raise Unsupported where the parser made another type of an input than the model says."""
        for i in range(network.num_inputs):
            tensor = network.get_input(i)
            if tensor.name not in inputs:
                raise TensorRtError(f"the parser made an input {tensor.name} that the model does not have")
            made, given = _DTYPE.get(tensor.dtype.name, tensor.dtype.name), inputs[tensor.name].dtype.name
            if made != given:
                raise Unsupported(f"{self.title}'s parser makes {made} of the {given} input {tensor.name}")


#: Elements of the largest tensor that can be a shape (TensorRT developer guide, "Working with dynamic shapes").
_LARGEST_SHAPE = 64


def _list_tensorrt_outputs(form: Form, title: str) -> list[tuple[str, str]]:
    """(name, dtype) of the model's outputs. Raises Unsupported for one that TensorRT has no type for."""
    outputs = onnx_graph.read_onnx_graph(form.model or b"").outputs
    for output in outputs:
        if output.dtype and output.dtype not in DATA_TYPE:
            raise Unsupported(f"{title} gives no {output.dtype} {output.kind}, which the output {output.name} is")
    return [(output.name, output.dtype) for output in outputs]


def _make_tensorrt_parse_error(errors: list[Any], logged: str) -> Exception:
    """What to raise for what the parser says, in its words."""
    words = "; ".join(f"{e.node_operator() or 'model'} ({e.code().name}): {e.desc().strip()}" for e in errors)
    text = _NO_DRIVER.sub("", words).strip() or logged or "the parser gave no reason"
    known = any(e.code().name.startswith("UNSUPPORTED") for e in errors)
    return Unsupported(text) if known or _UNSUPPORTED.search(text) else TensorRtError(text)


def _make_optimisation_profile(builder: Any, network: Any, inputs: dict[str, np.ndarray]) -> Any:
    """The one optimisation profile: the shapes of this case, and the values of its shapes. None where all is static."""
    profile = None
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        value = inputs[tensor.name]
        if tensor.is_shape_tensor:
            profile = profile or builder.create_optimization_profile()
            values = value.reshape(-1).tolist()
            profile.set_shape_input(tensor.name, values, values, values)
        elif any(n < 0 for n in tuple(tensor.shape)):
            profile = profile or builder.create_optimization_profile()
            profile.set_shape(tensor.name, value.shape, value.shape, value.shape)
    return profile


@functools.cache
def _make_tensorrt_logger(trt: Any) -> Any:
    """The process's one logger: TensorRT keeps to the first that it is given."""

    class Log(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.said: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.said.append(message)

        def clear(self) -> None:
            self.said.clear()

        def words(self) -> str:
            return "; ".join(x for x in dict.fromkeys(_NO_DRIVER.sub("", said).strip() for said in self.said) if x)

    return Log()


@functools.cache
def _open_tensorrt_runtime(trt: Any) -> Any:
    return trt.Runtime(_make_tensorrt_logger(trt))


# --- running ----------------------------------------------------------------------------------------------------


class _LoadedEngine:
    """An engine on its GPU with memory for its inputs and outputs; ``milliseconds``: GPU time of the last run."""

    def __init__(
        self,
        trt: Any,
        gpu: cuda_driver.CudaDevice,
        engine: Any,
        inputs: dict[str, np.ndarray],
        outputs: list[tuple[str, str]],
        log: Any,
    ) -> None:
        self._trt, self._gpu, self._engine, self._inputs, self._log = trt, gpu, engine, inputs, log
        self._held: list[int] = []
        self.milliseconds = math.nan
        self._context = engine.create_execution_context()
        if self._context is None:
            raise TensorRtError(f"no execution context: {log.words()}")
        self._stream, self._begin, self._end = _open_tensorrt_timing(gpu)
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        self._given = [x for x in names if engine.get_tensor_mode(x) == trt.TensorIOMode.INPUT]
        made = [x for x in names if x not in self._given]
        self._made = [x for x, _ in outputs if x in made] or made  # the engine's own order is not the model's
        self._addresses: dict[str, int] = {}
        for name in self._given:
            value = inputs[name]
            if not self._context.set_input_shape(name, value.shape):
                raise TensorRtError(f"the shape {value.shape} of {name} is refused: {log.words()}")
            # A tensor that only says shapes is read on the host.
            on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
            self._bind(name, value.ctypes.data if on_host else self._allocate(value.nbytes))
            if not on_host:
                self._addresses[name] = self._held[-1]
        self._sizes: dict[str, Any] = {}

    def __del__(self) -> None:
        for address in self._held:
            try:
                self._gpu.free(address)
            except cuda_driver.CudaError:
                return  # the device is gone, and its memory with it

    def _allocate(self, size: int) -> int:
        self._held.append(self._gpu.allocate(size))
        return self._held[-1]

    def _bind(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise TensorRtError(f"the address of {name} is refused: {self._log.words()}")

    def _output(self, name: str) -> Callable[[], np.ndarray]:
        """Bind memory for an output; returns what reads it after the run."""
        dtype = _DTYPE.get(self._engine.get_tensor_dtype(name).name)
        if dtype is None:
            raise Unsupported(f"the output {name} is {self._engine.get_tensor_dtype(name)}, which has no array form")
        if self._engine.get_tensor_location(name) == self._trt.TensorLocation.HOST:
            on_host = np.zeros(tuple(self._context.get_tensor_shape(name)), get_numpy_dtype(dtype))
            self._bind(name, on_host.ctypes.data)
            return lambda: on_host.copy()
        shape = tuple(self._context.get_tensor_shape(name))
        if any(n < 0 for n in shape):  # it depends on data
            allocator = self._sizes.get(name) or tensorrt_network.make_tensorrt_allocator(self._trt, self._allocate)
            self._sizes[name] = allocator
            self._context.set_output_allocator(name, allocator)
            return lambda: self._read(allocator.address, allocator.shape, dtype)
        if name not in self._addresses:
            self._addresses[name] = self._allocate(math.prod(shape) * get_numpy_dtype(dtype).itemsize)
        # What the engine does not write must not be what an earlier run or case left there.
        self._gpu.fill(self._addresses[name], math.prod(shape) * get_numpy_dtype(dtype).itemsize)
        self._bind(name, self._addresses[name])
        return lambda: self._read(self._addresses[name], shape, dtype)

    def _read(self, address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        array = np.empty(shape, get_numpy_dtype(dtype))
        self._gpu.to_host(array, address)
        return array

    def run(self) -> list[np.ndarray]:
        """Outputs in the model's order. Raises CudaError, TensorRtError."""
        self._log.clear()
        for name in self._given:
            if name in self._addresses:
                self._gpu.to_device(self._addresses[name], self._inputs[name])
        readers = [self._output(name) for name in self._made]
        self._gpu.record(self._begin, self._stream)
        if not self._context.execute_async_v3(self._stream):
            raise TensorRtError(f"the engine does not run: {self._log.words()}")
        self._gpu.record(self._end, self._stream)
        self._gpu.wait(self._stream)
        self.milliseconds = self._gpu.milliseconds(self._begin, self._end)
        return [read() for read in readers]


@functools.cache
def _open_tensorrt_timing(gpu: cuda_driver.CudaDevice) -> tuple[int, int, int]:
    """A stream and two events, once per process."""
    return gpu.create_stream(), gpu.create_event(), gpu.create_event()
