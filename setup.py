"""What pyproject.toml cannot say: a package that is built keeps the commit of its sources, which its rows name."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent


def keep_commit(root: str) -> None:
    """Write the commit of these sources into a tree that is about to be packed."""
    found: dict = {"__file__": str(ROOT / "farm" / "version.py"), "__name__": "version"}
    exec((ROOT / "farm" / "version.py").read_text(), found)  # without `farm`, which a build has no packages for
    if commit := found["find_farm_commit"](ROOT):
        (Path(root) / "farm" / found["COMMIT_FILE"]).write_text(f"{commit}\n")


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # an editable installation is the checkout itself, and asks git
            keep_commit(self.build_lib)


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        keep_commit(base_dir)


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
