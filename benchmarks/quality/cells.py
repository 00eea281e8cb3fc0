"""A cell of the benchmark: one contender on the rows of one table and seed."""

import warnings
from time import perf_counter
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    recall_score,
)

from benchmarks.quality.contenders import CONTENDERS, Task, fingerprint, versions
from benchmarks.quality.tables import IMBALANCES, N_FOLDS, TABLES, make_split
from skcl.theory import class_centers, internal_discrepancy, relative_discrepancy


class Cell(NamedTuple):
    """What is measured at one time."""

    protocol: str
    table: str
    imbalance: int  # 0: as the table has it
    seed: int
    contender: str


# Of a row, beside those of its cell.
COLUMNS = (
    "settings",
    "version",
    "head",
    "chosen",
    "balanced_accuracy",
    "average_precision",
    "g_mean",
    "minority_recall",
    "fit_seconds",
    "predict_seconds",
    "squared_discrepancy",
    "relative_discrepancy",
    "test_squared_discrepancy",
    "test_relative_discrepancy",
)


def list_cells(protocols, stage, contenders, n_seeds, tables=None):
    """Return the cells, seed by seed; with all labels a seed is the number of a fold.

    There are N_FOLDS of them. If tables are named, only theirs.
    """
    known = {table for protocol in protocols for table in TABLES[protocol][stage]}
    refuse_unknown("tables", tables or (), known)
    refuse_unknown("contenders", contenders, CONTENDERS)
    return [
        Cell(protocol, table, imbalance, seed, contender)
        for seed in range(n_seeds)
        for protocol in protocols
        if protocol == "few" or seed < N_FOLDS
        for table in TABLES[protocol][stage]
        if table in (tables or known)
        for imbalance in (IMBALANCES if protocol == "few" else (0,))
        for contender in contenders
    ]


def refuse_unknown(what, names, known):
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"Unknown {what}: {unknown}. There are {sorted(known)}.")


def measure(cell):
    """Return a row of figures, a dict, for each head of the cell's contender."""
    split = make_split(*cell[:4])
    labels = split.y_train[split.labelled]
    counts = np.bincount(labels)
    task = Task(cell.protocol, len(counts), int(counts.min()), cell.seed)
    contender = CONTENDERS[cell.contender].make(task)

    start = perf_counter()
    rows = split.labelled if contender.labelled_only else slice(None)
    contender.encoder.fit(split.X_train[rows], split.y_train[rows])
    embedding = contender.encoder.transform(split.X_train[split.labelled])
    fitted = perf_counter()
    test_embedding = contender.encoder.transform(split.X_test)
    encoded = perf_counter()

    shared = cell._asdict() | {
        "settings": fingerprint(cell.contender, cell.protocol),
        "version": versions(cell.contender),
        **discrepancies(contender.encoder, split, cell.seed),
    }
    figures = []
    for name, head in contender.heads().items():
        row = fit_head(head, embedding, labels, test_embedding, split)
        row["fit_seconds"] += fitted - start
        row["predict_seconds"] += encoded - fitted
        figures.append(shared | {"head": name} | row)
    return figures


def fit_head(head, embedding, labels, test_embedding, split):
    """Return the figures of a head."""
    start = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        head.fit(embedding, labels)
    fitted = perf_counter()
    probabilities = head.predict_proba(test_embedding)
    predicted = perf_counter()
    best = getattr(head, "best_params_", {})
    return {
        "chosen": " ".join(map(str, best.values())),
        **score(split.y_test, probabilities, split.rarest),
        "fit_seconds": fitted - start,
        "predict_seconds": predicted - fitted,
    }


def score(y, probabilities, rarest):
    """Return the metrics of predicted probabilities of the classes 0, 1, …"""
    predictions = probabilities.argmax(axis=1)
    recalls = recall_score(y, predictions, average=None)
    scores = probabilities[:, 1] if len(recalls) == 2 else probabilities
    return {
        "balanced_accuracy": balanced_accuracy_score(y, predictions),
        "average_precision": average_precision_score(y, scores),  # one against the rest
        "g_mean": np.prod(recalls) ** (1 / len(recalls)),
        "minority_recall": recalls[rarest],
    }


def discrepancies(encoder, split, seed):
    """Return the discrepancy by classes of the labelled rows, and of the test rows."""
    if not hasattr(encoder, "embed_views"):
        return {}
    labelled = split.labelled
    rows = {
        "": (split.X_train[labelled], split.y_train[labelled]),
        "test_": (split.X_test, split.y_test),
    }
    figures = {}
    for prefix, (X, y) in rows.items():
        means = encoder.embed_views(X, n_views=8, random_state=seed).mean(axis=1)
        about_centers = means, class_centers(means, y), y
        figures |= {
            f"{prefix}squared_discrepancy": np.mean(
                internal_discrepancy(*about_centers) ** 2
            ),
            f"{prefix}relative_discrepancy": relative_discrepancy(*about_centers),
        }
    return figures
