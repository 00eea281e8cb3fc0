"""Measure how near the machine's limit skcl trains, transforms and scores.

The limit is the floor: the matrix products alone, with outputs allocated beforehand.
Those of a training step are the products of forward and backward; the inputs of the
first layer have no gradient. The loss has one product forward, and backward two, as
autograd makes them; in the strict floor one, for the gradient by the similarities could
be made symmetric first.

Contenders take turns in one process, and a figure is the median of the ratios within
each turn, with the least and the largest: a machine's speed varies.
"""

import argparse
import os
import subprocess
import sys
import warnings
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from time import perf_counter

WIDTHS = (256, 256, 256, 256, 128)  # backbone and head, behind the columns
DEFAULT_WIDTHS = (256, 256, 64, 64, 64)  # of ContrastiveEncoder
TEMPERATURE, RATE = 0.2, 0.3
N_FLOOR_STEPS = 50
FLOORS = {"floor": 2, "strict floor": 1}  # products in the loss, backward
SIZES = ((20_000, 32), (100_000, 64))
BATCHES = (256, 1024)


# Training.


def step_floor(d, batch_size, n_products, widths=WIDTHS):
    """Return a function that makes the products of a step, over both views."""
    import torch

    n, sizes = 2 * batch_size, (d, *widths)
    x = [torch.randn(n, size) for size in sizes]
    weights = [torch.randn(b, a) for a, b in pairwise(sizes)]
    of_x, of_weights = [torch.empty_like(t) for t in x], [w.clone() for w in weights]
    similarity = torch.randn(n, n)

    def step():
        # Outputs of one layer are not the next one's inputs: they would overflow.
        for i, weight in enumerate(weights):
            torch.mm(x[i], weight.T, out=of_x[i + 1])
        torch.mm(x[-1], x[-1].T, out=similarity)
        for _ in range(n_products):
            torch.mm(similarity, x[-1], out=of_x[-1])
        for i in reversed(range(len(weights))):
            torch.mm(x[i + 1].T, x[i], out=of_weights[i])
            if i:
                torch.mm(x[i + 1], weights[i], out=of_x[i])

    return step


def make_network(d):
    """The network of all contenders, of plain modules."""
    from torch import nn

    layers = []
    for a, b in pairwise((d, *WIDTHS)):
        normalization = [nn.LayerNorm(a, elementwise_affine=False), nn.ReLU()]
        layers += [*normalization * bool(layers), nn.Linear(a, b)]
    return nn.Sequential(*layers)


def similarities(z):
    """Return the products of all views of unit vectors z (n, V = 2, d)."""
    anchors = z.flatten(0, 1)
    return anchors @ anchors.T


def full_matrix_infonce(z, temperature=TEMPERATURE):
    """NT-Xent of unit vectors z (n, V = 2, d) by the matrix of all similarities."""
    import torch

    similarity = similarities(z) / temperature
    similarity.fill_diagonal_(-torch.inf)
    partner = torch.arange(len(similarity)) ^ 1
    return torch.nn.functional.cross_entropy(similarity, partner)


def full_matrix_supcon(z, temperature=TEMPERATURE):
    """The supervised loss of the same, with seven classes."""
    import torch

    similarity = similarities(z) / temperature
    similarity.fill_diagonal_(-torch.inf)
    y = (torch.arange(len(z)) % 7).repeat_interleave(2)
    positive = (y[:, None] == y).fill_diagonal_(False)
    log_share = similarity.log_softmax(dim=1).masked_fill(~positive, 0)
    return -(log_share.sum(dim=1) / positive.sum(dim=1)).mean()


def full_matrix_spectral(z):
    """The spectral loss, with the views of all other rows as negatives."""
    import torch

    row = torch.arange(len(z)).repeat_interleave(2)
    negative = similarities(z).square().masked_fill(row[:, None] == row, 0)
    positive = (z[:, 0] * z[:, 1]).sum(dim=1).mean()
    return -2 * positive + negative.sum() / (len(row) * (len(row) - 2))


FULL_MATRIX = {
    "infonce": full_matrix_infonce,
    "supcon": full_matrix_supcon,
    "spectral": full_matrix_spectral,
}


def train(network, batches, optimizer):
    """Take a step on each batch of views (n, 2, d); return the steps and the losses."""
    from torch.nn.functional import normalize

    losses = []
    for views in batches:
        z = normalize(network(views.flatten(0, 1)), dim=1).unflatten(0, (-1, 2))
        loss = full_matrix_infonce(z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return len(losses), losses


def plain_loop(X, batch_size, n_epochs):
    """A loop as it is written first: rows and their views one by one."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Views(Dataset):
        def __init__(self):
            self.x = torch.from_numpy(X)

        def __len__(self):
            return len(self.x)

        def __getitem__(self, i):
            return torch.stack([self.view(self.x[i]) for _ in range(2)])

        def view(self, row):
            swapped = torch.rand(len(row)) < RATE
            others = torch.randint(len(self.x), (len(row),))
            return torch.where(swapped, self.x[others, torch.arange(len(row))], row)

    network = make_network(X.shape[1])
    loader = DataLoader(Views(), batch_size, shuffle=True, drop_last=True)
    epochs = (views for _ in range(n_epochs) for views in loader)
    return train(network, epochs, torch.optim.Adam(network.parameters(), 1e-3))


def fast_loop(X, batch_size, n_epochs):
    """A loop written for speed: whole batches, and Adam in one kernel."""
    import torch

    x, d = torch.from_numpy(X), X.shape[1]

    def views():
        for _ in range(n_epochs):
            for index in torch.randperm(len(x)).split(batch_size):
                rows = x.index_select(0, index)[:, None].expand(-1, 2, -1)
                swapped = torch.rand(rows.shape) < RATE
                others = x.gather(0, torch.randint(len(x), (2 * len(index), d)))
                yield torch.where(swapped, others.view(rows.shape), rows)

    network = make_network(d)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    return train(network, views(), optimizer)


def cebra_fit(X, batch_size, n_epochs):
    """CEBRA with the same network, and three batches: reference, positive, negative."""
    import cebra
    import torch

    name = "mlp-of-the-benchmark"
    if name not in cebra.models.get_options():

        @cebra.models.register(name)
        class Network(cebra.models.Model):
            def __init__(self, num_neurons, num_units, num_output, normalize=True):
                super().__init__(num_input=num_neurons, num_output=num_output)
                self.net = make_network(num_neurons)

            def forward(self, x):
                return torch.nn.functional.normalize(self.net(x.flatten(1)), dim=1)

            def get_offset(self):
                return cebra.data.Offset(0, 1)

    n_steps = n_epochs * len(X) // batch_size
    cebra.CEBRA(
        name,
        conditional="time",
        batch_size=batch_size,
        max_iterations=n_steps,
        output_dimension=WIDTHS[-1],
        temperature=TEMPERATURE,
        device="cpu",
    ).fit(X)
    return n_steps, None


def scarf_fit(X, batch_size, n_epochs):
    """SCARF of TabularS3L, as it is, for two steps."""
    from unittest import mock

    from benchmarks.quality import peers

    encoder = peers.ScarfEncoder(
        hidden_dim=256,
        n_layers=3,
        projection_dim=WIDTHS[-1],
        tau=TEMPERATURE,
        corruption_rate=RATE,
        batch_size=batch_size,
        learning_rate=1e-3,
        max_epochs=1,
        random_state=0,
    )
    import torch

    own = torch.nn.functional.cosine_similarity
    with mock.patch.object(peers, "_cosine_of_all_pairs", own):
        encoder.fit(X[: 2 * batch_size])
    return 2, None


def make_encoder(**params):
    from skcl import ContrastiveEncoder

    return ContrastiveEncoder(
        n_components=WIDTHS[2],
        hidden_layer_sizes=WIDTHS[:2],
        projection_dim=WIDTHS[-1],
        temperature=TEMPERATURE,
        corruption_rate=RATE,
        random_state=0,
        **params,
    )


def skcl_fit(X, batch_size, n_epochs, **params):
    encoder = make_encoder(batch_size=batch_size, max_iter=n_epochs, **params).fit(X)
    return n_epochs * -(-len(X) // batch_size), encoder.history_["contrastive"]


def floor_run(X, batch_size, n_products):
    """Return a run of the floor's steps, its matrices made beforehand."""
    step = step_floor(X.shape[1], batch_size, n_products)

    def run():
        for _ in range(N_FLOOR_STEPS):
            step()
        return N_FLOOR_STEPS, None

    return run


CONTENDERS = {
    "skcl": skcl_fit,
    "hand-optimised loop": fast_loop,
    "DataLoader loop": plain_loop,
    "CEBRA": cebra_fit,
    "TabularS3L": scarf_fit,
}
PACKAGES = {"CEBRA": "cebra", "TabularS3L": "ts3l"}


def training(repetitions, threads):
    """Yield the table of training: how much of the floor's speed each reaches."""
    from importlib.util import find_spec

    import numpy as np

    yield f"## Training, {threads} thread(s): the floor's time over the contender's"
    yield "| rows, columns | batch | contender | of the floor | strict floor | step |"
    yield "|---|---|---|---|---|---|"
    missing = {name for name, package in PACKAGES.items() if not find_spec(package)}
    for (n, d), batch_size in product(SIZES, BATCHES):
        X = np.random.RandomState(0).normal(size=(n, d)).astype(np.float32)
        X = X[: n - n % batch_size]  # whole batches only: the floor has no others
        # Of a hundred steps or more.
        work = {"X": X, "batch_size": batch_size, "n_epochs": -(-100 * batch_size // n)}
        left_out = missing if batch_size == 256 else {*missing, "TabularS3L"}
        runs = {
            name: partial(run, **work)
            for name, run in CONTENDERS.items()
            if name not in left_out
        }
        if "CEBRA" in runs:
            twice = work | {"batch_size": 2 * batch_size}
            runs["CEBRA, equal matrix"] = partial(cebra_fit, **twice)
        floors = {name: floor_run(X, batch_size, m) for name, m in FLOORS.items()}
        turns = take_turns(floors | runs, repetitions)
        for name in runs:
            of_floors = " | ".join(ratios(turns, floor, name) for floor in FLOORS)
            yield (
                f"| {n:,} × {d} | {batch_size} | {name} | {of_floors} "
                f"| {1e3 * median(turns[name]):.1f} ms |"
            )


def take_turns(runs, repetitions):
    """Return the seconds a step of each run in each turn; one turn goes before.

    Each turn begins with another run, as some leave caches and memory to the next.
    """
    seconds = {name: [] for name in runs}
    for turn in range(repetitions + 1):
        first = turn % len(runs)
        for name in (*list(runs)[first:], *list(runs)[:first]):
            start = perf_counter()
            n_steps, _ = runs[name]()
            if turn:
                seconds[name].append((perf_counter() - start) / n_steps)
    return seconds


def ratios(turns, a, b):
    """Return the median of a / b over the turns, and its range."""
    values = [x / y for x, y in zip(turns[a], turns[b], strict=True)]
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def regularizer(repetitions, threads):
    """Yield how much the regularizer adds to a fit."""
    import numpy as np

    from skcl import RelaxedKMeansRegularizer

    yield f"## The regularizer, {threads} thread(s): time of fit with it over without"
    yield "| rows, columns | batch | entropic | spectral |"
    yield "|---|---|---|---|"
    for (n, d), batch_size in ((SIZES[0], 256), (SIZES[0], 1024)):
        X = np.random.RandomState(0).normal(size=(n, d)).astype(np.float32)
        runs = {"none": partial(skcl_fit, X, batch_size, 5)}
        for kind in ("entropic", "spectral"):
            added = RelaxedKMeansRegularizer(10, relaxation=kind)
            runs[kind] = partial(skcl_fit, X, batch_size, 5, regularizer=added)
        turns = take_turns(runs, repetitions)
        cells = " | ".join(ratios(turns, kind, "none") for kind in list(runs)[1:])
        yield f"| {n:,} × {d} | {batch_size} | {cells} |"


# The loss alone.


def loss_run(loss, n_anchors):
    import torch

    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n_anchors // 2, 2, 128, generator=generator)
    z = torch.nn.functional.normalize(z, dim=-1).requires_grad_()

    def run():
        z.grad = None
        loss(z).backward()
        return 1, None

    return run


def ours(name):
    import torch

    from skcl.losses import LOSSES

    return lambda z: LOSSES[name](z, TEMPERATURE, torch.arange(len(z)) % 7)


def losses(repetitions, threads):
    """Yield the speed of the losses in tiles, and their memory."""
    yield f"## Losses, {threads} thread(s): time of the full matrix over ours"
    yield f"| anchors | {' | '.join(FULL_MATRIX)} |"
    yield "|---" * 4 + "|"
    for n in (2048, 8192, 16_384):
        cells = []
        for name, full in FULL_MATRIX.items():
            runs = {"full": loss_run(full, n), name: loss_run(ours(name), n)}
            turns = take_turns(runs, min(repetitions, 3))
            cells.append(ratios(turns, "full", name))
        yield f"| {n:,} | {' | '.join(cells)} |"
    yield "\nPeak memory beside the views, in GiB (and that of the full matrix):\n"
    yield f"| anchors | {' | '.join(FULL_MATRIX)} |"
    yield "|---" * 4 + "|"
    for n in (16_384, 65_536):
        cells = []
        for name in FULL_MATRIX:
            cells.append(f"{in_process(peak_of_loss, name, n, False):.2f}")
            if n == 16_384:
                cells[-1] += f" ({in_process(peak_of_loss, name, n, True):.2f})"
        yield f"| {n:,} | {' | '.join(cells)} |"


def peak_of_loss(name, n_anchors, full):
    """Print the peak memory of a loss and its gradient, above that of the views."""
    loss = FULL_MATRIX[name] if full else ours(name)
    loss_run(loss, 64)()
    print(peak_above(loss_run(loss, n_anchors))[0])


def peak_above(run):
    """Return the most memory that a run adds to the process's, in GiB, and its result.

    The process's own peak so far is forgotten first: it may be above what it has now.
    """
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()
    _, result = run()
    return peak_memory() - before, result


def peak_memory():
    """Return the most memory that the process has had, in GiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def in_process(function, *args):
    """Return the number that a function prints in a process of its own."""
    code = f"from benchmarks.speed import *; {function.__name__}(*{args})"
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    return float(output.splitlines()[-1])


# Transform.


def transform_run(n_rows):
    """Return a transform of so many rows, and the products in it."""
    import numpy as np
    import torch

    X = np.random.RandomState(0).normal(size=(n_rows, 32)).astype(np.float32)
    encoder = make_encoder(max_iter=1).fit(X[:2000])
    sizes = (32, *WIDTHS[:3])
    weights = [torch.randn(b, a) for a, b in pairwise(sizes)]
    outputs = [torch.empty(512, size) for size in sizes[1:]]
    inputs = [torch.randn(512, size) for size in sizes[1:]]

    def floor():
        for rows in torch.from_numpy(X).split(512):
            m = len(rows)
            layers = zip([rows, *inputs[:-1]], weights, outputs, strict=True)
            for x, weight, output in layers:
                torch.mm(x[:m], weight.T, out=output[:m])
        return 1, None

    return lambda: (1, encoder.transform(X)), floor


def transform(repetitions, threads):
    """Yield the speed of transform, and its memory beside the output."""
    run, floor = transform_run(1_000_000)
    turns = take_turns({"floor": floor, "skcl": run}, repetitions)
    yield f"## Transform of 1,000,000 × 32, {threads} thread(s)"
    yield f"- of its floor: {ratios(turns, 'floor', 'skcl')}"
    beside = in_process(peak_of_transform, 1_000_000)
    yield f"- peak memory beside the output: {beside:.2f} GiB"


def peak_of_transform(n_rows):
    """Print the peak memory of a transform, above its input and output."""
    run, _ = transform_run(n_rows)
    peak, Z = peak_above(run)
    print(peak - Z.nbytes / 2**30)


# Small tables.


def small(repetitions, threads):
    """Yield what a fit on 500 rows spends on steps, and how a search scales."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    from skcl import ContrastiveEncoder
    from skcl._training import Trainer

    X, y = (array[:500] for array in load_breast_cancer(return_X_y=True))
    step, spent = Trainer._step, []

    def timed(self, *args):
        start = perf_counter()
        result = step(self, *args)
        spent.append(perf_counter() - start)
        return result

    floor = step_floor(X.shape[1], len(X) // 2, 1, DEFAULT_WIDTHS)  # two even batches
    shares, of_floor = [], []
    Trainer._step = timed
    for _ in range(repetitions):
        spent.clear()
        start = perf_counter()
        ContrastiveEncoder(random_state=0).fit(X)
        shares.append(sum(spent) / (perf_counter() - start))
        alone = []
        for _ in range(N_FLOOR_STEPS):
            start = perf_counter()
            floor()
            alone.append(perf_counter() - start)
        of_floor.append(median(alone) / median(spent))
    Trainer._step = step
    yield f"## 500 rows, {threads} thread(s)"
    yield f"- share of fit in training steps: {median(shares):.2f}"
    yield (
        f"- a step, {1e3 * median(spent):.2f} ms, of its strict floor: "
        f"{median(of_floor):.2f} ({min(of_floor):.2f} to {max(of_floor):.2f})"
    )
    model = make_pipeline(ContrastiveEncoder(random_state=0), LogisticRegression())
    grid = {
        "contrastiveencoder__temperature": [0.1, 0.2, 0.3, 0.5],
        "contrastiveencoder__corruption_rate": [0.2, 0.4],
    }
    seconds = {}
    for n_jobs in (2, 1):  # the workers start within the first
        start = perf_counter()
        GridSearchCV(model, grid, cv=5, n_jobs=n_jobs).fit(X, y)
        seconds[n_jobs] = perf_counter() - start
    yield (
        "- GridSearchCV of 8 candidates and 5 folds, n_jobs=2 over n_jobs=1, the start "
        f"of the workers included: {seconds[2] / seconds[1]:.2f} ({seconds[1]:.0f} s)"
    )


# The scorer.


def scorer(repetitions, threads):
    """Yield the time of the scorer's terms over the number of rows."""
    import numpy as np
    from sklearn.frozen import FrozenEstimator

    from skcl import DiscrepancyScorer

    rng = np.random.RandomState(0)
    X = rng.normal(size=(100_000, 32)).astype(np.float32)
    y = rng.randint(10, size=len(X))
    encoder = FrozenEstimator(make_encoder(max_iter=1).fit(X[:2000]))
    warnings.filterwarnings("ignore", "Scored by the bound")  # of random labels
    yield f"## DiscrepancyScorer, {threads} thread(s): seconds of score"
    yield "| term | views | 2,500 rows | 5,000 | 25,000 | 100,000 |"
    yield "|---|---|---|---|---|---|"
    for term, n_views in (
        ("discrepancy", 8),
        ("incurred_loss", 8),
        ("bound", 8),
        ("bound", 2),
    ):
        cells = []
        for n in (2500, 5000, 25_000, 100_000):
            if term == "bound" and n * n_views > 50_000:
                cells.append("-")
                continue
            of_term = DiscrepancyScorer(
                encoder, term=term, n_views=n_views, random_state=0
            )
            of_term.fit(X[:n], y[:n])
            start = perf_counter()
            of_term.score(X[:n], y[:n])
            cells.append(f"{perf_counter() - start:.2f}")
        yield f"| {term} | {n_views} | {' | '.join(cells)} |"


# Import.


def imports(repetitions, threads):
    """Yield what `import skcl` adds."""
    yield "## Import"
    for before in (
        "torch, sklearn",
        "torch, sklearn, sklearn.pipeline, sklearn.linear_model",
    ):
        code = f"import time, {before}; t = time.perf_counter(); import skcl; "
        code += "print(time.perf_counter() - t)"
        command = [sys.executable, "-c", code]
        added = [
            float(subprocess.check_output(command)) for _ in range(repetitions + 1)
        ]
        yield f"- `import skcl` after `import {before}`: {median(added[1:]):.3f} s"


SECTIONS = (training, regularizer, losses, transform, small, scorer, imports)


def main(argv=None):
    names = [section.__name__ for section in SECTIONS]
    parser = argparse.ArgumentParser("benchmarks.speed", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*names, "all"], default="all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a file for the tables")
    arguments = parser.parse_args(argv)
    # Read when torch and numpy are imported.
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    lines = []
    for section in SECTIONS:
        if "all" in arguments.sections or section.__name__ in arguments.sections:
            for line in section(arguments.repetitions, arguments.threads):
                print(line, flush=True)
                lines.append(line)
            lines.append("")
    if arguments.output:
        arguments.output.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
