"""RelaxedKMeansRegularizer, alone and as the encoder calls it."""

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from skcl import RelaxedKMeansRegularizer
from skcl.clustering import spectral_relaxation

both = pytest.mark.parametrize("relaxation", ["spectral", "entropic"])


def generator():
    return torch.Generator().manual_seed(0)


@both
@pytest.mark.parametrize("seed", range(3))
def test_clusters_as_well_as_kmeans(relaxation, seed):
    X, _ = make_blobs(400, 6, centers=6, random_state=seed)
    kmeans = KMeans(6, n_init=10, random_state=0).fit(X)
    ours = RelaxedKMeansRegularizer(6, relaxation=relaxation, random_state=0).fit(X)
    assert ours.inertia_ == pytest.approx(kmeans.inertia_, rel=1e-3)
    assert adjusted_rand_score(ours.labels_, kmeans.labels_) > 0.99
    assert ours.relaxed_inertia_ <= ours.inertia_


@both
def test_clusters_digits_as_well_as_kmeans(relaxation):
    X, _ = load_digits(return_X_y=True)
    kmeans = KMeans(10, n_init=10, random_state=0).fit(X)
    ours = RelaxedKMeansRegularizer(10, relaxation=relaxation, random_state=0).fit(X)
    assert ours.inertia_ <= kmeans.inertia_ * 1.01


@both
def test_attributes_agree(relaxation, rows):
    ours = RelaxedKMeansRegularizer(5, relaxation=relaxation, random_state=0)
    distances = ours.fit_transform(rows)
    np.testing.assert_array_equal(ours.labels_, distances.argmin(axis=1))
    np.testing.assert_array_equal(ours.predict(rows), ours.labels_)
    np.testing.assert_array_equal(ours.fit_predict(rows), ours.labels_)
    assert ours.inertia_ == pytest.approx((distances.min(axis=1) ** 2).sum())
    assert ours.score(rows) == pytest.approx(-ours.inertia_)
    probability = ours.predict_proba(rows)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    expected = np.exp(-(distances**2) / 0.1)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probability, expected, atol=1e-9)
    if relaxation == "spectral":
        tail = spectral_relaxation(torch.tensor(rows), 5).item() * len(rows)
        assert ours.relaxed_inertia_ == pytest.approx(tail)


@both
def test_a_large_offset_loses_nothing(relaxation, rows):
    """Epoch seconds beside each other: 1.7e9 and a few."""
    near = RelaxedKMeansRegularizer(4, relaxation=relaxation, random_state=0)
    far = RelaxedKMeansRegularizer(4, relaxation=relaxation, random_state=0)
    rounded = np.round(rows, 3)
    near.fit(rounded)
    far.fit(rounded + 1.7e9)
    assert adjusted_rand_score(near.labels_, far.labels_) == 1
    assert far.inertia_ == pytest.approx(near.inertia_, rel=1e-4)


@both
@pytest.mark.parametrize("n_clusters", [1, 2, 7])
def test_few_rows(relaxation, n_clusters, rows):
    ours = RelaxedKMeansRegularizer(
        n_clusters, relaxation=relaxation, temperature=1e-4, random_state=0
    )
    ours.fit(rows[:7, :1])
    assert np.isfinite(ours.cluster_centers_).all()
    if n_clusters == 7:
        assert ours.inertia_ == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="n_samples=6 should be >= n_clusters=7"):
        ours.set_params(n_clusters=7).fit(rows[:6])


def test_float32_in_float32_out(rows):
    ours = RelaxedKMeansRegularizer(3, random_state=0).fit(rows)
    assert ours.transform(rows).dtype == np.float64
    assert ours.transform(rows.astype(np.float32)).dtype == np.float32


@both
def test_penalty_is_pure_and_of_any_batch(relaxation):
    """Per row: the mean over a batch is that over its parts; the state stays."""
    means = torch.tensor(np.random.RandomState(0).normal(size=(50, 4)))
    regularizer = RelaxedKMeansRegularizer(9, relaxation=relaxation)
    state = regularizer.start(means, generator())
    kept = [part.clone() for part in state]
    whole = regularizer.penalty(means, state)
    parts = [regularizer.penalty(means[i : i + 1], state) for i in range(50)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)
    assert all(torch.equal(a, b) for a, b in zip(kept, state, strict=True))
    assert set(vars(regularizer)) == set(regularizer.get_params())


def test_spectral_penalty_of_all_rows_is_the_relaxation():
    means = torch.tensor(np.random.RandomState(0).normal(size=(50, 6)))
    regularizer = RelaxedKMeansRegularizer(3, relaxation="spectral")
    state = regularizer.start(means, generator())
    expected = spectral_relaxation(means, 3)
    torch.testing.assert_close(regularizer.penalty(means, state), expected)


def test_entropic_penalty_bounds_the_squared_discrepancy():
    """Of every row to its nearest center, and of a labelled one to its own."""
    means = torch.tensor(np.random.RandomState(0).normal(size=(60, 3)))
    y = torch.arange(60) % 4 - 1
    for labels in (None, y):
        regularizer = RelaxedKMeansRegularizer(5, temperature=0.5)
        state = regularizer.start(means, generator(), labels)
        squared = torch.cdist(means, state.centers) ** 2
        nearest = squared.min(dim=1).values
        if labels is not None:
            own = squared[torch.arange(60), y.clamp(0)]
            nearest = torch.where(y >= 0, own, nearest)
        penalty = regularizer.penalty(means, state, labels)
        assert nearest.mean() <= penalty <= nearest.mean() + 0.5 * math.log(5)


def test_classes_seed_centers_and_the_rest_is_for_unlabelled_rows():
    """Two labelled rows a class, in blobs; a third blob has no label."""
    X, blob = make_blobs(
        90, centers=[[0, 0], [5, 0], [0, 5]], cluster_std=0.2, random_state=0
    )
    y = np.full(90, -1)
    for k in (0, 1):
        y[np.flatnonzero(blob == k)[:2]] = k
    state = RelaxedKMeansRegularizer(3).start(
        torch.tensor(X), generator(), torch.tensor(y)
    )
    expected = [X[blob == k].mean(axis=0) for k in range(3)]
    np.testing.assert_allclose(state.centers, expected, atol=0.05)


@pytest.mark.parametrize(("n_clusters", "n_centers"), [(2, 3), (3, 3), (10, 3)])
def test_with_every_row_labelled_there_is_a_center_a_class(n_clusters, n_centers):
    means = torch.tensor(np.random.RandomState(0).normal(size=(30, 2)))
    y = torch.arange(30) % 3
    regularizer = RelaxedKMeansRegularizer(n_clusters)
    centers = regularizer.start(means, generator(), y).centers
    assert len(centers) == n_centers
    for k in range(3):
        torch.testing.assert_close(centers[k], means[y == k].mean(dim=0))


@both
def test_identical_points(relaxation):
    """Fewer distinct points than clusters: nothing is NaN."""
    ours = RelaxedKMeansRegularizer(3, relaxation=relaxation, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Only 1 of n_clusters=3"):
        ours.fit(np.ones((10, 3)))
    np.testing.assert_allclose(ours.cluster_centers_, 1)
    means = torch.ones(10, 3)
    assert ours.penalty(means, ours.start(means, generator())).isfinite()


def test_a_temperature_too_high_for_the_scale_is_a_warning():
    X, _ = make_blobs(500, 5, centers=6, random_state=1)
    ours = RelaxedKMeansRegularizer(6, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"temperature=0\.1 is high"):
        ours.fit(X * 1e-6)
    assert len(np.unique(ours.set_params(temperature=1e-13).fit(X * 1e-6).labels_)) == 6


@both
def test_inertia_of_groups_far_apart_is_exact(relaxation):
    """Squared distances of 1e18 beside those of 1e-4: no difference of large sums."""
    rng = np.random.RandomState(0)
    X = np.concatenate([rng.normal(size=(50, 2)), 1e9 + rng.normal(size=(50, 2))]) / 100
    ours = RelaxedKMeansRegularizer(2, relaxation=relaxation, random_state=0).fit(X)
    kmeans = KMeans(2, n_init=10, random_state=0).fit(X)
    assert ours.inertia_ == pytest.approx(kmeans.inertia_, rel=1e-4)
    assert ours.score(X) == pytest.approx(-kmeans.inertia_, rel=1e-4)
    assert 0 <= ours.relaxed_inertia_ <= ours.inertia_
    np.testing.assert_array_equal(ours.predict_proba(X).argmax(axis=1), ours.labels_)
    if relaxation == "entropic":
        squared = ((X[:, None] - ours.cluster_centers_) ** 2).sum(axis=2)
        expected = -0.1 * np.log(np.exp(-squared / 0.1).sum(axis=1)).sum()
        assert ours.relaxed_inertia_ == pytest.approx(expected)


def test_an_objective_that_overflows_is_an_error(rows):
    with pytest.raises(ValueError, match=r"temperature=1e-300 overflows"):
        RelaxedKMeansRegularizer(3, temperature=1e-300).fit(rows * 1e100)


def test_soft_assignment_of_a_distant_row(rows):
    ours = RelaxedKMeansRegularizer(3, temperature=1e-9, random_state=0).fit(rows)
    probability = ours.predict_proba(np.full((1, 4), 1e149))
    np.testing.assert_allclose(probability.sum(axis=1), 1)


def test_the_state_of_an_epoch_depends_on_the_means_alone():
    """Targets do not jump from epoch to epoch while the means stay."""
    means = torch.tensor(np.random.RandomState(0).normal(size=(80, 4)))
    regularizer, source = RelaxedKMeansRegularizer(6), generator()
    first = regularizer.start(means, source)
    again = regularizer.start(means, source)
    assert torch.equal(first.centers, again.centers)
