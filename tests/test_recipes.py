"""CONTRIBUTING's recipes, followed in a copy of the tree: each touches one or two files and works end to end."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from tests import prepared
from tests.conftest import ROOT


@dataclass(frozen=True)
class Edit:
    """``new`` in the place of ``old``, once; without ``old`` the text of a new file."""

    file: str
    new: str
    old: str = ""

    def make(self, tree: Path) -> None:
        path = tree / self.file
        if not self.old:
            assert not path.exists(), f"{self.file} is there already"
            path.write_text(self.new)
            return
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.file}: {text.count(self.old)} places are {self.old!r}"
        path.write_text(text.replace(self.old, self.new))


#: A catalog and a backend for arrays of any dtype: no runtime has heard of the new one.
CATALOG = '''\
"""The catalog copies: arrays that are to come back as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Catalog, Entry, Sample
from tasks.model import Group, Leaf, OpClass, get_numpy_dtype


class Copies(Catalog):
    name = "copies"
    forms = ("array",)

    def version(self) -> str:
        return "1"

    def entries(self) -> list[Entry]:
        return [Entry("copies:copy", "", ("float6_e3m2fn",))]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        for i in range(group.samples):
            x = np.random.default_rng([group.seed, i]).normal(1, 1, (4, 8)).astype(get_numpy_dtype(group.dtype))
            exact = x.astype(np.float64)
            leaf = Leaf(group.dtype, exact.shape, exact, np.full(exact.shape, 2.0**-2))
            yield Sample(i, (TensorSpec(0),), {}, [x], [leaf], OpClass.COMPOSITE)

    def call(self, group: Group) -> Callable[..., Any]:
        return np.copy
'''
BACKEND = '''\
"""NumPy as a backend: it calls what it is given."""

from __future__ import annotations

import numpy as np

from tasks.backends.base import Backend
from tasks.model import Form, Program, RuntimeInfo


class Numpy(Backend):
    vendor = "NumPy"
    forms = ("array",)

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo(np.__version__, "cpu")

    def build(self, form: Form) -> Program:
        assert form.call is not None
        call = form.call
        return Program(lambda: [call(form.arrays[0])])
'''

EXECUTOR = '''\
"""An executor that keeps a list of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farm.fleet.inventory import BackendOffer
from farm.work.claims import DeviceClaim
from farm.work.job import Job
from farm.work.local import InlineExecutor


class Listed(InlineExecutor):
    def submit(self, job: Job, offer: BackendOffer | None, claim: DeviceClaim, among: Sequence[str] = ()) -> int:
        with Path("jobs.txt").open("a") as file:
            print(job.kind, file=file)
        return super().submit(job, offer, claim, among)
'''

RECIPES: dict[str, list[Edit]] = {
    "backend": [
        Edit("tasks/backends/array.py", BACKEND),
        Edit(
            "tasks/backends/__init__.py",
            'BUILT_IN = {\n    "array": "tasks.backends.array:Numpy",\n    "torch": ',
            'BUILT_IN = {\n    "torch": ',
        ),
    ],
    "catalog": [
        Edit("tasks/catalogs/copies.py", CATALOG),
        Edit(
            "tasks/catalogs/__init__.py",
            'BUILT_IN = {\n    "copies": "tasks.catalogs.copies:Copies",\n    "torch": ',
            'BUILT_IN = {\n    "torch": ',
        ),
    ],
    "executor": [
        Edit("farm/work/listed.py", EXECUTOR),
        Edit(
            "farm/work/executor_registry.py",
            'BUILT_IN = {\n    "listed": "farm.work.listed:Listed",\n    "inline": ',
            'BUILT_IN = {\n    "inline": ',
        ),
    ],
    "noise": [
        Edit(
            "tasks/arrays/noise.py",
            "    return 2 * np.asarray((-signs if turned else signs) * sizes)\n",
            "    return np.asarray((-signs if turned else signs) * sizes)\n",
        )
    ],
    "report view": [
        Edit(
            "farm/report/tables/recipe_view.py",
            '"""The slowest cases."""\n\n'
            "from __future__ import annotations\n\n"
            "from farm.report.tables.view import Report, View, view\n\n\n"
            "@view(65)\n"
            "def slowest(report: Report) -> View:\n"
            '    kept = report.rows.nlargest(3, "run_ms")[["case_id", "backend", "status", "run_ms"]]\n'
            '    return View("recipe_view", "Slowest cases", kept, open=True)\n',
        )
    ],
    "vendor": [
        Edit(
            "tasks/devices/acme.py",
            '"""Acme\'s GPUs."""\n\n'
            "from tasks.devices.base import Device\n\n"
            'DEVICES = (Device("acme", "Acme", "GPU", ("ACME_VISIBLE_DEVICES",), ("/proc/self/cmdline",)),)\n',
        ),
        Edit("tasks/devices/__init__.py", "    acme,\n    amd,\n", "    amd,\n"),
        Edit("tasks/devices/__init__.py", "    *acme.DEVICES,\n    *nvidia.DEVICES,\n", "    *nvidia.DEVICES,\n"),
    ],
    "status": [
        Edit(
            "tasks/model/status.py",
            '    CLOSE = "close", Facts(\n'
            '        105, "passed", "~", "green", "#e5f3da #24421a", "#2a3f22 #c9e8b8", measured=True, finding=True,\n'
            '        meaning="It passed with less than three quarters of the limit to spare.")\n'
            "    IMPRECISE = (",
            "    IMPRECISE = (",
        ),
        Edit(
            "tasks/judge/policy.py",
            "    if value <= limit.value and not beyond:\n"
            '        return (Status.CLOSE if value > limit.value / 4 else Status.PASS), ""\n',
            '    if value <= limit.value and not beyond:\n        return Status.PASS, ""\n',
        ),
    ],
    "column": [
        Edit(
            "tasks/model/row.py",
            '    highest: float | None = declare_row_column("float64", "metrics", "largest |actual|", "as the output")\n'
            "    max_rel: float | None",
            "    max_rel: float | None",
        ),
        Edit(
            "tasks/judging.py",
            'columns: dict[str, Any] = {\n        "highest": max(float(np.abs(a).max()) for a in case.outputs),\n        "limit": ',
            'columns: dict[str, Any] = {\n        "limit": ',
        ),
    ],
    "check": [
        Edit(
            "tasks/checks/bounded.py",
            '"""The bounded check: no output is beyond 1000."""\n\n'
            "from __future__ import annotations\n\n"
            "from collections.abc import Sequence\n"
            "from typing import Any\n\n"
            "import numpy as np\n\n"
            "from tasks.checks.base import Check\n"
            "from tasks.model import Form, Misbehaviour, Program\n\n\n"
            "class Bounded(Check):\n"
            '    name = "bounded"\n\n'
            "    def run(self, program: Program, form: Form) -> Sequence[Any]:\n"
            "        outputs = list(program.run())\n"
            "        if any(np.abs(np.asarray(x, np.float64)).max() > 1000 for x in outputs):\n"
            '            raise Misbehaviour("unbounded", "an output is beyond 1000")\n'
            "        return outputs\n",
        ),
        Edit(
            "tasks/checks/__init__.py",
            "from tasks.checks.base import Check\nfrom tasks.checks.bounded import Bounded\n",
            "from tasks.checks.base import Check\n",
        ),
        Edit("tasks/checks/__init__.py", "        Bounded(),\n        Forward(),\n", "        Forward(),\n"),
    ],
    "row of an ONNX operator": [
        Edit(
            "tasks/operators/table.py",
            '    OnnxOperator(\n        "Swish",\n        ACTIVATES,\n'
            "        lambda call: [call.inputs[0] * formulas.compute_sigmoid(call.attributes.get('alpha', 1.0) * call.inputs[0])],\n"
            "        lambda o: o.t(0) * o('sigmoid', o.t(0)),\n        elementwise=1,\n    ),\n",
            '    OnnxOperator("Swish", ACTIVATES),\n',
        )
    ],
    "dtype": [
        Edit(
            "tasks/model/dtypes.py",
            '        Dtype("float6_e3m2fn", "float", 6, 2, -2, 28.0, numpy=_ML),\n        Dtype("float4_e2m1fn"',
            '        Dtype("float4_e2m1fn"',
        )
    ],
}

KERNELS = """\
import numpy as np
import tasks

SHAPE = {"dims": {"n": [7, 33]}, "inputs": {"x": ["n"]}, "dtypes": ["float32"], "framework": "numpy"}


@tasks.op(reference=lambda x: x, **SHAPE)
def forty_off(x):
    return x * np.float32(1 + 40 * 2.0**-23)


@tasks.op(reference=lambda x: x * 1e4, **SHAPE)
def large(x):
    return x * np.float32(1e4)
"""

CONFIG = """\
checks: [forward, bounded]
dtypes: ["*"]
catalogs:
  - {name: user, samples: 2, modules: [kernels.py], backends: [torch-cpu]}
  - {name: copies, samples: 2, backends: [array-cpu]}
backends: [torch-cpu, array-cpu]
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame, str]:
    """A copy of the tree with all recipes followed; the rows and the output of a run with it."""
    tree = tmp_path_factory.mktemp("recipes") / "tree"
    for name in ("farm", "tasks", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for edits in RECIPES.values():
        for edit in edits:
            edit.make(tree)
    (tree / "kernels.py").write_text(KERNELS)
    (tree / "c.yaml").write_text(CONFIG)
    said = python(tree, "-m", "farm", "run", "c.yaml", "--on", "inline", "--results", "results", codes=(0, 1))
    return tree, pd.read_parquet(tree / "results"), said


def python(tree: Path, *args: str, codes: tuple[int, ...] = (0,)) -> str:
    env = os.environ | {"PYTHONPATH": str(tree), "FARM_CACHE": str(tree / "cache"), "COLUMNS": "250"}
    done = prepared.run([sys.executable, *args], cwd=tree, env=env)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_one_or_two_files_and_contributing_names_them(name: str) -> None:
    files = dict.fromkeys(edit.file for edit in RECIPES[name])
    assert len(files) <= 2
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (section,) = [
        part for part in text.split("\n### ")[1:] if part.startswith(tuple(f"{x} {name}\n" for x in ("A", "An", "The")))
    ]
    named = [f"`{file}`" if (ROOT / file).exists() else f"`{file.rpartition('/')[0]}/" for file in files]
    assert not [file for file in named if file not in section]


@pytest.mark.nightly
def test_a_new_status_is_judged_counted_and_explained(changed: tuple[Path, pd.DataFrame, str]) -> None:
    tree, rows, said = changed
    assert set(rows.loc[(rows["op"] == "user:forty_off") & (rows["check"] == "forward"), "status"]) == {"close"}
    assert "close" in said and "| `close` | ~ | It passed with less" in python(tree, "docs/_generate.py", "statuses")
    (page,) = (tree / "results").glob("run=*/_report/report.html")
    assert "close" in page.read_text()


@pytest.mark.nightly
def test_a_new_column_is_filled_and_explained(changed: tuple[Path, pd.DataFrame, str]) -> None:
    tree, rows, _ = changed
    assert (rows.loc[(rows["op"] == "user:large") & (rows["check"] == "forward"), "highest"] > 1000).all()
    assert "| `highest` | double | as the output |" in python(tree, "docs/_generate.py", "columns")
    again = "from farm import lake; print(lake.read('results')['highest'].max() > 1000)"
    assert python(tree, "-c", again) == "True\n"


@pytest.mark.nightly
def test_a_new_check_finds_what_the_numbers_do_not(changed: tuple[Path, pd.DataFrame, str]) -> None:
    _, rows, said = changed
    large = rows[rows["op"] == "user:large"].groupby("check")
    assert large["status"].unique().map(set).to_dict() == {"forward": {"pass"}, "bounded": {"wrong"}}
    assert set(rows.loc[rows["kind"] != "", "kind"]) == {"unbounded"} and "unbounded" in said


@pytest.mark.nightly
def test_a_new_dtype_of_a_new_catalog_is_judged_on_a_new_backend(changed: tuple[Path, pd.DataFrame, str]) -> None:
    _, rows, _ = changed
    same = rows[rows["dtype"] == "float6_e3m2fn"]
    assert len(same) == 4 and set(same["status"]) == {"pass"} and (same["error_units"] < 1).all()
    assert set(same["backend"]) == {"array-cpu"} and set(same["vendor"]) == {"NumPy"}


@pytest.mark.nightly
def test_a_new_vendor_is_detected(changed: tuple[Path, pd.DataFrame, str]) -> None:
    tree, _, _ = changed
    assert "acme" in python(tree, "-m", "farm", "node", "detect")


@pytest.mark.nightly
def test_a_new_executor_is_added_and_runs_what_it_is_asked_to(changed: tuple[Path, pd.DataFrame, str]) -> None:
    """The others are as they were: the run of the other recipes has gave it no job."""
    tree, rows, _ = changed
    assert not (tree / "jobs.txt").exists()
    python(tree, "-m", "farm", "run", "c.yaml", "--on", "listed", "--results", "listed", codes=(1,))
    assert set((tree / "jobs.txt").read_text().split()) == {"prepare", "batch"}
    key = ["case_id", "backend", "status", "error_units"]
    mine = pd.read_parquet(tree / "listed")
    pd.testing.assert_frame_equal(*(x[key].sort_values(key).reset_index(drop=True) for x in (rows, mine)))
    assert "listed" in python(tree, "-m", "farm", "run", "--help")


OPERATOR = """\
import numpy as np
import onnx
from tasks.catalogs import get_catalog
from tasks.counterparts.by_torch import list_operators_by_torch
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.model import EXHAUSTIVE, Group

(sample,) = get_catalog("onnx").samples(Group("onnx:Swish", "", "float16", 1, distribution=EXHAUSTIVE), 4)
exact = sample.expected[0].reference
graph = EvaluatedGraph(onnx.load_from_string(sample.model), list_operators_by_torch(["Swish"]))
print(sample.op_class.value, exact.size, np.allclose(graph.run({"x": sample.arrays[0]})["y"], exact, 1e-12, equal_nan=True))
"""


@pytest.mark.nightly
def test_a_row_of_an_operator_is_judged_at_every_value_and_has_counterparts(
    changed: tuple[Path, pd.DataFrame, str],
) -> None:
    assert python(changed[0], "-c", OPERATOR).split() == ["composite", "65536", "True"]


@pytest.mark.nightly
def test_a_noise_twice_as_large_is_in_every_floor(changed: tuple[Path, pd.DataFrame, str]) -> None:
    """40 spacings off: 21 error units over the floor of one ε, 14 over that of two."""
    _, rows, _ = changed
    off = rows[rows["op"] == "user:forty_off"]
    assert off["error_units"].between(12, 17).all()


@pytest.mark.nightly
def test_a_new_view_is_on_every_face(changed: tuple[Path, pd.DataFrame, str]) -> None:
    tree, rows, said = changed
    (folder,) = (tree / "results").glob("run=*/_report")
    assert "Slowest cases" in said
    assert "## Slowest cases" in (folder / "report.md").read_text()
    assert "Slowest cases" in (folder / "report.html").read_text()
    assert list(pd.read_csv(folder / "recipe_view.csv")["run_ms"]) == sorted(rows["run_ms"].dropna())[:-4:-1]
