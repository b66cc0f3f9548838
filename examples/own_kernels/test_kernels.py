"""The kernels under the farm's judgement, as a test: pytest"""

from pathlib import Path

from farm import lake
from farm.launch import main

HERE = Path(__file__).parent


def test_kernels(tmp_path):
    code = main([str(HERE / "farm.yaml"), "--inline", "--samples", "3", "--results", str(tmp_path)])
    rows = lake.read(tmp_path)
    bad = rows[~rows["status"].isin(["pass", "imprecise"])]
    assert code == 0, bad[["case_id", "status", "kind", "error_units", "error"]].to_string()
    assert set(rows["op"]) == {"user:softmax", "user:rms_norm"}
