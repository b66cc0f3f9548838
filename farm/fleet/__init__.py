"""Nodes, devices, environments, interpreters and child processes: what can run where, found by probes."""
