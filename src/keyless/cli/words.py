"""A verdict in plain words, and as JSON."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from keyless.cli.app import DONE, NOT_LINKED, one_line, write_out

if TYPE_CHECKING:
    from keyless.links import Links

__all__ = ["exit_code", "expected_right", "print_json", "told_apart", "verdict_lines", "verdicts"]

_MEANING = {
    "linked": "the rows can be linked",
    "uncertain": "there may be a link, but not one to rely on",
    "unlinkable": "no clearer than chance; these tables cannot be linked by what they hold",
}

_MIRRORED = 0.85
"""Share of its information from which a mirror image is named as the reason of the doubt; as in the verdict."""

_AMBIGUOUS = "how the tables belong together is known, but many rows are too alike to be told apart"
"""What `uncertain` means where the map is believed."""


def exit_code(links: Links) -> int:
    """Return 0 where all tables are linked, else 3.

    Args:
        links: the result.
    """
    return DONE if links.evidence.verdict == "linked" else NOT_LINKED


def verdict_lines(links: Links, *, interrupted: bool = False) -> list[str]:
    """Return the verdict on each table, one paragraph each.

    Args:
        links: the result.
        interrupted: whether the user ended the search, and needs no word on why it did not settle.
    """
    lines = []
    for name, found in links.found.items():
        evidence, rows = found.evidence, min(found.coupling.shape)
        chance = max(evidence.null_scores, default=None)
        meaning = _AMBIGUOUS if evidence.doubt == "rows" else _MEANING[evidence.verdict]
        lines += [
            f"{one_line(links.reference)} and {one_line(name)}: {evidence.verdict}, {meaning}.",
            f"  The matches carry {evidence.score:.1f} nats a row; "
            + ("chance was not measured" if chance is None else f"chance reaches {chance:.1f}")
            + f", and telling {rows} rows apart takes {evidence.needed:.1f}.",
        ]
        if not evidence.believed:
            lines += [f"  {line}" for line in _next_steps(links, name)]
        else:
            matched = int((found.permutation >= 0).sum())
            lines.append(
                f"  {matched} rows are matched, {expected_right(links, name):.0f} of them expected right; "
                f"{told_apart(links, name)} of them can be told from all others."
            )
    if not (links.status.converged or interrupted):
        lines.append(f"The search did not settle: {links.status}")
    return lines


def _next_steps(links: Links, name: str) -> list[str]:
    """Return what would help where it is in doubt whether there is a link at all."""
    found = links.found[name]
    evidence, candidates = found.evidence, found.coupling.shape[1]
    left = max(candidates * math.exp(-max(evidence.score - max(evidence.null_scores, default=0.0), 0.0)), 1.0)
    told = f"Beyond chance, the numbers leave about {left:,.0f} of {candidates:,} candidates for a row"
    if evidence.mirrored > _MIRRORED:
        told = "A mirror image of this answer fits nearly as well"
    return [
        f"{told}. What would help:",
        "- a few pairs that you know for sure: --known-pairs pairs.csv (about ten are enough to begin with);",
        "- a column that partners agree in, such as a site or a day: --within NAME;",
        "- a column that both tables measure under two names: --shared NAME=NAME;",
        "- more columns about the same things in both tables, or more rows.",
    ]


def told_apart(links: Links, name: str) -> int:
    """Return how many matched rows have their match as first choice, by models that never saw them.

    Args:
        links: the result.
        name: the table.
    """
    found = links.found[name]
    return round(float(found.evidence.sharpness) * int((found.permutation >= 0).sum()))


def expected_right(links: Links, name: str) -> float:
    """Return how many matches of a table are expected to be right, by their own probabilities.

    Args:
        links: the result.
        name: the table.
    """
    found = links.found[name]
    return float(found.probability[found.permutation >= 0].sum())


def verdicts(links: Links) -> dict[str, Any]:
    """Return the verdict, overall and per table, for machines.

    Args:
        links: the result.
    """
    return {
        "verdict": links.evidence.verdict,
        "reference": links.reference,
        "status": {"reason": links.status.reason, "advice": links.status.advice},
        "tables": {
            name: vars(found.evidence)
            | {
                "rows": list(found.coupling.shape),
                "matched": int((found.permutation >= 0).sum()),
                "told_apart": told_apart(links, name),
                "expected_right": expected_right(links, name),
            }
            for name, found in links.found.items()
        },
    }


def print_json(value: Any) -> None:
    """Print one JSON document on stdout.

    Args:
        value: what to print.
    """
    from keyless.runs import plain

    write_out(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
