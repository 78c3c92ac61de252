"""``DPLinearRegression`` beside IBM diffprivlib's ``LinearRegression``, and without privacy.

Run ``python benchmarks/regression.py --python PYTHON``, the interpreter of an environment that
holds diffprivlib, which needs an older scikit-learn:

    python -m venv other && other/bin/pip install diffprivlib 'scikit-learn<1.7'
    python benchmarks/regression.py --python other/bin/python

Both get the same bounds of features and target, the same epsilon and an intercept. Theirs is the
functional mechanism with Laplace noise, delta = 0; ours has delta = 1/(10 n), under both relations.
R^2 is of held-out rows, mean and standard deviation of ten seeds: NOT PRIVATE.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

import dpjax
from dpjax.datasets import registry
from dpjax.datasets.registry import SPECS

SEEDS = 10
EPSILONS = (0.5, 1.0, 3.0)
THEIRS = pathlib.Path(__file__).with_name("regression_diffprivlib.py")


def randhie():
    """Outpatient visits of a person-year, on a logarithmic scale; the codebook's ranges."""
    raw = registry.arrays(SPECS["randhie"])
    low, high = np.array(list(SPECS["randhie"].ranges.values())).T
    return raw["x"], np.log1p(raw["mdvis"]), (low, high), (0.0, np.log(101.0))


def fair():
    """How happy women rate their marriage, 1 to 5 (Fair, 1978)."""
    from statsmodels.datasets import fair

    table = fair.load_pandas().data
    names = ["age", "yrs_married", "children", "religious", "educ", "occupation", "affairs"]
    bounds = np.array([[15, 45], [0, 25], [0, 6], [1, 4], [8, 20], [1, 6], [0, 60]], float)
    return table[names].to_numpy(), table["rate_marriage"].to_numpy(), bounds.T, (1.0, 5.0)


def covtype():
    """The elevation of a cell of forest in metres, by its other 53 features."""
    raw = registry.arrays(SPECS["covtype"])
    ranges = SPECS["covtype"].ranges
    low, high = np.array(list(ranges.values())[1:]).T
    return (
        raw["X"][:, 1:].astype(float),
        raw["X"][:, 0].astype(float),
        (low, high),
        (1859.0, 3858.0),
    )


DATA = {"randhie": randhie, "fair": fair, "covtype": covtype}


def split(name):
    x, y, bounds, target = DATA[name]()
    order = np.random.default_rng(0).permutation(len(x))
    held, kept = np.split(order, [len(x) // 5])
    return x[kept], y[kept], x[held], y[held], bounds, target


def ours(epsilon, relation, data):
    x, y, test_x, test_y, bounds, target = data
    found = []
    for seed in range(SEEDS):
        model = dpjax.estimators.DPLinearRegression(
            epsilon, bounds=bounds, target_bounds=target, relation=relation, random_state=seed
        )
        found.append(r2_score(test_y, model.fit(x, y).predict(test_x)))
    return found


def theirs(python, epsilon, data):
    x, y, test_x, test_y, bounds, target = data
    with tempfile.TemporaryDirectory() as folder:
        source, result = f"{folder}/given.npz", f"{folder}/found.npz"
        low, high = bounds
        np.savez(
            source, x=np.clip(x, low, high), y=y, test_x=np.clip(test_x, low, high), low=low,
            high=high, target=target, epsilon=epsilon, seeds=SEEDS,
        )  # fmt: skip
        subprocess.run([python, THEIRS, source, result], check=True)
        return [r2_score(test_y, predicted) for predicted in np.load(result)["predicted"]]


def main(arguments):
    check = [arguments.python, "-W", "ignore", "-c", "import diffprivlib.models"]
    absent = subprocess.run(check, capture_output=True).returncode
    if absent:
        print(f"{arguments.python} cannot import diffprivlib: its rows are left out, see --help.\n")
    print("| | | epsilon 0.5 | 1 | 3 |\n|---|---|---|---|---|")
    for name in arguments.data:
        data = split(name)
        plain = LinearRegression().fit(*data[:2])
        rows = {
            "ours, zero-out": lambda e, data=data: ours(e, "zero_out", data),
            "ours, replace-one": lambda e, data=data: ours(e, "replace_one", data),
        }
        if not absent:
            rows["diffprivlib"] = lambda e, data=data: theirs(arguments.python, e, data)
        for kind, run in rows.items():
            cells = [f"{np.mean(v):.3f} ± {np.std(v, ddof=1):.3f}" for v in map(run, EPSILONS)]
            print(f"| {name}, n = {len(data[0]):,} | {kind} | {' | '.join(cells)} |", flush=True)
        reached = r2_score(data[3], plain.predict(data[2]))
        print(f"| {name} | not private | {' | '.join([f'{reached:.3f}'] * 3)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--data", nargs="+", default=list(DATA))
    try:
        main(parser.parse_args())
    except FileNotFoundError as error:
        sys.exit(str(error))
