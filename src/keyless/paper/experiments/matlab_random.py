"""The random numbers of Matlab's default generator, so that data sets of a published script can be drawn again.

`rng(seed)` is the Mersenne Twister seeded as numpy's `RandomState`, whose uniform numbers agree with Matlab's. Normal
numbers are made by the ziggurat of Marsaglia and Tsang (2000) with 256 strips. Matlab's manual does not say how the
bits of two words are used, nor how `randperm` works. What is done here gives the numbers that users of Matlab have
published; a test holds this module to them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from keyless.arrays import FloatArray

__all__ = ["TAIL", "MatlabRandom"]

TAIL = 3.6541528853610088
"""Where the lowest strip ends, for 256 strips (Marsaglia and Tsang 2000)."""

_STRIPS = 256
_SEED_OF_ZERO = 5489  # rng(0) is the generator's own first state

IntArray = NDArray[np.intp]


def _edges() -> FloatArray:
    """Return the right ends of the strips, from 0 at the top; the last is that of the base, tail included."""
    area = TAIL * _bell(TAIL) + math.sqrt(math.pi / 2) * math.erfc(TAIL / math.sqrt(2))
    found = [area / _bell(TAIL), TAIL]
    while len(found) < _STRIPS:
        found.append(math.sqrt(-2 * math.log(area / found[-1] + _bell(found[-1]))))
    return np.array([0.0, *found[::-1]])


def _bell(x: float) -> float:
    return math.exp(-0.5 * x * x)


_EDGES = _edges()
_HEIGHTS = np.exp(-0.5 * _EDGES**2)


class MatlabRandom:
    """What `rng(seed)`, `rand`, `randn`, `randi` and `randperm` of Matlab give; arrays are filled column by column.

    Args:
        seed: as for `rng`.

    Example:
        >>> [round(float(number), 4) for number in MatlabRandom(0).randn(1, 3)[0]]
        [0.5377, 1.8339, -2.2588]
    """

    def __init__(self, seed: int) -> None:
        self._words = np.random.RandomState(_SEED_OF_ZERO if seed == 0 else seed)

    def rand(self, rows: int, columns: int = 1) -> FloatArray:
        """Return uniform numbers.

        Args:
            rows: of the array.
            columns: of the array.
        """
        return self._words.random_sample(rows * columns).reshape((rows, columns), order="F")

    def randi(self, largest: int) -> int:
        """Return a whole number from 1.

        Args:
            largest: the largest that is possible.
        """
        return math.floor(float(self._words.random_sample()) * largest) + 1

    def randperm(self, count: int) -> IntArray:
        """Return the numbers from 0 in random order: the order of as many uniform numbers.

        Args:
            count: how many.
        """
        return np.argsort(self._words.random_sample(count), kind="stable")

    def randn(self, rows: int, columns: int = 1) -> FloatArray:
        """Return normal numbers.

        Args:
            rows: of the array.
            columns: of the array.
        """
        drawn = [self._normal() for _ in range(rows * columns)]
        return np.array(drawn).reshape((rows, columns), order="F")

    def _normal(self) -> float:
        while True:
            first, second = (int(word) for word in self._words.randint(0, 2**32, 2, dtype=np.uint32))
            # 8 bits choose the strip, 53 others a number from −1 to 1.
            strip = second >> 24
            place = ((first >> 3) * 2.0**24 + (second & 0xFFFFFF)) * 2.0**-52 - 1
            x = place * float(_EDGES[strip + 1])
            if abs(x) <= _EDGES[strip]:
                return x
            if strip == _STRIPS - 1:
                return math.copysign(self._beyond(), place)
            height = float(self._words.random_sample())
            if _HEIGHTS[strip + 1] + height * (_HEIGHTS[strip] - _HEIGHTS[strip + 1]) < _bell(x):
                return x

    def _beyond(self) -> float:
        """Return a number from the tail (Marsaglia 1964)."""
        while True:
            x, y = (-math.log(float(self._words.random_sample())) for _ in range(2))
            x /= TAIL
            if 2 * y > x * x:
                return TAIL + x
