"""The discrepancy bound, term by term: on random measures, and on real encoders."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

from skcl import RelaxedKMeansRegularizer, theory
from skcl.datasets import load_keel
from skcl.losses import LOSSES

MEANS = [
    "contrastive_loss",
    "incurred_loss",
    "discrepancy",
    "squared_discrepancy",
    "alignment",
    "uniformity",
]
TERMS = [
    *MEANS,
    "lower_bound",
    "upper_bound",
    "relative_discrepancy",
    "unbiased_squared_discrepancy",
]


def unit(array):
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def fixture():
    """Three rows of two views in the plane, worked out in closed form."""
    angles = np.radians([[0, 60], [90, 30], [180, 240]])
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1), np.array([0, 0, 1])


def random_rows(rng, ragged=False):
    """Views and classes: few or many, near or apart, of equal or very unequal sizes."""
    n, d, K = rng.randint(1, 40), rng.randint(1, 9), rng.randint(1, 6)
    K = min(n, K)
    prior = rng.dirichlet(np.full(K, rng.choice([0.1, 1.0, 10.0])))
    y = np.concatenate([np.arange(K), rng.choice(K, n - K, p=prior)])
    counts = rng.randint(1, 6, n) if ragged else np.full(n, rng.randint(1, 6))
    rows = rng.normal(size=(K, d))[y] + 2 * rng.rand() * rng.normal(size=(n, d))
    noise = 2 * rng.rand()
    views = [
        unit(row + noise * rng.normal(size=(V, d)))
        for row, V in zip(rows, counts, strict=True)
    ]
    return views if ragged else np.stack(views), y


def assert_inside(bound):
    for terms in (vars(bound), bound.per_class):
        assert np.all(terms["lower_bound"] <= terms["incurred_loss"] + 1e-9)
        assert np.all(terms["incurred_loss"] <= terms["upper_bound"] + 1e-9)


@pytest.mark.parametrize(
    ("loss", "t", "expected"),
    [
        (
            "infonce",
            0.5,
            {
                "alignment": 0.75,
                "uniformity": 1.0023382420,
                "contrastive_loss": -0.4976617580,
                "squared_discrepancy": 0.0334936491,
                "discrepancy": 0.1494292454,
                "incurred_loss": -0.5784327465,
                "upper_bound": -0.4306744599,
                "lower_bound": -0.4306744599 - 1.6698496335,
                "relative_discrepancy": 0.0502404736,
            },
        ),
        (
            "spectral",
            None,
            {
                "contrastive_loss": -0.9027777778,
                "incurred_loss": -0.9216746053,
                "uniformity": -0.9027777778 + 2 * 0.75,
            },
        ),
    ],
)
def test_fixture(loss, t, expected):
    bound = theory.discrepancy_bound(*fixture(), t, loss)
    for name, value in expected.items():
        assert getattr(bound, name) == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("loss", theory.LOSSES)
def test_both_bounds_hold_on_random_measures(loss, ragged):
    """Over all rows and for each class, with weights and without: 2,400 measures."""
    rng = np.random.RandomState(0)
    for i in range(300):
        views, y = random_rows(rng, ragged)
        w = np.exp(2 * rng.normal(size=len(y))) if i % 3 == 0 else None
        t = 10 ** rng.uniform(-2, 1)
        assert_inside(theory.discrepancy_bound(views, y, t, loss, sample_weight=w))


@pytest.mark.parametrize("loss", theory.LOSSES)
def test_the_upper_bound_is_reached_where_classes_are_points(loss):
    """Jensen's inequality, the slack, is then an equality."""
    rng = np.random.RandomState(1)
    for _ in range(20):
        y = np.arange(12) % 3
        views = np.repeat(unit(rng.normal(size=(3, 1, 4)))[y], 2, axis=1)
        bound = theory.discrepancy_bound(views, y, 0.4, loss)
        assert bound.incurred_loss == pytest.approx(bound.upper_bound, abs=1e-9)


@pytest.mark.parametrize("loss", ["infonce", "supcon"])
def test_the_width_of_the_interval(loss):
    """h(λ) of docs/theory.md, which is at most λ² / 2 and 2 λ."""
    for t, h in [
        (0.1, 16.004268),
        (0.2, 6.697824),
        (0.5, 1.669850),
        (1, 0.474475),
        (2, 0.123302),
    ]:
        bound = theory.discrepancy_bound(*fixture(), t, loss)
        assert bound.upper_bound - bound.lower_bound == pytest.approx(h, abs=1e-6)
        assert h <= min(0.5 / t**2, 2 / t)


@pytest.mark.parametrize("loss", theory.LOSSES)
@pytest.mark.parametrize("t", [1e-300, 1e-12, 1e-6, 1e-3, 1e3, 1e6, 1e15, 1e300])
def test_extreme_temperatures(loss, t):
    """Also of views whose norms are as far from 1 as they may be."""
    views, y = fixture()
    for factor in (1, np.array([[[0.9985]], [[1.0015]], [[1]]])):
        bound = theory.discrepancy_bound(views * factor, y, t, loss)
        terms = [getattr(bound, name) for name in TERMS]
        assert np.isfinite(terms).all()
        assert_inside(bound)
        if loss != "spectral" and 1e3 <= t <= 1e100:
            width = bound.upper_bound - bound.lower_bound
            first = bound.discrepancy / t if loss == "logistic" else 0
            assert width - first == pytest.approx(0.5 / t**2, rel=1e-3, abs=1e-15)


def test_the_rounding_of_norms_is_removed():
    views, y = fixture()
    expected = theory.discrepancy_bound(views, y, 0.5)
    rounded = views * np.array([[[0.9985]], [[1.0015]], [[1]]])
    bound = theory.discrepancy_bound(rounded, y, 0.5)
    for name in TERMS:
        assert getattr(bound, name) == pytest.approx(getattr(expected, name), abs=1e-12)


def test_equal_views_at_low_temperatures():
    """Whose similarity may round to more than 1."""
    views = unit(np.random.RandomState(0).normal(size=(40, 1, 7))).repeat(2, axis=1)
    for t in (1e-300, 1e-20, 1e-10):
        loss = theory.contrastive_loss(views, t)
        assert np.isfinite(loss)
    assert loss == pytest.approx(-np.log(40), abs=1e-3)


def test_the_width_of_the_logistic_interval():
    """By hand: views ±1 of a row, with positive mean and center 0, of u ±2 λ or 0.

    The chord of log(1 + exp(-u)) on [-2 λ, 2 λ] is log cosh λ above it at 0.
    """
    lam = 2.0
    bound = theory.discrepancy_bound([[[1.0], [-1.0]]], [0], 1 / lam, "logistic")
    u = np.array([-2, 0, 0, 2]) * lam
    assert bound.contrastive_loss == pytest.approx(np.log1p(np.exp(-u)).mean())
    assert bound.incurred_loss == pytest.approx(np.log(2))
    width = bound.upper_bound - bound.lower_bound
    assert width == pytest.approx(np.log(np.cosh(lam)))
    # A discrepancy of mean .2 adds it to the width, times λ.
    bounds = [
        bound_of(0.0, [0.1, 0.3], 1 / lam, "logistic")
        for bound_of in (theory.lower_bound, theory.upper_bound)
    ]
    assert np.diff(bounds) == pytest.approx(width + 0.2 * lam)
    assert bounds[1] == pytest.approx(lam * (0.2 + 0.05) / 2)


def test_other_centers_widen_the_bound_by_their_distance():
    """And the bound with their distances holds for the classes' own."""
    rng = np.random.RandomState(8)
    for _ in range(300):
        views, y = random_rows(rng)
        t = 10 ** rng.uniform(-1, 1)
        bound = theory.discrepancy_bound(views, y, t)
        moves = rng.normal(size=bound.centers.shape) * 10 ** rng.uniform(-3, 0)
        others, moves = bound.centers + moves, np.linalg.norm(moves, axis=1)
        with_others = theory.incurred_loss(views, y, t, centers=others)
        allowed = (moves[y].mean() + moves.max()) / t
        assert with_others <= bound.upper_bound + allowed + 1e-9
        farther = theory.internal_discrepancy(views.mean(axis=1), others, y)
        upper = theory.upper_bound(bound.contrastive_loss, farther, t)
        assert bound.incurred_loss <= upper + 1e-9


def test_the_entropic_relaxation_bounds_what_its_own_clusters_incur():
    """For any centers, with the rows' nearest as classes: docs/theory.md, 7.4."""
    rng = np.random.RandomState(9)
    for _ in range(300):
        views, _ = random_rows(rng)
        K, t, tau = (
            rng.randint(1, 6),
            10 ** rng.uniform(-1, 1),
            10 ** rng.uniform(-3, 0),
        )
        means = views.mean(axis=1)
        centers = 0.5 * rng.normal(size=(K, means.shape[1]))
        squared = ((means[:, None] - centers) ** 2).sum(axis=2)
        entropic = -tau * logsumexp(-squared / tau, axis=1).mean()
        bound = theory.discrepancy_bound(views, squared.argmin(axis=1), t)
        upper = bound.contrastive_loss + (entropic + tau * np.log(K)) / t
        assert bound.incurred_loss <= upper + 1e-9


def test_rows_weigh_the_same_however_many_views_they_have():
    """A single view is that view twice."""
    rng = np.random.RandomState(2)
    pairs, y = unit(rng.normal(size=(9, 2, 3))), np.arange(9) % 3
    pairs[::2, 1] = pairs[::2, 0]
    ragged = [row[: 2 - (i % 2 == 0)] for i, row in enumerate(pairs)]
    for loss in theory.LOSSES:
        whole = theory.discrepancy_bound(pairs, y, 0.3, loss)
        parts = theory.discrepancy_bound(ragged, y, 0.3, loss)
        for name in {*MEANS, "lower_bound", "upper_bound", "relative_discrepancy"}:
            assert getattr(parts, name) == pytest.approx(getattr(whole, name)), name
            np.testing.assert_allclose(
                parts.per_class[name], whole.per_class[name], atol=1e-12
            )


@pytest.mark.parametrize("loss", theory.LOSSES)
def test_terms_are_those_of_the_single_functions(loss):
    rng = np.random.RandomState(3)
    for w in (None, rng.randint(0, 4, 30)):
        views, y = unit(rng.normal(size=(30, 3, 4))), np.arange(30) % 4
        bound = theory.discrepancy_bound(views, y, 0.3, loss, sample_weight=w)
        means = views.mean(axis=1)
        centers = theory.class_centers(means, y, sample_weight=w)
        discrepancy = theory.internal_discrepancy(means, centers, y)
        loss_terms = {"loss": loss, "sample_weight": w}
        contrastive = theory.contrastive_loss(views, 0.3, y=y, **loss_terms)
        incurred = theory.incurred_loss(views, y, 0.3, **loss_terms)
        upper = theory.upper_bound(contrastive, discrepancy, 0.3, **loss_terms)
        lower = theory.lower_bound(contrastive, discrepancy, 0.3, **loss_terms)
        relative = theory.relative_discrepancy(means, centers, y, sample_weight=w)
        np.testing.assert_allclose(bound.centers, centers)
        assert bound.discrepancy == pytest.approx(np.average(discrepancy, weights=w))
        assert bound.contrastive_loss == pytest.approx(contrastive)
        assert bound.incurred_loss == pytest.approx(incurred)
        assert bound.upper_bound == pytest.approx(upper)
        assert bound.lower_bound == pytest.approx(lower)
        assert bound.relative_discrepancy == pytest.approx(relative)


def test_overall_terms_are_the_means_of_the_classes():
    rng = np.random.RandomState(4)
    for loss in theory.LOSSES:
        views, y = random_rows(rng, ragged=True)
        w = rng.rand(len(y))
        bound = theory.discrepancy_bound(views, y, 0.3, loss, sample_weight=w)
        prior = np.bincount(y, w) / w.sum()
        np.testing.assert_allclose(bound.per_class["prior"], prior)
        np.testing.assert_array_equal(bound.per_class["n_rows"], np.bincount(y))
        for name in (*MEANS, "lower_bound", "upper_bound"):
            mean = prior @ bound.per_class[name]
            assert mean == pytest.approx(getattr(bound, name), abs=1e-12), name


def test_labels_of_any_type():
    views, y = fixture()
    codes = theory.discrepancy_bound(views, y, 0.5)
    for names in (
        ["b", "b", "z"],
        [7.5, 7.5, 9],
        [-5, -5, -3],
        [False, False, True],
        pd.Categorical(["x", "x", "y"]),
        pd.Series(["x", "x", "y"], index=[3, 3, 0]),
    ):
        bound = theory.discrepancy_bound(views, names, 0.5)
        assert bound.upper_bound == codes.upper_bound
        assert list(bound.classes) == sorted(set(names))


def test_a_row_of_weight_zero_is_absent_whatever_its_views():
    views, y = fixture()
    spoilt = np.concatenate([views, np.full((1, 2, 2), np.nan)])
    bound = theory.discrepancy_bound(
        spoilt, [0, 0, 1, 5], 0.5, sample_weight=[1, 1, 1, 0]
    )
    expected = theory.discrepancy_bound(views, y[:3], 0.5)
    for name in TERMS:
        assert getattr(bound, name) == getattr(expected, name)
    assert bound.classes.tolist() == [0, 1]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_unbiased_discrepancy_is_unbiased_at_two_views(weighted):
    """Drawn rows, each with two drawn views, of a population of 40 rows of 25 views.

    The plain one is far off: it counts the noise of two views as discrepancy.
    """
    rng = np.random.RandomState(5)
    y = np.repeat([0, 1], [30, 10])
    rows = rng.normal(size=(2, 1, 3))[y] + 0.7 * rng.normal(size=(40, 1, 3))
    population = unit(rows + 0.8 * rng.normal(size=(40, 25, 3)))
    truth = theory.discrepancy_bound(population, y, 1.0).per_class[
        "squared_discrepancy"
    ]
    unbiased, plain = [], []
    for _ in range(1500):
        drawn = np.concatenate([rng.choice(30, 9), 30 + rng.choice(10, 4)])
        views = population[drawn[:, None], rng.randint(25, size=(13, 2))]
        w = np.arange(1, 14) if weighted else None
        bound = theory.discrepancy_bound(views, y[drawn], 1.0, sample_weight=w)
        unbiased.append(bound.per_class["unbiased_squared_discrepancy"])
        plain.append(bound.per_class["squared_discrepancy"])
    error = np.std(unbiased, axis=0) / np.sqrt(len(unbiased))
    assert (np.abs(np.mean(unbiased, axis=0) - truth) < 4 * error).all()
    assert (np.abs(np.mean(plain, axis=0) - truth) > 10 * error).any()


def test_where_the_unbiased_discrepancy_is_undefined():
    rng = np.random.RandomState(6)
    views = list(unit(rng.normal(size=(7, 2, 3))))
    y = np.array([0, 0, 0, 1, 2, 2, 2])
    bound = theory.discrepancy_bound(views, y, 0.5)
    of_classes = bound.per_class["unbiased_squared_discrepancy"]
    assert np.isnan(of_classes).tolist() == [False, True, False]
    # The class of one row is left out; the other two weigh the same.
    assert bound.unbiased_squared_discrepancy == pytest.approx(np.nanmean(of_classes))
    views[0] = views[0][:1]
    of_classes = theory.discrepancy_bound(views, y, 0.5).per_class
    isnan = np.isnan(of_classes["unbiased_squared_discrepancy"])
    assert isnan.tolist() == [True, True, False]
    single = theory.discrepancy_bound([row[:1] for row in views], y, 0.5)
    assert np.isnan(single.unbiased_squared_discrepancy)


@pytest.mark.parametrize("loss", theory.LOSSES)
def test_a_constant_embedding_is_no_perfect_score(loss):
    views, y = np.tile(np.float32([0.6, 0.8]), (6, 2, 1)), [0, 0, 0, 0, 1, 1]
    bound = theory.discrepancy_bound(views, y, 0.2, loss)
    assert bound.squared_discrepancy == pytest.approx(0, abs=1e-12)
    assert bound.relative_discrepancy == 1
    assert bound.per_class["relative_discrepancy"].tolist() == [1, 1]
    assert bound.per_class["collapsed"].all()
    assert bound.vacuous
    constant = theory.CONSTANT_LOSS[loss]
    assert bound.incurred_loss == pytest.approx(constant, abs=1e-6)


@pytest.mark.parametrize("t", [1e-6, 1.0, 1e6])
def test_what_counts_as_vacuous(t):
    """0 up to rounding, on the scale that losses have at a temperature."""
    scale = min(1, 1 / t)
    assert not theory.is_vacuous(-0.01 * scale, t)
    assert theory.is_vacuous(-1e-8 * scale, t)
    assert theory.is_vacuous(np.nan, t)


def test_a_good_embedding_is_not_vacuous():
    views = np.repeat(np.eye(3)[:, None], 4, axis=1)[np.arange(30) % 3]
    for loss in theory.LOSSES:
        bound = theory.discrepancy_bound(views, np.arange(30) % 3, 0.2, loss)
        assert not bound.vacuous
        assert bound.relative_discrepancy == 0
        assert not bound.per_class["collapsed"].any()


def collapse(sizes, places, noises, n_draws=60):
    """Return which classes count as collapsed, and how often, and their terms."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    bounds = []
    for seed in range(n_draws):
        rng = np.random.RandomState(seed)
        rows = np.asarray(places, dtype=float)[y]
        rows = rows + np.take(noises, y)[:, None] * rng.normal(size=rows.shape)
        views = np.repeat(unit(rows)[:, None], 2, axis=1)
        bounds.append(theory.discrepancy_bound(views, y, 0.2))
    return np.mean([bound.per_class["collapsed"] for bound in bounds], axis=0), bounds


def test_a_collapsed_minority_shows_although_the_majority_is_healthy():
    """Two small classes of one law, beside a large one and a small one apart."""
    places = np.eye(5)[[0, 1, 1, 2]]
    flagged, bounds = collapse([200, 12, 12, 12], places, [0.2] * 4)
    assert flagged[[0, 3]].tolist() == [0, 0]
    assert flagged[[1, 2]].min() > 0.9
    assert max(bound.relative_discrepancy for bound in bounds) < 0.5
    relative = [bound.per_class["relative_discrepancy"] for bound in bounds]
    relative = np.mean(relative, axis=0)
    # Of n rows a class, 1 - 1/n against 1 - 1/n + 2/n of the variance.
    assert relative[[1, 2]] == pytest.approx(11 / 13, abs=0.03)
    assert relative[[0, 3]].max() < 0.3


def test_collapse_is_judged_by_the_spread_of_the_two_classes_alone():
    """Not by that of a majority, wide or tight."""
    near = [[0, 1, 0, 0, 0], [0, 1, 0.2, 0, 0]]
    apart, _ = collapse([200, 12, 12], [[1, 0, 0, 0, 0], *near], [0.6, 0.02, 0.02])
    assert apart.tolist() == [0, 0, 0]
    equal = [[0, 1, 0, 0, 0]] * 2
    alike, _ = collapse([500, 8, 8], [[1, 0, 0, 0, 0], *equal], [0.02, 0.6, 0.6])
    assert alike[0] == 0
    assert alike[1:].min() > 0.85


def literally_collapsed(views, y, w):
    """Two deviations above the mean of equal centers, pair by pair."""
    means, K = views.mean(axis=1), y.max() + 1
    centers, covariances = [], []
    for k in range(K):
        of_k, share = means[y == k], w[y == k] / w[y == k].sum()
        centers.append(share @ of_k)
        moved = of_k - centers[-1]
        squared = (share**2).sum()
        spread = (share[:, None] * moved).T @ moved / (1 - squared)
        covariances.append(spread * squared)
    flags = np.zeros(K, dtype=bool)
    for k in range(K):
        for j in set(range(K)) - {k}:
            C = covariances[k] + covariances[j]
            limit = np.trace(C) + 2 * np.sqrt(2 * np.trace(C @ C))
            flags[k] |= ((centers[k] - centers[j]) ** 2).sum() <= limit
    return flags


def test_collapse_equals_the_literal_rule():
    """Of classes near the limit, with weights: about half of them are beyond."""
    rng, found = np.random.RandomState(10), []
    for _ in range(300):
        y = np.repeat([0, 1, 2], rng.randint(2, 12, 3))
        places = rng.normal(size=(3, 1, 4)) + 2 * np.eye(4)[:1]
        views = unit(places[y] + rng.uniform(0.1, 2) * rng.normal(size=(len(y), 2, 4)))
        w = np.exp(rng.normal(size=len(y)))
        bound = theory.discrepancy_bound(views, y, 0.5, sample_weight=w)
        collapsed = bound.per_class["collapsed"]
        np.testing.assert_array_equal(collapsed, literally_collapsed(views, y, w))
        found += collapsed.tolist()
    assert 0.2 < np.mean(found) < 0.8


def test_a_class_of_one_row_is_taken_to_spread_as_the_others_do():
    places = np.eye(5)[[0, 1, 1, 2]]
    flagged, _ = collapse([200, 20, 1, 1], places, [0.15] * 4)
    assert flagged[[0, 3]].tolist() == [0, 0]
    assert flagged[[1, 2]].min() > 0.85
    # Of classes of one row nothing is known.
    assert collapse([1, 1, 1], np.eye(3), [0.1] * 3)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("table", ["wine", "ecoli3"])
@pytest.mark.parametrize("loss", LOSSES)
def test_both_bounds_hold_for_encoders_of_real_tables(loss, table, make_encoder):
    X, y = load_wine(return_X_y=True) if table == "wine" else load_keel(table)
    train, test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    encoder = make_encoder(
        loss=loss, regularizer=RelaxedKMeansRegularizer(2), regularizer_weight=0.1
    ).fit(train, y_train)
    for rows, labels in ((train, y_train), (test, y_test)):
        views = encoder.embed_views(rows, 4)
        bound = theory.discrepancy_bound(views, labels, encoder.temperature, loss)
        assert_inside(bound)


def test_memory_does_not_grow_with_the_square_of_the_rows():
    """All pairs of 6,000 views are 275 MiB; a block of them is 2 MiB."""
    rng = np.random.RandomState(7)
    views, y = unit(rng.normal(size=(1500, 4, 8))), np.arange(1500) % 3
    tracemalloc.start()
    for loss in ("infonce", "spectral", "logistic"):
        rows = slice(300 if loss == "logistic" else None)
        theory.discrepancy_bound(views[rows], y[rows], 0.5, loss)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "simclr"}, r"loss='simclr': \(.*\) are allowed"),
        ({"temperature": 0}, "temperature=0: a finite number above 0"),
        ({"temperature": np.nan}, "temperature=nan: a finite number above 0"),
        ({"temperature": None}, "temperature=None: a finite number above 0"),
        ({"temperature": "hot"}, "temperature='hot': a finite number above 0"),
        ({"views": np.ones((3, 2, 2))}, r"norm 1\.41\d* in row 0: unit vectors"),
        ({"views": np.full((3, 2, 2), np.nan)}, "norm nan in row 0: unit vectors"),
        ({"views": np.eye(3)}, r"views has rows of shape \(3,\): \(n_views, n_dim"),
        ({"views": np.ones((3, 0, 2))}, r"views is of shape \(3, 0, 2\): at least one"),
        ({"views": np.ones((0, 2, 2)), "y": []}, r"of shape \(0, 2, 2\): at least one"),
        (
            {"views": [np.eye(2), np.eye(3), np.eye(2)]},
            r"rows of shape \(2, 2\), \(3, 3\)",
        ),
        (
            {"views": [np.eye(2), np.eye(2)[0], np.eye(2)]},
            r"rows of shape \(2,\), \(2, 2",
        ),
        ({"y": [0, 1]}, r"y is of shape \(2,\): \(3,\), one a row"),
        ({"y": [0, 1, -1]}, "y holds -1"),
        ({"y": np.array(["a", "b", -1], dtype=object)}, "y holds labels of several"),
        ({"y": np.array([0, 1, -1], dtype=object)}, "y holds -1"),
        ({"y": [0, 1, np.nan]}, "y holds a missing label"),
        ({"y": np.array(["a", None, "b"], dtype=object)}, "y holds a missing label"),
        ({"y": None}, "y=None: a class for each row"),
        ({"sample_weight": [1, -1, 1]}, r"sample_weight\[1\] is -1"),
    ],
)
def test_refused_arguments(change, message):
    views, y = fixture()
    arguments = {"views": views, "y": y, "temperature": 0.5} | change
    with pytest.raises(ValueError, match=message):
        theory.discrepancy_bound(**arguments)
