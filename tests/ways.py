"""`keyless.link` by one way of linking alone, so that each of them can be held to the same laws."""

from functools import partial
from unittest import mock

import numpy as np

import keyless
from keyless import linker
from keyless.linking import Linking
from keyless.pairs.limits import Limits


def link_by(way, *tables, **options):
    """Link by `"pairs"` or `"columns"`; `"auto"` is what `keyless.link` does by itself."""
    with mock.patch.object(linker, "Linking", partial(Linking, way=way)):
        return keyless.link(*tables, **options)


def allowed(constraints, first, second):
    """Return which rows of two tables may be the same entity, all pairs in one table; None where all may."""
    sides = [([number], [np.arange(constraints.sizes[number])]) for number in (first, second)]
    return Limits.between(constraints, *sides).mask()
