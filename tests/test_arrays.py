"""The helpers that know array libraries: what goes through unchanged, what is converted, what is refused and how."""

import decimal
import fractions

import array_api_strict
import numpy as np
import pytest

from keyless import arrays
from keyless.errors import InputError

NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=["numpy", "torch", "strict"])
def library(request):
    if request.param == "torch":
        return pytest.importorskip("torch", reason="torch is not installed")
    return {"numpy": np, "strict": array_api_strict}[request.param]


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


# --- to and from libraries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_to_numpy_keeps_values_and_dtype(library, dtype, shape):
    values = (np.arange(np.prod(shape, dtype=int)) % 2 + 1).reshape(shape).astype(dtype)
    found = arrays.to_numpy(library.asarray(values))
    assert type(found) is np.ndarray
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


def test_to_numpy_of_tensors_that_numpy_refuses(torch):
    values = torch.asarray([[1.5, -2.0]])
    np.testing.assert_array_equal(arrays.to_numpy(values.clone().requires_grad_()), [[1.5, -2.0]])
    np.testing.assert_array_equal(arrays.to_numpy(values.to(torch.bfloat16)), [[1.5, -2.0]])
    np.testing.assert_array_equal(arrays.to_numpy(values.T), [[1.5], [-2.0]])
    np.testing.assert_array_equal(arrays.to_numpy(torch.ones((3, 4)).expand(2, 3, 4)[:, ::2]), np.ones((2, 2, 4)))


def test_to_numpy_of_lists_and_read_only_arrays():
    np.testing.assert_array_equal(arrays.to_numpy([[1, 2]]), [[1, 2]])
    values = np.arange(3.0)
    values.flags.writeable = False
    assert arrays.to_numpy(values) is values
    np.testing.assert_array_equal(arrays.to_numpy(array_api_strict.asarray(values)), values)


def test_array_like_takes_library_dtype_and_device_of_its_model(library):
    like = library.asarray(np.zeros(2, dtype=np.float32))
    for values in (np.array([1.0, 2.5]), [1.0, 2.5], array_api_strict.asarray([1.0, 2.5])):
        found = arrays.array_like(values, like)
        assert type(found) is type(like)
        assert found.dtype == like.dtype
        assert found.device == like.device
        np.testing.assert_array_equal(arrays.to_numpy(found), [1.0, 2.5])
    found = arrays.array_like([1, 0], like, dtype=arrays.namespace(like).bool)
    assert found.dtype == arrays.namespace(like).bool


def test_what_an_array_is(library):
    array = library.asarray([1.0])
    assert arrays.is_array(array)
    assert arrays.is_numpy(array) == (library is np)
    assert arrays.on_cpu(array)
    assert arrays.namespace(array, array).asarray([2.0]).shape == (1,)
    for other in ([1.0], 1.0, None, "a"):
        assert not arrays.is_array(other)
        assert not arrays.is_numpy(other)


def test_something_elsewhere_is_not_on_the_cpu(torch):
    assert not arrays.on_cpu(torch.empty(1, device="meta"))
    assert not arrays.on_cpu(array_api_strict.ones(1, device=array_api_strict.Device("device1")))


def test_namespace_refuses_a_mixture(torch):
    with pytest.raises(TypeError):
        arrays.namespace(np.ones(1), torch.ones(1))


def test_exp_in_place_is_exp(library):
    values = np.array([-1e4, -1.0, 0.0, 2.0, -INF])
    found = arrays.exp_in_place(library.asarray(values.copy()))
    np.testing.assert_allclose(arrays.to_numpy(found), np.exp(values), rtol=1e-15)


def test_exp_in_place_overflows_quietly_and_reuses_memory(torch):
    for values in (np.array([1e4, 1.0]), torch.asarray([1e4, 1.0])):
        found = arrays.exp_in_place(values)
        assert found is values
        assert found[0] == INF


# --- floats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_as_float_passes_floats_untouched(library, dtype):
    values = library.asarray(np.array([[1.0, NAN]], dtype=dtype))
    assert arrays.as_float(values, name="x") is values


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64"])
def test_as_float_turns_whole_numbers_into_the_default_float(library, dtype):
    values = library.asarray(np.array([[0, 1]], dtype=dtype))
    found = arrays.as_float(values, name="x")
    assert type(found) is type(values)
    assert found.dtype == library.asarray([0.5]).dtype
    np.testing.assert_array_equal(arrays.to_numpy(found), [[0.0, 1.0]])


def test_as_float_widens_half_precision(torch):
    found = arrays.as_float(np.array([0.5, 2.0], dtype=np.float16), name="x")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [0.5, 2.0])
    for half in (torch.float16, torch.bfloat16):
        found = arrays.as_float(torch.asarray([0.5, 2.0], dtype=half), name="x")
        assert found.dtype == torch.float32
        np.testing.assert_array_equal(found, [0.5, 2.0])


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([[1, 2]], [[1.0, 2.0]]),
        ((True, False), [1.0, 0.0]),
        (3, 3.0),
        ([], []),
        (np.array([1, 2.5, True], dtype=object), [1.0, 2.5, 1.0]),
        (np.array([fractions.Fraction(1, 4), decimal.Decimal("0.5"), 10**30], dtype=object), [0.25, 0.5, 1e30]),
        ([np.float32(1.5), 2], [1.5, 2.0]),
        (np.array([None, 1.0], dtype=object), [NAN, 1.0]),
    ],
)
def test_as_float_takes_whatever_numbers_come_in(values, wanted):
    found = arrays.as_float(values, name="x")
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, wanted)


def test_as_float_takes_frames_and_leaves_subclasses_behind():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": [1, 2], "b": [0.5, None]})
    np.testing.assert_array_equal(arrays.as_float(frame, name="x"), [[1.0, 0.5], [2.0, NAN]])

    class Subclass(np.ndarray):
        pass

    assert type(arrays.as_float(np.ones(2).view(Subclass), name="x")) is np.ndarray


def test_a_mask_is_not_dropped_in_silence():
    masked = np.ma.masked_array([[1.0, 2.0]], mask=[[False, True]])
    with pytest.raises(InputError, match=r"x: must not be a masked array; its mask would be lost"):
        arrays.as_float(masked, name="x")
    unmasked = arrays.as_float(np.ma.masked_array([[1.0, 2.0]]), name="x")
    assert type(unmasked) is np.ndarray


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, 2.0], [3.0]], r"^ages: must be an array of numbers; its rows have different lengths\.$"),
        (["1.5"], r"^ages: must hold real numbers; found dtype <U3\. Convert it to floats first\.$"),
        ([b"1"], r"^ages: must hold real numbers; found dtype \|S1"),
        ([1 + 2j], r"^ages: must hold real numbers; found dtype complex128"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), r"^ages: must hold real numbers; found dtype datetime64"),
        (np.array([1], dtype="timedelta64[s]"), r"^ages: must hold real numbers; found dtype timedelta64"),
        (np.zeros(1, dtype=[("a", float)]), r"^ages: must hold real numbers; found dtype \["),
        (np.array(["1.5", 2.0], dtype=object), r"^ages: must hold real numbers; found dtype object .*text.*Encode"),
        (np.array([b"1"], dtype=object), r"^ages: must hold real numbers; found dtype object .*text"),
        (np.array([1j], dtype=object), r"^ages: must hold real numbers; found dtype object with entries"),
        (np.array([10**400], dtype=object), r"^ages: must hold real numbers; found dtype object with entries"),
        ({"a": 1}, r"^ages: must hold real numbers; found dtype object with entries"),
    ],
)
def test_as_float_refuses_what_is_no_number(values, message):
    with pytest.raises(InputError, match=message):
        arrays.as_float(values, name="ages")


def test_as_float_refuses_complex_numbers_of_every_library(library):
    with pytest.raises(InputError, match=r"^ages: must hold real numbers; found dtype .*complex128"):
        arrays.as_float(library.asarray(np.array([1j])), name="ages")


# --- matrices --------------------------------------------------------------------------------------------------------


def test_as_matrix_passes_a_good_matrix_untouched(library):
    values = library.asarray(np.array([[1.0, -2.0]]))
    assert arrays.as_matrix(values, name="x") is values
    assert arrays.as_cost(values, name="x") is values


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([[1.0, 2.0], [3.0, NAN]], r"^lab, row 1, column 1: must be a finite number; found NaN\. "),
        ([[1.0, INF], [NAN, 1.0]], r"^lab, row 1, column 0: must be a finite number; found NaN"),
        ([[1.0, INF], [INF, 1.0]], r"^lab, row 0, column 1: must be a finite number; found an infinity\. Replace it"),
        ([[1.0], [-INF]], r"^lab, row 1, column 0: must be a finite number; found an infinity"),
        ([1.0], r"^lab: must be a table with rows and columns \(2-D\); found 1-D of shape \(1,\)\. Reshape it\.$"),
        (1.0, r"^lab: must be a table with rows and columns \(2-D\); found 0-D of shape \(\)"),
        ([[[1.0]]], r"^lab: must be a table with rows and columns \(2-D\); found 3-D of shape \(1, 1, 1\)"),
        (np.zeros((0, 2)), r"^lab: must have at least one row and one column; found shape \(0, 2\)\. It is empty\.$"),
        (np.zeros((2, 0)), r"^lab: must have at least one row and one column; found shape \(2, 0\)"),
    ],
)
def test_as_matrix_says_what_is_wrong_and_where(library, entries, message):
    values = library.asarray(np.asarray(entries))
    with pytest.raises(InputError, match=message):
        arrays.as_matrix(values, name="lab")


def test_as_matrix_lets_pass_what_it_is_told_to(library):
    missing, infinite = library.asarray([[NAN, 1.0]]), library.asarray([[INF, 1.0]])
    assert arrays.as_matrix(missing, name="x", allow_missing=True) is missing
    assert arrays.as_matrix(infinite, name="x", allow_infinite=True) is infinite
    with pytest.raises(InputError, match="found an infinity"):
        arrays.as_matrix(infinite, name="x", allow_missing=True)
    with pytest.raises(InputError, match="found NaN"):
        arrays.as_matrix(missing, name="x", allow_infinite=True)


@pytest.mark.parametrize("place", [(0, 0), (1, 2), (3, 4)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_is_finite_finds_one_bad_entry_anywhere(library, place, dtype):
    values = np.random.default_rng(0).standard_normal((4, 5)).astype(dtype)
    assert arrays.is_finite(library.asarray(values))
    for bad in (NAN, INF, -INF):
        spoiled = values.copy()
        spoiled[place] = bad
        assert not arrays.is_finite(library.asarray(spoiled))
    spoiled[1, 1], spoiled[2, 2] = NAN, INF
    assert not arrays.is_finite(library.asarray(spoiled))


def test_as_cost_takes_plus_infinity_only(library):
    values = library.asarray([[INF, 1.0]])
    assert arrays.as_cost(values, name="cost") is values
    with pytest.raises(InputError, match=r"^cost, row 0, column 1: must be a number or \+infinity; found minus"):
        arrays.as_cost(library.asarray([[INF, -INF]]), name="cost")
    with pytest.raises(InputError, match=r"^cost, row 0, column 0: .*found NaN"):
        arrays.as_cost(library.asarray([[NAN, -INF]]), name="cost")


# --- permutations ----------------------------------------------------------------------------------------------------


def test_as_permutation_takes_any_whole_numbers(library):
    for dtype in ("int64", "int32", "uint8"):
        found = arrays.as_permutation(library.asarray(np.array([2, 0, 1], dtype=dtype)), name="p")
        assert type(found) is np.ndarray
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, [2, 0, 1])
    np.testing.assert_array_equal(arrays.as_permutation((5, -1), name="p", columns=6), [5, -1])
    np.testing.assert_array_equal(arrays.as_permutation([], name="p"), np.empty(0))


def test_as_permutation_does_not_share_memory_with_its_input():
    given = np.array([0, 1])
    arrays.as_permutation(given, name="p")[0] = 7
    np.testing.assert_array_equal(given, [0, 1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 2], r"^p, position 1: must be from 0 to 1, or -1 for no partner; found 2\.$"),
        ([-2, 5], r"^p, position 0: must be from 0 to 1, or -1 for no partner; found -2\.$"),
        ([0.0], r"^p: must be a 1-D array of whole numbers; found 1-D of dtype float64\. Give"),
        ([True], r"^p: must be a 1-D array of whole numbers; found 1-D of dtype bool"),
        ([[0]], r"^p: must be a 1-D array of whole numbers; found 2-D of dtype int64"),
        (["a"], r"^p: must be a 1-D array of whole numbers; found 1-D of dtype <U1"),
        ([[0], [0, 1]], r"^p: must be a 1-D array of whole numbers; its rows have different lengths"),
        (None, r"^p: must be a 1-D array of whole numbers; found 0-D of dtype object"),
    ],
)
def test_as_permutation_refuses(values, message):
    with pytest.raises(InputError, match=message):
        arrays.as_permutation(values, name="p")


# --- numbers ---------------------------------------------------------------------------------------------------------

CHECKS = [arrays.check_finite, arrays.check_positive, arrays.check_nonnegative]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), fractions.Fraction(2), np.array(2.0)])
def test_numbers_become_floats(check, value):
    found = check(value, name="x")
    assert type(found) is float
    assert found == 2.0


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [NAN, INF, 10**400, "2", True, None, 1j, [1.0], object()])
def test_what_is_no_number_is_refused_by_name(check, value):
    with pytest.raises(InputError, match=r"^weight: must be .*; found "):
        check(value, name="weight")


def test_signs_are_checked():
    assert arrays.check_finite(-1, name="x") == -1.0
    assert arrays.check_nonnegative(0, name="x") == 0.0
    for check, value in [(arrays.check_positive, 0), (arrays.check_positive, -1), (arrays.check_nonnegative, -1e-300)]:
        with pytest.raises(InputError, match=rf"^x: must be .*positive number; found {value}\.$"):
            check(value, name="x")
    with pytest.raises(InputError, match=r"^x: must be a finite number; found -inf\.$"):
        arrays.check_finite(-INF, name="x")


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_counts_become_ints(value):
    found = arrays.check_count(value, name="n", maximum=3)
    assert type(found) is int
    assert found == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, r"^n: must be a whole number of at least 1; found 0\.$"),
        (-2, r"^n: must be a whole number of at least 1; found -2\.$"),
        (True, r"^n: must be a whole number of at least 1; found True\.$"),
        (4, r"^n: must be at most 3; found 4\. Lower it\.$"),
        (2.0, r"^n: must be a whole number; found 2\.0\.$"),
        ("2", r"^n: must be a whole number; found '2'\.$"),
        (None, r"^n: must be a whole number; found None\.$"),
        (np.True_, r"^n: must be a whole number; found np\.True_\.$"),
    ],
)
def test_counts_are_refused_by_name(value, message):
    with pytest.raises(InputError, match=message):
        arrays.check_count(value, name="n", maximum=3)


# --- randomness ------------------------------------------------------------------------------------------------------


def test_one_seed_one_stream():
    first, second = (arrays.random_generator(7).random(3) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    generator = np.random.default_rng(1)
    assert arrays.random_generator(generator) is generator
    assert not np.array_equal(arrays.random_generator(None).random(3), arrays.random_generator(None).random(3))


@pytest.mark.parametrize("seed", [-1, 1.5, "seed"])
def test_seeds_that_are_none_are_refused(seed):
    with pytest.raises(InputError, match=r"^random_state: must be None, a whole number or a numpy Generator; found "):
        arrays.random_generator(seed)


def test_every_public_name_exists_and_is_listed_in_order():
    assert list(arrays.__all__) == sorted(arrays.__all__)
    assert all(hasattr(arrays, name) for name in arrays.__all__)


# --- eigenpairs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 51, 120])
@pytest.mark.parametrize("kept", [0, 1, 5, 60])
@pytest.mark.parametrize("others", [1.0, 1e-3], ids=["others near", "others far below"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_eigenpairs_above_are_those_of_all(size, kept, others, dtype):
    """By power iteration, alone or with all the others: they must be the eigenpairs above the threshold."""
    kept = min(kept, size - 1)
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    spectrum = np.concatenate([np.linspace(9, 4, kept), others * np.linspace(1, 0.1, size - kept)])
    matrix = ((basis * spectrum) @ basis.T).astype(dtype)
    before = matrix.copy()
    accuracy = 1e-12 if dtype == "float64" else 1e-4
    for values, vectors in (
        arrays.eigenpairs_above(matrix, 2.0),
        arrays.eigenpairs_above(matrix, 2.0, most=size),
        arrays.eigenpairs_above(matrix, 0.0, most=max(kept, 1)),
    ):
        wanted = spectrum[: len(values)]
        assert len(values) in (kept, max(kept, 1))
        assert values.dtype == vectors.dtype == dtype
        np.testing.assert_allclose(values, wanted, rtol=accuracy)
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(values)), atol=accuracy)
        np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=10 * accuracy)
    np.testing.assert_array_equal(matrix, before)


def test_eigenpairs_of_repeated_eigenvalues_span_their_space():
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(90, 90)))[0]
    matrix = (basis[:, :4] * 3.0) @ basis[:, :4].T
    values, vectors = arrays.eigenpairs_above(matrix, 1.0)
    np.testing.assert_allclose(values, 3.0)
    np.testing.assert_allclose(vectors @ vectors.T, basis[:, :4] @ basis[:, :4].T, atol=1e-12)


def test_an_eigenvalue_that_the_power_iteration_cannot_see_is_found(monkeypatch):
    """Vectors orthogonal to an eigenvector never turn towards it; what the found ones leave of the matrix shows it."""
    rng = np.random.default_rng(2)
    basis = np.linalg.qr(rng.normal(size=(100, 100)))[0]
    spectrum = np.concatenate([[9.0, 7.0, 5.0, 4.0], np.full(96, 1e-4)])
    matrix = (basis * spectrum) @ basis.T
    blind = rng.normal(size=(100, 12))
    blind -= np.outer(basis[:, 1], basis[:, 1] @ blind)
    monkeypatch.setattr(arrays, "_first_vectors", lambda *_: blind)
    for most in (None, 4):
        values, vectors = arrays.eigenpairs_above(matrix, 1.0, most=most)
        np.testing.assert_allclose(values, spectrum[:4], rtol=1e-12)
        np.testing.assert_allclose(np.abs(vectors.T @ basis[:, :4]), np.eye(4), atol=1e-10)


def test_eigenvalues_below_zero_do_not_pass_for_large_ones():
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(80, 80)))[0]
    spectrum = np.concatenate([[9.0, 4.0], np.full(76, 1e-3), [-6.0, -20.0]])
    values, vectors = arrays.eigenpairs_above((basis * spectrum) @ basis.T, 1.0)
    np.testing.assert_allclose(values, [9.0, 4.0], rtol=1e-12)
    np.testing.assert_allclose(np.abs(vectors.T @ basis[:, :2]), np.eye(2), atol=1e-10)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_eigenpairs_of_very_small_and_large_matrices(scale):
    rng = np.random.default_rng(4)
    basis = np.linalg.qr(rng.normal(size=(80, 80)))[0]
    spectrum = scale * np.concatenate([[9.0, 4.0], np.full(78, 1e-3)])
    values, _ = arrays.eigenpairs_above((basis * spectrum) @ basis.T, scale)
    np.testing.assert_allclose(values, spectrum[:2], rtol=1e-12)
