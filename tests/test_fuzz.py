"""Whatever is passed: finite results that keep the promises, or an error in time.

`pytest tests/test_fuzz.py` draws few examples, always the same ones; with the
environment variable SKCL_FUZZ=10000 so many, and others each time.
"""

import os
import pickle
import re
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from numpy.testing import assert_allclose, assert_array_equal
from parameters import INVALID, VALID
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import skcl
from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer
from skcl._training import REMEDY, Trainer

N_EXAMPLES = int(os.environ.get("SKCL_FUZZ", 0))

budget = settings(
    max_examples=N_EXAMPLES or 200,
    derandomize=not N_EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

SMALL = {
    "n_components": 3,
    "hidden_layer_sizes": (4,),
    "projection_dim": 3,
    "max_iter": 2,
    "batch_size": 8,
    "random_state": 0,
}

# What scikit-learn and pandas warn of in the input that is made here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Only .* of n_clusters"),
    pytest.mark.filterwarnings("ignore:Scored by the bound"),
    pytest.mark.filterwarnings("ignore:A column-vector y was passed"),
]

ordinary = st.floats(-1e3, 1e3, allow_subnormal=False)
extreme = st.sampled_from(
    [0.0, -0.0, 1e-300, -1e-40, 1e15, 1e20, -1e38, 1e300, 1.7e308, np.nan, np.inf]
)
words = st.sampled_from(["a", "b", "c", "", " ", "é", "nan", "-1", "0"])


TAME = ["ordinary"] * 3 + ["float32", "uint8", "bool", "category"]
WILD = [
    *TAME,
    *("extreme", "int", "constant", "missing", "Int64", "boolean", "numbered"),
    *("string", "words", "mixed", "time", "complex", "large"),
]


@st.composite
def columns(draw, n, kinds):
    """A column of n values, of one of the kinds."""

    def values(elements):
        return draw(st.lists(elements, min_size=n, max_size=n))

    kind = draw(st.sampled_from(kinds))
    match kind:
        case "ordinary":
            return pd.Series(values(ordinary), dtype=float)
        case "extreme":
            return pd.Series(values(ordinary | extreme), dtype=float)
        case "float32":
            return pd.Series(values(st.floats(-9, 9, width=32)), dtype=np.float32)
        case "int":
            return pd.Series(values(st.integers(-(2**62), 2**62)), dtype=np.int64)
        case "uint8":
            return pd.Series(values(st.integers(0, 3)), dtype=np.uint8)
        case "bool":
            return pd.Series(values(st.booleans()), dtype=bool)
        case "constant":
            return pd.Series([draw(ordinary)] * n, dtype=float)
        case "missing":
            return pd.Series([np.nan] * n, dtype=float)
        case "Int64":
            elements = st.integers(-5, 5) | st.just(pd.NA)
            return pd.Series(values(elements), dtype="Int64")
        case "boolean":
            return pd.Series(values(st.booleans() | st.just(pd.NA)), dtype="boolean")
        case "category":
            return pd.Series(pd.Categorical(values(words | st.none())))
        case "numbered":
            return pd.Series(pd.Categorical(values(st.integers(0, 3))))
        case "string":
            return pd.Series(values(words), dtype="string")
        case "words":
            return pd.Series(values(words | st.none()), dtype=object)
        case "mixed":
            return pd.Series(values(words | ordinary | st.none()), dtype=object)
        case "time":
            return pd.Series(pd.date_range("2026-01-01", periods=n))
        case "complex":
            return pd.Series(values(st.complex_numbers(max_magnitude=3)), dtype=complex)
        case "large":
            return pd.Series(1e9 + 1e-3 * np.array(values(ordinary)), dtype=float)


@st.composite
def tables(draw, tame=False):
    """A table in one of the containers that users have."""
    n, d = draw(st.integers(6 if tame else 0, 24)), draw(st.integers(tame, 4))
    kinds = TAME if tame else WILD
    frame = pd.DataFrame(
        {f"x{j}": draw(columns(n, kinds)) for j in range(d)}, index=range(n)
    )
    if tame:
        return frame
    container = draw(
        st.sampled_from(
            ["frame"] * 5
            + ["array", "fortran", "list", "polars", "sparse", "index", "unnamed"]
            + ["float32", "one", "three"]
        )
    )
    match container:
        case "array":
            return frame.to_numpy()
        case "fortran":
            return np.asfortranarray(frame.to_numpy())
        case "list":
            return frame.to_numpy().tolist()
        case "polars":
            try:
                return pl.from_pandas(frame)
            except Exception:  # of columns that polars has no type for
                assume(False)
        case "sparse":
            return scipy.sparse.random(n, max(d, 1), 0.5, "csr", random_state=0)
        case "index":
            return frame.set_axis([f"r{i // 2}" for i in range(n)])
        case "unnamed":
            return frame.set_axis(range(d), axis=1)
        case "float32":
            return np.random.RandomState(0).normal(size=(n, d)).astype(np.float32)
        case "one":
            return frame.to_numpy()[:, :1].ravel()
        case "three":
            return np.zeros((n, d, 2))
    return frame


@st.composite
def labels(draw, n, tame=False):
    """Labels of n rows, and of some more or fewer now and then."""
    if tame:
        elements = st.integers(draw(st.integers(-1, 0)), 2)
        return np.array(draw(st.lists(elements, min_size=n, max_size=n)))
    n = max(n + draw(st.sampled_from([0] * 20 + [-1, 1])), 0)
    elements = draw(
        st.sampled_from(
            [
                st.integers(0, 1),
                st.integers(-1, 2),
                st.sampled_from(["a", "b"]),
                st.sampled_from(["a", "b", -1]),
                st.booleans(),
                st.sampled_from([0.0, 1.0, -1.0]),
                st.sampled_from([0.5, 1.5]),
                st.sampled_from([0, 1, None]),
                st.sampled_from([0.0, 1.0, np.nan]),
                st.just(1),
                st.just(-1),
                st.sampled_from([-1, 1]),
                st.sampled_from(["a", 1]),
            ]
        )
    )
    y = draw(st.lists(elements, min_size=n, max_size=n))
    form = draw(st.sampled_from(["array", "list", "series", "object", "column", None]))
    match form:
        case "array":
            return np.array(y)
        case "list":
            return y
        case "series":
            return pd.Series(y, dtype=None if y else float)
        case "object":
            return np.array(y, dtype=object)
        case "column":
            return np.array(y)[:, None]
    return None


@st.composite
def weights(draw, n):
    elements = draw(
        st.sampled_from(
            [
                st.floats(0, 10),
                st.integers(0, 2),
                st.just(0),
                st.floats(-1, 1),
                st.sampled_from([1e-300, 1.0, 1e300]),
                st.sampled_from([1.0, np.nan]),
            ]
        )
    )
    return draw(st.none() | st.lists(elements, min_size=n, max_size=n))


@st.composite
def encoders(draw, invalid=True):
    names = draw(st.sets(st.sampled_from(sorted(VALID)), max_size=4))
    params = {name: draw(st.sampled_from(VALID[name])) for name in names}
    if invalid and draw(st.integers(0, 5)) == 0:
        name = draw(st.sampled_from(sorted(INVALID)))
        params[name] = draw(st.sampled_from(INVALID[name]))
    return ContrastiveEncoder(**(SMALL | params))


def choice(allowed, refused):
    """Mostly what is allowed."""
    return st.sampled_from(allowed * 10 + refused)


def n_rows(X):
    return X.shape[0] if hasattr(X, "shape") else len(X)


def take(X, rows):
    """Return a slice of the rows, in the same container."""
    return X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]


# What an error can be about: a parameter, a column, X, y, or what scikit-learn says of
# its input in words of its own.
SUBJECT = re.compile(
    rf"\b({'|'.join(VALID)}|sample_weight|n_clusters|relaxation|n_init|term)\b"
    r"|\bColumn\b|\bX\b|\by\b|\bclasses\b"
    r"|sample\(s\)|inconsistent numbers|2D array|dim \d|Sparse|[Cc]omplex|label type"
    r"|\bfeatures?\b|infinity|weights"
)


def check_error(error, started):
    """An error is about something, and comes before training unless it diverges."""
    message = str(error)
    assert SUBJECT.search(message), message
    assert not started or REMEDY in message or "network's output" in message, message


def fitted(estimator, *args, **kwargs):
    """Return whether fit succeeds; if not, check that it fails as it should."""
    started, fit = [], Trainer.fit

    def watched(self, *args, **kwargs):
        started.append(1)
        return fit(self, *args, **kwargs)

    before = {name: repr(value) for name, value in estimator.get_params().items()}
    Trainer.fit = watched
    try:
        estimator.fit(*args, **kwargs)
    except (ValueError, TypeError) as error:
        check_error(error, started)
        return False
    finally:
        Trainer.fit = fit
        after = {name: repr(value) for name, value in estimator.get_params().items()}
        assert after == before
    return True


def succeeds(function, *args, **kwargs):
    """Return the result of a method after fit, or None if it refuses its input."""
    try:
        return function(*args, **kwargs)
    except (ValueError, TypeError) as error:
        check_error(error, [])
        return None


@budget
@given(st.data())
def test_an_encoder(data):
    tame = data.draw(st.booleans())
    X, encoder = data.draw(tables(tame)), data.draw(encoders(not tame))
    y = data.draw(labels(n_rows(X), tame))
    weight = None if tame else data.draw(weights(n_rows(X)))
    if not fitted(encoder, X, y, sample_weight=weight):
        event("refused")
        return
    event("fitted")
    Z = succeeds(encoder.transform, X)
    if Z is None:  # rows of weight 0 may hold what fit has not seen
        assert weight is not None
        return
    assert Z.shape == (n_rows(X), len(encoder.get_feature_names_out()))
    assert Z.dtype == np.float32
    assert np.isfinite(Z).all()
    assert np.isfinite(encoder.loss_curve_).all()
    half = slice(n_rows(X) // 2)
    if half.stop:
        part = succeeds(encoder.transform, take(X, half))
        if part is not None:  # a column may be of another type there
            assert_allclose(part, Z[half], rtol=1e-6, atol=1e-6)
    views = encoder.embed_views(X, 2)
    norms = np.linalg.norm(views, axis=2)
    assert np.all((np.abs(norms - 1) < 1e-5) | (norms < 1e-5))
    assert_array_equal(pickle.loads(pickle.dumps(encoder)).transform(X), Z)
    with tempfile.TemporaryDirectory() as folder:
        skcl.save(encoder, Path(folder) / "encoder.skcl")
        loaded = skcl.load(Path(folder) / "encoder.skcl")
    assert_array_equal(loaded.transform(X), Z)
    if not isinstance(encoder.random_state, np.random.RandomState):
        again = clone(encoder).fit(X, y, sample_weight=weight)
        assert_array_equal(again.transform(X), Z)


@budget
@given(st.data())
def test_a_clustering(data):
    tame = data.draw(st.booleans())
    X = np.random.RandomState(0).normal(size=(20, 2)) if tame else data.draw(tables())
    regularizer = RelaxedKMeansRegularizer(
        data.draw(choice([1, 2, 3, 5], [30, 0, 1.5, None])),
        relaxation=data.draw(choice(["entropic", "spectral"], ["hard"])),
        temperature=data.draw(choice([1e-3, 0.1, 10.0], [0.0, np.nan])),
        n_init=data.draw(choice([1, 2], [0])),
        max_iter=data.draw(st.sampled_from([1, 20])),
        random_state=0,
    )
    weight = None if tame else data.draw(weights(n_rows(X)))
    if not fitted(regularizer, X, sample_weight=weight):
        event("refused")
        return
    event("fitted")
    labels_ = regularizer.predict(X)
    assert_array_equal(labels_, regularizer.labels_)
    assert set(labels_) <= set(range(regularizer.n_clusters))
    shares = regularizer.predict_proba(X)
    assert_allclose(shares.sum(axis=1), 1)
    assert np.isfinite(regularizer.inertia_)
    assert np.isfinite(regularizer.transform(X)).all()
    assert np.isfinite(regularizer.score(X))


@budget
@given(st.data())
def test_a_scorer(data):
    tame = data.draw(st.booleans())
    X = data.draw(tables(tame))
    y = data.draw(labels(n_rows(X), tame))
    scorer = DiscrepancyScorer(
        data.draw(encoders(not tame) if tame else st.none() | encoders()),
        term=data.draw(
            choice(["auto", "discrepancy", "bound", "incurred_loss"], ["no"])
        ),
        n_clusters=data.draw(choice([None, 2], [30, 0])),
        n_views=data.draw(choice([2, 3], [0])),
        random_state=0,
    )
    if not fitted(scorer, X, y):
        event("refused")
        return
    event("fitted")
    score = succeeds(scorer.score, X, y)
    if score is not None:
        assert np.isfinite(score)
    Z = succeeds(scorer.transform, X)
    if Z is not None:
        assert np.isfinite(Z).all()


class Lifetime(RuleBasedStateMachine):
    """An encoder through its life: what it answers is what it has learned last."""

    SETTABLE = ("temperature", "loss", "batch_size", "early_stopping", "warm_start")

    @initialize(warm_start=st.booleans())
    def begin(self, warm_start):
        rng = np.random.RandomState(0)
        self.y = np.arange(30) % 3
        self.tables = [rng.normal(size=(30, 3)), rng.normal(size=(30, 3)) * 5]
        self.tables.append(np.hstack([self.tables[0], self.tables[1][:, :1]]))
        self.encoder = ContrastiveEncoder(**SMALL, warm_start=warm_start)
        self.learned = None  # the table, and what it was mapped to

    def keep(self, X):
        self.learned = X, self.encoder.transform(X), self.encoder.n_iter_

    @rule(i=st.integers(0, 2), partial=st.booleans())
    def fit(self, i, partial):
        X, before = self.tables[i], self.learned
        goes_on = before is not None and (partial or self.encoder.warm_start)
        fit = self.encoder.partial_fit if partial else self.encoder.fit
        n_before = before[2] if goes_on else 0
        try:
            fit(X, self.y)
        except ValueError as error:
            expected = {
                "features": goes_on and X.shape[1] != before[0].shape[1],
                "needs labels": goes_on and not hasattr(self.encoder, "classes_"),
                "early_stopping": partial and self.encoder.early_stopping,
            }
            if not any(
                cause and words in str(error) for words, cause in expected.items()
            ):
                raise
            return
        self.keep(X)
        n_after = self.encoder.n_iter_
        assert n_before < n_after <= n_before + (1 if partial else 2)

    @rule(data=st.data(), name=st.sampled_from(SETTABLE))
    def set_parameter(self, data, name):
        value = data.draw(st.sampled_from(VALID[name]))
        self.encoder.set_params(**{name: value})
        assert self.encoder.get_params()[name] == value

    @rule(name=st.sampled_from(["temperature", "batch_size", "max_iter"]))
    def set_invalid(self, name):
        valid = self.encoder.get_params()[name]
        self.encoder.set_params(**{name: 0})
        for method in ("fit", "partial_fit"):
            with pytest.raises(ValueError, match=name):
                getattr(self.encoder, method)(self.tables[0], self.y)
            if not self.encoder.warm_start and method == "fit":
                break
        self.encoder.set_params(**{name: valid})
        if not hasattr(self.encoder, "n_iter_"):
            self.learned = None

    @rule()
    def pickled(self):
        self.encoder = pickle.loads(pickle.dumps(self.encoder))

    @rule()
    def saved(self):
        with tempfile.TemporaryDirectory() as folder:
            skcl.save(self.encoder, Path(folder) / "encoder.skcl")
            self.encoder = skcl.load(Path(folder) / "encoder.skcl")

    @rule()
    def cloned(self):
        copied = clone(self.encoder)
        assert repr(copied.get_params()) == repr(self.encoder.get_params())
        with pytest.raises(NotFittedError):
            copied.transform(self.tables[0])

    @precondition(lambda self: self.learned is None)
    @rule()
    def asked_too_early(self):
        for method in ("transform", "score", "embed_views"):
            with pytest.raises(NotFittedError):
                getattr(self.encoder, method)(self.tables[0])

    @invariant()
    def answers_as_before(self):
        if getattr(self, "learned", None) is not None:
            X, Z, n_iter = self.learned
            assert_array_equal(self.encoder.transform(X), Z)
            assert self.encoder.n_iter_ == n_iter == len(self.encoder.loss_curve_)


TestLifetime = Lifetime.TestCase
TestLifetime.settings = settings(budget, max_examples=N_EXAMPLES // 10 or 25)
