"""Older assumptions make the internal discrepancy small: each where it holds.

A row's positive is any of its views, itself included, and μ is the mean of its views.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from skcl import theory
from skcl.clustering import spectral_relaxation
from skcl.losses import uniformity


def unit(array):
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def on_circle(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def distances(a, b):
    """‖a_i - b_j‖, of shape (n, m)."""
    return np.linalg.norm(a[:, None] - b, axis=-1)


def squared_discrepancy(views, y, w=None):
    """Δ₂², by the package."""
    means = views.mean(axis=1)
    centers = theory.class_centers(means, y, sample_weight=w)
    return np.average(theory.internal_discrepancy(means, centers, y) ** 2, weights=w)


# Conditional independence: Arora et al. (ICML 2019)


def excess_of_alignment(views, y):
    """E f·f⁺ - Σ_k π_k ‖c_k‖², from two contrastive losses and literally.

    SupCon is InfoNCE with a positive from the whole class: only E f·c_y stands where
    E f·f⁺ does.
    """
    of_class = theory.contrastive_loss(views, 1.0, "supcon", y)
    excess = of_class - theory.contrastive_loss(views, 1.0)
    alignment = np.einsum("ivd,iud->ivu", views, views).mean()
    centers = theory.class_centers(views.mean(axis=1), y)
    of_centers = np.bincount(y) / len(y) @ (centers**2).sum(axis=1)
    assert excess == pytest.approx(alignment - of_centers, abs=1e-12)
    return excess


def test_conditional_independence_leaves_no_discrepancy():
    """Given the class, the row says nothing about the view: E[f | row] = c_y.

    Two classes, of rows with one distribution of views each: Δ₂ = 0, and InfoNCE is the
    supervised contrastive loss.
    """
    rng = np.random.RandomState(0)
    views = np.repeat(unit(rng.normal(size=(2, 6, 3))), [5, 2], axis=0)
    y = np.repeat([0, 1], [5, 2])
    assert squared_discrepancy(views, y) == pytest.approx(0, abs=1e-15)
    assert excess_of_alignment(views, y) == pytest.approx(0, abs=1e-12)


def test_equal_means_are_enough():
    """Rows of other views, from which the row can be told, but of the same mean."""
    turns = np.linspace(0, 1, 7)
    axis, side = np.array([0.6, 0, 0]), 0.8 * np.insert(on_circle(turns), 0, 0, axis=1)
    views = np.stack([axis + side, axis - side], axis=1)  # (7, 2, 3), unit vectors
    y = np.zeros(7, dtype=int)
    assert squared_discrepancy(views, y) == pytest.approx(0, abs=1e-15)
    assert excess_of_alignment(views, y) == pytest.approx(0, abs=1e-12)


def test_discrepancy_is_the_excess_of_alignment():
    """Exactly, so Δ₂ = 0 if and only if E f·f⁺ = Σ_k π_k ‖c_k‖²."""
    rng = np.random.RandomState(1)
    for _ in range(50):
        V, spread = rng.randint(1, 5), rng.rand()
        y = np.concatenate([np.arange(3), rng.choice(3, 12, p=[0.8, 0.1, 0.1])])
        rows = rng.normal(size=(3, 1, 4))[y] + spread * rng.normal(size=(15, 1, 4))
        views = unit(rows + rng.normal(size=(15, V, 4)))
        squared = squared_discrepancy(views, y)
        assert squared > 1e-3
        assert excess_of_alignment(views, y) == pytest.approx(squared, abs=1e-12)


@pytest.mark.parametrize("V", [1, 2, 3])
def test_few_conditionally_independent_views(V):
    """Δ₂ = 0 is of the population: the means of V views still vary about c_y.

    With every V-tuple of a class's points as a row, Δ₂² = (1 - Σ_k π_k ‖c_k‖²) / V.
    """
    rng = np.random.RandomState(2)
    classes = [unit(rng.normal(size=3) + rng.normal(size=(m, 3))) for m in (2, 4)]
    rows = [np.array(list(itertools.product(points, repeat=V))) for points in classes]
    y = np.repeat([0, 1], [len(of_class) for of_class in rows])
    centers = np.array([points.mean(axis=0) for points in classes])
    variance = 1 - (centers[y] ** 2).sum(axis=1).mean()
    squared = squared_discrepancy(np.concatenate(rows), y)
    assert squared == pytest.approx(variance / V, abs=1e-12)


# Augmentation overlap: Wang et al. (ICLR 2022)


def chain(rng, D, V, d=4):
    """D + 1 rows, each of which shares a view with the next: (D + 1, V, d)."""
    scale = rng.choice([0.03, 0.3, 1.0])
    centers = scale * rng.normal(size=(D + 1, 1, d)).cumsum(axis=0)
    views = unit(rng.normal(size=d) + centers + scale * rng.normal(size=(D + 1, V, d)))
    views[1:, 0] = views[:-1, 1]
    return views


def largest_gap(views):
    """The largest ‖f - f⁺‖ of two views of one row."""
    return max(distances(row, row).max() for row in views)


def test_overlap_bounds_the_discrepancy():
    """‖μ - μ'‖ ≤ 2 (1 - 1/V) D gap and Δ₂² ≤ 2 ((1 - 1/V) D gap)².

    For D > 1 steps ‖μ - μ'‖ ≤ (D + 1 - 2/V) gap is smaller: a row in between is crossed
    from one shared view to the next, and costs one gap, not two.
    """
    rng = np.random.RandomState(0)
    for _ in range(200):
        V, lengths = rng.randint(2, 6), rng.randint(1, 6, size=2)
        chains = [chain(rng, D, V) for D in lengths]
        squared = 0.0
        for views in chains:
            gap, means = largest_gap(views), views.mean(axis=1)
            steps = np.abs(np.subtract.outer(range(len(views)), range(len(views))))
            crossed = np.where(steps > 0, steps + 1 - 2 / V, 0) * gap
            assert (distances(means, means) <= crossed + 1e-12).all()
            assert (crossed <= 2 * (1 - 1 / V) * steps * gap + 1e-12).all()
            squared += len(views) * 2 * ((1 - 1 / V) * (len(views) - 1) * gap) ** 2
        y = np.repeat([0, 1], lengths + 1)
        bound = squared / len(y)
        assert squared_discrepancy(np.concatenate(chains), y) <= bound + 1e-12


def test_overlap_needs_its_factor():
    """D gap alone is no bound: 1.918 gap at one step, and Δ₂² above (D gap)² / 2."""
    V = 100
    angles = np.zeros((2, V))
    angles[0, 1:], angles[1, 1:] = 0.5, -0.5  # the shared view stays at 0
    views = on_circle(angles)
    gap, means = largest_gap(views), views.mean(axis=1)
    ratio = np.linalg.norm(means[0] - means[1]) / gap
    assert ratio == pytest.approx(2 * (1 - 1 / V) * np.cos(0.25), abs=1e-12)
    assert ratio == pytest.approx(1.918, abs=1e-3)
    assert squared_discrepancy(views, np.zeros(2, dtype=int)) > gap**2 / 2


@pytest.mark.parametrize("D", [1, 2, 5])
def test_overlap_along_a_straight_chain(D):
    """Views of row i at i and i + 1 small steps, the ends seldom at the shared view."""
    V, step = 50, 1e-4
    at = np.repeat(np.arange(D + 1.0)[:, None], V, axis=1)
    at[:, 0] += 1
    at[D] = D + 1
    at[D, 0] = D
    views = on_circle(step * at)
    means = views.mean(axis=1)
    reached = np.linalg.norm(means[0] - means[D]) / largest_gap(views)
    assert reached == pytest.approx(D + 1 - 2 / V, rel=1e-6)


# (σ, δ)-augmentation: Huang et al. (ICLR 2023)


def lipschitz_encoder(rng, L, n_features=5, m=3):
    """f(x) = (cos u_j·x, sin u_j·x)_j / √m, ‖u_j‖ = L √m orthogonal: L-Lipschitz.

    ‖f(x) - f(x')‖² ≤ Σ_j (u_j·(x - x'))² / m ≤ L² ‖x - x'‖².
    """
    directions, _ = np.linalg.qr(rng.normal(size=(n_features, m)))

    def f(x):
        angles = L * np.sqrt(m) * x @ directions
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) / np.sqrt(m)

    return f


def constants(x, views, good):
    """Return σ, δ and ε as they are for given good rows of one class."""
    means = views[good].mean(axis=1)
    pairs = itertools.product(x[good], repeat=2)
    delta = max(distances(a, b).min() for a, b in pairs)
    epsilon = np.linalg.norm(views[good] - means[:, None], axis=-1).max()
    return good.mean(), delta, epsilon


def augmentation_bound(sigma, delta, epsilon, L):
    """½ [σ² (2ε + Lδ)² + 4 (1 - σ²)]."""
    return (sigma**2 * (2 * epsilon + L * delta) ** 2 + 4 * (1 - sigma**2)) / 2


def test_augmentation_bound():
    """Good rows are alike, the others anything.

    The bound says more than Δ₂² ≤ 1 only if σ² (4 - (2ε + Lδ)²) > 2, so σ > .71.
    """
    rng, informative = np.random.RandomState(0), 0
    for _ in range(200):
        L, n, V = rng.choice([0.3, 1.0, 3.0]), rng.randint(2, 30), rng.randint(1, 5)
        f = lipschitz_encoder(rng, L)
        good = np.append(True, rng.rand(n - 1) < 0.95)
        rows = np.where(good, 0.05 * rng.rand(), 5.0)[:, None, None]
        x = rows * rng.normal(size=(n, 1, 5)) + 0.1 * rng.normal(size=(n, V, 5))
        views = f(x)
        sigma, delta, epsilon = constants(x, views, good)
        flat, z = x.reshape(-1, 5), views.reshape(-1, 6)
        assert (distances(z, z) <= L * distances(flat, flat) + 1e-9).all()
        means = views[good].mean(axis=1)
        assert distances(means, means).max() <= 2 * epsilon + L * delta + 1e-9
        bound = augmentation_bound(sigma, delta, epsilon, L)
        assert squared_discrepancy(views, np.zeros(n, dtype=int)) <= bound + 1e-9
        informative += bound < 1
    assert informative > 50


def test_the_share_of_bad_rows_is_needed():
    """Good rows at a point, bad ones opposite: Δ₂² = 4σ(1 - σ), the bound 2(1 - σ²)."""
    n = 100
    for n_good in (50, 90, 99):
        sigma = n_good / n
        views = np.where(np.arange(n) < n_good, 1.0, -1.0)[:, None, None]
        squared = squared_discrepancy(views, np.zeros(n, dtype=int))
        assert squared == pytest.approx(4 * sigma * (1 - sigma))
        share = squared / augmentation_bound(sigma, 0, 0, 1)
        assert share == pytest.approx(2 * sigma / (1 + sigma))


def test_epsilon_and_delta_are_needed():
    """Two rows on a short arc, all views but one far from the other row's nearest.

    ‖μ - μ'‖ = 2ε + Lδ up to the curvature: neither summand can be smaller.
    """
    V, L = 50, 2.0
    x = np.full((2, V, 1), 4e-4)
    x[:, 0] = 1e-4
    x[1] *= -1
    views = on_circle(L * x[..., 0])
    sigma, delta, epsilon = constants(x, views, np.array([True, True]))
    assert sigma == 1
    assert delta == pytest.approx(2e-4)
    assert epsilon == pytest.approx((1 - 1 / V) * L * 3e-4, rel=1e-5)
    apart = np.linalg.norm(views[0].mean(axis=0) - views[1].mean(axis=0))
    assert apart == pytest.approx(2 * epsilon + L * delta, rel=1e-5)
    squared = squared_discrepancy(views, np.zeros(2, dtype=int))
    assert squared == pytest.approx((2 * epsilon + L * delta) ** 2 / 4, rel=1e-5)


# Augmentation graph: HaoChen et al. (NeurIPS 2021)


def augmentation_graph(rng, n=12, n_points=30, V=8, n_parts=1):
    """Return the points that are the views of each row, (n, V), and row weights.

    Rows and points fall into parts that share nothing; in one part, most rows overlap.
    """
    part_of_row, part_of_point = np.arange(n) % n_parts, np.arange(n_points) % n_parts
    drawn = [
        rng.choice(np.flatnonzero(part_of_point == part), V) for part in part_of_row
    ]
    # Every point must be a view: each is dealt to a row of its part.
    drawn = np.array(drawn)
    for point in range(n_points):
        drawn[point % n, point // n] = point
    return drawn, rng.dirichlet(3 * np.ones(n))


def spectral_optimum(points, w, d):
    """Return all eigenvalues of the graph and the optimal views, (n, V, d).

    Row i shows point x with probability A[i, x]; the point's is p_x = Σ_i w_i A[i, x].
    The graph joins x and x' by Σ_i w_i A[i, x] A[i, x']; normalized by 1/√(p_x p_x') it
    is BᵀB with B[i, x] = A[i, x] √(w_i / p_x). With its leading d eigenvalues λ and
    eigenvectors U, the spectral loss is least at f(x) = (√λ_j U_xj / √p_x)_j: not unit
    vectors.
    """
    n, V = points.shape
    A = np.zeros((n, points.max() + 1))
    np.add.at(A, (np.arange(n)[:, None], points), 1 / V)
    weight_of_point = w @ A
    B = A * np.sqrt(w[:, None] / weight_of_point)
    eigenvalues, U = np.linalg.eigh(B.T @ B)
    eigenvalues, U = eigenvalues[::-1].clip(0), U[:, ::-1]
    f = np.sqrt(eigenvalues[:d]) * U[:, :d] / np.sqrt(weight_of_point)[:, None]
    return eigenvalues, f[points]


def spectral_loss(views, w):
    """-2 E f·f⁺ + E (f·f⁻)², of vectors of any norm."""
    means, z = views.mean(axis=1), views.reshape(-1, views.shape[-1])
    of_views = np.repeat(w, views.shape[1]) / views.shape[1]
    return -2 * w @ (means**2).sum(axis=1) + of_views @ (z @ z.T) ** 2 @ of_views


def trace_relaxation(means, w, n_clusters, *, centered):
    """Squared singular values beyond K - 1 if centered, beyond K if not."""
    if centered:
        means, n_clusters = means - w @ means, n_clusters - 1
    values = np.linalg.svd(np.sqrt(w)[:, None] * means, compute_uv=False)
    return (values[n_clusters:] ** 2).sum()


@pytest.mark.parametrize("n_parts", [1, 3])
@pytest.mark.parametrize("d", [3, 6, 10])
def test_spectral_optimum_of_an_augmentation_graph(d, n_parts):
    """The trace relaxation of μ is Σ_{i=K+1}^d λ_i² ≤ Δ₂² of every K-partition.

    √w_i μ_i = (B F)_i with F = U √Λ, and B = P √Λ Uᵀ: the singular values of the
    weighted means are λ_1 … λ_d, which stand squared in E‖μ‖² = Σ_i λ_i². P's first
    column is √w, of λ_1 = 1, so to center the means is to leave out that value: beyond
    K - 1 centered and beyond K not centered are the same, which for other means they
    are not. (Each of several parts has an eigenvalue 1; d must reach their number.)
    """
    rng = np.random.RandomState(d)
    points, w = augmentation_graph(rng, n_parts=n_parts)
    eigenvalues, views = spectral_optimum(points, w, d)
    assert eigenvalues[:n_parts] == pytest.approx(1)
    assert eigenvalues[n_parts] < 0.999
    means = views.mean(axis=1)
    assert spectral_loss(views, w) == pytest.approx(-(eigenvalues[:d] ** 2).sum())
    for K in range(1, 8):
        expected = (eigenvalues[K:d] ** 2).sum()
        for centered in (True, False):
            value = trace_relaxation(means, w, K, centered=centered)
            assert value == pytest.approx(expected, abs=1e-12)
        tensors = torch.from_numpy(means), torch.from_numpy(w)
        value = spectral_relaxation(tensors[0], K, tensors[1]).item()
        assert value == pytest.approx(expected, abs=1e-12)
        for _ in range(200):
            y = rng.permutation(np.append(np.arange(K), rng.randint(0, K, 12 - K)))
            assert squared_discrepancy(views, y, w) >= expected - 1e-12
    y = np.arange(12) % n_parts  # the parts reach it
    expected = (eigenvalues[n_parts:d] ** 2).sum()
    assert squared_discrepancy(views, y, w) == pytest.approx(expected, abs=1e-12)


def test_no_views_have_less_spectral_loss_than_the_optimum():
    rng = np.random.RandomState(0)
    points, w = augmentation_graph(rng)
    _, views = spectral_optimum(points, w, 3)
    least = spectral_loss(views, w)
    for scale in (1e-3, 0.1, 1.0):
        for _ in range(20):
            moved = views + scale * rng.normal(size=(30, 3))[points]
            assert spectral_loss(moved, w) > least


def test_centering_matters_for_other_means():
    """uncentered beyond K ≤ centered beyond K - 1, strictly for random means."""
    rng = np.random.RandomState(0)
    for _ in range(50):
        means, w = rng.normal(size=(12, 6)), rng.dirichlet(np.ones(12))
        K = rng.randint(1, 5)
        uncentered = trace_relaxation(means, w, K, centered=False)
        assert uncentered < trace_relaxation(means, w, K, centered=True) - 1e-6


# Alignment and uniformity: Wang and Isola (ICML 2020)


def alignment_and_uniformity(views, t):
    """E ‖f - f⁺‖² / (2t), E_x log E exp(-‖f - f⁻‖²/(2t)), and its log E E."""
    alignment = np.mean([(distances(row, row) ** 2).mean() for row in views])
    z = views.reshape(-1, views.shape[-1])
    potential = -(distances(z, z) ** 2) / (2 * t)
    inner = logsumexp(potential, axis=1) - np.log(len(z))
    return alignment / (2 * t), inner.mean(), logsumexp(inner) - np.log(len(z))


@pytest.mark.parametrize("t", [0.1, 0.5, 2.0])
def test_alignment_and_uniformity(t):
    """L_CL is alignment plus E_x log E_{x⁻}; log E E is above that term, by Jensen.

    So alignment plus Wang and Isola's uniformity bounds L_CL from above.
    """
    rng = np.random.RandomState(0)
    for _ in range(50):
        n, V, d = rng.randint(2, 10), rng.randint(1, 4), rng.randint(2, 5)
        views = unit(
            rng.normal(size=(n, 1, d)) + rng.rand() * rng.normal(size=(n, V, d))
        )
        aligned, inside, outside = alignment_and_uniformity(views, t)
        loss = theory.contrastive_loss(views, t)
        assert loss == pytest.approx(aligned + inside, abs=1e-10)
        assert loss <= aligned + outside + 1e-12
        if n * V > 2:  # two views see each other at one distance
            assert inside < outside - 1e-9


def test_uniformity_is_exact_where_all_views_see_the_same():
    """A regular polygon: the inner mean does not depend on the anchor."""
    n, t = 7, 0.5
    views = on_circle(2 * np.pi * np.arange(n) / n)[:, None]
    _, inside, outside = alignment_and_uniformity(views, t)
    assert inside == pytest.approx(outside, abs=1e-12)
    # losses.uniformity leaves out the anchor itself, which adds exp(0) / n.
    of_others = uniformity(torch.from_numpy(views), scale=1 / (2 * t)).exp().item()
    assert np.exp(outside) == pytest.approx((1 - 1 / n) * of_others + 1 / n)
