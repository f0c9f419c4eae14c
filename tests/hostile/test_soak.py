"""Two hundred links in one process: memory, open files and threads stay what they were."""

import gc
import os
import sys
import threading
from pathlib import Path

import pytest

import keyless
from keyless.datasets import make_shuffled_tables

LINKS, WARM = 200, 20
"""How many links, and after how many of them libraries have loaded and filled what they keep."""

GROWTH = 20_000_000
"""Bytes of growth over all links that are not a leak: what the allocator keeps. 180 links that each kept their two
tables and their coupling, 10 kB, would be 2 MB; that each kept their search, far more."""


def memory():
    """Bytes that the process holds now."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.soak
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_nothing_grows_over_two_hundred_links(tmp_path):
    tables = make_shuffled_tables(14, (5, 4), rank=2, random_state=0).tables
    first = None
    for number in range(LINKS):
        links = keyless.link(tables, random_state=0, effort="quick")
        links.save(tmp_path / "links.keyless")
        again = keyless.load(tmp_path / "links.keyless")
        assert (again.permutations["table1"] == links.permutations["table1"]).all()
        content = (tmp_path / "links.keyless").read_bytes()
        if number == WARM:
            gc.collect()
            before = memory(), len(os.listdir("/proc/self/fd")), threading.active_count()
            first = content
        if first is not None:
            assert content == first, "equal seeds give equal files"
    del links, again
    gc.collect()
    after = memory(), len(os.listdir("/proc/self/fd")), threading.active_count()
    assert after[1:] == before[1:]
    assert after[0] - before[0] < GROWTH
