"""What the README and the pages of docs/ show works as it stands there: commands, configs, code, links, tables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from farm import lake
from farm.plan import config, config_schema
from tasks.model import Status
from tasks.model.kind import OF_WRONG
from tests import prepared
from tests.conftest import PLUGIN, ROOT, launch

README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [
    *(README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"),
    *PAGES,
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]

HOW_TOS = [page for page in PAGES if page.read_text().startswith("# How to: ")]

SMALL = "--ops log_softmax,softmax --dtypes float16,float32 --backends torch-cpu,ort-cpu --on inline"
CASE = "last:forward/torch:log_softmax/float16/4:torch-cpu"
#: How the test runs a command whose whole would take minutes: the same command on fewer cells, without a cluster.
RUN_AS = {
    "farm run configs/quick.yaml": f"farm run configs/quick.yaml {SMALL}",
    "farm run configs/quick.yaml --dry-run": "farm run configs/quick.yaml --dry-run --backends torch-cpu,ort-cpu --on inline",
    "farm run configs/quick.yaml --ops '*softmax,gelu' --dtypes float32,float16 --backends torch-cpu,ort-cpu": (
        "farm run configs/quick.yaml --ops '*softmax,gelu' --dtypes float32,float16 --backends torch-cpu,ort-cpu"
        " --samples 1 --on inline --results other"
    ),
    "farm run configs/zoo.yaml --ops '*leaky_relu*' --results zoo": (
        "farm run configs/zoo.yaml --ops '*leaky_relu*' --samples 1 --on inline --results zoo"
    ),
    "farm run configs/emulated.yaml": (
        "farm run configs/emulated.yaml --ops linear --dtypes float16 --backends emulated-volta,emulated-cdna3 --on inline --results emulated"
    ),
    "farm run configs/training.yaml": (
        "farm run configs/training.yaml --ops convolution --dtypes float32 --on inline --results training"
    ),
    "farm run examples/own_ranks/farm.yaml": "farm run examples/own_ranks/farm.yaml --on inline --results ranks",
    "farm run examples/own_engine/farm.yaml": "farm run examples/own_engine/farm.yaml --on inline --results engine",
    "farm run configs/top50.yaml": "farm run configs/top50.yaml --ops softmax --samples 1 --backends torch-cpu --on inline --results course",
    "farm run configs/roundtrip.yaml": "farm run configs/roundtrip.yaml --backends ort-cpu --on inline --results course",
    "farm run configs/speedup.yaml": "farm run configs/speedup.yaml --ops softmax --backends torch-cpu --on inline --results course",
    "farm run configs/training_step.yaml": (
        "farm run configs/training_step.yaml --ops bert_base.small --dtypes float32 --backends torch-cpu --on inline --results course"
    ),
    "farm run configs/parity.yaml": "farm run configs/parity.yaml --backends torch-cpu,ort-cpu --on inline --results course",
    "farm report --case forward/critical:bert_encoder/float32/0": (
        "farm report --case forward/critical:bert_encoder/float32/0 --results course"
    ),
    "farm run --resume last": "farm run --resume last --on inline",
    "farm run mine/farm.yaml": "farm run mine/farm.yaml --samples 1 --on inline --results own",
    "farm run examples/leaderboard": "farm run examples/leaderboard --samples 1 --checks forward --on processes --results board",
    "farm training gradcheck nn.functional.gelu --plot gelu.png": "farm training gradcheck nn.functional.relu --plot relu.png --samples 1",
    "farm doctor --list configs/quick.yaml": "farm doctor --list torch-cpu torch-cuda",
    "farm fuzz configs/fuzz.yaml --seconds 600": (
        "farm fuzz configs/fuzz.yaml --cases 40 --backends ort-cpu --on inline --results fuzzed"
    ),
    "farm fuzz --seconds 60 --ops 'Reduce*' --backends ort-cpu,openvino-cpu --seed 7": (
        "farm fuzz --cases 40 --ops 'Reduce*' --backends ort-cpu --seed 7 --on inline --results fuzzed"
    ),
    "farm fuzz --resume last": "farm fuzz --resume last --cases 41 --on inline --results fuzzed",
    "farm fuzz configs/fuzz.yaml --seconds 600 --ops '*+'": (
        "farm fuzz configs/fuzz.yaml --cases 20 --ops 'Conv+' --backends ort-cpu --on inline --results fuzzed"
    ),
    "farm fuzz configs/fuzz.yaml --seconds 600 --ops graph": (
        "farm fuzz configs/fuzz.yaml --cases 20 --ops graph --backends ort-cpu --on inline --results fuzzed"
    ),
    "farm node screen torch-cpu --seconds 60": "farm node screen torch-cpu --seconds 1 --on inline --results screened",
    "farm fingerprint torch-cpu": "farm fingerprint torch-cpu --ops sum --dtypes float32 --on inline --results passports",
    "farm fingerprint torch-cpu ort-cpu --ops matmul linear --dtypes float32 --tree": (
        "farm fingerprint ort-cpu --ops sum --dtypes float32 --tree --on inline --results passports"
    ),
    "farm fingerprint torch-cpu --kept --json": "farm fingerprint torch-cpu --kept --json --results passports",
    "farm fingerprint --diff torch-cpu ort-cpu": "farm fingerprint --diff torch-cpu ort-cpu --results passports",
    "farm doctor": "farm doctor torch-cpu torch-cuda",
    "farm doctor configs/vendors.yaml": "farm doctor ort-cpu iree-vulkan",
}
#: Commands, by their beginning, that the test does not run, and why.
NOT_RUN = {
    "git clone": "the test runs in a clone",
    "source ": "the test runs in the environment",
    "make ": "make test runs this test; CI runs make setup and lint; test_the_site_builds is make docs",
    "pytest mine": "tests/farm/test_init.py runs it",
    "pip install --no-deps": "tests/farm/test_plugins.py installs the example",
    "farm doctor --list example-cpu": "tests/farm/test_plugins.py runs it where the example is installed",
    "farm run examples/plugin": "tests/farm/test_plugins.py runs it where the example is installed",
    "python -m tests.bench": "minutes; the benches have tests of their own",
    "farm node screen --": "needs devices; tests/farm/test_screen.py has planted ones",
    "farm init harvest 'ppocr_*'": "fetches wheels; tests/tasks/test_harvest.py harvests",
    "farm init harvest --model": "tests/tasks/test_harvest.py harvests such a model",
    "farm init harvest --run": "needs a culprit; tests/tasks/test_harvest.py has one",
    "farm run --model mine.onnx": "needs a model; tests/farm/test_own_model.py has one",
    "farm run --model net.py": "needs a model; tests/farm/test_own_model.py has such",
    "farm run --model model.py:Model": "needs a model; tests/own_models has eighty",
    "farm run configs/first_contact.yaml --budget 10m": "needs a device; tests/farm/test_planted_vendors.py runs planted ones",
    "farm run configs/cuda.yaml": "needs a GPU; tests/farm/test_own_devices.py runs planted ones",
    "farm bisect": "an environment a version; tests/farm/test_bisect.py finds a planted release",
    "farm doctor envs build": "gigabytes; tests/farm/test_envs.py builds a small one",
    "farm doctor envs remove KEY": "tests/farm/test_envs.py removes one",
    "farm run configs/versions.yaml": "ten environments; tests/farm/test_heterogeneous.py runs two versions",
    "farm fingerprint configs/versions.yaml": "ten environments; tests/farm/test_fingerprint.py names a config",
    "farm fingerprint --diff openvino-cpu@2024.6.0": "needs the run before it",
    "python -m tasks.backends.checkpoint_of_decoder": "tests/tasks/test_engine_endpoint.py serves such a checkpoint",
    "llama-server": "needs llama.cpp; tests/tasks/test_engine_endpoint.py serves as it does",
    "vllm serve": "needs vLLM and its device; tests/tasks/test_packaged_engines.py has its interface",
    "python -m tests.devices.products": "tests/tasks/test_matrix_units.py recomputes recorded rows",
    "python -m tests.devices.exceptions": "tests/tasks/test_exceptions.py judges a product of each kind",
    "farm minimise last:forward/onnx:Split": "needs ncnn's crash; tests/farm/test_minimise.py has planted ones",
    "farm minimise 13679457532755275413": "needs a run that has the seed; tests/farm/test_client.py has one",
    "farm minimise --model": "needs a model; tests/farm/test_minimise.py has one",
    "farm training gradcheck my.py": "needs a file; tests/farm/test_gradcheck.py has one",
    "farm training gradcheck softmax": "needs a farm.yaml; tests/farm/test_gradcheck.py has one",
    "farm training gradcheck --table": "needs a run with the check backward; tests/farm/test_gradcheck.py has one",
    "farm training loss train.py:make": "needs a file; tests/farm/test_loss.py has one",
    "farm report --diff ort-cpu@1.20.1": "needs the run before it",
    "farm report --diff previous": "tests/farm/test_vendor_view.py compares two runs",
    "farm report s3://": "tests/farm/test_lake.py has an S3 server",
    "farm report site s3://": "tests/farm/test_lake.py has an S3 server",
    "farm node start --head": "starts a cluster; tests/farm/test_cluster.py does",
    "RAY_AUTH_MODE=token": "needs a cluster; tests/farm/test_cluster.py has one",
}
#: Exit code 1 of these says that something was found, or is otherwise than it was stored.
FINDS = re.compile(
    "farm run|farm fuzz|farm policy rejudge|farm gate|farm verify|farm known check|farm report --(diff|checklist)|farm reproduce .* --backend"
)

#: Exit code 3 of these says that not everything is proved: the session is a small run on CPUs.
UNPROVED = re.compile("farm report --checklist")

#: Runs the command lines on stdin in one process, each with its output kept apart.
RUNNER = """
import contextlib, io, json, shlex, sys, traceback
from farm.__main__ import main

done = []
for line in json.load(sys.stdin):
    out = io.StringIO()
    words = shlex.split(line.partition(" > ")[0])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(words[1:])
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = -1
    done.append((line, code, out.getvalue()))
json.dump(done, sys.__stdout__)
"""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands() -> Iterator[tuple[Path, str]]:
    """Every command of a page; those of the how-tos, which have files of their own, are walked in
    tests/test_howtos.py."""
    for page in (page for page in TEXTS if page not in HOW_TOS):
        for block in blocks(page.read_text(), "console"):
            for line in block.splitlines():
                assert line.startswith("$ "), f"{page.name}: {line}"
                yield page, line[2:].partition("  #")[0].partition(" # ")[0].strip()


def not_run(command: str) -> bool:
    return any(command.startswith(start) for start in NOT_RUN) and command not in RUN_AS


@dataclass(frozen=True)
class Session:
    """A directory with the results of one small run in it, and what each command of the pages gave there."""

    folder: Path
    done: dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Every command of the pages in the order of the pages, in one process, after the README's first run."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    first = RUN_AS["farm run configs/quick.yaml"]
    lines = list(dict.fromkeys([first, *(RUN_AS.get(c, c) for _, c in commands() if not not_run(c))]))
    assert all(line.startswith("farm ") for line in lines), "say in NOT_RUN why the others are not run"
    ended = prepared.run(
        [sys.executable, "-c", RUNNER], input=json.dumps(lines), cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode == 0, ended.stderr
    return Session(folder, {line: (code, said) for line, code, said in json.loads(ended.stdout.splitlines()[-1])})


@pytest.mark.nightly
def test_every_command_runs(session: Session) -> None:
    bad = [
        f"$ {line}\nexit code {code}\n{said[-2000:]}"
        for line, (code, said) in session.done.items()
        if code != 0 and not (code == 1 and FINDS.match(line)) and not (code == 3 and UNPROVED.match(line))
    ]
    assert not bad, "\n".join(bad)


def test_commands_stand_in_console_blocks() -> None:
    """A command in a block of another kind is one that no test runs. (`$(…)` of a shell script is no prompt.)"""
    others = [
        f"{page.name}: {line}"
        for page in TEXTS
        for language, block in re.findall(r"```(\w*)\n(.*?)```", page.read_text(), re.S)
        for line in block.splitlines()
        if language != "console" and re.match(r"(\$ |farm [a-z]+ |python -m farm|podman |- run: farm )", line)
    ]
    assert not others


def test_the_lists_of_commands_are_in_use() -> None:
    """A command that no page shows any more leaves these lists."""
    shown = [command for _, command in commands()]
    assert not [c for c in RUN_AS if c not in shown]
    assert not [start for start in NOT_RUN if not any(c.startswith(start) for c in shown)]


#: Commands of the stories of training and serving, what is said of each, and the answer of a question.
STORIES = {
    "farm run examples/own_ranks/farm.yaml": (1, ("own gradients", "rank 3: 2.weight")),
    "farm run examples/own_engine/farm.yaml": (1, ("padded_left differs from the usual way in 72 of",)),
    "farm loss gpt --steps 20": (0, ("Normal at step 19: a difference of up to",)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("command", STORIES)
def test_the_stories_end_as_the_pages_tell_them(command: str, session: Session) -> None:
    code, said = session.done[RUN_AS.get(command, command)]
    assert code == STORIES[command][0], said
    assert all(words in " ".join(said.split()) for words in STORIES[command][1]), said


@pytest.mark.nightly
def test_the_code_of_the_pages_runs(session: Session) -> None:
    shown = [b for page in PAGES for b in blocks(page.read_text(), "python") if ">>> " in b]
    code = "\n".join(line[4:] for block in shown for line in block.splitlines() if line.startswith(">>> "))
    assert "coverage(rows" in code and "diff(rows" in code
    done = prepared.run([sys.executable, "-c", code], cwd=session.folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_the_first_finding_is_as_the_readme_shows_it(session: Session) -> None:
    shown = next(b for b in blocks(README.read_text(), "text") if b.startswith("stored "))
    code, said = session.done[f"farm reproduce '{CASE}'"]
    assert code == 0
    now = {_words(line) for line in said.splitlines()}
    assert not [line for line in shown.splitlines() if line != "…" and _words(line) not in now]


def _words(line: str) -> str:
    """A line without its measured numbers, which another processor computes otherwise, and without dates."""
    label = line[:14].strip()
    exact = label not in ("stored", "actual", "noise floor", "ulps", "difference", "expected", "worst")
    return " ".join(line.split()) if exact else label


def test_the_backend_of_the_pages_runs(tmp_path: Path, results: Path) -> None:
    (source,) = [b for b in blocks((ROOT / "docs" / "plugins.md").read_text(), "python") if "class OnnxPython" in b]
    (tmp_path / "onnx_python.py").write_text(source)
    info = tmp_path / "onnx_python-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onnx_python\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[farm.backends]\nonnx_python = onnx_python:OnnxPython\n")
    file = tmp_path / "c.yaml"
    catalog = {"name": "onnx", "ops": ["Relu", "Softmax"], "dtypes": ["*"], "samples": 1}
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": ["onnx_python-cpu", "onnx_python-npu"]}))
    path = os.pathsep.join([str(tmp_path), str(PLUGIN), str(ROOT)])
    done = launch(file, "--on", "inline", "--results", results, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert set(rows["backend"]) == {"onnx_python-cpu"}
    assert (rows["status"] == "pass").all()
    assert "runs only on the CPU, not on npu" in done.stdout


def test_the_config_of_the_pages_is_valid(tmp_path: Path) -> None:
    (text,) = blocks((ROOT / "docs" / "config.md").read_text(), "yaml")
    (tmp_path / "c.yaml").write_text(text)
    assert config.load_config(tmp_path / "c.yaml").known_failures


def test_every_key_is_explained() -> None:
    """By its own description, of which the tables of the pages are made."""
    kinds = [kind for kind in vars(config_schema).values() if isinstance(kind, type) and issubclass(kind, BaseModel)]
    fields = {f"{kind.__name__}.{key}": field for kind in kinds for key, field in kind.model_fields.items()}
    assert len(fields) > 80 and not [key for key, field in fields.items() if not field.description]


def test_every_part_of_a_config_has_its_table() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    shown = {part for part in re.findall("<!-- table: keys of an? (.+?) -->", pages)}
    assert shown >= {"run", "catalog", "model", "backend", "known failure", "gate", "kernel", "input"}


def test_every_status_is_explained() -> None:
    page = rendered("statuses.md")
    for status in Status:
        assert f"| `{status}` |" in page


#: Where a kind of wrong is written out.
KIND = re.compile(r'(?:Misbehaviour\(|Status\.WRONG, )\s*"([a-z_ ]+)"')


def find_unexplained_kinds(source: str) -> list[str]:
    return [kind for kind in KIND.findall(source) if kind not in OF_WRONG]


def test_every_kind_of_wrong_is_explained() -> None:
    sources = [file.read_text() for file in (ROOT / "tasks").rglob("*.py") if "zoo" not in file.parts]
    assert sum(len(KIND.findall(source)) for source in sources) > 10
    assert not [kind for source in sources for kind in find_unexplained_kinds(source)]
    assert find_unexplained_kinds('raise Misbehaviour("new kind", "…")') == ["new kind"]


def test_the_shipped_configs_are_valid() -> None:
    for path in (ROOT / "configs").glob("*.yaml"):
        config.load_config(path)


def test_the_readme_leads_to_every_page() -> None:
    text = README.read_text()
    assert not [p.name for p in PAGES if p.name != "index.md" and f"(docs/{p.name})" not in text]


def test_the_site_builds(tmp_path: Path) -> None:
    """Strict: a link or an anchor that leads nowhere ends it, as does a page that is in no menu."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "lake.html").read_text()
    assert all(name in text for name in lake.SCHEMA.names) and "table: " not in text
    assert_search_needs_no_server(tmp_path / "search")


def assert_search_needs_no_server(folder: Path) -> None:
    """The search finds a page where there is neither a worker nor anything to fetch, as in a browser that reads from
    disk."""
    import quickjs

    scripts = [(folder / name).read_text() for name in ("lunr.js", "search_index.js", "main.js")]
    context = quickjs.Context()
    context.eval(DOCUMENT)
    context.set("lunr_js", scripts[0])
    context.set("index_js", scripts[1])
    context.eval(scripts[2])
    found = json.loads(context.eval("JSON.stringify(links)"))
    assert "verdict_witnesses.html#bias" in found, found[:5]


#: As much of a browser as the search asks for; a script that is added is run at once.
DOCUMENT = """
var base_url = ".", links = [], window = globalThis, location = {search: "?q=bias"};
globalThis.URLSearchParams = function () { this.get = function () { return "bias"; }; };
function element(name) {
  return {name: name, children: [], getAttribute: function () { return null; }, addEventListener: function () {},
    append: function () { this.children.push.apply(this.children, arguments); },
    appendChild: function (child) { this.children.push(child); note(child); }};
}
function note(child) { if (child.href) links.push(child.href.slice(2)); }
var fields = {"mkdocs-search-results": element("div"), "mkdocs-search-query": element("input")};
var document = {createElement: element, getElementById: function (name) { return fields[name]; }, head: {appendChild: function (script) {
  (0, eval)(script.src.indexOf("lunr") > 0 ? lunr_js : index_js);
  script.onload();
}}};
"""


def test_links_and_paths_lead_somewhere() -> None:
    for page in TEXTS:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"
        for path in re.findall(r"`((?:farm|tasks|tests|configs|examples|docs)/[\w./-]*)`", text):
            assert "NAME" in path or (ROOT / path).exists(), f"{page.name}: {path}"


#: The exercises of the page on framework validation, in its order: the bench whose figures each answer has.
EXERCISES = ("top50", "roundtrip", "faster", "training", "parity")


def test_the_answers_of_the_exercises_are_measured() -> None:
    """Every figure of an answer is one that its bench kept."""
    kept = json.loads((ROOT / "docs" / "measured.json").read_text())
    page = (ROOT / "docs" / "framework_validation.md").read_text()
    rows = re.findall(r"^\| (.+) \| (.+) \|$", page.partition("## The steps")[0], re.M)[1:]
    assert len(rows) == len(EXERCISES)
    for (question, answer), bench in zip(rows, EXERCISES):
        figures = re.findall(
            r"(?<![\w-])\d[\d.]*(?:e-\d+)?(?!\w)", answer.replace("float32", "").replace("float16", "")
        )
        missing = [x for x in figures if x not in re.findall(r"\d[\d.]*(?:e-\d+)?", kept[bench]["text"])]
        assert figures and not missing, f"{question}: {missing} not in {kept[bench]['text']}"


def test_every_bench_of_the_figures_says_where_they_come_from() -> None:
    for name, bench in json.loads((ROOT / "docs" / "measured.json").read_text()).items():
        assert set(bench) == {"command", "when", "machine", "figures", "text"}, name
        assert all(isinstance(value, int | float) for value in bench["figures"].values()), name


def rendered(page: str) -> str:
    """A page with its tables in it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; sys.path.insert(0, 'docs'); import _generate;"
            f"print(_generate.on_page_markdown(pathlib.Path('docs/{page}').read_text()))",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return done.stdout
