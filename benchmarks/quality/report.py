"""The results as a page: text by hand, and between two marks the figures."""

import numpy as np

from benchmarks.quality.comparisons import (
    bootstrap_interval,
    corrected_interval,
    mean_ranks,
    rank_correlation,
    signed_rank_p,
)
from benchmarks.quality.contenders import CONTENDERS, describe, fingerprint
from benchmarks.quality.tables import TABLES

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
TITLES = {"few": "Few labels", "all": "All labels"}
FITTING = (
    "An encoder is fitted once on the training rows, unlabelled ones too unless said "
    "otherwise, and is then frozen. The head is fitted on the embedding of the "
    "labelled rows, its parameter chosen there by 3-fold cross-validation of balanced "
    "accuracy, from four values for each contender. LR is logistic regression."
)
STRATUM = ["table", "imbalance"]
REFERENCES = ("raw", "ours")
REGULARIZED = ("ours-spectral", "ours-entropic")
DISCREPANCIES = {
    "squared_discrepancy": "labelled rows, squared",
    "relative_discrepancy": "labelled rows, relative",
    "test_squared_discrepancy": "test rows, squared",
    "test_relative_discrepancy": "test rows, relative",
}


def write_page(path, figures):
    """Put the figures between the marks of the page, at its end if it has none."""
    page = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    above, _, rest = page.partition(BEGIN)
    below = rest.partition(END)[2].strip()
    parts = [above.strip(), BEGIN, figures.strip(), END, below]
    text = "\n\n".join(part for part in parts if part) + "\n"
    path.write_text(text, encoding="utf-8")


def make_report(results):
    """Return all figures as markdown."""
    results = current_rows(results)
    sections = []
    for protocol, stages in TABLES.items():
        for stage, tables in stages.items():
            of_stage = results["table"].isin(tables)
            rows = results[(results["protocol"] == protocol) & of_stage]
            if len(rows):
                sections.append(make_section(protocol, stage, rows))
    return "\n\n".join([*sections, list_settings(results)])


def current_rows(results):
    """Return the rows that were measured with the current settings."""
    current = {
        (protocol, name): fingerprint(name, protocol)
        for protocol in TABLES
        for name in CONTENDERS
    }
    keys = zip(results["protocol"], results["contender"], strict=True)
    return results[results["settings"] == [current.get(key, "") for key in keys]]


def make_section(protocol, stage, rows):
    """Return the tables of a protocol on its development or its final tables."""
    scores, incomplete = complete_scores(rows)
    parts = [
        f"## {TITLES[protocol]}, {stage} tables",
        f"{len(scores)} cells of each contender. {incomplete}".strip(),
        "Balanced accuracy in percent, by table; mean over the tables ± standard "
        "deviation over seeds or folds; mean rank over the tables:",
        accuracy_table(scores),
        "Paired differences of it in points, with the 95 % bootstrap interval over "
        "seeds or folds within tables, and the p-value of Wilcoxon's signed-rank test "
        "over the columns of the table above:",
        difference_table(scores),
        "The same with the heads' C = 1 instead of the search:",
        difference_table(complete_scores(rows, head="C=1")[0]),
        "Other metrics in percent, means over the tables; seconds, medians:",
        metrics_table(rows, list(scores)),
    ]
    if protocol == "all" and "raw" in scores:
        parts += [
            "As folds share training rows, the intervals above are too narrow. "
            "Differences to raw + LR by table in points, with the corrected resampled "
            "t interval at 95 % (Nadeau and Bengio):",
            interval_table(scores),
        ]
    parts += [
        "Rank correlation, over the tables, of the fall of the internal discrepancy "
        "by the regularizer with its gain in balanced accuracy:",
        correlation_table(rows, scores),
    ]
    return "\n\n".join(part for part in parts if part)


def complete_scores(rows, metric="balanced_accuracy", head="search"):
    """Return a metric, a row for each cell and a column for each contender.

    Contenders that lack cells are left out, and named in the text that comes second.
    """
    rows = rows[rows["head"] == head]
    scores = rows.pivot(
        index=[*STRATUM, "seed"], columns="contender", values=metric
    ).dropna(axis=1, how="all")
    cells = scores.count()
    lacking = [
        f"{name} ({cells[name]})" for name in scores if cells[name] < cells.max()
    ]
    names = [
        name for name in CONTENDERS if name in scores and cells[name] == cells.max()
    ]
    text = f"Incomplete and left out: {', '.join(lacking)}." if lacking else ""
    return scores[names].dropna(), text


def by_table(scores):
    """Return the means by table and imbalance, in the order of TABLES."""
    means = scores.groupby(STRATUM).mean()
    order = [name for p in TABLES.values() for names in p.values() for name in names]
    return means.sort_index(key=lambda keys: keys.map(lambda key: rank_in(order, key)))


def rank_in(order, key):
    return order.index(key) if key in order else key


def accuracy_table(scores):
    means = by_table(scores)
    by_seed = scores.groupby("seed").mean()
    header = ["", *map(title_of, means.index), "mean", "rank"]
    ranks = mean_ranks(means)
    rows = [
        [
            CONTENDERS[name].label,
            *map(percent, means[name]),
            with_spread(means[name].mean(), by_seed[name].std()),
            f"{rank:.1f}",
        ]
        for name, rank in zip(scores, ranks, strict=True)
    ]
    return to_markdown(header, rows)


def difference_table(scores):
    references = [name for name in REFERENCES if name in scores]
    header = ["", "mean"]
    for name in references:
        header += [f"− ({CONTENDERS[name].label})", "p"]
    rows = [
        [CONTENDERS[name].label, percent(by_table(scores)[name].mean())]
        + [cell for other in references for cell in compare(scores, name, other)]
        for name in scores
    ]
    return to_markdown(header, rows)


def compare(scores, name, reference):
    """Return the difference with its interval, and the p-value over tables."""
    if name == reference:
        return ["", ""]
    difference = scores[name] - scores[reference]
    # A seed draws nearly the same rows at each imbalance: one cell for the bootstrap.
    by_seed = difference.groupby(["table", "seed"]).mean()
    interval = bootstrap_interval([d.to_numpy() for _, d in by_seed.groupby("table")])
    means = difference.groupby(STRATUM).mean()
    return [with_interval(means.mean(), interval), number(signed_rank_p(means), 3)]


def metrics_table(rows, names):
    header = ["", "average precision", "G-mean", "minority recall"]
    header += ["seconds of fit", "of predict"]
    rows = rows[rows["head"] == "search"]
    lines = []
    for name in names:
        of_name = rows[rows["contender"] == name]
        metrics = ["average_precision", "g_mean", "minority_recall"]
        means = of_name.groupby(STRATUM)[metrics].mean().mean()
        seconds = of_name[["fit_seconds", "predict_seconds"]].median()
        lines.append(
            [CONTENDERS[name].label, *map(percent, means)]
            + [number(value, 2) for value in seconds]
        )
    return to_markdown(header, lines)


def interval_table(scores):
    names = [name for name in ("ours", *REGULARIZED) if name in scores]
    lines = []
    for key in by_table(scores).index:
        of_table = scores.loc[key]
        differences = [of_table[name] - of_table["raw"] for name in names]
        lines.append(
            [title_of(key)]
            + [with_interval(d.mean(), corrected_interval(d)) for d in differences]
        )
    return to_markdown(["", *(CONTENDERS[name].label for name in names)], lines)


def correlation_table(rows, scores):
    names = [name for name in REGULARIZED if {name, "ours"} <= set(scores)]
    lines = []
    for measure, label in DISCREPANCIES.items():
        values = by_table(complete_scores(rows, measure)[0])
        line = [label]
        for name in names:
            fall = values["ours"] - values[name]
            gain = (by_table(scores)[name] - by_table(scores)["ours"])[fall.index]
            line += [
                f"{values['ours'].mean():.3f} → {values[name].mean():.3f}",
                number(rank_correlation(fall, gain), 2),
            ]
        lines.append(line)
    header = [""]
    for name in names:
        header += [CONTENDERS[name].label, "correlation"]
    return to_markdown(header, lines) if names else ""


def list_settings(rows):
    """Return the versions and settings of the contenders that have rows."""
    lines = ["## Settings", "", FITTING, ""]
    for name, entry in CONTENDERS.items():
        of_name = rows[rows["contender"] == name]
        if of_name.empty:
            continue
        versions = of_name["version"].unique()
        text = " ".join(entry.make.__doc__.split())
        mixed = "MIXED: " if len(versions) > 1 else ""
        lines.append(f"- {entry.label}. {text} {mixed}{'; '.join(versions)}.")
        settings = {}
        for protocol in of_name["protocol"].unique():
            settings.setdefault(describe(name, protocol), []).append(TITLES[protocol])
        lines += [f"  {', '.join(to)}: `{text}`" for text, to in settings.items()]
    return "\n".join(lines)


def title_of(key):
    table, imbalance = key
    return f"{table} {imbalance}:1" if imbalance else table


def percent(value):
    return number(100 * value, 1)


def number(value, digits):
    return "" if np.isnan(value) else f"{value:.{digits}f}"


def with_spread(mean, spread):
    return percent(mean) + ("" if np.isnan(spread) else f" ± {percent(spread)}")


def with_interval(mean, interval):
    low, high = 100 * np.asarray(interval)
    return f"{100 * mean:+.1f}" + (
        "" if np.isnan(low) else f" [{low:+.1f}, {high:+.1f}]"
    )


def to_markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
