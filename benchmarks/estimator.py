"""``DPLogisticRegression`` beside IBM diffprivlib's ``LogisticRegression``; its time on Covertype.

Run ``python benchmarks/estimator.py compare --python PYTHON``, the interpreter of an environment
that holds diffprivlib, which needs an older scikit-learn:

    python -m venv other && other/bin/pip install diffprivlib 'scikit-learn<1.7'
    python benchmarks/estimator.py compare --python other/bin/python
    python benchmarks/estimator.py covtype

Both get the same rows of norm at most 1, the same epsilon and an intercept. Theirs is objective
perturbation with delta = 0, for replace-one neighbours; ours has delta = 1/(10 n). Each is run at
six strengths of the l2 penalty, its default among them. What is measured on the held-out rows is
NOT PRIVATE.
"""

import argparse
import itertools
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import dpjax

SEEDS = 10
# Ours times n epsilon, and the inverse of theirs; six each, the defaults are 2 and 1.
PENALTIES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
CS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
THEIRS = pathlib.Path(__file__).with_name("estimator_diffprivlib.py")


def split(name):
    """Training and test rows; a fifth of the data set is held out where it has no test set."""
    data = dpjax.datasets.load(name)
    x, y = np.asarray(data.x), np.asarray(data.y)
    if data.test_x is not None:
        return x, y, np.asarray(data.test_x), np.asarray(data.test_y)
    order = np.random.default_rng(0).permutation(len(x))
    held, kept = np.split(order, [len(x) // 5])
    return x[kept], y[kept], x[held], y[held]


def ours(x, y, test_x, epsilon, relation, solver, penalty):
    """Decisions (seeds, m) of ten fits, and the median seconds of a fit after the first."""
    decisions, seconds = [], []
    for seed in range(SEEDS):
        model = dpjax.estimators.DPLogisticRegression(
            epsilon,
            solver=solver,
            classes=(-1, 1),
            data_norm=1.0,
            relation=relation,
            regularization=penalty / (len(x) * epsilon),
            random_state=seed,
        )
        begin = time.perf_counter()
        model.fit(x, y)
        seconds.append(time.perf_counter() - begin)
        decisions.append(model.decision_function(test_x))
    return np.stack(decisions), np.median(seconds[1:])


def theirs(python, x, y, test_x, epsilon, c):
    """The same of diffprivlib, run by ``python``."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/given.npz", f"{folder}/found.npz"
        # In float64, as they convert it.
        x, test_x = x.astype(float), test_x.astype(float)
        np.savez(source, x=x, y=y, test_x=test_x, epsilon=epsilon, c=c, seeds=SEEDS)
        subprocess.run([python, THEIRS, source, target], check=True)
        found = np.load(target)
        return found["decisions"], float(found["seconds"])


def line(name, decisions, seconds, test_y):
    """One row of the table: mean and standard deviation over the seeds."""
    measures = {
        "accuracy": [np.mean((d > 0) == (test_y > 0)) for d in decisions],
        "balanced": [balanced_accuracy_score(test_y > 0, d > 0) for d in decisions],
        "AUC": [roc_auc_score(test_y > 0, d) for d in decisions],
        "log-loss": [np.logaddexp(0, -d * test_y).mean() for d in decisions],
    }
    cells = [f"{np.mean(v):.4f} ± {np.std(v, ddof=1):.4f}" for v in measures.values()]
    print(f"| {name} | " + " | ".join(cells) + f" | {seconds:.2f} |", flush=True)


def compare(arguments):
    found = subprocess.run(
        [arguments.python, "-W", "ignore", "-c", "import diffprivlib.models"], capture_output=True
    )
    if found.returncode:
        print(
            f"{arguments.python} cannot import diffprivlib: its rows are left out. Name an "
            "interpreter that can, see --help.\n"
        )
    for name in arguments.data:
        x, y, test_x, test_y = split(name)
        majority = max(np.mean(test_y > 0), np.mean(test_y < 0))
        print(
            f"## {name}, epsilon {arguments.epsilon:g}, {SEEDS} seeds\n\n{len(x):,} rows, "
            f"{x.shape[1]} features, {len(test_x):,} held out; the majority is {majority:.4f}\n"
        )
        print("| | accuracy | balanced accuracy | AUC | log-loss | seconds a fit |")
        print("|---|---|---|---|---|---|")
        for solver in arguments.solvers:
            penalties = (2.0,) if arguments.defaults else PENALTIES
            for relation, penalty in itertools.product(("replace_one", "zero_out"), penalties):
                got = ours(x, y, test_x, arguments.epsilon, relation, solver, penalty)
                row = f"ours, {solver}, {relation}, {penalty:g} / (n epsilon)"
                line(row + " (default)" * (penalty == 2), *got, test_y)
        for c in () if found.returncode else (1.0,) if arguments.defaults else CS:
            got = theirs(arguments.python, x, y, test_x, arguments.epsilon, c)
            default = " (default)" * (c == 1)
            line(f"diffprivlib, replace_one, C = {c:g}{default}", *got, test_y)
        print()


def covtype(arguments):
    del arguments
    data = dpjax.datasets.load("covtype")
    x, y = np.asarray(data.x), np.asarray(data.y)
    for dtype in (np.float32, np.float64):
        model = dpjax.estimators.DPLogisticRegression(classes=(-1, 1), data_norm=1.0)
        features, seconds = x.astype(dtype), []
        for _ in range(6):
            begin = time.perf_counter()
            model.fit(features, y)
            seconds.append(time.perf_counter() - begin)
        print(
            f"Covertype, {len(x):,} rows of {features.dtype}: first fit, with compiling, "
            f"{seconds[0]:.1f} s; median of five more {np.median(seconds[1:]):.2f} s [5]"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=["compare", "covtype"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--data", nargs="+", default=["ijcnn1", "randhie"])
    parser.add_argument("--defaults", action="store_true", help="the default penalties alone")
    parser.add_argument("--solvers", nargs="+", default=["dp-tr"])
    chosen = parser.parse_args()
    try:
        {"compare": compare, "covtype": covtype}[chosen.which](chosen)
    except FileNotFoundError as error:
        sys.exit(str(error))
