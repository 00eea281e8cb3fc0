"""Values of each of the encoder's parameters."""

import numpy as np
import torch
from torch import nn

from skcl import RelaxedKMeansRegularizer

# Refused at the start of fit.
INVALID = {
    "n_components": [0, 1.5, "8"],
    "loss": ["simclr", None],
    "temperature": [0, -1, np.inf, np.nan],
    "augmentation": ["dropout"],
    "corruption_rate": [0, 1.5, -0.1],
    "n_views": [1],
    "backbone": ["resnet", nn.Linear(4, 5)],
    "hidden_layer_sizes": [(0,), (8, -1), 8, ("8",)],
    "projection_dim": [0],
    "output": ["embedding", None],
    "passthrough": ["yes"],
    "regularizer": ["kmeans", RelaxedKMeansRegularizer(n_clusters=0)],
    "regularizer_weight": [-1, np.nan],
    "class_weight": ["equal", {0: -1.0}, {0: np.nan}, {0: "2"}, {"no": 2.0}],
    "sampling": ["stratified", None],
    "categorical_features": [
        "from_type",
        ["no"],
        [4],
        [-1],
        [True],
        [True, 3],
        [[0]],
        [0.5],
    ],
    "batch_size": [1, 0],
    "max_iter": [0],
    "learning_rate": [0, -1e-3, np.inf],
    "weight_decay": [-1],
    "early_stopping": ["auto"],
    "validation_fraction": [0, 1],
    "n_iter_no_change": [0],
    "tol": [-1e-3],
    "warm_start": ["yes"],
    "device": [0],
    "random_state": ["seed"],
    "checkpoint": [0],
    "checkpoint_every": [0, 2.5],
    "verbose": ["loud"],
}

# Others than the defaults that are allowed, of small networks.
VALID = {
    "n_components": [1, 3],
    "loss": ["infonce", "spectral", "logistic", "supcon"],
    "temperature": [0.01, 0.5, 100.0],
    "augmentation": ["auto", "swap", "noise"],
    "corruption_rate": [1e-9, 0.9, 1.0],
    "n_views": [3],
    "backbone": ["mlp"],
    "hidden_layer_sizes": [(), (1,), (8, 2), [4]],
    "projection_dim": [2, 9],
    "output": ["projection"],
    "passthrough": [True],
    "regularizer": [
        RelaxedKMeansRegularizer(1),
        RelaxedKMeansRegularizer(3, temperature=1e-3, n_neighbors=None),
        RelaxedKMeansRegularizer(2, relaxation="spectral"),
    ],
    "regularizer_weight": [0.0, 1e3],
    "class_weight": ["balanced"],
    "sampling": ["balanced"],
    "categorical_features": [None],
    "batch_size": [2, 5],
    "max_iter": [1, 4],
    "learning_rate": [1e-6, 1e6],
    "weight_decay": [0.0, 10.0],
    "early_stopping": [True],
    "validation_fraction": [0.01, 0.5, 0.99],
    "n_iter_no_change": [1],
    "tol": [0.0, 1.0],
    "warm_start": [True],
    "device": ["cpu", torch.device("cpu")],
    "random_state": [np.random.RandomState(0)],
    "checkpoint": [None],
    "checkpoint_every": [1],
    "verbose": [0],
}
