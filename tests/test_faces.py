"""Patches back in their places: borders, arranging, and the experiment in small."""

from __future__ import annotations

import os

import numpy as np
import pytest

from keyless.errors import InputError
from keyless.experiments import get
from keyless.experiments.base import run_experiment
from keyless.experiments.faces import corrupt, given_face, lightings, public_images, solve, upper_left
from keyless.metrics import relative_error
from keyless.problem import Block, PatchProblem, Problem
from keyless.solvers.borders import border_evidence, inpaint, neighbours
from keyless.solvers.patches import PatchArranger

needs_data = pytest.mark.skipif(
    given_face() is None or lightings() is None,
    reason="faces are not there: set KEYLESS_DATA_HOME to a folder that holds faces/",
)


@pytest.fixture(scope="module")
def smooth() -> np.ndarray:
    y, x = np.mgrid[:48, :48] / 12
    return (np.sin(x + y**2 / 3) + np.cos(2 * x - y) + 2) / 4


def test_inpainting_a_plane_is_exact_and_keeps_what_is_observed(smooth):
    plane = np.add.outer(np.arange(12.0), 2 * np.arange(12.0))
    mask = np.random.default_rng(0).random((12, 12)) > 0.3
    filled = inpaint(np.where(mask, plane, 0.0), mask)
    assert np.abs(filled - plane).max() < 0.5
    assert np.array_equal(filled[mask], plane[mask])
    assert np.array_equal(inpaint(smooth, np.zeros(smooth.shape, dtype=bool)), smooth)


def test_neighbours_of_a_grid():
    beside, above = neighbours(2, 2)
    assert beside.tolist() == [[0, 1], [2, 3]]
    assert above.tolist() == [[0, 2], [1, 3]]


def test_true_neighbours_have_the_most_evidence(smooth):
    problem = PatchProblem(Block(smooth), (12, 12), tuple(range(16)))
    patches = problem.blocks[0].values.reshape(16, 12, 12)
    found = border_evidence(patches, np.ones(patches.shape, dtype=bool))
    beside, above = neighbours(4, 4)
    assert (found.right[beside[:, 0]].argmax(axis=1) == beside[:, 1]).mean() > 0.9
    assert (found.below[above[:, 0]].argmax(axis=1) == above[:, 1]).mean() > 0.9


@pytest.mark.parametrize("shuffled", [(0, 1, 4, 5, 6), tuple(range(16))])
def test_patches_of_a_smooth_image_find_their_places(smooth, shuffled):
    problem, truth = corrupt(smooth, 12, shuffled, missing=0.3, random_state=1)
    found = PatchArranger().solve(problem)
    assert found.status.converged
    assert np.array_equal(found.permutations[0], truth)
    assert relative_error(found.estimate, smooth) < 0.02


def test_relabelling_the_shuffled_patches_relabels_the_permutation(smooth):
    problem, truth = corrupt(smooth, 12, (0, 1, 4, 5, 6), missing=0.2, random_state=2)
    other = PatchProblem(problem.image, (12, 12), (6, 5, 4, 1, 0))
    assert np.array_equal(PatchArranger().solve(other).permutations[0][::-1], 4 - truth)


def test_a_single_shuffled_patch_stays(smooth):
    problem, _ = corrupt(smooth, 12, (3,), missing=0.1, random_state=0)
    assert PatchArranger().solve(problem).permutations[0].tolist() == [0]


def test_tables_small_patches_and_starts_are_refused(smooth):
    with pytest.raises(InputError, match="tables have no borders"):
        PatchArranger().solve(Problem(Block(smooth), (Block(smooth),)))
    with pytest.raises(InputError, match="at least 6"):
        PatchArranger().solve(PatchProblem(Block(smooth), (4, 4), (0, 1)))
    with pytest.raises(InputError, match="must be left out"):
        PatchArranger().solve(PatchProblem(Block(smooth), (12, 12), (0, 1)), start=smooth)


def test_corrupting_moves_and_removes_as_said(smooth):
    problem, truth = corrupt(smooth, 12, (0, 1, 2), missing=0.25, random_state=3)
    placed = problem.place([truth])
    assert np.array_equal(placed.values[placed.mask], smooth[placed.mask])
    assert int((~problem.image.mask).sum()) == smooth.size // 4


def test_a_public_image_is_put_together():
    image = public_images()["flower"]
    problem, truth = corrupt(image, 30, upper_left(6), missing=0.3, random_state=0)
    found = solve(problem, "keyless")
    assert np.array_equal(found.permutations[0], truth)
    assert relative_error(found.estimate, image) < 0.1


@needs_data
def test_the_given_face_is_put_together():
    image, problem, truth = given_face()
    found = solve(problem, "keyless")
    assert np.array_equal(found.permutations[0], truth)
    assert relative_error(found.estimate, image) < 0.012  # the released demo reaches 0.038
    worse = solve(problem, "Baseline")
    assert int((worse.permutations[0] == truth).sum()) < 13


@needs_data
@pytest.mark.parametrize("number", [0, 21, 42, 63])
def test_faces_under_any_light_are_put_together(number):
    problem, truth = corrupt(lightings()[number], 24, upper_left(7), missing=0.3, random_state=number)
    assert np.array_equal(solve(problem, "keyless").permutations[0], truth)


def test_without_data_the_experiment_says_so_and_uses_public_images(monkeypatch, tmp_path):
    monkeypatch.setenv("KEYLESS_DATA_HOME", str(tmp_path / "none"))
    monkeypatch.setattr("keyless.experiments.faces.METHODS", ("keyless",))
    monkeypatch.setattr("keyless.experiments.faces._HARDER", {})
    text = run_experiment(get("faces"), tmp_path / "out", quick=True)
    assert "set KEYLESS_DATA_HOME" in text
    assert "flower, 13 patches, 30% missing" in text
    assert (tmp_path / "out" / "faces.svg").stat().st_size > 0
    assert "KEYLESS_DATA_HOME" in os.environ
