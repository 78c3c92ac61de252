"""How far a private evaluation is from the exact numbers: 200 releases on held-out records.

``python benchmarks/evaluate.py`` trains on half of ijcnn1 (or randhie, where that is not there) and
evaluates the other half, at several epsilons and numbers of records.
"""

import dataclasses
import sys

import numpy as np

import dpjax
from dpjax.statistics import evaluate

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 200


def auc(scores, y):
    """The exact AUC, ties by half."""
    ranks = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(ranks[2])
    rank = (ends - (ranks[2] - 1) / 2)[ranks[1]]
    positive = int((y > 0).sum())
    return (rank[y > 0].sum() - positive * (positive + 1) / 2) / positive / (len(y) - positive)


def main():
    """Prints a line for each number of records and epsilon."""
    available = {info.name for info in dpjax.datasets.describe() if info.available}
    data = dpjax.datasets.load("ijcnn1" if "ijcnn1" in available else "randhie")
    half = data.size // 2
    train = dataclasses.replace(data, x=data.x[:half], y=data.y[:half], test_x=None, test_y=None)
    algorithm = dpjax.dp_trust_region(
        dpjax.objectives.logistic_l2(), dpjax.PrivacyBudget(1.0, 1e-6), data_size=half,
        dimension=data.dimension,
    )  # fmt: skip
    model = dpjax.solve(algorithm, train, seed=0)
    print(f"{data.name}, {RUNS} runs: root mean square error, share of intervals that hold it")
    for n in (2_000, half):
        x, y = data.x[half : half + n], data.y[half : half + n]
        held = dataclasses.replace(train, x=x, y=y)
        scores = model.decision_function(held)
        exact = {"AUC": auc(scores, y), "accuracy": np.mean((scores >= 0) == (y > 0))}
        for epsilon in (0.1, 0.5, 1.0):
            runs = [evaluate(model, held, epsilon, seed=seed).estimates for seed in range(RUNS)]
            words = []
            for name, value in exact.items():
                known = [run[name] for run in runs if run[name] is not None]
                if not known:
                    words.append(f"{name} never known")
                    continue
                error = np.sqrt(np.mean([(one.value - value) ** 2 for one in known]))
                inside = np.mean([one.lower <= value <= one.upper for one in known])
                words.append(f"{name} {value:.4f} +- {error:.4f} ({inside:.2f}, {len(known)} runs)")
            print(f"n = {len(y):,}, epsilon {epsilon:g}: " + "; ".join(words), flush=True)


if __name__ == "__main__":
    main()
