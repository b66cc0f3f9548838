"""Rows of cases that were judged one by one, as one run of the lake: with a record, as `farm run` writes it."""

from __future__ import annotations

import datetime
from typing import Any

from farm import lake as lakes
from farm.client.kernels import Kernel
from farm.client.process import LIVE
from farm.client.running import KernelRunOptions
from farm.fleet.inventory import describe_this_node, join_node_offers
from farm.plan.request import RunRequest
from farm.work.launch import make_run_record
from tasks.backends import BackendSpec
from tasks.cache import default_cache
from tasks.judge import policy_files
from tasks.model import BackendInfo, RuntimeInfo
from tasks.model.row import Row


class RowKeeper:
    """Rows of kernels that ran on one backend of this process; `write` makes a run of them. options: with a lake and
    the backend."""

    def __init__(self, options: KernelRunOptions, info: RuntimeInfo) -> None:
        self.lake, self.options, self.info = lakes.open_lake(str(options.results)), options, info
        self.kernels: dict[str, tuple[Kernel, dict[str, Any]]] = {}
        self.rows: list[Row] = []

    def add(self, kernel: Kernel, plan: dict[str, Any], *rows: Row) -> None:
        """Keep rows of a kernel. plan: as of `Options.config`."""
        self.kernels[kernel.op.name] = kernel, plan
        self.rows += rows

    def write(self) -> str:
        """Write the run, and return its id; "" if there is no row. Raises OSError, LakeError, ClientError."""
        if not self.rows:
            return ""
        configs = [self.options.config(kernel, **plan) for kernel, plan in self.kernels.values()]
        checks = list(dict.fromkeys(name for c in configs for name in c.checks))
        config = configs[0].model_copy(
            update={"catalogs": [c.catalogs[0] for c in configs], "checks": checks, "name": "farm.client"}
        )
        record = make_run_record(
            RunRequest(config, policy_files.load_policy(config.policy), self.lake, default_cache())
        )
        run_id = str(record["run_id"])
        spec, node = BackendSpec.parse(self.options.backend), describe_this_node(1)
        answer = BackendInfo(self.info, spec.create().vendor)
        offer = join_node_offers([spec], [node], {node["id"]: {spec.name: answer}})[spec.name]
        record["inventory"] = {"backends": {spec.name: offer.record()}, "nodes": [node]}
        record["planned"], record["planned_by_backend"] = len(self.rows), {spec.name: len(self.rows)}
        record["finished_at"] = datetime.datetime.now(datetime.timezone.utc).isoformat()
        origin = lakes.Origin.of(run_id, spec.name, answer, node["host"])
        lakes.append_part(self.lake, run_id, [lakes.make_row_batch(self.rows, origin)])
        lakes.write_run_record(self.lake, run_id, record)
        if len(self.kernels) == 1:
            LIVE[run_id] = next(iter(self.kernels.values()))[0]
        return run_id
