"""Every loss against a literal loop, by gradcheck, at extremes, and by hand."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from skcl.losses import (
    LOSSES,
    alignment,
    infonce,
    logistic,
    spectral,
    supcon,
    uniformity,
)

SHAPES = [(1, 2, 3), (2, 2, 3), (5, 2, 3), (4, 3, 2), (3, 4, 5)]


def views(n, V, d, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(n, V, d, generator=generator, dtype=dtype), dim=-1)


def labels(n):
    """Two classes, some rows unlabelled, and a class code far above n."""
    return torch.tensor([0, 1000, -1, 0, -1, 1000])[:n]


def anchors(z):
    return [(i, v) for i in range(z.shape[0]) for v in range(z.shape[1])]


def others(z, a):
    return [b for b in anchors(z) if b != a]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def loop_supcon(z, t, y):
    terms = []
    for a in anchors(z):
        same = [
            b
            for b in others(z, a)
            if b[0] == a[0] or (y is not None and y[a[0]] >= 0 and y[a[0]] == y[b[0]])
        ]
        if not same:
            continue
        partition = mean(torch.exp(z[a] @ z[b] / t) for b in others(z, a))
        terms.append(mean(-z[a] @ z[p] / t for p in same) + torch.log(partition))
    return mean(terms)


def loop_infonce(z, t, y=None):
    return loop_supcon(z, t, None)


def loop_spectral(z, t=None, y=None):
    positive = mean(
        mean(z[a] @ z[p] for p in others(z, a) if p[0] == a[0]) for a in anchors(z)
    )
    if len(z) == 1:
        return -2 * positive
    negative = mean(
        mean((z[a] @ z[b]) ** 2 for b in others(z, a) if b[0] != a[0])
        for a in anchors(z)
    )
    return -2 * positive + negative


def loop_logistic(z, t, y=None):
    if len(z) == 1:
        return 0 * z.sum()
    return mean(
        torch.log(1 + torch.exp(-z[a] @ (z[p] - z[b]) / t))
        for a in anchors(z)
        for p in others(z, a)
        if p[0] == a[0]
        for b in others(z, a)
        if b[0] != a[0]
    )


LOOPS = {
    "infonce": loop_infonce,
    "spectral": loop_spectral,
    "logistic": loop_logistic,
    "supcon": loop_supcon,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_equal_the_literal_loop(name, shape):
    z, y = views(*shape).requires_grad_(), labels(shape[0])
    for t in (0.2, 1.0):
        value, expected = LOSSES[name](z, t, y), LOOPS[name](z, t, y)
        torch.testing.assert_close(value, expected)
        (gradient,) = torch.autograd.grad(value, z)
        (expected_gradient,) = torch.autograd.grad(expected, z)
        torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("name", LOSSES)
def test_gradcheck(name):
    z, y = views(4, 3, 3).requires_grad_(), labels(4)
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, 0.5, y), z)


@pytest.mark.parametrize("n", [300, 700])
@pytest.mark.parametrize("name", LOSSES)
def test_blocks_of_a_large_batch_change_nothing(name, n):
    """Beyond one block, against the same formula on the whole similarity matrix."""
    z = views(n, 2, 8).requires_grad_()
    y = torch.arange(n) % 7 - 1
    t, m = 0.3, 2 * n
    flat = z.flatten(0, 1)
    s = flat @ flat.T
    row = torch.arange(n).repeat_interleave(2)
    own = row[:, None] == row
    partner = s[torch.arange(m), torch.arange(m) ^ 1]
    if name == "spectral":
        expected = -2 * partner.mean() + s[~own].square().mean()
    elif name == "logistic":
        u = (partner[:, None] - s)[~own] / t
        expected = torch.log1p(torch.exp(-u)).mean()
    else:
        diagonal = torch.eye(m, dtype=torch.bool)
        partition = (s / t).masked_fill(diagonal, -math.inf).logsumexp(1)
        positive = own
        if name == "supcon":
            label = torch.where(y < 0, -2 - torch.arange(n), y).repeat_interleave(2)
            positive = label[:, None] == label
        positive = positive & ~diagonal
        mean_positive = (s * positive).sum(1) / positive.sum(1)
        expected = (partition - math.log(m - 1) - mean_positive / t).mean()
    value = LOSSES[name](z, t, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        torch.autograd.grad(value, z), torch.autograd.grad(expected, z)
    )


@pytest.mark.parametrize("t", [1e-3, 1e-2, 1.0, 1e2])
@pytest.mark.parametrize("name", LOSSES)
def test_finite_at_extreme_temperatures(name, t):
    z = views(6, 2, 4, dtype=torch.float32)
    z[1] = z[0]  # similarity 1 between rows
    z[2] = -z[0]
    z.requires_grad_()
    value = LOSSES[name](z, t, labels(6))
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_single_views_have_no_positive(name):
    """V = 1: the anchor contributes nothing, and no NaN."""
    z = views(4, 1, 3).requires_grad_()
    value = LOSSES[name](z, 0.5, torch.full((4,), -1))
    value.backward()
    assert z.grad.isfinite().all()
    assert value.item() == 0
    assert not z.grad.any()


def test_supcon_leaves_out_the_anchor_without_a_positive():
    """Single views of classes 0, 0, 1: the third has no positive."""
    z, y = views(3, 1, 3), torch.tensor([0, 0, 1])
    torch.testing.assert_close(supcon(z, 0.5, y), loop_supcon(z, 0.5, y))


@pytest.mark.parametrize("name", LOSSES)
def test_one_row_of_one_view(name):
    z = views(1, 1, 3).requires_grad_()
    value = LOSSES[name](z, 0.5, torch.tensor([0]))
    value.backward()
    assert value.item() == 0
    assert z.grad.isfinite().all()


def test_supcon_of_unlabelled_rows_is_infonce():
    z = views(5, 3, 4)
    unlabelled = torch.full((5,), -1)
    torch.testing.assert_close(supcon(z, 0.2, unlabelled), infonce(z, 0.2))
    torch.testing.assert_close(supcon(z, 0.2), infonce(z, 0.2))


def test_losses_by_hand():
    """n orthogonal rows, aligned views: s = 1 within a row, 0 between rows.

    InfoNCE: of the 2n - 1 others of an anchor one has similarity 1.
    """
    n, t = 4, 0.5
    z = torch.eye(n, dtype=torch.float64)[:, None].expand(n, 2, n)
    partition = (math.exp(1 / t) + 2 * n - 2) / (2 * n - 1)
    assert infonce(z, t).item() == pytest.approx(-1 / t + math.log(partition))
    assert spectral(z).item() == pytest.approx(-2)
    assert logistic(z, t).item() == pytest.approx(math.log1p(math.exp(-1 / t)))
    assert alignment(z).item() == pytest.approx(0)
    assert uniformity(z).item() == pytest.approx(-4)


def test_alignment_and_uniformity_equal_the_literal_loop():
    z = views(4, 3, 3)
    pairs = [(a, b) for a in anchors(z) for b in others(z, a)]
    same = [(z[a] - z[b]).square().sum() for a, b in pairs if a[0] == b[0]]
    different = [(z[a] - z[b]).square().sum() for a, b in pairs if a[0] != b[0]]
    torch.testing.assert_close(alignment(z), mean(same))
    expected = torch.log(mean(torch.exp(-3.0 * d) for d in different))
    torch.testing.assert_close(uniformity(z, scale=3.0), expected)


def test_memory_is_quadratic_in_the_batch():
    """No tensor of more than a few numbers a pair: 1,024 anchors, 2²⁰ pairs."""
    z = views(512, 2, 16, dtype=torch.float32).requires_grad_()
    for name, loss in LOSSES.items():
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            loss(z, 0.2, torch.arange(512) % 3)
        assert max(sizes) <= 2**20, name
        assert sum(sizes) <= 16 * 2**20, name
