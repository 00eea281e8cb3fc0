"""The optimal geometry: known values, the certificate, limits, and the collapse."""

from dataclasses import FrozenInstanceError
from math import exp, inf, isnan, log

import numpy as np
import pytest
from scipy.optimize import minimize

from skcl.theory import collapse_temperature, collapse_threshold, optimal_geometry
from skcl.theory._solver import (
    _log1p_ratio,
    gram_of,
    relative_gap,
    solve,
    value_and_gap,
)


def long_tail(K, ratio=100.0):
    """π_k ∝ ratio^(-k / (K - 1))."""
    priors = ratio ** (-np.arange(K) / (K - 1))
    return priors / priors.sum()


def unit_rows(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def literal_value(gram, priors, temperature):
    """F(G), as it is written."""
    value = 0.0
    for k, own in enumerate(priors):
        partition = 0.0
        for j, other in enumerate(priors):
            partition += other * exp(gram[k][j] / temperature)
        value += own * (-gram[k][k] / temperature + log(partition))
    return value


def feasible_grams(rng, K, n):
    for _ in range(n):
        Z = unit_rows(rng.standard_normal((K, rng.integers(1, K + 1))))
        yield Z @ Z.T


def off_diagonal(gram):
    return gram[np.triu_indices(len(gram), 1)]


def random_cases(seed, n):
    """Yield priors, from near equal to very unequal, and temperatures."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        K = rng.integers(2, 9)
        priors = rng.dirichlet(np.full(K, 10 ** rng.uniform(-0.7, 1)))
        priors = np.maximum(priors, 1e-6)
        yield priors / priors.sum(), np.exp(rng.uniform(np.log(0.05), np.log(5))), rng


# Known values

VALUES = [
    ((0.7, 0.2, 0.05, 0.05), 0.5, -0.7413096624, 0.19676),
    ((0.97, 0.01, 0.01, 0.01), 0.1, -0.1676988702, -0.13957),
    ((0.97, 0.01, 0.01, 0.01), 0.5, -0.1234535697, 0.62119),
    ((0.97, 0.01, 0.01, 0.01), 2.0, -0.0470634463, 1.0),
    ((0.9, 0.06, 0.03, 0.01), 0.5, -0.33893658, None),
    ((0.98, 0.01, 0.01), 0.5, -0.08560186, None),
    ((0.25, 0.25, 0.25, 0.25), 0.5, -1.1969555218, -1 / 3),
    (long_tail(100), 0.1, -4.009866466, None),
    (long_tail(100), 0.5, -1.900932868, None),
]


@pytest.mark.parametrize(("priors", "temperature", "value", "cosine"), VALUES)
def test_known_values(priors, temperature, value, cosine):
    geometry = optimal_geometry(priors, temperature)
    assert geometry.value == pytest.approx(value, abs=1e-8)
    assert geometry.value == pytest.approx(
        literal_value(geometry.gram, priors, temperature), abs=1e-12
    )
    assert 0 <= geometry.gap <= 1e-9
    if cosine is not None:
        assert geometry.max_cosine == pytest.approx(cosine, abs=6e-6)


@pytest.mark.parametrize(("temperature", "cosine"), [(0.2, 0.201), (0.5, 0.122)])
def test_the_largest_cosine_may_fall_with_the_temperature(temperature, cosine):
    geometry = optimal_geometry(long_tail(20), temperature)
    assert geometry.max_cosine == pytest.approx(cosine, abs=5e-4)


@pytest.mark.parametrize("K", [2, 3, 4, 7, 20, 50])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.5, 1.0, 5.0, 20.0])
def test_equal_priors_have_the_simplex(K, temperature):
    geometry = optimal_geometry(np.full(K, 1 / K), temperature)
    rate = 1 / temperature
    value = -np.log(K) + np.log1p((K - 1) * np.exp(-rate * K / (K - 1)))
    assert geometry.value == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(off_diagonal(geometry.gram), -1 / (K - 1), atol=1e-12)
    assert geometry.gap <= 1e-11


@pytest.mark.parametrize("temperature", [0.02, 0.2, 2.0])
def test_nearly_equal_priors_are_near_the_simplex(temperature):
    # These are solved for: the closed form serves equal priors only.
    equal = optimal_geometry(np.full(5, 0.2), temperature)
    for size in (1e-9, 1e-3):
        priors = np.array([0.2 + size, 0.2, 0.2, 0.2, 0.2 - size])
        geometry = optimal_geometry(priors, temperature)
        distance = np.abs(geometry.gram - equal.gram).max()
        assert 0.01 * size < distance < 10 * size


@pytest.mark.parametrize("prior", [0.5, 0.3, 0.99, 1e-6])
@pytest.mark.parametrize("temperature", [0.01, 0.5, 20.0])
def test_two_classes_are_opposite(prior, temperature):
    priors = [prior, 1 - prior]
    geometry = optimal_geometry(priors, temperature)
    np.testing.assert_array_equal(geometry.gram, [[1, -1], [-1, 1]])
    assert geometry.value == pytest.approx(
        literal_value(geometry.gram, priors, temperature), abs=1e-12
    )
    assert geometry.gap <= 1e-12
    assert geometry.max_cosine == -1


def test_one_class():
    geometry = optimal_geometry([1.0], 0.5)
    assert (geometry.value, geometry.gap, geometry.gram.tolist()) == (0, 0, [[1]])
    assert isnan(geometry.max_cosine)


# The certificate


def test_no_gram_matrix_is_below_what_the_certificate_says():
    for priors, temperature, rng in random_cases(0, 40):
        geometry = optimal_geometry(priors, temperature)
        K = len(priors)
        factor = np.linalg.cholesky(geometry.gram + 1e-9 * np.eye(K))
        near = [
            unit_rows(factor + size * rng.standard_normal((K, K)))
            for size in (1e-6, 1e-4, 1e-2)
        ]
        for gram in [*feasible_grams(rng, K, 20), *(Z @ Z.T for Z in near)]:
            value = literal_value(gram, priors, temperature)
            assert geometry.value - geometry.gap <= value + 1e-14
            assert geometry.value <= value + 1e-9
        assert geometry.gap <= 1e-9


def test_the_gap_of_any_gram_matrix_bounds_its_distance_to_the_optimum():
    tightest = inf
    for priors, temperature, rng in random_cases(1, 30):
        optimum = optimal_geometry(priors, temperature)
        for gram in [*feasible_grams(rng, len(priors), 10), optimum.gram]:
            # Between the optimum and the matrix, where the bound is tightest.
            for share in (1.0, 1e-2, 1e-4):
                mixed = share * gram + (1 - share) * optimum.gram
                value, gap = value_and_gap(mixed, priors, 1 / temperature)
                assert value == pytest.approx(
                    literal_value(mixed, priors, temperature), abs=1e-12
                )
                distance = value - (optimum.value - optimum.gap)
                assert gap >= distance - 1e-13
                if distance > 1e-9:
                    tightest = min(tightest, gap / distance)
    assert tightest < 20


def test_agrees_with_a_plain_minimization():
    for priors, temperature, rng in random_cases(2, 12):
        temperature = max(temperature, 0.2)  # plain F is flat below
        geometry = optimal_geometry(priors, temperature)
        K = len(priors)

        def plain(flat, K=K, priors=priors, temperature=temperature):
            Z = flat.reshape(K, K)
            norms = np.linalg.norm(Z, axis=1, keepdims=True)
            unit = Z / norms
            terms = priors * np.exp(unit @ unit.T / temperature)
            partition = terms.sum(axis=1)
            pull = (priors / partition)[:, None] * terms / temperature
            slope = (pull + pull.T) @ unit
            slope -= (slope * unit).sum(axis=1, keepdims=True) * unit
            return priors @ np.log(partition) - 1 / temperature, slope / norms

        for _ in range(3):
            found = minimize(
                lambda flat: (plain(flat)[0], plain(flat)[1].ravel()),
                rng.standard_normal(K * K),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 20000, "maxfun": 40000, "ftol": 0, "gtol": 1e-11},
            )
            Z = unit_rows(found.x.reshape(K, K))
            assert geometry.value == pytest.approx(found.fun, abs=1e-7)
            # Rows of priors 1e-6 move freely, as far as plain F can tell.
            weight = np.sqrt(np.outer(priors, priors))
            np.testing.assert_allclose(
                weight * geometry.gram, weight * (Z @ Z.T), atol=1e-5
            )
            if priors.min() > 0.01:
                np.testing.assert_allclose(geometry.gram, Z @ Z.T, atol=1e-4)


# Structure


def test_gram_is_a_gram_matrix_of_low_rank():
    for priors, temperature, _ in random_cases(3, 30):
        gram = optimal_geometry(priors, temperature).gram
        np.testing.assert_array_equal(gram, gram.T)
        np.testing.assert_array_equal(np.diag(gram), 1)
        eigenvalues = np.linalg.eigvalsh(gram)
        # Not negative, and the least of K is 0: the rank is K - 1 at most.
        assert abs(eigenvalues[0]) <= 1e-12
        assert np.abs(gram).max() <= 1


@pytest.mark.parametrize("priors", [(0.7, 0.2, 0.05, 0.05), (0.4, 0.3, 0.2, 0.1)])
def test_value_does_not_fall_with_the_temperature(priors):
    values = [optimal_geometry(priors, t).value for t in np.geomspace(0.05, 20, 30)]
    assert (np.diff(values) > 0).all()


@pytest.mark.parametrize("temperature", [1e-2, 1e-3, 1e-5])
def test_low_temperatures_are_near_the_simplex_to_second_order(temperature):
    priors = np.array([0.6, 0.2, 0.1, 0.06, 0.04])
    gram = optimal_geometry(priors, temperature).gram
    rows, columns = np.triu_indices(5, 1)
    w = np.log(priors[rows] + priors[columns])
    first_order = (gram[rows, columns] + 1 / 4) / temperature
    np.testing.assert_allclose(first_order, w.mean() - w, atol=4 * temperature)


def test_value_at_low_temperatures_is_minus_the_entropy():
    priors = long_tail(20)
    value = optimal_geometry(priors, 0.01).value
    assert value == pytest.approx(priors @ np.log(priors), abs=1e-12)


@pytest.mark.parametrize("temperature", [0.01, 0.1])
@pytest.mark.parametrize("priors", [long_tail(5), long_tail(20), (0.97, 0.02, 0.01)])
def test_low_temperatures_are_solved_to_a_share_of_the_excess(priors, temperature):
    # F + H(π) is 1e-40 and less here, and says nothing of G in F itself.
    gram = optimal_geometry(priors, temperature).gram
    assert relative_gap(gram, np.log(priors), 1 / temperature)[0] < 1e-8


def test_permuted_classes():
    priors = np.array([0.45, 0.25, 0.15, 0.1, 0.05])
    order = np.array([3, 0, 4, 2, 1])
    for temperature in (0.05, 0.3, 3.0):
        one = optimal_geometry(priors, temperature)
        other = optimal_geometry(priors[order], temperature)
        assert other.value == pytest.approx(one.value, abs=1e-12)
        np.testing.assert_allclose(
            other.gram, one.gram[np.ix_(order, order)], atol=1e-7
        )


@pytest.mark.parametrize("temperature", [1e-300, 1e-12, 1e-4, 1e4, 1e300])
@pytest.mark.parametrize(
    "priors",
    [(0.5, 0.3, 0.2), (0.4, 0.3, 0.2, 0.1 - 1e-12, 1e-12), (1 - 2e-12, 1e-12, 1e-12)],
)
def test_extremes_are_finite_and_certain(priors, temperature):
    geometry = optimal_geometry(priors, temperature)
    assert np.isfinite(geometry.gram).all()
    assert geometry.gap <= 1e-12
    assert -log(len(priors)) <= geometry.value <= geometry.gap


def test_deterministic_and_apart_from_the_global_generator():
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = optimal_geometry([0.5, 0.3, 0.2], 0.3)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    second = optimal_geometry([0.5, 0.3, 0.2], 0.3)
    np.testing.assert_array_equal(first.gram, second.gram)


def test_result_cannot_be_changed():
    given = np.array([0.5, 0.3, 0.2 + 5e-7])
    geometry = optimal_geometry(given, 1)
    assert geometry.priors.sum() == pytest.approx(1, abs=1e-15)
    assert (geometry.temperature, given.flags.writeable) == (1.0, True)
    with pytest.raises(FrozenInstanceError):
        geometry.value = 0.0
    with pytest.raises(ValueError, match="read-only"):
        geometry.gram[0, 1] = 0.0


# Collapse

THRESHOLDS = [
    (0.6, 5.4116289),
    (0.7, 2.7846421),
    (0.8, 1.7853671),
    (0.9, 1.1425461),
    (0.95, 0.8383001),
    (0.97, 0.6976015),
    (0.99, 0.5087435),
]


@pytest.mark.parametrize(("M", "threshold"), THRESHOLDS)
@pytest.mark.parametrize("split", [(0.5, 0.5), (0.98, 0.02), (0.4, 0.3, 0.2, 0.1)])
def test_collapse_threshold(M, threshold, split):
    priors = np.insert((1 - M) * np.array(split), 1, M)
    assert collapse_threshold(priors) == pytest.approx(threshold, abs=6e-8)


def test_collapse_threshold_of_a_tiny_minority():
    # q* = 2 m + O(m²) as m → 0.
    m = 1e-12
    threshold = collapse_threshold([1 - 2 * m, m, m])
    assert threshold == pytest.approx(-2 / log(4 * m), rel=1e-9)


@pytest.mark.parametrize(
    "priors", [(0.5, 0.3, 0.2), (0.5, 0.5 - 1e-9, 1e-9), (0.4, 0.3, 0.3), (0.25,) * 4]
)
def test_without_a_majority_nothing_collapses(priors):
    assert collapse_threshold(priors) == inf
    for temperature in (1.0, 20.0):
        assert off_diagonal(optimal_geometry(priors, temperature).gram).min() < 1


@pytest.mark.parametrize("priors", [(1.0,), (0.5, 0.5), (0.2, 0.8)])
def test_one_or_two_classes_have_no_others_to_keep_apart(priors):
    assert collapse_threshold(priors) == inf


@pytest.mark.parametrize("M", [0.6, 0.8, 0.97])
@pytest.mark.parametrize("split", [(0.5, 0.5), (0.7, 0.2, 0.1), (0.2,) * 5])
def test_both_sides_of_the_threshold(M, split):
    priors = np.array([M, *((1 - M) * np.array(split))])
    threshold = collapse_threshold(priors)
    sign = np.where(np.arange(len(priors)) == 0, -1, 1)
    collapsed = np.outer(sign, sign)

    above = optimal_geometry(priors, threshold * 1.0001)
    np.testing.assert_array_equal(above.gram, collapsed)
    assert above.gap <= 1e-12
    # The search finds the same without knowing of the threshold.
    centers = solve(priors, 1 / (threshold * 1.02))
    np.testing.assert_allclose(gram_of(centers), collapsed, atol=1e-4)

    below = optimal_geometry(priors, threshold * 0.97)
    assert off_diagonal(below.gram).max() < 0.999 + 0.001 * (M < 0.7)
    assert off_diagonal(below.gram[1:, 1:]).min() < 0.99
    excess = literal_value(collapsed, priors, threshold * 0.97) - below.value
    assert excess > 1e-7 > 1e3 * below.gap


@pytest.mark.parametrize("priors", [(0.8, 0.1, 0.1), (0.7, 0.15, 0.1, 0.05)])
def test_just_below_the_threshold_classes_part_in_proportion(priors):
    threshold = collapse_threshold(priors)
    near, far = (
        1 - off_diagonal(optimal_geometry(priors, threshold * (1 - step)).gram[1:, 1:])
        for step in (1e-4, 2e-4)
    )
    assert (near > 1e-5).any()
    np.testing.assert_allclose(far.max() / near.max(), 2, rtol=2e-3)


@pytest.mark.parametrize(
    ("priors", "max_cosine"),
    [
        ((0.9, 0.06, 0.03, 0.01), 0.5),
        ((0.9, 0.06, 0.03, 0.01), -0.3333),
        ((0.4, 0.3, 0.2, 0.1), -0.1),
        (long_tail(6, ratio=10), 0.2),
        (long_tail(20), 0.19),  # exceeded between .145 and .223 only
        ((0.501, 0.3, 0.1, 0.099), 0.999),
    ],
)
def test_collapse_temperature_is_where_the_largest_cosine_crosses(priors, max_cosine):
    crossing = collapse_temperature(priors, max_cosine)
    below, above = (
        optimal_geometry(priors, crossing * factor).max_cosine
        for factor in (1 - 1e-5, 1 + 1e-5)
    )
    assert below < max_cosine < above
    assert above - below < 1e-4


def test_collapse_temperature_is_the_first_crossing():
    # The largest cosine is .15 three times: rising, falling, and rising again.
    priors, limit = long_tail(20), 0.15
    crossing = collapse_temperature(priors, limit)
    assert 0.1 < crossing < 0.2
    exceeds = [
        optimal_geometry(priors, t).max_cosine > limit
        for t in (crossing * 0.999, crossing * 1.001, 0.5, 20.0)
    ]
    assert exceeds == [False, True, False, True]


def test_collapse_temperature_that_the_grid_never_reaches():
    assert collapse_temperature(long_tail(6, ratio=10), 0.5) == inf
    assert collapse_temperature(np.full(6, 1 / 6), -1 / 5) == inf
    assert collapse_temperature([0.9, 0.1], 0.0) == inf
    assert collapse_temperature([0.9, 0.1], -1.0) == inf
    assert collapse_temperature([1.0], 0.0) == inf


def test_collapse_temperature_that_the_simplex_exceeds():
    assert collapse_temperature([0.5, 0.3, 0.2], -0.6) == 0
    assert collapse_temperature([0.5, 0.3, 0.2], -0.5) == 0
    assert collapse_temperature(np.full(6, 1 / 6), -0.3) == 0
    assert 0 < collapse_temperature([0.5, 0.3, 0.2], -0.5 + 1e-6) < 1e-5


@pytest.mark.parametrize("priors", [(0.6, 0.3, 0.1), (0.97, 0.01, 0.01, 0.01)])
def test_collapse_temperature_tends_to_the_threshold(priors):
    threshold = collapse_threshold(priors)
    crossing = collapse_temperature(priors, 1 - 1e-6)
    assert threshold * (1 - 1e-4) < crossing < threshold


# Refused arguments


@pytest.mark.parametrize(
    ("priors", "message"),
    [
        ([[0.5, 0.5]], r"priors is of shape \(1, 2\).*one frequency a class"),
        ([], r"priors is of shape \(0,\).*one frequency a class"),
        (1.0, r"priors is of shape \(\).*one frequency a class"),
        ([0.5, 0.5, 0.0], r"priors=\[0.5, 0.5, 0.0\]: finite numbers above 0"),
        ([1.5, -0.5], r"priors=\[1.5, -0.5\]: finite numbers above 0"),
        ([np.nan, 0.5], r"priors=\[nan, 0.5\]: finite numbers above 0"),
        ([np.inf, 0.5], r"priors=\[inf, 0.5\]: finite numbers above 0"),
        ([5, 3, 2], r"priors=\[5, 3, 2\] has the sum 10: 1, to 1e-6, is allowed"),
        ([0.5, 0.5 + 2e-6], r"has the sum 1.000002: 1, to 1e-6"),
    ],
)
def test_refused_priors(priors, message):
    for call in (
        lambda: optimal_geometry(priors, 0.5),
        lambda: collapse_threshold(priors),
        lambda: collapse_temperature(priors, 0.5),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("temperature", [0, -0.5, inf, np.nan])
def test_refused_temperature(temperature):
    with pytest.raises(
        ValueError, match=f"temperature={temperature}: a finite number above 0"
    ):
        optimal_geometry([0.5, 0.3, 0.2], temperature)


@pytest.mark.parametrize("max_cosine", [1, 1.5, -1.01, np.nan])
def test_refused_max_cosine(max_cosine):
    with pytest.raises(
        ValueError, match=f"max_cosine={max_cosine}: a number from -1 on"
    ):
        collapse_temperature([0.5, 0.3, 0.2], max_cosine)


def test_the_slope_of_the_logarithm_is_its_derivative():
    """By differences, where σ y is small and where it is not."""
    log_logistic = np.log([[1e-12, 1e-3, 0.2, 0.9]])
    for y in (np.full((1, 4), 0.7), np.full((1, 4), -0.6), np.full((1, 4), 1e-7)):
        _, slope = _log1p_ratio(log_logistic, y)
        step = 1e-6
        above, _ = _log1p_ratio(log_logistic, y + step)
        below, _ = _log1p_ratio(log_logistic, y - step)
        np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-6)
