"""What the client is asked about: a function with its reference and inputs, as the op that a config would declare."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.arrays import layouts, torch_tree
from tasks.arrays.pack import name_numpy_dtype
from tasks.arrays.tree import TensorSpec
from tasks.cache import default_cache
from tasks.catalogs.base import CatalogError
from tasks.catalogs.user import declaration_keys, functions, load_kernels
from tasks.catalogs.user import dims as sizes
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.load_kernels import DeclaredKernel
from tasks.catalogs.user.ops import BETWEEN, FUNCTIONS, UserOp
from tasks.judge.error_metrics import get_classic_tolerance
from tasks.model import DTYPES, Refusal, is_inexact_dtype
from tasks.nearest import suggest_nearest_names

#: Values of an input that a run's record holds itself; beyond them, and what is not finite, are in a file of the cache.
INLINE = 4096
#: What other tools call an argument, and what it is called here.
ELSEWHERE = {"iterations": "cases", "check_backward": "backward", "op_name": "name"}


#: Which gradients are judged: those of all floating inputs, or of those named. A function is the gradient of a kernel
#: of NumPy arrays.
Backward = bool | Sequence[str] | Callable[..., Any]


class ClientError(Refusal):
    """A call of the client that cannot be meant; the text says what is wrong and how to mend it."""


@dataclass(frozen=True)
class Kernel:
    """An op with its functions, and as a config of another process would name them. root: where modules are looked up;
    double: whether gradients of its gradients are judged."""

    op: UserOp
    root: str
    double: bool = False

    @property
    def checks(self) -> list[str]:
        """What is judged of it, as a config names it."""
        return ["forward", *["backward"] * bool(self.op.gradient), *["double_backward"] * self.double]

    def config(self) -> dict[str, Any]:
        """The catalog of a config that has this op alone."""
        named = self.op.with_functions(lambda _, function: name_given_function(function)[0])
        return {"name": "user", "root": self.root, "kernels": [declaration_keys.write_declaration(named)]}

    def hindrance(self, script: bool = False) -> str:
        """Why another process cannot have the functions; "" if it can. script: that process may import the script that
        runs."""
        whys = ((what, name_given_function(getattr(self.op, what), script)[1]) for what in FUNCTIONS)
        return next((f"{what}: {why}" for what, why in whys if why), "")


def find_kernel(
    function: Callable[..., Any] | str,
    reference: Callable[..., Any] | str | None = None,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[int]] | None = None,
    dtypes: Sequence[str] | None = None,
    backward: Backward = False,
    double: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    **settings: Any,
) -> Kernel:
    """The op of a function, or of the name of one ("module:function", "file.py:function", or a name of ./farm.yaml).

    What is not given is as its `@farm.op` or its config declares it; double without backward is of the gradients that
    are declared, or of all. atol, rtol: its tolerances in every dtype; of the two, one that is not given is as
    declared, else the dtype's classic one. Raises ClientError, with every mistake's key.
    """
    refuse_negative(atol=atol, rtol=rtol)
    declared = find_given_declaration(function)
    changes = {k: v for k, v in settings.items() if v is not None}
    valid = [f.name for f in fields(UserOp)]
    for key in changes:
        if key not in valid:
            meant = f"; here it is {ELSEWHERE[key]}" if key in ELSEWHERE else suggest_nearest_names(key, valid)
            raise ClientError(f"unknown argument {key!r}{meant}")
    if not isinstance(dims or {}, Mapping):
        raise ClientError(f"dims: {dims!r} is not a mapping: give every dimension's range, e.g. {{'n': (1, 2048)}}")
    ranges = {k: _read_sizes(k, v) for k, v in (dims or {}).items()}
    names = None if dtypes is None else [dtypes] if isinstance(dtypes, str) else dtypes
    given = {
        "reference": reference,
        "inputs": dict(inputs) if isinstance(inputs, Mapping) else inputs,
        "dtypes": names and [str(d).removeprefix("torch.") for d in names],
        "dims": {**declared.op.dims, **ranges} if declared else ranges,
        "backward": backward if callable(backward) else None,
    }
    if ranges:  # whoever asks for a range asks for all of it
        changes.setdefault("sizes", BETWEEN)
    changes |= {k: v for k, v in given.items() if v is not None}
    if isinstance(changes.get("kwargs"), Mapping):
        changes["kwargs"] = {k: v.item() if isinstance(v, np.generic) else v for k, v in changes["kwargs"].items()}
    op = replace(declared.op, **changes) if declared else _build_user_op(function, changes)
    if atol is not None or rtol is not None:
        op = replace(op, tolerances={dtype: _make_tolerance(op, dtype, atol, rtol) for dtype in op.dtypes})
    if isinstance(op.inputs, Mapping):
        op = replace(op, gradient=_list_differentiated(op, backward, double))
    _check_kernel_declaration(op)
    told = sizes.collect_kernel_dims(op)
    for name in ranges:
        if name not in told:
            raise ClientError(
                f"dims: no shape has the dimension {name!r}{suggest_nearest_names(name, sorted(op.dims.keys() & told))}"
            )
    return Kernel(op, declared.root if declared else name_given_function(op.kernel)[2], bool(double))


def _list_differentiated(op: UserOp, backward: Backward, double: bool) -> Sequence[str]:
    """The inputs of an op whose gradients are asked for: those that are named, else those that it declares, else all
    that can be."""
    if isinstance(backward, str):
        return [backward]
    if isinstance(backward, Sequence) and backward:
        return list(backward)
    if not isinstance(backward, (bool, Sequence)) and not callable(backward):
        text = "True, the names of inputs, or the function that computes the gradients of a kernel of NumPy arrays"
        raise ClientError(f"backward: {text}, not {backward!r}")
    if not (backward or double) or (op.gradient and backward is not True):
        return op.gradient
    own = {k: v.get("dtype") if isinstance(v, Mapping) else None for k, v in op.inputs.items()}
    return [name for name, dtype in own.items() if dtype is None or is_inexact_dtype(dtype)]


def _make_tolerance(op: UserOp, dtype: str, atol: float | None, rtol: float | None) -> dict[str, float]:
    """That of an op in a dtype, with what is given of it."""
    usual = dict(zip(("rtol", "atol"), get_classic_tolerance(dtype)))
    declared = op.tolerances.get(dtype, {}) if isinstance(op.tolerances, Mapping) else {}
    given = {k: v for k, v in (("rtol", rtol), ("atol", atol)) if v is not None}
    return usual | {**declared} | given


def refuse_negative(**given: Any) -> None:
    """Raise ClientError for a number that is none, or is below 0; None is nothing given."""
    for name, value in given.items():
        if value is not None and (type(value) not in (int, float) or not value >= 0):
            raise ClientError(f"{name}: a number of at least 0, not {value!r}")


def _read_sizes(name: str, given: Any) -> Any:
    made = [given] if type(given) is int else list(given) if isinstance(given, (tuple, list, range)) else given
    if isinstance(made, list) and [type(n) for n in made] == [int, int] and made[0] > made[1]:
        raise ClientError(
            f"dims.{name}: {given!r} ends before it begins; give (smallest, largest): {tuple(made[::-1])}"
        )
    return made


def _build_user_op(function: Any, changes: dict[str, Any]) -> UserOp:
    if not callable(function):
        raise ClientError(f'{function!r} is not a function: pass the kernel, or its name as "module:function"')
    called = changes.pop("name", "") or _make_identifier(_find_kernel_name(function))
    if "reference" not in changes:
        raise ClientError(
            f"{called} has no reference: give reference=, a function of float64 NumPy arrays under the same names "
            '(of torch tensors with reference_framework="torch"), or declare the kernel with @farm.op'
        )
    if "inputs" not in changes:
        raise ClientError(
            f'{called} has no inputs: give inputs={{"x": ["b", "n"]}} and dims={{"b": (1, 8), "n": (1, 2048)}}'
        )
    return UserOp(called, function, **changes)


def _find_kernel_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    if name != "<lambda>":
        return str(name)
    return _find_kernel_variable(function, sys.modules.get(getattr(function, "__module__", None) or ""))[0]


def _make_identifier(name: str) -> str:
    made = "".join(c if c.isalnum() or c in "_-." else "_" for c in name).lstrip("-._0123456789")
    return made or "kernel"


def find_given_declaration(function: Callable[..., Any] | str) -> DeclaredKernel | None:
    """The declaration of a function: by @farm.op, or of a config of the working directory. Raises ClientError."""
    if isinstance(function, str):
        if ":" not in function.removeprefix("user:"):
            return _find_config_kernel(function.removeprefix("user:"))
        named, function = function, load_function(function)
    else:
        named = ""
    ops = getattr(function, "__farm_ops__", None)
    if ops:
        return DeclaredKernel(ops[0], (), name_given_function(function)[2])
    if named:
        raise ClientError(f"{named} is not declared: put @farm.op before it, or pass the function with reference=")
    return None


def load_function(function: str) -> Any:
    """What "module:function" or "file.py:function" names. Raises ClientError."""
    module, _, name = function.rpartition(":")
    try:
        found: Any = load_kernels.load_user_module(
            str(Path(module).resolve()) if module.endswith(".py") else module, str(Path.cwd()), ()
        )
    except CatalogError as error:
        raise ClientError(f"{function}: {error}") from None
    if not hasattr(found, name):
        there = [k for k, v in vars(found).items() if getattr(v, "__module__", "") == found.__name__ and callable(v)]
        raise ClientError(f"{function}: there is no {name!r} in it{suggest_nearest_names(name, there)}")
    made = getattr(found, name)
    if not callable(made):
        raise ClientError(f"{function} is not a function but a {type(made).__name__}")
    return made


def list_config_kernels() -> dict[str, DeclaredKernel]:
    """The kernels of ./farm.yaml by name; {} where there is none. Raises ClientError."""
    from farm.plan import config as configs
    from farm.plan import kernels

    path = Path("farm.yaml")
    if not path.is_file():
        return {}
    try:
        kernels.announce_config_kernels(configs.load_config(str(path)))
        return load_kernels.load_user_ops()
    except configs.ConfigError as error:
        raise ClientError(str(error)) from None
    except CatalogError as error:
        raise ClientError(f"{path}: {error}") from None


def _find_config_kernel(name: str) -> DeclaredKernel:
    found = list_config_kernels()
    if not Path("farm.yaml").is_file():
        raise ClientError(f'{name!r}: no farm.yaml in {Path.cwd()}; name the kernel as "module:function"')
    if name not in found:
        raise ClientError(f"farm.yaml has no op {name!r}{suggest_nearest_names(name, sorted(found))}")
    one = found[name]

    def find(what: str, given: Any) -> Any:
        return one.function(what) if isinstance(given, str) and given and not given.endswith(".py") else given

    return replace(one, op=one.op.with_functions(find))


def _check_kernel_declaration(op: UserOp) -> None:
    """Raise ClientError for the first mistake of a declaration."""
    for name, given in op.inputs.items() if isinstance(op.inputs, Mapping) else ():
        shape = given.get("shape", ()) if isinstance(given, Mapping) else given
        for size in shape if isinstance(shape, (list, tuple)) else ():
            try:
                lacking = [d for d in sizes.list_size_names(size) if d not in op.dims]
            except ValueError:
                continue  # told below
            if lacking and not op.dims:
                raise ClientError(
                    f"inputs.{name}: the dimension {lacking[0]!r} has no sizes: give dims={{{lacking[0]!r}: (1, 2048)}}"
                )
    for key, text in list_declaration_mistakes(op):
        raise ClientError(f"{op.name}: {'.'.join(map(str, key))}: {text}")
    one = DeclaredKernel(op, (), str(Path.cwd()))
    try:
        for what in FUNCTIONS:
            if what != "reference" or one.script is None:
                load_kernels.check_kernel_call(one, what)
    except CatalogError as error:
        raise ClientError(f"{op.name}: {error}") from None


def name_given_function(function: Callable[..., Any] | str, script: bool = False) -> tuple[str, str, str]:
    """(the name of a function in a config, why another process cannot import it or "", the folder modules are looked up
    in).

    script: one of the script that runs can be imported of its file."""
    if isinstance(function, str):
        return function, "", str(Path.cwd())
    module = getattr(function, "__module__", None) or ""
    place = sys.modules.get(module)
    called, own = _find_kernel_variable(function, place)
    given = getattr(place, "__file__", None)
    file = Path(given).resolve() if given else None
    named = f"{file}:{called}" if file else f"{module or '?'}:{called}"
    cwd = str(Path.cwd())
    if not own and "<locals>" in called:
        return named, f"{called} is defined inside another function: move it to module level", cwd
    if not own and "<lambda>" in called:
        return named, "a lambda that no name of its module refers to: give it one, f = lambda …, or write a def", cwd
    if file is None or not file.is_file():
        return named, f"{called} is in no file: put it into one", cwd
    if module == "__main__" and not script:
        return named, f"{called} is in the running script: put it into a module that the script imports", cwd
    if not own:
        return named, f"{module}.{called} is another object", cwd
    if file.name != "__init__.py" and module.rpartition(".")[2] != file.stem:  # loaded as a file, under another name
        return named, "", str(file.parent)
    root = file.parents[module.count(".") + (file.name == "__init__.py")]
    return f"{module}:{called}", "", str(root)


def _find_kernel_variable(function: Callable[..., Any], module: Any) -> tuple[str, bool]:
    """(what a module calls a function, whether it has it by that name): its own name, or that of a variable which holds
    it, as one that is made by a call or a lambda has."""
    called = getattr(function, "__qualname__", type(function).__qualname__)
    found: Any = module
    for word in called.split("."):
        found = getattr(found, word, None)
    if found is function or hasattr(found, "__wrapped__"):
        return called, True
    there = vars(module) if module is not None else {}
    held = next((name for name, x in there.items() if x is function), "") or _find_declared_function(function, there)
    return (held, True) if held else (called, False)


def _find_declared_function(function: Callable[..., Any], there: Mapping[str, Any]) -> str:
    """What finds a function that is named in a declaration alone, as the reference of @farm.op often is; "" where none
    has it."""
    return next(
        (
            f"{name}.__farm_ops__.{place}.{what}"
            for name, x in there.items()
            for place, op in enumerate(getattr(x, "__farm_ops__", None) or ())
            for what in FUNCTIONS
            if getattr(op, what) is function
        ),
        "",
    )


def describe_inputs_as_data(
    arrays: Mapping[str, np.ndarray], dtypes: Sequence[str] | None, places: Mapping[str, TensorSpec]
) -> dict[str, Any]:
    """Inputs of a declaration that hold the values of arrays, and lie in memory as those of ``places`` do; floating
    ones are of the dtype under test if there are dtypes."""
    made: dict[str, Any] = {}
    for name, x in arrays.items():
        own = name_numpy_dtype(x.dtype)
        if not x.size:
            raise ClientError(f"inputs.{name}: has no elements, shape {list(x.shape)}: nothing to compare")
        spec: dict[str, Any] = {"shape": list(x.shape), "data": _write_values_file(x)}
        if not (dtypes and is_inexact_dtype(own)):
            spec["dtype"] = own
        if name in places:
            spec |= {"strides": list(places[name].strides or ()), "offset": places[name].offset}
        made[name] = spec
    return made


def _write_values_file(x: np.ndarray) -> Any:
    wide = (
        x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        if is_inexact_dtype(name_numpy_dtype(x.dtype))
        else x
    )
    if 0 < wide.size <= INLINE and wide.dtype.kind != "c" and (wide.dtype.kind in "biu" or np.isfinite(wide).all()):
        return wide.reshape(-1).tolist()
    digest = hashlib.sha256(wide.tobytes() + str(wide.dtype).encode()).hexdigest()[:32]
    path = default_cache() / "inputs" / f"{digest}.npy"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, wide, allow_pickle=False)
    return str(path)


def name_given_inputs(function: Callable[..., Any], inputs: Any) -> dict[str, Any]:
    """The arguments of a call by name: of a mapping, or of a tuple in the function's order. Raises ClientError."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    given = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    try:
        return dict(inspect.signature(functions.find_callable_function(function)).bind(*given).arguments)
    except (TypeError, ValueError) as error:
        raise ClientError(f"{getattr(function, '__name__', function)}: its inputs do not fit: {error}") from None


def split_given_inputs(function: Callable[..., Any], inputs: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, other arguments) by name, of the arguments of a call."""
    named = name_given_inputs(function, inputs)
    arrays = {}
    for name, x in named.items():
        if is_tensor_or_array(x):
            try:
                arrays[name] = copy_to_array(x)
                known = name_numpy_dtype(arrays[name].dtype) in DTYPES and arrays[name].dtype.kind not in "OSU"
            except (
                RuntimeError,
                TypeError,
                KeyError,
                ValueError,
            ):  # what torch says of a sparse, quantized or meta tensor
                known = False
            if not known:
                kind = f"{x.layout} on {x.device}" if hasattr(x, "layout") else "an array"
                raise ClientError(
                    f"inputs.{name}: {x.dtype}, {kind}, has no values to compute with: give dense numbers"
                )
    return arrays, {k: v for k, v in named.items() if k not in arrays}


def is_tensor_or_array(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(x, np.ndarray) or (torch is not None and isinstance(x, torch.Tensor))


def find_tensor_place(x: Any) -> TensorSpec:
    """How a tensor or array lies in memory: strides and offset in elements; strides None where it is contiguous."""
    return layouts.read_array_layout(x) if isinstance(x, np.ndarray) else torch_tree.read_tensor_layout(x)


def copy_to_array(x: Any) -> np.ndarray:
    """A tensor or array as a C-contiguous array in this process's memory."""
    if isinstance(x, np.ndarray):
        return layouts.make_array_contiguous(x)
    return np.array(torch_tree.tensor_to_numpy(x.detach().cpu().contiguous()))
