"""Join the fragments of this folder into CHANGELOG.md, below a heading of the version that is released: python changes/join.py VERSION"""

from __future__ import annotations

import datetime
import re
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: Kinds of a change, in the order of their headings.
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
UNRELEASED = "## Unreleased\n"


class NoFragment(Exception):
    """A file of the folder that is no fragment; the text names it and says what one is."""


def fragments(folder: Path) -> dict[Path, tuple[str, str]]:
    """file → (kind, text) of all fragments. Raises NoFragment."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name in ("README.md", "join.py") or path.name.startswith((".", "__")):
            continue
        name = re.fullmatch(r"[\w-]+\.(\w+)\.md", path.name)
        if name is None or name[1].capitalize() not in KINDS:
            raise NoFragment(f"{path}: not named WHAT.KIND.md, KIND one of {', '.join(k.lower() for k in KINDS)}")
        text = path.read_text().strip()
        if not text.startswith("- "):
            raise NoFragment(f"{path}: does not begin with a list item, '- '")
        found[path] = name[1].capitalize(), text
    return found


def joined(changelog: str, texts: list[tuple[str, str]], version: str, day: str) -> str:
    """The changelog after a release: what is under Unreleased, and (kind, text) of each fragment behind that of its
    kind, stands under the version. Raises NoFragment where it has no heading Unreleased, or has the version already."""
    head, mark, rest = changelog.partition(UNRELEASED)
    if not mark:
        raise NoFragment(f"CHANGELOG.md has no line {UNRELEASED.strip()!r}")
    if re.search(rf"^## {re.escape(version)}\b", rest, re.MULTILINE):
        raise NoFragment(f"CHANGELOG.md has a version {version} already")
    end = re.search(r"^## ", rest, re.MULTILINE)
    body, older = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    lead, *parts = re.split(r"^### (.+)\n", body, flags=re.MULTILINE)
    of: defaultdict[str, list[str]] = defaultdict(list)
    for kind, text in [*zip(parts[::2], parts[1::2]), *texts]:
        of[kind].append(text.strip())
    kinds = [*KINDS, *(kind for kind in of if kind not in KINDS)]
    sections = [f"### {kind}\n\n" + "\n".join(of[kind]) for kind in kinds if of[kind]]
    told = "\n\n".join([f"## {version} – {day}", *filter(None, [lead.strip()]), *sections])
    return f"{head}{mark}\n{told}\n" + (f"\n{older}" if older else "")


def main(argv: list[str]) -> int:
    if len(argv) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+", argv[0]):
        print("usage: python changes/join.py VERSION, such as 1.1.0", file=sys.stderr)
        return 2
    changelog = HERE.parent / "CHANGELOG.md"
    try:
        found = fragments(HERE)
        text = joined(changelog.read_text(), [*found.values()], argv[0], datetime.date.today().isoformat())
    except NoFragment as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    changelog.write_text(text)
    for path in found:
        path.unlink()
    print(f"{changelog.name}: {argv[0]} with {len(found)} fragments")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
