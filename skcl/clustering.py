"""Relaxed k-means: objectives and their minimization, as functions of tensors.

M (n, d) holds points m_i, here the rows' mean positive representations, C (K, d)
centers c_k. All objectives are means over the points, in squared units of M; weighted
means, Σ_i w_i (·) / Σ_i w_i, where points have weights w_i. For every C, with the hard
objective k-means(M, C) = mean_i min_k ‖m_i - c_k‖²,

    spectral(M) ≤ min_C k-means(M, C),
    entropic(M, C) ≤ k-means(M, C) ≤ entropic(M, C) + τ log K.

A prior says what is known of a point beforehand: the shares p_ik, Σ_k p_ik = 1, of the
clusters in it. A known cluster has share 1; nothing is known where all are 1/K.
"""

import math

import torch
from torch import Tensor

from skcl._blocks import mean, pairwise_products, summed_products


def squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    """Return ‖m_i - c_k‖², of shape (n, K)."""
    products = pairwise_products(points, centers)
    norms = points.square().sum(dim=1, keepdim=True) + centers.square().sum(dim=1)
    return (norms - 2 * products).clamp_min(0)


def assign(
    points: Tensor, centers: Tensor, temperature: float, prior: Tensor | None = None
) -> Tensor:
    """Return the share of each cluster in each point, (n, K).

    p_ik exp(-‖m_i - c_k‖²/τ), normalized over the clusters; if τ = 0, the nearest alone
    of those with a share in the prior (n, K), None being equal shares.
    """
    scores = _scores(points, centers, temperature, prior)
    if temperature == 0:
        nearest = scores.argmax(dim=1)
        return torch.nn.functional.one_hot(nearest, len(centers)).to(points)
    # Of few clusters torch's softmax is several times slower.
    shares = ((scores - scores.amax(dim=1, keepdim=True)) / temperature).exp_()
    return shares / shares.sum(dim=1, keepdim=True)


def entropic_relaxation(
    points: Tensor,
    centers: Tensor,
    temperature: float,
    prior: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Entropic relaxation of the k-means objective.

    E = mean_i [ -τ log Σ_k exp(-‖m_i - c_k‖² / τ) ]

    with temperature τ, in the squared units of the points. It tends to the hard
    objective as τ → 0, and lies below it by at most τ log K.

    With a prior, E = mean_i [ -τ log Σ_k p_ik exp(-‖m_i - c_k‖² / τ) ]. This lies above
    the hard objective, and tends to it where every share is positive; equal shares add
    τ log K to the value without a prior.

    Parameters
    ----------
    points : Tensor of shape (n, d)
        M.
    centers : Tensor of shape (K, d)
        C.
    temperature : float
        τ, positive.
    prior : Tensor of shape (n, K), default=None
        p_ik, not negative, of sum 1 over k. None leaves them out.
    sample_weight : Tensor of shape (n,), default=None
        w_i, positive; None is equal weights.

    Returns
    -------
    Tensor of shape ()
        E.

    References
    ----------
    Rose, Gurewitz, Fox: A deterministic annealing approach to clustering (1990): E is
    the free energy.

    Examples
    --------
    >>> import torch
    >>> from skcl.clustering import entropic_relaxation
    >>> points = torch.tensor([[0.0], [1.0]])
    >>> round(entropic_relaxation(points, points, temperature=0.01).item(), 6)
    0.0
    """
    scores = _scores(points, centers, temperature, prior)
    soft_maximum = temperature * (scores / temperature).logsumexp(dim=1)  # (n,)
    return mean(torch.linalg.vecdot(points, points) - soft_maximum, sample_weight)


def spectral_subspace(
    points: Tensor, n_clusters: int, sample_weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean (d,) of the points and their K - 1 leading directions (d, r).

    They are the right singular vectors of the centered points, times √w_i where points
    have weights (n,); r = min(K - 1, d). The decomposition is detached: as the best
    subspace, it has no gradient to first order.
    """
    with torch.no_grad():
        mean_point = _mean_point(points, sample_weight)
        centered = points - mean_point
        moment = summed_products(_weighted(centered, sample_weight), centered)
        _, vectors = torch.linalg.eigh(moment)
        first = max(points.shape[1] - (n_clusters - 1), 0)
        return mean_point, vectors[:, first:]


def residual(
    points: Tensor,
    mean_point: Tensor,
    directions: Tensor,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Mean squared distance of the points to an affine subspace."""
    centered = points - mean_point
    inside = pairwise_products(centered, directions.T)  # (n, r)
    outside = centered - pairwise_products(inside, directions)
    return mean(outside.square().sum(dim=1), sample_weight)


def spectral_relaxation(
    points: Tensor, n_clusters: int, sample_weight: Tensor | None = None
) -> Tensor:
    """Spectral, or trace, relaxation of the k-means objective.

    E = 1/n Σ_{j ≥ K} σ_j², σ_1 ≥ σ_2 ≥ … the singular values of the centered points.
    With weights, the points are centered at their weighted mean and multiplied by √w_i,
    and n is Σ_i w_i.

    It bounds the least k-means objective from below, is 0 if d < K or n ≤ K, and its
    gradient, without weights 2 (M̃ - M̃ V Vᵀ)/n with V the K - 1 leading right singular
    vectors, is finite at tied singular values too.

    Parameters
    ----------
    points : Tensor of shape (n, d)
        M.
    n_clusters : int
        K.
    sample_weight : Tensor of shape (n,), default=None
        w_i, positive; None is equal weights.

    Returns
    -------
    Tensor of shape ()
        E.

    References
    ----------
    Zha, He, Ding, Simon, Gu: Spectral relaxation for k-means clustering (NIPS 2001).
    Ding, He: K-means clustering via principal component analysis (ICML 2004).

    Examples
    --------
    >>> import torch
    >>> from skcl.clustering import spectral_relaxation
    >>> points = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> spectral_relaxation(points, n_clusters=2).item()  # σ² are 8 and 2
    0.5
    """
    mean_point, directions = spectral_subspace(points, n_clusters, sample_weight)
    return residual(points, mean_point, directions, sample_weight)


def refine(
    points: Tensor,
    centers: Tensor,
    temperature: float,
    *,
    max_iter: int,
    tol: float,
    n_fixed: int = 0,
    prior: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> tuple[Tensor, int]:
    """Lower the entropic objective from given centers; the hard one if τ = 0.

    Alternates the assignment of the points with the mean of the assigned points, which
    never raises the objective. A cluster that no point is assigned to keeps its center.

    Parameters
    ----------
    points : Tensor of shape (n, d)
        M.
    centers : Tensor of shape (K, d)
        Where to start.
    temperature : float
        τ, or 0 for Lloyd's algorithm.
    max_iter : int
        The most rounds.
    tol : float
        Stop when the centers' squared shift falls to tol times the points' variance.
    n_fixed : int, default=0
        How many of the first centers stay where they are.
    prior : Tensor of shape (n, K), default=None
        p_ik, not negative, of sum 1 over k; None is equal shares.
    sample_weight : Tensor of shape (n,), default=None
        w_i, positive; None is equal weights.

    Returns
    -------
    centers : Tensor of shape (K, d)
        The last centers.
    n_iter : int
        The rounds run.
    """
    centered = points - _mean_point(points, sample_weight)
    variance = mean(centered.square().sum(dim=1), sample_weight).item()
    n_iter = 0
    tiny = torch.finfo(points.dtype).tiny
    counted = torch.cat([points, torch.ones_like(points[:, :1])], dim=1)  # (n, d + 1)
    for n_iter in range(1, max_iter + 1):  # noqa: B007
        assigned = assign(points, centers, temperature, prior)  # (n, K)
        assigned = _weighted(assigned, sample_weight)
        sums = summed_products(assigned, counted)  # the last column is the mass
        mass = sums[:, -1:]
        moved = torch.where(mass > tiny, sums[:, :-1] / mass.clamp_min(tiny), centers)
        moved[:n_fixed] = centers[:n_fixed]
        shift = (moved - centers).square().sum(dim=1).sum().item()
        centers = moved
        if shift <= tol * variance:
            break
    return centers, n_iter


def _mean_point(points: Tensor, sample_weight: Tensor | None) -> Tensor:
    ones = torch.ones_like(points[:, :1])
    weight = _weighted(ones, sample_weight)
    total = len(points) if sample_weight is None else summed_products(weight, ones)[0]
    return summed_products(points, weight).squeeze(1) / total


def _weighted(rows: Tensor, sample_weight: Tensor | None) -> Tensor:
    return rows if sample_weight is None else rows * sample_weight[:, None]


def _scores(
    points: Tensor, centers: Tensor, temperature: float, prior: Tensor | None
) -> Tensor:
    """Return ‖m_i‖² - ‖m_i - c_k‖² + τ log p_ik, -inf without a share, (n, K)."""
    scores = pairwise_products(points, 2 * centers) - centers.square().sum(dim=1)
    if prior is None:
        return scores
    return torch.where(prior > 0, scores + temperature * prior.log(), -math.inf)
