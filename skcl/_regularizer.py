"""Relaxed k-means, alone as a clustering and inside the encoder as a penalty."""

import math
import warnings
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor

from skcl._blocks import summed_products
from skcl._kmeans import (
    draw_seeds,
    exact_squared_distances,
    fit_kmeans,
    objective,
    refine_centers,
    weight_tensor,
)
from skcl._propagation import propagate
from skcl._table import check_table, forget_fit
from skcl._torch import (
    check_threads_work,
    portable,
    resolve_device,
    to_numpy,
    to_tensor,
)
from skcl._weights import check_sample_weight, given_weights
from skcl.clustering import (
    entropic_relaxation,
    refine,
    residual,
    spectral_subspace,
    squared_distances,
)

# Rounds of refinement of the centers at the start of an epoch: they follow the
# network, and need not converge.
ROUNDS_PER_EPOCH = 10


# The center of a class without rows, in each coordinate: no row is drawn to it.
OUT_OF_REACH = 1e6


class Subspace(NamedTuple):
    """What the spectral penalty is measured from."""

    mean: Tensor  # (d,)
    directions: Tensor  # (d, r)


class Centers(NamedTuple):
    """What the entropic penalty is measured from."""

    centers: Tensor  # (K, d)
    prior: Tensor | None  # (n, K), what is known of the rows; None if nothing


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
        τ, in squared units of the representation: unit vectors in an encoder; alone,
        fit it to the scale of X. Used by "entropic" and by :meth:`predict_proba`.
    n_neighbors : int or None, default=20
        Inside an encoder whose loss uses labels, and for "entropic": of each row, over
        which labels spread to unlabelled rows, at the beginning of each epoch. An
        unlabelled row is drawn to the centers in the shares in which labels reach it
        and by its distance to them. None: by the distance alone.
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
        Sum of the rows' squared distances to their nearest center, times the rows'
        weights as given, as KMeans has it.
    relaxed_inertia_ : float
        The relaxed objective as such a sum over the rows, at most inertia_.
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
    ``start(points, generator, y=None) -> state`` is called at the beginning of each
    epoch with the unit vectors (n, d) of the rows as they are, a detached tensor, and,
    where the loss uses labels, the rows' codes y (-1 for an unlabelled row).
    ``penalty(means, state, y=None, rows=None)`` returns a scalar tensor for the
    positive means (b, d) of a batch; rows (b,) are the positions of its rows among
    those of ``start``, None if they are held out.
    Where rows have weights, both are also given ``sample_weight``, by keyword: a tensor
    (n,) of positive weights; without weights it is never passed.
    If its attribute ``draws_from_generator_only`` is not true, torch's global
    generators are seeded while it is trained with, and put back afterwards.

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
        "n_neighbors": [Interval(Integral, 1, None, closed="left"), None],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "device": [str, torch.device],
        "random_state": ["random_state"],
    }

    # Inside an encoder no global generator needs to be seeded for it.
    draws_from_generator_only = True

    def __init__(
        self,
        n_clusters=8,
        *,
        relaxation="entropic",
        temperature=0.1,
        n_neighbors=20,
        n_init=10,
        max_iter=300,
        tol=1e-4,
        device="auto",
        random_state=None,
    ):
        self.n_clusters = n_clusters
        self.relaxation = relaxation
        self.temperature = temperature
        self.n_neighbors = n_neighbors
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.random_state = random_state

    # An encoder passes the labelled rows and at most so many others, drawn once in a
    # fit: the centers need no more, and the neighbors' graph grows with the square.
    max_unlabelled = 4096

    def start(self, points, generator, y=None, sample_weight=None):
        """Find subspace or centers from the rows' unit vectors, for one epoch.

        The spectral subspace is that of all rows, whatever their labels. Of a large
        table these are a part: see `max_unlabelled`.

        Parameters
        ----------
        points : Tensor of shape (n, d)
            Unit vectors of the rows, detached.
        generator : torch.Generator
            Source of the k-means++ starts.
        y : Tensor of shape (n,), default=None
            Codes of the classes, -1 for an unlabelled row, for "entropic": the mean of
            a class's labelled rows is its center, and they stay with it.
        sample_weight : Tensor of shape (n,), default=None
            Weights of the rows, positive.

        Returns
        -------
        Subspace or Centers
            The state that :meth:`penalty` is given.
        """
        if self.relaxation == "spectral":
            return Subspace(*spectral_subspace(points, self.n_clusters, sample_weight))
        n_classes = 0 if y is None else int(y.max()) + 1
        seeds = self._seeds(points, n_classes, generator, y, sample_weight)
        prior = None
        if n_classes:
            prior = self._prior(y, len(seeds))
            if self.n_neighbors is not None:
                self._spread(prior, points, y, n_classes, sample_weight)
        centers = seeds
        if n_classes < len(seeds):
            centers, _ = refine(
                points,
                seeds,
                self.temperature,
                max_iter=ROUNDS_PER_EPOCH,
                tol=0,
                n_fixed=n_classes,
                prior=prior,
                sample_weight=sample_weight,
            )
        return Centers(centers, prior)

    def penalty(self, means, state, y=None, rows=None, sample_weight=None):
        """Return the relaxed k-means objective of the rows of a batch.

        "spectral": their mean squared distance to the subspace of all rows.
        "entropic": the objective with the centers of all rows, and with what is known
        of each row, or equal shares, as prior, with which it bounds the squared
        internal discrepancy from above.

        Parameters
        ----------
        means : Tensor of shape (b, d)
            Positive means of the rows, of any number.
        state : Subspace or Centers
            From :meth:`start`.
        y : Tensor of shape (b,), default=None
            Codes of the classes, -1 for an unlabelled row.
        rows : Tensor of shape (b,), default=None
            Positions of the rows among those of :meth:`start`, -1 for one that was not
            among them; None if none was.
        sample_weight : Tensor of shape (b,), default=None
            Weights of the rows, positive.

        Returns
        -------
        Tensor of shape ()
            The (weighted) mean over the rows, in squared units of the means.
        """
        if isinstance(state, Subspace):
            return residual(means, *state, sample_weight)
        n_clusters = len(state.centers)
        prior, offset = None, 0.0
        if state.prior is None:  # what equal shares add
            offset = self.temperature * math.log(n_clusters)
        else:
            prior = self._prior(y, n_clusters)
            if rows is not None:
                known = (rows >= 0)[:, None]
                prior = torch.where(known, state.prior[rows], prior)
        return offset + entropic_relaxation(
            means, state.centers, self.temperature, prior, sample_weight
        )

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None, sample_weight=None):
        """Cluster a representation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The representation, at least n_clusters rows.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, not negative. A row of weight 0 counts as absent, but has a label.

        Returns
        -------
        RelaxedKMeansRegularizer
            The fitted clustering.

        Raises
        ------
        ValueError
            If a parameter is out of range, a value of X is not finite, a weight is
            negative, or n_clusters exceeds the number of rows with a weight.
        """
        forget_fit(self)
        check_threads_work()
        device = resolve_device(self.device)
        X = check_table(self, X, reset=True).astype(np.float64, copy=False)
        rows, weight = check_sample_weight(sample_weight, len(X))
        given = given_weights(sample_weight, len(X), rows)
        counted = X[rows]
        if len(counted) < self.n_clusters:
            raise ValueError(
                f"n_samples={len(counted)} should be >= n_clusters={self.n_clusters}."
                + ("" if len(counted) == len(X) else " Rows of weight 0 do not count.")
            )
        options = {
            "max_iter": self.max_iter,
            "tol": self.tol,
            "device": device,
            "sample_weight": weight,
        }
        starts = {
            "n_init": self.n_init,
            "random_state": check_random_state(self.random_state),
        }
        entropic = self.relaxation == "entropic"
        fit_centers = self._fit_entropic if entropic else self._fit_spectral
        self.cluster_centers_, self.n_iter_, self.relaxed_inertia_ = fit_centers(
            counted, given, options, starts
        )
        squared = exact_squared_distances(X, self.cluster_centers_)
        self.labels_ = squared.argmin(axis=1).astype(np.int32)
        self.inertia_ = objective(squared[rows], 0, given)
        n_found = len(np.unique(self.labels_[rows]))
        if n_found < self.n_clusters:
            warnings.warn(
                f"Only {n_found} of n_clusters={self.n_clusters} clusters have rows: "
                "there are fewer distinct rows"
                + (
                    f", or temperature={self.temperature} is high for the scale of X."
                    if entropic
                    else "."
                ),
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

        Raises
        ------
        NotFittedError
            Before fit.
        ValueError
            If the columns differ from those of fit, or a value is not finite.
        """
        return self._squared_distances(X).argmin(axis=1).astype(np.int32)

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

        Raises
        ------
        NotFittedError
            Before fit.
        ValueError
            If the columns differ from those of fit, or a value is not finite.
        """
        squared = self._squared_distances(X)
        squared -= squared.min(axis=1, keepdims=True)  # else all may overflow
        with np.errstate(over="ignore"):
            return softmax(-squared / self.temperature, axis=1)

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

        Raises
        ------
        NotFittedError
            Before fit.
        ValueError
            If the columns differ from those of fit, or a value is not finite.
        """
        check_is_fitted(self, "cluster_centers_")
        X = check_table(self, X, reset=False)
        distances = np.sqrt(exact_squared_distances(X, self.cluster_centers_))
        return distances.astype(X.dtype, copy=False)

    def score(self, X, y=None, sample_weight=None):
        """Return minus the sum of squared distances to the nearest centers, as KMeans.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The representation.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows in the sum, not negative.

        Returns
        -------
        float
            At most 0; higher is better.

        Raises
        ------
        NotFittedError
            Before fit.
        ValueError
            If the columns differ from those of fit, a value is not finite, or a weight
            is negative.
        """
        squared = self._squared_distances(X)
        rows, _ = check_sample_weight(sample_weight, len(squared))
        given = given_weights(sample_weight, len(squared), rows)
        return -objective(squared[rows], 0, given)

    def _seeds(
        self,
        points: Tensor,
        n_classes: int,
        generator: Generator,
        y: Tensor | None,
        sample_weight: Tensor | None,
    ) -> Tensor:
        """One center a class, then k-means++ among the unlabelled rows."""
        seeds, unlabelled, weight = points[:0], points, sample_weight
        if n_classes:
            tiny = torch.finfo(points.dtype).tiny
            ones = torch.ones_like(points[:, 0])
            given = ones if sample_weight is None else sample_weight
            classes = torch.arange(n_classes, device=y.device)
            member = (y[:, None] == classes) * given[:, None]  # (n, n_classes)
            size = summed_products(member, ones[:, None])
            seeds = summed_products(member, points) / size.clamp_min(tiny)
            seeds[size[:, 0] == 0] = OUT_OF_REACH
            unlabelled = points[y < 0]
            # By k-means++ itself, the next seed lies far from those there are.
            squared = squared_distances(unlabelled, seeds).min(dim=1).values
            weight = squared * given[y < 0] + tiny
        n_free = min(self.n_clusters - n_classes, len(unlabelled))
        if n_free <= 0:
            return seeds
        # One seed for all epochs: as the rows move little, so do the starts.
        free = draw_seeds(
            to_numpy(unlabelled),
            n_free,
            None if weight is None else to_numpy(weight),
            generator.initial_seed() % 2**32,
        )
        return torch.cat([seeds, to_tensor(free, points.device, points.dtype)])

    def _prior(self, y: Tensor, n_clusters: int) -> Tensor:
        """Return the shares by labels alone, (n, K): all equal without a label."""
        own = torch.nn.functional.one_hot(y.clamp_min(0), n_clusters).float()
        return torch.where((y >= 0)[:, None], own, 1 / n_clusters)

    def _spread(
        self,
        prior: Tensor,
        points: Tensor,
        y: Tensor,
        n_classes: int,
        sample_weight: Tensor | None,
    ) -> None:
        """Let the classes share their part of an unlabelled row as labels reach it."""
        unlabelled = y < 0
        if not unlabelled.any():
            return
        shares = propagate(
            to_numpy(points),
            to_numpy(y),
            n_classes,
            self.n_neighbors,
            None if sample_weight is None else to_numpy(sample_weight),
        )
        shares = to_tensor(shares, points.device, points.dtype)
        prior[unlabelled, :n_classes] *= n_classes * shares[unlabelled]

    def _fit_entropic(
        self, X: np.ndarray, given: np.ndarray | None, options: dict, starts: dict
    ):
        """Return centers, rounds and the relaxed objective as a sum."""
        centers, n_iter = fit_kmeans(
            X, self.n_clusters, self.temperature, **options, **starts
        )
        squared = exact_squared_distances(X, centers)
        return centers, n_iter, objective(squared, self.temperature, given)

    def _fit_spectral(
        self, X: np.ndarray, given: np.ndarray | None, options: dict, starts: dict
    ):
        """Turn the spectral solution into a partition, and that into centers."""
        mean = np.average(X, axis=0, weights=options["sample_weight"])
        points = to_tensor(X - mean, options["device"], torch.float64)
        weight = weight_tensor(options["sample_weight"], options["device"])
        subspace = spectral_subspace(points, self.n_clusters, weight)
        total = len(X) if given is None else given.sum()
        relaxed = float(residual(points, *subspace, weight).item() * total)
        directions = to_numpy(subspace[1])
        seeds = np.zeros((1, 0))  # of one cluster, whose subspace is a point
        if self.n_clusters > 1:
            inside = (X - mean) @ directions
            seeds, _ = fit_kmeans(inside, self.n_clusters, 0, **options, **starts)
        centers = mean + seeds @ directions.T
        return *refine_centers(X, centers, 0, **options), relaxed

    @property
    def _n_features_out(self):
        return len(self.cluster_centers_)

    def _squared_distances(self, X) -> np.ndarray:
        check_is_fitted(self, "cluster_centers_")
        return exact_squared_distances(
            check_table(self, X, reset=False), self.cluster_centers_
        )

    def __getstate__(self):
        return portable(super().__getstate__())

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
