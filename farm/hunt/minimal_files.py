"""What is kept beside a minimal case: the folder that shows it, run in a clean environment first, and the text of an issue."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from farm import lake as lakes
from farm.fleet import envs
from farm.fleet.envs import Environment
from farm.hunt import issue_text
from farm.reproduction import find_case, finding_trial
from farm.reproduction.find_case import RowKey, StoredCase
from farm.reproduction.finding_folder import CALL, RUN, round_finding_leaf, write_finding_folder
from farm.reproduction.finding_requirements import (
    describe_interpreter_of_case,
    list_finding_requirements,
    pin_import_requirements,
)
from farm.reproduction.run_again import ReproducedOutcome, run_case_in_child
from farm.reproduction.write_finding import make_finding_case, make_form_of_case
from tasks.backends.shared.recipe import NoProgram
from tasks.judge.worst_element import list_elements_beyond
from tasks.model import Leaf, Status
from tasks.wire import Found

#: The issue's text, a file of a minimal case.
ISSUE = "issue.md"
#: How often the finding of a case that fails only sometimes runs it.
TIMES = 20
#: Elements up to which all values are told; how many are of more.
ALL, FEW = 64, 8


def make_minimal_files(case: StoredCase, found: Found, record: dict[str, Any], results: lakes.Lake) -> dict[str, bytes]:
    """Files by name; fills ``record`` with what was expected, what came, what other backends made of the stored case,
    and what its run.py showed.

    That of a case that fails only sometimes is run TIMES times; that of one that needs earlier cases runs these first.
    """
    assert found.item is not None and found.row is not None
    minimal = case.of_item(found.item)
    # What does not end gives nothing: it has just been seen not to. Nor does what was seen to fail fail again alone, or
    # always.
    seen = ReproducedOutcome(found.row.values())
    outcome = seen if found.row.status == Status.TIMEOUT or record["before"] else run_case_in_child(minimal)
    if record["flaky"]:
        outcome = replace(outcome, row=seen.row)
    record["expected"], record["got"] = _describe_minimal_values(minimal, outcome)
    record["results"] = [leaf.dtype for leaf in minimal.sample.expected()]
    record["others"] = _run_other_backends(case, results)
    record["files"] = []
    files: dict[str, bytes] = {}
    keys = [RowKey(case.key.run_id, case_id, case.key.backend) for case_id in record["after"]]
    earlier = [find_case.load_stored_case(key, results, None, case.cache) for key in keys]
    shown, record["script_said"] = _write_finding_folder(minimal, outcome, record, earlier)
    files |= shown
    files[ISSUE] = issue_text.write_issue(
        record, (files.get(CALL) or files.get(RUN, b"")).decode(), sorted(shown)
    ).encode()
    record["files"] = sorted(files)
    return files


def _describe_minimal_values(minimal: StoredCase, outcome: ReproducedOutcome) -> tuple[str, str]:
    """What was expected, the exact result as a number of its dtype, and what came, in words: all values of a few, of
    many those that are furthest off."""
    leaves, actual = minimal.sample.expected(), outcome.actual or []
    places = [_find_furthest_elements(a, leaf, minimal) for a, leaf in zip(actual, leaves)] + [None] * len(leaves)
    expected = [_format_minimal_values(round_finding_leaf(leaf), at, leaf.dtype) for leaf, at in zip(leaves, places)]
    return "; ".join(expected), "; ".join(
        _format_minimal_values(a, at) for a, at in itertools.zip_longest(actual, places[: len(actual)])
    )


def _find_furthest_elements(a: np.ndarray, leaf: Leaf, minimal: StoredCase) -> np.ndarray | None:
    """Flat places of the elements that are furthest off in a result of many; None where all are told."""
    if a.size <= ALL or leaf.reference is None or a.shape != tuple(leaf.shape) or leaf.dtype == "str":
        return None
    return list_elements_beyond(a, leaf, minimal.sample.op_class, 0.0)[:FEW]


def _format_minimal_values(x: np.ndarray | None, places: np.ndarray | None = None, dtype: str = "") -> str:
    """places: of the elements that are told; None for the first ones."""
    if x is None:
        return "any numbers"
    flat = np.asarray(x).ravel()
    some = flat[:ALL] if places is None else flat[places]
    values = np.array2string(some, separator=", ", max_line_width=10_000, threshold=ALL)
    worst = [] if places is None else [tuple(map(int, np.unravel_index(k, x.shape))) for k in places]
    at = "" if places is None else f" at the worst places {worst}"
    return f"{dtype or x.dtype.name} {list(x.shape)} {values}{at}"


def _run_other_backends(case: StoredCase, results: lakes.Lake) -> dict[str, str]:
    """What other backends of the run made of the stored case."""
    rows = find_case.find_row_of_key(case.key, results)[1]
    return {row["backend"]: row["status"] for row in rows if row["backend"] != case.key.backend}


def _write_finding_folder(
    minimal: StoredCase, outcome: ReproducedOutcome, record: Mapping[str, Any], earlier: Sequence[StoredCase]
) -> tuple[dict[str, bytes], str]:
    """(the files of the finding that shows the failure, what is said of it). It is run in an environment of the
    runtime, onnx and numpy alone."""
    backend = outcome.backend or minimal.spec.create()
    title = f"{record['op']} on {minimal.spec.name} {record['runtime_version']}: {record['outcome']['status']}"
    title = " ".join(filter(None, [title, record["outcome"]["kind"]])) + "." + describe_interpreter_of_case(minimal)
    packages, times = list_finding_requirements(minimal), TIMES if record["flaky"] else 1
    if times > 1:
        title += " It fails only sometimes: run it several times."
    former = [(make_form_of_case(one, backend), one.group) for one in earlier]
    try:
        files = write_finding_folder(make_finding_case(minimal, outcome, backend, title), packages, former)
        if not minimal.environment and (more := [x for x in pin_import_requirements(files) if x not in packages]):
            packages += more  # a plug-in's module, what torch's test database takes
            files = write_finding_folder(make_finding_case(minimal, outcome, backend, title), packages, former)
    except NoProgram as error:
        return {}, f"none: {error}"
    listed = ", ".join([*packages, *envs.OWN_PACKAGES])
    try:
        if minimal.environment and minimal.environment.existing:  # nothing else has that runtime
            listed, python = minimal.environment.label, minimal.interpreter
        else:
            python = envs.build_interpreter(Environment(tuple(packages), launcher=minimal.spec.launcher), minimal.cache)
    except envs.EnvError as error:
        return {}, f"none: cannot build its clean environment ({listed}): {error}"
    with finding_trial.write_trial_script(files) as folder:
        patience_s = minimal.config.deadline_s * (1 if outcome.row["status"] == Status.TIMEOUT or times > 1 else 4)
        good, what = finding_trial.try_finding(folder, outcome.row, patience_s, python, times)
    said = f"run in a clean environment ({listed}): it {what}"
    return (files, said) if good else ({}, f"none: {said}")
