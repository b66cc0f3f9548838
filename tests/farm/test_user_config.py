"""Kernels of a config: mistakes with file, line, column and key; runs, resumption and reproduction find them again."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from farm import lake
from farm.commands.reproduce import main as reproduce
from farm.commands.run import main
from farm.exits import BAD_INPUT, FOUND, OK
from farm.plan import kernels as user
from farm.plan.config import Config, ConfigError, load_config
from tasks.catalogs import user_definitions
from tests.conftest import here

KERNELS = """
import tasks

def right(x): return 2 * x
def double(x): return x * 2
def triple(x): return x * 3
NUMBER = 3

@tasks.op(reference=right, inputs={"x": ["n"]}, dims={"n": [3, 9]}, dtypes=["float16"])
def twice(x): return x + x
"""
HEAD = "catalogs:\n- name: user\n  samples: 2\n"
DEADLY = """
import os, time
def right(x): return 2 * x
def double(x): return x * 2
def dies(x): os.kill(os.getpid(), 11)
def hangs(x): time.sleep(600)
"""
TAIL = "backends: [torch-cpu]\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "k.py").write_text(KERNELS)
    return tmp_path / "c.yaml"


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run of this process announces does not outlive the test."""
    monkeypatch.setattr(user_definitions, "_told", [""])


def kernel(**changes: str) -> str:
    """One kernel as a line of a config (line 5, in column 3)."""
    fields = {
        "name": "op",
        "kernel": '"k.py:double"',
        "reference": '"k.py:right"',
        "dims": "{n: [1, 40]}",
        "inputs": "{x: [n]}",
    } | changes
    return "  - {" + ", ".join(f"{k}: {v}" for k, v in fields.items()) + "}\n"


def write(config: Path, *kernels: str, modules: str = "", end: str = "") -> Path:
    config.write_text(
        HEAD
        + (f"  modules: [{modules}]\n" if modules else "")
        + ("  kernels:\n" + "".join(kernels) if kernels else "")
        + TAIL
        + end
    )
    return config


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        (HEAD + TAIL, "2:3", "catalogs.0: the catalog user needs modules (with @farm.op) or kernels"),
        (
            "catalogs: [{name: torch, modules: [k.py]}]\n" + TAIL,
            "1:26",
            "catalogs.0.modules: only the catalog user takes kernels",
        ),
        (HEAD + "  modules: [j.py]\n" + TAIL, "4:13", "catalogs.0.modules.0: no such file"),
        (HEAD + "  modules: [k.py, no.where]\n" + TAIL, "4:19", "no module 'no.where'"),
        (
            HEAD + "  kernels:\n" + kernel(klass="exact") + TAIL,
            "5:102",
            "catalogs.0.kernels.0.klass: unknown key; did you mean class",
        ),
        (
            HEAD + "  kernels:\n" + kernel(**{"class": "exakt"}) + TAIL,
            "5:102",
            "kernels.0.class: unknown class 'exakt'; did you mean exact?",
        ),
        (
            HEAD + "  kernels:\n" + kernel(inputs="{x: [n, m]}") + TAIL,
            "5:100",
            "kernels.0.inputs.x.1: unknown dimension 'm'",
        ),
        (HEAD + "  kernels:\n" + kernel(dims="{n: []}") + TAIL, "5:71", "kernels.0.dims.n: has no candidates"),
        (HEAD + "  kernels:\n" + kernel(dims="{n: [4, 0]}") + TAIL, "5:78", "kernels.0.dims.n.1: 0 is no size"),
        (HEAD + "  kernels:\n" + kernel(dims="{n: [-1]}") + TAIL, "5:75", "kernels.0.dims.n.0: -1 is no size"),
        (
            HEAD + "  kernels:\n" + kernel(dtypes="[float32, float23]") + TAIL,
            "5:120",
            "unknown dtype 'float23'; did you mean float32",
        ),
        (
            HEAD + "  kernels:\n" + kernel(invariants="[no_nans]") + TAIL,
            "5:115",
            "unknown invariant 'no_nans'; did you mean no_nan",
        ),
        (
            HEAD + "  kernels:\n" + kernel() + kernel() + TAIL,
            "6:6",
            "kernels.1.name: the name 'op' is given twice (kernels.0 has it)",
        ),
        (HEAD + "  kernels:\n" + kernel(kernel="k.py") + TAIL, "5:16", "kernels.0.kernel: "),
        (HEAD + "  kernels:\n" + kernel(reference="gone.py") + TAIL, "5:", "no such file"),
        (
            HEAD + "  kernels:\n" + kernel(distributions="[nan]") + TAIL,
            "5:102",
            "kernels.0.distributions: it is a key of the catalog, not of a kernel",
        ),
        (
            HEAD + "  kernels:\n" + kernel().replace("reference", "refrence") + TAIL,
            "5:39",
            "kernels.0.refrence: unknown key; did you mean reference",
        ),
        (HEAD + "  kernels:\n  - {name: op}\n" + TAIL, "5:5", "kernels.0.kernel: Field required"),
        (HEAD + "  kernels:\n" + kernel(kwargs="3") + TAIL, "5:102", "kernels.0.kwargs: "),
    ],
)
def test_mistakes_that_show_without_importing(config: Path, text: str, place: str, says: str) -> None:
    config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(config)
    assert str(caught.value).startswith(f"{config}:{place}") and says in str(caught.value)


@pytest.mark.parametrize(
    ("line", "place", "says"),
    [
        (
            kernel(kernel='"k.py:doubel"'),
            "5:16",
            "kernels.0.kernel: {k}:doubel: there is no 'doubel' in it; did you mean double?",
        ),
        (kernel(kernel='"k.py:NUMBER"'), "5:16", "{k}:NUMBER is not a function but a int"),
        (
            kernel(inputs="{y: [n]}"),
            "5:16",
            "kernels.0.kernel: double(x) is called with y: missing a required argument: 'x'",
        ),
        (
            kernel(reference='"bad.py:f"'),
            "5:39",
            "kernels.0.reference: {bad}:2: cannot be imported: ZeroDivisionError: division by zero",
        ),
        (kernel(name="twice"), "6:6", "kernels.0.name: the name 'twice' is given twice; the other is in {k}:9"),
    ],
)
def test_mistakes_that_show_when_it_is_listed(
    config: Path, results: Path, capsys: pytest.CaptureFixture[str], line: str, place: str, says: str
) -> None:
    (config.parent / "bad.py").write_text("import os\n1 / 0\n")
    write(config, line, modules="k.py" if "twice" in line else "")
    assert main([str(config), "--on", "inline", "--results", str(results)]) == BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith(f"error: {config}:{place}: catalogs.0.") and lake.run_ids(str(results)) == []
    assert says.format(k=config.parent / "k.py", bad=config.parent / "bad.py") in said and said.count("\n") == 1


def test_a_module_that_kills_its_process_when_imported(config: Path, results: Path) -> None:
    (config.parent / "deadly.py").write_text("import os\nos._exit(3)\n")
    write(config, modules="k.py, deadly.py")
    said = here(config, "--cpus", 1, "--results", results)
    where = f"{config}:4:19: catalogs.0.modules.1: {config.parent / 'deadly.py'}: "
    assert (
        said.returncode == BAD_INPUT
        and f"{where}catalog user cannot be listed: the process ended with exit code 3" in said.stderr
    )


def test_dtypes_are_those_of_the_kernels_unless_the_run_names_some(config: Path) -> None:
    assert load_config(write(config, kernel())).catalogs[0].dtypes == ["*"]
    assert load_config(write(config, kernel(), end="dtypes: [float32]\n")).catalogs[0].dtypes is None


def test_paths_are_relative_to_the_config_and_survive_the_record(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config.parent / "src").mkdir()
    (config.parent / "k.py").rename(config.parent / "src" / "k.py")
    write(config, kernel(**{"class": "exact"}), modules="k.py")
    config.write_text(config.read_text().replace("samples: 2", "root: src"))
    found = load_config(config)
    assert found.catalogs[0].modules == [str(config.parent / "src" / "k.py")]
    assert Config.model_validate(found.model_dump(mode="json")) == found
    user.announce_config_kernels(found)
    assert str(config.parent / "src") in user_definitions.get_announced_definitions()
    user.announce_config_kernels(found.model_copy(update={"catalogs": []}))
    assert user_definitions.get_announced_definitions() == ""


def test_a_python_file_stands_for_a_config_of_its_kernels(
    config: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config.with_name("k.py")
    asked = [str(file), "--on", "inline", "--results", str(results)]
    assert main([*asked, "--samples", "2"]) == OK
    rows = lake.read(results)
    assert set(rows["op"]) == {"user:twice"} and set(rows["backend"]) == {"torch-cpu"}
    assert {"own", "adversarial", "fuzz"} == {x for x in rows["distribution"]}
    capsys.readouterr()
    file.write_text("x = 1\n")
    assert main(asked) == BAD_INPUT
    assert capsys.readouterr().err.rstrip().endswith("there is no function with @farm.op in it")
    assert main([str(file.with_name("kk.py"))]) == BAD_INPUT
    assert "kk.py: no such file" in capsys.readouterr().err
    file.write_text("def broken(:\n")
    assert main(asked) == BAD_INPUT
    assert "k.py:1: cannot be imported: SyntaxError" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["--on=processes", "--on=inline"])
def test_what_a_kernel_does_to_the_environment_harms_no_other(config: Path, results: Path, how: str) -> None:
    lines = [
        "import os",
        "os.environ['K_LOADED'] = 'once'",
        "def clearing(x, bias=None, **k):",
        "    os.environ.clear()",
        "    return double(x)",
        "def changing(x, bias=None, **k):",
        "    os.environ.update(OMP_NUM_THREADS='7', K_OWN='1', K_LOADED='again')",
        "    return double(x)",
        "def right(x, bias=None, **k):",
        "    found = {name: os.environ.get(name) for name in ('OMP_NUM_THREADS', 'K_OWN', 'K_LOADED')}",
        "    assert found == {'OMP_NUM_THREADS': '1', 'K_OWN': None, 'K_LOADED': 'once'}, found",
        "    return double(x)",
    ]
    (config.parent / "k.py").write_text(KERNELS + "\n".join(lines) + "\n")
    names = ("clearing", "changing", "right")
    write(config, *(kernel(name=f"op{k}", kernel=f'"k.py:{name}"') for k, name in enumerate(names)))
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        assert main([str(config), how, "--cpus", "1", "--results", str(results)]) == OK
    assert set(lake.read(results)["status"]) == {"pass"}


def test_a_run_its_resumption_and_its_reproduction(
    config: Path, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(config, kernel(), kernel(name="wrong", kernel='"k.py:triple"'), modules="k.py")
    arguments = ["--on", "inline", "--results", str(results)]
    assert main([str(config), *arguments]) == FOUND
    rows = lake.read(results)
    assert {(r.op, r.dtype, r.status) for r in rows.itertuples()} == {
        ("user:op", "float32", "pass"),
        ("user:wrong", "float32", "wrong"),
        ("user:twice", "float16", "pass"),
    }
    run = lake.run_ids(str(results))[0]
    for part in next(results.glob("run=*")).glob("*.parquet"):
        part.unlink()
    config.unlink()
    user_definitions.announce_definitions("")
    assert main(["--resume", run, *arguments]) == FOUND
    assert len(lake.read(results)) == len(rows) == 6
    user_definitions.announce_definitions("")
    finding = tmp_path / "finding"
    capsys.readouterr()
    assert (
        reproduce(["last:forward/user:wrong/float32/1:torch-cpu", "--results", str(results), "--out", str(finding)])
        == OK
    )
    said = capsys.readouterr().out
    assert "reproduced: same status and same metrics" in said and "shows the wrong result" in said
    assert reproduce(["last:forward/user:twice/float16/1:torch-cpu", "--results", str(results), "--child"]) == OK


def test_kernels_and_references_that_die_or_hang_harm_their_own_rows_alone(config: Path, results: Path) -> None:
    deadly = [
        ("dead", "dies", "right"),
        ("slow", "hangs", "right"),
        ("dead-reference", "double", "dies"),
        ("slow-reference", "double", "hangs"),
    ]
    lines = [kernel(name=n, kernel=f'"k.py:{k}"', reference=f'"k.py:{r}"') for n, k, r in deadly]
    (config.parent / "k.py").write_text(DEADLY)
    (config.parent / "waits.py").write_text(
        "import sys, time\nprint('waiting', file=sys.stderr, flush=True)\ntime.sleep(600)\n"
    )
    write(config, kernel(), *lines, kernel(name="slow-script", reference="waits.py"), end="deadline_s: 10\n")
    config.write_text(config.read_text().replace("samples: 2", "samples: 1"))
    done = here(config, "--cpus", 2, "--results", results)
    assert done.returncode == FOUND, done.stderr
    rows = lake.read(str(results)).set_index("op")
    assert rows["status"].to_dict() == {
        "user:op": "pass",
        "user:dead": "crash",
        "user:slow": "timeout",
        "user:dead-reference": "invalid",
        "user:slow-reference": "invalid",
        "user:slow-script": "invalid",
    }
    told = rows["error"]["user:dead-reference"]
    assert (
        told.startswith("while making the reference of user:dead-reference: ")
        and "SIGSEGV" in told
        and "at stage" not in told
    )
    assert "took longer than 8 s\nwaiting" in rows["error"]["user:slow-script"]


def test_a_broken_reference_is_told_and_fails_the_run(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k.py").write_text(KERNELS + "\ndef broken(x): raise ValueError('no reference today')\n")
    file = write(config, kernel(reference='"k.py:broken"'))
    assert main([str(file), "--results", str(tmp_path / "r"), "--on", "inline"]) == FOUND
    said = capsys.readouterr().out
    assert "nothing was judged: invalid: no reference today" in said and "No findings" not in said


def test_a_compiled_kernel_that_wobbles_is_seen(config: Path, results: Path) -> None:
    # Samples that are compiled together are computed together: a further run must not be handed the first one's result.
    (config.parent / "k.py").write_text(
        "import torch\ndef right(x): return 2 * x\ndef wobbles(x): return x * 2 + torch.rand_like(x) * 1e-2\n"
    )
    config.write_text(HEAD + "  kernels:\n" + kernel(kernel='"k.py:wobbles"') + "backends: [inductor-cpu]\n")
    assert main([str(config), "--on", "processes", "--cpus", "1", "--results", str(results)]) == FOUND
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert set(rows["kind"]) == {"nondeterministic"}
