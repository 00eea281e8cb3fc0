"""The encoder in a pipeline, a search or a frozen estimator, and its views."""

from typing import Any

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline


def search_encoder(estimator: Any) -> tuple[list, Any] | None:
    """Return the steps before the last one with embed_views, and that one, if any."""
    if isinstance(estimator, FrozenEstimator):
        return search_encoder(estimator.estimator)
    if hasattr(estimator, "best_estimator_"):  # of a search
        return search_encoder(estimator.best_estimator_)
    if isinstance(estimator, Pipeline):
        for i in reversed(range(len(estimator.steps))):
            found = search_encoder(estimator.steps[i][1])
            if found is not None:
                # Without those that act in fit alone: samplers of imbalanced-learn.
                steps = [step for _, step in estimator.steps[:i]]
                acting = [step for step in steps if hasattr(step, "transform")]
                return acting + found[0], found[1]
    return ([], estimator) if hasattr(estimator, "embed_views") else None


def find_encoder(estimator: Any) -> tuple[list, Any]:
    """Return what :func:`search_encoder` finds, or raise."""
    found = search_encoder(estimator)
    if found is None:
        raise ValueError(
            f"{type(estimator).__name__} has no step with a method embed_views: a "
            "ContrastiveEncoder, or a pipeline with one, is needed."
        )
    return found


def regularizer_clusters(estimator: Any) -> int | None:
    """Return the number of clusters of an encoder's regularizer, if it has one."""
    _, encoder = search_encoder(estimator) or ([], None)
    return getattr(getattr(encoder, "regularizer", None), "n_clusters", None)


def embed_views(estimator: Any, X: Any, n_views: int, seed: int) -> np.ndarray:
    """Return the views' unit vectors from a fitted encoder or pipeline."""
    before, encoder = find_encoder(estimator)
    for transformer in before:
        X = transformer.transform(X)
    return encoder.embed_views(X, n_views, random_state=seed)
