"""LiteRT (TensorFlow Lite's successor): TensorFlow's function converted to a flatbuffer and interpreted on the CPU."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from importlib import metadata
from typing import Any

import numpy as np

from tasks.backends.base import Backend, smoke_test
from tasks.backends.shared.artefacts import load_or_make
from tasks.backends.shared.function_form import describe_framework_call, invoke_counterpart, list_function_inputs
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.backends.tensorflow import UNSUPPORTED, quiet_tensorflow
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported, Vacuous
from tasks.variables import count_compute_threads

_OPTIONS = ("delegate",)

#: First byte of a kept conversion: a model, or why there is none.
_MODEL, _REASON = b"M", b"R"

#: The converter's words for an op that has no builtin of LiteRT, in a text that holds the whole module.
_NO_BUILTIN = re.compile(
    r"error: ('[\w.]+' op is neither a custom op nor a flex op|failed to legalize operation '[\w.]+'|type of \w+ .*? is not supported)"
)
_UNSUPPORTED = re.compile(
    UNSUPPORTED.pattern
    + r"|[Dd]ata ?type \S+ (is )?not |Type .{0,40} (is )?(not|currently) |type_id|[Nn]ot supported|failed to prepare|Invalid tensor size|Invalid data-type for array"
)

#: A model of one Exp of float32 (128, 768), as TensorFlow's converter made it: zlib, base 85.
_PROBE_MODEL = (
    "c-m!BPfG$(5TA54v1Kz_qJsy6pt`K92|+h81HnIG5*>n7aEk?9VO>3S=+Ln)oxSCuL!Tk~26gP<p-<8_Z+6~d^x(&v_nZGSFAD&j)B2$fImp5`=#T*wxfCcU19AZOhy~(d1z"
    "?8wi~+>)jUrl$lO`|Wlg5|IekH^@Vr+X;$Gx%o_H}PE@X1d>%!441GKPea36V}io#cHpyi2TGuufnTQE4?Vs_pYyt7$c=o$^V!Q^s1tdQuS9Ds6|3Yk3pbcZRk#wY{-3av_2"
    "ItEdMtL)^0c6X)qheTungQCz|85}PD0$$mgHkh4^19((h|`^WRaW1M?Z$P1uo6bpv=KZb~1FpfeMpRb=FSRlR;Vy=yPt(~ikT<pWQ`v%QUCrd5LE@EoTi=A8|uDB<WXV`OG;"
    "9W{zo${-&#=hM9j>>YE_a*^LvV6yua=f9vP-WO(=yHe`<Tvm>>v_K8<0kBWr8gKHn{0Cjygb;Vet<g)&nmKEYMpBrx%VljLV5N7f6www3jZg*{KqQw3=~21nh)dWe*tAKWeo"
)


class LiteRt(Backend):
    """LiteRT's interpreter with its builtin ops alone (no flex ops, which are TensorFlow's kernels), on one thread.

    options: ``delegate`` ("xnnpack", which LiteRT applies by default, or "none": its own kernels).
    """

    takes_threads = True
    vendor = "Google"
    forms = ("tflite", "tensorflow")
    inputs_once = True
    takes = _OPTIONS
    closed = True
    packages = ("ai-edge-litert==2.3.0", "tensorflow-cpu==2.21.0")
    unsupported = _UNSUPPORTED

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.delegate = self.choice("delegate", ("xnnpack", "none"), "xnnpack")

    def probe(self) -> RuntimeInfo:
        """Run a model of one Exp; TensorFlow, which only converts, is imported by the first model that was not kept."""
        quiet_tensorflow(True)
        try:
            from ai_edge_litert.interpreter import Interpreter

            self._versions = (
                f"litert {metadata.version('ai-edge-litert')}",
                f"tensorflow {metadata.version('tensorflow-cpu')}",
            )
        except (ImportError, metadata.PackageNotFoundError) as error:
            raise Unavailable(f"LiteRT cannot be imported: {error}") from error

        def compute() -> Any:
            interpreter = Interpreter(model_content=zlib.decompress(base64.b85decode(_PROBE_MODEL)), num_threads=1)
            interpreter.allocate_tensors()
            return next(iter(interpreter.get_signature_runner()(t0=np.zeros((128, 768), np.float32)).values()))

        smoke_test("LiteRT", compute, "one-Exp model of zeros", expected=1.0)
        return RuntimeInfo(self._versions[0], "cpu")

    def build(self, form: Form) -> Program:
        """Convert the form's counterpart and prepare an interpreter.

        Raises Unsupported with the converter's words for an op or a dtype that LiteRT has no builtin for.
        """
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        arrays = form.arrays if form.kind == "tflite" else list_function_inputs(form)
        if form.kind == "tflite":
            made = _MODEL + (form.model or b"")
        else:
            made = load_or_make("litert", self._parts(form, arrays), lambda: _convert_to_litert(form, arrays))
        if made[:1] == _REASON:
            raise Unsupported(made[1:].decode())
        resolver = (
            OpResolverType.AUTO if self.delegate == "xnnpack" else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        )
        interpreter = Interpreter(
            model_content=made[1:], num_threads=count_compute_threads(), experimental_op_resolver_type=resolver
        )
        interpreter.allocate_tensors()
        nodes = interpreter._interpreter  # its list of ops in words fails on a tensor of a type that NumPy lacks
        ops = [nodes.NodeName(i) for i in range(nodes.NumNodes())]
        if not ops:
            raise Vacuous("TensorFlow's converter left no op: the model is its inputs, or a constant")
        signature = interpreter.get_signature_runner()
        names, order = (
            sorted(signature.get_input_details(), key=_split_tensor_name_number),
            sorted(signature.get_output_details(), key=_split_tensor_name_number),
        )
        by = f"converter={self._versions[1].replace(' ', '-')} {describe_framework_call(form)}"
        if form.kind == "tflite":
            by, order = "form=tflite", [order[k] for k in form.order]
        given = {name: arrays[k if form.kind == "tflite" else int(name[1:])] for k, name in enumerate(names)}
        flags = f"delegate={self.delegate} {by}"

        def run() -> list[np.ndarray]:
            found = signature(**given)
            return [np.array(found[name]) for name in order]

        return Program(run, "xnnpack" if "DELEGATE" in ops else "builtin", flags=flags)

    def recipe(self, form: Form) -> ProgramRecipe:
        return ProgramRecipe(run_program, {"delegate": self.delegate, "threads": 1})

    def _parts(self, form: Form, arrays: list[np.ndarray]) -> tuple[str, ...]:
        """Everything that decides a conversion."""
        call = [json.dumps([form.args, form.kwargs], sort_keys=True), str([(x.shape, x.dtype.name) for x in arrays])]
        network = [hashlib.sha256(form.model).hexdigest()] if form.model is not None else []
        return (*self._versions, form.op, describe_framework_call(form), *call, *network)


def _split_tensor_name_number(name: str) -> tuple[str, int]:
    """A name's words, then its number: t2 comes before t10."""
    words_, number = re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    return words_, int(number or 0)


def _convert_to_litert(form: Form, arrays: list[np.ndarray]) -> bytes:
    """The model as bytes behind _MODEL; behind _REASON, the converter's refusal."""
    import tensorflow as tf

    class Holder(tf.Module):  # type: ignore[misc]
        @tf.function(autograph=False)
        def call(self, *tensors: Any) -> dict[str, Any]:
            return {
                f"o{i}": tf.convert_to_tensor(x) for i, x in enumerate(invoke_counterpart(form, tensors, tf.as_dtype))
            }

    holder = Holder()
    specs = [tf.TensorSpec(x.shape, tf.as_dtype(x.dtype), name=f"t{i}") for i, x in enumerate(arrays)]
    try:
        concrete = holder.call.get_concrete_function(*specs)
        return _MODEL + bytes(tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder).convert())
    except Unsupported as error:
        return _REASON + str(error).encode()
    except Exception as error:
        if found := _NO_BUILTIN.search(str(error)):
            return _REASON + f"TensorFlow's converter: {found.group(1)}".encode()
        raise


def run_program(module: Any, inputs: list, delegate: str, threads: int) -> list:
    """Outputs of a function of TensorFlow's, converted to a LiteRT model."""
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    def call_by_name(*x: Any) -> dict:
        found = module.program(*x)
        several = found if isinstance(found, (tuple, list)) else [found]
        return {f"o{k}": tf.convert_to_tensor(y) for k, y in enumerate(several)}

    specs = [tf.TensorSpec(x.shape, tf.as_dtype(x.dtype), name=f"t{k}") for k, x in enumerate(inputs)]
    holder = tf.Module()
    holder.call = tf.function(call_by_name, autograph=False)
    made = holder.call.get_concrete_function(*specs)
    model = tf.lite.TFLiteConverter.from_concrete_functions([made], holder).convert()
    kernels = OpResolverType.AUTO if delegate == "xnnpack" else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=model, num_threads=threads, experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    run = interpreter.get_signature_runner()
    found = run(**{name: inputs[int(name[1:])] for name in run.get_input_details()})
    return [np.array(found[f"o{k}"]) for k in range(len(found))]
