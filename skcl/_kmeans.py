"""K-means of arrays, hard or entropic, from several k-means++ starts."""

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from torch import Tensor

from skcl._torch import to_numpy, to_tensor
from skcl.clustering import refine


def exact_squared_distances(X: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return ‖x_i - c_k‖² from the differences: exact at any offset, (n, K)."""
    return cdist(X, centers, "sqeuclidean")


def nearest(X: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the index of the nearest center, (n,)."""
    return exact_squared_distances(X, centers).argmin(axis=1)


def objective(
    squared: np.ndarray, temperature: float, sample_weight: np.ndarray | None = None
) -> float:
    """Return the sum over the points of -τ log Σ_k exp(-d²/τ); of min_k d² if τ = 0.

    Each point's term is multiplied by its weight, if weights (n,) are given.
    """
    weight = 1.0 if sample_weight is None else sample_weight
    if temperature == 0:
        return float((weight * squared.min(axis=1)).sum())
    with np.errstate(over="ignore"):  # infinite, and then refused
        terms = weight * logsumexp(-squared / temperature, axis=1)
        return float(-temperature * terms.sum())


def draw_seeds(
    X: np.ndarray,
    n_clusters: int,
    sample_weight: np.ndarray | None,
    random_state: np.random.RandomState | int,
) -> np.ndarray:
    """Draw starting centers by k-means++, (K, d)."""
    # Slow to import, as it brings most of scikit-learn.
    from sklearn.cluster import kmeans_plusplus

    seeds, _ = kmeans_plusplus(
        X, n_clusters, sample_weight=sample_weight, random_state=random_state
    )
    return seeds


def refine_centers(
    X: np.ndarray,
    centers: np.ndarray,
    temperature: float,
    *,
    max_iter: int,
    tol: float,
    device: torch.device,
    sample_weight: np.ndarray | None = None,
) -> tuple[np.ndarray, int]:
    """Lower the objective from given centers; return centers and rounds."""
    # Products lose their digits in a large offset.
    offset = np.average(X, axis=0, weights=sample_weight)
    refined, n_iter = refine(
        to_tensor(X - offset, device, torch.float64),
        to_tensor(centers - offset, device, torch.float64),
        temperature,
        max_iter=max_iter,
        tol=tol,
        sample_weight=weight_tensor(sample_weight, device),
    )
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
    sample_weight: np.ndarray | None = None,
) -> tuple[np.ndarray, int]:
    """Return the best centers over n_init starts, (K, d), and their rounds."""
    best, best_objective, rounds = None, np.inf, 0
    offset = np.average(X, axis=0, weights=sample_weight)
    centered = X - offset
    points = to_tensor(centered, device, torch.float64)
    weight = weight_tensor(sample_weight, device)
    for _ in range(n_init):
        seeds = draw_seeds(centered, n_clusters, sample_weight, random_state)
        refined, n_iter = refine(
            points,
            to_tensor(seeds, device, torch.float64),
            temperature,
            max_iter=max_iter,
            tol=tol,
            sample_weight=weight,
        )
        centers = to_numpy(refined) + offset
        squared = exact_squared_distances(X, centers)
        value = objective(squared, temperature, sample_weight)
        if value < best_objective:
            best, best_objective, rounds = centers, value, n_iter
    if best is None:
        raise ValueError(
            f"The objective at temperature={temperature} overflows: raise temperature, "
            "or scale X down."
        )
    return best, rounds


def weight_tensor(weight: np.ndarray | None, device: torch.device) -> Tensor | None:
    """Return the weights of rows as a tensor of float64, if there are any."""
    return None if weight is None else to_tensor(weight, device, torch.float64)
