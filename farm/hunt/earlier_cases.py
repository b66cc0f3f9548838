"""Which cases were run before one in its process: it may have been what they left behind that killed it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from farm import lake as lakes
from farm.reproduction.find_case import RowKey, StoredCase, load_stored_case
from farm.work.sequences import MOST, read_sequence_crash
from tasks.model import Status
from tasks.wire import ToRun

#: Statuses of rows of which no process ever knew.
_NOT_RUN = [str(x.value) for x in (Status.UNAVAILABLE, Status.SKIPPED, Status.INVALID, Status.LOST)]


@dataclass(frozen=True)
class EarlierCases:
    """The last cases of the same run, backend and device that were begun before one which died, in their order; each is
    looked up when it is asked for."""

    keys: list[RowKey]
    results: lakes.Lake
    cache: Path
    _found: dict[int, ToRun] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, number: int) -> ToRun:
        """Raises ReproduceError, LakeError for a case that cannot be had any more."""
        if number not in self._found:
            self._found[number] = load_stored_case(self.keys[number], self.results, None, self.cache).asked
        return self._found[number]


def find_earlier_cases(case: StoredCase, results: lakes.Lake) -> EarlierCases:
    """Those of a row that died; those that its run has found, where it has."""
    row, keys = case.row, list[RowKey]()
    told = read_sequence_crash(row)
    if told and told[2]:
        keys = [RowKey(case.key.run_id, case_id, case.key.backend) for case_id in told[2]]
    elif Status(row["status"]).deadly:
        table = lakes.read_table(results, case.key.run_id)
        same = pc.and_(pc.equal(table["backend"], row["backend"]), pc.less(table["started_at"], row["started_at"]))
        before = table.filter(pc.and_(same, pc.invert(pc.is_in(table["status"], pa.array(_NOT_RUN)))))
        place = (row["node"], row["device_ids"])
        found = [x for x in before.sort_by("started_at").to_pylist() if (x["node"], x["device_ids"]) == place]
        keys = [RowKey(case.key.run_id, x["case_id"], x["backend"]) for x in found[-MOST:]]
    return EarlierCases(keys, results, case.cache)
