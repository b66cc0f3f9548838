"""The text of an issue about a minimal case: as its maintainer would want it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from farm.minimise.show import off_by, trigger
from farm.report.words import number
from tasks.minimise.said import sentences

#: Characters of an error that are told.
_ERROR = 1500


def text(record: Mapping[str, Any], script: str) -> str:
    """Markdown: title, versions, what happens, script, expected and got, triggers, the specification's sentence, words to search
    for duplicates."""
    parts = [f"# {title(record)}", _versions(record), _what(record)]
    if script:
        parts.append(f"## To reproduce\n\n```python\n{script.rstrip()}\n```")
    parts += [_result(record), _triggers(record), _specification(record), _others(record), _search(record)]
    return "\n\n".join(filter(None, parts)) + "\n"


def title(record: Mapping[str, Any]) -> str:
    """ "Softmax with axis=0: wrong numbers (onnxruntime 1.31.1)"."""
    ops = " + ".join(dict.fromkeys(record["finding"]["ops"]))
    given = ", ".join(f"{k.partition('.')[2]}={v}" for k, v in list(record["finding"]["attributes"].items())[:3])
    modes = ", ".join(record["finding"]["modes"][:2])
    how = " ".join(filter(None, [ops, f"with {given}" if given else "", f"({modes})" if modes else ""]))
    return f"[{record['backend']}] {how}: {_failing(record)}"


def _failing(record: Mapping[str, Any]) -> str:
    outcome = record["outcome"]
    words = {
        "wrong": {"shape": "wrong shape", "dtype": "wrong dtype", "nonfinite": "NaN or Inf out of place"}.get(
            outcome["kind"], "wrong result"
        ),
        "imprecise": "imprecise result",
        "crash": f"crash ({outcome['kind']})",
        "timeout": "does not end",
        "oom": "takes all memory",
    }
    if outcome["status"] == "error":
        return re.sub(r"\s+", " ", outcome["error"] or "error").strip()[:100]
    return words.get(outcome["status"], outcome["status"])


def _versions(record: Mapping[str, Any]) -> str:
    runtime = f"{record['backend']} {record['runtime_version']}, device {record['device']}"
    packages = f"; packages: {' '.join(record['packages'])}" if record["packages"] else ""
    opset = ", ".join(f"{k or 'ai.onnx'} {v}" for k, v in record.get("opset", {}).items())
    return f"Version: {runtime}{packages}" + (f"; opset {opset}" if opset else "")


def _what(record: Mapping[str, Any]) -> str:
    outcome = record["outcome"]
    lines = []
    if far := off_by(outcome):
        lines.append(f"The result is off by {far} (largest difference {number(outcome['max_diff'])}).")
    if outcome["error"]:
        lines.append(f"```\n{outcome['error'][:_ERROR]}\n```")
    if record.get("after"):
        lines.append("It happens after, in the same process: " + ", ".join(f"`{x}`" for x in record["after"]))
    if record["flaky"]:
        lines.append(f"It happens {record['failed']} of {record['tried']} times.")
    return "\n\n".join(lines)


def _result(record: Mapping[str, Any]) -> str:
    given = [
        f"- `{x['name']}` {x['dtype']} {x['shape']} ({x['how']}) `{x['values']}`" for x in record.get("inputs", [])
    ]
    lines = ["## Inputs, expected and got", "", *given]
    if record.get("expected"):
        lines.append(f"- expected (float64): `{record['expected']}`")
    if record.get("got"):
        lines.append(f"- got: `{record['got']}`")
    return "\n".join(lines)


def _triggers(record: Mapping[str, Any]) -> str:
    if not record["triggers"]:
        return ""
    rows = [f"| {x['what']} | {trigger(x)} |" for x in record["triggers"]]
    return "\n".join(["## What triggers it", "", "| put otherwise | then |", "|---|---|", *rows])


def _specification(record: Mapping[str, Any]) -> str:
    found = sentences(record["op"], record["finding"]["ops"], list(record["finding"]["attributes"]))
    return "\n".join(["## What the specification says", "", *(f"> {x}" for x in found)]) if found else ""


def _others(record: Mapping[str, Any]) -> str:
    by_status: dict[str, list[str]] = {}
    for backend, status in record.get("others", {}).items():
        by_status.setdefault(status, []).append(backend)
    told = "; ".join(f"{status}: {', '.join(names)}" for status, names in sorted(by_status.items()))
    return f"## Other runtimes on the case it was found with\n\n{told}" if told else ""


def _search(record: Mapping[str, Any]) -> str:
    """Words to search a tracker for duplicates with."""
    words = [*record["finding"]["ops"], *(x.partition(".")[2] for x in record["finding"]["attributes"])]
    outcome = record["outcome"]
    said = [w for w in record["finding"]["words"].split() if len(w) > 4][:6]
    kind = {"wrong": "wrong result", "imprecise": "precision", "crash": "segfault", "timeout": "hang"}
    words += said or [kind.get(outcome["status"], outcome["status"])]
    return f"Search for duplicates with: `{' '.join(dict.fromkeys(words))}`"
