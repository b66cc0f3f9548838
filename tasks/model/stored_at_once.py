"""Frozen dataclasses that every case makes several of."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def store_at_once(kind: type[T]) -> type[T]:
    """A frozen dataclass whose constructor stores all fields in one call; its own makes a call for each, which takes
    three times as long.

    Its arguments and errors are the same. Raises TypeError for a class with a ``__post_init__``, which it would not
    call.
    """
    if hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__name__} has a __post_init__")
    unset, names, arguments, values = object(), dict[str, Any](), list[str](), list[str]()
    names["unset"] = unset
    for field in fields(kind):  # type: ignore[arg-type]
        argument = value = field.name
        if field.default is not MISSING:
            names[f"default_{value}"] = field.default
            argument += f"=default_{value}"
        elif field.default_factory is not MISSING:
            names[f"make_{value}"] = field.default_factory
            argument += "=unset"
            value = f"make_{value}() if {value} is unset else {value}"
        arguments.append(argument)
        values.append(f"{field.name}={value}")
    # As dataclasses does it: a signature is made of text.
    exec(f"def __init__(self, {', '.join(arguments)}):\n    self.__dict__.update({', '.join(values)})", names)
    made, own = names["__init__"], kind.__init__
    made.__qualname__, made.__module__, made.__annotations__ = own.__qualname__, kind.__module__, own.__annotations__
    kind.__init__ = made  # type: ignore[method-assign]
    return kind
