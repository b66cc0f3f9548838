"""What a framework is asked for, call by call in lines of source: the words of its counterparts are run with names in its place.

A word of the table pads, casts and permutes as torch's arguments want it; of one call of it little is left. The framework itself may
not be in this environment.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tasks.backends.shared.call_lines import sources, words_of
from tasks.counterparts import WITHOUT_EFFECT, Counterpart

_BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
}
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


#: Of what shape a call's result is by that of its first tensor and its second argument. Of these all that is asked afterwards is
#: their rank: sizes that the window of a call decides are None.
_SHAPED: Mapping[str, Callable[[Sequence[Any], Any], Sequence[Any]]] = {
    "transpose": lambda shape, order: [shape[k] for k in order],
    "reshape": lambda shape, to: to,
    "pad": lambda shape, pads: [n + sum(pair) for n, pair in zip(shape, pads, strict=True)],
    "bias_add": lambda shape, bias: shape,
    **dict.fromkeys(
        ("convolution", "depthwise_conv2d", "conv_transpose", "max_pool", "avg_pool"),
        lambda shape, _: [None] * len(shape),
    ),
}


#: What a dtype says of itself: kinds of numpy's dtypes of which it is so.
_OF_DTYPE = {"is_integer": "iu", "is_complex": "c"}


class Unknown(Exception):
    """What only the framework knows decides what is called next."""


@dataclass
class Trace:
    """What is called of a framework. lines: each gives something a name; whole: counterparts whose words cannot be run here, by
    the names that they have in the lines; written: the source of an array, where there is any."""

    framework: str
    written: Callable[[np.ndarray], str] | None = None
    lines: list[str] = field(default_factory=list)
    whole: dict[str, Counterpart] = field(default_factory=dict)
    imports: dict[str, None] = field(default_factory=dict)

    def call(self, counterpart: Counterpart, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a counterpart makes of Codes, told by the calls of its words; by its name where these cannot be run. Raises
        NoScript, Unsupported."""
        names = counterpart.bound(args, kwargs)
        lines, imports = len(self.lines), dict(self.imports)
        try:
            found = self._run(counterpart, names)
            _parts(found)
            return found
        except Exception:  # whatever it is, the framework is asked for the whole of it
            del self.lines[lines:]
            self.imports = imports
        name = "op_" + counterpart.label.removeprefix("nn.functional.").replace(".", "_").replace(":", "_")
        self.whole[name] = counterpart
        heeded = {key: x for key, x in kwargs.items() if key not in WITHOUT_EFFECT}
        return self.line(f"{name}({self.arguments(args, heeded)})")

    def _run(self, counterpart: Counterpart, given: Mapping[str, Any]) -> Any:
        names: dict[str, Any] = {}
        for name, word in words_of(self.framework).items():
            if isinstance(word, str):
                (alias,) = ast.parse(word).body[0].names  # type: ignore[attr-defined]
                module = getattr(ast.parse(word).body[0], "module", None) or alias.name
                if module.partition(".")[0] in (self.framework, "mlx"):
                    names[name] = Code(self, name, imported=word)
                    continue
                exec(word, names)  # Python's own, and numpy
            else:
                with contextlib.suppress(NameError):  # names of types alone are not imported
                    exec(compile(ast.fix_missing_locations(ast.Module([word], [])), name, "exec"), names)
        return eval(counterpart.text, names, dict(given))

    def line(self, text: str) -> Code:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return Code(self, name)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        return ", ".join([*map(self.told, args), *(f"{name}={self.told(x)}" for name, x in kwargs.items())])

    def told(self, x: Any) -> str:
        """Source of an argument. Raises Unknown for what has none."""
        if isinstance(x, Code):
            if x.imported:
                self.imports[x.imported] = None
            return x.text
        if isinstance(x, list):
            return f"[{', '.join(map(self.told, x))}]"
        if isinstance(x, tuple):
            return f"({', '.join(map(self.told, x))}{',' * (len(x) == 1)})"
        if isinstance(x, np.generic):
            return self.told(x.item())
        if isinstance(x, float) and x - x != 0:
            return f'float("{x}")'
        if isinstance(x, slice):
            return f"slice({self.told(x.start)}, {self.told(x.stop)}, {self.told(x.step)})"
        if isinstance(x, np.ndarray) and self.written is not None:
            return self.written(x)
        if x is None or isinstance(x, (bool, int, float, str)):
            return repr(x)
        if x is ...:
            return "..."
        raise Unknown(f"an argument of type {type(x).__name__}")

    def made(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(imports, lines that make what is called by name)."""
        imports, made = sources(self.whole)
        return tuple(dict.fromkeys((*self.imports, *imports))), made


class Code:
    """Something of a framework by its source; known: torch's tensor, or dtype, in its place, where there is one."""

    def __init__(self, trace: Trace, text: str, known: Any = None, imported: str = "") -> None:
        self.trace, self.text, self.known, self.imported = trace, text, known, imported

    def also(self, known: Any) -> Any:
        """The same, or its parts, with what torch made of the same."""
        if isinstance(known, (list, tuple)):
            return [Code(self.trace, f"{self.text}[{k}]", x) for k, x in enumerate(known)]
        return Code(self.trace, self.text, known)

    @property
    def shape(self) -> tuple[Any, ...]:
        if self.known is None:
            raise Unknown("a shape")
        return tuple(n if n is None else int(n) for n in self.known.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Code:
        return Code(self.trace, f"{self.text}.dtype", getattr(self.known, "dtype", None))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _OF_DTYPE and isinstance(self.known, np.dtype):
            return self.known.kind in _OF_DTYPE[name]
        return Code(self.trace, f"{self.text}.{name}", imported=self.imported)

    def __call__(self, *args: Any, **kwargs: Any) -> Code:
        found = self.trace.line(f"{self.trace.told(self)}({self.trace.arguments(args, kwargs)})")
        shaped = _SHAPED.get(self.text.rpartition(".")[2])
        if shaped and len(args) > 1 and isinstance(args[0], Code) and args[0].known is not None:
            found.known = SimpleNamespace(shape=tuple(shaped(args[0].shape, args[1])), dtype=args[0].known.dtype)
        return found

    def __getitem__(self, key: Any) -> Code:
        return self._by(f"{self.trace.told(self)}[{self.trace.told(key)}]", operator.getitem, self, key)

    def __neg__(self) -> Code:
        return self._by(f"-{self.trace.told(self)}", operator.neg, self)

    def __invert__(self) -> Code:
        return self._by(f"~{self.trace.told(self)}", operator.invert, self)

    def _by(self, text: str, function: Callable[..., Any], *operands: Any) -> Code:
        found, bare = self.trace.line(text), [x.known if isinstance(x, Code) else x for x in operands]
        if isinstance(self.known, SimpleNamespace):  # a part of it has its rank
            parts = function is operator.getitem and all(isinstance(x, slice) for x in operands[1])
            found.known = SimpleNamespace(shape=(None,) * self.ndim, dtype=self.known.dtype) if parts else None
            return found
        return found if any(x is None for x in bare) else Code(self.trace, found.text, function(*bare))

    def __str__(self) -> str:
        return self.text if self.known is None else str(self.known)

    def _unknown(self, *_: Any) -> Any:
        raise Unknown(f"what {self.text} is")

    __bool__ = __len__ = __iter__ = __index__ = __int__ = __float__ = __contains__ = _unknown
    __hash__ = object.__hash__


def _binary(word: str, symbol: str, turned: bool) -> Callable[[Code, Any], Code]:
    function = getattr(operator, f"__{word}__")

    def made(self: Code, other: Any) -> Code:
        told = self.trace.told(other)
        if not isinstance(other, Code) and told.startswith("-"):
            told = f"({told})"
        left, right = ((told, other), (self.trace.told(self), self))[:: 1 if turned else -1]
        return self._by(f"{left[0]} {symbol} {right[0]}", function, left[1], right[1])

    return made


for _word, _symbol in itertools.chain(_BINARY.items(), _COMPARED.items()):
    setattr(Code, f"__{_word}__", _binary(_word, _symbol, False))
    if _word in _BINARY:
        setattr(Code, f"__r{_word}__", _binary(_word, _symbol, True))


def _parts(found: Any) -> None:
    """Raises Unknown for a result that is no tensor, or several."""
    for x in found if isinstance(found, (list, tuple)) else [found]:
        if not isinstance(x, Code):
            raise Unknown("a result")
