"""What a run keeps while it works, so that a killed one can go on from its last finished stage."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keyless
from keyless.errors import InputError
from keyless.links import Links, load
from keyless.places import create, locked, remove
from keyless.runs.configuration import Fingerprint
from keyless.runs.folder import check_replaceable
from keyless.runs.outputs import CONFIGURATION, RESULT

__all__ = ["Unfinished", "open_unfinished"]

_STATE, _LOCK, _EARLIER = "state.json", "lock", "earlier"
_OURS = {_STATE, _LOCK, _EARLIER, CONFIGURATION, RESULT, "checkpoint"}


class Unfinished:
    """The folder `<out>.unfinished/` of a run that works: its configuration, its inputs, its checkpoint.

    Attributes:
        folder: the folder.
        checkpoint: the folder inside in which the engine keeps finished stages.
        resumed: whether an earlier, killed run is continued.
        could_resume: whether one could have been continued, and was not. What it finished is kept until this run has
            finished a stage itself.
    """

    def __init__(self, folder: Path, *, resumed: bool, could_resume: bool = False) -> None:
        self.folder, self.resumed, self.could_resume = folder, resumed, could_resume
        self.checkpoint = folder / "checkpoint"

    @property
    def empty(self) -> bool:
        """Whether no stage was finished: there is nothing to resume."""
        return not _has_stages(self.folder)

    def keep(self, links: Links) -> None:
        """Keep the result, so that nothing is lost when it cannot be written where it should."""
        with contextlib.suppress(OSError):  # the place it should go to is no better, and will say so
            links.save(self.folder / RESULT)

    def kept(self) -> Links | None:
        """Return the result of the run that is continued, where it had come so far."""
        return load(self.folder / RESULT) if (self.folder / RESULT).exists() else None

    def remove(self) -> None:
        """Forget the run: it is done."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def open_unfinished(
    out: Path, *, configuration: str, options: Mapping[str, Any], inputs: Sequence[Fingerprint], resume: bool
) -> Iterator[Unfinished]:
    """Hold the folder of an unfinished run; it stays there until `remove` is called.

    Args:
        out: where the run will be written.
        configuration: `config.toml` of the run.
        options: what the answer depends on; a resumed run must have the same.
        inputs: what identifies the input files; likewise.
        resume: continue a killed run, where there is one.
    """
    folder = out.resolve().with_name(f"{out.resolve().name}.unfinished")
    state = {"keyless": keyless.__version__, "options": dict(options), "inputs": [asdict(known) for known in inputs]}
    state = json.loads(json.dumps(state))
    _check_ours(folder)
    # The same run goes on: the answers of a review of its best so far are about the same rows.
    check_replaceable(out, answers=resume and _read_state(folder) is not None)
    folder.mkdir(exist_ok=True)
    taken = f"{out}: another run is working on this folder now. Wait for it, or choose another --out."
    with locked(folder / _LOCK, mode=0o666, taken=taken):
        if (folder / _EARLIER).is_dir() and not _has_stages(folder):
            _bring_back(folder)  # killed before its first stage was finished
        found = _read_state(folder)
        resumed = resume and found is not None
        could_resume = False
        if found is not None and resume:
            _check_same(found, state, out)
        else:
            could_resume = found is not None and _has_stages(folder) and _is_same(found, state, out)
            _set_aside(folder, keep=could_resume)
            create(folder / CONFIGURATION, configuration.encode())
            create(folder / _STATE, (json.dumps(state, indent=2) + "\n").encode())
        unfinished = Unfinished(folder, resumed=resumed, could_resume=could_resume)
        unfinished.checkpoint.mkdir(exist_ok=True)
        try:
            yield unfinished
        finally:
            if not unfinished.empty:
                remove(folder / _EARLIER)
            elif (folder / _EARLIER).is_dir():
                _bring_back(folder)
            else:
                unfinished.remove()


def _check_ours(folder: Path) -> None:
    """Refuse a folder that holds anything but an unfinished run, and links, through which nothing is ever written."""
    if not folder.is_symlink() and not folder.exists():
        return
    found = [folder, *folder.rglob("*")] if folder.is_dir() and not folder.is_symlink() else [folder]
    linked = next((path for path in found if path.is_symlink()), None)
    if linked is not None:
        raise InputError(
            f"{linked.name}: must not be a link; in {folder.parent} a run keeps its unfinished stages. "
            "Remove the link, or choose another --out."
        )
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    if not all(name in _OURS or name.startswith(f".{RESULT}.keyless-new-") for name in names):
        raise InputError(
            f"{folder.name}: must be free for the unfinished stages of a run; found files that keyless did not write. "
            "Move it away, or choose another --out."
        )


def _has_stages(folder: Path) -> bool:
    """Tell whether a stage was finished."""
    return (folder / RESULT).exists() or any((folder / "checkpoint").glob("*"))


def _set_aside(folder: Path, *, keep: bool) -> None:
    """Make room for a run; what an earlier one finished is kept inside where it could still be continued."""
    remove(folder / _EARLIER)
    if keep:
        (folder / _EARLIER).mkdir()
    for path in [path for path in folder.iterdir() if path.name not in (_LOCK, _EARLIER)]:
        if keep:
            path.rename(folder / _EARLIER / path.name)
        else:
            remove(path)


def _bring_back(folder: Path) -> None:
    """Put what was set aside in the place of a run that finished nothing."""
    for path in [path for path in folder.iterdir() if path.name not in (_LOCK, _EARLIER)]:
        remove(path)
    for path in list((folder / _EARLIER).iterdir()):
        path.rename(folder / path.name)
    (folder / _EARLIER).rmdir()


def _is_same(found: Mapping[str, Any], now: Mapping[str, Any], out: Path) -> bool:
    try:
        _check_same(found, now, out)
    except InputError:
        return False
    return True


def _read_state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None  # killed before it was written: nothing was finished
    whole = isinstance(state, dict) and {"keyless", "options", "inputs"} <= state.keys()
    return state if whole and isinstance(state["options"], dict) and isinstance(state["inputs"], list) else None


def _check_same(found: Mapping[str, Any], now: Mapping[str, Any], out: Path) -> None:
    again = "Undo the change to resume, or leave --resume out to start from the beginning."
    if found["keyless"] != now["keyless"]:
        raise InputError(
            f"{out}: must be resumed with the version of keyless that began it, {found['keyless']}; "
            f"this is {now['keyless']}. Leave --resume out to start from the beginning."
        )
    for name in {**found["options"], **now["options"]}:
        before, after = found["options"].get(name), now["options"].get(name)
        if before != after:
            raise InputError(
                f"--{name}: must be what it was when the run began, {_shown(before)}; found {_shown(after)}. {again}"
            )
    try:
        before_files, after_files = ([Fingerprint(**known) for known in state["inputs"]] for state in (found, now))
    except TypeError as error:
        raise InputError(
            f"{out}: must be resumed from what keyless kept; {_STATE} was changed. "
            "Leave --resume out to start from the beginning."
        ) from error
    for before, after in zip(before_files, after_files, strict=False):
        if not before.same_content(after):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(after.changed / 1e9))
            raise InputError(
                f"{after.file}: must hold what it held when the run began; it was {before.size} bytes then and is "
                f"{after.size} bytes with other content now, last changed {when}. {again}"
            )


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
