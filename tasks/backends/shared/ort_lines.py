"""How a script makes a session of ONNX Runtime as its backend does."""

from __future__ import annotations

from typing import Any

from tasks.backends.needs import vulkan_lines
from tasks.backends.shared import onnx_graph
from tasks.backends.shared.few_lines import FROM_RAW, RAW, FewLines, NoScript, in_onnx, lacked
from tasks.model import Form
from tasks.model.dtypes import ELEMENT_TYPE, TABLE

#: ONNX Runtime's levels of optimisation (ort.GraphOptimizationLevel), the least first.
LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


def session_lines(backend: Any) -> tuple[list[str], str]:
    """(the lines that make the session's options, source of its providers)."""
    options = [
        "options = ort.SessionOptions()",
        "options.intra_op_num_threads = options.inter_op_num_threads = 1",
        "options.log_severity_level = 4",
        # As the backend's session has it: a provider may fail only with it.
        'options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")',
    ]
    if backend.device != "cpu":
        options.append('options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")')
    options += [f"options.add_session_config_entry({str(k)!r}, {str(v)!r})" for k, v in backend._session_config.items()]
    if backend._level:
        options.append(f"options.graph_optimization_level = ort.GraphOptimizationLevel.{LEVELS[backend._level]}")
    provider = str(backend._provider or backend._known.provider)
    providers = repr([(provider, backend._options)] if backend._options else [provider])
    package = backend._known.python_package
    if package or backend.options.get("library"):  # a plugin: here its own environment may not be at hand
        given = backend.options.get("library")
        library = repr(str(given)) if given else f"__import__({package!r}).get_library_path()"
        options += [
            f"ort.register_execution_provider_library({provider!r}, {library})",
            f"devices = [x for x in ort.get_ep_devices() if x.ep_name == {provider!r}][:1]",
            f"options.add_provider_for_devices(devices, {backend._options!r})",
        ]
        providers = "None"
    return options, providers


def few_lines(backend: Any, form: Form) -> FewLines:
    """`Backend.few_lines` of a provider."""
    in_onnx(form)
    options, providers = session_lines(backend)
    # enable_fallback=0: else a failing provider is answered with a session on the CPU.
    make = (
        f"session = ort.InferenceSession(model.SerializeToString(), options, providers={providers}, enable_fallback=0)"
    )
    imports, run = _run(form)
    return FewLines((*imports, "import onnxruntime as ort"), (*options, make, *run), vulkan_lines(backend.needs))


def _run(form: Form) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(imports, lines that run the session): by OrtValues where a tensor has a dtype that numpy lacks. Raises NoScript."""
    given, made = lacked(form)
    exotic = {x for x in (*given.values(), *made.values()) if x in TABLE}
    if not exotic:
        return (), ("got = session.run(None, feeds)",)
    if not exotic >= {*given.values(), *made.values()}:
        raise NoScript("no short script: a tensor has a dtype that no array has")
    graph = onnx_graph.read(form.model or b"")
    if "str" in {x.dtype for x in (*graph.inputs, *graph.outputs)}:
        raise NoScript("no short script: ONNX Runtime takes strings as arrays, and no other dtype of these beside them")
    types = {name: ELEMENT_TYPE[dtype] for name, dtype in given.items()}
    # ORT takes the shape of the array, and reads the bytes from its beginning: there are more of them than numbers take.
    taken = f"ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.resize({RAW}, x.shape), types[k])"
    own = ", ".join(f"{name!r}: ({ELEMENT_TYPE[dtype]}, {TABLE[dtype].bits})" for name, dtype in made.items())
    return ("import ctypes",), (
        f"types = {types}",
        f"given = {{k: {taken} if k in types else ort.OrtValue.ortvalue_from_numpy(x) for k, x in feeds.items()}}",
        f"own, names = {{{own}}}, [x.name for x in session.get_outputs()]",
        FROM_RAW,
        "bytes_of = lambda x, bits: ctypes.string_at(x.data_ptr(), -(-int(np.prod(x.shape())) * bits // 8))",
        "found = zip(names, session.run_with_ort_values(names, given))",
        "got = [read(x.shape(), own[k][0], bytes_of(x, own[k][1])) if k in own else x.numpy() for k, x in found]",
    )
