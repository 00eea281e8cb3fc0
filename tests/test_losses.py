"""Every loss against a literal loop, by gradcheck, at extremes, and by hand."""

import math
import weakref

import pytest
import torch
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from skcl._blocks import BLOCK
from skcl._pairs import log_partition, sum_over_others_of_class
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


def weights(n, weighted=True, seed=1, dtype=torch.float64):
    """Weights over about two orders of magnitude, or None."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(n, generator=generator, dtype=dtype).exp()
    return w if weighted else None


def anchors(z):
    return [(i, v) for i in range(z.shape[0]) for v in range(z.shape[1])]


def others(z, a):
    return [b for b in anchors(z) if b != a]


def own_row(z, a):
    return [b for b in others(z, a) if b[0] == a[0]]


def other_rows(z, a):
    return [b for b in others(z, a) if b[0] != a[0]]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def weighted_mean(function, items, w):
    """Mean of function(a) over anchors a, each with the weight of its row."""
    if w is None:
        return mean(function(a) for a in items)
    return sum(w[a[0]] * function(a) for a in items) / sum(w[a[0]] for a in items)


def loop_supcon(z, t, y, w=None):
    def is_labelled(a):
        return y is not None and y[a[0]] >= 0

    def positives(a):
        return own_row(z, a) + [
            b for b in other_rows(z, a) if is_labelled(a) and y[a[0]] == y[b[0]]
        ]

    def negatives(a):
        return [b for b in others(z, a) if is_labelled(b) or not is_labelled(a)]

    def term(a):
        positive = weighted_mean(lambda p: z[a] @ z[p] / t, positives(a), w)
        partition = weighted_mean(lambda b: torch.exp(z[a] @ z[b] / t), negatives(a), w)
        return torch.log(partition) - positive

    return weighted_mean(term, [a for a in anchors(z) if positives(a)], w)


def loop_infonce(z, t, y=None, w=None):
    return loop_supcon(z, t, None, w)


def loop_spectral(z, t=None, y=None, w=None):
    def term(a):
        positive = mean(z[a] @ z[p] for p in own_row(z, a))
        if len(z) == 1:
            return -2 * positive
        negatives = other_rows(z, a)
        return -2 * positive + weighted_mean(lambda b: (z[a] @ z[b]) ** 2, negatives, w)

    return weighted_mean(term, anchors(z), w)


def loop_logistic(z, t, y=None, w=None):
    if len(z) == 1:
        return 0 * z.sum()

    def term(a, p):
        return weighted_mean(
            lambda b: torch.log(1 + torch.exp(-z[a] @ (z[p] - z[b]) / t)),
            other_rows(z, a),
            w,
        )

    return weighted_mean(
        lambda a: mean(term(a, p) for p in own_row(z, a)), anchors(z), w
    )


LOOPS = {
    "infonce": loop_infonce,
    "spectral": loop_spectral,
    "logistic": loop_logistic,
    "supcon": loop_supcon,
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_equal_the_literal_loop(name, shape, weighted):
    z, y = views(*shape).requires_grad_(), labels(shape[0])
    w = weights(shape[0], weighted)
    for t in (0.2, 1.0):
        value, expected = LOSSES[name](z, t, y, w), LOOPS[name](z, t, y, w)
        torch.testing.assert_close(value, expected)
        (gradient,) = torch.autograd.grad(value, z)
        (expected_gradient,) = torch.autograd.grad(expected, z)
        torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_gradcheck(name, weighted):
    z, y, w = views(4, 3, 3).requires_grad_(), labels(4), weights(4, weighted)
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, 0.5, y, w), z)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [300, 700])
@pytest.mark.parametrize("name", LOSSES)
def test_blocks_of_a_large_batch_change_nothing(name, n, weighted):
    """Beyond one block, against the same formula on the whole similarity matrix."""
    z = views(n, 2, 8).requires_grad_()
    y, w = torch.arange(n) % 7 - 1, weights(n, weighted)
    t, m = 0.3, 2 * n
    flat = z.flatten(0, 1)
    s = flat @ flat.T
    row = torch.arange(n).repeat_interleave(2)
    of = torch.ones(m, dtype=z.dtype) if w is None else w[row]  # weights of anchors
    own = row[:, None] == row
    partner = s[torch.arange(m), torch.arange(m) ^ 1]
    negative = ~own * of / (~own * of).sum(1, keepdim=True)
    if name == "spectral":
        expected = -2 * partner + (negative * s.square()).sum(1)
    elif name == "logistic":
        u = (partner[:, None] - s) / t
        expected = (negative * torch.log1p(torch.exp(-u))).sum(1)
    else:
        others = 1 - torch.eye(m, dtype=z.dtype)
        others = others * of / (others * of).sum(1, keepdim=True)
        partition = (others * torch.exp(s / t)).sum(1).log()
        positive = own
        if name == "supcon":
            label = torch.where(y < 0, -2 - torch.arange(n), y).repeat_interleave(2)
            positive = label[:, None] == label
            others[(label >= 0).outer(label < 0)] = 0
            others = others / others.sum(1, keepdim=True)
            partition = (others * torch.exp(s / t)).sum(1).log()
        positive = positive & (others > 0)
        mean_positive = (s * positive * of).sum(1) / (positive * of).sum(1)
        expected = partition - mean_positive / t
    expected = (expected * of).sum() / of.sum()
    value = LOSSES[name](z, t, y, w)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        torch.autograd.grad(value, z), torch.autograd.grad(expected, z)
    )


@pytest.mark.parametrize("t", [0.01, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["infonce", "supcon", "spectral"])
def test_float32_loses_few_digits(name, weighted, t):
    """Of value and gradient: 1e-6, and of 1 / t as much as similarities have lost."""
    n = 700
    z = views(n, 2, 128, dtype=torch.float32)
    z[1] = z[0]  # the similarities of different rows go from -1 to 1
    z[2] = -z[0]
    y, w = torch.arange(n) % 7 - 1, weights(n, weighted, dtype=torch.float32)
    value, gradient = value_and_gradient(LOSSES[name], z, t, y, w)
    w = None if w is None else w.double()
    exact = value_and_gradient(LOSSES[name], z.double(), t, y, w)
    assert value.item() == pytest.approx(exact[0].item(), rel=1e-6, abs=1e-6)
    rounding = 1e-6 if name == "spectral" else 1e-6 * max(1, 0.2 / t)
    error = (gradient.double() - exact[1]).abs().max()
    assert error <= rounding * exact[1].abs().max()


def value_and_gradient(loss, z, *args):
    z = z.clone().requires_grad_()
    value = loss(z, *args)
    value.backward()
    return value.detach(), z.grad


@pytest.mark.parametrize("name", LOSSES)
def test_second_derivatives_are_right_or_refused(name):
    z, y = views(5, 2, 3).requires_grad_(), labels(5)
    (gradient,) = torch.autograd.grad(LOOPS[name](z, 0.5, y), z, create_graph=True)
    (expected,) = torch.autograd.grad(gradient.square().sum(), z)
    if name in ("infonce", "supcon"):
        with pytest.raises(RuntimeError, match="once"):
            torch.autograd.grad(LOSSES[name](z, 0.5, y), z, create_graph=True)
        return
    (gradient,) = torch.autograd.grad(LOSSES[name](z, 0.5, y), z, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), z)
    torch.testing.assert_close(second, expected)


@pytest.mark.parametrize("name", ["infonce", "supcon"])
def test_half_precision_does_not_overflow(name):
    z, y = views(6, 2, 4, dtype=torch.float32), labels(6)
    expected = LOSSES[name](z, 0.05, y).item()
    assert LOSSES[name](z.half(), 0.05, y).item() == pytest.approx(expected, rel=0.02)
    with torch.autocast("cpu", torch.float16):
        value = LOSSES[name](z.requires_grad_(), 0.05, y)
        value.backward()
    assert value.item() == pytest.approx(expected, rel=0.02)
    assert z.grad.isfinite().all()


def test_what_has_no_gradient_is_refused():
    temperature = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(ValueError, match="temperature"):
        infonce(views(4, 2, 3), temperature)


def test_what_changes_between_loss_and_gradient_is_noticed():
    z = views(4, 2, 3).requires_grad_() * 1
    value = infonce(z, 0.5)
    z.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        value.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_only_ratios_of_weights_matter(name, dtype):
    z, y, w = views(6, 3, 4, dtype=dtype), labels(6), weights(6, dtype=dtype)
    plain, weighted = (
        value_and_gradient(LOSSES[name], z, 0.5, y, w) for w in (None, w)
    )
    assert not torch.allclose(plain[0], weighted[0], rtol=1e-2)
    for scale in (1e-6, 3.0, 1e37):
        equal = torch.full((6,), scale, dtype=dtype)
        torch.testing.assert_close(
            value_and_gradient(LOSSES[name], z, 0.5, y, equal), plain
        )
        torch.testing.assert_close(
            value_and_gradient(LOSSES[name], z, 0.5, y, scale * w), weighted
        )


@pytest.mark.parametrize("ratio", [1e4, 1e8, 1e20, 1e30])
@pytest.mark.parametrize("heavy", [[2], [0, 3], [5]])
@pytest.mark.parametrize("V", [1, 2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_a_dominant_weight_costs_few_digits(name, V, heavy, ratio):
    """float32 against float64, where W - w_i would be noise, or 0."""
    z, y = views(6, V, 4, dtype=torch.float32), torch.tensor([0, 0, 1, 1, -1, 0])
    w = weights(6, dtype=torch.float32)
    w[heavy] *= ratio
    value, gradient = value_and_gradient(LOSSES[name], z, 0.5, y, w)
    exact = value_and_gradient(LOSSES[name], z.double(), 0.5, y, w.double())
    torch.testing.assert_close(value.double(), exact[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), exact[1], rtol=1e-5, atol=1e-5)
    if V > 1:
        looped = LOOPS[name](z.double(), 0.5, y, w.double())
        torch.testing.assert_close(exact[0], looped)


def test_weights_by_hand():
    """Aligned orthogonal rows of weights 3, 1, 1; the other view weighs 3 or 1.

    The other rows are all at similarity 0, so weights show in the partition only.
    """
    t, w = 0.5, torch.tensor([3.0, 1, 1], dtype=torch.float64)
    z = torch.eye(3, dtype=torch.float64)[:, None].expand(3, 2, 3)
    heavy = math.log((3 * math.exp(1 / t) + 4) / 7)
    light = math.log((math.exp(1 / t) + 8) / 9)
    expected = 0.6 * heavy + 0.4 * light - 1 / t
    assert infonce(z, t, None, w).item() == pytest.approx(expected)
    # Rows 1 and 2 are one class: of three positives, which are all there is for a
    # labelled row, one is at similarity 1.
    labelled = math.log((math.exp(1 / t) + 2) / 3)
    of_class = 0.6 * (heavy - 1 / t) + 0.4 * (labelled - 1 / t / 3)
    assert supcon(z, t, torch.tensor([-1, 1, 1]), w).item() == pytest.approx(of_class)
    # Rows 0 and 1 coincide: 3/5 · 1/2 + 1/5 · 3/4 + 0 of the pairs.
    z = torch.eye(3, dtype=torch.float64)[[0, 0, 1]][:, None].expand(3, 2, 3)
    assert spectral(z, None, None, w).item() == pytest.approx(-2 + 0.45)
    expected = 0.45 * math.log(2) + 0.55 * math.log1p(math.exp(-1 / t))
    assert logistic(z, t, None, w).item() == pytest.approx(expected)


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
    for w in (None, weights(4)):
        z = views(4, 1, 3).requires_grad_()
        value = LOSSES[name](z, 0.5, torch.full((4,), -1), w)
        value.backward()
        assert z.grad.isfinite().all()
        assert value.item() == 0
        assert not z.grad.any()


def test_supcon_leaves_out_the_anchor_without_a_positive():
    """Single views of classes 0, 0, 1: the third has no positive."""
    z, y = views(3, 1, 3), torch.tensor([0, 0, 1])
    for w in (None, weights(3)):
        torch.testing.assert_close(supcon(z, 0.5, y, w), loop_supcon(z, 0.5, y, w))


@pytest.mark.parametrize("name", LOSSES)
def test_one_row_of_one_view(name):
    for w in (None, weights(1)):
        z = views(1, 1, 3).requires_grad_()
        value = LOSSES[name](z, 0.5, torch.tensor([0]), w)
        value.backward()
        assert value.item() == 0
        assert z.grad.isfinite().all()


def test_supcon_of_unlabelled_rows_is_infonce():
    z = views(5, 3, 4)
    unlabelled = torch.full((5,), -1)
    for w in (None, weights(5)):
        expected = infonce(z, 0.2, None, w)
        torch.testing.assert_close(supcon(z, 0.2, unlabelled, w), expected)
        torch.testing.assert_close(supcon(z, 0.2, None, w), expected)


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


class Memory(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive, and their peak."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        return result

    def count(self, storage):
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = storage.nbytes()
            weakref.finalize(storage, self.alive.pop, key)
        self.peak = max(self.peak, sum(self.alive.values()))


def peak_memory(loss, n, weighted):
    z = views(n, 2, 16, dtype=torch.float32).requires_grad_()
    y, w = torch.arange(n) % 3 - 1, weights(n, weighted, dtype=torch.float32)
    with Memory() as memory:
        loss(z, 0.2, y, w).backward()
    return memory.peak


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["infonce", "supcon", "spectral"])
def test_memory_does_not_grow_with_the_square_of_the_batch(name, weighted):
    """Twice the rows take twice the memory at the most; all pairs would take 400 MB."""
    small, large = (peak_memory(LOSSES[name], n, weighted) for n in (2500, 5000))
    assert large < 2.1 * small
    assert large < 50e6


def test_sums_over_a_class_of_more_rows_than_a_block():
    generator = torch.Generator().manual_seed(0)
    n = 2 * BLOCK + 100
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(-1, 4, (n,), generator=generator)
    others = (y[:, None] == y) & (y >= 0)
    others.fill_diagonal_(False)
    found = sum_over_others_of_class(x, y)
    torch.testing.assert_close(found, others.double() @ x)


@pytest.mark.parametrize("temperature", [0.5, 0.005])  # without a shift, and with one
def test_an_anchor_with_nothing_to_sum_over(temperature):
    z = views(3, 1, 4)[:, 0].requires_grad_()
    closed = torch.tensor([False, True, False])
    for anchors, mask, alone in ((z[:1], None, 0), (z, closed, 1)):
        partition = log_partition(anchors, temperature, closed=mask)
        assert partition[alone] == -math.inf
        assert not partition.isnan().any()
        partition[partition.isfinite()].sum().backward()
        assert z.grad.isfinite().all()
