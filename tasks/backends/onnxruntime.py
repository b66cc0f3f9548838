"""ONNX Runtime: one backend per execution provider, which takes every node itself or says that it cannot."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from tasks.arrays.low_bits import pack_low_bits
from tasks.arrays.tree import flatten_nested_lists
from tasks.backends.base import FRACTION, TIMES_KERNELS, Backend, BaselineArm, importing, smoke_test
from tasks.backends.needs import VULKAN_FOR_WEBGPU, VULKAN_LOADER, Missing, find_software_vulkan, write_vulkan_lines
from tasks.backends.shared import onnx_graph, ort_shapes, ort_timings
from tasks.backends.shared.native_output import capture_native_output
from tasks.backends.shared.onnx_form import make_probe_form, name_onnx_inputs, read_onnx_tensor_bytes
from tasks.backends.shared.ort_passes import DISABLED, PASSES
from tasks.backends.shared.ort_providers import CALLED, EMULATED_SOC, PROVIDERS, OrtProvider, is_provider_emulated
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_model
from tasks.devices import cuda_driver, find_device_number
from tasks.model import EPS, Fallback, Form, Program, RuntimeInfo, Unavailable, Unsupported, get_numpy_dtype
from tasks.model.dtypes import ELEMENT_TYPE, NATIVE, PACKED_BITS, TABLE
from tasks.packages import ONNX, load_package_libraries
from tasks.variables import count_compute_threads

#: ONNX Runtime's levels of optimisation (ort.GraphOptimizationLevel), the least first.
LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
#: Options of providers that compute coarser than the tensors' dtype, the coarsest first, and what in.
_COARSER = {
    "trt_int8_enable": "float8_e4m3fn",
    "migraphx_int8_enable": "float8_e4m3fn",
    "migraphx_fp8_enable": "float8_e4m3fn",
    "trt_bf16_enable": "bfloat16",
    "migraphx_bf16_enable": "bfloat16",
    "trt_fp16_enable": "float16",
    "migraphx_fp16_enable": "float16",
    "use_tf32": "tfloat32",
}
_OPTIONS = (
    "provider_options",
    "session_config",
    "graph_optimization",
    "tf32",
    "soc_model",
    "compute_precision",
    "library",
    "vendor",
    "device_vendor",
    "resource",
)

#: Dtype names of ORT's type strings ("tensor(float)"), which are ONNX's in small letters.
_DTYPE_OF_TYPE = {row.onnx[0].lower(): row.name for row in TABLE.values() if row.onnx}

_BAD_GRAPH = re.compile(
    r"Type Error: Type .* is invalid|Type parameter \(\w+\) of Optype \(\w+\) bound to different types|Unrecognized attribute"
)
_UNSUPPORTED = re.compile(
    r"NOT_IMPLEMENTED|Could not find an implementation for|is not currently registered or supported"
    r"|[Uu]nsupported model IR version|under development and support for this is limited|is not a registered function/op"
    r"|No [Oo]p registered for|No opset import for domain|No schema registered for|[Uu]nsupported ONNX (opset|version)"
    r"|Unsupported data type|(is|are) not( yet)? supported|not supported yet"
    r"|does not support the following ONNX operations|Unsupported value of attribute|CPU plug-in doesn't support"
    r"|is_onesided and inverse attributes cannot be enabled at the same time"
    r"|missing type information needed to construct the ORT tensor|Provider type for .* node with name .* is not set"
    r"|requires f16 but the device does not support it|Dilation not supported for AutoPadType|Training mode does not support"
)
_NOT_LOADED = re.compile(r"Failed to load library \S*?([^/\\\s]+) with error: (.*)")
_ASSERTION = re.compile(r"/onnxruntime\S*:\d+ .* was false\. ", re.DOTALL)
_ADAPTER_REFUSED = re.compile(r"Warning: (.*? required\.)\n - While initializing adapter")
#: Providers whose kernels ORT assigns without recording it (1.27).
_KEEPS_NO_RECORD = ("WebGpuExecutionProvider",)
_CPU_FORBIDDEN = "fallback to CPU EP has been explicitly disabled"
_STICKY = re.compile(
    cuda_driver.STICKY.pattern
    # Of CUDA's numbers from 700 on those that lose the context: 701 is a launch that wants too much (driver_types.h).
    + r"|hipErrorIllegalAddress|CUDA failure 7(?:0[029]|1[04-9])\b|887A000[567]|device (was )?(removed|lost)",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(
    r"Failed to allocate memory|bad_alloc|out of memory|OutOfMemory|Available memory of \d+ is smaller|OUT_OF_MEMORY"
)


class OnnxRuntime(Backend):
    """ONNX Runtime with exactly one execution provider.

    device: a short name of `PROVIDERS`, or X for any ``<X>ExecutionProvider`` that ORT lists. options:
    ``provider_options`` (over the provider's defaults), ``session_config`` (entries of SessionOptions),
    ``graph_optimization`` ("disable", "basic", "extended", "all"; default ORT's), ``tf32`` (bool, CUDA only),
    ``soc_model`` (QNN only: Qualcomm's number of the chip that is compiled for), ``compute_precision`` (what is
    declared), ``library`` (path of a plugin provider), ``vendor``, ``device_vendor`` and ``resource`` (over the
    table's).

    emulated: QNN on x86-64, whose library is Qualcomm's emulation of the HTP; WebGPU on a machine without a GPU,
    where the adapter is Vulkan on the CPU. Both then take CPU slots, unless ``device_vendor`` or ``resource`` says
    that the nodes have the device.
    """

    forms = ("onnx",)
    takes = _OPTIONS
    devices = tuple(PROVIDERS)
    called = CALLED
    sticky, unsupported, out_of_memory = _STICKY, _UNSUPPORTED, _OUT_OF_MEMORY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        known = PROVIDERS.get(device) or OrtProvider("", device, device, "GPU")
        self._known, self.takes_threads, self.toolkit = known, device == "cpu", known.toolkit
        self._options = dict(known.options)
        if self.switch("tf32") and "use_tf32" not in known.options:
            raise ValueError(f"backend {name}: tf32 is an option of ort-cuda only")
        if "use_tf32" in known.options and "tf32" in options:
            self._options["use_tf32"] = str(int(self.switch("tf32")))
        if "soc_model" in options:
            if device != "qnn":
                raise ValueError(f"backend {name}: soc_model is an option of ort-qnn only")
            self._options["soc_model"] = str(options["soc_model"])
        self._options |= {str(k): str(v) for k, v in self.many("provider_options", dict).items()}
        # TensorRT chooses kernels by timings, which are kept where the options do not say otherwise.
        self._timed = device == "tensorrt" and not any("timing_cache" in name for name in self._options)
        self._session_config = self.many("session_config", dict)
        self.choice("compute_precision", EPS, "")
        self._level = self.choice("graph_optimization", LEVELS, "")
        self.vendor, self.device_vendor, self.resource = known.vendor, known.device_vendor, known.resource
        if device == "openvino" and not self._options["device_type"].startswith("CPU"):
            self.device_vendor, self.resource = "intel", self._options["device_type"][:3]
        self.packages, self.emulated = (*known.packages, ONNX) if known.packages else (), is_provider_emulated(device)
        self.oldest = "1.16.3" if device == "cpu" else ""
        if self.emulated:
            self.device_vendor, self.resource = "", "CPU"
        if device == "webgpu":
            self.needs = VULKAN_FOR_WEBGPU if self.emulated else (VULKAN_LOADER,)
        if self.emulated and device == "qnn":
            self._options.setdefault("soc_model", EMULATED_SOC)
        self.vendor = str(options.get("vendor", self.vendor))
        self.device_vendor = str(options.get("device_vendor", self.device_vendor))
        self.resource = str(options.get("resource", self.resource))
        self.alone = TIMES_KERNELS if device == "tensorrt" else ""
        self._provider = known.provider
        self._devices: list[Any] = []
        self._found = False

    # -- the device -------------------------------------------------------------------------------------------

    def probe(self) -> RuntimeInfo:
        """Find the provider and run a model of one Add on it alone.

        Raises Unavailable: the package is missing, the provider is not in it (naming those that are), or it is
        listed but does not work (in ORT's words).
        """
        if self.device == "dml" and sys.platform != "win32":
            raise Unavailable(f"DirectML is part of Windows; this is {platform.system()}")
        with importing("onnxruntime"):
            import onnxruntime as ort
        self._find_provider(ort)
        said: list[str] = []

        def compute() -> Any:
            with capture_native_output(said):
                program = self.build(make_probe_form())
                result = program.run()[0]
            if program.fallback:
                raise Unavailable(f"{self._provider}: smoke test failed (one-Add model): {program.fallback}")
            return result

        def words(error: Exception) -> str:
            # Of a library that cannot be loaded and of a refused adapter, libraries tell stderr only.
            text = "".join(said)
            if cause := _NOT_LOADED.search(text):
                return f"{cause[1]} cannot be loaded: {cause[2].strip()}"
            if refused := _ADAPTER_REFUSED.findall(text):
                return f"no suitable Vulkan driver: {'; '.join(refused)}"
            return _ASSERTION.sub("", str(error))

        precision = self._compute_precision()
        try:
            smoke_test(self._provider, compute, within=2 * EPS.get(precision, EPS["float32"]), words=words)
        except Unavailable as error:
            if _ADAPTER_REFUSED.search("".join(said)) and self.emulated and not find_software_vulkan():
                raise Missing(VULKAN_FOR_WEBGPU[1:], str(error)) from error
            raise
        device = self.device
        if self._devices:
            hardware = self._devices[0].device
            device = f"{self.device} ({hardware.vendor} {hardware.type.name})"
        if "soc_model" in self._options:
            device += f", soc_model {self._options['soc_model']}"
        return RuntimeInfo(
            runtime_version=ort.__version__,
            device=device,
            compute_precision=precision,
            of_products=precision == "tfloat32",
            unasked=bool(precision) and not self._asks_for_precision(),
            build=_read_ort_commit(ort),
        )

    def _find_provider(self, ort: Any) -> None:
        wanted = self._known.provider or f"{self.device}ExecutionProvider"
        library, missing = self._plugin_library()
        if library:
            # First: once it is loaded, ORT lists a plugin among its own, but makes no session by that name.
            if wanted not in {x.ep_name for x in ort.get_ep_devices()}:
                try:
                    ort.register_execution_provider_library(wanted, library)
                except Exception as error:
                    raise Unavailable(f"the plugin {library} cannot be loaded: {error}") from error
            devices = [x for x in ort.get_ep_devices() if x.ep_name == wanted]
            if devices:
                # Other providers see those alone that the vendor's variable names.
                at = find_device_number() if self.device == "webgpu" else 0
                if at >= len(devices):
                    raise Unavailable(f"the plugin {library} offers {len(devices)} devices, not number {at}")
                self._provider, self._devices, self._found = wanted, devices[at : at + 1], True
                return
            missing = f"; the plugin {library} was loaded but offers no device here"
        available = ort.get_available_providers()
        by_name = {x.lower(): x for x in available}
        if wanted.lower() in by_name:
            self._provider, self._found = by_name[wanted.lower()], True
            if self.device_vendor == "nvidia" and hasattr(ort, "preload_dlls"):
                # CUDA's and cuDNN's libraries are in wheels of their own, where no loader looks for them.
                with contextlib.redirect_stdout(None):
                    ort.preload_dlls()
            if self._known.libraries:
                load_package_libraries(*self._known.libraries)
            return
        raise Unavailable(
            f"this onnxruntime {ort.__version__} has no {wanted}; it has {', '.join(sorted(available))}{missing}"
            f"{f'; {self._known.source}' if self._known.source else ''}"
        )

    def _plugin_library(self) -> tuple[str, str]:
        """Path of the plugin library that holds the provider ("" if there is none), and why there is none."""
        if self.options.get("library"):
            return str(self.options["library"]), ""
        package = self._known.python_package
        if not package:
            return "", ""
        import importlib

        try:
            return str(importlib.import_module(package).get_library_path()), ""
        except ImportError as error:
            return "", f"; its plugin package {package} cannot be imported ({error})"

    def _asks_for_precision(self) -> bool:
        """Whether an option of the backend decides what is computed in; else it is the provider's choice."""
        given = {*self.options, *self.many("provider_options", dict)}
        return bool(given & {"compute_precision", "precision", "enable_htp_fp16_precision", *_COARSER})

    def permits(self, precision: str) -> bool:
        """TF32 is allowed; TensorRT's provider sets flags of its builder,
        which "enable layer selection" and fall back to float32 (`BuilderFlag`). The HTP has no float32, MIGraphX
        rewrites the program in the narrower type, OpenVINO's provider converts the model: those are obeyed."""
        return precision == "tfloat32" or self.device in ("tensorrt", "tensorrt-rtx")

    def _compute_precision(self) -> str:
        if "compute_precision" in self.options:
            return str(self.options["compute_precision"])
        for option, precision in _COARSER.items():
            if self._options.get(option, "").lower() in ("1", "true"):
                return precision
        if self.device == "openvino" and self._options.get("precision", "").upper() == "FP16":
            return "float16"
        if self._options.get("enable_htp_fp16_precision", "").lower() in ("0", "false"):
            return ""
        return self._known.compute_precision

    # -- one sample -------------------------------------------------------------------------------------------

    def build(self, form: Form) -> Program:
        """Make a session of the provider alone, and its inputs.

        Raises Unsupported (no kernel, unknown op or type, opset or IR too new, or a graph whose types the ONNX
        specification does not allow: prefixed "invalid graph: "), Fallback (the provider leaves nodes to the CPU),
        Vacuous never; ORT's other errors as they are.
        """
        import onnxruntime as ort

        if not self._found:
            self._find_provider(ort)
        session = self._session(ort, form.model or b"")
        placement, fallback = self._placement(session, form.model or b"")

        def runner(form: Form) -> Callable[[], list[Any]]:
            return _make_ort_runner(
                session, {name: _make_ort_input(ort, value) for name, value in name_onnx_inputs(form).items()}
            )

        def bind_inputs(arrays: list[Any]) -> Callable[[], list[Any]]:
            return runner(form.with_arrays(arrays))

        return Program(runner(form), placement, fallback, self._flags(), bind_inputs, threads=True)

    def recipe(self, form: Form) -> ProgramRecipe:
        check_form_has_model(form)
        package, given = self._known.python_package, self.options.get("library")
        entries = {str(k): str(v) for k, v in self._session_config.items()}
        entries["session.record_ep_graph_assignment_info"] = "1"  # a provider may fail only with it
        if self.device != "cpu":
            entries["session.disable_cpu_ep_fallback"] = "1"
        settings = {
            "provider": str(self._provider or f"{self.device}ExecutionProvider"),
            "options": dict(self._options),
            "entries": entries,
            "level": LEVELS.get(self._level, ""),
            "plugin": bool(package or given),
            "threads": 1,
        }
        setup = write_vulkan_lines(self.needs)
        if package or given:
            library = repr(str(given)) if given else f"{package}.get_library_path()"
            imports = ["import onnxruntime as ort", *[f"import {package}"] * (not given)]
            register = f"ort.register_execution_provider_library({settings['provider']!r}, {library})"
            setup = (*setup, *imports, register)
        graph = onnx_graph.read_onnx_graph(form.model or b"")
        if all(x.dtype in NATIVE or x.dtype == "str" for x in (*graph.inputs, *graph.outputs)):
            return ProgramRecipe(run_model, settings, (make_ort_session,), setup=setup)
        return ProgramRecipe(run_ort_values, settings, (make_ort_session,), setup=setup)

    def eager(self, form: Form) -> BaselineArm:
        return self.eager_torch(form)

    def levels(self) -> Mapping[str, Backend]:
        """ORT's levels up to the one that is asked for."""
        names = list(LEVELS)
        last = self._level or names[-1]
        return {x: self.but(_level=x) for x in names[: names.index(last)]} | {last: self}

    def passes(self) -> tuple[str, ...]:
        return () if self._level == "disable" else PASSES

    def without(self, passes: Collection[str]) -> Backend:
        return self.but(_session_config={**self._session_config, DISABLED: ";".join(passes)})

    def precise(self) -> Backend | None:
        return self.but(_options={**self._options, "use_tf32": "0"}) if self._options.get("use_tf32") == "1" else None

    def _provider_options(self) -> dict[str, str]:
        """What the provider is given: its options, and the share of a GPU's memory that is this process's own."""
        if FRACTION not in os.environ or self._provider != "CUDAExecutionProvider":
            return self._options
        with contextlib.suppress(OSError, AttributeError, cuda_driver.CudaError):
            bound = int(float(os.environ[FRACTION]) * cuda_driver.measure_gpu_memory(cuda_driver.load_cuda_driver()))
            return {"gpu_mem_limit": str(bound)} | self._options
        return self._options

    def _session(self, ort: Any, model: bytes, alone: bool = True) -> Any:
        """alone: nothing may be left to the CPU, not what is there by design either."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = count_compute_threads()
        options.log_severity_level = 4
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if self.device != "cpu" and alone:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        for key, value in self._session_config.items():
            options.add_session_config_entry(str(key), str(value))
        if self._level:
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[self._level])
        given = self._provider_options()
        providers: list[Any] | None = [(self._provider, given)] if given else [self._provider]
        if self._devices:
            options.add_provider_for_devices(self._devices, self._options)
            providers = None
        try:
            with ort_timings.reuse_ort_timings(self._known.libraries if self._timed else None) as timed:
                if timed:
                    providers = [(self._provider, given | timed)]
                # enable_fallback=0: else ORT answers a failing provider with a session on the CPU.
                return ort.InferenceSession(model, options, providers=providers, enable_fallback=0)
        except Exception as error:
            text = str(error)
            if _CPU_FORBIDDEN in text:
                if self._provider in ort_shapes.PROVIDERS:
                    session = self._session(ort, model, alone=False)
                    if self._placement(session, model)[1] is None:
                        return session
                raise Fallback(f"{self._provider} leaves nodes to the CPU: {text}") from error
            if "INVALID_GRAPH" in text and _BAD_GRAPH.search(text):
                raise Unsupported(f"invalid graph: {text}") from error
            if _UNSUPPORTED.search(text) or _BAD_GRAPH.search(text):
                # Not INVALID_GRAPH: ORT's own body of a function op does not type-check, for want of a kernel.
                raise Unsupported(text) from error
            raise

    def _placement(self, session: Any, model: bytes) -> tuple[str, str | None]:
        """Where the nodes are, as "Provider: 2 Add, 1 Mul"; and why that is not what was asked (or None)."""
        registered = list(session.get_providers())
        if self._provider not in registered:
            return ", ".join(registered), f"asked for {self._provider}, the session has {', '.join(registered)}"
        nodes = _count_nodes_by_provider(session)
        if nodes is None:
            return self._provider, None
        if not nodes and self._provider in _KEEPS_NO_RECORD:
            # The CPU is forbidden, so all nodes are the provider's; what has inputs cannot be folded away entirely.
            folded = not session.get_inputs()
            return self._provider, f"constant folding on the CPU left no node for {self._provider}" if folded else None
        words = [f"{name}: " + ", ".join(f"{n} {op}" for op, n in sorted(ops.items())) for name, ops in nodes.items()]
        placement = "; ".join(words) or f"{self._provider}: no node left after constant folding"
        elsewhere = [word for word, name in zip(words, nodes) if name != self._provider]
        if elsewhere and ort_shapes.is_node_left_to_cpu(self._provider, nodes, model):
            return f"{placement} (shapes, by design)", None
        if elsewhere:
            return placement, f"asked for {self._provider}, but {'; '.join(elsewhere)}"
        if not nodes and self._provider != "CPUExecutionProvider":
            return placement, f"constant folding on the CPU left no node for {self._provider}"
        return placement, None

    def _flags(self) -> str:
        flags = [f"{k}={v}" for k, v in sorted(self._options.items())]
        if self._level:
            flags.append(f"graph_optimization={self._level}")
        if self._timed:
            flags.append("timings=kept")
        return " ".join(flags)


def _count_nodes_by_provider(session: Any) -> dict[str, Counter[str]] | None:
    """Op counts of the optimized graph by provider; None where this ORT does not tell (before 1.24)."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    nodes: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        ops = nodes.setdefault(part.ep_name, Counter())
        for node in part.get_nodes():
            ops[f"{node.domain}.{node.op_type}" if node.domain else node.op_type] += 1
    return nodes


def _make_ort_input(ort: Any, value: Any) -> Any:
    """What ORT takes for an input: an OrtValue over the array's memory; strings, sequences and None as they are."""
    if value is None or isinstance(value, list):
        return value
    if value.dtype.kind in "OSU":
        return value.astype(object) if value.dtype.kind != "O" else value
    name = value.dtype.name
    if name in NATIVE:
        return ort.OrtValue.ortvalue_from_numpy(value)
    if name not in ELEMENT_TYPE:
        raise Unsupported(f"ONNX has no element type {name}")
    if not hasattr(ort.OrtValue, "ortvalue_from_numpy_with_onnx_type"):
        raise Unsupported(f"the Python API of onnxruntime {ort.__version__} takes no {name} array")
    if name in PACKED_BITS:
        # ORT takes the shape of the array it is given and reads the packed bytes from its beginning.
        raw = np.zeros(value.shape, np.uint8)
        packed = pack_low_bits(value)
        raw.reshape(-1)[: packed.size] = packed
    else:
        raw = value.view(np.uint16 if value.dtype.itemsize == 2 else np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, ELEMENT_TYPE[name])


def _make_ort_runner(session: Any, feeds: dict[str, Any]) -> Callable[[], list[Any]]:
    """``run()`` of a session; outputs as numpy arrays in their true dtype, sequences flattened, None for no value.

    ORT has two ways in: OrtValues, which keep every dtype, and its classic one, which alone takes and gives
    sequences and strings, but has no array for bfloat16 and packed types.
    """
    outputs = session.get_outputs()
    names = [x.name for x in outputs]
    plain = all(x.type.startswith(("tensor(", "optional(tensor(")) for x in outputs)
    if plain and all(hasattr(x, "data_ptr") for x in feeds.values()):
        return lambda: [_copy_ort_value(x) for x in session.run_with_ort_values(names, feeds)]
    dtypes = [_name_ort_dtype(x.type) for x in outputs]
    for output, dtype in zip(outputs, dtypes):
        if "map(" in output.type or "sparse_tensor(" in output.type:
            raise Unsupported(f"output {output.name} is a {output.type}, which has no array form")
        if dtype in PACKED_BITS or dtype in ("bfloat16", "float8_e5m2fnuz"):
            raise Unsupported(
                f"the Python API of onnxruntime gives no {output.type} where an input or output is a string, a "
                "sequence or an empty optional"
            )

    def run() -> list[Any]:
        found = session.run(names, feeds)
        return [_make_ort_dtype(x, dtype) for value, dtype in zip(found, dtypes) for x in flatten_nested_lists(value)]

    return run


def _name_ort_dtype(type_text: str) -> str:
    """Dtype name of the innermost tensor of an ORT type: "seq(tensor(float))" → "float32"."""
    inner = type_text.rpartition("(")[2].rstrip(")")
    return _DTYPE_OF_TYPE.get(inner, inner)


def _count_element_bits(dtype: str) -> int:
    """Bits of one element in a tensor's bytes."""
    return PACKED_BITS.get(dtype) or 8 * get_numpy_dtype(dtype).itemsize


def _make_ort_dtype(value: Any, dtype: str) -> Any:
    if value is None:
        return None
    array = np.asarray(value)
    if dtype != "str" and array.dtype.name != dtype and array.dtype.itemsize == get_numpy_dtype(dtype).itemsize:
        return array.view(get_numpy_dtype(dtype))
    return array


def _copy_ort_value(value: Any) -> Any:
    """A numpy copy of an OrtValue in its true dtype; None if it holds none."""
    if not value.has_value():
        return None
    dtype = _name_ort_dtype(value.data_type())
    if dtype not in ELEMENT_TYPE:
        raise TypeError(f"onnxruntime returned a {value.data_type()}, which has no numpy dtype")
    if dtype == "str":
        return value.numpy()
    if dtype in NATIVE:
        # A copy: the array would be a view of the session's memory, which may be the input's own.
        return np.array(value.numpy())
    if value.device_name() != "cpu":
        raise TypeError(f"a {value.data_type()} left on {value.device_name()} cannot be read from Python")
    shape = tuple(value.shape())
    # Not tensor_size_in_bytes(): onnxruntime before 1.24 has none.
    size = -(-int(np.prod(shape, dtype=np.int64)) * _count_element_bits(dtype) // 8)
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint8) if size else np.empty(0, np.uint8)
    return read_onnx_tensor_bytes(raw, dtype, shape)


def _read_ort_commit(ort: Any) -> str:
    """The commit that ONNX Runtime was built of, for the build of a backend; "" where it does not say."""
    told = re.search(r"git-commit-id=([0-9a-f]+)", ort.get_build_info()) if hasattr(ort, "get_build_info") else None
    return f"onnxruntime {told[1]}" if told else ""


# --- what a finding calls ----------------------------------------------------------------------------------------


def make_ort_session(
    model: str, provider: str, options: dict, entries: dict, level: str, plugin: bool, threads: int
) -> Any:
    """A session of an ONNX model with one execution provider; plugin: one of a library that was registered."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = threads
    settings.log_severity_level = 4
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    if level:
        settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    providers: Any = [(provider, options)]
    if plugin:
        devices = [x for x in ort.get_ep_devices() if x.ep_name == provider]
        settings.add_provider_for_devices(devices[:1], options)
        providers = None
    # enable_fallback=0: else a provider that fails is answered with a session on the CPU.
    return ort.InferenceSession(model, settings, providers=providers, enable_fallback=0)


def run_model(model: str, inputs: dict, **settings: Any) -> list:
    """Outputs of an ONNX model on ONNX Runtime."""
    return make_ort_session(model, **settings).run(None, inputs)


def run_ort_values(model: str, inputs: dict, **settings: Any) -> list:
    """As `run_model`, where a tensor has a dtype that numpy lacks: such a one is given and taken as its bytes."""
    import ctypes

    import onnx
    import onnxruntime as ort

    session = make_ort_session(model, **settings)
    graph, given, got = onnx.load(model).graph, {}, []
    own = {x.name: x.type.tensor_type.elem_type for x in (*graph.input, *graph.output)}
    for name, x in inputs.items():
        if x.dtype.isbuiltin == 1:
            given[name] = ort.OrtValue.ortvalue_from_numpy(x)
        else:  # the shape is that of the array, of which fewer bytes are read where an element has less than one
            raw = np.frombuffer(onnx.numpy_helper.from_array(x).raw_data, f"u{x.itemsize}")
            given[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.resize(raw, x.shape), own[name])
    names = [x.name for x in session.get_outputs()]
    for name, x in zip(names, session.run_with_ort_values(names, given)):
        dtype, shape = onnx.helper.tensor_dtype_to_np_dtype(own[name]), x.shape()
        if dtype.isbuiltin == 1:
            got.append(x.numpy())
        else:
            empty = onnx.numpy_helper.from_array(np.zeros(shape, dtype))
            memory = ctypes.string_at(x.data_ptr(), len(empty.raw_data))
            made = onnx.TensorProto(dims=shape, data_type=own[name], raw_data=memory)
            got.append(onnx.numpy_helper.to_array(made))
    return got
