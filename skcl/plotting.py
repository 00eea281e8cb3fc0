"""Displays: what the theory says of an encoder, as pictures. They need matplotlib."""

from functools import partial
from numbers import Integral, Real

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils._optional_dependencies import check_matplotlib_support

from skcl import theory
from skcl._labels import encode_labels
from skcl._pipeline import embed_views, find_encoder
from skcl._report import LOG_LOSSES

# Told apart by color-blind readers: Okabe and Ito's black, vermilion and blue.
_BLACK, _VERMILION, _BLUE = "#000000", "#D55E00", "#0072B2"


class BoundDisplay:
    """The bound against the incurred loss, over training or over a parameter.

    Use :meth:`from_estimator`, which fits, or :meth:`from_predictions`, which takes
    views; all parameters are stored as attributes.

    Parameters
    ----------
    values : list of length n_points
        Epochs, or values of a parameter.
    bounds : list of n_points skcl.theory.DiscrepancyBound
        What was measured at each.
    name : str, default="epoch"
        What the values are.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn.
    figure_ : matplotlib Figure
        The figure of ax_.
    lines_ : list of matplotlib Line2D
        Upper bound, incurred loss and contrastive loss.

    See Also
    --------
    skcl.theory.discrepancy_bound : The numbers.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from skcl import ContrastiveEncoder
    >>> from skcl.plotting import BoundDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> encoder = ContrastiveEncoder(max_iter=4, random_state=0)
    >>> display = BoundDisplay.from_estimator(encoder, X, y)
    >>> display.values
    [1, 2, 3, 4]
    """

    def __init__(self, values, bounds, *, name="epoch"):
        self.values = values
        self.bounds = bounds
        self.name = name

    def plot(self, ax=None):
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where; None is a new figure.

        Returns
        -------
        BoundDisplay
            Itself.
        """
        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        x, ticks = _positions(self.values)
        lines = {
            "upper_bound": ("upper bound", _VERMILION, "--"),
            "incurred_loss": ("incurred supervised loss", _BLACK, "-"),
            "contrastive_loss": ("contrastive loss", _BLUE, ":"),
        }
        self.lines_ = []
        for term, (label, color, style) in lines.items():
            of_points = [getattr(bound, term) for bound in self.bounds]
            self.lines_ += self.ax_.plot(
                x, of_points, style, color=color, marker="o", ms=3, label=label
            )
        constants = {theory.CONSTANT_LOSS[bound.loss] for bound in self.bounds}
        if len(constants) == 1:
            _mark_constant(self.ax_, *constants)
        if ticks is not None:
            self.ax_.set_xticks(x, ticks)
        elif all(isinstance(value, Integral) for value in self.values):
            self.ax_.xaxis.get_major_locator().set_params(integer=True)
        self.ax_.set(xlabel=self.name, ylabel="loss, lower is better")
        above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
        self.ax_.legend(**above, ncols=3, frameon=False, fontsize="small")
        return self

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        param_name=None,
        param_range=None,
        X_val=None,
        y_val=None,
        n_views=8,
        random_state=0,
        ax=None,
    ):
        """Fit an encoder, over its training or for each value of a parameter.

        Parameters
        ----------
        estimator : ContrastiveEncoder or Pipeline
            With one of the built-in losses. It is cloned. Over training, it ends in
            the encoder.
        X : array-like of shape (n_samples, n_features)
            Rows to fit.
        y : array-like of shape (n_samples,)
            Their classes; -1 marks an unlabelled row, which is not measured.
        param_name : str, default=None
            The parameter, such as "regularizer_weight", or in a pipeline
            "contrastiveencoder__regularizer_weight". None: over training.
        param_range : list, default=None
            Values of the parameter, or numbers of epochs of one training, ascending and
            up to `max_iter`. None is, over training, up to 20 epochs spread over it.
        X_val, y_val : array-like, default=None
            Rows to measure, and their classes; None are those of fit.
        n_views : int, default=8
            Views of each measured row.
        random_state : int, default=0
            Seed of the views, the same for each value.
        ax : matplotlib Axes, default=None
            Where to draw; None is a new figure.

        Returns
        -------
        BoundDisplay
            Drawn.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If only one of X_val and y_val, or param_name without param_range, is given,
            param_range is empty, the encoder's loss is a callable, or an epoch is out
            of range.
        """
        check_matplotlib_support(f"{cls.__name__}.from_estimator")
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val go together: one of them is None.")
        if param_name is not None and param_range is None:
            raise ValueError(f"param_range=None: values of {param_name} are needed.")
        X_val, y_val = (X, y) if X_val is None else (X_val, y_val)
        measure = partial(_measure, y=y_val, n_views=n_views, random_state=random_state)
        estimator = clone(estimator)
        if param_name is None:
            epochs = _check_epochs(param_range, find_encoder(estimator)[1].max_iter)
            bounds = _over_training(estimator, X, y, X_val, epochs, measure)
            return cls(list(bounds), list(bounds.values())).plot(ax)
        values = list(param_range)
        if not values:
            raise ValueError(f"param_range=[]: values of {param_name} are needed.")
        fits = (
            clone(estimator).set_params(**{param_name: value}).fit(X, y)
            for value in values
        )
        bounds = [measure(fit, X_val) for fit in fits]
        name = param_name.split("__")[-1].replace("_", " ")
        return cls(values, bounds, name=name).plot(ax)

    @classmethod
    def from_predictions(
        cls, values, views, y, temperature, *, loss="infonce", name="epoch", ax=None
    ):
        """Measure views of the same rows, one array for each value.

        Parameters
        ----------
        values : array-like of shape (n_points,)
            Epochs, or values of a parameter.
        views : list of n_points arrays of shape (n, V, d)
            Unit vectors.
        y : array-like of shape (n,)
            Classes.
        temperature : float or list of n_points floats
            t > 0.
        loss : {"infonce", "supcon", "spectral", "logistic"}, default="infonce"
            The contrastive loss.
        name : str, default="epoch"
            What the values are.
        ax : matplotlib Axes, default=None
            Where to draw; None is a new figure.

        Returns
        -------
        BoundDisplay
            Drawn.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If there are not as many views as values, or
            :func:`skcl.theory.discrepancy_bound` refuses them.
        """
        check_matplotlib_support(f"{cls.__name__}.from_predictions")
        values = list(values)
        if len(views) != len(values):
            raise ValueError(
                f"views has {len(views)} arrays for {len(values)} values: one for each "
                "is needed."
            )
        temperatures = np.broadcast_to(temperature, len(values)).tolist()
        bounds = [
            theory.discrepancy_bound(z, y, t, loss)
            for z, t in zip(views, temperatures, strict=True)
        ]
        return cls(values, bounds, name=name).plot(ax)


class GeometryDisplay:
    """The classes' centers as they are beside the optimal ones, as inner products.

    An encoder with the least incurred loss maps each class to one point, of norm 1. The
    diagonal, the squared norm of a center, shows how far a class is from that; beside
    it stand the pairs of classes that lie too near, or too far, from each other.

    Parameters
    ----------
    actual : array of shape (K, K)
        Inner products of the centers.
    optimal : array of shape (K, K)
        Those of :func:`skcl.theory.optimal_geometry`.
    classes : array of shape (K,)
        The classes.

    Attributes
    ----------
    axes_ : array of 2 matplotlib Axes
        Where they were drawn.
    figure_ : matplotlib Figure
        Their figure.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from skcl import ContrastiveEncoder
    >>> from skcl.plotting import GeometryDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> encoder = ContrastiveEncoder(max_iter=4, random_state=0).fit(X)
    >>> GeometryDisplay.from_estimator(encoder, X, y).optimal.shape
    (3, 3)
    """

    def __init__(self, actual, optimal, *, classes):
        self.actual = actual
        self.optimal = optimal
        self.classes = classes

    def plot(self, axes=None):
        """Draw it.

        Parameters
        ----------
        axes : array of 2 matplotlib Axes, default=None
            Where; None is a new figure.

        Returns
        -------
        GeometryDisplay
            Itself.
        """
        if axes is None:
            import matplotlib.pyplot as plt

            _, axes = plt.subplots(
                1, 2, figsize=(9, 4.2), sharey=True, layout="constrained"
            )
        self.axes_ = np.asarray(axes)
        if self.axes_.shape != (2,):
            raise ValueError(
                f"axes is of shape {self.axes_.shape}: two matplotlib Axes are allowed."
            )
        self.figure_ = self.axes_[0].figure
        for ax, gram, title in zip(
            self.axes_, (self.actual, self.optimal), ("actual", "optimal"), strict=True
        ):
            image = ax.imshow(gram, cmap="RdBu_r", vmin=-1, vmax=1)
            ax.set(title=title)
            _label_classes(ax, self.classes)
            _write_values(ax, gram)
        self.figure_.colorbar(
            image, ax=list(self.axes_), label="inner product of centers"
        )
        return self

    @classmethod
    def from_estimator(cls, estimator, X, y, *, n_views=8, random_state=0, axes=None):
        """Measure a fitted encoder.

        Parameters
        ----------
        estimator : ContrastiveEncoder, or Pipeline with one
            Fitted, with the loss "infonce" or "supcon".
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            Their classes; -1 marks an unlabelled row, which is not measured.
        n_views : int, default=8
            Views of each row.
        random_state : int, default=0
            Seed of the views.
        axes : array of 2 matplotlib Axes, default=None
            Where to draw; None is a new figure.

        Returns
        -------
        GeometryDisplay
            Drawn.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the estimator has no encoder, or one of another loss.
        """
        check_matplotlib_support(f"{cls.__name__}.from_estimator")
        bound = _measure(estimator, X, y=y, n_views=n_views, random_state=random_state)
        if bound.loss not in LOG_LOSSES:
            raise ValueError(
                f"loss={bound.loss!r}: the optimal geometry is that of InfoNCE; "
                f"{LOG_LOSSES} are allowed."
            )
        return cls._from_bound(bound, axes)

    @classmethod
    def from_predictions(cls, views, y, temperature, *, axes=None):
        """Measure views.

        Parameters
        ----------
        views : array of shape (n, V, d)
            Unit vectors.
        y : array-like of shape (n,)
            Classes.
        temperature : float
            t > 0.
        axes : array of 2 matplotlib Axes, default=None
            Where to draw; None is a new figure.

        Returns
        -------
        GeometryDisplay
            Drawn.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If :func:`skcl.theory.discrepancy_bound` refuses them.
        """
        check_matplotlib_support(f"{cls.__name__}.from_predictions")
        return cls._from_bound(theory.discrepancy_bound(views, y, temperature), axes)

    @classmethod
    def _from_bound(cls, bound, axes):
        optimal = theory.optimal_geometry(bound.per_class["prior"], bound.temperature)
        actual = bound.centers @ bound.centers.T
        return cls(actual, optimal.gram, classes=bound.classes).plot(axes)


def _axes(ax):
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _mark_constant(ax, constant):
    """Draw what an encoder incurs that maps all rows to one point."""
    ax.axhline(constant, color="0.6", lw=1, zorder=0)
    ax.annotate(
        "constant encoder",
        (1, constant),
        xycoords=("axes fraction", "data"),
        xytext=(-3, 3),
        textcoords="offset points",
        ha="right",
        color="0.4",
        fontsize="small",
    )


def _positions(values):
    """Return where to draw values, and their labels if these do not follow."""
    if all(isinstance(value, Real) for value in values):
        gaps = np.diff(np.asarray(values, dtype=float))
        if (gaps > 0).all() and (len(gaps) == 0 or gaps.max() <= 3 * gaps.min()):
            return values, None
    return range(len(values)), [str(value) for value in values]


def _check_epochs(epochs, max_iter):
    if epochs is None:
        return np.unique(np.linspace(1, max_iter, 20).round().astype(int)).tolist()
    epochs = list(epochs)
    are_whole = all(isinstance(epoch, Integral) for epoch in epochs)
    if not (epochs and are_whole and min(np.diff([0, *epochs])) > 0):
        raise ValueError(
            f"param_range={epochs}: ascending numbers of epochs from 1 on are allowed."
        )
    if epochs[-1] > max_iter:
        raise ValueError(
            f"param_range={epochs}: epochs up to max_iter={max_iter} are allowed."
        )
    return epochs


def _over_training(estimator, X, y, X_val, epochs, measure):
    """Fit an estimator; return the bound on X_val after each of the epochs."""
    before, encoder = find_encoder(estimator)
    last = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    if last is not encoder or not hasattr(encoder, "_fit_watched"):
        raise ValueError(
            "over training, the last step has to be a ContrastiveEncoder: it is "
            f"{type(last).__name__}."
        )
    for transformer in before:
        X = transformer.fit_transform(X, y)
        X_val = transformer.transform(X_val)
    bounds = {}

    def watch(trained):
        if trained.n_iter_ in epochs:
            bounds[trained.n_iter_] = measure(trained, X_val)

    encoder._fit_watched(X, y, watch)
    return bounds


def _measure(estimator, X, *, y, n_views, random_state):
    """Return the bound on the labelled rows."""
    _, encoder = find_encoder(estimator)
    if callable(encoder.loss):
        raise ValueError(
            f"loss={encoder.loss!r}, a callable, has no bound: {theory.LOSSES} are "
            "allowed."
        )
    views = embed_views(estimator, X, n_views, random_state)
    classes, codes = encode_labels(views, y)
    known = codes >= 0
    return theory.discrepancy_bound(
        views[known], classes[codes[known]], encoder.temperature, encoder.loss
    )


def _label_classes(ax, classes):
    positions = np.arange(len(classes))
    if len(classes) > 30:  # as many as can be read
        positions = positions[:: -(-len(classes) // 30)]
    classes = [classes[position] for position in positions]
    size = "small" if len(classes) <= 12 else "x-small"
    rotation = 0 if sum(len(str(name)) + 1 for name in classes) <= 30 else 90
    ax.set_xticks(positions, classes, rotation=rotation, fontsize=size)
    ax.set_yticks(positions, classes, fontsize=size)
    ax.tick_params(length=0)


def _write_values(ax, gram):
    """Write the numbers, where there is room."""
    if len(gram) > 8:
        return
    for (i, j), value in np.ndenumerate(gram):
        color = "white" if abs(value) > 0.6 else "black"
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=color)
