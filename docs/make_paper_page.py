"""Write docs/paper.md from the results in docs/paper/.

    keyless reproduce --all --out reproduced                  # hours; --quick for the small form
    python docs/make_paper_page.py --from reproduced          # take its results and figures, write the page
    python docs/make_paper_page.py                            # write the page from what is there

A test compares the page with what it would write.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from keyless.paper.experiments import NAMES, markdown

__all__ = ["FOLDER", "PAGE", "page"]

PAGE = Path(__file__).with_name("paper.md")
FOLDER = Path(__file__).with_name("paper")

START = """# The paper's experiments, again

Written by `docs/make_paper_page.py` from the results in `docs/paper/`; `keyless reproduce NAME` makes them.

The paper is Tang, Chang, Ye and Zha, *Low-rank matrix recovery with unknown correspondence*. Each section is about one
of its experiments, and says:

* what the paper reports;
* what to know about the published protocol: where it gives the method a part of the answer, and which printed
  statements do not hold;
* in a table, the results of the paper's method here, of keyless, and of an oracle that knows what is unknown.

The paper's method runs in two versions, as the authors released it and as the paper prints it. [solvers.md](solvers.md)
lists the differences, and says which results could be repeated. keyless gets the tables and nothing else; wrong rows
are counted afterwards. Its options have their default values, except in the ablation, which calls its parts.

The MovieLens section below is older than the present M³O, which now has exactly the released step size on ratings.
With it, `python benchmarks/bench_movielens_published.py` (one split, seed 0) gives the totals 0.9307, 0.9276, 0.9125,
0.8988 and 0.8759 after one to five turns; in each turn another table is the reference (table in
[benchmarks.md](benchmarks.md)). The paper prints 0.8948. Our fourth turn ends 0.0040 above it, our fifth 0.0189
below. The reason is this rule: the estimate of a table is replaced only if its test error falls. So every further
step can only lower the total, and the total depends on how often somebody chose by test error. The script takes all
five turns, with 30 ranks in each. We took all five turns with four of these ranks (8, 26, 71, 141) and at most 240
steps a turn: ours had fewer chances to choose, and still ends lower. We conclude that the printed runs stopped
earlier than the script does. Neither the text nor the script says after which turn, rank or step.

In the honest part of that section, rows are joined by evidence made for ratings: same user, same entry in a common
film. `keyless.link` with the same films as shared columns does not take its place, since it is worse. Drama and Romance
have 99 films in common. Of 943 users the evidence finds 90%, and `keyless.link` finds 88% where it is also given which
films were rated, 74% by the ratings alone (`python benchmarks/bench_movielens_shared.py --genres Romance`, seed 0; all
five tables at once were not measured). A likely reason: `keyless.link` makes at most 40 factors of shared columns,
unless `rank=` says otherwise, after it has filled their gaps. Here 99 films are shared, and most entries are missing.
The evidence asks film by film whether the entries are equal.

The ablation below is older than the present search for a map. In its row `portfolio`, the search without a portfolio
had one factor space; today it has one round of first maps.
"""


def page() -> str:
    """Return the page."""
    stored = {name: _stored(name) for name in NAMES}
    missing = [f"`{name}`" for name, result in stored.items() if result is None]
    quick = [f"`{name}`" for name, result in stored.items() if result is not None and result["quick"]]
    lines = [START]
    if quick:
        lines.append(f"Run in the quick form so far, with fewer starts, data sets or steps: {', '.join(quick)}.\n")
    if missing:
        lines.append(f"Not run yet: {', '.join(missing)}.\n")
    lines += [_section(name, result) for name, result in stored.items() if result is not None]
    return "\n".join(lines)


def _stored(name: str) -> dict[str, Any] | None:
    place = FOLDER / f"{name}.json"
    if not place.exists():
        return None
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return found


def _section(name: str, result: dict[str, Any]) -> str:
    shown = {column for row in result["table"] for column in row}
    columns = [column for column in result["columns"] if column in shown or column in ("paper", "oracle")]
    options = (" --quick" if result["quick"] else "") + (f" --seeds {result['seeds']}" if result["seeds"] else "")
    lines = [f"## {result['title']}", "", f"    keyless reproduce {name}{options}", ""]
    if result["paper"]:
        lines += [f"**The paper reports:** {result['paper']}", ""]
    if result["leaks"]:
        lines += [f"**What to know about the published protocol:** {result['leaks']}", ""]
    lines += [markdown(result["table"], columns), *(f"* {note}" for note in result["notes"]), ""]
    lines += [f"![{result['title']}](paper/{name}.svg)", "", _made(name, result), ""]
    return "\n".join(lines)


def _made(name: str, result: dict[str, Any]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    settings = ", ".join(f"{key}: {value}" for key, value in result["settings"].items())
    content = hashlib.sha256((FOLDER / f"{name}.json").read_bytes()).hexdigest()
    return (
        f"Settings: {settings}. keyless {result['keyless']}, commit {result.get('commit') or 'not known'}; {versions}; "
        f"{result['seconds']['all cells']:.0f} processor seconds. All numbers: [paper/{name}.json](paper/{name}.json), "
        f"SHA-256 {content[:16]}."
    )


def main() -> None:
    """Take results, if told to, and write the page."""
    parser = argparse.ArgumentParser(description="Write docs/paper.md from the results in docs/paper/.")
    parser.add_argument("--from", dest="source", type=Path, help="folder that `keyless reproduce` wrote")
    source = parser.parse_args().source
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES if source is not None else ():
        if (source / f"{name}.json").exists():
            for ending in ("json", "svg"):
                shutil.copyfile(source / f"{name}.{ending}", FOLDER / f"{name}.{ending}")
    PAGE.write_text(page(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
