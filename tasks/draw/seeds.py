"""Random numbers that every language makes alike, bit for bit, from a seed of 64 bits.

splitmix64 fills the state of an xorshift128+ whose second word is mixed in place (not the textbook's order of shifts);
`derive_seed` makes a seed of its own for each use of one. All arithmetic is modulo 2⁶⁴. tests/tasks/test_choices.py holds
the vectors that an implementation in another language must give.
"""

from __future__ import annotations

import hashlib

import numpy as np

_MASK = 2**64 - 1
#: 2⁶⁴ divided by the golden ratio, made odd: the step of splitmix64.
_STEP = 0x9E3779B97F4A7C15


def mix_seed(seed: int) -> int:
    """The first number of splitmix64 from a state."""
    x = (seed + _STEP) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def draw_seed_words(seed: int, count: int) -> np.ndarray:
    """The first ``count`` numbers of splitmix64 from a state, uint64."""
    with np.errstate(over="ignore"):
        x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP) + np.uint64(seed & _MASK)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def derive_seed(seed: int, domain: str) -> int:
    """A seed for one use of another seed: BLAKE2b with 8 bytes of digest over both, read little-endian."""
    given = (seed & _MASK).to_bytes(8, "little") + domain.encode()
    return int.from_bytes(hashlib.blake2b(given, digest_size=8).digest(), "little")


class SeededGenerator:
    """The generator of a seed."""

    def __init__(self, seed: int) -> None:
        self._first, self._second = mix_seed(seed), mix_seed(seed + 1)

    def next(self) -> int:
        """A number of 64 bits."""
        x, y = self._first, self._second
        self._first = y
        z = x ^ ((x << 23) & _MASK)
        z ^= z >> 17
        z ^= y ^ (y >> 26)
        self._second = z ^ y
        return (z + y) & _MASK

    def below(self, bound: int) -> int:
        """A number from 0 to bound - 1, for a bound up to 2⁶⁴."""
        return (self.next() * bound) >> 64

    def float64(self) -> float:
        """A number in [0, 1), a multiple of 2⁻⁵³."""
        return (self.next() >> 11) / 2.0**53
