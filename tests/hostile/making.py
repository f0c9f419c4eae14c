"""A result made by hand, in no time: what is done with a result does not depend on how it was found."""

import numpy as np

from keyless.errors import CONVERGED
from keyless.evidence import Evidence
from keyless.links import Links, TableLink
from keyless.model.factor_model import FactorModel
from keyless.model.joint_model import JointModel
from keyless.model.scales import scale_table
from keyless.tables import read_tables


def drawn_factors(read, rng, rank=2):
    """A model of all columns of some tables side by side, drawn at random."""
    width = sum(table.block.shape[1] for table in read)
    return FactorModel(
        loadings=rng.normal(size=(width, rank)),
        offsets=rng.normal(size=width) / 5,
        noise=rng.uniform(0.1, 0.4, width),
        spread=np.zeros((width, rank + 1, rank + 1)),
        shrinkage=np.ones(rank + 1),
    )


def links_of(tables, *, reading=None, seed=0):
    """Links of tables in an order that is drawn; the last reference rows have no partner where a table has fewer."""
    rng = np.random.default_rng(seed)
    read, _ = read_tables(tables, reading=reading)
    scales = tuple(scale_table(table.block.values, table.block.mask, kind="identity")[1] for table in read)
    factors = drawn_factors(read, rng)
    places, found = read[0].block.shape[0], {}
    for table in read[1:]:
        rows = table.block.shape[0]
        permutation = np.full(places, -1)
        matched = min(rows, places)
        permutation[:matched] = rng.permutation(rows)[:matched]
        coupling = rng.random((places, rows))
        coupling /= 1.1 * coupling.sum(axis=1, keepdims=True)
        evidence = Evidence("linked", 5.5, (1.0, 1.25), 3.0, 1.0, 3)
        found[table.name] = TableLink(
            permutation,
            rng.random(places),
            np.arange(places) / 7,
            coupling,
            evidence,
            alone=1 - coupling.sum(axis=1),
        )
    starts = ({"route": "pairs", "pair": (0, 1), "start": "signatures", "score": 2.5},)
    history = ({"stage": "search", "step": 1, "total": 1, "objective": 2.5, "seconds": 0.25},)
    return Links(read, found, JointModel(factors, scales), CONVERGED, {"route": "pairs"}, starts, 7, history)
