"""A network of the catalog, or a training step of one, as a program: built from its config, with the weights that were judged."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.training import TrainingStep
from tasks.backends.shared.recipe import NoProgram
from tasks.catalogs.models import networks, training
from tasks.catalogs.models.architectures import ARCHITECTURES, Architecture
from tasks.model import Form, Group

_HOLD = '''
def hold(device):
    """Give the network the weights that were judged."""
    net.load_state_dict({name: to_tensor(x) for name, x in held.items()})
    net.to(device)
'''


def define_network_program(form: Form, group: Group) -> tuple[list[str], dict[str, np.ndarray]]:
    """(parts of the text of a program, the weights by name). Raises NoProgram."""
    one, step = ARCHITECTURES.get(group.op_name), form.call if isinstance(form.call, TrainingStep) else None
    if one is None:
        raise NoProgram("no folder: the network comes without its source")
    module: Any = step.module if step else form.call
    held = {
        name.removeprefix("model."): np.array(
            torch_tree.tensor_to_numpy((step.before(name) if step else x).detach().cpu())
        )
        for name, x in module.state_dict().items()
    }
    names = ", ".join(f"{name}=x[{k}]" for k, name in enumerate(one.inputs))
    outputs = f"found = net({names})\n    outputs = [found[name] for name in {list(one.outputs)!r}]"
    parts = [
        *_write_network_build(one, dict(one.settings[group.variant])),
        f"net.{'train' if step else 'eval'}()",
        _HOLD.strip(),
    ]
    if step is None:
        return [*parts, f"def program(*x):\n    {outputs}\n    return outputs"], held
    loss = (
        f"def program(*x):\n    {outputs}\n    targets = x[{len(one.inputs)}:]\n    return {training.LOSSES[one.loss]}"
    )
    return [*parts, loss, _define_step_source(step)], held


def _define_step_source(step: TrainingStep) -> str:
    """Source of ``step``, which calls the program, or what a compiler made of it, and differentiates it."""
    scaled, by = (f"loss * {step.scale}", f"g / {step.scale}") if step.scale != 1 else ("loss", "g")
    value = ["    loss = call(*given).float()"]
    if step.autocast:
        value = [f"    with torch.autocast(given[0].device.type, torch.{step.autocast}):", f"    {value[0]}"]
    return "\n".join(
        [
            "def step(call, given):",
            '    """The loss and its gradients, one row per output channel."""',
            "    wanted = [p for p in net.parameters() if p.requires_grad]",
            *value,
            f"    gradients = [{by} for g in torch.autograd.grad({scaled}, wanted)]",
            "    return [loss, *(g if g.ndim < 3 else g.reshape(len(g), -1) for g in gradients)]",
        ]
    )


def _write_network_build(one: Architecture, settings: dict[str, Any]) -> list[str]:
    """Parts that make ``net``."""
    experts = settings.pop("experts_implementation", None)
    told = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    if not one.module:
        return [
            "from typing import Any",
            inspect.getsource(networks.build_unet).rstrip(),
            f"net = {networks.build_unet.__name__}({told})",
        ]
    place = f"transformers.models.{one.module}"
    imports = [
        f"from {place}.configuration_{one.module} import {one.config}",
        f"from {place}.modeling_{one.module} import {one.model}",
    ]
    lines = [f"config = {one.config}({told})"]
    lines += [f"config._experts_implementation = {experts!r}"] * bool(experts)
    return ["\n".join(imports), "\n".join([*lines, f"net = {one.model}(config)"])]
