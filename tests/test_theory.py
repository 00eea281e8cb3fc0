"""The exact quantities: the fixture, literal loops, and the bound itself."""

import numpy as np
import pytest

from skcl import losses, theory


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


def parts(views, y):
    means = views.mean(axis=1)
    return means, theory.class_centers(means, y), y


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


@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic", "supcon"])
def test_bound_holds_on_random_measures(loss):
    rng = np.random.RandomState(0)
    for _ in range(200):
        views, y = random_measure(rng)
        t = rng.choice([0.1, 0.2, 0.5, 1.0, 2.0])
        contrastive = theory.contrastive_loss(views, t, loss, y)
        discrepancy = theory.internal_discrepancy(*parts(views, y))
        bound = theory.upper_bound(contrastive, discrepancy, t, loss)
        assert theory.incurred_loss(views, y, t, loss) <= bound + 1e-9


def loop_contrastive(views, t, loss, y):
    """Draw after draw of anchor, positive and negative, with their probabilities."""
    n, V, _ = views.shape
    everything = [(j, w) for j in range(n) for w in range(V)]
    total = 0.0
    for i, v in everything:
        z = views[i, v]
        if loss == "supcon" and y[i] >= 0:
            positives = [(j, w) for j, w in everything if y[j] == y[i]]
        else:
            positives = [(i, w) for w in range(V)]
        s_positive = [z @ views[p] for p in positives]
        s_negative = [z @ views[b] for b in everything]
        if loss == "spectral":
            total += -2 * np.mean(s_positive) + np.mean(np.square(s_negative))
        elif loss == "logistic":
            u = np.subtract.outer(s_positive, s_negative) / t
            total += np.mean(np.log(1 + np.exp(-u)))
        else:
            total += np.log(np.mean(np.exp(np.array(s_negative) / t)))
            total -= np.mean(s_positive) / t
    return total / (n * V)


@pytest.mark.parametrize("block_size", [2**22, 7])
@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic", "supcon"])
def test_contrastive_loss_equals_the_literal_loop(loss, block_size, monkeypatch):
    monkeypatch.setattr(theory, "_BLOCK_SIZE", block_size)
    rng = np.random.RandomState(1)
    for _ in range(5):
        views, y = random_measure(rng)
        y = np.where(rng.rand(len(y)) < 0.3, -1, y)
        expected = loop_contrastive(views, 0.4, loss, y)
        value = theory.contrastive_loss(views, 0.4, loss, y)
        assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic"])
def test_incurred_loss_equals_the_literal_loop(loss):
    rng = np.random.RandomState(2)
    for _ in range(5):
        views, y = random_measure(rng)
        means = views.mean(axis=1)
        c = [means[y == k].mean(axis=0) for k in range(y.max() + 1)]
        prior = [np.mean(y == k) for k in range(len(c))]
        total = []
        for i, v in np.ndindex(*views.shape[:2]):
            s = [views[i, v] @ c_k for c_k in c]
            own = s[y[i]]
            if loss == "spectral":
                total.append(-2 * own + np.dot(prior, np.square(s)))
            elif loss == "logistic":
                total.append(np.dot(prior, np.log(1 + np.exp((s - own) / 0.4))))
            else:
                partition = np.dot(prior, np.exp(np.array(s) / 0.4))
                total.append(-own / 0.4 + np.log(partition))
        value = theory.incurred_loss(views, y, 0.4, loss)
        assert value == pytest.approx(np.mean(total), abs=1e-12)


@pytest.mark.parametrize("name", ["infonce", "spectral", "logistic", "supcon"])
def test_batch_losses_tend_to_the_exact_ones(name):
    """The mini-batch leaves out an anchor's own share, which fades as 1/n."""
    import torch

    rng = np.random.RandomState(0)
    gaps = []
    for n in (20, 400):
        rows = rng.normal(size=(n, 1, 3))
        y = (rows[:, 0, 0] > 0).astype(int)
        views = np.repeat(unit(rows), 2, axis=1)  # aligned: own share of positives is 1
        batch = losses.LOSSES[name](torch.tensor(views), 0.5, torch.tensor(y)).item()
        gaps.append(abs(batch - theory.contrastive_loss(views, 0.5, name, y)))
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
        assert -1e-12 <= theory.relative_discrepancy(*parts(views, y)) <= 1 + 1e-12
    separate = unit(np.array([[[1.0, 0]], [[1.0, 0]], [[0, 1.0]]]))
    assert theory.relative_discrepancy(*parts(separate, np.array([0, 0, 1]))) == 0


@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic"])
def test_class_without_rows(loss):
    """A class of fit that the scored rows lack: no center of its own is needed."""
    views, y = fixture()
    centers = np.array([[0.5, 0.5], [-0.5, -0.5], [np.nan, np.nan]])
    value = theory.incurred_loss(views, y, 0.5, loss, centers)
    assert value == theory.incurred_loss(views, y, 0.5, loss, centers[:2])


def test_refused_arguments():
    views, y = fixture()
    means = views.mean(axis=1)
    unlabelled = np.array([0, 0, -1])
    for call in (
        lambda: theory.contrastive_loss(views, 0.5, "simclr"),
        lambda: theory.incurred_loss(views, y, 0.5, "simclr"),
        lambda: theory.upper_bound(0.0, [0.1], 0.5, "simclr"),
    ):
        with pytest.raises(ValueError, match="loss='simclr': allowed are"):
            call()
    for call in (
        lambda: theory.class_centers(means, unlabelled),
        lambda: theory.internal_discrepancy(means, means, unlabelled),
        lambda: theory.incurred_loss(views, unlabelled, 0.5),
    ):
        with pytest.raises(ValueError, match="y holds -1"):
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
