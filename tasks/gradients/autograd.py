"""Gradients of torch calls by autograd, and by finite differences beside them."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.training import TrainingStep
from tasks.arrays.tree import map_leaves
from tasks.gradients import analytic, differences
from tasks.model import Form, Misbehaviour, OpClass, Oracle, Unsupported, get_numpy_dtype, is_complex_dtype

#: The whole Jacobian is differenced up to this many real input elements, beyond it random projections are.
FULL_JACOBIAN = 100
PROJECTIONS = 2
DIFFERENCES = differences.NAME
#: How an oracle judges a gradient that is 0 within the differences' own error.
ZERO = f"{DIFFERENCES}, whose error a gradient of 0 is within"
#: Share of the outputs, moved by as much as an element is large, below which a slope is none.
NOTHING = 2.0**-20
#: Share of the gradient within which differences agree with it by no accident, even where their error is said to be
#: larger than both.
NEAR = 2.0**-10
#: Of a gradient that is to be differentiated.
WITHOUT_GRAPH = "the gradient has no graph: what the backward pass computes cannot be differentiated"
#: Of one that somebody has declared not to be.
ONCE = "trying to differentiate twice a function that was marked with @once_differentiable"
#: What is said of a kernel whose backward pass says so itself: there is no second derivative to judge, which is no gap.
DECLARED_ONCE = "declared once-differentiable"
#: Classes that an op's gradient shares: it is made of the same kind of steps. All others have composite gradients.
_KEPT = (OpClass.CONTRACTION, OpClass.NORMALISATION, OpClass.LINEAR_ALGEBRA, OpClass.RANDOM, OpClass.UNINITIALISED)


def class_gradient_of(op_class: OpClass) -> OpClass:
    """How the gradient of an op of ``op_class`` is judged: a copy's gradient is a sum, a maximum's a scatter."""
    return op_class if op_class in _KEPT else OpClass.COMPOSITE


def is_argument_differentiable(x: Any) -> bool:
    """Whether autograd can give the gradient of an argument: a strided floating or complex tensor."""
    import torch

    return isinstance(x, torch.Tensor) and x.layout == torch.strided and (x.is_floating_point() or x.is_complex())


def list_argument_tensors(*trees: Any) -> list[Any]:
    """The tensors of argument trees in the order of `tasks.arrays.tree.list_tensor_specs`."""
    import torch

    found: list[Any] = []
    map_leaves(trees, lambda x: found.append(x) if isinstance(x, torch.Tensor) else None)
    return found


def replace_differentiated_inputs(args: Any, kwargs: Any, wrt: Sequence[int], inputs: Sequence[Any]) -> tuple[Any, Any]:
    """The arguments with the tensors at the places ``wrt`` replaced by ``inputs``."""
    import torch

    chosen, count = dict(zip(wrt, inputs)), [-1]

    def change(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        count[0] += 1
        return chosen.get(count[0], x)

    return map_leaves(args, change), map_leaves(kwargs, change)


def draw_cotangents(outputs: Sequence[tuple[tuple[int, ...], str]], seed: str) -> list[np.ndarray]:
    """A fixed random array per (shape, dtype): sizes in [½, 1], random signs (phases), rounded to the dtype.

    Not ones: their product with the Jacobian is zero for anything normalised, and hides a swapped axis.
    """
    made = []
    for number, (shape, dtype) in enumerate(outputs):
        generator = np.random.Generator(np.random.PCG64([zlib.crc32(seed.encode()), number]))
        values = generator.uniform(0.5, 1.0, shape) * (generator.integers(0, 2, shape) * 2 - 1)
        if is_complex_dtype(dtype):
            values = values * np.exp(2j * np.pi * generator.uniform(0, 1, shape))
        made.append(np.asarray(values).astype(get_numpy_dtype(dtype)))
    return made


class UntouchedInputs:
    """What a backward pass must leave as it is: inputs, cotangents, outputs, and what functions of one's own saved for
    it. writable: inputs that it may write to, saved or returned or not."""

    def __init__(self, inputs: Sequence[Any], cotangents: Sequence[Any], writable: Sequence[Any] = ()) -> None:
        self.saved = 0
        self._writable = {_find_memory_start(x) for x in writable}
        self._kept: list[tuple[str, Any, Any]] = []
        self._keep("input {}", inputs)
        self._keep("the gradient that the backward pass was given for output {}", cotangents)

    def _keep(self, called: str, given: Sequence[Any]) -> None:
        import torch

        for k, x in enumerate(given):
            if x is not None and x.layout == torch.strided:
                told = f"{called.format(k)}, of shape {tuple(x.shape)}, was changed: others may need it"
                self._kept.append((told, x, x.detach().clone()))

    def note_outputs(self, outputs: Sequence[Any]) -> None:
        """Told of what the forward pass returned."""
        saved = [
            x for node in iterate_autograd_nodes(outputs) if _is_own_autograd_function(node) for x in node.saved_tensors
        ]
        self.saved = len(saved)
        for called, given in (("saved tensor {}", saved), ("output {}", outputs)):
            self._keep(called, [None if x is None or _find_memory_start(x) in self._writable else x for x in given])

    def describe_change(self) -> str:
        """What is not as it was, in words; "" if everything is."""
        return next((told for told, x, old in self._kept if not torch_tree.have_same_tensor_bits(x, old)), "")

    def check(self, gradients: Sequence[Any]) -> None:
        """Raise Misbehaviour with the gradients that the pass gave, unless everything is."""
        if changed := self.describe_change():
            broken = Misbehaviour("mutation", changed)
            broken.outputs = [np.array(torch_tree.make_output_array(torch_tree.dense(x.detach()))) for x in gradients]
            raise broken


def _find_memory_start(x: Any) -> int | None:
    """Where the elements of a tensor begin; None where it has no memory of its own."""
    import torch

    return x.untyped_storage().data_ptr() if x.layout == torch.strided and x.numel() else None


def iterate_autograd_nodes(found: Sequence[Any]) -> Iterator[Any]:
    """The nodes of the graph that leads from tensors back to their inputs."""
    left, seen = [x.grad_fn for x in found if getattr(x, "grad_fn", None) is not None], set[Any]()
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            yield node
            left += [following for following, _ in node.next_functions if following is not None]


def does_node_save_tensor(node: Any) -> bool:
    """Whether a node of a graph has a tensor saved, of which its derivative is made: one that has none is linear."""
    return _is_own_autograd_function(node) or bool(_list_saved_tensors(node))


@dataclass(frozen=True)
class ChoiceNode:
    """Of a graph that has chosen elements by their size: along which dimension, None where it does not say."""

    dim: int | None


def find_autograd_choice(outputs: Sequence[Any]) -> ChoiceNode | None:
    """What a graph of one node chooses that has saved integers, places; None of any other."""
    found = [node for node in iterate_autograd_nodes(outputs) if type(node).__name__ != "AccumulateGrad"]
    if len(found) != 1 or not any(
        x.ndim and not (x.is_floating_point() or x.is_complex()) for x in _list_saved_tensors(found[0])
    ):
        return None
    dim = getattr(found[0], "_saved_dim", None)
    return ChoiceNode(dim - (1 << 64) * (dim >= 1 << 63) if isinstance(dim, int) else None)


def _list_saved_tensors(node: Any) -> list[Any]:
    import torch

    kind = type(node)
    if kind not in _SAVED:
        _SAVED[kind] = [name for name in dir(kind) if name.startswith("_saved_")]
    found = [getattr(node, name) for name in _SAVED[kind]]
    return [x for x in found if isinstance(x, torch.Tensor)]


#: By class of node, the names of what it saves.
_SAVED: dict[Any, list[str]] = {}


def _is_own_autograd_function(node: Any) -> bool:
    """Whether a node is of an autograd.Function that is not torch's: what torch.compile saves, it may write to."""
    function = getattr(type(node), "_forward_cls", None)
    return function is not None and function.__module__.partition(".")[0] != "torch"


def compute_gradients(
    form: Form, call: Callable[..., Any], args: Any, kwargs: Any, cotangents: Sequence[Any], watched: bool = True
) -> list[Any]:
    """What the check of a form other than "forward" computes: a training step, if it is of one, else gradients.

    call: ``form.call``, or what a compiler made of it; cotangents: those of the form, on its device. Raises
    Misbehaviour where the backward pass writes to what is not its own, if that is ``watched``, which takes longer than
    many a gradient.
    """
    if isinstance(form.call, TrainingStep):
        return form.call.run_first_step(call, args)
    # A kernel of one's own, which alone has a backward pass that somebody wrote, says what of it is not its fault.
    own = form.own
    with contextlib.nullcontext() if own is None else own.watch():
        if not watched:
            return differentiate_backward(form.check, call, args, kwargs, form.wrt, cotangents)
        may = None if own is None else own.mutates
        inputs = [] if may is None else [x for name, x in kwargs.items() if name not in may]
        left = UntouchedInputs(
            list_argument_tensors(inputs), cotangents, list_argument_tensors([kwargs[name] for name in may or ()])
        )
        made = None if may is None else left.note_outputs
        found = differentiate_backward(form.check, call, args, kwargs, form.wrt, cotangents, made=made)
        left.check(found)
        if may is not None and not may and call is form.call:
            _check_cotangent_strides(found, form, args, kwargs, cotangents)
            left.check(found)
    return found


#: How far two results of one backward pass may be from each other, as a share of the largest of them, that adds up in
#: another order.
_ORDER = 2.0**-8


def _check_cotangent_strides(
    found: Sequence[Any], form: Form, args: Any, kwargs: Any, cotangents: Sequence[Any]
) -> None:
    """Raise Misbehaviour where a kernel of one's own gives other gradients for the same cotangents with gaps between
    their elements.

    The cotangents of a sum are expanded, those of a transposed result transposed: a backward pass is not given
    contiguous ones alone. One that refuses them is not wrong, and one that never gives the same gradients is another
    fault.
    """
    gaps = [_lay_cotangent_with_gaps(c) for c in cotangents]
    if all(x is y for x, y in zip(gaps, cotangents)):
        return

    def computed_again(given: Sequence[Any]) -> list[Any]:
        return differentiate_backward(form.check, form.call, args, kwargs, form.wrt, given)  # type: ignore[arg-type]

    try:
        again = computed_again(gaps)
    except Exception:
        return
    number = next((k for k, (x, y) in enumerate(zip(found, again)) if not _differ_by_order_alone(x, y)), None)
    if number is None or not all(map(_differ_by_order_alone, found, computed_again(cotangents))):
        return
    text = f"gradient {number} is another one where the gradient of the output is not contiguous (gaps between its elements)"
    broken = Misbehaviour("layout", text)
    broken.outputs = [np.array(torch_tree.make_output_array(torch_tree.dense(y.detach()))) for y in again]
    raise broken


def _differ_by_order_alone(x: Any, y: Any) -> bool:
    """Whether two gradients differ by no more than an order of additions; what cannot be compared is near."""
    import torch

    if x.dtype != y.dtype or x.shape != y.shape or x.layout != torch.strided or not x.numel():
        return True
    wide = torch.complex128 if x.is_complex() else torch.float64
    a, b = x.to(wide), y.to(wide)
    most = a.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return bool((((a - b).abs() <= _ORDER * most) | (a == b) | (a.isnan() & b.isnan())).all())


def _lay_cotangent_with_gaps(x: Any) -> Any:
    """The same values, every other element of their memory; what has no elements, or one, as it is."""
    import torch

    if x is None or x.layout != torch.strided or x.numel() < 2:
        return x
    memory = torch.full((*x.shape, 2), 3, dtype=x.dtype, device=x.device)
    made = memory[..., 0]
    return made.copy_(x)


def differentiate_backward(
    check: str,
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    wrt: Sequence[int],
    cotangents: Sequence[Any],
    saved: Callable[[Any], Any] | None = None,
    made: Callable[[Sequence[Any]], None] | None = None,
    handed: Callable[[Any], Any] | None = None,
    fixed: bool = False,
) -> list[Any]:
    """What a check other than "forward" computes: tensors, zeros where nothing depends on an input.

    "backward": the gradient of Σ Re⟨cotangent, output⟩ with respect to each tensor at the places ``wrt``.
    "double_backward": with one further cotangent per gradient, the gradient of Σ Re⟨cotangent, gradient⟩ with respect
    to the same tensors and then to the cotangents of the outputs. A cotangent of None leaves its output (or gradient)
    out, and so does an output beside others that depends on no input. Nothing given is written to.

    saved: applied to every tensor that the forward pass keeps for the backward one; made: told of the outputs before
    the backward pass; handed: applied to every gradient that a node hands on, unless that is to be differentiated
    again; fixed: a maximum or a minimum along an axis is a constant.
    """
    import torch

    keep = torch.autograd.graph.saved_tensors_hooks(saved, lambda x: x) if saved else contextlib.nullcontext()
    with torch.enable_grad(), keep:
        places = list_argument_tensors(args, kwargs)
        inputs = [places[i].detach().requires_grad_() for i in wrt]
        args, kwargs = replace_differentiated_inputs(args, kwargs, wrt, inputs)
        outputs = torch_tree.list_output_tensors(call(*args, **kwargs))
        if made is not None:
            made(outputs)
        if fixed:
            _change_handed(outputs, lambda g: g * 0, EXTREMA)
        if handed is not None and check == "backward":
            _change_handed(outputs, handed)
        return differentiate_outputs(check, outputs, inputs, cotangents)


#: Beginnings of the names of the nodes that a maximum or a minimum along an axis makes.
EXTREMA = ("Amax", "Amin", "Max", "Min")


def _change_handed(outputs: Sequence[Any], change: Callable[[Any], Any], names: tuple[str, ...] = ("",)) -> None:
    """Change every gradient that the nodes of a graph are handed whose names begin with one of ``names``."""

    def change_each(found: Any) -> Any:
        return tuple(g if g is None else change(g) for g in found)

    for node in iterate_autograd_nodes(outputs):
        if type(node).__name__.startswith(names):
            node.register_prehook(change_each)


@contextlib.contextmanager
def watch_equalities() -> Iterator[list[str]]:
    """The comparisons for equality that torch makes inside, forward and backward, by name."""
    from torch.utils._python_dispatch import TorchDispatchMode

    met: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if name in ("eq", "ne"):
                met.append(name)
            return func(*args, **kwargs or {})

    with Watch():
        yield met


def differentiate_outputs(
    check: str, outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Any], keep: bool = False
) -> list[Any]:
    """What `differentiate_backward` computes, of outputs that are there with their graph. keep: whether the graph is differentiated
    again."""
    import torch

    twice, inputs = check == "double_backward", list(inputs)
    given = [c.detach().requires_grad_() if twice else c for c in cotangents[: len(outputs)] if c is not None]
    pairs = list(zip([y for y, c in zip(outputs, cotangents) if c is not None], given))
    # Where none depends on an input, torch says so.
    pairs = [(y, c) for y, c in pairs if y.requires_grad] or pairs
    starts, weights = [y for y, _ in pairs], [c for _, c in pairs]
    found = torch.autograd.grad(
        starts, inputs, weights, retain_graph=keep or twice, create_graph=twice, allow_unused=True
    )
    if twice:
        _refuse_once_differentiable([g for g in found if g is not None])
        pairs = [
            (g, v)
            for g, v in zip(found, cotangents[len(outputs) :])
            if v is not None and g is not None and g.requires_grad
        ]
        if not pairs and any(v is not None for v in cotangents[len(outputs) :]):
            raise RuntimeError(WITHOUT_GRAPH)
        inputs += given
        starts, weights = [g for g, _ in pairs], [v for _, v in pairs]
        found = torch.autograd.grad(starts, inputs, weights, retain_graph=keep, allow_unused=True)
    return [torch.zeros_like(x) if g is None or g._is_zerotensor() else g.detach() for x, g in zip(inputs, found)]


class DeclaredOnce(Unsupported):
    """A kernel has no second derivative, and its backward pass says so. A row has this name as its ``error_type``."""


class OnceDifferentiable(RuntimeError):
    """What torch means to raise of a backward pass marked with once_differentiable."""


def _refuse_once_differentiable(gradients: Sequence[Any]) -> None:
    """Raise what torch means to raise of a backward pass marked with once_differentiable: its node leads to no input,
    so a gradient that may be unused is None instead."""
    for node in iterate_autograd_nodes(gradients):
        if type(node).name(node) == "torch::autograd::Error":  # a Function's context may have a name of its own
            raise OnceDifferentiable(ONCE)


def list_differentiable_outputs(
    check: str, call: Callable[..., Any], args: Any, kwargs: Any, wrt: Sequence[int]
) -> list[Any]:
    """Per output of ``call`` a tensor that autograd can start from, or None; for "double_backward" the gradients
    follow."""
    import torch

    with torch.enable_grad():
        places = list_argument_tensors(args, kwargs)
        inputs = [places[i].detach().requires_grad_() for i in wrt]
        args, kwargs = replace_differentiated_inputs(args, kwargs, wrt, inputs)
        outputs = torch_tree.list_output_tensors(call(*args, **kwargs))
        first = [
            y if isinstance(y, torch.Tensor) and y.requires_grad and is_argument_differentiable(y) else None
            for y in outputs
        ]
        if check == "double_backward":
            chosen = [y for y in first if y is not None]
            given = [torch.ones_like(y).requires_grad_() for y in chosen]
            found = torch.autograd.grad(chosen, inputs, given, create_graph=True, allow_unused=True) if chosen else ()
            first += [g if g is not None and g.requires_grad and is_argument_differentiable(g) else None for g in found]
    return [None if y is None else y.detach() for y in first]


@dataclass(frozen=True)
class GradientProblem:
    """What finite differences need of a torch call: a function of float64 arrays, where it is looked at, its
    cotangents."""

    function: differences.Function
    inputs: list[np.ndarray]
    cotangents: list[np.ndarray]

    @property
    def elements(self) -> int:
        """Real numbers in the inputs."""
        return sum(x.size * (1 + np.iscomplexobj(x)) for x in self.inputs)


def make_gradient_problem(
    check: str, call: Callable[..., Any], args: Any, kwargs: Any, wrt: Sequence[int], cotangents: Sequence[Any]
) -> GradientProblem:
    """The function whose gradient `differentiate_backward` computes, of float64 arguments (complex128 for complex ones).

    For "double_backward" it is the gradient by autograd, a function of the inputs and of the outputs' cotangents.
    """
    import torch

    places = list_argument_tensors(args, kwargs)
    fixed = [place for place in range(len(places)) if place not in wrt]
    device = places[wrt[0]].device if wrt else "cpu"
    outputs = len(cotangents) - (len(wrt) if check == "double_backward" else 0)
    first, second = list(cotangents[:outputs]), list(cotangents[outputs:])

    def fresh(values: Sequence[Any]) -> tuple[Any, Any]:
        # An op may write to its arguments: they are copied for every call.
        clones = [places[i].detach().clone() for i in fixed]
        return replace_differentiated_inputs(args, kwargs, [*fixed, *wrt], [*clones, *values])

    def forward(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        new_args, new_kwargs = fresh([torch.from_numpy(v.copy()).to(device) for v in values])
        with torch.no_grad():
            found = torch_tree.list_output_tensors(call(*new_args, **new_kwargs))
        return [torch_tree.make_output_array(torch_tree.dense(y)) for y, c in zip(found, first) if c is not None]

    def gradient(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        step = not any(map(np.iscomplexobj, inputs)) and any(map(np.iscomplexobj, values))
        tensors = [torch.from_numpy(v.copy()).to(device) for v in values]
        new_args, new_kwargs = fresh(tensors[: len(wrt)])
        # Autograd's gradient of complex numbers is the conjugate of an analytic function, of the inputs and the
        # conjugate cotangents.
        left = iter([c.conj() for c in tensors[len(wrt) :]] if step else tensors[len(wrt) :])
        found = differentiate_backward(
            "backward", call, new_args, new_kwargs, wrt, [None if c is None else next(left) for c in first]
        )
        arrays = [torch_tree.make_output_array(torch_tree.dense(g)) for g, v in zip(found, second) if v is not None]
        return [np.conj(g) for g in arrays] if step else arrays

    def array(x: Any) -> np.ndarray:
        return torch_tree.make_output_array(torch_tree.dense(x)).copy()

    inputs = [array(places[i]) for i in wrt]
    if check == "backward":
        return GradientProblem(forward, inputs, [array(c) for c in first if c is not None])
    inputs += [array(c) for c in first if c is not None]
    return GradientProblem(gradient, inputs, [array(v) for v in second if v is not None])


def compute_second_gradient_oracle(
    found: GradientProblem,
    gradients: Sequence[np.ndarray],
    step: float | None = None,
    slack: float = 1.0,
    eps: float | None = None,
    numbers: str = "real",
) -> tuple[Oracle | None, str]:
    """Finite differences as an oracle beside the ``gradients`` that autograd gave: (oracle, why there is none).

    Its references are the values within the differences' own error that are nearest to autograd's: equal to them
    unless the two really disagree. Where only projections are taken, the smallest change that explains them. step: of
    projections, relative to the scale of the inputs, instead of one that fits; a shorter one meets fewer of the kinks
    that a whole network has. slack: so many times their error they may be off, whose estimate is one draw of roundoff.
    eps: by how much every element is moved, at most, instead of a step that fits it. numbers: "complex" where the
    function may be given complex numbers, which a kernel that somebody wrote may not.

    Before that, without a step of somebody's, the slopes along random directions are looked at by better ways
    (`analytic.compare_slopes_along`): where one has them as ``gradients`` say, or shows that they are others, no element is moved
    on its own.
    """
    if found.elements == 0:
        return None, "no elements"
    with np.errstate(all="ignore"):
        try:
            if step is None and eps is None:
                seen = analytic.compare_slopes_along(found.function, found.inputs, found.cotangents, gradients, numbers)
                if seen is not None:
                    return Oracle(*seen), ""
            if found.elements < FULL_JACOBIAN:
                how = differences.difference_gradient(found.function, found.inputs, found.cotangents, eps=eps)
                oracle, why = make_gradient_oracle(how, gradients)
                if why == differences.BLIND and _is_gradient_zero(found, how, gradients):
                    return Oracle(ZERO, list(gradients)), ""
                if why == differences.BLIND and _agree_beyond_chance(how, gradients):
                    return Oracle(how.how, list(gradients)), ""
                if oracle is not None and _do_values_differ(oracle.references, gradients):
                    if not _explains_slopes(found, how, gradients):
                        return None, differences.KINK
                return oracle, why
            return _project_gradients(found, gradients, step, slack, eps)
        except Exception as error:
            return None, f"not evaluated near the input: {type(error).__name__}"


def _do_values_differ(values: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return not all(np.array_equal(x, y, equal_nan=True) for x, y in zip(values, others))


def _agree_beyond_chance(how: differences.Differences, gradients: Sequence[np.ndarray]) -> bool:
    """Whether differences come so near to the gradients that it is no accident, whatever roundoff might have done to
    them: of inputs of 1e-12 they allow for outputs that are computed from numbers of size 1, as few are."""
    most = max((float(np.abs(g).max(initial=0.0)) for g in gradients), default=0.0)
    return all((np.abs(y - g) <= NEAR * most).all() for y, g in zip(how.gradients, gradients))


def _explains_slopes(found: GradientProblem, how: differences.Differences, gradients: Sequence[np.ndarray]) -> bool:
    """Whether differences of single elements explain the slopes along some directions, which they add up to. At a tie
    of three a median stands still under each of them alone, and yet moves with all of them; max(min(x, y), min(x, z))
    moves with y and z, if both fall."""
    centre = found.function(found.inputs)
    (mixed,) = differences.draw_directions(found.inputs, 1)
    alike = [np.abs(d) for d in mixed]
    gaps = [np.abs(d) * np.sign(np.nan_to_num(g - y)) for d, g, y in zip(mixed, gradients, how.gradients)]
    return all(_do_slopes_add_up(found, how, centre, direction) for direction in (mixed, alike, gaps))


def _do_slopes_add_up(
    found: GradientProblem, how: differences.Differences, centre: differences.Arrays, direction: Sequence[np.ndarray]
) -> bool:
    direction = [np.where(np.isfinite(e), d, 0.0) for d, e in zip(direction, how.errors)]
    if not any(d.any() for d in direction):
        return True
    slope = differences.DifferencesAlong(found.function, found.inputs, found.cotangents, direction).steepest(centre)
    if slope.why:
        return slope.why != differences.KINK
    given = [np.where(np.isfinite(e), g, 0.0) for g, e in zip(how.gradients, how.errors)]
    terms = sum(float(np.sum(np.abs(g) * np.abs(d))) for g, d in zip(given, direction))
    error = slope.error + sum(
        float(np.sum(np.where(np.isfinite(e), e, 0.0) * np.abs(d))) for e, d in zip(how.errors, direction)
    )
    return abs(differences.project_gradient(given, direction) - slope.value) <= error + 1e-6 * (
        terms + abs(slope.value)
    )


def _is_gradient_zero(found: GradientProblem, how: differences.Differences, gradients: Sequence[np.ndarray]) -> bool:
    """Whether the gradient is 0 as far as float64 tells: an element that moves by its own scale moves the outputs by
    less than a millionth of their size. What is small because its outputs are, is not."""
    total = sum(float(np.sum(np.abs(c) * np.abs(y))) for c, y in zip(found.cotangents, found.function(found.inputs)))
    for x, value, given, error, size in zip(found.inputs, how.gradients, gradients, how.errors, how.sizes):
        near = np.maximum(np.abs(value), np.abs(value - given)) <= error
        least = NOTHING * np.where(size > 0, size, total) / differences.measure_difference_steps(x)
        if not (near & (error <= least)).all():
            return False
    return True


def fit_slope_step(found: GradientProblem, eps: float) -> tuple[differences.Slope, differences.Slope]:
    """The slope along a random direction by moving every element by up to ``eps``, and by a step that fits."""
    with np.errstate(all="ignore"):
        centre, noise = (
            found.function(found.inputs),
            differences.measure_function_roundoff(found.function, found.inputs),
        )
        (direction,) = differences.draw_directions(found.inputs, 1, alike=True)
        line = differences.DifferencesAlong(found.function, found.inputs, found.cotangents, direction, noise)
        return line.compute_slope_at(centre, eps), line.steepest(centre)


def make_gradient_oracle(found: differences.Differences, gradients: Sequence[np.ndarray]) -> tuple[Oracle | None, str]:
    """Differences of every element as an oracle beside ``gradients`` (see `compute_second_gradient_oracle`)."""
    if all(np.isinf(e).all() for e in found.errors):
        return None, ", ".join(found.why)
    most = max((float(np.abs(g).max(initial=0.0, where=np.isfinite(g))) for g in gradients), default=0.0)
    if most and all((e > most).all() for e in found.errors):
        return None, ", ".join(found.why) or differences.BLIND
    with np.errstate(all="ignore"):
        nearest = [_move_gradient_towards(g, y, e) for g, y, e in zip(found.gradients, gradients, found.errors)]
    return Oracle(found.how, nearest), ""


def _move_gradient_towards(value: np.ndarray, towards: np.ndarray, error: np.ndarray) -> np.ndarray:
    """``towards`` where it is within ``error`` of ``value``, else ``value`` moved by ``error`` in its direction."""
    gap = towards - value
    far = np.isfinite(error) & ~(np.abs(gap) <= error)
    step = np.where(far & np.isfinite(gap), gap / np.abs(gap), 0) * np.where(far, error, 0)
    return np.where(far, value + step, towards)


def _project_gradients(
    found: GradientProblem, gradients: Sequence[np.ndarray], step: float | None, slack: float, eps: float | None
) -> tuple[Oracle | None, str]:
    centre = found.function(found.inputs)
    noise = None if step else differences.measure_function_roundoff(found.function, found.inputs)
    ways, rest, why = [], [], ""
    finite = all(np.isfinite(g).all() for g in gradients)
    total = sum(float(np.sum(np.abs(c) * np.abs(y))) for c, y in zip(found.cotangents, centre))
    for direction in differences.draw_directions(found.inputs, PROJECTIONS, alike=eps is not None):
        line = differences.DifferencesAlong(found.function, found.inputs, found.cotangents, direction, noise)
        if eps is not None:
            slope = line.compute_slope_at(centre, eps)
        else:
            slope = line.steepest(centre) if step is None else line.slope(centre, step)
        if slope.why:
            why = slope.why
            continue
        if not finite:
            # The function has a slope here, so a gradient that is not finite has one element too many of them.
            return Oracle(DIFFERENCES, [np.where(np.isfinite(g), g, 0) for g in gradients]), ""
        said = differences.project_gradient(gradients, direction)
        terms = sum(float(np.sum(np.abs(g) * np.abs(d))) for g, d in zip(gradients, direction))
        hidden = slope.error > max(abs(slope.value), terms) and terms > NOTHING * total
        if hidden and not abs(slope.value - said) <= NEAR * terms:
            return None, differences.BLIND
        ways.append(direction)
        rest.append(float(_move_gradient_towards(*map(np.asarray, (slope.value, said, slack * slope.error)))) - said)
    if not ways:
        return None, why
    gram = np.array([[differences.project_gradient(a, b) for b in ways] for a in ways])
    shares = np.linalg.lstsq(gram, np.array(rest), rcond=None)[0]
    references = [g + sum(s * way[i] for s, way in zip(shares, ways)) for i, g in enumerate(gradients)]
    return Oracle(DIFFERENCES, [np.asarray(r) for r in references]), ""


def differentiate_numpy(
    reference: Callable[..., Any], inputs: Mapping[str, Any], wrt: Collection[str], cotangents: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The gradient of a NumPy function: (gradients, error estimates), one float64 array per name of ``wrt`` in order.

    reference(**inputs) returns an array or a list, tuple or dict of them; cotangents: one per output. Extrapolated
    central differences, element by element: about 1e-11 relative where the function is smooth, an infinite error
    estimate where it is not differentiable or not finite. Costs eleven calls per element.
    """
    names = list(wrt)

    def function(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        found = reference(**{**inputs, **dict(zip(names, values))})
        parts = found.values() if isinstance(found, dict) else found if isinstance(found, (list, tuple)) else [found]
        return [np.asarray(y) for y in parts]

    with np.errstate(all="ignore"):
        found = differences.difference_gradient(
            function,
            [widen_gradient_array(inputs[name]) for name in names],
            [widen_gradient_array(c) for c in cotangents],
            accurate=True,
        )
    return found.gradients, found.errors


def widen_gradient_array(x: Any) -> np.ndarray:
    """An array or number as float64, complex128 where it is complex."""
    return np.asarray(x, np.complex128 if np.iscomplexobj(x) else np.float64)
