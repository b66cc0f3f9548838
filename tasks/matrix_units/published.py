"""Values that the literature gives of matrix units, each with its source: what the rules are held against (tests/tasks/test_matrix_units.py), and a table of the docs."""

from __future__ import annotations

from dataclasses import dataclass

#: What was measured. Exponent of the smallest product that is still seen beside 2^16 in the same step; products that
#: one step adds; what becomes of what a sum cannot hold; whether subnormal factors and results are zero; digits of a
#: factor behind the point.
SEEN, WIDTH, LOST, SUBNORMALS, TAKEN = (
    "smallest product seen beside 2^16",
    "products a step",
    "what a sum cannot hold",
    "subnormal numbers",
    "digits of a factor",
)
CUT, ROUNDED, KEPT, ZERO = "cut off", "rounded to nearest", "kept", "zero"


@dataclass(frozen=True)
class Published:
    """what: one of the above; value: an exponent of 2 (`SEEN`), a number, or one of the words above; source: of
    `tasks.matrix_units.table.SOURCES`."""

    architecture: str
    dtype: str
    what: str
    value: int | str
    source: str


def _list_published_units() -> tuple[Published, ...]:
    return (
        Published("volta", "float16", SEEN, -7, "Fasi"),
        Published("turing", "float16", SEEN, -8, "Fasi"),
        *(Published("ampere", x, SEEN, -8, "Fasi") for x in ("float16", "bfloat16", "float32")),
        Published("ada", "float16", SEEN, -8, "Khattak"),
        Published("ada", "float8_e5m2", SEEN, 3, "MMA-Sim"),
        *(Published("hopper", x, SEEN, -9, "FTTN") for x in ("float16", "bfloat16", "float32")),
        Published("hopper", "float8_e5m2", SEEN, 3, "MMA-Sim"),
        Published("blackwell", "float16", SEEN, -9, "Khattak"),
        Published("blackwell", "float8_e5m2", SEEN, -9, "MMA-Sim"),
        *(Published("cdna3", x, SEEN, -8, "MMA-Sim") for x in ("float16", "bfloat16")),
        Published("volta", "float16", WIDTH, 4, "Fasi"),
        Published("turing", "float16", WIDTH, 8, "MMA-Sim"),
        Published("ampere", "float16", WIDTH, 8, "Fasi"),
        Published("ampere", "float32", WIDTH, 4, "Fasi"),
        Published("ada", "float8_e4m3fn", WIDTH, 16, "MMA-Sim"),
        Published("hopper", "float16", WIDTH, 16, "FTTN"),
        Published("hopper", "float32", WIDTH, 8, "Khattak"),
        Published("hopper", "float8_e4m3fn", WIDTH, 32, "MMA-Sim"),
        Published("blackwell", "float8_e5m2", WIDTH, 32, "MMA-Sim"),
        Published("cdna1", "float16", WIDTH, 4, "FTTN"),
        Published("cdna1", "bfloat16", WIDTH, 2, "FTTN"),
        Published("cdna3", "float16", WIDTH, 8, "Khattak"),
        Published("cdna3", "float8_e5m2fnuz", WIDTH, 16, "MMA-Sim"),
        *(Published(x, "float16", LOST, CUT, "Fasi") for x in ("volta", "ampere")),
        Published("hopper", "float16", LOST, CUT, "FTTN"),
        Published("blackwell", "float16", LOST, CUT, "Khattak"),
        *(Published(x, "float16", LOST, ROUNDED, "FTTN") for x in ("cdna1", "cdna2")),
        Published("cdna3", "float16", LOST, ROUNDED, "Khattak"),
        *(Published(x, "float16", SUBNORMALS, KEPT, "FTTN") for x in ("volta", "ampere", "hopper", "cdna1")),
        *(Published(x, "float16", SUBNORMALS, KEPT, "MMA-Sim") for x in ("turing", "ada", "blackwell", "cdna3")),
        Published("cdna2", "float16", SUBNORMALS, ZERO, "FTTN"),
        Published("ampere", "float32", TAKEN, 10, "Fasi"),
        Published("cdna1", "float32", TAKEN, 23, "MMA-Sim"),
    )


#: All of them.
PUBLISHED = _list_published_units()
