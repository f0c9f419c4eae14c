"""First correspondences between tables, one start each."""

from keyless.alignment.latents import (
    Alignment,
    Latents,
    alignments,
    anneal,
    distinct,
    expected_score,
    kicked,
    procrustes,
    settle,
    signature_starts,
    whiten,
)
from keyless.alignment.starts import annealed_procrustes, first_couplings, signature_cost, signatures

__all__ = [
    "Alignment",
    "Latents",
    "alignments",
    "anneal",
    "annealed_procrustes",
    "distinct",
    "expected_score",
    "first_couplings",
    "kicked",
    "procrustes",
    "settle",
    "signature_cost",
    "signature_starts",
    "signatures",
    "whiten",
]
