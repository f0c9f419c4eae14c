"""Couplings and maps in turn: kernels against plain numpy, couplings against scalings in logs, the truth found."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp

from keyless.maps.alternation import Alternation, Candidate
from keyless.maps.canonical import CanonicalModel, CrossFit
from keyless.maps.kernels import AllPairs, ListedPairs, kernels
from keyless.model.factors import whitened


def stored(mask):
    rows, columns = np.nonzero(mask)
    return sparse.csr_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=mask.shape)


def unordered(pattern, rng):
    """The same pattern, with the columns of each row in any order."""
    indices = pattern.indices.copy()
    for start, stop in zip(pattern.indptr[:-1], pattern.indptr[1:], strict=True):
        indices[start:stop] = rng.permutation(indices[start:stop])
    return sparse.csr_array((pattern.data, indices, pattern.indptr), shape=pattern.shape)


def some_mask(rng, shape):
    """A mask with a row and a column without any pair."""
    mask = rng.random(shape) < 0.5
    mask[1], mask[:, 2] = False, False
    return mask


@pytest.mark.parametrize("listed", ["dense", "sparse", "unordered"])
@pytest.mark.parametrize("shape", [(6, 9), (8, 5)])
def test_kernels_do_what_plain_numpy_does(rng, shape, listed):
    mask = some_mask(rng, shape)
    kernel = {
        "dense": lambda: AllPairs(shape, mask),
        "sparse": lambda: ListedPairs(stored(mask)),
        "unordered": lambda: ListedPairs(unordered(stored(mask), rng)),
    }[listed]()
    left, right = (rng.normal(size=(count, 3)).astype(np.float32) for count in shape)
    rows, columns = (rng.uniform(0.5, 2, count).astype(np.float32) for count in shape)
    expected = np.where(mask, left @ right.T, -np.inf)
    kernel.fill(left, right)
    for found, axis in ((kernel.row_maxima(), 1), (kernel.column_maxima(), 0)):
        some = mask.any(axis=axis)
        np.testing.assert_allclose(found[some], expected.max(axis=axis)[some], rtol=1e-5, atol=1e-6)
        assert np.all(found[~some] < -1e5)
    kernel.shift(rows, columns)
    kernel.exponentiate()
    expected = np.exp(expected + rows[:, None] + columns)
    np.testing.assert_allclose(kernel.times(columns), expected @ columns, rtol=1e-4)
    several = rng.normal(size=(shape[1], 2)).astype(np.float32)
    np.testing.assert_allclose(kernel.times(several), expected @ several, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(kernel.transposed_times(rows), rows @ expected, rtol=1e-4)
    scaled = expected * columns
    np.testing.assert_array_equal(kernel.best(columns), np.where(mask.any(axis=1), scaled.argmax(axis=1), -1))
    coupling = kernel.coupling(rows, columns)
    found = coupling.toarray() if sparse.issparse(coupling) else coupling
    np.testing.assert_allclose(found, rows[:, None] * scaled, rtol=1e-4)
    assert sparse.issparse(coupling) == (listed != "dense")
    # A coupling is a copy: scaling it leaves the kernel as it was.
    np.testing.assert_allclose(kernel.times(columns), expected @ columns, rtol=1e-4)


def test_all_pairs_without_a_mask_are_those_of_a_full_mask(rng):
    left, right = (rng.normal(size=(count, 3)).astype(np.float32) for count in (5, 4))
    found = []
    for kernel in (AllPairs((5, 4)), AllPairs((5, 4), np.ones((5, 4), dtype=bool))):
        kernel.fill(left, right)
        kernel.exponentiate()
        found.append(kernel.times(np.eye(4, dtype=np.float32)))
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], np.exp(left @ right.T), rtol=1e-5)


def test_huge_numbers_stay_finite_and_the_first_of_equals_is_best():
    left, right = np.array([[100.0], [1.0]], dtype=np.float32), np.ones((3, 1), dtype=np.float32)
    for kernel in (AllPairs((2, 3)), ListedPairs(stored(np.ones((2, 3), dtype=bool)))):
        kernel.fill(left, right)
        kernel.exponentiate()
        ones = np.ones(3, dtype=np.float32)
        assert np.isfinite(kernel.times(ones)).all()
        np.testing.assert_allclose(kernel.times(ones)[1], 3 * np.e, rtol=1e-5)
        np.testing.assert_array_equal(kernel.best(ones), [0, 0])


def test_there_is_a_kernel_for_every_fold_of_rows(rng):
    folds = [np.array([4, 0]), np.array([1, 3, 2])]
    left, right = (rng.normal(size=(count, 2)).astype(np.float32) for count in (5, 6))
    mask = some_mask(rng, (5, 6))
    for allowed in (None, mask, stored(mask)):
        expected = np.exp(left @ right.T) * (1.0 if allowed is None else mask)
        found = kernels(folds, (5, 6), allowed)
        assert len(found) == 2
        for kernel, rows in zip(found, folds, strict=True):
            kernel.fill(left[rows], right)
            kernel.exponentiate()
            np.testing.assert_allclose(kernel.times(np.eye(6, dtype=np.float32)), expected[rows], rtol=1e-5)


def random_rotation(rng, rank):
    return np.linalg.qr(rng.normal(size=(rank, rank)))[0]


def two_clouds(rng, sizes, common, *, rank=4, noise=0.3):
    """Whitened factors of two tables that share `common` entities, and the right row of each left row, −1 for none."""
    shared = np.arange(common)
    own = np.arange(common, sizes[0]), np.arange(sizes[0], sizes[0] + sizes[1] - common)
    entities = [rng.permutation(np.concatenate([shared, rest])) for rest in own]
    latent = rng.exponential(size=(sum(sizes), rank)) - 1
    left, right = (
        whitened(latent[each] @ random_rotation(rng, rank) + noise * rng.normal(size=(len(each), rank)))
        for each in entities
    )
    place = {int(entity): j for j, entity in enumerate(entities[1])}
    truth = np.array([place.get(int(entity), -1) for entity in entities[0]])
    return left.astype(np.float32), right.astype(np.float32), truth


def noisy_truth(rng, truth, columns, *, share=0.5):
    """A coupling with the true partner for a share of the rows, and a random row for all others."""
    coupling = np.full((len(truth), columns), 0.2 / columns, dtype=np.float32)
    right = (rng.random(len(truth)) < share) & (truth >= 0)
    partner = np.where(right, truth, rng.integers(0, columns, len(truth)))
    coupling[np.arange(len(truth)), partner] += 0.8
    return coupling


def mild_model(size=4, correlations=(0.9, 0.8, 0.6, 0.3)):
    return CanonicalModel(np.zeros(size), np.zeros(size), np.eye(size), np.eye(size), np.array(correlations))


def dense_of(coupling):
    return coupling.toarray() if sparse.issparse(coupling) else coupling


@pytest.mark.parametrize("sizes", [(40, 40), (50, 30), (24, 60)])
@pytest.mark.parametrize("folds", [1, 4])
def test_couplings_have_the_masses_asked_for(rng, sizes, folds):
    left, right, _ = two_clouds(rng, sizes, 20)
    alternation = Alternation(left, right, folds=folds)
    alternation.couple([mild_model()] * folds)
    coupling = alternation.coupling()
    smaller = min(sizes)
    assert coupling.shape == sizes
    assert coupling.min() >= 0
    np.testing.assert_allclose(coupling.sum(axis=0), smaller / sizes[1], rtol=1e-3)
    assert np.abs(coupling.sum(axis=1) - smaller / sizes[0]).sum() < 0.06 * smaller


def test_rows_have_the_masses_that_are_given(rng):
    left, right, _ = two_clouds(rng, (30, 20), 15)
    masses = rng.uniform(0.2, 1.0, 30).astype(np.float32), rng.uniform(0.5, 1.0, 20).astype(np.float32)
    masses = masses[0] / masses[0].sum() * 12, masses[1] / masses[1].sum() * 12
    alternation = Alternation(left, right, masses=masses)
    for _ in range(20):
        alternation.couple([mild_model()] * 4)
    coupling = alternation.coupling()
    np.testing.assert_allclose(coupling.sum(axis=0), masses[1], rtol=1e-3)
    np.testing.assert_allclose(coupling.sum(axis=1), masses[0], rtol=1e-2)


def scaled_in_logs(ratios, masses, *, steps=1500):
    """argmax Σ P·(ratio − log P) with the given masses, and its value, in double precision."""
    f, g = np.zeros(ratios.shape[0]), np.zeros(ratios.shape[1])
    for _ in range(steps):
        f = np.log(masses[0]) - logsumexp(ratios + g, axis=1)
        g = np.log(masses[1]) - logsumexp(ratios + f[:, None], axis=0)
    # The value of P·(ratio − log P), where log P = ratio + f + g.
    coupling = np.exp(ratios + f[:, None] + g)
    return coupling, float(-np.sum(coupling * (f[:, None] + g)))


@pytest.mark.parametrize("sizes", [(30, 30), (25, 40)])
def test_couplings_and_evidence_settle_at_the_best_coupling(rng, sizes):
    left, right, _ = two_clouds(rng, sizes, 20)
    mask = rng.random(sizes) < 0.8
    alternation = Alternation(left, right, allowed=mask)
    model = mild_model()
    for _ in range(40):
        evidence = alternation.couple([model] * 4)
    ratios = np.where(mask, model.log_ratios(left.astype(float), right.astype(float)), -np.inf)
    smaller = min(sizes)
    masses = np.full(sizes[0], smaller / sizes[0]), np.full(sizes[1], smaller / sizes[1])
    expected, value = scaled_in_logs(ratios, masses)
    np.testing.assert_allclose(alternation.coupling(), expected, atol=2e-3)
    np.testing.assert_allclose(evidence, value / smaller - np.log(smaller), atol=2e-3)


def test_a_map_without_correlations_has_no_evidence(rng):
    left, right, _ = two_clouds(rng, (30, 30), 20)
    alternation = Alternation(left, right)
    evidence = alternation.couple([mild_model(correlations=(0.0, 0.0, 0.0, 0.0))] * 4)
    np.testing.assert_allclose(evidence, 0.0, atol=1e-5)
    np.testing.assert_allclose(alternation.coupling(), 1 / 30, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(36, 36), (40, 28)])
def test_a_mask_and_a_pattern_of_the_same_pairs_give_the_same(rng, sizes):
    left, right, truth = two_clouds(rng, sizes, 28)
    mask = rng.random(sizes) < 0.6
    mask[np.flatnonzero(truth >= 0), truth[truth >= 0]] = True
    start = noisy_truth(rng, truth, sizes[1])
    found = []
    for allowed in (mask, stored(mask)):
        alternation = Alternation(left, right, allowed=allowed)
        evidence = alternation.couple([mild_model()] * 4)
        first = dense_of(alternation.coupling())
        np.testing.assert_array_equal(first[~mask], 0.0)
        alternation.begin(start)
        candidate = alternation.climb("start", [2, 4, 4])
        coupling = alternation.coupling()
        assert sparse.issparse(coupling) == sparse.issparse(allowed)
        found.append((evidence, first, candidate.information, candidate.choice, dense_of(coupling)))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(two, one, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("sizes", [(150, 150), (160, 130), (130, 170)])
def test_a_climb_finds_the_truth_from_a_noisy_coupling(rng, sizes):
    left, right, truth = two_clouds(rng, sizes, min(sizes), rank=6, noise=0.1)
    alternation = Alternation(left, right)
    alternation.begin(noisy_truth(rng, truth, sizes[1], share=0.6))
    candidate = alternation.climb("noisy truth", [6] * 10)
    matched = truth >= 0
    assert candidate.name == "noisy truth"
    assert np.mean(candidate.choice[matched] == truth[matched]) > 0.9
    by_coupling = alternation.coupling().argmax(axis=1)
    np.testing.assert_array_equal(candidate.choice, by_coupling)
    assert candidate.information > 3.0


def test_growth_finds_the_truth_from_a_noisy_coupling(rng):
    left, right, truth = two_clouds(rng, (90, 90), 90, rank=6, noise=0.1)
    alternation = Alternation(left, right, folds=1)
    coupling = alternation.grow(noisy_truth(rng, truth, 90), first=4, last=6, steps=15)
    assert np.mean(coupling.argmax(axis=1) == truth) > 0.9
    np.testing.assert_allclose(coupling.sum(axis=0), 1, rtol=1e-3)


def test_the_order_of_rows_does_not_matter(rng):
    left, right, truth = two_clouds(rng, (60, 50), 45)
    rows, columns = rng.permutation(60), rng.permutation(50)
    start = noisy_truth(rng, truth, 50, share=0.8)
    found = []
    for one, two, coupling in (
        (left, right, start),
        (left[rows], right[columns], start[np.ix_(rows, columns)]),
    ):
        alternation = Alternation(one, two)
        alternation.begin(coupling)
        candidate = alternation.climb("", [3, 4, 4])
        found.append((candidate.information, alternation.coupling()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-3)
    np.testing.assert_allclose(found[1][1], found[0][1][np.ix_(rows, columns)], atol=5e-3)


def test_rows_that_may_match_nobody_choose_nobody(rng):
    left, right, _ = two_clouds(rng, (20, 25), 20)
    mask = np.ones((20, 25), dtype=bool)
    mask[7], mask[:, 3] = False, False
    for allowed in (mask, stored(mask)):
        alternation = Alternation(left, right, allowed=allowed)
        alternation.begin(mask.astype(np.float32) / 25 + np.eye(20, 25, dtype=np.float32) * mask)
        candidate = alternation.climb("", [4, 4])
        coupling = dense_of(alternation.coupling())
        assert np.isfinite(coupling).all()
        np.testing.assert_array_equal(coupling[~mask], 0.0)
        assert np.flatnonzero(candidate.choice < 0).tolist() == [7]


def test_tables_of_fewer_rows_than_folds(rng):
    left, right = (rng.normal(size=(count, 2)).astype(np.float32) for count in (3, 5))
    alternation = Alternation(left, right, folds=4)
    alternation.couple([mild_model(2, (0.5, 0.2))] * len(alternation.folds))
    np.testing.assert_allclose(alternation.coupling().sum(axis=0), 3 / 5, rtol=1e-3)
    assert sorted(np.concatenate(alternation.folds).tolist()) == [0, 1, 2]


def test_there_is_no_coupling_before_rows_are_coupled(rng):
    left, right, _ = two_clouds(rng, (10, 10), 10)
    with pytest.raises(RuntimeError, match="not been coupled"):
        Alternation(left, right).coupling()


def test_candidates_agree_when_enough_rows_have_the_same_partner():
    fit = CrossFit((), mild_model())
    one = Candidate("one", fit, np.array([0, 1, 2, -1]))
    two = Candidate("two", fit, np.array([0, 1, 3, -1]))
    assert one.agrees(two, 0.75)
    assert not one.agrees(two, 0.8)
    np.testing.assert_allclose(one.information, -0.5 * np.log(1 - np.array([0.9, 0.8, 0.6, 0.3]) ** 2).sum())
