"""What this process keeps for the client: kernels that were judged, a cache of its own, its settings as they were."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from farm.client.kernels import Kernel
from farm.fleet import scratch_folders
from tasks.arrays import contiguous
from tasks.backends.shared import torch_devices, torch_switches
from tasks.cache import default_cache
from tasks.catalogs import user_definitions
from tasks.model import Status
from tasks.model.row import INTERPRETED
from tasks.variables import count_compute_threads

#: Kernels of this process by the run that judged them: what is asked of a run later needs their functions.
LIVE: dict[str, Kernel] = {}

#: Characters of an error in a message: a race is told with two lines of the kernel.
MESSAGE = 600


def name_backend_here() -> str:
    """The backend of eager torch on the device that this process has."""
    try:
        return f"torch-{torch_devices.name_torch_device_here()}"
    except ImportError:
        return "torch-cpu"  # which says that torch is missing


def name_backend_of_tensors(tensors: Iterable[Any]) -> str:
    """The backend of eager torch on the device of some tensors; where there are none, on that of this process."""
    types = {x.device.type for x in tensors if hasattr(x, "device") and hasattr(x.device, "type")}
    return "torch-cpu" if types == {"cpu"} else name_backend_here()


def move_to_client_device(tensor: Any) -> Any:
    """A tensor on the device that this process has."""
    name = name_backend_here().removeprefix("torch-")
    return tensor if name == "cpu" else tensor.to(torch_devices.find_torch_device(name).target or name)


@functools.cache
def make_client_cache() -> Path:
    """A cache that lives as long as this process: what is made with functions of its own, nobody else can use. What
    backends answered is that of the lasting one."""
    path = scratch_folders.make_scratch_folder() / "client"
    path.mkdir()
    probes = default_cache() / "probes"
    probes.mkdir(parents=True, exist_ok=True)
    (path / "probes").symlink_to(probes.resolve())
    return path


@contextlib.contextmanager
def isolate_client_settings() -> Iterator[None]:
    """One thread, as in every process that computes: a runtime that was imported before the farm has taken them all.
    What a run sets in this process is put back: threads, precision, the definitions that children are told."""
    before = user_definitions.get_announced_definitions()
    torch = sys.modules.get("torch")
    settings = _read_torch_settings(torch) if torch else []
    numbers = [(put, number()) for put, number in _find_blas_threads()]
    for put in [*([torch.set_num_threads] if torch else []), *(put for put, _ in numbers)]:
        put(count_compute_threads())
    try:
        yield
    finally:
        user_definitions.announce_definitions(before)
        for put, value in numbers:
            put(value)
        with torch_switches.allow_setting_flags() if settings else contextlib.nullcontext():
            for put, value in settings:
                put(value)


@functools.cache
def _find_blas_threads() -> tuple[tuple[Callable[[int], None], Callable[[], int]], ...]:
    """(what sets a number of threads, what tells it) of each OpenBLAS of this process: NumPy's was told one by a
    variable, unless it was imported before the farm."""
    found = []
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text().splitlines()
        for path in sorted({line.split(maxsplit=5)[-1] for line in maps if "openblas" in line}):
            library = ctypes.CDLL(path)
            for start, end in itertools.product(("scipy_openblas", "openblas"), ("64_", "")):
                put, told = (getattr(library, f"{start}_{verb}_num_threads{end}", None) for verb in ("set", "get"))
                if put is not None and told is not None:
                    found.append((put, told))
                    break
    return tuple(found)


def _read_torch_settings(torch: Any) -> list[tuple[Any, Any]]:
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


def describe_client_row(row: Mapping[str, Any]) -> str:
    """What happened to a case, in a line."""
    said = " ".join([str(row["status"]), *([str(row["kind"])] if row.get("kind") else [])])
    units, limit, diff = ((x if x == x else None) for x in map(row.get, ("error_units", "limit", "max_diff")))
    if units is not None:
        said += f", {units:.3g} error units" + (f" where {limit:g} are allowed" if limit else "")
        said += f", max diff {diff:.3g}" if diff is not None else ""
    told = [x for x in map(row.get, ("error", "cause")) if isinstance(x, str) and x]  # pandas has NaN for none
    said += f" ({INTERPRETED})" if row.get("execution") == INTERPRETED else ""
    words = "; ".join(" ".join(x.split())[:MESSAGE] for x in told)
    layout = row.get("layout")
    if isinstance(layout, str) and layout and not Status(row["status"]).passed and contiguous.ONLY_WHERE not in words:
        words += f"{'; ' * bool(words)}inputs: {layout}"  # as they were; "only where" says that it is their doing
    return said + (f": {words}" if words else "")
