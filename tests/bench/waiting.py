"""Benches of what a person waits for: CPU time of commands beside that of their imports, and how far from the end of the output the answers
to a stranger's questions stand."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from farm.command_names import LEAVES
from tasks.cache import default_cache
from tests.bench.record import Result
from tests.bench.running import Size, config_of, environment, median, run, run_command, write_one_op

#: What a stranger asks at the end of a run → what one of its last lines begins with or holds.
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "is it clean": ("OK: ", "failure", "INCOMPLETE: "),
    "what is new": ("OK: ", "new failure", "the config lists none as known", "Since "),
    "what failed": ("known failures: ", "no failures", "cause", "wrong", "reproduce", "OK: no failures"),
    "what do I type next": ("farm ",),
}
COLUMNS = 80


def waiting(folder: Path, size: Size) -> Result:
    """CPU time of `-h`, a dry run, a run of one op, a report and doctor's beginning, each beside that of the imports of
    the command. size: may name a ``lake`` that has a run of the config, made with the cache that is the default."""
    given = size.get("lake")
    env = environment(default_cache() if given else folder / "cache", COLUMNS=str(COLUMNS))
    tiny = write_one_op(folder)
    config, lake, one = config_of(folder, size), given or folder / "lake", folder / "one"
    farm = [sys.executable, "-m", "farm"]
    for path, results in ((config, lake), (tiny, one))[bool(given) :]:
        run(run_command(path, results), env, (0, 1))  # it is the second day
    timed = {
        "help": ("report", [*farm, "report", "-h"]),
        "dry run": ("run", [*farm, "run", str(config), "--dry-run", "--results", str(lake)]),
        "one op": ("run", [*farm, "run", str(tiny), "--results", str(one)]),
        "report": ("report", [*farm, "report", "--results", str(lake), "--out", str(folder / "out")]),
    }
    figures: dict[str, float] = {}
    for name, (command, line) in timed.items():
        room = "options" if name == "help" else "commands"
        bare = [sys.executable, "-c", f"import farm.{room}.{command}"]
        took, imports = [], []
        for _ in range(size["times"]):  # in turn
            imports.append(run(bare, env)[1])
            took.append(run(line, env, (0, 1))[1])
        figures |= {f"{name} CPU s": median(took), f"{name} ratio": median(took) / median(imports)}
    figures["largest help CPU s"] = max(run([*farm, *name.split(), "-h"], env)[1] for name in LEAVES)
    figures["page KiB"] = (folder / "out" / "report.html").stat().st_size / 1024
    said = ", ".join(f"{name} {figures[f'{name} CPU s']:.2f} s ({figures[f'{name} ratio']:.2f} ×)" for name in timed)
    return Result(
        figures,
        f"CPU time, and × that of the imports of the command: {said}; the slowest -h {figures['largest help CPU s']:.2f} s; the page "
        f"{figures['page KiB']:.0f} KiB",
    )


def answers(folder: Path, size: Size) -> Result:
    """Lines from the end of a run's output, in a pipe at 80 columns, to the answer of each question."""
    env = environment(folder / "cache", COLUMNS=str(COLUMNS))
    tiny = write_one_op(folder)
    figures: dict[str, float] = {}
    for name, config in (("the config", config_of(folder, size)), ("one op", tiny)):
        for _ in range(2):
            said = run(run_command(config, folder / name), env, (0, 1))[2]
        figures |= {f"{name}: {question}": place for question, place in find_answers(said).items()}
    return Result(figures, "lines from the end: " + ", ".join(f"{name} {n:.0f}" for name, n in figures.items()))


def find_answers(said: str) -> dict[str, float]:
    """The lines from the end at which each of QUESTIONS is answered; infinite where it is not."""
    lines = said.rstrip().splitlines()[::-1]
    return {
        question: next((n for n, line in enumerate(lines, 1) if any(word in line for word in words)), float("inf"))
        for question, words in QUESTIONS.items()
    }
