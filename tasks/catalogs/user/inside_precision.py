"""In what dtype a kernel computes inside: declared, or told by what it dispatches on tensors without data. torch is imported inside functions.

Inputs are given exactly. Where a kernel of bfloat16 tensors computes in float32, what it loses is what float32 loses,
and no noise of its inputs excuses more.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tasks.arrays.widened import MOVEMENT
from tasks.aside import ask_aside
from tasks.catalogs.user.load_kernels import DeclaredKernel
from tasks.catalogs.user_definitions import do_definitions_isolate, get_announced_definitions
from tasks.graphs.torch_module import does_operation_round_nothing, watch_module_operations
from tasks.model import EPS, is_complex_dtype, is_inexact_dtype

#: Times the ε of float32 by which inputs are moved for what is computed in float32 of narrower ones: results of 16 bits
#: are right up to 4 error units, those of float32 up to 32.
REACH = 8.0
#: What narrower numbers are computed in, unless something else is said.
WIDE = "float32"


def find_dtype_inside(one: DeclaredKernel, arrays: Mapping[str, np.ndarray], dtype: str) -> str:
    """The dtype, wider than ``dtype``, that a kernel computes in on inputs like these; "" where it is not known to."""
    if one.op.compute:
        return one.op.compute if EPS.get(one.op.compute, 1.0) < EPS.get(dtype, 0.0) else ""
    if one.op.framework != "torch" or not is_inexact_dtype(dtype) or is_complex_dtype(dtype) or EPS[dtype] <= EPS[WIDE]:
        return ""
    try:
        # The kernel's code is run for this, and whoever asks makes what it will be judged by.
        aside = do_definitions_isolate(get_announced_definitions()) and sys.platform == "linux"
        return WIDE if (_ask_computes_wide if aside else _does_kernel_compute_wide)(one, arrays) else ""
    except Exception:  # it asks for values, or leaves torch
        return ""


def _ask_computes_wide(one: DeclaredKernel, arrays: Mapping[str, np.ndarray]) -> bool:
    """`_does_kernel_compute_wide`, asked in a process of its own."""
    _import_what_watches()
    return ask_aside(lambda: _does_kernel_compute_wide(one, arrays))


@functools.cache
def _import_what_watches() -> None:
    """Import here what torch imports to watch a call (its compiler, seconds): a process that is forked for each
    question would do it again."""
    _watch_computes_wide(lambda x: x + x, {"x": np.zeros(1, np.float32)})


def find_eps_inside(dtype: str, inside: str) -> float:
    """By how much an input of a dtype moves that ``inside`` is computed with."""
    own = EPS[dtype]
    return own if not inside or is_complex_dtype(dtype) else min(own, REACH * EPS[inside])


def _does_kernel_compute_wide(one: DeclaredKernel, arrays: Mapping[str, np.ndarray]) -> bool:
    """`_watch_computes_wide` of a declared kernel, which is loaded where this runs."""
    return _watch_computes_wide(functools.partial(one.function("kernel"), **one.op.kwargs), arrays)


def _watch_computes_wide(kernel: Callable[..., Any], arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether every operation that rounds gives float32 or wider, and nothing computes with what was cast to fewer
    digits."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tasks.arrays import torch_tree

    def narrow(x: Any) -> bool:
        return isinstance(x, torch.Tensor) and EPS.get(torch_tree.name_torch_dtype(x.dtype), 0.0) > EPS[WIDE]

    rounds, given, computes_narrow = 0, dict[int, Any](), False

    def note(func: Any, arguments: Any, results: Any) -> None:
        nonlocal rounds, computes_narrow
        moves = func.is_view or func.overloadpacket.__name__.rstrip("_") in MOVEMENT
        taken, made = torch_tree.list_output_tensors(arguments), torch_tree.list_output_tensors(results)
        if not does_operation_round_nothing(func):
            rounds += 1
            computes_narrow |= any(map(narrow, made))
        # What is narrow and no input was rounded: to hand it on is to end with it, to read it is to compute in fewer
        # digits.
        read = any(narrow(x) and id(x) not in given for x in taken)
        computes_narrow |= read and (func.overloadpacket.__name__ == "_to_copy" or not moves)
        if all(not narrow(x) or id(x) in given for x in taken) and not any(
            not narrow(x) and isinstance(x, torch.Tensor) and x.is_floating_point() for x in taken
        ):
            given.update({id(x): x for x in made if narrow(x)})

    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.no_grad():
        warnings.simplefilter("ignore")
        tensors = {
            name: fake.from_tensor(torch_tree.tensor_from_numpy(np.ascontiguousarray(x))) for name, x in arrays.items()
        }
        given.update({id(x): x for x in tensors.values()})
        with watch_module_operations(note):
            kernel(**tensors)
    return bool(rounds) and not computes_narrow
