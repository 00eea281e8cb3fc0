"""The relaxations against the k-means objective, and each other."""

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from skcl.clustering import (
    assign,
    entropic_relaxation,
    refine,
    residual,
    spectral_relaxation,
    spectral_subspace,
    squared_distances,
)


def random_points(n, d, seed):
    return np.random.RandomState(seed).normal(size=(n, d))


def clustered_points(n, d, seed):
    return make_blobs(n, d, centers=5, cluster_std=0.3, random_state=seed)[0]


@pytest.mark.parametrize("make", [random_points, clustered_points])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "d", "K"), [(40, 3, 2), (60, 5, 4), (700, 8, 6)])
def test_relaxations_bound_the_kmeans_objective(make, n, d, K, seed):
    X = make(n, d, seed)
    kmeans = KMeans(K, n_init=3, random_state=0).fit(X)
    points, centers = torch.tensor(X), torch.tensor(kmeans.cluster_centers_)
    hard = kmeans.inertia_ / n
    assert spectral_relaxation(points, K).item() <= hard * (1 + 1e-12)
    for tau in (1e-3, 0.1, 10.0):
        entropic = entropic_relaxation(points, centers, tau).item()
        assert entropic <= hard * (1 + 1e-12)
        assert hard <= (entropic + tau * math.log(K)) * (1 + 1e-12) + 1e-12
    assert entropic_relaxation(points, centers, 1e-7).item() == pytest.approx(hard)


def test_spectral_relaxation_is_the_tail_of_the_singular_values():
    X = random_points(30, 6, 0)
    sigma = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    for K in range(1, 9):
        expected = (sigma[K - 1 :] ** 2).sum() / 30
        value = spectral_relaxation(torch.tensor(X), K).item()
        assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "d", "K"), [(5, 3, 4), (5, 3, 9), (3, 8, 3)])
def test_spectral_relaxation_is_zero_where_clusters_span_the_points(n, d, K):
    value = spectral_relaxation(torch.tensor(random_points(n, d, 0)), K).item()
    assert value == pytest.approx(0, abs=1e-12)


def test_spectral_gradient():
    """2 (M̃ - M̃ V Vᵀ)/n, which is also the derivative of the exact tail."""
    points = torch.tensor(random_points(20, 4, 1), requires_grad=True)
    (gradient,) = torch.autograd.grad(spectral_relaxation(points, 3), points)
    mean, V = spectral_subspace(points, 3)
    centered = points.detach() - mean
    torch.testing.assert_close(gradient, 2 * (centered - centered @ V @ V.T) / 20)

    def tail(points):
        sigma = torch.linalg.svdvals(points - points.mean(dim=0))
        return sigma[2:].square().sum() / 20

    torch.testing.assert_close(gradient, torch.autograd.grad(tail(points), points)[0])


def test_finite_gradient_at_tied_singular_values():
    points = torch.cat([torch.eye(4), -torch.eye(4)]).requires_grad_()
    for K in range(1, 6):
        value = spectral_relaxation(points, K)
        (gradient,) = torch.autograd.grad(value, points)
        assert gradient.isfinite().all()
        assert value.item() == pytest.approx((5 - min(K, 5)) * 2 / 8)


def test_residual_of_a_subspace_bounds_the_relaxation_from_above():
    """What a batch's penalty is: another subspace than its own best one."""
    points = torch.tensor(random_points(50, 5, 2))
    other = spectral_subspace(torch.tensor(random_points(50, 5, 3)), 3)
    assert residual(points, *other) >= spectral_relaxation(points, 3)


def test_entropic_equals_the_literal_loop_and_passes_gradcheck():
    M = torch.tensor(random_points(7, 3, 0), requires_grad=True)
    C = torch.tensor(random_points(4, 3, 1), requires_grad=True)
    shares = torch.rand(7, 4, generator=torch.Generator().manual_seed(0)).double()
    shares[1] = torch.tensor([0, 0, 1, 0])
    shares[2, 0] = 0
    shares /= shares.sum(dim=1, keepdim=True)
    for prior in (None, shares):
        terms = []
        for i in range(7):
            p = [1, 1, 1, 1] if prior is None else prior[i]
            terms.append(
                -0.3
                * torch.log(
                    sum(
                        p[k] * torch.exp(-(M[i] - C[k]).square().sum() / 0.3)
                        for k in range(4)
                    )
                )
            )
        expected = sum(terms) / 7
        torch.testing.assert_close(entropic_relaxation(M, C, 0.3, prior), expected)
        assert torch.autograd.gradcheck(
            lambda M, C, prior=prior: entropic_relaxation(M, C, 0.3, prior), (M, C)
        )


def test_with_a_prior_the_entropic_relaxation_lies_above_k_means():
    """It tends to k-means among the clusters with a share, whatever the shares."""
    M, C = torch.tensor(random_points(30, 3, 0)), torch.tensor(random_points(4, 3, 1))
    prior = torch.tensor(np.random.RandomState(2).dirichlet(np.ones(4), size=30))
    hard = torch.cdist(M, C).square().min(dim=1).values.mean()
    values = [entropic_relaxation(M, C, tau, prior) for tau in (1.0, 0.1, 1e-6)]
    assert values[0] > values[1] > values[2] >= hard
    torch.testing.assert_close(values[2], hard, atol=1e-4, rtol=0)
    equal = torch.full((30, 4), 0.25).double()
    torch.testing.assert_close(
        entropic_relaxation(M, C, 0.5, equal),
        entropic_relaxation(M, C, 0.5) + 0.5 * math.log(4),
    )
    known = torch.nn.functional.one_hot(torch.arange(30) % 4, 4).double()
    own = (M - C[torch.arange(30) % 4]).square().sum(dim=1).mean()
    torch.testing.assert_close(entropic_relaxation(M, C, 0.5, known), own)


def test_entropic_pull_stops_at_the_center():
    """A point on its center has no gradient, and no NaN."""
    M = torch.zeros(1, 2, requires_grad=True)
    entropic_relaxation(M, torch.zeros(1, 2), 0.1).backward()
    assert not M.grad.any()


def test_soft_assignment_equals_its_formula_and_tends_to_the_nearest():
    M, C = torch.tensor(random_points(6, 2, 0)), torch.tensor(random_points(3, 2, 1))
    weights = torch.exp(-squared_distances(M, C) / 0.5)
    expected = weights / weights.sum(dim=1, keepdim=True)
    torch.testing.assert_close(assign(M, C, 0.5), expected)
    nearest = assign(M, C, 0)
    torch.testing.assert_close(nearest.to(M), assign(M, C, 1e-9))


@pytest.mark.parametrize("seed", range(4))
def test_refine_without_temperature_is_lloyd(seed):
    X = clustered_points(300, 4, seed)
    seeds = X[:5]
    reference = KMeans(5, init=seeds, n_init=1, tol=0, max_iter=500).fit(X)
    centers, _ = refine(torch.tensor(X), torch.tensor(seeds), 0, max_iter=500, tol=0)
    np.testing.assert_allclose(centers, reference.cluster_centers_, atol=1e-10)


def test_refine_lowers_the_entropic_objective_in_every_round():
    X = torch.tensor(random_points(200, 3, 0))
    centers = X[:6]
    values = [entropic_relaxation(X, centers, 0.5).item()]
    for _ in range(20):
        centers, _ = refine(X, centers, 0.5, max_iter=1, tol=0)
        values.append(entropic_relaxation(X, centers, 0.5).item())
    assert (np.diff(values) <= 1e-12).all()
    assert values[-1] < values[0]


def test_refine_keeps_labelled_points_with_their_center():
    points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    # The far seeds are crossed on purpose.
    prior = torch.tensor([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0], [0.5, 0.5]])
    centers, _ = refine(
        points, torch.tensor([[10.0], [0.0]]), 0.1, max_iter=50, tol=0, prior=prior
    )
    torch.testing.assert_close(centers, torch.tensor([[10.5], [0.5]]))
    forced, _ = refine(
        points, torch.tensor([[0.0], [10.0]]), 0, max_iter=1, tol=0, prior=prior
    )
    torch.testing.assert_close(forced, torch.tensor([[5.5], [5.5]]))


def test_refine_leaves_fixed_centers_where_they_are():
    points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    seeds = torch.tensor([[0.0], [9.0]])
    centers, _ = refine(points, seeds, 0.1, max_iter=50, tol=0, n_fixed=1)
    torch.testing.assert_close(centers, torch.tensor([[0.0], [10.5]]))


def test_an_empty_cluster_keeps_its_center():
    points = torch.tensor([[0.0], [1.0]])
    centers, _ = refine(points, torch.tensor([[0.5], [99.0]]), 0, max_iter=9, tol=0)
    torch.testing.assert_close(centers, torch.tensor([[0.5], [99.0]]))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)]
)
def test_an_integer_weight_is_that_many_points(dtype, tolerance):
    rng = np.random.RandomState(0)
    copies = torch.tensor(rng.randint(1, 4, size=700))
    points = torch.tensor(clustered_points(700, 8, 0) / 10, dtype=dtype)
    prior = torch.tensor(rng.dirichlet(np.ones(6), size=700), dtype=dtype)
    centers, subspace = points[:6], spectral_subspace(points[:50], 4)

    def compute(points, prior, w):
        yield entropic_relaxation(points, centers, 0.1, sample_weight=w)
        yield entropic_relaxation(points, centers, 0.1, prior, w)
        yield residual(points, *subspace, w)
        yield spectral_relaxation(points, 4, w)
        yield spectral_subspace(points, 4, w)[0]
        for tau in (0, 0.1):
            for tol in (0, 1e-2):
                yield refine(
                    points, centers, tau, max_iter=9, tol=tol, sample_weight=w
                )[0]
        yield refine(
            points, centers, 0.1, max_iter=9, tol=0, prior=prior, sample_weight=w
        )[0]

    weighted = compute(points, prior, copies.to(dtype))
    repeat = torch.arange(700).repeat_interleave(copies)
    repeated = compute(points[repeat], prior[repeat], None)
    for a, b in zip(weighted, repeated, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def test_weighted_objectives_equal_the_literal_loop_and_pass_gradcheck():
    M = torch.tensor(random_points(7, 3, 0), requires_grad=True)
    C = torch.tensor(random_points(4, 3, 1), requires_grad=True)
    w = torch.tensor([0.1, 2.0, 0.7, 1e-9, 5.0, 1.0, 0.3], dtype=torch.float64)
    mean, V = spectral_subspace(torch.tensor(random_points(9, 3, 2)), 2)
    entropic, outside, total = 0.0, 0.0, 0.0
    for i in range(7):
        terms = [torch.exp(-(M[i] - C[k]).square().sum() / 0.3) for k in range(4)]
        entropic -= w[i] * 0.3 * torch.log(sum(terms))
        inside = mean + V @ (V.T @ (M[i] - mean))
        outside += w[i] * (M[i] - inside).square().sum()
        total += w[i]
    torch.testing.assert_close(
        entropic_relaxation(M, C, 0.3, sample_weight=w), entropic / total
    )
    torch.testing.assert_close(residual(M, mean, V, w), outside / total)
    assert torch.autograd.gradcheck(
        lambda M, C: entropic_relaxation(M, C, 0.3, sample_weight=w), (M, C)
    )
    assert torch.autograd.gradcheck(lambda M: spectral_relaxation(M, 2, w), (M,))


def test_weighted_spectral_relaxation_is_the_tail_of_the_singular_values():
    X, w = random_points(30, 6, 0), np.random.RandomState(1).uniform(0.1, 3, size=30)
    centered = X - np.average(X, axis=0, weights=w)
    sigma = np.linalg.svd(np.sqrt(w)[:, None] * centered, compute_uv=False)
    for K in range(1, 9):
        value = spectral_relaxation(torch.tensor(X), K, torch.tensor(w)).item()
        assert value == pytest.approx((sigma[K - 1 :] ** 2).sum() / w.sum(), abs=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_the_weights_changes_nothing(scale):
    points = torch.tensor(random_points(600, 5, 0))
    w = torch.tensor(np.random.RandomState(1).uniform(0.1, 3, size=600))
    for compute in (
        lambda w: entropic_relaxation(points, points[:4], 0.1, sample_weight=w),
        lambda w: spectral_relaxation(points, 3, w),
        lambda w: refine(
            points, points[:4], 0.1, max_iter=50, tol=1e-3, sample_weight=w
        )[0],
    ):
        torch.testing.assert_close(compute(w * scale), compute(w))


@pytest.mark.parametrize("seed", range(4))
def test_weighted_refine_without_temperature_is_kmeans(seed):
    X = clustered_points(300, 4, seed)
    seeds = X[:5]
    w = np.random.RandomState(seed).exponential(size=300) ** 3
    reference = KMeans(5, init=seeds, n_init=1, tol=0, max_iter=500)
    reference.fit(X, sample_weight=w)
    centers, _ = refine(
        torch.tensor(X),
        torch.tensor(seeds),
        0,
        max_iter=500,
        tol=0,
        sample_weight=torch.tensor(w),
    )
    np.testing.assert_allclose(centers, reference.cluster_centers_, atol=1e-10)
    plain = KMeans(5, init=seeds, n_init=1, tol=0, max_iter=500).fit(X)
    assert np.abs(plain.cluster_centers_ - centers.numpy()).max() > 1e-3


def test_the_tolerance_of_refine_is_in_the_weighted_variance():
    """An outlier of nearly no weight does not end it sooner."""
    points = torch.tensor(random_points(300, 2, 0))
    far = torch.cat([points, torch.full((1, 2), 1e6, dtype=torch.float64)])
    w = torch.ones(301, dtype=torch.float64)
    w[-1] = 1e-20
    centers, n_iter = refine(points, points[:4], 0, max_iter=99, tol=1e-3)
    assert n_iter > 2
    other, n_iter_far = refine(
        far, points[:4], 0, max_iter=99, tol=1e-3, sample_weight=w
    )
    assert n_iter_far == n_iter
    torch.testing.assert_close(other, centers)
