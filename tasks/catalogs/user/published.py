"""What the problems of other benchmarks are, told by their own functions: `python -m tasks.catalogs.user.published LAYOUT FILE OUT ASKED OTHERS`.

It is run in a process of its own, since it runs the problem. ASKED and OTHERS are JSON: of "gpumode" the arguments of
generate_input, one mapping a sample; of "backendbench" names of operators; OTHERS are files that are no module here.
The last line that it prints is JSON: a list of what `describe` returns, or {"error": one line}.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.arrays import module_state, torch_tree
from tasks.catalogs.base import CatalogError
from tasks.catalogs.user import aten, load_kernels
from tasks.catalogs.user_definitions import announce_definitions
from tasks.model import errors, is_inexact_dtype

#: Tensors of an operator that is only named: broadcasting ones, of few sizes.
SIZES = {"rows": [1, 5, 32], "columns": [7, 33, 129]}


class NotThere(Exception):
    """A problem that is not whole; the text says what is missing."""


def describe_kernelbench(file: Path, out: Path) -> list[dict[str, Any]]:
    """The one sample of a problem with Model, get_inputs and get_init_inputs. Raises NotThere."""
    problem = load_kernels.load_user_module(str(file), str(file.parent), ())
    init = list(_get_problem_function(problem, "get_init_inputs", file)())
    if not all(isinstance(x, (bool, int, float, str, list, tuple, dict, type(None))) for x in init):
        raise NotThere(f"{file}: get_init_inputs() returns more than numbers, texts and lists of them")
    with module_state.seed_rng():
        given = list(_get_problem_function(problem, "get_inputs", file)())
    names = [
        x for x in inspect.signature(_get_problem_function(problem, "Model", file).forward).parameters if x != "self"
    ]
    return [_describe_problem_sample(given, names, out, file) | {"init": init, "packed": False}]


def describe_gpumode(file: Path, out: Path, asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A sample for each set of arguments of generate_input. Raises NotThere."""
    # Its utils.py is copied beside it when it is run, from the folder above.
    root = file.parent if (file.parent / "utils.py").is_file() else file.parent.parent
    problem = load_kernels.load_user_module(str(file), str(root), ())
    reference, generate = (
        _get_problem_function(problem, "ref_kernel", file),
        _get_problem_function(problem, "generate_input", file),
    )
    found = []
    for arguments in asked:
        given = generate(**arguments)
        packed = isinstance(given, (tuple, list))
        values = list(given) if packed else [given]
        made = _describe_problem_sample(
            values, [f"data_{k}" for k in range(len(values))] if packed else ["data"], out, file
        )
        found.append(
            made | {"init": [], "packed": packed, "mutates": _find_written_buffers(reference, given, made["names"])}
        )
    return found


def describe_backendbench(names: Sequence[str]) -> list[dict[str, Any]]:
    """An operator of aten by name: what it takes, all of them tensors. Raises NotThere."""
    found: list[dict[str, Any]] = []
    for name in names:
        try:
            op = aten.find_aten_operator(name)
        except AttributeError:
            found.append({"error": f"{name}: torch has no operator of that name"})
            continue
        needed = [x for x in op._schema.arguments if not x.has_default_value()]
        others = [f"{x.name}: {x.type}" for x in needed if str(x.type) != "Tensor"]
        if others or not needed:
            why = f"it takes more than tensors ({', '.join(others)})" if others else "it takes no tensor"
            found.append({"error": f"{name}: {why}: write a {'task.yaml'} for it"})
            continue
        found.append({"names": [x.name for x in needed]})
    return found


def _get_problem_function(problem: Any, name: str, file: Path) -> Any:
    if not hasattr(problem, name):
        raise NotThere(f"{file}: there is no {name} in it")
    return getattr(problem, name)


def _describe_problem_sample(given: Sequence[Any], names: Sequence[str], out: Path, file: Path) -> dict[str, Any]:
    """names; inputs: as a declaration has them, with their values; kwargs: what is no tensor; dtype: of the floating
    tensors."""
    import torch

    names = [*names, *(f"argument_{k}" for k in range(len(names), len(given)))][: len(given)]
    inputs: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    dtype = ""
    for name, x in zip(names, given):
        if isinstance(x, torch.Tensor):
            own = torch_tree.name_torch_dtype(x.dtype)
            made: dict[str, Any] = {"shape": list(x.shape), "data": _keep_problem_tensor(x, out)}
            if is_inexact_dtype(own) and dtype in ("", own):
                dtype = own
            else:
                made["dtype"] = own
                if not is_inexact_dtype(own) and own != "bool" and x.numel():
                    made |= {"low": int(x.min()), "high": int(x.max()) + 1}
            inputs[name] = made
        elif isinstance(x, (bool, int, float, str, type(None))):
            kwargs[name] = x
        else:
            raise NotThere(
                f"{file}: {name} is a {type(x).__name__}: inputs are tensors, numbers and texts, side by side"
            )
    if not inputs:
        raise NotThere(f"{file}: there is no tensor among its inputs")
    return {"names": names, "inputs": inputs, "kwargs": kwargs, "dtype": dtype or "float32", "mutates": []}


def _keep_problem_tensor(x: Any, out: Path) -> str:
    """The values of a tensor in a file of the cache."""
    array = np.array(torch_tree.tensor_to_numpy(x.detach().cpu().contiguous()))
    wide = (
        array.astype(np.float64)
        if is_inexact_dtype(torch_tree.name_torch_dtype(x.dtype)) and not x.is_complex()
        else array
    )
    path = out / f"{hashlib.sha256(wide.tobytes() + str(wide.dtype).encode()).hexdigest()[:32]}.npy"
    if not path.is_file():
        out.mkdir(parents=True, exist_ok=True)
        np.save(path, wide, allow_pickle=False)
    return str(path)


def _find_written_buffers(reference: Any, given: Any, names: Sequence[str]) -> list[str]:
    """The tensors that the reference writes to: it is given a buffer for its output."""
    import torch

    before = copy.deepcopy(given)
    with contextlib.suppress(Exception):  # whoever prepares the cases says why
        reference(given)
    old, new = (list(x) if isinstance(x, (tuple, list)) else [x] for x in (before, given))
    return [
        name
        for name, a, b in zip(names, old, new)
        if isinstance(a, torch.Tensor) and not torch_tree.have_same_tensor_bits(a, b)
    ]


@contextlib.contextmanager
def _on_this_device() -> Iterator[None]:
    """Where there is no CUDA, problems that name it make their inputs on the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    if torch.cuda.is_available():
        yield
        return

    class OnCPU(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if "device" in kwargs:
                kwargs["device"] = "cpu"
            if func is torch.Tensor.cuda:
                return args[0]
            if func is torch.Tensor.to:
                args = tuple("cpu" if isinstance(x, (str, torch.device)) else x for x in args)
            return func(*args, **kwargs)

    real = torch.Generator
    torch.Generator = lambda device="cpu": real("cpu")  # type: ignore[misc, assignment]
    try:
        with OnCPU():
            yield
    finally:
        torch.Generator = real  # type: ignore[misc]


def main(layout: str, file: str, out: str, asked: str, others: str) -> Any:
    import torch

    announce_definitions(json.dumps({"submissions": json.loads(others)}))
    torch.set_num_threads(1)
    try:
        with _on_this_device():
            if layout == "kernelbench":
                return describe_kernelbench(Path(file), Path(out))
            if layout == "gpumode":
                return describe_gpumode(Path(file), Path(out), json.loads(asked))
            return describe_backendbench(json.loads(asked))
    except (NotThere, CatalogError) as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{errors.find_error_place(error) or file}: {errors.format_error_essence(error)}"}


if __name__ == "__main__":
    print("\n" + json.dumps(main(*sys.argv[1:])))
