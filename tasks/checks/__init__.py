"""Checks: what is asked of a program beside its numbers: the same bytes in a batch and on replay, a race against a baseline, an audit of its calls, steps of a training; of an engine, the ways that it answers requests beside float64's (`read_logits_in_chunks`, `read_engine_requests`). By name, others' too ("farm.checks")."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tasks.checks.arithmetic import Arithmetic
from tasks.checks.audit import Audit
from tasks.checks.base import Check
from tasks.checks.base import Observation as Observation
from tasks.checks.base import Stage as Stage
from tasks.checks.batch_invariance import BatchInvariance
from tasks.checks.build import Build
from tasks.checks.determinism import Determinism, Threads
from tasks.checks.forward import Forward
from tasks.checks.gradients import Amp, Backward, DoubleBackward
from tasks.checks.graph import Graph
from tasks.checks.levels import Levels
from tasks.checks.opsets import Opsets
from tasks.checks.quantized import Quantized
from tasks.checks.replay import Replay
from tasks.checks.roundtrip import RoundTrip
from tasks.checks.sanitize import Sanitize
from tasks.checks.serving import Serving
from tasks.checks.shapes import Shapes
from tasks.checks.speedup import Speedup
from tasks.checks.steps import Steps
from tasks.checks.switch import Switch
from tasks.checks.train import Train
from tasks.checks.variants import InPlace, Method, Out, Promotion, Refuses
from tasks.model import FORWARD, Unsupported
from tasks.plugins import PluginError, list_plugin_parts

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: The farm's own checks by name, in the order of lists.
BUILT_IN: dict[str, Check] = {
    check.name: check
    for check in (
        Forward(),
        Backward(),
        DoubleBackward(),
        Amp(),
        Levels(),
        Opsets(),
        Quantized(),
        Replay(),
        Audit(),
        Determinism(),
        Threads(),
        BatchInvariance(),
        Arithmetic(),
        Steps(),
        Serving(),
        Train(),
        Switch(),
        Graph(),
        RoundTrip(),
        Shapes(),
        Speedup(),
        Sanitize(),
        Out(),
        InPlace(),
        Method(),
        Promotion(),
        Refuses(),
        Build(),
    )
}


def list_check_names() -> list[str]:
    """Names of all checks, the farm's own first."""
    return [*BUILT_IN, *sorted(list_plugin_parts("check", {}).keys() - BUILT_IN.keys())]


@functools.cache
def get_check(name: str) -> Check:
    """The check of a name. Raises Unsupported where it cannot be had in this process."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    try:
        check: Check = list_plugin_parts("check", {})[name].load()()
    except KeyError:
        raise Unsupported(f"the check {name} is not installed in the environment of this backend") from None
    except PluginError as error:
        raise Unsupported(str(error)) from None
    check.name = name
    return check


@functools.cache
def get_check_or_default(name: str) -> Check:
    """The check of a name; where it is not to be had (a lake of another machine), one that asks nothing special."""
    try:
        return get_check(name)
    except Unsupported:
        check = Check()
        check.name = name
        return check


def name_check_of_another_kind(name: str, backend: Backend) -> str:
    """Why a check is not one of a backend's kind: one that runs programs is for every backend that runs any, one that
    only builds for those that name it. "" where it is."""
    if not get_check_or_default(name).runs:
        return "" if name in backend.checks else "it runs what it builds, so the other checks cover that"
    if any(BUILT_IN[x].runs for x in backend.checks):
        return ""
    return f"it only compiles (check {', '.join(backend.checks)})"


def explain_check_exclusion(name: str, backend: Backend | None) -> str:
    """Why no cells of a check are planned for a backend (None for one whose package cannot be imported, of which rows
    say so); "" where they are."""
    if backend is None:
        return "" if get_check_or_default(name).runs else "its package cannot be imported"
    return name_check_of_another_kind(name, backend) or get_check_or_default(name).unfit(backend)


def name_samples_of_check(name: str) -> str:
    """Name of the check whose samples a check takes. Checks of other packages have none of their own."""
    return BUILT_IN[name].samples if name in BUILT_IN else FORWARD


def list_checks_where(**facts: bool) -> list[str]:
    """Names of the farm's own checks with these attributes, e.g. ``list_checks_where(runs=False)``; others have a `Check`'s."""
    return [c.name for c in BUILT_IN.values() if all(getattr(c, fact) == value for fact, value in facts.items())]
