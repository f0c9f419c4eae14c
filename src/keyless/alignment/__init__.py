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

__all__ = [
    "Alignment",
    "Latents",
    "alignments",
    "anneal",
    "distinct",
    "expected_score",
    "kicked",
    "procrustes",
    "settle",
    "signature_starts",
    "whiten",
]
