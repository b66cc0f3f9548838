"""How a finding calls a program of torch's, eager or compiled: functions that are copied as they stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.arrays.training import TrainingStep
from tasks.arrays.tree import list_tensor_specs
from tasks.backends.shared.recipe import NoProgram, ProgramRecipe, check_form_has_program
from tasks.model import FORWARD, Form


def recipe(form: Form, device: str, compiled: dict[str, Any] | None = None, **more: Any) -> ProgramRecipe:
    """That of a program on a device, as torch calls it. compiled: the arguments of torch.compile, None of eager torch;
    more: of `ProgramRecipe`. Raises NoProgram."""
    check_form_has_program(form)
    settings = {"device": device, "compiled": compiled, "threads": 1}
    if form.check == FORWARD or isinstance(form.call, TrainingStep):
        return ProgramRecipe(run_program, settings, (to_arrays,), **more)
    twice = form.check == "double_backward"
    if (form.check != "backward" and not twice) or form.model is not None or form.call is None or not form.wrt:
        raise NoProgram(f"no folder: none can be written for the {form.check} check of {form.op}")
    outputs = len(form.cotangents) - len(form.wrt) * twice
    starts, seconds = (_find_given(x) for x in (form.cotangents[:outputs], form.cotangents[outputs:]))
    places = {"wrt": list(form.wrt), "count": len(list_tensor_specs([form.args, form.kwargs])), "starts": starts}
    return ProgramRecipe(
        run_gradient, {**settings, **places, "seconds": seconds if twice else None}, (to_arrays,), **more
    )


def _find_given(cotangents: Sequence[int]) -> list[int]:
    return [k for k, place in enumerate(cotangents) if place >= 0]


def to_arrays(found: Any) -> list:
    """The outputs of a call, flat, as arrays."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return [y for x in found for y in to_arrays(x)]
    if found is None or not hasattr(found, "numpy"):
        return [] if found is None else [np.asarray(found)]
    x = found.detach()
    x = x.to_dense() if str(x.layout) != "torch.strided" else x
    name = str(x.dtype).removeprefix("torch.")
    if name == "complex32":
        return [x.cpu().to(x.cfloat().dtype).numpy(force=True)]
    if name.startswith(("bfloat16", "float8")):  # which torch does not give as an array
        import torch

        bits = x.cpu().view(torch.int16 if x.dtype.itemsize == 2 else torch.uint8)
        return [bits.numpy(force=True).view(name)]
    return [x.numpy(force=True)]


def run_program(module: Any, inputs: list, device: str, compiled: Any, threads: int) -> list:
    """Outputs of a program on a device of torch's; compiled: the arguments of torch.compile."""
    import torch

    torch.set_num_threads(threads)
    if hasattr(module, "hold"):  # its weights
        module.hold(device)
    given = [x.to(device) if hasattr(x, "to") else x for x in module.tensors(inputs)]  # an array stays one
    call = torch.compile(module.program, **compiled) if compiled else module.program
    if hasattr(module, "step"):
        return to_arrays(module.step(call, given))
    with torch.no_grad():
        return to_arrays(call(*given))


def run_gradient(
    module: Any,
    inputs: list,
    device: str,
    compiled: Any,
    threads: int,
    wrt: list,
    count: int,
    starts: list,
    seconds: Any,
) -> list:
    """The gradients of a program in its inputs `wrt`, of outputs `starts`; with `seconds`, the gradients of these.

    The first `count` inputs are the program's, the others the cotangents.
    """
    import torch

    torch.set_num_threads(threads)
    if hasattr(module, "hold"):  # its weights
        module.hold(device)
    given = [x.to(device) for x in module.tensors(inputs)]
    call = torch.compile(module.program, **compiled) if compiled else module.program
    wanted = [given[k].requires_grad_() for k in wrt]
    found = call(*given[:count])
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    first, second = given[count : count + len(starts)], given[count + len(starts) :]
    twice = seconds is not None
    if twice:
        first = [x.requires_grad_() for x in first]
    some = [found[k] for k in starts]
    made = torch.autograd.grad(some, wanted, first, allow_unused=True, create_graph=twice)
    made = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, made)]
    if twice:
        wanted = [*wanted, *first]
        made = torch.autograd.grad([made[k] for k in seconds], wanted, second, allow_unused=True)
        made = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, made)]
    return to_arrays(made)
