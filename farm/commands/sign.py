"""Sign a run, so that others can check what was published: farm sign --key FILE [--run ID]"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farm import lake as lakes
from farm.commandline import Parser, refusing, results_option
from farm.exits import OK
from farm.lake import manifest


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = Parser(
        prog="farm sign",
        description="Write the manifest of a run beside its rows: the SHA-256 of its parts and its record, signed with an ed25519 key. farm verify "
        "checks it.",
        epilog="exit code: 0; 2 a run or a key is missing",
    )
    results_option(parser)
    parser.add_argument("--run", default="last", help="id of a run, or last (default)")
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--key", type=Path, metavar="FILE", help="private key in PEM")
    either.add_argument("--new-key", type=Path, metavar="FILE", help="make a key and sign nothing")
    parser.add_argument("--replace", action="store_true", help="even if another key has signed the run")
    args = parser.parse_args(argv)
    if args.new_key:
        public = manifest.new_key(args.new_key)
        print(f"written: {args.new_key} (keep it private) and {public} (give it to verifiers)")
        return OK
    opened = lakes.open_lake(args.results)
    run_id = lakes.known_runs(opened)[-1] if args.run == "last" else args.run
    signed = manifest.sign(opened, run_id, args.key, args.replace)
    print(f"run {run_id}: {len(signed['manifest']['files'])} files signed by {signed['public_key'][:16]}…")
    return OK
