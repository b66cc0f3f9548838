"""What is kept beside a minimal case: its script, run in a clean environment first, and the text of an issue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np

from farm import lake as lakes
from farm.fleet import envs
from farm.fleet.envs import Environment
from farm.minimise import issue
from farm.minimise.script import short
from farm.reproduce import find, script, trial, versions
from farm.reproduce.again import Outcome, run_child
from farm.reproduce.find import Key, StoredCase
from farm.reproduce.writing import form_of, source_of
from tasks.backends.shared.few_lines import NoScript
from tasks.model import Status
from tasks.prepare.cases import PreparedGroup
from tasks.wire import Minimised

#: Files of a minimal case: the script, the issue's text.
SCRIPT, ISSUE = "script.py", "issue.md"
#: Elements up to which values are told.
ALL = 64


def of(case: StoredCase, found: Minimised, record: dict[str, Any], results: lakes.Lake) -> dict[str, bytes]:
    """Files by name; fills ``record`` with what was expected, what came, what other backends made of the stored case, and what
    the script showed.

    A case that fails only at times has no script.
    """
    minimal = _alone(case, found)
    assert found.row is not None
    # What does not end gives nothing: it has just been seen not to.
    outcome = Outcome(found.row.values()) if found.row.status == Status.TIMEOUT else run_child(minimal)
    record["expected"], record["got"] = _values(minimal, outcome)
    record["others"] = _others(case, results)
    record["files"] = []
    files: dict[str, bytes] = {}
    if record["flaky"] or record["before"]:
        record["script_said"] = "none is shown: it fails only at times" if record["flaky"] else _sequence(record)
    else:
        text, record["script_said"] = _script(minimal, outcome, record)
        if text:
            files[SCRIPT] = text.encode()
    files[ISSUE] = issue.text(record, files.get(SCRIPT, b"").decode()).encode()
    record["files"] = sorted(files)
    return files


def _alone(case: StoredCase, found: Minimised) -> StoredCase:
    """The minimal case as one of its own."""
    assert found.item is not None
    sample = PreparedGroup(found.item.pack, found.item.group.check).samples[found.item.positions[0]]
    key = Key(case.key.run_id, found.item.group.case_id(sample.index), case.key.backend)
    return replace(case, key=key, stored=None, group=found.item.group, sample=sample, asked=found.item)


def _values(minimal: StoredCase, outcome: Outcome) -> tuple[str, str]:
    """What was expected and what came, in words."""
    expected = [_shown(leaf.reference) for leaf in minimal.sample.expected()]
    return "; ".join(expected), "; ".join(map(_shown, outcome.actual or ()))


def _shown(x: np.ndarray | None) -> str:
    if x is None:
        return "any numbers"
    values = np.array2string(np.asarray(x).ravel()[:ALL], separator=", ", max_line_width=10_000, threshold=ALL)
    return f"{x.dtype.name} {list(x.shape)} {values}"


def _others(case: StoredCase, results: lakes.Lake) -> dict[str, str]:
    """What other backends of the run made of the stored case."""
    rows = find.find(case.key, results)[1]
    return {row["backend"]: row["status"] for row in rows if row["backend"] != case.key.backend}


def _sequence(record: Mapping[str, Any]) -> str:
    return f"none: it takes {len(record['before'])} cases that are run before it in one process"


def _script(minimal: StoredCase, outcome: Outcome, record: Mapping[str, Any]) -> tuple[str, str]:
    """(the text of the script that shows the failure, what is said of it). It is run in an environment of the runtime, onnx and
    numpy alone; where the short one does not show it, the one that `farm reproduce --script` writes."""
    backend = outcome.backend or minimal.spec.create()
    title = f"{record['op']} on {minimal.spec.name} {record['runtime_version']}: {record['outcome']['status']}"
    title = " ".join(filter(None, [title, record["outcome"]["kind"]]))
    packages = requirements(minimal)
    try:
        python = str(envs.build(Environment(tuple(packages)), minimal.cache))
    except envs.EnvError as error:
        return "", f"none: its clean environment ({', '.join(packages)}) cannot be had: {error}"

    def few() -> str:
        form = form_of(minimal, backend)
        return short(form, minimal.group, minimal.sample.expected(), outcome.row, backend, title, packages)

    said = []
    for is_short, make in ((True, few), (False, lambda: script.generate(source_of(minimal, outcome, backend)))):
        try:
            text = make()
        except NoScript as error:
            said.append(str(error))
            continue
        with trial.written(text) as path:
            patience_s = minimal.config.deadline_s * (1 if outcome.row["status"] == Status.TIMEOUT else 4)
            good, what = trial.check(path, outcome.row, patience_s, python, is_short)
        told = f"{len(text.splitlines())} lines, run in a clean environment ({', '.join(packages)}): it {what}"
        if good:
            return text, "; ".join([*said, told])
        said.append(told)
    return "", f"none: {'; '.join(said)}"


def requirements(case: StoredCase) -> list[str]:
    """What a script is run with: the runtime's packages as they are installed, onnx and numpy."""
    own = (
        list(case.environment.packages)
        if case.environment
        else list(script.installed({versions.MODULES.get(case.spec.runtime, case.spec.runtime)}))
    )
    if "onnx" in case.spec.create().forms and not any(x.startswith("onnx=") for x in own):
        own.append(f"onnx=={metadata.version('onnx')}")
    return own
