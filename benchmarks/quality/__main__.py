"""Measure contenders on two protocols, and write the figures down.

run measures what the table of results lacks: killed, it resumes. report writes the
page. Contenders whose packages are not installed are left out.
"""

import argparse
import os
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # read when numpy and torch are imported

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "quality.csv"
PAGE = ROOT / "docs" / "results.md"
PROTOCOLS = ("few", "all")
N_SEEDS = 10  # and of folds


def run(arguments):
    from joblib import Parallel, delayed

    from benchmarks.quality.cells import list_cells, measure
    from benchmarks.quality.contenders import installed
    from benchmarks.quality.results import append_results, missing_cells, read_results

    names = arguments.contenders or installed()
    stage = "final" if arguments.final else "development"
    cells = list_cells(
        arguments.protocol, stage, names, arguments.seeds, arguments.tables
    )
    results = read_results(arguments.results)
    missing = missing_cells(cells, results, arguments.fresh)
    print(f"{len(cells)} cells, {len(missing)} of them to measure")
    # Unordered, so that a cell is written as soon as it is measured.
    parallel = Parallel(arguments.jobs, return_as="generator_unordered", batch_size=1)
    for rows in parallel(delayed(measure)(cell) for cell in missing):
        append_results(arguments.results, rows)
        print(summarize(rows[0]), flush=True)


def summarize(row):
    cell = "{protocol} {table} {imbalance} {seed} {contender}".format(**row)
    return f"{cell}: {row['balanced_accuracy']:.3f}, fit {row['fit_seconds']:.1f} s"


def report(arguments):
    from benchmarks.quality.report import make_report, write_page
    from benchmarks.quality.results import read_results

    write_page(arguments.page, make_report(read_results(arguments.results)))
    print(f"written: {arguments.page}")


def main():
    parser = argparse.ArgumentParser("benchmarks.quality", description=__doc__)
    commands = parser.add_subparsers(required=True)
    of_run = commands.add_parser("run", help="measure what is missing")
    of_run.set_defaults(command=run)
    of_run.add_argument("--protocol", choices=PROTOCOLS, nargs="+", default=PROTOCOLS)
    of_run.add_argument("--contenders", nargs="+", help="all that are installed")
    of_run.add_argument("--tables", nargs="+", help="all of the protocol")
    of_run.add_argument("--final", action="store_true", help="the final tables")
    of_run.add_argument("--seeds", type=int, default=N_SEEDS, help="and folds")
    of_run.add_argument("--jobs", type=int, default=1)
    of_run.add_argument(
        "--fresh",
        action="store_true",
        help="also measure what another version of a contender measured",
    )
    of_report = commands.add_parser("report", help="write the page")
    of_report.set_defaults(command=report)
    of_report.add_argument("--page", type=Path, default=PAGE)
    for command in (of_run, of_report):
        command.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
