"""Finds a case of a lake by its key: the row, what its run was asked, its inputs and reference."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from farm import lake as lakes
from farm.fleet import envs
from farm.fleet.channel import Interpreter
from farm.fleet.child_process import Limits
from farm.lake.key import RowKey
from farm.lake.store import find_run_by_word
from farm.plan import kernels, submissions
from farm.plan import matrix as matrices
from farm.plan.config import CatalogConfig, Config
from farm.plan.patterns import list_pattern_names, make_pattern_matcher
from farm.program import name_farm_program
from farm.work.job import Job
from farm.work.supervisor import run_supervised_job_items
from tasks import catalogs, checks, wire
from tasks.backends import BackendSpec, list_backend_names
from tasks.catalogs import user_definitions
from tasks.catalogs.base import Entry, GeneratingCatalog
from tasks.catalogs.user import fuzzed_samples
from tasks.catalogs.user.ops import FUNCTIONS
from tasks.judge import policy_files
from tasks.judge.policy import Policy
from tasks.model import FUZZ, Group, Refusal, Status
from tasks.model.trace import TraceStep
from tasks.nearest import suggest_nearest_names
from tasks.prepare import forms
from tasks.prepare.cases import PreparedGroup, PreparedSample, find_pack_key, find_pack_path
from tasks.wire import ToRun

#: Begins what names a case by the seed that made it.
SEED = "seed:"
#: Most keys that are told of the cases that a seed may mean.
_KEYS = 3


class ReproduceError(Refusal):
    """A case that cannot be run again; the text says what is wrong and what there is instead."""


@dataclass(frozen=True)
class StoredCase:
    """A case ready to run: its row, its run's config, the backend to run it on, and what was prepared of it.

    row: the stored outcome; stored: that of the backend it is run on now (None if the run has none); steps: the stored
    trace.
    """

    key: RowKey
    row: dict[str, Any]
    stored: dict[str, Any] | None
    record: dict[str, Any]
    config: Config
    policy: Policy
    spec: BackendSpec
    group: Group
    cache: Path
    sample: PreparedSample
    asked: ToRun
    environment: envs.Environment | None = None
    steps: Sequence[TraceStep] = ()

    @property
    def interpreter(self) -> Interpreter:
        """What it is started with; its environment is built first if need be. Raises ReproduceError."""
        try:
            return envs.build_interpreter_of_backend(self.spec, self.cache)
        except envs.EnvError as error:
            raise ReproduceError(f"{self.spec.name} cannot be run here: {error}") from None

    def of_item(self, item: ToRun, case_id: str = "") -> StoredCase:
        """What a search found in the case, as a case of its own. case_id: what it is called (default: as its group has
        it)."""
        sample = (
            PreparedGroup(item.pack, item.group.check).samples[item.positions[0]].on(self.spec.create().torch_device)
        )
        key = replace(self.key, case_id=case_id or item.group.case_id(sample.index))
        return replace(self, key=key, stored=None, group=item.group, sample=sample, asked=item)

    def within(self, packages: Sequence[str], name: str = "") -> StoredCase:
        """The case in an environment of these packages, with the Python and behind the launcher that it has now. Raises
        ReproduceError."""
        python = self.spec.python
        try:
            if self.environment and self.environment.existing and python:
                python = self.environment.python_version(self.cache)  # nothing is installed into that one
        except envs.EnvError as error:
            raise ReproduceError(f"{self.spec.name} cannot be run here: {error}") from None
        spec = replace(self.spec, name=name or self.spec.name, packages=tuple(packages), python=python)
        return replace(self, spec=spec, environment=envs.find_environment(spec))


def parse_row_key(text: str, results: lakes.Lake) -> RowKey:
    """The key in ``text``; a run's word (`farm.lake.store.RUN_WORDS`) is replaced by its id. "seed:NUMBER", or the number alone, is the case
    that a seed made.

    Raises ReproduceError."""
    if text.startswith(SEED) or text.isdecimal():
        number = text.removeprefix(SEED)
        if not number.isdecimal():
            raise ReproduceError(f"{text!r} is no seed: {SEED}NUMBER, as a finding tells it")
        return find_key_by_seed(int(number), results)
    key = RowKey.parse(text)
    if key is None:
        raise ReproduceError(
            f"{text!r} is no key: a key is run_id:case_id:backend, e.g. "
            "'last:forward/torch:log_softmax/float16/4:torch-cpu'"
        )
    if key.names_no_run:
        raise ReproduceError(f"{text!r} names no run: 'last:{text}' is of the newest")
    return replace(key, run_id=find_run_by_word(results, key.run_id))


def find_seed_of_row(row: Mapping[str, Any]) -> int | None:
    """The seed of a case alone, where it is generated or a fuzzed one of a kernel; of no other does a seed alone make
    the inputs."""
    seed, place = int(row["seed"]), int(row["sample"])
    if row["distribution"] == FUZZ:
        return fuzzed_samples.derive_kernel_case_seed(seed, place)
    if (generating := catalogs.get_generating_catalog(row.get("catalog", ""))) and _is_todays_generator(
        generating, row
    ):
        return generating.seed_of(Group(row["op"], row["variant"], row["dtype"], place + 1, seed), place)
    return None


def _is_todays_generator(catalog: GeneratingCatalog, row: Mapping[str, Any]) -> bool:
    """Whether today's generator made a row's case: of an older one's nobody knows the seed, but for that of its run."""
    return bool(row["variant"] == catalog.generator(row["op"].partition(":")[2]))


def find_key_by_seed(seed: int | None, results: lakes.Lake, dtype: str = "", run: str = "last") -> RowKey:
    """The key of the case that a seed made: the first that failed of the newest run in which one failed, else the first
    of the newest run that has one. Every kernel has a case of each seed: it is the one that fails that is meant.

    dtype, run: narrow that. Raises ReproduceError, also where it is several kernels' that do, or that do not."""
    if seed is None:
        raise ReproduceError("name a case: a seed, or the key run_id:case_id:backend as a report prints it")
    known = lakes.list_known_runs(results)
    if run not in ("last", "all"):
        run = find_run_by_word(results, run)
        lakes.read_run(results, run)  # a run that is not there is told as such
    columns = "run_id case_id backend seed sample distribution dtype status catalog op variant".split()
    found: dict[bool, dict[str, RowKey]] = {True: {}, False: {}}
    for run_id in [run] if run not in ("last", "all") else reversed(known):
        rows = lakes.read_table(results, run_id, columns).to_pylist()
        for row in rows:
            if find_seed_of_row(row) == seed and (not dtype or row["dtype"] == dtype):
                found[Status(row["status"]).failed].setdefault(row["op"], RowKey.of(row))
    if several := found[True] or found[False]:
        if len(several) > 1:
            keys = " or ".join(f"'{key}'" for key in [*several.values()][:_KEYS])
            keys += " …" if len(several) > _KEYS else ""
            raise ReproduceError(
                f"{len(several)} kernels have a case of the seed {seed}: say which is meant by its key, {keys}; farm.reproduce and "
                "farm.minimise also take its run= beside the seed"
            )
        return next(iter(several.values()))
    where = f"run {run}" if run not in ("last", "all") else f"{len(known)} runs"
    other = f" in {dtype}" if dtype else ""
    raise ReproduceError(
        f"no case of the seed {seed}{other} in {where} of {results.uri!r}, by today's generators (of kernels {fuzzed_samples.GENERATOR}): a finding tells "
        "the seed of its case; one of an older generator is found by its key run_id:case_id:backend"
    )


def find_row_of_key(key: RowKey, results: lakes.Lake) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the key's row, the rows of its case on all backends), as they were before a vote. Raises LakeError and
    ReproduceError."""
    table = lakes.read_table(results, key.run_id)
    rows = table.filter(pc.equal(table["case_id"], key.case_id)).sort_by("attempts").to_pylist()
    if not rows:
        known = pc.unique(table["case_id"]).to_pylist()
        if (whole := f"{key.case_id}:{key.backend}") in known:
            ran = pc.unique(table.filter(pc.equal(table["case_id"], whole))["backend"]).to_pylist()
            raise ReproduceError(
                f"on which backend? Name it last, '{key.run_id}:{whole}:{min(ran)}'; it ran on {', '.join(sorted(ran))}"
            )
        raise ReproduceError(f"no case {key.case_id!r} in run {key.run_id}{suggest_nearest_names(key.case_id, known)}")
    by_backend = {row["backend"]: _undo_vote_of_row(row) for row in rows}
    if rows[0]["check"] == "screen":
        raise ReproduceError(
            f"{key.case_id} is of a device, not of a case: screen it again with {name_farm_program()} node screen {key.backend}"
        )
    if key.backend not in by_backend:
        raise ReproduceError(
            f"run {key.run_id} has no row of {key.case_id} on backend {key.backend!r}; it ran on "
            f"{', '.join(sorted(by_backend))}"
        )
    return by_backend[key.backend], list(by_backend.values())


def _undo_vote_of_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the status and kind that it had before a vote acquitted it; any other row as it is."""
    return {**row, "status": row["was_status"], "kind": row["was_kind"]} if row.get("acquitted") else row


def load_stored_case(key: RowKey, results: lakes.Lake, backend: str | None, cache: Path) -> StoredCase:
    """Find a case's row, and its inputs and reference in the cache (they are made again if they are gone).

    ``backend``: run it on this one instead. Raises LakeError, ReproduceError and PolicyError.
    """
    record = lakes.read_run(results, key.run_id)
    row, rows = find_row_of_key(key, results)
    try:
        config = Config(**record["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ReproduceError(f"the record of run {key.run_id} holds no config of this version: {error}") from None
    kernels.announce_config_kernels(config, record.get("home", ""), refused=submissions.list_refused_paths(record))
    _check_row_importable(row)
    name = backend or key.backend
    spec = _find_backend_spec(name, config)
    stored = next((r for r in rows if r["backend"] == name), None)
    offered = record.get("inventory", {}).get("backends", {}).get(name, {})
    group, made = _prepare_group_of_row(row, config, cache, offered.get("of_products", True))
    place, sample = next(
        (i, s) for i, s in enumerate(made.samples) if s.index == row["sample"] or group.variant != row["variant"]
    )
    exported = ""
    try:
        made_of, environment = spec.create(), envs.find_environment(spec)
    except ValueError as error:
        raise ReproduceError(str(error)) from None
    if checks.get_check_or_default(group.check).exported and catalogs.get_catalog(group.catalog).needs_export(
        made_of.forms, group
    ):
        exported = str(_export_forms_again(made, cache, max(_count_exported_samples(config, record, group), place + 1)))
    asked = ToRun(group, made.pack.path, (place,), exported)
    policy = (
        policy_files.read_policy_json(record["policy"])
        if "policy" in record
        else policy_files.load_policy(config.policy)
    )
    sample = sample.on(made_of.torch_device)
    steps = lakes.read_trace_steps(results, key.run_id, key.case_id, key.backend)
    return StoredCase(key, row, stored, record, config, policy, spec, group, cache, sample, asked, environment, steps)


def _check_row_importable(row: dict[str, Any]) -> None:
    """Raises ReproduceError for a kernel of one's own that no other process can import."""
    named = [
        k
        for s in user_definitions.read_definitions().get("sources", ())
        for k in s["kernels"]
        if f"{user_definitions.USER}:{k['name']}" == row["op"]
    ]
    for what in FUNCTIONS:
        given = named[0].get(what, "") if named else ""
        if "<" in given:
            raise ReproduceError(
                f"the {what} of {row['op']} is {given.rpartition(':')[2]}, which no other process can import: give it a name "
                "at the top of a file, or call farm.reproduce or farm.minimise in the script that has it"
            )


def _find_backend_spec(name: str, config: Config) -> BackendSpec:
    for backend in config.backends:
        if backend.name == name:
            return backend.spec()
    try:
        return BackendSpec.parse(name)
    except KeyError:
        raise ReproduceError(
            f"no backend {name!r}: neither the run's config ({', '.join(b.name for b in config.backends)}) "
            "nor a runtime of this farm is called so (one of a plugin needs that installed; farm reproduce --backend runs the "
            f"case on another){suggest_nearest_names(name, list_backend_names())}"
        ) from None


def _list_catalog_configs_of_row(row: dict[str, Any], config: Config) -> list[CatalogConfig]:
    """The parts of a config that plan a row's op and dtype."""
    called = list_pattern_names(Entry(row["op"], row["variant"], ()))
    return [
        c
        for c in config.catalogs
        if c.name == row["catalog"]
        and make_pattern_matcher(c.ops)(called)
        and not make_pattern_matcher(c.exclude)(called)
        and {row["dtype"], "*"} & set(c.dtypes or config.dtypes)
    ]


def _prepare_group_of_row(
    row: dict[str, Any], config: Config, cache: Path, with_products: bool
) -> tuple[Group, PreparedGroup]:
    """The prepared group of a row: from the cache, or made again in a child process as the run did it. with_products:
    see `tasks.prepare.cases.prepare_group`.

    A group is asked for with as many samples as the run's most demanding backend (`farm.plan.matrix.build_matrix`): that
    number is part of its content key. Raises ReproduceError.
    """
    if (generating := catalogs.get_generating_catalog(row["catalog"])) and not _is_todays_generator(generating, row):
        return _remake_from_choices(generating, row, cache, with_products)
    found: list[tuple[Group, PreparedGroup]] = []
    for catalog in _list_catalog_configs_of_row(row, config):
        asked = max((matrices.count_configured_samples(catalog, b.name) for b in config.backends), default=0)
        most = checks.get_check_or_default(row["check"]).wanted(asked)
        group = Group(
            row["op"], row["variant"], row["dtype"], most, row["seed"], row["check"], row["distribution"] or "own"
        )
        made = PreparedGroup(_find_pack_of_group(group, cache, with_products), group.check)
        if any(s.index == row["sample"] for s in made.samples):
            found.append((group, made))
    if not found:
        raise ReproduceError(
            f"{row['op']} in {row['dtype']} has no sample {row['sample']} here: its catalog is not the run's"
        )
    # A config may plan an op twice, with different numbers of samples.
    return next((f for f in found if any(s.record.digest == row["digest"] for s in f[1].samples)), found[0])


def _remake_from_choices(
    catalog: GeneratingCatalog, row: dict[str, Any], cache: Path, with_products: bool
) -> tuple[Group, PreparedGroup]:
    """The group of a case that another version of the generator made, made again of its choices. Raises
    ReproduceError."""
    if row["choices"] is None:
        raise ReproduceError(
            f"{row['op']} of the generator {row['variant']}: its row holds no choices to make it of again"
        )
    group = Group(row["op"], catalog.variant_of(row["choices"]), row["dtype"], 1, 0, row["check"])
    made = PreparedGroup(_find_pack_of_group(group, cache, with_products), group.check)
    if made.samples[0].record.digest != row["digest"]:
        raise ReproduceError(
            f"{row['op']} was made by the generator {row['variant']}; of the same choices the one here ({catalog.generator(group.op_name)}) makes other "
            "inputs. Reproduce it with the version of the farm that the run's record names"
        )
    return group, made


def _find_pack_of_group(group: Group, cache: Path, with_products: bool) -> Path:
    """The file of a prepared group: from the cache, or made again. Raises ReproduceError."""
    asked = (wire.ToPrepare(group, with_products=with_products),)
    if user_definitions.find_home_backend(group.catalog):  # where its key is made as well
        return _run_prepare_job_again(group, "prepare", cache, prepare=asked)
    try:
        name = find_pack_key(group, cache, with_products=with_products)
    except (KeyError, metadata.PackageNotFoundError) as error:
        raise ReproduceError(f"the catalog {group.catalog} is not available here: {error}") from None
    return find_pack_path(cache, name) if name else _prepare_group_again(group, "prepare", cache, prepare=asked)


def _prepare_group_again(group: Group, verb: str, cache: Path, **items: Any) -> Path:
    """As `_run_prepare_job_again`, where the cache has no such file: said in a line, since it takes a while."""
    why = f"the cache {cache} does not have it as these sources make it"
    print(f"{verb.removesuffix('e')}ing {group.label} {group.dtype} again: {why}", file=sys.stderr, flush=True)
    return _run_prepare_job_again(group, verb, cache, **items)


def _run_prepare_job_again(group: Group, verb: str, cache: Path, **items: Any) -> Path:
    """The pack that a job of one item of a group makes; verb: what is done to it. Raises ReproduceError."""
    stem = verb.removesuffix("e")
    what = f"{group.label} in {group.dtype}"
    for message in run_supervised_job_items(
        Job(name=f"{verb} {group.label}", cache=str(cache), limits=Limits(300.0), **items)
    ):
        if isinstance(message, (wire.Gone, wire.Stopped)):
            raise ReproduceError(f"{what} cannot be {stem}ed: {message.why}")
        if isinstance(message, wire.Failed):
            raise ReproduceError(f"{what} cannot be {stem}ed: {message.failure.error}")
        if isinstance(message, (wire.Prepared, wire.Exported)):
            return Path(message.path)
    raise ReproduceError(f"{what} could not be {stem}ed")


def _count_exported_samples(config: Config, record: dict[str, Any], group: Group) -> int:
    """Samples that the run exported of a group: the most that one of its exporting backends was given
    (`farm.work.job_source`)."""
    offers = record.get("inventory", {}).get("backends", {})
    catalog = catalogs.get_catalog(group.catalog)
    exporting = [
        b
        for b in config.backends
        if offers.get(b.name, {}).get("available") and catalog.needs_export(offers[b.name]["forms"], group)
    ]
    row = {"op": group.op, "variant": group.variant, "dtype": group.dtype, "catalog": group.catalog}
    parts = [
        c.model_copy(update={"ops": ["*"], "exclude": [], "checks": None})
        for c in _list_catalog_configs_of_row(row, config)
    ]
    narrow = config.model_copy(update={"backends": exporting, "checks": [group.check], "catalogs": parts})
    samples = checks.name_samples_of_check(group.check)
    entry = Entry(group.op, group.variant, (group.dtype,), (samples,), (group.distribution,))
    return int(matrices.build_matrix(narrow, {group.catalog: [entry]}).wanted.max(initial=1))


def _export_forms_again(made: PreparedGroup, cache: Path, count: int) -> Path:
    """The pack of a group's exported forms: from the cache, or made again in a child process. Raises ReproduceError."""
    path = forms.find_exported_forms_path(Path(made.pack.path), cache, "onnx", count, {})
    if path.exists():
        return path
    item = wire.ToExport(made.group, str(made.pack.path), "onnx", count)
    return _prepare_group_again(made.group, "export", cache, export=(item,))
