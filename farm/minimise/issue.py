"""The text of an issue about a minimal case: as its maintainer would want it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from farm.minimise.show import trigger
from farm.report.tables.agreement import unit
from farm.report.words import number
from tasks.minimise.said import sentences
from tasks.model import FAILED, Status, is_inexact, names
from tasks.model.kind import KIND_BIASED

#: Characters of an error that are told, of one in a title, and of a script that stands in the text.
_ERROR, _TITLE, _SCRIPT = 1500, 100, 8000
#: Operators that a title names.
_OPS = 4
#: What every error of ONNX Runtime or MLIR begins with; a place in a source and the function there.
_BEGINNING = re.compile(
    r"^(?:\[ONNXRuntimeError\] : \d+ : \w+ : )?(?:Non-zero status code .*?Status Message: )?(?:loc\(.*?\): )?"
)
_PLACE = re.compile(r"^\S+\.(?:cc|cpp|h):\d+ .*?\)(?: const)?(?: \[with .*?\])? ")
#: Lines of OpenVINO's errors that say where it was.
_FRAME = re.compile(
    r"Exception from |Check '.*' failed|FrontEnd API failed|Model wasn't fully|-- |While validating|Summary:"
)
#: Words for what came of something put otherwise.
_THEN = {"pass": "right", "fallback": "it does not run there", "unsupported": "refused: not supported"}


def text(record: Mapping[str, Any], script: str) -> str:
    """Markdown: title, versions, what happens, script, expected and got, triggers, the specification's sentence, words to search
    for duplicates."""
    parts = [f"# {title(record)}", _versions(record), _what(record), *_shown(script)]
    parts += [_result(record), _triggers(record), _specification(record), _others(record), _search(record)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _shown(script: str) -> list[str]:
    """The script, or where it is: a tracker takes no text of any length, and nobody reads it."""
    if not script:
        return []
    count = len(script.splitlines())
    if len(script) > _SCRIPT:
        return [f"## To reproduce\n\nRun `script.py`, attached ({count:,} lines, {len(script) >> 10:,} KiB)."]
    return [f"## To reproduce\n\n```python\n{script.rstrip()}\n```"]


def title(record: Mapping[str, Any]) -> str:
    """ "[ort-cpu] Softmax of float16 with axis=0: wrong result", "Cast of float32 to bfloat16"; float32 alone is not told."""
    each = list(dict.fromkeys(record["finding"]["ops"]))
    ops = " + ".join(each) if len(each) <= _OPS else f"a graph of {', '.join(each[:_OPS])} and {len(each) - _OPS} more"
    to = [x for x in record.get("results", ()) if x != record["dtype"] and is_inexact(x)]
    some = [(k.partition(".")[2], v) for k, v in record["finding"]["attributes"].items()]
    some = [(name, v) for name, v in some if name != "to"][:3]  # a number for a dtype, which is told
    given = ", ".join(f"{name}={f'{v:g}' if isinstance(v, float) else v}" for name, v in some)
    modes = ", ".join(record["finding"]["modes"][:2])
    dtype = "" if record["dtype"] == "float32" and not to else " to ".join([f"of {record['dtype']}", *to[:1]])
    how = " ".join(filter(None, [ops, dtype, f"with {given}" if given else "", f"({modes})" if modes else ""]))
    return f"[{record['backend']}] {how}: {_failing(record)}"


def _failing(record: Mapping[str, Any]) -> str:
    if record["flaky"]:
        return f"{record['finding']['status']}, at times"
    outcome = record["outcome"]
    words = {
        "wrong": {"shape": "wrong shape", "dtype": "wrong dtype", "nonfinite": "NaN or Inf out of place"}.get(
            outcome["kind"], "wrong result"
        ),
        "imprecise": "imprecise result",
        "crash": f"crash ({outcome['kind'] or _telling(_raised(outcome) or 'the process ends')})",
        "timeout": "does not end",
        "oom": "takes all memory",
    }
    if outcome["status"] == "error":
        return _telling(_raised(outcome) or "error")
    return words.get(outcome["status"], outcome["status"])


def _raised(outcome: Mapping[str, Any]) -> str:
    """The error; one of a word or two alone, as a KeyError's, with its type."""
    error = outcome["error"] or ""
    few = error and len(error.split()) <= 2 and outcome.get("error_type")
    return f"{outcome['error_type']}: {error}" if few else error


def _telling(error: str) -> str:
    """The first line of an error that says what is wrong, without places in sources and what every error of the runtime begins
    with."""
    lines = [_PLACE.sub("", _BEGINNING.sub("", " ".join(x.split()))) for x in re.split(r"\n| \| ", error)]
    line = next((x for x in lines if x and not _FRAME.match(x)), error)
    return line if len(line) <= _TITLE else f"{line[:_TITLE].rpartition(' ')[0]} …"


def _versions(record: Mapping[str, Any]) -> str:
    runtime = f"{record['backend']} {record['runtime_version']}, device {record['device']}"
    packages = f"; packages: {' '.join(record['packages'])}" if record["packages"] else ""
    opset = ", ".join(f"{k or 'ai.onnx'} {v}" for k, v in record.get("opset", {}).items())
    return f"Version: {runtime}{packages}" + (f"; opset {opset}" if opset else "")


def _what(record: Mapping[str, Any]) -> str:
    outcome = record["outcome"]
    lines = []
    if outcome["kind"] == "numbers":
        lines.append(_off(outcome, exact=not any(map(is_inexact, record.get("results", ["float32"])))))
    if outcome["error"]:
        lines.append(f"```\n{_raised(outcome)[:_ERROR]}\n```")
    if outcome.get("cause"):
        lines.append(f"The result is the one that this gives: {outcome['cause']}.")
    if outcome.get("breaks"):
        lines.append(f"What mathematics promises of it is broken: {outcome['breaks']}.")
    if outcome["kind"] == KIND_BIASED:
        lines.append("Rounded results are as often too large as too small: these are off to one side.")
    if record.get("after"):
        lines.append("It happens after, in the same process: " + ", ".join(f"`{x}`" for x in record["after"]))
    if record["flaky"]:
        lines.append(f"It happens {record['failed']} of {record['tried']} times.")
    return "\n\n".join(lines)


def _off(outcome: Mapping[str, Any], exact: bool) -> str:
    """How far the worst element is off, against what rounding explains; exact: nothing is rounded."""
    far = f"Largest difference from the exact result: {number(outcome['max_diff'])}."
    if exact:
        return far
    units, limit, ulps = (outcome[name] for name in ("error_units", "limit", "max_ulp"))
    if unit(outcome["op_class"] or "") == "ulps" and ulps is not None:
        return f"{far} The worst element is {number(ulps)} ulps off, where {number(limit)} are allowed."
    if units is None or limit is None:
        return far
    times = number(units) if units < 1e6 else "more than a million"
    return f"{far} The worst element is off by {times} times what rounding the inputs once changes; {number(limit)} times are allowed."


def _result(record: Mapping[str, Any]) -> str:
    given = [
        f"- `{x['name']}` {x['dtype']} {x['shape']} ({x['how']})" + (f" `{x['values']}`" if x["values"] else "")
        for x in record.get("inputs", [])
    ]
    lines = ["## Inputs, expected and got", "", *given]
    if record.get("expected"):
        lines.append(f"- expected: `{record['expected']}`")
    if record.get("got"):
        lines.append(f"- got: `{record['got']}`")
    return "\n".join(lines)


def _triggers(record: Mapping[str, Any]) -> str:
    """What was put otherwise, one thing at a time: first what the failure needs. What is no valid model tells nothing."""
    rows = [
        f"| {x['what']} | {_THEN.get(x['status'], trigger(x)) if not x['fails'] else trigger(x)} |"
        for x in sorted(record["triggers"], key=lambda x: (bool(x["fails"]), x["status"] != "pass"))
        if x["status"]
    ]
    return "\n".join(["## What triggers it", "", "| put otherwise | then |", "|---|---|", *rows]) if rows else ""


def _specification(record: Mapping[str, Any]) -> str:
    found = sentences(record["op"], record["finding"]["ops"], list(record["finding"]["attributes"]))
    return "\n".join(["## What the specification says", "", *(f"> {x}" for x in found)]) if found else ""


def _others(record: Mapping[str, Any]) -> str:
    """Who got the case right that it was found with, and who failed on it as well; who does not run it tells nothing."""
    by_status: dict[str, list[str]] = {}
    for backend, status in sorted(record.get("others", {}).items()):
        by_status.setdefault(status, []).append(backend)
    right = by_status.get(Status.PASS, [])
    bad = [f"{name} ({status})" for status in names((*FAILED, Status.IMPRECISE)) for name in by_status.get(status, [])]
    told = [f"Right: {', '.join(right)}."] * bool(right) + [f"Not right either: {', '.join(bad)}."] * bool(bad)
    return "\n\n".join(["## Other runtimes on the case it was found with", *told]) if told else ""


def _search(record: Mapping[str, Any]) -> str:
    """Words to search a tracker for duplicates with."""
    words = [*record["finding"]["ops"], *(x.partition(".")[2] for x in record["finding"]["attributes"])]
    outcome = record["outcome"]
    said = [w for w in record["finding"]["words"].split() if len(w) > 4][:6]
    kind = {"wrong": "wrong result", "imprecise": "precision", "crash": _crash(outcome), "timeout": "hang"}
    words += said or [kind.get(outcome["status"], outcome["status"])]
    return f"Search for duplicates with: `{' '.join(dict.fromkeys(words))}`"


def _crash(outcome: Mapping[str, Any]) -> str:
    """What a crash is searched for with: its signal, or of a device that is spoilt the words and numbers of its error."""
    if outcome["kind"]:
        return {"SIGSEGV": "segfault"}.get(outcome["kind"], outcome["kind"])
    said = re.findall(r"[A-Za-z]\w{4,}|\d{3,}", _telling(_raised(outcome)))
    return " ".join(list(dict.fromkeys(said))[:6]) or "crash"
