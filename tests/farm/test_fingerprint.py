"""farm fingerprint: a passport through the real runtime, kept, drawn and compared."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from farm import lake
from farm.__main__ import main
from farm.commands.fingerprint import _describe_left_out
from farm.lake import store
from farm.report.tables.passports import (
    compare_two_passports,
    describe_tree_orders,
    select_newest_readings,
    table_batch_failures,
    table_passport_readings,
    view_passport,
)
from tasks.passport import CODES
from tasks.passport.sum_trees import (
    decode_tree,
    encode_tree,
    list_term_blocks,
    make_pairwise_tree,
    make_sequential_tree,
    name_tree_kind,
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with the passport of torch's CPU: sums and products."""
    results = tmp_path_factory.mktemp("fingerprint")
    asked = ["--ops", "sum,matmul", "--dtypes", "bfloat16", "--on", "inline", "--results", str(results)]
    assert main(["fingerprint", "torch-cpu", *asked]) == 0
    return results


def test_torch_is_predicted_to_the_bit(kept: Path) -> None:
    found = lake.read_passports(str(kept))
    assert found.columns.tolist() == lake.PASSPORT_SCHEMA.names
    assert set(found["op"]) == {"critical:sum", "critical:matmul"} and set(found["where"]) == {"first", "last"}
    assert (found["code"] == "").all(), found[["op", "dtype", "code", "words"]].to_string()
    assert found["predicted"].sum() >= 0.99 * found["unseen"].sum()
    assert set(found["accumulator"]) == {"float32"}  # also of bfloat16
    assert all(encode_tree(decode_tree(x)) == list(x) for x in found["tree"])


def test_each_reading_says_whose_it_is(kept: Path) -> None:
    one = lake.read_passports(str(kept)).iloc[0]
    row = lake.read(str(kept), where={"case_id": [one["case_id"]]}).iloc[0]
    for name in ("device", "runtime_version", "build", "op", "dtype"):
        assert one[name] == row[name]
    assert row["status"] == "pass"


CONFIG = """
passports: {passports}
catalogs: [{{name: critical, ops: [matmul, sum, relu], samples: 1}}]
dtypes: [{dtype}]
backends: [torch-cpu]
"""


def test_a_run_holds_its_sums_against_the_newest_passport(kept: Path, tmp_path: Path) -> None:
    kept = shutil.copytree(kept, tmp_path / "lake")  # the lake of the others keeps one run
    config = tmp_path / "held.yaml"
    config.write_text(CONFIG.format(passports="newest", dtype="bfloat16"))
    before = set(lake.run_ids(lake.open_lake(str(kept))))
    assert main(["run", str(config), "--on", "inline", "--results", str(kept)]) == 0
    (run_id,) = set(lake.run_ids(lake.open_lake(str(kept)))) - before
    rows = lake.read(str(kept), run_id).set_index("op")
    assert (rows["status"] == "pass").all()
    own, likely = rows["own_units"], rows["likely_units"]
    assert own.isna().to_dict() == {"critical:matmul": False, "critical:sum": False, "critical:relu": True}
    assert (own.dropna() <= likely.dropna()).all() and (likely.dropna() <= 1).all()


def test_a_passport_that_is_not_there_is_a_line(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "held.yaml"
    for asked, dtype in (("newest", "float64"), ("20000101-000000-0000", "bfloat16")):
        config.write_text(CONFIG.format(passports=asked, dtype=dtype))
        assert main(["run", str(config), "--on", "inline", "--results", str(kept)]) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert "none of torch-cpu" in said and "farm fingerprint torch-cpu" in said


def test_the_table_the_drawing_and_json(
    kept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["fingerprint", "torch-cpu", "--kept", "--tree", "--results", str(kept)]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"\b(\d{3,})/\1\b", out)) == 2  # all unseen results of both lines
    assert "matmul" in out and "→" in out
    assert max(map(len, out.splitlines())) <= 100
    assert main(["fingerprint", "torch-cpu", "--kept", "--json", "--results", str(kept)]) == 0
    lines = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(lake.read_passports(str(kept))) and isinstance(lines[0]["tree"], list)


def test_a_passport_differs_from_itself_in_nothing_and_from_another_in_what_changed(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = select_newest_readings(table_passport_readings(str(kept)))
    assert compare_two_passports(mine, mine).empty
    other = mine.copy()
    changed = other.index[other["op"] == "critical:sum"][0]
    other.at[changed, "bits"], other.at[changed, "accumulator"] = 11, "float16"
    found = compare_two_passports(mine, other)
    assert set(found["what"]) == {"bits", "added in"} and set(found["op"]) == {"critical:sum"}
    assert main(["fingerprint", "--diff", "torch-cpu", "torch-cpu", "--results", str(kept)]) == 0
    assert "add alike" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fingerprint", "name a BACKEND"),
        ("fingerprint torhc-cpu", "unknown backend 'torhc-cpu'"),
        ("fingerprint torch-cpu --dtypes int8", "int8"),
        ("fingerprint torch-cpu --ops relu", "relu"),
        ("fingerprint torch-cpu --budget soon", "--budget 'soon'"),
        ("fingerprint ort-cpu --kept", "has no passport of ort-cpu"),
        ("fingerprint --diff torch-cpu ort-cpu", "has no passport of ort-cpu"),
        ("fingerprint torch-cpu --diff torch-cpu ort-cpu", "--diff compares what the lake has"),
    ],
)
def test_bad_input_is_a_line(kept: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([*words.split(), "--results", str(kept)])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_what_a_budget_left_unread_is_said_by_backend() -> None:
    names = ["torch-cpu", "ort-qnn"]
    plan: Any = SimpleNamespace(
        matrix=SimpleNamespace(backends=names),
        name=names.__getitem__,
        whole=SimpleNamespace(wanted=np.full((3, 2), 10)),
    )
    cases = {"critical:sum": {"ort-qnn": 10}, "critical:matmul": {"ort-qnn": 4}}
    assert _describe_left_out(plan, {"cases": cases}) == ["not read of ort-qnn: 14 of 30 questions (sum 10, matmul 4)"]
    assert _describe_left_out(plan, {}) == []


def test_the_report_has_the_passport(kept: Path) -> None:
    (run,) = lake.run_ids(str(kept))
    from farm.report import Report
    from farm.report.tables.passports import view_passports_of_report

    rows = lake.read(str(kept), run)
    rows.attrs["results"] = str(kept)
    view = view_passports_of_report(Report.of(rows, lake.read_run(str(kept), run)))
    assert view is not None and len(view.frame) == 2
    assert view.frame["tree"].notna().all()


@pytest.mark.parametrize("code", list(CODES))
def test_what_could_not_be_read_is_a_line_below_the_table(kept: Path, code: str) -> None:
    readings = table_passport_readings(str(kept)).assign(code=code)
    assert f"{code}: {CODES[code]}." in view_passport(readings).notes
    assert not any(note.startswith(f"{code}:") for note in view_passport(readings.assign(code="")).notes)


def test_a_device_that_flushes_is_told_from_its_twin(kept: Path) -> None:
    readings = table_passport_readings(str(kept))
    sound = readings.assign(flushes_inputs=False, flushes_results=False)
    flushing = readings.assign(flushes_inputs=True, flushes_results=False)
    assert any(note.startswith("Flushed") for note in view_passport(flushing).notes)
    assert not any(note.startswith("Flushed") for note in view_passport(sound).notes)
    assert set(compare_two_passports(sound, flushing)["what"]) == {"subnormal inputs are zero"}


def test_what_an_older_farm_did_not_ask_is_no_difference(kept: Path) -> None:
    readings = table_passport_readings(str(kept))
    held, saturating, before = (readings.assign(overflow=x) for x in ("inf inf", "less less", None))
    assert compare_two_passports(held, before).empty
    assert set(compare_two_passports(held, saturating)["what"]) == {"sums beyond the largest number"}


def test_sums_whose_order_alone_is_read_stand_beside_the_others(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a softmax the bits are read, and nothing of how a step aligns."""
    found = lake.read_passports(str(kept))
    alone = found["op"] == "critical:sum"
    found.loc[alone, ["aligned", "taken", "predicted", "unseen"]] = None
    found.loc[alone, "code"] = "order alone"
    monkeypatch.setattr(lake, "read_passports", lambda *asked: found)
    frame = view_passport(table_passport_readings(str(kept))).frame
    assert len(frame) == 2 and frame["adds"].str.contains("float32").all()


def test_the_sums_of_an_op_are_lines_of_their_own(kept: Path) -> None:
    readings = table_passport_readings(str(kept))
    both = pd.concat([readings.assign(part="values"), readings.assign(part="weights", code="order alone")])
    view = view_passport(both)
    assert len(view.frame) == 2 * len(view_passport(readings).frame)
    assert compare_two_passports(both, both).empty
    assert set(select_newest_readings(both)["part"]) == {"values", "weights"} and len(
        select_newest_readings(both)
    ) == 2 * len(select_newest_readings(readings))


def test_a_config_names_its_backends(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "two.yaml"
    config.write_text("catalogs: [{name: critical}]\nbackends: [torch-cpu]\n")
    assert main(["fingerprint", str(config), "--kept", "--results", str(kept)]) == 0
    assert "matmul" in capsys.readouterr().out


def test_a_row_that_depends_on_its_batch_is_explained_by_two_orders(kept: Path) -> None:
    rows = lake.read(str(kept)).drop_duplicates("op").assign(check="batch_invariance", kind="batch", status="wrong")
    readings = table_passport_readings(str(kept))
    readings["tree"] = [tuple(encode_tree(make_sequential_tree(range(n)))) for n in readings["terms"]]
    assert table_batch_failures(rows, readings).empty  # one order: nothing is explained by it
    place = readings.index[
        (readings["op"] == "critical:sum") & (readings["rows"] == 17) & (readings["where"] == "first")
    ][0]
    readings.at[place, "tree"] = tuple(encode_tree(make_pairwise_tree(range(64))))
    readings.at[place, "kind"] = "pairwise"
    (line,) = table_batch_failures(rows, readings).to_dict("records")
    assert (line["op"], line["terms"], line["few"], line["many"]) == ("critical:sum", 64, 1, 17)
    assert line["batch"] == "pairwise" != line["alone"]


def test_readings_are_compacted_with_their_rows(kept: Path) -> None:
    opened = lake.open_lake(str(kept))
    (run,) = lake.run_ids(opened)
    before = lake.read_passports(opened, run)
    lake.compact_run(opened, run)
    assert len(store.list_lake_parts(opened, run, "passports")) == 1
    assert lake.read_passports(opened, run).equals(before)


def test_blocks_as_large_are_blocked_and_as_many_are_a_split() -> None:
    def lines(sizes: list[tuple[int, int]]) -> list[dict[str, object]]:
        made = []
        for count, size in sizes:
            tree = make_pairwise_tree([make_sequential_tree(x) for x in list_term_blocks(count, size)])
            kind = name_tree_kind(tree)
            made.append(
                {"rows": 8, "terms": count, "tree": encode_tree(tree), "kind": str(kind), "kind_code": kind.code}
            )
        return made

    assert describe_tree_orders(lines([(32, 8), (64, 8)])).startswith("blocked by 8")
    assert describe_tree_orders(lines([(32, 8), (64, 16)])).startswith("split-K by 4")
