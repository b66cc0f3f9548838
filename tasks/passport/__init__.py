"""The arithmetic of a device, read from outside by masks and sums of chosen terms: in what order (a tree, which is revealed, encoded and drawn) it adds, in how many bits, and what follows from that to the bit, for composites too.

It asks one thing of a device: the sum of some terms. It knows no runtime and no catalog.
"""

from tasks.passport.device_sum import (
    ADDRESS,
    ARITHMETIC,
    CODES,
    SHAPES,
    WARMED,
    DeviceSum,
    NotReadable,
    SumTerms,
    choose_sum_elements,
)
from tasks.passport.sum_reading import SumReading
