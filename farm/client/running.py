"""One run of one kernel in this process, or in child processes of it, and what the caller is told of it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from farm import lake as lakes
from farm.client.kernels import ClientError, Kernel
from farm.exits import interruptible
from farm.plan import config as configs
from farm.plan.known import not_known
from farm.plan.model import Config
from farm.plan.request import Request
from farm.reproduce.find import seed_of
from farm.work.launch import Run, ready
from tasks.cache import default_cache
from tasks.catalogs import told
from tasks.catalogs.user import load
from tasks.judge import verdict
from tasks.model import Status

if TYPE_CHECKING:
    import pandas as pd

#: Kernels of this process by the run that judged them: what is asked of a run later needs their functions.
LIVE: dict[str, Kernel] = {}


@dataclass(frozen=True)
class Finding:
    """Failures of one kind: the case with the fewest elements, and how many there are. seed: of that case alone."""

    key: str
    seed: int
    case_id: str
    dtype: str
    shapes: str
    status: str
    kind: str
    message: str
    error_units: float | None
    count: int
    results: str
    row: dict[str, Any] = field(repr=False, compare=False)

    @functools.cached_property
    def minimal(self) -> Any:
        """The case made smaller: `farm.minimize` with its strategy shrink-all."""
        from farm.client.smaller import minimize

        return minimize(self.key, results=self.results)

    @property
    def command(self) -> str:
        """The command that shows it again."""
        return f"farm reproduce '{self.key}'" + (f" --results {self.results}" if self.results != "results" else "")

    def __str__(self) -> str:
        more = f", {self.count} such cases" if self.count > 1 else ""
        return f"{self.case_id} [{self.shapes}] {self.message}{more}; seed {self.seed}"


@dataclass(frozen=True)
class Result:
    """What a run found. rows: those of the lake; known: how many failures its known failures cover."""

    run_id: str
    results: str
    rows: pd.DataFrame = field(repr=False, compare=False)
    passed: int
    failed: int
    known: int
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        told_ = ", ".join(f"{n} {name}" for name, n in self.counts.items())
        lines = [f"run {self.run_id}: {len(self.rows)} cases: {told_}", *(f"  {f}" for f in self.findings)]
        return "\n".join([*lines, *(f"  not judged: {text}" for text in self._not_judged())])

    def check(self) -> None:
        """Raise AssertionError with every finding, if there is one or nothing was judged."""
        if self.findings:
            told_ = [f"{f}\n    {f.command}" for f in self.findings]
            raise AssertionError("\n".join([f"{self.failed} of {len(self.rows)} cases failed", *told_]))
        if not self.passed:
            raise AssertionError(f"nothing was judged: {'; '.join(self._not_judged()) or 'no case'}")

    def _not_judged(self) -> list[str]:
        """What is said of the cases that are in no pass rate, each once."""
        silent = self.rows[~self.rows["status"].isin([s.value for s in Status if s.judged])]
        said = silent[["status", "error"]].drop_duplicates().head(3)
        return [f"{status}: {' '.join(str(error or '').split())}" for status, error in said.itertuples(index=False)]


def backend_here() -> str:
    """The backend of eager torch on the device that this process has."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return "torch-rocm" if torch.version.hip else "torch-cuda"
    return "torch-cpu"


@functools.cache
def scratch() -> Path:
    """A cache that lives as long as this process: what is made with functions of its own, nobody else can use. What backends
    answered is that of the lasting one."""
    path = Path(tempfile.mkdtemp(prefix="farm-client-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    probes = default_cache() / "probes"
    probes.mkdir(parents=True, exist_ok=True)
    (path / "probes").symlink_to(probes.resolve())
    return path


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """What a run sets in this process is put back: threads, precision, the definitions that children are told."""
    before = told.announced()
    torch = sys.modules.get("torch")
    settings = _settings(torch) if torch else []
    try:
        yield
    finally:
        told.announce(before)
        for put, value in settings:
            put(value)


def _settings(torch: Any) -> list[tuple[Any, Any]]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    kept = [(torch.set_num_threads, torch.get_num_threads()), (torch.set_warn_always, torch.is_warn_always_enabled())]
    for where, name in (
        (matmul, "allow_tf32"),
        (cudnn, "allow_tf32"),
        (matmul, "allow_fp16_reduced_precision_reduction"),
        (matmul, "allow_bf16_reduced_precision_reduction"),
    ):
        kept.append((functools.partial(setattr, where, name), getattr(where, name)))
    return kept


def config_of(kernel: Kernel, **settings: Any) -> Config:
    """The config of a run of one kernel. Raises ClientError."""
    catalog = kernel.config() | {k: settings.pop(k) for k in ("samples", "distributions") if k in settings}
    data = {"name": kernel.op.name, "catalogs": [catalog | {"dtypes": ["*"]}], **settings}
    try:
        config = Config.model_validate(data)
        for backend in config.backends:
            configs.check_backend(backend, "backend")
        verdict.load(config.policy)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise ClientError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}") from None
    except (configs.ConfigError, verdict.PolicyError) as error:
        raise ClientError(str(error)) from None
    return config


def run(kernel: Kernel, config: Config, results: str | Path | None, isolate: bool) -> Result:
    """Judge a kernel as `farm run` would. results: the lake (None: one that is thrown away); isolate: in child processes,
    where a crash or a hang is a row. Raises ClientError."""
    if isolate and kernel.importable:
        raise ClientError(f"isolate: a child process cannot import the functions: {kernel.importable}")
    with contextlib.ExitStack() as end:
        end.enter_context(undisturbed())
        place = str(results) if results is not None else end.enter_context(tempfile.TemporaryDirectory())
        lake = lakes.open_lake(place)
        lakes.check_writable(lake)
        cache = default_cache() if isolate else scratch()
        request = Request(
            config, verdict.load(config.policy), lake, cache, how="no-ray" if isolate else "inline", dashboard=False
        )
        if not isolate:
            end.enter_context(load.lent(kernel.op, kernel.root))
        try:
            rows, record, missing = _rows(request)
        except configs.ConfigError as error:
            raise ClientError(str(error)) from None
    if missing:
        raise ClientError(f"the run {record['run_id']} is incomplete: {missing}")
    LIVE[record["run_id"]] = kernel
    return told_of(rows, record, place, config)


def _rows(request: Request) -> tuple[pd.DataFrame, dict[str, Any], str]:
    with ready(request) as plan:
        for name, offer in plan.offers.items():
            if not offer.available:
                raise ClientError(f"{name} is unavailable here: {offer.reason}")
        made = Run(plan)
        made.begin()
        with interruptible():
            made.dispatch(lambda dispatcher: None)
        rows, missing = made.finish()
        return rows, made.record, missing


def told_of(rows: pd.DataFrame, record: Mapping[str, Any], results: str, config: Config) -> Result:
    """The result of a run's rows."""
    failing = rows[rows["status"].isin([s.value for s in Status if s.failed])]
    new = not_known(failing, config)
    counts = {str(k): int(v) for k, v in rows["status"].value_counts().items()}
    good = sum(counts.get(s, 0) for s in (Status.PASS.value, Status.IMPRECISE.value))
    found = tuple(_findings(new, results))
    return Result(str(record["run_id"]), results, rows, good, len(new), len(failing) - len(new), counts, found)


def _findings(failing: pd.DataFrame, results: str) -> Iterator[Finding]:
    """The failures, those of one check, dtype, status and kind together."""
    keys = ["check", "op", "dtype", "backend", "status", "kind"]
    for _, group in failing.groupby(keys, sort=False, dropna=False):
        elements = group["shapes"].map(_elements)
        row = {str(k): v for k, v in group.iloc[int(elements.argmin())].to_dict().items()}
        yield finding(row, results, len(group))


def _elements(shapes: Any) -> int:
    total = 0
    for shape in str(shapes or "").split():
        count = 1
        for size in shape.split("x") if shape != "scalar" else ():
            count *= int(size)
        total += count
    return total


def finding(row: Mapping[str, Any], results: str, count: int) -> Finding:
    units = row.get("error_units")
    return Finding(
        f"{row['run_id']}:{row['case_id']}:{row['backend']}",
        seed_of(row),
        str(row["case_id"]),
        str(row["dtype"]),
        str(row["shapes"] or ""),
        str(row["status"]),
        str(row["kind"] or ""),
        message_of(row),
        None if units is None or units != units else float(units),
        count,
        results,
        dict(row),
    )


def message_of(row: Mapping[str, Any]) -> str:
    """What happened to a case, in a line."""
    said = " ".join([str(row["status"]), *([str(row["kind"])] if row.get("kind") else [])])
    units, limit = row.get("error_units"), row.get("limit")
    if units is not None and units == units:
        said += f", {units:.3g} error units" + (f" where {limit:g} are allowed" if limit and limit == limit else "")
        said += f", max diff {row['max_diff']:.3g}" if row.get("max_diff") == row.get("max_diff") else ""
    words = " ".join(str(row.get("error") or "").split())
    return said + (f": {words[:300]}" if words else "")
