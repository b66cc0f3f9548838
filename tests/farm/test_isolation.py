"""A kernel that nobody vouches for runs in a process that does not judge: what it does there is its own row, and nobody else's."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from farm.fleet.child_process import ChildDeath, ChildProcess, Limits
from tasks import confine, wire
from tasks.aside import ask_aside
from tasks.backends import BackendSpec
from tasks.catalogs import user_definitions
from tasks.catalogs.user import shown_definitions
from tasks.confine import Rules
from tasks.judge import policy_files
from tasks.model import Group
from tasks.model.row import Row
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import make_item_of_whole_group
from tasks.stranger.nursery import Nursery
from tests.farm.test_resume import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are shut in on Linux")

HEAD = "import os\nimport numpy as np\nimport torch\n"
SOUND = "def kernel(x): return x * 2\n"
#: Replaces what judges, where it runs, and returns zeros.
TOUCHES_THE_JUDGE = """
import sys
def kernel(x):
    from tasks import judging, runner
    from tasks.judge.error_metrics import Metrics
    from tasks.model import Status
    def replace(module, name, own):
        assert callable(getattr(module, name))
        setattr(module, name, own)
    for module in (judging, runner):
        replace(module, "judge_outputs", lambda *a, **k: judging.Judgement(Metrics(), Status.PASS, ""))
    replace(judging, "compare_outputs", lambda *a, **k: Metrics())
    replace(judging, "judge_by_policy", lambda *a, **k: (Status.PASS, ""))
    return torch.zeros_like(x)
"""


@dataclass
class Farm:
    """A child that runs kernels, with 2·x as reference in a file of its own."""

    folder: Path
    child: ChildProcess | None = None

    def define(self, **kernels: str) -> str:
        (self.folder / "reference.py").write_text("def reference(x): return 2 * x\n")
        found = []
        for name, source in kernels.items():
            (self.folder / f"{name}.py").write_text(HEAD + source)
            own: dict[str, Any] = {"framework": "numpy"} if "def kernel(x):  # numpy" in source else {}
            own |= {"name": name, "kernel": f"{name}.py:kernel", "reference": "reference.py:reference"}
            own |= {"inputs": {"x": ["n"]}, "dims": {"n": [3, 40]}, "dtypes": ["float32", "bfloat16"]}
            found.append(own)
        return json.dumps({"sources": [{"at": 0, "root": str(self.folder), "modules": [], "kernels": found}]})

    def run(
        self, check: str = "forward", limits: Limits | None = None, submitted: str = "", seed: int = 0, **kernels: str
    ) -> list[Any]:
        """Rows of two samples of each kernel, and how the process ended if it did. submitted: the kernel that is a
        submission's; seed: of the run."""
        text = self.define(**kernels)
        if submitted:
            text = user_definitions.put_kernel_in_definitions(text, str(self.folder / f"{submitted}.py"))
        user_definitions.announce_definitions(text)
        groups = [Group(f"user:{name}", "", "float32", 2, seed, check) for name in kernels]
        packs = [
            PreparedGroup(prepare_group(x, self.folder)[1].pack.path, check) for x in groups
        ]  # which several checks share
        limits = limits or Limits(deadline_s=30, race_s=0.5)
        self.child = ChildProcess(sys.executable, limits, None, ("torch",))
        hello = wire.Hello(BackendSpec.parse("torch-cpu"), policy_files.load_policy("error_units"), text, limits.race_s)
        assert isinstance(self.child.ask(hello, 120), wire.Ready)
        said = list(self.child.call(wire.Run(tuple(map(make_item_of_whole_group, packs)))))
        return [x.row if isinstance(x, wire.Done) else x for x in said if not isinstance(x, wire.Finished)]


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    made = Farm(tmp_path)
    yield made
    if made.child is not None:
        made.child.close()


def outcomes(found: list[Any]) -> list[tuple[str, str]]:
    return [(x.status, x.kind) for x in found]


def test_a_kernel_that_replaces_the_judge_replaces_that_of_its_own_process(farm: Farm) -> None:
    found = farm.run(cheat=TOUCHES_THE_JUDGE, sound=SOUND)
    assert outcomes(found) == [("wrong", "numbers")] * 2 + [("pass", "")] * 2


@pytest.mark.parametrize("check", ["forward", "replay", "determinism", "batch_invariance", "speedup"])
def test_each_check_is_asked_of_a_kernel_in_its_own_process(farm: Farm, check: str) -> None:
    assert {x.status for x in farm.run(check, sound=SOUND)} <= {"pass", "vacuous", "unsupported"}


def test_what_a_kernel_raises_has_its_name_text_and_place(farm: Farm) -> None:
    found = farm.run(
        own="class NoSuchBlock(RuntimeError): pass\ndef kernel(x): raise NoSuchBlock('no such block')\n",
        key="def kernel(x): return {}['block']\n",
        leaves="import sys\ndef kernel(x): sys.exit(4)\n",
    )
    told = [(x.status, x.stage, x.error_type, x.error) for x in found[::2]]
    assert told[0] == ("error", "run", "NoSuchBlock", f"no such block ({farm.folder}/own.py:5)")
    assert told[1][:3] == ("error", "run", "KeyError") and "block" in told[1][3]
    assert told[2][:3] == ("error", "run", "SystemExit") and "sys.exit(4)" in told[2][3]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def kernel(x): os._exit(3)\n", "exit code 3"),
        ("def kernel(x): os._exit(0)\n", "exit code 0"),
        ("def kernel(x): os.abort()\n", "SIGABRT"),
        ("import ctypes\ndef kernel(x): ctypes.string_at(0)\n", "SIGSEGV"),
    ],
)
def test_a_kernel_that_ends_its_process_ends_the_child_alike(farm: Farm, source: str, kind: str) -> None:
    *_, death = farm.run(cheat=source)
    assert isinstance(death, ChildDeath)
    assert (death.status, death.kind, death.number, death.stage) == ("crash", kind, 0, "run")


def test_a_kernel_that_sleeps_is_stopped_and_leaves_nothing_behind(farm: Farm) -> None:
    long = str(86400 + os.getpid())  # no other process sleeps so long
    source = f"""
import signal, subprocess, time
def kernel(x):
    for _ in range(3):
        subprocess.Popen(["sleep", "{long}"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        os.execlp("sleep", "sleep", "{long}")
    time.sleep(1000)
"""
    *_, death = farm.run(limits=Limits(deadline_s=1), cheat=source)
    assert isinstance(death, ChildDeath) and (death.status, death.stage) == ("timeout", "run")
    assert farm.child is not None
    farm.child.close()
    wait_for(lambda: not find_sleeping(long), "the end of all that it has started")


def find_sleeping(long: str) -> list[str]:
    """Processes that sleep for so many seconds."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [str(path)] if path.read_bytes() == f"sleep\0{long}\0".encode() else []
        except OSError:
            continue
    return found


def test_a_folder_that_is_too_deep_for_who_removes_it_is_removed(farm: Farm) -> None:
    source = """
import tempfile
at = os.open(tempfile.mkdtemp(), os.O_RDONLY)
for _ in range(2 * sys.getrecursionlimit()):
    os.mkdir("d", dir_fd=at)
    before, at = at, os.open("d", os.O_RDONLY, dir_fd=at)
    os.close(before)
os.fchmod(at, 0)
def kernel(x): return x * 2
"""
    assert outcomes(farm.run(deep="import sys" + source, sound=SOUND)) == [("pass", "")] * 4
    assert farm.child is not None
    folder = farm.child._folder
    farm.child.close()
    assert not Path(folder).exists()


def test_a_kernel_that_forks_answers_once(farm: Farm) -> None:
    found = farm.run(forks="def kernel(x):\n    os.fork()\n    return x * 2\n", sound=SOUND)
    assert outcomes(found) == [("pass", "")] * 4


def test_a_kernel_that_allocates_without_end_runs_out_of_memory(farm: Farm) -> None:
    source = "def kernel(x):\n    kept = []\n    while True: kept.append(torch.ones(1 << 22))\n"
    first, *_ = farm.run(limits=Limits(memory_gib=1.0), cheat=source)
    assert first.status == "oom"


def test_what_a_kernel_allocates_in_other_processes_is_its_own(farm: Farm) -> None:
    source = """
import time
def kernel(x):
    for _ in range(4):
        if os.fork() == 0:
            if os.fork() == 0:
                kept = np.ones(3 << 25)
                time.sleep(30)
            os._exit(0)
    time.sleep(30)
    return x * 2
"""
    first, *_ = farm.run(limits=Limits(memory_gib=1.25), cheat=source)
    assert first.status == "oom"


def test_a_pool_of_processes_that_share_what_they_were_forked_with_is_no_crowd(farm: Farm) -> None:
    source = """
import time
kept = np.ones(3 << 25)
def kernel(x):
    children = []
    for _ in range(4):
        if (pid := os.fork()) == 0:
            kept.sum()
            time.sleep(0.5)
            os._exit(0)
        children.append(pid)
    for pid in children: os.waitpid(pid, 0)
    return x * 2
"""
    assert outcomes(farm.run(limits=Limits(memory_gib=2.5), shares=source)) == [("pass", "")] * 2


def test_a_pool_of_processes_that_are_spawned_imports_the_kernel(farm: Farm) -> None:
    """By the name under which its file was loaded, which is on nobody's path."""
    source = """
import multiprocessing
def work(values): return [2 * x for x in values]
def kernel(x):  # numpy
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return np.array(pool.apply(work, (x.tolist(),)), x.dtype)
"""
    assert outcomes(farm.run(spawns=source.replace("import torch", ""))) == [("pass", "")] * 2


#: Whether its process has requests that are not answered yet behind the one in hand, or gets them within some seconds.
PENDING = """
import select, sys
def connection():
    frame = sys._getframe()
    while "connection" not in frame.f_locals: frame = frame.f_back
    return frame.f_locals["connection"]
def pending(seconds):
    own = connection()
    return own._end > own._begin or bool(select.select([own._socket], [], [], seconds)[0])
"""
#: Its sixth call is the first that an audit guards. It does what it should not do where the next one has begun.
WRITES_AND = (
    PENDING
    + """
import ctypes, time
calls = 0
def kernel(x):
    global calls
    calls += 1
    if calls == 6 and WRITES and pending(20): ctypes.memset(x.data_ptr() + x.nbytes, 1, 8)
    if calls == 7: LATER
    return x * 2
"""
)


@pytest.mark.parametrize("later", ["os._exit(3)", "os.kill(os.getpid(), 11)", "time.sleep(600)"])
def test_what_an_audited_call_did_is_not_hidden_by_the_next_one(farm: Farm, later: str) -> None:
    """Which its process has begun by then; nor does that reach into the next kernel's case."""
    bad = WRITES_AND.replace("LATER", later).replace("WRITES", "True")
    audited, sound = farm.run("audit", cheat=bad, sound=SOUND)
    assert (audited.status, audited.kind) == ("wrong", "writes outside")
    assert (sound.status, sound.kind) == ("pass", "")


#: One of its calls answers what it was not asked.
ANSWERS_ANOTHER = (
    PENDING
    + """
calls = 0
def kernel(x):
    global calls
    calls += 1
    if calls == CALL and pending(20):
        connection().send(1 << 40, "done", {"outputs": []})
    return x * 2
"""
)


def test_an_answer_that_nobody_asked_for_is_wrong_in_an_audit_too(farm: Farm) -> None:
    """Though further calls are under way, and at sizes that nobody promises."""
    audited, sound = farm.run("audit", cheat=ANSWERS_ANOTHER.replace("CALL", "6"), sound=SOUND)
    assert (audited.status, audited.kind) == ("wrong", "protocol"), audited.error
    assert (sound.status, sound.kind) == ("pass", "")


#: Answers in the place of the process that holds it, which answers as well.
ANSWERS_TWICE = """
import sys
def kernel(x):
    frame = sys._getframe()
    while frame.f_code.co_name != "_answer_one": frame = frame.f_back
    asked, connection = frame.f_locals["message"], frame.f_locals["connection"]
    if asked.verb == "call" and not asked.body["data"]["counted"]:
        outputs = [np.asarray(x * 2)] * (2 if asked.body["data"]["pause"] else 1)
        connection.send(asked.number, "done", {"outputs": [0, len(outputs)], "said": {}, "ways": []}, outputs)
        return torch.zeros_like(x)
    return x * 2
"""


def test_a_kernel_that_answers_for_its_process_is_wrong(farm: Farm) -> None:
    audited, sound = farm.run("audit", cheat=ANSWERS_TWICE, sound=SOUND)
    assert (audited.status, audited.kind) == ("wrong", "protocol"), audited.error
    assert (sound.status, sound.kind) == ("pass", "")


def test_a_kind_that_a_kernel_makes_up_is_a_word_or_two(farm: Farm) -> None:
    source = "from tasks.model import Misbehaviour\ndef kernel(x): raise Misbehaviour(KIND, 'so it says')\n"
    found = farm.run(own=source.replace("KIND", "'of its own'"), odd=source.replace("KIND", "'\\x1b[2J' * 999"))
    assert outcomes(found) == [("wrong", "of its own")] * 2 + [("wrong", "protocol")] * 2


def test_an_audited_call_that_dies_is_its_own_case(farm: Farm) -> None:
    dies = WRITES_AND.replace("LATER", "os._exit(3)").replace("WRITES", "False")
    (ended,) = farm.run("audit", dies=dies)
    assert isinstance(ended, ChildDeath)


def test_a_kernel_that_prints_without_end_has_its_row(farm: Farm) -> None:
    source = "def kernel(x):\n    for _ in range(1 << 10): os.write(1, b'x' * (1 << 18))\n    return x * 2\n"
    assert outcomes(farm.run(loud=source)) == [("pass", "")] * 2


@pytest.mark.parametrize(
    "source",
    [
        "import socket\ndef kernel(x):\n    socket.create_connection(('127.0.0.1', 9), 1)\n    return x * 2\n",
        "import socket\ndef kernel(x):\n    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n    s.sendto(b'x', ('10.0.0.1', 9))\n    return x * 2\n",
        "def kernel(x):\n    open(__file__ + '.out', 'w').write('x')\n    return x * 2\n",
        "def kernel(x):\n    os.unlink(__file__)\n    return x * 2\n",
        "def kernel(x):\n    open(f'/proc/{os.getppid()}/mem', 'r+b')\n    return x * 2\n",
        "import socket\ndef kernel(x):\n    socket.socket(40)\n    return x * 2\n",
        "import socket\ndef kernel(x):\n    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n    return x * 2\n",
        "import socket\ndef kernel(x):\n    socket.socket(socket.AF_UNIX, socket.SOCK_RAW)\n    return x * 2\n",
    ],
    ids=["tcp", "udp", "writes", "deletes", "memory", "host of a virtual machine", "datagrams", "raw datagrams"],
)
def test_what_the_system_forbids_a_kernel_raises_in_it(farm: Farm, source: str) -> None:
    found: list[Row] = farm.run(cheat=source)
    assert {x.status for x in found} == {"error"}
    assert (farm.folder / "cheat.py").exists() and not (farm.folder / "cheat.py.out").exists()


@pytest.mark.parametrize(
    ("source", "denied"),
    [
        ("import multiprocessing as mp\ndef kernel(x): mp.get_context('fork').Manager().dict()\n", "socket.connect"),
        ("import socket\ndef kernel(x): socket.socket(40)\n", "socket.socket"),
        ("def kernel(x): os.kill(1, 0); raise PermissionError(1, 'Operation not permitted')\n", ""),
        ("import socket\ndef kernel(x):\n    with socket.socket():\n        os.nice(-1)\n", ""),
    ],
    ids=["a manager", "a virtual machine's host", "its own", "another call's"],
)
def test_a_row_says_which_call_was_denied(farm: Farm, source: str, denied: str) -> None:
    row: Row = farm.run(asks=source)[0]
    assert (row.status, row.error_type) == ("error", "PermissionError")
    said = f"Operation not permitted: {denied} is denied to a kernel's process"
    assert (said in (row.error or "")) is bool(denied) and ("denied" in (row.error or "")) is bool(denied), row.error


def test_a_kernel_reaches_no_socket_that_another_process_has_given_a_name(farm: Farm) -> None:
    source = f"""
import socket
def kernel(x):
    with socket.socket(socket.AF_UNIX) as own:
        try:
            own.connect({str(farm.folder / "named")!r})
        except PermissionError:
            return x * 2
    return x * 3
"""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(farm.folder / "named"))
        other.listen()
        assert outcomes(farm.run(asks=source)) == [("pass", "")] * 2


def test_a_kernel_leaves_nothing_in_the_users_keyring(farm: Farm) -> None:
    source = """
import ctypes, platform
def kernel(x):
    add = {"x86_64": 248, "aarch64": 217}[platform.machine()]
    return x * (2 if ctypes.CDLL(None).syscall(add, b"user", b"kept", b"x", 1, -4) < 0 else 3)
"""
    assert outcomes(farm.run(keeps=source)) == [("pass", "")] * 2


def test_a_kernel_is_in_a_group_of_processes_of_its_own(farm: Farm) -> None:
    """Of a group, anybody of the same user lowers the priority, or stops it where Landlock knows no signals: the judge
    and the baseline are in another."""
    source = "def kernel(x): return x * (2 if os.getpgrp() else 3)  # of a group of another namespace it is 0\n"
    assert outcomes(farm.run(asks=source)) == [("pass", "")] * 2


@pytest.mark.parametrize(
    "source",
    [
        "import reference\ndef kernel(x): return reference.reference(x)\n",
        "def kernel(x): open(os.path.join(os.path.dirname(__file__), 'reference.py')).read(); return x * 2\n",
        "import glob\ndef kernel(x): open(glob.glob(os.path.dirname(__file__) + '/cases/*/*.pack')[0]).read(); return x * 2\n",
    ],
    ids=["imports the reference", "reads it", "reads what is prepared"],
)
def test_neither_the_reference_nor_what_is_prepared_can_be_read(farm: Farm, source: str) -> None:
    assert {x.status for x in farm.run(cheat=source)} == {"error"}


def test_a_kernel_is_not_told_the_seed_that_its_inputs_are_drawn_from(farm: Farm) -> None:
    source = "import gc\ndef kernel(x): return x * {(y.seed or 2) for y in gc.get_objects() if type(y).__name__ == 'Group'}.pop()\n"
    for check in ("forward", "audit"):
        assert {x.status for x in farm.run(check, seed=987654321, looks=source)} == {"pass"}


def test_what_python_has_compiled_of_a_reference_is_hidden_and_a_library_is_not(farm: Farm) -> None:
    text = farm.define(op=SOUND)
    compiled = Path(importlib.util.cache_from_source(str(farm.folder / "reference.py")))
    compiled.parent.mkdir()
    compiled.write_bytes(b"")
    assert shown_definitions.list_files_hidden_from_kernel(text) == sorted(
        [str(farm.folder / "reference.py"), str(compiled)]
    )
    told = json.loads(text)
    told["sources"][0]["kernels"][0]["reference"] = "numpy:square"
    assert shown_definitions.list_files_hidden_from_kernel(json.dumps(told)) == []


def test_a_submission_is_shown_nothing_of_a_reference_for_naming_it(tmp_path: Path) -> None:
    """What its task declares for both is shown to it, and what that is made of."""
    folder = tmp_path / "problem"
    (folder / "submissions").mkdir(parents=True)
    sources = {
        "utils.py": "",
        "problem/task.py": "import kinds\n",
        "problem/kinds.py": "",
        "problem/helper.py": "def exact(x): return x\n",
        "problem/reference.py": "import utils\nfrom helper import exact\nfrom task import kinds\n",
        "problem/submissions/names.py": "import helper, reference\n",
        "problem/submissions/right.py": "import utils\nfrom task import kinds\n",
    }
    for name, source in sources.items():
        (tmp_path / name).write_text(source)

    def hide(name: str) -> set[str]:
        op = {"name": "op", "kernel": "x.py:kernel", "reference": "problem/reference.py:reference"}
        told = {"sources": [{"at": 0, "root": str(tmp_path), "modules": [], "kernels": [op]}]}
        text = user_definitions.put_kernel_in_definitions(json.dumps(told), str(folder / "submissions" / name))
        return {Path(x).name for x in shown_definitions.list_files_hidden_from_kernel(text)}

    assert hide("names.py") >= {"reference.py", "helper.py"}
    assert hide("right.py") == {"reference.py", "helper.py"}


def test_a_stranger_is_shown_its_own_kernel_alone(farm: Farm) -> None:
    text = farm.define(one=SOUND, two=SOUND)
    (kernel,) = json.loads(shown_definitions.show_definitions_to_kernel(text, "user:two"))["sources"][0]["kernels"]
    assert kernel["name"] == "two" and kernel["reference"] == kernel["kernel"]


def test_a_kernel_may_write_to_its_scratch_folder_and_start_a_compiler(farm: Farm) -> None:
    source = """
import subprocess, tempfile
def kernel(x):
    with tempfile.TemporaryDirectory() as folder:
        open(folder + "/a.c", "w").write("int f(void) { return 2; }")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder + "/a.so", folder + "/a.c"], check=True)
        import ctypes
        return x * ctypes.CDLL(folder + "/a.so").f()
"""
    assert outcomes(farm.run(compiles=source)) == [("pass", "")] * 2


def test_a_kernel_finds_nothing_of_the_one_before(farm: Farm) -> None:
    cheat = "import math, builtins\nbuiltins.left = 3\ntorch.Tensor.__mul__ = lambda a, b: torch.zeros_like(a)\ndef kernel(x): return torch.add(x, x)\n"
    look = "import builtins\ndef kernel(x): return x * (getattr(builtins, 'left', 2))\n"
    assert outcomes(farm.run(cheat=cheat, look=look)) == [("pass", "")] * 4


def test_what_a_kernel_leaves_in_shared_memory_ends_with_it(farm: Farm) -> None:
    leave = "def kernel(x):\n    open('/dev/shm/left-by-a-kernel', 'a').close()\n    return x * (2 if os.listdir('/dev/shm') else 3)\n"
    look = "def kernel(x): return x * (3 if os.listdir('/dev/shm') else 2)\n"
    assert outcomes(farm.run(leave=leave, look=look)) == [("pass", "")] * 4
    assert not Path("/dev/shm/left-by-a-kernel").exists()


def test_a_kernel_leaves_nothing_in_what_files_say_of_themselves(farm: Farm) -> None:
    """Permissions, times and attributes are its user's to change, and outlive it."""
    kept = farm.folder / "kept"
    kept.write_text("")
    source = f"""
import tempfile
def kernel(x):
    changes = [lambda p: os.chmod(p, 0o700), lambda p: os.utime(p, (1, 1)), lambda p: os.setxattr(p, "user.own", b"1")]
    for place in ({str(kept)!r}, __file__, {str(farm.folder)!r}, "/dev/null"):
        for change in changes:
            try:
                change(place)
                return x * 3
            except OSError:
                pass
    with tempfile.NamedTemporaryFile() as own, open("/dev/shm/own", "w") as shared:
        os.chmod(own.name, 0o700), os.utime(own.name, (1, 1)), os.chmod(shared.name, 0o700)
    return x * 2
"""
    before = kept.stat()
    assert outcomes(farm.run(keeps=source)) == [("pass", "")] * 2
    assert kept.stat() == before and not os.listxattr(kept)


def change_files(own: socket.socket, request: dict[str, Any]) -> None:
    """A stranger: the names of what it could do, and what it is told that nobody could forbid."""
    scratch, within, kept = map(Path, request["places"])

    def move() -> None:
        (scratch / "made").write_text("")
        (scratch / "made").rename(within / "made")
        os.link(within / "made", scratch / "linked")
        shutil.rmtree(within)

    tries = {
        "write": lambda: (scratch / "made").write_text(""),
        "share": lambda: Path("/dev/shm/own").write_text(""),
        "move": move,
        "touch": lambda: os.utime(kept),
    }
    done = []
    for name, one in tries.items():
        with contextlib.suppress(OSError):
            one()
            done.append(name)
    own.sendall(json.dumps([done, request["lacks"]]).encode())
    own.close()


def ask_stranger(tmp_path: Path, within: Path) -> Any:
    kept, scratch = tmp_path / "kept", tmp_path / "scratch"
    kept.write_text("")
    scratch.mkdir()
    if within.parent == scratch:
        within.mkdir()
    nursery = Nursery(change_files)
    rules = vars(Rules(writable=(str(scratch), str(within))))
    own, _lease, _ = nursery.fork({"rules": rules, "places": [str(scratch), str(within), str(kept)]})
    try:
        return json.loads(own.makefile().read())
    finally:
        nursery.close()


def test_a_kernel_moves_files_between_its_folders(tmp_path: Path) -> None:
    """A submission's compilers have a folder within its scratch folder: no mount of its own."""
    assert ask_stranger(tmp_path, tmp_path / "scratch" / "kernels") == [["write", "share", "move"], []]


def test_a_folder_that_is_not_there_leaves_no_file_to_be_changed(tmp_path: Path) -> None:
    assert ask_stranger(tmp_path, tmp_path / "nowhere") == [["write", "share"], []]


@pytest.mark.parametrize("failing", ["own", "all"])
def test_what_could_not_be_read_only_is_said_and_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    set_read_only = confine._set_read_only

    def fail(path: str, value: bool, flags: int = 0) -> bool:
        refused = path == "/" if failing == "all" else path.startswith(str(tmp_path))
        return not refused and set_read_only(path, value, flags)

    monkeypatch.setattr(confine, "_set_read_only", fail)
    done, lacks = ask_stranger(tmp_path, tmp_path / "scratch" / "kernels")
    assert "metadata" in lacks and done == ["write", "share", "move", "touch"]


def test_a_kernel_sees_no_processes_but_its_own(farm: Farm) -> None:
    source = "def kernel(x): return x * (2 if len([p for p in os.listdir('/proc') if p.isdigit()]) < 9 else 3)\n"
    assert outcomes(farm.run(looks=source)) == [("pass", "")] * 2


def test_what_compilers_made_for_one_kernel_is_hidden_from_others(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = farm.folder / "kept"
    monkeypatch.setenv("FARM_ARTEFACTS", str(kept))
    own = "os.path.join(os.environ['TRITON_CACHE_DIR'], 'made')"
    make = f"def kernel(x):\n    os.makedirs(os.path.dirname({own}), exist_ok=True)\n    open({own}, 'w').write('2')\n    return x * int(open({own}).read())\n"
    look = f"""
import glob
def kernel(x):
    for path in glob.glob({str(kept / "kernels" / "*" / "triton" / "made")!r}): open(path).read()
    return x * 2
"""
    assert [x.status for x in farm.run(make=make, look=look)] == ["pass"] * 2 + ["error"] * 2


@pytest.mark.parametrize(("submitted", "found"), [("", "wrong"), ("keeps", "pass")])
def test_what_a_submission_leaves_in_compilers_folders_ends_with_it(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, submitted: str, found: str
) -> None:
    """A cheat that has seen its judge once is wrong from the next run on; a kernel of the user's own has its folder
    from run to run."""
    monkeypatch.setenv("FARM_ARTEFACTS", str(farm.folder / "kept"))
    source = """
place = os.path.join(os.environ['TORCHINDUCTOR_CACHE_DIR'], 'seen')
before = os.path.exists(place)
os.makedirs(os.path.dirname(place), exist_ok=True)
open(place, 'w').close()
def kernel(x): return x * (3 if before else 2)
"""
    assert outcomes(farm.run(submitted=submitted, keeps=source)) == [("pass", "")] * 2
    assert farm.child is not None
    farm.child.close()
    assert {x.status for x in farm.run(submitted=submitted, keeps=source)} == {found}


#: What a kernel's process says of itself, in place of what is so.
CLAIMS = """
from tasks.stranger import records
own = records.describe_remote_program
records.describe_remote_program = lambda program: own(program) | CLAIM
def kernel(x): return x * FACTOR
"""


@pytest.mark.parametrize(
    ("source", "status", "kind"),
    [
        (CLAIMS.replace("CLAIM", "{'fallback': 'it ran elsewhere'}").replace("FACTOR", "3"), "wrong", "numbers"),
        (CLAIMS.replace("CLAIM", "{'columns': {'speedup': 9.0}}").replace("FACTOR", "2"), "wrong", "protocol"),
        ("from tasks.model import Invalid\ndef kernel(x): raise Invalid('a bad case')\n", "error", ""),
    ],
    ids=["fallback", "columns", "invalid"],
)
def test_what_a_kernel_says_of_itself_excuses_nobody(farm: Farm, source: str, status: str, kind: str) -> None:
    assert set(outcomes(farm.run(cheat=source))) == {(status, kind)}


#: Computes when its process is handed the inputs, and returns what it has kept when its clock runs.
EARLY = """
from dataclasses import replace
from tasks.stranger import serve
def timed(self, message, out):
    made = self._kept[message.of].timed(message.arrays, serve.records.read_remote_chain(message.body))
    told = replace(made(), wall_s=1e-6, cpu_s=1e-6)
    self._kept[message.number] = early = lambda: told
    early.results = made.results
def kernel(x):
    serve._VERBS["timed"] = timed
    for _ in range(2000): y = x * 2
    return y
"""


def test_a_kernel_that_computes_before_its_clock_runs_gains_nothing(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "def reference(x):\n    for _ in range(4000): y = 2 * x\n    return y\n"
    define = farm.define

    def define_slow(**kernels: str) -> str:
        text = define(**kernels)
        (farm.folder / "reference.py").write_text(slow)
        return text

    monkeypatch.setattr(farm, "define", define_slow)
    for row in farm.run("speedup", Limits(deadline_s=30), cheat=EARLY):
        # Where the machine is so busy that the wall clock cannot tell, what the system counted is in its time: it is
        # twice as fast, and says 4,000 times.
        found = row.speedup is None if "early" in row.time_doubt else row.speedup < 4
        assert row.status == "pass" and found, (row.time_doubt, row.speedup)


#: Makes calls that are timed together all at once: it foresees what inputs they will have. Of those that hang on what
#: it returns, it cannot.
AT_ONCE = """
from tasks.arrays.varied import digest_outputs
from tasks.model import Timed
from tasks.stranger import serve
class AtOnce:
    def __init__(self, x, chain):
        self.x, self.chain = x, chain
    def __call__(self):
        own = [x * 2 for x in [self.x] * self.chain.calls]
        self.kept = [[x] for x in own] + [[own[0]]] * self.chain.probe
        digests = []
        for x in own: digests.append(digest_outputs([x], digests[-1] if digests else self.chain.begin))
        return Timed((), 1e-6, 1e-6, digests=tuple(digests)) if not MADE_UP else Timed((), 1e-6, 1e-6, digests=("0" * 64,) * len(own))
    def results(self): return self.kept
def timed(self, message, out):
    self._kept[message.number] = AtOnce(message.arrays[0], serve.records.read_remote_chain(message.body))
def kernel(x):
    serve._VERBS["timed"] = timed
    return x * 2
"""


@pytest.mark.parametrize(("made_up", "kinds"), [("False", {"kept", "other inputs"}), ("True", {"protocol"})])
def test_calls_that_are_timed_together_are_made_one_after_another(farm: Farm, made_up: str, kinds: set[str]) -> None:
    limits = Limits(deadline_s=30, race_s=0.5)
    rows = farm.run("speedup", limits, cheat=AT_ONCE.replace("MADE_UP", made_up), sound=SOUND)
    assert [x.status for x in rows] == ["wrong"] * 2 + ["pass"] * 2 and {x.kind for x in rows[:2]} <= kinds


def test_a_kernel_that_refuses_layouts_is_timed_in_contiguous_inputs(farm: Farm) -> None:
    source = (
        "def kernel(x):\n    if not x.is_contiguous(): raise ValueError('contiguous inputs alone')\n    return x * 2\n"
    )
    assert outcomes(farm.run("speedup", picky=source)) == [("pass", "")] * 2


#: Keeps results by shape, but not in a call that only an audit makes.
BEHAVES = """
from tasks.stranger import serve
seen, audited, own = {}, [False], serve._VERBS["call"]
def call(self, *rest):
    audited[0] = True
    try: return own(self, *rest)
    finally: audited[0] = False
serve._VERBS["call"] = call
def kernel(x): return x * 2 if audited[0] else seen.setdefault(x.shape, x * 2).clone()
"""


#: Takes what other requests lie behind for an audit, too.
LOOKS_BEHIND = PENDING + BEHAVES.replace("if audited[0]", "if audited[0] or pending(0.02)")


@pytest.mark.parametrize("source", [BEHAVES, LOOKS_BEHIND], ids=["behaves", "looks_behind"])
def test_an_audit_also_asks_as_other_checks_do(farm: Farm, source: str) -> None:
    assert {x.status for x in farm.run("audit", cheat=source)} == {"wrong"}


def test_a_tensor_that_computes_when_it_is_read_is_read_in_its_own_process(farm: Farm) -> None:
    source = """
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
    def numpy(self): raise RuntimeError("the judge has touched it")
def kernel(x): return (x * 2).as_subclass(Lazy)
"""
    assert {x.status for x in farm.run(lazy=source)} <= {"pass", "error"}


def test_one_that_answers_what_it_was_not_asked_is_wrong(farm: Farm) -> None:
    source = """
import json, socket, struct
def kernel(x):
    for fd in range(3, 64):
        try:
            s = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        text = json.dumps(["done", {"outputs": [0, 0]}, []]).encode()
        text += b" " * (-(40 + len(text)) % 64)
        s.sendall(struct.pack("<QQQQII", 1 << 40, 0, 0, 0, len(text), 0) + text)
    return x * 2
"""
    first, *_ = farm.run(cheat=source)
    assert (first.status, first.kind) == ("wrong", "protocol")


def test_numpy_kernels_and_large_arrays_cross_alike(farm: Farm) -> None:
    found = farm.run(
        arrays="def kernel(x):  # numpy\n    return x * 2\n",
        wide="def kernel(x): return torch.cat([x * 2, x])[: len(x)]\n",
    )
    assert outcomes(found) == [("pass", "")] * 4


def test_isolation_none_judges_where_the_kernel_runs(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    define = Farm.define
    monkeypatch.setattr(
        Farm, "define", lambda self, **k: json.dumps({**json.loads(define(self, **k)), "isolation": "none"})
    )
    assert (
        outcomes(farm.run(sees="def kernel(x): return x * (2 if os.getpid() == os.getsid(0) else 3)\n"))
        == [("pass", "")] * 2
    )


def test_a_kernel_imports_what_lies_beside_it_though_something_there_is_hidden(farm: Farm) -> None:
    (farm.folder / "helper.py").write_text("def double(x): return x * 2\n")
    rows = farm.run(kernel="def kernel(x):\n    from helper import double\n    return double(x)\n")
    assert {row.status for row in rows} == {"pass"}, rows[0].error


#: Makes the noise floor of whoever imports it endless; computes in float32 inside.
SPOILS_FLOORS = """
from tasks.arrays import noise
noise.compute_noise_floor = lambda exact, *a, **k: [np.full(np.shape(y), 1e30) for y in exact]
def kernel(x): return (x.float() * 2).to(x.dtype)
"""


def test_what_a_kernel_computes_in_is_asked_apart_from_what_prepares_its_cases(farm: Farm) -> None:
    user_definitions.announce_definitions(farm.define(cheat=SPOILS_FLOORS, sound=SOUND))
    for name in ("cheat", "sound"):
        made = prepare_group(Group(f"user:{name}", "", "bfloat16", 2), farm.folder)[1].samples[0]
        assert made.failure is None
        (leaf,) = made.expected()
        assert leaf.noise is not None and float(leaf.noise.max()) < 1
        assert ("computes_in=float32" in made.record.columns.get("flags", "")) is (name == "cheat")


@pytest.mark.parametrize(
    ("answer", "told"),
    [(lambda: True, True), (lambda: False, False), (lambda: 1 / 0, None), (lambda: os._exit(7), None)],
)
def test_a_question_is_answered_aside_or_not_at_all(answer: Callable[[], bool], told: bool | None) -> None:
    if told is not None:
        assert ask_aside(answer) is told
    else:
        with pytest.raises(RuntimeError, match="no answer"):
            ask_aside(answer)


def test_who_is_asked_aside_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "before").write_text("")

    def write() -> bool:
        (tmp_path / "after").write_text("")
        return True

    with pytest.raises(RuntimeError, match="no answer"):
        ask_aside(write)
    assert [x.name for x in tmp_path.iterdir()] == ["before"]
