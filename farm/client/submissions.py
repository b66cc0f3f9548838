"""A submission to a task, judged in one call: for a search that is rewarded by the verdict."""

from __future__ import annotations

import atexit
import functools
import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from farm.client.kernels import ClientError, find_given_declaration, name_given_function
from farm.client.process import isolate_client_settings
from farm.fleet import detect_vendors, scratch_folders
from farm.plan import config as configs
from farm.plan import kernels, submissions
from farm.plan import matrix as matrices
from farm.plan.config_schema import Config, ConfigError
from farm.report.tables.coverage import keep_distinct_rows
from farm.report.tables.submissions import summarise_submission
from farm.work import catalog_lists
from farm.work.child_pool import POOL
from farm.work.job import Job
from farm.work.state import make_child_limits
from farm.work.supervisor import CannotRun, run_batch_here, run_supervised_job_items
from tasks import checks, wire
from tasks.cache import default_cache
from tasks.catalogs.user.ops import FUNCTIONS, UserOp
from tasks.judge import policy_files
from tasks.model import Status
from tasks.model.kind import KIND_BASELINE

#: Children serve one job at a time: whoever has more cores calls from as many processes.
_one_at_a_time = threading.Lock()
#: Seconds for which a sample is timed, where the task does not say: a search asks of thousands how fast they are.
RACE_S = 0.3
#: What a task may be: the path of its declaration or of its folder, an op, a function with @farm.op or its name.
Task = UserOp | Callable[..., Any] | str | Path


@dataclass(frozen=True)
class Verdict:
    """What a submission is worth. status, kind: of its worst row; audit: what the check audit found, "clean" for
    nothing, "" where it was not asked; metrics: of the worst row (error_units, max_diff …) with passed and judged
    (cases), run_ms (median of its calls in milliseconds) and roofline (share, of 1), None where nothing was measured;
    speedup: over the task's baseline, with its interval, None where it was not measured; message: why it did not pass,
    in a line; time_doubt: why its time is not believed, "" if it is; rows: of the lake's columns."""

    status: Status
    kind: str
    audit: str
    metrics: Mapping[str, float | None]
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    message: str
    time_doubt: str = ""
    rows: tuple[Mapping[str, Any], ...] = field(repr=False, compare=False, default=())

    @property
    def passed(self) -> bool:
        """Whether it is right, or has lost digits and no more."""
        return self.status.passed


def judge(task: Task, source: str | Path, *, backend: str = "", samples: int = 0) -> Verdict:
    """Judge a submission to a task, in a process of its own. What the task's cases are made of is made once, and kept.

    task: the path of a task.yaml or of the folder that has one, a `farm.UserOp`, a function with @farm.op, or
    "module:function"; source: the text of a submission, or the path of its file, which defines a function of the name
    that the task says (default: the op's); one that is wrong is not timed. backend: what it runs on (default: eager
    torch on the device that is here); samples: of each dtype and distribution (default: the task's), of which at most
    three are timed. A submission that cannot be imported is an error, one that ends its process a crash: only what is
    wrong with the task raises ClientError.
    """
    file = _find_submission_file(source)
    if (size := file.stat().st_size) > submissions.MOST_BYTES:
        return _refuse_submission(f"{file}: {size:,} bytes, more than {submissions.MOST_BYTES:,} are allowed")
    try:
        with _one_at_a_time, isolate_client_settings():
            config, others, place = _find_submission_config(task, backend, samples)
            kernels.announce_config_kernels(config, refused=others, declaration=place)
            return _prepare_task_once(config.model_dump_json(), catalog_lists.find_catalog_list_version("user")).judge(
                file
            )
    except (ConfigError, CannotRun) as error:
        raise ClientError(str(error)) from None


def _find_submission_file(source: str | Path) -> Path:
    if isinstance(source, Path) or ("\n" not in source and source.endswith(".py")):
        if not (file := Path(source)).is_file():
            raise ClientError(f"{file}: no such file")
        return file.resolve()
    file = (
        scratch_folders.make_scratch_folder()
        / "submissions"
        / hashlib.sha256(source.encode()).hexdigest()[:16]
        / "submission.py"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    return file


def _find_submission_config(task: Task, backend: str, samples: int) -> tuple[Config, list[str], Path | None]:
    """The config of a task, with one backend that has no kernel yet; the submissions that its folder has; the file that
    declares it, None for a task that is no file. Raises ConfigError, ClientError."""
    asked = {"samples": samples} if samples else {}
    others: list[str] = []
    place: Path | None = None
    if isinstance(task, Path) or (isinstance(task, str) and (":" not in task or Path(task).exists())):
        path = Path(task)
        declared = submissions.declare_task(path / submissions.TASK if path.is_dir() else path, asked=asked)
        made, others, place = declared.made, submissions.list_submitted_paths(declared), declared.place
    else:
        made = _plan_submission_op(task, asked)
    on = [x for x in (backend, *made.pop("backends", [])) if x] or [detect_vendors.find_eager_backend()]
    made["backends"] = [{"name": "submission", **on[0]} if isinstance(on[0], Mapping) else on[0]]
    made.setdefault("race_s", RACE_S)
    shown = place or Path("backend")
    config = submissions.make_task_config({"name": "judge", **made}, shown)
    configs.check_config_backend(config.backends[0], str(shown))
    return config, others, place


def _plan_submission_op(task: UserOp | Callable[..., Any] | str, asked: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(task, UserOp):
        op, root = task, str(Path.cwd())
    else:
        declared = find_given_declaration(task)
        if declared is None:
            raise ClientError(f"{task!r} is no task: put @farm.op before it, or give a farm.UserOp or a task.yaml")
        op, root = declared.op, declared.root
    op = replace(op, kernel=op.function_name)
    found = {what: name_given_function(getattr(op, what), script=True) for what in FUNCTIONS}
    if why := next((f"{what}: {why}" for what, (_, why, _) in found.items() if why), ""):
        raise ClientError(f"{op.name}: another process cannot import its functions: {why}")
    place = found["reference"][2] if callable(op.reference) else root
    op = op.with_functions(lambda what, _: found[what][0])

    def refuse(key: tuple[Any, ...], text: str) -> None:
        raise ClientError(f"{op.name}: {'.'.join(map(str, key))}: {text}")

    return submissions.plan_task(op, Path(place), asked, refuse)


@dataclass(frozen=True)
class _PreparedTask:
    """The cases of a task."""

    config: Config
    run: tuple[wire.ToRun, ...]

    def judge(self, file: Path) -> Verdict:
        named = self.config.backends[0]
        backend = named.model_copy(update={"name": "submission", "like": named.like or named.name, "kernel": str(file)})
        job = Job(
            name=str(file),
            cache=str(default_cache()),
            limits=make_child_limits(self.config, named.name),
            backend=backend.spec(),
            policy=policy_files.load_policy(self.config.policy),
        )
        rows: list[dict[str, Any]] = []
        try:
            for timed in (False, True):  # nobody asks how fast a wrong one is
                run = tuple(x for x in self.run if checks.get_check_or_default(x.group.check).timed is timed)
                if run and not any(Status(row["status"]).failed for row in rows):
                    rows += run_batch_here(replace(job, run=run))
        finally:
            POOL.forget(job)  # the next one finds nothing that this one left
        if wrong := next((row for row in rows if row["kind"] == KIND_BASELINE), None):
            raise ClientError(wrong["error"])
        return _conclude_verdict(rows)


@functools.lru_cache(maxsize=16)
def _prepare_task_once(text: str, version: str) -> _PreparedTask:
    """version: changes with what the task's files say. Raises ConfigError, CannotRun."""
    config, cache = Config.model_validate_json(text), default_cache()
    cache.mkdir(parents=True, exist_ok=True)
    matrix = matrices.build_matrix(config, {"user": catalog_lists.list_entries_here("user", cache)})
    groups = [group for g, group in enumerate(matrix.groups) if matrix.wanted[g].any()]
    atexit.register(POOL.close)
    asked = tuple(map(wire.ToPrepare, groups))
    found: dict[int, wire.ToRun] = {}
    for message in run_supervised_job_items(
        Job(
            name="task",
            cache=str(cache),
            limits=make_child_limits(config, *(b.name for b in config.backends), preparing=True),
            prepare=asked,
        )
    ):
        if isinstance(message, wire.Stopped | wire.Gone):
            raise CannotRun(message)
        if isinstance(message, wire.Failed):
            raise ConfigError(f"{groups[message.number].label}: its cases cannot be made: {message.failure.error}")
        if isinstance(message, wire.Prepared):
            found[message.number] = wire.ToRun(groups[message.number], message.path, tuple(range(len(message.samples))))
    return _PreparedTask(config, tuple(found[number] for number in sorted(found)))


def _conclude_verdict(rows: list[dict[str, Any]]) -> Verdict:
    line = summarise_submission(keep_distinct_rows(pd.DataFrame(rows)))
    worst = next(row for row in rows if row["case_id"] == line["case_id"])

    def known(value: Any) -> float | None:
        return None if value is None or value != value else float(value)

    measured = ("error_units", "max_diff", "max_rel", "max_ulp", "rmse", "limit")
    metrics = {name: known(worst[name]) for name in measured}
    metrics |= {name: known(line[name]) for name in ("passed", "judged", "run_ms", "roofline")}
    ends: dict[str, Any] = {name: known(line[name]) for name in ("speedup", "speedup_low", "speedup_high")}
    told: dict[str, Any] = {"message": line["why"], "time_doubt": line["time_doubt"], "rows": tuple(rows)}
    return Verdict(Status(line["status"]), line["kind"], line["audit"], metrics, **ends, **told)


def _refuse_submission(why: str) -> Verdict:
    return Verdict(Status.ERROR, "refused", "", {}, None, None, None, why)
