"""References that are functions of NumPy arrays and cast to fewer digits: rounded where they cast, computed in float64 everywhere else.

The arrays of such a run lie in memory in float64 and say that they have the dtype that the reference cast them to, so
that `x.dtype`, `np.finfo` and a cast to another array's dtype are what they were written for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy import array, asarray

from tasks.arrays import noise
from tasks.arrays.tree import map_leaves
from tasks.arrays.watched_arrays import WatchedArray, WatchedRun, unwatch_array
from tasks.graphs.cast_roundings import Read, Round
from tasks.graphs.torch_module import is_array_structural, place_aten_operation
from tasks.model import EPS, PART, get_numpy_dtype, get_wide_dtype, is_complex_dtype, is_inexact_dtype, round_to_dtype
from tasks.model.dtypes import does_dtype_hold, name_numpy_dtype

_DTYPE = np.ndarray.dtype.__get__  # type: ignore[attr-defined]
_FLAT: Any = np.ndarray.flat
#: Methods that compute without asking a ufunc first: what they return is a result of this run as well.
_METHODS = "sum prod mean std var min max ptp clip round cumsum cumprod dot trace".split()
#: Functions of NumPy that make arrays, and ask no array how.
_MAKERS = "array asarray asanyarray ascontiguousarray empty zeros ones full".split()
#: Functions that return nothing, and write to the array that they are given first: "at" is that of ufuncs.
_WRITERS = frozenset("at copyto fill_diagonal place put put_along_axis putmask".split())
#: Functions whose results are made of the dtype's own bits, under names that torch does not have.
_OF_BITS = frozenset({"spacing"})
#: Dtypes of which one holds what a kernel is given; a kernel of float64 is not known to round at all.
_OWN = ("bfloat16", "float16", "float32")
#: What a reference is said to cast to that puts the bits of floats together.
BITS = "bits"

Reference = Callable[..., Any]


def make_numpy_evaluator(
    reference: Reference, rounds: list[str]
) -> Callable[[Mapping[str, Any], Round | None, Read | None], Any]:
    """The reference as a function of its arguments by name, of what a cast makes (None: the nearest number) and of what
    is read of that (None: the same).

    rounds: is filled with the dtypes that it casts to and that do not hold what is cast; where there is none, and where
    its arrays cannot be watched, it is called as it is.
    """
    told: list[bool] = []

    def function(arguments: Mapping[str, Any], round: Round | None = None, read: Read | None = None) -> Any:
        if told == [False]:
            return reference(**arguments)
        run = _NarrowingReference(round, read)
        try:
            made = run.of(reference, {k: x.copy() if isinstance(x, np.ndarray) else x for k, x in arguments.items()})
        except Exception:
            if told:
                raise
            made = None
        if not told:
            told.append(made is not None and bool(run.casts) and not run.is_merely_float32())
            rounds.extend(run.casts if told[0] else ())
        return made if told[0] else reference(**arguments)

    return function


class _WideReference(WatchedArray):
    """own: the dtype that it is said to have, None for that of its memory; given: whether it is what was given, or a
    part of it; still: whether a cast made it; source: what NumPy cast into this memory, where it did so by itself. run:
    what a reference keeps for its next call (a table) is of the run that then goes on."""

    own: np.dtype[Any] | None
    given: bool
    still: bool
    source: Any

    @property
    def run(self) -> _NarrowingReference:  # type: ignore[override]
        own: _NarrowingReference | None = self.__dict__.get("kept")
        return own if own and not own.over else getattr(_now, "run", None) or _OVER

    @run.setter
    def run(self, run: Any) -> None:
        self.kept = run

    def __array_finalize__(self, other: Any) -> None:
        super().__array_finalize__(other)
        self.given, self.still = getattr(other, "given", False), getattr(other, "still", False)
        self.own, self.source = None, None
        kind, before = _DTYPE(self), getattr(other, "own", None)
        if before is not None and kind == np.complex128:
            self.own = before if is_complex_dtype(before.name) else None
        elif before is not None and kind == np.float64:
            self.own = get_numpy_dtype(PART.get(before.name, before.name))
        elif (
            isinstance(other, _WideReference) and is_inexact_dtype(kind.name) and kind.name != get_wide_dtype(kind.name)
        ):
            self.source = other

    @property
    def dtype(self) -> Any:
        return self.own or _DTYPE(self)

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        return self.run.cast(self, np.dtype(dtype))

    def view(self, *args: Any, **kwargs: Any) -> Any:
        asked = args[0] if args else kwargs.get("dtype", kwargs.get("type"))
        if asked is None or (isinstance(asked, type) and issubclass(asked, np.ndarray)):
            return np.ndarray.view(self, *args, **kwargs)
        made = _to_own_dtype(self).view(*args, **kwargs)
        whole = not is_inexact_dtype(name_numpy_dtype(_DTYPE(self)))
        return self.run.of_bits(made, self.given) if whole else self.run.widen(made, self.given)

    def fill(self, value: Any) -> None:
        self[...] = value

    def put(self, *args: Any, **kwargs: Any) -> None:
        np.put(self, *args, **kwargs)

    @property
    def flat(self) -> Any:
        return _FLAT.__get__(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        self[...] = np.resize(unwatch_array(value), self.shape)

    def tobytes(self, *args: Any, **kwargs: Any) -> bytes:
        return bytes(_to_own_dtype(self).tobytes(*args, **kwargs))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.given, self.source = False, None
        self.still |= self.own is not None
        np.ndarray.__setitem__(
            unwatch_array(self), unwatch_array(key), unwatch_array(self.run.fitting(value, self.own))
        )


def _make_array_method(name: str) -> Callable[..., Any]:
    def method(self: _WideReference, *args: Any, **kwargs: Any) -> Any:
        return self.run.call(getattr(np.ndarray, name), name, (self, *args), kwargs)

    return method


for _name in _METHODS:
    if hasattr(np.ndarray, _name):  # NumPy 2 has no method ptp
        setattr(_WideReference, _name, _make_array_method(_name))


def _to_own_dtype(x: Any) -> Any:
    """An array in the dtype that it is said to have."""
    return unwatch_array(x).astype(x.dtype) if isinstance(x, _WideReference) else x


def _list_reference_leaves(value: Any) -> Iterator[Any]:
    for x in value.values() if isinstance(value, dict) else value:
        if isinstance(x, (list, tuple, dict)):
            yield from _list_reference_leaves(x)
        else:
            yield x


def _can_dtype_hold(name: str, x: np.ndarray) -> bool:
    """Whether a dtype has all of some numbers in float64."""
    with np.errstate(all="ignore"):
        return x.dtype == np.float64 and np.array_equal(round_to_dtype(x, name), x, equal_nan=True)


def _resolve_dtype_argument(x: Any) -> np.dtype[Any] | None:
    """The dtype that an argument is."""
    is_one = isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic))
    return np.dtype(x) if is_one else None


def _only_moves_values(made: Any, given: Sequence[np.ndarray]) -> bool:
    """Whether a result rounds nothing: it has no floats, or each is one of those that were given, their opposites and
    zero."""
    parts = made if isinstance(made, (tuple, list)) else [made]
    floats = [
        x for x in parts if isinstance(x, (np.ndarray, np.generic)) and is_inexact_dtype(name_numpy_dtype(x.dtype))
    ]
    known = [np.abs(unwatch_array(x)).reshape(-1) for x in given if is_inexact_dtype(name_numpy_dtype(_DTYPE(x)))]
    if not floats or not known:
        return not floats
    values = np.unique(np.concatenate([[0.0], *known]))
    return all(bool(np.isin(np.abs(x), values).all()) for x in floats)


class _NarrowingReference(WatchedRun):
    """A run of a reference. casts: the dtypes, each narrower than what it was given, that something was cast to."""

    def __init__(self, round: Round | None, read: Read | None) -> None:
        self.casts: list[str] = []
        #: Whether it is the reference that calls NumPy.
        self.asked, self.over = True, False
        #: The narrowest dtype that has all numbers that were given, which is that under test or a narrower one.
        self.own: str | None = None
        self.read = read
        self.round: Round = round or (lambda x, dtype, exact, node: round_to_dtype(x, dtype))

    def of(self, reference: Reference, arguments: Mapping[str, Any]) -> Any:
        """What the reference returns, in float64."""
        given = {k: self.widen(x, True) if isinstance(x, np.ndarray) else x for k, x in arguments.items()}
        floats = [unwatch_array(x) for x in given.values() if isinstance(x, _WideReference) and _DTYPE(x) == np.float64]
        self.own = next((name for name in _OWN if all(_can_dtype_hold(name, x) for x in floats)), None)
        before, _now.run = getattr(_now, "run", None), self
        try:
            with self.makers():
                made = reference(**given)
            self.results = [self.widen(x) for x in (made if isinstance(made, (tuple, list)) else [made])]
        finally:
            _now.run, self.over = before, True
        return [unwatch_array(x) for x in self.results]

    def is_merely_float32(self) -> bool:
        """Whether the reference casts to float32 and returns that: it does not compute in float64, and nothing shows
        that it meant not to."""
        return set(self.casts) == {"float32"} and any(getattr(x, "own", None) == np.float32 for x in self.results)

    def watch(
        self, array: np.ndarray, own: np.dtype[Any] | None = None, given: bool = False, still: bool = False
    ) -> Any:
        view = np.ndarray.view(array, _WideReference)
        view.run, view.own, view.given, view.still = self, own, given, still
        return view

    def widen(self, x: Any, given: bool = False) -> Any:
        """An array of any floating dtype as one in float64 that is said to have it; anything else as it is."""
        if isinstance(x, _WideReference):
            return x if x.source is None else self.cast(x.source, _DTYPE(x))
        if type(x) is not np.ndarray and not isinstance(x, np.generic):
            return x
        name = name_numpy_dtype(x.dtype)
        if not is_inexact_dtype(name):
            return self.watch(x, given=given) if isinstance(x, np.ndarray) else x
        own = None if name == get_wide_dtype(name) else x.dtype
        return self.watch(asarray(x) if own is None else asarray(x).astype(get_wide_dtype(name)), own, given)

    def wrap(self, made: Any) -> Any:
        if type(made) in (tuple, list):
            return type(made)(map(self.wrap, made))
        return self.widen(made)

    def call(self, function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if place_aten_operation(name).own_dtype or name in _OF_BITS:
            with self.apart():
                made = function(*map_leaves(list(args), _to_own_dtype), **map_leaves(dict(kwargs), _to_own_dtype))
            return self.wrap(made)
        named = dict(kwargs)
        out = named.pop("out", None)
        if named.get("dtype") is not None:
            named["dtype"] = np.dtype(named["dtype"])
        args, named = map_leaves(list(args), self.widen), map_leaves(named, self.widen)
        if name == "astype":
            return self.cast(args[0], np.dtype(args[1]))
        asked = next(filter(None, map(_resolve_dtype_argument, _list_reference_leaves([args, named]))), None)
        own = self.promote_dtypes(args, isinstance(getattr(function, "__self__", function), np.ufunc))

        def widest(x: Any) -> Any:
            dtype = _resolve_dtype_argument(x)
            return x if dtype is None or not is_inexact_dtype(dtype.name) else np.dtype(get_wide_dtype(dtype.name))

        into = {} if out is None else {"out": unwatch_array(out)}

        def compute_widest() -> Any:
            with self.apart():
                return function(
                    *map_leaves(unwatch_array(args), widest), **map_leaves(unwatch_array(named), widest), **into
                )

        watched = [x for x in _list_reference_leaves([args, named]) if isinstance(x, _WideReference)]
        made = compute_widest()
        if getattr(function, "__name__", name) in _WRITERS:
            self.mark_written(args[0])
            return made
        with self.apart():
            moves = out is None and _only_moves_values(made, watched)
            exact = moves or (out is None and self.is_exact(function, made))
        if self.read is not None and not moves and any(x.still for x in watched):
            args, named = map_leaves(args, self.perturb_cast), map_leaves(named, self.perturb_cast)
            made = compute_widest()
        if out is not None:
            for x in out if isinstance(out, tuple) else (out,):
                if isinstance(x, _WideReference):
                    x.given = False
                    unwatch_array(x)[...] = unwatch_array(self.fitting(self.watch(array(unwatch_array(x)), own), x.own))
            return out[0] if isinstance(out, tuple) and len(out) == 1 else out
        made = made if exact else self.adjust_result(made)
        given = exact and all(x.given for x in watched)
        return self.wrap_result(made, own, asked, given, moves and any(x.still for x in watched))

    def mark_written(self, into: Any) -> None:
        """Told of an array that something else than an assignment has written to: it holds what its dtype does."""
        if isinstance(into, _WideReference):
            into.given, into.source, into.still = False, None, into.still or into.own is not None
            unwatch_array(into)[...] = unwatch_array(self.fitting(self.watch(array(unwatch_array(into))), into.own))

    def perturb_cast(self, x: Any) -> Any:
        """An array as a function reads it that computes with it."""
        if (
            self.read is None
            or not isinstance(x, _WideReference)
            or not x.still
            or x.size < 2
            or is_array_structural(unwatch_array(x))
        ):
            return x
        with self.apart():
            return self.watch(self.read(unwatch_array(x)), x.own)

    def wrap_result(
        self, made: Any, own: np.dtype[Any] | None, asked: np.dtype[Any] | None, given: bool, still: bool
    ) -> Any:
        """Results of a call, with the dtype that they have for the reference."""
        if type(made) in (tuple, list):
            return type(made)(self.wrap_result(x, own, asked, given, still) for x in made)
        if not isinstance(made, (np.ndarray, np.generic)) or not is_inexact_dtype(name_numpy_dtype(made.dtype)):
            return self.widen(made, given)
        if name_numpy_dtype(made.dtype) != get_wide_dtype(name_numpy_dtype(made.dtype)):
            return self.widen(made)  # of whole numbers alone
        if own is not None and is_complex_dtype(own.name) != is_complex_dtype(made.dtype.name):
            own = None if is_complex_dtype(made.dtype.name) else get_numpy_dtype(PART[own.name])
        x = self.watch(asarray(made), own, given, still)
        return x if asked is None or not is_inexact_dtype(asked.name) else self.cast(x, asked)

    @staticmethod
    def promote_dtypes(args: Sequence[Any], whole: bool) -> np.dtype[Any] | None:
        """The dtype of floats that NumPy would return for such arguments; None for that of their memory. whole: whether
        whole numbers count."""
        given = [x for x in _list_reference_leaves(args) if isinstance(x, (np.ndarray, np.generic))]
        dtypes = [np.dtype(x.dtype) for x in given]
        floats = [d for d in dtypes if is_inexact_dtype(name_numpy_dtype(d))]
        if not floats or any(d.name in ("float64", "complex128") for d in floats):
            return None
        try:
            found = np.result_type(*(dtypes if whole else floats))
        except TypeError:
            return None
        return (
            None if found.name in ("float64", "complex128") or not is_inexact_dtype(name_numpy_dtype(found)) else found
        )

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """What the reference asks for when it casts an array."""
        x = self.widen(x)
        name, was = name_numpy_dtype(dtype), name_numpy_dtype(x.dtype)
        value = array(unwatch_array(x))
        if not is_inexact_dtype(name):
            if not is_inexact_dtype(was) or is_complex_dtype(was) or name == "bool":
                return self.watch(value.astype(dtype), given=x.given)
            made = self.round_value(value, name, x.given)
            self.note_cast(name, value, made)
            return self.watch(made.astype(dtype), given=x.given)
        if is_complex_dtype(name) != is_complex_dtype(was):
            value = value.astype(get_wide_dtype(name))
            was = was if not is_complex_dtype(was) else PART[was]
        value = value.astype(get_wide_dtype(name))
        own = None if name == get_wide_dtype(name) else dtype
        if own is None or does_dtype_hold(PART.get(name, name), PART.get(was, was)):
            return self.watch(value, own, x.given, x.still)
        made = self.round_value(value, name, x.given)
        self.note_cast(name, value, made)
        return self.watch(made, own, x.given, still=True)

    def adjust_result(self, made: Any) -> Any:
        """A result that needed a rounding, as what follows is to have it."""
        return made

    def is_exact(self, function: Callable[..., Any], made: Any) -> bool:
        """Whether an elementwise result needs no rounding in the dtype of the inputs, as x − bfloat16(x) needs none."""
        elementwise = getattr(function, "__name__", "") == "__call__"  # a ufunc's
        return elementwise and isinstance(made, np.ndarray) and self.own is not None and _can_dtype_hold(self.own, made)

    def of_bits(self, made: np.ndarray, given: bool) -> Any:
        """Floats whose bits the reference has put together itself, as one that rounds to bfloat16 by hand does: made as
        by a cast."""
        name = name_numpy_dtype(made.dtype)
        if not is_inexact_dtype(name):
            return self.widen(made, given)
        self.casts += [BITS] * (BITS not in self.casts)
        value = self.round_value(made.astype(get_wide_dtype(name)), name, given)
        return self.watch(value, None if name == get_wide_dtype(name) else made.dtype, given, still=True)

    def round_value(self, value: np.ndarray, name: str, given: bool) -> np.ndarray:
        with self.apart():
            return asarray(self.round(value, name, given, "")).reshape(value.shape)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """In here NumPy is called by somebody else than the reference: half of NumPy is written with its own
        functions."""
        before, self.asked = self.asked, False
        try:
            yield
        finally:
            self.asked = before

    def note_cast(self, name: str, before: np.ndarray, made: np.ndarray) -> None:
        """A cast; of one to float32, or to whole numbers, only what it changes tells that it is meant."""
        meant = EPS.get(name, 0.0) > EPS["float32"] or not np.array_equal(before, made, equal_nan=True)
        self.casts += [name] * (meant and name not in self.casts)

    def fitting(self, value: Any, own: np.dtype[Any] | None) -> Any:
        """A value as memory of a dtype takes it."""
        if own is None:
            return value
        made = self.widen(asarray(unwatch_array(value))) if not isinstance(value, _WideReference) else self.widen(value)
        return self.cast(made, own)

    @contextlib.contextmanager
    def makers(self) -> Iterator[None]:
        """In here what NumPy's own functions make is an array of this run."""
        before = {name: getattr(np, name) for name in _MAKERS}
        thread, over = threading.get_ident(), threading.Event()

        def maker(name: str) -> Callable[..., Any]:
            def make(*args: Any, **kwargs: Any) -> Any:
                # A module that is first imported in here keeps these functions.
                if over.is_set() or not self.asked or threading.get_ident() != thread:
                    return before[name](*args, **kwargs)
                if not args or not isinstance(args[0], _WideReference):
                    return self.widen(before[name](*args, **kwargs))
                asked = args[1] if len(args) > 1 else kwargs.get("dtype")
                if asked is not None:
                    return self.cast(args[0], np.dtype(asked))
                return args[0].copy() if name == "array" else args[0]

            return make

        try:
            for name in _MAKERS:
                setattr(np, name, maker(name))
            yield
        finally:
            over.set()
            for name, function in before.items():
                setattr(np, name, function)


def shake_numpy_reference(
    reference: Reference, arguments: Mapping[str, Any], round: Round, draw: int
) -> list[np.ndarray] | None:
    """What the reference returns if each of its results in float64 is another in the last digit; None where it cannot
    be watched."""
    run = _ShakenReference(round, None)
    run.draw = draw
    try:
        return list(run.of(reference, arguments))
    except Exception:
        return None


class _ShakenReference(_NarrowingReference):
    """A run whose results move by an ulp of float64, but those that chose or moved numbers, and those that need no
    rounding."""

    draw, _place = 0, 0

    def adjust_result(self, made: Any) -> Any:
        if not isinstance(made, (np.ndarray, np.generic)) or made.dtype != np.float64:
            return made
        self._place += 1
        with self.apart():
            return noise.move_last_digit(np.array(unwatch_array(made)), self.draw, self._place)


class _ReferenceOver(_NarrowingReference):
    """No run goes on: what is left of one is computed with as NumPy does."""

    def call(self, function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        named = {k: unwatch_array(x) if k == "out" else map_leaves(x, _to_own_dtype) for k, x in kwargs.items()}
        return function(*map_leaves(list(args), _to_own_dtype), **named)

    def widen(self, x: Any, given: bool = False) -> Any:
        return x

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any:
        return _to_own_dtype(x).astype(dtype)


#: By thread: the run that goes on.
_now = threading.local()
_OVER = _ReferenceOver(None, None)
