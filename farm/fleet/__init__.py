"""Nodes, devices, environments: what can run where."""
