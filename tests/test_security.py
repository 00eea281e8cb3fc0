"""No network, no file but those that are named, no code that comes from data."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import skcl

PACKAGE = Path(skcl.__file__).parent

AUDITED = """
import os, sys, tempfile
import numpy as np, pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
import skcl
from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer

rng = np.random.RandomState(0)
X = pd.DataFrame(rng.normal(size=(80, 3)), columns=list("abc"))
X["d"] = np.array(["u", "v"])[rng.randint(2, size=80)]
y = np.array(["x", "y"])[rng.randint(2, size=80)]

def everything(folder):
    encoder = ContrastiveEncoder(
        loss="supcon", regularizer=RelaxedKMeansRegularizer(3), max_iter=3,
        early_stopping=True, checkpoint=folder + "/checkpoint", checkpoint_every=1,
        random_state=0, passthrough=True,
    )
    model = make_pipeline(encoder, LogisticRegression()).fit(X, y)
    model.predict(X)
    scorer = DiscrepancyScorer(encoder.set_params(checkpoint=None), random_state=0)
    scorer.fit(X, y).score(X, y)
    scorer.report(X, y)
    skcl.save(model, folder + "/model")
    assert (skcl.load(folder + "/model").predict(X) == model.predict(X)).all()

SUSPECT = (
    "socket.", "urllib.", "subprocess.", "os.system", "os.exec", "os.fork",
    "os.posix_spawn", "pickle.find_class", "ctypes.dlopen", "exec", "shutil.",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink",
    "os.chmod", "os.truncate",
)
seen, watching = [], False

def hook(event, arguments):
    if not watching:
        return
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, (str, bytes)) and (
            flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        ):
            seen.append((event, os.fspath(path)))
    elif event.startswith(SUSPECT):
        seen.append((event, *map(str, arguments[:2])))

sys.addaudithook(hook)
with tempfile.TemporaryDirectory() as folder:
    everything(folder)  # what is imported late is imported now
    watching = True
    everything(folder)
    watching = False
    for event in seen:
        if event[0] in ("open", "os.remove", "os.rename") and all(
            path.startswith(folder) for path in event[1:] if path != "-1"
        ):
            continue
        print(event)
"""


def test_nothing_is_reached_that_was_not_named(tmp_path):
    """By the interpreter's own audit of files, sockets, processes and executed code."""
    run = subprocess.run(
        [sys.executable, "-c", AUDITED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.stem)
def test_no_source_can_run_what_it_reads(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "compile", "__import__"), called
            assert not called.endswith(("torch.load", "pickle.loads", "pickle.load"))
            assert called != "joblib.load"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names.append(getattr(node, "module", None) or "")
            refused = {"pickle", "socket", "subprocess", "urllib", "requests", "ctypes"}
            refused |= {"system", "popen", "http", "marshal", "shelve"}
            assert not refused & {name.split(".")[0] for name in names}
