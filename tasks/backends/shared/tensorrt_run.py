"""How a finding builds an engine of TensorRT's and runs it by CUDA's driver: functions that are copied as they stand."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.backends.shared.tensorrt_network import (
    cast_tensorrt_network,
    quantize_tensorrt_network,
    rewire_tensorrt_layers,
)

#: What `build_engine` calls, and the precisions that it can write into a network.
NARROWING, NARROW = (rewire_tensorrt_layers, cast_tensorrt_network, quantize_tensorrt_network), ("fp16", "bf16", "int8")


def build_engine(
    trt: Any, model: str, inputs: dict, flags: list, workspace: Any, level: Any, precision: str, threads: int
) -> Any:
    """A serialized engine of an ONNX model for inputs of these sizes; precision: that the network is written in, "" for
    its own."""
    log = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(log)
    builder.max_threads = threads
    weak = precision in ("fp16", "bf16") and hasattr(trt.BuilderFlag, precision.upper())  # up to TensorRT 10
    strong = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(0 if weak else strong)
    parser = trt.OnnxParser(network, log)
    with open(model, "rb") as file:
        if not parser.parse(file.read()):
            errors = [parser.get_error(k) for k in range(parser.num_errors)]
            raise RuntimeError("; ".join(f"{x.node_operator()} ({x.code().name}): {x.desc()}" for x in errors))
    given = [network.get_input(k) for k in range(network.num_inputs)]
    if more := {x.name for x in given} - {*inputs}:
        raise RuntimeError(f"the parser made inputs {sorted(more)} that the model does not have")
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    for name in flags:
        config.set_flag(getattr(trt.BuilderFlag, name))
    if workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
    if level is not None:
        config.builder_optimization_level = level
    if weak:
        config.set_flag(getattr(trt.BuilderFlag, precision.upper()))
    elif precision in ("fp16", "bf16"):
        cast_tensorrt_network(trt, network, trt.DataType.HALF if precision == "fp16" else trt.DataType.BF16)
    elif precision == "int8":
        quantize_tensorrt_network(trt, network, inputs)
    if any(x.is_shape_tensor or -1 in tuple(x.shape) for x in given):
        profile = builder.create_optimization_profile()
        for x in given:
            if x.is_shape_tensor:
                profile.set_shape_input(x.name, *[inputs[x.name].ravel().tolist()] * 3)
            elif -1 in tuple(x.shape):
                profile.set_shape(x.name, *[inputs[x.name].shape] * 3)
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError("no engine was built")  # why stands in its log
    return engine


def start_cuda(ordinal: int) -> Any:
    """(a function of CUDA's driver by its name, a stream on the GPU of this number)."""
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")

    def do(name: str, *args: Any) -> None:
        if code := getattr(cuda, name)(*args):
            raise RuntimeError(f"{name}: CUDA error {code}")

    device, used, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    do("cuInit", 0)
    do("cuDeviceGet", ctypes.byref(device), ordinal)
    do("cuDevicePrimaryCtxRetain", ctypes.byref(used), device)
    do("cuCtxSetCurrent", used)
    do("cuStreamCreate", ctypes.byref(stream), 0)
    return do, stream


def share(do: Any, x: Any) -> Any:
    """A copy of an array in memory that both the GPU and NumPy see."""
    import ctypes

    at, size = ctypes.c_void_p(), max(x.nbytes, 1)
    do("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(size), 1)  # attached to any stream
    found = np.ndarray(x.shape, x.dtype, (ctypes.c_uint8 * size).from_address(at.value))
    found[...] = x
    return found


def run_engine(trt: Any, engine: Any, inputs: dict, outputs: list, dtypes: dict, ordinal: int) -> list:
    """Outputs of a serialized engine; dtypes: NumPy's by TensorRT's."""
    do, stream = start_cuda(ordinal)

    class Sized(trt.IOutputAllocator):  # type: ignore[misc, name-defined]
        """Of an output whose shape depends on data."""

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            self.memory = share(do, np.full(max(size, 1), 255, "u1"))
            return int(self.memory.ctypes.data)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    loaded = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(engine)
    context = loaded.create_execution_context()
    names = {loaded.get_tensor_name(k) for k in range(loaded.num_io_tensors)}
    given = {name: share(do, x) for name, x in inputs.items() if name in names}
    for (
        name,
        x,
    ) in given.items():  # of an input that says shapes the values count: outputs have none before it has an address
        context.set_input_shape(name, x.shape)
        context.set_tensor_address(name, x.ctypes.data)
    made, sized = {}, {}
    for name in outputs:
        dtype, shape = np.dtype(dtypes[loaded.get_tensor_dtype(name).name]), tuple(context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            sized[name] = Sized()
            context.set_output_allocator(name, sized[name])
        else:  # what it does not write is no number
            unset = b"\xff" * (int(np.prod(shape)) * dtype.itemsize)
            made[name] = share(do, np.ndarray(shape, dtype, unset))
            context.set_tensor_address(name, made[name].ctypes.data)
    if not context.execute_async_v3(stream.value):
        raise RuntimeError("the engine does not run")
    do("cuStreamSynchronize", stream)
    for name, x in sized.items():
        dtype = np.dtype(dtypes[loaded.get_tensor_dtype(name).name])
        made[name] = np.ndarray(x.shape, dtype, x.memory)
    return [made[name] for name in outputs]


def run_model(model: str, inputs: dict, module: str, dtypes: dict, ordinal: int, **settings: Any) -> list:
    """Outputs of an ONNX model on TensorRT."""
    import importlib

    import onnx

    trt = importlib.import_module(module)
    engine = build_engine(trt, model, inputs, **settings)
    outputs = [x.name for x in onnx.load(model).graph.output]
    return run_engine(trt, engine, inputs, outputs, dtypes, ordinal)


def build_model(model: str, inputs: dict, module: str, **settings: Any) -> list:
    """Build an engine ahead of time, and run it nowhere."""
    import importlib

    return [build_engine(importlib.import_module(module), model, inputs, **settings)]
