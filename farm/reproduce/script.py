"""Writes the standalone script of one case: its data embedded, the runtime called as its backend calls it.

What comes from a lake or a cache gets into a script as base64 or through repr() only, never as code.
"""

from __future__ import annotations

import base64
import inspect
import io
import json
import keyword
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from farm.fleet.envs import OWN_PACKAGES, Environment
from tasks import catalogs
from tasks.arrays import torch_tree
from tasks.arrays.pack import dtype_name, save
from tasks.arrays.tree import decode, spec_of
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.backends.shared.onnx_form import graph_inputs, input_values, pack
from tasks.catalogs.user import load
from tasks.judge.compare import tolerance_of
from tasks.judge.verdict import Policy
from tasks.model import EPS, LARGEST, SMALLEST_NORMAL, WITHOUT_NOISE, Form, Group, Leaf, OpClass, is_inexact, np_dtype
from tasks.model.dtypes import ELEMENT_TYPE, NATIVE, PACKED_BITS

#: Columns of the embedded data.
WIDTH = 100
#: Dtypes of ml_dtypes that have a whole byte or two to an element, by the integer they travel as.
_RAW = {"bfloat16": "uint16"}


#: Metrics of a row by how a script prints them.
_LABELS = {"error_units": "error units", "max_diff": "max abs diff", "max_rel": "max rel diff", "max_ulp": "max ulp"}


class NoScript(Exception):
    """A case that no standalone script can show; the text says why."""


@dataclass(frozen=True)
class Source:
    """What a script is made of. title, found: words for its first lines; actual: outputs of a run, if there was one."""

    title: str
    found: str
    backend: Backend
    runtime: str
    form: Form
    expected: list[Leaf]
    group: Group
    policy: Policy
    op_class: OpClass
    oracle: str
    precision: str
    version: str
    device: str
    actual: list[np.ndarray] | None = None
    environment: Environment | None = None


@dataclass
class _Data:
    """The arrays of a script: one run of bytes and where each array lies in it."""

    chunks: list[bytes] = field(default_factory=list)
    index: list[tuple[str, tuple[int, ...], int, int]] = field(default_factory=list)
    size: int = 0

    def add(self, array: np.ndarray) -> int:
        """Number of the array in the script. Its dtype must be numpy's own, or text."""
        name = dtype_name(array.dtype)
        if name == "str":
            raw = json.dumps([x.decode() if isinstance(x, bytes) else str(x) for x in array.ravel().tolist()]).encode()
        else:
            raw = np.ascontiguousarray(array).tobytes()
        self.index.append((name, tuple(int(n) for n in array.shape), self.size, len(raw)))
        self.chunks.append(raw)
        self.size += len(raw)
        return len(self.index) - 1

    def text(self) -> str:
        lines = textwrap.wrap(base64.b64encode(zlib.compress(b"".join(self.chunks), 9)).decode(), WIDTH)
        return "\n".join(lines)


def generate(source: Source) -> str:
    """The text of the script. Raises NoScript."""
    makers: dict[str, Callable[[Source, _Data], str]] = {
        "torch": _torch,
        "inductor": _torch,
        "ort": _ort,
        "openvino": _openvino,
    }
    if source.form.check != "forward":
        raise NoScript(f"no script: none can be written for the {source.form.check} check")
    data = _Data()
    bundled = source.runtime not in makers
    runtime = _bundled(source, data) if bundled else makers[source.runtime](source, data)
    expected = [_expected(leaf, source, data) for leaf in source.expected]
    floats = {leaf.dtype: _float(leaf.dtype, source.precision) for leaf in source.expected if is_inexact(leaf.dtype)}
    modules = {"ort": ("onnxruntime", " as ort"), "openvino": ("openvino", " as ov")}
    module, name = ("ml_dtypes", "") if bundled else modules.get(source.runtime, ("torch", ""))
    needs = (
        "numpy, ml_dtypes and the runtime; how it is called is embedded, see run()"
        if bundled
        else f"numpy and {module} alone"
    )
    text = _fill(
        _TEMPLATE,
        install=_install(source),
        needs=needs,
        runtime=runtime.strip("\n"),
        title=repr(source.title),
        found=repr(source.found),
        version=repr(source.version),
        device=repr(source.device),
        module=module,
        alias=name,
        module_name=name.removeprefix(" as ") or module,
        expected=_lines(expected),
        floats="".join(f"    {k!r}: {v!r},\n" for k, v in floats.items()),
        rule=_rule(source),
        judge=repr(_judge(source)),
        oracle=repr(source.oracle),
        arrays=_lines(data.index),
        data=data.text(),
    )
    return text if "ctypes." in runtime else text.replace("import ctypes\n", "", 1)


def _install(source: Source) -> str:
    """Comments that say what to install where the backend has an environment of its own, as PEP 723 has them: `uv run` obeys."""
    if source.environment is None:
        return ""
    packages = [*source.environment.packages, *OWN_PACKAGES]
    lines = [
        f"It was run with Python {source.environment.version} and: pip install {' '.join(map(shlex.quote, packages))}",
        "",
        "/// script",
        f'requires-python = "=={source.environment.version}.*"',
        f"dependencies = {json.dumps(packages)}",
        "///",
    ]
    return "".join(f"# {' '.join(line.split())}".rstrip() + "\n" for line in lines)


def _judge(source: Source) -> str:
    """How the script compares: "numeric", "exact", "ulps", "stepwise", "random" or "metadata"."""
    if source.op_class is OpClass.RANDOM:
        references = [x.reference for x in source.expected if x.reference is not None]
        return "random" if all(map(_finite, references)) else "metadata"
    named = {
        OpClass.UNINITIALISED: "metadata",
        OpClass.DISCONTINUOUS: "stepwise",
        OpClass.EXACT: "exact",
        OpClass.ELEMENTARY: "ulps",
    }
    return named.get(source.op_class, "numeric")


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _lines(items: Sequence[Any]) -> str:
    return "".join(f"    {x!r},\n" for x in items)


def _fill(template: str, **values: str) -> str:
    """``template`` with every @name@ replaced, in one pass: a value is never looked into."""
    return re.sub(r"@(\w+)@", lambda m: values[m[1]], template)


def _float(dtype: str, precision: str) -> tuple[float, ...]:
    eps, normal, reach = EPS[dtype], SMALLEST_NORMAL[dtype], LARGEST[dtype]
    if precision and EPS[precision] > eps:  # as `tasks.judge.compare` has it
        eps, normal = EPS[precision], max(normal, SMALLEST_NORMAL.get(precision, 0.0))
        reach = min(reach, LARGEST.get(precision, reach))
    return eps, normal * eps, EPS[dtype], normal, LARGEST[dtype], reach


def _expected(leaf: Leaf, source: Source, data: _Data) -> tuple[Any, ...]:
    """(dtype, shape, numbers of: exact result, noise floor, exact result rounded to the dtype; rtol, atol)."""
    exact = noise = rounded = None
    if leaf.reference is not None and source.op_class not in (OpClass.RANDOM, OpClass.UNINITIALISED):
        y = leaf.reference
        exact = data.add(_whole(y))
        if is_inexact(leaf.dtype):
            with np.errstate(all="ignore"):
                cast = y.astype(np_dtype(leaf.dtype)).astype(y.dtype)
            if not np.isfinite(cast).all():
                rounded = data.add(cast)
        # In proportion to a coarser declared precision, as `tasks.judge.compare` has it.
        coarser = EPS[source.precision] / EPS[leaf.dtype] if source.precision and is_inexact(leaf.dtype) else 1.0
        if leaf.noise is not None and (source.op_class not in WITHOUT_NOISE or coarser > 1):
            noise = data.add(leaf.noise * max(coarser, 1.0))
    tolerance = (0.0, 0.0) if exact is None else tolerance_of(leaf, source.op_class, source.precision)
    return leaf.dtype, tuple(leaf.shape), exact, noise, rounded, *tolerance


def _whole(array: np.ndarray) -> np.ndarray:
    """Low-bit integers as int8 or uint8: numpy alone cannot hold them."""
    if array.dtype.kind in "OUS" or array.dtype.name in NATIVE:
        return array
    return array.astype(np.uint8 if array.dtype.name.startswith("u") else np.int8)


def _rule(source: Source) -> str:
    policy = source.policy
    if policy.rule == "absolute":
        return f'''    """The policy {policy.id}: one bound on the largest difference."""
    near = not total["outside"] if total["diff"] is None else total["diff"] < {policy.bound!r}
    return "pass" if near and not total["misplaced"] else "wrong"'''
    limit = (
        None
        if policy.rule == "classic"
        else policy.limit(source.group.label, source.op_class.value, source.group.dtype, source.precision)
    )
    if limit is None or (source.oracle == "stored" and source.op_class is not OpClass.EXACT):
        why = f"The policy {policy.id}" if policy.rule == "classic" else "A stored expected output has no noise floor"
        return f'''    """{why}: each element within rtol and atol."""
    return "wrong" if total["outside"] else "pass"'''
    value = 'total["units"]' if limit.ulps is None else 'total["ulp"]'
    if limit.imprecise == "never":
        near, words = "False", "nothing beyond is merely imprecise"
    elif limit.imprecise == "classic":
        scale = max(EPS.get(source.group.dtype, EPS["float32"]), EPS.get(source.precision, 0.0))
        near = f'not total["outside"] and total["units"] * {scale!r} <= {limit.gross!r}'
        words = "beyond, the classic tolerance tells imprecise from wrong"
    else:
        near, words = f"value <= {limit.imprecise!r}", f"imprecise up to {limit.imprecise:g}"
    return f'''    """The policy {policy.id}: up to {limit} for this op, {words}."""
    value = {value}
    if value is None:
        return "wrong" if total["outside"] else "pass"
    if value <= {limit.value!r} and not total["misplaced"]:
        return "pass"
    return "imprecise" if not total["misplaced"] and {near} else "wrong"'''


# --- torch --------------------------------------------------------------------------------------------------------


def _torch(source: Source, data: _Data) -> str:
    form, target = source.form, getattr(source.backend, "target", "cpu")
    for array in form.arrays:
        raw = torch_tree._AS_INTEGER.get(array.dtype.name)
        if raw is None and array.dtype.name not in NATIVE:
            raise NoScript(f"no script: a tensor of {array.dtype.name} cannot be embedded")
        data.add(array.view(raw) if raw else array)
    op = _torch_op(source)
    settings = ""
    if target == "cuda":
        allowed = bool(getattr(source.backend, "tf32", False))
        settings = f"\n    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = {allowed}"
    if source.runtime == "inductor":
        call = """    compiled = torch.compile(lambda args, kwargs: OP(*args, **kwargs), fullgraph=True, dynamic=False)
    with torch.no_grad():
        compiled(*arguments())
        return compiled(*arguments())"""
    else:
        call = """    args, kwargs = arguments()
    with torch.no_grad():
        return OP(*args, **kwargs)"""
    return _fill(
        _TORCH,
        device=repr(target),
        op=op,
        settings=settings,
        call=call,
        args=_literal(form.args, form),
        kwargs=_literal(form.kwargs, form),
    )


def _literal(node: Any, form: Form) -> str:
    """Python source of an argument tree: names of torch are looked up here, everything else goes through repr()."""
    if isinstance(node, list):
        return f"[{', '.join(_literal(x, form) for x in node)}]"
    if not isinstance(node, dict):
        if node is None or isinstance(node, (bool, int, float, str)):
            return repr(node)
        raise NoScript(f"no script: an argument of type {type(node).__name__} cannot be written down")
    kind: str = node["$"]
    v: Any = node.get("v")
    if kind == "tuple":
        inner = ", ".join(_literal(x, form) for x in v)
        return f"({inner},)" if len(v) == 1 else f"({inner})"
    if kind == "dict":
        return "{" + ", ".join(f"{_literal(k, form)}: {_literal(x, form)}" for k, x in v) + "}"
    if kind == "float":
        return f"float({repr(float(v))!r})"
    if kind == "complex":
        return f"complex(float({repr(float(v[0]))!r}), float({repr(float(v[1]))!r}))"
    if kind == "slice":
        return f"slice({', '.join(_literal(x, form) for x in v)})"
    if kind == "ellipsis":
        return "..."
    if kind == "range":
        return f"range({', '.join(repr(int(x)) for x in v)})"
    if kind == "torch.device":
        return "torch.device(DEVICE)"
    if kind in ("torch.dtype", "torch.layout", "torch.memory_format"):
        import torch

        name = str(node["name"])
        if not name.isidentifier() or type(getattr(torch, name, None)).__name__ != kind.partition(".")[2]:
            raise NoScript(f"no script: torch has no {kind} called {name!r}")
        return f"torch.{name}"
    if kind == "tensor":
        return _tensor_literal(node, form)
    raise NoScript(f"no script: an argument of kind {kind!r} cannot be written down")


def _tensor_literal(node: dict[str, Any], form: Form) -> str:
    def part(i: int) -> str:
        name = form.arrays[i].dtype.name
        return f"{int(i)}, torch.{name}" if name in torch_tree._AS_INTEGER else f"{int(i)}"

    spec = spec_of(node)
    if spec.layout == "strided":
        if spec.strides is None:
            return f"tensor({part(spec.id)})"
        shape, strides = _ints(spec.shape or ()), _ints(spec.strides)
        return f"tensor({part(spec.id)}).as_strided({shape!r}, {strides!r}, {int(spec.offset)})"
    parts, shape = ", ".join(f"tensor({part(i)})" for i in spec.parts), _ints(spec.shape or ())
    if spec.layout == "sparse_coo":
        text = f"torch.sparse_coo_tensor({parts}, {shape!r}, check_invariants=False)"
        return f"{text}._coalesced_({spec.flags == 'coalesced'})"
    if spec.layout not in ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"):
        raise NoScript(f"no script: a tensor of layout {spec.layout!r} cannot be written down")
    return f"torch.sparse_compressed_tensor({parts}, {shape!r}, layout=torch.{spec.layout}, check_invariants=False)"


def _ints(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(x) for x in values)


def _torch_op(source: Source) -> str:
    """The lines that define OP. Raises NoScript."""
    form, group = source.form, source.group
    if group.catalog == "user":
        return _own_kernel(group)
    own = form.call if form.call is not None else catalogs.get(group.catalog).call(group)
    for path in _public_paths(group.op_name, own):
        found = _resolved(path)
        if found is own or (found is not None and _same_bits(found, own, source)):
            return f"OP = {path}"
    if group.catalog == "torch":
        return (
            "# No public function gives these bits on these inputs: torch's own test database wraps it.\n"
            "from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402\n\n"
            f"OP = next(x.op for x in op_db if (x.name, x.variant_test_name) == {(group.op_name, group.variant)!r})"
        )
    return _inlined(own, group)


def _own_kernel(group: Group) -> str:
    """The lines that load a user's kernel from its own file. Raises NoScript."""
    one = load.declared()[group.op_name]
    kernel = one.function("kernel")
    file, name = inspect.getsourcefile(inspect.unwrap(kernel)), getattr(kernel, "__qualname__", "<")
    if one.op.framework != "torch" or not file or "<" in name:
        raise NoScript(f"no script: {group.op} is no named function of torch tensors in a file")
    return (
        "# The kernel is loaded from its own file: it must still be there.\n"
        "import importlib.util  # noqa: E402\nimport sys  # noqa: E402\n\n"
        f"sys.path += {[one.root, os.path.dirname(file)]!r}\n"
        f"spec = importlib.util.spec_from_file_location('kernel', {file!r})\n"
        "module = sys.modules['kernel'] = importlib.util.module_from_spec(spec)\n"
        f"spec.loader.exec_module(module)\nOP = module.{name}"
    )


def _public_paths(name: str, own: Callable[..., Any]) -> list[str]:
    """Where a function may be found in torch's public names, likeliest first."""
    names = list(dict.fromkeys([name, str(getattr(own, "__name__", name))]))
    found = []
    for one in names:
        found += [f"torch.{m}{one}" for m in ("", "nn.functional.", "Tensor.", "special.", "linalg.", "fft.")]
    return [p for p in found if all(w.isidentifier() and not keyword.iskeyword(w) for w in p.split("."))]


def _resolved(path: str) -> Callable[..., Any] | None:
    import torch

    at: Any = torch
    for word in path.split(".")[1:]:
        if word.startswith("_") and not word.endswith("__"):
            return None  # not public
        at = getattr(at, word, None)
    return at if callable(at) else None


def _same_bits(candidate: Callable[..., Any], own: Callable[..., Any], source: Source) -> bool:
    """True if both functions give the same bits, or raise the same, on fresh copies of the inputs."""
    import torch

    leaf = torch_tree.decoder(source.form.arrays.__getitem__, getattr(source.backend, "target", "cpu"))

    def outcome(call: Callable[..., Any]) -> Any:
        args, kwargs = decode(source.form.args, leaf), decode(source.form.kwargs, leaf)
        with torch.no_grad():
            try:
                made = [torch_tree.output(torch_tree.dense(x)) for x in torch_tree.leaves(call(*args, **kwargs))]
            except Exception as error:
                return type(error).__name__, str(error)
        return [(x.dtype.name, x.shape, x.tobytes() if x.dtype.kind != "O" else x.tolist()) for x in made]

    return bool(outcome(candidate) == outcome(own))


def _inlined(own: Callable[..., Any], group: Group) -> str:
    """The source of a function of a catalog that needs torch alone. Raises NoScript."""
    try:
        text = textwrap.dedent(inspect.getsource(own))
        needs = inspect.getclosurevars(own)
    except (OSError, TypeError) as error:
        raise NoScript(f"no script: {group.op} has no public path in torch and no source ({error})") from None
    others = sorted({*needs.nonlocals, *needs.globals} - {"torch"})
    if others or not text.startswith("def "):
        what = f"it needs {', '.join(others)}" if others else "its source is no plain function"
        raise NoScript(f"no script: {group.op} has no public path in torch and cannot be inlined: {what}")
    return f"{text.rstrip()}\n\n\nOP = {own.__name__}"


# --- runtimes that take ONNX --------------------------------------------------------------------------------------


def _exotic(source: Source, values: Sequence[Any]) -> bool:
    """True if some input or output has a dtype that numpy lacks."""
    names = {leaf.dtype for leaf in source.expected} | {dtype_name(a.dtype) for a in source.actual or ()}
    names |= {dtype_name(x.dtype) for x in _arrays(values)}
    return bool(names - NATIVE - {"str"})


def _arrays(values: Any) -> list[np.ndarray]:
    if isinstance(values, (list, tuple)):
        return [y for x in values for y in _arrays(x)]
    return [] if values is None else [values]


def _input(value: Any, data: _Data) -> str:
    """Source of one input: array(i), raw(i, …) for a dtype that numpy lacks, a list, None."""
    if value is None:
        return "None"
    if isinstance(value, list):
        return f"[{', '.join(_input(x, data) for x in value)}]"
    name = dtype_name(value.dtype)
    if name == "str" or name in NATIVE:
        return f"array({data.add(value)})"
    if name in PACKED_BITS:
        packed, padded = pack(value), np.zeros(value.shape, np.uint8)
        padded.reshape(-1)[: packed.size] = packed
        return f"raw({data.add(padded)}, {data.add(packed)}, {name!r})"
    number = data.add(value.view(_RAW.get(name, "uint8")))
    return f"raw({number}, {number}, {name!r})"


def _model(source: Source, data: _Data) -> int:
    if source.form.model is None:
        raise NoScript(f"no script: {source.group.op} has no ONNX model")
    return data.add(np.frombuffer(source.form.model, dtype=np.uint8))


def _ort(source: Source, data: _Data) -> str:
    backend: Any = source.backend
    values = input_values(source.form)
    model = _model(source, data)
    inputs = "".join(f"        {_input(x, data)},\n" for x in values)
    options = [
        "options = ort.SessionOptions()",
        "options.intra_op_num_threads = options.inter_op_num_threads = 1",
        "options.log_severity_level = 4",
    ]
    if backend.device != "cpu":
        options.append('options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")')
    options += [f"options.add_session_config_entry({str(k)!r}, {str(v)!r})" for k, v in backend._session_config.items()]
    if backend._level:
        from tasks.backends.onnxruntime import _LEVELS

        options.append(f"options.graph_optimization_level = ort.GraphOptimizationLevel.{_LEVELS[backend._level]}")
    provider = str(backend._provider or backend._known.provider)
    providers = repr([(provider, backend._options)] if backend._options else [provider])
    if backend._devices:
        library = backend._plugin_library()[0]
        options += [
            f"ort.register_execution_provider_library({provider!r}, {library!r})",
            f"devices = [x for x in ort.get_ep_devices() if x.ep_name == {provider!r}][:1]",
            f"options.add_provider_for_devices(devices, {backend._options!r})",
        ]
        providers = "None"
    exotic = _exotic(source, values)
    helpers = ""
    if exotic:
        from tasks.backends.onnxruntime import _DTYPE_OF_TYPE

        types = {k: v for k, v in ELEMENT_TYPE.items() if k not in NATIVE and k != "str"}
        helpers = _fill(_ORT_RAW, types=repr(types), names=repr(_DTYPE_OF_TYPE), values=_VALUES)
    return _fill(
        _ORT,
        inputs=inputs,
        options="\n    ".join(options),
        providers=providers,
        model=str(model),
        helpers=helpers,
        run=_ORT_RUN_RAW if exotic else _ORT_RUN,
        read=_ORT_READ if exotic else "",
    )


def _openvino(source: Source, data: _Data) -> str:
    from tasks.backends.openvino import _DTYPE, _ELEMENT, _by_port

    backend: Any = source.backend
    values = input_values(source.form)
    model = _model(source, data)
    named = dict(zip(graph_inputs(source.form.model or b""), values, strict=True))
    try:
        # OpenVINO drops and renames inputs: which array is for which port is settled here.
        ordered: list[Any] = _by_port(backend._compile(source.form.model).inputs, named)
    except Exception:  # the failure to be shown may be this one
        ordered = list(values)
    inputs = "".join(f"        {_input(x, data)},\n" for x in ordered)
    types = {k: v for k, v in _ELEMENT.items() if k not in NATIVE and k != "str"}
    return _fill(
        _OPENVINO,
        inputs=inputs,
        model=str(model),
        target=repr(backend._target),
        asked=repr(backend._asked),
        names=repr(_DTYPE),
        types=repr(types),
        values=_VALUES,
    )


# --- every other runtime ------------------------------------------------------------------------------------------


def _bundled(source: Source, data: _Data) -> str:
    """The runtime is called by its backend's own file: a copy of `tasks` travels with the script. Raises NoScript."""
    form, group = source.form, source.group
    if group.catalog == "user":
        raise NoScript(f"no script: none can be written for a kernel of one's own on {source.runtime}")
    if type(source.backend).__module__.partition(".")[0] != "tasks":
        raise NoScript(f"no script: none can be written for the runtime {source.runtime} of another package")
    header = {
        "form": {
            name: getattr(form, name)
            for name in ("kind", "op", "dtype", "args", "kwargs", "paired", "check", "wrt", "cotangents")
        },
        "group": asdict(group),
        "arrays": len(form.arrays),
    }
    model = [] if form.model is None else [np.frombuffer(form.model, np.uint8)]
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "form", header, [*form.arrays, *model])
        pack = data.add(np.fromfile(Path(folder) / "form", np.uint8))
    spec = BackendSpec(source.backend.name, source.runtime, source.backend.device, dict(source.backend.options))
    return _fill(_BUNDLED, spec=repr(spec.to_json()), tasks=str(data.add(_tasks())), form=str(pack))


def _tasks() -> np.ndarray:
    """The sources of `tasks` as a zip archive, what only judges left out."""
    import tasks

    root, out = Path(tasks.__file__).parent, io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:  # compressed with the rest
        for path in sorted(root.rglob("*.py")):
            if path.relative_to(root).parts[0] != "zoo":
                archive.writestr(zipfile.ZipInfo(str(path.relative_to(root.parent))), path.read_text(encoding="utf-8"))
    return np.frombuffer(out.getvalue(), np.uint8)


# --- trying it ----------------------------------------------------------------------------------------------------


def check(path: Path, row: dict[str, Any], timeout_s: float, python: str = sys.executable) -> tuple[bool, str]:
    """Run the script by itself with the interpreter ``python``, isolated from this installation's paths.

    Returns (whether it shows the row's status, a sentence on what it showed).
    """
    status = row["status"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as elsewhere:
        try:
            done = subprocess.run(
                [python, "-I", str(path.resolve())],
                cwd=elsewhere,
                env=env,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            shown = status == "timeout"
            return shown, f"{'shows' if shown else 'does NOT show'} the {status}: it did not end within {timeout_s:g} s"
    if done.returncode < 0:
        shown = status == "crash"
        return shown, f"{'shows' if shown else 'does NOT show'} the {status}: it died of signal {-done.returncode}"
    if status == "crash" and row["kind"] == f"exit code {done.returncode}" and "Traceback" not in done.stderr:
        return True, f"shows the crash: it ended with exit code {done.returncode}"
    said = {
        m[1]: m[2]
        for m in re.finditer(
            r"^(verdict|error units|max abs diff|max rel diff|max ulp|raised) +(.*)$", done.stdout, re.M
        )
    }
    verdict = said.get("verdict")
    if verdict is None:
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return False, f"does NOT show the {status}: exit code {done.returncode}, {words[:200]}"
    if status == "unsupported" and verdict == "error":
        same = said.get("raised", "?").partition(": ")[2][:40] in row["error"].replace("\n", " ")
        return same, "raises what the runtime says" if same else f"raises something else: {said.get('raised')}"
    if verdict != status or done.returncode != (1 if status in ("wrong", "error") else 0):
        return False, f"does NOT show the {status}: it says {verdict}"
    other = [
        f"{name} {said.get(label, '–')}, not {row[name]!r}"
        for name, label in _LABELS.items()
        if row.get(name) is not None and row[name] == row[name] and float(said.get(label, "nan")) != row[name]
    ]
    failure = "failure" if status in ("wrong", "error") else "outcome"
    if other:
        return True, f"shows the {failure} ({status}) with other numbers: {'; '.join(other)}"
    return True, f"shows the {failure} ({status}) with the same numbers (exit code {done.returncode})"


# --- the texts ----------------------------------------------------------------------------------------------------

_TEMPLATE = '''\
#!/usr/bin/env python3
"""One operation on one input, run again and compared with the exact result.

Needs @needs@. Exit code: 1 the failure is there, 0 it is not, 2 it could not be tried.
"""
@install@from __future__ import annotations

import base64
import ctypes
import json
import math
import sys
import zlib

import numpy as np

try:
    import @module@@alias@
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(2)

CASE = @title@
FOUND = @found@
FOUND_WITH = @version@, @device@


def array(i):
    """Embedded array i, a fresh copy."""
    dtype, shape, start, size = ARRAYS[i]
    bytes_ = DATA[start : start + size]
    if dtype == "str":
        return np.array(json.loads(bytes_), dtype=object).reshape(shape)
    return np.frombuffer(bytes_, dtype).reshape(shape).copy()


@runtime@


# Per output: dtype, shape, then arrays: the exact result, its noise floor (how far it moves when the inputs move by one
# rounding), the exact result rounded to the dtype (only where that overflows or is NaN); classic rtol and atol.
EXPECTED = [
@expected@]
# Per dtype: the eps of error units, the smallest subnormal, the spacing at 1, the smallest normal, the largest value.
FLOATS = {
@floats@}
JUDGE, ORACLE = @judge@, @oracle@


def measure(a, y, noise, rounded, dtype, rtol, atol):
    """What one output is off, by name: arrays with one value per element.

    compared: finite on both sides; units: |a - y| / (eps*|y| + noise + tiny), infinite for a misplaced NaN or Inf;
    diff, rel, ulp: |a - y|, the same over |y| and in spacings of the dtype; outside: beyond rtol and atol.
    """
    none, no = np.zeros(y.shape), np.zeros(y.shape, bool)
    made = {"compared": ~no, "units": none, "diff": none, "rel": none, "ulp": none, "outside": no, "misplaced": no}
    if dtype == "str":
        bad = a != y
        return made | {"compared": no, "units": np.where(bad, np.inf, 0.0), "outside": bad}
    if dtype not in FLOATS:  # exact, except where noise can flip the value
        differ, size = a != y, abs(y.astype(np.float64))
        if a.dtype != np.uint64:
            a, y = a.astype(np.int64), y.astype(np.int64)
        diff = (np.maximum(a, y).astype(np.uint64) - np.minimum(a, y).astype(np.uint64)).astype(np.float64)
        made["units"] = np.where(differ, np.inf if noise is None else diff / noise, 0.0)
        outside = differ & (diff > atol + rtol * size)
        return made | {"diff": diff, "ulp": diff, "rel": np.where(size > 0, diff / size, 0.0), "outside": outside}
    eps, tiny, spacing, normal, largest, reach = FLOATS[dtype]
    a, rounded, delta = a.astype(y.dtype), y if rounded is None else rounded, none if noise is None else noise
    if reach < largest and not np.iscomplexobj(y):  # beyond what the declared precision reaches, results saturate
        sided, size = np.isfinite(y) & (np.signbit(a) == np.signbit(y)), abs(y) + delta
        over = sided & (size >= reach) & (abs(a) >= reach * (1 - eps))
        a = np.where(over, y, np.where(sided & np.isinf(a) & (size >= reach / 2), np.copysign(reach * (1 + eps), y), a))
    finite, exact_finite = np.isfinite(a), np.isfinite(rounded)
    neither, misplaced = ~finite & ~exact_finite, no
    if not np.iscomplexobj(y):
        misplaced = neither & ~((np.isnan(a) & np.isnan(rounded)) | (a == rounded))
        # Where the exact result is so large that it may overflow, Inf stands for the first value beyond the largest.
        beyond = largest * (1 + spacing)
        border = ~np.isnan(a) & np.isfinite(y) & (abs(y) + delta >= largest / 2) & np.isfinite(beyond)
        a = np.where(border & np.isinf(a), np.copysign(beyond, a), a)
        finite, exact_finite = finite | (border & ~neither), exact_finite | (border & ~neither)
    misplaced = (misplaced | (~neither & (finite != exact_finite))) & np.isfinite(delta)
    both, size = finite & exact_finite, abs(y)
    diff = np.where(both, abs(a - y), 0.0)
    gap = np.ldexp(eps, np.frexp(np.where(both, np.maximum(size, normal), 1.0))[1] - 1)
    # With a noise floor where the inputs count as given exactly, a coarser declared precision has rounded them.
    ulp = np.maximum(diff - 4 * delta, 0.0) / (gap + delta) if JUDGE in ("exact", "ulps") else diff / gap
    stepwise = JUDGE == "stepwise"  # the nearest value, or a jump as high as the noise floor
    tolerance = delta if stepwise else size * eps + delta + tiny
    units = diff / tolerance
    if stepwise:
        units = np.where(ulp <= 0.5, 0.0, units)
    units = np.where(tolerance == np.inf, 0.0, np.where(np.isnan(units), np.inf, units))
    return {
        "compared": both,
        "units": np.where(misplaced, np.inf, np.where(both, units, 0.0)),
        "diff": diff,
        "rel": np.where(both & (size > 0), diff / size, 0.0),
        "ulp": ulp,
        "outside": misplaced | (both & (diff > atol + rtol * size)),
        "misplaced": misplaced,
    }


def parts(arrays):
    """Complex numbers that are moved count part by part: real and imaginary ones in a last axis of two."""
    y = arrays[1]
    if JUDGE != "exact" or not np.iscomplexobj(y):
        return arrays
    return [None if x is None else np.stack([x.real, x.imag if np.iscomplexobj(x) else x], -1) for x in arrays]


def short(x):
    """The first and last elements of an array."""
    if x.ndim > 1 and x.size > 12:
        x = x.reshape(-1)
    return np.array2string(x, threshold=12, edgeitems=4, max_line_width=84, prefix=" " * 15)


def verdict(total):
@rule@


def main():
    print("case          ", CASE)
    print("found         ", FOUND, "with", *FOUND_WITH)
    print("now with      ", "@module@", @module_name@.__version__)
    try:
        outputs = [named(x) for x in leaves(run())]
    except Exception as error:
        print("raised        ", f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}")
        print("verdict        error")
        return 1
    if len(outputs) != len(EXPECTED):
        print(f"{len(outputs)} outputs, expected {len(EXPECTED)}")
        print("verdict        wrong")
        return 1
    for (dtype, a), (expected_dtype, shape, *_) in zip(outputs, EXPECTED):
        if a.shape != shape or (dtype != expected_dtype and (dtype, expected_dtype) != ("complex64", "complex32")):
            print(f"{dtype} {a.shape}, expected {expected_dtype} {shape}")
            print("verdict        wrong")
            return 1
    total = {"units": 0.0, "diff": None, "rel": None, "ulp": None, "outside": 0, "misplaced": 0}
    worst = None
    with np.errstate(all="ignore"):
        for k, ((dtype, a), (_, shape, exact, noise, rounded, rtol, atol)) in enumerate(zip(outputs, EXPECTED)):
            print(f"output {k}       {dtype} {list(shape)}")
            if JUDGE == "random" and dtype in FLOATS and not np.isfinite(a).all():
                total["misplaced"] += int(a.size - np.isfinite(a).sum())
                total["outside"], total["units"] = total["misplaced"], math.inf
            if exact is None:
                continue
            y, noise, rounded = (None if i is None else array(i) for i in (exact, noise, rounded))
            print("expected      ", short(y))
            print("actual        ", short(a))
            if not a.size:
                continue
            a, y, noise, rounded = parts([a, y, noise, rounded])
            off = measure(a, y, noise, rounded, dtype, rtol, atol)
            at = np.unravel_index(int(np.argmax(off["units"])), y.shape)
            if worst is None or off["units"][at] > total["units"]:
                worst = (k, [int(i) for i in at], y[at], a[at], off["diff"][at], 0.0 if noise is None else noise[at], off["ulp"][at])
            total["units"] = max(total["units"], float(off["units"].max()))
            total["outside"] += int(off["outside"].sum())
            total["misplaced"] += int(off["misplaced"].sum())
            if off["compared"].any():
                for name in ("diff", "rel", "ulp"):
                    total[name] = max(total[name] or 0.0, float(off[name].max()))
    if worst is not None:
        k, at, y, a, diff, noise, ulps = (x.item() if isinstance(x, np.generic) else x for x in worst)
        print(f"worst          output {k} {at}: expected {y!r}, actual {a!r}")
        print(f"               difference {diff!r}, noise floor {noise!r}, {ulps!r} ulp")
    for label, name in (("max abs diff  ", "diff"), ("max rel diff  ", "rel"), ("max ulp       ", "ulp")):
        if total[name] is not None:
            print(label, repr(total[name]))
    if ORACLE != "stored":  # which has no noise floor
        print("error units   ", repr(total["units"]))
    print("mismatched    ", total["outside"], "elements outside rtol and atol,", total["misplaced"], "misplaced NaN or Inf")
    result = verdict(total)
    print("verdict       ", result)
    return 1 if result == "wrong" else 0


# Per array: dtype, shape, first byte, bytes.
ARRAYS = [
@arrays@]
DATA = zlib.decompress(
    base64.b64decode(
        """
@data@
"""
    )
)

if __name__ == "__main__":
    sys.exit(main())
'''

#: Flattening of outputs.
_LEAVES = '''\
def leaves(x):
    """The outputs, flat; None left out."""
    if isinstance(x, (list, tuple)):
        return [y for item in x for y in leaves(item)]
    if isinstance(x, dict):
        return leaves(list(x.values()))
    return [] if x is None else [x]'''

_TORCH = '''
DEVICE = @device@
@op@


def tensor(i, dtype=None):
    """A tensor of embedded array i; dtype: what its integers are the bits of."""
    made = torch.from_numpy(array(i))
    return (made if dtype is None else made.view(dtype)).to(DEVICE)


def arguments():
    """The inputs, made afresh."""
    args = @args@
    kwargs = @kwargs@
    return args, kwargs


def run():
    torch.set_num_threads(1)@settings@
@call@


@leaves@


def named(x):
    """(dtype, values) of an output; floating values are widened, which is exact."""
    if not isinstance(x, torch.Tensor):
        made = np.asarray(x if isinstance(x, (bool, int, float, complex)) else str(x))
        return ("str", made.astype(object)) if made.dtype.kind == "U" else (made.dtype.name, made)
    x = x.detach().dequantize() if x.is_quantized else x.detach()
    x = (x if x.layout == torch.strided else x.to_dense()).cpu().resolve_conj().resolve_neg()
    dtype = str(x.dtype).removeprefix("torch.")
    if x.is_complex() or x.is_floating_point():
        x = x.to(torch.complex128 if x.is_complex() else torch.float64)
    return dtype, x.numpy()
'''.replace("@leaves@", _LEAVES)

#: Values of the dtypes that numpy lacks.
_VALUES = '''\
def values(raw, dtype, shape):
    """A tensor's bytes (1-d uint8) in a dtype that numpy lacks, widened."""
    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    import ml_dtypes

    bits = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}.get(dtype)
    if bits:  # packed, lowest bits first
        raw = ((raw[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (2**bits - 1)).reshape(-1)[: math.prod(shape)]
    made = raw.view(getattr(ml_dtypes, dtype)).reshape(shape)
    return made.astype(np.float64 if dtype.startswith("float") else np.uint8 if dtype.startswith("u") else np.int8)'''

_ORT = '''
@helpers@def inputs():
    """The inputs, in the order of the graph's."""
    return [
@inputs@    ]


def run():
    @options@
    # enable_fallback=0: else a failing provider is answered with a session on the CPU.
    session = ort.InferenceSession(array(@model@).tobytes(), options, providers=@providers@, enable_fallback=0)
    feeds = {x.name: value for x, value in zip(session.get_inputs(), inputs())}
@run@


@leaves@


def named(x):
    """(dtype, values) of an output; floating values are widened, which is exact."""
@read@    x = np.asarray(x)
    dtype = "str" if x.dtype.kind in "OUS" else x.dtype.name
    wide = {"f": np.float64, "c": np.complex128}.get(x.dtype.kind)
    return dtype, x.astype(wide) if wide else x
'''.replace("@leaves@", _LEAVES)

_BUNDLED = '''
BACKEND = @spec@


def run():
    """The outputs, by the file of the backend in a copy of the farm's package `tasks`."""
    import io
    import os
    import tempfile
    import zipfile

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    folder = tempfile.TemporaryDirectory()
    run.folder = folder  # kept until the end
    zipfile.ZipFile(io.BytesIO(array(@tasks@).tobytes())).extractall(folder.name)
    with open(os.path.join(folder.name, "form"), "wb") as file:
        file.write(array(@form@).tobytes())
    sys.path.insert(0, folder.name)
    from tasks import catalogs, counterparts
    from tasks.backends import BackendSpec
    from tasks.model import Form, Group
    from tasks.arrays.pack import Pack

    pack = Pack(file.name)
    given, group, count = pack.header["form"], Group(**pack.header["group"]), pack.header["arrays"]
    form = Form(arrays=[pack.array(i) for i in range(count)], **given)
    if form.kind == "onnx":
        form.model = pack.array(count).tobytes()
    elif form.kind in counterparts.FRAMEWORKS:
        form.call = counterparts.counterpart(form.kind, group.op, group.variant, group.dtype)
    else:
        form.call = catalogs.get(group.catalog).call(group)
    backend = BackendSpec(**BACKEND).create()  # its file: tasks/backends
    print("runtime       ", backend.probe().runtime_version)
    outputs = [np.array(x) for x in backend.build(form).run()]
    for i in form.paired:  # complex numbers leave an exported model as pairs of real ones
        if outputs[i].shape[-1:] == (2,) and outputs[i].dtype in (np.float32, np.float64):
            outputs[i] = outputs[i].view(np.complex64 if outputs[i].dtype == np.float32 else np.complex128)[..., 0]
    return outputs


@leaves@


def named(x):
    """(dtype, values) of an output; floating values are widened, which is exact."""
    dtype = "str" if x.dtype.kind in "OUS" else x.dtype.name
    if dtype in FLOATS or "float" in dtype:
        return dtype, x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    if x.dtype.isbuiltin != 1 and dtype != "str":
        return dtype, x.astype(np.uint8 if dtype.startswith("u") else np.int8)
    return dtype, x.astype(np.complex128) if x.dtype.kind == "c" else x
'''.replace("@leaves@", _LEAVES)

_ORT_RUN = "    return session.run(None, feeds)"

_ORT_RUN_RAW = """\
    feeds = {k: x if hasattr(x, "data_ptr") else ort.OrtValue.ortvalue_from_numpy(x) for k, x in feeds.items()}
    found = session.run_with_ort_values([x.name for x in session.get_outputs()], feeds)
    return found"""

_ORT_READ = """\
    dtype = x.data_type().rpartition("(")[2].rstrip(")")
    dtype = NAMES.get(dtype, dtype)
    if dtype in ELEMENT_TYPES:
        bits = np.frombuffer(ctypes.string_at(x.data_ptr(), x.tensor_size_in_bytes()), np.uint8)
        return dtype, values(bits, dtype, tuple(x.shape()))
    x = x.numpy()
"""

_ORT_RAW = '''\
ELEMENT_TYPES = @types@
NAMES = @names@


def raw(i, packed, dtype):
    """An input in a dtype that numpy lacks, from its bits."""
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array(i), ELEMENT_TYPES[dtype])


@values@


'''

_OPENVINO = '''
ELEMENT_TYPES = @types@
NAMES = @names@


def raw(i, packed, dtype):
    """An input in a dtype that numpy lacks, from its bits."""
    return ov.Tensor(array(packed), list(array(i).shape), getattr(ov.Type, ELEMENT_TYPES[dtype]))


@values@


def inputs():
    """The inputs, in the order of the compiled model's."""
    return [
@inputs@    ]


def run():
    core = ov.Core()
    compiled = core.compile_model(core.read_model(array(@model@).tobytes()), @target@, @asked@)
    request = compiled.create_infer_request()
    made = inputs()
    for i in range(len(compiled.inputs)):
        value = made[i]
        if isinstance(value, np.ndarray):
            value = ov.Tensor(value.astype(np.str_) if value.dtype == object else value)
        request.set_input_tensor(i, value)
    request.infer()
    return [request.get_output_tensor(i) for i in range(len(compiled.outputs))]


@leaves@


def named(tensor):
    """(dtype, values) of an output; floating values are widened, which is exact."""
    dtype, shape = NAMES[tensor.element_type.to_string()], tuple(tensor.shape)
    if dtype == "str":
        return dtype, tensor.str_data.astype(object).reshape(shape)
    bits = np.array(tensor.data).reshape(-1).view(np.uint8)
    if dtype in ELEMENT_TYPES:
        return dtype, values(bits, dtype, shape)
    x = bits.view(dtype).reshape(shape)
    return dtype, x.astype(np.float64) if x.dtype.kind == "f" else x
'''.replace("@leaves@", _LEAVES)
