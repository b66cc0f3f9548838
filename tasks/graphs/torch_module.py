"""A torch module evaluated in float64, operation by operation as it is called: nothing is traced. torch is imported inside functions.

What cannot be traced is evaluated all the same: operators of one's own, control flow that hangs on data, writes in
place. And what is evaluated is what eager torch does: a tracer and a compiler may be shown something else
(`torch.compiler.is_compiling`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tasks.arrays import module_state, noise, torch_tree
from tasks.arrays.widened import MOVEMENT, PRODUCTS
from tasks.graphs import products
from tasks.graphs.cast_roundings import Read, Round
from tasks.graphs.coarse_products import round_coarse_factor
from tasks.judge import op_classes
from tasks.model import EPS, PART, OpClass, is_complex_dtype
from tasks.model.dtypes import does_dtype_hold

#: Of a tensor in float64: the dtype that the module believes it has.
_OWN = "_own_dtype"
#: Of a tensor in float64: whether it is what was given, or moved, chosen or cast of that; whether a cast to a narrower
#: dtype made it.
_GIVEN, _STILL = "_given", "_of_cast"
#: Makers of tensors of the memory of others in another dtype: what they give is made of the dtype's own bits.
_BITS = ("view.dtype", "view_copy.dtype")


@dataclass(frozen=True)
class SeenOperations:
    """What a run dispatched: names of ATen's operations, and of those that draw random numbers."""

    names: list[str] = field(default_factory=list)
    drawing: list[str] = field(default_factory=list)

    def note(self, func: Any, given: Any, made: Any) -> None:
        import torch

        self.names.append(func.overloadpacket.__name__)
        if torch.Tag.nondeterministic_seeded in func.tags and not func.is_view:
            self.drawing.append(func.overloadpacket.__name__)


def run_module(module: Any, inputs: Sequence[np.ndarray], gradients: bool = False) -> list[Any]:
    """What eager torch returns on the CPU in the module's own dtypes: flat tensors. gradients: whether they are
    recorded meanwhile. What it raises is passed on."""
    return call_module(module, make_module_tensors(inputs), gradients)


def make_module_tensors(inputs: Sequence[np.ndarray]) -> list[Any]:
    """Inputs as tensors of memory of their own."""
    return [torch_tree.tensor_from_numpy(np.array(x)) for x in inputs]


def call_module(module: Any, given: Sequence[Any], gradients: bool = False) -> list[Any]:
    """`run_module` of tensors, which are written to if the module does so."""
    import torch

    with torch.set_grad_enabled(gradients):
        return list(module(*given))


def watch_module_run(module: Any, inputs: Sequence[np.ndarray]) -> tuple[SeenOperations, list[Any]]:
    """What `run_module` dispatches, and what it returns where nothing is compiled."""
    seen = SeenOperations()
    with _disable_module_compilation(), watch_module_operations(seen.note):
        return seen, run_module(module, inputs)


#: Told of an operation of ATen's that has run: of (it, its arguments, its results).
Note = Callable[[Any, Any, Any], None]


def watch_module_operations(note: Note) -> contextlib.AbstractContextManager[Any]:
    """In here ``note`` is told of every operation that torch dispatches."""
    mode: contextlib.AbstractContextManager[Any] = _make_module_modes().Watching(note)
    return mode


def evaluate_module_exactly(
    module: Any,
    inputs: Sequence[np.ndarray],
    draw: int | None = None,
    precision: str = "",
    round: Round | None = None,
    read: Read | None = None,
) -> list[np.ndarray]:
    """Outputs in float64 (complex128; integers in their own dtype). The module is left as it was, whatever it writes
    to.

    The module goes on believing that its tensors have the dtypes that it was written for: what asks for one (`x.dtype`,
    torch.finfo) is told so. A cast to a narrower dtype rounds, as the program asks, and so do a copy into a tensor of
    one and `torch.autocast`. An operation that takes no float64 is computed in its own dtype.

    draw: a draw of the noise (`tasks.arrays.noise`): floating inputs, weights and every result that its dtype had to
    round are moved by that dtype's ε. precision: the weights of products are rounded to it. round: what a cast makes
    instead; read: see `tasks.graphs.cast_roundings`, without a draw. What torch raises is passed on.
    """
    import torch

    modes = _make_module_modes()
    before = torch.get_default_dtype()
    dispatch = modes.Wide(draw, precision, before, round, read)
    given = list(map(dispatch.argument, make_module_tensors(inputs)))
    put_back = module_state.keep_module_state(module)
    # Writes to what floats go to its twin in float64; the others are written to where they lie.
    whole = [
        (x, x.clone())
        for x in module_state.list_module_tensors(module).values()
        if not (x.is_floating_point() or x.is_complex())
    ]
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), _disable_module_compilation(), dispatch, modes.Believing(dispatch):
            made = module(*given)
        return [np.array(torch_tree.make_output_array(torch_tree.dense(dispatch.widen(y))), order="C") for y in made]
    finally:
        torch.set_default_dtype(before)
        put_back()
        for x, was in whole:
            if not torch.equal(x, was):
                with torch.inference_mode(x.is_inference()), torch.no_grad():
                    x.copy_(was)


def _disable_module_compilation() -> contextlib.AbstractContextManager[Any]:
    """In here nothing is compiled, whatever the module asks for: torch.cond does so as well."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()  # nobody has, and its import takes seconds
    import torch

    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@functools.cache
def place_aten_operation(name: str) -> op_classes.Placement:
    """How an operation of ATen's is judged by itself."""
    bare = name.strip("_")
    for known in (bare, f"nn.functional.{bare}", f"special.{bare}", bare.replace("linalg_", "linalg.")):
        found = op_classes.find_op_class(f"torch:{known}")
        if found is not op_classes.UNPLACED:
            return found
    return op_classes.UNPLACED


def does_operation_round_nothing(func: Any) -> bool:
    """Whether an operation rounds nothing."""
    name = func.overloadpacket.__name__
    return func.is_view or name.rstrip("_") in MOVEMENT or place_aten_operation(name).op_class is OpClass.EXACT


def _is_operation_of_bits(func: Any) -> bool:
    """Whether an operation's result is made of its dtype's own bits: wider numbers have another."""
    name = func.overloadpacket.__name__
    return str(func).removeprefix("aten.") in _BITS or place_aten_operation(name).own_dtype


def is_array_structural(x: np.ndarray) -> bool:
    """Whether an array says what is done and not on what: a mask, counts, exponents. No rounding moves whole
    numbers."""
    return bool((np.round(x) == x).all()) if x.dtype.kind == "f" else True


@functools.cache
def _make_module_modes() -> Any:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    wide = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}
    wide |= {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
    wide |= {d: torch.float64 for name in torch_tree.AS_INTEGER if (d := getattr(torch, name, None)) is not None}
    exact = (torch.float64, torch.complex128)
    dtype_of = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
    casts = {
        "double": torch.float64,
        "float": torch.float32,
        "half": torch.float16,
        "bfloat16": torch.bfloat16,
        "cdouble": torch.complex128,
        "cfloat": torch.complex64,
    }

    def find_believed_dtype(x: Any) -> Any:
        return getattr(x, _OWN, None) or x.dtype

    def believe(x: Any, dtype: Any) -> Any:
        setattr(x, _OWN, dtype)
        return x

    def copy_array(x: Any) -> np.ndarray:
        """An array of its own: torch no longer resizes the memory that NumPy was shown, and a resize_ that fails leaves
        the new sizes."""
        return torch_tree.tensor_to_numpy(x.clone())

    def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map_tensors(x, change) for x in value)
        if isinstance(value, dict):
            return {k: map_tensors(x, change) for k, x in value.items()}
        return change(value)

    def flat(value: Any) -> Iterator[Any]:
        if isinstance(value, (list, tuple)):
            for x in value:
                yield from flat(x)
        elif isinstance(value, dict):
            yield from flat(list(value.values()))
        else:
            yield value

    def inside(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator of functions (torch.cond) returns, what these dispatch being dispatched to the mode as
        well."""

        def enter_callable(x: Any) -> Any:
            if isinstance(x, torch.Tensor) or not callable(x):
                return x

            def call(*given: Any, **named: Any) -> Any:
                with mode:
                    return x(*given, **named)

            return call

        return func(*map_tensors(args, enter_callable), **map_tensors(kwargs or {}, enter_callable))

    class Watching(TorchDispatchMode):
        supports_higher_order_operators = True

        def __init__(self, note: Note) -> None:
            super().__init__()
            self.note = note

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if isinstance(func, torch._ops.HigherOrderOperator):
                return inside(self, func, args, kwargs)
            out = func(*args, **(kwargs or {}))
            self.note(func, [args, kwargs or {}], out)
            return out

    class Wide(TorchDispatchMode):
        supports_higher_order_operators = True

        def __init__(
            self, draw: int | None, precision: str, default: Any, round: Round | None, read: Read | None
        ) -> None:
            super().__init__()
            self.draw, self.precision, self.default, self.round, self.read = draw, precision, default, round, read
            self.place = 0
            #: Whether what was given is as it was given.
            self.sure = True
            #: Wide twins of the tensors that the module holds, by id; what is written to one of them is written to its
            #: twin.
            self.twins: dict[int, tuple[Any, Any]] = {}
            self.weights: set[int] = set()
            #: The dtype of `torch.autocast`, which casts no float64, where the module is within one.
            self.autocast: Any = None

        def argument(self, x: Any) -> Any:
            return self.moved_own(x)

        def moved_own(self, x: Any) -> Any:
            """A tensor that is given, wide, and as the draw moves it."""
            if x.dtype not in wide and x.dtype not in exact:
                return x
            made = x.detach().to(wide.get(x.dtype, x.dtype), copy=True)
            setattr(made, _GIVEN, True)
            if self.draw is not None and made.numel() and not is_array_structural(copy_array(made)):
                self.move(made, x.dtype, True)
            return believe(made, x.dtype)

        def widen(self, x: Any) -> Any:
            """The wide twin of a tensor that the module holds; any other as it is."""
            if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
                return x
            if x.dtype not in wide or getattr(x, _OWN, None) is not None:
                return x
            if id(x) not in self.twins:
                one = x.numel() == 1  # a constant: a scale, an exponent, a temperature
                made = believe(x.detach().to(wide[x.dtype], copy=True), x.dtype) if one else self.moved_own(x)
                setattr(made, _GIVEN, True)
                self.twins[id(x)] = x, made
                self.weights.add(made.untyped_storage().data_ptr())
            return self.twins[id(x)][1]

        def move(self, x: Any, own: Any, all_of_it: bool) -> None:
            """Move a tensor in place: what its own dtype does not hold exactly, or all of it."""
            eps = EPS.get(torch_tree.name_torch_dtype(own), 0.0)
            eps = eps or EPS.get({torch.complex64: "float32", torch.complex128: "float64"}.get(own, ""), 0.0)
            self.place += 1
            if not eps or not x.numel() or x._is_zerotensor() or x.is_meta:  # without memory, as functorch makes them
                return
            value = copy_array(x)
            made = noise.perturb_by_noise(np.ascontiguousarray(value), eps, self.draw or 0, self.place).reshape(
                value.shape
            )
            if own in wide and not all_of_it:
                made = np.where(torch_tree.tensor_to_numpy(x.to(own).to(x.dtype)) == value, value, made)
            x.copy_(torch.from_numpy(np.ascontiguousarray(made).reshape(value.shape)))

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            args, kwargs = map_tensors(args, self.widen), map_tensors(kwargs, self.widen)
            if isinstance(func, torch._ops.HigherOrderOperator):
                return inside(self, func, args, kwargs)
            own = self.own(func, args, kwargs)
            if self.autocast is not None and any(part in func.overloadpacket.__name__ for part in PRODUCTS):
                own, args = self.autocast, map_tensors(args, self.cast_down)
            tensors = [x for x in flat((args, kwargs)) if isinstance(x, torch.Tensor)]
            given, exact_func = {id(x) for x in tensors}, does_operation_round_nothing(func)
            if func._schema.is_mutable and not exact_func:
                self.sure = False  # a view of what is written to is not told
            known = self.sure and exact_func and all(getattr(x, _GIVEN, x.dtype not in exact) for x in tensors)
            drawn = self.draw is not None or self.read is not None
            if drawn and not exact_func and not func._schema.is_mutable:
                args, kwargs = map_tensors(args, self.perturb_cast), map_tensors(kwargs, self.perturb_cast)
            copies = func.overloadpacket.__name__ in ("copy", "copy_") and len(args) > 1
            source, cast = args[copies], func.overloadpacket.__name__ == "_to_copy"
            if copies:
                own = find_believed_dtype(args[0])
                if self.narrows(source, own):
                    args = (args[0], self.cast(source, own, known), *args[2:])
            out = self.compute_wide(func, args, kwargs)
            cast = cast and self.narrows(source, own)

            def note_dtype(y: Any) -> Any:
                if not isinstance(y, torch.Tensor) or y.layout is not torch.strided:
                    return y
                if y.dtype in wide and id(y) not in given:
                    y = y.to(wide[y.dtype])
                if y.dtype not in exact:
                    return y
                if cast:
                    y = self.cast(y, own, known)
                if known and id(y) not in given:
                    setattr(y, _GIVEN, True)
                if exact_func and id(y) not in given and any(getattr(x, _STILL, False) for x in tensors):
                    setattr(y, _STILL, True)
                if id(y) not in given or getattr(y, _OWN, None) is None:
                    believe(y, own if own.is_complex == y.is_complex() else self.like(y, own))
                if self.draw is not None and not exact_func:
                    self.move(y, find_believed_dtype(y), False)
                return y

            return map_tensors(out, note_dtype)

        def cast_down(self, x: Any) -> Any:
            """A factor as autocast makes it."""
            if isinstance(x, torch.Tensor) and x.dtype is torch.float64 and self.narrows(x, self.autocast):
                return believe(self.cast(x, self.autocast, self.sure and getattr(x, _GIVEN, False)), self.autocast)
            return x

        def cast(self, x: Any, own: Any, known: bool) -> Any:
            """What the program asks for when it casts to a narrower dtype; known: whether no rounding makes the values
            uncertain."""
            if self.round is None or x.is_meta or x._is_zerotensor():
                made = x.to(own).to(x.dtype)
            else:
                value = np.ascontiguousarray(torch_tree.tensor_to_numpy(x))
                nearest = np.ascontiguousarray(self.round(value, torch_tree.name_torch_dtype(own), known, ""))
                made = torch.from_numpy(nearest.reshape(tuple(x.shape))).to(x.dtype)  # NumPy makes a row of a scalar
            if x.dtype in exact:
                setattr(made, _STILL, True)
            return made

        def perturb_cast(self, x: Any) -> Any:
            """A tensor as an operation reads it that computes with it: what a cast made is moved, in a draw by the ε of
            its dtype."""
            if not isinstance(x, torch.Tensor) or not getattr(x, _STILL, False) or not x.numel():
                return x
            if x.numel() == 1 or is_array_structural(torch_tree.tensor_to_numpy(x)):
                return x
            made = believe(x.clone(), find_believed_dtype(x))
            if self.read is None:
                self.move(made, find_believed_dtype(x), True)
            else:
                value = copy_array(x)
                made.copy_(torch.from_numpy(np.ascontiguousarray(self.read(value)).reshape(value.shape)))
            return made

        @staticmethod
        def like(y: Any, own: Any) -> Any:
            pairs = {torch.float32: torch.complex64, torch.float64: torch.complex128, torch.float16: torch.complex32}
            if y.is_complex():
                return pairs.get(own, torch.complex64)
            return {v: k for k, v in pairs.items()}.get(own, own)

        @staticmethod
        def narrows(x: Any, own: Any) -> bool:
            if not isinstance(x, torch.Tensor) or own not in wide or not (x.is_floating_point() or x.is_complex()):
                return False
            after, before = (torch_tree.name_torch_dtype(d) for d in (own, find_believed_dtype(x)))
            return is_complex_dtype(after) == is_complex_dtype(before) and not does_dtype_hold(
                PART.get(after, after), PART.get(before, before)
            )

        def own(self, func: Any, args: Any, kwargs: Any) -> Any:
            """The dtype that the module believes the floating results of an operation to have."""
            asked = [x for x in flat((args, kwargs)) if isinstance(x, torch.dtype)]
            if asked:
                return asked[0]
            given = [x for x in flat((args, kwargs)) if isinstance(x, torch.Tensor)]
            floats = [x for x in given if x.is_floating_point() or x.is_complex()]
            some = [x for x in floats if x.ndim] or floats
            dtypes = [find_believed_dtype(x) for x in some]
            return functools.reduce(torch.promote_types, dtypes) if dtypes else self.default

        def compute_wide(self, func: Any, args: Any, kwargs: Any) -> Any:
            if _is_operation_of_bits(func):
                return self.narrow(func, args, kwargs)
            if torch.Tag.nondeterministic_seeded in func.tags and not func.is_view:
                return self.compute_seeded(func, args, kwargs)
            try:
                return self.call_wide(func, args, kwargs)
            except Exception as error:
                try:
                    return self.narrow(func, args, kwargs)
                except Exception:
                    raise error from None

        def call_wide(self, func: Any, args: Any, kwargs: Any) -> Any:
            """An operation on the wide tensors, asked for wide results."""

            def widest(x: Any) -> Any:
                return wide.get(x, x) if isinstance(x, torch.dtype) else x

            given, named = map_tensors(args, widest), map_tensors(kwargs, widest)
            if self.precision and products.is_product_operation(func.overloadpacket.__name__):
                given = products.change_product_factors(func, given, self.coarse)
            return func(*given, **named)

        def compute_seeded(self, func: Any, args: Any, kwargs: Any) -> Any:
            """An operation that may draw numbers. Where it draws none (attention without dropout) it is wide as any
            other; else it has the numbers that eager torch draws, which differ in another width."""
            if not func._schema.is_mutable:
                before = torch.get_rng_state()
                with contextlib.suppress(Exception):
                    made = self.call_wide(func, args, kwargs)
                    if torch.equal(torch.get_rng_state(), before):
                        return made
                torch.set_rng_state(before)
            torch.set_default_dtype(self.default)
            try:
                return self.narrow(func, args, kwargs)
            finally:
                torch.set_default_dtype(torch.float64)

        def coarse(self, x: Any) -> Any:
            """A factor of a product in the coarse precision, where it is a weight."""
            if x.dtype is not torch.float64 or x.untyped_storage().data_ptr() not in self.weights:
                return x
            return torch.from_numpy(
                np.ascontiguousarray(round_coarse_factor(x.numpy(), self.precision)).reshape(x.shape)
            )

        @staticmethod
        def narrow(func: Any, args: Any, kwargs: Any) -> Any:
            """An operation on tensors of the dtypes that the module believes they have; what it writes to is written to
            their twins."""
            pairs: list[tuple[Any, Any]] = []

            def own(x: Any) -> Any:
                if isinstance(x, torch.Tensor) and x.dtype in exact and find_believed_dtype(x) in wide:
                    pairs.append((x, x.to(find_believed_dtype(x))))
                    return pairs[-1][1]
                return x

            out = func(*map_tensors(args, own), **map_tensors(kwargs, own))
            if func._schema.is_mutable:
                back = {id(made): x.copy_(made.to(x.dtype)) for x, made in pairs}
                out = map_tensors(out, lambda y: back.get(id(y), y))
            return out

    class Believing(TorchFunctionMode):
        """Tells the module the dtypes that it believes in, and gives torch's functions tensors of one width."""

        def __init__(self, dispatch: Any) -> None:
            super().__init__()
            self.dispatch = dispatch

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func == dtype_of:
                return find_believed_dtype(args[0])
            within = torch.is_autocast_enabled("cpu")
            self.dispatch.autocast = torch.get_autocast_dtype("cpu") if within else None
            args, kwargs = map_tensors(args, self.dispatch.widen), map_tensors(kwargs or {}, self.dispatch.widen)
            out = func(*args, **kwargs)
            name = getattr(func, "__name__", "")
            if (name in casts or name in ("to", "type")) and args and out is args[0] and out.dtype in exact:
                asked = casts.get(name) or next(
                    (find_believed_dtype(x) if isinstance(x, torch.Tensor) else x)
                    for x in [*args[1:], *kwargs.values(), out]
                    if isinstance(x, (torch.dtype, torch.Tensor))
                )
                if asked in (*wide, *exact) and asked is not find_believed_dtype(out):
                    return believe(out.clone(), asked)
            return out

    return SimpleNamespace(Watching=Watching, Wide=Wide, Believing=Believing)
