"""How far beyond what right backends were seen to be off the limits of a calibrated policy are."""

from __future__ import annotations

from tasks.judge.error_metrics import USUAL_UNITS

#: Another correct kernel on another machine may add and round in another order.
MARGIN = 2.0
#: Nobody is asked for less. Sums are accumulated in float32 itself, in whatever order: one after another, 14 units were
#: measured over 65,536 elements (cumsum of ort-cpu and openvino-cpu), and that is no fault; MARGIN times that is 28.
LEAST = USUAL_UNITS
#: Types of 16 bits are accumulated in float32: inputs, result and one step between them are rounded.
LEAST_ROUNDED_ONCE = 4.0
#: Of the largest error units of a class's ops.
QUANTILE = 0.95
