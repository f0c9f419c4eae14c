"""From costs, couplings or gains to permutations.

A permutation is an integer array with `permutation[i] = j` when row i belongs to column j, and −1 when row i has no
partner. `assign` makes as many pairs as possible unless leaving a pair apart has a price of its own
(`unmatched_cost`); `best_matching` makes the pairs that pay, among millions of rows, and says how far from the best
they can be.
"""

from keyless.assignment.costs import assign, from_coupling, inverse
from keyless.assignment.gains import OneToOne, best_matching

__all__ = ["OneToOne", "assign", "best_matching", "from_coupling", "inverse"]
