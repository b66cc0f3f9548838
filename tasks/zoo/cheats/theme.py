"""The ops that cheats are of, and the right function that each of them cheats about: filled in by the package, read by cheats that know
their benchmark."""

from __future__ import annotations

from tasks.zoo.cheats.values import Function
from tasks.zoo.specimen import Theme

THEME = Theme("cheats", "tasks.zoo.cheats")
#: By the name of an op: what it is said to compute.
BASES: dict[str, Function] = {}
