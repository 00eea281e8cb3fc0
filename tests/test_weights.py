"""Weights of rows and classes, and balanced batches, in the encoder."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skcl import (
    ContrastiveEncoder,
    DiscrepancyScorer,
    RelaxedKMeansRegularizer,
    _training,
)
from skcl._labels import class_weights
from skcl._preprocessing import marginal_table
from skcl._sampling import balanced_order, uniform_order
from skcl._weights import check_sample_weight
from skcl.losses import LOSSES

EVERY_LOSS = pytest.mark.parametrize("loss", LOSSES)


@pytest.fixture
def labels(rows):
    y = (rows[:, 0] > 0.9).astype(int)
    y[::10] = -1
    return y


@pytest.fixture
def weight(rows):
    return np.random.RandomState(1).uniform(0.2, 3, len(rows))


def make_variants(make_encoder, **params):
    """Yield encoders that differ in what the weights enter."""
    for regularizer in (
        None,
        RelaxedKMeansRegularizer(3),
        RelaxedKMeansRegularizer(3, relaxation="spectral"),
    ):
        yield make_encoder(regularizer=regularizer, **params)
    yield make_encoder(early_stopping=True, validation_fraction=0.3, **params)
    yield make_encoder(sampling="balanced", **params)
    yield make_encoder(class_weight="balanced", **params)


@EVERY_LOSS
def test_a_row_of_weight_zero_is_an_absent_row(
    loss, rows, labels, weight, make_encoder
):
    weight = weight.copy()
    weight[::4] = 0
    present = weight > 0
    for encoder in make_variants(make_encoder, loss=loss):
        encoder.fit(rows, labels, sample_weight=weight)
        Z, curve = encoder.transform(rows), encoder.loss_curve_
        encoder.fit(rows[present], labels[present], sample_weight=weight[present])
        np.testing.assert_array_equal(encoder.transform(rows), Z)
        assert encoder.loss_curve_ == curve
        np.testing.assert_array_equal(
            encoder.score(rows, labels, weight),
            encoder.score(rows[present], labels[present], weight[present]),
        )


def test_a_class_or_category_of_weight_zero_is_absent(make_encoder):
    y = np.array(["a", "b", "c"] * 20)
    X = pd.DataFrame({"x": np.random.RandomState(0).normal(size=60), "s": y})
    weight = (y != "c").astype(float)
    encoder = make_encoder(loss="supcon").fit(X, y, weight)
    assert encoder.classes_.tolist() == ["a", "b"]
    unseen = encoder.transform(X.assign(s="z"))
    np.testing.assert_array_equal(encoder.transform(X.assign(s="c")), unseen)
    with pytest.raises(ValueError, match="two classes"):
        encoder.fit(X, y, (y == "a").astype(float))


def test_a_row_of_weight_zero_is_not_even_looked_at(rows, make_encoder):
    """Neither by the checks of the table, nor by those of the labels."""
    X = pd.DataFrame(rows).astype(object)
    X.columns = list("abcd")
    X["s"] = pd.Series(["u"] * len(X), dtype=object)
    X.loc[0] = [np.inf, "text", None, 1e200, 3.0]
    y = np.array([None, *(np.arange(119) % 2)], dtype=object)
    weight = np.arange(120) > 0
    encoder = make_encoder(loss="supcon").fit(X, y, weight)
    Z = encoder.transform(X[1:])
    score = encoder.score(X, y, weight)
    encoder.fit(X[1:], y[1:])
    np.testing.assert_array_equal(encoder.transform(X[1:]), Z)
    assert encoder.score(X[1:], y[1:]) == score


@EVERY_LOSS
def test_equal_weights_are_none(loss, rows, labels, make_encoder):
    for encoder in make_variants(make_encoder, loss=loss):
        Z = encoder.fit(rows, labels).transform(rows)
        for value in (np.full(len(rows), 0.1), np.full(len(rows), 7), 3.0):
            encoder.fit(rows, labels, sample_weight=value)
            np.testing.assert_array_equal(encoder.transform(rows), Z)


@EVERY_LOSS
def test_weights_act_and_their_scale_does_not(loss, rows, labels, weight, make_encoder):
    for encoder in make_variants(make_encoder, loss=loss):
        plain = encoder.fit(rows, labels).transform(rows)
        Z = encoder.fit(rows, labels, sample_weight=weight).transform(rows)
        assert np.isfinite(encoder.loss_curve_).all()
        assert np.abs(Z - plain).max() > 1e-3
        encoder.fit(rows, labels, sample_weight=weight * 4)
        np.testing.assert_array_equal(encoder.transform(rows), Z)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: -w, r"sample_weight\[0\] is -.*finite"),
        (lambda w: np.where(w == w[5], np.nan, w), r"sample_weight\[5\] is nan"),
        (lambda w: np.where(w == w[5], np.inf, w), r"sample_weight\[5\] is inf"),
        (lambda w: 0 * w, "is zero for all rows"),
        (lambda w: w[:-1], r"sample_weight is of shape \(119,\): \(120,\)"),
        (lambda w: w[:, None], r"sample_weight is of shape \(120, 1\)"),
        (lambda w: np.where(w == w[5], 1e-40, w), r"sample_weight\[5\] is 1e-40"),
        (lambda w: np.arange(len(w)) == 3, "1 sample"),
        (lambda w: ["heavy"] * len(w), "sample_weight must hold numbers"),
    ],
)
def test_weights_out_of_range(change, message, rows, weight, make_encoder):
    with pytest.raises(ValueError, match=message):
        make_encoder().fit(rows, sample_weight=change(weight))
    if message != "1 sample":
        encoder = make_encoder().fit(rows)
        with pytest.raises(ValueError, match=message):
            encoder.score(rows, sample_weight=change(weight))


def test_labels_of_another_length_are_refused_beside_weights(rows, make_encoder):
    encoder = make_encoder(loss="supcon")
    for y in (np.arange(121) % 2, np.arange(119) % 2):
        for weight in (None, np.arange(120) % 3):
            with pytest.raises(ValueError, match="inconsistent numbers of samples"):
                encoder.fit(rows, y, sample_weight=weight)


def test_extreme_weights_train(rows, labels, make_encoder):
    weight = np.full(len(rows), 1e-12)
    weight[::3] = 1.0
    weight[5] = 1e9
    for loss in LOSSES:
        encoder = make_encoder(loss=loss, regularizer=RelaxedKMeansRegularizer(2))
        Z = encoder.fit(rows, labels, sample_weight=weight).transform(rows)
        assert np.isfinite(Z).all()
        assert np.isfinite(encoder.loss_curve_).all()
        assert np.isfinite(encoder.score(rows, labels, weight))


def test_weights_enter_the_standardization(rows, weight, make_encoder):
    rows = np.where(np.random.RandomState(2).rand(*rows.shape) < 0.2, np.nan, rows)
    encoder = make_encoder(passthrough=True, max_iter=1)
    Z = encoder.fit(rows, sample_weight=weight).transform(rows)[:, 5:9]
    expected = StandardScaler().fit(rows, sample_weight=weight).transform(rows)
    np.testing.assert_allclose(Z, np.nan_to_num(expected), rtol=1e-5, atol=1e-6)


def test_weights_enter_the_marginal_law():
    x = np.random.RandomState(0).choice([0.0, 1.0, np.nan], (500, 2))
    weight = np.where(x[:, 0] == 1, 5.0, 0.5)
    table = marginal_table(x.astype(np.float32), weight / weight.mean())
    share = weight[x[:, 0] == 1].sum() / weight.sum()
    assert (table[:, 0] == 1).mean() == pytest.approx(share, abs=2e-3)
    lost = weight[np.isnan(x[:, 1])].sum() / weight.sum()
    assert np.isnan(table[:, 1]).mean() == pytest.approx(lost, abs=2e-3)


def test_a_heavy_row_is_learned_best(make_encoder):
    """Two groups of rows, one of them of weight 1e-6: on the mean of several seeds."""
    rng = np.random.RandomState(0)
    X = np.where(np.arange(200)[:, None] < 100, [[5, 0, 0, 0]], [[0, 5, 0, 0]])
    X = X + rng.normal(size=(200, 4))
    mean = {}
    for light in (1e-6, 1.0):
        weight = np.where(np.arange(200) < 100, 1.0, light)
        scores = []
        for seed in range(6):
            encoder = make_encoder(max_iter=30, random_state=seed)
            scores.append(encoder.fit(X, sample_weight=weight).score(X[:100]))
        mean[light] = np.mean(scores)
    assert mean[1e-6] > mean[1.0] + 0.05


@EVERY_LOSS
@pytest.mark.parametrize("names", [[0, 1], ["no", "yes"]])
def test_class_weight_multiplies_the_weights_of_labelled_rows(
    names, loss, make_encoder
):
    """Of rows whose mean and variance no weight of a class changes."""
    X = np.array(list(product([-1, 1], repeat=4)) * 6)
    labels = np.repeat([0, 1, 0, -1, 0, 0], 16)
    y = np.array([*names, -1], dtype=object)[labels]
    factor = np.array([2.0, 9.0, 1.0])[labels]
    for weight in (np.ones(96), np.repeat([1.0, 3.0, 2.0], 32)):
        one = make_encoder(loss=loss, augmentation="noise")
        two = clone(one).set_params(class_weight={names[0]: 2, names[1]: 9.0})
        one.fit(X, y, sample_weight=factor * weight)
        two.fit(X, y, sample_weight=weight)
        np.testing.assert_allclose(two.transform(X), one.transform(X), atol=1e-4)
        plain = clone(one).fit(X, y, sample_weight=weight).transform(X)
        assert np.abs(plain - two.transform(X)).max() > 1e-2


def test_balanced_class_weights_give_classes_the_same_total(rows, labels, weight):
    classes = np.array([0, 1])
    for w in (None, weight):
        factor = class_weights("balanced", classes, labels, w)
        total = factor if w is None else factor * w
        assert total[labels == 0].sum() == pytest.approx(total[labels == 1].sum())
        labelled = labels >= 0
        before = labelled.sum() if w is None else w[labelled].sum()
        assert total[labelled].sum() == pytest.approx(before)
        assert (factor[~labelled] == 1).all()
    # A class without rows has no weight, and makes none infinite.
    factor = class_weights("balanced", np.arange(3), labels, None)
    assert np.isfinite(factor).all()


def test_balanced_class_weights_of_balanced_classes_are_none(rows, make_encoder):
    y = np.arange(len(rows)) % 2
    Z = make_encoder().fit(rows, y).transform(rows)
    encoder = make_encoder(class_weight="balanced").fit(rows, y)
    np.testing.assert_array_equal(encoder.transform(rows), Z)


@pytest.mark.parametrize(
    ("params", "y", "message"),
    [
        ({"class_weight": "balanced"}, None, "class_weight='balanced' requires y"),
        ({"sampling": "balanced"}, None, "sampling='balanced' requires y"),
        ({"class_weight": {0: 2.0, 2: 1.0}}, [0, 1], r"class_weight names .*\[2\].*1"),
        ({"class_weight": {0: 0.0}}, [0, 1], r"class_weight\[0\]=0.0"),
        ({"class_weight": {-1: 9.0, 0: 1, 1: 1}}, [0, 1, -1], "class_weight names -1"),
        ({"class_weight": {0: 1e-40, 1: 1}}, [0, 1], r"by class_weight\[0\] is"),
        ({"sampling": "balanced"}, [1, -1], "LabelEncoder"),
    ],
)
def test_labels_that_weights_and_batches_need(params, y, message, rows, make_encoder):
    y = None if y is None else np.resize(y, len(rows))
    encoder = make_encoder(**params)
    assert encoder.__sklearn_tags__().target_tags.required
    with pytest.raises(ValueError, match=message):
        encoder.fit(rows, y)


def test_a_dict_may_name_a_class_that_a_fold_lacks(rows, make_encoder):
    y = np.arange(len(rows)) % 2
    encoder = make_encoder(class_weight={0: 1.0, 1: 3.0, 2: 9.0}).fit(rows, y)
    assert np.isfinite(encoder.loss_curve_).all()


def test_callables_that_take_no_weights_are_named(rows, weight, make_encoder):
    def loss(z, temperature, y):
        return -(z.mean(dim=1) ** 2).mean() / temperature

    class Pull:
        def start(self, means, generator, y=None):
            return None

        def penalty(self, means, state, y=None, rows=None):
            return means.square().mean()

    for params in ({"loss": loss}, {"regularizer": Pull()}):
        encoder = make_encoder(**params).fit(rows, sample_weight=np.ones(len(rows)))
        with pytest.raises(ValueError, match="takes no weights"):
            encoder.fit(rows, sample_weight=weight)


def test_callables_are_given_the_weights_by_keyword(rows, weight, make_encoder):
    given = []

    def loss(z, temperature, y, *, sample_weight=None):
        given.append(sample_weight)
        return -(z.mean(dim=1) ** 2).mean() / temperature

    encoder = make_encoder(loss=loss, max_iter=1).fit(rows, sample_weight=weight)
    seen = torch.cat(given[1:])  # after one trial
    expected = np.sort(weight / weight.mean())
    np.testing.assert_allclose(np.sort(seen.numpy()), expected, rtol=1e-6)
    assert np.isfinite(encoder.score(rows, sample_weight=weight))
    assert given[-1] is not None


def keep(x, generator):
    return x.clone()


def first_coordinate(z, temperature, y=None, sample_weight=None):
    """A loss of one term a row, which are averaged."""
    value = z[:, 0, 0]
    w = torch.ones_like(value) if sample_weight is None else sample_weight
    return (w * value).sum() / w.sum()


def test_the_mean_over_batches_is_that_over_rows(rows, weight, make_encoder):
    weight = weight**4
    for batch_size in (120, 40, 10, 2):
        encoder = make_encoder(
            loss=first_coordinate,
            augmentation=keep,
            batch_size=batch_size,
            learning_rate=1e-12,
            early_stopping=batch_size != 120,
            validation_fraction=0.5,
        ).fit(rows, sample_weight=weight)
        if batch_size == 120:
            values = encoder.embed_views(rows)[:, 0, 0]
            expected = np.average(values, weights=weight)
            assert encoder.loss_curve_ == pytest.approx([expected] * 5, rel=1e-4)
            assert encoder.score(rows, None, weight) == pytest.approx(-expected)
            continue
        # The held-out rows are those that the other fits hold out too.
        train, held_out = encoder.loss_curve_[0], encoder.validation_scores_[0]
        if batch_size == 40:
            reference = train, held_out
        assert (train, held_out) == pytest.approx(reference, rel=1e-4)


def test_the_gradients_of_batches_add_up_to_that_of_the_rows(
    rows, weight, make_encoder, monkeypatch
):
    class Summed(_training.AdamW):
        total = None

        def step(self):
            gradient = torch.cat([p.grad.flatten() for p in self.parameters])
            Summed.total = gradient if Summed.total is None else Summed.total + gradient

    monkeypatch.setattr(_training, "AdamW", Summed)
    sums = []
    for batch_size in (120, 10):
        Summed.total = None
        make_encoder(
            loss=first_coordinate, augmentation=keep, batch_size=batch_size, max_iter=1
        ).fit(rows, sample_weight=weight**4)
        sums.append(Summed.total * batch_size / 120)
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-3, atol=1e-6)


def test_a_callable_loss_is_given_the_codes_of_fit_in_score(rows, make_encoder):
    given = []

    def loss(z, temperature, y):
        given.append(set(y.tolist()))
        return -(z.mean(dim=1) ** 2).mean() / temperature

    loss.uses_y = True
    y = np.arange(len(rows)) % 3
    encoder = make_encoder(loss=loss).fit(rows, y)
    encoder.score(rows[y > 0], y[y > 0])
    assert given[-1] == {1, 2}


# Sampling


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_plain_sampling_visits_each_row_once():
    assert sorted(uniform_order(1000, generator()).tolist()) == list(range(1000))


@pytest.mark.parametrize("counts", [[500, 7], [90, 9, 1], [3, 3], [5, 1000, 40, 2, 1]])
@pytest.mark.parametrize("n_unlabelled", [0, 13, 2001])
def test_balanced_sampling_visits_every_class_equally(counts, n_unlabelled):
    y = np.repeat([*range(len(counts)), -1], [*counts, n_unlabelled])
    codes = torch.tensor(np.random.RandomState(0).permutation(y))
    for seed in range(5):
        order = balanced_order(codes, generator(seed))
        n_drawn = max(sum(counts), (n_unlabelled + 1) // 2)  # a third of the epoch
        assert len(order) == n_drawn + n_unlabelled
        visited = codes[order]
        per_class = [int((visited == k).sum()) for k in range(len(counts))]
        assert max(per_class) - min(per_class) <= 1
        unlabelled = order[visited == -1].tolist()
        assert sorted(unlabelled) == (codes == -1).nonzero().flatten().tolist()
        for k in range(len(counts)):  # no row more than once more than another
            times = torch.bincount(order[visited == k], minlength=len(codes))
            times = times[codes == k]
            assert times.max() - times.min() <= 1


def test_balanced_batches_have_the_same_mixture():
    codes = torch.tensor(np.repeat([0, 1, 2, -1], [3000, 60, 10, 930]))
    for batch in balanced_order(codes, generator()).tensor_split(16):
        counts = torch.bincount(codes[batch] + 1, minlength=4)
        assert ((counts - counts.new_tensor([58, 64, 64, 64])).abs() <= 2).all()


def test_all_rows_of_a_frequent_class_come_in_time():
    codes = torch.tensor([0] * 300 + [1] * 100)
    g = generator()
    visited = torch.cat([balanced_order(codes, g) for _ in range(25)])
    assert set(visited.tolist()) == set(range(400))


def test_an_epoch_visits_every_class(imbalanced, make_encoder):
    """Other samplers leave a rare class out of whole epochs."""
    X, _ = imbalanced
    y = np.zeros(len(X), dtype=int)
    y[[3, 77]] = 1
    seen = []

    def loss(z, temperature, y):
        seen.append(y)
        return -(z.mean(dim=1) ** 2).mean() / temperature

    loss.uses_y = True
    encoder = make_encoder(loss=loss, sampling="balanced", batch_size=60, max_iter=3)
    encoder.fit(X, y)
    batches = seen[1:]
    assert len(batches) == 12
    for batch in batches:
        assert abs(int(batch.sum()) - 30) <= 1


def test_balanced_sampling_of_a_loss_without_labels(imbalanced, make_encoder):
    X, y = imbalanced
    encoder = make_encoder(sampling="balanced")
    Z = encoder.fit(X, y).transform(X)
    assert np.isfinite(Z).all()
    np.testing.assert_array_equal(encoder.fit(X, y).transform(X), Z)
    assert (make_encoder().fit_transform(X) != Z).any()
    assert encoder.classes_.tolist() == [0, 1]
    assert np.isfinite(encoder.score(X))  # which needs no labels


# Routing


def test_weights_reach_the_encoder_through_a_pipeline(imbalanced, make_encoder):
    X, y = imbalanced
    weight = np.random.RandomState(0).uniform(0.1, 5, len(X))
    expected = make_encoder().fit(X, sample_weight=weight).transform(X)
    head = LogisticRegression(class_weight="balanced")
    pipeline = make_pipeline(make_encoder(), head)
    pipeline.fit(X, y, contrastiveencoder__sample_weight=weight)
    np.testing.assert_array_equal(pipeline[0].transform(X), expected)
    with sklearn.config_context(enable_metadata_routing=True):
        encoder = make_encoder().set_fit_request(sample_weight=True)
        head.set_fit_request(sample_weight=False)
        routed = make_pipeline(encoder, head).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(routed[0].transform(X), expected)


def test_weights_reach_the_encoder_through_a_search(imbalanced, make_encoder):
    X, y = imbalanced
    weight = np.random.RandomState(0).uniform(0.1, 5, len(X))
    expected = make_encoder().fit(X, sample_weight=weight).transform(X)
    with sklearn.config_context(enable_metadata_routing=True):
        encoder = make_encoder().set_fit_request(sample_weight=True)
        head = LogisticRegression().set_fit_request(sample_weight=False)
        search = GridSearchCV(
            make_pipeline(encoder, head),
            {"contrastiveencoder__max_iter": [5]},
            scoring=DiscrepancyScorer().set_score_request(sample_weight=True),
            cv=2,
            error_score="raise",
        ).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(search.best_estimator_[0].transform(X), expected)
    # And the folds get their own parts, to fit and to score by.
    for k, (train, test) in enumerate(StratifiedKFold(2).split(X, y)):
        encoder = make_encoder().fit(X.iloc[train], sample_weight=weight[train])
        score = DiscrepancyScorer()(encoder, X.iloc[test], y[test], weight[test])
        assert search.cv_results_[f"split{k}_test_score"][0] == pytest.approx(score)


def test_the_weights_given_are_left_alone():
    weight = np.array([1.0, 0.0, 3.0])
    rows, normalized = check_sample_weight(weight, 3)
    assert rows.tolist() == [0, 2]
    assert normalized.tolist() == [0.5, 1.5]
    assert weight.tolist() == [1.0, 0.0, 3.0]
    assert check_sample_weight(None, 3) == (slice(None), None)


def test_default_encoder_takes_integer_and_boolean_weights(rows):
    encoder = ContrastiveEncoder(max_iter=1, random_state=0)
    Z = encoder.fit(rows, sample_weight=np.arange(120) % 3).transform(rows)
    Y = encoder.fit(rows, sample_weight=(np.arange(120) % 3).tolist()).transform(rows)
    np.testing.assert_array_equal(Z, Y)
    kept = np.arange(120) % 3 > 0
    Z = encoder.fit(rows, sample_weight=kept).transform(rows)
    np.testing.assert_array_equal(encoder.fit(rows[kept]).transform(rows), Z)


def test_labels_of_another_length_beside_weights_of_zero(rows, make_encoder):
    """Refused where they are used, and ignored where they are not."""
    weight = np.arange(len(rows)) % 3
    short = np.arange(len(rows) - 1) % 2
    expected = make_encoder().fit(rows, sample_weight=weight)
    encoder = make_encoder().fit(rows, short, sample_weight=weight)
    np.testing.assert_array_equal(encoder.transform(rows), expected.transform(rows))
    assert encoder.score(rows, short, weight) == expected.score(rows, None, weight)
    labelled = make_encoder(loss="supcon")
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        labelled.fit(rows, short, sample_weight=weight)
    labelled.fit(rows, np.arange(len(rows)) % 2)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        labelled.score(rows, short, weight)
    for scorer in (DiscrepancyScorer(), DiscrepancyScorer(make_encoder())):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            scorer.fit(rows, short, sample_weight=weight)
