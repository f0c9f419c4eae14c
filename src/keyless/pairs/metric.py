"""The space in which the likeliest partner is the nearest one.

Where all rows of a side have the same precision, the log-likelihood ratio of a pair is

    offset_i − ½ |query_i − point_j|²

where one linear map turns the left latents into queries, and another turns the right latents into points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyless.arrays import FloatArray, SingleArray, batches
from keyless.model.shards import BATCH

__all__ = ["Metric"]


@dataclass(frozen=True, eq=False)
class Metric:
    """Linear maps from latent means to the space, and what offsets are made of.

    Attributes:
        to_queries: left means → queries.
        to_points: right means → points.
        form: offsets are `constant + meansᵀ · form · means` of the left.
        constant: see `form`.
    """

    to_queries: FloatArray
    to_points: FloatArray
    form: FloatArray
    constant: float

    @classmethod
    def between(cls, left: FloatArray, right: FloatArray) -> Metric:
        """Return the metric for two precisions about the same latents.

        With shifts h = (I+G)·mean and A = (I+G₁+G₂)⁻¹, A₁ = (I+G₁)⁻¹, A₂ = (I+G₂)⁻¹ the log-ratio is
        c + h_iᵀ A h_j − ½ h_iᵀ(A₁−A)h_i − ½ h_jᵀ(A₂−A)h_j; D = A₂ − A makes a square of what depends on j.
        """
        identity = np.eye(len(left))
        both = np.linalg.inv(identity + left + right)
        values, vectors = np.linalg.eigh(np.linalg.inv(identity + right) - both)
        # Directions that the left side knows nothing about are not used: along them, partners are as near as any row.
        used = values > 1e-12
        used[-1] = True
        vectors, root = vectors[:, used], np.sqrt(np.maximum(values[used], 0.0))
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 1e-6)
        own, other = identity + left, identity + right
        to_queries = own @ both @ (vectors * inverse)
        rest = own @ (np.linalg.inv(own) - both) @ own
        form = 0.5 * (to_queries @ to_queries.T - rest)
        logdets = [float(np.linalg.slogdet(matrix)[1]) for matrix in (own, other, identity + left + right)]
        return cls(to_queries, other @ (vectors * root), form, 0.5 * (logdets[0] + logdets[1] - logdets[2]))

    def queries(self, means: FloatArray) -> SingleArray:
        """Return the place of each left row in the space: where it looks for its partner."""
        return _mapped(means, self.to_queries)

    def points(self, means: FloatArray) -> SingleArray:
        """Return the place of each right row in the space."""
        return _mapped(means, self.to_points)

    def offsets(self, means: FloatArray) -> FloatArray:
        """Return the log-ratio that a left row would have with a partner at no distance."""
        found = np.empty(len(means))
        for part in batches(len(means), BATCH):
            some = means[part].astype(np.float64)
            found[part] = self.constant + np.einsum("na,ab,nb->n", some, self.form, some, optimize=True)
        return found


def _mapped(means: FloatArray, turn: FloatArray) -> SingleArray:
    found = np.empty((len(means), turn.shape[1]), dtype=np.float32)
    for part in batches(len(means), BATCH):
        found[part] = means[part].astype(np.float64) @ turn
    return found
