"""How a script of few lines builds an engine of TensorRT's as its backend does, and runs it by CUDA's driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.backends.shared import onnx_graph
from tasks.model import Form


def build_lines(form: Form, settings: Sequence[str]) -> tuple[str, ...]:
    """Lines that make ``engine``, a serialized one; settings: of ``config``."""
    inputs = onnx_graph.read(form.model or b"").inputs
    # An input of whole numbers may say shapes.
    is_open = any(x.shape is None or None in x.shape or x.dtype in ("bool", "int32", "int64") for x in inputs)
    profiled = (
        "profile = builder.create_optimization_profile()",
        "for x in map(network.get_input, range(network.num_inputs)):",
        "    if x.is_shape_tensor: profile.set_shape_input(x.name, *[feeds[x.name].ravel().tolist()] * 3)",
        "    elif -1 in tuple(x.shape): profile.set_shape(x.name, *[feeds[x.name].shape] * 3)",
        "config.add_optimization_profile(profile)",
    )
    return (
        "log = trt.Logger(trt.Logger.ERROR)",
        "builder = trt.Builder(log)",
        "builder.max_threads = 1",
        "network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))",
        "parser = trt.OnnxParser(network, log)",
        "if not parser.parse(model.SerializeToString()):",
        "    errors = map(parser.get_error, range(parser.num_errors))",
        '    raise RuntimeError("; ".join(f"{x.node_operator()} ({x.code().name}): {x.desc()}" for x in errors))',
        "for name in {network.get_input(k).name for k in range(network.num_inputs)} - {*feeds}:",
        '    raise RuntimeError(f"the parser made an input {name} that the model does not have")',
        "config = builder.create_builder_config()",
        "config.clear_flag(trt.BuilderFlag.TF32)",
        *settings,
        *profiled * is_open,
        "engine = builder.build_serialized_network(network, config)",
        'if engine is None: raise RuntimeError("no engine was built")  # why stands in its log',
    )


def driver_lines(ordinal: int) -> tuple[str, ...]:
    """Lines that make the GPU current, and ``put``, which copies an array to it and returns where it is."""
    return (
        'cuda = ctypes.CDLL("libcuda.so.1")',
        "def do(name, *args):",
        '    if code := getattr(cuda, name)(*args): raise RuntimeError(f"{name}: CUDA error {code}")',
        "def made(name, *args):",
        "    do(name, ctypes.byref(x := ctypes.c_void_p()), *args)",
        "    return x",
        "of = lambda x: (x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.nbytes))",
        'do("cuInit", 0)',
        f'do("cuDeviceGet", ctypes.byref(device := ctypes.c_int()), {ordinal})',
        'do("cuCtxSetCurrent", made("cuDevicePrimaryCtxRetain", device))',
        "def put(x):",
        '    do("cuMemcpyHtoD_v2", address := made("cuMemAlloc_v2", of(x)[1]), *of(x))',
        "    return address.value",
    )


def run_lines(dtypes: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(lines that load ``engine``, those that run it and make ``got``); dtypes: numpy's by TensorRT's."""
    return (
        "runtime, stream = trt.Runtime(log), made('cuStreamCreate', 0)",
        "loaded = runtime.deserialize_cuda_engine(engine)",
        "context, names = loaded.create_execution_context(), map(loaded.get_tensor_name, range(loaded.num_io_tensors))",
        f"dtypes, names = {dict(dtypes)}, list(names)",
    ), (
        "given = {k: x for k, x in feeds.items() if k in names}",
        "for k, x in given.items(): context.set_input_shape(k, x.shape)",
        "sizes = {x.name: tuple(context.get_tensor_shape(x.name)) for x in model.graph.output}",
        "results = {k: np.empty(n, dtypes[loaded.get_tensor_dtype(k).name]) for k, n in sizes.items()}",
        'for x in results.values(): x.reshape(-1).view("u1")[:] = 255  # what it does not write is no number',
        "here = {k for k in names if loaded.get_tensor_location(k) == trt.TensorLocation.HOST}",
        "at = {k: x.ctypes.data if k in here else put(x) for k, x in (given | results).items()}",
        "for k, address in at.items(): context.set_tensor_address(k, address)",
        'if not context.execute_async_v3(stream.value): raise RuntimeError("the engine does not run")',
        'do("cuStreamSynchronize", stream)',
        "for k in results.keys() - here:",
        '    do("cuMemcpyDtoH_v2", of(results[k])[0], ctypes.c_void_p(at[k]), of(results[k])[1])',
        "got = list(results.values())",
    )
