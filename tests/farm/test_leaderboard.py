"""A folder of submissions is one table: each judged by itself, what is wrong with one a line, all others judged all the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pydantic
import pytest

import farm
import tasks
from farm.client import submissions as client
from farm.commands.run import main
from farm.exits import BAD_INPUT, FOUND, OK
from farm.plan import kernels, published, submissions
from farm.plan.config import ConfigError
from farm.report.faces.leaderboard import print_leaderboard
from farm.report.tables.submissions import summarise_submission, view_leaderboard
from farm.report.tables.view import Report
from tasks.catalogs import user_definitions
from tests.farm.test_report import frame, make_row

PUBLISHED = Path(__file__).parents[1] / "published"
EXAMPLE = Path(__file__).parents[2] / "examples" / "leaderboard"
TASK = """
name: double
reference: reference.py:double
inputs: {x: [n]}
dims: {n: [3, 40]}
samples: 2
checks: [forward]
distributions: [own]
"""
RIGHT = "def double(x):\n    return x + x\n"
#: What is wrong with a submission → status, kind and a part of the reason.
WRONG = {
    "no_function": ("def doubel(x): return x + x\n", "error", "", "there is no 'double' in it; did you mean doubel?"),
    "no_python": ("def double(x:\n", "error", "", "no_python.py:1"),
    "no_module": ("import nosuchmodule\n" + RIGHT, "error", "", "No module named 'nosuchmodule'"),
    "raises": ("1 / 0\n" + RIGHT, "error", "", "ZeroDivisionError"),
    "no_tensor": ("def double(x): return [1, 2]\n", "wrong", "structure", ""),
    "sparse": ("def double(x): return (x + x).to_sparse()\n", "wrong", "structure", "torch.sparse_coo"),
    "other_shape": ("def double(x): return (x + x)[:1]\n", "wrong", "shape", ""),
    "triple": ("def double(x): return x + x + x\n", "wrong", "numbers", ""),
    "numpy": ("def double(x): return x + x + x\n", "wrong", "numbers", ""),
    "exits": ("import os\nos._exit(3)\n", "crash", "exit code 3", ""),
    "too_large": (RIGHT + "#" * submissions.MOST_BYTES, "error", "refused", "bytes, more than"),
}


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run of this process announces does not outlive the test."""
    monkeypatch.setattr(user_definitions, "_told", [""])


@pytest.fixture
def short_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """One race of a second, not three of eight, for each submission: what times are worth is in test_speedup."""
    plan = submissions.plan_task_ops
    monkeypatch.setattr(submissions, "TIMED", 1)
    monkeypatch.setattr(
        submissions,
        "plan_task_ops",
        lambda given, drawn, root, settings, refuse: plan(given, drawn, root, {"race_s": 0.5, **settings}, refuse),
    )


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A folder with a task and one submission, which is right."""
    folder = tmp_path / "board"
    (folder / "submissions").mkdir(parents=True)
    (folder / "task.yaml").write_text(TASK)
    (folder / "reference.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "submissions" / "right.py").write_text(RIGHT)
    return folder


def run(folder: Path, results: Path) -> tuple[int, dict[str, dict[str, Any]], Path]:
    """(exit code, lines of leaderboard.json by submission, its folder)."""
    code = main([str(folder), "--results", str(results), "--on", "processes"])
    (out,) = results.glob("run=*/_report")
    told = json.loads((out / "leaderboard.json").read_text())
    return code, {line["submission"]: line for line in told["submissions"]}, out


def test_right_submissions_alone_end_well(board: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, out = run(board, results)
    assert code == OK and (lines["right"]["status"], lines["right"]["passed"]) == ("pass", lines["right"]["judged"])
    page = (out / "leaderboard.html").read_text()
    assert "right" in page and "<script" not in page
    assert "Submissions, the worst first" in capsys.readouterr().out


#: Is right if it imports NumPy, not the submission of that name; and no other submission.
IMPORTS = """
import numpy
def double(x):
    try:
        from triple import double
    except ImportError:
        return x + x if numpy.float32 else x
    return double(x)
"""


def test_the_declaration_of_a_task_is_hidden_from_its_submissions(board: Path) -> None:
    """It may say the seed that inputs are drawn from."""
    kernels.announce_config_kernels(submissions.read_submissions_folder(board).config)
    assert user_definitions.read_definitions()["declarations"] == [str(board / "task.yaml")]
    (board / "task.yaml").rename(board / "secret.yaml")
    reads = RIGHT + f"open({str(board / 'secret.yaml')!r})\n"
    found = [farm.judge(board / "secret.yaml", source) for source in (RIGHT, reads)]
    assert [x.status for x in found] == ["pass", "error"] and "Permission denied" in found[1].message


def test_a_reference_may_read_the_declaration_of_its_task(board: Path, short_race: None) -> None:
    """Also where it is the baseline, whose process runs no kernel."""
    task = TASK.replace("[forward]", "[forward, speedup]") + "baseline: reference.py:double\n# factor 2\n"
    (board / "task.yaml").write_text(task)
    (board / "reference.py").write_text(
        "from pathlib import Path\n"
        "FACTOR = int((Path(__file__).parent / 'task.yaml').read_text().split()[-1])\n"
        "def double(x):\n    return FACTOR * x\n"
    )
    found = farm.judge(board, RIGHT)
    assert found.status == "pass" and found.speedup, found.message


def test_a_declaration_is_hidden_whatever_its_layout_calls_it(board: Path) -> None:
    (board / "task.yaml").rename(board / "task.yml")
    op = {"name": "double", "reference": f"{board}/reference.py:double"}
    found = kernels._list_task_declarations([{"root": str(board.parent), "kernels": [op]}])
    assert found == {board / "task.yml"}


def test_what_is_wrong_with_a_submission_is_its_own_line(board: Path, results: Path) -> None:
    (board / "submissions" / "imports.py").write_text(IMPORTS)
    for name, (text, *_) in WRONG.items():
        (board / "submissions" / f"{name}.py").write_text(text)
    (board / "submissions" / "twice.py").write_text(RIGHT)
    (board / "submissions" / "twice").mkdir()
    (board / "submissions" / "twice" / "kernel.py").write_text(RIGHT)
    code, lines, _ = run(board, results)
    assert code == FOUND
    for name, (_, status, kind, why) in WRONG.items():
        assert (lines[name]["status"], lines[name]["kind"]) == (status, kind), lines[name]
        assert why in lines[name]["why"]
    assert lines["twice"]["kind"] == "refused" and "is given twice" in lines["twice"]["why"]
    assert lines["right"]["status"] == lines["imports"]["status"] == "pass", lines["imports"]
    assert next(iter(lines)) == "exits" and set(list(lines)[-2:]) == {"right", "imports"}, "the worst first"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: (x / "task.yaml").unlink(), "no task"),
        (lambda x: (x / "reference.py").unlink(), "reference: no such file"),
        (lambda x: (x / "submissions" / "right.py").unlink(), "no submission"),
        (lambda x: (x / "task.yaml").write_text(TASK + "sampels: 3\n"), "did you mean samples"),
        (lambda x: (x / "task.yaml").write_text(TASK.replace("[n]", "[m]")), "unknown dimension 'm'"),
        (lambda x: (x / "task.yaml").write_text(TASK.replace("samples: 2", "samples: many")), "6:1: samples: "),
        (lambda x: (x / "task.yaml").write_text(TASK.replace("checks: [forward]", "") + "samples: 0"), "given twice"),
        (lambda x: (x / "task.yaml").write_text(TASK.replace("[forward]", "[fast]")), "unknown check 'fast'"),
        (lambda x: (x / "task.yaml").write_text("name: double\n"), "add the key reference"),
    ],
)
def test_a_folder_with_nothing_to_judge_is_bad_input(
    board: Path, results: Path, capsys: pytest.CaptureFixture[str], change: Any, said: str
) -> None:
    change(board)
    assert main([str(board), "--results", str(results)]) == BAD_INPUT
    told = capsys.readouterr().err.strip()
    assert said in told and "\n" not in told


def test_a_baseline_that_is_wrong_is_told(board: Path, results: Path) -> None:
    (board / "base.py").write_text("def base(x):\n    return x\n")
    (board / "task.yaml").write_text(TASK.replace("[forward]", "[forward, speedup]") + "baseline: base.py:base\n")
    _, lines, _ = run(board, results)
    assert lines["right"]["status"] == "pass" and "is itself wrong" in lines["right"]["why"]
    with pytest.raises(farm.ClientError, match="is itself wrong"):
        farm.judge(board, RIGHT)


def test_submissions_have_processes_of_their_own(board: Path, results: Path) -> None:
    spoils = "import torch\ntorch.add = None\nimport tasks.judging\ntasks.judging.judge_outputs = None\n" + RIGHT
    (board / "submissions" / "a_spoils.py").write_text(spoils)
    (board / "submissions" / "zero.py").write_text("import torch\ndef double(x): return torch.add(x, x)\n")
    _, lines, _ = run(board, results)
    assert lines["right"]["status"] == lines["zero"]["status"] == "pass"


def test_a_submission_that_dies_is_not_run_for_every_case(board: Path, results: Path) -> None:
    (board / "submissions" / "dies.py").write_text("import os\ndef double(x): os.kill(os.getpid(), 11)\n")
    (board / "task.yaml").write_text(TASK.replace("samples: 2", "samples: 8"))
    _, lines, _ = run(board, results)
    from farm import lake

    rows = lake.read(lake.open_lake(str(results)), None)
    own = rows[rows["backend"] == "dies"]
    assert lines["dies"]["status"] == "crash" and len(own) == 8, "every planned case has its row"
    assert own["note"].fillna("").str.startswith("not run").any()


def test_a_submission_that_hangs_costs_one_deadline(board: Path, results: Path) -> None:
    (board / "submissions" / "hangs.py").write_text("import time\ndef double(x): time.sleep(1000)\n")
    (board / "task.yaml").write_text(TASK.replace("samples: 2", "samples: 8") + "deadline_s: 2\n")
    run(board, results)
    from farm import lake

    rows = lake.read(lake.open_lake(str(results)), None)
    own = rows[rows["backend"] == "hangs"]
    assert set(own["status"]) == {"timeout"} and len(own) == 8, "every planned case has its row"
    assert own["note"].fillna("").str.startswith("not run").sum() == 7


def test_several_tasks_are_one_leaderboard(board: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    for name in ("one", "two"):
        shutil.copytree(board, whole / name)
    found = submissions.read_submissions_folder(whole)
    assert [b.name for b in found.config.backends] == ["one.right", "two.right"]


def reference(x: Any) -> Any:
    return 2 * x


@tasks.op(reference=reference, inputs={"x": ["n"]}, dims={"n": [3, 40]})
def double(x: Any) -> Any:
    return x + x


def test_judge_tells_right_from_wrong(board: Path) -> None:
    right = farm.judge(board, RIGHT)
    assert right.passed and right.status == "pass" and right.metrics["passed"] == right.metrics["judged"] == 2
    wrong = farm.judge(board / "task.yaml", "def double(x):\n    return x + x + x\n")
    assert (wrong.status, wrong.kind) == ("wrong", "numbers") and wrong.metrics["max_diff"]
    assert farm.judge(board, WRONG["exits"][0]).status == "crash"
    assert farm.judge(board, WRONG["too_large"][0]).kind == "refused"
    assert farm.judge(board, board / "submissions" / "right.py").passed, "after others"
    for name, text in (("triple", "def double(x): return 3 * x"), ("imports", IMPORTS)):
        (board / "submissions" / f"{name}.py").write_text(text)
    assert farm.judge(board, board / "submissions" / "imports.py").passed, "it finds no other submission"
    with pytest.raises(farm.ClientError, match="no such file"):
        farm.judge(board, "nowhere.py")


@pytest.mark.parametrize("raised", ["NotImplementedError", "tasks.model.Unsupported", "tasks.model.Vacuous"])
def test_a_submission_cannot_say_that_it_need_not_answer(board: Path, raised: str) -> None:
    found = farm.judge(board, f"import tasks.model\ndef double(x):\n    raise {raised}('not these')\n")
    assert (found.status, "not these" in found.message) == ("error", True)


def test_judge_times_as_many_samples_as_a_folder_does(board: Path) -> None:
    (board / "task.yaml").write_text(TASK.replace("checks: [forward]\n", ""))
    asked = {tuple(c.checks): c.samples for c in client._find_submission_config(board, "torch-cpu", 8)[0].catalogs}
    assert asked == {("forward",): 8, ("audit",): 8, ("speedup",): submissions.TIMED}


def test_judge_takes_a_declared_function_as_the_task() -> None:
    assert farm.judge(double, RIGHT, samples=1).passed
    assert farm.judge(double, "def double(x):\n    return -x\n", samples=1).status == "wrong"


@pytest.mark.usefixtures("short_race")
@pytest.mark.parametrize(
    ("folder", "right", "wrong"),
    [
        ("kernelbench", ["right"], ["wrong"]),
        ("gpumode/vectoradd", ["right"], ["wrong"]),
        ("backendbench", ["sin.v1", "add__Tensor.v1"], ["sin.v2"]),
    ],
)
def test_layouts_of_other_benchmarks(folder: str, right: list[str], wrong: list[str], results: Path) -> None:
    code, lines, _ = run(PUBLISHED / folder, results)
    assert code == FOUND
    assert {name: lines[name]["status"] for name in lines} == dict.fromkeys(right, "pass") | dict.fromkeys(
        wrong, "wrong"
    ), lines


@pytest.mark.usefixtures("short_race")
def test_a_gpumode_submission_in_a_folder_of_its_own_finds_the_tasks_types(tmp_path: Path, results: Path) -> None:
    shutil.copytree(PUBLISHED / "gpumode", tmp_path / "problems")
    folder = tmp_path / "problems" / "vectoradd"
    (folder / "submissions").mkdir()
    for name in ("right.py", "wrong.py"):
        (folder / name).rename(folder / "submissions" / name)
    _, lines, _ = run(folder, results)
    assert {name: line["status"] for name, line in lines.items()} == {"right": "pass", "wrong": "wrong"}, lines


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"p.py": "class Model: pass"}, "there is no get_inputs"),
        ({"p.py": "import torch\nclass Model(torch.nn.Module): pass\ndef get_inputs(): return []"}, "get_init_inputs"),
        ({"reference.py": "def ref_kernel(data): return data"}, "there is no task.yml"),
        (
            {"reference.py": "def ref_kernel(data): return data", "task.yml": "tests: [{size: 1}]"},
            "there is no generate_input",
        ),
        ({"nosuch/nosuch_implementation_v1.py": ""}, "torch has no operator of that name"),
    ],
)
def test_a_problem_that_is_not_whole_has_a_line(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        submissions.read_submissions_folder(tmp_path)


def test_what_is_wrong_with_a_task_is_its_own_line(board: Path, tmp_path: Path) -> None:
    operators, boards = tmp_path / "operators", tmp_path / "boards"
    shutil.copytree(PUBLISHED / "backendbench", operators)
    for name in ("nosuch", "sum__dim_IntList"):  # torch has none; it takes more than tensors
        (operators / name).mkdir()
        (operators / name / f"{name}_implementation_v1.py").write_text("")
    for name in ("abs_implementation_2", "neg_implementation"):  # names that BackendBench takes as well
        (operators / name[:3]).mkdir()
        (operators / name[:3] / f"{name}.py").write_text("")
    for name in ("sound", "misspelt", "no_reference", "no_number"):
        shutil.copytree(board, boards / name)
    (boards / "misspelt" / "task.yaml").write_text(TASK + "sampels: 3\n")
    (boards / "no_reference" / "reference.py").unlink()
    (boards / "no_number" / "task.yaml").write_text(TASK.replace("samples: 2", "samples: many"))
    found = submissions.read_submissions_folder(operators)
    assert {x.name for x in found.refused} == {"nosuch", "sum__dim_IntList"}
    operator_names = {"sin.v1", "sin.v2", "add__Tensor.v1", "abs.2", "neg.implementation"}
    assert {b.name for b in found.config.backends} == operator_names
    found = submissions.read_submissions_folder(boards)
    said = {x.name: x.why for x in found.refused}
    assert set(said) == {"misspelt", "no_reference", "no_number"} and [b.name for b in found.config.backends] == [
        "sound.right"
    ]
    assert str(boards / "no_number" / "task.yaml") in said["no_number"]


def test_a_task_names_or_describes_the_backend_of_its_submissions(board: Path) -> None:
    own = {"name": "mine", "like": "torch-cpu", "python": "/opt/own/bin/python"}
    for given, asked, found in (
        ("torch-cpu", (), ("torch-cpu", "")),
        (json.dumps(own), (), ("torch-cpu", own["python"])),
        (json.dumps(own), ("inductor-cpu",), ("inductor-cpu", "")),
    ):
        (board / "task.yaml").write_text(TASK + f"backends: [{given}]\n")
        made = submissions.read_submissions_folder(board, asked).config.backends
        assert {(x.like, x.python) for x in made} == {found} and "mine" not in {x.name for x in made}
    (board / "task.yaml").write_text(TASK + "backends: [{like: torch-cpu}]\n")
    (alone,) = client._find_submission_config(board, "", 0)[0].backends
    assert alone.like == "torch-cpu"
    (board / "task.yaml").write_text(TASK + "backends: [{like: torch-cpu, pythn: x}]\n")
    with pytest.raises(ConfigError, match="task.yaml.*pythn"):
        submissions.read_submissions_folder(board)
    with pytest.raises(farm.ClientError, match="task.yaml.*pythn"):
        farm.judge(board, RIGHT)


@pytest.mark.parametrize(
    "line", ["backends: torch-cpu", "backends: 3", "backends:", "checks: forward", "distributions: own"]
)
def test_what_may_be_several_is_a_list_in_a_task_too(board: Path, line: str) -> None:
    """A text is not read letter by letter, and nothing is no list either."""
    key = line.split(":")[0]
    others = [x for x in TASK.splitlines() if not x.startswith(f"{key}:")]
    (board / "task.yaml").write_text("\n".join([*others, line]))
    wanted = rf"task\.yaml:{len(others) + 1}:1: {key}: a list is needed"
    with pytest.raises(ConfigError, match=wanted):
        submissions.read_submissions_folder(board)
    with pytest.raises(farm.ClientError, match=wanted):
        farm.judge(board, RIGHT)


def test_submissions_take_arrays_where_the_task_says_so(board: Path, results: Path) -> None:
    (board / "task.yaml").write_text(TASK.replace("samples: 2", "samples: 1") + "framework: numpy\n")
    (board / "submissions" / "triple.py").write_text(WRONG["triple"][0])
    code, lines, _ = run(board, results)
    assert code == FOUND and {k: x["status"] for k, x in lines.items()} == {"right": "pass", "triple": "wrong"}


def test_tasks_of_a_folder_have_the_same_settings_of_the_run(board: Path, tmp_path: Path) -> None:
    """They are one run, which has each setting once."""
    unlike = "seed: 3\nrace_s: 0.5\n"  # of several settings the first in the order of names is told
    for name, more in {"first": "", "same": "race_s: 8\nsamples: 3\n", "unlike": unlike}.items():
        shutil.copytree(board, tmp_path / "boards" / name)
        (tmp_path / "boards" / name / "task.yaml").write_text(TASK.replace("samples: 2\n", "") + more)
    found = submissions.read_submissions_folder(tmp_path / "boards")
    assert [b.name for b in found.config.backends] == ["first.right", "same.right"]
    (refused,) = found.refused
    line = len((tmp_path / "boards" / "unlike" / "task.yaml").read_text().splitlines())
    assert (
        refused.name == "unlike"
        and f"unlike/task.yaml:{line}:1: race_s: it is 0.5 here (1 of 3 tasks) and 8.0 in the task first (2),"
        in refused.why
    )


def test_a_link_that_leads_nowhere_is_its_own_line(board: Path) -> None:
    (board / "submissions" / "lost.py").symlink_to("nowhere.py")
    (board / "submissions" / "folder.py").mkdir()
    found = submissions.read_submissions_folder(board)
    assert [b.name for b in found.config.backends] == ["right"]
    assert all("no file" in x.why for x in found.refused)
    folder = str(board / "submissions" / "folder.py")
    assert {x.name: x.paths for x in found.refused} == {"lost": (), "folder": (folder,)}, "a link hides what is its own"


def test_a_folder_of_data_is_no_submission_beside_the_file_of_its_name(board: Path) -> None:
    (board / "submissions" / "right").mkdir()
    (board / "submissions" / "right" / "kernel.cu").touch()
    found = submissions.read_submissions_folder(board)
    assert [b.name for b in found.config.backends] == ["right"] and not found.refused


def test_a_submission_beside_the_reference_is_no_package_that_it_imports(board: Path) -> None:
    reference = (board / "reference.py").read_text()
    (board / "reference.py").write_text(f"import copy, helper, numpy\n{reference}")
    for name in ("right", "numpy", "copy", "gmpy2", "helper"):
        (board / f"{name}.py").write_text(RIGHT)
    assert len(submissions.read_submissions_folder(board).config.backends) == 1, "what lies there is the host's own"
    shutil.rmtree(board / "submissions")
    found = submissions.read_submissions_folder(board)
    assert {x.name for x in found.config.backends} == {"right", "copy", "gmpy2"}
    (refused,) = found.refused
    assert refused.name == "numpy" and "the reference imports numpy, and means the package" in refused.why
    assert refused.paths == (str(board / "numpy.py"),)


@pytest.mark.parametrize(
    "second",
    ["class ModelNew: pass", "if True:\n    class ModelNew: pass", "ModelNew: type = Model", "import x as ModelNew"],
)
def test_a_submission_that_has_a_problem_of_its_own_is_not_run_where_problems_are(tmp_path: Path, second: str) -> None:
    problem = "class Model: pass\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n"
    (tmp_path / "problem.py").write_text(problem)
    (tmp_path / "cheat.py").write_text(f"{problem}{second}\n")
    assert [prefix for prefix, _ in published.find_published_tasks(tmp_path)] == [""]


def test_a_name_that_is_no_text_is_its_own_line(board: Path) -> None:
    """Bytes of another encoding, which no config holds."""
    (board / "submissions" / "\udcff.py").write_text(RIGHT)
    found = submissions.read_submissions_folder(board)
    assert [b.name for b in found.config.backends] == ["right"]
    (refused,) = found.refused
    assert refused.name == "\\udcff" and refused.why.endswith("\\udcff.py: its name is no printable text: rename it")


def test_what_is_wrong_with_the_whole_is_a_line(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Single(submissions.Config):
        @pydantic.model_validator(mode="after")
        def _refuse_several(self) -> Single:
            if len(self.backends) > 1:
                raise ValueError("planted: one backend")
            return self

    monkeypatch.setattr(submissions, "Config", Single)
    assert submissions.read_submissions_folder(board).config.backends
    (board / "submissions" / "other.py").write_text(RIGHT)
    with pytest.raises(ConfigError, match="board: planted: one backend$"):
        submissions.read_submissions_folder(board)


def test_of_several_problems_a_name_says_which_is_answered(tmp_path: Path) -> None:
    for problem in ("1_relu", "12_relu"):
        shutil.copy(PUBLISHED / "kernelbench" / "1_linear_relu.py", tmp_path / f"{problem}.py")
    for name in ("level_1_problem_1_sample_0", "12_relu_mine", "nobodys"):
        shutil.copy(PUBLISHED / "kernelbench" / "right.py", tmp_path / f"{name}.py")
    found = submissions.read_submissions_folder(tmp_path)
    assert [b.name for b in found.config.backends] == ["12_relu.12_relu_mine", "1_relu.level_1_problem_1_sample_0"]
    (refused,) = found.refused
    assert refused.name == "12_relu.nobodys" and "none of the problems" in refused.why


@pytest.mark.nightly
def test_the_example_has_thirty_of_which_ten_cheat(results: Path) -> None:
    _, lines, _ = run(EXAMPLE, results)
    assert len(lines) == 30
    honest = {name: line["status"] for name, line in lines.items() if name.startswith("honest")}
    assert honest == dict.fromkeys(honest, "pass")


def test_a_time_with_what_may_be_hidden_counted_in_is_ranked_and_says_so() -> None:
    seen = {"check": "speedup", "op": "user:double", "speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1}
    unseen = seen | {"speedup": 1.0, "time_doubt": "unseen"}
    both = summarise_submission(frame(make_row(sample=0, **seen), make_row(sample=1, **unseen)))
    assert (both["speedup"], both["time_doubt"]) == (1.5, "unseen")


def test_a_board_says_what_its_machine_could_not_deny(capsys: pytest.CaptureFixture[str]) -> None:
    run = {"config": {"backends": [{"name": "a", "kernel": "a.py"}]}, "run_id": "r1"}
    for flags, said in (("unconfined=network,shm", "network (the kernel's process has the network); shm ("), ("", "")):
        rows = frame(make_row(backend="a", op="user:double", flags=flags))
        view = view_leaderboard(Report(rows, run))
        assert said in " ".join(view.notes) and bool(view.notes) is bool(said)
        print_leaderboard(Report(rows, run))
        assert ("Not denied" in capsys.readouterr().out) is bool(said)
