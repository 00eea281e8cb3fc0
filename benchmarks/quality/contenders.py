"""The contenders: an encoder fitted once on the training rows, and a head behind it.

A head is fitted on the labelled rows. Each has one parameter, of four candidates, that
is chosen by cross-validation on the embedding of these rows.
"""

import re
from hashlib import sha1
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import skcl
from benchmarks.quality.ours import make_encoder
from benchmarks.quality.peers import CebraEncoder, ScarfEncoder

C = {"logisticregression__C": (0.01, 0.1, 1, 10)}
# The parameters of which gradient boosting gains most on the development tables.
BOOSTING = {
    "few": {"min_samples_leaf": (1, 2, 5, 10)},
    "all": {"l2_regularization": (1, 10, 100, 1000)},
}
# Of SCARF, as in its paper but for the narrower projection and the temperature.
SCARF = {
    "hidden_dim": 256,
    "n_layers": 4,
    "projection_dim": 64,
    "tau": 0.2,
    "corruption_rate": 0.6,
    "batch_size": 128,
    "learning_rate": 1e-3,
    "max_epochs": 60,
}
CEBRA = {
    "output_dimension": 32,
    "num_hidden_units": 256,
    "temperature": 1.0,
    "batch_size": 512,
    "learning_rate": 1e-3,
    "max_iterations": 1000,
}


class Task(NamedTuple):
    """What a contender is made for."""

    protocol: str
    n_classes: Any
    fewest: float  # labelled rows of the rarest class
    seed: Any


# Stands for all tasks of a protocol in the contenders' settings.
SYMBOLS = {"n_classes": "K", "fewest": float("inf"), "seed": "seed"}


class Columns(TransformerMixin, BaseEstimator):
    """Numbers standardized, and strings as columns of zeros and ones."""

    def fit(self, X, y=None):
        one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        self.transformer_ = make_column_transformer(
            (StandardScaler(), make_column_selector(dtype_include="number")),
            (one_hot, make_column_selector(dtype_exclude="number")),
        ).fit(X)
        return self

    def transform(self, X):
        return self.transformer_.transform(X)


class Contender(NamedTuple):
    """An encoder, and a classifier of the embedding with the parameter to choose."""

    encoder: Any
    head: Any
    grid: dict
    labelled_only: bool = False  # whether the encoder cannot use unlabelled rows

    def heads(self):
        """Return the heads to fit by name; C = 1 stands beside the choice of C."""
        search = GridSearchCV(
            self.head,
            self.grid,
            scoring="balanced_accuracy",
            cv=StratifiedKFold(3, shuffle=True, random_state=0),
        )
        return {"search": search} | ({"C=1": self.head} if self.grid is C else {})


def raw(task):
    """The columns."""
    return Contender(Columns(), linear(), C)


def pca(task):
    """Principal components that hold 95 % of the variance, not rescaled."""
    components = PCA(0.95, random_state=task.seed)
    return Contender(make_pipeline(Columns(), components), linear(rescaled=False), C)


def hgb(task):
    """Gradient boosting of the columns."""
    head = HistGradientBoostingClassifier(
        class_weight="balanced", random_state=task.seed
    )
    return Contender(Columns(), head, BOOSTING[task.protocol])


def smote(task):
    """Over-sampled with up to 5 neighbors, as the rarest class allows."""
    from imblearn.over_sampling import SMOTE
    from imblearn.pipeline import make_pipeline as make_sampling_pipeline

    in_fold = task.fewest * 2 // 3
    sampler = SMOTE(k_neighbors=max(1, min(5, in_fold - 1)), random_state=task.seed)
    regression = LogisticRegression(max_iter=2000)
    head = make_sampling_pipeline(StandardScaler(), sampler, regression)
    return Contender(Columns(), head, C)


def brf(task):
    """A forest whose trees see as many rows of each class."""
    from imblearn.ensemble import BalancedRandomForestClassifier

    head = BalancedRandomForestClassifier(
        sampling_strategy="all",
        replacement=True,
        bootstrap=False,
        random_state=task.seed,
    )
    return Contender(Columns(), head, {"max_features": ("sqrt", 0.4, 0.7, None)})


def scarf(task):
    """SCARF of TabularS3L, on all training rows."""
    return encoded(ScarfEncoder(**SCARF, random_state=task.seed))


def cebra(task):
    """CEBRA without labels, on all training rows."""
    return encoded(CebraEncoder(**CEBRA, delta=0.6, random_state=task.seed))


def cebra_labels(task):
    """CEBRA with the classes as discrete labels, on the labelled rows."""
    encoder = CebraEncoder(**CEBRA, delta=None, random_state=task.seed)
    return encoded(encoder, labelled_only=True)


def ours(task, **changes):
    """ContrastiveEncoder, on all training rows."""
    encoder = make_encoder(task.protocol, task.n_classes, task.seed, **changes)
    # Not rescaled beside the columns: the penalty of the regression then weighs on the
    # unit vectors, whose coordinates are small, rather than on the columns.
    return Contender(encoder, linear(rescaled=not encoder.passthrough), C)


def ours_backbone(task):
    """The same with the output of the backbone."""
    return ours(task, output="backbone")


def ours_spectral(task):
    """ContrastiveEncoder with the spectral relaxation."""
    return ours(task, relaxation="spectral")


def ours_entropic(task):
    """ContrastiveEncoder with the entropic relaxation."""
    return ours(task, relaxation="entropic")


def encoded(encoder, **params):
    return Contender(make_pipeline(Columns(), encoder), linear(), C, **params)


def linear(*, rescaled=True):
    scaler = [StandardScaler()] if rescaled else []
    regression = LogisticRegression(class_weight="balanced", max_iter=2000)
    return make_pipeline(*scaler, regression)


class Entry(NamedTuple):
    """How a contender is made and named, and the packages that it stands for."""

    make: Any
    label: str
    packages: tuple


CONTENDERS = {
    "raw": Entry(raw, "raw + LR", ("scikit-learn",)),
    "pca": Entry(pca, "PCA + LR", ("scikit-learn",)),
    "smote": Entry(smote, "SMOTE + LR", ("imbalanced-learn",)),
    "hgb": Entry(hgb, "HistGradientBoosting", ("scikit-learn",)),
    "brf": Entry(brf, "BalancedRandomForest", ("imbalanced-learn",)),
    "scarf": Entry(scarf, "SCARF + LR", ("ts3l", "torch")),
    "cebra": Entry(cebra, "CEBRA + LR", ("cebra", "torch")),
    "cebra-labels": Entry(cebra_labels, "CEBRA, labels + LR", ("cebra", "torch")),
    "ours": Entry(ours, "ours + LR", ("skcl", "torch")),
    "ours-backbone": Entry(ours_backbone, "ours, backbone + LR", ("skcl", "torch")),
    "ours-spectral": Entry(ours_spectral, "ours, spectral + LR", ("skcl", "torch")),
    "ours-entropic": Entry(ours_entropic, "ours, entropic + LR", ("skcl", "torch")),
}
MODULES = {"imbalanced-learn": "imblearn", "scikit-learn": "sklearn"}


def installed():
    """Return the names of the contenders whose packages are installed."""
    return [
        name
        for name, entry in CONTENDERS.items()
        if all(find_spec(MODULES.get(package, package)) for package in entry.packages)
    ]


def describe(name, protocol):
    """Return a contender's settings; the same for all tables and seeds."""
    contender = CONTENDERS[name].make(Task(protocol, **SYMBOLS))
    steps = [*steps_of(contender.encoder), *steps_of(contender.head)]
    texts = " → ".join(step.__repr__(N_CHAR_MAX=10_000) for step in steps)
    texts = re.sub(r"\s+", " ", re.sub(" at 0x[0-9a-f]+", "", texts))
    ((parameter, values),) = contender.grid.items()
    return f"{texts}, {parameter.split('__')[-1]} from {values}"


def steps_of(estimator):
    return [step for _, step in getattr(estimator, "steps", [("", estimator)])]


def fingerprint(name, protocol):
    """Return a short code of the settings."""
    return short_hash(describe(name, protocol).encode())


def versions(name):
    """Return the versions of a contender's packages, for ours with its code's hash."""
    return ", ".join(
        f"{package} {skcl_version() if package == 'skcl' else version(package)}"
        for package in CONTENDERS[name].packages
    )


def skcl_version():
    files = sorted(Path(skcl.__file__).parent.rglob("*.py"))
    code = short_hash(b"".join(file.read_bytes() for file in files))
    return f"{skcl.__version__} ({code})"


def short_hash(data):
    return sha1(data, usedforsecurity=False).hexdigest()[:8]
