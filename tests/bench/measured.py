"""farm.launch with a stopwatch on planning and running and the driver's peak memory; prints a MEASURED line."""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from farm import report
from farm.commands.run import main
from farm.plan import matrix
from farm.work import catalog_lists, executor_registry
from farm.work.dispatcher import Dispatcher
from farm.work.run_state import RunState
from tests.bench.fake import FakeCluster

figures: dict[str, Any] = {}


def watch(owner: Any, name: str, key: str) -> None:
    inner = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            figures[key] = figures.get(key, 0.0) + time.perf_counter() - begin

    setattr(owner, name, timed)


if __name__ == "__main__":
    watch(matrix, "build_matrix", "plan_s")
    watch(RunState, "__init__", "plan_s")
    watch(catalog_lists, "list_catalog_entries", "plan_s")
    inner_run = Dispatcher.run

    def run(self: Dispatcher) -> None:
        figures["cells"] = self.plan.matrix.count_cells()
        begin = time.perf_counter()
        try:
            inner_run(self)
        finally:
            figures["run_s"] = time.perf_counter() - begin
            figures["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)

    Dispatcher.run = run  # type: ignore[method-assign]
    # The report of a million squares is not what is measured.
    stopwatch: Any = report
    stopwatch.write = lambda rows, record, where: {"html": where}
    arguments = sys.argv[2:]
    if sys.argv[1] == "fake":
        executor_registry.BUILT_IN["inline"] = f"{FakeCluster.__module__}:{FakeCluster.__qualname__}"
        arguments.append("--on=inline")
    code = main(arguments)
    print("MEASURED " + json.dumps(figures))
    sys.exit(code)
