"""What is saved: results in one file, finished stages of a run, and the checks that both pass when they are read."""

from keyless.saved import archive, checkpoints, checks

__all__ = ["archive", "checkpoints", "checks"]
