"""Watch runs on Ray in Prometheus and Grafana: farm node monitor [--port N] [--grafana-port N]"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from farm.commandline import refuse_in_a_line
from farm.exits import OK, allow_interrupts
from farm.options.monitor import make_parser
from farm.work import monitoring
from tasks.cache import default_cache
from tasks.model import Refusal

#: Scrapes every node of the newest Ray on this machine: its head writes their addresses into that file.
_CONFIG = """global: {{scrape_interval: {every:g}s, evaluation_interval: 5s}}
scrape_configs:
  - job_name: ray
    file_sd_configs: [{{files: ['{targets}'], refresh_interval: 5s}}]
"""
#: Seconds between two looks at whether both are alive.
LOOK_S = 0.5
#: Where Grafana's packages put what it needs to start.
_GRAFANA_HOME = "/usr/share/grafana"


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line until Ctrl-C; returns the exit code."""
    args = make_parser().parse_args(argv)
    ray = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
    targets = ray / "prom_metrics_service_discovery.json"
    if not shutil.which("prometheus"):
        raise Refusal(
            "prometheus is not installed: apt-get install prometheus, or from https://prometheus.io/download; one that runs elsewhere "
            f"scrapes the targets in {targets} (file_sd_configs)"
        )
    running = {"prometheus": _start_prometheus(default_cache() / "prometheus", targets, args.port)}
    watching = monitoring.mark_as_watching(default_cache())
    if (grafana := _start_grafana(ray, args.grafana_port)) is not None:
        running["grafana"] = grafana
    try:
        with allow_interrupts():
            while (ended := next((n for n, process in running.items() if process.poll() is not None), "")) == "":
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        return OK
    finally:
        watching.close()
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    option, port = {"prometheus": ("--port", args.port), "grafana": ("--grafana-port", args.grafana_port)}[ended]
    raise Refusal(
        f"{ended} exited (exit code {running[ended].returncode}); is port {port} taken? Use another: {option}"
    )


def _start_prometheus(folder: Path, targets: Path, port: int) -> subprocess.Popen[bytes]:
    """Raises Refusal."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(_CONFIG.format(targets=targets, every=monitoring.SCRAPE_S))
    except OSError as error:
        raise Refusal(f"{folder} cannot be written ({error.strerror}); set FARM_CACHE to another place") from None
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    print(f"Prometheus: http://localhost:{port}, of the nodes in {targets}", flush=True)
    return subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"])


def _start_grafana(ray: Path, port: int) -> subprocess.Popen[bytes] | None:
    """None where it cannot be started; says why."""
    settings = ray / "session_latest" / "metrics" / "grafana" / "grafana.ini"
    program, shown = shutil.which("grafana"), monitoring.write_grafana_dashboard(default_cache(), os.environ)
    if program is None:
        where = "".join(f"; its dashboard is {folder}/farm.json" for folder in shown.values())
        print(
            f"Grafana is not installed (https://grafana.com/docs/grafana/latest/setup-grafana/installation){where}",
            flush=True,
        )
        return None
    if not settings.exists():
        print(
            f"Grafana is not started: no {settings}; start a run on Ray with its dashboard, then farm node monitor",
            flush=True,
        )
        return None
    print(f"Grafana: http://localhost:{port}, dashboard 'Validation farm'", flush=True)
    environment = os.environ | {"GF_SERVER_HTTP_PORT": str(port)}
    return subprocess.Popen(
        [program, "server", "--homepath", _GRAFANA_HOME, "--config", str(settings)], env=environment
    )
