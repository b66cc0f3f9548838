"""Compaction may be killed at any step, and many may write, compact and read one lake at once: no row is lost or doubled."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from farm import lake
from farm.lake import SCHEMA, Lake, compaction, store
from farm.lake.store import list_lake_parts
from tasks.model.row import Row

RUN = "20260101-000000-aaaa"
FILES = (store.__file__, compaction.__file__)
#: What happens to each of the 79 columns is one step with what happens to the others.
ONE_COLUMN = ("in_schema", "_empty", "<listcomp>", "<dictcomp>", "<genexpr>")


def batch(*samples: int, op: str = "torch:abs", **more: Any) -> pa.RecordBatch:
    rows = [
        Row(catalog="torch", op=op, dtype="float32", sample=s, status="pass", started_at=1.5, **more) for s in samples
    ]
    return lake.make_row_batch(rows, lake.Origin(RUN, "torch-cpu", "Meta"))


def filled(where: Path | Lake, many: int = 3) -> Lake:
    opened = lake.open_lake(where)
    for s in range(many):
        lake.append_part(opened, RUN, [batch(2 * s, 2 * s + 1, op=f"torch:{'dcb'[s]}", error=f"text {s}")])
    lake.append_part(opened, RUN, [batch(0, op="torch:d", attempts=2, error="again")])
    return opened


def of(opened: Lake) -> pd.DataFrame:
    return lake.read(opened, RUN).sort_values("sample", ignore_index=True)


def killed_at(step: int, what: Any) -> bool:
    """Whether a process that does ``what`` gets as far as this step (a line of the lake, the first two times), where it
    ends as one that is killed."""
    pid = os.fork()
    if not pid:
        seen: Counter[tuple[str, int]] = Counter()

        def tracing(frame: Any, event: str, argument: Any) -> Any:
            if frame.f_code.co_filename not in FILES or frame.f_code.co_name in ONE_COLUMN:
                return None
            if event == "line":
                seen[frame.f_code.co_filename, frame.f_lineno] += 1
            if sum(min(times, 2) for times in list(seen.values())) > step:
                os._exit(9)
            return tracing

        threading.settrace(tracing)
        sys.settrace(tracing)
        try:
            what()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.parametrize("change", (None, lambda table: table))
def test_killed_at_any_step_of_compaction(tmp_path: Path, change: lake.Change | None) -> None:
    whole = of(filled(tmp_path / "whole"))
    assert len(whole) == 6 and whole["error"][0] == "again"
    step, survived = 0, True
    while survived:
        shutil.copytree(tmp_path / "whole", tmp_path / str(step))
        opened = lake.open_lake(tmp_path / str(step))
        survived = killed_at(step, lambda opened=opened: lake.compact_run(opened, RUN, change))
        pd.testing.assert_frame_equal(of(opened), whole)
        if list_lake_parts(opened, RUN) != [
            p.replace("whole", str(step)) for p in list_lake_parts(lake.open_lake(tmp_path / "whole"), RUN)
        ]:
            lake.compact_run(opened, RUN)  # by the run that is resumed
            pd.testing.assert_frame_equal(of(opened), whole)
            assert len(pd.read_parquet(list_lake_parts(opened, RUN))) == 6  # for a reader that knows of no keys too
        step += 4 if change is None else 12  # the steps are the same
    assert step > 40


def test_a_compacted_part_says_what_every_other_says_and_is_sorted(tmp_path: Path) -> None:
    opened = filled(tmp_path)
    lake.compact_run(opened, RUN)
    (path,) = list_lake_parts(opened, RUN)
    schema = pq.read_schema(path)
    assert schema.equals(SCHEMA) and schema.metadata[b"schema_version"] == SCHEMA.metadata[b"schema_version"]
    assert schema.field("build_ms").metadata[b"unit"] == b"ms"
    assert pq.read_table(path)["op"].to_pylist() == sorted(f"torch:{x}" for x in "bcd" for _ in range(2))
    assert not hasattr(pd.read_parquet(path)["op"], "cat")


def test_many_rows_are_compacted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "AT_ONCE", 4)
    monkeypatch.setattr(compaction, "GROUP_ROWS", 2)
    whole, opened = of(filled(tmp_path / "whole")), filled(tmp_path / "pieces")
    lake.compact_run(opened, RUN)
    (path,) = list_lake_parts(opened, RUN)
    assert pq.ParquetFile(path).num_row_groups > 2
    pd.testing.assert_frame_equal(of(opened), whole)


def test_a_part_that_cannot_be_read_is_kept(tmp_path: Path) -> None:
    opened = filled(tmp_path)
    (tmp_path / f"run={RUN}" / "part-x.parquet").write_bytes(b"PAR1 half of a part")
    before = list_lake_parts(opened, RUN)
    lake.compact_run(opened, RUN)
    assert list_lake_parts(opened, RUN) == before


def test_parts_of_another_schema_are_compacted_too(tmp_path: Path) -> None:
    opened = filled(tmp_path)
    old = lake.read_table(opened, RUN).slice(0, 2).drop_columns(["flags", "attempts", "error_units"])
    case = pc.binary_join_element_wise(old["case_id"], "old", "@")
    old = old.set_column(old.schema.get_field_index("case_id"), "case_id", case)
    pq.write_table(old, tmp_path / f"run={RUN}" / "part-old.parquet")
    before = of(opened)
    lake.compact_run(opened, RUN)
    assert len(list_lake_parts(opened, RUN)) == 1
    key = ["sample", "case_id"]
    pd.testing.assert_frame_equal(
        of(opened).sort_values(key, ignore_index=True), before.sort_values(key, ignore_index=True)
    )


# --- reading some of it -----------------------------------------------------------------------------------------


def test_only_the_rows_asked_for(tmp_path: Path) -> None:
    opened = filled(tmp_path)
    lake.append_part(opened, "other", [batch(7, op="torch:b")])
    for _ in range(2):
        assert lake.read(opened, RUN, where={"op": ["torch:b"]})["sample"].tolist() == [4, 5]
        assert len(lake.read(opened, where={"op": ["torch:b", "torch:c"], "backend": ["torch-cpu"]})) == 5
        assert len(lake.read(opened, where={"op": ["torch:b"], "sample": [5]})) == 1
        assert lake.read(opened, where={"op": []}).empty and lake.read(opened, where={"op": ["none"]}).empty
        table = lake.read_table(opened, RUN, ["op", "sample"], {"backend": ["torch-cpu"]})
        assert table.column_names == ["op", "sample"] and table.num_rows == 7 - (len(list_lake_parts(opened, RUN)) == 1)
        lake.compact_run(opened, RUN)


def test_a_part_without_the_column_has_none_of_the_rows(tmp_path: Path) -> None:
    opened = filled(tmp_path)
    old = lake.read_table(opened, RUN).slice(0, 2).drop_columns(["flags"])
    pq.write_table(old, tmp_path / f"run={RUN}" / "part-old.parquet")
    assert lake.read(opened, RUN, where={"flags": ["none"]}).empty


# --- several at once --------------------------------------------------------------------------------------------


def at_once(opened: Lake, each: int) -> None:
    """Three write one run and one of their own each, one compacts, one reads: what was there before it began is always
    there."""
    done, problems = threading.Event(), []
    written = [0, 0, 0]

    def writing(who: int) -> None:
        for s in range(each):
            lake.append_part(opened, RUN, [batch(1000 * who + s)])
            lake.append_part(opened, f"of-{who}", [batch(s)])
            written[who] = s + 1

    def compacting() -> None:
        while not done.is_set():
            lake.compact_run(opened, RUN)

    def reading() -> None:
        while not done.is_set():
            before = sum(written)
            if (there := len(lake.read(opened, RUN)) if before else 0) < before:
                problems.append((before, there))

    def watched(what: Any, *arguments: Any) -> None:
        try:
            what(*arguments)
        except Exception as error:
            problems.append(error)

    writers = [threading.Thread(target=watched, args=(writing, who)) for who in range(3)]
    others = [threading.Thread(target=watched, args=(what,)) for what in (compacting, compacting, reading)]
    for thread in (*writers, *others):
        thread.start()
    for thread in writers:
        thread.join()
    time.sleep(0.05)
    done.set()
    for thread in others:
        thread.join()
    assert not problems
    assert len(lake.read(opened, RUN)) == 3 * each
    lake.compact_run(opened, RUN)
    assert lake.read_table(opened, RUN).num_rows == 3 * each
    assert [len(lake.read(opened, f"of-{who}")) for who in range(3)] == [each] * 3


@pytest.mark.filterwarnings("error::farm.lake.LakeWarning")
def test_several_write_compact_and_read_one_lake(tmp_path: Path) -> None:
    at_once(lake.open_lake(tmp_path), 12)


class Vanishing:
    """A filesystem in which a file is deleted while its directory is listed, so many times."""

    def __init__(self, filesystem: Any, times: int) -> None:
        self.filesystem, self.times = filesystem, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.filesystem, name)

    def get_file_info(self, asked: Any) -> Any:
        if self.times and not isinstance(asked, str):
            self.times -= 1
            raise FileNotFoundError(2, "Failed stat()ing path")
        return self.filesystem.get_file_info(asked)


def test_a_part_that_is_deleted_while_its_directory_is_listed_stops_no_reader(tmp_path: Path) -> None:
    opened = filled(tmp_path)
    vanishing: Any = Vanishing(opened.filesystem, 2)
    assert len(lake.read(Lake(vanishing, opened.root, opened.uri), RUN)) == len(lake.read(opened, RUN)) > 0
    vanishing.times = 1000
    with pytest.raises(lake.LakeError, match="cannot be read"):
        lake.read(Lake(vanishing, opened.root, opened.uri), RUN)


def compacted_by_two(opened: Lake) -> None:
    """Two have listed the same parts before either of them writes."""
    both = threading.Barrier(2)

    def put(*arguments: Any) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(5)
        store.write_run_file(*arguments)
        both.abort()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "write_run_file", put)
        threads = [threading.Thread(target=lake.compact_run, args=(opened, RUN)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lake.read_table(opened, RUN).num_rows == 6 and len(list_lake_parts(opened, RUN)) == 1


def test_two_that_compact_one_run_at_once_leave_one_part(tmp_path: Path) -> None:
    compacted_by_two(filled(tmp_path))


def test_what_was_compacted_twice_of_different_parts_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = filled(tmp_path)
    once = iter([None])

    def put(*arguments: Any) -> None:  # a third driver writes a row, and compacts, while this one is merging
        for _ in once:
            lake.append_part(opened, RUN, [batch(1, 9, op="torch:e")])
            lake.compact_run(opened, RUN)
        store.write_run_file(*arguments)

    monkeypatch.setattr(compaction, "write_run_file", put)
    lake.compact_run(opened, RUN)
    assert sorted(lake.read_table(opened, RUN)["sample"].to_pylist()) == [0, 1, 1, 2, 3, 4, 5, 9]
    assert len(list_lake_parts(opened, RUN)) == 1


@pytest.mark.parametrize("change", (None, lambda table: table))
def test_a_run_with_columns_of_a_newer_farm_keeps_them(tmp_path: Path, change: lake.Change | None) -> None:
    opened = filled(tmp_path)
    before = list_lake_parts(opened, RUN)
    newer = pq.read_table(before[1], partitioning=None)
    pq.write_table(newer.append_column("joules", pa.array([1.5] * len(newer))), before[1])
    with pytest.warns(lake.LakeWarning, match=f"{before[1]} has the column joules, which this farm does not know"):
        lake.compact_run(opened, RUN, change)
    assert list_lake_parts(opened, RUN) == before and "joules" in pq.read_schema(before[1]).names
    pq.write_table(newer, before[1])
    lake.compact_run(opened, RUN, change)
    assert len(list_lake_parts(opened, RUN)) == 1
