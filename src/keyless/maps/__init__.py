"""Maps between two tables: canonical pairs of their factors, first couplings, and growth by alternation."""

from keyless.maps.alternation import Alternation
from keyless.maps.canonical import CanonicalModel, CrossFit, cross_fit
from keyless.maps.signatures import first_couplings

__all__ = ["Alternation", "CanonicalModel", "CrossFit", "cross_fit", "first_couplings"]
