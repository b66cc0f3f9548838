"""The models beside what is true of them: python -m tests.own_models [NAME…] [--times N]

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
from tests.own_models.running import ask, models


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.own_models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--times", type=int, default=1, help="so often, with weights and inputs drawn anew")
    parser.add_argument("--seed", type=int, default=0, help="of the first one's inputs")
    args = parser.parse_args()
    asked = models(args.names)
    if not asked:
        parser.error(f"no model matches {' '.join(args.names)}")
    count = differ = blamed = 0
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="farm-own-models-") as folder:
        for turn in range(args.times):
            for module, names in asked.items():
                start = time.perf_counter()
                found = ask(
                    module, names, Path(folder) / str(turn) / module, environment(default_cache()), args.seed + turn
                )
                each = (time.perf_counter() - start) / len(names)
                bad = [x for x in found if x.differs]
                count, differ, blamed = (count + len(found), differ + len(bad), blamed + sum(x.blamed for x in found))
                print(f"{turn}  {module}: {len(names)} models, {each:.1f} s each, {len(bad)} of {len(found)} differ")
                for x in bad:
                    print(
                        f"     {x.module}.{x.model} {x.backend}: {x.differs}\n          {' '.join(x.error.split())[:300]}"
                    )
                sys.stdout.flush()
    total = sum(map(len, asked.values()))
    seconds = (time.perf_counter() - begun) / (total * args.times)
    print(
        f"{total} models, {args.times} times: {count} rows, {differ} differ from the truth, {blamed} blame what is sound; "
        f"{seconds:.1f} s a model"
    )
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
