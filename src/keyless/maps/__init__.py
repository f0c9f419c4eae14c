"""Maps between two tables: canonical pairs of their factors, and how they grow from few factors to all."""

from keyless.maps.canonical import CanonicalModel, CrossFit, cross_fit
from keyless.maps.growth import Growth

__all__ = ["CanonicalModel", "CrossFit", "Growth", "cross_fit"]
