"""Matlab's random numbers, benchmarks/matlab_random.py, against numbers that were published."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module", autouse=True)
def _benchmarks():
    """Let the benchmarks import each other, as they do when they are run."""
    folder = str(Path(__file__).parents[1] / "benchmarks")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


# randn(10) after rng(0), as Matlab shows it: first, second and last column.
FIRST_NORMALS = """
0.5377 1.8339 -2.2588 0.8622 0.3188 -1.3077 -0.4336 0.3426 3.5784 2.7694
-1.3499 3.0349 0.7254 -0.0631 0.7147 -0.2050 -0.1241 1.4897 1.4090 1.4172
-1.1480 0.1049 0.7223 2.5855 -0.6669 0.1873 -0.0825 -1.9330 -0.4390 -1.7947
"""


def test_normal_numbers_are_matlabs():
    from matlab_random import MatlabRandom

    found = MatlabRandom(0).randn(10, 10)
    wanted = np.array([line.split() for line in FIRST_NORMALS.strip().splitlines()], dtype=float)
    np.testing.assert_allclose(found[:, [0, 1, 9]].T, wanted, rtol=0, atol=5.1e-5)
    # https://github.com/scipy/scipy/issues/4666, and a question about numpy with all digits of the first.
    found = MatlabRandom(1).randn(1, 5)[0]
    np.testing.assert_allclose(found, [-0.6490, 1.1812, -0.7585, -1.1096, -0.8456], rtol=0, atol=5.1e-5)
    assert found[0] == pytest.approx(-0.649013765191241, rel=2e-15)


def test_whole_numbers_and_orders_are_matlabs():
    from matlab_random import MatlabRandom

    random = MatlabRandom(2)  # randi([-10, 10], 4, 4) after rng(2): the first two columns
    assert [random.randi(21) - 11 for _ in range(8)] == [-1, -10, 1, -1, -2, -4, -6, 3]
    assert (MatlabRandom(0).randperm(10) + 1).tolist() == [6, 3, 7, 8, 5, 1, 2, 4, 9, 10]
    assert MatlabRandom(0).rand(2, 2).round(4).tolist() == [[0.8147, 0.1270], [0.9058, 0.9134]]


def test_normal_numbers_are_normal_also_in_the_tail():
    from scipy.stats import kstest, norm

    from matlab_random import TAIL, MatlabRandom

    drawn = MatlabRandom(3).randn(100_000)[:, 0]
    assert kstest(drawn, "norm").pvalue > 0.01
    beyond = np.abs(drawn)[np.abs(drawn) > TAIL]
    expected = 2 * norm.sf(TAIL) * len(drawn)
    assert abs(len(beyond) - expected) < 4 * np.sqrt(expected)
    assert kstest(beyond, lambda x: 1 - norm.sf(x) / norm.sf(TAIL)).pvalue > 0.01


def test_released_data_are_drawn_by_the_released_law():
    from bench_m3o_released_seed import NOISE, RANK, SEED, ReleasedData
    from matlab_random import MatlabRandom

    made = ReleasedData((40, 30, 30), 40)
    assert [int((~np.isnan(table)).sum()) for table in made.tables] == [1600, 1200, 1200]
    random = MatlabRandom(SEED)
    scores, loadings = random.randn(100, RANK), random.randn(RANK, 100)
    aligned = [made.tables[0], *(table[order] for table, order in zip(made.tables[1:], made.truth, strict=True))]
    noise = np.hstack(aligned) * 50 - scores @ loadings
    assert float(np.nanstd(noise)) == pytest.approx(NOISE, rel=0.05)
    starts = made.starts()
    assert len(starts) == 10
    assert not starts[0][:, :40].any()
    assert float(np.std(np.array(starts)[:, :, 40:])) == pytest.approx(made.size, rel=0.01)
    assert not np.allclose(starts[0], starts[1])


@pytest.mark.slow
def test_the_second_start_of_the_released_script_finds_every_row():
    from bench_m3o_released_seed import SETTINGS, ReleasedData, run

    widths, observed, _ = SETTINGS[0]
    made = ReleasedData(widths, observed)
    assert run(made, made.starts()[1], 0.55)["wrong"] == 0
