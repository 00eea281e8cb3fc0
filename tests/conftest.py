import os

# Before scipy is imported: scikit-learn's suite skips its array-API check without it.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import make_classification

from skcl import ContrastiveEncoder


@pytest.fixture(autouse=True)
def seeded():
    """What random_state=None draws from, so that a failure can be repeated."""
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.fixture
def imbalanced():
    """A frame of 240 rows and their classes, about 9:1."""
    X, y = make_classification(
        n_samples=240, n_features=6, weights=[0.9], class_sep=2.0, random_state=0
    )
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(6)]), y


@pytest.fixture
def make_encoder():
    """A small, quick encoder; any parameter can be set."""

    def make(**params):
        small = {
            "n_components": 5,
            "hidden_layer_sizes": (16,),
            "projection_dim": 4,
            "max_iter": 5,
            "batch_size": 64,
            "random_state": 0,
        }
        return ContrastiveEncoder(**(small | params))

    return make


@pytest.fixture
def rows():
    return np.random.RandomState(0).normal(size=(120, 4))
