"""The script of a network of the catalog, or of a training step of one: built from its config, with weights and inputs of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.reproduce.in_torch import load_lines
from tasks.arrays.training import TrainingStep
from tasks.backends.shared.bare import bare_lines
from tasks.backends.shared.few_lines import NoScript
from tasks.catalogs.models import networks, own, training
from tasks.catalogs.models.architectures import ARCHITECTURES, Architecture
from tasks.catalogs.user import load
from tasks.graphs import given
from tasks.judge.plain import tolerance_of
from tasks.model import EPS, Form, Group, Leaf, OpClass
from tasks.model.row import declared_precision

#: Draws of how far rounding moves a result: a ReLU that changes its mind is met in some of them.
DRAWS = 8


def packages(group: Group) -> tuple[str, ...]:
    """What builds it, beside torch."""
    one = ARCHITECTURES.get(group.op_name)
    return ("transformers",) if one and one.module else ()


def words(form: Form, group: Group) -> tuple[list[str], list[str]]:
    """(imports, the lines that make ``arrays`` and ``call``). Raises NoScript.

    Its weights are those of its own init, moved, and its inputs are drawn anew: what is wrong of a network whatever its numbers
    are is shown without megabytes of them.
    """
    if group.op_name in own.declared():
        return ["import importlib.util, sys"], _own(own.declared()[group.op_name], form)
    one, step = ARCHITECTURES.get(group.op_name), form.call if isinstance(form.call, TrainingStep) else None
    if one is None:
        raise NoScript("no short script: the network comes without its source")
    imports, built = _built(one, dict(one.settings[group.variant]))
    names = ", ".join(f"{name}=x[{k}]" for k, name in enumerate(one.inputs))
    called = (
        f"[net({names})[name] for name in {list(one.outputs)}]"
        if len(one.outputs) > 1
        else f"[net({names})[{one.outputs[0]!r}]]"
    )
    lines = [
        "torch.manual_seed(0)",
        "rng = np.random.default_rng(0)",
        f"arrays = [{', '.join(map(_drawn, form.arrays))}]",
        *built,
        f"wanted = [p for p in net.{'train' if step else 'eval'}().parameters() if p.requires_grad]",
        "for p in wanted: p.data += 0.05 * torch.randn_like(p)  # no bias is zero",
        *(
            _step(step, one.loss, called, len(one.inputs))
            if step
            else [f"call = lambda *x: {called}", "step = lambda f, x: f(*x)"]
        ),
    ]
    return imports, lines


def _own(one: own.Own, form: Form) -> list[str]:
    """Lines for a module of the user's, which is loaded from its own file, as its inputs are. Raises NoScript."""
    name, _, function = one.source.rpartition(":")
    file = load.load(name, one.root, ()).__file__
    inputs = next((x for x in one.files if _holds(x, form.arrays)), None)
    if not file or inputs is None:
        raise NoScript("no short script: the network or its input is no longer in a file")
    return [
        *load_lines(file, one.root),
        f"net = module.{function}",
        "net = (net if isinstance(net, torch.nn.Module) else net()).eval()",
        "wanted = list(net.parameters())",
        f"arrays = list(np.load({str(Path(inputs).resolve())!r}).values())",
        "call = lambda *x: net(*x)",
        "step = lambda f, x: flat([f(*x)])",
    ]


def _holds(file: str, arrays: Sequence[np.ndarray]) -> bool:
    with contextlib.suppress(OSError, given.GivenError):
        found = list(given.arrays(Path(file)).values())
        return len(found) == len(arrays) and all(map(np.array_equal, found, arrays))
    return False


def _step(step: TrainingStep, loss: str, called: str, inputs: int) -> list[str]:
    """Lines that make ``call``, the loss of inputs and targets, and ``step``, which takes it, or what a compiler made of it."""
    value = "value = call(*given).float()" if step.autocast else "value = call(*given)"
    scaled, by = (f"value * {step.scale}", f"g / {step.scale}") if step.scale != 1 else ("value", "g")
    autocast = f"with torch.autocast(given[0].device.type, torch.{step.autocast}): " if step.autocast else ""
    return [
        f"loss = lambda outputs, targets: {training.LOSSES[loss]}",
        f"call = lambda *x: loss({called}, x[{inputs}:])",
        "def step(call, given):  # the loss, and its gradients",
        f"    {autocast}{value}",
        f"    return [value, *({by} for g in torch.autograd.grad({scaled}, wanted))]",
    ]


def _built(one: Architecture, settings: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(imports, lines that make ``net``)."""
    experts = settings.pop("experts_implementation", None)
    told = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    if not one.module:
        return [], [*bare_lines(networks.unet), f"net = unet({told})"]
    place = f"transformers.models.{one.module}"
    imports = [
        f"from {place}.configuration_{one.module} import {one.config}",
        f"from {place}.modeling_{one.module} import {one.model}",
    ]
    config = f"{one.config}({told})"
    if not experts:
        return imports, [f"net = {one.model}({config})"]
    return imports, [
        f"config = {config}",
        f"config._experts_implementation = {experts!r}",
        f"net = {one.model}(config)",
    ]


def _drawn(x: np.ndarray) -> str:
    """Source of numbers like those of an input."""
    if x.dtype.kind in "iu":
        return f"rng.integers({x.min()}, {int(x.max()) + 1}, {x.shape})"
    return f"rng.standard_normal({x.shape}).astype(np.{x.dtype.name})"


def judged(form: Form, expected: Sequence[Leaf], row: Mapping[str, Any]) -> list[str]:
    """Lines that compare what came with eager torch in float64 on the CPU: each tensor's difference, as a whole, with how far it
    moves when weights and inputs do by one rounding, and with how far eager torch itself is off, the CPU's, in the dtype that the
    backend computed in; under a policy without limits each element's difference with what its rule allows. Raises NoScript."""
    if (limit := row["limit"]) is None:
        return _by_rule(expected, row)
    autocast = form.call.autocast if isinstance(form.call, TrainingStep) else ""
    eps = EPS[autocast or declared_precision(row) or "float32"]
    return [
        "tell = lambda given: [y.detach().double().numpy() for y in step(call, given)]",
        f"near = lambda x: x * (1 + {eps!r} * (2 * torch.rand_like(x) - 1)) if x.is_floating_point() else x",
        "net, given = net.cpu(), [x.cpu() for x in given]",
        "moved = [tell(given)]  # by eager torch, of the CPU",
        "net, given = net.double(), [x.double() if x.is_floating_point() else x for x in given]",
        "right, weights = tell(given), [p.detach().clone() for p in wanted]",
        f"for _ in range({DRAWS}):",
        "    for p, w in zip(wanted, weights): p.data = near(w)",
        "    moved.append(tell(list(map(near, given))))",
        "wrong, size = len(got) != len(right), np.linalg.norm",
        "for k, (a, y) in enumerate(zip(got, right)):",
        "    fine = np.isfinite(y)  # what is not is to be so in both",
        "    off = size((a - y)[fine]) if np.array_equal(np.isfinite(a), fine) else np.inf",
        f"    floor = max(size((m[k] - y)[fine]) for m in moved) + {eps!r} * size(y[fine])",
        f"    if off > {limit!r} * floor:",
        '        wrong = True; print(f"output {k} {y.shape}: {off:.3g} off of {size(y[fine]):.3g}; rounding moves it by {floor:.3g}")',
        'raise SystemExit("wrong" if wrong else 0)',
    ]


def _by_rule(expected: Sequence[Leaf], row: Mapping[str, Any]) -> list[str]:
    """Lines of `judged` under the rule "classic" or "absolute". Raises NoScript."""
    if row.get("rule") == "absolute":
        told, near = [], f"off < {row['bound']!r}"
    elif row.get("rule") == "classic":
        known = {leaf.dtype: tolerance_of(leaf, OpClass.MODEL, declared_precision(row)) for leaf in expected}
        told, near = [f"    rtol, atol = {known!r}[a.dtype.name]"], "off <= atol + rtol * np.abs(y)"
    else:
        raise NoScript("no short script: no limit judges it")
    return [
        "net, given = net.cpu().double(), [x.cpu().double() if x.is_floating_point() else x.cpu() for x in given]",
        "right = [y.detach().double().numpy() for y in step(call, given)]",
        "wrong = len(got) != len(right)",
        "for k, (a, y) in enumerate(zip(got, right)):",
        "    off = np.abs(a - y)",
        *told,
        f"    if not np.all(np.isfinite(y) & ({near}) | (a == y) | (a != a) & (y != y)):",
        '        wrong = True; print(f"output {k} {y.shape}: up to {np.nanmax(off):.3g} off")',
        'raise SystemExit("wrong" if wrong else 0)',
    ]
