"""Two hundred bad inputs, one a row: every command ends with its documented code, names what, where and the fix, and
never with a traceback."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farm import lake
from farm.__main__ import main
from farm.command_names import LEAVES
from farm.exits import BAD_INPUT
from tests.farm import test_config, test_include, test_user_config
from tests.farm.test_report import make_row

GOOD = "catalogs: [torch]\nbackends: [torch-cpu]\n"
RUN = "20260101-000000-aaaa"
CASE = "forward/torch:add/float32/0"

#: (command line, what standard error must say). {d}: a folder with c.yaml, a config without a mistake, lake, a lake of
#: one run, and what `world` puts beside them.
LINES: list[tuple[str, str]] = [
    # the command
    ("rnu", "farm has no command 'rnu'; did you mean run"),
    ("policy selftst", "farm policy has no part 'selftst'; did you mean selftest"),
    ("node", "usage: farm node PART"),
    ("reports", "did you mean report"),
    ("histroy", "did you mean report history"),
    ("report histroy", "farm report has no part 'histroy'; did you mean history"),
    ("report histroy", "(a path is ./histroy)"),
    ("run {d}/c.yaml --seconds 3", "--seconds is an option of farm fuzz, farm localise, farm node screen"),
    ("run --model {d}/net.py --input x=flaot32[1]", "unknown dtype 'flaot32'; did you mean float32"),
    ("help histroy", "did you mean report history"),
    ("report --resume last", "--resume is an option of farm run, farm fuzz, farm node screen"),
    (
        "report history --results {d}/lake --csv {d}/file/x.csv",
        "/file/x.csv: Cannot save file into a non-existent directory",
    ),
    (
        "report history --results {d}/lake --csv={d}/none/x.csv",
        "none/x.csv: Cannot save file into a non-existent directory",
    ),
    ("gate --nothing", "--nothing; farm gate -h lists them"),
    ("report --dtypes x", "did you mean --dtype?; --dtypes is an option of farm run, "),
    ("report --reason x", "--reason is an option of farm known add"),
    ("doctor --all", "--all is an option of farm doctor envs remove, "),
    ("report --diff a", "--diff: expected 2 arguments: A B"),
    ("report --checklist", "--checklist: expected one argument: {cuda,onnx,"),
    ("gate nothing", "unrecognized arguments: nothing; farm gate -h shows what it takes"),
    ("report history --backend", "--backend: expected one argument: GLOB"),
    ("''", "farm has no command ''"),
    ("--nothing", "farm has no command '--nothing'"),
    *((f"{name} --no-such-option", "usage: farm ") for name in LEAVES),
    # run: the command line
    ("run", "a config is needed, e.g. farm run configs/quick.yaml"),
    ("run ''", "a config is needed"),
    ("run {d}", "there is no task.yaml"),
    ("run {d}/d.yaml", "no such file; did you mean"),
    ("run {d}/none/c.yaml", "no such file"),
    ("run {d}/binary.yaml", "not UTF-8"),
    ("run {d}/c.yaml {d}/c.yaml", "unrecognized arguments"),
    ("run {d}/c.yaml --results ''", "results '': name a directory or a URI"),
    ("run {d}/c.yaml --results ' '", "name a directory or a URI"),
    ("run {d}/c.yaml --results {d}/file", "choose another place with --results"),
    ("run {d}/c.yaml --results {d}/file/lake", "choose another place with --results"),
    ("run {d}/c.yaml --results /proc/lake", "choose another place with --results"),
    ("run {d}/c.yaml --results foo://bucket/x", "foo"),
    ("run {d}/c.yaml --results s3://", "no bucket or directory is named"),
    ("run {d}/c.yaml --results s3:///", "results 's3:///'"),
    ("run {d}/c.yaml --results file://", "results 'file://'"),
    ("run {d}/c.yaml --ops ''", "--ops '': names nothing"),
    ("fuzz --ops ''", "--ops '': names nothing"),
    ("run {d}/c.yaml --ops ,", "--ops ',': names nothing"),
    ("run {d}/c.yaml --ops ' '", "--ops ' ': names nothing"),
    ("run {d}/c.yaml --dtypes ''", "--dtypes '': names nothing"),
    ("run {d}/c.yaml --dtypes flaot32", "unknown dtype 'flaot32'; did you mean float32"),
    ("run {d}/c.yaml --dtypes float32,f16", "unknown dtype 'f16'"),
    ("run {d}/c.yaml --backends ''", "--backends '': names nothing"),
    ("run {d}/c.yaml --backends trch-cpu", "unknown backend 'trch-cpu'; did you mean torch-cpu"),
    ("run {d}/c.yaml --backends torch", "a backend is <runtime>-<device>"),
    ("run {d}/c.yaml --samples 0", "--samples: at least 1"),
    ("run {d}/c.yaml --samples -3", "--samples: at least 1"),
    ("run {d}/c.yaml --samples many", "a whole number is needed, not 'many'"),
    ("run {d}/c.yaml --samples 1.5", "a whole number is needed, not '1.5'"),
    ("run {d}/c.yaml --cpus 0", "--cpus: at least 1"),
    ("run {d}/c.yaml --cpus x", "a whole number is needed, not 'x'"),
    ("run {d}/c.yaml --resume", "expected one argument"),
    ("run {d}/c.yaml --on inline --ray", "not allowed with argument"),
    ("run {d}/nodes.yaml", "nodes.yaml:1:26: catalogs.0.path: "),
    # run: what is resumed
    ("run --resume last --results {d}/empty", "no run in"),
    ("run {d}/other.yaml --resume last --results {d}/lake", "no run of other"),
    ("run --resume 20260101-000000-aaab --results {d}/lake", f"there is {RUN}"),
    ("run --resume x --results {d}/empty", "it holds no run"),
    (f"run --resume {RUN} --results {{d}}/lake", "its record has no 'config'; start a new run"),
    (f"run --resume {RUN} --results {{d}}/damaged", "_run.json: not JSON"),
    (f"run --resume {RUN} --results {{d}}/foreign", "not the record of a run"),
    (f"run --resume {RUN} --results {{d}}/old", "its record is of another version"),
    ("run --resume last --results {d}/file", "cannot be read"),
    # report
    ("report {d}/lake --pairs --new", "argument --new: not allowed with argument --pairs"),
    ("report {d}/empty --pairs", "no run"),
    ("report {d}/empty", "no runs in"),
    ("report ''", "name a directory or a URI"),
    ("report --results ''", "name a directory or a URI"),
    ("report {d}/file", "cannot be read"),
    ("report foo://x/y", "results 'foo://x/y'"),
    ("report {d}/lake --run 20260101-000000-aaab", f"there is {RUN}"),
    ("report {d}/lake --run ''", "no run ''"),
    ("report {d}/lake --by colour", "invalid choice: 'colour'"),
    ("report {d}/lake --case nothing", "nothing"),
    ("report {d}/lake --case forward/torch:ad/float32/0", CASE),
    (
        "report {d}/lake --case last:forward/torch:ad/float32/0:torch-cpu",
        f"no case 'forward/torch:ad/float32/0'; did you mean {CASE}",
    ),
    (f"report {{d}}/lake --case gone:{CASE}:torch-cpu", "no run 'gone'"),
    (f"report {{d}}/lake --run all --case last:{CASE}:torch-cpu", f"names the run {RUN}; leave --run out"),
    ("report {d}/lake --case seed:x", "'seed:x' is no seed: seed:NUMBER"),
    ("report {d}/lake --case ''", "no case ''"),
    ("report {d}/lake --run previous", f"no run 'previous': the lake has one run, {RUN}"),
    ("report {d}/lake --diff last torch-cpu", "last is a run, torch-cpu is not one"),
    ("report {d}/lake --diff nobody torch-cpu", f"of another run it is RUN:BACKEND (runs, newest first: {RUN} (last)"),
    ("report {d}/lake --diff torch-cpu", "expected 2 arguments"),
    ("report {d}/lake --diff torch-cpu ort-cpu", "ort-cpu"),
    ("report {d}/lake --diff nobody torch-cpu", "nobody"),
    ("report {d}/lake --diff gone:torch-cpu torch-cpu", "no run 'gone'"),
    (f"report {{d}}/lake --case {CASE} --diff a b", "not allowed with argument"),
    ("report {d}/lake --out {d}/file", "file"),
    ("report {d}/lake --out {d}/file/x", "file"),
    ("report {d}/lake --plot {d}/p.png --backend nobody", "nobody"),
    ("report {d}/lake {d}/lake", "unrecognized arguments"),
    ("report {d}/lake --checklist", "expected one argument"),
    ("report {d}/lake --checklist cudda", "invalid choice: 'cudda'"),
    ("report {d}/empty --checklist cuda", "no runs in"),
    ("report {d}/lake --checklist cuda --diff a b", "not allowed with argument"),
    ("report {d}/lake --checklist cuda --backend trch-cuda", "no backend 'trch-cuda'; did you mean torch-cpu"),
    ("report {d}/lake --checklist cuda --backend ''", "--backend: no backend ''"),
    ("report {d}/lake --checklist onnx --out {d}/file", "file"),
    # known
    (
        "known check {d}/ours.yaml --results {d}/lake --backend ort-cpux",
        "neither the run nor a known failure is of backend 'ort-cpux'; did you mean ort-cpu",
    ),
    # reproduce
    (f"reproduce previous:{CASE}:torch-cpu --results {{d}}/lake", f"no run 'previous': the lake has one run, {RUN}"),
    ("verify --run previous --results {d}/lake", f"no run 'previous': the lake has one run, {RUN}"),
    ("report findings --run previous --results {d}/lake", f"no run 'previous': the lake has one run, {RUN}"),
    (
        f"bisect previous:{CASE} torch-cpu --versions 1..2 --results {{d}}/lake",
        f"no run 'previous': the lake has one run, {RUN}",
    ),
    (f"report {{d}}/lake --run previous --case last:{CASE}:torch-cpu", "no run 'previous': the lake has one run"),
    ("reproduce", "the following arguments are required: key"),
    ("reproduce x", "'x' is no key: a key is run_id:case_id:backend"),
    ("reproduce ''", "is no key"),
    ("reproduce last:", "is no key"),
    ("reproduce ::", "is no key"),
    (f"reproduce {CASE}:torch-cpu --results {{d}}/lake", f"names no run: 'last:{CASE}:torch-cpu' is of the newest"),
    ("report {d}/lake --results {d}/lake", "name it once"),
    ("report {d}/lake --backend torch-cpu", "--backend is of --plot or --checklist: add one, or leave it out"),
    ("report {d}/lake --dtype float16", "--dtype is of --every-input"),
    ("known list {d}/nothing.yaml --results {d}/empty", "nothing.yaml"),
    ("init {d}/file", "name a new folder"),
    (f"bisect last:{CASE} --versions 1..2 --results {{d}}/lake", "on which backend? Name it last"),
    (f"bisect last:{CASE} nobody --versions 1..2 --results {{d}}/lake", "it ran on torch-cpu"),
    (f"bisect {CASE} nobody --versions 1..2 --results {{d}}/lake", "it ran on torch-cpu"),
    ("bisect x --versions 1..2 --results {d}/lake", "on which backend? farm bisect x BACKEND"),
    (f"reproduce last:{CASE} --results {{d}}/lake", f"on which backend? Name it last, '{RUN}:{CASE}:torch-cpu'"),
    (f"reproduce last:{CASE}:torch-cpu --results {{d}}/empty", "no runs in"),
    (f"reproduce last:{CASE}:torch-cpu --results ''", "name a directory or a URI"),
    (f"reproduce gone:{CASE}:torch-cpu --results {{d}}/lake", f"there is {RUN}"),
    ("reproduce last:forward/torch:ad/float32/0:torch-cpu --results {d}/lake", f"did you mean {CASE}"),
    (f"reproduce last:{CASE}:ort-cpu --results {{d}}/lake", "it ran on torch-cpu"),
    (f"reproduce last:{CASE}:torch-cpu --results {{d}}/lake", "holds no config of this version"),
    # localise, harvest
    ("localise", "the following arguments are required: key"),
    ("localise x", "'x' is no key: a key is run_id:case_id:backend"),
    (f"localise last:{CASE}:torch-cpu --results {{d}}/empty", "no runs in"),
    (f"localise last:{CASE}:torch-cpu --results ''", "name a directory or a URI"),
    (f"localise gone:{CASE}:torch-cpu --results {{d}}/lake", f"there is {RUN}"),
    (f"localise last:{CASE}:ort-cpu --results {{d}}/lake", "it ran on torch-cpu"),
    (f"localise last:{CASE}:torch-cpu --results {{d}}/lake", "holds no config of this version"),
    (f"localise last:{CASE}:torch-cpu --results {{d}}/lake --seconds 0", "--seconds: 0 is no time"),
    (f"localise last:{CASE}:torch-cpu --results {{d}}/lake --seconds nan", "--seconds: nan is no time"),
    (f"localise last:{CASE}:torch-cpu --results {{d}}/lake --seconds soon", "a number is needed, not 'soon'"),
    ("init harvest", "the following arguments are required: --out"),
    ("init harvest --out {d}/new", "name models of the catalog (basic_pitch, "),
    ("init harvest ppocr --out {d}/new", "the catalog models has no 'ppocr'; did you mean ppocr_"),
    ("init harvest resnet50 --samples 0 --out {d}/new", "--samples: at least 1, not 0"),
    ("init harvest resnet50 --mib 0 --out {d}/new", "--mib: 0 is no room"),
    ("init harvest resnet50 --mib nan --out {d}/new", "--mib: nan is no room"),
    ("init harvest resnet50 --mib much --out {d}/new", "a number is needed, not 'much'"),
    ("init harvest --model {d}/file --out {d}/new", "1 --model and 0 --inputs: give one --inputs for each --model"),
    ("init harvest --model {d}/none.onnx --inputs {d}/none.npz --out {d}/new", "none.onnx: no such file"),
    ("init harvest --model {d}/file --inputs {d}/file --out {d}/new", "no ONNX model"),
    ("init harvest --run x --results {d}/lake --out {d}/new", f"there is {RUN}"),
    ("init harvest --run last --results {d}/empty --out {d}/new", "no runs in"),
    ("init harvest --run last --results {d}/lake --out {d}/new", "has located no culprit"),
    # rejudge, calibrate, selftest
    ("rejudge", "the following arguments are required: --policy"),
    ("policy rejudge --policy ''", "policy"),
    ("policy rejudge --policy clasic --results {d}/lake", "known policies: absolute, classic"),
    ("policy rejudge --policy {d}/none.json --results {d}/lake", "no such file"),
    ("policy rejudge --policy {d}/bad.json --results {d}/lake", "bad.json"),
    ("policy rejudge --policy {d}/list.json --results {d}/lake", "list.json"),
    ("policy rejudge --policy classic --results {d}/empty", "no runs in"),
    ("policy rejudge --policy classic --results ''", "name a directory or a URI"),
    ("policy rejudge --policy classic --results {d}/lake --run x", "no run 'x'"),
    ("policy rejudge --policy classic --results {d}/lake --out x.txt", "a .parquet or a .csv file"),
    ("policy rejudge --policy classic --results {d}/lake --out {d}/file/x.csv", "/file"),
    ("calibrate", "the following arguments are required: --backends"),
    ("policy calibrate --backends '' --results {d}/lake", "backends"),
    ("policy calibrate --backends nobody --results {d}/lake", "nobody"),
    ("policy calibrate --backends torch-cpu --results {d}/empty", "no runs in"),
    ("policy calibrate --backends torch-cpu --quantile x", "a number is needed, not"),
    ("policy calibrate --backends torch-cpu --quantile 2 --results {d}/lake", "quantile"),
    ("policy calibrate --backends torch-cpu --policy clasic --results {d}/lake", "known policies: absolute, classic"),
    ("policy calibrate --backends torch-cpu --op x --results {d}/lake", "--op"),
    ("policy calibrate --backends torch-cpu --out x.yaml --results {d}/lake", "a .json file"),
    ("policy selftest --ops nothing", "nothing"),
    ("policy selftest --policy clasic", "known policies: absolute, classic"),
    # gradcheck
    ("training gradcheck", "name an op, or ask for --table"),
    ("training gradcheck nothing", "nothing"),
    ("training gradcheck softmx", "softmax"),
    ("training gradcheck softmax --samples 0", "--samples: at least 1, not 0"),
    ("training gradcheck softmax --dtype flaot64", "flaot64"),
    ("training gradcheck softmax --backend trch-cpu", "trch-cpu"),
    ("training gradcheck --table --results {d}/empty", "no runs in"),
    # envs, backends, node, init
    ("doctor cuda", "unknown backend 'cuda'; did you mean"),
    ("doctor {d}/d.yaml", "no such file"),
    ("doctor envs", "the following arguments are required: command"),
    ("doctor envs buidl", "invalid choice: 'buidl'"),
    ("doctor envs build", "the following arguments are required"),
    ("doctor envs build trch-cpu", "did you mean torch-cpu"),
    ("doctor envs build {d}/d.yaml", "no such file"),
    ("doctor envs remove", "nothing to remove"),
    ("doctor envs remove nothing", "no environment 'nothing'"),
    ("doctor envs remove nothing --all", "--all and nothing: give one of the two"),
    ("doctor --list trch-cpu", "did you mean torch-cpu"),
    ("doctor --list {d}/d.yaml", "no such file"),
    ("doctor --list ''", "unknown backend ''"),
    ("node start", "one of the arguments --head --address is required"),
    ("node start --address :::: --dry-run", "--address '::::': write HOST:PORT, which ray start --head prints"),
    ("node start --address head:99999 --dry-run", "--address 'head:99999': the port is one of 1 to 65535"),
    ("node start --address head:0 --dry-run", "--address 'head:0': the port is one of 1 to 65535"),
    ("node start --address fe80::1:6379 --dry-run", "which ray start --head prints; of IPv6 write [HOST]:PORT"),
    ("reproduce last:x --script", "argument --script: expected one argument: FILE; it is --out FOLDER now"),
    ("node start --head --vendor amdd --dry-run", "unknown vendor 'amdd'; known: nvidia, amd"),
    ("node start --head --vendor amd=x --dry-run", "amd=x"),
    ("node start --head --labels x --dry-run", "--labels x: NAME=VALUE"),
    ("node start --head --resources x --dry-run", "a JSON object of numbers"),
    ("node start --head --resources '[1]' --dry-run", "a JSON object of numbers"),
    ("node start --head --num-gpus x --dry-run", "a whole number is needed, not"),
    ("node detect --what", "unrecognized arguments"),
    ("init", "the following arguments are required: DIR"),
    ("init {d}", "the directory is not empty"),
    ("init {d}/file", "file"),
    ("init {d}/file/x", "file"),
    ("init /proc/x", "/proc/x"),
]

#: (config, what is said after its path): mistakes that the tables of the config's own tests do not have.
CONFIGS: list[tuple[str, str]] = [
    (
        "catalogs: [{name: torch, ops: []}]\nbackends: [torch-cpu]\n",
        "1:26: catalogs.0.ops: it is empty: name at least one",
    ),
    ("catalogs: 3\nbackends: [torch-cpu]\n", "1:1: catalogs: a list is needed"),
    ("catalogs: [3]\nbackends: [torch-cpu]\n", "1:12: catalogs.0: keys and values are needed"),
    ("catalogs: [{}]\nbackends: [torch-cpu]\n", "1:12: catalogs.0.name: Field required: add the key name"),
    ("catalogs: [torch]\nbackends: torch-cpu\n", "2:1: backends: a list is needed"),
    ("catalogs: [torch]\nbackends: [3]\n", "2:12: backends.0: keys and values are needed"),
    ("catalogs: [torch]\nbackends: [{like: ort-cpu}]\n", "2:12: backends.0: no name is given"),
    (
        "catalogs: [torch]\nbackends: [{like: ort-cpu, packages: [onnxruntime]}]\n",
        "2:12: backends.0: no name is given, and none follows from ort-cpu and a version: the first package, "
        "'onnxruntime', has no version (NAME==VERSION); add a name",
    ),
    (
        "catalogs: [torch]\nbackends: [{like: ort-cpu, packages: ['= =']}]\n",
        "2:12: backends.0: '= =' is no pip requirement",
    ),
    (
        "catalogs: [torch]\nbackends: [{name: a, like: ort-cpu, packages: x}]\n",
        "2:37: backends.0.packages: a list is needed",
    ),
    ("catalogs: [torch]\nbackends: [{name: torch-cpu, memory_gib: 0}]\n", "2:30: backends.0.memory_gib: "),
    (
        "catalogs: [torch]\nbackends: [{name: torch-cpu, python: 3.1}]\n",
        "2:30: backends.0.python: a Python version in quotes",
    ),
    (
        "catalogs: [torch]\nbackends: [{name: torch-cpu, labels: [a]}]\n",
        "2:30: backends.0.labels: keys and values are needed",
    ),
    (GOOD + "seed: x\n", "3:1: seed: "),
    (GOOD + "name: 3\n", "3:1: name: text is needed, not 3; put it in quotes"),
    (GOOD + "name:\n", "3:1: name: text is needed; it is empty: give one or leave it out"),
    (GOOD + "race_s:\n", "3:1: race_s: Input should be a valid number; it is empty: give one or leave it out"),
    (
        GOOD + "skip: [~]\n",
        "3:8: skip.0: keys and values are needed, e.g. {name: …}; it is empty: give one or leave it out",
    ),
    (GOOD + "checks:\n", "3:1: checks: a list is needed, e.g. [a, b]; it is empty: give one or leave it out"),
    (GOOD + "checks: forward\n", "3:1: checks: a list is needed"),
    (GOOD + "skip: [torch]\n", "3:8: skip.0: keys and values are needed"),
    (GOOD + "skip: {ops: [abs]}\n", "3:1: skip: a list is needed"),
    (GOOD + "known_failures: none.yaml\n", "3:1: known_failures: "),
    (GOOD + "known_failures: [{op: abs, reason: r, status: bad}]\n", "3:39: known_failures.0.status: "),
    (GOOD + "known_failures: [known.yaml]\n", "3:1: known_failures: {d}/known.yaml:2:4: status: Input should be "),
    (GOOD + "include: [none.yaml]\n", "3:11: include.0: no such file"),
    ("catalogs: [nodes]\nbackends: [ort-cpu]\n", "1:12: catalogs.0"),
    (GOOD + "node_wait_s: -1\n", "3:1: node_wait_s: "),
    (GOOD + "deadline_s: soon\n", "3:1: deadline_s: "),
]


def table(test: Any) -> list[tuple[Any, ...]]:
    """The rows of a parametrized test."""
    return list(test.pytestmark[0].args[1])


OTHERS = [
    *((text, f"{place}", says) for text, place, says in table(test_config.test_a_bad_config_is_refused_at_its_place)),
    *table(test_user_config.test_mistakes_that_show_without_importing),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the rows are about."""
    d = tmp_path_factory.mktemp("bad")
    for name, text in {
        "c.yaml": GOOD,
        "other.yaml": GOOD,
        "nodes.yaml": "catalogs: [{name: nodes, path: none}]\nbackends: [ort-cpu]\n",
        "file": "x",
        "net.py": "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n",
        "bad.json": "{",
        "list.json": "[]",
        "known.yaml": "- {op: abs, reason: r}\n- {status: bad, op: abs, reason: r}\n",
        "ours.yaml": "- {op: abs, backend: ort-cpu, status: wrong, reason: r}\n",
        "k.py": test_user_config.KERNELS,
    }.items():
        (d / name).write_text(text)
    (d / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (d / "empty").mkdir()
    records = {
        "lake": json.dumps({"run_id": RUN, "name": "c", "ops": [], "policy": {}}),
        "damaged": "{",
        "foreign": "[]",
        "old": json.dumps({"run_id": RUN, "name": "c", "ops": [], "policy": {}, "config": {"catalogs": 3}}),
    }
    for where, text in records.items():
        folder = d / where / f"run={RUN}"
        folder.mkdir(parents=True)
        (folder / "_run.json").write_text(text)
    row = make_row("pass", run_id=RUN) | {"case_id": CASE, "op_class": "exact"}
    part = pa.Table.from_pylist([row], schema=lake.SCHEMA)
    pq.write_table(part, d / "lake" / f"run={RUN}" / "part-0.parquet")
    yield d


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Standard error of a command that must end with 2: a line or a few, the last of them an error or a usage."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    assert code == BAD_INPUT, (arguments, code, said)
    assert "Traceback" not in said.out + said.err
    assert re.search(r"^(error: |usage: farm )", said.err, re.M), said.err
    return said.err


@pytest.mark.parametrize(("line", "says"), LINES)
def test_a_bad_command_line(
    line: str, says: str, world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world / "empty")
    assert says in refused(capsys, shlex.split(line.replace("{d}", str(world))))
    assert not list((world / "empty").iterdir())


@pytest.mark.parametrize(("text", "says"), CONFIGS)
def test_a_bad_config(text: str, says: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (world / "bad.yaml").write_text(text)
    said = refused(capsys, ["run", str(world / "bad.yaml"), "--results", str(world / "new")])
    assert f"{world}/bad.yaml:{says.replace('{d}', str(world))}" in said
    assert not (world / "new").exists()


@pytest.mark.parametrize(("text", "place", "says"), OTHERS)
def test_what_a_config_is_refused_for_ends_the_command(
    text: str | bytes, place: str, says: str, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (world / "bad.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    said = refused(capsys, ["run", str(world / "bad.yaml"), "--results", str(world / "new")])
    assert f"error: {world}/bad.yaml:{place}" in said and says in said


def test_there_are_two_hundred() -> None:
    rows = (
        len(LINES)
        + len(CONFIGS)
        + len(OTHERS)
        + len(table(test_include.test_what_does_not_fit_is_refused_at_its_place))
    )
    assert rows >= 200
