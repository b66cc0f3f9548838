"""Matrix units without their device: what each architecture's adds, and how, recomputed bit by bit in NumPy: adders, accumulators."""

from tasks.matrix_units.multiply import multiply
from tasks.matrix_units.table import ARCHITECTURES, UNITS, MatrixUnit, find_matrix_unit

__all__ = ["ARCHITECTURES", "UNITS", "MatrixUnit", "find_matrix_unit", "multiply"]
