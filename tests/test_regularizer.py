"""RelaxedKMeansRegularizer, alone and as the encoder calls it."""

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import normalize

from skcl import RelaxedKMeansRegularizer
from skcl.clustering import assign, spectral_relaxation

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
    kept = [None if part is None else part.clone() for part in state]
    whole = regularizer.penalty(means, state)
    parts = [regularizer.penalty(means[i : i + 1], state) for i in range(50)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)
    for before, now in zip(kept, state, strict=True):
        assert now is before or torch.equal(before, now)
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
    of_class = [X[y == k].mean(axis=0) for k in (0, 1)]
    np.testing.assert_allclose(state.centers[:2], of_class)
    np.testing.assert_allclose(state.centers[2], X[blob == 2].mean(axis=0), atol=0.05)


def test_rows_that_the_epoch_did_not_start_from_have_a_prior_by_their_label_alone():
    regularizer = RelaxedKMeansRegularizer(3, n_neighbors=3)
    points = normalize(torch.randn(30, 4, generator=generator()), dim=1)
    y = torch.arange(30) % 4 - 1
    y[y == 2] = -1
    state = regularizer.start(points, generator(), y)
    rows = torch.arange(30)
    rows[::2] = -1
    places = [None if row < 0 else row[None] for row in rows]
    each = [
        regularizer.penalty(points[[i]], state, y[[i]], place)
        for i, place in enumerate(places)
    ]
    others = regularizer.penalty(points, state, y)
    value = regularizer.penalty(points, state, y, rows)
    torch.testing.assert_close(value, torch.stack(each).mean())
    assert not torch.isclose(value, others)


def test_an_unlabelled_row_goes_where_labels_reach_it():
    """Two arcs: the far end of each lies nearer to the center of the other's labels."""
    angles = np.radians(np.concatenate([np.arange(0, 100, 2), np.arange(140, 240, 2)]))
    points = torch.tensor(np.column_stack([np.cos(angles), np.sin(angles)]))
    y = torch.full((100,), -1)
    y[0], y[50] = 0, 1  # at 0° and 140°
    squared = torch.cdist(points, points[[0, 50]]).square()
    assert squared[49, 1] < squared[49, 0]  # at 98°
    state = RelaxedKMeansRegularizer(2, n_neighbors=5).start(points, generator(), y)
    assert state.prior[:50].argmax(dim=1).unique().tolist() == [0]
    assert state.prior[50:].argmax(dim=1).unique().tolist() == [1]
    torch.testing.assert_close(state.prior.sum(dim=1), torch.ones(100))
    regularizer = RelaxedKMeansRegularizer(2, n_neighbors=5, temperature=0.5)
    rows = torch.tensor([49, 10, 0])
    pull = points[rows].requires_grad_()
    regularizer.penalty(pull, state, y[rows], rows).backward()
    towards_own = (pull.grad * (pull - points[0])).sum(dim=1)
    assert (towards_own[:2] > 0).all()
    alone = RelaxedKMeansRegularizer(2, n_neighbors=None).start(points, generator(), y)
    assert alone.prior[[0, 49]].tolist() == [[1, 0], [0.5, 0.5]]
    # Of held-out rows no more is known than their labels.
    held_out = regularizer.penalty(points[rows], state, y[rows])
    known = regularizer.penalty(points[rows], alone, y[rows], rows)
    torch.testing.assert_close(held_out, known)


def test_labels_leave_free_clusters_their_share():
    points = torch.nn.functional.normalize(
        torch.tensor(np.random.RandomState(0).normal(size=(60, 3)))
    )
    y = torch.arange(60) % 6 - 4  # two classes, two thirds unlabelled
    state = RelaxedKMeansRegularizer(5).start(points, generator(), y.clamp_min(-1))
    free = state.prior[y < 0, 2:]
    torch.testing.assert_close(free, torch.full_like(free, 0.2))
    assert (state.prior[y >= 0, 2:] == 0).all()


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


def weights(n, seed=0):
    return np.random.RandomState(seed).exponential(size=n) ** 2


def assert_same_fit(a, b):
    np.testing.assert_array_equal(a.cluster_centers_, b.cluster_centers_)
    assert a.inertia_ == b.inertia_
    assert a.relaxed_inertia_ == b.relaxed_inertia_
    assert a.n_iter_ == b.n_iter_


@both
def test_weighted_clusters_are_those_of_kmeans(relaxation):
    """From the centers that it ends at, KMeans does not move; nor does it find better.

    With temperature τ = 1e-6, the entropic objective is KMeans' own.
    """
    X, _ = make_blobs(400, 6, centers=6, random_state=0)
    w = weights(400)
    ours = RelaxedKMeansRegularizer(
        6, relaxation=relaxation, temperature=1e-6, tol=0, random_state=0
    ).fit(X, sample_weight=w)
    kmeans = KMeans(6, init=ours.cluster_centers_, n_init=1, tol=0)
    kmeans.fit(X, sample_weight=w)
    np.testing.assert_allclose(
        kmeans.cluster_centers_, ours.cluster_centers_, atol=1e-9
    )
    assert ours.inertia_ == pytest.approx(kmeans.inertia_)
    assert ours.score(X, sample_weight=w) == pytest.approx(
        kmeans.score(X, sample_weight=w)
    )
    assert ours.score(X) == pytest.approx(kmeans.score(X))
    restarted = KMeans(6, n_init=10, random_state=0).fit(X, sample_weight=w)
    assert ours.inertia_ == pytest.approx(restarted.inertia_, rel=1e-6)


@both
def test_weighted_relaxed_inertia(relaxation, rows):
    w = weights(120)
    ours = RelaxedKMeansRegularizer(3, relaxation=relaxation, random_state=0)
    ours.fit(rows, sample_weight=w)
    squared = ((rows[:, None] - ours.cluster_centers_) ** 2).sum(axis=2)
    assert ours.inertia_ == pytest.approx((w * squared.min(axis=1)).sum())
    expected = -0.1 * (w * np.log(np.exp(-squared / 0.1).sum(axis=1))).sum()
    if relaxation == "spectral":
        tail = spectral_relaxation(torch.tensor(rows), 3, torch.tensor(w))
        expected = tail.item() * w.sum()
    assert ours.relaxed_inertia_ == pytest.approx(expected)
    assert ours.relaxed_inertia_ <= ours.inertia_


@both
def test_a_row_of_weight_zero_is_absent_but_labelled(relaxation, rows):
    w = np.where(np.arange(120) % 3, weights(120), 0)
    X = rows.copy()
    X[w == 0] += 100  # a center there would be seen
    ours = RelaxedKMeansRegularizer(4, relaxation=relaxation, random_state=0)
    absent = RelaxedKMeansRegularizer(4, relaxation=relaxation, random_state=0)
    ours.fit(X, sample_weight=w)
    absent.fit(X[w > 0], sample_weight=w[w > 0])
    assert_same_fit(ours, absent)
    np.testing.assert_array_equal(ours.labels_, ours.predict(X))
    assert ours.score(X, sample_weight=w) == absent.score(
        X[w > 0], sample_weight=w[w > 0]
    )
    # Those that are left may be equal: then they are none.
    ours.fit(X, sample_weight=w > 0)
    assert_same_fit(ours, absent.fit(X[w > 0]))


@both
def test_equal_weights_are_none(relaxation, rows):
    plain = RelaxedKMeansRegularizer(4, relaxation=relaxation, random_state=0)
    equal = RelaxedKMeansRegularizer(4, relaxation=relaxation, random_state=0)
    plain.fit(rows)
    assert_same_fit(equal.fit(rows, sample_weight=np.ones(120)), plain)
    equal.fit(rows, sample_weight=np.full(120, 2.0))
    np.testing.assert_array_equal(equal.cluster_centers_, plain.cluster_centers_)
    assert equal.inertia_ == 2 * plain.inertia_  # as KMeans has it
    assert equal.relaxed_inertia_ == 2 * plain.relaxed_inertia_
    assert equal.score(rows, sample_weight=np.ones(120)) == plain.score(rows)


@both
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_layout_of_the_rows_changes_nothing_about_absence(
    relaxation, dtype, order, rows
):
    w = np.arange(120) % 3
    X = np.asarray(rows, dtype=dtype, order=order)
    ours = RelaxedKMeansRegularizer(3, relaxation=relaxation, random_state=0)
    absent = RelaxedKMeansRegularizer(3, relaxation=relaxation, random_state=0)
    ours.fit(X, sample_weight=w)
    assert_same_fit(ours, absent.fit(X[w > 0], sample_weight=w[w > 0]))


@both
def test_an_outlier_of_no_weight_gets_no_center(relaxation):
    """K-means++ would start from it, and no step would leave it."""
    X, _ = make_blobs(
        100, centers=[[0, 0], [4, 0]], cluster_std=0.1, random_state=0, shuffle=False
    )
    X[0] = 1e12  # nor must an offset of its size cost the others their digits
    w = np.ones(100)
    w[0] = 1e-28
    ours = RelaxedKMeansRegularizer(2, relaxation=relaxation, random_state=0)
    centers = ours.fit(X, sample_weight=w).cluster_centers_
    np.testing.assert_allclose(
        centers[centers[:, 0].argsort()], [[0, 0], [4, 0]], atol=0.1
    )
    X[0] = 100
    assert ours.fit(X).cluster_centers_.max() > 99


@both
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.arange(7) - 1.0, r"sample_weight\[0\] is -1.0: finite"),
        ([1, 1, np.nan, 1, 1, 1, 1], "is nan: finite"),
        (np.zeros(7), r"weight is zero for all"),
        (np.ones(6), r"shape \(6,\)"),
    ],
)
def test_weights_refused(relaxation, weight, message, rows):
    ours = RelaxedKMeansRegularizer(2, relaxation=relaxation)
    with pytest.raises(ValueError, match=message):
        ours.fit(rows[:7], sample_weight=weight)
    ours.fit(rows[:7])
    with pytest.raises(ValueError, match=message):
        ours.score(rows[:7], sample_weight=weight)


@both
def test_as_many_rows_as_clusters_must_count(relaxation, rows):
    ours = RelaxedKMeansRegularizer(4, relaxation=relaxation)
    with pytest.raises(ValueError, match=r"n_samples=3 should be .* Rows of weight 0"):
        ours.fit(rows[:7], sample_weight=[1, 2, 3, 0, 0, 0, 0])


@both
def test_a_cluster_without_rows_that_count_is_a_warning(relaxation):
    X = np.repeat([[0.0], [1.0]], 5, axis=0)
    ours = RelaxedKMeansRegularizer(2, relaxation=relaxation, random_state=0)
    ours.fit(X)
    with pytest.warns(ConvergenceWarning, match="Only 1 of n_clusters=2"):
        ours.fit(X, sample_weight=np.repeat([1, 0], 5))


@both
def test_weights_in_an_encoder_are_repeated_rows(relaxation):
    """With every row labelled: otherwise k-means++ draws its starts."""
    rng = np.random.RandomState(0)
    means = torch.tensor(rng.normal(size=(60, 4)))
    y, copies = torch.tensor(rng.randint(0, 3, 60)), torch.tensor(rng.randint(1, 4, 60))
    w, repeat = copies / 1000, torch.arange(60).repeat_interleave(copies)
    regularizer = RelaxedKMeansRegularizer(3, relaxation=relaxation)
    state = regularizer.start(means, generator(), y, sample_weight=w.double())
    expected = regularizer.start(means[repeat], generator(), y[repeat])
    if relaxation == "entropic":
        torch.testing.assert_close(state.centers, expected.centers)
    penalty = regularizer.penalty(means, state, y, sample_weight=w.double())
    torch.testing.assert_close(
        penalty, regularizer.penalty(means[repeat], expected, y[repeat])
    )
    assert penalty != regularizer.penalty(means, state, y)


@pytest.mark.parametrize("labelled", [True, False])
def test_seeds_in_an_encoder_are_drawn_by_weight(labelled):
    """The farthest row alone would be one, but for its weight of nearly nothing."""
    means = torch.tensor([[0.0], [0.1], [5.0], [5.1], [50.0]])
    w = torch.tensor([1.0, 1.0, 1.0, 1.0, 1e-12])
    y = torch.tensor([0, 0, -1, -1, -1]) if labelled else None
    regularizer = RelaxedKMeansRegularizer(2)
    state = regularizer.start(means, generator(), y, sample_weight=w)
    centers = state.centers.sort(dim=0).values
    torch.testing.assert_close(centers, torch.tensor([[0.05], [5.05]]))
    plain = regularizer.start(means, generator(), y).centers
    assert plain.max() > 40


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_the_seed_of_a_class_is_its_weighted_mean(scale):
    """The next seed lies far from it: at 50. From 0, or from 50, it were 100."""
    labelled, free = [[100.0], [100.0], [0.0]], [[100.1], [100.1], [50.0], [50.0]]
    means = torch.tensor(labelled + free)
    y = torch.tensor([0, 0, 0, -1, -1, -1, -1])
    w = torch.tensor([1, 1, 1e-12, 1, 1, 1, 1]) * scale
    state = RelaxedKMeansRegularizer(2).start(means, generator(), y, sample_weight=w)
    torch.testing.assert_close(state.centers, torch.tensor([[100.0], [50.0]]))


def test_unlabelled_rows_of_little_weight_get_a_seed():
    """On the classes' centers, too, where the squared distances vanish."""
    means = torch.zeros(4, 2)
    w = torch.tensor([1.0, 1.0, 1e-30, 1e-30])
    y = torch.tensor([0, 0, -1, -1])
    state = RelaxedKMeansRegularizer(2).start(means, generator(), y, sample_weight=w)
    torch.testing.assert_close(state.centers, torch.zeros(2, 2))


def test_a_class_without_rows_attracts_none():
    """As in a chunk of a stream, whose labels leave a class out."""
    generator = torch.Generator().manual_seed(0)
    means = torch.nn.functional.normalize(torch.randn(40, 4, generator=generator))
    y = torch.tensor([0, 2, -1, -1] * 10)
    centers, prior = RelaxedKMeansRegularizer(3).start(means, generator, y)
    assert assign(means, centers, 0.1, prior)[y < 0, 1].max() == 0
    renamed = RelaxedKMeansRegularizer(2).start(means, generator, y.clamp_max(1))
    torch.testing.assert_close(centers[[0, 2]], renamed.centers)
    torch.testing.assert_close(prior[:, [0, 2]], renamed.prior)
