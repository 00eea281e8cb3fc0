"""The contrastive encoder."""

from copy import deepcopy
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
    clone,
)
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import (
    _check_feature_names_in,
    _num_samples,
    check_is_fitted,
)
from torch import nn

from skcl import theory
from skcl._callables import check_take_weights, is_foreign, try_callables
from skcl._checkpoint import Checkpoint
from skcl._labels import (
    check_two_classes,
    class_weights,
    encode_known_labels,
    encode_labels,
    hold_out,
)
from skcl._model import CPU, Augmentation, Model
from skcl._preprocessing import Preprocessor, check_unique, marginal_table
from skcl._sampling import balanced_order
from skcl._table import (
    Rows,
    check_rows,
    column_names,
    find_categorical,
    forget_fit,
    read_columns,
)
from skcl._torch import (
    check_threads_work,
    draw_seed,
    gradients_enabled,
    isolated_global_rng,
    make_generator,
    portable,
    resolve_device,
    to_tensor,
)
from skcl._training import Batch, Objective, Stopping, Trainer
from skcl._weights import check_sample_weight
from skcl.losses import LOSSES
from skcl.networks import Architecture

# Parameters that cannot change when training goes on.
SHAPING = (
    "n_components",
    "augmentation",
    "corruption_rate",
    "n_views",
    "backbone",
    "hidden_layer_sizes",
    "projection_dim",
    "categorical_features",
)


class ContrastiveEncoder(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Learn an embedding of table rows by contrasting augmented views of them.

    Two random views of a row are to lie close on the unit sphere, and views of
    different rows far apart. `transform` returns the output of the backbone, which
    lies below a projection head, or of that head; loss, penalty and :meth:`score` live
    on the head's unit vectors. Put a class-weighted classifier behind it.

    Parameters
    ----------
    n_components : int, default=64
        Width of the embedding.
    loss : {"infonce", "spectral", "logistic", "supcon"} or callable, default="infonce"
        The contrastive loss, see :mod:`skcl.losses`. "supcon" uses labels, and takes
        y = -1 for an unlabelled row, whose positives are its own views alone; the
        others ignore y. A callable has the signature ``loss(z, temperature, y)``, z a
        tensor of unit vectors (n, n_views, projection_dim), and uses labels if its
        attribute ``uses_y`` is true. To be fitted with weights it takes
        ``sample_weight`` too, a tensor (n,).
    temperature : float, default=0.2
        t, by which the loss divides similarities; ignored by "spectral".
    augmentation : {"auto", "swap", "noise"} or callable, default="auto"
        How a view is drawn of a row. "swap" replaces values by draws from their
        columns, a category as a whole; "noise" adds Gaussian noise to numbers; "auto"
        is "swap". A callable has the signature ``augmentation(x, generator) -> view``,
        of tensors of rows, and draws the view of each row by itself. It is called with
        a batch in which each row comes n_views times, and on single rows. The columns
        of x are those of X: numbers are standardized, NaN where missing, and categories
        are codes.
    corruption_rate : float, default=0.3
        For "swap", the probability with which a value is replaced, at most 1; for
        "noise", the standard deviation, in standard deviations of the column.
    n_views : int, default=2
        Views of each row in a training step, at least 2.
    backbone : "mlp" or callable, default="mlp"
        A callable ``backbone(n_inputs, n_components)`` returns an ``nn.Module`` to
        embeddings. Its inputs are the standardized numbers, 0 where missing; an
        indicator for each that training rows lack; and the categories' vectors. Where
        there are only numbers, n_inputs is the number of columns.
    hidden_layer_sizes : tuple of int, default=(256, 256)
        Widths of the hidden layers of the MLP.
    projection_dim : int, default=64
        Dimension of the projection head's unit vectors, at least 2.
    output : {"backbone", "projection"}, default="backbone"
        What transform returns: the backbone's output, which knows more of the rows, or
        the head's unit vectors, which know more of what the loss and the regularizer
        are told: choose these with labels and a regularizer.
    passthrough : bool, default=False
        Whether transform returns the input columns beside the output: numbers
        standardized, 0 where missing, with indicators as SimpleImputer has them;
        categories as OneHotEncoder has them.
    regularizer : RelaxedKMeansRegularizer, similar object or None, default=None
        Penalty on the views' mean vectors; None for none.
    regularizer_weight : float, default=1.0
        Its weight, in units of the factor with which the squared internal discrepancy
        enters the loss's bound, 1/t for "infonce". It is 0 for the first 40 % of
        max_iter and has risen to its value at 60 %.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, by which the weights of their labelled rows are multiplied.
        "balanced": all classes weigh the same together. Unlabelled rows keep theirs.
        Needs y, whatever the loss.
    sampling : {"uniform", "balanced"}, default="uniform"
        "uniform": an epoch visits each row once. "balanced": it visits each class
        equally often, rows of rare classes again and again, of frequent ones some, and
        unlabelled rows once; labelled rows are as many as there are, and a third of all
        at the least. Needs y, whatever the loss.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Which columns hold categories: a mask, positions or names, of all that do.
        "from_dtype": those of categorical or string dtype, and of objects that are
        strings. None: no column. A category has a learned vector; unseen ones have one
        in common, and so have missing ones. An order of them is not used.
    batch_size : int, default=256
        The most rows in a training step, at least 2.
    max_iter : int, default=100
        The most epochs of a call of fit.
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
    warm_start : bool, default=False
        Whether fit goes on from the last fit, with its optimizer, for max_iter more
        epochs. Scale, categories, classes, network and augmentation stay as they are.
    device : str or torch.device, default="auto"
        Where to train: "auto" is CUDA where there is one, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of weights, batches, views and held-out rows. With an int, fits on a CPU
        agree to the last bit, whatever the number of threads; with the spectral
        regularizer up to a projection_dim of 100.
    checkpoint : str, path-like or None, default=None
        A file in which a long fit is saved as it goes on. If fit finds one there, of
        the same parameters and rows, it goes on from it, to the same bits on a CPU as
        if it had never been stopped; of others, it is refused. The file is removed once
        fit is done. Each fit needs its own: not for searches. Needs safetensors and
        skops, ``pip install skcl[io]``; :func:`skcl.load` loads it too.
    checkpoint_every : int, default=10
        Epochs after which it is saved.
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
        Minus the objective of the held-out rows by epoch, in plain batches, weighted
        as in training; None without early stopping.
    n_iter_ : int
        Epochs run, over all calls of a warm start or of partial_fit.
    interrupted_ : bool
        Whether an interrupt or an error, which was raised again, has ended fit early.
        What the whole epochs before it have learned is kept; if there is none, the
        encoder is not fitted. An error in going on from a fitted encoder leaves that as
        it was.
    classes_ : ndarray of shape (n_classes,)
        The classes, without -1; only where labels are used.
    categorical_features_ : ndarray of bool, of shape (n_features_in_,)
        Which columns hold categories.
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
        "output": [StrOptions({"backbone", "projection"})],
        "passthrough": ["boolean"],
        "regularizer": [HasMethods(["start", "penalty"]), None],
        "regularizer_weight": [Interval(Real, 0, None, closed="left")],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "sampling": [StrOptions({"uniform", "balanced"})],
        "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "device": [str, torch.device],
        "random_state": ["random_state"],
        "checkpoint": [str, PathLike, None],
        "checkpoint_every": [Interval(Integral, 1, None, closed="left")],
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
        output="backbone",
        passthrough=False,
        regularizer=None,
        regularizer_weight=1.0,
        class_weight=None,
        sampling="uniform",
        categorical_features="from_dtype",
        batch_size=256,
        max_iter=100,
        learning_rate=1e-3,
        weight_decay=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        tol=1e-4,
        warm_start=False,
        device="auto",
        random_state=None,
        checkpoint=None,
        checkpoint_every=10,
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
        self.output = output
        self.passthrough = passthrough
        self.regularizer = regularizer
        self.regularizer_weight = regularizer_weight
        self.class_weight = class_weight
        self.sampling = sampling
        self.categorical_features = categorical_features
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None, sample_weight=None):
        """Learn the embedding.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows of numbers on any scale, booleans, and categories, at least two.
            Values may be missing, but not infinite.
        y : array-like of shape (n_samples,), default=None
            Classes, where loss, class_weight or sampling uses them: -1 marks an
            unlabelled row, in an array of objects where the classes are strings.
            Otherwise ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, in the loss as anchors, positives and negatives, in the
            penalty and in the standardization. A row of weight 0 counts as absent, also
            for messages that give a row.

        Returns
        -------
        ContrastiveEncoder
            The fitted encoder.

        Raises
        ------
        ValueError, TypeError
            If a parameter or weight is out of range, a column holds times, text or
            mixed types, a number is infinite, labels are needed and have fewer than two
            classes, training diverges, or the checkpoint is of another fit.
        MemoryError
            If the device has too little for a training step.
        OSError
            If the checkpoint cannot be written.
        """
        if not self.warm_start:
            forget_fit(self)
        return self._fit(X, y, sample_weight, n_epochs=self.max_iter)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y=None, classes=None, sample_weight=None):
        """Train for one epoch on some rows, from where the last call has come.

        The first call fixes scale, categories and classes. A call counts as an epoch:
        the regularizer sets in at 40 % of max_iter calls.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows, at least two.
        y : array-like of shape (n_samples,), default=None
            Classes, as in fit.
        classes : array-like of shape (n_classes,), default=None
            All classes that later calls may bring, in the first call; None are those of
            its y. A mark of -1 among them is no class. Later calls may repeat them.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, as in fit; they are relative to the other rows of the call.

        Returns
        -------
        ContrastiveEncoder
            The fitted encoder.

        Raises
        ------
        ValueError, TypeError
            As in fit; also for a class or column that the first call did not have, for
            early_stopping, for checkpoint, and for class_weight="balanced", which needs
            all rows.
        """
        self._validate_params()  # which scikit-learn leaves out once it is fitted
        if self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True.")
        if self.checkpoint is not None:
            raise ValueError(
                "partial_fit does not support checkpoint: skcl.save the encoder."
            )
        if self.class_weight == "balanced":
            raise ValueError(
                "partial_fit does not support class_weight='balanced', which needs the "
                "number of rows of each class. Give the weights as a dict."
            )
        return self._fit(X, y, sample_weight, n_epochs=1, classes=classes)

    def _fit_watched(self, X, y, watch):
        """Fit, and after each epoch call watch with the encoder as it is then."""
        self._validate_params()
        forget_fit(self)
        return self._fit(X, y, None, n_epochs=self.max_iter, watch=watch)

    def _fit(self, X, y, sample_weight, *, n_epochs, classes=None, watch=None):
        """Train from the beginning, or go on where there is a model already."""
        # Whatever can be refused is refused before training starts.
        resumed = self.__sklearn_is_fitted__()
        if not resumed:
            forget_fit(self)  # what a fit that failed may have left
        self._check_combinations()
        check_threads_work()
        device = resolve_device(self.device)
        data = self._check_input(X, y, sample_weight, classes, resumed)
        checkpoint = begun = None
        if self.checkpoint is not None:
            checkpoint = Checkpoint(self, data.given)
            begun = checkpoint.read()
        if resumed:
            begun = self
        seeds = begun._seeds_ if begun else Seeds.draw(self.random_state)
        if begun and not begun.n_iter_:  # a checkpoint of the seeds alone
            begun = None
        training, held_out = self._split(data, seeds.split)
        regularizer = self._check_regularizer(len(data.rows) - len(held_out))
        if data.loss_weight is not None:
            check_take_weights(self._loss(), regularizer)

        # Torch's global generators are seeded for a user's code; ours needs none.
        foreign = self._has_callables() or is_foreign(regularizer)
        with isolated_global_rng(seeds.weights, device, foreign), gradients_enabled():
            if begun:
                model = self._resume_model(begun._model_, device)
                x = model.columns.encode(data.rows)
            else:
                model, x = self._make_model(data, training, device, seeds.weights)
            batch = self._make_batch(data, x, device)
            trainer = self._make_trainer(model, regularizer, seeds)
            if begun:
                trainer.resume(begun._progress_, under_way=checkpoint is not None)
            if self._has_callables():
                try_callables(trainer, batch[:64], self.n_components)
            learned = (model, trainer, seeds, regularizer)
            if checkpoint is not None:
                n_epochs -= trainer.progress.n_epochs
                # A file that cannot be written is refused now.
                checkpoint.save(self._after_epoch(*learned))
            self._train(
                batch[training],
                learned,
                watch,
                checkpoint,
                n_epochs=n_epochs,
                order=self._make_order(data.codes, training, device),
                stopping=self._make_stopping(model, batch, held_out, seeds.held_out),
            )
        if checkpoint is not None:
            checkpoint.remove()
        return self

    def _train(self, rows, learned, watch, checkpoint, **options):
        """Run epochs, and keep what was learned, also where an error ends them."""
        _, trainer, *_ = learned
        fitted = self.__sklearn_is_fitted__()
        n_before = trainer.progress.n_epochs if fitted else 0

        def after_epoch():
            if watch is not None:
                watch(self._after_epoch(*learned))
            if checkpoint is not None and checkpoint.is_due(trainer.progress.n_epochs):
                checkpoint.save(self._after_epoch(*learned))

        try:
            trainer.fit(
                rows,
                max_iter=self.max_iter,
                watch=after_epoch,
                verbose=bool(self.verbose),
                **options,
            )
        except BaseException as error:
            # An error in going on from a model leaves that model as it was.
            spoilt = fitted and isinstance(error, Exception)
            if trainer.progress.n_epochs > n_before and not spoilt:
                self._keep(*learned, interrupted=True)
            raise
        self._keep(*learned)

    def _keep(self, model, trainer, seeds, regularizer, interrupted=False):
        """Set what was learned, all at once."""
        model.network.eval()
        history = trainer.progress.history
        by_part = {
            name: list(getattr(history, name))
            for name in ("contrastive", "regularizer", "regularizer_weight")
        }
        parts = zip(*by_part.values(), strict=True)
        scores = list(history.validation_scores)
        learned = {
            "_model_": model,
            "_progress_": trainer.progress,
            "_seeds_": seeds,
            "regularizer_": regularizer,
            "interrupted_": interrupted,
            "history_": by_part,
            "loss_curve_": [loss + weight * penalty for loss, penalty, weight in parts],
            "n_iter_": len(history.contrastive),
            "validation_scores_": scores if self.early_stopping else None,
        }
        vars(self).update(learned)

    def _after_epoch(self, *learned):
        """Return an encoder that has learned so far."""
        encoder = clone(self)
        fitted = {name: v for name, v in vars(self).items() if name.endswith("_")}
        vars(encoder).update(fitted)
        encoder._keep(*learned, interrupted=True)
        return encoder

    def _split(self, data, seed):
        """Return the rows to train on and those to hold out."""
        if not self.early_stopping:
            return slice(None), ()  # all rows, not copied
        strata = data.codes if self._loss_uses_y() else None
        rng = check_random_state(seed)
        return hold_out(len(data.rows), strata, self.validation_fraction, rng)

    def _check_input(self, X, y, sample_weight, classes, resumed):
        """Return the rows that count, their labels where used, and their weights."""
        y = y if self._needs_y() else None
        X, y, weight = _drop_zero_weights(X, y, sample_weight)
        rows = self._check_rows(X, reset=not resumed, min_samples=2)
        codes = None
        if self._needs_y():
            self._require_y(y)
            codes = self._encode(rows, y, classes, resumed)
        loss_weight = weight
        if self.class_weight is not None:
            factor = class_weights(self.class_weight, self.classes_, codes, weight)
            _, loss_weight = check_sample_weight(
                factor if weight is None else factor * weight,
                len(rows),
                name="sample_weight by class_weight",
            )
        return TrainingData(rows, codes, weight, loss_weight)

    def _check_rows(self, X, reset=False, min_samples=1):
        columns = read_columns(X)
        if reset:
            categorical = find_categorical(
                columns, self.categorical_features, type(self).__name__
            )
        else:
            categorical = np.flatnonzero(self.categorical_features_).tolist()
        rows = check_rows(
            self,
            X,
            columns,
            categorical,
            reset=reset,
            min_samples=min_samples,
            ignored=() if reset else self._model_.columns.empty,
        )
        if reset:
            if np.isnan(rows.numbers).all() and pd.isna(rows.categories).all():
                raise ValueError("X holds no value: all of them are missing.")
            is_categorical = np.isin(range(self.n_features_in_), categorical)
            if self.augmentation == "noise" and is_categorical.all():
                raise ValueError(
                    "augmentation='noise' needs a column of numbers, and all columns "
                    "hold categories: 'swap' is allowed."
                )
            self.categorical_features_ = is_categorical
        return rows

    def _encode(self, rows, y, classes, resumed):
        """Return the codes of labels; the first fit also learns the classes."""
        check_consistent_length(rows, y)
        if not resumed:
            given = y if classes is None else classes
            self.classes_, codes = encode_labels(given, given)
            check_two_classes(self.classes_, codes, self._user_of_y())
            if classes is None:
                return codes
        elif not hasattr(self, "classes_"):
            raise ValueError(
                f"{self._user_of_y()} needs labels, and the first fit had none: fit "
                "anew, with warm_start=False."
            )
        elif classes is not None:
            found, _ = encode_labels(classes, classes)
            if not np.array_equal(found, self.classes_):
                raise ValueError(
                    f"classes={found.tolist()} differ from those of the first call, "
                    f"{self.classes_.tolist()}."
                )
        return encode_known_labels(rows, y, self.classes_)

    @property
    def _n_features_out(self):
        return self._model_.n_outputs(self.output)

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
            The backbone's output, not normalized; or the projection head's, unit
            vectors, (n_samples, projection_dim). The input columns follow if
            `passthrough`.

        Raises
        ------
        NotFittedError
            Before fit.
        ValueError, TypeError
            If columns differ from those of fit, a column holds another type than in
            fit, or a number is infinite or too far from the training rows for the
            network's float32.
        """
        check_is_fitted(self)
        rows = self._check_rows(X)
        return self._model_.transform(rows, self.output, self.passthrough)

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
        NotFittedError
            Before fit.
        ValueError, TypeError
            If n_views is not a positive integer, or X is not what :meth:`transform`
            takes.

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
        if not _is_positive_integer(n_views):
            raise ValueError(f"n_views={n_views!r}: a positive integer is allowed.")
        seed = self._seeds_.evaluation
        if random_state is not None:
            seed = draw_seed(check_random_state(random_state))
        return self._model_.embed_views(self._check_rows(X), n_views, seed)

    def score(self, X, y=None, sample_weight=None):
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
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows; one of weight 0 counts as absent.

        Returns
        -------
        float
            Higher is better.

        Raises
        ------
        NotFittedError
            Before fit.
        ValueError, TypeError
            If X is not what :meth:`transform` takes, the loss needs labels, a weight is
            out of range, or a callable loss is not finite or takes no weights.
        """
        check_is_fitted(self)
        codes = None
        y = y if self._loss_uses_y() else None
        X, y, weight = _drop_zero_weights(X, y, sample_weight)
        if self._loss_uses_y():
            self._require_y(y)
            if callable(self.loss) and hasattr(self, "classes_"):
                codes = encode_known_labels(X, y, self.classes_)
            else:
                _, codes = encode_labels(X, y)
        views = self.embed_views(X)
        if not callable(self.loss):
            return -theory.contrastive_loss(
                views, self.temperature, self.loss, codes, sample_weight=weight
            )
        if weight is not None:
            check_take_weights(self.loss)
        z = torch.from_numpy(views)
        codes = None if codes is None else torch.from_numpy(codes)
        weight = None if weight is None else to_tensor(weight, CPU, torch.float32)
        weighted = Batch(z, codes, weight).weighted()
        with isolated_global_rng(self._seeds_.evaluation, CPU, enabled=True):
            loss = self.loss(z, self.temperature, codes, **weighted)
        if not np.isfinite(float(loss)):
            raise ValueError(f"The callable given as loss returned {loss}.")
        return -float(loss)

    def get_feature_names_out(self, input_features=None):
        """Return the names of the columns of transform.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Names of the input columns; None are those of fit.

        Returns
        -------
        ndarray of str objects, of shape (n_columns,)
            "contrastiveencoder0" and so on. With `passthrough` those of the numbers
            follow, "missingindicator_" and theirs, and column_category.

        Raises
        ------
        ValueError
            If two columns would have one name.
        """
        embedding = super().get_feature_names_out(input_features)
        if not self.passthrough:
            return embedding
        inputs = _check_feature_names_in(self, input_features)
        names = self._model_.columns.imputed_names(inputs)
        names = np.concatenate([embedding, names])
        check_unique(names)
        return names

    def _loss(self):
        # The tags ask before the parameters are validated: None is no loss.
        return self.loss if callable(self.loss) else LOSSES.get(str(self.loss))

    def _loss_uses_y(self) -> bool:
        return getattr(self._loss(), "uses_y", False)

    def _user_of_y(self) -> str | None:
        """Return the parameter that makes fit need labels, if one does."""
        if self._loss_uses_y():
            return f"loss={self.loss!r}"
        if self.class_weight is not None:
            return f"class_weight={self.class_weight!r}"
        return "sampling='balanced'" if self.sampling == "balanced" else None

    def _needs_y(self) -> bool:
        return self._user_of_y() is not None

    def _require_y(self, y):
        if y is None:
            raise ValueError(
                f"{self._user_of_y()} requires y to be passed, but the target y is "
                "None. Mark unlabelled rows by y = -1."
            )

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
        if self.checkpoint is not None and self.warm_start:
            raise ValueError(
                "checkpoint is of a fit from the beginning: it does not go with "
                "warm_start=True."
            )
        if self.augmentation in ("auto", "swap") and self.corruption_rate > 1:
            raise ValueError(
                f"corruption_rate={self.corruption_rate!r}: for the augmentation "
                "'swap' it is a probability, in (0, 1]."
            )

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

    def _make_model(self, data, training, device, seed):
        """Return the model before training, and the block of all rows."""
        weight = None if data.weight is None else data.weight[training]
        columns = Preprocessor(
            data.rows[training],
            weight,
            np.flatnonzero(self.categorical_features_).tolist(),
            column_names(self),
        )
        if self.passthrough:
            columns.check_imputed_names()
        x = columns.encode(data.rows)
        kind = "swap" if self.augmentation == "auto" else self.augmentation
        marginals = marginal_table(x[training], weight)
        augmentation = Augmentation(
            kind, self.corruption_rate, marginals, columns.numeric
        )
        architecture = Architecture(
            columns.n_codes,
            columns.missing_indicator,
            self.n_components,
            self.projection_dim,
            tuple(self.hidden_layer_sizes),
            self.backbone,
        )
        generator = make_generator(seed, CPU)
        parameters = {name: getattr(self, name) for name in SHAPING}
        model = Model(
            columns,
            architecture,
            augmentation,
            self.n_views,
            device,
            generator,
            parameters,
        )
        return model, x

    def _resume_model(self, begun, device):
        """Return a copy of a model to train on, if the parameters still fit it."""
        for name, then in begun.parameters.items():
            now = getattr(self, name)
            if not _is_same(now, then):
                raise ValueError(
                    f"{name}={now!r} differs from {then!r}, with which training began: "
                    "fit anew, with warm_start=False."
                )
        model = deepcopy(begun)
        model.parameters = begun.parameters  # compared by identity
        model.to(device)
        return model

    def _make_batch(self, data, x, device):
        """Return all rows on the device, with what the objective is told of them."""
        y = weight = None
        if self._loss_uses_y():
            y = to_tensor(data.codes, device, torch.int64)
        if data.loss_weight is not None:
            weight = to_tensor(data.loss_weight, device, torch.float32)
        return Batch(to_tensor(x, device, torch.float32), y, weight)

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

    def _make_order(self, codes, training, device):
        """Return what draws the order of an epoch; None is each row once."""
        if self.sampling == "uniform":
            return None
        codes = to_tensor(codes[training], device, torch.int64)
        return partial(balanced_order, codes)

    def _make_stopping(self, model, batch, held_out, seed):
        if not self.early_stopping:
            return None
        rows = batch[held_out]
        views = model.draw_views(rows.x, self.n_views, seed).to(rows.x)
        views = Batch(views, rows.y, rows.weight)
        return Stopping(views, self.n_iter_no_change, self.tol)

    def __getstate__(self):
        return portable(super().__getstate__())

    def __sklearn_is_fitted__(self):
        return "_model_" in vars(self)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self._needs_y()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


class TrainingData(NamedTuple):
    """What fit is given, once it is checked."""

    rows: Rows
    codes: np.ndarray | None  # (n,) of labels, where they are used
    weight: np.ndarray | None  # (n,), None where equal
    loss_weight: np.ndarray | None  # the same times class_weight

    @property
    def given(self) -> tuple[np.ndarray | None, ...]:
        """What is not computed from the others."""
        return self.rows.numbers, self.rows.categories, self.codes, self.weight


class Seeds(NamedTuple):
    """One for each source of randomness, so that none shifts another."""

    weights: int
    training: int
    regularizer: int
    held_out: int
    evaluation: int
    split: int

    @classmethod
    def draw(cls, random_state) -> "Seeds":
        """Draw them, as scikit-learn does from a random_state."""
        rng = check_random_state(random_state)
        return cls(*(draw_seed(rng) for _ in cls._fields))


def _drop_zero_weights(X, y, sample_weight):
    """Return the rows that count, their labels, and their weights, of mean 1."""
    if sample_weight is None:
        return X, y, None
    if y is not None:
        check_consistent_length(X, y)
    kept, weight = check_sample_weight(sample_weight, _num_samples(X))
    if isinstance(kept, slice):  # all rows, as they are
        return X, y, weight
    y = None if y is None else _safe_indexing(y, kept)
    return _safe_indexing(X, kept), y, weight


def _is_same(a, b) -> bool:
    """Whether two values of a parameter are the same."""
    a, b = np.asarray(a, dtype=object), np.asarray(b, dtype=object)
    return a.shape == b.shape and bool((a == b).all())


def _is_positive_integer(value) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value > 0
