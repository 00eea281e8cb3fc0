"""Measures the internal discrepancy of an embedding, and what follows from it."""

from copy import deepcopy
from numbers import Integral, Real
from typing import Any, NamedTuple
from warnings import warn

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
from sklearn.utils import _safe_indexing, check_random_state, get_tags, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    _raise_for_params,
    _routing_enabled,
    process_routing,
)
from sklearn.utils.validation import (
    _check_method_params,
    _num_samples,
    check_is_fitted,
    has_fit_parameter,
)

from skcl import theory
from skcl._kmeans import exact_squared_distances, fit_kmeans, nearest
from skcl._labels import (
    UNLABELLED,
    check_two_classes,
    encode_known_labels,
    encode_labels,
)
from skcl._pipeline import (
    embed_views,
    find_encoder,
    regularizer_clusters,
)
from skcl._report import (
    VACUOUS,
    certify,
    report_representation,
    report_views,
)
from skcl._table import check_table, forget_fit
from skcl._torch import draw_seed
from skcl._weights import check_sample_weight, given_weights

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
        are best for a constant embedding: do not select a model by them. A bound that
        is vacuous, see :meth:`report`, is a UserWarning.
    n_clusters : int or None, default=None
        Number of clusters, where there are no labels. None: as scorer, that of the
        encoder's regularizer.
    n_views : int, default=8
        Views of each row.
    confidence : float, default=0.95
        Of the guarantees in :meth:`report`.
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

    All terms but those of a representation live on the projection head's unit vectors,
    which `embed_views` gives, not on what `transform` returns: they do not see whether
    `n_components` is large enough.

    As scorer, held-out rows have centers of their own: a class of one row has no
    discrepancy, with few rows a class the incurred loss is optimistic, and with a
    single class there is nothing to tell, which is a UserWarning: let the folds be
    stratified, ``cv=StratifiedKFold()``. All terms but the discrepancies depend on the
    temperature, and all on n_views. Terms of different losses or temperatures do not
    compare: choose these by the metric of the whole pipeline.

    Weights of rows enter each mean over rows: centers, classes' frequencies, losses.
    A row of weight 0 counts as absent. Weights given to fit reach the encoder too: with
    metadata routing, if it requests them, and without, if its fit takes sample_weight.
    As scorer in a search with metadata routing, the scorer is passed weights once
    ``DiscrepancyScorer().set_score_request(sample_weight=True)`` asks for them.

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
        "confidence": [Interval(Real, 0, 1, closed="neither")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        encoder=None,
        *,
        term="auto",
        n_clusters=None,
        n_views=8,
        confidence=0.95,
        random_state=None,
    ):
        self.encoder = encoder
        self.term = term
        self.n_clusters = n_clusters
        self.n_views = n_views
        self.confidence = confidence
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=False)  # the encoder is the user's
    def fit(self, X, y=None, sample_weight=None, **fit_params):
        """Learn the centers; with an encoder, fit it first.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            What the encoder takes; without one, a representation.
        y : array-like of shape (n_samples,), default=None
            Classes. -1 marks an unlabelled row, which is left out. None: clusters.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, not negative; None is equal weights.
        **fit_params : dict
            What else the encoder's fit is to be passed, with metadata routing.

        Returns
        -------
        DiscrepancyScorer
            The fitted scorer.

        Raises
        ------
        ValueError
            If a parameter is out of range, `term` needs an encoder, there are no labels
            and no n_clusters, X is not what the encoder takes, a weight is negative, or
            weights cannot be passed to the encoder.
        """
        forget_fit(self)
        self._term(y, self.encoder is not None)
        params = self._encoder_params(sample_weight, fit_params)
        rows, *counted = _drop_zero_weights(X, y, sample_weight)
        params = _check_method_params(X, params, rows)
        X, y, sample_weight = counted
        if y is None:
            n_clusters = self._n_clusters(self.encoder, _num_samples(X))
        else:
            _read_labels(X, y)  # refused now, and not after the encoder's fit
        if self.encoder is not None:
            find_encoder(self.encoder)
        rng = check_random_state(self.random_state)
        self._views_seed_ = draw_seed(rng)
        self.encoder_ = None
        if self.encoder is not None:
            self.encoder_ = clone(self.encoder).fit(X, y, **params)
            _copy_input_attributes(self, self.encoder_)
        means = _means(self._views(X, reset=True))
        if y is None:
            self.centers_, _ = _cluster(
                means, n_clusters, rng, _normalized(sample_weight)
            )
        else:
            self.classes_, self.centers_, _ = _classify(means, y, sample_weight)
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
        NotFittedError
            Before fit.
        """
        measured = self._measure(X, y)
        if y is not None and len(measured.codes) < len(y):
            raise ValueError("y holds -1: an unlabelled row has no center of its own.")
        return -theory.internal_discrepancy(*measured.partition())

    def score(self, X, y=None, sample_weight=None):
        """Return minus the term, with the centers learned in fit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their classes; None is the nearest center.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, not negative; None is equal weights.

        Returns
        -------
        float
            Higher is better.

        Raises
        ------
        ValueError
            If y has a class that fit did not see, fit had no labels, or a weight is
            negative.
        NotFittedError
            Before fit.
        """
        measured = self._measure(X, y, sample_weight)
        encoder = None if self.encoder_ is None else find_encoder(self.encoder_)[1]
        return -_evaluate(self._term(y, encoder is not None), measured, encoder)

    def report(self, X, y=None, sample_weight=None):
        """Return all that the theory says of rows, over all and class by class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows with the columns of fit; for guarantees that hold, rows that neither
            the encoder nor a choice between encoders has seen.
        y : array-like of shape (n_samples,), default=None
            Their classes, -1 for an unlabelled row, which is left out; None is the
            nearest center.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, not negative; None is equal weights.

        Returns
        -------
        DiscrepancyReport
            Printed, a table: contrastive loss, the supervised loss that it incurs, the
            bounds between them, the discrepancy, what the rows guarantee of others, and
            warnings where a class has collapsed or the bound is vacuous.
            ``report.to_frame()`` is a frame. Unlike :meth:`score` it takes the rows'
            own centers, so that the bounds hold exactly. Without an encoder, and for a
            callable loss, it has the discrepancy alone. Time grows with the square of
            the number of views: 8,000 rows of 8 take most of a minute.

        Raises
        ------
        ValueError
            If y has a class that fit did not see, fit had no labels, or a weight is
            negative.
        NotFittedError
            Before fit.

        Examples
        --------
        >>> from sklearn.datasets import load_wine
        >>> from sklearn.preprocessing import scale
        >>> from skcl import DiscrepancyScorer
        >>> X, y = load_wine(return_X_y=True)
        >>> DiscrepancyScorer().fit(scale(X), y).report(scale(X), y)
        178 rows
        <BLANKLINE>
        internal discrepancy, mean distance           2.5485
          mean squared distance                       7.3033
          share of the variance, 1 if collapsed       0.5618
        <BLANKLINE>
               rows  share  squared  relative  collapsed
        class
        0        59 0.3315   5.0331    0.2831      False
        1        71 0.3989   9.9276    0.4378      False
        2        48 0.2697   6.2119    0.2808      False
        """
        measured = self._measure(X, y, sample_weight)
        views, centers, codes, weight = measured
        classes = getattr(self, "classes_", np.arange(len(centers)))
        encoder = None if self.encoder_ is None else find_encoder(self.encoder_)[1]
        if encoder is None or callable(encoder.loss):
            return report_representation(
                _means(views), codes, classes, weight, np.finfo(views.dtype).eps
            )
        of_encoder = {"temperature": encoder.temperature, "loss": encoder.loss}
        certificate = certify(
            views,
            None if y is None else codes,
            weight,
            confidence=self.confidence,
            random_state=self._views_seed_,
            **of_encoder,
        )
        return report_views(
            views, codes, classes, weight, certificate=certificate, **of_encoder
        )

    def __call__(self, estimator, X, y=None, sample_weight=None):
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
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, not negative; None is equal weights.

        Returns
        -------
        float
            Minus the term, with the rows' own centers; higher is better.

        Raises
        ------
        ValueError
            If the scorer has an encoder of its own, no step has `embed_views`, there
            are neither labels nor a number of clusters, or a weight is negative.
        """
        self._validate_params()
        if self.encoder is not None:
            raise ValueError(
                f"encoder={self.encoder!r}: as scoring, the scorer measures the "
                "estimator it is given; only encoder=None is allowed."
            )
        seed = 0 if self.random_state is None else deepcopy(self.random_state)
        rng = check_random_state(seed)
        _, X, y, sample_weight = _drop_zero_weights(X, y, sample_weight)
        views = embed_views(estimator, X, self.n_views, draw_seed(rng))
        means = _means(views)
        term = self._term(y, has_encoder=True)
        if y is None:
            n_clusters = self._n_clusters(estimator, len(means))
            weight = _normalized(sample_weight)
            clusters = _cluster(means, n_clusters, rng, weight)
            measured = Measured(views, *clusters, weight)
        else:
            classes, centers, codes = _classify(means, y, sample_weight)
            if len(classes) == 1:
                warn(
                    "Scored on a single class: its terms tell nothing of classes. Use "
                    "folds that are stratified.",
                    stacklevel=2,
                )
            known = codes >= 0
            weight = _normalized(sample_weight, known)
            measured = Measured(views[known], centers, codes[known], weight)
        return -_evaluate(term, measured, find_encoder(estimator)[1])

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
        return embed_views(self.encoder_, X, self.n_views, self._views_seed_)

    def _measure(self, X, y, sample_weight=None) -> "Measured":
        check_is_fitted(self, "centers_")
        self._validate_params()  # which may have been set since fit
        _, X, y, sample_weight = _drop_zero_weights(X, y, sample_weight)
        views = self._views(X)
        if y is None:
            codes = nearest(_means(views), self.centers_)
            return Measured(views, self.centers_, codes, _normalized(sample_weight))
        if not hasattr(self, "classes_"):
            raise ValueError(
                "y was given, but the scorer was fitted without labels: its centers "
                "are clusters. Fit it with y, or score with y=None."
            )
        codes = encode_known_labels(views, y, self.classes_)
        known = codes >= 0
        if not known.any():
            raise ValueError("y has no labelled row: -1 marks an unlabelled one.")
        weight = _normalized(sample_weight, known)
        return Measured(views[known], self.centers_, codes[known], weight)

    def _encoder_params(self, sample_weight, fit_params: dict) -> dict:
        """Return what the encoder's fit is passed: by its requests, or by its names."""
        _raise_for_params(fit_params, self, "fit")
        if _routing_enabled():
            routed = process_routing(
                self, "fit", sample_weight=sample_weight, **fit_params
            )
            return {} if self.encoder is None else routed["encoder"]["fit"]
        ignores = self.encoder is None or isinstance(self.encoder, FrozenEstimator)
        if sample_weight is None or ignores:
            return {}
        if has_fit_parameter(self.encoder, "sample_weight"):
            return {"sample_weight": sample_weight}
        raise ValueError(
            f"sample_weight cannot be passed to {type(self.encoder).__name__}, whose "
            "fit does not name it. Enable metadata routing, "
            "sklearn.set_config(enable_metadata_routing=True), and let each step say "
            "by set_fit_request(sample_weight=True), or False, whether it takes it."
        )

    def get_metadata_routing(self):
        """Return who takes which metadata: the scorer itself, and its encoder in fit.

        Returns
        -------
        MetadataRouter
            See scikit-learn's user guide on metadata routing.
        """
        # scikit-learn 1.6 needs the owner's name.
        router = MetadataRouter(owner=type(self).__name__).add_self_request(self)
        if self.encoder is None:
            return router
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return router.add(encoder=self.encoder, method_mapping=mapping)

    def _accept_sample_weight(self):
        # scikit-learn's cross-validation asks it of each of several scorers, where
        # metadata routing is off.
        return True

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if self.encoder is not None and hasattr(self.encoder, "__sklearn_tags__"):
            inner = get_tags(self.encoder)
            tags.target_tags.required = inner.target_tags.required
            tags.input_tags.allow_nan = inner.input_tags.allow_nan
        if self.n_clusters is None and regularizer_clusters(self.encoder) is None:
            tags.target_tags.required = True
        return tags

    @property
    def _n_features_out(self):
        return len(self.centers_)

    def _n_clusters(self, estimator, n_rows: int) -> int:
        n_clusters = self.n_clusters
        if n_clusters is None:
            n_clusters = regularizer_clusters(estimator)
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
    weight: np.ndarray | None  # (n,)

    def partition(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positive means, centers and codes."""
        return _means(self.views), self.centers, self.codes


def _evaluate(term: str, measured: Measured, encoder: Any) -> float:
    """Return a term; an encoder of None leaves those of a representation."""
    if term in REPRESENTATION_TERMS:
        return _of_representation(term, measured)
    if callable(encoder.loss):
        raise ValueError(
            f"term={term!r} is not defined for the encoder's loss={encoder.loss!r}, a "
            f"callable; {REPRESENTATION_TERMS} are allowed."
        )
    return _of_loss(term, measured, encoder.temperature, encoder.loss)


def _of_representation(term: str, measured: Measured) -> float:
    partition, weight = measured.partition(), measured.weight
    if term == "relative_discrepancy":
        rounding = np.finfo(measured.views.dtype).eps
        return theory.relative_discrepancy(
            *partition, rounding=rounding, sample_weight=weight
        )
    power = {"discrepancy": 1, "squared_discrepancy": 2}[term]
    discrepancy = theory.internal_discrepancy(*partition)
    return float(np.average(discrepancy**power, weights=weight))


def _of_loss(term: str, measured: Measured, temperature: float, loss: str) -> float:
    views, centers, codes, weight = measured
    of_rows = {"loss": loss, "sample_weight": weight}
    if term == "incurred_loss":
        return theory.incurred_loss(
            views, codes, temperature, centers=centers, **of_rows
        )
    contrastive = theory.contrastive_loss(views, temperature, y=codes, **of_rows)
    if term == "contrastive_loss":
        return contrastive
    discrepancy = theory.internal_discrepancy(*measured.partition())
    bound = theory.upper_bound(contrastive, discrepancy, temperature, **of_rows)
    if theory.is_vacuous(bound, temperature, loss):
        # Without the number, so that a search says it once.
        warn(f"Scored by the bound, but {VACUOUS}", stacklevel=4)
    return bound


def _drop_zero_weights(
    X: Any, y: Any, sample_weight: Any
) -> tuple[np.ndarray | None, Any, Any, np.ndarray | None]:
    """Return the rows that count, their labels, and their weights as given.

    Their index comes first; None is all rows.
    """
    if sample_weight is None:
        return None, X, y, None
    X, y = indexable(X, y)
    n = _num_samples(X)
    rows, _ = check_sample_weight(sample_weight, n)
    weight = given_weights(sample_weight, n, rows)
    if isinstance(rows, slice):
        return None, X, y, weight
    y = None if y is None else _safe_indexing(y, rows)
    return rows, _safe_indexing(X, rows), y, weight


def _normalized(
    weight: np.ndarray | None, rows: slice | np.ndarray = slice(None)
) -> np.ndarray | None:
    """Return the weights of these rows, of mean 1; None if they are all equal."""
    return (
        None
        if weight is None
        else check_sample_weight(weight[rows], len(weight[rows]))[1]
    )


def _read_labels(X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return classes and codes; beside unlabelled rows there must be two classes."""
    classes, codes = encode_labels(X, y)
    if (codes == UNLABELLED).any():
        check_two_classes(classes, codes, "DiscrepancyScorer")
    return classes, codes


def _classify(
    means: np.ndarray, y: Any, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return classes, centers, and codes, -1 for an unlabelled row."""
    classes, codes = _read_labels(means, y)
    known = codes >= 0
    weight = _normalized(weight, known)
    centers = theory.class_centers(means[known], codes[known], sample_weight=weight)
    return classes, centers, codes


def _cluster(
    means: np.ndarray,
    n_clusters: int,
    rng: np.random.RandomState,
    weight: np.ndarray | None,
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
        sample_weight=weight,
    )
    codes = nearest(means, centers)
    exact = theory.class_centers(means, codes, n_clusters, sample_weight=weight)
    return np.where(np.isnan(exact), centers, exact), codes


def _means(views: np.ndarray) -> np.ndarray:
    """Return the positive means, float64."""
    return views.mean(axis=1, dtype=np.float64)


def _copy_input_attributes(scorer: BaseEstimator, encoder: BaseEstimator) -> None:
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(encoder, name):
            setattr(scorer, name, getattr(encoder, name))
