"""Long runs: stopped at any moment, they go on; what was learned is not lost."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skcl
from skcl import RelaxedKMeansRegularizer
from skcl._checkpoint import Checkpoint
from skcl._training import Trainer

PARAMS = [
    {},
    {"loss": "supcon", "regularizer": RelaxedKMeansRegularizer(4)},
    {"early_stopping": True, "n_iter_no_change": 30, "tol": 0.0},
    {"early_stopping": True, "n_iter_no_change": 8, "tol": 9.0, "max_iter": 50},
    {
        "sampling": "balanced",
        "regularizer": RelaxedKMeansRegularizer(3, relaxation="spectral"),
    },
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.skcl"


class Stopped(BaseException):
    """As KeyboardInterrupt, no Exception."""


def stop_after(n_steps, monkeypatch, error=Stopped):
    """Let a step of training raise an error after so many."""
    step, taken = Trainer._step, []

    def counted(self, *args):
        if len(taken) == n_steps:
            raise error
        taken.append(1)
        return step(self, *args)

    monkeypatch.setattr(Trainer, "_step", counted)


def same(a, b, X):
    assert a.history_ == b.history_
    assert a.validation_scores_ == b.validation_scores_
    assert_array_equal(a.transform(X), b.transform(X))
    assert_array_equal(a.embed_views(X), b.embed_views(X))


# A run that was stopped goes on.


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("n_steps", [0, 1, 7, 9, 17])
def test_a_stopped_run_ends_as_if_it_had_not_been(
    n_steps, params, rows, make_encoder, path, monkeypatch
):
    y = np.arange(len(rows)) % 3
    params = {"max_iter": 10, "checkpoint_every": 3} | params
    expected = make_encoder(**params).fit(rows, y)
    with monkeypatch.context() as patch:
        stop_after(n_steps, patch)
        with pytest.raises(Stopped):
            make_encoder(checkpoint=path, **params).fit(rows, y)
    assert path.exists()
    again = make_encoder(checkpoint=path, **params).fit(rows, y)
    same(again, expected, rows)
    assert not again.interrupted_
    assert not path.exists()


def test_a_run_may_be_stopped_again_and_again(rows, make_encoder, path, monkeypatch):
    params = {"max_iter": 12, "checkpoint_every": 2}
    expected = make_encoder(**params).fit(rows)
    for n_steps in (5, 4, 4, 3):
        with monkeypatch.context() as patch:
            stop_after(n_steps, patch)
            with pytest.raises(Stopped):
                make_encoder(checkpoint=path, **params).fit(rows)
    same(make_encoder(checkpoint=path, **params).fit(rows), expected, rows)


def test_a_checkpoint_of_a_run_that_is_done_gives_the_same(
    rows, make_encoder, path, monkeypatch
):
    """Killed between the last epoch and the removal of the file."""
    for params in ({}, {"early_stopping": True, "n_iter_no_change": 1, "tol": 5.0}):
        expected = make_encoder(**params).fit(rows)
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "remove", lambda self: None)
            make_encoder(checkpoint=path, checkpoint_every=1, **params).fit(rows)
        assert path.exists()
        again = make_encoder(checkpoint=path, checkpoint_every=1, **params).fit(rows)
        same(again, expected, rows)


def test_without_a_seed_a_run_goes_on_with_its_own(
    rows, make_encoder, path, monkeypatch
):
    params = {"random_state": None, "checkpoint": path, "checkpoint_every": 2}
    with monkeypatch.context() as patch:
        stop_after(9, patch)
        with pytest.raises(Stopped):
            make_encoder(**params).fit(rows)
    saved = skcl.load(path)
    assert saved.n_iter_ == 4
    again = make_encoder(**params).fit(rows)
    assert again.n_iter_ == 5
    assert again.history_["contrastive"][:4] == saved.history_["contrastive"]


FIT = """
import sys, numpy as np, torch
from skcl import ContrastiveEncoder, RelaxedKMeansRegularizer
path, out = sys.argv[1:]
rng = np.random.RandomState(0)
X, y = rng.normal(size=(600, 5)), rng.randint(3, size=600)
encoder = ContrastiveEncoder(
    8, hidden_layer_sizes=(32,), loss="supcon", max_iter=60, batch_size=64,
    regularizer=RelaxedKMeansRegularizer(4), random_state=0, early_stopping=True,
    n_iter_no_change=60, checkpoint=path or None, checkpoint_every=1,
).fit(X, y)
np.save(out, encoder.transform(X))
"""


def test_a_killed_process_ends_with_the_bits_of_one_that_was_not(tmp_path):
    path, out = tmp_path / "fit.skcl", tmp_path / "killed.npy"
    script = [sys.executable, "-c", FIT]
    subprocess.run([*script, "", str(tmp_path / "whole.npy")], check=True)
    rng = np.random.RandomState(0)
    for _ in range(4):
        before = path.stat().st_mtime_ns if path.exists() else None
        process = subprocess.Popen([*script, str(path), str(out)])
        while process.poll() is None and (
            not path.exists() or path.stat().st_mtime_ns == before
        ):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    subprocess.run([*script, str(path), str(out)], check=True)
    assert_array_equal(np.load(out), np.load(tmp_path / "whole.npy"))
    # Also what a kill in the middle of a write has left is gone.
    assert sorted(tmp_path.iterdir()) == [out, tmp_path / "whole.npy"]


# A checkpoint of another fit is refused.


@pytest.fixture
def begun(rows, make_encoder, path, monkeypatch):
    """The parameters of a fit that was stopped."""
    params = {"checkpoint": path, "checkpoint_every": 1}
    params["regularizer"] = RelaxedKMeansRegularizer(3)
    with monkeypatch.context() as patch:
        stop_after(5, patch)
        with pytest.raises(Stopped):
            make_encoder(**params).fit(rows)
    return params


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"temperature": 0.3}, "temperature=0.2, and here it is 0.3"),
        ({"max_iter": 9}, "max_iter=5, and here it is 9"),
        ({"random_state": 1}, "random_state=0, and here it is 1"),
        ({"random_state": None}, "random_state=0, and here it is None"),
        ({"regularizer": None}, "regularizer"),
        ({"regularizer": RelaxedKMeansRegularizer(2)}, "regularizer__n_clusters=3"),
    ],
    ids=str,
)
def test_other_parameters_are_refused_by_name(
    change, shown, begun, rows, make_encoder, path
):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"fit.skcl is of a fit with {shown}"):
        make_encoder(**(begun | change)).fit(rows)
    assert path.read_bytes() == before


def test_what_does_not_matter_may_change(begun, rows, make_encoder):
    free = {"checkpoint_every": 4, "device": "cpu"}
    assert make_encoder(**(begun | free)).fit(rows).n_iter_ == 5


@pytest.mark.parametrize("other", ["value", "order", "weight", "fewer"])
def test_other_data_are_refused(other, begun, rows, make_encoder):
    X, weight = rows.copy(), None
    if other == "value":
        X[3, 1] += 1e-9
    elif other == "order":
        X = X[::-1]
    elif other == "weight":
        weight = np.arange(1, len(X) + 1)
    else:
        X = X[:-1]
    with pytest.raises(ValueError, match="other rows, labels or weights"):
        make_encoder(**begun).fit(X, sample_weight=weight)


def test_another_file_is_refused_and_left_as_it_is(rows, make_encoder, path):
    path.write_text("notes")
    with pytest.raises(ValueError, match=r"not a file of skcl\.save"):
        make_encoder(checkpoint=path).fit(rows)
    assert path.read_text() == "notes"
    skcl.save(make_encoder().fit(rows), path)
    with pytest.raises(ValueError, match="holds a model"):
        make_encoder(checkpoint=path).fit(rows)
    assert path.exists()


def test_other_names_are_other_data(make_encoder, path, monkeypatch):
    """Of columns that are numbers in one place and categories in another."""
    X = pd.DataFrame({"a": np.arange(60.0), "b": list("xyz") * 20})
    params = {"checkpoint": path, "checkpoint_every": 1}
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Stopped):
            make_encoder(**params).fit(X)
    for other in (X[["b", "a"]], X.set_axis(["a", "c"], axis=1)):
        with pytest.raises(ValueError, match="other rows, labels or weights"):
            make_encoder(**params).fit(other)
    assert make_encoder(**params).fit(X.copy()).n_iter_ == 5


def test_the_container_does_not_matter(begun, rows, make_encoder):
    same_rows = np.asfortranarray(rows)
    assert make_encoder(**begun).fit(same_rows).n_iter_ == 5


def test_the_seed_of_a_generator_is_compared(rows, make_encoder, path, monkeypatch):
    def encoder(seed):
        return make_encoder(
            random_state=np.random.RandomState(seed),
            regularizer=RelaxedKMeansRegularizer(
                2, random_state=np.random.RandomState(seed)
            ),
            checkpoint=path,
            checkpoint_every=1,
        )

    with monkeypatch.context() as patch:
        stop_after(5, patch)
        with pytest.raises(Stopped):
            encoder(1).fit(rows)
    with pytest.raises(ValueError, match="random_state=RandomState of state"):
        encoder(2).fit(rows)
    whole = encoder(1).set_params(checkpoint=None).fit(rows)
    same(encoder(1).fit(rows), whole, rows)


def test_a_resumed_run_that_is_stopped_at_once_keeps_its_epochs(
    begun, rows, make_encoder, monkeypatch
):
    encoder = make_encoder(**begun)
    stop_after(0, monkeypatch, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        encoder.fit(rows)
    assert encoder.interrupted_
    assert encoder.n_iter_ == 2


def test_a_resumed_run_that_cannot_be_saved_is_refused_before_training(
    begun, rows, make_encoder, monkeypatch
):
    def full(*args):
        raise OSError(28, "No space left on device")

    stop_after(0, monkeypatch)
    monkeypatch.setattr("skcl._persistence.os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        make_encoder(**begun).fit(rows)


def test_only_its_own_parts_are_removed(rows, make_encoder, path):
    others = [".fit.skcl.local", ".fit.skclx." + 32 * "0" + ".part", ".fit.skcl.part"]
    for name in others:
        (path.parent / name).write_text("mine")
    (path.parent / (".fit.skcl." + 32 * "0" + ".part")).write_text("half")
    make_encoder(checkpoint=path).fit(rows)
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(others)


def test_a_checkpoint_that_is_trained_further_stops_by_its_new_rows(
    rows, make_encoder, path, monkeypatch
):
    params = {"early_stopping": True, "n_iter_no_change": 50, "max_iter": 8}
    with monkeypatch.context() as patch:
        stop_after(9, patch)
        with pytest.raises(Stopped):
            make_encoder(checkpoint=path, checkpoint_every=1, **params).fit(rows)
    loaded = skcl.load(path)
    assert loaded._progress_.best is not None
    stale = loaded._progress_.best
    stale.score = 1e9  # as of easier rows
    loaded.set_params(checkpoint=None, warm_start=True, tol=0.0, max_iter=60)
    learned = loaded.fit(rows).module_.state_dict()
    assert any((learned[name].numpy() != w).any() for name, w in stale.weights.items())


@pytest.mark.parametrize("method", ["partial_fit", "warm_start"])
def test_a_checkpoint_is_of_one_fit(method, rows, make_encoder, path):
    encoder = make_encoder(checkpoint=path, warm_start=method == "warm_start")
    with pytest.raises(ValueError, match="checkpoint"):
        getattr(encoder, method if method == "partial_fit" else "fit")(rows)


def test_what_cannot_be_saved_is_refused_before_training(
    rows, make_encoder, path, monkeypatch
):
    stop_after(0, monkeypatch)
    with pytest.raises(ValueError, match=r"augmentation=.*<lambda>"):
        make_encoder(checkpoint=path, augmentation=lambda x, g: x + 1).fit(rows)
    with pytest.raises(OSError, match="nowhere"):
        make_encoder(checkpoint=path.parent / "nowhere" / "fit.skcl").fit(rows)


def test_a_disk_that_becomes_full_leaves_the_last_checkpoint(
    rows, make_encoder, path, monkeypatch
):
    params = {"checkpoint": path, "checkpoint_every": 2}
    replace, calls = os.replace, []

    def full(*args):
        calls.append(args)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        replace(*args)

    encoder = make_encoder(**params)
    with monkeypatch.context() as patch:
        patch.setattr("skcl._persistence.os.replace", full)
        with pytest.raises(OSError, match="No space left"):
            encoder.fit(rows)
    assert encoder.interrupted_
    assert encoder.n_iter_ == 4
    assert skcl.load(path).n_iter_ == 2
    expected = make_encoder().fit(rows)
    same(make_encoder(**params).fit(rows), expected, rows)


# What was learned is kept, and what is kept is good.


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stopped, RuntimeError])
def test_an_interrupt_keeps_the_whole_epochs(error, rows, make_encoder, monkeypatch):
    expected = make_encoder(max_iter=5).partial_fit(rows).partial_fit(rows)
    encoder = make_encoder(max_iter=5)
    with monkeypatch.context() as patch:
        stop_after(5, patch, error)  # in the third epoch, of two steps each
        with pytest.raises(error):
            encoder.fit(rows)
    assert encoder.interrupted_
    assert encoder.n_iter_ == 2
    same(encoder, expected, rows)
    encoder.set_params(warm_start=True, max_iter=3).fit(rows)
    assert not encoder.interrupted_
    assert encoder.n_iter_ == 5


def test_an_interrupt_in_the_first_epoch_leaves_nothing(
    rows, make_encoder, monkeypatch
):
    stop_after(1, monkeypatch, KeyboardInterrupt)
    encoder = make_encoder()
    with pytest.raises(KeyboardInterrupt):
        encoder.fit(rows)
    with pytest.raises(NotFittedError):
        encoder.transform(rows)
    assert not hasattr(encoder, "interrupted_")


def test_an_interrupt_gives_the_best_weights_back(rows, make_encoder, monkeypatch):
    params = {"early_stopping": True, "n_iter_no_change": 50, "max_iter": 12}
    encoder = make_encoder(**params)
    with monkeypatch.context() as patch:
        stop_after(15, patch, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            encoder.fit(rows)
    assert len(encoder.validation_scores_) == encoder.n_iter_ == 7
    after = []
    make_encoder(**params)._fit_watched(
        rows, None, lambda each: after.append(each.transform(rows))
    )
    best = after[int(np.argmax(encoder.validation_scores_))]
    assert_array_equal(encoder.transform(rows), best)


@pytest.mark.parametrize(
    ("error", "n_steps"), [(KeyboardInterrupt, 1), (ValueError, 1), (ValueError, 5)]
)
def test_a_warm_start_that_fails_keeps_the_model_before(
    error, n_steps, rows, make_encoder, monkeypatch
):
    encoder = make_encoder(warm_start=True).fit(rows)
    before = encoder.transform(rows)
    with monkeypatch.context() as patch:
        stop_after(n_steps, patch, error)
        with pytest.raises(error):
            encoder.fit(rows)
    assert_array_equal(encoder.transform(rows), before)
    assert encoder.n_iter_ == 5
    assert not encoder.interrupted_


def test_an_interrupted_warm_start_keeps_its_whole_epochs(
    rows, make_encoder, monkeypatch
):
    expected = make_encoder(warm_start=True).fit(rows).set_params(max_iter=2)
    encoder = make_encoder(warm_start=True).fit(rows)
    with monkeypatch.context() as patch:
        stop_after(5, patch, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            encoder.fit(rows)
    assert encoder.interrupted_
    same(encoder, expected.fit(rows), rows)


def test_an_interrupt_stops_a_search(rows, make_encoder, monkeypatch):
    stop_after(30, monkeypatch, KeyboardInterrupt)
    model = make_pipeline(StandardScaler(), make_encoder())
    grid = {"contrastiveencoder__temperature": [0.2, 0.5]}
    with pytest.raises(KeyboardInterrupt):
        GridSearchCV(model, grid, cv=3).fit(rows)


@pytest.mark.parametrize("part", ["loss", "penalty", "weights"])
def test_divergence_keeps_the_last_finite_weights(
    part, rows, make_encoder, monkeypatch
):
    step, taken = Trainer._step, []

    def diverging(self, *args):
        taken.append(1)
        parts = step(self, *args)
        if len(taken) == 6:  # the second of the third epoch
            if part == "weights":
                with torch.no_grad():
                    next(self.network.parameters()).fill_(torch.inf)
            else:
                parts[int(part == "penalty")] = torch.nan
        return parts

    named = {
        "loss": "contrastive loss became nan in epoch 3, batch 2",
        "penalty": "regularizer became nan in epoch 3, batch 2",
        "weights": "weights .* are not finite after epoch 3",
    }
    monkeypatch.setattr(Trainer, "_step", diverging)
    encoder = make_encoder()
    with pytest.raises(ValueError, match=rf"{named[part]}\. .*lower learning_rate"):
        encoder.fit(rows)
    monkeypatch.undo()
    assert encoder.interrupted_
    assert encoder.n_iter_ == 2
    expected = make_encoder().partial_fit(rows).partial_fit(rows)
    same(encoder, expected, rows)


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_short_memory_says_what_to_lower(error, rows, make_encoder, monkeypatch):
    stop_after(3, monkeypatch, error)
    encoder = make_encoder()
    with pytest.raises(MemoryError, match=r"on cpu .*lower batch_size, n_views") as e:
        encoder.fit(rows)
    assert str(error) in str(e.value)
    assert encoder.n_iter_ == 1


def test_points_that_overflow_are_divergence(rows, make_encoder, monkeypatch):
    """Of finite weights, before the regularizer meets them."""
    step = Trainer._step

    def growing(self, *args):
        parts = step(self, *args)
        with torch.no_grad():
            self.network.head[-1].weight.fill_(3e38)
        return parts

    monkeypatch.setattr(Trainer, "_step", growing)
    encoder = make_encoder(regularizer=RelaxedKMeansRegularizer(3), batch_size=120)
    with pytest.raises(ValueError, match=r"NaN before epoch 2\. .*lower learning_rate"):
        encoder.fit(rows)
