"""How a script of few lines builds an engine of TensorRT's as its backend does, and runs it by CUDA's driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.backends.shared import onnx_graph
from tasks.backends.shared.bare import bare_lines
from tasks.backends.shared.tensorrt_network import cast, quantize, rewire
from tasks.model import Form

#: What writes a precision into a network, by its name, and its arguments after trt and network.
_WRITTEN = {"fp16": (cast, "trt.DataType.HALF"), "bf16": (cast, "trt.DataType.BF16"), "int8": (quantize, "feeds")}


def build_lines(form: Form, settings: Sequence[str], precision: str) -> tuple[str, ...]:
    """Lines that make ``engine``, a serialized one; settings: of ``config``; precision: as the backend's option has it."""
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
    strong = "1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)"
    narrow, before = list[str](), list[str]()
    if precision in _WRITTEN:
        function, last = _WRITTEN[precision]
        before = [*bare_lines(rewire), *bare_lines(function)]
        narrow = [f"{function.__name__}(trt, network, {last})"]
        if precision != "int8":  # TensorRT up to 10 has a flag for it; that of int8 would want a calibrator
            flag = f"trt.BuilderFlag.{precision.upper()}"
            before.append(f'weak = hasattr(trt.BuilderFlag, "{precision.upper()}")')
            narrow = [f"config.set_flag({flag}) if weak else {narrow[0]}"]
            strong = f"0 if weak else {strong}"
    return (
        *before,
        "log = trt.Logger(trt.Logger.ERROR)",
        "builder = trt.Builder(log)",
        "builder.max_threads = 1",
        f"network = builder.create_network({strong})",
        "parser = trt.OnnxParser(network, log)",
        "parsed = parser.parse(model.SerializeToString())",
        "errors = [] if parsed else [parser.get_error(k) for k in range(parser.num_errors)]",
        'words = [f"{x.node_operator()} ({x.code().name}): {x.desc()}" for x in errors]',
        "more = {network.get_input(k).name for k in range(network.num_inputs)} - {*feeds}",
        'words += [f"the parser made an input {name} that the model does not have" for name in more]',
        'assert parsed and not words, "; ".join(words)',
        "config = builder.create_builder_config()",
        "config.clear_flag(trt.BuilderFlag.TF32)",
        *settings,
        *narrow,
        *profiled * is_open,
        "engine = builder.build_serialized_network(network, config)",
        'assert engine is not None, "no engine was built"',  # why stands in its log
    )


def driver_lines(ordinal: int) -> tuple[str, ...]:
    """Lines that make the GPU current, and ``shared``, which copies an array to memory that both the GPU and numpy see."""
    return (
        'cuda, device, used, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()',
        "def do(name, *args):",
        '    if code := getattr(cuda, name)(*args): raise RuntimeError(f"{name}: CUDA error {code}")',
        "def shared(x):",
        "    at, size = ctypes.c_void_p(), max(x.nbytes, 1)",
        '    do("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(size), 1)  # attached to any stream',
        "    found = np.ndarray(x.shape, x.dtype, (ctypes.c_uint8 * size).from_address(at.value))",
        "    found[...] = x",
        "    return found",
        'do("cuInit", 0)',
        f'do("cuDeviceGet", ctypes.byref(device), {ordinal})',
        'do("cuDevicePrimaryCtxRetain", ctypes.byref(used), device)',
        'do("cuCtxSetCurrent", used)',
        'do("cuStreamCreate", ctypes.byref(stream), 0)',
    )


def run_lines(form: Form, dtypes: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(lines that load ``engine``, those that run it and make ``got``); dtypes: numpy's by TensorRT's."""
    outputs = onnx_graph.read(form.model or b"").outputs
    is_open = any(x.shape is None or None in x.shape for x in outputs)
    sized = (
        "class Sized(trt.IOutputAllocator):  # of an output whose shape depends on data",
        "    def reallocate_output_async(self, name, memory, size, alignment, stream):",
        '        self.memory = shared(np.full(max(size, 1), 255, "u1"))',
        "        return self.memory.ctypes.data",
        "    def notify_shape(self, name, shape): self.shape = tuple(shape)",
    )
    load = (
        "runtime = trt.Runtime(log)",
        "loaded = runtime.deserialize_cuda_engine(engine)",
        "context = loaded.create_execution_context()",
        "names = {loaded.get_tensor_name(k) for k in range(loaded.num_io_tensors)}",
        "outputs = [x.name for x in model.graph.output]",
        f"kinds = {dict(dtypes)}",
        "dtypes = {k: np.dtype(kinds[loaded.get_tensor_dtype(k).name]) for k in outputs}",
    )
    shaped = (
        "given = {k: shared(x) for k, x in feeds.items() if k in names}",
        # Of an input that says shapes the values count: outputs have none before it has an address.
        "for k, x in given.items(): context.set_input_shape(k, x.shape); context.set_tensor_address(k, x.ctypes.data)",
        "shapes = {k: tuple(context.get_tensor_shape(k)) for k in outputs}",
    )
    unset = 'b"\\xff" * (int(np.prod(shapes[k])) * dtypes[k].itemsize)'  # what it does not write is no number
    fixed = " if min(shapes[k], default=0) >= 0" * is_open
    allocated = (
        "sized = {k: Sized() for k in outputs if k not in made}",
        "for k, x in sized.items(): context.set_output_allocator(k, x)",
    )
    read = ("made |= {k: np.ndarray(x.shape, dtypes[k], x.memory) for k, x in sized.items()}",)
    return (*sized * is_open, *load), (
        *shaped,
        f"made = {{k: shared(np.ndarray(shapes[k], dtypes[k], {unset})) for k in outputs{fixed}}}",
        "for k, x in made.items(): context.set_tensor_address(k, x.ctypes.data)",
        *allocated * is_open,
        'assert context.execute_async_v3(stream.value), "the engine does not run"',
        'do("cuStreamSynchronize", stream)',
        *read * is_open,
        "got = [made[k] for k in outputs]",
    )
