"""What the certificate guarantees: coverage, ranges, and literal loops."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from scipy.stats import binom

from skcl import theory
from skcl.theory import Guarantee, _certificate, _guarantee, _measure
from skcl.theory._certificate import Certificate, certificate
from skcl.theory._measure import Measure, read_views

METHODS = ["split", "mcdiarmid"]
LABELLED = ["incurred_loss", "squared_discrepancy", "cross_entropy"]
DIRECT = ["direct_cross_entropy", "direct_error"]
GUARANTEES = ["contrastive_loss", *LABELLED, "error", *DIRECT]
BY_MCDIARMID = ["contrastive_loss", *LABELLED]
BY_BERNSTEIN = [*BY_MCDIARMID, "direct_cross_entropy"]
PRIORS = np.array([0.7, 0.2, 0.1])


def unit(array):
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def entropy(priors):
    return -(priors * np.log(priors)).sum()


class Population:
    """Finitely many rows of finitely many views each, drawn with replacement.

    The positive mean of a row is exactly that of its views, and so are all losses.
    """

    def __init__(self, noise, n_rows=12, n_views=4, seed=0):
        rng = np.random.RandomState(seed)
        self.y = np.repeat([0, 1, 2], n_rows)
        self.weight = PRIORS[self.y] / n_rows
        rows = np.eye(3)[self.y][:, None] + noise * rng.normal(size=(3 * n_rows, 1, 3))
        self.views = unit(rows + noise * rng.normal(size=(3 * n_rows, n_views, 3)))
        self.means = self.views.mean(axis=1)
        self.centers = theory.class_centers(
            self.means, self.y, sample_weight=self.weight
        )

    def draw(self, n, V, seed):
        rng = np.random.RandomState(seed)
        rows = rng.choice(len(self.y), n, p=self.weight)
        columns = rng.randint(self.views.shape[1], size=(n, V))
        return self.views[rows[:, None], columns], self.y[rows]

    def truth(self, t):
        L = theory.contrastive_loss(self.views, t, sample_weight=self.weight)
        distance = theory.internal_discrepancy(self.means, self.centers, self.y)
        squared = self.weight @ distance**2
        incurred, head = L + squared / t, (self.centers, np.log(PRIORS))
        return {
            "contrastive_loss": L,
            "squared_discrepancy": squared,
            "incurred_loss": incurred,
            "cross_entropy": incurred + entropy(PRIORS),
            "error": self.of_head(*head, t)["direct_error"],
        }

    def of_head(self, centers, log_priors, t):
        """Return the cross-entropy and the error of a head."""
        scores = self.views @ centers.T / t + log_priors
        own = np.take_along_axis(scores, self.y[:, None, None], axis=2)[..., 0]
        losses = np.log(np.exp(scores).sum(axis=2)) - own
        errors = scores.argmax(axis=2) != self.y[:, None]
        return {
            "direct_cross_entropy": self.weight @ losses.mean(axis=1),
            "direct_error": self.weight @ errors.mean(axis=1),
        }

    def of_draw(self, views, y, t, seed):
        """Return the truth about the head that the first half of a draw makes."""
        measure, first = read_views(views)[0], _certificate._split(len(y), seed)[0]
        half = _certificate._first_half(measure, y, first, 1 / t)
        return self.of_head(half.centers, half.log_priors, t)


def simulate(population, t, method, n=120, V=3, n_draws=500):
    """Return estimates, corrections and bounds less the truth, of each draw."""
    truth, records = population.truth(t), []
    for seed in range(n_draws):
        views, y = population.draw(n, V, seed)
        result = certificate(views, y, t, method=method, random_state=seed)
        of_draw = truth | population.of_draw(views, y, t, seed)
        given = [getattr(result, name) for name in GUARANTEES]
        of_draw = np.array([of_draw[name] for name in GUARANTEES])
        terms = np.array([(g.estimate, g.correction, g.bound) for g in given]).T
        records.append(terms - of_draw * [[1], [0], [1]])
    return dict(zip(GUARANTEES, np.transpose(records, (2, 1, 0)), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_coverage(method):
    """Of 500 draws from a population whose losses are known.

    The inequalities of Bernstein and McDiarmid are far from tight: their bounds hold in
    every draw. That of Clopper and Pearson holds in 95 % and hardly more; so many in
    500 that a true 95 % has fewer with a probability of 0.1 % only.
    """
    excess = simulate(Population(noise=0.4), 1.0, method)
    for name in set(GUARANTEES) - {"direct_error"}:
        assert (excess[name][2] >= 0).all(), name
    covered = (excess["direct_error"][2] >= 0).sum()
    assert binom.ppf(0.001, 500, 0.95) <= covered
    # Without what is added for chance, they would not hold.
    for name in BY_BERNSTEIN:
        estimate, correction, _ = excess[name]
        of_bias = correction if method == "mcdiarmid" and name not in DIRECT else 0.0
        assert (estimate + of_bias >= 0).mean() < 0.95, name


@pytest.mark.parametrize("method", METHODS)
def test_estimates_are_biased_to_the_safe_side_only(method):
    """In expectation they bound the truth, but for the bias that McDiarmid's adds."""
    excess = simulate(Population(noise=0.4), 0.5, method, n=80, V=2, n_draws=300)
    for name in BY_BERNSTEIN:
        estimate, correction, _ = excess[name]
        noise = 4 * estimate.std() / np.sqrt(len(estimate))
        if name == "direct_cross_entropy":
            assert abs(estimate.mean()) <= noise
        elif method == "split":
            assert estimate.mean() >= -noise
        else:
            assert -correction.mean() - noise <= estimate.mean() <= noise


def test_clopper_pearson_covers_each_error_rate():
    """Exactly: the probability of a count whose limit is no lower than the rate."""
    for n in (2, 10, 57, 200):
        for delta in (0.05, 0.3):
            counts = np.arange(n + 1)
            limits = [_guarantee.clopper_pearson(k, n, delta) for k in counts]
            assert limits[-1] == 1
            assert limits[0] == pytest.approx(1 - delta ** (1 / n))
            for p in np.linspace(0.01, 0.99, 99):
                assert binom.pmf(counts, n, p)[limits >= p].sum() >= 1 - delta - 1e-12
            # Just above a limit, that count no longer covers: nothing is given away.
            p = limits[n // 2] + 1e-9
            covered = binom.pmf(counts, n, p)[np.array(limits) >= p].sum()
            assert covered == pytest.approx(1 - delta, abs=1e-6)


def test_the_setting_where_it_says_something():
    """Class frequencies 0.7, 0.2, 0.1, temperature 1, and 4,000 rows."""
    population = Population(noise=0.25, n_rows=40)
    truth = theory.incurred_loss(
        population.views, population.y, 1.0, sample_weight=population.weight
    )
    assert truth == pytest.approx(-0.301, abs=0.001)
    views, y = population.draw(4000, 2, seed=1)
    split = certificate(views, y, 1.0, random_state=0)
    assert not split.vacuous
    assert truth <= split.incurred_loss.bound < -0.18
    by_mcdiarmid = certificate(views, y, 1.0, method="mcdiarmid", random_state=0)
    assert not by_mcdiarmid.vacuous
    assert split.incurred_loss.bound < by_mcdiarmid.incurred_loss.bound < 0
    for name in BY_BERNSTEIN:
        assert not getattr(split, name).vacuous
    # Whatever the encoder: the floor lies above the error of the largest class.
    assert split.error.vacuous
    assert split.floor > split.error.trivial


@pytest.mark.parametrize("method", METHODS)
def test_at_a_low_temperature_only_the_direct_guarantees_say_something(method):
    views, y = Population(noise=0.4, n_rows=40).draw(4000, 2, seed=1)
    result = certificate(views, y, 0.2, method=method, random_state=0)
    assert result.vacuous
    assert result.incurred_loss.vacuous
    assert result.cross_entropy.vacuous
    assert result.error.vacuous
    assert not result.direct_cross_entropy.vacuous
    assert not result.direct_error.vacuous


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", [0.1, 1.0, 10.0])
def test_a_constant_encoder_is_guaranteed_nothing(method, t):
    rng = np.random.RandomState(0)
    views = np.tile(unit(np.array([1.0, 2.0, 3.0])), (400, 2, 1))
    for seed in range(2):
        y = rng.choice(3, 400, p=PRIORS)
        result = certificate(views, y, t, method=method, random_state=seed)
        assert result.vacuous
        assert result.incurred_loss.estimate == pytest.approx(0, abs=1e-9)
        assert result.contrastive_loss.estimate == pytest.approx(0, abs=1e-9)
        assert all(getattr(result, name).vacuous for name in GUARANTEES)


@pytest.mark.parametrize("method", METHODS)
def test_more_rows_add_less(method):
    population = Population(noise=0.3)
    few, many = (
        certificate(*population.draw(n, 2, 0), 1.0, method=method, random_state=0)
        for n in (300, 3000)
    )
    for name in GUARANTEES:
        fewer, more = getattr(few, name), getattr(many, name)
        assert more.deviation < fewer.deviation
        assert more.correction < fewer.correction or name == "direct_error"


def test_more_confidence_adds_more():
    views, y = Population(noise=0.3).draw(300, 2, 0)
    for method in METHODS:
        low, high = (
            certificate(views, y, 1.0, confidence, method, random_state=0)
            for confidence in (0.5, 0.99)
        )
        for name in GUARANTEES:
            assert getattr(low, name).estimate == getattr(high, name).estimate
            assert getattr(low, name).bound < getattr(high, name).bound


def ragged_draw(rng, n, fewest=2, d=3):
    """Rows of differing numbers of views, and classes of which one may be missing."""
    y = rng.choice(3, n, p=PRIORS)
    rows = [unit(rng.normal(size=(rng.randint(fewest, 5), d)) + 1) for _ in range(n)]
    return rows, y


def loop_centers(rows, y, first):
    """Return a_k and the frequencies of the three classes in the first half."""
    overall = np.mean([rows[i].mean(axis=0) for i in first], axis=0)
    a, prior = [], []
    for k in range(3):
        of_k = [rows[i].mean(axis=0) for i in first if y[i] == k]
        a.append(np.mean(of_k, axis=0) if of_k else overall)
        prior.append((len(of_k) + 1) / (len(first) + 3))
    return a, prior


def loop_split(rows, y, first, second, t, delta):
    """Draw by draw: b, k, q, X, and Bernstein's terms of the incurred loss."""
    rate = 1 / t

    def b1(z):
        of_rows = [np.mean([np.exp(rate * z @ u) for u in rows[j]]) for j in first]
        return np.mean(of_rows)

    logs = [np.log(b1(z)) for i in first for z in rows[i]]
    b_min = np.exp(np.quantile(logs, 0.02))
    a, prior = loop_centers(rows, y, first)

    def k_of(i, j):
        total = 0.0
        for z in rows[i]:
            b = max(b1(z), b_min)
            for u in rows[j]:
                total += np.exp(rate * z @ u) / b / len(rows[j])
            total += np.log(b) - 1
        return total / len(rows[i])

    def q_of(i):
        return rate * (a[y[i]] @ a[y[i]] - 2 * rows[i].mean(axis=0) @ a[y[i]])

    def u_of(i):
        z = rows[i]
        others = [z[v] @ z[w] for v, w in np.ndindex(len(z), len(z)) if v != w]
        return np.mean(others)

    def d_of(i):
        z = rows[i] - a[y[i]]
        others = [z[v] @ z[w] for v, w in np.ndindex(len(z), len(z)) if v != w]
        return np.mean(others)

    rho = [np.linalg.norm(a_k) for a_k in a]
    V = min(len(row) for row in rows)
    kernel_range = (np.exp(rate) - np.exp(-rate)) / b_min
    fit_range = max(r**2 + 2 * r for r in rho) - min(r**2 - 2 * r for r in rho)
    pairs = [(second[i], second[i + 1]) for i in range(0, len(second), 2)]
    k = [(k_of(i, j) + k_of(j, i)) / 2 for i, j in pairs]
    q = [(q_of(i) + q_of(j)) / 2 for i, j in pairs]
    u = [(u_of(i) + u_of(j)) / 2 for i, j in pairs]
    h = [-(np.log(prior[y[i]]) + np.log(prior[y[j]])) / 2 for i, j in pairs]
    surprise_range = np.log(max(prior) / min(prior))
    cases = {
        "incurred_loss": (np.add(k, q), kernel_range + rate * fit_range),
        "contrastive_loss": (
            np.array(k) - rate * np.array(u),
            kernel_range + rate * V / (V - 1),
        ),
        "cross_entropy": (
            np.array(k) + q + h,
            kernel_range + rate * fit_range + surprise_range,
        ),
        "squared_discrepancy": (
            np.array([d_of(i) for i in second]),
            (1 + max(rho)) ** 2 + 1 / (V - 1),
        ),
        "direct_cross_entropy": loop_head(rows, y, second, a, prior, rate),
    }
    return {name: bernstein(*case, delta) for name, case in cases.items()}


def loop_error(rows, y, i, first, t):
    """Return whether the head of the first half errs on the first view of row i."""
    a, prior = loop_centers(rows, y, first)
    scores = [rows[i][0] @ a_k / t + np.log(p) for a_k, p in zip(a, prior, strict=True)]
    return np.argmax(scores) != y[i]


def loop_head(rows, y, second, a, prior, rate):
    losses = []
    for i in second:
        of_views = []
        for z in rows[i]:
            odds = [p * np.exp(rate * z @ a_k) for p, a_k in zip(prior, a, strict=True)]
            of_views.append(-np.log(odds[y[i]] / sum(odds)))
        losses.append(np.mean(of_views))
    diameter = max(np.linalg.norm(a_j - a_k) for a_j in a for a_k in a)
    return np.array(losses), rate * diameter - np.log(min(prior))


def bernstein(values, width, delta):
    M = len(values)
    variance = sum((x - y) ** 2 for x in values for y in values) / (2 * M * (M - 1))
    return (
        values.mean(),
        np.sqrt(2 * variance * np.log(2 / delta) / M),
        7 * width * np.log(2 / delta) / (3 * (M - 1)),
    )


@pytest.mark.parametrize("block_size", [2**20, 7])
def test_split_equals_the_literal_loop(block_size, monkeypatch):
    monkeypatch.setattr(_measure, "_BLOCK_SIZE", block_size)
    rng = np.random.RandomState(0)
    lacking = 0
    for seed in range(12):
        rows, y = ragged_draw(rng, n=rng.randint(10, 16))
        if seed % 2:
            rows = np.stack([row[:2] for row in rows])
        y[0] = 2  # the largest class exists, though perhaps not in the first half
        first, second = _certificate._split(len(y), seed)
        lacking += len(np.unique(y[first])) < len(np.unique(y))
        assert len(second) % 2 == 0
        assert sorted([*first, *second]) == list(range(len(y)))
        if len(np.unique(y)) < 3:
            continue
        result = certificate(rows, y, 0.6, 0.9, random_state=seed)
        expected = loop_split(rows, y, first, second, 0.6, 0.1)
        for name, terms in expected.items():
            given = getattr(result, name)
            values = given.estimate, given.deviation, given.correction
            np.testing.assert_allclose(values, terms, rtol=1e-10, atol=1e-10)
            assert given.bound == pytest.approx(sum(terms))
        error = result.cross_entropy.bound / np.log(2)
        assert result.error.bound == pytest.approx(error)
        wrong = [loop_error(rows, y, i, first, 0.6) for i in second]
        assert result.direct_error.estimate == pytest.approx(np.mean(wrong))
    assert lacking


def test_mcdiarmid_equals_the_literal_loop():
    rng = np.random.RandomState(1)
    by_range = 0
    for seed in range(8):
        rows, y = ragged_draw(rng, n=11)
        y[:3] = 0, 1, 2
        n, t, K = len(rows), 0.3 if seed % 2 else 0.9, 3
        rate, root = 1 / t, np.sqrt(np.log(1 / 0.1) / (2 * n))
        P = U = 0.0
        for i, row in enumerate(rows):
            for z in row:
                others = [np.exp(rate * rows[j] @ z).mean() for j in range(n) if j != i]
                P += np.log(np.mean(others)) / len(row) / n
            gram = row @ row.T
            off_diagonal = gram[~np.eye(len(row), dtype=bool)]
            U += off_diagonal.mean() / n
        means = np.array([row.mean(axis=0) for row in rows])
        centers = [means[y == k].mean(axis=0) for k in range(K)]
        prior = np.bincount(y) / n
        Q = sum(p * c @ c for p, c in zip(prior, centers, strict=True))
        r = np.exp(-2 * rate)
        phi = (r - 1 - np.log(r)) / (1 - r) ** 2
        b = min(
            phi * np.sinh(rate) ** 2 / (n - 1),
            rate / np.tanh(rate) - 1 + np.log(np.sinh(rate) / rate),
        )
        by_range += b > 2  # at the lower temperature
        p = 2 * rate + (n - 1) * np.log(1 + (np.exp(2 * rate) - 1) / (n - 1))
        V = min(len(row) for row in rows)
        h = n * np.log(n) - (n - 1) * np.log(n - 1)
        incurred, bias, width = P - rate * Q, b + rate * K / n, p + 4 * rate
        expected = {
            "contrastive_loss": (P - rate * U, (p + rate * V / (V - 1)) * root, b),
            "incurred_loss": (incurred, width * root, bias),
            "squared_discrepancy": (U - Q, (4 + 1 / (V - 1)) * root, K / n),
            "cross_entropy": (
                incurred + entropy(prior),
                (width + h) * root,
                bias + np.log((n + K - 1) / n),
            ),
        }
        result = certificate(rows, y, t, 0.9, "mcdiarmid", random_state=seed)
        for name, terms in expected.items():
            given = getattr(result, name)
            values = given.estimate, given.deviation, given.correction
            np.testing.assert_allclose(values, terms, rtol=1e-10, atol=1e-10)
    assert by_range == 4


def extreme_rows(rng, counts, d):
    """Rows anywhere, along one axis or at the centers: what strains a range."""
    rows = []
    for V in counts:
        kind, axis = rng.randint(4), np.eye(d)[0] * rng.choice([-1, 1])
        if kind == 0:
            row = np.tile(axis, (V, 1))
        elif kind == 1:
            row = axis * rng.choice([-1, 1], size=(V, 1))
        elif kind == 2:
            row = np.tile(unit(rng.normal(size=d)), (V, 1))
        else:
            row = unit(rng.normal(size=(V, d)))
        rows.append(row)
    return rows


def test_no_value_leaves_its_range():
    """Of all means that Bernstein's inequality is applied to, and nearly attained."""
    rng = np.random.RandomState(0)
    ratios = {name: [] for name in BY_BERNSTEIN}
    for trial in range(300):
        rate, d, n = rng.choice([0.1, 1.0, 3.0]), rng.randint(1, 4), 40
        counts = np.full(n, 2) if trial % 2 else rng.randint(2, 5, size=n)
        rows, y = extreme_rows(rng, counts, d), rng.randint(3, size=n)
        if trial % 3 == 0:  # a first half at one point
            rows[:12] = [np.tile(np.eye(d)[0], (V, 1)) for V in counts[:12]]
        y[:12] = np.arange(12) % 3
        measure = Measure(np.concatenate(rows), counts)
        half = _certificate._first_half(measure, y, np.arange(12), rate)
        held_out, y2 = measure.take(np.arange(12, n)), y[12:]
        terms = _certificate._split_terms(half, held_out, y2)
        terms |= _certificate._direct_terms(half, held_out, y2)
        assert set(terms) == set(BY_BERNSTEIN)
        for name, (values, width, _) in terms.items():
            ratios[name].append(np.ptp(values) / width)
    largest = [max(values) for values in ratios.values()]
    assert max(largest) <= 1 + 1e-9
    assert min(largest) > 0.8


def test_one_row_changes_a_statistic_within_its_width():
    """McDiarmid's inequality: one row replaced, with its class, by any other."""
    rng = np.random.RandomState(0)
    ratios = {name: [] for name in BY_MCDIARMID}
    for trial in range(400):
        n, d, rate = rng.randint(3, 25), rng.randint(1, 4), rng.choice([0.1, 1, 3])
        counts = np.full(n, 2) if trial % 2 else rng.randint(2, 5, size=n)
        counts[0] = 2  # the least may leave, but V stays
        counts[-1] = 2
        rows, y = extreme_rows(rng, counts, d), rng.randint(3, size=n)
        if trial % 4 == 0:  # all in one place and class
            rows, y = [np.tile(np.eye(d)[0], (V, 1)) for V in counts], np.zeros(n, int)
        before = mcdiarmid_terms(rows, y, rate)
        rows[0], y = extreme_rows(rng, [rng.randint(2, 5)], d)[0], y.copy()
        y[0] = rng.randint(3)
        after = mcdiarmid_terms(rows, y, rate)
        assert set(before) == set(after) == set(BY_MCDIARMID)
        for name, (estimate, _, width, _) in before.items():
            assert width == after[name][2]
            ratios[name].append(abs(after[name][0] - estimate) / (width / n))
    assert max(max(values) for values in ratios.values()) <= 1 + 1e-9
    assert max(ratios["squared_discrepancy"]) > 0.7


def mcdiarmid_terms(rows, y, rate):
    measure = Measure(np.concatenate(rows), np.array([len(row) for row in rows]))
    codes = np.unique(y, return_inverse=True)[1]
    return _certificate._mcdiarmid_terms(measure, codes, rate)


def test_the_entropy_of_frequencies_changes_by_its_width():
    rng = np.random.RandomState(0)
    n = 20
    width = _certificate._entropy_width(n) / n
    lone = np.zeros(n, dtype=int)
    lone[0] = 1
    assert _certificate._entropy(lone) == pytest.approx(width)
    for _ in range(300):
        y = rng.choice(4, n, p=rng.dirichlet([0.3] * 4))
        moved = y.copy()
        moved[0] = rng.randint(4)
        change = _certificate._entropy(y) - _certificate._entropy(moved)
        assert abs(change) <= width + 1e-12


def test_the_log_of_a_mean_lacks_no_more_than_its_bias():
    """Exactly, for kernels that take their two extremes; attained by a lone row."""
    for rate in (0.01, 0.3, 1.0, 2.0, 5.0):
        for m in (1, 2, 7, 100, 3000):
            k = np.arange(m + 1)
            log_means = np.log((k * np.exp(rate) + (m - k) * np.exp(-rate)) / m)
            p = np.linspace(0, 1, 101)
            exact = np.log(p * np.exp(rate) + (1 - p) * np.exp(-rate))
            lacks = exact - binom.pmf(k, m, p[:, None]) @ log_means
            bias = _certificate._partition_bias(rate, m + 1)
            assert lacks.max() <= bias * (1 + 1e-9)
            assert m > 1 or lacks.max() >= 0.999 * bias
            assert rate > 0.1 or lacks.max() >= 0.97 * bias
    assert _certificate._partition_bias(0.5, 10**6) < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_the_floor_is_below_every_cross_entropy(method):
    """That of the incurred loss, on the rows that it counts: what the error's is of."""
    rng = np.random.RandomState(3)
    for _ in range(40):
        K, n, d = rng.randint(2, 5), rng.choice([20, 60]), rng.randint(2, 5)
        t = rng.choice([0.1, 0.2, 0.5, 1.0, 3.0])
        y = rng.choice(K, n, p=rng.dirichlet(np.full(K, 2.0)))
        views = np.eye(K, d)[y][:, None] + rng.normal(size=(n, 2, d)) * rng.rand()
        floor, cross_entropy = floor_and_cross_entropy(unit(views), y, t, method)
        assert 0 <= floor <= cross_entropy + 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", [0.2, 0.5, 1.0, 3.0])
def test_the_floor_is_reached(method, t):
    """By one point a class, at the optimal geometry of the rows that it counts."""
    y = np.random.RandomState(0).choice(4, 80, p=[0.5, 0.3, 0.15, 0.05])
    counts = np.bincount(y if method == "mcdiarmid" else y[second_half(y)])
    values, vectors = np.linalg.eigh(
        theory.optimal_geometry(counts / counts.sum(), t).gram
    )
    centers = vectors * np.sqrt(np.maximum(values, 0))
    views = unit(centers)[y][:, None].repeat(2, axis=1)
    floor, cross_entropy = floor_and_cross_entropy(views, y, t, method)
    assert floor == pytest.approx(cross_entropy, rel=1e-6)
    # No farther than that from any other encoder's: a center that is turned shows.
    views[y == 3] = views[y == 2][0]
    assert floor_and_cross_entropy(views, y, t, method)[1] > floor + 1e-4


def second_half(y):
    return _certificate._split(len(y), 0)[1]


def floor_and_cross_entropy(views, y, t, method):
    """Return log 2 times the floor, and the incurred loss plus entropy of its rows."""
    result = certificate(views, y, t, method=method, random_state=0)
    rows = np.arange(len(y)) if method == "mcdiarmid" else second_half(y)
    bound = theory.discrepancy_bound(views[rows], y[rows], t)
    np.testing.assert_allclose(result.priors, bound.per_class["prior"], rtol=1e-12)
    excess = bound.incurred_loss + entropy(bound.per_class["prior"])
    return result.floor * np.log(2), excess


def test_the_floor_of_the_simplex():
    """F* is -log 3 + log(1 + 2 exp(-1.5 / t)), and H is log 3."""
    y = np.arange(240) % 3
    result = certificate(np.eye(3)[y][:, None], y, 0.5, method="mcdiarmid")
    assert result.floor == pytest.approx(np.log2(1 + 2 * np.exp(-3)), abs=1e-9)


def test_the_floor_is_solved_for_once_and_when_asked(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return theory.optimal_geometry(*arguments)

    monkeypatch.setattr(_certificate, "optimal_geometry", counted)
    views, y = Population(noise=0.3).draw(60, 2, 0)
    result, other = (certificate(views, y, 0.5, random_state=0) for _ in range(2))
    assert calls == []
    assert result.floor == result.floor > 0
    assert calls == [(result.priors, 0.5)]
    # It is not compared, nor in the hash: what it is made of is.
    assert result == other
    assert hash(result) == hash(other)
    assert result != replace(result, priors=(0.5, 0.5))


@pytest.mark.parametrize("method", METHODS)
def test_unlabelled_rows(method):
    views, y = Population(noise=0.2).draw(2000, 2, 0)
    labelled = certificate(views, y, 1.0, method=method, random_state=0)
    alone = certificate(views, None, 1.0, method=method, random_state=0)
    assert alone.contrastive_loss == labelled.contrastive_loss
    assert not alone.vacuous
    assert certificate(views, None, 0.1, method=method, random_state=0).vacuous
    for name in [*LABELLED, "error", *DIRECT, "priors", "floor"]:
        assert getattr(alone, name) is None
    assert (alone.n_rows, alone.temperature) == (2000, 1.0)
    assert (alone.method, alone.confidence) == (method, 0.95)


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_a_single_view(method):
    """The incurred loss needs no second view; the discrepancy alone does."""
    views, y = Population(noise=0.2).draw(1500, 1, 0)
    truth = Population(noise=0.2).truth(1.0)
    result = certificate(views, y, 1.0, method=method, random_state=0)
    assert result.contrastive_loss is None
    assert result.squared_discrepancy is None
    assert result.incurred_loss.bound >= truth["incurred_loss"]
    assert abs(result.incurred_loss.estimate - truth["incurred_loss"]) < 0.1
    assert result.vacuous == result.incurred_loss.vacuous


@pytest.mark.parametrize("method", METHODS)
def test_ragged_views_that_are_equal_in_number_are_an_array(method):
    views, y = Population(noise=0.2).draw(100, 3, 0)
    expected = certificate(views, y, 0.5, method=method, random_state=0)
    assert certificate(list(views), y, 0.5, method=method, random_state=0) == expected
    # A repeated set of views is the same mean, but in U, which counts them.
    ragged = [np.concatenate([z, z]) if i % 2 else z for i, z in enumerate(views)]
    result = certificate(ragged, y, 0.5, method=method, random_state=0)
    for name in ("incurred_loss", "cross_entropy", "direct_cross_entropy"):
        given, of_array = getattr(result, name), getattr(expected, name)
        assert given.estimate == pytest.approx(of_array.estimate)
        assert given.deviation == pytest.approx(of_array.deviation)


def test_labels_of_any_type():
    views, y = Population(noise=0.2).draw(100, 2, 0)
    expected = certificate(views, y, 0.5, random_state=0)
    names = np.array(["common", "rare", "unseen"])
    for labels in (names[y], list(names[y]), names[y].astype(object), y * 7 + 1.0):
        assert certificate(views, labels, 0.5, random_state=0) == expected


def test_a_single_class():
    views, _ = Population(noise=0.2).draw(100, 2, 0)
    for method in METHODS:
        result = certificate(views, np.zeros(100), 0.5, method=method, random_state=0)
        assert result.floor == 0
        assert result.error.trivial == result.cross_entropy.trivial == 0
        assert result.direct_cross_entropy.estimate == pytest.approx(0, abs=1e-12)
        assert all(getattr(result, n).vacuous for n in GUARANTEES if n in DIRECT)


def test_random_state():
    views, y = Population(noise=0.2).draw(50, 2, 0)
    expected = certificate(views, y, 0.5, random_state=3)
    given = np.random.RandomState(3)
    assert certificate(views, y, 0.5, random_state=np.int64(3)) == expected
    assert certificate(views, y, 0.5, random_state=given) == expected
    assert certificate(views, y, 0.5, random_state=given) != expected
    # None is numpy's global generator, which no other touches.
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(3)  # noqa: NPY002
        certificate(views, y, 0.5, random_state=0)
        assert certificate(views, y, 0.5) == expected
        assert certificate(views, y, 0.5) != expected
    finally:
        np.random.set_state(state)  # noqa: NPY002


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", [1e-300, 1e-160, 1e-20, 1e-4, 0.01, 100.0, 1e6, 1e300])
def test_extreme_temperatures(method, t):
    """Finite, without a warning, and vacuous where it is cold."""
    views, y = Population(noise=0.3).draw(200, 2, 0)
    result = certificate(views, y, t, method=method, random_state=0)
    terms = [astuple(getattr(result, name)) for name in GUARANTEES]
    assert np.isfinite(terms).all()
    bounds = np.array([getattr(result, name).bound for name in GUARANTEES])
    assert (bounds > -1e-3).all()
    assert 0 <= result.floor <= np.log2(3) + 1e-9
    if t < 1:
        assert result.vacuous
        assert result.cross_entropy.vacuous
    else:
        assert abs(result.incurred_loss.estimate) < 2 / t + 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", [1e-300, 1e-160, 1e-20, 0.01, 1e6])
def test_rows_at_few_points(method, t):
    """A view times itself may be above 1 by rounding, which a large λ multiplies."""
    for n_points, d in [(1, 3), (5, 16), (5, 300)]:
        points = unit(np.random.RandomState(0).normal(size=(n_points, d)))
        rows = [points[[i % n_points] * (2 + i % 2)] for i in range(200)]
        result = certificate(rows, np.zeros(200), t, method=method, random_state=0)
        terms = [astuple(getattr(result, name)) for name in GUARANTEES]
        assert np.isfinite(terms).all()
        assert all(getattr(result, name).vacuous for name in LABELLED + DIRECT)


def test_rounding_of_views_is_removed():
    """Half precision keeps norms to 1e-3, and ranges are those of norm 1."""
    views, y = Population(noise=0.2).draw(200, 2, 0)
    exact = certificate(views, y, 0.5, random_state=0)
    rounded = certificate(views.astype(np.float16), y, 0.5, random_state=0)
    scaled = certificate(views * 1.0015, y, 0.5, random_state=0)
    for name in GUARANTEES:
        of_exact = getattr(exact, name).bound
        assert getattr(scaled, name).bound == pytest.approx(of_exact, abs=1e-12)
        assert getattr(rounded, name).bound == pytest.approx(of_exact, abs=0.02)


def test_guarantee():
    guarantee = Guarantee(estimate=-1.0, deviation=0.25, correction=0.5, trivial=0.0)
    assert guarantee.bound == -0.25
    assert not guarantee.vacuous
    assert Guarantee(-1.0, 0.5, 0.5, 0.0).vacuous
    assert Guarantee(-1.0, np.inf, 0.5, 0.0).vacuous
    assert Certificate("split", 0.95, 8, 1.0, guarantee).vacuous is False
    labelled = Certificate("split", 0.95, 8, 1.0, guarantee, Guarantee(0, 0, 0, 0))
    assert labelled.vacuous


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"temperature": 0.0}, r"temperature=0\.0: a finite number above 0"),
        ({"confidence": 1.0}, r"confidence=1\.0: a number above 0 and below 1"),
        ({"confidence": 0}, "confidence=0: a number above 0 and below 1"),
        ({"confidence": np.nan}, "confidence=nan: a number above 0 and below 1"),
        ({"confidence": "0.9"}, "confidence='0.9': a number above 0 and below 1"),
        ({"method": "bernstein"}, r"method='bernstein': allowed are \('split'"),
        ({"method": ["split"]}, r"method=\['split'\]: allowed are"),
        ({"random_state": -1}, "Seed must be between 0 and"),
        ({"random_state": 1.5}, r"1\.5 cannot be used to seed"),
        ({"y": [0] * 9}, r"y is of shape \(9,\): \(10,\)"),
        ({"y": [-1] + [0] * 9}, "y holds -1"),
        ({"views": np.ones((10, 2, 3)), "y": None}, "unit vectors"),
        ({"views": np.ones((10, 1)), "y": None}, "views"),
    ],
)
def test_refused_arguments(changed, message):
    views, y = Population(noise=0.2).draw(10, 2, 0)
    arguments = {"views": views, "y": y, "temperature": 1.0} | changed
    with pytest.raises(ValueError, match=message):
        certificate(**arguments)


@pytest.mark.parametrize("method", METHODS)
def test_too_few_rows_or_views(method):
    views, y = Population(noise=0.2).draw(8, 2, 0)
    certificate(views, y, 1.0, method=method)
    with pytest.raises(ValueError, match="views has 7 rows: at least 8 are needed"):
        certificate(views[:7], y[:7], 1.0, method=method)
    rows = [z[:1] if i == 5 else z for i, z in enumerate(views)]
    certificate(rows, y, 1.0, method=method)
    with pytest.raises(ValueError, match="views has a single view of row 5: without"):
        certificate(rows, None, 1.0, method=method)
