"""Trust: a signed run shows what was changed since; a sample of its rows is run again, and what does not repeat is said."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from farm import lake
from farm.commands import sign, verify
from farm.lake.manifest import MANIFEST
from farm.lake.store import list_lake_parts
from tests.conftest import here


@pytest.fixture
def run(tmp_path: Path, results: Path) -> str:
    """A run of three ops on torch; its id."""
    config = {
        "catalogs": [{"name": "torch", "ops": ["abs", "exp", "sum"], "samples": 2}],
        "dtypes": ["float32"],
        "backends": ["torch-cpu"],
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    done = here(tmp_path / "c.yaml", "--on", "inline", "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    return lake.run_ids(results)[-1]


def test_a_signed_run_shows_what_was_changed_and_by_whom_it_was_signed(
    run: str, tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, other = tmp_path / "ours.pem", tmp_path / "other.pem"
    for key in (ours, other):
        assert sign.main(["--new-key", str(key), "--results", "a lake"]) == 0
        assert f"farm verify sign --key {key} --results 'a lake'\n" in capsys.readouterr().out
    assert ours.stat().st_mode & 0o077 == 0, "nobody else reads a private key"
    assert sign.main(["--new-key", str(ours)]) == 2, "a key is never overwritten"
    where = ["--results", str(results)]
    assert verify.main([*where, "--manifest"]) == 2 and "has no manifest; farm verify sign" in capsys.readouterr().err
    assert sign.main([*where, "--key", str(tmp_path / "ours.pub.pem")]) == 2
    assert sign.main([*where, "--key", str(ours)]) == 0
    capsys.readouterr()
    assert sign.main([*where, "--key", str(ours)]) == 0, "the same key again"
    assert sign.main([*where, "--key", str(other)]) == 2
    assert "another key; --replace puts yours in its place" in capsys.readouterr().err
    for key, replace in ((other, ["--replace"]), (ours, ["--replace"])):
        assert sign.main([*where, "--key", str(key), *replace]) == 0
    assert sign.main([*where, "--key", str(tmp_path / "none.pem")]) == 2
    assert f"--new-key {tmp_path}/none.pem makes one" in capsys.readouterr().err
    assert sign.main([*where, "--key", str(tmp_path / "ours.pub.pem")]) == 2
    assert "--new-key FILE makes one" in capsys.readouterr().err, "not over a file that is there"
    (tmp_path / "third.pub.pem").write_text("somebody's")
    assert sign.main(["--new-key", str(tmp_path / "third.pem")]) == 2
    assert "third.pub.pem exists" in capsys.readouterr().err and not (tmp_path / "third.pem").exists()
    trusted = [*where, "--signed-by", str(tmp_path / "ours.pub.pem")]
    capsys.readouterr()
    assert verify.main(trusted) == 0 and "as signed by the key asked for" in capsys.readouterr().out
    assert verify.main([*where, "--signed-by", str(tmp_path / "other.pub.pem")]) == 1
    assert "signed by another key" in capsys.readouterr().out
    assert set(lake.read(results)["run_id"]) == {run}, "it is no part of the rows"

    folder = results / f"run={run}"
    signed = (folder / MANIFEST).read_text()
    (part,) = list_lake_parts(lake.open_lake(results), run)
    whole = Path(part).read_bytes()
    Path(part).write_bytes(whole + b"x")
    assert verify.main(trusted) == 1 and f"changed: {Path(part).name}" in capsys.readouterr().out
    for also in (["--rows", "1"], [*trusted[2:], "--rows", "1"]):
        assert verify.main([*where, *also]) == 1, "though the rows that are run again repeat, or none can be read"
        assert f"changed: {Path(part).name}" in capsys.readouterr().out
    Path(part).write_bytes(whole)
    (folder / "part-more.parquet").write_bytes(whole)
    assert verify.main(trusted) == 1 and "added: part-more.parquet" in capsys.readouterr().out
    (folder / "part-more.parquet").unlink()
    forged = json.loads(signed)
    forged["manifest"]["signed_at"] = "2020"
    (folder / MANIFEST).write_text(json.dumps(forged))
    assert verify.main(trusted) == 1 and "the signature is not that of this manifest" in capsys.readouterr().out
    for damaged in ("{", "[]", '{"manifest": {}}'):
        (folder / MANIFEST).write_text(damaged)
        assert verify.main(trusted) == 2 and "the manifest is damaged" in capsys.readouterr().err
        assert sign.main([*where, "--key", str(ours)]) == 2 and "--replace" in capsys.readouterr().err
    (folder / MANIFEST).write_text(signed)
    assert verify.main(trusted) == 0


def test_a_sample_is_run_again_and_what_does_not_repeat_is_said(
    run: str, tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(results), "--rows", "3", "--csv", str(tmp_path / "t.csv")]
    assert verify.main(where) == 0
    assert "3 of 3 outcomes repeat, 3 with the same numbers; 0 could not run here" in capsys.readouterr().out
    assert list(pd.read_csv(tmp_path / "t.csv")["said"]) == ["the same"] * 3
    (part,) = list_lake_parts(lake.open_lake(results), run)
    table = lake.read_table(results, run)
    lied = table.set_column(table.schema.get_field_index("status"), "status", pa.array(["wrong"] * len(table)))
    pq.write_table(lied, part)
    assert verify.main(where) == 1
    assert "0 of 3 outcomes repeat" in capsys.readouterr().out
