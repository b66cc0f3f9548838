"""Nodes, vendors' devices, environments, interpreters, fork servers and child processes: what can run where, found by probes."""
