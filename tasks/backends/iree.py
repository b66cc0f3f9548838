"""IREE: the ONNX form compiled in this process for one of IREE's devices, and run by IREE's runtime."""

from __future__ import annotations

import ctypes
import functools
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks import checks
from tasks.arrays.low_bits import pack_low_bits
from tasks.backends.base import Backend, importing, smoke_test
from tasks.backends.needs import VULKAN, Need, write_vulkan_lines
from tasks.backends.shared import artefacts, onnx_graph
from tasks.backends.shared.onnx_form import make_probe_form, name_onnx_tensors, read_onnx_tensor_bytes
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_model
from tasks.devices import amd, find_device_number, nvidia, processor
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported
from tasks.model.dtypes import PACKED_BITS
from tasks.packages import ONNX


@dataclass(frozen=True)
class IreeTarget:
    """A device of IREE's runtime: driver ("": its code is made here and not run), flags that make the compiler generate
    code for it, whose it is, what it needs."""

    driver: str
    flags: tuple[str, ...]
    device_vendor: str = ""
    resource: str = "CPU"
    needs: tuple[Need, ...] = ()
    #: The flag that names the architecture, and what finds that of this node's device ("" if it cannot).
    architecture: tuple[str, Callable[[], str]] | None = None


def choose_iree_architecture(name: str) -> str:
    """Of an NVIDIA architecture, "sm_90", what IREE 3.13 compiles for: it knows none after sm_89 ("missing GPU
    target"), and the driver makes code for later cards of the PTX that it writes."""
    return "sm_89" if name.removeprefix("sm_").isdigit() and int(name[3:]) > 89 else name


#: local-sync runs a program in the calling thread. By the device of a backend's name.
TARGETS: dict[str, IreeTarget] = {
    "cpu": IreeTarget(
        "local-sync",
        (
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
        ),
    ),
    "vmvx": IreeTarget(
        "local-sync", ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
    ),
    "vulkan": IreeTarget("vulkan", ("--iree-hal-target-device=vulkan",), needs=VULKAN),
    "cuda": IreeTarget(
        "cuda",
        ("--iree-hal-target-device=cuda",),
        "nvidia",
        "GPU",
        architecture=("--iree-cuda-target", lambda: choose_iree_architecture(nvidia.find_nvidia_architecture())),
    ),
    "hip": IreeTarget(
        "hip",
        ("--iree-hal-target-device=hip",),
        "amd",
        "GPU",
        architecture=("--iree-rocm-target", amd.find_amd_architecture),
    ),
    # Ahead of time: what does not compile for a GPU is known without one.
    **{x: IreeTarget("", ("--iree-hal-target-device=cuda", f"--iree-cuda-target={x}")) for x in ("sm_86", "sm_89")},
    **{x: IreeTarget("", ("--iree-hal-target-device=hip", f"--iree-rocm-target={x}")) for x in ("gfx942", "gfx950")},
}

#: Of the compiler on every device. float64 stays float64 (by default it becomes float32, results included). Constants
#: are not computed ahead (that is a compilation of its own), and neither source locations nor debug symbols are kept: a
#: fifth of the time of a small model.
FLAGS = (
    "--iree-input-type=onnx",
    "--iree-input-demote-f64-to-f32=false",
    "--iree-opt-const-eval=false",
    "--iree-vm-bytecode-module-strip-source-map=true",
    "--iree-llvmcpu-debug-symbols=false",
    "--iree-torch-emit-async-entry-points=false",
)

#: Names of flags in earlier releases, by today's: 3.9 knows no --iree-rocm-target.
_FORMERLY = {"--iree-rocm-target": "--iree-hip-target"}

_OPTIONS = ("flags", "device_vendor", "resource")

#: iree_hal_element_type_t's name by dtype name of the farm.
_ELEMENT = {
    "bool": "BOOL_8",
    "int8": "SINT_8",
    "int16": "SINT_16",
    "int32": "SINT_32",
    "int64": "SINT_64",
    "uint8": "UINT_8",
    "uint16": "UINT_16",
    "uint32": "UINT_32",
    "uint64": "UINT_64",
    "float16": "FLOAT_16",
    "float32": "FLOAT_32",
    "float64": "FLOAT_64",
    "bfloat16": "BFLOAT_16",
    "complex64": "COMPLEX_64",
    "complex128": "COMPLEX_128",
    "int4": "SINT_4",
    "uint4": "UINT_4",
    "float8_e4m3fn": "FLOAT_8_E4M3_FN",
    "float8_e4m3fnuz": "FLOAT_8_E4M3_FNUZ",
    "float8_e5m2": "FLOAT_8_E5M2",
    "float8_e5m2fnuz": "FLOAT_8_E5M2_FNUZ",
    "float8_e8m0fnu": "FLOAT_8_E8M0_FNU",
}
_DTYPE = {v: k for k, v in _ELEMENT.items()}
#: Integers without a sign, as the compiler's own type i32 is: the graph says which it is.
_SIGNLESS = {"INT_4": 4, "INT_8": 8, "INT_16": 16, "INT_32": 32, "INT_64": 64}

#: The importer's and the compiler's ways to say that they have no lowering of an op or a type.
_UNSUPPORTED = re.compile(
    r"failed to legalize operation '(torch|onnx|arith\.(truncf|extf))|failed to convert SPIR-V type|unimplemented|not implemented|[Uu]nsupported|not supported"
    r"|unhandled torch type|does not have integral number of total bytes|is missing onnx opset version attribute|not yet"
)
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|OUT_OF_(HOST|DEVICE)_MEMORY|bad_alloc")
_STICKY = re.compile(
    r"VK_ERROR_DEVICE_LOST|DEVICE_LOST|CUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_FAILED)|hipErrorIllegalAddress"
)


class Iree(Backend):
    """IREE on "cpu" (llvm-cpu for the host's processor), "vmvx" (its portable interpreter), "vulkan", "cuda" or "hip";
    ahead of time for the architecture "sm_86", "sm_89", "gfx942" or "gfx950", whose code is compiled and not run.

    options: ``flags`` (further flags of iree-compile, a list), ``device_vendor`` and ``resource`` (of the node, for
    an adapter that is not a CPU).
    """

    vendor = "IREE"
    forms = ("onnx",)
    takes = _OPTIONS
    devices, closed = tuple(TARGETS), True
    oldest = "3.4.0"
    packages = ("iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0", ONNX)
    sticky, unsupported, out_of_memory = _STICKY, _UNSUPPORTED, _OUT_OF_MEMORY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self._target = TARGETS[device]
        if device == "vmvx":  # the runtimes of 3.4 to 3.9 refuse their own compilers' code for it
            self.oldest = "3.11.0"
        self._common: tuple[str, ...] = FLAGS  # those of them that the compiler has, once it is started
        self._flags = (*self._target.flags, *map(str, self.many("flags", list)))
        self.device_vendor = str(options.get("device_vendor", self._target.device_vendor))
        self.resource = str(options.get("resource", self._target.resource))
        self.needs = self._target.needs
        if not self._target.driver:
            self.checks = (checks.Build.name,)
        self._adapter = device

    def probe(self) -> RuntimeInfo:
        """Find the device and run a model of one Add on it.

        Raises Unavailable: a package is missing, the runtime has no such driver or it finds no device, or the device
        does not work (in IREE's words).
        """
        with importing("IREE"):
            import iree.compiler.version
            import iree.runtime
        self._common = tuple(x for x in FLAGS if _name_iree_flag(x) in _list_known_flags())
        self._flags = tuple(map(_rename_iree_flag, self._flags))
        if not self._target.driver:
            smoke_test(
                f"IREE for {self.device}", lambda: [2.0] * bool(self._code(make_probe_form())), "code of one Add"
            )
            return RuntimeInfo(iree.compiler.version.VERSION, f"no device (compiles for {self.device})")
        drivers = iree.runtime.query_available_drivers()
        if self._target.driver not in drivers:
            raise Unavailable(f"this IREE has no driver {self._target.driver}; it has {', '.join(drivers)}")
        self._flags = (*self._architecture(), *self._flags)
        said: list[str] = []

        def compute() -> Any:
            driver = iree.runtime.get_driver(self._target.driver)
            found = driver.query_available_devices()
            if not found:
                raise Unavailable(f"IREE's driver {self._target.driver} finds no device")
            at = _number_iree_device(self._target.driver)
            if at >= len(found):
                raise Unavailable(f"IREE's driver {self._target.driver} finds {len(found)} devices, not number {at}")
            said.extend((driver.dump_device_info(found[at]["device_id"]), found[at]["name"]))
            return self.build(make_probe_form()).run()[0]

        smoke_test(f"IREE's {self.device}", compute)
        adapter = _parse_vulkan_properties(said[0])
        # A Vulkan adapter of type cpu (lavapipe, SwiftShader) is a processor's imitation of a graphics device.
        self.emulated = self._target.driver == "vulkan" and adapter.get("type") == "cpu"
        name = adapter.get("name") or (
            processor.read_processor_name() if self._target.driver.startswith("local") else said[1]
        )
        if adapter.get("name"):
            self._adapter = name
        return RuntimeInfo(
            runtime_version=iree.compiler.version.VERSION, device=name, driver_version=adapter.get("driver_info", "")
        )

    def _architecture(self) -> tuple[str, ...]:
        """The flag for this node's device, unless an option names one: left out, it is an old card's, or an error."""
        if self._target.architecture is None:
            return ()
        flag, found = self._target.architecture
        flag = _rename_iree_flag(flag)
        given = any(_name_iree_flag(x) == flag for x in self._flags)
        name = "" if given else found()
        return (f"{flag}={name}",) if name else ()

    def _describe_flags(self) -> str:
        """What its rows say of its flags: those of this device, and those of all devices that this version lacks."""
        return " ".join((*self._flags, *(f"lacks={_name_iree_flag(x)}" for x in FLAGS if x not in self._common)))

    def recipe(self, form: Form) -> ProgramRecipe:
        check_form_has_model(form)
        flags = [x for x in (*self._common, *self._flags) if "input-type" not in x]
        return ProgramRecipe(
            run_model, {"driver": self._target.driver, "flags": flags}, setup=write_vulkan_lines(self.needs)
        )

    def build(self, form: Form) -> Program:
        """Import, compile and load the model, and copy its inputs to the device.

        Raises Unsupported (the importer or the compiler has no lowering of an op or a type, the runtime no such
        element type); the compiler's other errors as RuntimeError with its diagnostics.
        """
        _collect_iree_inputs(form)
        code = self._code(form)
        if not self._target.driver:
            return Program(_refuse_iree_run, f"code for {self.device}, {len(code)} B", None, self._describe_flags())
        dtypes = [x.dtype if x.kind == "tensor" else "" for x in onnx_graph.read_onnx_graph(form.model or b"").outputs]
        call = _load_iree_module(self._target.driver, code, dtypes)

        def bind_inputs(arrays: list[Any]) -> Callable[[], list[np.ndarray]]:
            views = [
                _make_iree_buffer(_open_iree_device(self._target.driver)[1], x)
                for x in _collect_iree_inputs(form.with_arrays(arrays))
            ]
            return lambda: call(views)

        where = f"{self._target.driver} ({self._adapter})"
        return Program(bind_inputs(form.arrays), where, None, self._describe_flags(), bind_inputs)

    def _code(self, form: Form) -> bytes:
        model = form.model or b""
        flags = (*self._common, *self._flags)
        key: tuple[bytes | str, ...] = (_read_iree_version(), processor.describe_processor(), *flags, model)
        return artefacts.load_or_make("iree", key, lambda: _compile_iree_model(model, flags))


def _collect_iree_inputs(form: Form) -> list[np.ndarray]:
    """The inputs in the model's order. Raises Unsupported."""
    values = list(name_onnx_tensors(form, "IREE's runtime").values())
    for value in values:
        if value.dtype.kind in "OSU":
            raise Unsupported("IREE has no element type for strings")
        if value.dtype.name not in _ELEMENT:
            raise Unsupported(f"IREE has no element type {value.dtype.name}")
    return values


def _refuse_iree_run() -> list[Any]:
    raise RuntimeError("code made ahead of time is not run")


# --- the device's runtime ---------------------------------------------------------------------------------------


@functools.cache
def _read_iree_version() -> str:
    from iree.compiler.version import VERSION

    return str(VERSION)


def _parse_vulkan_properties(said: str) -> dict[str, str]:
    """The "name: value" lines at the left margin of what a driver says of its device."""
    return {
        k: v.strip() for k, _, v in (line.partition(":") for line in said.splitlines()) if k and k == k.strip() and v
    }


def _number_iree_device(driver: str) -> int:
    """Which of a driver's devices is this process's: of Vulkan's it sees all."""
    return find_device_number() if driver == "vulkan" else 0


@functools.cache
def _open_iree_device(driver: str) -> tuple[Any, Any, Any]:
    """The process's one (VM instance, device, HAL module) of a driver."""
    import iree.runtime as rt

    instance, own = rt.VmInstance(), rt.get_driver(driver)
    at = _number_iree_device(driver)
    device = own.create_device(own.query_available_devices()[at]["device_id"]) if at else rt.get_device(driver)
    return instance, device, rt.create_hal_module(instance, device)


def _load_iree_module(driver: str, code: bytes, dtypes: list[str]) -> Callable[[list[Any]], list[np.ndarray]]:
    """A compiled module as a function of buffer views on the device; ``dtypes`` are those the graph declares."""
    import iree.runtime as rt

    instance, device, hal = _open_iree_device(driver)
    module = rt.VmModule.copy_buffer(instance, code)
    context = rt.VmContext(instance, [hal, module])
    # Without the flag of FLAGS that versions before 3.12 lack there is an asynchronous twin of it.
    (name,) = [x for x in module.function_names if not x.startswith("__") and not x.endswith("$async")]
    function = module.lookup_function(name)

    def call(views: list[Any]) -> list[np.ndarray]:
        given, made = rt.VmVariantList(len(views)), rt.VmVariantList(len(dtypes))
        for view in views:
            given.push_ref(view)
        context.invoke(function, given, made)
        found = [made.get_as_ref(i).deref(rt.HalBufferView) for i in range(len(dtypes))]
        return [_copy_buffer_view(device, view, dtype) for view, dtype in zip(found, dtypes)]

    return call


def _make_iree_buffer(device: Any, value: np.ndarray) -> Any:
    """``value`` on the device, in its true element type."""
    import iree.runtime as rt

    name = value.dtype.name
    raw = pack_low_bits(value) if name in PACKED_BITS else value.reshape(-1).view(np.uint8)
    memory = rt.MemoryType.DEVICE_LOCAL
    buffer = device.allocator.allocate_buffer_copy(
        memory_type=memory, allowed_usage=rt.BufferUsage.DEFAULT, device=device, buffer=raw
    )
    return rt.HalBufferView(buffer, value.shape, getattr(rt.HalElementType, _ELEMENT[name]))


def _name_element_dtype(element: str, declared: str) -> str:
    """Dtype of an element type's name; for an integer without a sign the ``declared`` one if it has that width."""
    width = _SIGNLESS.get(element)
    if width is None:
        return _DTYPE.get(element, "")
    return declared if declared in (f"int{width}", f"uint{width}") else f"int{width}"


def _copy_buffer_view(device: Any, view: Any, declared: str) -> np.ndarray:
    """A numpy copy of a buffer view, in the dtype of its elements."""
    import iree.runtime as rt

    element = rt.HalElementType(view.element_type).name
    dtype = _name_element_dtype(element, declared)
    if not dtype:
        raise TypeError(f"IREE returned elements of type {element}, which have no numpy dtype")
    shape, size = tuple(view.shape), view.byte_length
    if not size:
        return read_onnx_tensor_bytes(np.empty(0, np.uint8), dtype, shape)
    buffer = view.get_buffer()
    if not int(buffer.allowed_usage()) & int(rt.BufferUsage.MAPPING_SCOPED):
        buffer = _map_iree_buffer_to_host(device, buffer)
    return read_onnx_tensor_bytes(np.array(buffer.map().asarray([size], np.dtype(np.uint8))), dtype, shape)


def _map_iree_buffer_to_host(device: Any, buffer: Any) -> Any:
    """A copy of a device's buffer where the host can read it."""
    import iree.runtime as rt

    memory = rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE
    usage = rt.BufferUsage.TRANSFER_TARGET | rt.BufferUsage.MAPPING_SCOPED
    copy = device.allocator.allocate_buffer(memory, usage, buffer.byte_length())
    done = device.create_semaphore(0)
    device.queue_copy(buffer, copy, wait_semaphores=[], signal_semaphores=[(done, 1)])
    done.wait(1)
    return copy


# --- the compiler -----------------------------------------------------------------------------------------------

#: void (*)(severity, message, length, user data); severity: 0 note, 1 warning, 2 error, 3 remark (embedding_api.h).
_DIAGNOSTIC = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t, ctypes.c_void_p)
_ERROR = 2


@functools.cache
def _prepare_iree_compiler() -> Any:
    """Keep the compiler to one thread; the function that gives an invocation a callback for its diagnostics.

    Both are the C API's alone: Python's hands diagnostics to stderr, and to reach a session's context (for its threads)
    through `Session.context` leaves 5 MB behind for every session.
    """
    from iree.compiler.api import ctypes_dl

    ctypes_dl._initializeGlobalCL("iree-compile", "--mlir-disable-threading")
    listen = ctypes_dl._dylib.ireeCompilerInvocationEnableCallbackDiagnostics
    listen.argtypes, listen.restype = [ctypes.c_void_p, ctypes.c_int, _DIAGNOSTIC, ctypes.c_void_p], None
    return listen


def _name_iree_flag(flag: str) -> str:
    return flag.partition("=")[0]


@functools.cache
def _list_known_flags() -> frozenset[str]:
    """Names of the flags that this version's compiler has."""
    from iree.compiler.api import Session

    _prepare_iree_compiler()
    with Session() as session:
        return frozenset(map(_name_iree_flag, session.get_flags()))


def _rename_iree_flag(flag: str) -> str:
    """A flag by the name that this version's compiler has for it; one that it has under no name as it is, for the
    compiler to refuse."""
    name, equals, value = flag.partition("=")
    older = _FORMERLY.get(name, "")
    return older + equals + value if name not in _list_known_flags() and older in _list_known_flags() else flag


def _compile_iree_model(model: bytes, flags: tuple[str, ...]) -> bytes:
    """VM bytecode of a serialized ModelProto.

    A session a model: a session's context keeps the constants of every module that it ever held, and a new one costs
    a millisecond. The module is handed over as bytecode: borrowed from Python (`Invocation.import_module`) it ends the
    process with a segmentation fault (3.13.0).
    """
    from iree.compiler.api import Output, Session, Source

    said: list[str] = []

    @_DIAGNOSTIC
    def heard(severity: int, text: Any, length: int, _: Any) -> None:
        if severity == _ERROR:
            said.append(ctypes.string_at(text, length).decode(errors="replace"))

    imported = _import_onnx_to_mlir(model)
    listen = _prepare_iree_compiler()
    with Session() as session:
        session.set_flags(*flags)
        invocation = session.invocation()
        listen(invocation._inv_p, 0, heard, None)
        source = Source.wrap_buffer(session, imported, buffer_name="model")
        if not invocation.parse_source(source) or not invocation.execute():
            text = "; ".join(said) or "the compiler failed without a diagnostic"
            raise RuntimeError(text)
        output = Output.open_membuffer()
        invocation.output_vm_bytecode(output)
        code = bytes(output.map_memory())
        output.close()
    return code


def _import_onnx_to_mlir(model: bytes) -> bytes:
    """MLIR bytecode of the model in torch's ONNX dialect. Raises Unsupported with the importer's words."""
    import onnx
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer

    proto = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(model), data_prop=True)
    with ir.Context() as context:
        context.enable_multithreading(False)
        info = onnx_importer.ModelInfo(proto)
        try:
            module = info.create_module(context=context).operation
            onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        except onnx_importer.OnnxImportError as error:
            raise Unsupported(f"the importer: {error}") from error
        module.verify()
        code = io.BytesIO()
        module.write_bytecode(code)
        return code.getvalue()


def run_model(model: str, inputs: dict, driver: str, flags: list) -> list:
    """Outputs of an ONNX model on IREE."""
    import os
    import subprocess
    import sys
    import tempfile

    import iree.compiler
    import iree.runtime as rt
    import onnx

    loaded = onnx.load(model)
    folder = tempfile.mkdtemp()
    source, target = os.path.join(folder, "model.onnx"), os.path.join(folder, "model.mlir")
    onnx.save(onnx.shape_inference.infer_shapes(loaded, data_prop=True), source)
    command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", source, "-o", target]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    code = iree.compiler.compile_file(target, input_type="onnx", extra_args=flags)
    if driver == "vulkan":  # it asks for memory at multiples of 4,096, which NumPy's is not (3.13)
        rt.array_interop.BufferCompatibility = type("Copied", (), {"IMPORTABLE": 0})
    config = rt.Config(driver)
    call = rt.load_vm_module(rt.VmModule.copy_buffer(config.vm_instance, code), config)[loaded.graph.name]
    packed = {"int4": "SINT_4", "uint4": "UINT_4", "int2": "SINT_2", "uint2": "UINT_2"}
    given, got = [], []
    for x in inputs.values():
        if x.dtype.name in packed:
            raw = np.frombuffer(onnx.numpy_helper.from_array(x).raw_data, np.uint8)
            buffer = config.device.allocator.allocate_buffer_copy(
                memory_type=rt.MemoryType.DEVICE_LOCAL,
                allowed_usage=rt.BufferUsage.DEFAULT,
                device=config.device,
                buffer=raw,
            )
            kind = getattr(rt.HalElementType, packed[x.dtype.name])
            given.append(rt.DeviceArray(config.device, rt.HalBufferView(buffer, x.shape, kind)))
        else:
            given.append(rt.asdevicearray(config.device, x))
    found = call(*given)
    for output, x in zip(loaded.graph.output, found if isinstance(found, (tuple, list)) else [found]):
        kind = output.type.tensor_type.elem_type
        if onnx.helper.tensor_dtype_to_np_dtype(kind).name in packed:  # its arrays have none of these
            view = rt.HalBufferView(x._buffer_view.get_buffer(), [x._buffer_view.byte_length], rt.HalElementType.UINT_8)
            raw = rt.DeviceArray(config.device, view).to_host().tobytes()
            made = onnx.TensorProto(dims=list(x._buffer_view.shape), data_type=kind, raw_data=raw)
            got.append(onnx.numpy_helper.to_array(made))
        else:
            got.append(np.array(x))
    return got
