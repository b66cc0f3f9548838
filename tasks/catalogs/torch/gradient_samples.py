"""Samples of the torch catalog for the backward checks: cotangents, float64 gradients, their noise floor, differences."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.arrays import noise, torch_tree
from tasks.arrays.tree import decode, map_leaves
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.torch.arguments import clone, perturb_tensor, widen
from tasks.catalogs.torch.differentiable import PROCESS, process_name
from tasks.catalogs.torch.samples import Maker, draws, read_rng_state
from tasks.gradients import autograd as gradients
from tasks.gradients import derivatives, differences
from tasks.judge import op_classes as classes
from tasks.model import EPS, LARGEST, Group, Leaf, OpClass, is_complex, is_inexact

if TYPE_CHECKING:
    from tasks.prepare.cases import PreparedSample


#: Ops whose gradient is not the derivative of what they compute, and why: finite differences have nothing to say.
NO_DIFFERENCES = {
    **dict.fromkeys(
        ("half", "bfloat16", "chalf", "float", "cfloat"), "a cast rounds in steps, and its gradient is the identity's"
    ),
    **dict.fromkeys(
        ("nn.functional.max_unpool1d", "nn.functional.max_unpool2d", "nn.functional.max_unpool3d"),
        "which of the elements with one index is written is not defined",
    ),
    "as_strided_scatter": "which of the elements at one address is written is not defined",
}


class GradientMaker(Maker):
    """Makes Samples whose expected outputs are gradients: of the tensors that require one, in their order.

    info: name, variant_test_name, op and ref, as an OpInfo has them; call: the op as OpInfo's gradient tests call it
    (see `TorchOpInfo.call`).
    """

    def __init__(self, info: Any, group: Group, draws: int, call: Callable[..., Any]) -> None:
        super().__init__(info, group.dtype, draws)
        self.name = group.op
        self.settled = None  # a reference of the outputs, not of gradients
        self.group, self.call = group, call
        self.wrt: tuple[int, ...] = ()
        self.draw = 0
        #: Whether the gradient looks for equal elements, as a maximum's does: what is equal has then to stay so.
        self.compares = False
        #: What elements the op chooses by their size, if it does.
        self.choice: gradients.Choice | None = None
        #: Nodes of the op's graph whose derivative is not torch's but that of `derivatives.RULES`.
        self.rules: list[str] = []

    def make(self, index: int, source: Any) -> Sample:
        import torch

        args, kwargs = (source.input, *source.args), dict(source.kwargs)
        named: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        op_class = gradients.class_of(classes.of(self.name, self.variant, named, self.dtype).op_class)
        if process := process_name(source):
            kwargs[PROCESS] = process
        made = Sample(index, op_class=op_class)
        try:
            made.args, made.kwargs, arrays = torch_tree.encode_args(args, kwargs)
        except Exception as error:
            made.failure = Failure.of(error, "store")
            return made
        made.arrays = [a.copy() for a in arrays]
        places = gradients.tensors(args, kwargs)
        made.wrt = tuple(i for i, x in enumerate(places) if x.requires_grad and gradients.is_differentiable(x))
        if not made.wrt:
            made.failure = Failure.vacuous("no input of the sample is differentiable", "reference")
            return made
        torch.set_default_dtype(torch.float64)
        try:
            with by_formula(self.group.check):
                made.wrt = self._differentiable(args, kwargs, made.wrt)
                wide = self._starts(args, kwargs, made.wrt, widen)
            torch.set_default_dtype(torch.float32)
            given = gradients.cotangents(
                self._metadata(args, kwargs, made.wrt, wide), f"{self.group.label}/{self.dtype}/{index}"
            )
            if not given:
                made.failure = Failure.vacuous("no output depends on a differentiable input", "reference")
                return made
            torch.set_default_dtype(torch.float64)
            with by_formula(self.group.check):
                return self._add_gradients(made, args, kwargs, wide, given)
        except Exception as error:
            made.failure = Failure.of(error, "reference")
            return made
        finally:
            torch.set_default_dtype(torch.float32)

    def _differentiable(self, args: Any, kwargs: Any, wrt: tuple[int, ...]) -> tuple[int, ...]:
        """Those of some inputs by which the op can be differentiated, by torch's word: a norm's running mean is none.
        All of them where it takes none, for the sake of what it says."""

        def can_start(some: tuple[int, ...]) -> bool:
            try:
                self._starts(args, kwargs, some, widen)
            except Exception:
                return False
            return True

        if len(wrt) == 1 or can_start(wrt):
            return wrt
        return tuple(i for i in wrt if can_start((i,))) or wrt

    def _run(self, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
        """The gradient of changed arguments ``args``: the op's args, its kwargs and the cotangents."""
        return self._differentiate(args, change)

    def _differentiate(self, args: Any, change: Callable[[Any], Any], met: dict[str, bool] | None = None) -> Any:
        """As `_run`. met: gets the nodes of the op's graph, by name, and whether one has numbers saved: what has none
        is linear."""
        own, named, given = map_leaves(args, change)

        def look(outputs: Sequence[Any]) -> None:
            if met is None:
                return
            self.choice = gradients.choice(outputs)
            for node in gradients.nodes(outputs):
                name = type(node).__name__
                met[name] = met.get(name, False) or gradients.saves(node)

        with self._by_rules():
            return gradients.backward(self.group.check, self.call, own, named, self.wrt, given, None, look)

    def _by_rules(self) -> contextlib.AbstractContextManager[None]:
        return derivatives.own(self.rules) if self.rules else contextlib.nullcontext()

    def _compute_perturbed(self, args: Any, kwargs: Any) -> Any:
        """The gradient of moved arguments, and of what the forward pass keeps for the backward one, moved as well: it
        is rounded to the dtype under test, however exactly the inputs are given."""
        self.draw += 1
        places = itertools.repeat(0) if self.compares else itertools.count()
        own, named, given = args
        eps = EPS.get(self.dtype, EPS["float32"])
        return gradients.backward(
            self.group.check,
            self.call,
            own,
            named,
            self.wrt,
            given,
            lambda x: perturb_tensor(x, eps, self.draw, next(places)),
        )

    def _starts(self, args: Any, kwargs: Any, wrt: Sequence[int], change: Callable[[Any], Any]) -> list[Any]:
        return gradients.outputs_of(
            self.group.check, self.call, map_leaves(args, change), map_leaves(kwargs, change), wrt
        )

    def _metadata(
        self, args: Any, kwargs: Any, wrt: Sequence[int], exact: list[Any]
    ) -> list[tuple[tuple[int, ...], str]]:
        """(shape, dtype) of what a cotangent is needed for, the dtype as the op returns it in the dtype under test."""
        try:
            own = self._starts(args, kwargs, wrt, clone)
        except Exception:
            own = []  # the CPU lacks this dtype; another backend may have it
        found = []
        for i, y in enumerate(exact):
            if y is None:
                continue
            if len(own) == len(exact) and own[i] is not None:
                dtype = torch_tree.name_of(own[i].dtype)
            elif is_complex(self.dtype):
                dtype = self.dtype if y.is_complex() else {"complex64": "float32"}.get(self.dtype, "float64")
            else:
                dtype = self.dtype if is_inexact(self.dtype) and not y.is_complex() else "complex64"
            found.append((tuple(y.shape), dtype))
        return found

    def _add_gradients(self, made: Sample, args: Any, kwargs: Any, wide: list[Any], given: list[np.ndarray]) -> Sample:
        """``made`` with its cotangents, expected gradients and second oracle."""
        base = len(made.arrays)
        made.arrays += given
        numbers = iter(range(base, len(made.arrays)))
        made.cotangents = tuple(-1 if y is None else next(numbers) for y in wide)
        passed = [None if i < 0 else torch_tree.from_numpy(made.arrays[i]) for i in made.cotangents]
        self.wrt, self.draw, self.rules = made.wrt, 0, []
        nodes: dict[str, bool] = {}
        before = read_rng_state()
        with equalities() as met:
            exact = self._differentiate((args, kwargs, passed), widen, nodes)
        self.compares = bool(met)
        drawn = read_rng_state() != before
        if drawn and draws(lambda: torch_tree.outputs(self._run((args, kwargs, passed), {}, widen))):
            made.op_class, made.oracle = OpClass.RANDOM, "metadata"
        steps = classes.of(self.name, self.variant).op_class is OpClass.EXACT
        numeric = made.op_class is not OpClass.RANDOM
        dense = [torch_tree.dense(g) for g in exact]
        arrays = [torch_tree.output(g) for g in dense]
        strict: list[np.ndarray | None] = [None] * len(exact)
        floors = list(strict)
        if numeric:
            own = self._own((args, kwargs, passed), len(exact))
            arrays = self._apply_rules((args, kwargs, passed), arrays, nodes)
            made.oracle = describe_oracle(self.rules, nodes)
            own_error = self._own_error((args, kwargs, passed), arrays, nodes)
            if kept := derivatives.keeping(self.rules):
                with self._by_rules():
                    strict = self._noise((args, kwargs, passed), {}, dense, arrays, made.op_class, [])
                self.rules = [name for name in self.rules if name not in kept]
            with self._by_rules():
                floors = self._noise((args, kwargs, passed), {}, dense, arrays, made.op_class, own)
            if kept:
                strict = [_sum(np.zeros(y.shape), s, e) for y, s, e in zip(arrays, strict, own_error)]
            left = self._remainders((args, kwargs, passed), arrays)
            floors = [_sum(f, e, r) for f, e, r in zip(floors, own_error, left)]
        places = gradients.tensors(args, kwargs)
        sources = [places[i] for i in made.wrt] + [c for c in passed[: self._outputs(wide, made)] if c is not None]
        if numeric:
            forward = [
                torch_tree.output(torch_tree.dense(y)) for y in wide[: self._outputs(wide, made)] if y is not None
            ]
            dtypes = [torch_tree.name_of(x.dtype) for x in sources]
            floors = [out_of_range(y, delta, forward, d) for y, delta, d in zip(arrays, floors, dtypes)]
        ties = self._ties(places, wide, made) if numeric else [None] * len(arrays)
        for x, array, delta, bare, tied in zip(sources, arrays, floors, strict, ties):
            made.expected.append(Leaf(torch_tree.name_of(x.dtype), array.shape, array, delta, kept=bare, ties=tied))
        if numeric:
            why = "the outputs are drawn" if drawn else NO_DIFFERENCES.get(self.group.label.partition(":")[2])
            if not why and steps and not any(y.any() for y in arrays):
                why = "it is constant between its steps"
            if not why and self.group.distribution == "adversarial" and self._elements(made) >= gradients.FULL_JACOBIAN:
                why = "ties and sizes far apart: a direction through all elements meets kinks"
            oracle, why = (None, why) if why else self._differences(made, args, kwargs, passed)
            made.others = [oracle] if oracle else []
            made.columns |= {"no_second_oracle": why} if why else {}
        return made

    def _ties(self, places: list[Any], wide: list[Any], made: Sample) -> list[np.ndarray | None]:
        """Per gradient, what is equal of its input or, of a cotangent's, of its output, where the op chooses among
        equals and is not told which by integers that it is given."""
        chosen = [places[i] for i in made.wrt]
        outputs = [y for y in wide[: self._outputs(wide, made)] if y is not None]
        if self.choice is None or not all(gradients.is_differentiable(x) for x in places):
            return [None] * (len(chosen) + len(outputs))
        dim = self.choice.dim
        return [
            _number_equal_elements(torch_tree.output(torch_tree.dense(x.detach())), dim) for x in (*chosen, *outputs)
        ]

    def _apply_rules(self, args: Any, arrays: list[np.ndarray], nodes: Collection[str]) -> list[np.ndarray]:
        """The gradients by the derivatives of `derivatives.RULES` where the graph has nodes of them, which then are
        ``self.rules``; what is not finite by one of both, or at a kink, is torch's own convention, and stays."""
        self.rules = derivatives.select_known(nodes) if not is_complex(self.dtype) else []
        if not self.rules:
            return arrays
        try:
            ruled = [torch_tree.output(torch_tree.dense(g)) for g in self._run(args, {}, widen)]
        except derivatives.NoRule:
            self.rules = []
            return arrays
        return [np.where(np.isfinite(a) & np.isfinite(b), a, b) for a, b in zip(ruled, arrays)]

    def _own_error(self, args: Any, arrays: list[np.ndarray], nodes: Collection[str]) -> list[np.ndarray | None]:
        """What rounding in float64 does to the gradients, where terms of several nodes cancel (x − tanh x near 0): a
        draw of it, in what every node hands on. None where it is nothing."""
        nothing: list[np.ndarray | None] = [None] * len(arrays)
        if self.group.check != "backward" or is_complex(self.dtype) or len({*nodes} - {"AccumulateGrad"}) < 2:
            return nothing
        places = itertools.count()

        def handed_on(found: Any) -> Any:
            return tuple(g if g is None else perturb_tensor(g, EPS["float64"], 1, next(places)) for g in found)

        def watch(outputs: Sequence[Any]) -> None:
            for node in gradients.nodes(outputs):
                node.register_prehook(handed_on)

        own, named, given = map_leaves(args, widen)
        try:
            with self._by_rules():
                moved = gradients.backward(self.group.check, self.call, own, named, self.wrt, given, None, watch)
            moved = [torch_tree.output(torch_tree.dense(g)) for g in moved]
        except Exception:  # a node that hands on what cannot be moved
            return nothing
        errors = [noise.measure_distance(a, b) if a.shape == b.shape else None for a, b in zip(moved, arrays)]
        return [e if e is not None and e.any() and np.isfinite(e).all() else None for e in errors]

    def _remainders(self, args: Any, arrays: list[np.ndarray]) -> list[np.ndarray | None]:
        """What rounding leaves of terms that cancel to nothing inside of a node, as the weights of a pixel that is all
        four neighbours do: in float64 it is seen, far below the largest element, and its size in the dtype under test
        is that times the ratio of both ε. None where nothing is left."""
        import torch

        nothing: list[np.ndarray | None] = [None] * len(arrays)
        with np.errstate(all="ignore"):
            sizes = [np.abs(y) for y in arrays]
            tiny = [(y > 0) & (y < REMAINDER * y[np.isfinite(y)].max(initial=0.0)) for y in sizes]
        if is_complex(self.dtype) or not any(t.any() for t in tiny):
            return nothing
        places = itertools.count()

        def change(x: Any) -> Any:
            y = widen(x)
            return perturb_tensor(y, EPS["float64"], 1, next(places)) if isinstance(y, torch.Tensor) else y

        try:
            moved = [torch_tree.output(torch_tree.dense(g)) for g in self._run(args, {}, change)]
        except Exception:  # off the op's domain
            return nothing
        ratio = EPS.get(self.dtype, EPS["float32"]) / EPS["float64"]
        found = [noise.measure_distance(a, b) * ratio if a.shape == b.shape else None for a, b in zip(moved, arrays)]
        return [None if d is None else np.where(t & np.isfinite(d), d, 0.0) for d, t in zip(found, tiny)]

    def _own(self, args: Any, count: int) -> list[Any] | None:
        """torch's own gradients in the dtype under test; None where it has none on the CPU, or another number of
        them."""
        import torch

        torch.set_default_dtype(torch.float32)
        try:
            own = [torch_tree.dense(g) for g in self._run(args, {}, clone)]
        except Exception:
            return None
        finally:
            torch.set_default_dtype(torch.float64)
        return own if len(own) == count else None

    def _outputs(self, wide: list[Any], made: Sample) -> int:
        """How many of the cotangents belong to the op's outputs."""
        return len(wide) - (len(made.wrt) if self.group.check == "double_backward" else 0)

    def _elements(self, made: Sample) -> int:
        return sum(math.prod(leaf.shape) for leaf in made.expected)

    def _differences(self, made: Sample, args: Any, kwargs: Any, passed: list[Any]) -> tuple[Any, str]:
        problem = gradients.problem(
            self.group.check,
            self.call,
            map_leaves(args, widen),
            map_leaves(kwargs, widen),
            made.wrt,
            map_leaves(passed, widen),
        )
        values = [e.reference for e in made.expected if e.reference is not None]
        return gradients.second_oracle(problem, values, numbers="complex")


def _number_equal_elements(x: np.ndarray, dim: int | None) -> np.ndarray | None:
    """A number for each element of ``x``, shaped as it, that those which are equal share, along a dimension or
    anywhere; None where none are."""
    distinct, numbers = np.unique(x, return_inverse=True)
    numbers = numbers.reshape(x.shape)
    if dim is not None and x.ndim and x.size:
        lines = np.moveaxis(np.arange(x.size // x.shape[dim]).reshape(*np.delete(x.shape, dim), 1), -1, dim)
        numbers = numbers + lines * len(distinct)
    return None if len(np.unique(numbers)) == x.size else numbers.astype(np.int64)


def by_formula(check: str) -> contextlib.AbstractContextManager[None]:
    """Where attention is its formula, which can be differentiated twice. A first derivative is that of the fused
    kernel, whose noise floor has what rounding its saved result does to Σ g·p, where a softmax of one key would give
    nothing."""
    if check != "double_backward":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    context: contextlib.AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return context


def _sum(*floors: np.ndarray | None) -> np.ndarray | None:
    """The sum of what is there; None where nothing is."""
    there = [x for x in floors if x is not None]
    return np.asarray(np.sum(there, 0)) if there else None


def _find_dependent_elements(places: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Which elements of an input of ``shape`` any of some places of an output is made of, where the input was spread
    over the output; of any other input all or none, as all places are or not."""
    padded = (1,) * (places.ndim - len(shape)) + shape
    if len(shape) > places.ndim or any(n not in (1, m) for n, m in zip(padded, places.shape)):
        return np.full(shape, bool(places.size and places.all()))
    over = tuple(k for k, (n, m) in enumerate(zip(padded, places.shape)) if n != m)
    return np.asarray(places.any(over, keepdims=True)).reshape(shape) if places.ndim else places.reshape(shape)


#: An element of a gradient that is smaller than this share of the largest may be what rounding in float64 has left.
REMAINDER = 2.0**-45
#: Nodes that the name of an oracle gives at most.
_NAMED = 4


def describe_oracle(rules: Collection[str], nodes: Mapping[str, bool]) -> str:
    """The float64 oracle of a gradient: whose derivatives a graph has. What saves no number is linear, and has none."""
    rest = sorted({x.partition("Backward")[0] for x, saves in nodes.items() if saves and x not in rules})
    shown = ", ".join(rest[:_NAMED]) + ", …" * (len(rest) > _NAMED)
    if not rules:
        return f"float64, torch's derivatives of {shown}" if rest else "float64"
    return f"float64, {derivatives.NAME}" + f", torch's of {shown}" * bool(rest)


def out_of_range(
    reference: np.ndarray, floor: np.ndarray | None, forward: Sequence[np.ndarray], dtype: str
) -> np.ndarray | None:
    """The noise floor of a gradient in a dtype, with what has no number there: the op's own result in that place, or
    all of it, of which nothing is then asked; or the derivative, which a cotangent of ½ to 1 has made smaller by no
    more than that: Inf is one of its values."""
    if dtype not in LARGEST or is_complex(dtype):
        return floor
    largest = LARGEST[dtype]
    with np.errstate(all="ignore"):
        size = np.abs(reference)
        high = (size > largest / 2) & np.isfinite(size)
        lost = np.zeros(reference.shape, np.bool_)
        for y in forward:
            beyond = np.abs(y) > largest if y.dtype == np.float64 else np.zeros(y.shape, np.bool_)
            lost |= _find_dependent_elements(beyond, reference.shape)
    if not (high.any() or lost.any()):
        return floor
    made = np.zeros(reference.shape) if floor is None else np.array(floor)
    made = made + np.where(high, np.maximum(largest * (1 + EPS[dtype]) - size, 0.0), 0.0)
    return np.where(lost, np.inf, made)


@contextlib.contextmanager
def equalities() -> Iterator[list[str]]:
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


def curve(sample: PreparedSample, steps: np.ndarray) -> np.ndarray | None:
    """Relative errors of central differences along a random direction against the function's own gradient in float64,
    one per step.

    None where there is nothing to relate to: the gradient along the direction is zero or not finite. An error of
    nothing is shown as 1e-17.
    """
    import torch

    form = sample.form("torch")
    assert form.call is not None
    leaf = torch_tree.decoder(form.arrays.__getitem__, "cpu")
    args, kwargs = (map_leaves(decode(node, leaf), widen) for node in (form.args, form.kwargs))
    given = [None if i < 0 else widen(torch_tree.from_numpy(form.arrays[i].copy())) for i in form.cotangents]
    problem = gradients.problem(form.check, form.call, args, kwargs, form.wrt, given)
    if not any(x.size for x in problem.inputs):
        return None
    direction = differences.directions(problem.inputs, 1)[0]
    torch.set_default_dtype(torch.float64)
    try:
        found = gradients.backward(form.check, form.call, args, kwargs, form.wrt, given)
        exact = differences.project([torch_tree.output(torch_tree.dense(g)) for g in found], direction)
        if exact == 0 or not np.isfinite(exact):
            return None
        line = differences.Along(problem.function, problem.inputs, problem.cotangents, direction)
        with np.errstate(all="ignore"):
            return np.maximum(np.abs(np.array([line.central(float(h)) for h in steps]) - exact) / abs(exact), 1e-17)
    finally:
        torch.set_default_dtype(torch.float32)
