"""The loops whose processor time is compared; each runs in a process of its own and prints one JSON line."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

DTYPES = ("float32", "float16", "bfloat16")
SAMPLES = 8
#: One op in so many.
EVERY = int(os.environ.get("BENCH_EVERY", "1"))


def bare() -> dict[str, float]:
    """What anyone would write: op_db, the op, the op in float64, the largest difference."""
    import torch

    torch.set_num_threads(1)
    import torch.testing._internal.common_utils as common_utils

    # Lean: without its search for the running unittest (most of the time under `python -m`) and SampleInput.transform.
    # Before op_db is imported, which takes the function by its name.
    common_utils.extract_test_fn = lambda: None
    from torch.testing._internal.common_methods_invocations import op_db

    wide = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}

    def widen(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().to(wide.get(x.dtype, x.dtype), copy=True)
        return wide.get(x, x) if isinstance(x, torch.dtype) else x

    def clone(x: Any) -> Any:
        return x.detach().clone() if isinstance(x, torch.Tensor) else x

    def leaves(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            for y in x:
                yield from leaves(y)

    def change(x: Any, leaf: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)([change(y, leaf) for y in x]) if type(x) in (list, tuple) else x
        return {k: change(y, leaf) for k, y in x.items()} if isinstance(x, dict) else leaf(x)

    begin = time.process_time()
    cases = 0
    worst = 0.0
    with torch.no_grad():
        for op in op_db[::EVERY]:
            if op.name.startswith("jiterator_"):
                continue
            supported = op.supported_dtypes("cpu")
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                if dtype not in supported:
                    continue
                for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
                    cases += 1
                    try:
                        args, kwargs = (sample.input, *sample.args), sample.kwargs
                        got = list(leaves(op.op(*change(args, clone), **change(kwargs, clone))))
                        want = list(leaves(op.op(*change(args, widen), **change(kwargs, widen))))
                    except Exception:
                        continue
                    for a, b in zip(got, want):
                        if a.shape == b.shape and a.numel() and a.layout == torch.strided and not a.is_complex():
                            d = (a.double() - b.double()).abs().max().item()
                            worst = max(worst, d if math.isfinite(d) else 0.0)
    return {"cpu_s": time.process_time() - begin, "cases": cases}


def farm(cache: str) -> dict[str, float]:
    """The same matrix through the farm's own preparing, executing and judging; cold or warm as the cache is."""
    import torch

    torch.set_num_threads(1)
    import tasks.catalogs as catalogs
    from tasks.backends import BackendSpec
    from tasks.judge import policy_files
    from tasks.model import Group
    from tasks.prepare.cases import prepare_group
    from tasks.runner import Runner, make_item_of_whole_group

    entries = catalogs.get_catalog("torch").entries()[::EVERY]
    backend = BackendSpec.parse("torch-cpu").create()
    info = backend.start()
    runner = Runner(backend, info, policy_files.load_policy("error_units"), lambda number, stage, span: None)
    begin, preparing, cases = time.process_time(), 0.0, 0
    for entry in entries:
        for dtype in DTYPES:
            if dtype in entry.dtypes:
                start = time.process_time()
                asked = Group(entry.op, entry.variant, dtype, SAMPLES)
                _, group = prepare_group(asked, Path(cache), with_products=info.of_products)
                preparing += time.process_time() - start
                cases += sum(1 for _ in runner.run([make_item_of_whole_group(group)]))
    total = time.process_time() - begin
    return {"cpu_s": total, "prepare_cpu_s": preparing, "cases": cases}


def noise(cache: str, draws: str, out: str) -> dict[str, float]:
    """Processor time of the float64 reference and of the noise floor over op_db, and every status on torch-cpu.

    The statuses, by case_id, are written to the file ``out``.
    """
    import torch

    torch.set_num_threads(1)
    import tasks.catalogs as catalogs
    from tasks.backends import BackendSpec
    from tasks.catalogs.torch.arguments import widen_torch_argument
    from tasks.catalogs.torch.samples import OpInfoSampleMaker
    from tasks.judge import policy_files
    from tasks.model import Group
    from tasks.prepare.cases import prepare_group
    from tasks.runner import Runner, make_item_of_whole_group

    spent = {"reference": 0.0, "noise": 0.0, "due": 0.0}
    maker: Any = OpInfoSampleMaker
    inner_noise, inner_run, inner_moved = maker._noise, maker._run, maker._compute_perturbed
    drawn = [0]

    def counted(self: Any, *args: Any) -> Any:
        drawn[0] += 1
        return inner_moved(self, *args)

    def timed_noise(self: Any, *args: Any) -> Any:
        # The reference is timed where a noise floor is due: the two are then of the same cases.
        begin = time.process_time()
        with contextlib.suppress(Exception):
            inner_run(self, args[0], args[1], widen_torch_argument)
        middle = time.process_time()
        before = drawn[0]
        found = inner_noise(self, *args)
        spent["reference"] += middle - begin
        spent["due"] += (middle - begin) * (drawn[0] - before)  # steps get more draws, elementary ops fewer
        spent["noise"] += time.process_time() - middle
        return found

    maker._noise, maker._compute_perturbed = timed_noise, counted
    backend = BackendSpec.parse("torch-cpu").create()
    runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
    statuses: dict[str, str] = {}
    for entry in catalogs.get_catalog("torch").entries()[::EVERY]:
        for dtype in DTYPES:
            if dtype in entry.dtypes:
                asked = Group(entry.op, entry.variant, dtype, SAMPLES)
                _, group = prepare_group(asked, Path(cache), int(draws))
                for done in runner.run([make_item_of_whole_group(group)]):
                    statuses[asked.case_id(done.row.sample)] = done.row.status
    Path(out).write_text(json.dumps(statuses))
    return {"reference_s": spent["reference"], "noise_s": spent["noise"], "due_s": spent["due"], "cases": len(statuses)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    loops: dict[str, Any] = {"bare": bare, "farm": farm, "noise": noise}
    print(json.dumps(loops[sys.argv[1]](*sys.argv[2:])))
