"""Fill the missing entries of one table."""

from keyless.completion.estimator import SoftImpute

__all__ = ["SoftImpute"]
