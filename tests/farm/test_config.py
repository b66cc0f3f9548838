"""Configs: what is refused, and that the refusal names file, line, column, key and the nearest valid name."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd
import pytest

from farm.plan.config import Config, ConfigError, load_config
from farm.plan.match_known import drop_known_rows
from tasks.nearest import suggest_nearest_names

ROOT = Path(__file__).resolve().parents[2]
GOOD = "catalogs: [torch]\nbackends: [torch-cpu]\n"


def refusal(tmp_path: Path, text: str | bytes) -> str:
    """The error of a config, without the path of its file, which it must begin with."""
    file = tmp_path / "c.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"{file}:")
    return str(caught.value).removeprefix(f"{file}:")


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda f: f.stem)
def test_the_configs_that_come_with_the_farm(file: Path) -> None:
    assert load_config(file).name == file.stem


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        # unknown keys, wherever they stand
        (GOOD + "polycy: classic\n", "3:1", "polycy: unknown key; did you mean policy?"),
        (
            "catalogs:\n  - name: torch\n    sample: 3\nbackends: [torch-cpu]\n",
            "3:5",
            "catalogs.0.sample: unknown key; did you mean samples",
        ),
        (
            "catalogs: [torch]\nbackends:\n  - torch-cpu\n  - {name: ort-cpu, option: 1}\n",
            "4:21",
            "did you mean options",
        ),
        (GOOD + "skip:\n  - op: [abs]\n    reason: slow\n", "4:5", "skip.0.op: unknown key; did you mean ops?"),
        (GOOD + "known_failures:\n  - {ops: [abs], op: x, reason: r}\n", "4:6", "did you mean op?"),
        # unknown names
        (GOOD + "dtypes: [float32, flaot16]\n", "3:19", "unknown dtype 'flaot16'; did you mean float16"),
        (GOOD + "dtypes: [object]\n", "3:10", "unknown dtype 'object'"),
        (GOOD + "dtypes: [f4]\n", "3:10", "float32"),
        ("catalogs: [{name: torch, dtypes: [int33]}]\nbackends: [torch-cpu]\n", "1:35", "did you mean int32"),
        (
            "catalogs: [torch]\nbackends:\n- torch-cpu\n- trch-cpu\n",
            "4:3",
            "unknown backend 'trch-cpu'; did you mean torch-cpu",
        ),
        ("catalogs: [torch]\nbackends: [torch]\n", "2:12", "a backend is <runtime>-<device>"),
        ("catalogs: [torch]\nbackends: [cudnn-cuda]\n", "2:12", "the runtimes are"),
        (
            "catalogs: [torch]\nbackends: [torch-gpu]\n",
            "2:12",
            "no device is called gpu; did you mean torch-cuda, torch-rocm",
        ),
        ("catalogs: [torch]\nbackends: [{name: mine, like: ortt-cpu}]\n", "2:12", "unknown backend 'ortt-cpu'"),
        (
            "catalogs: [torch]\nbackends: [{name: torch-cpu, options: {tf23: 1}}]\n",
            "2:12",
            "unknown option 'tf23'; it takes sdpa, convolution, flush_subnormals",
        ),
        *(
            (f"catalogs: [torch]\nbackends: [{{name: {name}, options: {option}}}]\n", "2:12", says)
            for name, option, says in [
                ("torch-cpu", "{flush_subnormals: maybe}", "flush_subnormals is true or false, not 'maybe'"),
                ("torch-cuda", "{tf32: 'no'}", "backend torch-cuda: tf32 is true or false, not 'no'"),
                ("ort-cuda", "{tf32: 2}", "tf32 is true or false, not 2"),
                ("openvino-cpu", "{threads: many}", "backend openvino-cpu: threads is a whole number, not 'many'"),
            ]
        ),
        (
            "catalogs: [torch]\nbackends: [torch-cpu, tensorrtrtx-aot]\n",
            "2:23",
            "tensorrtrtx-aot runs none of the config's checks (forward): add build",
        ),
        (
            "catalogs: [torch]\nchecks: [build]\nbackends: [torch-cpu]\n",
            "3:12",
            "torch-cpu runs none of the config's checks (build): add one of forward, backward, ",
        ),
        (GOOD + "checks: [forward, bakward]\n", "3:19", "unknown check 'bakward'"),
        ("catalogs: [torch, onx]\nbackends: [torch-cpu]\n", "1:19", "unknown catalog 'onx'; did you mean onnx"),
        (
            GOOD + "policy: clasic\n",
            "3:1",
            "no policy 'clasic' (known policies: absolute, classic, error_units) (did you mean classic?)",
        ),
        (GOOD + "policy: none/there.json\n", "3:1", "no such file"),
        # values
        (GOOD + "deadline_s: -3\n", "3:1", "deadline_s: "),
        (GOOD + "deadline_s: .inf\n", "3:1", "deadline_s: "),
        (GOOD + "seed: -1\n", "3:1", "seed: "),
        (GOOD + "seed: 99999999999999999999\n", "3:1", "seed: "),
        (GOOD + "checks: []\n", "3:1", "checks: "),
        ("catalogs: []\nbackends: [torch-cpu]\n", "1:1", "catalogs: "),
        ("catalogs: [torch]\nbackends:\n", "2:1", "backends: "),
        ("catalogs: [torch]\n", "1:1", "backends: Field required"),
        ("catalogs: [{name: torch, samples: 0}]\nbackends: [torch-cpu]\n", "1:26", "catalogs.0.samples: "),
        (
            "catalogs: [{name: torch, samples_for: {'ort-*': -1}}]\nbackends: [torch-cpu]\n",
            "1:40",
            "samples_for.ort-*: ",
        ),
        ("catalogs: [torch]\nbackends: [{name: torch-cpu, fraction: 2}]\n", "2:30", "backends.0.fraction: "),
        (GOOD + "dtypes: float32\n", "3:1", "dtypes: "),
        (GOOD + "dtypes: [32]\n", "3:10", "dtypes.0: "),
        # named twice
        ("catalogs: [torch]\nbackends: [torch-cpu, ort-cpu, torch-cpu]\n", "2:32", "'torch-cpu' is named twice"),
        (GOOD + "dtypes: [float32, float16, float32]\n", "3:28", "'float32' is named twice"),
        (GOOD + "seed: 1\nseed: 2\n", "4:1", "seed: the key is given twice"),
        (GOOD + "skip:\n- {ops: [abs], ops: [add], reason: r}\n", "4:16", "ops: the key is given twice"),
        # reasons
        (GOOD + "skip:\n  - ops: [abs]\n", "4:5", "skip.0.reason: Field required"),
        (GOOD + "skip:\n  - ops: [abs]\n    reason: ''\n", "5:5", "skip.0.reason: "),
        (GOOD + "known_failures:\n  - op: abs\n", "4:5", "known_failures.0.reason: Field required"),
        (GOOD + "known_failures: [{op: abs, status: fail, reason: r}]\n", "3:28", "known_failures.0.status: "),
        # not YAML, or not a config
        ("catalogs: [torch\nbackends: x\n", "2:9", "not YAML"),
        ("a: b: c\n", "1:5", "not YAML"),
        ("\tcatalogs: []\n", "1:1", "not YAML"),
        (GOOD + 'name: "\x01"\n', "3:8", "not YAML"),
        ("catalogs: [*unknown]\n", "1:12", "not YAML"),
        (GOOD + "name: 2024-13-45\n", "3:7", "not YAML"),
        (GOOD + "---\n" + GOOD, "3:1", "not YAML"),
        ("name: !!python/object/apply:os.system ['true']\n", "1:7", "not YAML"),
        ("", "1:1", "a config is a mapping"),
        ("# nothing\n", "1:1", "a config is a mapping"),
        ("- torch\n", "1:1", "a config is a mapping"),
        ("torch\n", "1:1", "a config is a mapping"),
        ("on: 3\n" + GOOD, "1:1", "on: a key is a string"),
        (GOOD + "3: x\n", "3:1", "3: a key is a string"),
        (GOOD + "? [a, b]\n: x\n", "3:3", "a key is a string"),
        (b"catalogs: [torch]\nname: \xff\xfe\n", "2:7", "not UTF-8"),
        (b"\xff\xfe\x00", "1:1", "not UTF-8"),
    ],
)
def test_a_bad_config_is_refused_at_its_place(tmp_path: Path, text: str | bytes, place: str, says: str) -> None:
    said = refusal(tmp_path, text)
    assert said.startswith(f"{place}: "), said
    assert says in said
    assert "Traceback" not in said


def test_absurd_nesting_is_refused_too(tmp_path: Path) -> None:
    assert "not YAML" in refusal(tmp_path, "[" * 100000)


def test_every_problem_is_told_not_only_the_first(tmp_path: Path) -> None:
    said = refusal(tmp_path, GOOD + "seed: -1\ndeadline_s: 0\n").splitlines()
    assert len(said) == 2


def test_a_missing_file_names_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"quik\.yaml: no such file.*quick\.yaml"):
        load_config(tmp_path / "quik.yaml")
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "no" / "such" / "folder.yaml")


def test_a_directory_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path.name}: cannot be read"):
        load_config(tmp_path)


def test_anchors_and_merge_keys_are_plain_yaml(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "catalogs:\n  - &base {name: torch, samples: 3}\n  - <<: *base\n    name: onnx\nbackends: [ort-cpu]\n"
    )
    assert [(c.name, c.samples) for c in load_config(tmp_path / "c.yaml").catalogs] == [("torch", 3), ("onnx", 3)]


def test_defaults_and_short_forms(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD)
    config = load_config(tmp_path / "mine.yaml")
    assert config.name == "mine"
    assert config.catalogs[0].name == "torch" and config.catalogs[0].ops == ["*"]
    assert config.backends[0].spec().runtime == "torch" and config.backends[0].spec().device == "cpu"


@pytest.mark.parametrize("dtypes", ('["*"]', "[str, int4, uint2, float8_e4m3fn, complex64, bool]"))
def test_dtypes_that_a_catalog_may_have(tmp_path: Path, dtypes: str) -> None:
    (tmp_path / "c.yaml").write_text(GOOD + f"dtypes: {dtypes}\n")
    load_config(tmp_path / "c.yaml")


FULL = """
seed: 7
checks: [forward]
policy: classic
deadline_s: 2.5
dtypes: [float16]
catalogs:
  - {name: torch, ops: [abs], exclude: ["a*"], dtypes: ["*"], samples: 3, samples_for: {"ort-*": 0}, backends: ["ort-*"]}
  - onnx
backends: [torch-cpu, {name: tf32, like: torch-cuda, options: {tf32: true}, fraction: 0.25, memory_gib: 2}]
skip: [{ops: [abs], dtypes: [float16], backends: [tf32], reason: slow}]
known_failures: [{op: abs, dtype: float16, backend: tf32, status: wrong, reason: ticket 5}]
"""


def test_a_recorded_config_is_the_same_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(FULL)
    for file in (tmp_path / "c.yaml", *(ROOT / "configs").glob("*.yaml")):
        config = load_config(file)
        record = json.loads(json.dumps({"config": config.model_dump(mode="json")}))
        assert Config(**record["config"]) == config


def test_nearest() -> None:
    assert suggest_nearest_names("sofmax", ["softmax", "relu"]) == "; did you mean softmax?"
    assert suggest_nearest_names("xyz", ["softmax", "relu"]) == "; valid: softmax, relu"
    assert suggest_nearest_names("xyz", []) == ""


def test_known_failures_in_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "known").mkdir()
    (tmp_path / "known" / "mine.yaml").write_text("- {op: abs, status: imprecise, reason: the cause}\n")
    (tmp_path / "c.yaml").write_text(GOOD + "known_failures: known/mine.yaml\n")
    assert load_config(tmp_path / "c.yaml").known_failures[0].reason == "the cause"
    for text, says in (
        ("- {op: abs}", "reason: Field required"),
        ("- abs", "mine.yaml"),
        ("a: b: c", "not a YAML list"),
        ("3", "not a YAML list"),
    ):
        (tmp_path / "known" / "mine.yaml").write_text(text)
        with pytest.raises(ConfigError, match="mine.yaml") as caught:
            load_config(tmp_path / "c.yaml")
        assert says in str(caught.value) and "c.yaml:" in str(caught.value)
    (tmp_path / "known" / "mine.yaml").write_text("- {op: abs, reason: the cause}\n")
    (tmp_path / "c.yaml").write_text(
        GOOD + "known_failures: [known/mine.yaml, {op: add, reason: another}, known/mine.yaml]\n"
    )
    assert [k.op for k in load_config(tmp_path / "c.yaml").known_failures] == ["abs", "add", "abs"]
    (tmp_path / "c.yaml").write_text(GOOD + "known_failures: known/none.yaml\n")
    with pytest.raises(ConfigError, match=r"none.yaml: No such file"):
        load_config(tmp_path / "c.yaml")


def test_a_known_wrong_covers_what_is_merely_imprecise_and_not_the_reverse(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        GOOD + "known_failures:\n  - {op: a, status: wrong, reason: r}\n  - {op: b, status: imprecise, reason: r}\n"
    )
    rows = pd.DataFrame([{"op": f"torch:{op}", "status": s} for op in "ab" for s in ("wrong", "imprecise", "error")])
    rest = drop_known_rows(
        rows.assign(backend="torch-cpu", dtype="float16", variant=""), load_config(tmp_path / "c.yaml")
    )
    assert list(zip(rest["op"], rest["status"])) == [("torch:a", "error"), ("torch:b", "wrong"), ("torch:b", "error")]


def test_the_known_failures_that_come_with_the_farm(tmp_path: Path) -> None:
    known = Path(__file__).parents[2] / "configs" / "known"
    for path in known.glob("*.yaml"):
        (tmp_path / "c.yaml").write_text(GOOD + f"known_failures: {path}\n")
        assert load_config(tmp_path / "c.yaml").known_failures


def test_a_policy_is_named_from_the_configs_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pol").mkdir()
    file = tmp_path / "pol" / "c.yaml"
    file.write_text(GOOD + "policy: p.json\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=str(tmp_path / "pol" / "p.json")):
        load_config(file)
    (tmp_path / "pol" / "p.json").write_text((ROOT / "tasks" / "judge" / "policies" / "classic.json").read_text())
    assert load_config(file).policy == str(tmp_path / "pol" / "p.json")


@pytest.mark.parametrize(
    ("name", "by_itself"), [("cuda", {"ort-tensorrt", "ort-tensorrt-rtx"}), ("rocm", set()), ("xpu", {"openvino-npu"})]
)
def test_a_vendors_config_asks_the_check_switch_of_what_declares_less_than_float32(
    name: str, by_itself: set[str]
) -> None:
    """Of others it says nothing, and a mode of attention or convolution changes nothing but these: on a GPU that is
    most of a night."""
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    asked, whole = set(), set()
    for catalog in config.catalogs:
        given = {b.name for b in config.backends if any(fnmatch(b.name, x) for x in catalog.backends)}
        asked |= given if "switch" in (catalog.checks or config.checks) else set()
        whole |= given if catalog.name == "torch" and catalog.ops == ["*"] else set()
    coarser = {b.name for b in config.backends if {"tf32", "precision"} & set(b.options)}
    assert asked == coarser | by_itself
    assert not {b.name for b in config.backends if {"sdpa", "convolution"} & set(b.options)} & whole
