"""One run of one kernel, in this process or in child processes of it, as `farm run` would do it."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from farm import lake as lakes
from farm.client.kernels import ClientError, Kernel
from farm.client.process import LIVE, isolate_client_settings, make_client_cache, name_backend_here
from farm.client.results import Result, make_kernel_result
from farm.fleet import scratch_folders
from farm.plan import config as configs
from farm.plan.config_schema import Config
from farm.plan.request import RunRequest
from farm.work.launch import launch_request
from farm.work.progress import show_run_progress
from tasks.cache import default_cache
from tasks.catalogs.user import load_kernels
from tasks.judge import policy_files


@dataclass(frozen=True)
class KernelRunOptions:
    """How a kernel is judged, whatever of it is asked for. backend: one of this process ("": that of eager torch on its
    device); policy: its name or file; results: the lake that the rows go to (None: one that is thrown away);
    deadline_s: of a case; isolate: in child processes, where a crash or a hang is a row."""

    backend: str = ""
    policy: str = "error_units"
    results: str | Path | None = None
    deadline_s: float = 60.0
    isolate: bool = False

    def config(self, kernel: Kernel, **plan: Any) -> Config:
        """The config of a run of one kernel. plan: what is asked of it (samples, distributions, seed, checks,
        known_failures). Raises ClientError."""
        plan = {"checks": kernel.checks, **plan}
        catalog = kernel.config() | {k: plan.pop(k) for k in ("samples", "distributions") if k in plan}
        how = {"backends": [self.backend or name_backend_here()], "policy": self.policy, "deadline_s": self.deadline_s}
        try:
            config = Config.model_validate(
                {"name": kernel.op.name, "catalogs": [catalog | {"dtypes": ["*"]}], **how, **plan}
            )
            configs.check_config_backend(config.backends[0], "backend")
            policy_files.load_policy(config.policy)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            raise ClientError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}") from None
        except (configs.ConfigError, policy_files.PolicyError) as error:
            raise ClientError(str(error)) from None
        return config


def _print_interrupted(run_id: str, results: str | Path | None) -> None:
    kept = f": the rows so far are run {run_id} of {results}" if results is not None else ""
    print(f"interrupted{kept}", file=sys.stderr)


def run(kernel: Kernel, options: KernelRunOptions, **plan: Any) -> Result:
    """Judge a kernel as `farm run` would. plan: as of `Options.config`. Raises ClientError."""
    config, results, isolate = options.config(kernel, **plan), options.results, options.isolate
    if isolate and (why := kernel.hindrance()):
        raise ClientError(f"isolate: a child process cannot import the functions: {why}")
    with contextlib.ExitStack() as end:
        end.enter_context(isolate_client_settings())
        place = (
            str(results)
            if results is not None
            else end.enter_context(tempfile.TemporaryDirectory(dir=scratch_folders.make_scratch_folder()))
        )
        try:
            lake = lakes.open_lake(place)
            lakes.check_lake_writable(lake)
        except lakes.LakeError as error:
            raise ClientError(str(error)) from None
        cache = default_cache() if isolate else make_client_cache()
        request = RunRequest(
            config,
            policy_files.load_policy(config.policy),
            lake,
            cache,
            how="processes" if isolate else "inline",
            dashboard=False,
        )
        if not isolate:
            end.enter_context(load_kernels.lend_op(kernel.op, kernel.root))
        try:
            with show_run_progress() as tell:
                rows, record, missing = launch_request(
                    request, lambda run_id: _print_interrupted(run_id, results), tell
                )
        except configs.ConfigError as error:
            raise ClientError(str(error)) from None
    if missing:
        raise ClientError(f"the run {record['run_id']} is incomplete: {missing}")
    LIVE[record["run_id"]] = kernel
    return make_kernel_result(rows, record, "" if results is None else place, config, kernel.hindrance(script=True))
