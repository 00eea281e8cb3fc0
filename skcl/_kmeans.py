"""K-means, hard or entropic, from several k-means++ starts."""

import numpy as np
import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from skcl._torch import to_tensor
from skcl.clustering import entropic_relaxation, hard_objective, refine


def seed_centers(points: Tensor, n_clusters: int, random_state) -> Tensor:
    """Draw centers among the points by k-means++."""
    array = points.detach().cpu().numpy()
    centers, _ = kmeans_plusplus(array, n_clusters, random_state=random_state)
    return to_tensor(centers, points.device, points.dtype)


def fit_kmeans(
    points: Tensor,
    n_clusters: int,
    temperature: float,
    *,
    n_init: int,
    max_iter: int,
    tol: float,
    random_state: np.random.RandomState,
) -> tuple[Tensor, int]:
    """Return the best centers over n_init starts, (K, d), and their rounds.

    Lowers the entropic objective; the hard one if the temperature is 0.
    """
    best, best_objective, rounds = None, torch.inf, 0
    for _ in range(n_init):
        seeds = seed_centers(points, n_clusters, random_state)
        centers, n_iter = refine(points, seeds, temperature, max_iter=max_iter, tol=tol)
        if temperature > 0:
            objective = entropic_relaxation(points, centers, temperature).item()
        else:
            objective = hard_objective(points, centers).item()
        if objective < best_objective:
            best, best_objective, rounds = centers, objective, n_iter
    return best, rounds
