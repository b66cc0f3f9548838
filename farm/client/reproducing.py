"""A case of a run once more, in this process, with its numbers: by the seed that a finding tells, or by the row's key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from farm import lake as lakes
from farm.client.kernels import ClientError, Kernel
from farm.client.one_sample import judge_kernel_sample
from farm.client.process import LIVE, describe_client_row, isolate_client_settings
from farm.lake.key import RowKey
from farm.plan import kernels
from farm.plan.config import Config
from farm.reproduction.find_case import (
    ReproduceError,
    find_key_by_seed,
    find_row_of_key,
    find_seed_of_row,
    parse_row_key,
)
from farm.reproduction.run_again import NotHere, Started, start_here
from tasks import catalogs
from tasks.arrays.noise import DRAWS
from tasks.arrays.tree import make_contiguous_tensor
from tasks.backends import BackendSpec
from tasks.catalogs.base import Sample
from tasks.catalogs.user import load_kernels
from tasks.judge import policy_files
from tasks.model import Group, RuntimeInfo, Status
from tasks.model.row import Row


@dataclass(frozen=True)
class KernelCase:
    """A stored case of a kernel: its row, its group, its sample made again, what it is judged by."""

    row: dict[str, Any]
    kernel: Kernel | None
    group: Group
    sample: Sample
    policy: policy_files.Policy
    names: tuple[str, ...]

    def describe_version_change(self, info: RuntimeInfo) -> tuple[str, ...]:
        """What is to be said of a row that another version of the runtime is run for than its own."""
        stored, here = self.row["runtime_version"], info.runtime_version
        if not stored or stored == here:
            return ()
        return (
            f"the row is of {stored}, here is {here}: farm minimise '{RowKey.of(self.row)}' says how to run that version",
        )


@dataclass(frozen=True)
class Reproduction:
    """What a case did now. inputs: by name; expected, actual: the outputs (of a backward case: the gradients), None
    where there were none; same: whether the status is the stored one; told: what else is to be said."""

    key: str
    seed: int | None
    inputs: dict[str, np.ndarray] = field(repr=False)
    expected: list[np.ndarray | None] = field(repr=False)
    actual: list[np.ndarray] | None = field(repr=False)
    max_diff: float | None
    error_units: float | None
    status: str
    kind: str
    message: str
    same: bool
    row: Row = field(repr=False)
    told: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.status in (Status.PASS, Status.IMPRECISE)


def reproduce(
    key: str = "", *, seed: int | None = None, results: str | Path = "results", dtype: str = "", run: str = "last"
) -> Reproduction:
    """Run a case of a kernel again: "RUN:CASE:BACKEND" as a report prints it, or the seed of a finding.

    results: the lake; dtype, run: narrow a seed, which other dtypes and runs may have as well. The kernel's functions
    are those of this process where it judged them, else they are imported. Raises ClientError.
    """
    with open_kernel_case(key, seed, results, dtype, run) as case:
        here = start_backend_here(str(case.row["backend"]))
        found = judge_kernel_sample(case.group, case.sample, here, case.policy)
    row = found.row
    return Reproduction(
        str(RowKey.of(case.row)),
        find_seed_of_row(case.row),
        {
            name: make_contiguous_tensor(case.sample.arrays[spec.id], spec)
            for name, spec in case.sample.kwargs.items()
            if name in case.names
        },
        [leaf.reference for leaf in found.expected],
        found.actual,
        row.max_diff,
        row.error_units,
        row.status,
        row.kind,
        describe_client_row(row.values()),
        row.status == case.row["status"],
        row,
        case.describe_version_change(here.info),
    )


def start_backend_here(name: str) -> Started:
    """A backend of this process. Raises ClientError."""
    try:
        return start_here(BackendSpec.parse(name))
    except (NotHere, KeyError) as error:
        how = "`farm reproduce` runs it in the backend's own environment"
        raise ClientError(f"{name} is unavailable here: {error}; {how}") from None


@contextmanager
def open_kernel_case(key: str, seed: int | None, results: str | Path, dtype: str, run: str) -> Iterator[KernelCase]:
    """A stored case, ready to be run; while this lasts its op is the catalog's. Raises ClientError."""
    if not isinstance(key, str):
        raise ClientError(f'{key!r} is no key: "RUN:CASE:BACKEND" as a report prints it, or seed={key!r}')
    try:
        lake = lakes.open_lake(str(results))
        place = parse_row_key(key, lake) if key else find_key_by_seed(seed, lake, dtype, run)
        record = lakes.read_run(lake, place.run_id)
        row, _ = find_row_of_key(place, lake)
        config = Config(**record["config"])
    except (ReproduceError, lakes.LakeError) as error:
        raise ClientError(str(error)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ClientError(f"the record of run {place.run_id} holds no config of this version: {error}") from None
    if row["catalog"] != "user":
        raise ClientError(f"{place} is not your own kernel: farm reproduce '{place}'")
    policy = (
        policy_files.read_policy_json(record["policy"])
        if "policy" in record
        else policy_files.load_policy(config.policy)
    )
    kernel = LIVE.get(place.run_id)
    with isolate_client_settings():
        kernels.announce_config_kernels(config)
        with load_kernels.lend_op(kernel.op, kernel.root) if kernel else isolate_client_settings():
            group, sample, names = _remake_case(row)
            yield KernelCase(row, kernel, group, sample, policy, names)


def _remake_case(row: dict[str, Any]) -> tuple[Group, Sample, tuple[str, ...]]:
    place = int(row["sample"])
    group = Group(row["op"], "", row["dtype"], place + 1, row["seed"], row["check"], row["distribution"] or "own")
    try:
        op = load_kernels.load_user_ops()[group.op_name].op
        made = list(catalogs.get_catalog("user").samples(group, DRAWS, skip=range(place)))
    except Exception as error:
        raise ClientError(f"{row['case_id']} cannot be made again: {error}") from None
    sample = next((s for s in made if s.index == place), None)
    if sample is None:
        raise ClientError(f"{row['case_id']} cannot be made again: the op has no sample {place} here")
    if sample.failure is not None:
        raise ClientError(f"{row['case_id']}: {sample.failure.error}")
    return group, sample, tuple(op.inputs)
