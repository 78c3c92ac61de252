"""Times reading a CSV of a hospital against pandas, side by side: ``python benchmarks/reading.py``.

The table has 300,000 rows of 12 columns: whole numbers, numbers with decimals, levels, dates and
the ids of 80,000 persons; as a program writes it, with quotes around words as R does, and as German
spreadsheets do. ``read`` reads the columns, ``load`` encodes and scales them, and groups persons.
Prints medians of CPU time in seconds, and medians of the ratios of neighbouring runs to pandas.
"""

import argparse
import csv
import functools
import pathlib
import tempfile
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

import dpjax
from dpjax.datasets.delimited import CsvFile
from dpjax.datasets.schema import Schema

COLUMNS = {
    "age": {"bounds": [0, 120]},
    "sex": {"levels": ["female", "male"]},
    "ward": {"levels": ["surgery", "internal medicine", "neurology", "icu", "oncology"]},
    "admitted": {"bounds": ["2000-01-01", "2025-01-01"]},
    "weight": {"bounds": [20, 200], "missing": 75},
    "height": {"bounds": [100, 220]},
    "crp": {"bounds": [0, 500]},
    "stay": {"bounds": [0, 100]},
    "insured": {"levels": ["public", "private", "none"]},
    "cost": {"bounds": [0, 100_000]},
}
LABEL = {"column": "died", "classes": ["no", "yes"]}
UNIT = {"unit": {"column": "patient", "max_records": 8}}
ROWS = {"columns": COLUMNS | {"patient": {"ignore": True}}, "quoted_line_breaks": False}
PERSONS = {"columns": COLUMNS} | UNIT
GERMAN = {
    "numbers": {"decimal": ",", "thousands": "."},
    "columns": COLUMNS | {"admitted": COLUMNS["admitted"] | {"format": "%d.%m.%Y"}},
} | UNIT


def hospital(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)

    def levels(name: str) -> np.ndarray:
        return rng.choice(COLUMNS[name]["levels"], rows)

    weight = np.round(rng.normal(75, 15, rows), 1)
    return pd.DataFrame({
        "patient": rng.integers(1, 80_001, rows),
        "age": rng.integers(0, 100, rows),
        "sex": levels("sex"),
        "ward": levels("ward"),
        "admitted": np.datetime64("2000-01-01") + rng.integers(0, 8_000, rows),
        "weight": np.where(rng.random(rows) < 0.03, np.nan, weight),
        "height": np.round(rng.normal(170, 10, rows), 1),
        "crp": np.round(rng.lognormal(2, 1, rows), 3),
        "stay": rng.integers(0, 60, rows),
        "insured": levels("insured"),
        "cost": np.round(rng.lognormal(8, 1, rows), 2),
        "died": np.where(rng.random(rows) < 0.05, "yes", "no"),
    })  # fmt: skip


def write(table: pd.DataFrame, folder: pathlib.Path) -> dict[str, tuple]:
    """Writes the files; returns for each its path, its schema, and how pandas reads it."""
    table.to_csv(folder / "plain.csv", index=False)
    table.to_csv(folder / "quoted.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    german = table.assign(admitted=table["admitted"].dt.strftime("%d.%m.%Y"))
    for name in ("weight", "height", "crp", "cost"):
        texts = (f"{number:,.2f}".translate(str.maketrans(",.", ".,")) for number in table[name])
        german[name] = ["" if text == "nan" else text for text in texts]
    german.to_csv(folder / "german.csv", index=False, sep=";")
    of_german = {"sep": ";", "decimal": ",", "thousands": "."}
    return {
        "rows": (folder / "plain.csv", ROWS, {}),
        "persons": (folder / "plain.csv", PERSONS, {}),
        "persons, words in quotes": (folder / "quoted.csv", PERSONS, {}),
        "persons, German": (folder / "german.csv", GERMAN, of_german),
    }


def read(path: pathlib.Path, schema: dict) -> None:
    """Reads the columns of a file as its schema says, without encoding them."""
    declared = Schema.read(schema)
    names, numeric, together = declared.preprocessing.wanted
    beside = [declared.label.column, *([declared.unit] if declared.unit else [])]
    for _ in CsvFile(path, declared.quoted_line_breaks).blocks(
        [*names, *beside], numeric, together
    ):
        pass


def seconds(function: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    function()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--wall", action="store_true", help="wall time instead of CPU time")
    arguments = parser.parse_args()
    clock = time.perf_counter if arguments.wall else time.process_time
    with tempfile.TemporaryDirectory() as folder:
        files = write(hospital(arguments.rows), pathlib.Path(folder))
        print(f"{'':26} {'pandas':>7} {'read':>7} {'load':>7} {'ratios':>12}")
        for name, (path, columns, options) in files.items():
            schema = columns | {"label": LABEL}
            runs = (
                functools.partial(pd.read_csv, path, **options),
                functools.partial(read, path, schema),
                functools.partial(dpjax.datasets.load, path, schema=schema),
            )
            times = np.array(
                [[seconds(run, clock) for run in runs] for _ in range(arguments.repeats)]
            )
            theirs, reads, loads = np.median(times, axis=0)
            first, second = np.median(times[:, 1:] / times[:, :1], axis=0)
            print(f"{name:26} {theirs:7.3f} {reads:7.3f} {loads:7.3f} {first:6.2f} {second:5.2f}")


if __name__ == "__main__":
    main()
