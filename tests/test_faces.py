"""Patches back in their places: borders, arranging, and the experiment in small."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from matplotlib.axes import Axes
from scipy.io import savemat

from keyless.block import Block
from keyless.errors import InputError
from keyless.metrics import relative_error
from keyless.paper import PatchArranger
from keyless.paper.arranging import Grid, breed, grow, swap_while_better
from keyless.paper.borders import Borders, border_evidence, inpaint, neighbours
from keyless.paper.experiments import faces, get
from keyless.paper.experiments.base import run_experiment
from keyless.paper.experiments.faces import corrupt, given_face, lightings, public_images, solve, upper_left
from keyless.paper.problem import PatchProblem, Problem

needs_data = pytest.mark.skipif(
    given_face() is None or lightings() is None,
    reason="faces are not there: set KEYLESS_DATA_HOME to a folder that holds faces/",
)


@pytest.fixture(scope="module")
def smooth() -> np.ndarray:
    y, x = np.mgrid[:48, :48] / 12
    return (np.sin(x + y**2 / 3) + np.cos(2 * x - y) + 2) / 4


def random_grid(rows: int, columns: int, rng: np.random.Generator) -> Grid:
    n = rows * columns
    return Grid(rows, columns, Borders(rng.standard_normal((n, n)), rng.standard_normal((n, n))))


def roughness(image: np.ndarray) -> float:
    """What inpainting minimises, pixel by pixel."""
    total = 0.0
    for line in (*image, *image.T):
        total += sum((line[k] - 2 * line[k + 1] + line[k + 2]) ** 2 for k in range(len(line) - 2))
        total += 0.09 * sum((line[k + 1] - line[k]) ** 2 for k in range(len(line) - 1))
    for i, j in itertools.product(range(image.shape[0] - 1), range(image.shape[1] - 1)):
        total += 2 * (image[i, j] - image[i, j + 1] - image[i + 1, j] + image[i + 1, j + 1]) ** 2
    return total


class TestBorders:
    def test_inpainting_is_as_smooth_as_can_be_and_keeps_what_is_observed(self, rng):
        image, mask = rng.random((7, 5)), rng.random((7, 5)) > 0.4
        filled = inpaint(np.where(mask, image, 0.0), mask)
        assert np.array_equal(filled[mask], image[mask])
        least = roughness(filled)
        for place in zip(*np.nonzero(~mask), strict=True):
            for change in (-1e-3, 1e-3):
                other = filled.copy()
                other[place] += change
                assert roughness(other) > least

    def test_inpainting_leaves_what_has_no_gap_and_what_has_no_pixel(self, smooth):
        for mask in (np.ones(smooth.shape, dtype=bool), np.zeros(smooth.shape, dtype=bool)):
            filled = inpaint(smooth, mask)
            assert np.array_equal(filled, smooth)
            assert filled is not smooth

    def test_neighbours_of_a_grid(self):
        beside, above = neighbours(2, 3)
        assert beside.tolist() == [[0, 1], [1, 2], [3, 4], [4, 5]]
        assert above.tolist() == [[0, 3], [1, 4], [2, 5]]

    def test_true_neighbours_have_the_most_evidence(self, smooth):
        problem = PatchProblem(Block(smooth), (12, 12), tuple(range(16)))
        patches = problem.blocks[0].values.reshape(16, 12, 12)
        found = border_evidence(patches, np.ones(patches.shape, dtype=bool))
        beside, above = neighbours(4, 4)
        assert (found.right[beside[:, 0]].argmax(axis=1) == beside[:, 1]).mean() > 0.9
        assert (found.below[above[:, 0]].argmax(axis=1) == above[:, 1]).mean() > 0.9
        assert found.right[beside[:, 0], beside[:, 1]].min() > 0

    def test_turning_the_image_turns_the_evidence(self, rng):
        patches, mask = rng.random((5, 8, 10)), rng.random((5, 8, 10)) > 0.2
        found = border_evidence(np.where(mask, patches, 0.0), mask)
        turned = border_evidence(np.where(mask, patches, 0.0).swapaxes(1, 2), mask.swapaxes(1, 2))
        # Gaps are filled by solving equations whose order turns with the image.
        assert np.allclose(found.right, turned.below, atol=1e-6)
        assert np.allclose(found.below, turned.right, atol=1e-6)

    def test_what_is_not_observed_says_nothing(self, rng):
        patches, mask = rng.random((4, 8, 8)), rng.random((4, 8, 8)) > 0.3
        one = border_evidence(np.where(mask, patches, 0.0), mask)
        other = border_evidence(np.where(mask, patches, 7.0), mask)
        assert np.allclose(one.right, other.right)

    def test_too_few_pixels_are_refused(self):
        mask = np.zeros((2, 8, 8), dtype=bool)
        mask[:, 0, 0] = True
        with pytest.raises(InputError, match=r"more than 8 observed pixels .* found 0"):
            border_evidence(np.zeros((2, 8, 8)), mask)


class TestArranging:
    def test_the_score_is_the_sum_over_common_borders(self, rng):
        grid, arrangement = random_grid(3, 4, rng), rng.permutation(12)
        board, expected = arrangement.reshape(3, 4), 0.0
        for i, j in itertools.product(range(3), range(4)):
            expected += grid.borders.right[board[i, j], board[i, j + 1]] if j < 3 else 0.0
            expected += grid.borders.below[board[i, j], board[i + 1, j]] if i < 2 else 0.0
        assert grid.score(arrangement) == pytest.approx(expected)
        assert grid.score(np.stack([arrangement, np.arange(12)]))[0] == pytest.approx(expected)

    def test_growing_uses_every_patch_once_and_keeps_known_places(self, rng):
        grid = random_grid(3, 4, rng)
        for patch in range(12):
            assert sorted(grow(grid, np.array([[0, 0, patch]]), anchored=False)) == list(range(12))
        found = grow(grid, np.array([[0, 1, 7], [2, 3, 4]]), anchored=True)
        assert sorted(found) == list(range(12))
        assert found[1] == 7
        assert found[11] == 4

    def test_growing_follows_evidence_that_leaves_no_doubt(self, rng):
        truth = rng.permutation(12)
        evidence = [np.full((12, 12), -1.0) for _ in range(2)]
        for matrix, pairs in zip(evidence, neighbours(3, 4), strict=True):
            matrix[truth[pairs[:, 0]], truth[pairs[:, 1]]] = 1.0
        grid = Grid(3, 4, Borders(*evidence))
        for patch in range(12):
            assert np.array_equal(grow(grid, np.array([[0, 0, patch]]), anchored=False), truth)

    def test_children_take_over_what_parents_agree_on_when_nothing_else_speaks(self, rng):
        grid = Grid(3, 4, Borders(np.zeros((12, 12)), np.zeros((12, 12))))
        parent = rng.permutation(12)
        child = breed(grid, parent, parent, np.array([[0, 0, 5]]), anchored=False, rng=rng)
        assert np.array_equal(child, parent)
        stranger = breed(grid, parent, rng.permutation(12), np.array([[0, 0, 5]]), anchored=False, rng=rng)
        assert sorted(stranger) == list(range(12))
        assert not np.array_equal(stranger, parent)

    def test_swapping_stops_where_no_swap_helps_and_moves_only_what_may_move(self, rng):
        grid, movable = random_grid(3, 3, rng), np.array([0, 2, 3, 7, 8])
        found, value = swap_while_better(grid, np.arange(9), movable)
        assert value == pytest.approx(float(grid.score(found)))
        assert value > float(grid.score(np.arange(9)))
        assert found[[1, 4, 5, 6]].tolist() == [1, 4, 5, 6]
        for one, other in itertools.combinations(movable, 2):
            swapped = found.copy()
            swapped[[one, other]] = found[[other, one]]
            assert float(grid.score(swapped)) <= value + 1e-9


class TestPatchArranger:
    @pytest.mark.parametrize("shuffled", [(0, 1, 4, 5, 6), tuple(range(16))])
    def test_patches_of_a_smooth_image_find_their_places(self, smooth, shuffled):
        problem, truth = corrupt(smooth, 12, shuffled, missing=0.3, random_state=1)
        found = PatchArranger().solve(problem, random_state=0)
        assert found.status.converged
        assert np.array_equal(found.permutations[0], truth)
        assert relative_error(found.estimate, smooth) < 0.02

    def test_the_evidence_is_the_largest_of_all_arrangements(self, rng):
        y, x = np.mgrid[:16, :24] / 8
        image = np.sin(x + y**2) + np.cos(2 * x - y) + 0.8 * rng.standard_normal(x.shape)
        problem, _ = corrupt(image, 8, range(6), missing=0.1, random_state=1)
        solver = PatchArranger()
        grid = solver.init(problem, random_state=0).grid
        best = max(float(grid.score(np.array(order))) for order in itertools.permutations(range(6)))
        assert best > float(grid.score(np.arange(6))) + 1
        assert -solver.solve(problem, random_state=0).objective == pytest.approx(best)

    def test_equal_seeds_give_equal_results_and_no_step_loses_evidence(self, rng):
        problem = PatchProblem(Block(rng.random((32, 32))), (8, 8), tuple(range(16)))
        one, other = (PatchArranger(patience=3).solve(problem, random_state=4) for _ in range(2))
        assert np.array_equal(one.permutations[0], other.permutations[0])
        objectives = [record.objective for record in one.history]
        assert objectives == [record.objective for record in other.history]
        assert objectives == sorted(objectives, reverse=True)

    def test_relabelling_the_shuffled_patches_relabels_the_permutation(self, smooth):
        problem, truth = corrupt(smooth, 12, (0, 1, 4, 5, 6), missing=0.2, random_state=2)
        other = PatchProblem(problem.image, (12, 12), (6, 5, 4, 1, 0))
        assert np.array_equal(PatchArranger().solve(other, random_state=0).permutations[0][::-1], 4 - truth)

    def test_observed_pixels_are_kept(self, smooth):
        problem, _ = corrupt(smooth, 12, (0, 1, 2), missing=0.3, random_state=0)
        found = PatchArranger().solve(problem, random_state=0)
        placed = problem.place(found.permutations)
        assert np.array_equal(found.estimate[placed.mask], placed.values[placed.mask])

    def test_one_patch_and_an_image_of_one_grey_stay(self, smooth):
        problem, _ = corrupt(smooth, 12, (3,), missing=0.1, random_state=0)
        assert PatchArranger().solve(problem, random_state=0).permutations[0].tolist() == [0]
        whole = PatchProblem(Block(smooth[:12, :12]), (12, 12), (0,))
        assert PatchArranger().solve(whole, random_state=0).permutations[0].tolist() == [0]
        grey = PatchProblem(Block(np.full((12, 12), 0.5)), (6, 6), (0, 1, 2, 3))
        assert sorted(PatchArranger().solve(grey, random_state=0).permutations[0]) == [0, 1, 2, 3]

    def test_torch_arrays_come_back_as_torch_arrays(self, smooth):
        torch = pytest.importorskip("torch", reason="torch is not installed")
        problem, truth = corrupt(smooth, 12, (0, 1, 4), missing=0.2, random_state=3)
        image = Block(torch.asarray(problem.image.values), torch.asarray(problem.image.mask))
        found = PatchArranger().solve(PatchProblem(image, (12, 12), (0, 1, 4)), random_state=0)
        assert isinstance(found.estimate, torch.Tensor)
        assert np.array_equal(np.asarray(found.permutations[0]), truth)

    def test_tables_small_patches_starts_and_bad_options_are_refused(self, smooth):
        with pytest.raises(InputError, match="tables have no borders"):
            PatchArranger().solve(Problem(Block(smooth), (Block(smooth),)))
        with pytest.raises(InputError, match="at least 6"):
            PatchArranger().solve(PatchProblem(Block(smooth), (4, 4), (0, 1)))
        with pytest.raises(InputError, match="must be left out"):
            PatchArranger().solve(PatchProblem(Block(smooth), (12, 12), (0, 1)), start=smooth)
        with pytest.raises(InputError, match="parents"):
            PatchArranger(parents=0)

    @pytest.mark.slow
    def test_a_portrait_cut_into_81_patches(self):
        image = public_images()["portrait"]
        problem, truth = corrupt(image, 20, range(81), missing=0.3, random_state=0)
        _, found = solve(problem, "keyless")
        assert int((found == truth).sum()) >= 79  # two patches of plain background can change places


class TestProtocol:
    def test_corrupting_moves_and_removes_as_said(self, smooth):
        problem, truth = corrupt(smooth, 12, (0, 1, 2), missing=0.25, random_state=3)
        placed = problem.place([truth])
        assert np.array_equal(placed.values[placed.mask], smooth[placed.mask])
        assert int((~problem.image.mask).sum()) == smooth.size // 4
        assert not problem.image.values[~problem.image.mask].any()
        assert np.array_equal(problem.image.values[12:] != 0, problem.image.mask[12:] & (smooth[12:] != 0))

    def test_thirteen_patches_in_the_upper_left(self):
        assert upper_left(6) == (0, 1, 2, 3, 6, 7, 8, 9, 10, 12, 14, 15, 16)
        assert len(set(upper_left(7))) == 13

    @pytest.mark.parametrize("name", ["china", "flower", "portrait"])
    def test_public_images_are_put_together(self, name):
        image = public_images()[name]
        assert image.shape == (180, 180)
        problem, truth = corrupt(image, 30, upper_left(6), missing=0.3, random_state=0)
        estimate, found = solve(problem, "keyless")
        assert np.array_equal(found, truth)
        assert relative_error(estimate, image) < 0.11

    @pytest.mark.slow
    def test_every_method_gives_an_image_and_a_permutation(self):
        image = public_images()["flower"]
        problem, truth = corrupt(image, 30, upper_left(6), missing=0.3, random_state=0)
        untouched = problem.image.values.copy()
        for method in faces.METHODS:
            estimate, found = solve(problem, method, quick=True)
            assert sorted(found) == list(range(13))
            assert relative_error(estimate, image) < 0.6
            assert (int((found == truth).sum()) == 13) == (method == "keyless")
        assert np.array_equal(problem.image.values, untouched)


@needs_data
class TestGivenFace:
    def test_only_patches_of_the_upper_left_were_moved(self):
        image, problem, truth = given_face()
        moved = {
            6 * row + column
            for row, column in itertools.product(range(6), range(6))
            for cell in [np.s_[30 * row : 30 * row + 30, 30 * column : 30 * column + 30]]
            if (np.abs(problem.image.values - image)[cell] * problem.image.mask[cell]).any()
        }
        assert len(moved) == 11  # two of the thirteen came back to their own places
        assert moved <= set(upper_left(6))
        placed = problem.place([truth])
        assert np.array_equal(placed.values[placed.mask], image[placed.mask])
        assert placed.mask.mean() == pytest.approx(0.7)

    def test_it_is_put_together(self):
        image, problem, truth = given_face()
        estimate, found = solve(problem, "keyless")
        assert np.array_equal(found, truth)
        assert relative_error(estimate, image) < 0.012  # the released demo reaches 0.038
        _, worse = solve(problem, "Baseline")
        assert int((worse == truth).sum()) < 13

    @pytest.mark.slow
    def test_the_released_steps_give_the_released_figures(self):
        image, problem, truth = given_face()
        estimate, found = solve(problem, "M³O as released")
        assert np.array_equal(found, truth)
        assert relative_error(estimate, image) == pytest.approx(0.0378, abs=5e-5)

    @pytest.mark.parametrize("number", [0, 21, 42, 63])
    def test_faces_under_any_light_are_put_together(self, number):
        problem, truth = corrupt(lightings()[number], 24, upper_left(7), missing=0.3, random_state=number)
        assert np.array_equal(solve(problem, "keyless")[1], truth)


class TestExperiment:
    @pytest.fixture
    def shown(self, monkeypatch) -> list[np.ndarray]:
        """Pictures drawn while the experiment runs with its last method alone."""
        pictures: list[np.ndarray] = []
        draw = Axes.imshow

        def watch(ax, picture, **options):
            pictures.append(np.asarray(picture))
            return draw(ax, picture, **options)

        monkeypatch.setattr(Axes, "imshow", watch)
        monkeypatch.setattr(faces, "METHODS", ("keyless",))
        monkeypatch.setattr(faces, "_HARDER", {})
        return pictures

    def test_without_data_it_says_so_and_uses_public_images(self, monkeypatch, tmp_path, shown):
        monkeypatch.setenv("KEYLESS_DATA_HOME", str(tmp_path / "none"))
        text = run_experiment(get("faces"), tmp_path / "out", quick=True)
        assert "set KEYLESS_DATA_HOME" in text
        assert "portrait, 13 patches of 30×30, 30% missing" in text
        assert "13 of 13" in text
        assert "lightings, 13" not in text
        assert (tmp_path / "out" / "faces.svg").stat().st_size > 0
        assert len(shown) == 3

    @pytest.mark.slow
    def test_with_data_their_faces_are_numbers_and_never_pictures(self, monkeypatch, tmp_path, shown):
        folder = tmp_path / "data" / "faces"
        folder.mkdir(parents=True)
        y, x = np.mgrid[:192, :192] / 40
        image = (np.sin(x + y**2 / 3) + np.cos(2 * x - y) + 3) / 6
        problem, _ = corrupt(image[:180, :180], 30, upper_left(6), missing=0.3, random_state=0)
        savemat(folder / "image.mat", {"image": image[:180, :180]})
        savemat(folder / "perm_miss_image.mat", {"perm_miss_image": problem.image.values})
        lights = np.stack([255 * (image[:, :168] * share).T.ravel() for share in (0.4, 0.7, 1.0)], axis=1)
        savemat(folder / "yaleb_person3.mat", {"ID3": lights})
        monkeypatch.setenv("KEYLESS_DATA_HOME", str(folder.parent))
        assert np.allclose(lightings()[2], image[:, :168])

        text = run_experiment(get("faces"), tmp_path / "out", quick=True)
        assert "face as released, 13 patches" in text
        assert "3 lightings, 13 patches of 24×24" in text
        assert "all in 3 of 3" in text
        assert "set KEYLESS_DATA_HOME" not in text
        portrait = public_images()["portrait"]
        seen, _ = corrupt(portrait, 30, upper_left(6), missing=0.3, random_state=0)
        original, corrupted, arranged = shown
        assert np.array_equal(original, np.rint(255 * portrait))
        assert np.array_equal(corrupted, np.rint(255 * seen.image.values))
        assert relative_error(arranged, original) < 0.1
        kept = [json.loads(path.read_text()) for path in (tmp_path / "out" / "cells" / "faces").iterdir()]
        assert {"picture" in cell["value"] for cell in kept if "portrait" not in cell["key"]} == {False}
        assert "picture" not in json.loads((tmp_path / "out" / "faces.json").read_text())["rows"][0]
