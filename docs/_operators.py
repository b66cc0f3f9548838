"""Which of torch's operators the farm calls: python docs/_operators.py writes docs/operators.csv.

The list is what torch's dispatcher registers under ``aten::``. Every OpInfo of the catalog torch is called on its first
samples, as its checks call it (forward, out=, in place, as a method, gradient); torch's profiler tells which overloads
ran, and which of them inside of another operator: only of the outermost one the whole result is judged.
"""

from __future__ import annotations

import csv
import functools
import itertools
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves, tree_map

from tasks.catalogs.torch import opinfo, variants

FILE = Path(__file__).resolve().parent / "operators.csv"
#: Samples of an op that are called.
SAMPLES = 3
#: What the profiler's events of an op are inside of.
MARK = "farm op "
#: The dtypes in which an op is called: the first of these that it takes.
DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.float64)
#: Why an overload is not called.
ALIAS = "another name of an operator that is called"
GENERATED = "generated from the one without out="
COVERED, IN_PART, NOT = "covered", "covered in part", "not covered"


def list_overloads() -> dict[str, list[Any]]:
    """The overloads of every operator of ATen, by its name without ``aten::``."""
    found: dict[str, list[Any]] = defaultdict(list)
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "aten":
            found[name].append(schema)
    return found


def call_all() -> Iterator[tuple[str, Callable[[], Any]]]:
    """What the catalog calls: an op's name and a call of it, whose inputs are made before."""
    for info in opinfo._load_op_db().values():
        kinds = info.supported_dtypes("cpu")
        dtype = next((d for d in DTYPES if d in kinds), None)
        if dtype is None or info.name.startswith("jiterator_"):
            continue
        gradient = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        try:
            samples = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=gradient), SAMPLES))
        except Exception as error:
            print(f"{info.name}: {error}", file=sys.stderr)
            continue
        for check in ("forward", *set(variants.list_variant_checks(info)) - {variants.REFUSES, variants.PROMOTION}):
            call = variants.make_variant_call(info, check)
            for sample in samples:
                yield info.name, lambda call=call, sample=sample, check=check: _call(call, sample, check == "forward")


def _call(call: Callable[..., Any], sample: Any, gradient: bool) -> None:
    first, args, kwargs = tree_map(_copy if not gradient else _keep, (sample.input, sample.args, sample.kwargs))
    made = [x for x in tree_leaves(call(first, *args, **kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    if gradient and made:
        torch.autograd.backward(made, [torch.ones_like(x) for x in made])


def _keep(leaf: Any) -> Any:
    return leaf


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def record(
    calls: Iterator[tuple[str, Callable[[], Any]]],
) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], str]]:
    """The overloads that were called, and those that ran only inside of another operator, each with an op of the
    catalog that did it."""
    direct: dict[tuple[str, str], str] = {}
    inside: dict[tuple[str, str], str] = {}
    config = _ExperimentalConfig(capture_overload_names=True)
    while some := list(itertools.islice(calls, 400)):  # an event tree of all would take gigabytes
        with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as seen:
            for name, call in some:
                with record_function(MARK + name), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        call()
                    except Exception:  # a sample that this check does not take
                        continue
        for event in seen.events():
            if not event.name.startswith("aten::"):
                continue
            above = list(_ancestors(event))
            ops = [x[len(MARK) :] for x in above if x.startswith(MARK)]
            if ops:
                outermost = not any(x.startswith("aten::") for x in above)
                (direct if outermost else inside).setdefault((event.name[6:], event.overload_name or ""), ops[0])
    return direct, inside


def _ancestors(event: Any) -> Iterator[str]:
    while (event := event.cpu_parent) is not None:
        yield event.name


@functools.cache
def aliases() -> dict[str, str]:
    """Other names of operators, as op_db declares them, with the name under which each is called: "absolute" is
    "abs"."""
    return {
        alias.name.replace(".", "_").removeprefix("Tensor_"): info.name
        for info in opinfo._load_op_db().values()
        for alias in info.aliases
    }


def explain(name: str, schema: Any) -> str:
    """Why an overload is not called, from what torch itself says of it; "" if nothing does."""
    if name.removesuffix("_") in aliases():
        return ALIAS
    kinds = str(schema)
    full = f"aten::{name}" + f".{schema.overload_name}" * bool(schema.overload_name)

    def has_kernel(*keys: str) -> bool:
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in keys)

    registered = torch._C._dispatch_has_kernel(full)
    if not registered:
        return "TorchScript's own: no kernel of torch's dispatcher"
    if "Tensor" not in kinds:
        return "takes and returns no tensor"
    if name.startswith("_"):
        return "internal: called by other operators"
    if schema.overload_name.endswith("out") and torch.Tag.generated in _tags(name, schema):
        return GENERATED
    if not has_kernel(
        "CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"
    ):
        return "no kernel for dense tensors on a CPU"
    return ""


def _tags(name: str, schema: Any) -> list[Any]:
    packet = getattr(torch.ops.aten, name)
    return list(getattr(packet, schema.overload_name or "default").tags)


def rows() -> Iterator[dict[str, str]]:
    """A line of the file for each operator."""
    direct, inside = record(call_all())
    for name, schemas in sorted(list_overloads().items()):
        called = [s.overload_name for s in schemas if (name, s.overload_name) in direct]
        within = [
            s.overload_name for s in schemas if (name, s.overload_name) in inside and s.overload_name not in called
        ]
        left = {s.overload_name: explain(name, s) for s in schemas if s.overload_name not in called + within}
        meant = [x for x, why in left.items() if not why]
        status = COVERED if called and not meant and not within else IN_PART if called or within else NOT
        # What is generated of an operator goes with it.
        why = [x for x in dict.fromkeys(left.values()) if x != GENERATED] or [GENERATED]
        yield {
            "operator": name,
            "status": status,
            "called": " ".join(x or "default" for x in called),
            "inside": " ".join(x or "default" for x in within),
            "left": " ".join(x or "default" for x in (meant if status != NOT else left)),
            "why": (why[0] or "no op of the catalog calls it") if status == NOT else "",
            "by": next((direct.get((name, x)) or inside.get((name, x), "") for x in (*called, *within)), ""),
        }


def main() -> None:
    torch.set_num_threads(1)
    lines = list(rows())
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(f"{FILE}: {len(lines)} operators of torch {torch.__version__}: {dict(Counter(x['status'] for x in lines))}")


if __name__ == "__main__":
    main()
