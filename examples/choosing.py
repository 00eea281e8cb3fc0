"""Choosing temperature and regularizer weight by the bound, by labels, by the result.

Searches the same grid on real imbalanced tables by three criteria at once:

- the bound, for k-means clusters of the held-out rows, which needs no labels;
- the incurred supervised loss, which needs the labels of the held-out rows;
- the balanced accuracy of a class-weighted classifier behind the embedding.

Prints what each chooses and what the choice is worth in balanced accuracy, and draws
examples/choosing.png. Where each misleads is said at the end.
"""

import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer
from skcl.datasets import load_keel
from skcl.theory import optimal_geometry

TABLES = ("page-blocks0", "vehicle1")
N_ROWS, N_CLUSTERS, MAX_ITER = 1500, 10, 20
GRID = {"temperature": [0.1, 0.2, 0.5, 1.0], "regularizer_weight": [0, 0.1, 0.3, 1]}
FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)
PICTURE = Path(__file__).with_suffix(".png")
COLORS = ("#000000", "#0072B2", "#E69F00", "#D55E00")  # one for each weight
MARKERS = "ovs^"  # one for each temperature

MISLEADING = """
Where each misleads
- Bound and incurred loss change with the temperature by themselves, which divides their
  scores: they compare settings of one temperature, not temperatures.
- The bound knows clusters, not classes: the regularizer, which makes clusters, improves
  it whether or not these are the classes, until the embedding collapses. Where it is
  vacuous, at 0 or above, it says nothing; the scorer then warns, which is muted here.
- The incurred loss is a mean over rows, in which a rare class counts little. It does
  not prefer a collapse, where it is 0.
- Balanced accuracy is what is wanted, but it rests on the rare class's few rows: see
  the deviation between folds. The best of sixteen settings is partly the luckiest.
A rank correlation near 0, or below, is a table on which the criterion does not help.
Where all settings lie within a few deviations between folds, keep the defaults.
"""


def by_bound(estimator, X, y=None):
    """Score without a look at the labels."""
    return DiscrepancyScorer(term="bound", n_clusters=N_CLUSTERS)(estimator, X)


CRITERIA = {
    "bound": by_bound,
    "incurred loss": DiscrepancyScorer(term="incurred_loss"),
    "balanced accuracy": "balanced_accuracy",
}


def load_table(name):
    """Return a table, of the large one a stratified sample."""
    X, y = load_keel(name)
    if len(y) > N_ROWS:
        sample = {"train_size": N_ROWS, "stratify": y, "random_state": 0}
        X, _, y, _ = train_test_split(X, y, **sample)
    return X, y


def search(X, y):
    """Return a row for each setting: the criteria, higher is better."""
    encoder = ContrastiveEncoder(
        regularizer=RelaxedKMeansRegularizer(N_CLUSTERS),
        max_iter=MAX_ITER,
        random_state=0,
    )
    head = LogisticRegression(class_weight="balanced", max_iter=2000)
    model = make_pipeline(encoder, StandardScaler(), head)
    grid = {f"contrastiveencoder__{name}": values for name, values in GRID.items()}
    found = GridSearchCV(model, grid, scoring=CRITERIA, cv=FOLDS, refit=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Scored by the bound")
        found.fit(X, y)
    results = found.cv_results_
    columns = {name: results[f"param_contrastiveencoder__{name}"] for name in GRID}
    columns |= {name: results[f"mean_test_{name}"] for name in CRITERIA}
    columns["between folds"] = results["std_test_balanced accuracy"]
    return pd.DataFrame(columns)


def rank_correlation(results, criterion):
    """Return how far a criterion orders settings as balanced accuracy does."""
    return results[criterion].corr(results["balanced accuracy"], method="spearman")


def within_temperatures(results, criterion):
    """Return the mean of the rank correlations of the settings of one temperature."""
    of_temperatures = results.groupby("temperature")
    return np.mean([rank_correlation(part, criterion) for _, part in of_temperatures])


def describe(name, y, results):
    """Print what each criterion chooses."""
    accuracy = results["balanced accuracy"]
    print(f"\n{name}: {len(y)} rows, {(1 - y).sum() / y.sum():.0f}:1")
    print(
        f"{'':17}chooses temperature, weight  of balanced accuracy  rank correlation "
        "with it: all, within temperatures"
    )
    for criterion in CRITERIA:
        chosen = results.loc[results[criterion].idxmax()]
        print(
            f"{criterion:17}{chosen['temperature']:19}{chosen['regularizer_weight']:8}"
            f"{chosen['balanced accuracy']:22.3f}"
            f"{rank_correlation(results, criterion):33.2f}"
            f"{within_temperatures(results, criterion):21.2f}"
        )
    print(
        f"all settings: {accuracy.min():.3f} to {accuracy.max():.3f}, median "
        f"{accuracy.median():.3f}; deviation between folds "
        f"{results['between folds'].median():.3f}"
    )
    priors = np.bincount(y) / len(y)
    least = [f"{optimal_geometry(priors, t).value:.3f}" for t in GRID["temperature"]]
    print(f"least incurred loss of any encoder, by temperature: {', '.join(least)}")


def draw(axes, name, results):
    """Draw balanced accuracy over the other criteria, and circle what they choose."""
    for ax, criterion in zip(axes, ("bound", "incurred loss"), strict=True):
        for color, weight in zip(COLORS, GRID["regularizer_weight"], strict=True):
            for marker, t in zip(MARKERS, GRID["temperature"], strict=True):
                here = (results["temperature"] == t) & (
                    results["regularizer_weight"] == weight
                )
                point = results.loc[here, [criterion, "balanced accuracy"]].to_numpy()
                ax.plot(*(point.T * [[-1], [1]]), marker, color=color)
        chosen = results.loc[results[criterion].idxmax()]
        ax.plot(
            -chosen[criterion], chosen["balanced accuracy"], "o", ms=15, mfc="none",
            mec="0.4",
        )  # fmt: skip
        ax.set(
            title=f"{name}, by the {criterion}", xlabel=f"{criterion}, lower is better"
        )
        ax.invert_xaxis()
    axes[0].set_ylabel("balanced accuracy")


def main():
    figure, axes = plt.subplots(
        len(TABLES), 2, figsize=(9, 7), sharey="row", layout="constrained"
    )
    for name, row in zip(TABLES, axes, strict=True):
        X, y = load_table(name)
        results = search(X, y)
        describe(name, y, results)
        draw(row, name, results)
    handles = [
        plt.Line2D([], [], ls="", marker="D", color=color, label=f"weight {weight}")
        for color, weight in zip(COLORS, GRID["regularizer_weight"], strict=True)
    ] + [
        plt.Line2D([], [], ls="", marker=marker, color="0.5", label=f"temperature {t}")
        for marker, t in zip(MARKERS, GRID["temperature"], strict=True)
    ]
    figure.legend(handles=handles, ncols=4, loc="outside lower center", frameon=False)
    figure.savefig(PICTURE, dpi=120)
    print(MISLEADING)


if __name__ == "__main__":
    main()
