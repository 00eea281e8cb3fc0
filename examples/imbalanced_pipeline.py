"""Class-weighted classifiers on real imbalanced tables, with and without an encoder.

Prints what it measures, good or bad, and draws examples/imbalanced_pipeline.png.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    cross_validate,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer
from skcl.datasets import load_keel

MAX_ITER = 20
# What docs/results.md recommends where all rows have labels.
WITH_LABELS = {
    "loss": "supcon",
    "class_weight": "balanced",
    "corruption_rate": 0.4,
    "projection_dim": 8,
    "output": "projection",
    "passthrough": True,
    "max_iter": 40,
    "random_state": 0,
}
FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)
METRICS = ("balanced_accuracy", "average_precision")
PICTURE = Path(__file__).with_suffix(".png")
COLORS = ("#0072B2", "#D55E00")  # told apart by color-blind readers


def load_table(name):
    """Return a KEEL table; of page-blocks0 a stratified sample of 1,500 rows."""
    X, y = load_keel(name)
    if name == "page-blocks0":
        X, _, y, _ = train_test_split(X, y, train_size=1500, stratify=y, random_state=0)
    return X, y


def make_model(*steps):
    """Put the treatment of string columns, the same for all, before the steps."""
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    strings = make_column_selector(dtype_exclude="number")
    columns = make_column_transformer(
        (one_hot, strings), remainder="passthrough", verbose_feature_names_out=False
    )
    return make_pipeline(columns, *steps)


def make_encoder(relaxation=None, **params):
    """Return an encoder, with a regularizer if a relaxation is named."""
    if relaxation is not None:
        params["regularizer"] = RelaxedKMeansRegularizer(10, relaxation=relaxation)
    return ContrastiveEncoder(max_iter=MAX_ITER, random_state=0, **params)


def linear_model(*steps):
    """Return a class-weighted logistic regression behind the steps."""
    return make_model(*steps, StandardScaler(), make_head())


def make_head():
    """Return the class-weighted logistic regression."""
    return LogisticRegression(class_weight="balanced", max_iter=2000)


CONTENDERS = {
    "raw + logistic regression": linear_model(),
    "encoder with labels, raw beside": make_model(
        ContrastiveEncoder(**WITH_LABELS), make_head()
    ),
    "encoder without labels": linear_model(make_encoder()),
    "  with spectral regularizer": linear_model(make_encoder("spectral")),
    "  with entropic regularizer": linear_model(make_encoder("entropic")),
    "gradient boosting": make_model(
        HistGradientBoostingClassifier(class_weight="balanced", random_state=0)
    ),
}


def compare(name):
    """Cross-validate all contenders on a table; return their balanced accuracy."""
    X, y = load_table(name)
    ratio = (1 - y).sum() / y.sum()
    print(f"\n{name}: {len(y)} rows, {y.sum()} positive ({ratio:.0f}:1)")
    print(f"{'':32}{'balanced accuracy':>20}{'average precision':>20}")
    means = {}
    for label, model in CONTENDERS.items():
        result = cross_validate(model, X, y, cv=FOLDS, scoring=METRICS, n_jobs=2)
        scores = [result[f"test_{metric}"] for metric in METRICS]
        cells = [f"{score.mean():.3f} ± {score.std():.3f}" for score in scores]
        print(f"{label:32}" + "".join(f"{cell:>20}" for cell in cells))
        means[label] = scores[0].mean()
    return means


def choose(X, y):
    """Choose weight and temperature, by labels and by the incurred loss."""
    grid = {
        "contrastiveencoder__regularizer_weight": [0, 0.3, 1, 3],
        "contrastiveencoder__temperature": [0.2, 0.5, 1],
    }
    scoring = {
        "balanced accuracy": "balanced_accuracy",
        "minus incurred loss": DiscrepancyScorer(term="incurred_loss"),
        "minus discrepancy": DiscrepancyScorer(term="discrepancy"),
    }
    search = GridSearchCV(
        linear_model(make_encoder("entropic")),
        grid,
        scoring=scoring,
        refit="balanced accuracy",
        cv=FOLDS,
        n_jobs=2,
    ).fit(X, y)
    results = pd.DataFrame(search.cv_results_)
    table = results[[f"param_{name}" for name in grid]].copy()
    table.columns = ["weight", "temperature"]
    for metric in scoring:
        table[metric] = results[f"mean_test_{metric}"].round(3)
    print(table.to_string(index=False))
    for metric in scoring:
        best = table.loc[table[metric].idxmax()]
        print(
            f"best {metric}: weight {best['weight']:g}, temperature "
            f"{best['temperature']:g}, "
            f"balanced accuracy {best['balanced accuracy']:.3f}"
        )
    print("(The discrepancy alone is best for an embedding that has collapsed.)")


def before_and_after(X, y):
    """Measure the discrepancy of held-out rows without and with the regularizer."""
    X_fit, X_test, y_fit, y_test = train_test_split(
        X, y, test_size=0.3, stratify=y, random_state=0
    )
    terms = ("discrepancy", "relative_discrepancy", "incurred_loss")
    models, measured = {}, {}
    for weight in (0, 1):
        label = f"weight {weight}"
        encoder = make_encoder("entropic", regularizer_weight=weight)
        models[label] = model = linear_model(encoder).fit(X_fit, y_fit)
        measured[label] = {
            term: -DiscrepancyScorer(term=term)(model, X_test, y_test) for term in terms
        }
    print(pd.DataFrame(measured).T.round(3).to_string())
    draw(models, X_test, y_test)


def draw(models, X, y):
    """Draw the loss parts over epochs, and the embeddings in two dimensions."""
    figure = plt.figure(figsize=(14, 4.2), layout="constrained")
    curves, *maps = figure.subplots(1, 3)
    for (label, model), style in zip(models.items(), ("--", "-"), strict=True):
        encoder = model["contrastiveencoder"]
        epochs = range(1, encoder.n_iter_ + 1)
        for part, color in (("contrastive", "black"), ("regularizer", "#009E73")):
            name = "contrastive loss" if part == "contrastive" else "penalty"
            curves.plot(
                epochs,
                encoder.history_[part],
                style,
                color=color,
                label=f"{name}, {label}",
            )
    curves.axvspan(0.4 * MAX_ITER, 0.6 * MAX_ITER, color="0.9", label="weight rises")
    curves.set(xlabel="epoch", ylabel="loss part, before its weight", title="Training")
    curves.xaxis.set_major_locator(MaxNLocator(integer=True))
    curves.legend(fontsize="small")
    for ax, (label, model) in zip(maps, models.items(), strict=True):
        points = PCA(2).fit_transform(model[:-2].transform(X))
        points *= np.sign(points[y == 1].mean(axis=0))  # the rare class top right
        for k, name in enumerate(("common class", "rare class")):
            ax.scatter(
                *points[y == k].T,
                s=16 + 24 * k,
                color=COLORS[k],
                marker="os"[k],
                alpha=0.8,
                edgecolors="white",
                linewidths=0.4,
                label=name,
            )
        ax.set(
            xlabel="first principal component",
            ylabel="second principal component",
            title=f"Embedding of held-out rows, {label}",
        )
        ax.legend()
    figure.savefig(PICTURE, dpi=120)
    print(f"\nPicture: examples/{PICTURE.name}")


def main():
    """Run the comparison, the search, and the measurement."""
    print("Logistic regression unless said otherwise, class-weighted.")
    print("Stratified 3-fold cross-validation; mean ± std")
    names = ("ecoli3", "yeast4", "abalone19", "page-blocks0")
    tables = [compare(name) for name in names]
    print("\nmean of the tables, balanced accuracy")
    print(pd.DataFrame(tables).mean().round(3).to_string())
    X, y = load_table("ecoli3")
    print("\nGridSearchCV on ecoli3, entropic regularizer, mean of the folds")
    choose(X, y)
    print("\nHeld-out rows of ecoli3 with the regularizer's weight at 0 and at 1")
    before_and_after(X, y)


if __name__ == "__main__":
    main()
