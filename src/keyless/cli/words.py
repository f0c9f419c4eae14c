"""A verdict in plain words, and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from keyless.cli.app import DONE, NOT_LINKED, write_out
from keyless.errors import printable

if TYPE_CHECKING:
    from keyless.links import Links

__all__ = ["exit_code", "expected_right", "print_json", "told_apart", "verdict_lines", "verdicts"]

_MEANING = {
    "linked": "the rows can be linked",
    "uncertain": "there may be a link, but not one to rely on",
    "unlinkable": "no clearer than chance; these tables cannot be linked by what they hold",
}


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
        lines += [
            f"{printable(links.reference)} and {printable(name)}: {evidence.verdict}, {_MEANING[evidence.verdict]}.",
            f"  The matches carry {evidence.score:.1f} nats a row; "
            + ("chance was not measured" if chance is None else f"chance reaches {chance:.1f}")
            + f", and telling {rows} rows apart takes {evidence.needed:.1f}.",
            f"  {told_apart(links, name)} of {rows} rows can be told apart.",
        ]
        if evidence.verdict != "unlinkable":
            # Probabilities are given that there is a link.
            matched = int((found.permutation >= 0).sum())
            lines[-1] += f" {matched} are matched, {expected_right(links, name):.0f} of them expected right."
    if not (links.status.converged or interrupted):
        lines.append(f"The search did not settle: {links.status}")
    return lines


def told_apart(links: Links, name: str) -> int:
    """Return how many rows of a table have their match as first choice, by models that never saw them.

    Args:
        links: the result.
        name: the table.
    """
    found = links.found[name]
    return round(float(found.evidence.sharpness * min(found.coupling.shape)))


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

    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    # JSON has its own escapes, for whatever a terminal would not just show.
    write_out("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text) + "\n")
