"""What a history is told along."""

from __future__ import annotations

#: What outcomes are told along, and the column of the lake that has it.
ALONG = {
    "run": "run_id",
    "runtime": "runtime_version",
    "build": "build",
    "driver": "driver_version",
    "farm": "farm_version",
}
