"""Checks: what is asked of a program."""

from tasks.checks.base import Check, get, known, names

__all__ = ["Check", "get", "known", "names"]
