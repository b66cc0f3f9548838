"""Apache TVM: the ONNX form through Relax's importer, compiled by LLVM for this processor."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.arrays.pack import name_numpy_dtype
from tasks.backends.base import Backend, importing, smoke_test
from tasks.backends.shared import artefacts
from tasks.backends.shared.onnx_form import make_probe_form, name_onnx_tensors
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_model
from tasks.model import Form, Program, RuntimeInfo, Unsupported
from tasks.model.dtypes import PACKED_BITS
from tasks.packages import ONNX
from tasks.variables import count_compute_threads

_OPTIONS = ("target",)

#: What TVM's importer, compiler and virtual machine say of an op, an attribute, an input that is no constant or a
#: type that they do not implement (the virtual machine allocates no tensor of 2 or 4 bits).
_UNSUPPORTED = re.compile(
    r"not supported|[Uu]nsupported|not implemented|[Nn]ot yet|[Oo]nly constant|[Oo]nly .* supported|must be a constant"
    r"|cannot handle ShapeExpr|no value in Constant|requires the input new shape to be Shape|unknown dtype|should be one of|[Oo]nly support|only applies to"
    r"|Missing outputs during conversion|does not support|doesn't support|is not registered|dtype\.bits % 8 == 0"
    r"|cannot emit this Relax operator"
)
_OUT_OF_MEMORY = re.compile(r"bad_alloc|[Oo]ut of memory|Cannot allocate")


class Tvm(Backend):
    """TVM on "cpu". options: ``target`` (TVM's target as a mapping, over LLVM for the host's processor)."""

    takes_threads = True
    vendor = "Apache"
    forms = ("onnx",)
    takes = _OPTIONS
    closed = True
    packages = ("apache-tvm==0.27.0.post1", ONNX)
    unsupported, out_of_memory = _UNSUPPORTED, _OUT_OF_MEMORY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self._target = {str(k): v for k, v in self.many("target", dict).items()}

    def probe(self) -> RuntimeInfo:
        """Run a model of one Add. Raises Unavailable: the package is missing, or it does not work (in TVM's words)."""
        # Read when the library's thread pool starts.
        os.environ["TVM_NUM_THREADS"] = str(count_compute_threads())
        with importing("TVM"):
            import tvm
            from tvm.relax.frontend.onnx import from_onnx  # noqa: F401
        smoke_test("TVM", lambda: self.build(make_probe_form()).run()[0])
        target = _choose_tvm_target(**self._target)
        return RuntimeInfo(tvm.__version__, str(target.attrs.get("mcpu", target.kind.name)))

    def recipe(self, form: Form) -> ProgramRecipe:
        check_form_has_model(form)
        return ProgramRecipe(run_model, {"threads": 1})

    def build(self, form: Form) -> Program:
        """Import, compile and load the model, and make its inputs.

        Raises Unsupported (an input that TVM has no tensor for) and TVM's own errors; `unsupported` knows those that
        say that there is no converter, or none for this attribute, type or input that is no constant.
        """
        _collect_tvm_inputs(form)
        import tvm

        target = _choose_tvm_target(**self._target)
        machine = tvm.relax.VirtualMachine(_load_tvm_executable(form.model or b"", target), tvm.cpu())

        def bind_inputs(arrays: list[Any]) -> Callable[[], list[np.ndarray]]:
            return _make_tvm_runner(machine["main"], _collect_tvm_inputs(form.with_arrays(arrays)))

        where = f"llvm ({target.attrs.get('mcpu', 'generic')})"
        return Program(bind_inputs(form.arrays), where, None, str(target), bind_inputs)


def _collect_tvm_inputs(form: Form) -> list[np.ndarray]:
    """The inputs in the model's order. Raises Unsupported."""
    values = list(name_onnx_tensors(form, "TVM's virtual machine").values())
    for value in values:
        if value.dtype.kind in "OSU" or value.dtype.name in PACKED_BITS:
            raise Unsupported(f"TVM's Python API makes no tensor of {name_numpy_dtype(value.dtype)}")
    return values


@functools.cache
def _choose_tvm_target(**options: Any) -> Any:
    import tvm

    own = {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}
    return tvm.target.Target(own | options)


class _NoObject(Exception):
    """The compiled model is no object file: TVM has no kernel for it, and writes what it does have as C."""


def _load_tvm_executable(model: bytes, target: Any) -> Any:
    """What the virtual machine runs: a shared library that is kept, or code in memory where none can be linked."""
    import tvm

    linker = shutil.which("ld")
    if linker is None:
        return _compile_tvm_model(model, target)
    try:
        code = artefacts.load_or_make(
            "tvm", (tvm.__version__, str(target), model), lambda: _link_tvm_library(model, target, linker)
        )
    except _NoObject:
        return _compile_tvm_model(model, target)
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        return tvm.runtime.load_module(file.name)


def _link_tvm_library(model: bytes, target: Any, linker: str) -> bytes:
    """The compiled model as a shared library; linking costs what compiling its code in memory would."""

    def link(output: str, files: list[str], **_: Any) -> None:
        # Not TVM's own way, a C++ compiler: an environment need not have one, and it takes twice the time.
        if any(not x.endswith(".o") for x in files):
            raise _NoObject
        subprocess.run([linker, "-shared", "-o", output, *files], check=True, capture_output=True, text=True)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.so"
        _compile_tvm_model(model, target).export_library(str(path), fcompile=link)
        return path.read_bytes()


def _compile_tvm_model(model: bytes, target: Any) -> Any:
    """The executable of a serialized ModelProto."""
    import onnx
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    proto = onnx.load_model_from_string(model)
    # The importer prints what it cannot convert, and warns of each name that it changes.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tvm.compile(from_onnx(proto), target)


def _make_tvm_runner(main: Any, values: list[np.ndarray]) -> Callable[[], list[np.ndarray]]:
    """``run()`` of a function of the virtual machine over copies of ``values``."""
    import tvm

    tensors = [tvm.runtime.tensor(x) for x in values]
    return lambda: [_copy_tvm_tensor(x) for x in _list_tvm_leaves(main(*tensors))]


def _list_tvm_leaves(value: Any) -> list[Any]:
    """Tensors of a result: one, or an array of them, nested for sequences."""
    import tvm_ffi

    return [y for x in value for y in _list_tvm_leaves(x)] if isinstance(value, tvm_ffi.Array) else [value]


def _copy_tvm_tensor(value: Any) -> np.ndarray:
    """A numpy copy of a tensor; a shape (what an ONNX Shape becomes) as int64."""
    import tvm_ffi

    if isinstance(value, tvm_ffi.Shape):
        return np.array(list(value), np.int64)
    return np.array(value.numpy())


def run_model(model: str, inputs: dict, threads: int) -> list:
    """Outputs of an ONNX model on TVM."""
    import os

    os.environ["TVM_NUM_THREADS"] = str(threads)
    import onnx
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    machine = tvm.relax.VirtualMachine(tvm.compile(from_onnx(onnx.load(model)), target), tvm.cpu())
    found = machine["main"](*[tvm.runtime.tensor(x) for x in inputs.values()])
    return [x.numpy() for x in ([found] if hasattr(found, "numpy") else found)]
