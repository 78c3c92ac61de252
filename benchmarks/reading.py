"""Times reading a CSV of a hospital against pandas, side by side: ``python benchmarks/reading.py``.

The table has 300,000 rows of 12 columns: whole numbers, numbers with decimals, levels, dates and
the ids of 80,000 persons; as a program writes it, with quotes around words as R does, and as German
spreadsheets do. Prints medians in seconds, and the median of the ratios of neighbouring runs.
"""

import argparse
import csv
import pathlib
import statistics
import tempfile
import time

import numpy as np
import pandas as pd

import dpjax

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


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = write(hospital(arguments.rows), pathlib.Path(folder))
        print(f"{'':26} {'pandas':>7} {'load':>7} {'ratio':>6}")
        for name, (path, schema, options) in files.items():
            pairs = [
                (
                    seconds(lambda: pd.read_csv(path, **options)),  # noqa: B023
                    seconds(lambda: dpjax.datasets.load(path, schema=schema | {"label": LABEL})),  # noqa: B023
                )
                for _ in range(arguments.repeats)
            ]
            theirs, ours = (statistics.median(part) for part in zip(*pairs, strict=True))
            ratio = statistics.median(own / other for other, own in pairs)
            print(f"{name:26} {theirs:7.3f} {ours:7.3f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
