"""The file of a fit that is under way, from which it goes on after it was stopped."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.base import BaseEstimator

from skcl._persistence import load, parts_of, save

# Parameters that do not change what is learned.
FREE = {"checkpoint", "checkpoint_every", "device", "verbose"}


class Checkpoint:
    """Saves an estimator every so many epochs, and finds it again.

    Parameters
    ----------
    estimator : estimator
        With the parameters of the fit.
    data : sequence of arrays or None
        What it is fitted to.
    """

    def __init__(self, estimator: BaseEstimator, data: Sequence[np.ndarray | None]):
        self.path = Path(estimator.checkpoint)
        self.every = estimator.checkpoint_every
        self.parameters = _fixed(estimator)
        self.data = joblib.hash(list(data))

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
        if not hasattr(saved, "_fitted_to_"):
            raise ValueError(f"checkpoint={self.path} holds a model, whole. {remedy}")
        then = _fixed(saved)
        for name in sorted({*self.parameters, *then}):
            a, b = (of.get(name, "nothing") for of in (self.parameters, then))
            if a != b:
                raise ValueError(
                    f"checkpoint={self.path} is of a fit with {name}={b}, and here it "
                    f"is {a}. {remedy}"
                )
        if saved._fitted_to_ != self.data:
            raise ValueError(
                f"checkpoint={self.path} is of a fit to other rows, labels or weights. "
                f"{remedy}"
            )
        return saved

    def write(self, estimator: BaseEstimator) -> None:
        """Save an estimator after an epoch, if it is time."""
        if estimator.n_iter_ % self.every == 0:
            estimator._fitted_to_ = self.data
            save(estimator, self.path)

    def remove(self) -> None:
        """Remove the file of a fit that is done, and what a kill has left of others."""
        self.path.unlink(missing_ok=True)
        for part in self.path.parent.iterdir():
            if part.name.startswith(parts_of(self.path)):
                part.unlink(missing_ok=True)


def _fixed(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the parameters that have a say in what is learned, printed.

    Of a random_state that is no seed, none is known to be the same.
    """
    parameters = {
        name: type(value).__name__
        if isinstance(value, BaseEstimator)
        else repr(value.tolist() if isinstance(value, np.ndarray) else value)
        for name, value in estimator.get_params().items()
        if name not in FREE
    }
    if "RandomState" in parameters["random_state"]:
        parameters["random_state"] = repr(None)
    return parameters
