"""What is kept beside a minimal case: its script, run in a clean environment first, and the text of an issue."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np

from farm import lake as lakes
from farm.fleet import envs
from farm.fleet.envs import Environment
from farm.minimise import issue, network
from farm.minimise.defined import Defined
from farm.minimise.script import short
from farm.reproduce import find, script, trial, versions
from farm.reproduce.again import Outcome, run_child
from farm.reproduce.find import Key, StoredCase
from farm.reproduce.writing import form_of, source_of
from tasks.backends.shared.few_lines import NoScript
from tasks.backends.torch import TorchEager
from tasks.catalogs import told
from tasks.catalogs.user import load
from tasks.devices import TorchDevice
from tasks.judge.worst import beyond
from tasks.model import Group, Leaf, Status, is_inexact, np_dtype
from tasks.model.dtypes import rounded
from tasks.model.row import declared_precision
from tasks.packages import TORCH_CATALOG
from tasks.prepare.cases import PreparedGroup
from tasks.wire import Minimised

#: Files of a minimal case: the script, the issue's text.
SCRIPT, ISSUE = "script.py", "issue.md"
#: How often the script of a case that fails only sometimes runs it.
TIMES = 20
#: Elements up to which all values are told; how many are of more.
ALL, FEW = 64, 8


def of(case: StoredCase, found: Minimised, record: dict[str, Any], results: lakes.Lake) -> dict[str, bytes]:
    """Files by name; fills ``record`` with what was expected, what came, what other backends made of the stored case, and what
    the script showed.

    The script of a case that fails only sometimes runs it TIMES times; that of one that needs earlier cases runs these first.
    """
    minimal = _alone(case, found)
    assert found.row is not None
    # What does not end gives nothing: it has just been seen not to. Nor does what was seen to fail fail again alone, or always.
    seen = Outcome(found.row.values())
    outcome = seen if found.row.status == Status.TIMEOUT or record["before"] else run_child(minimal)
    if record["flaky"]:
        outcome = replace(outcome, row=seen.row)
    record["expected"], record["got"] = _values(minimal, outcome)
    record["results"] = [leaf.dtype for leaf in minimal.sample.expected()]
    record["others"] = _others(case, results)
    record["files"] = []
    files: dict[str, bytes] = {}
    keys = [Key(case.key.run_id, case_id, case.key.backend) for case_id in record["after"]]
    earlier = [find.load(key, results, None, case.cache) for key in keys]
    text, record["script_said"] = _script(minimal, outcome, record, earlier)
    if text:
        files[SCRIPT] = text.encode()
    files[ISSUE] = issue.text(record, files.get(SCRIPT, b"").decode()).encode()
    record["files"] = sorted(files)
    return files


def _alone(case: StoredCase, found: Minimised) -> StoredCase:
    """The minimal case as one of its own."""
    assert found.item is not None
    sample = PreparedGroup(found.item.pack, found.item.group.check).samples[found.item.positions[0]]
    sample = sample.on(case.spec.create().torch_device)
    key = Key(case.key.run_id, found.item.group.case_id(sample.index), case.key.backend)
    return replace(case, key=key, stored=None, group=found.item.group, sample=sample, asked=found.item)


def _values(minimal: StoredCase, outcome: Outcome) -> tuple[str, str]:
    """What was expected, the exact result as a number of its dtype, and what came, in words: all values of a few, of many those
    that are furthest off."""
    leaves, actual = minimal.sample.expected(), outcome.actual or []
    places = [_furthest(a, leaf, minimal) for a, leaf in zip(actual, leaves)] + [None] * len(leaves)
    expected = [_shown(_rounded(leaf), at, leaf.dtype) for leaf, at in zip(leaves, places)]
    return "; ".join(expected), "; ".join(
        _shown(a, at) for a, at in itertools.zip_longest(actual, places[: len(actual)])
    )


def _furthest(a: np.ndarray, leaf: Leaf, minimal: StoredCase) -> np.ndarray | None:
    """Flat places of the elements that are furthest off in a result of many; None where all are told."""
    if a.size <= ALL or leaf.reference is None or a.shape != tuple(leaf.shape) or leaf.dtype == "str":
        return None
    return beyond(a, leaf, minimal.sample.op_class, 0.0)[:FEW]


def _rounded(leaf: Leaf) -> np.ndarray | None:
    if leaf.reference is None or not is_inexact(leaf.dtype):
        return leaf.reference
    with np.errstate(all="ignore"):
        return rounded(leaf.reference, leaf.dtype).astype(np_dtype(leaf.dtype))


def _shown(x: np.ndarray | None, places: np.ndarray | None = None, dtype: str = "") -> str:
    """places: of the elements that are told; None for the first ones."""
    if x is None:
        return "any numbers"
    flat = np.asarray(x).ravel()
    some = flat[:ALL] if places is None else flat[places]
    values = np.array2string(some, separator=", ", max_line_width=10_000, threshold=ALL)
    worst = [] if places is None else [tuple(map(int, np.unravel_index(k, x.shape))) for k in places]
    at = "" if places is None else f" at the worst places {worst}"
    return f"{dtype or x.dtype.name} {list(x.shape)} {values}{at}"


def _others(case: StoredCase, results: lakes.Lake) -> dict[str, str]:
    """What other backends of the run made of the stored case."""
    rows = find.find(case.key, results)[1]
    return {row["backend"]: row["status"] for row in rows if row["backend"] != case.key.backend}


def _script(
    minimal: StoredCase, outcome: Outcome, record: Mapping[str, Any], earlier: Sequence[StoredCase]
) -> tuple[str, str]:
    """(the text of the script that shows the failure, what is said of it). It is run in an environment of the runtime, onnx and
    numpy alone; where the short one does not show it, the one that `farm reproduce --script` writes."""
    backend = outcome.backend or minimal.spec.create()
    title = f"{record['op']} on {minimal.spec.name} {record['runtime_version']}: {record['outcome']['status']}"
    title = " ".join(filter(None, [title, record["outcome"]["kind"]]))
    packages, said = requirements(minimal), list[str]()
    times = TIMES if record["flaky"] else 1

    def few() -> str:
        form = form_of(minimal, backend)
        row = {**outcome.row, "rule": minimal.policy.rule, "bound": minimal.policy.bound}
        sample, group = minimal.sample, minimal.group
        defined = Defined.of(sample, declared_precision(row))
        former = [(form_of(one, backend), one.group) for one in earlier]
        most_s = minimal.config.deadline_s
        return short(form, group, sample.expected(), row, backend, title, packages, defined, former, times, most_s)

    alone = not earlier and not record["flaky"]
    long = [(False, lambda: script.generate(source_of(minimal, outcome, backend)))] * alone
    for is_short, make in [(True, few), *long]:
        try:
            text = make()
            if not minimal.environment and (more := [x for x in script.imported(text) if x not in packages]):
                packages += more  # a plug-in's module, what torch's test database takes
                text = make()
        except NoScript as error:
            said.append(str(error))
            continue
        listed = ", ".join([*packages, *envs.OWN_PACKAGES])
        try:
            if minimal.environment and minimal.environment.existing:  # nothing else has that runtime
                listed, python = minimal.environment.label, minimal.interpreter
            else:
                clean = Environment(tuple(packages), launcher=minimal.spec.launcher)
                python = envs.interpreter(clean, minimal.cache)
        except envs.EnvError as error:
            return "", f"none: cannot build its clean environment ({listed}): {error}"
        with trial.written(text) as path:
            hangs = outcome.row["status"] == Status.TIMEOUT
            patience_s = minimal.config.deadline_s * (1 if hangs or times > 1 else 4)
            good, what = trial.check(path, outcome.row, patience_s, python, is_short, times)
        told = f"{len(text.splitlines())} lines, run in a clean environment ({listed}): it {what}"
        if good:
            return text, "; ".join([*said, told])
        said.append(told)
    return "", f"none: {'; '.join(dict.fromkeys(said))}"


def requirements(case: StoredCase) -> list[str]:
    """What a script is run with beside what every environment has: the runtime's packages as they are installed, onnx, and what a
    kernel of one's own, or a network, imports."""
    backend = case.spec.create()
    if case.environment:
        own = list(case.environment.packages)
    else:
        own = list(script.installed({case.spec.runtime, versions.MODULES.get(case.spec.runtime, "")}))
        known = backend.known if isinstance(backend, TorchEager) else TorchDevice()
        if known.distribution and versions.installed(known.distribution):  # else it is none of a package's
            plugged = [x for x in known.packages if x not in TORCH_CATALOG]
            own += [x for x in versions.of_here(plugged) if x not in own]
    own += [x for x in script.installed(_imported(case.group)) if x not in own]
    if "onnx" in backend.forms and not any(x.startswith("onnx=") for x in own):
        record = case.environment.record(case.cache) if case.environment else None
        there = (record or {}).get("versions", {}).get("onnx")  # which the runtime itself may bound
        own.append(f"onnx=={there or metadata.version('onnx')}")
    return own


def _imported(group: Group) -> Collection[str]:
    if told.home(group.catalog):  # what it imports, the backend's environment has
        return ()
    if group.catalog == told.USER and (one := load.called(group.op_name)):
        return one.outside()
    return network.packages(group)
