"""What the farm's rules say today of a recorded row, without its device: each rule asks the real thing, none has a list of ops.

A rule is a function of a row (a mapping with `tests.devices.KEPT`) that returns the status it would have now, or None
where it has nothing to say. They are asked in order, and the first that speaks is believed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from farm.plan import config as configs
from farm.plan import match_known
from farm.plan.config import load_known_failures
from farm.plan.known_failure import KnownFailure
from farm.policies.rejudge import rejudge_rows
from tasks import catalogs
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.backends.torch import TorchEager
from tasks.catalogs.torch import opinfo
from tasks.catalogs.torch.opinfo import OnDevice
from tasks.devices import nvidia
from tasks.diagnose import products
from tasks.judge import definitions, policy_files
from tasks.judge.error_metrics import find_error_unit_parts
from tasks.judging import judge_outputs
from tasks.matrix_units import accumulators
from tasks.model import Group, OpClass, RuntimeInfo
from tasks.prepare.cases import PreparedSample, prepare_group
from tests.conftest import ROOT

Row = Mapping[str, Any]
Rule = Callable[[Row], str | None]
RULES: list[Rule] = []
#: Rules of h200.md's table that are not in the farm yet, by the words with which `why` begins: their rows are expected
#: to differ.
UNMERGED: dict[str, str] = {}


@dataclass(frozen=True)
class Today:
    """status: today's; rule: who says so, "" where the row is as it was."""

    status: str
    rule: str = ""


def today(row: Row) -> Today:
    for rule in RULES:
        if said := rule(row):
            return Today(said, rule.__name__)
    return Today(row["status"])


def rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


# -- what is asked -----------------------------------------------------------------------------------------------


@functools.cache
def backend(name: str) -> Backend:
    """A backend as configs/cuda.yaml has it, not started."""
    config = configs.load_config(ROOT / "configs" / "cuda.yaml")
    specs = {one.name: one.spec() for one in config.backends}
    return (specs.get(name) or BackendSpec.parse(name)).create()


def declared(made: Backend) -> str:
    """The coarser precision that it declares once it is started."""
    if isinstance(made, TorchEager):
        return made.known.coarse if made.coarse else ""
    return "tfloat32" if made.options.get("tf32") or made.options.get("precision") == "tensorfloat32" else ""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@functools.cache
def _prepared(group: Group) -> list[PreparedSample]:
    return prepare_group(group, Path(_folder().name))[1].samples


def sample(row: Row, count: int) -> PreparedSample:
    """The sample of a row as it is prepared today. count: how many its run asked for."""
    group = Group(row["op"], row["variant"], row["dtype"], count, int(row["seed"]), row["check"], row["distribution"])
    (found,) = (x for x in _prepared(group) if x.record.sample == row["sample"])
    return found


@functools.cache
def _on_device(op: str, variant: str, dtype: str, check: str, number: int, device: str) -> OnDevice | None:
    torch_catalog: Any = catalogs.get_catalog("torch")
    try:
        found: OnDevice = torch_catalog.on_device(Group(op, variant, dtype, 1, 0, check), number, device)
    except (IndexError, KeyError):  # another release of op_db
        return None
    return found


def on_device(row: Row) -> OnDevice | None:
    """What torch's kernels are to give for a row of op_db on its device; None of anything else."""
    device = backend(row["backend"]).torch_device
    if not device or not row["op"].startswith("torch:") or row["distribution"] != "own":
        return None
    return _on_device(row["op"], row["variant"], row["dtype"], row["check"], int(row["sample"]), device)


# -- the rules ---------------------------------------------------------------------------------------------------


@rule
def refused(row: Row) -> str | None:
    """An error that says that there is no kernel, or of a call that is declared not to exist on the device."""
    if not (row["status"] in ("error", "unsupported") and row["error_type"] and row["stage"] in ("build", "run")):
        return None
    bases = {"NotImplementedError": NotImplementedError, "ValueError": ValueError, "RuntimeError": RuntimeError}
    error = bases.get(row["error_type"], Exception)(row["error"])
    if backend(row["backend"]).is_unsupported(error):
        return "unsupported"
    found = on_device(row)
    return "unsupported" if found is not None and found.undeclared else "error"


@rule
def expected(row: Row) -> str | None:
    """A dtype that the device's own meta kernels give is none that is wrong."""
    said = re.match(r"output (\d+): dtype (\w+), expected \w+", row["error"])
    found = on_device(row) if row["kind"] == "dtype" and said else None
    if found is None or said is None:
        return None
    return "pass" if found.outputs[int(said[1])][0] == said[2] else "wrong"


#: Rows of this day and before were held to the moments of what a CPU drew, whatever is made of what is drawn.
BY_MOMENTS = "2026-11-26"


@rule
def drawn(row: Row) -> str | None:
    """A result that is made of random numbers is held to what no draw changes, of which a row that was held to moments
    says nothing."""
    if row["op_class"] != OpClass.RANDOM or row["kind"] != "numbers" or row["day"] > BY_MOMENTS:
        return None
    group, number = (
        Group(row["op"], row["variant"], row["dtype"], 1, int(row["seed"]), row["check"]),
        int(row["sample"]),
    )
    info = opinfo._load_op_db()[group.op_name, group.variant]
    given, _ = opinfo._list_opinfo_samples(info, group)
    made = opinfo.TorchOpInfo()._maker(info, group, 0).make(number, given[number])
    return None if made.definition in definitions.OF_DRAWS else "pass"


@rule
def permission(row: Row) -> str | None:
    """A precision that a backend may compute in and does not is a note."""
    if row["kind"] != "no effect":
        return None
    return "pass" if backend(row["backend"]).permits(row["compute_precision"]) else "wrong"


@rule
def coarse_products(row: Row) -> str | None:
    """What is made of products is judged in the precision that they are declared in, by a bound of its error units
    there.

    A row has the largest of its units u = |a - y| / (ε|y| + δ), so nowhere is |a - y| more than u times that element's
    unit.
    """
    precision = declared(backend(row["backend"]))
    if not (
        precision and row["kind"] == "numbers" and row["dtype"] == "float32" and row["compute_precision"] == "float32"
    ):
        return None
    if row["check"] != "forward" or not row["op"].startswith("critical:"):
        return None
    found = sample(row, 2)
    if not found.products:
        return None
    bound = 0.0
    for leaf in found.expected(of_products=True):
        assert leaf.reference is not None
        units = []
        for name in (precision, ""):
            eps, smallest, noise = find_error_unit_parts(leaf, found.op_class, name)
            units.append(eps * np.abs(leaf.reference) + (0.0 if noise is None else noise) + smallest * eps)
        bound = max(bound, float(np.max(row["error_units"] * units[1] / units[0])))
    return _by_policy(dict(row) | {"error_units": bound}, precision)


@rule
def accumulators_of_the_device(row: Row) -> str | None:
    """Products that a matrix unit of the device makes to the bit as the row measured them."""
    if row["status"] != "wrong" or row["op"] != "gemm:scaled_mm":
        return None
    found, names = sample(row, 40), nvidia.list_nvidia_accumulators("sm_90")
    given, exact = [x.astype(np.float64) for x in found.tensors()], found.expected()[0].reference
    assert exact is not None
    info = RuntimeInfo("", "", accumulators=names)
    for product, name in itertools.product(products._fit_product_formulas(given, exact), names):
        with contextlib.suppress(ValueError):
            output = product.added_in(accumulators.ACCUMULATORS[name], given).astype(np.float32)
            again = judge_outputs(found, [[output]], policy_files.load_policy("error_units"), info)
            units = again.metrics.error_units
            if units is not None and abs(units - row["error_units"]) <= 1e-4 * units:
                return again.status.value
    return None


@rule
def by_policy(row: Row) -> str | None:
    """Numbers are judged again by today's limits."""
    numbers = row["kind"] in ("", "numbers", "nonfinite")
    return _by_policy(row, "") if numbers and row["status"] in ("pass", "imprecise", "wrong") else None


def _by_policy(row: Row, precision: str) -> str:
    """The status of a row's numbers by the default policy, in a declared precision."""
    found = pd.DataFrame([dict(row) | ({"compute_precision": precision} if precision else {})])
    found = found.assign(limit=None, max_diff=np.nan, strict_units=None, second_units=None)
    return str(rejudge_rows(found, policy_files.load_policy("error_units"))["status"][0])


# -- known failures ----------------------------------------------------------------------------------------------


@functools.cache
def _entries() -> tuple[KnownFailure, ...]:
    return tuple(load_known_failures(ROOT / "configs" / "known"))


def standing(rows: pd.DataFrame) -> list[str]:
    """Of each row "known", "first seen" or "new", by configs/known; "" of what is no failure. rows: with today's
    status."""
    met = match_known.match_known_to_rows(rows, _entries())
    bad = rows["status"].isin(["wrong", "imprecise", "error", "crash", "timeout", "oom"])
    said = np.where(met.entry < 0, "new", np.where(met.first, "first seen", "known"))
    return [str(x) if b else "" for x, b in zip(said, bad)]
