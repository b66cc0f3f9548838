"""Recorded products of a device beside those of its emulated matrix unit, row by row: python -m tests.devices.products [--all]"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tasks import catalogs
from tasks.backends import BackendSpec
from tasks.judge import fingerprint
from tasks.judge.error_metrics import compare_outputs
from tasks.model import Form, Group
from tests.devices import HERE

#: A device's folder, whose products.csv are the rows of one run of the catalog gemm, and the backend that stands for
#: it.
EMULATED = {"h200-2026-11-26": "emulated-hopper"}
#: Samples that were asked of each op in that run.
ASKED = 20


@dataclass(frozen=True)
class Beside:
    """A recorded row, and the largest difference, error units and digest of what the emulated unit gives on its
    sample."""

    row: dict[str, Any]
    max_diff: float
    error_units: float
    digest: str

    @property
    def same(self) -> bool:
        """Whether the two outputs are the same bytes."""
        return self.digest == self.row["output_digest"]


def recorded_products(device: str) -> pd.DataFrame:
    return pd.read_csv(Path(HERE) / device / "products.csv", keep_default_na=False)


def recompute_products(device: str, op: str = "", dtype: str = "") -> Iterator[Beside]:
    """Each recorded row of an op and a dtype ("": of all) beside the emulated one."""
    rows = recorded_products(device)
    rows = rows[(rows["op"] == (op or rows["op"])) & (rows["dtype"] == (dtype or rows["dtype"]))]
    backend = BackendSpec.parse(EMULATED[device]).create()
    backend.start()
    catalog = catalogs.get_catalog("gemm")
    for (op, variant, dtype), some in rows.groupby(["op", "variant", "dtype"]):
        group = Group(op, variant, dtype, ASKED)
        samples = {sample.index: sample for sample in catalog.samples(group, draws=4)}
        for row in some.to_dict("records"):
            sample = samples[row["sample"]]
            args, kwargs = sample.encoded()
            form = Form("torch", op, dtype, sample.arrays, catalog.call(group), args, kwargs)
            outputs = [np.asarray(x) for x in backend.build(form).run()]
            found = compare_outputs(outputs, sample.expected, sample.op_class)
            yield Beside(
                dict(row), found.max_diff or 0.0, found.error_units or 0.0, fingerprint.digest_judged_outputs(outputs)
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.devices.products", description=__doc__)
    parser.add_argument("--all", action="store_true", help="16-bit products and integers too, not float8 alone")
    args = parser.parse_args()
    for device, backend in EMULATED.items():
        found = list(recompute_products(device, op="" if args.all else "gemm:scaled_mm"))
        table = pd.DataFrame(
            {
                **{name: [x.row[name] for x in found] for name in ("op", "variant", "dtype", "shapes", "status")},
                "units recorded": [x.row["error_units"] for x in found],
                "units emulated": [x.error_units for x in found],
                "max_diff recorded": [x.row["max_diff"] for x in found],
                "max_diff emulated": [x.max_diff for x in found],
                "same bytes": [x.same for x in found],
            }
        )
        print(f"{device} beside {backend}\n{table.to_string(index=False)}")
        print(table.groupby(["op", "dtype"])["same bytes"].agg(["sum", "size"]).to_string())


if __name__ == "__main__":
    main()
