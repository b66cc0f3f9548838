"""A model with its inputs: it is run on one backend first, as `farm run --model` does, and its row is what is made small."""

from __future__ import annotations

from collections.abc import Sequence

from farm import lake as lakes
from farm.lake.key import RowKey
from farm.plan import request as requests
from farm.reproduction.find_case import ReproduceError
from farm.work.launch import launch_request
from tasks.model import Status


def make_key_of_minimised_model(model: str, inputs: Sequence[str], backend: str, lake: lakes.Lake) -> RowKey:
    """Run a model on a backend, in child processes; the key of its worst row. Raises ConfigError, LakeError, and
    ReproduceError for one that cannot be judged."""
    lakes.check_lake_writable(lake)
    request = requests.make_run_request(
        "", lake, backends=[backend], model=model, inputs=inputs, how="processes", dashboard=False
    )
    rows, record, missing = launch_request(request)
    if missing or rows.empty:
        raise ReproduceError(f"{model} was not judged on {backend}: {missing or 'it left no row'}")
    row = min(rows.to_dict("records"), key=lambda row: Status(row["status"]).facts.severity)
    print(f"run {record['run_id']}: {row['op']} is {row['status']} on {backend}", flush=True)
    if row["status"] == Status.INVALID:
        raise ReproduceError(f"{model} cannot be judged: {row['error']}")
    return RowKey.of(row)
