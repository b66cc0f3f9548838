"""What a script of few lines holds a result to that is wrong beside its numbers: what the call did to its inputs, or did otherwise
the next time, or in a batch."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from tasks.arrays.tree import tensor_specs
from tasks.backends.shared.few_lines import NoScript, torch_arrays
from tasks.backends.shared.onnx_form import inputs_by_name
from tasks.catalogs.user import load
from tasks.checks.determinism import THREADS
from tasks.model import Form, Group, flags

#: Where a line says that a runtime computes with one thread.
_ONE_THREAD = re.compile(r"""(thread\w*['"\]]*\s*[=:(]\s*(?:str\()?)1\b""", re.IGNORECASE)

#: Source of what is the same for arrays x of the same bytes: of strings these have addresses.
_BYTES = "x.tolist() if x.dtype == object else x.tobytes().hex()"

#: Lines of a script that runs itself again.
_AGAIN = (
    "import subprocess, sys",
    "if len(sys.argv) == 1:",
    "    again = [sys.executable, *['-I'] * sys.flags.isolated, __file__]",
)

#: Lines before the call, those of the call, and those that say whether it is so.
Lines = tuple[list[str], list[str], list[str]]


def _mutation(lines: list[str], form: Form, group: Group) -> Lines:
    may = load.declared()[group.op_name].op.mutates if group.catalog == "user" else ()
    names = [name for name, x in form.kwargs["v"] for spec in tensor_specs(x) for _ in spec.parts or (spec.id,)]
    held = [k for k, name in enumerate(names) if name not in may] if may else "range(len(arrays))"
    told = [
        f"changed = [k for k in {held} if arrays[k].tobytes() != before[k].tobytes()]",
        'print([(before[k].ravel()[:8], "is then", arrays[k].ravel()[:8]) for k in changed])',
        'raise SystemExit("wrong" if changed else 0)',
    ]
    return ["before, arrays = arrays, [x.copy() for x in arrays]"], lines, told


def _aliasing(lines: list[str], form: Form, group: Group) -> Lines:
    told = [
        "shared = [(i, k) for i, a in enumerate(got) for k, x in enumerate(arrays) if np.may_share_memory(a, x)]",
        'print("outputs and inputs share memory:", shared)',
        'raise SystemExit("wrong" if shared else 0)',
    ]
    return [], lines, told


def _nondeterministic(lines: list[str], form: Form, group: Group) -> Lines:
    told = [
        f"    runs.append([{_BYTES} for x in map(np.asarray, got)])",
        "    print([np.asarray(x).ravel()[:8] for x in got])",
        'raise SystemExit("wrong" if any(x != runs[0] for x in runs) else 0)',
    ]
    fresh = ["arrays = [x.copy() for x in kept]"] if form.model is None else []  # what a kernel may write to
    before = [*["kept = arrays"] * len(fresh), "runs = []", "for _ in range(3):"]
    return before, [f"    {line}" for line in (*fresh, *lines)], told


def _accepted(lines: list[str], form: Form, group: Group) -> Lines:
    return [], lines, ['print("it returned", got, "where the reference raises")', 'raise SystemExit("wrong")']


def _structure(lines: list[str], form: Form, group: Group) -> Lines:
    told = [
        'print("it returned", found)',
        "several = found if isinstance(found, tuple) and len(found) > 1 else [found]",
        'raise SystemExit(0 if all(isinstance(x, torch.Tensor) for x in several) else "wrong")',
    ]
    return [], lines[:-1], told  # the last one takes what came for tensors


def _batch(lines: list[str], form: Form, group: Group, row: Mapping[str, Any]) -> Lines:
    """Of a row that is other bytes among its like than alone, as `tasks.checks.batch_invariance` says where. Raises NoScript."""
    where = flags.of(row).get("row", "")
    given = torch_arrays(form) if form.kind == "torch" else form.arrays
    plain = all(x.strides is None for x in tensor_specs([form.args, form.kwargs]))
    if not where or not plain or form.kind not in ("torch", "onnx"):
        raise NoScript("no short script: its inputs have no rows to separate")
    place, count = map(int, where.split("/"))
    rows: list[Any] = [k for k, x in enumerate(given) if any(x is form.arrays[i] for i in form.batched)]
    names, sized = "arrays", list[str]()
    if form.model is not None:
        names, rows = "feeds", [list(inputs_by_name(form))[k] for k in rows]
        sized = [
            "for v in model.graph.input:",
            "    for d, n in zip(v.type.tensor_type.shape.dim, feeds[v.name].shape): d.dim_value = n",
            'for v in model.graph.output: v.type.tensor_type.ClearField("shape")',
        ]
    make, of = ("[{}]", f"enumerate({names})") if form.model is None else ("{{k: {}}}", "feeds.items()")
    told = [
        "def among(x):  # the first row first, in the middle and last, others between",
        f"    n, turn = {count}, int(x.dtype.kind not in 'biuO')",
        "    others = [*(x[k : k + 1] for k in range(1, len(x))), np.roll(x[:1].ravel(), turn).reshape(x[:1].shape)]",
        "    return np.concatenate([x[:1] if k in (0, n // 2, n - 1) else others[k % len(others)] for k in range(n)])",
        "one = " + make.format(f"x[:1] if k in {rows} else x for k, x in {of}"),
        "many = " + make.format(f"among(x) if k in {rows} else x for k, x in {of}"),
        f"pairs = [(a, b[{place}:{place + 1}]) for a, b in zip(run(one), run(many))]",
        f'print("alone and among {count}:", [(a.ravel()[:4], b.ravel()[:4]) for a, b in pairs])',
        'raise SystemExit("wrong" if any(a.tobytes() != b.tobytes() for a, b in pairs) else 0)',
    ]
    run = [f"    {line}" for line in (*sized, *lines, "return [np.array(x) for x in got]")]
    return [f"def run({names}):"], run, told


def _process(lines: list[str], form: Form, group: Group) -> Lines:
    return _in_processes(lines, (1, 1), "in two processes:")


def _threads(lines: list[str], form: Form, group: Group) -> Lines:
    told = [_ONE_THREAD.sub(r"\g<1>THREADS", line) for line in lines]
    if told == lines:
        raise NoScript("no short script: no line sets the number of threads")
    return _in_processes(told, (1, *THREADS), "by number of threads:")


def _in_processes(lines: list[str], threads: tuple[int, ...], when: str) -> Lines:
    """The script runs itself again, once for each number of ``threads``, and compares the last lines that these processes print: a
    runtime may print others before."""
    before = [
        *_AGAIN[:1],
        "THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 1",
        *_AGAIN[1:],
        f"    ran = [subprocess.run([*again, str(n)], capture_output=True, text=True) for n in {threads}]",
        '    told = ["" if x.returncode else x.stdout.splitlines()[-1] for x in ran]  # one that dies tells nothing',
        f"    print({when!r}, [x[:200] for x in told])",
        '    raise SystemExit("wrong" if told[0] and len(set(told)) > 1 else 0)',
    ]
    return before, lines, [f"print([(x.shape, x.ravel()[:4].tolist(), {_BYTES}) for x in map(np.asarray, got)])"]


def sometimes(times: int, deadline_s: float | None = None) -> tuple[list[str], list[str]]:
    """(lines at the beginning, lines after the imports) of a script of what fails only sometimes: it runs itself so many times, says how
    often it failed, and ends as the last that did. deadline_s: of what hangs, after which a run counts as one that did, beside what the
    imports have taken: a first import of torch is no hang."""
    if deadline_s is not None:
        return ["import time", "begun = time.monotonic()"], [
            *_AGAIN,
            f"    hung, most_s = 0, {deadline_s:g} + time.monotonic() - begun",
            f"    for _ in range({times}):",
            '        try: subprocess.run([*again, "once"], capture_output=True, timeout=most_s)',
            "        except subprocess.TimeoutExpired: hung += 1",
            f'    print("hung", hung, "of {times} times")',
            '    raise SystemExit("hung" if hung else 0)',
        ]
    return [
        *_AGAIN,
        f'    ran = [subprocess.run([*again, "once"], capture_output=True, text=True) for _ in range({times})]',
        "    failed = [x for x in ran if x.returncode]",
        f'    print("failed", len(failed), "of {times} times")',
        "    for x in failed[-1:]:",
        "        print(x.stderr, end='', file=sys.stderr)",
        "        raise SystemExit(x.returncode if x.returncode > 0 else x.check_returncode())",
        "    raise SystemExit(0)",
    ], []


#: The kind of what is run again on the same inputs.
AGAIN = "nondeterministic"
#: By the kind of a row.
_KINDS = {
    "mutation": _mutation,
    "aliasing": _aliasing,
    AGAIN: _nondeterministic,
    "accepted": _accepted,
    "structure": _structure,
    "process": _process,
    "threads": _threads,
}


def of(row: Mapping[str, Any]) -> Callable[[list[str], Form, Group], Lines] | None:
    """What makes the lines of a row's kind of those of the call; None where its numbers are to be looked at."""
    error = row["error"] or ""
    if row["kind"] == "batch":
        return functools.partial(_batch, row=row)
    if row["kind"] == "structure" and not error.startswith("the kernel returned"):
        return None  # another number of outputs
    return _KINDS.get(row["kind"])
