"""What a key of a declaration is: its kind, the names that its value is of, and what the docs say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from tasks.nearest import suggest_nearest_names

#: A key, as the path to it, and what is wrong there.
Mistake = tuple[tuple[Any, ...], str]


@dataclass(frozen=True)
class KeyKind:
    """What a value is. fits: tells one; wrong: said of anything else, which stands at {0!r}."""

    fits: Callable[[Any], bool]
    wrong: str


def is_key_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


#: What `KeyNames` looks at.
NAME = KeyKind(lambda x: True, "")
TEXT = KeyKind(lambda x: isinstance(x, str), "{0!r} is not a text")
FLAG = KeyKind(lambda x: isinstance(x, bool), "{0!r} is neither true nor false")
COUNT = KeyKind(lambda x: type(x) is int and x >= 1, "{0!r}: a whole number of at least 1")
MAPPING = KeyKind(lambda x: isinstance(x, Mapping), "{0!r} is not a mapping of names, e.g. {{name: …}}")
LIST = KeyKind(is_key_list, "{0!r} is no list; give [{0!r}]")
FUNCTION = KeyKind(
    lambda x: callable(x) or isinstance(x, str), "{0!r} is neither a function nor the name of one (module:function)"
)
SIZE = KeyKind(lambda x: type(x) is int or isinstance(x, str), "{0!r} is no size: a number, or + - * // of dimensions")
REFERENCE = KeyKind(FUNCTION.fits, "{0!r} is neither a function nor the name of one (module:function, or a script)")


@dataclass(frozen=True)
class KeyNames:
    """The names that a value, or each of a list, is one of. wrong: said before one that is not; valid: theirs, of a
    declaration."""

    wrong: str
    valid: Callable[[Any], Iterable[str]]

    def mistakes(self, declared: Any, value: Any, at: tuple[Any, ...], several: bool = False) -> Iterator[Mistake]:
        valid = list(self.valid(declared))
        for key, one in [((*at, i), x) for i, x in enumerate(value)] if several else [(at, value)]:
            if one not in valid:
                yield key, f"{self.wrong} {one!r}{suggest_nearest_names(one, valid)}"


def declare_key(
    kind: KeyKind, about: str, *, shown: str = "", names: KeyNames | None = None, yaml: str = ""
) -> dict[str, Any]:
    """What a field of a declaration is, as its metadata. about: what it says, as the docs have it; shown: its default
    in words; yaml: what a config calls it, where that is no name in Python."""
    return {"kind": kind, "about": about, "shown": shown, "names": names, "yaml": yaml}


def find_declared_default(one: Field[Any]) -> Any:
    """What a key is where it is not given; MISSING where it has to be."""
    return one.default if one.default_factory is MISSING else one.default_factory()


def describe_declared_default(one: Field[Any]) -> str:
    """What a key is where it is not given, as the docs have it; "" where it has to be."""
    default = find_declared_default(one)
    if one.metadata["shown"] or default is MISSING:
        return str(one.metadata["shown"])
    if isinstance(default, bool) or not default:
        return "yes" if default else "no" if default is False else "none"
    return f"`[{', '.join(default)}]`" if is_key_list(default) else f"`{default}`"


def name_declared_key(one: Field[Any]) -> str:
    """What a config calls a key."""
    return one.metadata["yaml"] or one.name


def read_declared_keys(kind: type, given: Mapping[str, Any]) -> Iterator[Mistake]:
    """What is wrong with the keys of a declaration, and with the kinds of their values."""
    known = {name: one for one in fields(kind) for name in (name_declared_key(one), one.name)}
    for name in given:
        if name not in known:
            yield (name,), f"unknown key{suggest_nearest_names(name, map(name_declared_key, fields(kind)))}"
    for one in fields(kind):
        name = next((x for x in (name_declared_key(one), one.name) if x in given), "")
        if name:
            yield from check_key_kind(one, given[name])
        elif find_declared_default(one) is MISSING:
            yield (name_declared_key(one),), f"Field required: add the key {name_declared_key(one)}"


def make_declaration(kind: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """The declaration of keys that are right."""
    names = {name_declared_key(one): one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{names.get(name, name): value for name, value in given.items() if value is not None})


def check_key_kind(one: Field[Any], value: Any) -> Iterator[Mistake]:
    """What is wrong with a value as such; a default is right."""
    if value is None and find_declared_default(one) is not None:
        yield (name_declared_key(one),), "has no value: leave it out, or give one"
    elif value is not None and not one.metadata["kind"].fits(value):
        yield (name_declared_key(one),), one.metadata["kind"].wrong.format(value)


def check_declared_names(declared: Any) -> Iterator[Mistake]:
    """The names of a declaration that nobody has."""
    for one in fields(declared):
        value, names = getattr(declared, one.name), one.metadata["names"]
        if names is not None and value != find_declared_default(one):
            yield from names.mistakes(declared, value, (name_declared_key(one),), one.metadata["kind"] is LIST)


def check_declared_keys(kind: type, given: Mapping[str, Any]) -> list[Mistake]:
    """What is wrong with the keys of a declaration, else with the names in it."""
    return list(read_declared_keys(kind, given)) or list(check_declared_names(make_declaration(kind, given)))


def write_declaration(declared: Any) -> dict[str, Any]:
    """A declaration as a config has it: what is not as it is by default."""
    values = {
        name_declared_key(one): (getattr(declared, one.name), find_declared_default(one)) for one in fields(declared)
    }
    return {name: _make_plain_key(value) for name, (value, default) in values.items() if value != default}


def _make_plain_key(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _make_plain_key(v) for k, v in value.items()}
    return [_make_plain_key(v) for v in value] if isinstance(value, (list, tuple)) else value
