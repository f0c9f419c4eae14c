"""Does `keyless.link` find users by films that platforms share, as well as the evidence made for such ratings?

    python benchmarks/bench_movielens_shared.py --out benchmarks/results/movielens_shared.json

KEYLESS_DATA_HOME names a folder that holds `ml-100k/`. Tables, split and shuffled orders are those of the honest part
of `keyless reproduce movielens`. There rows are joined by `link_by_shared_films`: same user, same entry in a common
film. Here the reference and one other table are given to both. `keyless.link` gets a column of ratings for every film,
and a column that says which users rated it; columns of the same name are shared columns. A partner is sure if its odds
are twenty to one or more.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import keyless
from common import one_thread, report
from keyless.paper.downloads import data_home
from keyless.paper.experiments.platforms import Platforms, link_by_shared_films, shuffled_platforms
from keyless.paper.experiments.ratings import read_ratings, split_pairs

SURE = 20 / 21
"""Probability of a match with odds of twenty to one."""

REFERENCE, GENRES = "Drama", ("Romance", "Thriller", "Action", "Comedy")

Order = NDArray[np.intp]


def pair_of(platforms: Platforms, genre: str) -> Platforms:
    """Return the reference and one other table."""
    names = (REFERENCE, genre)
    parts = ({name: part[name] for name in names} for part in (platforms.values, platforms.masks, platforms.films))
    return Platforms(*parts)


def frames(pair: Platforms, *, rated: bool) -> dict[str, pd.DataFrame]:
    """Return the tables with films as names of columns, and with columns of which films were rated if `rated`."""
    found = {}
    for genre, values in pair.values.items():
        names = [f"film {film}" for film in pair.films[genre]]
        table = pd.DataFrame(np.where(pair.masks[genre], values, np.nan), columns=names)
        which = pd.DataFrame(pair.masks[genre].astype(float), columns=[f"{name} rated" for name in names])
        found[genre] = pd.concat([table, which], axis=1) if rated else table
    return found


def line(genre: str, method: str, found: tuple[Order, Order], truth: Order, began: float) -> dict[str, Any]:
    """Return how many partners are right, of all rows and of those whose partner is sure."""
    best, sure = found
    joined = int((sure >= 0).sum())
    return {
        "table": genre,
        "method": method,
        "right": float((best == truth).mean()),
        "sure": joined / len(truth),
        "sure, right": int((sure == truth).sum()) / joined if joined else None,
        "seconds": time.process_time() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of split and orders")
    parser.add_argument("--genres", nargs="+", default=list(GENRES), help="tables to link with the reference")
    parser.add_argument("--effort", choices=("quick", "normal", "thorough"), default="quick", help="of keyless.link")
    arguments, _ = parser.parse_known_args()
    one_thread()
    ratings = read_ratings(data_home() / "ml-100k")
    train, _ = split_pairs(ratings.values > 0, share=0.2, random_state=arguments.seed)
    platforms, users = shuffled_platforms(ratings, train, random_state=1000 + arguments.seed, reference=REFERENCE)
    rows: list[dict[str, Any]] = []
    for genre in arguments.genres:
        pair, truth = pair_of(platforms, genre), np.argsort(users[genre])
        shared = len(np.intersect1d(pair.films[REFERENCE], pair.films[genre]))
        began = time.process_time()
        linked = link_by_shared_films(pair)
        found = linked.permutations[genre], linked.sure()[genre]
        rows.append(line(genre, "evidence made for ratings", found, truth, began) | {"shared films": shared})
        for method, rated in (("keyless.link, ratings and which were given", True), ("keyless.link, ratings", False)):
            print(rows[-1], flush=True)
            began = time.process_time()
            links = keyless.link(
                frames(pair, rated=rated), partners="all", effort=arguments.effort, random_state=arguments.seed
            )
            best = links.permutations[genre]
            found = best, np.where(links.found[genre].probability >= SURE, best, -1)
            rows.append(line(genre, method, found, truth, began) | {"verdict": links.evidence.verdict})
    report(
        "Does keyless.link find users by films that platforms share, as well as the evidence made for such ratings?",
        rows,
        settings={"users": len(train), "reference": REFERENCE, "seed": arguments.seed, "effort": arguments.effort},
    )


if __name__ == "__main__":
    main()
