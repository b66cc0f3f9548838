"""What crosses between a judge and a stranger, as JSON and arrays: forms, programs, errors. A function crosses by its name alone."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tasks.arrays.varied import digest_outputs
from tasks.backends.base import Backend
from tasks.model import Chain, Fallback, Form, Group, Misbehaviour, Program, Timed, Unavailable, Unsupported, Vacuous
from tasks.model.errors import list_error_causes
from tasks.model.kind import KIND_PROTOCOL
from tasks.model.named import Named
from tasks.prepare.named import find_named_function
from tasks.stranger.wire import Garbled
from tasks.system_calls import describe_denied_call

#: Fields of a form that cross as they are: JSON, and tuples of it.
_TUPLES = tuple(x.name for x in fields(Form) if str(x.type).startswith("tuple["))
_FORM_FIELDS = (*(x.name for x in fields(Form) if x.type in ("str", "Any")), *_TUPLES)
#: Those of a function's name; its state are arrays.
_NAMED_FIELDS = tuple(x.name for x in fields(Named) if x.name not in ("group", "state"))
_form_values, _named_values, _group_values = (
    operator.attrgetter(*names) for names in (_FORM_FIELDS, _NAMED_FIELDS, [x.name for x in fields(Group)])
)
#: Kinds of errors that a judge knows by their class. That a case is invalid is the judge's to say.
_OURS = {x.__name__: x for x in (Misbehaviour, Unsupported, Fallback, Vacuous, Unavailable)}
#: What a backend says of an error, as methods of `Backend`.
JUDGEMENTS = ("is_sticky", "is_out_of_memory", "is_unsupported", "refuses")
#: Most characters of a text of the other side's.
_MOST = 1 << 16
#: Most characters of a kind of misbehaviour.
_MOST_KIND = 60


# --- forms ----------------------------------------------------------------------------------------------------------


def write_form_record(form: Form, arrays: list[Any]) -> dict[str, Any]:
    """A form; what is an array in it is appended to ``arrays``. Raises Unsupported where its function has no name."""
    named = form.call
    if named is not None and not isinstance(named, Named):
        raise Unsupported(f"isolation: process: the function of {form.op} cannot be named to another process")
    if form.sets:  # what it will be given is told when it is given
        form = replace(form, arrays=form.inputs_of(0), sets=())
    made: dict[str, Any] = {"said": _form_values(form), "arrays": add_crossing_arrays(form.arrays, arrays)}
    if form.model is not None:
        made["model"] = add_crossing_arrays([np.frombuffer(form.model, np.uint8)], arrays)
    if named is not None:
        # A kernel that knew the seed could draw the inputs of every check, and be right on these alone.
        group = replace(named.group, seed=0) if named.own else named.group
        made["group"], made["call"] = _group_values(group), _named_values(named)
        made["names"], made["state"] = list(named.state), add_crossing_arrays(list(named.state.values()), arrays)
    return made


class FormRecord:
    """A form as it was written, without its arrays: forms of the same text share it."""

    def __init__(self, made: dict[str, Any]) -> None:
        said: dict[str, Any] = dict(zip(_FORM_FIELDS, made["said"]))
        self._form = Form(**said | {name: tuple(said[name]) for name in _TUPLES}, arrays=[])
        self._arrays, self._model, self._state = (made.get(x) for x in ("arrays", "model", "state"))
        self._names: list[str] = made.get("names") or []
        self._named: Named | None = None
        if "call" in made:
            given = dict(zip(_NAMED_FIELDS, made["call"]))
            given["written"] = tuple(given["written"])
            self._named = Named(Group(*made["group"]), **given)

    def read(self, arrays: list[Any]) -> Form:
        """The form with the arrays that came with it, its function found. Raises what finding it raises."""
        more: dict[str, Any] = {"arrays": take_crossing_arrays(self._arrays, arrays)}
        if self._model is not None:
            more["model"] = take_crossing_arrays(self._model, arrays)[0].tobytes()
        if (named := self._named) is not None:
            if self._names:
                named = replace(named, state=dict(zip(self._names, take_crossing_arrays(self._state, arrays))))
            more |= vars(find_named_function(named))
        # `dataclasses.replace` sets each of its many fields anew, which takes as long as to read the message.
        form = object.__new__(Form)
        vars(form).update(vars(self._form), **more)
        return form


def add_crossing_arrays(given: Sequence[Any], arrays: list[Any]) -> list[int]:
    arrays.extend(given)
    return [len(arrays) - len(given), len(arrays)]


def take_crossing_arrays(places: Any, arrays: list[Any]) -> list[Any]:
    """Raises TypeError where these are no places."""
    first, end = places
    return arrays[first:end]


# --- programs -------------------------------------------------------------------------------------------------------

#: What a program says of itself, which a run may change.
_SAID = ("placement", "fallback", "flags", "pieces", "way", "execution")
_TYPES: dict[str, tuple[type, ...]] = {"fallback": (str, type(None)), "pieces": (bool,)}
#: What a timed call says that it took, in seconds.
_TIMES = ("wall_s", "cpu_s", "device_s", "waited_s")


_said = operator.attrgetter(*_SAID)


def describe_remote_program(program: Program) -> dict[str, Any]:
    """What a program says of itself now; without the results of its other ways. Columns are what checks measure, in the
    judge's process."""
    return dict(zip(_SAID, _said(program)))


def describe_remote_changes(program: Program, before: dict[str, Any]) -> dict[str, Any]:
    """What a program says now that it did not say before, which is updated."""
    changed = {name: x for name, x in zip(_SAID, _said(program)) if x != before[name]}
    before.update(changed)
    return changed


class RemoteProgramClaims:
    """What a program says of itself, as far as it may. Raises Garbled where it says anything else."""

    def __init__(self, said: Any) -> None:
        if type(said) is not dict:
            raise Garbled("a program that says nothing of itself")
        self._values: dict[str, Any] = {}
        for name, value in said.items():
            if name in _SAID and isinstance(value, _TYPES.get(name, (str,))):
                self._values[name] = value[:_MOST] if isinstance(value, str) else value
            else:
                raise Garbled(f"a program says {name!r}")

    def put_into(self, program: Program) -> None:
        """Let a judge's program say them."""
        if self._values:
            vars(program).update(self._values)


class StrangerRan:
    """What was said of a run. Raises KeyError, TypeError, ValueError, Garbled where that is nothing."""

    def __init__(self, said: Any) -> None:
        self._outputs = _read_array_places(said["outputs"])
        self._claims = RemoteProgramClaims(said["said"])
        self._ways = {str(name): _read_array_places(x) for name, x in said["ways"]}

    def read(self, program: Program | None, arrays: list[Any]) -> list[Any]:
        """The outputs; the rest is let say the judge's program, where there still is one."""
        if program is not None:
            self._claims.put_into(program)
            program.ways = take_remote_ways(self._ways, arrays)
        return take_crossing_arrays(self._outputs, arrays)


class RemoteProgramRecord:
    """What was said of a program that was built. Raises KeyError, TypeError, ValueError, Garbled where that is
    nothing."""

    def __init__(self, said: Any) -> None:
        self._program = Program(run=list, threads=said["threads"] is True)
        RemoteProgramClaims(said["said"]).put_into(self._program)
        self._ways = {str(name): _read_array_places(x) for name, x in said["ways"]}
        #: The ways to call it that it has.
        self.calls = frozenset(x for x in said["calls"] if type(x) is str)

    def make_program(self, arrays: list[Any]) -> Program:
        """A program that says so, and returns nothing as yet. The many fields of the class are copied, not set anew, as
        in `FormRecord`."""
        program = object.__new__(Program)
        vars(program).update(vars(self._program), columns={}, ways=take_remote_ways(self._ways, arrays))
        return program


def take_remote_ways(ways: dict[str, list[int]], arrays: list[Any]) -> dict[str, Sequence[Any]]:
    return {name: take_crossing_arrays(places, arrays) for name, places in ways.items()} if ways else {}


def _read_array_places(said: Any) -> list[int]:
    if type(said) is not list or [type(x) for x in said] != [int, int]:
        raise Garbled("arrays at no places")
    return said


def read_remote_chain(made: dict[str, Any]) -> Chain:
    return Chain(**made | {"digests": tuple(made["digests"])})


def write_timed_record(made: Timed) -> dict[str, Any]:
    """What timed calls took, and the digests of what they returned."""
    return {name: getattr(made, name) for name in _TIMES} | {"digests": list(made.digests)}


def read_timed_record(made: Any, chain: Chain) -> Timed:
    """What `write_timed_record` wrote of the calls of a chain. Raises KeyError, TypeError, Garbled."""
    times, digests = {name: made[name] for name in _TIMES}, made["digests"]
    if not all(x is None or (type(x) is float and x >= 0) for x in times.values()) or times["wall_s"] is None:
        raise Garbled(f"a call that took {times}")
    if [type(x) for x in digests] != [str] * (0 if chain.digests else chain.calls):
        raise Garbled(f"no digest of each of {chain.calls} calls")
    return Timed((), calls=chain.calls, digests=tuple(digests), **times)


def read_remote_results(made: Any, arrays: list[Any], chain: Chain, digests: Sequence[str]) -> list[list[Any]]:
    """What each of timed calls returned, and what was read later of one that is probed. Raises TypeError, Garbled, also
    where that has not the digests that were told when the calls were over."""
    found, before = [take_crossing_arrays(_read_array_places(x), arrays) for x in made], chain.begin
    if len(found) != chain.calls + chain.probe:
        raise Garbled(f"{len(found)} results of {chain.calls} calls")
    if any(x is None for outputs in found for x in outputs):
        raise Garbled("a result that is no array")
    for outputs, told in zip(found, digests):
        if digest_outputs(outputs, before) != told:
            raise Garbled("results that it did not have when its calls were over")
        before = told
    return found


# --- errors ---------------------------------------------------------------------------------------------------------


def write_error_record(error: BaseException, backend: Backend | None, arrays: list[Any]) -> dict[str, Any]:
    """What was raised, and what its backend says of it."""
    known = next(
        (
            x.__name__
            for x in type(error).__mro__
            if x.__module__ == "builtins" or (x.__name__ in _OURS and _OURS[x.__name__] is x)
        ),
        "",
    )
    made: dict[str, Any] = {
        "name": type(error).__name__,
        "base": known,
        "text": ": ".join(filter(None, (_write_error_text(error), _describe_denied_call(error)))),
        "cause": _write_error_text(error.__cause__) if error.__cause__ is not None else "",
    }
    if isinstance(error, Misbehaviour):
        made["kind"] = error.kind
        made["outputs"] = (
            None if error.outputs is None else add_crossing_arrays([np.asarray(x) for x in error.outputs], arrays)
        )
    if isinstance(error, Fallback):
        made["raises"] = error.raises
    if isinstance(error, Unavailable):
        made["installs"] = [list(x) for x in getattr(error, "installs", ())]
    if backend is not None and known not in _OURS:
        for name in JUDGEMENTS:
            try:
                made[name] = bool(getattr(backend, name)(error))
            except Exception:
                made[name] = False
    return made


def _describe_denied_call(error: BaseException) -> str:
    try:
        return describe_denied_call(list_error_causes(error, contexts=True))
    except Exception:  # of a class of somebody else's
        return ""


def _write_error_text(error: BaseException) -> str:
    try:
        return str(error)[: 1 << 20]
    except Exception:
        return type(error).__name__


def read_error_record(made: Any, arrays: list[Any]) -> BaseException:
    """An error of the same name and text, of the nearest class that a judge knows. Raises Garbled."""
    if type(made) is not dict or not all(type(made.get(x)) is str for x in ("name", "base", "text", "cause")):
        raise Garbled("an error without a name")
    base: Any = _OURS.get(made["base"]) or getattr(builtins, made["base"], Exception)
    if not (isinstance(base, type) and issubclass(base, BaseException)):
        base = Exception
    kind: Any = base
    if made["name"] != made["base"] or base not in _OURS.values():
        kind = type(
            made["name"][:200] or "Exception", (base,), {"__str__": _write_told_error, "__module__": "stranger"}
        )
    error: Any = kind.__new__(kind)
    error.args = (made["text"],)
    error.told = {name: made.get(name) is True for name in JUDGEMENTS}
    if made["cause"]:
        error.__cause__ = Exception(made["cause"])
    if isinstance(error, Misbehaviour):
        kind = made.get("kind")
        error.kind = kind if type(kind) is str and kind.isprintable() and len(kind) <= _MOST_KIND else KIND_PROTOCOL
        places = made.get("outputs")
        error.outputs = (
            take_crossing_arrays(places, arrays)
            if type(places) is list and all(type(x) is int for x in places)
            else None
        )
    if isinstance(error, Fallback):
        error.raises = made.get("raises") is True
    if isinstance(error, Unavailable):
        vars(error)["installs"] = tuple(tuple(map(str, x)) for x in made.get("installs") or ())
    found: BaseException = error
    return found


def _write_told_error(error: BaseException) -> str:
    return str(error.args[0])
