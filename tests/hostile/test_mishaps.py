"""One of each mishap that a run can meet, and a few bombs; benchmarks/fuzz.py has them by the hundred."""

import random
import sys

import pytest

from hostile.bombs import bomb_case
from hostile.mishaps import MISHAPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc, and forks"),
]


@pytest.mark.parametrize("kind", MISHAPS)
def test_a_run_keeps_its_promises_whatever_happens(tmp_path, kind):
    MISHAPS[kind](random.Random(f"{kind} 0"), tmp_path)


def test_a_long_search_takes_no_more_memory_than_was_said(tmp_path):
    # 1,061 noisy rows, 8 s: such searches took up to 350 MB where 170 were said.
    assert MISHAPS["budgets"](random.Random("budgets 4441"), tmp_path) == "result"


@pytest.mark.parametrize("number", [2, 3, 4, 8])
def test_bombs_are_refused_or_fit(tmp_path, number):
    bomb_case(random.Random(f"bombs {number}"), tmp_path)
