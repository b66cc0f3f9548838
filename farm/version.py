"""Which farm this is: its version, and the commit that it runs from or was built of."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

#: The release that this is, or that comes after the last one's commits. The package's metadata has it from here.
VERSION = "1.0.0"
#: Beside this file in an installation that was built (setup.py writes it): the commit of its sources.
COMMIT_FILE = "commit.txt"
#: What of a checkout decides verdicts and rows: changes elsewhere (docs, tests) make no other farm.
SOURCES = ("farm", "tasks", "farm_pytest")
#: Seconds after which git, on a file system that does not answer, is not waited for.
_GIT_S = 5.0

_HERE = Path(__file__).resolve().parent


@functools.cache
def farm_version() -> str:
    """Version and commit, as PEP 440 has it: "1.0.0+g46f037aa", with ".dirty" where the checkout has changes that are
    not committed, ".unchecked" where git did not say whether it has, and "1.0.0" where no commit is known. Asked of git
    at most once a process."""
    commit = find_farm_commit(_HERE.parent)
    return f"{VERSION}+{commit}" if commit else VERSION


def find_farm_commit(root: Path) -> str:
    """The commit of the farm that lies in a folder, a checkout or an installation: "g46f037aa", "g46f037aa.dirty",
    "g46f037aa.unchecked", "" for unknown."""
    try:
        return (root / "farm" / COMMIT_FILE).read_text().strip()
    except OSError:
        pass
    # Asked of this very folder: an installation may lie inside of somebody else's repository.
    if not (root / ".git").exists():
        return ""
    # Inside of a hook these name another repository, and the index is not this process's to write.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    asked = ["git", "-C", str(root), "status", "--porcelain=v2", "--branch", "--", *SOURCES]
    try:
        said = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=_GIT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):  # there is no git, or a busy machine keeps it from answering
        oid = _read_commit_of_head(root / ".git")
        return f"g{oid[:8]}.unchecked" if oid else ""
    lines = said.splitlines()
    oid = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
    if not oid or oid == "(initial)":
        return ""
    return f"g{oid[:8]}{'.dirty' * any(not line.startswith('#') for line in lines)}"


def _read_commit_of_head(git: Path) -> str:
    """The commit that is checked out, as the files of a repository have it (or of a worktree, whose .git is a file);
    "" where they have none."""
    try:
        if git.is_file():
            git = git.parent / git.read_text().partition("gitdir:")[2].strip()
        shared = git / "commondir"
        common = git / shared.read_text().strip() if shared.exists() else git
        _, is_ref, name = (head := (git / "HEAD").read_text().strip()).rpartition("ref: ")
        if not is_ref:
            return head
        if (common / name).exists():
            return (common / name).read_text().strip()
        packed = (line.split() for line in (common / "packed-refs").read_text().splitlines())
        return next((words[0] for words in packed if words[1:] == [name]), "")
    except OSError:
        return ""
