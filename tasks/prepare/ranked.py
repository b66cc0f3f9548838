"""The order in which the samples of a prepared group are given to a backend that is to have fewer."""

from __future__ import annotations

from tasks.prepare.record import SampleRecord


def rank_prepared_samples(records: list[SampleRecord]) -> list[SampleRecord]:
    """Order in which samples are chosen when a backend is given fewer than were prepared.

    Strong samples first, and within each kind the middle, then the ends, then what lies between.
    """

    def spread(items: list[SampleRecord]) -> list[SampleRecord]:
        order: list[int] = []
        for i in range(len(items)):
            # van der Corput sequence: every prefix is spread evenly
            value, base, n = 0.0, 0.5, i + 1
            while n:
                value, base, n = value + base * (n & 1), base / 2, n >> 1
            order.append(min(int(value * len(items)), len(items) - 1))
        seen = list(dict.fromkeys(order))
        return [items[k] for k in seen] + [x for k, x in enumerate(items) if k not in seen]

    strong = [r for r in records if not r.failure and not r.weak]
    weak = [r for r in records if not r.failure and r.weak]
    return spread(strong) + spread(weak) + [r for r in records if r.failure]
