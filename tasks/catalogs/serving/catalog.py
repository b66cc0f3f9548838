"""The catalog `serving`: attention as engines compute it, and what stands around it, against NumPy references in float64."""

from __future__ import annotations

from tasks.catalogs.critical.catalog import Critical
from tasks.catalogs.serving.ops import OPS


class Serving(Critical):
    """The ops of `tasks.catalogs.serving.ops`; samples, references and floors are made as those of the catalog
    `critical`."""

    name = "serving"
    ops = OPS
