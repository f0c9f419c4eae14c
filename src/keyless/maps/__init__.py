"""Maps between two tables: canonical pairs of their factors, first couplings, and growth by alternation."""

from keyless.maps.alternation import Alternation, Candidate
from keyless.maps.canonical import CanonicalModel, Coupled, CrossFit, cross_fit
from keyless.maps.signatures import first_couplings

__all__ = ["Alternation", "Candidate", "CanonicalModel", "Coupled", "CrossFit", "cross_fit", "first_couplings"]
