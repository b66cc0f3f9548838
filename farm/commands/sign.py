"""Sign a run, so that others can check what was published: farm verify sign --key FILE [--run ID]"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from farm import lake as lakes
from farm.commandline import refuse_in_a_line
from farm.exits import OK
from farm.lake import manifest
from farm.lake.store import find_run_by_word
from farm.options.sign import make_parser
from farm.program import name_farm_program, write_results_option


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = make_parser().parse_args(argv)
    if args.new_key:
        public = manifest.write_manifest_key(args.new_key)
        print(f"written: {args.new_key} (keep it private) and {public} (give it to verifiers)")
        print(
            f"now sign: {name_farm_program()} verify sign --key {shlex.quote(str(args.new_key))}{write_results_option(args.results)}"
        )
        return OK
    opened = lakes.open_lake(args.results)
    run_id = find_run_by_word(opened, args.run)
    signed = manifest.sign_run(opened, run_id, args.key, args.replace)
    print(f"run {run_id}: {len(signed['manifest']['files'])} files signed by {signed['public_key'][:16]}…")
    return OK
