"""Plots: what they conclude, that they show what they are given, and that they leave no trace."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from keyless import plots
from keyless.errors import InputError

HISTORY = [
    {"stage": stage, "seconds": second, "objective": value}
    for stage, second, value in (("starts", 0.5, 1.0), ("starts", 1.0, np.nan), ("polishing", 120.0, 3.5))
]
DRAWN = {
    "evidence": lambda **options: plots.evidence([12.1, 5.0], [[0.2, 0.3], [0.1]], [6.3, 6.3], **options),
    "certainty": lambda **options: plots.certainty([[1, 0, -1]], [[0.999, 0.95, 0.8]], **options),
    "coverage": lambda **options: plots.coverage([[0.9, 0.99], [0.5]], **options),
    "calibration": lambda **options: plots.calibration([0.9, 0.2, 0.8], [True, False, True], **options),
    "factors": lambda **options: plots.factors(np.eye(2), np.eye(2) + 0.1, **options),
    "correlations": lambda **options: plots.correlations([[0.9, 0.1], [0.8]], **options),
    "objective": lambda **options: plots.objective(HISTORY, **options),
    "starts": lambda **options: plots.starts(["a", "b", "a"], [1.0, 2.0, 3.0], **options),
}


def title(ax):
    return ax.get_title(loc="left")


@pytest.mark.parametrize("name", DRAWN)
def test_every_plot_draws_on_the_axes_it_is_given(name):
    figure = Figure()
    ax, other = figure.subplots(1, 2)
    assert DRAWN[name](ax=ax) is ax
    assert title(ax)
    assert ax.get_xlabel()
    assert not other.has_data()
    assert DRAWN[name]().figure is not figure


def test_nothing_touches_pyplot():
    code = "import sys, keyless.plots as p; p.coverage([[0.5]]); sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("ax", "said"),
    [
        (lambda: plots.evidence([12.1], [[0.2, 0.3]], [6.0]), "Chance reaches 0.3 nats a row; the link reaches 12.1"),
        (lambda: plots.evidence([2.0], [[]], [6.0]), "The link reaches 2.0 nats a row; chance was not measured"),
        (
            lambda: plots.evidence([12.1, 5.0], [[0.2], [0.9]], [6.0, 6.0]),
            "Chance reaches 0.9 nats a row; the links reach 5.0 to 12.1",
        ),
        (lambda: plots.certainty([[0, 1], [-1, 0]], [[0.9, 0.1], [1, 1]]), "2 of 4 rows are matched at 90% or surer"),
        (lambda: plots.coverage([[0.99, 0.995]]), "Keep all 2 matches, and 99.2% of them should be right"),
        (lambda: plots.coverage([[1.0, 1.0]]), "Keep all 2 matches, and 100% of them should be right"),
        (lambda: plots.coverage([[0.5, 0.4]]), "Even the surest match is only 50% likely to be right"),
        (lambda: plots.coverage([[]]), "Nothing is matched"),
        (lambda: plots.factors(np.zeros((3, 2)), np.zeros((3, 2))), "All rows look alike on the shared factors"),
        (lambda: plots.factors(np.zeros((1, 2)), np.zeros((1, 2))), "Too few pairs to compare partners with strangers"),
        (lambda: plots.correlations([[]]), "No factors"),
        (lambda: plots.objective(HISTORY), "The objective went from 1.0 to 3.5 in 2 min"),
        (
            lambda: plots.objective([*HISTORY, {"stage": "chance", "seconds": 150.0, "objective": 0.5}]),
            "The objective went from 1.0 to 3.5 in 2 min; with checks the run took 2 min",
        ),
        (lambda: plots.objective([]), "No steps were recorded"),
        (lambda: plots.starts([], []), "No starts were recorded"),
        (lambda: plots.starts(["a"], [2.0]), "One start sufficed; it reached 2.0"),
        (lambda: plots.starts(["a", "b"], [2.0, 1.0]), "1 of 2 starts ends within 5% of the best"),
    ],
)
def test_titles_say_what_to_conclude(ax, said):
    assert title(ax()) == said


def test_bands_hold_every_row_once(rng):
    permutation = rng.integers(-1, 5, 400)
    probability = rng.random(400) ** 0.1
    probability[:3] = np.nan, 0.0, 1.0
    counts = plots.certainty_counts(permutation, probability)
    assert sum(counts) == 400
    assert counts[-1] == (permutation < 0).sum()
    matched = probability[permutation >= 0]
    assert counts[0] == (matched >= 0.99).sum()
    assert counts[1] == ((matched >= 0.9) & (matched < 0.99)).sum()


def test_coverage_is_the_mean_probability_of_what_is_kept(rng):
    probability = rng.random(50)
    (line,) = plots.coverage([probability]).lines
    ordered = np.sort(probability)[::-1]
    np.testing.assert_allclose(line.get_ydata(), [ordered[:k].mean() for k in range(1, 51)])
    (long,) = plots.coverage([rng.random(100_000)]).lines
    assert len(long.get_xdata()) <= 300
    assert max(long.get_xdata()) == 100_000


def test_calibration_puts_honest_probabilities_on_the_diagonal(rng):
    probability = rng.random(20_000)
    ax = plots.calibration(probability, rng.random(20_000) < probability)
    points = ax.containers[0].lines[0]
    assert len(points.get_xdata()) == 10
    np.testing.assert_allclose(points.get_xdata(), points.get_ydata(), atol=0.03)
    with pytest.raises(InputError, match=r"^right: must have one True or False for each probability"):
        plots.calibration([0.5, 0.5], [True])


def test_calibration_intervals_are_wilsons():
    """8 of 10 right: (0.490, 0.943) in any textbook."""
    ax = plots.calibration([0.8] * 10, [True] * 8 + [False] * 2, bins=1)
    ((low, high),) = [segment[:, 1] for segment in ax.containers[0].lines[2][0].get_segments()]
    assert (low, high) == (pytest.approx(0.490, abs=2e-3), pytest.approx(0.943, abs=2e-3))


def test_partners_are_compared_with_strangers(rng):
    points = rng.normal(size=(500, 2))
    ax = plots.factors(points, points + 0.01 * rng.normal(size=points.shape))
    assert title(ax).startswith("Partners lie 0.01 times as far")
    assert "(150 of 500 pairs drawn)" in ax.get_xlabel()
    assert title(plots.factors(points, rng.permutation(points))).split()[2] in {"0.97", "0.98", "0.99", "1.00", "1.01"}


def test_many_starts_are_thinned_and_said_to_be(rng):
    names = [f"kind {k % 20}" for k in range(4000)]
    ax = plots.starts(names, rng.random(4000))
    assert "of 4,000 drawn" in ax.get_xlabel()
    assert sum(len(line.get_xdata()) for line in ax.lines) < 400
    assert [label.get_text() for label in ax.get_yticklabels()][-1] == "others"


@pytest.mark.parametrize(
    "name", ["$x$", "_private", "<script>alert(1)</script>", "a" * 5000, "\n\t", "\x00", "$\\frac{1$"]
)
def test_odd_names_are_text(name):
    """Neither mathematics nor private nor endless."""
    for ax in (
        plots.evidence([1.0, 2.0], [[0.1], [0.2]], [1.0, 1.0], names=[name, "other"]),
        plots.coverage([[0.5], [0.6]], names=[name, "other"]),
        plots.factors(np.eye(2), np.eye(2), names=[name, "other"]),
    ):
        ax.figure.canvas.draw()
        texts = [text.get_text() for text in ax.figure.findobj(lambda one: hasattr(one, "get_text"))]
        assert max(map(len, texts)) < 100
    if name == "_private":
        assert "_private" in "".join(texts)
