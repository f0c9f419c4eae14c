"""Tables of many rows, linked by the few that are easiest to tell apart."""

from keyless.landmarks.linking import LargeLink, LargeSearch
from keyless.landmarks.scores import LargeTable

__all__ = ["LargeLink", "LargeSearch", "LargeTable"]
