"""TensorFlow: the tensorflow form, eager (one kernel after another) or compiled by XLA."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.backends.base import Backend, importing, smoke_test
from tasks.backends.shared.function_form import describe_framework_call, invoke_counterpart, list_function_inputs
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.devices import cuda_driver
from tasks.model import Fallback, Form, Program, RuntimeInfo, Unavailable, errors
from tasks.older_python import zip_equal
from tasks.variables import count_compute_threads

_OPTIONS = ("onednn", "tf32")

#: device → (its node label, what pip is asked for, TensorFlow's name of the device).
_DEVICES = {
    "cpu": ("", ("tensorflow-cpu==2.21.0",), "CPU"),
    "cuda": ("nvidia", ("tensorflow[and-cuda]==2.21.0",), "GPU"),
}

#: No kernel for the dtype or layout; an op that XLA does not compile.
UNSUPPORTED = re.compile(
    r"Could not find device for node|is not in the list of allowed values|UNIMPLEMENTED|[Nn]ot implemented|unsupported operation on the platform|No unary variant"
    r"|Detected unsupported operations|does not support|only supports|not yet supported|No registered '\w+' OpKernel|only implemented|must be one of the following types"
    r"|[Uu]nsupported data type|not supported|They must be consistent, and one of|must have `float`-like|not in list of allowed values"
)
_OUT_OF_MEMORY = re.compile(r"OOM when allocating|RESOURCE_EXHAUSTED|ResourceExhausted")
#: An op that has kernels for other devices alone, where TensorFlow may not take one of those (2.21).
_ELSEWHERE = re.compile(r"Could not satisfy (?:explicit )?device specification")
#: Ops of a graph that hand values on, or ask of them but their shape.
_MOVES = frozenset(
    "_Arg _Retval _Send _Recv _HostSend _HostRecv Assert Const Identity NoOp Placeholder Rank ReadVariableOp Shape ShapeN Size".split()
)
#: Numbers of types (types.proto) of what is no tensor of a model's, or may be a shape: none, int32, string, int64,
#: bool, resource, variant.
_SHAPES = {0, 3, 7, 9, 10, 20, 21}


def quiet_tensorflow(onednn: bool) -> None:
    """TensorFlow's variables, which it reads when it is imported."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = str(int(onednn))


class TensorFlow(Backend):
    """TensorFlow eager on one device ("cpu", "cuda").

    options: ``onednn`` (TF_ENABLE_ONEDNN_OPTS, true as TensorFlow ships it) and ``tf32`` (false), which the row
    declares.
    """

    takes_threads = True
    vendor = "Google"
    forms = ("saved_model", "tensorflow")
    inputs_once = True
    takes = _OPTIONS
    devices, closed = tuple(_DEVICES), True
    compiled = False
    unsupported, out_of_memory, sticky = UNSUPPORTED, _OUT_OF_MEMORY, cuda_driver.STICKY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.device_vendor, self.packages, self._kind = _DEVICES[device]
        self.onednn = self.switch("onednn", True)
        self.tf32 = self.switch("tf32")

    def probe(self) -> RuntimeInfo:
        """Find the device and sum on it. Raises Unavailable with TensorFlow's own words."""
        quiet_tensorflow(self.onednn)
        with importing("tensorflow"):
            import tensorflow as tf
        tf.config.threading.set_intra_op_parallelism_threads(count_compute_threads())
        tf.config.threading.set_inter_op_parallelism_threads(count_compute_threads())
        tf.config.experimental.enable_tensor_float_32_execution(self.tf32)
        found = tf.config.list_physical_devices(self._kind)
        if not found:
            raise Unavailable(f"TensorFlow {tf.__version__} finds no {self._kind}")
        if self._kind == "GPU":
            tf.config.experimental.set_memory_growth(found[0], True)

        def compute() -> Any:
            with tf.device(f"/{self._kind}:0"):
                return tf.reduce_sum(tf.ones(2))

        smoke_test(f"TensorFlow on {self.device}", compute, "a sum")
        details = tf.config.experimental.get_device_details(found[0])
        declared = "tfloat32" if self.tf32 and self._kind == "GPU" else ""
        return RuntimeInfo(
            f"tensorflow {tf.__version__}",
            str(details.get("device_name") or found[0].device_type.lower()),
            compute_precision=declared,
            of_products=bool(declared),
        )

    def permits(self, precision: str) -> bool:
        """enable_tensor_float_32_execution enables "the use of TensorFloat-32 on supported hardware"."""
        return True

    def build(self, form: Form) -> Program:
        """Put the arrays on the device; compile the form's counterpart where that is asked for.

        A program of XLA is compiled at its first call, so that is made here.
        """
        import tensorflow as tf

        saved = form.kind == "saved_model"
        arrays = form.arrays if saved else list_function_inputs(form)
        asked = f"/{self._kind}:0"
        with tf.device(asked):
            given = [tf.constant(x) for x in arrays]
            signature = _load_saved_model_signature(tf, form.model or b"", form.order) if saved else None

        def call(*tensors: Any) -> list[Any]:
            return (
                signature(*tensors)
                if signature
                else [tf.convert_to_tensor(x) for x in invoke_counterpart(form, tensors, tf.as_dtype)]
            )

        strict = self._kind == "GPU" and not (saved or self.compiled)
        graph = saved and self._kind == "GPU"
        function: Any = tf.function(call, jit_compile=True, autograph=False) if self.compiled else call
        program, elsewhere = Program(lambda: [], asked, flags=self._flags(form)), list[str]()

        def run() -> list[np.ndarray]:
            first = program.placement == asked  # what is in a graph is told once
            seen = record_tensorflow_placement(asked, elsewhere) if graph and first else contextlib.nullcontext()
            with tf.device(asked), _forbid_tensorflow_fallback(tf) if strict else seen:
                out = function(*given)
            where = sorted({x.device.rpartition("/device:")[2] for x in out})
            program.placement = ",".join(where)
            if any(not x.startswith(self._kind) for x in where):
                program.fallback = f"the result lives on {program.placement}, not on {self._kind}"
            elif elsewhere:
                program.fallback = f"computed elsewhere than on {asked[1:]}: {', '.join(elsewhere)}"
            return [np.array(x.numpy()) for x in out]

        if self.compiled:
            run()
        program.run = run
        return program

    def recipe(self, form: Form) -> ProgramRecipe:
        settings = {"device": f"/{self._kind}:0", "compiled": self.compiled, "threads": 1}
        return ProgramRecipe(run_program, settings, variables={"TF_ENABLE_ONEDNN_OPTS": str(int(self.onednn))})

    def _flags(self, form: Form) -> str:
        by = "form=saved_model" if form.kind == "saved_model" else describe_framework_call(form)
        return f"jit={'xla' if self.compiled else 'off'} onednn={'on' if self.onednn else 'off'} tf32={'on' if self.tf32 else 'off'} {by}"


@contextlib.contextmanager
def _forbid_tensorflow_fallback(tf: Any) -> Iterator[None]:
    """Around eager ops on a device: one without a kernel for it is put on the CPU otherwise, and in the middle of
    others nobody sees it. Raises Fallback in TensorFlow's words."""
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)
    try:
        yield
    except Exception as error:
        if _ELSEWHERE.search(str(error)):
            raise Fallback(errors.find_error_text(error)) from error
        raise
    finally:
        tf.config.set_soft_device_placement(before)


@contextlib.contextmanager
def record_tensorflow_placement(asked: str, elsewhere: list[str]) -> Iterator[None]:
    """Around the first call of a SavedModel: the ops that TensorFlow puts on another device than the one that is asked
    for, in a graph where it may: what is loaded has some that must be on the CPU."""
    from tensorflow.python.eager import context

    told = context.context()
    told.enable_run_metadata()
    try:
        yield
        graphs = [g for one in told.export_run_metadata().function_graphs for g in one.partition_graphs]
    finally:
        told.disable_run_metadata()
    nodes = [n for graph in graphs for n in graph.node]
    found = {
        f"{n.op} on {at}"
        for n in nodes
        if (at := n.device.rpartition("/device:")[2]) != asked[1:] and _computes_with_floats(n)
    }
    elsewhere += sorted(found)


def _computes_with_floats(node: Any) -> bool:
    """Whether a node of a graph computes with numbers of the model's: integers alone are shapes, which TensorFlow has
    on the CPU by design."""
    types = {t for value in node.attr.values() for t in (value.type, *value.list.type)}
    return node.op not in _MOVES and bool(types - _SHAPES)


def _load_saved_model_signature(tf: Any, folder: bytes, order: Sequence[int]) -> Callable[..., list[Any]]:
    """What a SavedModel (its folder as a zip) serves, of tensors in the order of its inputs' names; outputs as
    ``order`` says. Raises ValueError for one that serves nothing."""
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(io.BytesIO(folder)) as archive:
            archive.extractall(place)
        try:
            loaded = tf.saved_model.load(place)
        except (
            AttributeError
        ):  # an optimiser of Keras 2, which Keras 3 has no class for: what is served does not need it
            from tensorflow.python.saved_model import load_v1_in_v2

            loaded = load_v1_in_v2.load(place, ["serve"])
    serves = loaded.signatures["serving_default"] if "serving_default" in loaded.signatures else None
    if serves is None:
        raise ValueError(
            "the SavedModel has no signature serving_default: export it with signatures=… (tf.saved_model.save)"
        )
    names = sorted(serves.structured_input_signature[1])

    def call(*tensors: Any, _alive: Any = loaded) -> list[Any]:  # its variables live as long as it does
        found = serves(**dict(zip_equal(names, tensors)))
        by_name = [found[name] for name in sorted(found)]
        return [by_name[k] for k in order]

    return call


class TensorFlowXla(TensorFlow):
    """tf.function with jit_compile=True: every op of the function in one program of XLA, or an error."""

    compiled = True


def run_program(module: Any, inputs: list, device: str, compiled: bool, threads: int) -> list:
    """Outputs of a function on TensorFlow; compiled: by XLA."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    call = tf.function(module.program, jit_compile=True, autograph=False) if compiled else module.program
    with tf.device(device):
        found = call(*map(tf.constant, inputs))
    several = found if isinstance(found, (tuple, list)) else [found]
    return [np.array(tf.convert_to_tensor(x).numpy()) for x in several]
