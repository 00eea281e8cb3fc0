"""The exact quantities: the fixture, literal loops, and the bound itself."""

import numpy as np
import pytest

from skcl import losses, theory
from skcl.theory import _measure

ALL = ["infonce", "spectral", "logistic", "supcon"]


def unit(array):
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def fixture():
    """Three rows of two views in the plane, worked out in closed form."""
    angles = np.radians([[0, 60], [90, 30], [180, 240]])
    views = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return views, np.array([0, 0, 1])


def random_measure(rng):
    """Views of rows of imbalanced classes, more or less aligned, in few dimensions."""
    n, V, d = rng.randint(2, 30), rng.randint(1, 5), rng.randint(2, 6)
    K = rng.randint(1, min(n, 5) + 1)
    y = np.concatenate([np.arange(K), rng.choice(K, n - K, p=rng.dirichlet([0.5] * K))])
    center = rng.normal(size=(K, 1, d))[y]
    rows = center + rng.rand() * 2 * rng.normal(size=(n, 1, d))
    return unit(rows + rng.rand() * 2 * rng.normal(size=(n, V, d))), y


def random_weights(rng, n, weighted=True):
    """Weights over several orders of magnitude, or None."""
    return np.exp(2 * rng.normal(size=n)) if weighted else None


def parts(views, y, w=None):
    means = views.mean(axis=1)
    return means, theory.class_centers(means, y, sample_weight=w), y


def everything(views, y, t, w=None):
    """Every number of the theory that depends on weights."""
    means, _, _ = parts(views, y)
    centers = theory.class_centers(means, y, n_classes=5, sample_weight=w)
    discrepancy = theory.internal_discrepancy(means, centers, y)
    relative = theory.relative_discrepancy(means, centers, y, sample_weight=w)
    values = [relative, *centers.ravel()]
    unlabelled = np.where(y == 1, -1, y)
    for loss in ALL:
        contrastive = theory.contrastive_loss(views, t, loss, y, sample_weight=w)
        values += [
            contrastive,
            theory.contrastive_loss(views, t, loss, unlabelled, sample_weight=w),
            theory.incurred_loss(views, y, t, loss, sample_weight=w),
            theory.incurred_loss(views, y, t, loss, centers=centers, sample_weight=w),
            theory.upper_bound(contrastive, discrepancy, t, loss, sample_weight=w),
        ]
    return np.array(values)


def test_fixture():
    views, y = fixture()
    discrepancy = theory.internal_discrepancy(*parts(views, y))
    contrastive = theory.contrastive_loss(views, 0.5)
    bound = theory.upper_bound(contrastive, discrepancy, 0.5)
    assert contrastive == pytest.approx(-0.4976617580, abs=1e-9)
    assert (discrepancy**2).mean() == pytest.approx(0.0334936491, abs=1e-9)
    assert discrepancy.mean() == pytest.approx(0.1494292454, abs=1e-9)
    assert theory.incurred_loss(views, y, 0.5) == pytest.approx(-0.5784327465, abs=1e-9)
    assert bound == pytest.approx(-0.4306744599, abs=1e-9)
    spectral = theory.contrastive_loss(views, None, "spectral")
    incurred = theory.incurred_loss(views, y, None, "spectral")
    assert spectral == pytest.approx(-0.9027777778, abs=1e-9)
    assert incurred == pytest.approx(-0.9216746053, abs=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", ALL)
def test_bound_holds_on_random_measures(loss, weighted):
    rng = np.random.RandomState(0)
    for _ in range(200):
        views, y = random_measure(rng)
        w = random_weights(rng, len(y), weighted)
        t = rng.choice([0.1, 0.2, 0.5, 1.0, 2.0])
        contrastive = theory.contrastive_loss(views, t, loss, y, sample_weight=w)
        discrepancy = theory.internal_discrepancy(*parts(views, y, w))
        bound = theory.upper_bound(contrastive, discrepancy, t, loss, sample_weight=w)
        incurred = theory.incurred_loss(views, y, t, loss, sample_weight=w)
        assert incurred <= bound + 1e-9
        if loss != "logistic":
            coth = 1 / np.tanh(1 / t)
            h = coth / t - 1 + 1 / t + np.log1p(-np.exp(-2 / t)) - np.log(2 / t)
            assert incurred >= bound - (1 if loss == "spectral" else h) - 1e-9


def test_bound_needs_the_same_weights_on_both_sides():
    """Else it fails for some measure: the test above looks at the weights."""
    rng, failures = np.random.RandomState(0), 0
    for _ in range(50):
        views, y = random_measure(rng)
        w = random_weights(rng, len(y))
        contrastive = theory.contrastive_loss(views, 0.5)
        discrepancy = theory.internal_discrepancy(*parts(views, y))
        bound = theory.upper_bound(contrastive, discrepancy, 0.5)
        failures += theory.incurred_loss(views, y, 0.5, sample_weight=w) > bound
    assert failures


def loop_contrastive(views, t, loss, y, w):
    """Draw after draw of anchor, positive and negative, with their probabilities."""
    n, V, _ = views.shape
    all_views = [(j, v) for j in range(n) for v in range(V)]
    probability = [w[j] / (V * sum(w)) for j, _ in all_views]
    total = 0.0
    for (i, v), share in zip(all_views, probability, strict=True):
        z = views[i, v]
        if loss == "supcon" and y[i] >= 0:
            positives = [(j, u) for j, u in all_views if y[j] == y[i]]
        else:
            positives = [(i, u) for u in range(V)]
        of_positive = np.array([w[j] for j, _ in positives])
        of_positive = of_positive / of_positive.sum()
        s_positive = np.array([z @ views[p] for p in positives])
        s_negative = np.array([z @ views[b] for b in all_views])
        if loss == "spectral":
            value = -2 * of_positive @ s_positive + probability @ s_negative**2
        elif loss == "logistic":
            u = np.subtract.outer(s_positive, s_negative) / t
            value = of_positive @ np.log(1 + np.exp(-u)) @ probability
        else:
            of_negative = np.array(probability)
            if loss == "supcon" and y[i] >= 0:  # an unlabelled row may be of its class
                of_negative[[y[j] < 0 for j, _ in all_views]] = 0
            value = np.log(of_negative @ np.exp(s_negative / t) / of_negative.sum())
            value -= of_positive @ s_positive / t
        total += share * value
    return total


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block_size", [2**22, 7])
@pytest.mark.parametrize("loss", ALL)
def test_contrastive_loss_equals_the_literal_loop(
    loss, block_size, weighted, monkeypatch
):
    monkeypatch.setattr(_measure, "_BLOCK_SIZE", block_size)
    rng = np.random.RandomState(1)
    for _ in range(5):
        views, y = random_measure(rng)
        y = np.where(rng.rand(len(y)) < 0.3, -1, y)
        w = random_weights(rng, len(y), weighted)
        of_rows = np.ones(len(y)) if w is None else w
        expected = loop_contrastive(views, 0.4, loss, y, of_rows)
        value = theory.contrastive_loss(views, 0.4, loss, y, sample_weight=w)
        assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic"])
def test_incurred_loss_equals_the_literal_loop(loss, weighted):
    rng = np.random.RandomState(2)
    for _ in range(5):
        views, y = random_measure(rng)
        w = random_weights(rng, len(y), weighted)
        of_rows = np.ones(len(y)) if w is None else w
        means = views.mean(axis=1)
        prior = [of_rows[y == k].sum() / of_rows.sum() for k in range(y.max() + 1)]
        c = [of_rows[y == k] @ means[y == k] for k in range(y.max() + 1)]
        c = [c_k / of_rows.sum() / p for c_k, p in zip(c, prior, strict=True)]
        total = 0.0
        for i, v in np.ndindex(*views.shape[:2]):
            s = [views[i, v] @ c_k for c_k in c]
            own = s[y[i]]
            if loss == "spectral":
                value = -2 * own + np.dot(prior, np.square(s))
            elif loss == "logistic":
                value = np.dot(prior, np.log(1 + np.exp((s - own) / 0.4)))
            else:
                partition = np.dot(prior, np.exp(np.array(s) / 0.4))
                value = -own / 0.4 + np.log(partition)
            total += of_rows[i] * value / of_rows.sum() / views.shape[1]
        value = theory.incurred_loss(views, y, 0.4, loss, sample_weight=w)
        assert value == pytest.approx(total, abs=1e-12)


def test_an_integer_weight_is_that_many_copies_of_the_row():
    """0 too: what an absent row holds is not read, not even its class."""
    rng = np.random.RandomState(4)
    for _ in range(50):
        views, y = random_measure(rng)
        w = rng.randint(0, 4, len(y))
        w[rng.randint(len(y))] = 2
        copies = np.repeat(views, w, axis=0), np.repeat(y, w)
        views[w == 0] = np.nan
        np.testing.assert_allclose(
            everything(views, y, 0.3, w), everything(*copies, 0.3), atol=1e-12
        )
        y[w == 0] = -1
        theory.incurred_loss(views, y, 0.3, sample_weight=w)


def test_only_ratios_of_weights_matter():
    rng = np.random.RandomState(5)
    views, y = random_measure(rng)
    w = random_weights(rng, len(y))
    w /= w.max()
    plain, weighted = everything(views, y, 0.3), everything(views, y, 0.3, w)
    for scale in (1e-200, 3.0, 1e308):
        equal = np.full(len(y), scale)
        np.testing.assert_allclose(everything(views, y, 0.3, equal), plain, atol=1e-12)
        np.testing.assert_allclose(
            everything(views, y, 0.3, scale * w), weighted, atol=1e-12
        )


def test_a_class_without_weight_has_no_center():
    views, y = fixture()
    means, w = views.mean(axis=1), [1.0, 3.0, 0.0]
    centers = theory.class_centers(means, y, sample_weight=w)
    np.testing.assert_allclose(centers[0], (means[0] + 3 * means[1]) / 4)
    assert np.isnan(centers[1]).all()
    discrepancy = theory.internal_discrepancy(means, centers, y)
    assert np.isfinite(theory.upper_bound(0.0, discrepancy, 0.5, sample_weight=w))
    for loss in ALL:
        value = theory.incurred_loss(views, y, 0.5, loss, sample_weight=w)
        given = theory.incurred_loss(
            views, y, 0.5, loss, centers=centers, sample_weight=w
        )
        assert (
            value
            == given
            == theory.incurred_loss(views[:2], y[:2], 0.5, loss, sample_weight=w[:2])
        )


@pytest.mark.parametrize("t", [1e-3, 0.3])
def test_a_dominant_weight_leaves_that_row(t):
    """And no NaN where the light rows' exponentials vanish beside the heavy one's."""
    rng = np.random.RandomState(6)
    views, y = unit(rng.normal(size=(20, 3, 3))), np.arange(20) % 3
    w = np.ones(20)
    w[7] = 1e20
    alone = views[7:8], np.zeros(1, dtype=int)
    for loss in ALL:
        np.testing.assert_allclose(
            theory.contrastive_loss(views, t, loss, y, sample_weight=w),
            theory.contrastive_loss(alone[0], t, loss, alone[1]),
            atol=1e-12,
        )
        np.testing.assert_allclose(
            theory.incurred_loss(views, y, t, loss, sample_weight=w),
            theory.incurred_loss(*alone, t, loss),
            atol=1e-12,
        )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_batch_losses_tend_to_the_exact_ones(name, weighted):
    """The mini-batch leaves out an anchor's own share, which fades as 1/n."""
    import torch

    rng = np.random.RandomState(0)
    gaps = []
    for n in (20, 400):
        rows = rng.normal(size=(n, 1, 3))
        y = (rows[:, 0, 0] > 0).astype(int)
        views = np.repeat(unit(rows), 2, axis=1)  # aligned: own share of positives is 1
        w = np.exp(rng.normal(size=n)) if weighted else None
        tensors = (torch.tensor(views), 0.5, torch.tensor(y))
        of_batch = None if w is None else torch.tensor(w)
        batch = losses.LOSSES[name](*tensors, of_batch).item()
        gaps.append(
            abs(batch - theory.contrastive_loss(views, 0.5, name, y, sample_weight=w))
        )
    assert gaps[1] < 0.02
    assert gaps[1] < gaps[0] / 5


def test_constant_embedding_is_no_perfect_score():
    views = np.tile([1.0, 0.0], (6, 2, 1))
    y = np.array([0, 0, 0, 0, 1, 1])
    discrepancy = theory.internal_discrepancy(*parts(views, y))
    assert not discrepancy.any()
    assert theory.relative_discrepancy(*parts(views, y)) == 1.0
    assert theory.incurred_loss(views, y, 0.2) == pytest.approx(0)
    nearly = views + np.random.RandomState(0).uniform(-1e-8, 1e-8, views.shape)
    assert theory.relative_discrepancy(*parts(nearly, y)) == 1.0


def test_relative_discrepancy_lies_between_zero_and_one():
    rng = np.random.RandomState(3)
    for _ in range(50):
        views, y = random_measure(rng)
        for w in (None, random_weights(rng, len(y))):
            relative = theory.relative_discrepancy(*parts(views, y, w), sample_weight=w)
            assert -1e-12 <= relative <= 1 + 1e-12
    # The heavy rows alone say what counts as constant.
    means, y = np.array([[1.0], [1.0], [1e6]]), np.array([0, 0, 1])
    centers, w = np.array([[1.0], [1e6]]), [1e20, 1e20, 1]
    assert theory.relative_discrepancy(means, centers, y, sample_weight=w) == 0
    separate = unit(np.array([[[1.0, 0]], [[1.0, 0]], [[0, 1.0]]]))
    assert theory.relative_discrepancy(*parts(separate, np.array([0, 0, 1]))) == 0


@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic"])
def test_class_without_rows(loss):
    """A class of fit that the scored rows lack: no center of its own is needed."""
    views, y = fixture()
    centers = np.array([[0.5, 0.5], [-0.5, -0.5], [np.nan, np.nan]])
    value = theory.incurred_loss(views, y, 0.5, loss, centers=centers)
    assert value == theory.incurred_loss(views, y, 0.5, loss, centers=centers[:2])


def test_refused_arguments():
    views, y = fixture()
    means = views.mean(axis=1)
    unlabelled = np.array([0, 0, -1])
    for call in (
        lambda: theory.contrastive_loss(views, 0.5, "simclr"),
        lambda: theory.incurred_loss(views, y, 0.5, "simclr"),
        lambda: theory.upper_bound(0.0, [0.1], 0.5, "simclr"),
    ):
        with pytest.raises(ValueError, match=r"loss='simclr': \(.*\) are allowed"):
            call()
    for call in (
        lambda: theory.class_centers(means, unlabelled),
        lambda: theory.internal_discrepancy(means, means, unlabelled),
        lambda: theory.incurred_loss(views, unlabelled, 0.5),
    ):
        with pytest.raises(ValueError, match="y holds -1"):
            call()


@pytest.mark.parametrize(
    ("w", "message"),
    [
        ([1, -0.5, -1], r"sample_weight\[1\] is -0\.5: finite"),
        ([1, 2, np.nan], r"sample_weight\[2\] is nan: finite"),
        ([np.inf, 2, 1], r"sample_weight\[0\] is inf: finite"),
        ([1, 2], r"sample_weight is of shape \(2,\): \(3,\)"),
        ([[1, 2, 3]], r"sample_weight is of shape \(1, 3\): \(3,\)"),
        ([0, 0, 0], "sample_weight is zero for all rows"),
    ],
)
def test_refused_weights(w, message):
    views, y = fixture()
    means, centers, _ = parts(views, y)
    for call in (
        lambda: theory.class_centers(means, y, sample_weight=w),
        lambda: theory.relative_discrepancy(means, centers, y, sample_weight=w),
        lambda: theory.contrastive_loss(views, 0.5, sample_weight=w),
        lambda: theory.incurred_loss(views, y, 0.5, sample_weight=w),
        lambda: theory.upper_bound(0.0, [0.1, 0.2, 0.3], 0.5, sample_weight=w),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("t", [0.1, 0.5, 2.0])
def test_the_unit_of_the_regularizer_is_the_factor_in_the_bound(t):
    """Two laws of the discrepancy of mean 1, with mean squares 2 and 1."""
    for name in ("infonce", "spectral", "logistic"):
        slope = theory.upper_bound(0, [0, 2], t, name) - theory.upper_bound(
            0, [1, 1], t, name
        )
        assert losses.LOSSES[name].discrepancy_weight(t) == pytest.approx(slope)
    assert theory.upper_bound(0, [0, 2], t, "supcon") == 0
    assert losses.supcon.discrepancy_weight(t) == losses.infonce.discrepancy_weight(t)


def test_only_a_loss_that_uses_labels_reads_them():
    views = np.eye(4).reshape(4, 1, 4).repeat(2, axis=1)
    names = np.array(["a", "b", "a", "b"])
    with pytest.raises(ValueError, match="dtype"):
        theory.contrastive_loss(views, 0.5, "supcon", names)
    for loss in ("infonce", "spectral", "logistic"):
        value = theory.contrastive_loss(views, 0.5, loss, names)
        assert value == theory.contrastive_loss(views, 0.5, loss)


@pytest.mark.parametrize("kind", [float, np.float32, np.uint8, bool])
def test_whole_numbers_of_any_type_are_codes(kind):
    views = np.eye(4).reshape(4, 1, 4).repeat(2, axis=1)
    codes = np.array([0, 1, 1, 0])
    expected = theory.incurred_loss(views, codes, 0.5)
    assert theory.incurred_loss(views, codes.astype(kind), 0.5) == expected
    with pytest.raises(ValueError, match="dtype"):
        theory.incurred_loss(views, codes + 0.5, 0.5)
