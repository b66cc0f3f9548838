"""Where what was made once is kept: prepared cases, exported forms, environments, wheels."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """$FARM_CACHE, or validation-farm in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get("FARM_CACHE") or os.path.join(base, "validation-farm"))
