"""The contrastive encoder."""

from contextlib import nullcontext
from functools import partial
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    clone,
)
from sklearn.model_selection import train_test_split
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
)
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from skcl import augmentations, networks, theory
from skcl._blocks import BLOCK
from skcl._labels import UNLABELLED, encode_labels
from skcl._table import begin_fit, check_table, column_names, fit_scaler, scale
from skcl._torch import (
    draw_seed,
    isolated_global_rng,
    load_weights,
    make_generator,
    resolve_device,
    to_numpy,
    to_tensor,
    weights_to_numpy,
)
from skcl._training import Objective, Stopping, Trainer, embed
from skcl.losses import LOSSES

# Rows standardized at a time by transform; a multiple of the block of the network.
CHUNK = 32 * BLOCK

CPU = torch.device("cpu")


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
        t, by which the loss divides similarities.
    augmentation : {"auto", "swap", "noise"} or callable, default="auto"
        How a view is drawn of standardized rows. "swap" replaces values by draws
        from their columns, "noise" adds Gaussian noise; "auto" is "swap". A callable
        has the signature ``augmentation(x, generator) -> view``, of tensors.
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
        Width of the projection head and dimension of its unit vectors.
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
        Share of the rows to hold out; stratified where the loss uses labels, and then a
        class with a single row stays in training.
    n_iter_no_change : int, default=10
        Epochs without a rise of the score by tol after which to stop. With a
        regularizer, epochs count from where it has reached its weight.
    tol : float, default=1e-4
        The least rise of the validation score that counts.
    device : str or torch.device, default="auto"
        Where to train: "auto" is CUDA where there is one, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of weights, batches, views and held-out rows. With an int, fits on a CPU
        agree to the last bit, whatever the number of threads.
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
        Its parts by epoch: "contrastive", "regularizer" (the penalty, before its
        weight) and "regularizer_weight" (weight, factor of the bound and ramp).
    validation_scores_ : list of float or None
        Minus the objective of the held-out rows by epoch; None without early stopping.
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
        "projection_dim": [Interval(Integral, 1, None, closed="left")],
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
        begin_fit(self)
        self._validate_combinations()
        device = resolve_device(self.device)
        X = check_table(self, X, reset=True, min_samples=2)
        codes = self._check_labels(X, y)
        rng = check_random_state(self.random_state)
        training, held_out = self._split(len(X), codes, rng)
        regularizer = self._check_regularizer(len(training))
        seeds = Seeds(*(draw_seed(rng) for _ in Seeds._fields))
        self._views_seed = seeds.evaluation

        names = column_names(self)
        self._scaler = fit_scaler(X[training], names)
        x = to_tensor(scale(self._scaler, X, names), device, torch.float32)
        y = None if codes is None else to_tensor(codes, device, torch.int64)
        self._marginals = None
        if self.augmentation in ("auto", "swap"):
            self._marginals = to_numpy(augmentations.marginal_table(x[training]))

        with self._global_rng(seeds.weights, device):
            network = self._make_network(make_generator(seeds.weights, CPU)).to(device)
            trainer = self._make_trainer(network, regularizer, seeds, device)
            if self._has_callables():
                self._try_callables(trainer, x[:2], None if y is None else y[:2])
            history = trainer.fit(
                x[training],
                None if y is None else y[training],
                max_iter=self.max_iter,
                stopping=self._make_stopping(x, y, held_out, seeds.held_out),
                verbose=bool(self.verbose),
            )

        self.module_ = network.eval()
        self.regularizer_ = regularizer
        self._set_history(history)
        self._n_features_out = self.n_components
        return self

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
        width = self.n_components + (self.n_features_in_ if self.passthrough else 0)
        Z = np.empty((len(X), width), dtype=np.float32)
        for start in range(0, len(X), CHUNK):
            rows = slice(start, start + CHUNK)
            scaled = scale(self._scaler, X[rows], column_names(self), first_row=start)
            Z[rows, : self.n_components] = self._apply(self.module_.embed, scaled)
            if self.passthrough:
                Z[rows, self.n_components :] = scaled
        return Z

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
        n_views = self.n_views if n_views is None else n_views
        if not isinstance(n_views, Integral) or n_views < 1:
            raise ValueError(f"n_views={n_views!r}: a positive integer is allowed.")
        seed = self._views_seed
        if random_state is not None:
            seed = draw_seed(check_random_state(random_state))
        X = check_table(self, X, reset=False)
        x = torch.from_numpy(scale(self._scaler, X, column_names(self)))
        views = self._draw_views_by_row(x, n_views, seed)
        unit_vectors = self._apply(self.module_, to_numpy(views.flatten(0, 1)))
        return unit_vectors.reshape(len(X), n_views, -1)

    def score(self, X, y=None):
        """Return minus the contrastive loss over all rows, on seeded views.

        It is exact on the rows given, see :func:`skcl.theory.contrastive_loss`, and so
        does not depend on batch_size. Scores of different losses or temperatures do not
        compare.

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
        """
        views = self.embed_views(X)
        codes = None
        if self._uses_y():
            codes = self._encode(views, y)[1]
        if callable(self.loss):
            z = torch.from_numpy(views)
            codes = None if codes is None else torch.from_numpy(codes)
            return -float(self.loss(z, self.temperature, codes))
        return -theory.contrastive_loss(views, self.temperature, self.loss, codes)

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
        return self.loss if callable(self.loss) else LOSSES[self.loss]

    def _uses_y(self) -> bool:
        # The tags are asked for before the parameters are validated.
        loss = self.loss if callable(self.loss) else LOSSES.get(str(self.loss))
        return getattr(loss, "uses_y", False)

    def _validate_combinations(self):
        for width in self.hidden_layer_sizes:
            if not isinstance(width, Integral) or width < 1:
                raise ValueError(
                    f"hidden_layer_sizes={self.hidden_layer_sizes!r}: positive "
                    "integers are allowed."
                )
        if self.augmentation in ("auto", "swap") and self.corruption_rate > 1:
            raise ValueError(
                f"corruption_rate={self.corruption_rate!r}: for the augmentation "
                "'swap' it is a probability, in (0, 1]."
            )

    def _encode(self, X, y):
        if y is None:
            raise ValueError(
                f"loss={self.loss!r} requires y to be passed, but the target y is "
                "None. Mark unlabelled rows by y = -1."
            )
        check_consistent_length(X, y)
        return encode_labels(y)

    def _check_labels(self, X, y):
        """Return the codes of y and set classes_, or None where the loss ignores y."""
        if not self._uses_y():
            return None
        classes, codes = self._encode(X, y)
        if len(classes) < 2:
            message = (
                f"loss={self.loss!r} needs labels of at least two classes; y has "
                f"{classes.tolist()}."
            )
            if (codes == UNLABELLED).any():
                message += (
                    " The label -1 marks an unlabelled row. If it is a class here, as "
                    "in {-1, 1}, encode the labels first: "
                    "y = sklearn.preprocessing.LabelEncoder().fit_transform(y)."
                )
            raise ValueError(message)
        self.classes_ = classes
        return codes

    def _split(self, n, codes, rng):
        """Return the rows to train on and those to hold out."""
        if not self.early_stopping:
            return np.arange(n), np.arange(0)
        strata = np.zeros(n, dtype=int) if codes is None else codes
        _, stratum, size = np.unique(strata, return_inverse=True, return_counts=True)
        divisible = np.flatnonzero(size[stratum] > 1)
        try:
            _, held_out = train_test_split(
                divisible,
                test_size=self.validation_fraction,
                stratify=strata[divisible],
                random_state=rng,
            )
        except ValueError as error:
            raise ValueError(
                f"validation_fraction={self.validation_fraction!r} does not suit "
                f"{n} rows: {error}"
            ) from error
        training = np.setdiff1d(np.arange(n), held_out)
        if min(len(training), len(held_out)) < 2:
            raise ValueError(
                f"validation_fraction={self.validation_fraction!r} splits {n} rows "
                f"into {len(training)} to train on and {len(held_out)} to hold out; at "
                "least 2 of each are needed."
            )
        return training, np.sort(held_out)

    def _check_regularizer(self, n_training):
        """Return a clone of the regularizer, once its parameters are known to fit."""
        regularizer = clone(self.regularizer, safe=False)
        if isinstance(regularizer, BaseEstimator):
            regularizer._validate_params()
        n_clusters = getattr(regularizer, "n_clusters", 0)
        if n_clusters > n_training:
            raise ValueError(
                f"regularizer__n_clusters={n_clusters} exceeds the number of rows to "
                f"train on, {n_training}."
            )
        return regularizer

    def _make_network(self, generator):
        if callable(self.backbone):
            backbone = self.backbone(self.n_features_in_, self.n_components)
        else:
            widths = (self.n_features_in_, *self.hidden_layer_sizes, self.n_components)
            backbone = networks.mlp(widths, generator)
        head = (self.n_components, self.projection_dim, self.projection_dim)
        return networks.ContrastiveNetwork(backbone, networks.mlp(head, generator))

    def _make_augmentation(self, device):
        if callable(self.augmentation):
            return self.augmentation
        if self.augmentation == "noise":
            return partial(augmentations.noise, rate=self.corruption_rate)
        marginals = to_tensor(self._marginals, device, torch.float32)
        return partial(
            augmentations.swap, rate=self.corruption_rate, marginals=marginals
        )

    def _make_trainer(self, network, regularizer, seeds, device):
        loss = self._loss()
        weight = 0.0
        if regularizer is not None:
            factor = getattr(loss, "discrepancy_weight", lambda t: 1 / t)
            weight = self.regularizer_weight * factor(self.temperature)
        return Trainer(
            network,
            Objective(loss, self.temperature, regularizer, weight),
            self._make_augmentation(device),
            n_views=self.n_views,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            generator=make_generator(seeds.training, device),
            regularizer_generator=make_generator(seeds.regularizer, device),
        )

    def _make_stopping(self, x, y, held_out, seed):
        if not self.early_stopping:
            return None
        views = self._draw_views_by_row(x[held_out], self.n_views, seed)
        codes = None if y is None else y[held_out]
        return Stopping(views.to(x), codes, self.n_iter_no_change, self.tol)

    def _draw_views_by_row(self, x, n_views, seed):
        with self._global_rng(seed, CPU):
            augment = self._make_augmentation(CPU)
            return augmentations.draw_views_by_row(augment, x, n_views, seed)

    def _has_callables(self) -> bool:
        return any(map(callable, (self.loss, self.augmentation, self.backbone)))

    def _global_rng(self, seed, device):
        """Torch's global generator, for callables; what is ours does without it."""
        if self._has_callables():
            return isolated_global_rng(seed, device)
        return nullcontext()

    def _try_callables(self, trainer, x, y):
        """Run the user's callables on two rows, to name one that returns nonsense."""
        generator = make_generator(0, x.device)
        view = trainer.augment(x, generator)
        _check_shape("augmentation", view, x.shape)
        trainer.network.eval()
        with torch.no_grad():
            embedding = trainer.network.backbone(view)
            _check_shape("backbone", embedding, (len(x), self.n_components))
            z = embed(trainer.network, torch.stack([x, view], dim=1))
            _check_shape("loss", self._loss()(z, self.temperature, y), ())

    @torch.no_grad()
    def _apply(self, function, x):
        """Apply part of the network to rows, in blocks of one fixed size.

        A product of matrices of another size may round differently; in a block of this
        size a row's result does not depend on the rows beside it.
        """
        device = next(self.module_.parameters()).device
        padded = np.zeros((-(-len(x) // BLOCK) * BLOCK, x.shape[1]), dtype=np.float32)
        padded[: len(x)] = x
        outputs = to_numpy(function(to_tensor(padded, device, torch.float32)))
        outputs = outputs[: len(x)]
        if not np.isfinite(outputs).all():
            raise ValueError("The network's output is not finite: its values overflow.")
        return outputs

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

    def __getstate__(self):
        """Weights as arrays in place of the module: portable over devices."""
        state = dict(super().__getstate__())
        if "module_" in state:
            state["module_"] = weights_to_numpy(state["module_"])
        return state

    def __setstate__(self, state):
        """Build the module again, on the device of fit where there is one."""
        super().__setstate__(state)
        if "module_" not in state:
            return
        try:
            device = resolve_device(self.device)
        except ValueError:
            device = CPU
        with self._global_rng(0, device):
            network = self._make_network(generator=None)
        load_weights(network, state["module_"])
        self.module_ = network.to(device).eval()

    def __sklearn_is_fitted__(self):
        return hasattr(self, "module_")

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


def _check_shape(parameter: str, output: torch.Tensor, expected: tuple) -> None:
    if not isinstance(output, torch.Tensor) or tuple(output.shape) != tuple(expected):
        found = getattr(output, "shape", type(output).__name__)
        raise ValueError(
            f"The callable given as {parameter} must return a tensor of shape "
            f"{tuple(expected)} for two rows; it returned {found}."
        )
