"""A stand-in for the tensorrt module and a GPU: engines are ONNX bytes, which onnx's own evaluator runs in host memory."""

from __future__ import annotations

import enum
import types
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tasks.devices.cuda_driver import CudaError

_TYPES = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT8": np.int8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
}
_ELEMENT = {
    onnx.TensorProto.FLOAT: "FLOAT",
    onnx.TensorProto.FLOAT16: "HALF",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.BFLOAT16: "BF16",
}


class Gpu:
    """Device memory as host arrays; ``breaks``: the text of the error that waiting for the stream raises."""

    name, capability, driver_version = "Fake GPU", "9.0", "13.0"

    def __init__(self) -> None:
        self.memory: dict[int, np.ndarray] = {}
        self.breaks = ""

    def allocate(self, size: int) -> int:
        address = 1 + len(self.memory)
        self.memory[address] = np.zeros(max(size, 1), np.uint8)
        return address

    def free(self, address: int) -> None:
        self.memory[address] = np.empty(0, np.uint8)

    def fill(self, address: int, size: int, byte: int = 0xFF) -> None:
        self.memory[address][:size] = byte

    def to_device(self, address: int, array: np.ndarray) -> None:
        self.memory[address][: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)

    def to_host(self, array: np.ndarray, address: int) -> None:
        array.reshape(-1).view(np.uint8)[:] = self.memory[address][: array.nbytes]

    def create_stream(self) -> int:
        return 7

    def create_event(self) -> int:
        return 8

    def record(self, event: int, stream: int) -> None:
        pass

    def wait(self, stream: int) -> None:
        if self.breaks:
            raise CudaError(self.breaks)

    def milliseconds(self, first: int, last: int) -> float:
        return 0.25


def module(version: str, gpu: Gpu) -> Any:
    """A fresh module of a version (flags, calibrators and weak typing are gone from 11 on).

    Its ``state`` tells what was asked: flags, calibrated bytes, builds; and says what goes wrong: ``refuses`` (text of
    the parser), ``code``, ``silent`` (the builder returns None after logging this text), ``wants_constants``.
    """
    old = int(version.partition(".")[0]) < 11
    trt: Any = types.ModuleType("tensorrt")
    state = types.SimpleNamespace(
        flags=set(),
        network_flags=None,
        calibrated={},
        builds=0,
        refuses="",
        code="UNSUPPORTED_NODE",
        silent="",
        casts=[],
        wants_constants=False,
        timings=b"",
        config=None,
        profiles=[],
        dynamic=False,
    )
    trt.__version__, trt.state = version, state
    trt.DataType = enum.Enum("DataType", list(_TYPES))  # type: ignore[misc]
    trt.BuilderFlag = enum.Enum("BuilderFlag", ["TF32", "STRICT_NANS", *(["FP16", "BF16", "INT8"] if old else [])])  # type: ignore[misc]
    trt.NetworkDefinitionCreationFlag = enum.IntEnum("Flag", {"STRONGLY_TYPED": 1})  # type: ignore[misc]
    trt.MemoryPoolType = enum.Enum("Pool", ["WORKSPACE"])  # type: ignore[misc]
    trt.TensorIOMode = enum.Enum("Mode", ["INPUT", "OUTPUT"])  # type: ignore[misc]
    trt.TensorLocation = enum.Enum("Location", ["DEVICE", "HOST"])  # type: ignore[misc]
    trt.LayerType = enum.Enum("LayerType", ["CONSTANT", "CAST", "OTHER"])  # type: ignore[misc]
    codes = enum.Enum("Code", ["UNSUPPORTED_NODE", "INVALID_NODE"])  # type: ignore[misc]

    class ILogger:
        ERROR, INTERNAL_ERROR, WARNING = "ERROR", "INTERNAL_ERROR", "WARNING"

    class Logger(ILogger):
        def __init__(self, severity: str) -> None:
            self.said: list[str] = []

        def log(self, severity: str, message: str) -> None:
            self.said.append(message)

    class IOutputAllocator:
        pass

    class Config:
        int8_calibrator: Any = None

        def __init__(self) -> None:
            state.flags, state.config = {"TF32"}, self  # TF32 is on by default

        def clear_flag(self, flag: Any) -> None:
            state.flags.discard(flag.name)

        def set_flag(self, flag: Any) -> None:
            state.flags.add(flag.name)

        def set_memory_pool_limit(self, pool: Any, size: int) -> None:
            pass

        def create_timing_cache(self, data: bytes) -> bytes:
            return data

        def set_timing_cache(self, cache: Any, mismatch: bool) -> None:
            state.timings = cache

        def get_timing_cache(self) -> Any:
            return types.SimpleNamespace(serialize=lambda: state.timings + b"timed ")

        def add_optimization_profile(self, profile: Any) -> None:
            state.profiles.append(profile)

    class Network:
        num_layers = num_inputs = 0

        def load(self, model: bytes) -> None:
            self.model = onnx.load_from_string(model)
            given = {x.name for x in self.model.graph.initializer}
            self.inputs = [x for x in self.model.graph.input if x.name not in given]
            self.num_inputs = len(self.inputs)

        def get_input(self, i: int) -> Any:
            value = self.inputs[i]
            kind = value.type.tensor_type
            shape = (-1,) * len(kind.shape.dim) if state.dynamic else tuple(d.dim_value for d in kind.shape.dim)
            return types.SimpleNamespace(
                name=value.name, dtype=trt.DataType[_ELEMENT[kind.elem_type]], shape=shape, is_shape_tensor=False
            )

        num_outputs = 0

        def add_cast(self, tensor: Any, dtype: Any) -> Any:
            state.casts.append(f"{tensor.name} {dtype.name}")
            return types.SimpleNamespace(get_output=lambda k: tensor)

        def add_constant(self, shape: Any, weights: Any) -> Any:
            return types.SimpleNamespace(get_output=lambda k: weights)

        def add_quantize(self, tensor: Any, scale: Any, dtype: Any) -> Any:
            return self.add_cast(tensor, dtype)

        def add_dequantize(self, tensor: Any, scale: Any, dtype: Any) -> Any:
            return types.SimpleNamespace(get_output=lambda k: tensor)

    trt.Weights = lambda x: x

    class Parser:
        def __init__(self, network: Network, log: Any) -> None:
            self.network, self.words = network, ""

        def parse(self, model: bytes) -> bool:
            self.network.load(model)
            wants = state.wants_constants and self.network.num_inputs > 1
            self.words = state.refuses or ("Axis input must resolve to a build-time constant" if wants else "")
            return not self.words

        @property
        def num_errors(self) -> int:
            return 1

        def get_error(self, i: int) -> Any:
            return types.SimpleNamespace(
                node_operator=lambda: "Add", code=lambda: codes[state.code], desc=lambda: self.words
            )

    class Builder:
        max_threads = 0

        def __init__(self, log: Any) -> None:
            self.log = log

        def create_network(self, flags: int) -> Network:
            state.network_flags = flags
            return Network()

        def create_builder_config(self) -> Config:
            return Config()

        def create_optimization_profile(self) -> Any:
            shapes: dict[str, Any] = {}
            return types.SimpleNamespace(shapes=shapes, set_shape=lambda name, *of: shapes.update({name: of}))

        def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
            state.builds += 1
            if state.silent:
                self.log.log(ILogger.WARNING, "only a warning")
                self.log.log(ILogger.ERROR, state.silent)
                return None
            if config.int8_calibrator is not None:
                names = [x.name for x in network.inputs]
                addresses = config.int8_calibrator.get_batch(names)
                state.calibrated = {n: gpu.memory[a].tobytes() for n, a in zip(names, addresses)}
                assert config.int8_calibrator.get_batch(names) is None, "one batch alone"
            return network.model.SerializeToString()

    class Runtime:
        def __init__(self, log: Any) -> None:
            pass

        def deserialize_cuda_engine(self, data: bytes) -> Any:
            return Engine(onnx.load_from_string(data)) if data else None

    class Engine:
        def __init__(self, model: Any) -> None:
            given = {x.name for x in model.graph.initializer}
            self.model = model
            self.values = {
                x.name: x for x in [*reversed(model.graph.output), *model.graph.input] if x.name not in given
            }
            self.num_io_tensors = len(self.values)

        def get_tensor_name(self, i: int) -> str:
            return list(self.values)[i]  # outputs first, and not in the model's order

        def get_tensor_mode(self, name: str) -> Any:
            return (
                trt.TensorIOMode.OUTPUT if name in {x.name for x in self.model.graph.output} else trt.TensorIOMode.INPUT
            )

        def get_tensor_location(self, name: str) -> Any:
            return trt.TensorLocation.DEVICE

        def get_tensor_dtype(self, name: str) -> Any:
            return trt.DataType[_ELEMENT[self.values[name].type.tensor_type.elem_type]]

        def create_execution_context(self) -> Any:
            return Context(self)

    class Context:
        def __init__(self, engine: Engine) -> None:
            self.engine, self.shapes, self.addresses, self.allocators = engine, {}, {}, {}

        def set_input_shape(self, name: str, shape: Any) -> bool:
            self.shapes[name] = tuple(shape)
            return True

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            dims = self.engine.values[name].type.tensor_type.shape.dim
            early = not self.shapes.keys() <= self.addresses.keys()  # an input may say shapes by its values
            return tuple(d.dim_value if d.HasField("dim_value") and not early else -1 for d in dims)

        def set_tensor_address(self, name: str, address: int) -> bool:
            self.addresses[name] = address
            return True

        def set_output_allocator(self, name: str, allocator: Any) -> None:
            self.allocators[name] = allocator

        def execute_async_v3(self, stream: int) -> bool:
            assert stream == 7
            feeds = {}
            for name, shape in self.shapes.items():
                dtype = np.dtype(_TYPES[self.engine.get_tensor_dtype(name).name])
                size = int(np.prod(shape)) * dtype.itemsize
                feeds[name] = gpu.memory[self.addresses[name]][:size].view(dtype).reshape(shape)
            made = ReferenceEvaluator(self.engine.model).run(None, feeds)
            for value, array in zip(self.engine.model.graph.output, made):
                address = self.addresses.get(value.name)
                if value.name in self.allocators:
                    allocator = self.allocators[value.name]
                    address = allocator.reallocate_output_async(value.name, 0, array.nbytes, 256, stream)
                    allocator.notify_shape(value.name, array.shape)
                gpu.to_device(address, np.ascontiguousarray(array))
            return True

    trt.ILogger, trt.Logger, trt.IOutputAllocator, trt.Builder, trt.OnnxParser, trt.Runtime = (
        ILogger,
        Logger,
        IOutputAllocator,
        Builder,
        Parser,
        Runtime,
    )
    if old:
        trt.IInt8EntropyCalibrator2 = type("IInt8EntropyCalibrator2", (), {})
    return trt
