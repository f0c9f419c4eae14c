"""Review: few well-chosen rows asked about one by one, the answers kept in the run's folder, and what they show.

Two kinds of rows are asked about. Chosen ones help a next link most, and their answers are given to it. Others are
drawn at random, and their answers are held out of every link: by them alone it is told which share of the matches is
right, since rows that were chosen for being in doubt would say too little of it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from keyless.answers.questions import known_rows
from keyless.answers.scoring import Rate, rate
from keyless.errors import InputError
from keyless.links import Links
from keyless.places import replacing
from keyless.runs import spreadsheet_safe
from keyless.runs.folder import ANSWERS

__all__ = ["PAIRS", "Answer", "Asked", "Verdict", "add", "known_files", "next_round", "read", "share", "write"]

PAIRS = ANSWERS
"""File of a run's folder with the answers. `keyless link --known-pairs` reads it: lines without row_id say nothing."""

Verdict = Literal["same", "not the same", "cannot tell"]

CHOSEN, DRAWN = 9, 3
"""Questions of one round: rows that help most, and rows drawn at random. A round takes a person some minutes, and about
ten known pairs are enough to begin with; every fourth row is drawn, so that most answers help the next link."""

Triple: TypeAlias = tuple[str, str, str]
"""Id of a reference row, name of a table, id of one of its rows."""

_HEAD = ("reference_id", "table", "row_id", "answer", "not_row_id", "held_out")


@dataclass(frozen=True)
class Answer:
    """What a person said of a reference row.

    Attributes:
        reference_id: the row.
        table: the table its partner is sought in.
        row_id: the partner, where it is known; else empty.
        answer: `same` (row_id is the partner), `not the same` or `cannot tell`.
        not_row_id: the row that was shown and is not the partner; else empty.
        held_out: whether the answer is kept from links, to check them.
    """

    reference_id: str
    table: str
    row_id: str
    answer: Verdict
    not_row_id: str = ""
    held_out: bool = False


@dataclass(frozen=True)
class Asked:
    """A question of a round.

    Attributes:
        table: name of the table.
        row: number of the reference row.
        shown: number of the row it is compared with, −1 for none.
        why: the reason for asking, in a sentence.
        expected: what an answer is expected to change, in a sentence.
        held_out: whether the row was drawn at random, and its answer is held out.
    """

    table: str
    row: int
    shown: int
    why: str
    expected: str
    held_out: bool


def read(folder: Path, links: Links) -> list[Answer]:
    """Return the answers of a run, the oldest first.

    Lines of other forms, such as a part of an earlier matches.csv, count as `same` where they name a partner.

    Args:
        folder: the run's.
        links: the result, whose ids are meant.
    """
    path = folder / PAIRS
    if not path.is_file():
        return []
    try:
        lines = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path.name}: must be answers as the page writes them; {error}.") from error
    known = {table.name: {str(label) for label in table.row_ids} for table in links.tables}
    only = links.tables[1].name if len(links.tables) == 2 else ""
    found = []
    for number, line in enumerate(lines, start=2):
        table = _own(line.get("table") or only, known)
        if table not in links.found:
            raise InputError(f"{path.name}, line {number}: must name a table of the run; found {table!r}.")
        reference = _own(line.get("reference_id") or "", known[links.reference])
        partner, other = (_own(line.get(name) or "", known[table]) for name in ("row_id", "not_row_id"))
        for label, where in ((reference, links.reference), (partner, table), (other, table)):
            if label not in known[where] and (label or where == links.reference):
                raise InputError(
                    f"{path.name}, line {number}: must name rows that exist; {where} has no row {label!r}."
                )
        said: Verdict = "same" if partner else "not the same" if other else "cannot tell"
        found.append(Answer(reference, table, partner, said, other, line.get("held_out") == "yes"))
    return found


def _own(label: str, known: Iterable[str]) -> str:
    """Return an id without the `'` that keeps a spreadsheet from running it."""
    return label if label in known else label.removeprefix("'")


def write(folder: Path, answers: Sequence[Answer]) -> None:
    """Write the answers of a run, whole or not at all.

    Args:
        folder: the run's.
        answers: all of them.
    """
    rows = [
        (one.reference_id, one.table, one.row_id, one.answer, one.not_row_id, "yes" if one.held_out else "no")
        for one in answers
    ]
    _write(folder / PAIRS, [_HEAD, *([spreadsheet_safe(cell) for cell in row] for row in rows)])


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with replacing(path) as fresh, fresh.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def add(answers: Sequence[Answer], asked: Asked, links: Links, *, said: Verdict, partner: int | None) -> list[Answer]:
    """Return the answers with one more.

    Args:
        answers: those so far.
        asked: the question.
        links: the result.
        said: the answer.
        partner: number of the row that is the partner, where it is another than the one shown.
    """
    labels = links.tables[links._number(asked.table)].row_ids
    reference = str(links.tables[0].row_ids[asked.row])
    if any((one.reference_id, one.table) == (reference, asked.table) for one in answers):
        raise InputError(f"row {reference}: was answered already, perhaps in another window.")
    shown = "" if asked.shown < 0 else str(labels[asked.shown])
    if partner is not None:
        found = str(labels[partner])
        fresh = Answer(reference, asked.table, found, "same", shown if shown != found else "", asked.held_out)
    elif said == "same":
        fresh = Answer(reference, asked.table, shown, "same", "", asked.held_out)
    else:
        denied = shown if said == "not the same" else ""
        fresh = Answer(reference, asked.table, "", said, denied, asked.held_out)
    if fresh.row_id and not _shares(links) and any((o.row_id, o.table) == (fresh.row_id, fresh.table) for o in answers):
        raise InputError(
            f"row {fresh.row_id} of {fresh.table}: was already said to be the partner of another row. "
            "Undo that answer first."
        )
    return [*answers, fresh]


def known_files(
    folder: Path, links: Links, answers: Sequence[Answer], *, carried: Sequence[Answer]
) -> tuple[Path | None, Path | None]:
    """Write what is known of pairs as files for `--known-pairs` and `--forbid`; None where nothing is.

    That is what the link was told by files, and the answers that are not held out. A later answer about a row replaces
    what was known of it.

    Args:
        folder: where they go.
        links: the result that the answers are about.
        answers: all of them.
        carried: the answers that the link was told. Of these, only those that are still among `answers` count.
    """
    same, wrong = _pairs(answers)
    same_before, wrong_before = map(set, _pairs(carried))
    known = [pair for pair in _told_pairs(links, "known") if pair not in same_before]
    never = [pair for pair in _told_pairs(links, "forbidden") if pair not in wrong_before]
    answered, taken = {pair[:2] for pair in same}, set() if _shares(links) else {pair[1:] for pair in same}
    same += [pair for pair in known if pair[:2] not in answered and pair[1:] not in taken and pair not in wrong]
    said = {*same, *wrong}
    wrong += [pair for pair in never if pair not in said]
    places: list[Path | None] = []
    for name, rows in (("pairs.csv", same), ("not-pairs.csv", wrong)):
        places.append(folder / name if rows else None)
        if rows:
            _write(folder / name, [("reference_id", "table", "row_id"), *rows])
    return places[0], places[1]


def _pairs(answers: Sequence[Answer]) -> tuple[list[Triple], list[Triple]]:
    """Return the pairs that are the same and those that are not, by the answers that are not held out."""
    used = [one for one in answers if not one.held_out]
    same = [(one.reference_id, one.table, one.row_id) for one in used if one.row_id]
    return same, [(one.reference_id, one.table, one.not_row_id) for one in used if one.not_row_id]


def _told_pairs(links: Links, kind: Literal["known", "forbidden"]) -> list[Triple]:
    labels = links.tables[0].row_ids
    return [
        (str(labels[row]), table.name, str(table.row_ids[partner]))
        for table in links.tables[1:]
        for row, partner in known_rows(links, table.name, kind).tolist()
    ]


def _shares(links: Links) -> bool:
    """Tell whether several rows of the reference may have the same partner, since it repeats entities."""
    return bool(links.choices.get("set", {}).get("repeats") == links.reference)


def next_round(links: Links, answers: Sequence[Answer]) -> list[Asked]:
    """Return the questions that are left of this round, rows drawn at random in between.

    Args:
        links: the result.
        answers: those so far.
    """
    done = {(one.reference_id, one.table) for one in answers}
    held = sum(one.held_out for one in answers)
    # A round ends when its questions are answered; the next one then begins.
    drawn_left = DRAWN - held % DRAWN
    chosen_left = CHOSEN - (len(answers) - held) % CHOSEN
    drawn = _drawn(links, done, drawn_left)
    taken = {(one.table, one.row) for one in drawn}
    labels = links.tables[0].row_ids
    skip = [labels[row] for row in sorted({row for _, row in taken} | _rows_of(links, done))]
    chosen = [
        Asked(one.table, one.row, one.candidates[0][1] if one.candidates else -1, one.why, one.expected, held_out=False)
        for one in links.questions(k=chosen_left, skip=skip)
    ]
    mixed: list[Asked] = []
    every = max(1, math.ceil(len(chosen) / max(1, len(drawn))))
    while chosen or drawn:
        mixed += chosen[:every] + drawn[:1]
        chosen, drawn = chosen[every:], drawn[1:]
    return mixed


def _rows_of(links: Links, done: set[tuple[str, str]]) -> set[int]:
    answered = {reference for reference, _ in done}
    return {row for row, label in enumerate(links.tables[0].row_ids) if str(label) in answered}


def _drawn(links: Links, done: set[tuple[str, str]], most: int) -> list[Asked]:
    """Return matched rows drawn at random, the same for the same run, that were not answered."""
    labels, told = links.tables[0].row_ids, _told(links)
    places = [(table, row) for table in links.found for row in range(len(labels))]
    found: list[Asked] = []
    for k in np.random.default_rng(0).permutation(len(places)).tolist():
        table, row = places[k]
        if len(found) == most:
            break
        match = int(links.found[table].permutation[row])
        if match < 0 or (str(labels[row]), table) in done or (table, row) in told:
            continue
        why = "This row was drawn at random. Its answer is not given to the next link; it checks the matches."
        found.append(Asked(table, row, match, why, "", held_out=True))
    return found


def share(links: Links, answers: Iterable[Answer]) -> Rate | None:
    """Return which share of the matches is right, by the answers that were held out; None where there are none.

    Rows without a match, and those whose partner the link was told, are passed over: there is nothing to check.

    Args:
        links: the result.
        answers: all answers; those not held out are passed over.
    """
    ids = {table.name: {str(label): k for k, label in enumerate(table.row_ids)} for table in links.tables}
    told = _told(links)
    right = total = 0
    for one in answers:
        row = ids[links.reference][one.reference_id]
        if not one.held_out or one.answer == "cannot tell" or (one.table, row) in told:
            continue
        match = int(links.found[one.table].permutation[row])
        if match < 0:
            continue
        if one.row_id:
            total += 1
            right += match == ids[one.table][one.row_id]
        elif one.not_row_id and match == ids[one.table][one.not_row_id]:
            total += 1
    return rate(right, total) if total else None


def _told(links: Links) -> set[tuple[str, int]]:
    """Return table and reference row of the pairs that the link was given as known."""
    return {(name, int(row)) for name in links.found for row in known_rows(links, name)[:, 0]}
