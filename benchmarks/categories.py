"""Categories given to the encoder as they are, against one-hot columns.

Real tables with categorical columns, stratified 5-fold cross-validation repeated twice;
behind either encoder the same class-weighted logistic regression. Prints the mean over
the folds, and the paired difference with its standard error.
"""

import argparse

import numpy as np
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import RepeatedStratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skcl import ContrastiveEncoder
from skcl.datasets import load_keel

TABLES = ("abalone19", "car-good", "kr-vs-k-zero_vs_eight")
METRICS = ("balanced_accuracy", "average_precision")


def contenders(**params):
    """Return the pipelines to compare."""
    encoder = ContrastiveEncoder(random_state=0, **params)
    head = LogisticRegression(class_weight="balanced", max_iter=2000)
    one_hot = make_column_transformer(
        (
            OneHotEncoder(handle_unknown="ignore", sparse_output=False),
            make_column_selector(dtype_exclude="number"),
        ),
        remainder="passthrough",
    )
    return {
        "one-hot, linear": make_pipeline(one_hot, StandardScaler(), head),
        "one-hot, encoder": make_pipeline(one_hot, encoder, StandardScaler(), head),
        "native": make_pipeline(encoder, StandardScaler(), head),
    }


def main():
    """Compare on each table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=TABLES)
    parser.add_argument("--max-iter", type=int, default=20)
    parser.add_argument("--loss", default="infonce")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    folds = RepeatedStratifiedKFold(
        n_splits=5, n_repeats=arguments.repeats, random_state=0
    )
    for name in arguments.tables:
        X, y = load_keel(name)
        scores = {}
        print(f"{name}: {len(y)} rows, {y.sum()} positive")
        models = contenders(max_iter=arguments.max_iter, loss=arguments.loss)
        for label, model in models.items():
            scores[label] = cross_validate(
                model, X, y, cv=folds, scoring=METRICS, n_jobs=2, error_score="raise"
            )
            cells = [
                f"{metric} {scores[label][f'test_{metric}'].mean():.3f}"
                for metric in METRICS
            ]
            seconds = np.median(scores[label]["fit_time"])
            print(f"  {label:18}" + "  ".join(cells) + f"  fit {seconds:.1f} s")
        for metric in METRICS:
            key = f"test_{metric}"
            gain = scores["native"][key] - scores["one-hot, encoder"][key]
            error = gain.std(ddof=1) / len(gain) ** 0.5
            print(f"  native - one-hot, {metric}: {gain.mean():+.3f} ± {error:.3f}")


if __name__ == "__main__":
    main()
