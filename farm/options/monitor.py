"""The options of `farm node monitor`."""

from __future__ import annotations

from farm.commandline import CommandParser


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm node monitor",
        description="Start Prometheus on the metrics of the newest Ray on this machine, and Grafana with Ray's dashboards and the farm's, "
        "if they are installed. They end with Ctrl-C; what Prometheus has collected stays in the farm's cache.",
        epilog="exit code: 0; 2 Prometheus is not installed, or one of the two ended by itself",
    )
    parser.add_argument(
        "--port", type=int, default=9090, metavar="N", help="port of Prometheus (9090, where Ray's dashboard looks)"
    )
    parser.add_argument(
        "--grafana-port",
        type=int,
        default=3000,
        metavar="N",
        help="port of Grafana (3000, where Ray's dashboard looks)",
    )
    return parser
