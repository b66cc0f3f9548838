"""The command that runs one case of a lake again, by itself: python -m farm.reproduce '<run>:<case>:<backend>'"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from farm import lake as lakes
from farm.fleet import envs
from farm.fleet.child_process import Limits, child_env
from farm.plan import kernels as user
from farm.plan import matrix as matrices
from farm.plan.config import CatalogConfig, Config
from farm.reproduce import script as scripts
from farm.work.child_pool import POOL
from farm.work.job import Job
from farm.work.supervisor import CannotRun, rows_of, run_job
from tasks import catalogs, wire
from tasks.arrays.pack import Pack, dtype_name
from tasks.arrays.tree import TensorSpec, tensor_specs
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.backends.shared.artefacts import inductor_cache
from tasks.catalogs.base import Entry
from tasks.judge import verdict
from tasks.judge.compare import worst
from tasks.judge.verdict import Policy
from tasks.model import (
    DEADLY,
    EPS,
    SMALLEST_NORMAL,
    WITHOUT_NOISE,
    Form,
    Group,
    Leaf,
    OpClass,
    Program,
    RuntimeInfo,
    Status,
    is_complex,
    is_inexact,
    wide,
)
from tasks.prepare import forms
from tasks.prepare.cases import PreparedGroup, PreparedSample, default_cache, pack_path
from tasks.prepare.cases import key as content_key
from tasks.runner import Item, Runner

#: Exit codes.
SAME, DIFFERENT, BAD_INPUT = 0, 1, 2
#: Columns of a row that a reproduction must give again, bit for bit.
METRICS = ("error_units", "noise_floor", "max_diff", "max_rel", "max_ulp", "rmse", "mismatched", "numel", "classic")
VERDICT = ("kind", "stage", "error_type")


class ReproduceError(Exception):
    """A case that cannot be run again; the text says what is wrong and what there is instead."""


@dataclass(frozen=True)
class Key:
    """Key of a row of the lake; its text is run_id:case_id:backend."""

    run_id: str
    case_id: str
    backend: str

    def __str__(self) -> str:
        return f"{self.run_id}:{self.case_id}:{self.backend}"


@dataclass
class Case:
    """A case ready to run: its row, its run's config, the backend to run it on, and what was prepared of it.

    row: the stored outcome; stored: that of the backend it is run on now (None if the run has none).
    """

    key: Key
    row: dict[str, Any]
    stored: dict[str, Any] | None
    record: dict[str, Any]
    config: Config
    policy: Policy
    spec: BackendSpec
    group: Group
    cache: Path
    sample: PreparedSample
    item: Item
    exported: Path | None = None
    environment: envs.Environment | None = None

    @property
    def python(self) -> str:
        """The interpreter it runs in; its environment is built first if need be. Raises ReproduceError."""
        try:
            return str(envs.build(self.environment, self.cache)) if self.environment else sys.executable
        except envs.EnvError as error:
            raise ReproduceError(f"{self.spec.name} cannot be run here: {error}") from None


@dataclass
class Outcome:
    """What a case did now. row: as in the lake; actual: its outputs, None when it gave none (or ran in a child)."""

    row: dict[str, Any]
    info: RuntimeInfo | None = None
    backend: Backend | None = None
    form: Form | None = None
    actual: list[np.ndarray] | None = None
    notes: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 the same status as stored, 1 another (or a script that does
    not show it), 2 a key or an option that names nothing."""
    args = _arguments().parse_args(argv)
    _environment(Path(args.cache) if args.cache else default_cache())
    try:
        return _reproduce(args)
    except (ReproduceError, lakes.LakeError, verdict.PolicyError, scripts.NoScript) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    finally:
        POOL.close()


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="farm reproduce",
        description="Run one case of a run again, by itself, and show its numbers: in this process, or, for a backend with an "
        "environment of its own, in a process of that (built first if it is not there).",
        epilog="exit code: 0 the stored status again; 1 another status, or a script that does not show it; 2 no such case",
    )
    parser.add_argument("key", help="run_id:case_id:backend, as a report prints it ('last' stands for the newest run)")
    parser.add_argument("--results", default="results", metavar="PATH", help="the lake: a directory or a URI (s3://…)")
    parser.add_argument("--backend", metavar="NAME", help="run the case on this backend instead")
    parser.add_argument("--script", metavar="OUT.py", help="also write a script that needs numpy and the runtime alone")
    parser.add_argument(
        "--child", action="store_true", help="run it in a child process: for a case that crashes or hangs"
    )
    parser.add_argument("--cache", metavar="DIR", help="where prepared cases are kept (default: $FARM_CACHE)")
    return parser


def _environment(cache: Path) -> None:
    """The environment that a run gives its children, so that the numbers are the same. Before torch is imported."""
    for name, value in child_env().items():
        if name.endswith("_NUM_THREADS") or name == "TORCH_DEVICE_BACKEND_AUTOLOAD":
            os.environ.setdefault(name, value)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", inductor_cache(cache))
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", lakes.LakeWarning)


def _reproduce(args: argparse.Namespace) -> int:
    key = parse(args.key, args.results)
    case = load(key, args.results, args.backend, Path(args.cache) if args.cache else default_cache())
    print_case(case)
    child = args.child or case.environment is not None
    if case.environment:
        if case.environment.record(case.cache) is None:
            print(
                f"building the environment of {case.spec.name}: {' '.join(case.environment.packages)}",
                file=sys.stderr,
                flush=True,
            )
        _line("environment", f"{case.python}\nPython {case.environment.version}: {' '.join(case.environment.packages)}")
    if case.stored and case.stored["status"] in DEADLY and not child:
        print(
            f"warning: the stored outcome is {case.stored['status']}: this process may not survive it; --child runs "
            "the case in a process of its own",
            file=sys.stderr,
            flush=True,
        )
    sys.stdout.flush()
    outcome = run_child(case) if child else run_here(case)
    print_outcome(case, outcome)
    shown, refused = True, None
    if args.script:
        try:
            if outcome.row["status"] == Status.UNAVAILABLE:
                raise scripts.NoScript(f"no script: {case.spec.name} is unavailable here: {outcome.row['error']}")
            write = _write_in_fork if args.child else write_script
            shown = write(case, outcome, Path(args.script))
        except scripts.NoScript as error:
            refused = error
    same, line = conclusion(case, outcome.row)
    print(line)
    if refused:
        print(f"{'script':13} {refused}")
    return SAME if same and shown else DIFFERENT


# --- finding the case ---------------------------------------------------------------------------------------------


def parse(text: str, results: str) -> Key:
    """The key in ``text``; "last" is replaced by the newest run's id. Raises ReproduceError."""
    run_id, first, rest = text.partition(":")
    case_id, second, backend = rest.rpartition(":")
    if not (first and second and run_id and case_id and backend):
        raise ReproduceError(
            f"{text!r} is no key: a key is run_id:case_id:backend, e.g. "
            "'last:forward/torch:log_softmax/float16/4:torch-cpu'"
        )
    if run_id == "last":
        known = lakes.run_ids(results)
        if not known:
            raise ReproduceError(f"no run in {results!r}")
        run_id = known[-1]
    return Key(run_id, case_id, backend)


def find(key: Key, results: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the key's row, the rows of its case on all backends). Raises LakeError and ReproduceError."""
    if key.run_id not in lakes.run_ids(results):
        lakes.read_run(results, key.run_id)  # raises, and names the nearest
    table = lakes.read_table(results, key.run_id)
    rows = table.filter(pc.equal(table["case_id"], key.case_id)).sort_by("attempts").to_pylist()
    if not rows:
        known = pc.unique(table["case_id"]).to_pylist()
        raise ReproduceError(f"no case {key.case_id!r} in run {key.run_id}{_nearest(key.case_id, known)}")
    by_backend = {row["backend"]: row for row in rows}
    if key.backend not in by_backend:
        raise ReproduceError(
            f"run {key.run_id} has no row of {key.case_id} on backend {key.backend!r}; it ran on "
            f"{', '.join(sorted(by_backend))}"
        )
    return by_backend[key.backend], list(by_backend.values())


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 3, 0.6)
    return f"; nearest: {', '.join(near)}" if near else f"; it has {len(known)} others"


def load(key: Key, results: str, backend: str | None, cache: Path) -> Case:
    """Find a case's row, and its inputs and reference in the cache (they are made again if they are gone).

    ``backend``: run it on this one instead. Raises LakeError, ReproduceError and PolicyError.
    """
    row, rows = find(key, results)
    record = lakes.read_run(results, key.run_id)
    try:
        config = Config(**record["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ReproduceError(f"the record of run {key.run_id} holds no config of this version: {error}") from None
    user.announce(config)
    name = backend or key.backend
    spec = _spec(name, config)
    stored = next((r for r in rows if r["backend"] == name), None)
    group, made = _prepared(row, config, cache)
    place, sample = next((i, s) for i, s in enumerate(made.samples) if s.index == row["sample"])
    exported = None
    try:
        taken, environment = spec.create().forms, envs.of(spec)
    except ValueError as error:
        raise ReproduceError(str(error)) from None
    catalog = catalogs.get(group.catalog)
    if not set(taken) & set(catalog.forms) and set(taken) & set(catalog.exports):
        exported = _exported(made, cache, max(_export_count(config, record, group), place + 1))
    item = Item(made, [place], Pack(exported) if exported else None)
    policy = verdict.from_json(record["policy"]) if "policy" in record else verdict.load(config.policy)
    return Case(key, row, stored, record, config, policy, spec, group, cache, sample, item, exported, environment)


def _spec(name: str, config: Config) -> BackendSpec:
    for backend in config.backends:
        if backend.name == name:
            return backend.spec()
    try:
        return BackendSpec.parse(name)
    except KeyError:
        raise ReproduceError(
            f"no backend {name!r}: neither the run's config ({', '.join(b.name for b in config.backends)}) "
            "nor a runtime of this farm is called so"
        ) from None


def _catalog_configs(row: dict[str, Any], config: Config) -> list[CatalogConfig]:
    """The parts of a config that plan a row's op and dtype."""
    called = matrices.names(Entry(row["op"], row["variant"], ()))
    return [
        c
        for c in config.catalogs
        if c.name == row["catalog"]
        and matrices.matcher(c.ops)(called)
        and not matrices.matcher(c.exclude)(called)
        and {row["dtype"], "*"} & set(c.dtypes or config.dtypes)
    ]


def _prepared(row: dict[str, Any], config: Config, cache: Path) -> tuple[Group, PreparedGroup]:
    """The prepared group of a row: from the cache, or made again in a child process as the run did it.

    A group is asked for with as many samples as the run's most demanding backend (`farm.plan.matrix.build`): that number
    is part of its content key. Raises ReproduceError.
    """
    found: list[tuple[Group, PreparedGroup]] = []
    for catalog in _catalog_configs(row, config):
        most = max((matrices.samples_of(catalog, b.name) for b in config.backends), default=0)
        group = Group(
            row["op"], row["variant"], row["dtype"], most, row["seed"], row["check"], row["distribution"] or "own"
        )
        try:
            path = pack_path(cache, content_key(group))
        except (KeyError, metadata.PackageNotFoundError) as error:
            raise ReproduceError(f"the catalog {row['catalog']} is not available here: {error}") from None
        made = PreparedGroup(path if path.exists() else _make(group, cache), group.check)
        if any(s.index == row["sample"] for s in made.samples):
            found.append((group, made))
    if not found:
        raise ReproduceError(
            f"{row['op']} in {row['dtype']} has no sample {row['sample']} here: its catalog is not the run's"
        )
    # A config may plan an op twice, with different numbers of samples.
    return next((f for f in found if any(s.record["digest"] == row["digest"] for s in f[1].samples)), found[0])


def _make(group: Group, cache: Path) -> Path:
    print(f"preparing {group.label} {group.dtype} again: it is not in the cache {cache}", file=sys.stderr, flush=True)
    name = f"prepare {group.label}"
    for message in run_job(Job(name=name, cache=str(cache), limits=Limits(300.0), prepare=(wire.ToPrepare(group),))):
        if isinstance(message, wire.Failed):
            raise ReproduceError(f"{group.label} in {group.dtype} cannot be prepared: {message.failure.error}")
        if isinstance(message, wire.Prepared):
            return pack_path(cache, message.key)
    raise ReproduceError(f"{group.label} in {group.dtype} could not be prepared")


def _export_count(config: Config, record: dict[str, Any], group: Group) -> int:
    """Samples that the run exported of a group: the most that one of its exporting backends was given."""
    offers = record.get("inventory", {}).get("backends", {})
    row = {"op": group.op, "variant": group.variant, "dtype": group.dtype, "catalog": group.catalog}
    counts = [
        matrices.samples_of(catalog, b.name)
        for catalog in _catalog_configs(row, config)
        for b in config.backends
        if offers.get(b.name, {}).get("available")
        and not set(offers[b.name]["forms"]) & set(catalogs.get(group.catalog).forms)
    ]
    return max(counts, default=1)


def _exported(made: PreparedGroup, cache: Path, count: int) -> Path:
    """The pack of a group's exported forms: from the cache, or made again in a child process. Raises ReproduceError."""
    path = forms.path_of(Path(made.pack.path), cache, "onnx", count, {})
    if path.exists():
        return path
    print(
        f"exporting {made.group.label} {made.group.dtype} again: it is not in the cache {cache}",
        file=sys.stderr,
        flush=True,
    )
    items = (wire.ToExport(made.group, str(made.pack.path), "onnx", count),)
    name = f"export {made.group.label}"
    for message in run_job(Job(name=name, cache=str(cache), limits=Limits(300.0), export=items)):
        if isinstance(message, wire.Exported):
            return Path(message.path)
        if isinstance(message, wire.Failed):
            raise ReproduceError(
                f"{made.group.label} in {made.group.dtype} cannot be exported: {message.failure.error}"
            )
    raise ReproduceError(f"{made.group.label} in {made.group.dtype} could not be exported")


# --- running it ---------------------------------------------------------------------------------------------------


def run_here(case: Case) -> Outcome:
    """Run the case in this process, its outputs kept."""
    outcome = Outcome({})
    try:
        backend = case.spec.create()
        info = backend.probe()
    except Exception as error:  # as a run does it: whatever a probe raises is the reason
        outcome.row = {"status": Status.UNAVAILABLE.value, "error": str(error) or type(error).__name__}
        return outcome
    outcome.backend, outcome.info = backend, info
    build = backend.build

    def build_and_keep(form: Form) -> Program:
        outcome.form = form
        program = build(form)
        run = program.run

        def run_and_keep() -> Sequence[Any]:
            found = run()
            outcome.actual = [np.asarray(x) for x in found]
            return found

        program.run = run_and_keep
        return program

    backend.build = build_and_keep  # type: ignore[method-assign]
    runner = Runner(backend, info, case.policy, lambda number, stage, span: None)
    # Built by itself also where the run built the op's samples together.
    outcome.row = next(iter(runner.run([case.item], set(), {0}))).row.values()
    return outcome


def run_child(case: Case) -> Outcome:
    """Run the case in a child process with a deadline, as a run does, with the Python of the backend's environment."""
    with tempfile.TemporaryDirectory() as folder:
        return _run_child(case, Path(folder) / "outputs.pack")


def _run_child(case: Case, keep: Path) -> Outcome:
    settings = next((b for b in case.config.backends if b.name == case.spec.name), None)
    limits = Limits(case.config.deadline_s, int((settings.memory_gib if settings else 6.0) * (1 << 30)))
    exported = str(case.exported) if case.exported else ""
    prepared, positions = str(case.item.group.pack.path), tuple(case.item.positions)
    job = Job(
        name=str(case.key),
        cache=str(case.cache),
        limits=limits,
        run=(wire.ToRun(case.group, prepared, positions, exported, str(keep)),),
        backend=case.spec,
        policy=case.policy,
        run_id=case.key.run_id,
    )
    try:
        row = list(rows_of(job))[-1]
    except CannotRun as error:
        return Outcome({"status": Status.UNAVAILABLE.value, "error": str(error)})
    info = RuntimeInfo(row["runtime_version"], row["device"], row["driver_version"])
    actual = None
    if keep.exists():
        pack = Pack(keep)
        actual = [pack.array(i).copy() for i in range(pack.header["outputs"])]  # the file goes
    return Outcome(row, info if row["runtime_version"] else None, actual=actual)


# --- showing it ---------------------------------------------------------------------------------------------------


def print_case(case: Case) -> None:
    """What is going to be run: the case, its policy and its inputs."""
    group = case.group
    _line("case", case.key.case_id)
    _line(
        "stored",
        f"{_status(case.row)} on {case.key.backend}, run {case.key.run_id}, {case.row['started_at']:%Y-%m-%d %H:%M} UTC",
    )
    if case.spec.name != case.key.backend:
        _line(
            "run on",
            f"{case.spec.name}" + (f" (stored there: {_status(case.stored)})" if case.stored else " (not in the run)"),
        )
    limit = ""
    if case.policy.rule == "error_units":
        precision = str(case.row.get("compute_precision") or "")
        limit = f", up to {case.policy.limit(group.label, case.sample.op_class.value, group.dtype, precision if is_inexact(precision) else '')}"
    _line(
        "policy",
        f"{case.policy.id}{limit} ({case.sample.op_class}); expected output from: {case.sample.record['oracle']}",
    )
    record = case.sample.record
    try:
        arrays = case.sample.inputs()
    except Exception as error:  # a damaged cache must not hide the rest
        raise ReproduceError(f"the cache's {case.item.group.pack.path} cannot be read: {error}") from None
    for i, spec in enumerate(tensor_specs(record["args"]) + tensor_specs(record["kwargs"])):
        _line("inputs" if not i else "", _tensor_text(spec, arrays))
    digest = record["digest"]
    agrees = (
        "as stored"
        if digest == case.row["digest"]
        else f"NOT the stored {case.row['digest']}: the inputs differ from the run's"
    )
    _line("digest", f"{digest} ({agrees})")


def _tensor_text(spec: TensorSpec, arrays: list[np.ndarray]) -> str:
    array = arrays[spec.id]
    shape = spec.shape if spec.shape is not None else array.shape
    text = f"{dtype_name(array.dtype)} {list(shape)}"
    if spec.strides is not None:
        text += f" strides {list(spec.strides)}"
    return text + (f" {spec.layout}" if spec.layout != "strided" else "")


def print_outcome(case: Case, outcome: Outcome) -> None:
    """The runtime, the outputs and the worst element, and the metrics beside the stored ones."""
    row = outcome.row
    _line(
        "backend",
        f"{case.spec.name}"
        + (f", {row['placement']}" if row.get("placement") else "")
        + (f", {row['flags']}" if row.get("flags") else ""),
    )
    if outcome.info:
        _line("runtime", _changed(case.stored and case.stored["runtime_version"], outcome.info.runtime_version))
        _line("device", _changed(case.stored and case.stored["device"], outcome.info.device))
        if outcome.info.driver_version:
            _line("driver", _changed(case.stored and case.stored["driver_version"], outcome.info.driver_version))
    for name, then in case.record.get("versions", {}).items():
        try:
            now = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if now != then:
            _line("version", f"{name} {_changed(then, now)}")
    if outcome.actual is not None and not case.sample.failure:
        _print_outputs(case, outcome.actual, str(row.get("compute_precision") or ""))
    if row.get("error"):
        _line("error", "\n".join([f"{row.get('error_type')}: " * bool(row.get("error_type")) + row["error"]]))
    print()
    _line("", f"{'stored':25} now")
    then = case.stored or {}
    for name in ("status", *VERDICT, *METRICS):
        old, new = then.get(name), row.get(name)
        if old not in (None, "") or new not in (None, ""):
            differs = "" if _equal(old, new) or not case.stored else "  <- differs"
            _line(name, f"{_value(old):25} {_value(new)}{differs}")
    print()


def _print_outputs(case: Case, actual: list[np.ndarray], precision: str) -> None:
    expected = case.sample.expected()
    for i, leaf in enumerate(expected):
        which = f" {i}" if len(expected) > 1 else ""
        found = actual[i] if i < len(actual) else None
        if leaf.reference is not None:
            _line(f"expected{which}", f"{leaf.dtype} {list(leaf.shape)}\n{_summary(leaf.reference)}")
        else:
            _line(f"expected{which}", f"{leaf.dtype} {list(leaf.shape)}, any values")
        if found is None:
            _line(f"actual{which}", "no such output")
        else:
            _line(f"actual{which}", f"{dtype_name(found.dtype)} {list(found.shape)}\n{_summary(found)}")
    if len(actual) > len(expected):
        _line("actual", f"{len(actual) - len(expected)} outputs more than expected")
    if case.sample.op_class in (OpClass.RANDOM, OpClass.UNINITIALISED, OpClass.CHOICE):
        _line("judged", f"{case.sample.op_class}: these elements are not compared one by one")
        return
    if case.sample.op_class in WITHOUT_NOISE and not precision:
        expected = [replace(leaf, noise=None) for leaf in expected]
    where = worst(actual, expected)
    if where is None:
        return
    output, index = where
    text = worst_text(actual[output], expected[output], index)
    _line("worst", f"{f'output {output} ' if len(expected) > 1 else ''}[{', '.join(map(str, index))}]")
    for name, value in text.items():
        _line(f"  {name}", value)


def worst_text(actual: np.ndarray, leaf: Leaf, index: tuple[int, ...]) -> dict[str, str]:
    """The numbers of one element, with all their digits."""
    assert leaf.reference is not None
    kind = wide(leaf.dtype) if is_inexact(leaf.dtype) else None
    a, y = actual[index], leaf.reference[index]
    if kind:
        a, y = a.astype(kind), y.astype(kind)
    number = complex if is_complex(leaf.dtype) else float if kind else (lambda x: x.item() if hasattr(x, "item") else x)
    found = {"expected": repr(number(y)), "actual": repr(number(a))}
    with np.errstate(all="ignore"):
        diff = float(abs(a - y)) if kind else float(abs(float(a) - float(y)))
        noise = 0.0 if leaf.noise is None else float(leaf.noise[index])
        found |= {"difference": repr(diff), "noise floor": repr(noise)}
        if kind and np.isfinite(abs(y)):
            exponent = np.frexp(max(float(abs(y)), SMALLEST_NORMAL[leaf.dtype]))[1]
            found["ulps"] = repr(diff / float(np.ldexp(EPS[leaf.dtype], int(exponent) - 1)))
    return found


def _summary(array: np.ndarray) -> str:
    if array.dtype.kind not in "OUS" and array.dtype.isbuiltin != 1:
        array = array.astype(np.float32)  # numpy prints dtypes of extensions badly
    if array.ndim > 1 and array.size > 12:
        array = array.reshape(-1)  # its first and last elements, not its shape, which is told already
    return np.array2string(array, threshold=12, edgeitems=4, max_line_width=84)


def _changed(then: Any, now: str) -> str:
    return f"{now}" if not then or then == now else f"{now} (stored: {then})"


def _status(row: dict[str, Any]) -> str:
    return row["status"] + (f" ({row['kind']})" if row.get("kind") else "")


def _value(value: Any) -> str:
    return "–" if value is None or value == "" else str(value) if not isinstance(value, float) else repr(value)


def _line(name: str, text: str) -> None:
    lines = [
        part for line in text.splitlines() for part in textwrap.wrap(_plain(line), 86, drop_whitespace=False) or [""]
    ]
    for i, line in enumerate(lines or [""]):
        print(f"{'' if i else name:13} {line}".rstrip())


def _plain(text: str) -> str:
    """Text without control characters: an error's text is another program's."""
    return "".join(c if c.isprintable() else " " for c in text)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    return (a if a != "" else None) == (b if b != "" else None)


def conclusion(case: Case, now: dict[str, Any]) -> tuple[bool, str]:
    """(whether the status is the stored one, the sentence that says so)."""
    there = case.stored
    if case.spec.name != case.key.backend:
        same = now["status"] == case.row["status"]
        line = f"{'the same' if same else 'another'} status: stored {case.row['status']} on {case.key.backend}, now {now['status']} on {case.spec.name}"
        if there and there["status"] != now["status"]:
            line += f" (stored there: {there['status']})"
        return same, line
    assert there is not None
    if there["status"] != now["status"]:
        why = (
            f" ({now['error'].splitlines()[0][:200]})"
            if now["status"] == Status.UNAVAILABLE and now.get("error")
            else ""
        )
        return False, f"NOT reproduced: stored {there['status']}, now {now['status']}{_plain(why)}"
    different = [n for n in (*VERDICT, *METRICS) if not _equal(there.get(n), now.get(n))]
    if different:
        words = ", ".join(f"{n} {_value(there.get(n))} -> {_value(now.get(n))}" for n in different)
        return True, f"reproduced the status, metrics differ: {words}"
    return True, "reproduced: same status and same metrics"


def write_script(case: Case, outcome: Outcome, path: Path) -> bool:
    """Write the standalone script and try it; returns whether it shows what the farm says. Raises NoScript, OSError."""
    row = outcome.row
    backend = outcome.backend or case.spec.create()
    form = outcome.form
    if form is None:  # ran in a child: build the form without running it
        form = _form(case, backend)
    story = case.stored or case.row
    precision = str(row.get("compute_precision") or "")  # the runner's word; that of the dtype where there is none
    if case.sample.record["definition"]:
        raise scripts.NoScript(f"no script: the op is judged by its definition ({case.sample.record['definition']})")
    if row["status"] == Status.WRONG and row.get("stage"):
        raise scripts.NoScript(f"no script: what is wrong is no number ({row['kind']}: {row['error']})")
    source = scripts.Source(
        title=f"{case.key.case_id} on {case.spec.name}",
        found=_status(row),
        backend=backend,
        runtime=case.spec.runtime,
        form=form,
        expected=case.sample.expected(),
        group=case.group,
        policy=case.policy,
        op_class=case.sample.op_class,
        oracle=case.sample.record["oracle"],
        precision=precision if is_inexact(precision) else "",
        version=outcome.info.runtime_version if outcome.info else story["runtime_version"],
        device=outcome.info.device if outcome.info else story["device"],
        actual=outcome.actual,
        environment=case.environment,
    )
    try:
        path.write_text(scripts.generate(source), encoding="utf-8")
    except OSError as error:
        raise ReproduceError(f"the script cannot be written: {error}") from None
    shown, text = scripts.check(path, row, case.config.deadline_s * 4, case.python)
    print(f"{'script':13} {path}: {text}")
    return shown


def _write_in_fork(case: Case, outcome: Outcome, path: Path) -> bool:
    """`write_script` in a process of its own: looking at a deadly case's form may be deadly too. Raises NoScript."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if write_script(case, outcome, path) else 1
        except scripts.NoScript as error:
            print(f"error: {error}", file=sys.stderr)
        except ReproduceError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 3
        except BaseException as error:
            print(f"error: no script: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise scripts.NoScript(
            f"no script: preparing it died of {signal.Signals(-code).name}; the command above shows the case"
        )
    if code == 3:
        raise ReproduceError(f"{path} was not written")
    if code == 2:
        raise scripts.NoScript("no script was written")
    return code == 0


def _form(case: Case, backend: Backend) -> Form:
    for kind in backend.forms:
        try:
            return case.sample.form(kind, case.item.exported)
        except Exception as error:
            reason = error
    raise scripts.NoScript(f"no script: {reason}")


if __name__ == "__main__":
    sys.exit(main())
