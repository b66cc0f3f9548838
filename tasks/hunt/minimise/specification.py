"""What the specification of an op says of it, in its own sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Sentences of an op, characters of one.
_MOST, _LENGTH = 4, 700


def quote_fuzz_specification(op: str, ops: Sequence[str], attributes: Sequence[str]) -> list[str]:
    """Of ONNX's operators: what is said of the attributes that are not the default ("Op.attribute"), else the op's
    first sentences; of torch's: the first of its documentation. Nothing for an op that is not known."""
    if op.startswith("onnx:"):
        return [x for name in dict.fromkeys(ops) for x in _quote_onnx_specification(name, attributes)]
    if op.startswith("torch:"):
        return _quote_torch_docs(op.partition(":")[2])
    return []


def _quote_onnx_specification(op: str, attributes: Sequence[str]) -> list[str]:
    from onnx import defs

    domain, _, name = op.rpartition(".")
    try:
        schema = defs.get_schema(name, domain)
    except defs.SchemaError:
        return []
    told = [x.partition(".")[2] for x in attributes if x.startswith(f"{name}.")]
    page = name if domain else f"[{name}](https://onnx.ai/onnx/operators/onnx__{name}.html)"
    found = [
        f"{page}, {x}: {_cut_first_sentences(schema.attributes[x].description, _MOST)}"
        for x in told
        if x in schema.attributes
    ]
    return found or [f"{page}: {_cut_first_sentences(schema.doc, _MOST)}"]


def _quote_torch_docs(name: str) -> list[str]:
    import torch

    found: object = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    text = _cut_first_sentences((getattr(found, "__doc__", None) or "").partition("\n\n")[2], _MOST)
    return [f"{name}: {text}"] if text else []


def _cut_first_sentences(text: str, count: int) -> str:
    plain = " ".join(text.split())
    first = " ".join(re.split(r"(?<=[.!?]) ", plain)[:count])
    cut = first if len(first) <= _LENGTH else first[:_LENGTH].rpartition(" ")[0]
    return cut if cut == plain else f"{cut} …"
