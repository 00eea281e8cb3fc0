"""One model in many threads, and fits side by side, in threads and processes."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer


def in_threads(function, arguments, n_threads=8):
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(function, arguments))


def test_one_model_serves_many_threads(make_encoder):
    X = np.random.RandomState(0).normal(size=(3000, 4))
    encoder = make_encoder(passthrough=True).fit(X)
    parts = [X[i::8] for i in range(8)]
    for method in (encoder.transform, encoder.embed_views, encoder.score):
        serial = [method(part) for part in parts]
        for _ in range(5):
            for one, other in zip(in_threads(method, parts), serial, strict=True):
                assert_array_equal(one, other)


def test_one_scorer_and_one_clustering_serve_many_threads(rows, make_encoder):
    scorer = DiscrepancyScorer(make_encoder(), n_clusters=3, random_state=0).fit(rows)
    clustering = RelaxedKMeansRegularizer(3, random_state=0).fit(rows)
    for method in (scorer.score, scorer.transform, clustering.predict_proba):
        serial = method(rows)
        for result in in_threads(method, [rows] * 16):
            assert_array_equal(result, serial)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_fits_in_processes_are_those_of_the_parent(method, rows, make_encoder):
    encoder = make_encoder(regularizer=RelaxedKMeansRegularizer(3))
    expected = encoder.fit_transform(rows)  # before, so that a fork copies its state
    with multiprocessing.get_context(method).Pool(2) as pool:
        fits = [pool.apply_async(encoder.fit_transform, (rows,)) for _ in range(3)]
        sent = pool.apply_async(encoder.transform, (rows,))
        for result in (*fits, sent):
            assert_array_equal(result.get(timeout=120), expected)


FORK = """
import multiprocessing
import sys
import numpy as np
import torch
from skcl import ContrastiveEncoder

torch.set_num_threads(2)

def fit(n_threads):
    torch.set_num_threads(n_threads)
    X = np.random.RandomState(0).normal(size=(2000, 8))
    return ContrastiveEncoder(max_iter=1, random_state=0).fit_transform(X)

before = fit(2) if sys.argv[1] == "after" else None
with multiprocessing.get_context("fork").Pool(1) as pool:
    one, two = (pool.apply_async(fit, (n,)) for n in (1, 2))
    if before is not None:
        assert np.array_equal(one.get(timeout=60), before)
        try:
            two.get(timeout=60)
        except RuntimeError as error:
            assert "forked" in str(error)
        else:
            raise AssertionError
    else:
        assert np.array_equal(one.get(timeout=60), two.get(timeout=60))
"""


@pytest.mark.parametrize("fit", ["before", "after"])
def test_a_fork_is_an_error_where_it_would_hang(fit):
    """GNU's OpenMP, which torch has, cannot start threads in a fork of a process that
    had some."""
    command = [sys.executable, "-W", "ignore", "-c", FORK, fit]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    subprocess.run(command, env=environment, check=True, timeout=120)


def test_a_model_is_read_while_others_are_fitted(rows, make_encoder):
    encoder = make_encoder().fit(rows)
    expected = encoder.transform(rows)

    def work(i):
        if i % 2:
            return ContrastiveEncoder(4, max_iter=2, random_state=i).fit_transform(rows)
        return encoder.transform(rows)

    first, again = in_threads(work, range(12)), in_threads(work, range(12))
    for i, (one, other) in enumerate(zip(first, again, strict=True)):
        assert_array_equal(one, other)
        if i % 2 == 0:
            assert_array_equal(one, expected)
