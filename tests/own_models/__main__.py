"""The models beside what is true of them: python -m tests.own_models [NAME…] [--times N] [--each] [--backends B,B]

NAME is a module, or module.Class; both may be globs. Exit code 1 if anything differs from the truth.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tasks.cache import default_cache
from tests.bench.running import environment
from tests.own_models.running import BACKENDS, Told, ask, ask_alone, models


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.own_models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--times", type=int, default=1, help="so often, with weights and inputs drawn anew")
    parser.add_argument("--seed", type=int, default=0, help="of the first time")
    parser.add_argument("--each", action="store_true", help="a command for each model, and how long it takes")
    parser.add_argument(
        "--backends",
        default=",".join(BACKENDS),
        help="separated by commas, such as torch-cuda,inductor-cuda (default: %(default)s)",
    )
    args = parser.parse_args()
    backends = args.backends.split(",")
    asked = models(args.names)
    if not asked:
        parser.error(f"no model matches {' '.join(args.names)}")
    found: list[Told] = []
    slowest, begun, env = 0.0, time.perf_counter(), environment(default_cache())
    with tempfile.TemporaryDirectory(prefix="farm-own-models-") as folder:
        for turn in range(args.times):
            for module, some in asked.items():
                place = Path(folder) / str(turn) / module
                if args.each:
                    for name in some:
                        one, seconds = ask_alone(module, name, place / name, env, backends)
                        slowest = max(slowest, seconds)
                        found += _show(one, f"{turn}  {module}.{name}: {seconds:.1f} s")
                else:
                    start = time.perf_counter()
                    one = ask(module, some, place, env, args.seed + turn, backends)
                    each = (time.perf_counter() - start) / len(some)
                    found += _show(one, f"{turn}  {module}: {len(some)} models, {each:.1f} s each")
    differ, blamed = sum(bool(x.differs) for x in found), sum(x.blamed for x in found)
    total = sum(map(len, asked.values()))
    seconds = (time.perf_counter() - begun) / (total * args.times)
    most = f", at most {slowest:.1f} s" if args.each else ""
    print(
        f"{total} models, {args.times} times: {len(found)} rows, {differ} differ from the truth, {blamed} blame what is sound; "
        f"{seconds:.1f} s a model{most}"
    )
    return int(differ > 0)


def _show(found: list[Told], what: str) -> list[Told]:
    bad = [x for x in found if x.differs]
    print(f"{what}, {len(bad)} of {len(found)} rows differ")
    for x in bad:
        print(f"     {x.module}.{x.model} {x.backend}: {x.differs}\n          {' '.join(x.error.split())[:300]}")
    sys.stdout.flush()
    return found


if __name__ == "__main__":
    sys.exit(main())
