"""The contrastive encoder."""

from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
    clone,
)
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted
from torch import nn

from skcl import theory
from skcl._labels import check_two_classes, encode_labels, hold_out
from skcl._model import CPU, Augmentation, Model
from skcl._table import (
    check_table,
    column_names,
    fit_scaler,
    forget_fit,
    marginal_table,
    scale,
)
from skcl._torch import (
    draw_seed,
    gradients_enabled,
    isolated_global_rng,
    make_generator,
    resolve_device,
    to_tensor,
)
from skcl._training import Objective, Stopping, Trainer, embed
from skcl.losses import LOSSES
from skcl.networks import Architecture


class ContrastiveEncoder(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Learn an embedding of table rows by contrasting augmented views of them.

    Two random views of a row are to lie close on the unit sphere, and views of
    different rows far apart. `transform` returns the output of the backbone, which
    lies below a projection head; loss, penalty and :meth:`score` live on the head's
    unit vectors. Put a class-weighted classifier behind it.

    Parameters
    ----------
    n_components : int, default=64
        Width of the embedding.
    loss : {"infonce", "spectral", "logistic", "supcon"} or callable, default="infonce"
        The contrastive loss, see :mod:`skcl.losses`. "supcon" uses labels, and takes
        y = -1 for an unlabelled row, whose positives are its own views alone; the
        others ignore y. A callable has the signature ``loss(z, temperature, y)``, z a
        tensor of unit vectors (n, n_views, projection_dim), and uses labels if its
        attribute ``uses_y`` is true.
    temperature : float, default=0.2
        t, by which the loss divides similarities; ignored by "spectral".
    augmentation : {"auto", "swap", "noise"} or callable, default="auto"
        How a view is drawn of standardized rows. "swap" replaces values by draws
        from their columns, "noise" adds Gaussian noise; "auto" is "swap". A callable
        has the signature ``augmentation(x, generator) -> view``, of tensors of rows,
        and draws the view of each row by itself: it is also called on single rows.
    corruption_rate : float, default=0.3
        For "swap", the probability with which a value is replaced, at most 1; for
        "noise", the standard deviation, in standard deviations of the column.
    n_views : int, default=2
        Views of each row in a training step, at least 2.
    backbone : "mlp" or callable, default="mlp"
        A callable ``backbone(n_features_in, n_components)`` returns an
        ``nn.Module`` from standardized rows to embeddings.
    hidden_layer_sizes : tuple of int, default=(256, 256)
        Widths of the hidden layers of the MLP.
    projection_dim : int, default=64
        Dimension of the projection head's unit vectors, at least 2.
    passthrough : bool, default=False
        Whether transform returns the standardized input columns beside the embedding.
    regularizer : RelaxedKMeansRegularizer, similar object or None, default=None
        Penalty on the views' mean vectors; None for none.
    regularizer_weight : float, default=1.0
        Its weight, in units of the factor with which the squared internal discrepancy
        enters the loss's bound, 1/t for "infonce". It is 0 for the first 40 % of
        max_iter and has risen to its value at 60 %.
    batch_size : int, default=256
        The most rows in a training step, at least 2.
    max_iter : int, default=100
        The most epochs.
    learning_rate : float, default=1e-3
        Step size of AdamW.
    weight_decay : float, default=1e-4
        Weight decay of AdamW.
    early_stopping : bool, default=False
        Whether to hold rows out, stop when their score no longer rises, and return to
        the best weights.
    validation_fraction : float, default=0.1
        Share of the rows to hold out; stratified where the loss uses labels, and every
        class keeps a row to train on.
    n_iter_no_change : int, default=10
        Epochs without a rise of the score by tol after which to stop. With a
        regularizer, epochs count from where it has reached its weight.
    tol : float, default=1e-4
        The least rise of the validation score that counts.
    device : str or torch.device, default="auto"
        Where to train: "auto" is CUDA where there is one, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of weights, batches, views and held-out rows. With an int, fits on a CPU
        agree to the last bit, whatever the number of threads; with the spectral
        regularizer up to a projection_dim of 100.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained network; ``module_.backbone`` and ``module_.head``.
    regularizer_ : object
        The regularizer used, a clone; None for none.
    loss_curve_ : list of float
        The objective by epoch: contrastive loss plus weighted penalty.
    history_ : dict of list of float
        Its parts by epoch: "contrastive" (of batches, which leave an anchor out of its
        own positives and negatives), "regularizer" (the penalty, before its weight) and
        "regularizer_weight" (weight, factor of the bound and ramp).
    validation_scores_ : list of float or None
        Minus the objective of the held-out rows by epoch, in batches as in training;
        None without early stopping.
    n_iter_ : int
        Epochs run.
    classes_ : ndarray of shape (n_classes,)
        The classes, without -1; only where the loss uses labels.
    n_features_in_ : int
        Number of input columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input columns, where all are strings.

    See Also
    --------
    RelaxedKMeansRegularizer : The penalty that lowers the internal discrepancy.
    DiscrepancyScorer : Measures the internal discrepancy and what follows from it.

    References
    ----------
    "Internal Discrepancy for Contrastive Learning: Generalization Bounds and Downstream
    Behaviors" (2026). Chen, Kornblith, Norouzi, Hinton: A simple framework for
    contrastive learning of visual representations (ICML 2020). Bahri, Jiang, Tay,
    Metzler: SCARF: Self-supervised contrastive learning using random feature
    corruption (ICLR 2022).

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from skcl import ContrastiveEncoder
    >>> X, y = load_wine(return_X_y=True, as_frame=True)
    >>> model = make_pipeline(
    ...     ContrastiveEncoder(n_components=16, max_iter=20, random_state=0),
    ...     LogisticRegression(class_weight="balanced"),
    ... ).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> model[:-1].get_feature_names_out()[:2]
    array(['contrastiveencoder0', 'contrastiveencoder1'], dtype=object)
    """

    _parameter_constraints = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "loss": [StrOptions(set(LOSSES)), callable],
        "temperature": [Interval(Real, 0, None, closed="neither")],
        "augmentation": [StrOptions({"auto", "swap", "noise"}), callable],
        "corruption_rate": [Interval(Real, 0, None, closed="neither")],
        "n_views": [Interval(Integral, 2, None, closed="left")],
        "backbone": [StrOptions({"mlp"}), callable],
        "hidden_layer_sizes": [list, tuple],
        "projection_dim": [Interval(Integral, 2, None, closed="left")],
        "passthrough": ["boolean"],
        "regularizer": [HasMethods(["start", "penalty"]), None],
        "regularizer_weight": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "device": [str, torch.device],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components=64,
        *,
        loss="infonce",
        temperature=0.2,
        augmentation="auto",
        corruption_rate=0.3,
        n_views=2,
        backbone="mlp",
        hidden_layer_sizes=(256, 256),
        projection_dim=64,
        passthrough=False,
        regularizer=None,
        regularizer_weight=1.0,
        batch_size=256,
        max_iter=100,
        learning_rate=1e-3,
        weight_decay=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        tol=1e-4,
        device="auto",
        random_state=None,
        verbose=0,
    ):
        self.n_components = n_components
        self.loss = loss
        self.temperature = temperature
        self.augmentation = augmentation
        self.corruption_rate = corruption_rate
        self.n_views = n_views
        self.backbone = backbone
        self.hidden_layer_sizes = hidden_layer_sizes
        self.projection_dim = projection_dim
        self.passthrough = passthrough
        self.regularizer = regularizer
        self.regularizer_weight = regularizer_weight
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None):
        """Learn the embedding.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Numeric or boolean rows, at least two, all finite, on any scale.
        y : array-like of shape (n_samples,), default=None
            Classes, where the loss uses them: -1 marks an unlabelled row, in an array
            of objects where the classes are strings. Otherwise ignored.

        Returns
        -------
        ContrastiveEncoder
            The fitted encoder.

        Raises
        ------
        ValueError
            If a parameter is out of range, a column is not numeric or not finite, the
            loss needs labels and has fewer than two classes, or training diverges.
        """
        # Whatever can be refused is refused before training starts.
        forget_fit(self)
        self._check_combinations()
        device = resolve_device(self.device)
        X = check_table(self, X, reset=True, min_samples=2)
        codes = None
        if self._uses_y():
            classes, codes = self._encode(X, y)
            check_two_classes(classes, codes, f"loss={self.loss!r}")
            self.classes_ = classes
        rng = check_random_state(self.random_state)
        training, held_out = slice(None), ()  # all rows, not copied
        if self.early_stopping:
            training, held_out = hold_out(len(X), codes, self.validation_fraction, rng)
        regularizer = self._check_regularizer(len(X) - len(held_out))
        seeds = Seeds(*(draw_seed(rng) for _ in Seeds._fields))

        # Torch's global generators are seeded for a user's code; ours needs none.
        foreign = self._has_callables() or _is_foreign(regularizer)
        with isolated_global_rng(seeds.weights, device, foreign), gradients_enabled():
            generator = make_generator(seeds.weights, CPU)
            model, scaled = self._make_model(X, training, device, generator)
            x = to_tensor(scaled, device, torch.float32)
            y = None if codes is None else to_tensor(codes, device, torch.int64)
            trainer = self._make_trainer(model, regularizer, seeds)
            if self._has_callables():
                self._try_callables(trainer, x[:64], None if y is None else y[:64])
            history = trainer.fit(
                x[training],
                None if y is None else y[training],
                max_iter=self.max_iter,
                stopping=self._make_stopping(model, x, y, held_out, seeds.held_out),
                verbose=bool(self.verbose),
            )

        model.network.eval()
        self._model_ = model
        self._views_seed_ = seeds.evaluation
        self.regularizer_ = regularizer
        self._set_history(history)
        return self

    @property
    def _n_features_out(self):
        return self._model_.architecture.n_components

    @property
    def module_(self):
        """The trained network."""
        try:
            return vars(self)["_model_"].network
        except KeyError:
            raise AttributeError("module_ exists once the encoder is fitted") from None

    def transform(self, X):
        """Return the embedding.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows with the columns of fit.

        Returns
        -------
        ndarray of float32, of shape (n_samples, n_components)
            The backbone's output, not normalized, beside the standardized input
            columns if `passthrough`.

        Raises
        ------
        ValueError
            If columns differ from those of fit, or a value is not finite or too far
            from the training rows for the network's float32.
        """
        check_is_fitted(self)
        X = check_table(self, X, reset=False)
        return self._model_.transform(X, self.passthrough)

    def embed_views(self, X, n_views=None, random_state=None):
        """Draw views of each row and return their unit vectors.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows with the columns of fit.
        n_views : int, default=None
            V; None is the n_views of fit.
        random_state : int, RandomState instance or None, default=None
            Seed of the views. None is a seed drawn in fit. With the same seed a row has
            the same views wherever it stands.

        Returns
        -------
        ndarray of float32, of shape (n_samples, V, projection_dim)
            The projection head's unit vectors.

        Raises
        ------
        ValueError
            If n_views is not a positive integer, or X is not what fit saw.

        Examples
        --------
        >>> from sklearn.datasets import load_wine
        >>> from skcl import ContrastiveEncoder
        >>> X, _ = load_wine(return_X_y=True)
        >>> encoder = ContrastiveEncoder(max_iter=1, random_state=0).fit(X)
        >>> encoder.embed_views(X, n_views=4).shape
        (178, 4, 64)
        """
        check_is_fitted(self)
        n_views = self._model_.n_views if n_views is None else n_views
        if (
            not isinstance(n_views, Integral)
            or isinstance(n_views, bool)
            or n_views < 1
        ):
            raise ValueError(f"n_views={n_views!r}: a positive integer is allowed.")
        seed = self._views_seed_
        if random_state is not None:
            seed = draw_seed(check_random_state(random_state))
        X = check_table(self, X, reset=False)
        return self._model_.embed_views(X, n_views, seed)

    def score(self, X, y=None):
        """Return minus the contrastive loss over all rows, on seeded views.

        It is exact on the rows given, see :func:`skcl.theory.contrastive_loss`, and so
        does not depend on batch_size. An anchor counts among its own positives and
        negatives, which the losses of batches in `history_` leave out. Scores of
        different losses, temperatures or numbers of views do not compare.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows with the columns of fit, one or more.
        y : array-like of shape (n_samples,), default=None
            Classes, where the loss uses them, as in fit. Otherwise ignored.

        Returns
        -------
        float
            Higher is better.

        Raises
        ------
        ValueError
            If X is not what fit saw, the loss needs labels, or a callable loss is not
            finite.
        """
        check_is_fitted(self)
        codes = self._encode(X, y)[1] if self._uses_y() else None
        views = self.embed_views(X)
        if not callable(self.loss):
            return -theory.contrastive_loss(views, self.temperature, self.loss, codes)
        z = torch.from_numpy(views)
        codes = None if codes is None else torch.from_numpy(codes)
        with isolated_global_rng(self._views_seed_, CPU, enabled=True):
            loss = float(self.loss(z, self.temperature, codes))
        if not np.isfinite(loss):
            raise ValueError(f"The callable given as loss returned {loss}.")
        return -loss

    def get_feature_names_out(self, input_features=None):
        """Return the names of the columns of transform.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Names of the input columns; None are those of fit.

        Returns
        -------
        ndarray of str objects, of shape (n_columns,)
            "contrastiveencoder0" and so on, then the input's where `passthrough`.
        """
        embedding = super().get_feature_names_out(input_features)
        if not self.passthrough:
            return embedding
        inputs = _check_feature_names_in(self, input_features)
        return np.concatenate([embedding, inputs])

    def _loss(self):
        # The tags ask before the parameters are validated: None is no loss.
        return self.loss if callable(self.loss) else LOSSES.get(str(self.loss))

    def _uses_y(self) -> bool:
        return getattr(self._loss(), "uses_y", False)

    def _check_combinations(self):
        for width in self.hidden_layer_sizes:
            if not _is_positive_integer(width):
                raise ValueError(
                    f"hidden_layer_sizes={self.hidden_layer_sizes!r}: positive "
                    "integers are allowed."
                )
        if isinstance(self.backbone, nn.Module):
            raise ValueError(
                "backbone is an nn.Module: give a function (n_features_in, "
                "n_components) that returns a new one, for each fit."
            )
        if self.augmentation in ("auto", "swap") and self.corruption_rate > 1:
            raise ValueError(
                f"corruption_rate={self.corruption_rate!r}: for the augmentation "
                "'swap' it is a probability, in (0, 1]."
            )

    def _encode(self, X, y):
        """Return classes and codes of the labels that the loss uses."""
        if y is None:
            raise ValueError(
                f"loss={self.loss!r} requires y to be passed, but the target y is "
                "None. Mark unlabelled rows by y = -1."
            )
        return encode_labels(X, y)

    def _has_callables(self):
        return any(map(callable, (self.loss, self.augmentation, self.backbone)))

    def _check_regularizer(self, n_training):
        """Return a clone of the regularizer, once its parameters are known to fit."""
        if isinstance(self.regularizer, type):
            raise ValueError(
                f"regularizer={self.regularizer!r} is a class: an instance is needed."
            )
        regularizer = clone(self.regularizer, safe=False)
        if hasattr(regularizer, "_parameter_constraints"):
            regularizer._validate_params()
        n_clusters = getattr(regularizer, "n_clusters", None)
        if isinstance(n_clusters, Integral) and n_clusters > n_training:
            raise ValueError(
                f"regularizer__n_clusters={n_clusters} exceeds the number of rows to "
                f"train on, {n_training}."
            )
        return regularizer

    def _make_model(self, X, training, device, generator):
        """Return the model before training, and all rows as it standardizes them."""
        names = column_names(self)
        scaler = fit_scaler(X[training], names)
        scaled = scale(scaler, X, names)
        kind, marginals = self.augmentation, None
        if kind in ("auto", "swap"):
            kind = "swap"
            marginals = marginal_table(scaled[training])
        architecture = Architecture(
            self.n_features_in_,
            self.n_components,
            self.projection_dim,
            tuple(self.hidden_layer_sizes),
            self.backbone,
        )
        augmentation = Augmentation(kind, self.corruption_rate, marginals)
        model = Model(
            scaler, names, architecture, augmentation, self.n_views, device, generator
        )
        return model, scaled

    def _make_trainer(self, model, regularizer, seeds):
        loss = self._loss()
        weight = 0.0
        if regularizer is not None:
            factor = getattr(loss, "discrepancy_weight", lambda t: 1 / t)
            weight = self.regularizer_weight * factor(self.temperature)
        return Trainer(
            model.network,
            Objective(loss, self.temperature, regularizer, weight),
            model.augmentation.on(model.device),
            n_views=self.n_views,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            generator=make_generator(seeds.training, model.device),
            regularizer_generator=make_generator(seeds.regularizer, model.device),
        )

    def _make_stopping(self, model, x, y, held_out, seed):
        if not self.early_stopping:
            return None
        views = model.draw_views(x[held_out], self.n_views, seed).to(x)
        codes = None if y is None else y[held_out]
        return Stopping(views, codes, self.n_iter_no_change, self.tol)

    def _try_callables(self, trainer, x, y):
        """Run the user's callables on a few rows, to name one that returns nonsense."""
        view = trainer.augment(x, make_generator(0, x.device))
        _check_tensor("augmentation", view, x.shape)
        if callable(self.augmentation) and _mixes_rows(trainer.augment, x):
            raise ValueError(
                "The callable given as augmentation mixes rows: views of some rows "
                "depend on others. A view must be drawn of each row by itself."
            )
        trainer.network.eval()
        with torch.no_grad():
            embedding = trainer.network.backbone(view)
            _check_tensor("backbone", embedding, (len(x), self.n_components))
            z = embed(trainer.network, torch.stack([x, view], dim=1))
        loss = self._loss()(z.requires_grad_(), self.temperature, y)
        _check_tensor("loss", loss, ())
        if not loss.requires_grad:
            raise ValueError("The callable given as loss returned no gradient.")

    def _set_history(self, history):
        self.history_ = {
            "contrastive": history.contrastive,
            "regularizer": history.regularizer,
            "regularizer_weight": history.regularizer_weight,
        }
        self.loss_curve_ = [
            contrastive + weight * penalty
            for contrastive, penalty, weight in zip(
                *self.history_.values(), strict=True
            )
        ]
        self.n_iter_ = len(self.loss_curve_)
        self.validation_scores_ = (
            history.validation_scores if self.early_stopping else None
        )

    def __sklearn_is_fitted__(self):
        return "_model_" in vars(self)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self._uses_y()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


class Seeds(NamedTuple):
    """One for each source of randomness, so that none shifts another."""

    weights: int
    training: int
    regularizer: int
    held_out: int
    evaluation: int


def _is_positive_integer(value) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value > 0


def _is_foreign(regularizer) -> bool:
    """Whether a regularizer may draw from torch's global generators."""
    declared = vars(type(regularizer))  # a subclass declares for itself
    return regularizer is not None and not declared.get("draws_from_generator_only")


def _mixes_rows(augment, x):
    """Whether views of the second half of the rows change with the first half."""
    half = (len(x) + 1) // 2
    changed = x.clone()
    changed[:half] += 1
    for seed in range(8):
        views = []
        for rows in (x, x, changed):
            with isolated_global_rng(seed, x.device, enabled=True):
                views.append(augment(rows, make_generator(seed, x.device))[half:])
        first, again, other = views
        # Where the seed does not fix the views, there is nothing to compare.
        if torch.equal(first, again) and not torch.equal(first, other):
            return True
    return False


def _check_tensor(parameter: str, output: torch.Tensor, expected: tuple) -> None:
    found = type(output).__name__
    if isinstance(output, torch.Tensor):
        if output.shape == expected and output.dtype == torch.float32:
            return
        found = f"{output.dtype} of shape {tuple(output.shape)}"
    raise ValueError(
        f"The callable given as {parameter} must return a tensor of torch.float32, "
        f"here of shape {tuple(expected)}; it returned {found}."
    )
