"""A Ray cluster whose nodes are network namespaces of this machine: they are killed, cut off, drained, and the head restarts.

For a process in namespaces of its own (unshare -m -n), with which everything that is made here ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

#: The network of the nodes, this process on it as 254, and the port of the head.
NET, PORT = "10.213.0", 6379
#: A node that says nothing is dead after some seconds.
SETTINGS = {"health_check_period_ms": 1000, "health_check_timeout_ms": 3000, "health_check_failure_threshold": 3}
#: Seconds of a cut: most are over before the head has given the node up, some are not. Between a notice and the end of
#: a drained node.
SHORT_S, LONG_S, NOTICE_S = (0.3, 2.0), (11.0, 15.0), (0.5, 3.0)
#: Nobody else is on this network.
OPEN = {"RAY_AUTH_MODE": "disabled"}
#: Seconds that a node takes to be there, at most.
START_S = 400.0


def _do(*words: str) -> None:
    subprocess.run(words, check=True)


@dataclass
class Cluster:
    """A head and two nodes."""

    env: Mapping[str, str]
    log: Path
    address: str = f"{NET}.1:{PORT}"
    nodes: dict[int, subprocess.Popen[bytes]] = field(
        default_factory=dict
    )  # last number of the address → its first process

    @classmethod
    @contextlib.contextmanager
    def of(cls, folder: Path, env: Mapping[str, str]) -> Iterator[Cluster]:
        ray = folder / "ray"
        ray.mkdir(parents=True, exist_ok=True)
        for place in ("/run/netns", "/tmp/ray"):
            os.makedirs(place, exist_ok=True)
        _do("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        _do("mount", "--bind", str(ray), "/tmp/ray")  # other Rays of this machine are not seen, nor see this one
        _do("ip", "link", "set", "lo", "up")
        _do("ip", "link", "add", "farm0", "type", "bridge")
        _do("ip", "addr", "add", f"{NET}.254/24", "dev", "farm0")
        _do("ip", "link", "set", "farm0", "up")
        made = cls(env, folder / "nodes.log")
        os.environ.update(OPEN)
        try:
            for number in (1, 2, 3):
                made._wire(number)
            made._start_all()
            yield made
        finally:
            for number in list(made.nodes):
                made._end(number)

    def _wire(self, number: int) -> None:
        """A namespace on the bridge."""
        name, here = f"farm{number}", f"veth{number}"
        _do("ip", "netns", "add", name)
        _do("ip", "link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", name)
        _do("ip", "link", "set", here, "master", "farm0", "up")
        for words in (f"addr add {NET}.{number}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _do("ip", "-n", name, *words.split())

    @property
    def inside(self) -> list[str]:
        """What a command on the head begins with."""
        return ["ip", "netns", "exec", "farm1"]

    def _start(self, number: int) -> None:
        role = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--system-config={json.dumps(SETTINGS)}"]
        role = role if number == 1 else [f"--address={self.address}"]
        more = [f"--node-ip-address={NET}.{number}", "--num-cpus=2", "--block", "--disable-usage-stats"]
        command = ["ip", "netns", "exec", f"farm{number}", sys.executable, "-m", "ray.scripts.scripts", "start"]
        with open(self.log, "ab") as log:
            self.nodes[number] = subprocess.Popen([*command, *role, *more], env=dict(self.env), stdout=log, stderr=log)

    def _start_all(self) -> None:
        self._start(1)
        self._wait(1)
        self._start(2)
        self._start(3)
        self._wait(3)

    def _wait(self, number: int) -> None:
        """Until so many nodes are alive."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            with contextlib.suppress(Exception):
                if len(self._alive()) >= number:
                    return
            self._again(range(2, number + 1))  # Ray gives a node that is slow to start half a minute
            time.sleep(0.2)
        sys.exit(f"a cluster of {number} nodes did not start within {START_S:g} s")

    def _client(self) -> Any:
        from ray._raylet import GcsClient

        return GcsClient(address=self.address)

    def _alive(self) -> dict[str, str]:
        """Ids of the nodes that are alive, by address."""
        from ray.core.generated.gcs_pb2 import GcsNodeInfo

        found = self._client().get_all_node_info(timeout=5)
        return {info.node_manager_address: key.hex() for key, info in found.items() if info.state == GcsNodeInfo.ALIVE}

    def _end(self, number: int) -> None:
        """Kill every process of a node."""
        first = self.nodes.pop(number)
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*psutil.Process(first.pid).children(recursive=True), psutil.Process(first.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        first.wait()

    def mend(self) -> None:
        """Start again what has ended."""
        if self.nodes[1].poll() is not None:
            for number in list(self.nodes):
                self._end(number)
            self._start_all()
        self._again((2, 3))

    def _again(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self.nodes and self.nodes[number].poll() is not None:
                self._end(number)
                self._start(number)

    # --- faults -----------------------------------------------------------------------------------------------------

    def kill(self, chance: random.Random) -> None:
        number = chance.choice((2, 3))
        self._end(number)
        self._start(number)

    def cut_off(self, chance: random.Random) -> None:
        """A node is there and nobody reaches it, for a while."""
        number = chance.choice((2, 3))
        _do("ip", "link", "set", f"veth{number}", "down")
        time.sleep(chance.uniform(*(LONG_S if chance.random() < 0.25 else SHORT_S)))
        _do("ip", "link", "set", f"veth{number}", "up")
        self.mend()

    def drain(self, chance: random.Random) -> None:
        """A spot node is told that it will be taken away, and is."""
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        number, notice_s = chance.choice((2, 3)), chance.uniform(*NOTICE_S)
        self._wait(3)
        told = self._alive()[f"{NET}.{number}"]
        deadline_ms = int((time.time() + notice_s) * 1e3)
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        accepted, why = self._client().drain_node(told, reason, "spot node", deadline_ms)
        if not accepted:
            sys.exit(f"a node was not drained: {why}")
        time.sleep(notice_s)
        self._end(number)
        while told in self._alive().values():  # nobody can drain a node that is dead and not yet given up
            time.sleep(0.2)
        self._start(number)

    def restart_head(self, chance: random.Random) -> None:
        """The head is killed, with the driver's own raylet; everything is started again once the driver has ended."""
        self._end(1)
        self.nodes[1] = subprocess.Popen(["true"])
