"""Pairs of rows: which may be matched, how likely they are, and which are."""
