"""How a script of few lines calls a runtime, as its backend says (`Backend.few_lines`), and what of that several have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tasks.arrays.torch_tree import AS_INTEGER, COMPLEX32
from tasks.arrays.training import TrainingStep
from tasks.arrays.tree import TensorSpec, tensor_specs
from tasks.backends.shared import onnx_graph
from tasks.model import FORWARD, Form, Refusal
from tasks.model.dtypes import NATIVE, dtype_name


class NoScript(Refusal):
    """A case that no script can show; the text says why."""


@dataclass(frozen=True)
class FewLines:
    """imports: of the runtime; lines: that make ``got``, a list of arrays; before: lines before all imports; once: lines before
    these, which a further run on the same inputs does without.

    Of a form with an ONNX model the script has ``model``, the ModelProto, and ``feeds``, arrays by name. Of any other it has
    ``arrays`` and ``call``, which takes them as the framework's own tensors and returns one of these, or several.
    """

    imports: tuple[str, ...]
    lines: tuple[str, ...]
    before: tuple[str, ...] = ()
    once: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What a device of torch's needs before a call: variables before torch is imported, the plug-in whose import registers it
    ("" for none), lines that set its switches."""

    variables: tuple[tuple[str, str], ...] = ()
    plugin: str = ""
    lines: tuple[str, ...] = ()

    @property
    def imports(self) -> tuple[str, ...]:
        """Lines after torch's own import."""
        found = [self.plugin, *(["torch_xla.backends"] if any("torch_xla.backends" in x for x in self.lines) else [])]
        return tuple(f"import {name}" for name in found if name)

    @property
    def before(self) -> tuple[str, ...]:
        """Lines before torch's import, which need os."""
        return tuple(f"os.environ[{name!r}] = {value!r}" for name, value in self.variables)


#: Several outputs of a call, or the only one, as a list.
ALL = "list(found) if isinstance(found, (tuple, list)) else [found]"

#: A function of what torch's call returned: its outputs as a list, as `tasks.arrays.torch_tree.leaves` has them.
FLAT = (
    "flat = lambda x: [] if x is None else flat([*x.values()]) if isinstance(x, dict) "
    "else [z for y in x for z in flat(y)] if isinstance(x, (tuple, list)) else [x]"
)


def is_network(form: Form) -> bool:
    """Whether the call of a form is a network as a torch module, which a script calls ``net``."""
    return form.op.startswith("models:") and form.kind == "torch" and form.model is None


def is_program(form: Form) -> bool:
    """Whether the call of a torch form is a graph of operations (a torch.fx.GraphModule)."""
    return form.model is not None or hasattr(form.call, "graph")


def in_onnx(form: Form) -> None:
    """Raises NoScript for a form without an ONNX model."""
    if form.model is None:
        raise NoScript(f"no short script: a form {form.kind!r} without a model")


#: Source of the memory of an array x of a dtype that numpy lacks, as ONNX has it: several numbers of less than a byte are in one.
RAW = "np.frombuffer(numpy_helper.from_array(x).raw_data, f'u{x.itemsize}')"

#: Source of the array of such memory: its sizes, its number of `tasks.model.dtypes.ELEMENT_TYPE`, its bytes.
FROM_RAW = (
    "read = lambda shape, kind, raw: numpy_helper.to_array(onnx.TensorProto(dims=shape, data_type=kind, raw_data=raw))"
)


def lacked(form: Form) -> tuple[dict[str, str], dict[str, str]]:
    """The inputs, and the outputs, of a form's model that are no array of numpy's, by name: their dtypes."""
    graph = onnx_graph.read(form.model or b"")
    given, made = (
        {x.name: x.dtype for x in values if x.dtype not in (*NATIVE, "str")} for values in (graph.inputs, graph.outputs)
    )
    return given, made


def called(form: Form, name: str) -> tuple[str, ...]:
    """The lines that make ``found`` of torch's tensors ``given``: what ``name`` returns, the gradient of it, or that one's own; of a
    training step, what ``step`` makes of it (`farm.minimise.network`). Raises NoScript.
    """
    if isinstance(form.call, TrainingStep):
        return (f"found = step({name}, given)",)
    if form.check == FORWARD:
        return ("with torch.no_grad():", f"    found = {name}(*given)")
    twice = form.check == "double_backward"
    if (form.check != "backward" and not twice) or form.model is not None or form.call is None or not form.wrt:
        raise NoScript(f"no short script: none can be written for the {form.check} check of {form.op}")
    inputs, outputs = len(tensor_specs([form.args, form.kwargs])), len(form.cotangents) - len(form.wrt) * twice
    starts, seconds = ([k for k, c in enumerate(x) if c >= 0] for x in _parted(form.cotangents, outputs))
    begin = inputs + len(starts)
    first = (
        f"wanted = [given[k].requires_grad_() for k in {list(form.wrt)}]",
        f"found = {name}(*given[:{inputs}])",
        f"found, starts = flat(found), given[{inputs}:{begin}]",
    )
    gradient = "found = torch.autograd.grad([found[k] for k in {}], wanted, {}, allow_unused=True{})"
    zeros = "found = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found)]"
    if not twice:
        return (*first, gradient.format(starts, "starts", ""), zeros)
    return (
        *first,
        gradient.format(starts, "[x.requires_grad_() for x in starts]", ", create_graph=True"),
        "wanted += starts",
        gradient.format(seconds, f"given[{begin}:]", ""),
        zeros,
    )


def _parted(places: Sequence[int], at: int) -> tuple[Sequence[int], Sequence[int]]:
    return places[:at], places[at:]


def torch_arrays(form: Form) -> list[Any]:
    """The arrays that the tensors ``given`` of `in_torch` are made of: of each input its own, then the cotangents."""
    specs = tensor_specs([form.args, form.kwargs])
    own = [form.arrays[i] for spec in specs for i in (spec.parts or (spec.id,))]
    return own + [form.arrays[i] for i in form.cotangents if i >= 0]


def sparse(spec: TensorSpec, parts: str) -> str:
    """Source of a sparse tensor of its parts. Raises NoScript for a layout that torch has no function for."""
    shape = tuple(int(n) for n in spec.shape or ())
    if spec.layout == "sparse_coo":
        made = f"torch.sparse_coo_tensor({parts}, {shape!r}, check_invariants=False)"
        return f"{made}._coalesced_({spec.flags == 'coalesced'})"
    if spec.layout not in ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"):
        raise NoScript(f"no script: a tensor of layout {spec.layout!r} cannot be written down")
    return f"torch.sparse_compressed_tensor({parts}, {shape!r}, layout=torch.{spec.layout}, check_invariants=False)"


def _viewed(specs: Sequence[TensorSpec]) -> list[str]:
    """Lines that make of ``given``, tensors of arrays, those that the call is given: with gaps, or sparse. Raises NoScript."""
    lines, ends = list[str](), accumulate(len(spec.parts) or 1 for spec in specs)
    for spec, end in reversed(list(zip(specs, ends))):  # each is one tensor then: what is before keeps its place
        shape, k = tuple(spec.shape or ()), end - (len(spec.parts) or 1)
        if spec.layout != "strided":
            lines.append(f"given[{k}:{end}] = [{sparse(spec, f'*given[{k}:{end}]')}]")
            continue
        if spec.flags == COMPLEX32:
            lines.append(f"given[{k}] = given[{k}].to(torch.complex32)  # which numpy lacks")
        if min(spec.strides or (), default=0) < 0:  # NumPy's alone
            lines.append(f"y = given[{k}].numpy()")
            strides = f"[s * y.itemsize for s in {tuple(spec.strides or ())}]"
            lines.append(f"given[{k}] = np.lib.stride_tricks.as_strided(y[{spec.offset}:], {shape}, {strides})")
        elif spec.strides is not None:
            lines.append(f"given[{k}] = given[{k}].as_strided({shape}, {tuple(spec.strides)}, {spec.offset})")
    return lines


def in_torch(
    form: Form, *found: str, imports: tuple[str, ...] = (), target: str = "cpu", setting: Setting = Setting()
) -> FewLines:
    """Of a framework that takes torch's tensors: ``found`` are the lines that make that of the tensors ``given`` and ``call``."""
    if form.kind != "torch":
        raise NoScript(f"no short script: none is known for the form {form.kind!r}")
    specs = tensor_specs([form.args, form.kwargs])
    own = {*form.results, *(dtype_name(x.dtype) for x in torch_arrays(form))}
    narrow = sorted(own & AS_INTEGER.keys())
    sparse = any(x.layout != "strided" for x in specs) or "sparse" in form.op
    found_as = f"x{'.to_dense()' * sparse}"
    given, got = "torch.from_numpy(x)", f'{found_as}.numpy(force=True) if hasattr(x, "numpy") else np.asarray(x)'
    for name in narrow:  # numpy has them from ml_dtypes alone, which torch does not know
        raw = AS_INTEGER[name]
        given = f"torch.from_numpy(x.view(np.{raw})).view(torch.{name}) if x.dtype == ml_dtypes.{name} else {given}"
        bits = f"{found_as}.view(torch.{raw}).numpy(force=True).view(ml_dtypes.{name})"
        got = f'{bits} if getattr(x, "dtype", None) == torch.{name} else {got}'
    if COMPLEX32 in own or any(x.flags == COMPLEX32 for x in specs):
        got = f'{found_as}.cpu().to(torch.complex64).numpy(force=True) if getattr(x, "dtype", None) == torch.complex32 else {got}'
    if target != "cpu":
        given = f"({given}).to({target!r})"
    lines = (
        "torch.set_num_threads(1)",
        *setting.lines,
        FLAT,
        f"given = [{given} for x in arrays]",
        *([f"net = net.to({target!r})"] if is_network(form) and target != "cpu" else []),
        *_viewed(specs),
        *found,
        f"got = [{got} for x in flat(found)]",
    )
    before = ("import os", *setting.before) if setting.variables else ()
    return FewLines((*["import ml_dtypes"] * bool(narrow), "import torch", *setting.imports, *imports), lines, before)
