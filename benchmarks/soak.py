"""Fit again and again in one process: memory, threads and files must stay as they are.

python -m benchmarks.soak [--fits 200]
"""

import argparse
import os
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import skcl
from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer

WARM_UP = 20  # fits until allocators and caches have what they keep

# Of all kinds: a fit takes them in turn.
KINDS = (
    {},
    {"loss": "supcon", "regularizer": RelaxedKMeansRegularizer(4)},
    {
        "loss": "spectral",
        "regularizer": RelaxedKMeansRegularizer(4, relaxation="spectral"),
    },
    {
        "loss": "spectral",
        "early_stopping": True,
        "n_iter_no_change": 2,
        "sampling": "balanced",
    },
    {"augmentation": "noise", "sampling": "balanced", "class_weight": "balanced"},
)


def use(i, X, y, folder):
    """Fit, transform, score, save and load a pipeline."""
    encoder = ContrastiveEncoder(
        max_iter=3, random_state=i, checkpoint=folder / "fit", **KINDS[i % len(KINDS)]
    )
    head = LogisticRegression(class_weight="balanced", max_iter=1000)
    model = make_pipeline(encoder, head).fit(X, y)
    assert model.score(X, y) > 0.5
    skcl.save(model, folder / "model")
    loaded = skcl.load(folder / "model")
    assert np.array_equal(loaded.predict(X), model.predict(X))
    DiscrepancyScorer().fit(encoder.transform(X), y).score(encoder.transform(X), y)
    (folder / "model").unlink()


def resident():
    """Return the memory that the process has now, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def left_behind(folder):
    """Return what a fit could leave: threads, open files, files in known places."""
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "threads of Python": threading.active_count(),
        "open files": len(os.listdir("/proc/self/fd")),
        "files beside the model": sorted(os.listdir(folder)),
        "temporary files": sorted(os.listdir(tempfile.gettempdir())),
        "files here": sorted(os.listdir(".")),
    }


def main(argv=None):
    parser = argparse.ArgumentParser("benchmarks.soak", description=__doc__)
    parser.add_argument("--fits", type=int, default=200)
    n_fits = parser.parse_args(argv).fits
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        folder, memory = Path(folder), []
        for name in ("models", "temporary", "here"):
            (folder / name).mkdir()
        tempfile.tempdir = str(folder / "temporary")
        os.chdir(folder / "here")
        for i in range(WARM_UP):
            use(i, X, y, folder / "models")
        before = left_behind(folder / "models")
        for i in range(n_fits):
            memory.append(resident())
            use(i, X, y, folder / "models")
        after = left_behind(folder / "models")
        os.chdir("/")
    growth = np.median(memory[-10:]) / np.median(memory[:10]) - 1
    more = {name: after[name] for name in after if after[name] != before[name]}
    print(f"{n_fits} fits after {WARM_UP}: {memory[0]:.0f} to {memory[-1]:.0f} MiB")
    print(f"growth of the resident memory: {growth:+.1%}")
    print(f"warnings: 0; left behind: {more or 'nothing'}")
    return int(growth >= 0.05 or bool(more))


if __name__ == "__main__":
    raise SystemExit(main())
