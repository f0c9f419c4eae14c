"""What the rows of a table say about their latents, and the latents with unit spread in every direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyless.arrays import FloatArray, IntArray
from keyless.model.factor_model import Information, posterior

__all__ = ["Latents", "whiten", "whitening"]


@dataclass(frozen=True, eq=False)
class Latents:
    """A table's latents.

    Attributes:
        info: what each row says about them.
        means: their posterior means.
        white: the means with unit spread in every direction.
    """

    info: Information
    means: FloatArray
    white: FloatArray

    @classmethod
    def of(cls, info: Information) -> Latents:
        """Return the latents that the information is about."""
        means = posterior(info)[0]
        return cls(info, means, whiten(means))

    def __getitem__(self, rows: IntArray) -> Latents:
        return Latents(self.info[rows], self.means[rows], self.white[rows])

    def __len__(self) -> int:
        return len(self.white)

    def farthest(self, count: int) -> IntArray:
        """Return the `count` rows farthest out, or all if there are fewer: rows far out in one table are so in all."""
        norm = (self.white**2).sum(axis=1)
        if len(norm) <= count:
            return np.arange(len(norm))
        return np.sort(np.argsort(-norm, kind="stable")[:count])


def whiten(factors: FloatArray) -> FloatArray:
    """Return the rows times the inverse square root of their second moment; empty directions stay empty."""
    white: FloatArray = factors @ whitening(factors.T @ factors / len(factors))
    return white


def whitening(second: FloatArray) -> FloatArray:
    """Return the inverse square root of a second moment, 0 in empty directions."""
    values, vectors = np.linalg.eigh(second)
    used = values > 1e-10 * max(float(values.max(initial=0.0)), np.finfo(float).tiny)
    scale = np.where(used, 1.0 / np.sqrt(np.where(used, values, 1.0)), 0.0)
    return np.asarray((vectors * scale) @ vectors.T, dtype=np.float64)
