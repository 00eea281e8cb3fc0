"""The same bits for the same seed; nothing global changes."""

import ast
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from torch import nn

from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer
from skcl.losses import LOSSES


def global_state():
    return (
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
    )


def dropout_backbone(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 8), nn.Dropout(0.3), nn.Linear(8, n_out))


@pytest.mark.parametrize("backbone", ["mlp", dropout_backbone])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_seed_gives_the_bits_and_global_generators_stay(
    backbone, early_stopping, rows, make_encoder
):
    params = {"backbone": backbone, "early_stopping": early_stopping}
    params["regularizer"] = RelaxedKMeansRegularizer(n_clusters=3)
    before = global_state()
    first = make_encoder(**params).fit_transform(rows)
    assert global_state() == before
    torch.rand(3)
    np.random.rand(3)  # noqa: NPY002
    encoder = make_encoder(**params)
    np.testing.assert_array_equal(encoder.fit_transform(rows), first)
    np.testing.assert_array_equal(encoder.fit(rows).transform(rows), first)
    assert (make_encoder(**params, random_state=1).fit_transform(rows) != first).any()


def test_random_state_instance_and_none(rows, make_encoder):
    one = make_encoder(random_state=np.random.RandomState(3)).fit_transform(rows)
    two = make_encoder(random_state=np.random.RandomState(3)).fit_transform(rows)
    np.testing.assert_array_equal(one, two)
    shared = np.random.RandomState(3)
    np.testing.assert_array_equal(
        make_encoder(random_state=shared).fit_transform(rows), one
    )
    assert (make_encoder(random_state=shared).fit_transform(rows) != one).any()
    fits = [make_encoder(random_state=None).fit_transform(rows) for _ in range(2)]
    assert (fits[0] != fits[1]).any()


def fit_everything(n_threads):
    """Bytes of embeddings and centers, with matrices long enough to be split."""
    torch.set_num_threads(n_threads)
    rng = np.random.RandomState(0)
    X, y = rng.normal(size=(2100, 9)), np.arange(2100) % 3
    results = {}
    for loss, relaxation in zip(LOSSES, ["spectral", "entropic"] * 2, strict=True):
        encoder = ContrastiveEncoder(
            loss=loss,
            regularizer=RelaxedKMeansRegularizer(5, relaxation=relaxation),
            batch_size=1050,
            max_iter=2,
            random_state=0,
        )
        Z = encoder.fit_transform(X, y)
        results[loss, relaxation] = Z.tobytes(), encoder.loss_curve_
    for relaxation in ("spectral", "entropic"):
        clustering = RelaxedKMeansRegularizer(
            5, relaxation=relaxation, n_init=1, max_iter=20, random_state=0
        )
        centers = clustering.fit(X).cluster_centers_
        results["alone", relaxation] = centers.tobytes(), clustering.inertia_
    wide = rng.normal(size=(600, 1100))
    for params in ({"hidden_layer_sizes": (1024, 64)}, {"projection_dim": 600}):
        encoder = ContrastiveEncoder(**params, max_iter=1, random_state=0)
        results[str(params)] = encoder.fit_transform(wide).tobytes()
    centers = RelaxedKMeansRegularizer(3, n_init=1, max_iter=5, random_state=0)
    results["wide"] = centers.fit(wide).cluster_centers_.tobytes()
    scorer = DiscrepancyScorer(n_clusters=4, random_state=0).fit(X)
    results["scorer"] = scorer.centers_.tobytes(), scorer.score(X)
    return results


def test_bits_do_not_depend_on_threads_or_processes():
    one, two, four, again = Parallel(n_jobs=2)(
        delayed(fit_everything)(n_threads) for n_threads in (1, 2, 4, 1)
    )
    for key, value in one.items():
        assert value == two[key] == four[key] == again[key], key


def test_bits_do_not_depend_on_the_process(rows, make_encoder):
    code = (
        "import json, numpy as np; from skcl import ContrastiveEncoder;"
        "X = np.random.RandomState(0).normal(size=(120, 4));"
        "Z = ContrastiveEncoder(5, hidden_layer_sizes=(16,), projection_dim=4,"
        " max_iter=5, batch_size=64, random_state=0).fit_transform(X);"
        "print(json.dumps(Z.tolist()))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    ).stdout
    expected = make_encoder().fit_transform(rows)
    np.testing.assert_array_equal(np.float32(json.loads(printed)), expected)


def test_a_second_fit_forgets_the_first(rows, make_encoder):
    encoder = make_encoder(loss="supcon").fit(rows[:, :2], np.arange(120) % 3)
    encoder.set_params(loss="infonce").fit(rows)
    fresh = make_encoder().fit(rows)
    assert set(vars(encoder)) == set(vars(fresh))
    np.testing.assert_array_equal(encoder.transform(rows), fresh.transform(rows))


@pytest.mark.parametrize("backbone", ["mlp", dropout_backbone])
def test_fits_in_threads_are_independent(backbone, rows, make_encoder):
    before = torch.get_rng_state()
    fits = Parallel(n_jobs=4, prefer="threads")(
        delayed(make_encoder(backbone=backbone, max_iter=20).fit_transform)(rows)
        for _ in range(8)
    )
    for Z in fits[1:]:
        np.testing.assert_array_equal(Z, fits[0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "estimator",
    [
        RelaxedKMeansRegularizer(3, random_state=0),
        RelaxedKMeansRegularizer(3, relaxation="spectral", random_state=0),
        DiscrepancyScorer(n_clusters=3, random_state=0),
    ],
)
def test_the_other_estimators_leave_the_global_state(estimator, rows):
    before = global_state()
    first = estimator.fit(rows).transform(rows)
    assert global_state() == before
    np.testing.assert_array_equal(estimator.fit(rows).transform(rows), first)


def test_a_loss_may_draw_from_the_global_generator(rows, make_encoder):
    def noisy(z, temperature, y):
        return LOSSES["infonce"](z + 0.1 * torch.rand(z.shape), temperature)

    class Noisy(RelaxedKMeansRegularizer):
        def penalty(self, means, state, y=None, rows=None):
            return super().penalty(means + 0.1 * torch.rand(means.shape), state, y)

    before = global_state()
    fits = []
    for _ in range(2):
        encoder = make_encoder(loss=noisy, regularizer=Noisy(3)).fit(rows)
        fits.append((encoder.transform(rows).tobytes(), encoder.score(rows)))
    quiet = make_encoder(regularizer=Noisy(3)).fit_transform(rows)
    assert global_state() == before
    assert fits[0] == fits[1]
    torch.rand(1)
    np.testing.assert_array_equal(
        make_encoder(regularizer=Noisy(3)).fit_transform(rows), quiet
    )
    first = make_encoder(loss=noisy).fit_transform(rows)
    np.testing.assert_array_equal(make_encoder(loss=noisy).fit_transform(rows), first)


def test_two_jobs_share_the_cores():
    """Workers of joblib have their share of threads, and fit leaves it as it is."""
    code = (
        "import os, numpy as np, torch; from joblib import Parallel, delayed\n"
        "from skcl import ContrastiveEncoder\n"
        "def work():\n"
        "    before = torch.get_num_threads()\n"
        "    ContrastiveEncoder(max_iter=1).fit(np.random.rand(40, 3))\n"
        "    return before, torch.get_num_threads()\n"
        "print(Parallel(n_jobs=2)(delayed(work)() for _ in range(4)))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    ).stdout
    for before, after in ast.literal_eval(printed.decode()):
        assert before == after <= max(os.cpu_count() // 2, 1)


WEIGHTED = """
import hashlib
import numpy as np
from skcl import ContrastiveEncoder

rng = np.random.RandomState(0)
half = rng.choice([-1.0, 0.0, 1.0], size=(20_000, 30))
X, weight = np.vstack([half, -half]), np.tile(rng.exponential(size=20_000), 2)
encoder = ContrastiveEncoder(
    max_iter=1, batch_size=500, hidden_layer_sizes=(), random_state=0
)
encoder.fit(X, sample_weight=weight)
print(hashlib.sha256(encoder.embed_views(X[:500]).tobytes()).hexdigest())
"""


def test_weights_give_the_same_bits_at_any_thread_count_of_the_blas():
    """Views are seeded by the bytes of standardized rows, which must not differ."""
    found = set()
    for n_threads in ("1", "2", "4"):
        threads = {"OPENBLAS_NUM_THREADS": n_threads, "OMP_NUM_THREADS": n_threads}
        run = subprocess.run(
            [sys.executable, "-c", WEIGHTED],
            env={**os.environ, **threads},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout)
    assert len(found) == 1


def test_a_first_fit_imports_no_compiler():
    """Torch's compiler takes a second to import: more than the fit of a small table."""
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from skcl import ContrastiveEncoder, RelaxedKMeansRegularizer\n"
        "X = np.random.RandomState(0).normal(size=(50, 4))\n"
        "regularizer = RelaxedKMeansRegularizer(3)\n"
        "encoder = ContrastiveEncoder(regularizer=regularizer, max_iter=3)\n"
        "encoder.fit(X).transform(X)\n"
        "encoder.score(X)\n"
        "print([m for m in ('torch._dynamo', 'sympy') if m in sys.modules])\n"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True).strip() == "[]"
