"""Break the mathematics on purpose, and count how often a test notices.

python -m benchmarks.mutants [--sample 400] [--seed 0] [--jobs 2]

Cosmic Ray lists the changes: an operator, a comparison, a number, a condition of the
losses, the clustering, the theory and the scorer. A sample of them is made, one at a
time, in copies of the repository, and the tests of the changed file are run. A change
survives if all pass: what it changes is then not tested, or changes nothing.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parent.parent

# The tests of each file, those that notice most first.
TESTS = {
    "losses": ["losses", "theory", "weights", "assumptions", "speed"],
    "_pairs": ["losses", "weights", "speed", "reproducibility"],
    "clustering": ["clustering", "regularizer", "weights", "reproducibility"],
    "_discrepancy": ["discrepancy", "report", "bound", "weights", "pipeline"],
    "theory/_bound": ["bound", "theory", "assumptions"],
    "theory/_certificate": ["certificate", "report"],
    "theory/_discrepancy": ["theory", "discrepancy", "bound", "weights"],
    "theory/_geometry": ["geometry"],
    "theory/_guarantee": ["certificate", "report"],
    "theory/_losses": ["theory", "bound", "incurred", "assumptions"],
    "theory/_measure": ["theory", "bound", "weights", "certificate"],
    "theory/_solver": ["geometry", "incurred"],
}

# Changes that can be wrong unnoticed; of `*` into `<<` and the like a type error tells.
OPERATORS = (
    "AddNot",
    "NumberReplacer",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceComparisonOperator",
    "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Delete",
    "ReplaceBinaryOperator_Mul_Div",
    "ReplaceBinaryOperator_Div_Mul",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Pow_Mul",
    "ReplaceBinaryOperator_FloorDiv_Div",
    "ReplaceBinaryOperator_Mod_FloorDiv",
    "ReplaceBinaryOperator_MatMul_Mul",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "RemoveDecorator",
    "ZeroIterationForLoop",
)

TIMEOUT = 600  # seconds; a change may let a loop run for ever


def listed(folder):
    """Return the changes that Cosmic Ray finds, as (module, operator, occurrence)."""
    from cosmic_ray.commands.init import _all_work_items

    paths = [folder / "skcl" / f"{name}.py" for name in TESTS]
    for item in _all_work_items(paths, {}):
        (change,) = item.mutations
        if change.operator_name.split("/")[-1].startswith(OPERATORS):
            module = str(Path(change.module_path).relative_to(folder))
            yield module, change.operator_name, change.occurrence


def copy(folder):
    """Copy what the tests need."""
    for name in ("skcl", "tests", "benchmarks", "docs", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, folder)


def survives(folder, module, operator, occurrence):
    """Make a change and run the tests; return what it changes if all of them pass."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    name = module.removeprefix("skcl/").removesuffix(".py")
    tests = [f"tests/test_{test}.py" for test in TESTS[name]]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    change = use_mutation(folder / module, get_operator(operator)(), occurrence)
    with change as (source, changed):
        try:
            run = subprocess.run(
                [*command, *tests],
                cwd=folder,
                capture_output=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
    return difference(source, changed) if run.returncode == 0 else None


def difference(source, changed):
    """Return the lines that differ."""
    pairs = zip(source.splitlines(), changed.splitlines(), strict=False)
    number, (old, new) = next(
        (i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1]
    )
    return number, old.strip(), new.strip()


def main(argv=None):
    parser = argparse.ArgumentParser("benchmarks.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args(argv)
    folders = Queue()
    with tempfile.TemporaryDirectory() as parent:
        for i in range(arguments.jobs):
            folder = Path(parent) / str(i)
            folder.mkdir()
            copy(folder)
            folders.put(folder)
        changes = sorted(listed(folder), key=str)
        sample = random.Random(arguments.seed).sample(changes, arguments.sample)
        print(f"{len(sample)} of {len(changes)} changes", flush=True)

        def try_one(change):
            folder = folders.get()
            try:
                return change, survives(folder, *change)
            finally:
                folders.put(folder)

        n_survived = 0
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for change, survived in pool.map(try_one, sample):
                if survived is not None:
                    n_survived += 1
                    number, old, new = survived
                    print(f"{change[0]}:{number}: {old}  ->  {new}", flush=True)
    n = len(sample)
    print(f"killed: {n - n_survived} of {n}, {1 - n_survived / n:.1%}")


if __name__ == "__main__":
    main()
