"""The code in the documents runs, in order, as one program; what they name exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_code_blocks_run(path, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)
    namespace = {}
    for block in blocks:
        exec(compile(block, str(path), "exec"), namespace)
    if path.name == "README.md":
        assert "contrastiveencoder__regularizer_weight" in capsys.readouterr().out


def test_the_example_of_the_readme_is_five_lines():
    first = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len([line for line in first.group(1).splitlines() if line]) == 5


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_tests_that_are_named_exist(path):
    named = re.findall(r"(tests/[\w./-]+)::(\w+)", path.read_text())
    assert named or path.name != "theory.md"
    missing = [
        f"{file}::{name}" for file, name in named if name not in names_of_tests(file)
    ]
    assert not missing


def names_of_tests(file):
    """Return the names of the tests in a file; none if there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text() if path.is_file() else "")
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in names if name.startswith("test_")}
