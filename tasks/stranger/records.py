"""What crosses between a judge and a stranger, as JSON and arrays: forms, programs, errors. A function crosses by its name alone."""

from __future__ import annotations

import builtins
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tasks.backends.base import Backend
from tasks.model import Fallback, Form, Group, Misbehaviour, Program, Timed, Unavailable, Unsupported, Vacuous
from tasks.model.named import Named
from tasks.prepare.named import find
from tasks.stranger.wire import Garbled

#: Fields of a form that cross as they are: JSON, and tuples of it.
_PLAIN = tuple(x.name for x in fields(Form) if x.type in ("str", "Any"))
_TUPLES = tuple(x.name for x in fields(Form) if str(x.type).startswith("tuple["))
#: Kind of the Misbehaviour of a process that breaks the protocol.
KIND_PROTOCOL = "protocol"
#: Kinds of errors that a judge knows by their class. That a case is invalid is the judge's to say.
_OURS = {x.__name__: x for x in (Misbehaviour, Unsupported, Fallback, Vacuous, Unavailable)}
#: What a backend says of an error, as methods of `Backend`.
JUDGEMENTS = ("is_sticky", "is_out_of_memory", "is_unsupported", "refuses")
#: Most characters of a text of the other side's.
_MOST = 1 << 16


# --- forms ----------------------------------------------------------------------------------------------------------


def write_form(form: Form, arrays: list[Any]) -> dict[str, Any]:
    """A form; what is an array in it is appended to ``arrays``. Raises Unsupported where its function has no name."""
    if form.call is not None and not isinstance(form.call, Named):
        raise Unsupported(f"isolation: process: the function of {form.op} cannot be named to another process")
    if form.sets:  # what it will be given is told when it is given
        form = replace(form, arrays=form.inputs_of(0), sets=())
    made: dict[str, Any] = {name: getattr(form, name) for name in (*_PLAIN, *_TUPLES)}
    made["arrays"] = add(form.arrays, arrays)
    made["model"] = None if form.model is None else add([np.frombuffer(form.model, np.uint8)], arrays)
    if isinstance(form.call, Named):
        named = form.call
        state = [list(named.state), add(list(named.state.values()), arrays)]
        given = {f.name: getattr(named, f.name) for f in fields(named) if f.name not in ("group", "state")}
        made["call"] = given | {"group": dict(vars(named.group)), "state": state}
    return made


def read_form(made: dict[str, Any], arrays: list[Any]) -> Form:
    """What `write_form` wrote, its function found. Raises what finding it raises."""
    model = made["model"]
    said: dict[str, Any] = {name: made[name] for name in _PLAIN} | {name: tuple(made[name]) for name in _TUPLES}
    form = Form(
        **said, arrays=take(made["arrays"], arrays), model=None if model is None else take(model, arrays)[0].tobytes()
    )
    if (given := made.get("call")) is None:
        return form
    names, places = given["state"]
    named = Named(**given | {"group": Group(**given["group"]), "state": dict(zip(names, take(places, arrays)))})
    found = find(named)
    return replace(form, call=found.call, own=found.own, renew=found.renew)


def add(given: list[Any], arrays: list[Any]) -> list[int]:
    arrays.extend(given)
    return [len(arrays) - len(given), len(arrays)]


def take(places: list[int], arrays: list[Any]) -> list[Any]:
    return arrays[slice(*places)]


# --- programs -------------------------------------------------------------------------------------------------------

#: What a program says of itself, which a run may change.
_SAID = ("placement", "fallback", "flags", "pieces", "way", "execution")
_TYPES: dict[str, tuple[type, ...]] = {"fallback": (str, type(None)), "pieces": (bool,)}
#: What a timed call says that it took, in seconds.
_TIMES = ("wall_s", "cpu_s", "device_s")


def describe_program(program: Program) -> dict[str, Any]:
    """What a program says of itself now; without the results of its other ways. Columns are what checks measure, in the judge's process."""
    return {name: getattr(program, name) for name in _SAID}


def update_program(program: Program, said: Any) -> None:
    """Let a judge's program say what the stranger's does. Raises Garbled."""
    if type(said) is not dict:
        raise Garbled("a program that says nothing of itself")
    for name, value in said.items():
        if name in _SAID and isinstance(value, _TYPES.get(name, (str,))):
            setattr(program, name, value[:_MOST] if isinstance(value, str) else value)
        else:
            raise Garbled(f"a program says {name!r}")


def write_timed(made: Timed, arrays: list[Any]) -> dict[str, Any]:
    """A timed call; its outputs are appended to ``arrays``."""
    later = None if made.later is None else add(list(made.later), arrays)
    times = {name: getattr(made, name) for name in _TIMES}
    return {"outputs": add(list(made.outputs), arrays), "later": later, **times}


def read_timed(made: Any, arrays: list[Any]) -> Timed:
    """What `write_timed` wrote. Raises KeyError, TypeError, Garbled."""
    times = {name: made[name] for name in _TIMES}
    if not all(x is None or (type(x) is float and x >= 0) for x in times.values()) or times["wall_s"] is None:
        raise Garbled(f"a call that took {times}")
    later = None if made["later"] is None else take(made["later"], arrays)
    return Timed(take(made["outputs"], arrays), later=later, **times)


# --- errors ---------------------------------------------------------------------------------------------------------


def write_error(error: BaseException, backend: Backend | None, arrays: list[Any]) -> dict[str, Any]:
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
        "text": _text(error),
        "cause": _text(error.__cause__) if error.__cause__ is not None else "",
    }
    if isinstance(error, Misbehaviour):
        made["kind"] = error.kind
        made["outputs"] = None if error.outputs is None else add([np.asarray(x) for x in error.outputs], arrays)
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


def _text(error: BaseException) -> str:
    try:
        return str(error)[: 1 << 20]
    except Exception:
        return type(error).__name__


def read_error(made: Any, arrays: list[Any]) -> BaseException:
    """An error of the same name and text, of the nearest class that a judge knows. Raises Garbled."""
    if type(made) is not dict or not all(type(made.get(x)) is str for x in ("name", "base", "text", "cause")):
        raise Garbled("an error without a name")
    base: Any = _OURS.get(made["base"]) or getattr(builtins, made["base"], Exception)
    if not (isinstance(base, type) and issubclass(base, BaseException)):
        base = Exception
    kind: Any = base
    if made["name"] != made["base"] or base not in _OURS.values():
        kind = type(made["name"][:200] or "Exception", (base,), {"__str__": _told, "__module__": "stranger"})
    error: Any = kind.__new__(kind)
    error.args = (made["text"],)
    error.told = {name: made.get(name) is True for name in JUDGEMENTS}
    if made["cause"]:
        error.__cause__ = Exception(made["cause"])
    if isinstance(error, Misbehaviour):
        error.kind = made["kind"] if type(made.get("kind")) is str else KIND_PROTOCOL
        places = made.get("outputs")
        error.outputs = take(places, arrays) if type(places) is list and all(type(x) is int for x in places) else None
    if isinstance(error, Fallback):
        error.raises = made.get("raises") is True
    if isinstance(error, Unavailable):
        vars(error)["installs"] = tuple(tuple(map(str, x)) for x in made.get("installs") or ())
    found: BaseException = error
    return found


def _told(error: BaseException) -> str:
    return str(error.args[0])
