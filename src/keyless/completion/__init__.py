"""Fill the missing entries of one table."""

from keyless.completion.estimator import Completion, SoftImpute, soft_impute

__all__ = ["Completion", "SoftImpute", "soft_impute"]
