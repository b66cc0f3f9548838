"""The torch catalog: every OpInfo of torch's op_db; the one file that touches that private API."""
from __future__ import annotations

import functools
import platform
import types
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np

from tasks import classes, definitions, torch_tree
from tasks.catalogs import torch_generated, torch_reference
from tasks.catalogs.base import Catalog, Entry, Failure, Sample, candidates
from tasks.model import EPS, WITHOUT_NOISE, Group, Leaf, OpClass, is_complex, is_inexact, np_dtype

CATALOG_VERSION = 1

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool")


class TorchOpInfo(Catalog):
    name = "torch"
    forms = ("torch",)
    exports = ("onnx",)

    def version(self) -> str:
        # Sample bytes differ between CPU capabilities: a vectorised fill draws in another order.
        return f"{CATALOG_VERSION} torch {metadata.version('torch')} {_cpu_capability()}"

    def entries(self) -> list[Entry]:
        found = []
        for info in _op_db().values():
            supported = {torch_tree.name_of(d) for d in info.supported_dtypes("cpu")}
            dtypes = tuple(d for d in DTYPES if d in supported)
            name, variant = f"torch:{info.name}", info.variant_test_name
            checks = ("forward", *("backward",) * info.supports_autograd, *("double_backward",) * bool(info.supports_gradgrad))
            sources = torch_generated.distributions(name, variant, is_random(info.op))
            found.append(Entry(name, variant, dtypes or ("float32",), checks, sources))
        return sorted(found, key=lambda e: (e.op, e.variant))

    def call(self, group: Group) -> Callable[..., Any]:
        info = _op_db()[group.op_name, group.variant]
        return unseeded(info.op) if group.check == "forward" else _differentiable(info)

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        import torch

        info = _op_db()[group.op_name, group.variant]
        if group.op_name.startswith("jiterator_"):
            yield Sample(-1, failure=Failure("invalid", "reference", "NotImplementedError",
                                             "jiterator ops exist on CUDA only: no float64 reference on the CPU"))  # fmt: skip
            return
        if group.variant == "partial_views":
            # The argument is part of a storage, and the op reads the rest of it: no copy of the argument has that.
            yield Sample(-1, failure=Failure("invalid", "store", "", "the op reads memory beyond its argument"))
            return
        if group.check != "forward" and not _has_gradient(info, group.dtype):
            yield Sample(-1, failure=Failure("vacuous", "sample", "", "the op declares no gradient for this dtype"))
            return
        torch.default_generator.manual_seed(_seed(group))
        np.random.seed(_seed(group) % 2**32)
        import random

        random.seed(_seed(group))
        made: list[Any] = []
        broken: Failure | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for sample in info.sample_inputs("cpu", getattr(torch, group.dtype), group.check != "forward", set_seed=False):
                    made.append(sample)
            except Exception as error:
                broken = Failure("invalid", "sample", type(error).__name__, str(error))
            if broken:
                yield Sample(len(made), failure=broken)
            maker = self._maker(info, group, draws)
            if group.distribution != "own" and made:
                yield from torch_generated.samples(group, made, maker.make, info, skip, first=int(bool(broken)))
                return
            # A list that broke off takes one place of those asked for, so that it is never left out.
            for place, index in enumerate(candidates(len(made), group.samples - bool(broken))):
                yield Sample(index) if place + bool(broken) in skip else maker.make(index, made[index])
        if not made and not broken:
            yield Sample(-1, failure=Failure("vacuous", "sample", "", "the op declares no samples for this dtype"))

    def _maker(self, info: Any, group: Group, draws: int) -> Maker:
        if group.check == "forward":
            return Maker(info, group.dtype, draws)
        from tasks.catalogs.torch_gradients import GradientMaker

        return GradientMaker(info, group, draws, self.call(group))


def _seed(group: Group) -> int:
    return zlib.crc32(f"{group.label}/{group.dtype}/{group.seed}".encode())


def _cpu_capability() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return platform.machine()
    return "avx512" if "avx512f" in flags else "avx2" if "avx2" in flags else platform.machine()


@functools.cache
def _op_db() -> dict[tuple[str, str], Any]:
    import torch.testing._internal.common_utils as common_utils

    # Each sample_inputs call looks for the running unittest with inspect.stack(): a tenth of the time, for nothing.
    common_utils.extract_test_fn = lambda: None
    from torch.testing._internal.common_methods_invocations import op_db

    return {(info.name, info.variant_test_name): info for info in op_db}


def _has_gradient(info: Any, dtype: str) -> bool:
    return any(dtype in map(torch_tree.name_of, info.supported_backward_dtypes(device)) for device in ("cpu", "cuda"))


#: Keyword argument of `_differentiable` calls: the name of a sample's own function of the outputs.
PROCESS = "output_process_fn_grad"


def _differentiable(info: Any) -> Callable[..., Any]:
    """The op as OpInfo's gradient tests call it: inputs made hermitian, triangular, … inside, so that a small change
    of them stays within the op's domain; outputs defined up to a choice made unique by the sample's own function."""
    functions = _process_functions(info)

    def call(*args: Any, **kwargs: Any) -> Any:
        process = kwargs.pop(PROCESS, None)
        found = info.gradcheck_wrapper(info.op, *args, **kwargs)
        found = found if process is None else functions[process](found)
        return ordered(found) if ordered else found

    ordered = _ORDERED.get(info.name)
    call.__wrapped__ = info.op  # type: ignore[attr-defined]
    return call


def _by_eigenvalue(found: Any) -> Any:
    """Eigenvalues, alone or with their vectors, in one order: LAPACK's own depends on the rounding."""
    import torch

    values = found[0] if isinstance(found, tuple) else found
    # Conjugate pairs have the same real part: the irrational share of the imaginary one tells them apart.
    order = (values.real + values.imag / 3**0.5).argsort(dim=-1)
    sorted_values = values.gather(-1, order)
    if not isinstance(found, tuple):
        return sorted_values
    return sorted_values, torch.take_along_dim(found[1], order.unsqueeze(-2), -1)


#: What makes the outputs of an op's gradient test unique where OpInfo's own function does not.
_ORDERED = {"linalg.eig": _by_eigenvalue, "linalg.eigvals": _by_eigenvalue}


def process_name(sample: Any) -> str | None:
    """Name of the sample's function of the outputs; None where it leaves them as they are."""
    name: str = sample.output_process_fn_grad.__qualname__
    return None if name.startswith(("SampleInput.", "OpInfo.")) else name


def _process_functions(info: Any) -> dict[str, Callable[..., Any]]:
    import torch

    with warnings.catch_warnings(), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")
        made = info.sample_inputs("cpu", torch.float64, requires_grad=True)
        return {name: s.output_process_fn_grad for s in made if (name := process_name(s))}


def is_random(op: Callable[..., Any]) -> bool:
    """OpInfo wraps every op that draws random numbers in a lambda that seeds first."""
    code = getattr(op, "__code__", None)
    return code is not None and "wrapper_set_seed" in code.co_names


def unseeded(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op without that wrapper, which makes every call return the same numbers; any other op as it is."""
    if not is_random(op):
        return op
    names = op.__globals__ | {"wrapper_set_seed": lambda drawn, *args, **kwargs: drawn(*args, **kwargs)}
    return types.FunctionType(op.__code__, names, op.__name__, op.__defaults__, op.__closure__)


#: Draws of a random op's reference: enough that a range seldom lacks a value that occurs.
_RANDOM_DRAWS = 64
#: Draws of the noise floor of a step, which stands still in most of them: to be found, an edge needs more.
_STEP_DRAWS = 32
#: Elements of the inputs from which on no op gets further draws: one is then a matter of seconds.
_LARGE = 1 << 18
#: Where torch on the CPU itself is off by more than FAR units, the floor is drawn MORE_DRAWS times: a rare element that
#: hardly moved in the first draws is no false alarm then (`python -m tests.bench noise`).
FAR, MORE_DRAWS = 2.0, 16


class Maker:
    """Makes Samples of one (op, dtype): arguments, float64 reference, noise floor, expected metadata."""

    def __init__(self, info: Any, dtype: str, draws: int) -> None:
        self.info, self.op, self.dtype, self.draws = info, unseeded(info.op), dtype, draws
        self.seeded = is_random(info.op)
        self.name, self.variant = f"torch:{info.name}", info.variant_test_name
        self.settled = torch_reference.settled(info, widen)

    def make(self, index: int, source: Any) -> Sample:
        import torch

        args, kwargs = (source.input, *source.args), source.kwargs
        placement = classes.of(self.name, self.variant, {str(i): x for i, x in enumerate(args)} | kwargs, self.dtype)
        op_class = placement.op_class
        random: list[list[np.ndarray]] = []
        if self.seeded and op_class is not OpClass.UNINITIALISED:
            random = self._random(args, kwargs)
            # Drawn or not is a matter of the arguments: dropout with p=0 draws nothing.
            op_class = OpClass.RANDOM if random else OpClass.COMPOSITE if op_class is OpClass.RANDOM else op_class
        numeric = op_class not in (OpClass.RANDOM, OpClass.UNINITIALISED)
        wider = clone if placement.own_dtype else widen
        made = Sample(index, op_class=op_class, oracle="metadata" if not numeric else "numpy" if self.settled else "float64")
        try:
            # Stored as JSON nodes already: the trees hold torch objects that only this side knows.
            encoded_args, encoded_kwargs, arrays = torch_tree.encode_args(args, kwargs)
        except Exception as error:
            made.failure = Failure("invalid", "store", type(error).__name__, str(error))
            return made
        # A copy, as the op is about to run on this memory and may write to it.
        made.arrays = [a.copy() for a in arrays]
        made.args, made.kwargs = encoded_args, encoded_kwargs
        with torch.no_grad():
            try:
                torch.set_default_dtype(torch.float64)
                try:
                    exact = [torch_tree.dense(x) for x in torch_tree.leaves(self._exact(args, kwargs, wider))]
                finally:
                    torch.set_default_dtype(torch.float32)
            except Exception as error:
                made.failure = Failure("invalid", "reference", type(error).__name__, str(error))
                return made
            try:
                own = [torch_tree.dense(x) for x in torch_tree.leaves(self._run(args, kwargs, clone))]
            except Exception:
                own = None  # the CPU lacks this dtype; another backend may have it
            if own is not None and len(own) != len(exact):
                made.failure = Failure("invalid", "reference", "", "the number of outputs depends on the dtype")
                return made
            # Of elementary ops as well, with few draws: a device that declares a coarser precision rounds their inputs.
            moving = numeric and op_class not in (OpClass.EXACT, OpClass.CHOICE)
            large = sum(a.size for a in made.arrays) > _LARGE
            steps = self.draws if large else _STEP_DRAWS
            draws = {OpClass.DISCONTINUOUS: steps, OpClass.ELEMENTARY: 2}.get(op_class, self.draws)
            noise = self._noise(args, kwargs, exact, range(draws)) if moving else [None] * len(exact)
            refine = moving and not large and op_class not in WITHOUT_NOISE and draws < MORE_DRAWS
            if refine and own is not None and self._far(own, exact, noise):
                more = self._noise(args, kwargs, exact, range(draws, MORE_DRAWS))
                noise = [a if b is None else b if a is None else torch.maximum(a, b) for a, b in zip(noise, more)]
            if placement.constants:
                noise = [_of_constants(y, self.dtype) for y in exact]
        for i, (y, delta) in enumerate(zip(exact, noise)):
            leaf = self._leaf(y, own[i] if own is not None else None, delta)
            made.expected.append(replace(leaf, reference=None) if op_class is OpClass.UNINITIALISED else leaf)
        try:
            self._define(made, placement.definition, random)
        except Exception as error:
            made.failure = Failure("invalid", "reference", type(error).__name__, str(error))
        if numeric and not made.definition and not made.failure and not placement.own_dtype:
            self._ask_second(args, kwargs, made)
        return made

    def _define(self, made: Sample, definition: str, random: list[list[np.ndarray]]) -> None:
        """Say by which definition the sample is judged, if by one, and what that is to give."""
        if made.op_class is OpClass.CHOICE:
            references = [leaf.reference for leaf in made.expected if leaf.reference is not None]
            made.definition = definition
            made.derived = definitions.expected(definition, made.args, made.kwargs, made.arrays, references, self.dtype)
        elif made.op_class is OpClass.RANDOM and random and all(np.isfinite(y).all() for draw in random for y in draw):
            name = definition or "moments"
            found = [definitions.derive(name, made.args, made.kwargs, made.arrays, draw) for draw in random]
            different = len({b"".join(y.tobytes() for y in draw) for draw in random})
            if not found[0] or different == 1:
                return  # so few elements that any could be chance, or one seldom drawn
            made.definition, made.oracle, made.derived = name, "float64", definitions.moments(found, self.dtype)
            made.repeats = 2 if different == len(random) else 1

    def _random(self, args: Any, kwargs: Any) -> list[list[np.ndarray]]:
        """Outputs of many float64 runs with different seeds; none at all if no random number was drawn."""
        import torch

        found: list[list[np.ndarray]] = []
        torch.set_default_dtype(torch.float64)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                for seed in range(_RANDOM_DRAWS):
                    torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every device's module first
                    untouched = torch.get_rng_state()
                    drawn = torch_tree.leaves(self._run(args, kwargs, widen))
                    found.append([torch_tree.output(torch_tree.dense(x)).copy() for x in drawn])
                    if seed == 0 and torch.equal(torch.get_rng_state(), untouched):
                        return []
        except Exception:
            return []
        finally:
            torch.set_default_dtype(torch.float32)
        return found

    def _ask_second(self, args: Any, kwargs: Any, made: Sample) -> None:
        import torch

        torch.set_default_dtype(torch.float64)
        try:
            made.others.append(torch_reference.oracle(self.info, args, kwargs, made.expected, widen))
        except torch_reference.NoOracle:
            pass
        finally:
            torch.set_default_dtype(torch.float32)

    def _run(self, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
        return self.op(*replaced(args, change), **replaced(kwargs, change))

    def _exact(self, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
        """The op in float64: torch's own, or the reference where torch's is known to be wrong."""
        if self.settled is None:
            return self._run(args, kwargs, change)
        return self.settled(*replaced(args, change), **replaced(kwargs, change))

    def _leaf(self, exact: Any, own: Any, delta: Any) -> Leaf:
        import torch

        array = torch_tree.output(exact)
        if own is None:
            dtype = array.dtype.name
            if dtype in ("float64", "complex128") and isinstance(exact, torch.Tensor):
                real = {"complex64": "float32", "complex128": "float64"}.get(self.dtype, self.dtype)
                dtype = (real if is_inexact(real) else "float32") if dtype == "float64" else self.dtype
        else:
            dtype = torch_tree.name_of(own.dtype) if isinstance(own, torch.Tensor) else torch_tree.output(own).dtype.name
        if dtype == "object":
            dtype = "str"
        shape = tuple(exact.shape) if isinstance(exact, torch.Tensor) else ()
        if is_inexact(dtype):
            array = array.astype(np.complex128 if is_complex(dtype) else np.float64)
        elif dtype != "str" and array.dtype.name != dtype:
            array = array.astype(np_dtype(dtype))
        return Leaf(dtype, shape, array, None if delta is None else torch_tree.to_numpy(delta))

    def _far(self, own: list[Any], exact: list[Any], noise: list[Any]) -> bool:
        """Whether torch's own result is so far off that it may be the noise floor that has been drawn too low."""
        import torch

        for a, y, delta in zip(own, exact, noise):
            if isinstance(y, torch.Tensor) and y.numel() and y.is_floating_point() and a.is_floating_point():
                eps = EPS.get(torch_tree.name_of(a.dtype), 0.0)
                allowed = y.abs().mul_(eps)
                if delta is not None:
                    allowed += delta
                if bool(((a.double() - y).abs() > FAR * allowed).any()):
                    return True
        return False

    def _noise(self, args: Any, kwargs: Any, exact: list[Any], draws: Iterable[int]) -> list[Any]:
        """δ per output: how far it moves when every floating input moves by a relative ±ε; None for nowhere.

        Integers that an op turns into floats are moved as such, of several tensors the first alone: the others may be
        indices. A tensor that counts or names a degree (`Placement.fixed`) stays.
        """
        import torch

        eps = EPS.get(self.dtype, EPS["float32"])
        fixed = classes.of(self.name, self.variant).fixed
        inexact = [y for y in exact if isinstance(y, torch.Tensor) and (y.is_floating_point() or y.is_complex())]
        turned = bool(inexact) and not is_inexact(self.dtype)
        floating = [False]
        total: list[Any] = [None] * len(exact)
        torch.set_default_dtype(torch.float64)
        try:
            for draw in draws:
                count = [0]

                def move(x: Any, draw: int = draw, count: list[int] = count) -> Any:
                    first = turned and not count[0]
                    if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex() or first):
                        count[0] += 1
                        if count[0] in fixed:
                            return widen(x)
                        floating[0] = True
                        if first and not (x.is_floating_point() or x.is_complex()):
                            x = x.double()
                        # A float32 weight of a float64 op is only as good as float32.
                        return _moved(x, max(eps, EPS.get(torch_tree.name_of(x.dtype), eps)), draw, count[0])
                    return widen(x)

                try:
                    moved = [torch_tree.dense(x) for x in torch_tree.leaves(self._exact(args, kwargs, move))]
                except Exception:
                    if turned:
                        return [None] * len(exact)  # integers that cannot be floats are exact
                    moved = None  # off the op's domain by one ulp: the result may be anything
                if not floating[0]:
                    return total
                for i, y in enumerate(exact):
                    if not isinstance(y, torch.Tensor):
                        continue
                    p = moved[i] if moved is not None and len(moved) == len(exact) else None
                    if p is None or p.shape != y.shape:
                        total[i] = torch.full(y.shape, float("inf"), dtype=torch.float64)
                        continue
                    if y.dtype == torch.bool or not (y.is_floating_point() or y.is_complex()):
                        d = (p.double() - y.double()).abs()
                    else:
                        d = (p - y).abs()
                        top = d.max().item() if d.numel() else 0.0
                        if top == 0:
                            continue
                        if not top < float("inf"):
                            same = (torch.isnan(p) & torch.isnan(y)) | (p == y)
                            d = torch.where(same, 0.0, torch.where(torch.isfinite(d), d, float("inf")))
                        d = d.double()
                    total[i] = d if total[i] is None else torch.maximum(total[i], d)
        finally:
            torch.set_default_dtype(torch.float32)
        return [t if t is None or bool(t.any()) else None for t in total]


def _of_constants(y: Any, dtype: str) -> Any:
    """The noise floor of an output whose rounding errors come from numbers inside the op: ε of the largest element."""
    import torch

    if not isinstance(y, torch.Tensor) or not y.is_floating_point() or not y.numel():
        return None
    return torch.full(y.shape, EPS.get(dtype, EPS["float32"]) * y.abs().max().item(), dtype=torch.float64)


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple([replaced(x, change) for x in value])
    if kind is list:
        return [replaced(x, change) for x in value]
    if kind is dict:
        return {k: replaced(x, change) for k, x in value.items()}
    return change(value)


def widen(x: Any) -> Any:
    """float64 (complex128) twin of a tensor or dtype, never sharing memory; everything else as it is."""
    import torch

    if isinstance(x, torch.Tensor):
        x = x.detach()
        if x.is_floating_point():
            return x.to(torch.float64, copy=True)
        return x.to(torch.complex128, copy=True) if x.is_complex() else x.clone()
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else torch.complex128 if x.is_complex else x
    return x


def clone(x: Any) -> Any:
    import torch

    return x.detach().clone() if isinstance(x, torch.Tensor) else x


#: Length of the table of random factors: a prime, so that no shape falls in step with its period.
_TABLE = 262147
#: Number of tables; further draws begin elsewhere in them.
_TABLES = 16


@functools.lru_cache(maxsize=64)
def _factors(eps: float, draw: int) -> Any:
    """1 + ε·u for one draw, u of random sign and size in [½, 1], shape (_TABLE,), float64.

    Sizes differ from draw to draw, so that a short sum does not cancel in all of them; draw k+2 has the
    opposite signs of draw k, so that a step of a discontinuous op is met from both sides.
    """
    import torch

    signs = np.random.Generator(np.random.PCG64([20, draw // 4 * 2 + draw % 2])).integers(0, 2, _TABLE) * 2 - 1
    sizes = np.random.Generator(np.random.PCG64([21, draw])).uniform(0.5, 1.0, _TABLE)
    return torch.from_numpy(1.0 + eps * (signs if draw % 4 < 2 else -signs) * sizes)


def _moved(x: Any, eps: float, draw: int, place: int) -> Any:
    """``x`` widened, every element times its factor of the draw; ``place`` tells the tensors of a call apart."""
    import torch

    x = x.detach()
    if x.layout != torch.strided:
        wide = widen(x)
        values = wide._values() if x.layout == torch.sparse_coo else wide.values()
        values.mul_(_moved(torch.ones_like(values), eps, draw, place))
        return wide
    factors, n = _factors(eps, draw % _TABLES), x.numel()
    start = (place + draw // _TABLES) * 104729 % (_TABLE // 2)
    if n > _TABLE - start:
        # Row by row of the table's length: no table as large as the tensor is ever made.
        block = factors[start:]
        wide = widen(x).contiguous()
        flat, rows = wide.view(-1), n // len(block)
        flat[: rows * len(block)].view(rows, len(block)).mul_(block)
        flat[rows * len(block) :].mul_(block[: n - rows * len(block)])
        return wide
    f = factors[start : start + n].view(x.shape)
    if x.is_complex():
        return x.to(torch.complex128) * f
    return torch.mul(x, f) if x.dim() or x.dtype == torch.float64 else x.double() * f


def jittered(x: Any, eps: float, draw: int, place: int) -> Any:
    """``x`` with every element times a factor that its value, the draw and ``place`` decide: what is equal and has the
    same place stays equal (the gradient of a maximum looks for the elements that are equal to it)."""
    import torch

    x = x.detach()
    if x.dtype not in (torch.float64, torch.complex128) or x.layout != torch.strided:
        return x
    parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    bits = parts.contiguous().view(torch.int64)
    # Fibonacci hashing to 18 bits, less than _TABLE.
    moved = parts * _factors(eps, draw % _TABLES)[((bits + place) * -0x61C8864680B583EB >> 46) & 0x3FFFF]
    return torch.view_as_complex(moved) if x.is_complex() else moved
