"""The file of a fit that is under way, from which it goes on after it was stopped."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.base import BaseEstimator

from skcl._persistence import load, remove_parts, save
from skcl._table import column_names

# Parameters that do not change what is learned.
FREE = {"checkpoint", "checkpoint_every", "device", "verbose"}

DATA = "rows, labels or weights"


class Checkpoint:
    """Saves an estimator every so many epochs, and finds it again.

    Parameters
    ----------
    estimator : estimator
        With the parameters of the fit, its random_state not yet drawn from.
    data : sequence of arrays or None
        What it is fitted to.
    """

    def __init__(self, estimator: BaseEstimator, data: Sequence[np.ndarray | None]):
        self.path = Path(estimator.checkpoint)
        self.every = estimator.checkpoint_every
        self.fit = _parameters(estimator) | {DATA: _fingerprint(estimator, data)}

    def read(self) -> BaseEstimator | None:
        """Return the estimator as it was saved; None if there is no file.

        Raises
        ------
        ValueError
            If it was fitted to other data, or with other parameters.
        """
        if not self.path.exists():
            return None
        saved = load(self.path)
        remedy = "Remove the file to start anew, or give another path."
        if not hasattr(saved, "_fit_"):
            raise ValueError(f"checkpoint={self.path} holds a model, whole. {remedy}")
        then = saved._fit_
        for name in sorted({*self.fit, *then} - {DATA}):
            now, before = (of.get(name, "nothing") for of in (self.fit, then))
            if now != before:
                raise ValueError(
                    f"checkpoint={self.path} is of a fit with {name}={before}, and "
                    f"here it is {now}. {remedy}"
                )
        if self.fit[DATA] != then[DATA]:
            raise ValueError(
                f"checkpoint={self.path} is of a fit to other {DATA}. {remedy}"
            )
        return saved

    def is_due(self, n_epochs: int) -> bool:
        """Whether it is time to save, after so many epochs."""
        return n_epochs % self.every == 0

    def save(self, estimator: BaseEstimator) -> None:
        """Save the estimator, with what its fit is known by."""
        estimator._fit_ = self.fit
        save(estimator, self.path)

    def remove(self) -> None:
        """Remove the file of a fit that is done, and what a kill has left of others."""
        self.path.unlink(missing_ok=True)
        remove_parts(self.path)


def _parameters(estimator: BaseEstimator) -> dict[str, str]:
    """Return the parameters that have a say in what is learned, as text.

    An encoder's regularizer draws from the encoder's generator, and not from its own.
    """
    return {
        name: _text(value)
        for name, value in estimator.get_params().items()
        if name.split("__")[-1] not in FREE and not name.endswith("__random_state")
    }


def _text(value: Any) -> str:
    if isinstance(value, BaseEstimator):
        return type(value).__name__  # its parameters are among the others
    if isinstance(value, np.random.RandomState):
        return f"RandomState of state {joblib.hash(value.get_state())}"
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


def _fingerprint(
    estimator: BaseEstimator, data: Sequence[np.ndarray | None]
) -> str | None:
    names = [str(name) for name in column_names(estimator)]
    kinds = estimator.categorical_features_.tolist()
    arrays = [None if a is None else np.array(a, order="C") for a in data]
    return joblib.hash([names, kinds, *arrays])
