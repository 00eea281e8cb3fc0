"""Each loss against a literal loop, the theory, and the minimizers it should have."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from torch.nn.functional import cross_entropy

from skcl import theory
from skcl.incurred import INCURRED, infonce, logistic

NAMES = ["infonce", "spectral", "logistic"]
PRIORS = [0.1, 0.03, 0.01]  # of the rare class


def random_case(seed, n=7, K=4, *, absent=False):
    """Scores, classes, priors that are not the classes' frequencies, and weights."""
    generator = torch.Generator().manual_seed(seed)
    scores, raw = torch.randn(2, n, K, generator=generator, dtype=torch.float64)
    priors = raw[0].exp()
    if absent:
        priors[1] = 0
    y = priors.expand(n, K).multinomial(1, generator=generator).squeeze(1)
    return 2 * scores, y, priors / priors.sum(), raw[:, 0].exp()


def loop(name, scores, y, priors, w=None):
    """The formula, row after row and class after class."""
    w = [1.0] * len(y) if w is None else w.tolist()
    total = 0.0
    for s, own_class, weight in zip(scores.tolist(), y.tolist(), w, strict=True):
        own, terms = s[own_class], list(zip(priors.tolist(), s, strict=True))
        if name == "infonce":
            value = -own + math.log(sum(p * math.exp(s_k) for p, s_k in terms))
        elif name == "spectral":
            value = -2 * own + sum(p * s_k**2 for p, s_k in terms)
        else:
            value = sum(p * math.log(1 + math.exp(-(own - s_k))) for p, s_k in terms)
        total += weight * value
    return total / sum(w)


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_value_equals_the_literal_loop(name, weighted, absent):
    for seed in range(5):
        scores, y, priors, w = random_case(seed, absent=absent)
        args = (scores, y, priors, w if weighted else None)
        value = INCURRED[name](*args)
        assert value.shape == ()
        assert value.item() == pytest.approx(loop(name, *args), abs=1e-12)


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name, weighted, absent):
    scores, y, priors, w = random_case(0, absent=absent)
    w = w if weighted else None
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: INCURRED[name](s, y, priors, w), scores)


def test_supcon_incurs_the_loss_of_infonce():
    assert INCURRED["supcon"] is INCURRED["infonce"] is infonce
    assert set(INCURRED) == set(theory.LOSSES)


def value_and_gradient(name, scores, *args):
    scores = scores.clone().requires_grad_()
    value = INCURRED[name](scores, *args)
    value.backward()
    return value.detach(), scores.grad


@pytest.mark.parametrize("name", NAMES)
def test_a_class_of_prior_0_is_not_read(name):
    """A class without rows has no center, so its scores are NaN."""
    scores, y, priors, w = random_case(1, absent=True)
    present = priors > 0
    for garbage in (torch.nan, torch.inf, 1e300):
        spoiled = torch.where(present, scores, garbage)
        value, gradient = value_and_gradient(name, spoiled, y, priors, w)
        y_present = (present.cumsum(0) - 1)[y]
        alone = value_and_gradient(
            name, scores[:, present], y_present, priors[present], w
        )
        torch.testing.assert_close((value, gradient[:, present]), alone)
        assert not gradient[:, ~present].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_a_class_of_prior_0_reads_its_own_score(name):
    scores, y, priors, w = random_case(1, absent=True)
    y[2] = 1
    value, gradient = value_and_gradient(name, scores, y, priors, w)
    assert value.item() == pytest.approx(loop(name, scores, y, priors, w), abs=1e-12)
    assert gradient[2, 1] != 0
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e2, 1e4, 1e15])
@pytest.mark.parametrize("name", NAMES)
def test_finite_at_large_scores(name, scale, dtype):
    scores, y, priors, w = random_case(2, absent=True)
    scores[0] = 0.0
    args = (y, priors, w)
    value, gradient = value_and_gradient(name, (scale * scores).to(dtype), *args)
    assert value.dtype == gradient.dtype == dtype
    assert value.isfinite()
    assert gradient.isfinite().all()
    exact = value_and_gradient(name, (scale * scores).to(dtype).double(), *args)
    torch.testing.assert_close(value.double(), exact[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), exact[1], rtol=1e-5, atol=1e-5)


def test_a_sure_score_keeps_its_digits():
    """No difference of large numbers, no threshold beyond which log(1 + eᵘ) is u."""
    y, priors = torch.tensor([0]), torch.tensor([0.25, 0.75])
    for margin in (30.0, 1e4, 1e7):
        scores = torch.tensor([[margin, 0.0]])
        assert infonce(scores, y, priors).item() == pytest.approx(math.log(0.25))
        of_itself = 0.25 * math.log(2)
        assert logistic(scores, y, priors).item() == pytest.approx(of_itself)
        wrong = of_itself + 0.75 * margin
        assert logistic(-scores, y, priors).item() == pytest.approx(wrong)
    scores = torch.tensor([[-21.0, 0.0]], dtype=torch.float64)
    value = logistic(scores, y, torch.tensor([0.0, 1.0])).item()
    assert value == pytest.approx(21 + math.log1p(math.exp(-21)), rel=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_weights(name):
    """Only ratios matter, integers count copies, and a row of weight 0 is absent."""
    scores, y, priors, w = random_case(3)
    plain = INCURRED[name](scores, y, priors)
    weighted = INCURRED[name](scores, y, priors, w)
    assert not torch.isclose(plain, weighted, rtol=1e-2)
    for scale in (1e-300, 3.0, 1e307):
        equal = torch.full_like(w, scale)
        torch.testing.assert_close(INCURRED[name](scores, y, priors, equal), plain)
        scaled = INCURRED[name](scores, y, priors, scale * w)
        torch.testing.assert_close(scaled, weighted)
    copies = torch.tensor([2, 0, 1, 3, 1, 0, 1])
    repeated = scores.repeat_interleave(copies, 0), y.repeat_interleave(copies)
    torch.testing.assert_close(
        INCURRED[name](scores, y, priors, copies), INCURRED[name](*repeated, priors)
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("V", [1, 3])
@pytest.mark.parametrize("name", INCURRED)
def test_equals_the_theory_on_scores_of_the_centers(name, V, weighted):
    rng, t = np.random.RandomState(0), 0.3
    y = np.repeat([0, 1, 3], [6, 3, 1])  # class 2 is absent
    views = rng.normal(size=(len(y), V, 4))
    views /= np.linalg.norm(views, axis=-1, keepdims=True)
    w = rng.exponential(size=len(y)) if weighted else np.ones(len(y))
    centers = theory.class_centers(views.mean(axis=1), y, sample_weight=w)
    scores = views.reshape(-1, 4) @ centers.T / (1 if name == "spectral" else t)
    value = INCURRED[name](
        torch.from_numpy(scores),
        torch.from_numpy(np.repeat(y, V)),
        torch.from_numpy(np.bincount(y, weights=w) / w.sum()),
        torch.from_numpy(np.repeat(w, V)) if weighted else None,
    )
    expected = theory.incurred_loss(views, y, t, name, sample_weight=w)
    assert value.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_infonce_is_logit_adjusted_cross_entropy_less_the_entropy(weighted):
    """With the (weighted) frequencies as priors; equal priors give the plain one."""
    scores, y, _, w = random_case(4, n=40)
    w = w if weighted else torch.ones_like(w)
    priors = torch.bincount(y, w, minlength=4) / w.sum()
    adjusted = cross_entropy(scores + priors.log(), y, reduction="none")
    entropy = -torch.xlogy(priors, priors).sum()
    value = infonce(scores, y, priors, w)
    torch.testing.assert_close(value, (w * adjusted).sum() / w.sum() - entropy)
    equal = torch.full((4,), 0.25, dtype=torch.float64)
    plain = (w * cross_entropy(scores, y, reduction="none")).sum() / w.sum()
    torch.testing.assert_close(infonce(scores, y, equal, w), plain - math.log(4))


def minimize(loss, parameters, steps=1000):
    """Minimize a smooth function of parameters, in place; return the minimum."""
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=steps,
        tolerance_grad=1e-11,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    return loss().item()


def fit(loss, size):
    """Return the coefficients, from 0, that minimize the loss, and the minimum."""
    theta = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    least = minimize(lambda: loss(theta), [theta])
    return theta.detach(), least


def joint(seed, n_values=6, K=4):
    """A joint distribution of X, of few values, and Y: p(x, k), (n_values, K)."""
    rng = np.random.RandomState(seed)
    given_class = rng.dirichlet(np.ones(n_values), size=K)
    return torch.from_numpy((given_class * rng.dirichlet(np.ones(K))[:, None]).T.copy())


def as_rows(p):
    """Return (index of x, class, weight) of all pairs, as weighted rows."""
    x, y = torch.cartesian_prod(*(torch.arange(m) for m in p.shape)).T
    return x, y, p.flatten()


def population(name, scores, p):
    """The loss over p(x, k) of the scores that each value of X has."""
    x, y, w = as_rows(p)
    return INCURRED[name](scores[x], y, p.sum(dim=0), w)


def closed_form(name, p):
    """Return minimizing scores of the values of X, and the minimum."""
    product = p.sum(dim=1, keepdim=True) * p.sum(dim=0)
    ratio = p / product  # p(x | k) / p(x)
    if name == "infonce":
        return ratio.log(), -torch.xlogy(p, ratio).sum()
    if name == "spectral":
        chi_squared = ((p - product).square() / product).sum()
        return ratio, -(1 + chi_squared)
    priors = p.sum(dim=0)
    c = p / priors  # p(x | k)
    a, b = c[:, :, None], c[:, None, :]
    kl = torch.xlogy(a, 2 * a / (a + b)).sum(dim=0)
    divergence = (kl + kl.T) / 2  # Jensen-Shannon, (K, K)
    return c.log(), math.log(2) - priors @ divergence @ priors


def differences(name, scores):
    """Scores up to what a loss leaves free: a function of x, but for the spectral."""
    return scores if name == "spectral" else scores - scores[:, :1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_the_minimizer_over_all_scores_is_free_of_the_prior(name, seed):
    """The losses are convex: where the gradient is 0, they are least."""
    p = joint(seed)
    best, minimum = closed_form(name, p)
    best.requires_grad_()
    value = population(name, best, p)
    torch.testing.assert_close(value, minimum)
    (gradient,) = torch.autograd.grad(value, best)
    assert gradient.abs().max() < 1e-12
    scores = torch.zeros_like(p, requires_grad=True)
    found = minimize(lambda: population(name, scores, p), [scores])
    assert found == pytest.approx(minimum.item(), abs=1e-10)
    torch.testing.assert_close(
        differences(name, scores), differences(name, best), rtol=1e-5, atol=1e-5
    )
    balanced, plain = (p / p.sum(dim=0)).argmax(dim=1), p.argmax(dim=1)
    assert scores.argmax(dim=1).equal(balanced)
    assert not balanced.equal(plain)
    if name == "infonce":
        # The cross-entropy, whose scores are those of the plain rule.
        x, y, w = as_rows(p)
        equal = torch.full((4,), 0.25)
        minimize(lambda: infonce(scores[x], y, equal, w), [scores])
        assert scores.argmax(dim=1).equal(plain)


@pytest.mark.parametrize("name", NAMES)
def test_no_scores_cost_less_than_the_minimum(name):
    """And -log K ≤ -H(π) ≤ -I(X; Y) ≤ -I(f(X); Y) ≤ loss; f merges values of X."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(50):
        p = joint(seed)
        _, minimum = closed_form(name, p)
        merged = torch.stack([p[:3].sum(dim=0), p[3:].sum(dim=0)])
        of_merged, least = closed_form(name, merged)
        assert minimum <= least
        if name == "infonce":
            priors = p.sum(dim=0)
            assert -math.log(4) <= torch.xlogy(priors, priors).sum() <= minimum
        for scale in (0.1, 1.0):
            noise = scale * torch.randn(2, 4, generator=generator, dtype=p.dtype)
            scores = (of_merged + noise).repeat_interleave(3, dim=0)
            assert population(name, scores, p) >= least


def grid(means, scales, priors, n=1601):
    """Two normal classes as weighted rows: the trapezoidal rule, exact to rounding."""
    x = torch.linspace(-14, 14, n, dtype=torch.float64)
    normal = torch.distributions.Normal(torch.tensor(means), torch.tensor(scales))
    w = normal.log_prob(x[:, None]).exp() * priors  # (n, 2)
    y = torch.arange(2).repeat(n)
    return x.repeat_interleave(2)[:, None], y, w.flatten() / w.sum()


def two_scores(theta, features):
    """Scores 0 and θ·(features, 1): all that a linear head can do for two classes."""
    s = features @ theta[:-1] + theta[-1]
    return torch.stack([torch.zeros_like(s), s], dim=1)


def two_errors(scores, y, w):
    """Return the balanced and the plain error of argmax."""
    wrong = w * (scores.argmax(dim=1) != y)
    of_class = torch.bincount(y, wrong) / torch.bincount(y, w)
    return of_class.mean().item(), (wrong.sum() / w.sum()).item()


def test_two_normal_classes_in_closed_form():
    """log p(x | 1) / p(x | 0) = 2x: w = 2, b = 0 for the losses that linear scores fit.

    The spectral loss is left out: its minimizer p(x | k) / p(x) is not linear in x.
    """
    priors = torch.tensor([0.95, 0.05], dtype=torch.float64)
    x, y, w = grid([-1.0, 1.0], [1.0, 1.0], priors)

    def plain(theta):
        losses = cross_entropy(two_scores(theta, x), y, reduction="none")
        return (w * losses).sum()

    theta, least = fit(lambda theta: infonce(two_scores(theta, x), y, priors, w), 2)
    assert theta.tolist() == pytest.approx([2, 0], abs=1e-6)
    assert least == pytest.approx(-0.0805160945, abs=1e-10)
    theta, _ = fit(lambda theta: logistic(two_scores(theta, x), y, priors, w), 2)
    assert theta.tolist() == pytest.approx([2, 0], abs=1e-6)
    check_errors(0.0, balanced=0.1586552539, plain=0.1586552539)
    theta, least = fit(plain, 2)
    assert theta.tolist() == pytest.approx([2, -math.log(19)], abs=1e-6)
    assert least == pytest.approx(0.1179991488, abs=1e-10)
    boundary = (-theta[1] / theta[0]).item()
    assert boundary == pytest.approx(1.4722195, abs=1e-6)
    check_errors(boundary, balanced=0.3441643937, plain=0.0404589065)


def check_errors(boundary, balanced, plain):
    """Of N(-1, 1), prior .95, and N(+1, 1), split at a boundary."""
    of_class = np.array([norm.sf(boundary + 1), norm.cdf(boundary - 1)])
    assert of_class.mean() == pytest.approx(balanced, abs=1e-6)
    assert of_class @ [0.95, 0.05] == pytest.approx(plain, abs=1e-6)


def sample(means, scales, rare, n):
    """Rows of two normal classes, n times rare of them of the rare one."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(n) < round(n * rare)).long()
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    x = torch.tensor(means)[y] + torch.tensor(scales)[y] * noise
    return x[:, None], y, torch.bincount(y) / n


def log_ratio(means, scales):
    """Coefficients of x, x² and 1 in log p(x | 1) / p(x | 0)."""
    (m, M), (s, S) = means, scales
    linear, square = M / S**2 - m / s**2, (1 / s**2 - 1 / S**2) / 2
    return linear, square, (m**2 / s**2 - M**2 / S**2) / 2 + math.log(s / S)


def information(means, scales, priors):
    """I(X; Y) by quadrature."""
    p = grid(means, scales, priors.double())[2].reshape(-1, 2)
    product = p.sum(dim=0) * p.sum(dim=1, keepdim=True)
    return torch.where(p > 0, torch.xlogy(p, p / product), 0).sum().item()


def wald(theta, expected, hessian, n):
    """(θ - θ*)ᵀ n H (θ - θ*), to be compared with chi-squared of len(θ) degrees.

    It is exact for the cross-entropy of classes drawn at random, and conservative for
    classes of fixed size, where the intercept varies less.
    """
    difference = theta - torch.tensor(expected, dtype=torch.float64)
    return (n * difference @ hessian @ difference).item()


@pytest.mark.parametrize("rare", PRIORS)
@pytest.mark.parametrize("kind", ["linear", "quadratic"])
def test_a_head_trained_on_a_sample_finds_the_balanced_rule(kind, rare):
    """Within the sampling error that the Hessian gives; cross-entropy, the plain one.

    The two differ by the log odds in the intercept, exactly.
    """
    n, means = 20_000, [-1.0, 1.0]
    scales = [1.0, 1.0 if kind == "linear" else 2.0]
    x, y, priors = sample(means, scales, rare, n)
    linear, square, constant = log_ratio(means, scales)
    features = x if kind == "linear" else torch.cat([x, x**2], dim=1)
    slopes = [linear] if kind == "linear" else [linear, square]

    def incurred(theta):
        return infonce(two_scores(theta, features), y, priors)

    def plain(theta):
        return cross_entropy(two_scores(theta, features), y)

    size, log_odds = len(slopes) + 1, math.log(rare / (1 - rare))
    (theta, least), (of_plain, _) = fit(incurred, size), fit(plain, size)
    shift = torch.eye(size, dtype=torch.float64)[-1] * log_odds
    torch.testing.assert_close(theta, of_plain - shift, rtol=1e-4, atol=1e-4)
    hessian = torch.autograd.functional.hessian(incurred, theta)
    limit = chi2.ppf(0.999, size)
    assert wald(theta, [*slopes, constant], hessian, n) < limit
    assert wald(of_plain, [*slopes, constant + log_odds], hessian, n) < limit
    assert wald(of_plain, [*slopes, constant], hessian, n) > 10 * limit
    s = two_scores(theta, features)
    terms = (s + priors.log()).logsumexp(dim=1) - s[torch.arange(n), y]
    tolerance = 3.3 * terms.std().item() / math.sqrt(n)
    assert least == pytest.approx(-information(means, scales, priors), abs=tolerance)


@pytest.mark.parametrize("rare", PRIORS)
@pytest.mark.parametrize("name", ["infonce", "logistic", "cross-entropy"])
def test_a_network_trained_on_a_sample_finds_the_balanced_rule(name, rare):
    """And cross-entropy the plain one, for a normal class inside a wider one.

    The spectral loss is left out: its scores p(x | k) / p(x), up to 1/π_k, are fitted
    by least squares, for which 200 rare rows are few.
    """
    means, scales = [0.0, 1.0], [1.0, 2.0]
    x, y, priors = sample(means, scales, rare, n=20_000)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    ).double()

    def loss():
        if name == "cross-entropy":
            return cross_entropy(network(x), y)
        return INCURRED[name](network(x), y, priors)

    minimize(loss, network.parameters(), steps=60)
    x, y, w = grid(means, scales, priors.double())
    linear, square, constant = log_ratio(means, scales)
    theta = torch.tensor([linear, square, constant], dtype=torch.float64)
    best = two_scores(theta, torch.cat([x, x**2], dim=1))
    balanced, plain = two_errors(network(x), y, w)
    least_balanced, _ = two_errors(best, y, w)
    _, least_plain = two_errors(best + priors.log(), y, w)
    if name == "cross-entropy":
        assert plain < least_plain + 0.001
        assert balanced > least_balanced + 0.05
    else:
        assert balanced < least_balanced + 0.02
        assert plain > least_plain + 0.05


@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.zeros(4)}, r"scores is of shape \(4,\)"),
        ({"scores": torch.zeros(4, 2, dtype=torch.int64)}, "scores .* of floats"),
        ({"y": torch.zeros(3, dtype=torch.int64)}, r"y is of shape \(3,\): \(4,\)"),
        ({"y": torch.tensor([0, 1, 2, 0])}, "y holds other .* from 0 to 1"),
        ({"y": torch.tensor([0, 1, -1, 0])}, "y holds other .* from 0 to 1"),
        ({"y": torch.zeros(4)}, "y holds other than whole numbers"),
        ({"priors": torch.tensor([1.0])}, r"priors is of shape \(1,\): \(2,\)"),
        ({"priors": torch.tensor([3, 1])}, r"priors=\[3.0, 1.0\]: .* of sum 1"),
        ({"priors": torch.tensor([1.5, -0.5])}, "priors=.*: not negative"),
        ({"sample_weight": torch.ones(4, 1)}, r"sample_weight is of shape \(4, 1\)"),
    ],
)
def test_refused_arguments(loss, change, message):
    arguments = {
        "scores": torch.zeros(4, 2),
        "y": torch.tensor([0, 0, 0, 1]),
        "priors": torch.tensor([0.75, 0.25]),
    }
    with pytest.raises(ValueError, match=message):
        INCURRED[loss](**(arguments | change))
