"""The text of an issue about a minimal case: as its maintainer would want it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from farm.hunt.show_minimal import describe_failure_trigger, is_exact_record
from farm.report.tables.agreement import name_row_units
from farm.report.words import format_report_number
from farm.reproduction.finding_folder import CALL
from tasks.hunt.minimise.specification import quote_fuzz_specification
from tasks.model import FAILED, Status, is_inexact_dtype, name_statuses
from tasks.model.kind import KIND_BIASED, OF_NUMBERS

#: Characters of an error that are told, of one in a title, and of a run.py that stands in the text.
_ERROR, _TITLE, _SCRIPT = 3000, 100, 8000
#: Operators that a title names.
_OPS = 4
#: What every error of ONNX Runtime, its provider of OpenVINO, MLIR or IREE begins with; a place in a source and the
#: function there.
_BEGINNING = re.compile(
    r"^(?:\[ONNXRuntimeError\] : \d+ : \w+ : )?(?:Non-zero status code .*?Status Message: )?(?:loc\(.*?\): )?"
    r"(?:Exception during initialization: (?:.*\[OpenVINO-EP\] )?)?(?:Error invoking function: \S+\.c:\d+: )?"
)
_PLACE = re.compile(r"^\S+\.(?:cc|cpp|h):\d+ .*?\)(?: const)?(?: \[with .*?\])? ")
#: Lines of OpenVINO's errors that say where it was.
_FRAME = re.compile(
    r"Exception from |Exception while |Check '.*' failed|FrontEnd API failed|Model wasn't fully|-- |While validating|Summary:|Errors during "
)
#: An operator of TVM's with all its fields.
_TVM_OP = re.compile(r'ir\.Op\(.*?name="([\w.]+)".*?support_level=\d+\)')
#: Words for what came of a change.
_THEN = {"pass": "correct", "fallback": "not run by this backend", "unsupported": "not supported"}
#: A result of one output as a record tells it, and the characters of the two that a title shows.
_RESULT = re.compile(r"\S+ \[[\d, ]*\] \[([^\[\];]*)\]")
_BOTH = 60
#: What a wrong result is called whose kind says nothing of its size.
_WRONG = {"shape": "wrong shape", "dtype": "wrong dtype", "nonfinite": "wrong NaN or Inf"}


def write_issue(record: Mapping[str, Any], run: str, files: Sequence[str] = ()) -> str:
    """Markdown of a finding whose call.py, or else run.py, is ``run``, "" where there is none: title, versions, what
    happens, how it is shown, expected and got, triggers, the specification's sentence, words to search for
    duplicates."""
    parts = [
        f"# {write_issue_title(record)}",
        _describe_versions_for_issue(record),
        _describe_minimal_case(record),
        *_render_issue_script(run, files),
    ]
    parts += [
        _describe_wrong_result(record),
        _describe_triggers_for_issue(record),
        _quote_specification_for_issue(record),
        _describe_other_backends(record),
        _make_search_words(record),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _render_issue_script(run: str, files: Sequence[str]) -> list[str]:
    """The text of run.py, and what it takes: a tracker takes no text of any length, and nobody reads it."""
    if not run:
        return []
    beside = ", ".join(f"`{x}`" for x in files if x not in ("run.py", "issue.md", "script.py", CALL))
    told = f"Run `run.py` beside {beside}, attached." if beside else "Run `run.py`, attached."
    told = f"In short; to have it judged, {told[0].lower()}{told[1:]}" if CALL in files else told
    return [f"## To reproduce\n\n{told}" + (f"\n\n```python\n{run.rstrip()}\n```" if len(run) <= _SCRIPT else "")]


def write_issue_title(record: Mapping[str, Any]) -> str:
    """ "[ort-cpu] Softmax of float16 with axis=0: wrong result", "Cast of float32 to bfloat16"; float32 alone is not
    told."""
    each = list(dict.fromkeys(record["finding"]["ops"]))
    ops = " + ".join(each) if len(each) <= _OPS else f"a graph of {', '.join(each[:_OPS])} and {len(each) - _OPS} more"
    to = [x for x in record.get("results", ()) if x != record["dtype"] and is_inexact_dtype(x)]
    some = [(k.partition(".")[2], v) for k, v in record["finding"]["attributes"].items()]
    some = [(name, v) for name, v in some if name != "to"][:3]  # a number for a dtype, which is told
    given = ", ".join(f"{name}={f'{v:g}' if isinstance(v, float) else v}" for name, v in some)
    modes = _use_tracker_words(", ".join(record["finding"]["modes"][:2]))
    dtype = "" if record["dtype"] == "float32" and not to else " to ".join([f"of {record['dtype']}", *to[:1]])
    how = " ".join(filter(None, [ops, dtype, f"with {given}" if given else "", f"({modes})" if modes else ""]))
    return f"[{record['backend']}] {how}: {_describe_failing_for_issue(record)}"


def _use_tracker_words(words: str) -> str:
    """In the words of a tracker: sizes that a model leaves open are dynamic shapes, an input of run time is no
    constant."""
    return words.replace("open sizes", "dynamic shapes").replace("at run time", "not constant")


def _describe_failing_for_issue(record: Mapping[str, Any]) -> str:
    return _describe_manner_for_issue(record) + (", intermittent" if record["flaky"] else "")


def _describe_manner_for_issue(record: Mapping[str, Any]) -> str:
    """How it fails: the error, the shape or dtype that came, or values where they are few."""
    outcome = record["outcome"]
    status, kind, error = outcome["status"], outcome["kind"], outcome["error"] or ""
    if status == Status.ERROR:
        return _pick_telling_error_line(_format_issue_error(outcome) or "error")
    if kind in ("shape", "dtype") and 0 < len(error) <= _TITLE:
        return f"wrong {error}"
    if status in (Status.WRONG, Status.IMPRECISE):
        values = _describe_few_values(record) if kind in (*OF_NUMBERS, "nonfinite") else ""
        return (f"{status} result" if values else _WRONG.get(kind, f"{status} result")) + values
    words = {
        "crash": f"crash ({kind or _pick_telling_error_line(_format_issue_error(outcome) or 'the process ends')})",
        "timeout": "hangs",
        "oom": "runs out of memory",
    }
    return words.get(status, status)


def _describe_few_values(record: Mapping[str, Any]) -> str:
    """ " (0, expected 3)" of a few values that fail every time, else ""."""
    found = [_RESULT.fullmatch(record.get(name) or "") for name in ("got", "expected")]
    got, expected = (re.sub(r"\.? *(?=,|$)", "", " ".join(x[1].split())) if x else "" for x in found)
    if record["flaky"] or not got or not expected or got == expected or len(got + expected) > _BOTH:
        return ""
    return f" ({got}, expected {expected})" if "," not in got else f" ([{got}], expected [{expected}])"


def _format_issue_error(outcome: Mapping[str, Any]) -> str:
    """The error; one of a word or two alone, as a KeyError's, with its type."""
    error = outcome["error"] or ""
    few = error and len(error.split()) <= 2 and outcome.get("error_type")
    return f"{outcome['error_type']}: {error}" if few else error


def _pick_telling_error_line(error: str) -> str:
    """The first line of an error that says what is wrong, without places in sources and what every error of the runtime
    begins with."""
    lines = [
        _PLACE.sub("", _BEGINNING.sub("", " ".join(x.split()))) for x in re.split(r"\n| \| ", _TVM_OP.sub(r"\1", error))
    ]
    line = next((x for x in lines if x and not _FRAME.match(x)), error)
    return line if len(line) <= _TITLE else f"{line[:_TITLE].rpartition(' ')[0]} …"


def _describe_versions_for_issue(record: Mapping[str, Any]) -> str:
    told = [f"{record['backend']} {record['runtime_version']}", f"device: {record['device']}"]
    if record["packages"]:
        told.append(f"packages: {' '.join(record['packages'])}")
    if record.get("opset"):
        told.append("opset: " + ", ".join(f"{k} {v}".strip() for k, v in record["opset"].items()))
    if record.get("system"):
        told.append(f"system: {record['system']}")
    return f"Version: {'; '.join(told)}"


def _describe_minimal_case(record: Mapping[str, Any]) -> str:
    outcome = record["outcome"]
    lines = []
    if outcome["kind"] in OF_NUMBERS:
        lines.append(_describe_error_size(outcome, is_exact_record(record)))
    if outcome["error"]:
        lines.append(f"```\n{_format_issue_error(outcome)[:_ERROR].strip()}\n```")
    if record.get("known"):
        lines.append(f"Known cause: {record['known']}." + f" Published: {record['link']}" * bool(record.get("link")))
    if outcome.get("cause"):
        lines.append(f"This would give the same result: {outcome['cause']}.")
    if outcome.get("breaks"):
        lines.append(f"A property of the operator does not hold: {outcome['breaks']}.")
    if outcome["kind"] == KIND_BIASED:
        lines.append("Correct rounding errs as often up as down; these results nearly all err to the same side.")
    if record.get("after"):
        lines.append(
            "It fails only after these cases in the same process: " + ", ".join(f"`{x}`" for x in record["after"])
        )
    if record["flaky"]:
        lines.append(f"It is intermittent: in new processes it failed {record['failed']} of {record['tried']} times.")
        if record.get("got") and record["got"] == record.get("expected"):
            lines.append("The result below is from a run that passed.")
    return "\n\n".join(lines)


def _describe_error_size(outcome: Mapping[str, Any], whole: bool) -> str:
    """How far the worst element is off, against what rounding explains; whole: nothing is rounded."""
    far = f"Largest difference from the exact result: {format_report_number(outcome['max_diff'])}."
    if whole:
        return far
    units, limit, ulps = (outcome[name] for name in ("error_units", "limit", "max_ulp"))
    if name_row_units(outcome["op_class"] or "") == "ulps" and ulps is not None:
        return f"{far} The worst element is {_format_large_count(ulps)} ulps off; the limit is {format_report_number(limit)}."
    if units is None or limit is None:
        return far
    return (
        f"{far} The error of the worst element is {_format_large_count(units)} times what rounding the inputs once can explain; "
        f"the limit is {format_report_number(limit)} times."
    )


def _format_large_count(count: float) -> str:
    return f"{count:,.3g}" if count < 1000 else f"{count:,.0f}" if count < 1e6 else "more than a million"


def _describe_wrong_result(record: Mapping[str, Any]) -> str:
    given = [
        f"- `{x['name']}` {x['dtype']} {x['shape']} ({x['how']}) "
        + (f"`{x['values']}`" if x["values"] else "(many values)")
        for x in record.get("inputs", [])
    ]
    lines = ["## Inputs, expected and actual result", "", *given]
    if record.get("expected"):
        lines.append(f"- expected: `{record['expected']}`")
    if record.get("got"):
        lines.append(f"- got: `{record['got']}`")
    return "\n".join(lines)


def _describe_triggers_for_issue(record: Mapping[str, Any]) -> str:
    """What one change at a time gives: first what the failure needs. What is no valid model tells nothing."""
    rows = [
        f"| {_use_tracker_words(x['what'])} | {_describe_toggle_for_issue(x)} |"
        for x in sorted(record["triggers"], key=lambda x: (bool(x["fails"]), x["status"] != "pass"))
        if x["status"]
    ]
    return "\n".join(["## What triggers it", "", "| one change | result |", "|---|---|", *rows]) if rows else ""


def _describe_toggle_for_issue(one: Mapping[str, Any]) -> str:
    return (
        describe_failure_trigger(one) if one["fails"] else _THEN.get(one["status"], f"another failure: {one['status']}")
    )


def _quote_specification_for_issue(record: Mapping[str, Any]) -> str:
    found = quote_fuzz_specification(record["op"], record["finding"]["ops"], list(record["finding"]["attributes"]))
    return "## What the specification says\n\n" + "\n>\n".join(f"> {x}" for x in found) if found else ""


def _describe_other_backends(record: Mapping[str, Any]) -> str:
    """Who got the case right that it was found with, and who failed on it as well; who does not run it tells
    nothing."""
    by_status: dict[str, list[str]] = {}
    for backend, status in sorted(record.get("others", {}).items()):
        by_status.setdefault(status, []).append(backend)
    right = by_status.get(Status.PASS, [])
    bad = [
        f"{name} ({status})"
        for status in name_statuses((*FAILED, Status.IMPRECISE))
        for name in by_status.get(status, [])
    ]
    told = [f"Correct: {', '.join(right)}."] * bool(right) + [f"Not correct: {', '.join(bad)}."] * bool(bad)
    if bad and not right:
        told.append("No other runtime gave the expected result.")
    return "\n\n".join(["## Other runtimes, on the case before it was reduced", *told]) if told else ""


def _make_search_words(record: Mapping[str, Any]) -> str:
    """Words to search a tracker for duplicates with."""
    words = [*record["finding"]["ops"], *(x.partition(".")[2] for x in record["finding"]["attributes"])]
    outcome = record["outcome"]
    said = _list_error_words(outcome) if outcome["status"] == Status.ERROR else []
    wrong = _WRONG.get(outcome["kind"], "wrong result")
    kind = {"wrong": wrong, "imprecise": "precision", "crash": _describe_crash_for_search(outcome), "timeout": "hang"}
    words += said or [kind.get(outcome["status"], outcome["status"])]
    return f"Search for duplicates with: `{' '.join(dict.fromkeys(words))}`"


def _describe_crash_for_search(outcome: Mapping[str, Any]) -> str:
    """What a crash is searched for with: its signal, or of a device that is spoilt the words and numbers of its
    error."""
    if outcome["kind"]:
        return {"SIGSEGV": "segfault"}.get(outcome["kind"], outcome["kind"])
    return " ".join(_list_error_words(outcome)) or "crash"


def _list_error_words(outcome: Mapping[str, Any]) -> list[str]:
    """The words and numbers of an error that are long enough to be its own."""
    return list(
        dict.fromkeys(re.findall(r"[A-Za-z]\w{4,}|\d{3,}", _pick_telling_error_line(_format_issue_error(outcome))))
    )[:6]
