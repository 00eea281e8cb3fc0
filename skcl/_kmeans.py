"""K-means of arrays, hard or entropic, from several k-means++ starts."""

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from sklearn.cluster import kmeans_plusplus

from skcl._torch import to_numpy, to_tensor
from skcl.clustering import refine


def exact_squared_distances(X: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return ‖x_i - c_k‖² from the differences: exact at any offset, (n, K)."""
    return cdist(X, centers, "sqeuclidean")


def nearest(X: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the index of the nearest center, (n,)."""
    return exact_squared_distances(X, centers).argmin(axis=1)


def objective(squared: np.ndarray, temperature: float) -> float:
    """Return the sum over the points of -τ log Σ_k exp(-d²/τ); of min_k d² if τ = 0."""
    if temperature == 0:
        return float(squared.min(axis=1).sum())
    with np.errstate(over="ignore"):  # infinite, and then refused
        return float(-temperature * logsumexp(-squared / temperature, axis=1).sum())


def refine_centers(
    X: np.ndarray,
    centers: np.ndarray,
    temperature: float,
    *,
    max_iter: int,
    tol: float,
    device: torch.device,
) -> tuple[np.ndarray, int]:
    """Lower the objective from given centers; return centers and rounds."""
    offset = X.mean(axis=0)  # products lose their digits in a large one
    points = to_tensor(X - offset, device, torch.float64)
    start = to_tensor(centers - offset, device, torch.float64)
    refined, n_iter = refine(points, start, temperature, max_iter=max_iter, tol=tol)
    return to_numpy(refined) + offset, n_iter


def fit_kmeans(
    X: np.ndarray,
    n_clusters: int,
    temperature: float,
    *,
    n_init: int,
    max_iter: int,
    tol: float,
    device: torch.device,
    random_state: np.random.RandomState,
) -> tuple[np.ndarray, int]:
    """Return the best centers over n_init starts, (K, d), and their rounds."""
    best, best_objective, rounds = None, np.inf, 0
    offset = X.mean(axis=0)
    centered = X - offset
    points = to_tensor(centered, device, torch.float64)
    for _ in range(n_init):
        seeds, _ = kmeans_plusplus(centered, n_clusters, random_state=random_state)
        start = to_tensor(seeds, device, torch.float64)
        refined, n_iter = refine(points, start, temperature, max_iter=max_iter, tol=tol)
        centers = to_numpy(refined) + offset
        value = objective(exact_squared_distances(X, centers), temperature)
        if value < best_objective:
            best, best_objective, rounds = centers, value, n_iter
    if best is None:
        raise ValueError(
            f"The objective at temperature={temperature} overflows: raise temperature, "
            "or scale X down."
        )
    return best, rounds
