"""Relaxed k-means, alone as a clustering and inside the encoder as a penalty."""

import math
import warnings
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor

from skcl._blocks import summed_products
from skcl._kmeans import fit_kmeans, seed_centers
from skcl._table import begin_fit, check_table
from skcl._torch import resolve_device, seed_from, to_numpy, to_tensor
from skcl.clustering import (
    entropic_relaxation,
    hard_objective,
    refine,
    residual,
    soft_assignment,
    spectral_relaxation,
    spectral_subspace,
)

# Rounds of refinement of the centers at the start of an epoch: they follow the
# network, and need not converge.
ROUNDS_PER_EPOCH = 10


class Subspace(NamedTuple):
    """What the spectral penalty is measured from."""

    mean: Tensor  # (d,)
    directions: Tensor  # (d, r)


class Centers(NamedTuple):
    """What the entropic penalty is measured from."""

    centers: Tensor  # (K, d)


class RelaxedKMeansRegularizer(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator
):
    """Relaxed k-means: a penalty on the internal discrepancy, and a clustering.

    Inside a :class:`ContrastiveEncoder` it pulls the mean positive representation of
    each row towards its latent cluster. Alone it clusters a representation. The
    k-means objective of points m_i, mean_i min_k ‖m_i - c_k‖², is relaxed in one of
    two ways.

    - "spectral": to the mean squared distance of the points to the best affine
      subspace of K - 1 dimensions. It is a lower bound of the k-means objective and
      has no centers.
    - "entropic": to mean_i [-τ log Σ_k exp(-‖m_i - c_k‖²/τ)] with centers c_k and
      temperature τ. It lies below the k-means objective by at most τ log K.

    Parameters
    ----------
    n_clusters : int, default=8
        K. Inside an encoder whose loss uses labels, each class has a center of its
        own, and what is left of K is spent on unlabelled rows.
    relaxation : {"spectral", "entropic"}, default="entropic"
        The relaxation.
    temperature : float, default=0.1
        τ, in squared units of the representation. Used by "entropic" and by
        :meth:`predict_proba`.
    n_init : int, default=10
        Number of k-means++ starts, alone.
    max_iter : int, default=300
        The most rounds of one start, alone.
    tol : float, default=1e-4
        A start ends when its centers' squared shift falls to tol times the variance of
        the points, alone.
    device : str or torch.device, default="auto"
        Where to compute, alone: "auto" is CUDA where there is one, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of the starts, alone.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features_in_)
        The centers.
    labels_ : ndarray of shape (n_samples,)
        The nearest center of each row of fit.
    inertia_ : float
        Sum of the rows' squared distances to their nearest center, as KMeans has it.
    relaxed_inertia_ : float
        The relaxed objective as a sum over the rows, at most inertia_.
    n_iter_ : int
        Rounds of the best start.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where all are strings.

    See Also
    --------
    ContrastiveEncoder : Takes it as `regularizer`.
    sklearn.cluster.KMeans : The hard objective.

    Notes
    -----
    Any object with two methods can regularize an encoder.
    ``start(means, generator, y=None) -> state`` is called at the beginning of each
    epoch with the rows' positive means (n, d) as a detached tensor and, where the loss
    uses labels, their codes y (-1 for an unlabelled row).
    ``penalty(means, state, y=None)`` returns a scalar tensor for the rows of a batch.

    The spectral clustering rounds as usual: k-means in the subspace, whose partition is
    then refined by k-means in the space of the representation.

    References
    ----------
    "Internal Discrepancy for Contrastive Learning: Generalization Bounds and Downstream
    Behaviors" (2026), for the use of relaxed k-means. Zha, He, Ding, Simon, Gu:
    Spectral relaxation for k-means clustering (NIPS 2001). Rose, Gurewitz, Fox: A
    deterministic annealing approach to clustering (1990).

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from skcl import RelaxedKMeansRegularizer
    >>> X, _ = make_blobs(n_samples=90, centers=3, random_state=0)
    >>> clustering = RelaxedKMeansRegularizer(n_clusters=3, random_state=0).fit(X)
    >>> clustering.cluster_centers_.shape
    (3, 2)
    >>> clustering.relaxed_inertia_ <= clustering.inertia_
    True
    """

    _parameter_constraints = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "relaxation": [StrOptions({"spectral", "entropic"})],
        "temperature": [Interval(Real, 0, None, closed="neither")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "device": [str, torch.device],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_clusters=8,
        *,
        relaxation="entropic",
        temperature=0.1,
        n_init=10,
        max_iter=300,
        tol=1e-4,
        device="auto",
        random_state=None,
    ):
        self.n_clusters = n_clusters
        self.relaxation = relaxation
        self.temperature = temperature
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.random_state = random_state

    def start(self, means, generator, y=None):
        """Find subspace or centers from all rows' positive means, for one epoch.

        Parameters
        ----------
        means : Tensor of shape (n, d)
            Positive means, detached.
        generator : torch.Generator
            Source of the k-means++ starts.
        y : Tensor of shape (n,), default=None
            Codes of the classes, -1 for an unlabelled row. A class's mean is where its
            center starts, and its rows stay with it.

        Returns
        -------
        Subspace or Centers
            The state that :meth:`penalty` is given.
        """
        if self.relaxation == "spectral":
            return Subspace(*spectral_subspace(means, self.n_clusters))
        seeds = self._seeds(means, generator, y)
        centers, _ = refine(
            means, seeds, self.temperature, max_iter=ROUNDS_PER_EPOCH, tol=0, labels=y
        )
        return Centers(centers)

    def penalty(self, means, state, y=None):
        """Return the relaxed k-means objective of the rows of a batch.

        To the entropic one τ log K is added: it then bounds the squared internal
        discrepancy from above.

        Parameters
        ----------
        means : Tensor of shape (b, d)
            Positive means of the rows, of any number.
        state : Subspace or Centers
            From :meth:`start`.
        y : Tensor of shape (b,), default=None
            Codes of the classes, -1 for an unlabelled row.

        Returns
        -------
        Tensor of shape ()
            The mean over the rows, in squared units of the means.
        """
        if isinstance(state, Subspace):
            return residual(means, state.mean, state.directions)
        objective = entropic_relaxation(
            means, state.centers, self.temperature, labels=y
        )
        return objective + self.temperature * math.log(len(state.centers))

    def fit(self, X, y=None):
        """Cluster a representation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The representation, at least n_clusters rows.
        y : None
            Ignored.

        Returns
        -------
        RelaxedKMeansRegularizer
            The fitted clustering.

        Raises
        ------
        ValueError
            If a parameter is out of range, a value of X is not finite, or n_clusters
            exceeds the number of rows.
        """
        begin_fit(self)
        device = resolve_device(self.device)
        X = check_table(self, X, reset=True)
        if len(X) < self.n_clusters:
            raise ValueError(
                f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}."
            )
        # Centered first: distances lose their digits in a large common offset.
        offset = X.mean(axis=0, dtype=np.float64)
        points = to_tensor(X - offset, device, torch.float64)
        options = {
            "n_init": self.n_init,
            "max_iter": self.max_iter,
            "tol": self.tol,
            "random_state": check_random_state(self.random_state),
        }
        if self.relaxation == "entropic":
            centers, self.n_iter_ = fit_kmeans(
                points, self.n_clusters, self.temperature, **options
            )
            relaxed = entropic_relaxation(points, centers, self.temperature)
        else:
            centers, self.n_iter_ = self._round(points, options)
            relaxed = spectral_relaxation(points, self.n_clusters)
        self._offset_ = offset
        self.cluster_centers_ = to_numpy(centers) + offset
        self.labels_ = self._nearest(X)
        self.inertia_ = hard_objective(points, centers).item() * len(X)
        self.relaxed_inertia_ = min(relaxed.item() * len(X), self.inertia_)
        n_found = len(np.unique(self.labels_))
        if n_found < self.n_clusters:
            warnings.warn(
                f"Only {n_found} of n_clusters={self.n_clusters} clusters have rows: "
                "there are fewer distinct rows, or temperature="
                f"{self.temperature} is high for the scale of X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def predict(self, X):
        """Return the index of the nearest center of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The representation.

        Returns
        -------
        ndarray of int, of shape (n_samples,)
            Indices into cluster_centers_.
        """
        check_is_fitted(self, "cluster_centers_")
        return self._nearest(check_table(self, X, reset=False))

    def predict_proba(self, X):
        """Return the soft assignment, exp(-‖x - c_k‖²/τ) normalized over the clusters.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The representation.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
            Rows that sum to 1.
        """
        check_is_fitted(self, "cluster_centers_")
        X = check_table(self, X, reset=False)
        cpu = torch.device("cpu")
        points = to_tensor(X - self._offset_, cpu, torch.float64)
        centers = to_tensor(self.cluster_centers_ - self._offset_, cpu, torch.float64)
        return to_numpy(soft_assignment(points, centers, self.temperature))

    def transform(self, X):
        """Return the distance of each row to each center, as KMeans does.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The representation.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
            Euclidean distances, of the dtype of X.
        """
        check_is_fitted(self, "cluster_centers_")
        X = check_table(self, X, reset=False)
        return self._distances(X).astype(X.dtype, copy=False)

    def score(self, X, y=None):
        """Return minus the sum of squared distances to the nearest centers, as KMeans.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The representation.
        y : None
            Ignored.

        Returns
        -------
        float
            At most 0; higher is better.
        """
        check_is_fitted(self, "cluster_centers_")
        X = check_table(self, X, reset=False)
        nearest = self.cluster_centers_[self._nearest(X)]
        return -float(((X - nearest) ** 2).sum())

    def _seeds(self, means: Tensor, generator: Generator, y: Tensor | None) -> Tensor:
        """One center a class, then k-means++ among the unlabelled rows."""
        if y is None:
            return seed_centers(means, self.n_clusters, seed_from(generator))
        n_classes = int(y.max()) + 1
        classes = torch.arange(n_classes, device=y.device)
        member = (y[:, None] == classes).to(means)  # (n, n_classes)
        sums = summed_products(member, means)
        size = summed_products(member, torch.ones_like(means[:, :1]))
        seeds = sums / size.clamp_min(1)
        unlabelled = means[y < 0]
        n_free = min(self.n_clusters - n_classes, len(unlabelled))
        if n_free <= 0:
            return seeds
        free = seed_centers(unlabelled, n_free, seed_from(generator))
        return torch.cat([seeds, free])

    def _round(self, points: Tensor, options: dict) -> tuple[Tensor, int]:
        """Turn the spectral solution into a partition, and that into centers."""
        mean, directions = spectral_subspace(points, self.n_clusters)
        if directions.shape[1] == 0:  # one cluster
            return mean[None], 1
        inside = (points - mean) @ directions
        seeds, n_iter = fit_kmeans(inside, self.n_clusters, 0, **options)
        centers = mean + seeds @ directions.T
        centers, refined = refine(
            points, centers, 0, max_iter=self.max_iter, tol=self.tol
        )
        return centers, n_iter + refined

    @property
    def _n_features_out(self):
        return len(self.cluster_centers_)

    def _distances(self, X: np.ndarray) -> np.ndarray:
        return euclidean_distances(
            X - self._offset_, self.cluster_centers_ - self._offset_
        )

    def _nearest(self, X: np.ndarray) -> np.ndarray:
        return self._distances(X).argmin(axis=1).astype(np.int32)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
