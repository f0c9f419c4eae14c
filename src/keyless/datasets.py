"""Problems whose answer is known.

`make_shuffled_tables` draws the paper's synthetic data: one noisy low-rank matrix, cut into tables, every table but the
first with its rows shuffled, and entries removed at random. `load_shuffled_tumours` splits a real table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from keyless.arrays import RandomState, check_count, check_nonnegative, check_positive, random_generator
from keyless.errors import InputError

__all__ = ["ShuffledTables", "load_shuffled_tumours", "make_shuffled_tables"]

Latent: TypeAlias = Literal["normal", "laplace", "exponential"]
Missing: TypeAlias = Literal["overall", "per_table"]


@dataclass(frozen=True, eq=False)
class ShuffledTables:
    """Shuffled tables, the answer, and what an oracle would know. Unpacks as `tables, truth`.

    Attributes:
        tables: name → float64 array, NaN where an entry is missing. The first is the reference.
        truth: name → int array for every table but the reference: `truth[name][i]` is the row of that table that
            belongs to reference row `i`, -1 where there is none. So `tables[name][truth[name]]` is in reference order
            where every row has a partner.
        complete: name → the same table before entries were removed: noisy, without NaN.
        clean: the noise-free low-rank matrix, `factors @ loadings`: reference rows, columns of all tables side by side.
        factors: the latent factors of the reference rows, one row each.
        loadings: what each column takes from the factors, one column each; carries the factor 2/max(n, m) of `scale`.
        noise: standard deviation of the noise in the tables, `scale` included.
    """

    tables: dict[str, NDArray[np.float64]]
    truth: dict[str, NDArray[np.intp]]
    complete: dict[str, NDArray[np.float64]]
    clean: NDArray[np.float64]
    factors: NDArray[np.float64]
    loadings: NDArray[np.float64]
    noise: float

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name!r}: {' × '.join(map(str, table.shape))}" for name, table in self.tables.items())
        return f"ShuffledTables({{{shapes}}})"

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        yield self.tables
        yield self.truth


def make_shuffled_tables(
    n_rows: int | Sequence[int] = 100,
    column_counts: Sequence[int] = (60, 40),
    *,
    rank: int = 5,
    noise: float = 0.1,
    observed: float = 1.0,
    missing: Missing = "overall",
    latent: Latent = "normal",
    overlap: float = 1.0,
    scale: bool = False,
    names: Sequence[str] | None = None,
    random_state: RandomState = None,
) -> ShuffledTables:
    """Draw M = R·E + η·W, cut it into tables, shuffle the rows of all but the first, and remove entries.

    R (rows × rank) are the latent factors of the entities, E (rank × columns) the loadings of the columns, W noise. All
    entries are independent with mean 0 and variance 1; E and W are normal, the law of R is `latent`. Each table but the
    first is shuffled by its own uniformly random permutation. Entries are removed uniformly at random, over all tables
    together or from each table alone, so a row can lose all of its entries when few are observed.

    The paper prints "randomly and uniformly" over all entries, which is `missing="overall"`; its released script
    removes the same share from every table, `missing="per_table"`. `scale=True` with `missing="per_table"` has the law
    of the released generator.

    Where the row counts differ or `overlap` is below 1, round(`overlap` · fewest rows) entities are in every table, at
    random rows, and all other rows are strangers found in no other table.

    With one seed, `noise` only scales the noise, and a lower `observed` only removes further entries.

    Args:
        n_rows: rows of every table, or one count per table.
        column_counts: columns of the reference and of each other table; at least two.
        rank: number of latent factors.
        noise: η, the standard deviation of the noise.
        observed: fraction of all entries that stay, above 0 and at most 1; the rest are NaN.
        missing: where exactly this fraction of entries stays, rounded to a whole number of entries: `"overall"`, in all
            tables together, or `"per_table"`, in each table.
        latent: law of the entities' latent factors.
        overlap: fraction of the rows (of the shortest table) whose entity is in every table, from 0 to 1.
        scale: multiply everything by 2/max(reference rows, all columns), as the paper's released experiments do.
        names: one name per table; by default `"reference"`, `"table1"`, `"table2"`, ….
        random_state: None, a seed or a numpy Generator.

    Example:
        >>> tables, truth = make_shuffled_tables(4, (3, 2), rank=1, noise=0.0, random_state=0)
        >>> {name: table.shape for name, table in tables.items()}
        {'reference': (4, 3), 'table1': (4, 2)}
        >>> aligned = tables["table1"][truth["table1"]]
        >>> int(np.linalg.matrix_rank(np.hstack([tables["reference"], aligned])))
        1
    """
    columns = _check_column_counts(column_counts)
    rows = _check_row_counts(n_rows, len(columns))
    names = _check_names(names, len(columns))
    rank = check_count(rank, name="rank")
    noise = check_nonnegative(noise, name="noise")
    observed = _check_observed(observed)
    overlap = check_nonnegative(overlap, name="overlap")
    if overlap > 1:
        raise InputError(f"overlap: must be a fraction from 0 to 1; found {overlap!r}. Write 80 % as 0.8.")
    total = sum(r * c for r, c in zip(rows, columns, strict=True))
    if missing not in get_args(Missing):
        raise InputError(f"missing: must be 'overall' or 'per_table'; found {missing!r}.")
    if round(observed * total) == 0:
        raise InputError(f"observed: {observed!r} of {total} entries leaves none. Raise it or make the tables larger.")
    # A child stream: a solver given the same seed must not draw its start from the numbers that made the tables.
    rng = random_generator(random_state).spawn(1)[0]

    n_common = round(overlap * min(rows))
    entities = _draw_entities(rng, rows, n_common)
    factors = _draw_latent(rng, (1 + max(int(rows_of.max()) for rows_of in entities), rank), latent)
    loadings = rng.standard_normal((rank, sum(columns)))
    if scale:
        loadings *= 2 / max(rows[0], sum(columns))
        noise *= 2 / max(rows[0], sum(columns))

    complete: dict[str, NDArray[np.float64]] = {}
    edges = np.cumsum([0, *columns])
    for index, name in enumerate(names):
        low_rank = factors[entities[index]] @ loadings[:, edges[index] : edges[index + 1]]
        complete[name] = low_rank + noise * rng.standard_normal(low_rank.shape)

    sizes = [table.size for table in complete.values()]
    removed = _removed(rng, sizes, observed) if missing == "per_table" else _removed(rng, [total], observed)
    pieces = np.split(removed, np.cumsum(sizes)[:-1])
    tables = {
        name: np.where(piece.reshape(table.shape), np.nan, table)
        for (name, table), piece in zip(complete.items(), pieces, strict=True)
    }

    reference_factors = factors[entities[0]]
    return ShuffledTables(
        tables=tables,
        truth={name: _partners(entities[0], entities[index]) for index, name in enumerate(names) if index > 0},
        complete=complete,
        clean=reference_factors @ loadings,
        factors=reference_factors,
        loadings=loadings,
        noise=noise,
    )


def _draw_entities(rng: np.random.Generator, rows: Sequence[int], n_common: int) -> list[NDArray[np.intp]]:
    """Say which entity each row of each table is: entities below `n_common` are in every table, all others in one.

    Where every entity is in every table the reference keeps its order, as in the paper.
    """
    entities = []
    next_stranger = n_common
    for index, n_rows in enumerate(rows):
        strangers = np.arange(next_stranger, next_stranger + n_rows - n_common)
        next_stranger += n_rows - n_common
        members = np.concatenate([np.arange(n_common), strangers])
        entities.append(members if index == 0 and len(strangers) == 0 else rng.permutation(members))
    return entities


def _draw_latent(rng: np.random.Generator, shape: tuple[int, int], latent: Latent) -> NDArray[np.float64]:
    match latent:
        case "normal":
            return rng.standard_normal(shape)
        case "laplace":
            return rng.laplace(scale=1 / np.sqrt(2), size=shape)
        case "exponential":
            return rng.standard_exponential(shape) - 1
    raise InputError(f"latent: must be 'normal', 'laplace' or 'exponential'; found {latent!r}.")


def _removed(rng: np.random.Generator, sizes: Sequence[int], observed: float) -> NDArray[np.bool_]:
    """Return True for the entries to remove, the same share of each group of entries."""
    groups = []
    for size in sizes:
        group = np.zeros(size, dtype=bool)
        group[rng.permutation(size)[round(observed * size) :]] = True
        groups.append(group)
    return np.concatenate(groups)


def _partners(reference: NDArray[np.intp], table: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return for each entity of `reference` its row in `table`, -1 where it is not there."""
    row_of = np.full(max(reference.max(), table.max()) + 1, -1, dtype=np.intp)
    row_of[table] = np.arange(len(table))
    return row_of[reference]


def _check_column_counts(column_counts: Sequence[int]) -> tuple[int, ...]:
    counts = _as_tuple(column_counts, "column_counts", "one count per table")
    if len(counts) < 2:
        raise InputError(
            f"column_counts: must name at least two tables, the reference first; found {counts!r}. Add a count."
        )
    return tuple(check_count(count, name=f"column_counts[{index}]") for index, count in enumerate(counts))


def _check_row_counts(n_rows: int | Sequence[int], n_tables: int) -> tuple[int, ...]:
    if not isinstance(n_rows, (Sequence, np.ndarray)) or isinstance(n_rows, str):
        return (check_count(n_rows, name="n_rows"),) * n_tables
    if len(n_rows) != n_tables:
        raise InputError(
            f"n_rows: must be one number, or one per table ({n_tables}); found {len(n_rows)} numbers. "
            "Give as many as column_counts."
        )
    return tuple(check_count(count, name=f"n_rows[{index}]") for index, count in enumerate(n_rows))


def _check_observed(observed: Any) -> float:
    share = float(check_positive(observed, name="observed"))
    if share > 1:
        raise InputError(f"observed: must be a fraction above 0 and at most 1; found {share!r}. Write 80 % as 0.8.")
    return share


def _check_names(names: Sequence[str] | None, n_tables: int) -> tuple[str, ...]:
    if names is None:
        return ("reference", *(f"table{index}" for index in range(1, n_tables)))
    found = _as_tuple(names, "names", "one name per table")
    if len(found) != n_tables or len(set(found)) != n_tables or not all(isinstance(name, str) for name in found):
        raise InputError(f"names: must be {n_tables} different strings, one per table; found {found!r}.")
    return found


def _as_tuple(values: Any, name: str, what: str) -> tuple[Any, ...]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise InputError(f"{name}: must be a sequence, {what}; found {values!r}. Wrap it in a tuple.")
    return tuple(values)


def load_shuffled_tumours(
    *, observed: float = 1.0, random_state: RandomState = None
) -> tuple[dict[str, pd.DataFrame], dict[str, NDArray[np.intp]]]:
    """Return scikit-learn's breast-cancer measurements as two tables without a common column, rows shuffled.

    Args:
        observed: fraction of all entries that stay, above 0 and at most 1; the rest are NaN.
        random_state: None, a seed or a numpy Generator for the row order and for which entries stay.

    Returns:
        Tables `"means"` (569 × 20, means and standard errors of ten features) and `"worst"` (569 × 10, their worst
        values), and the truth as in `ShuffledTables`.

    Example:
        >>> tables, truth = load_shuffled_tumours(random_state=0)
        >>> tables["worst"].shape, truth["worst"].shape
        ((569, 10), (569,))
    """
    data = load_breast_cancer(as_frame=True).data
    observed = _check_observed(observed)
    rng = random_generator(random_state)
    order = rng.permutation(len(data))
    if observed < 1:
        missing = np.zeros(data.size, dtype=bool)
        missing[rng.permutation(data.size)[round(observed * data.size) :]] = True
        data = data.mask(missing.reshape(data.shape))
    worst = data.iloc[order, 20:].reset_index(drop=True)
    return {"means": data.iloc[:, :20], "worst": worst}, {"worst": np.argsort(order)}
