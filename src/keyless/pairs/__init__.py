"""Pairs of rows: which are possible, which are near, and how likely each is."""

from keyless.pairs.constraints import Constraints
from keyless.pairs.limits import Limits
from keyless.pairs.posterior import Posterior, posterior

__all__ = ["Constraints", "Limits", "Posterior", "posterior"]
