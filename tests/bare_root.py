"""The Containerfile's steps where no container tool is: python -m tests.bare_root FOLDER [--also PATH …] -- ARGUMENTS of the entry point

Each instruction is taken in FOLDER as a root of its own (bubblewrap): /usr and /etc are this machine's, read-only, all
else is empty. What the base image would bring is therefore this machine's; packages that apt-get would install must be
here. The tree that is copied is the commit's. What an earlier call has done in FOLDER is not done again, as a layer is
not: another tree is copied again, and so is done all that follows. --also binds more of this machine, read-only: where
pip is told to find wheels.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What of this machine is the base image.
BASE = ("/usr", "/etc", "/bin", "/lib", "/lib64")
#: The instructions that were taken, in the folder, a line each: with what decides what they make.
LAYERS = ".layers"


@dataclass
class Container:
    """What the instructions have made so far: the folder that is the root, where a command starts, its variables, what
    it begins with."""

    root: Path
    also: tuple[str, ...]
    workdir: str = "/"
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin:/bin", "HOME": "/root"})
    entry: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> int:
        """A command in the root. Returns its exit code."""
        (self.root / self.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (self.root / "root").mkdir(exist_ok=True)
        given = (Path(path) for path in (*BASE, *self.also))
        binds = [word for path in given if path.exists() for word in ("--ro-bind", str(path), str(path))]
        words = [word for pair in self.variables.items() for word in ("--setenv", *pair)]
        outside = [
            "bwrap",
            "--bind",
            str(self.root),
            "/",
            *binds,
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--tmpfs",
            "/tmp",
        ]
        return subprocess.run([*outside, "--chdir", self.workdir, "--die-with-parent", *words, *command]).returncode


def read_instructions(text: str) -> Iterator[tuple[str, str]]:
    """Instructions and their arguments, without comments, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    for line in filter(str.strip, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def missing_packages(command: str) -> list[str]:
    """Of the packages that a command would have apt-get install, those that are not installed here."""
    found = re.search(r"apt-get install ([^&]*)", command)
    names = [word for word in (found[1].split() if found else []) if not word.startswith("-")]
    return [name for name in names if subprocess.run(["dpkg", "-s", name], capture_output=True).returncode]


def take(container: Container, name: str, rest: str) -> None:
    """One instruction. Raises SystemExit where it fails."""
    if name == "RUN" and rest.startswith("apt-get"):
        if missing := missing_packages(rest):
            raise SystemExit(f"not installed here: {', '.join(missing)}")
    elif name == "RUN":
        if code := container.run(["/bin/sh", "-c", rest]):
            raise SystemExit(f"RUN {rest}: exit code {code}")
    elif name == "COPY":
        target = container.root / rest.split()[-1].lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD"], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", target], input=archive, check=True)
    elif name == "WORKDIR":
        container.workdir = rest
    elif name == "ENV":
        for word in shlex.split(rest):
            key, _, value = word.partition("=")
            container.variables[key] = value.replace("$PATH", container.variables["PATH"])
    elif name == "ENTRYPOINT":
        container.entry = json.loads(rest)
    elif name not in ("ARG", "FROM", "VOLUME", "CMD"):
        raise SystemExit(f"{name}: no such instruction is known here")


def name_layer(name: str, rest: str) -> str:
    """An instruction, and of COPY the tree that it copies: where that is another, what was made of it is not there."""
    if name != "COPY":
        return f"{name} {rest}"
    tree = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD^{tree}"], capture_output=True, check=True, text=True)
    return f"{name} {rest} {tree.stdout.strip()}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bare_root")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--also", nargs="+", default=[], metavar="PATH")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="variables of every step")
    split = [*arguments, "--"].index("--")
    args = parser.parse_args(arguments[:split])
    container = Container(args.folder.resolve(), tuple(args.also))
    container.variables |= dict(word.split("=", 1) for word in args.set)
    container.root.mkdir(parents=True, exist_ok=True)
    layers = container.root / LAYERS
    before = layers.read_text().splitlines() if layers.exists() else []
    taken = [f"--set {' '.join(args.set)} --also {' '.join(args.also)}"]
    for name, rest in read_instructions((ROOT / "Containerfile").read_text()):
        begun = time.monotonic()
        taken.append(name_layer(name, rest))
        if before[: len(taken)] != taken or name not in ("RUN", "COPY"):
            take(container, name, rest)
        if len(taken) > len(before) or before[: len(taken)] != taken:
            layers.write_text("".join(f"{line}\n" for line in taken))
        print(f"{time.monotonic() - begun:6.0f} s  {name} {rest}", flush=True)
    return container.run([*container.entry, *arguments[split + 1 :]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
