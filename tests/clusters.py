"""A Ray cluster of several nodes on this machine, on which other tests run as well."""

from __future__ import annotations

from typing import Any

from ray import cluster_utils

#: Of a cluster: a node that answers no more is gone after two seconds, not fifteen; one that is slow to answer as ever.
SOON_GONE = {"health_check_period_ms": 500}
#: Seconds that a node may take to start: Ray gives it 30, and a busy machine takes them.
START_S = 300


class Cluster(cluster_utils.Cluster):
    """A head without a dashboard, and nodes that are added. head: options of the head."""

    def __init__(self, **head: Any) -> None:
        super().__init__(
            initialize_head=True, head_node_args={"include_dashboard": False, "_system_config": SOON_GONE, **head}
        )

    def wait_for_nodes(self, timeout: float = START_S) -> None:
        super().wait_for_nodes(timeout)

    def _wait_for_node(self, node: Any, timeout: float = START_S) -> None:
        super()._wait_for_node(node, timeout)
