"""The random numbers of Matlab's default generator, so that data sets of a published script can be drawn again.

`rng(seed)` is the Mersenne Twister seeded as numpy's `RandomState`, whose uniform numbers agree with Matlab's. Normal
numbers are made by the ziggurat of Marsaglia and Tsang (2000) with 256 strips. Matlab's manual does not say how the bits
of two words are used, nor how `randperm` works. What is done here gives the numbers that users of Matlab have published;
a test holds this module to them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.intp]]

STRIPS = 256
TAIL = 3.6541528853610088  # where the lowest strip ends, for 256 strips (Marsaglia and Tsang 2000)
SEED_OF_ZERO = 5489  # rng(0) is the generator's own first state


def _edges() -> Matrix:
    """Return the right ends of the strips, from 0 at the top; the last is that of the base, tail included."""
    area = TAIL * _bell(TAIL) + math.sqrt(math.pi / 2) * math.erfc(TAIL / math.sqrt(2))
    found = [area / _bell(TAIL), TAIL]
    while len(found) < STRIPS:
        found.append(math.sqrt(-2 * math.log(area / found[-1] + _bell(found[-1]))))
    return np.array([0.0, *found[::-1]])


def _bell(x: float) -> float:
    return math.exp(-0.5 * x * x)


EDGES = _edges()
HEIGHTS = np.exp(-0.5 * EDGES**2)


class MatlabRandom:
    """What `rng(seed)`, `rand`, `randn`, `randi` and `randperm` of Matlab give; arrays are filled column by column.

    Args:
        seed: as for `rng`.
    """

    def __init__(self, seed: int) -> None:
        self._words = np.random.RandomState(SEED_OF_ZERO if seed == 0 else seed)

    def rand(self, rows: int, columns: int = 1) -> Matrix:
        """Return uniform numbers."""
        return self._words.random_sample(rows * columns).reshape((rows, columns), order="F")

    def randi(self, largest: int) -> int:
        """Return a whole number from 1 to `largest`."""
        return math.floor(float(self._words.random_sample()) * largest) + 1

    def randperm(self, count: int) -> Integers:
        """Return the numbers from 0 in random order: the order of as many uniform numbers."""
        return np.argsort(self._words.random_sample(count), kind="stable")

    def randn(self, rows: int, columns: int = 1) -> Matrix:
        """Return normal numbers."""
        drawn = [self._normal() for _ in range(rows * columns)]
        return np.array(drawn).reshape((rows, columns), order="F")

    def _normal(self) -> float:
        while True:
            first, second = (int(word) for word in self._words.randint(0, 2**32, 2, dtype=np.uint32))
            # 8 bits choose the strip, 53 others a number from −1 to 1.
            strip = second >> 24
            place = ((first >> 3) * 2.0**24 + (second & 0xFFFFFF)) * 2.0**-52 - 1
            x = place * float(EDGES[strip + 1])
            if abs(x) <= EDGES[strip]:
                return x
            if strip == STRIPS - 1:
                return math.copysign(self._beyond(), place)
            height = float(self._words.random_sample())
            if HEIGHTS[strip + 1] + height * (HEIGHTS[strip] - HEIGHTS[strip + 1]) < _bell(x):
                return x

    def _beyond(self) -> float:
        """Return a number from the tail (Marsaglia 1964)."""
        while True:
            x, y = (-math.log(float(self._words.random_sample())) for _ in range(2))
            x /= TAIL
            if 2 * y > x * x:
                return TAIL + x
