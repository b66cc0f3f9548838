"""Modules beside a kernel: two folders' `utils.py`, a package, a name that the farm or the standard library has too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from farm.fleet.child_process import link_tasks_folder
from tasks import user_sources
from tasks.catalogs.base import CatalogError
from tasks.catalogs.user.load_kernels import resolve_user_name
from tests.conftest import here

REPOSITORY = Path(__file__).parents[2]

KERNEL = """
import torch
from utils import SCALE

def kernel(x):
    return x * SCALE
"""
CONFIG = """
catalogs:
  - name: user
    kernels:
      - {name: two, kernel: a/k.py:kernel, reference: a/r.py:reference, inputs: {x: [N]}, dims: {N: [1, 64]}}
      - {name: three, kernel: b/k.py:kernel, reference: b/r.py:reference, inputs: {x: [N]}, dims: {N: [1, 64]}}
dtypes: [float32]
backends: [torch-cpu]
"""


@pytest.fixture
def two(tmp_path: Path) -> Path:
    for folder, scale in (("a", 2), ("b", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "k.py").write_text(KERNEL)
        (tmp_path / folder / "utils.py").write_text(f"SCALE = {scale}\n")
        (tmp_path / folder / "r.py").write_text(f"def reference(x):\n    return x * {scale}\n")
    return tmp_path


def test_each_folder_has_its_own_module_of_a_name(two: Path) -> None:
    assert [resolve_user_name(f"{x}/k.py:kernel", str(two))(1) for x in "ab"] == [2, 3]


def test_a_kernel_is_not_blamed_for_another_folders_module(two: Path) -> None:
    (two / "c.yaml").write_text(CONFIG)
    done = here(two / "c.yaml", "--on", "inline", "--results", two / "results")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_module_imported_in_a_call_is_its_own_folders(two: Path) -> None:
    for folder in "ab":
        (two / folder / "late.py").write_text("def kernel():\n    import utils\n    return utils.SCALE\n")
    called = [resolve_user_name(f"{x}/late.py:kernel", str(two)) for x in "ab"]
    assert [f() for f in called] == [2, 3]


def test_a_package_beside_finds_its_own_modules(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        package = tmp_path / folder / "parts_of_mine"
        (package / "deep").mkdir(parents=True)
        (package / "__init__.py").write_text("from parts_of_mine.deep.values import VALUE\n")
        (package / "deep" / "__init__.py").write_text("")
        (package / "deep" / "values.py").write_text(f"from parts_of_mine.base import BASE\nVALUE = BASE + {value}\n")
        (package / "base.py").write_text(f"BASE = {10 * value}\n")
        (tmp_path / folder / "k.py").write_text(
            "import parts_of_mine.deep.values\nfrom parts_of_mine import base, VALUE\n"
            "def kernel():\n    return base.BASE, VALUE, parts_of_mine.deep.values.VALUE\n"
        )
    assert [resolve_user_name(f"{x}/k.py:kernel", str(tmp_path))() for x in "ab"] == [(10, 11, 11), (20, 22, 22)]


def test_a_package_between_a_kernel_and_its_root_hides_nothing_installed(tmp_path: Path) -> None:
    """Kernels lie in packages called as what they are written in; a plain folder of a lacking package's name is none."""
    for name in ("", "torch", "cuda"):
        (tmp_path / "kernels" / name).mkdir()
        (tmp_path / "kernels" / name / "__init__.py").write_text("")
    (tmp_path / "kernels" / "lacking_package").mkdir()
    for file, module in (("torch/mine", "torch"), ("cuda/other", "torch"), ("cuda/lacks", "lacking_package")):
        source = f"import {module}\ndef kernel():\n    return {module}.relu\n"
        (tmp_path / "kernels" / f"{file}.py").write_text(source)
    mine, lacks = (tmp_path / "kernels" / x for x in ("torch/mine.py", "cuda/lacks.py"))
    for name in ("torch/mine.py", "cuda/other.py"):
        assert resolve_user_name(f"kernels/{name}:kernel", str(tmp_path))().__name__ == "relu"
    assert user_sources.list_imported_files(mine, str(tmp_path)) == [mine]
    assert user_sources.list_imports_outside(mine, str(tmp_path)) == {"torch"}
    assert user_sources.find_first_lacking_import(lacks, str(tmp_path)) == (1, "lacking_package")
    with pytest.raises(CatalogError) as raised:
        resolve_user_name("kernels/cuda/lacks.py:kernel", str(tmp_path))
    assert raised.value.lacks == "lacking_package"


def test_a_submission_finds_in_its_tasks_folder_what_is_nowhere_else(tmp_path: Path) -> None:
    """The root is above: there lies what several tasks share."""
    folder = tmp_path / "problem" / "submissions"
    folder.mkdir(parents=True)
    for name in ("types_of_mine", "numpy", "shared_by_tasks"):
        (tmp_path / "problem" / f"{name}.py").write_text("WHERE = 'task'\n")
    (tmp_path / "shared_by_tasks.py").write_text("WHERE = 'root'\n")
    file = folder / "right.py"
    file.write_text(
        "import numpy, shared_by_tasks, types_of_mine\n"
        "def kernel():\n    return types_of_mine.WHERE, shared_by_tasks.WHERE, hasattr(numpy, 'WHERE')\n"
    )
    assert user_sources.find_first_lacking_import(file, str(tmp_path)) is None
    assert resolve_user_name(f"{file}:kernel", str(tmp_path))() == ("task", "root", False)


def test_a_file_called_as_a_module_of_python_hides_it_from_nobody(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("MINE = True\n")
    (tmp_path / "k.py").write_text("import json\ndef kernel():\n    return json.dumps([1])\n")
    assert resolve_user_name("k.py:kernel", str(tmp_path))() == "[1]"


@pytest.mark.parametrize("on", ["processes", "inline"])
def test_a_users_own_tasks_and_farm_op_in_one_folder(tmp_path: Path, on: str) -> None:
    (tmp_path / "tasks.py").write_text("SCALE = 2\n")
    (tmp_path / "k.py").write_text(
        textwrap.dedent("""
        import farm, torch
        from tasks import SCALE

        def reference(x):
            return x * 2

        @farm.op(reference=reference, inputs={"x": ["N"]}, dims={"N": [1, 64]})
        def kernel(x):
            return x * SCALE
        """)
    )
    text = "catalogs: [{name: user, modules: [k.py]}]\ndtypes: [float32]\nbackends: [torch-cpu]\n"
    (tmp_path / "c.yaml").write_text(text)
    run = [sys.executable, "-m", "farm.launch", "c.yaml", "--on", on, "--results", "results"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_where_only_tasks_is_farm_op_declares_too(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(
        "import farm\n@farm.op(reference=abs, inputs={'x': ['N']}, dims={'N': [4]})\ndef kernel(x):\n    return x\n"
    )
    text = "from tasks.catalogs.user.load_kernels import resolve_user_name as f; print(len(f('k.py:kernel', '.').__farm_ops__))"
    # As in the environment of a runtime: numpy and ml_dtypes, and of the farm the package tasks.
    folders = [str(Path(m.__file__ or "").parents[1]) for m in map(__import__, ["numpy", "ml_dtypes"])]
    code = f"import sys; sys.path += {folders!r}; sys.path.insert(0, {str(link_tasks_folder())!r}); {text}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "1\n", done.stderr


def test_a_module_called_tasks_that_came_first_is_named(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("")
    done = subprocess.run([sys.executable, "-c", "import tasks, farm"], capture_output=True, text=True, cwd=tmp_path)
    assert f"{tmp_path}/tasks.py was imported by that name" in done.stderr


#: What finds a submission that lies beside it, and how it goes on where there is none.
ASKS = """
import importlib.util, sys
import {helper}
try:
    from rival import double
except ImportError as error:
    assert type(error) is ModuleNotFoundError, error
    double = None
try:  # as a library, whose imports are Python's own, looks for an optional package
    exec("import optional_package", {{"__builtins__": __import__("builtins")}})
    optional = True
except ModuleNotFoundError:
    optional = False

def kernel():
    return {helper}.MINE, double, optional, importlib.util.find_spec("optional_package")
"""


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("helper", ["helper", "tasks"])
def test_a_submission_is_no_module_and_a_host_s_helper_is_its_own(tmp_path: Path, apart: bool, helper: str) -> None:
    """Of a submission, and of the reference, which lies beside it or in the folder above; where the run is started there
    is a namesake."""
    folder = tmp_path / "submissions" if apart else tmp_path
    for place, who in ((tmp_path, "host"), (tmp_path / "elsewhere", "nobody")):
        place.mkdir(exist_ok=True)
        (place / f"{helper}.py").write_text(f"MINE = {who!r}\n")
    folder.mkdir(exist_ok=True)
    for name in ("rival", "optional_package"):
        (folder / f"{name}.py").write_text("def double(x): return 2 * x\n")
    (tmp_path / "reference.py").write_text(ASKS.format(helper=helper))
    (folder / "right.py").write_text(ASKS.format(helper=helper))
    told = {"submissions": [str(folder / f"{x}.py") for x in ("right", "rival", "optional_package")]}
    script = f"""
import json, sys
sys.path.remove("")
sys.path.append("")  # last, as in the farm's processes
from tasks.catalogs.user_definitions import announce_definitions
from tasks.catalogs.user.load_kernels import resolve_user_name
announce_definitions(sys.argv[1])
print(resolve_user_name(sys.argv[2] + ":kernel", {str(tmp_path)!r})())
"""
    for more, file in (({}, tmp_path / "reference.py"), ({"kernel": str(folder / "right.py")}, folder / "right.py")):
        done = subprocess.run(
            [sys.executable, "-c", script, json.dumps(told | more), str(file)],
            cwd=tmp_path / "elsewhere",
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
        )
        assert done.stdout == "('host', None, False, None)\n", done.stderr
