"""What is printed of a case that was run again: the case, its numbers, the metrics beside the stored ones."""

from __future__ import annotations

import contextlib
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import pandas as pd

from farm.plan.known_failure import KnownFailure
from farm.plan.match_known import REDUCED, WHOSE, match_known_to_rows, was_known_seen_on
from farm.reproduction import device_places
from farm.reproduction.find_case import ReproduceError, StoredCase
from farm.reproduction.run_again import ReproducedOutcome
from tasks.arrays.pack import name_numpy_dtype
from tasks.arrays.tree import TensorSpec
from tasks.judge.worst_element import describe_worst_element, find_worst_element
from tasks.model import EXHAUSTIVE, OpClass, Status, get_wide_dtype, trace
from tasks.model.row import COLUMNS, get_declared_precision, has_own_tolerance
from tasks.model.trace import TraceStep
from tasks.prepare.cases import PreparedSample

#: Columns of a row that a reproduction must give again, bit for bit.
METRICS = tuple(c.name for c in COLUMNS if c.shown == "metrics" and c.type in ("float64", "int64", "bool"))
VERDICT = ("kind", "stage", "error_type")


def print_reproduced_case(case: StoredCase) -> None:
    """What is going to be run: the case, its policy and its inputs."""
    group = case.group
    print_name_and_text("case", case.key.case_id)
    print_name_and_text(
        "stored",
        f"{format_reproduced_status(case.row)} on {case.key.backend}, run {case.key.run_id}, {case.row['started_at']:%Y-%m-%d %H:%M} UTC",
    )
    if why := case.row.get("acquitted"):
        print_name_and_text("acquitted", f"the reference is suspect: {why}")
    elif Status(case.row["status"]).finding:
        print_name_and_text("cause", _find_known_cause(case))
    if case.row.get("note"):
        print_name_and_text("note", case.row["note"])
    if case.steps:
        print_name_and_text("trace", _describe_trace_of_case(case.steps))
    if case.spec.name != case.key.backend:
        print_name_and_text(
            "run on",
            f"{case.spec.name}"
            + (f" (stored there: {format_reproduced_status(case.stored)})" if case.stored else " (not in the run)"),
        )
    limit = ""
    if case.policy.rule == "error_units":
        precision = get_declared_precision(case.row)
        limit = f", up to {case.policy.limit(group.label, case.sample.op_class.value, group.dtype, precision)}"
    record = case.sample.record
    own = ", within the case's own tolerance" * has_own_tolerance(record.columns)
    print_name_and_text(
        "policy", f"{case.policy.id}{limit} ({case.sample.op_class}); expected output from: {record.oracle}{own}"
    )
    try:
        arrays = case.sample.inputs()
    except Exception as error:  # a damaged cache must not hide the rest
        raise ReproduceError(f"the cache's {case.asked.pack} cannot be read: {error}") from None
    for i, spec in enumerate(case.sample.specs):
        print_name_and_text("inputs" if not i else "", _format_case_tensor(spec, arrays))
    digest = record.digest
    other = (
        "the module's tensors" if case.row.get("weights") not in (None, record.columns.get("weights")) else "the inputs"
    )
    agrees = (
        "as stored"
        if digest == case.row["digest"]
        else f"NOT the stored {case.row['digest']}: {other} differ from the run's"
    )
    print_name_and_text("digest", f"{digest} ({agrees})")


def _describe_trace_of_case(steps: Sequence[TraceStep]) -> str:
    return trace.describe_first_wrong(steps) or f"all of {len(steps)} steps are right"


def _find_known_cause(case: StoredCase) -> str:
    """The reason of the known failure of the run's config that covers the stored outcome; of a new one, the error model
    that explains it."""
    entry = find_known_failure_of_case(case)
    if entry is None:
        return f"{f'{cause}; ' if (cause := case.row.get('cause')) else ''}new: no known failure of the run's config covers it"
    first = "" if was_known_seen_on(entry, str(case.row["backend"])) else "first seen here: "
    return first + entry.reason + f" ({WHOSE.get(entry.fault)})" * (entry.fault in WHOSE)


def find_known_failure_of_case(case: StoredCase, reduced: Sequence[str] | None = None) -> KnownFailure | None:
    """The known failure of the run's config that covers the stored outcome. reduced: ops of its minimal case,
    sorted."""
    rows = pd.DataFrame([case.row]).assign(**{REDUCED: pd.Series([reduced], dtype=object)})
    place = int(match_known_to_rows(rows, case.config.known_failures).entry[0])
    return case.config.known_failures[place] if place >= 0 else None


def _format_case_tensor(spec: TensorSpec, arrays: list[np.ndarray]) -> str:
    array = arrays[spec.id]
    shape = spec.shape if spec.shape is not None else array.shape
    text = f"{name_numpy_dtype(array.dtype)} {list(shape)}"
    if spec.strides is not None:
        text += f" strides {list(spec.strides)}"
    return text + (f" {spec.layout}" if spec.layout != "strided" else "")


def print_reproduced_outcome(case: StoredCase, outcome: ReproducedOutcome, device: str = "") -> None:
    """The runtime, the outputs and the worst element, and the metrics beside the stored ones. device: the number of the
    one it ran on, "" of the CPU's."""
    row = outcome.row
    print_name_and_text(
        "backend",
        f"{case.spec.name}"
        + "".join(f", {row[name]}" for name in ("execution", "placement") if row.get(name))
        + (f", {row['flags']}" if row.get("flags") else ""),
    )
    if outcome.info:
        print_name_and_text(
            "runtime",
            _describe_reproduced_change(case.stored and case.stored["runtime_version"], outcome.info.runtime_version),
        )
        print_name_and_text(
            "device", _describe_reproduced_change(case.stored and case.stored["device"], outcome.info.device)
        )
        if device:
            on = (
                device_places.describe_device_place(case.stored["node"], case.stored["device_ids"])
                if case.stored
                else ""
            )
            print_name_and_text("ran on", _describe_reproduced_change(on, device_places.describe_device_here(device)))
        if outcome.info.driver_version:
            print_name_and_text(
                "driver",
                _describe_reproduced_change(case.stored and case.stored["driver_version"], outcome.info.driver_version),
            )
    for name, then in case.record.get("versions", {}).items():
        try:
            now = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if now != then:
            print_name_and_text("version", f"{name} {_describe_reproduced_change(then, now)}")
    if outcome.actual is not None and not case.sample.failure:
        _print_reproduced_outputs(case, outcome.actual, get_declared_precision(row))
    if outcome.steps:
        print_name_and_text("trace", _describe_trace_of_case(outcome.steps))
    if row.get("error"):
        print_name_and_text(
            "error", "\n".join([f"{row.get('error_type')}: " * bool(row.get("error_type")) + row["error"]])
        )
    print()
    print_name_and_text("", f"{'stored':25} now")
    then = case.stored or {}
    different = list_different_columns(then, row) if then else []
    for name in ("status", *VERDICT, *METRICS):
        old, new = then.get(name), row.get(name)
        if old not in (None, "") or new not in (None, ""):
            print_name_and_text(
                name,
                f"{_format_metric_value(old):25} {_format_metric_value(new)}{'  <- differs' * (name in different)}",
            )
    print()


def _print_reproduced_outputs(case: StoredCase, actual: list[np.ndarray], precision: str) -> None:
    expected = case.sample.expected()
    for i, leaf in enumerate(expected):
        which = f" {i}" if len(expected) > 1 else ""
        found = actual[i] if i < len(actual) else None
        if leaf.reference is not None:
            print_name_and_text(
                f"expected{which}", f"{leaf.dtype} {list(leaf.shape)}\n{_summarise_array(leaf.reference)}"
            )
        else:
            print_name_and_text(f"expected{which}", f"{leaf.dtype} {list(leaf.shape)}, any values")
        if found is None:
            print_name_and_text(f"actual{which}", "no such output")
        else:
            print_name_and_text(
                f"actual{which}", f"{name_numpy_dtype(found.dtype)} {list(found.shape)}\n{_summarise_array(found)}"
            )
    if len(actual) > len(expected):
        print_name_and_text("actual", f"{len(actual) - len(expected)} outputs more than expected")
    if case.sample.op_class in (OpClass.RANDOM, OpClass.UNINITIALISED, OpClass.CHOICE):
        print_name_and_text("judged", f"{case.sample.op_class}: these elements are not compared one by one")
        return
    where = find_worst_element(actual, expected, case.sample.op_class, precision)
    if where is None:
        return
    output, index = where
    text = describe_worst_element(actual[output], expected[output], index, case.sample.op_class, precision)
    print_name_and_text("worst", f"{f'output {output} ' if len(expected) > 1 else ''}[{', '.join(map(str, index))}]")
    for given in _find_element_inputs(case.sample, actual[output].shape, index):
        print_name_and_text("  input", given)
    for name, value in text.items():
        print_name_and_text(f"  {name}", value)


def _find_element_inputs(sample: PreparedSample, shape: tuple[int, ...], index: tuple[int, ...]) -> Iterator[str]:
    """The inputs that an element of an op is made of, if it is made of those at its own place alone."""
    elementwise = sample.owner.group.distribution == EXHAUSTIVE  # an exact op may also move what it is given
    if elementwise or sample.op_class is OpClass.ELEMENTARY:
        with contextlib.suppress(ValueError):
            found = [x[index] for x in sample.tensors() if x.shape == shape]
            yield from (repr(x.astype(get_wide_dtype(name_numpy_dtype(x.dtype))).item()) for x in found)


def _summarise_array(array: np.ndarray) -> str:
    if array.dtype.kind not in "OUS" and array.dtype.isbuiltin != 1:
        array = array.astype(np.float32)  # numpy prints dtypes of extensions badly
    if array.ndim > 1 and array.size > 12:
        array = array.reshape(-1)  # its first and last elements, not its shape, which is told already
    return np.array2string(array, threshold=12, edgeitems=4, max_line_width=_measure_line_room() - 2)


def _describe_reproduced_change(then: Any, now: str) -> str:
    return f"{now}" if not then or then == now else f"{now} (stored: {then})"


def format_reproduced_status(row: dict[str, Any]) -> str:
    return row["status"] + (f" ({row['kind']})" if row.get("kind") else "")


def _format_metric_value(value: Any) -> str:
    return "–" if value is None or value == "" else str(value) if not isinstance(value, float) else repr(value)


def print_name_and_text(name: str, text: str) -> None:
    wrapper = textwrap.TextWrapper(_measure_line_room(), break_on_hyphens=False, break_long_words=False)
    lines = [part for line in text.splitlines() for part in wrapper.wrap(_strip_control_characters(line)) or [""]]
    for i, line in enumerate(lines or [""]):
        print(f"{'' if i else name:13} {line}".rstrip())


def _measure_line_room() -> int:
    """Columns for a line's text: at most 86, fewer in a narrow terminal."""
    return min(86, max(40, shutil.get_terminal_size((100, 24)).columns - 14))


def _strip_control_characters(text: str) -> str:
    """Text without control characters: an error's text is another program's."""
    return "".join(c if c.isprintable() else " " for c in text)


def are_columns_equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    return (a if a != "" else None) == (b if b != "" else None)


def list_different_columns(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Columns in which two outcomes differ; a metric that an older lake does not have is none."""
    names = ("status", *VERDICT, *(name for name in METRICS if then.get(name) is not None))
    return [name for name in names if not are_columns_equal(then.get(name), now.get(name))]


def conclude_reproduction(case: StoredCase, now: dict[str, Any], device: str = "") -> tuple[bool, str]:
    """(whether the status is the stored one, the sentence that says so). device: the number of the one it ran on
    now."""
    there = case.stored
    if case.spec.name != case.key.backend:
        same = now["status"] == case.row["status"]
        line = f"{'the same' if same else 'another'} status: stored {case.row['status']} on {case.key.backend}, now {now['status']} on {case.spec.name}"
        if there and there["status"] != now["status"]:
            line += f" (stored there: {there['status']})"
        return same, line
    assert there is not None
    if there["status"] != now["status"]:
        why = (
            f" ({now['error'].splitlines()[0][:200]})"
            if now["status"] == Status.UNAVAILABLE and now.get("error")
            else ""
        )
        where = f"; {said}" if (said := device_places.describe_other_device(case, device)) else ""
        return (
            False,
            f"NOT reproduced: stored {there['status']}, now {now['status']}{_strip_control_characters(why)}{where}",
        )
    if different := list_different_columns(there, now):
        words = ", ".join(
            f"{n} {_format_metric_value(there.get(n))} -> {_format_metric_value(now.get(n))}" for n in different
        )
        return True, f"reproduced the status, metrics differ: {words}"
    return True, "reproduced: same status and same metrics"
