"""How a script of few lines calls a runtime, as its backend says (`Backend.few_lines`), and what of that several have in common."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.arrays.tree import tensor_specs
from tasks.model import FORWARD, Form, Refusal


class NoScript(Refusal):
    """A case that no script can show; the text says why."""


@dataclass(frozen=True)
class FewLines:
    """imports: of the runtime; lines: that make ``got``, a list of arrays; before: lines before all imports.

    Of a form with an ONNX model the script has ``model``, the ModelProto, and ``feeds``, arrays by name. Of any other it has
    ``arrays`` and ``call``, which takes them as the framework's own tensors and returns one of these, or several.
    """

    imports: tuple[str, ...]
    lines: tuple[str, ...]
    before: tuple[str, ...] = ()


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


def in_onnx(form: Form) -> None:
    """Raises NoScript for a form without an ONNX model."""
    if form.model is None:
        raise NoScript(f"no short script: a form {form.kind!r} without a model")


def called(form: Form, name: str) -> tuple[str, ...]:
    """The lines that make ``found`` of torch's tensors ``given``: what ``name`` returns, or the gradient of it. Raises NoScript."""
    if form.check == FORWARD:
        return ("with torch.no_grad():", f"    found = {name}(*given)")
    if form.check != "backward" or form.model is not None or min(form.cotangents, default=-1) < 0:
        raise NoScript(f"no short script: none can be written for the {form.check} check")
    inputs = len(tensor_specs([form.args, form.kwargs]))
    return (
        f"wanted = [given[k].requires_grad_() for k in {list(form.wrt)}]",
        f"found = {name}(*given[:{inputs}])",
        f"found = torch.autograd.grad({ALL}, wanted, given[{inputs}:])",
    )


def in_torch(
    form: Form, *found: str, imports: tuple[str, ...] = (), target: str = "cpu", setting: Setting = Setting()
) -> FewLines:
    """Of a framework that takes torch's tensors: ``found`` are the lines that make that of the tensors ``given`` and ``call``."""
    if form.kind != "torch":
        raise NoScript(f"no short script: none is known for the form {form.kind!r}")
    if form.model is not None:
        raise NoScript("no short script: it is a whole graph in torch's functions")
    narrow = "bfloat16" in {form.dtype, *(form.arrays[x.id].dtype.name for x in tensor_specs([form.args, form.kwargs]))}
    given, got = "torch.from_numpy(x)", "x.numpy()"
    if narrow:  # numpy has it from ml_dtypes alone, which torch does not know
        given = f"torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == ml_dtypes.bfloat16 else {given}"
        got = f"x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else {got}"
    if target != "cpu":
        given, got = f"({given}).to({target!r})", f"({got.replace('x.', 'x.cpu().')})"
    lines = (
        "torch.set_num_threads(1)",
        *setting.lines,
        f"given = [{given} for x in arrays]",
        *found,
        f"got = [{got} for x in ({ALL})]",
    )
    before = ("import os", *setting.before) if setting.variables else ()
    return FewLines((*["import ml_dtypes"] * narrow, "import torch", *setting.imports, *imports), lines, before)
