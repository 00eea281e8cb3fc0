"""Measures the internal discrepancy of an embedding, and what follows from it."""

from copy import deepcopy
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
    clone,
)
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, get_tags
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import _num_samples, check_is_fitted

from skcl import theory
from skcl._kmeans import exact_squared_distances, fit_kmeans, nearest
from skcl._labels import UNLABELLED, check_two_classes, encode_labels
from skcl._table import check_table, forget_fit
from skcl._torch import draw_seed

# What a two-dimensional representation, without views and temperature, has.
REPRESENTATION_TERMS = ("discrepancy", "squared_discrepancy", "relative_discrepancy")
TERMS = (*REPRESENTATION_TERMS, "contrastive_loss", "incurred_loss", "bound")


class DiscrepancyScorer(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Measure how far rows' positive means lie from the centers of their clusters.

    The internal discrepancy of a row is the distance between the mean of its views'
    unit vectors, its positive mean, and the center of its class; without labels, of its
    k-means cluster. It is what the supervised loss after contrastive learning exceeds
    the contrastive loss by. The scorer is an estimator, whose `fit` learns the centers,
    and a scorer: ``GridSearchCV(pipeline, grid, scoring=DiscrepancyScorer())``.

    Parameters
    ----------
    encoder : estimator or None, default=None
        A :class:`ContrastiveEncoder`, or a pipeline that ends in one. It is cloned and
        fitted in fit; put a fitted one into ``sklearn.frozen.FrozenEstimator``. None:
        X is a representation already, each row its own positive mean; or the object
        serves as `scoring`.
    term : str, default="auto"
        What :meth:`score` returns the negative of:

        - "discrepancy": mean distance Δ₁;
        - "squared_discrepancy": mean squared distance Δ₂²;
        - "relative_discrepancy": Δ₂² as a share of the variance of the positive means;
        - "contrastive_loss": the encoder's loss over all rows;
        - "incurred_loss": the supervised loss that the contrastive one incurs;
        - "bound": the upper bound on it, from contrastive loss and discrepancy;
        - "auto": "incurred_loss" with labels, "bound" without, and for a
          representation "relative_discrepancy".

        Without an encoder a representation has the first three only. The first two
        are best for a constant embedding: do not select a model by them.
    n_clusters : int or None, default=None
        Number of clusters, where there are no labels. None: as scorer, that of the
        encoder's regularizer.
    n_views : int, default=8
        Views of each row.
    random_state : int, RandomState instance or None, default=None
        Seed of views and clusters. As scorer, every candidate sees the same views;
        None is then a fixed seed.

    Attributes
    ----------
    centers_ : ndarray of shape (n_centers, n_dimensions)
        Class means or cluster centers of the positive means.
    classes_ : ndarray of shape (n_centers,)
        The classes; only with labels.
    encoder_ : estimator or None
        The fitted encoder.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where all are strings.

    See Also
    --------
    ContrastiveEncoder : Learns the embedding.
    RelaxedKMeansRegularizer : Lowers the discrepancy in training.

    Notes
    -----
    With labels, rows marked by y = -1 are left out. For "infonce" and "spectral" the
    bound with centers learned on other rows still bounds the incurred loss of the rows'
    own centers, which lie nearer.

    As scorer, held-out rows have centers of their own: a class of one row has no
    discrepancy, and with few rows a class the incurred loss is optimistic. All terms
    but the discrepancies depend on the temperature, and all on n_views. The incurred
    loss is 0 for a constant encoder at every temperature, and -log K at the least: to
    compare temperatures by it asks at which the classes' centers tell most.

    References
    ----------
    "Internal Discrepancy for Contrastive Learning: Generalization Bounds and Downstream
    Behaviors" (2026).

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from skcl import DiscrepancyScorer
    >>> X, y = load_wine(return_X_y=True)
    >>> scorer = DiscrepancyScorer().fit(scale(X), y)
    >>> scorer.centers_.shape
    (3, 13)
    >>> round(-scorer.score(scale(X), y), 3)  # share of the variance within classes
    0.562
    """

    _parameter_constraints = {
        "encoder": [HasMethods(["fit", "get_params"]), None],
        "term": [StrOptions({"auto", *TERMS})],
        "n_clusters": [Interval(Integral, 1, None, closed="left"), None],
        "n_views": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        encoder=None,
        *,
        term="auto",
        n_clusters=None,
        n_views=8,
        random_state=None,
    ):
        self.encoder = encoder
        self.term = term
        self.n_clusters = n_clusters
        self.n_views = n_views
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None):
        """Learn the centers; with an encoder, fit it first.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            What the encoder takes; without one, a representation.
        y : array-like of shape (n_samples,), default=None
            Classes. -1 marks an unlabelled row, which is left out. None: clusters.

        Returns
        -------
        DiscrepancyScorer
            The fitted scorer.

        Raises
        ------
        ValueError
            If a parameter is out of range, `term` needs an encoder, there are no labels
            and no n_clusters, or X is not what the encoder takes.
        """
        forget_fit(self)
        self._term(y, self.encoder is not None)
        if y is None:
            n_clusters = self._n_clusters(self.encoder, _num_samples(X))
        if self.encoder is not None:
            _find(self.encoder)
        rng = check_random_state(self.random_state)
        self._views_seed_ = draw_seed(rng)
        self.encoder_ = None
        if self.encoder is not None:
            self.encoder_ = clone(self.encoder).fit(X, y)
            _copy_input_attributes(self, self.encoder_)
        means = _means(self._views(X, reset=True))
        if y is None:
            self.centers_ = _cluster(means, n_clusters, rng)[0]
        else:
            self.classes_, codes = _encode(means, y)
            self.centers_ = theory.class_centers(means[codes >= 0], codes[codes >= 0])
        return self

    def transform(self, X):
        """Return the distance of each row's positive mean to each center.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows with the columns of fit.

        Returns
        -------
        ndarray of shape (n_samples, n_centers)
            Distances, in units of the representation.

        Raises
        ------
        NotFittedError
            Before fit.
        ValueError
            If X is not what the encoder, or fit, takes.
        """
        check_is_fitted(self, "centers_")
        views = self._views(X)
        return np.sqrt(exact_squared_distances(_means(views), self.centers_))

    def score_samples(self, X, y=None):
        """Return minus the internal discrepancy of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their classes, none of them -1; None is the nearest center.

        Returns
        -------
        ndarray of shape (n_samples,)
            Higher is better.

        Raises
        ------
        ValueError
            If y has -1, a class that fit did not see, or fit had no labels.
        """
        measured = self._measure(X, y)
        if y is not None and len(measured.codes) < len(y):
            raise ValueError("y holds -1: an unlabelled row has no center of its own.")
        return -theory.internal_discrepancy(*measured.partition())

    def score(self, X, y=None):
        """Return minus the term, with the centers learned in fit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their classes; None is the nearest center.

        Returns
        -------
        float
            Higher is better.

        Raises
        ------
        ValueError
            If y has a class that fit did not see, or fit had no labels.
        """
        measured = self._measure(X, y)
        encoder = None if self.encoder_ is None else _find(self.encoder_)[1]
        return -_evaluate(self._term(y, encoder is not None), measured, encoder)

    def __call__(self, estimator, X, y=None):
        """Score a fitted pipeline or encoder: the protocol of `scoring`.

        Parameters
        ----------
        estimator : estimator
            Fitted; its last step with `embed_views` is measured, on rows transformed by
            the steps before it.
        X : array-like of shape (n_samples, n_features)
            Held-out rows.
        y : array-like of shape (n_samples,), default=None
            Their classes, -1 for an unlabelled row; None: clusters.

        Returns
        -------
        float
            Minus the term, with the rows' own centers; higher is better.

        Raises
        ------
        ValueError
            If the scorer has an encoder of its own, no step has `embed_views`, or there
            are neither labels nor a number of clusters.
        """
        self._validate_params()
        if self.encoder is not None:
            raise ValueError(
                f"encoder={self.encoder!r}: as scoring, the scorer measures the "
                "estimator it is given; only encoder=None is allowed."
            )
        seed = 0 if self.random_state is None else deepcopy(self.random_state)
        rng = check_random_state(seed)
        views = _embed(estimator, X, self.n_views, draw_seed(rng))
        means = _means(views)
        term = self._term(y, has_encoder=True)
        if y is None:
            n_clusters = self._n_clusters(estimator, len(means))
            measured = Measured(views, *_cluster(means, n_clusters, rng))
        else:
            codes = _encode(means, y)[1]
            known = codes >= 0
            centers = theory.class_centers(means[known], codes[known])
            measured = Measured(views[known], centers, codes[known])
        return -_evaluate(term, measured, _find(estimator)[1])

    def _term(self, y, has_encoder: bool) -> str:
        """Return the term to score by, which a representation may not have."""
        if not has_encoder:
            if self.term == "auto":
                return "relative_discrepancy"
            if self.term not in REPRESENTATION_TERMS:
                raise ValueError(
                    f"term={self.term!r} needs views and a temperature, and so an "
                    f"encoder. Without one, 'auto' and {REPRESENTATION_TERMS} are "
                    "allowed."
                )
        if self.term == "auto":
            return "bound" if y is None else "incurred_loss"
        return self.term

    def _views(self, X, reset=False) -> np.ndarray:
        """Return the views (n, V, d); a representation is a single view."""
        if self.encoder_ is None:
            return check_table(self, X, reset=reset)[:, None, :]
        return _embed(self.encoder_, X, self.n_views, self._views_seed_)

    def _measure(self, X, y) -> "Measured":
        check_is_fitted(self, "centers_")
        views = self._views(X)
        if y is None:
            return Measured(views, self.centers_, nearest(_means(views), self.centers_))
        if not hasattr(self, "classes_"):
            raise ValueError(
                "y was given, but the scorer was fitted without labels: its centers "
                "are clusters. Fit it with y, or score with y=None."
            )
        classes, codes = encode_labels(views, y)
        if not len(classes):
            raise ValueError("y has no labelled row: -1 marks an unlabelled one.")
        unseen = np.setdiff1d(classes, self.classes_)
        if len(unseen):
            raise ValueError(
                f"y has the classes {unseen.tolist()}, which fit did not see; allowed "
                f"are {self.classes_.tolist()}, and -1 for an unlabelled row."
            )
        known = codes >= 0
        index = np.searchsorted(self.classes_, classes)[codes[known]]
        return Measured(views[known], self.centers_, index)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if self.encoder is not None and hasattr(self.encoder, "__sklearn_tags__"):
            tags.target_tags.required = get_tags(self.encoder).target_tags.required
        if self.n_clusters is None and _regularizer_clusters(self.encoder) is None:
            tags.target_tags.required = True
        return tags

    @property
    def _n_features_out(self):
        return len(self.centers_)

    def _n_clusters(self, estimator, n_rows: int) -> int:
        n_clusters = self.n_clusters
        if n_clusters is None:
            n_clusters = _regularizer_clusters(estimator)
        if n_clusters is None:
            raise ValueError(
                "DiscrepancyScorer requires y to be passed, but the target y is None; "
                "or set n_clusters: without labels the centers are those of k-means "
                "clusters, and n_clusters=None gives no number."
            )
        if n_clusters > n_rows:
            raise ValueError(f"n_clusters={n_clusters} exceeds n_samples={n_rows}.")
        return n_clusters


class Measured(NamedTuple):
    """Views of rows, the centers, and the center of each row."""

    views: np.ndarray  # (n, V, d)
    centers: np.ndarray  # (K, d)
    codes: np.ndarray  # (n,)

    def partition(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positive means, centers and codes."""
        return _means(self.views), self.centers, self.codes


def _evaluate(term: str, measured: Measured, encoder: Any) -> float:
    """Return a term; an encoder of None leaves those of a representation."""
    partition = measured.partition()
    discrepancy = theory.internal_discrepancy(*partition)
    match term:
        case "discrepancy":
            return float(discrepancy.mean())
        case "squared_discrepancy":
            return float((discrepancy**2).mean())
        case "relative_discrepancy":
            rounding = np.finfo(measured.views.dtype).eps
            return theory.relative_discrepancy(*partition, rounding)
    if callable(encoder.loss):
        raise ValueError(
            f"term={term!r} is not defined for the encoder's loss={encoder.loss!r}, a "
            f"callable; {REPRESENTATION_TERMS} are allowed."
        )
    views, centers, codes = measured
    temperature, loss = encoder.temperature, encoder.loss
    if term == "incurred_loss":
        return theory.incurred_loss(views, codes, temperature, loss, centers)
    contrastive = theory.contrastive_loss(views, temperature, loss, codes)
    if term == "contrastive_loss":
        return contrastive
    return theory.upper_bound(contrastive, discrepancy, temperature, loss)


def _search(estimator: Any) -> tuple[list, Any] | None:
    """Return the steps before the last one with embed_views, and that one, if any."""
    if isinstance(estimator, FrozenEstimator):
        return _search(estimator.estimator)
    if hasattr(estimator, "best_estimator_"):  # of a search
        return _search(estimator.best_estimator_)
    if isinstance(estimator, Pipeline):
        for i in reversed(range(len(estimator.steps))):
            found = _search(estimator.steps[i][1])
            if found is not None:
                before, encoder = found
                return ([estimator[:i]] if i else []) + before, encoder
    return ([], estimator) if hasattr(estimator, "embed_views") else None


def _find(estimator: Any) -> tuple[list, Any]:
    """Return what :func:`_search` finds, or raise."""
    found = _search(estimator)
    if found is None:
        raise ValueError(
            f"{type(estimator).__name__} has no step with a method embed_views: a "
            "ContrastiveEncoder, or a pipeline with one, is needed."
        )
    return found


def _regularizer_clusters(estimator: Any) -> int | None:
    """Return the number of clusters of an encoder's regularizer, if it has one."""
    _, encoder = _search(estimator) or ([], None)
    return getattr(getattr(encoder, "regularizer", None), "n_clusters", None)


def _embed(estimator: Any, X: Any, n_views: int, seed: int) -> np.ndarray:
    """Return the views' unit vectors from a fitted encoder or pipeline."""
    before, encoder = _find(estimator)
    for transformer in before:
        X = transformer.transform(X)
    return encoder.embed_views(X, n_views, random_state=seed)


def _encode(rows: np.ndarray, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return classes and codes; beside unlabelled rows there must be two classes."""
    classes, codes = encode_labels(rows, y)
    if (codes == UNLABELLED).any():
        check_two_classes(classes, codes, "DiscrepancyScorer")
    return classes, codes


def _cluster(
    means: np.ndarray, n_clusters: int, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Return k-means centers, the exact means of their rows, and the rows' codes."""
    centers, _ = fit_kmeans(
        means,
        n_clusters,
        0,
        n_init=10,
        max_iter=300,
        tol=1e-4,
        device=torch.device("cpu"),
        random_state=rng,
    )
    codes = nearest(means, centers)
    exact = theory.class_centers(means, codes, n_clusters)
    return np.where(np.isnan(exact), centers, exact), codes


def _means(views: np.ndarray) -> np.ndarray:
    """Return the positive means, float64."""
    return views.mean(axis=1, dtype=np.float64)


def _copy_input_attributes(scorer: BaseEstimator, encoder: BaseEstimator) -> None:
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(encoder, name):
            setattr(scorer, name, getattr(encoder, name))
