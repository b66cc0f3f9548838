"""Counterparts: what JAX, TensorFlow, Paddle and MLX call an op of torch, row by row of one table; words that turn torch's arguments into theirs or refuse them (`pad_widths`, `require_rank`); forms "jax", "tensorflow", "paddle" and "mlx".

A row (`table.Row`) has torch's signature and one expression per framework; its rows stand by area in the other files.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from tasks.counterparts.table import FRAMEWORKS, CounterpartRow
from tasks.model import Unsupported, is_inexact_dtype, label_op

#: Ops of the critical catalog that are called like an op of torch of another name.
CRITICAL = {
    "gelu_tanh": "nn.functional.gelu",
    "conv2d_depthwise": "nn.functional.conv2d",
    "conv2d_grouped": "nn.functional.conv2d",
    "scaled_dot_product_attention_causal": "nn.functional.scaled_dot_product_attention",
    "scaled_dot_product_attention_gqa": "nn.functional.scaled_dot_product_attention",
}

#: Modules whose names every expression may use, beside those of its framework (``in_jax``, …), which go before them.
WORDS = ("arguments", "encoder")

#: Arguments that say where and how a tensor is stored, or what is done with it later: the result's values are the same.
WITHOUT_EFFECT = ("device", "requires_grad", "layout", "memory_format", "pin_memory", "non_blocking", "out")


@functools.cache
def index_counterpart_rows() -> dict[str, CounterpartRow]:
    """Every row by each of its names."""
    from tasks.counterparts import algebra, elementwise, movement, networks, reductions

    return {
        name: row
        for area in (elementwise, reductions, algebra, movement, networks)
        for row in area.ROWS
        for name in row.names.split()
    }


def find_counterpart(framework: str, op: str, variant: str, dtype: str) -> Counterpart:
    """What ``framework`` calls an op (with its catalog's prefix). Raises Unsupported where the table has nothing.

    The table is made for inexact dtypes: frameworks turn integers into floats of other widths than torch.
    """
    catalog, _, name = op.partition(":")
    label = label_op(name, variant)
    found = None
    if catalog == "critical":
        names = (op, CRITICAL.get(name, name), f"nn.functional.{name}")
        found = next((index_counterpart_rows()[x] for x in names if x in index_counterpart_rows()), None)
    elif catalog == "torch":
        found = index_counterpart_rows().get(label)
    text = getattr(found, framework, "") if found else ""
    if found is None or not text:
        raise Unsupported(
            f"no counterpart of {op.partition(':')[2] if catalog == 'critical' else label} in the table for {framework}"
        )
    if not is_inexact_dtype(dtype):
        raise Unsupported(f"the table of counterparts is for floating and complex dtypes, not for {dtype}")
    if dtype == "complex32":  # torch's alone: a framework would be given it widened, and pass in another dtype
        raise Unsupported(f"{framework} has no complex32")
    return Counterpart(framework, label, found.signature, text)


class Counterpart:
    """One expression of the table as a callable that takes torch's arguments and the framework's tensors.

    text: the expression; composed: whether it is made of several functions because the framework has none.
    """

    def __init__(self, framework: str, label: str, signature: str, text: str) -> None:
        self.framework, self.label = framework, label
        self.composed = text.startswith("~")
        parameters, _, without_effect = signature.partition("|")
        self.signature, names = _parse_parameter_list(parameters.strip())
        text = text.lstrip("~")
        self.text = text if "(" in text or text.startswith("x.") else f"{text}({', '.join(names)})"
        used = {node.id for node in ast.walk(ast.parse(self.text, mode="eval")) if isinstance(node, ast.Name)}
        self._free = used | set(without_effect.split())
        self._code = compile(self.text, f"<counterpart of {label} in {framework}>", "eval")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises Unsupported for arguments that the expression does not heed; what the framework raises as it is."""
        # Expressions are part of this package, never of anything that is read.
        return eval(self._code, _list_framework_words(self.framework), self.bind_arguments(args, kwargs))

    def bind_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by their names, all of them. Raises Unsupported for those that the expression does
        not heed."""
        kwargs = {k: v for k, v in kwargs.items() if k not in WITHOUT_EFFECT}
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Unsupported(f"the counterpart of {self.label} does not take these arguments: {error}") from None
        for name, value in bound.arguments.items():
            default = self.signature.parameters[name].default
            if name not in self._free and not _is_default_value(value, default):
                raise Unsupported(f"{self.framework}'s counterpart of {self.label}, {self.text}, has no {name}")
        bound.apply_defaults()
        return dict(bound.arguments)


def _is_default_value(value: Any, default: Any) -> bool:
    return value is default or (
        isinstance(value, (bool, int, float, str, tuple)) and type(value) is type(default) and value == default
    )


@functools.cache
def _parse_parameter_list(parameters: str) -> tuple[inspect.Signature, tuple[str, ...]]:
    """The signature of a parameter list and how its parameters are handed on by position."""
    made: Callable[..., Any] = eval(f"lambda {parameters}: None", {})
    signature = inspect.signature(made)
    return signature, tuple(
        f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in signature.parameters.values()
    )


@functools.cache
def _list_framework_words(framework: str) -> dict[str, Any]:
    """What a framework's expressions may name; imports the framework. ``named``: its counterpart of another op of
    torch."""

    @functools.cache
    def named(name: str) -> Counterpart:
        return Counterpart(
            framework,
            name,
            index_counterpart_rows()[name].signature,
            getattr(index_counterpart_rows()[name], framework),
        )

    known = (vars(import_module(f"tasks.counterparts.{name}")) for name in (*WORDS, f"in_{framework}"))
    return {**{k: v for words in known for k, v in words.items()}, "named": named}
