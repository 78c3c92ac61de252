"""Test accuracy of a linear model on features, with their covariance and without.

Run ``python -m benchmarks.features mnist`` (or ``cifar10``, a fifth of it, by a public projection
to 4,096 features): of scattering features, delta 1e-5, zero-out neighbours, the last iterate.
``covtype`` and ``ijcnn1`` are tables, of whose rows every fifth tests. Both take 300 full-batch
steps with momentum and spend the same epsilon. Accuracies are exact and NOT PRIVATE. Settings are
the library's defaults, and all ``--step-sizes`` are tried without the covariance: the best of them
on the test rows has an advantage that the other row does not have.
"""

import argparse
import sys
import time

import numpy as np
import optax

import dpjax
from dpjax.features import projection, scattering

DELTA, STEPS, CLIP_NORM, MOMENTUM, STEP_SIZES = 1e-5, 300, 0.1, 0.9, (2.0, 8.0, 32.0)
IMAGES = ("mnist", "cifar10")


def features(name):
    """Rows of both splits, and the seconds that they took."""
    data = dpjax.datasets.load(name)
    begin = time.perf_counter()
    if name not in IMAGES:
        x, y, tests = np.asarray(data.x), np.asarray(data.y), np.arange(len(data.x)) % 5 == 0
        return x[~tests], x[tests], y[~tests], y[tests], time.perf_counter() - begin
    rows = [projection(scattering(np.asarray(x))) for x in (data.x, data.test_x)]
    return *rows, np.asarray(data.y), np.asarray(data.test_y), time.perf_counter() - begin


def algorithm(epsilon, shape, scores=10, step_size=None):
    """The training, calibrated: with a step size, the one without the covariance."""
    objectives = dpjax.objectives
    objective = objectives.logistic() if scores == 1 else objectives.softmax(scores, 0.0)
    problem = objective, dpjax.PrivacyBudget(epsilon, DELTA)
    size = {"data_size": shape[0], "dimension": scores * shape[1], "steps": STEPS}
    if step_size is None:
        return dpjax.dp_feature_covariance(*problem, **size, momentum=MOMENTUM, clip_norm=CLIP_NORM)
    optimizer = optax.sgd(step_size, momentum=MOMENTUM)
    more = {"clip_norm": CLIP_NORM, "batch_size": shape[0]}
    return dpjax.dp_optimizer(*problem, optimizer=optimizer, **size, **more)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=[*IMAGES, "covtype", "ijcnn1"])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--step-sizes", type=float, nargs="+", default=STEP_SIZES)
    parser.add_argument("--without", action="store_true", help="only without the covariance")
    parser.add_argument("--with", dest="only", action="store_true", help="only with it")
    arguments = parser.parse_args()
    x, test_x, y, test_y, seconds = features(arguments.data)
    print(f"{x.shape[1]:,} features of {len(x):,} rows in {seconds:.0f} s", flush=True)
    scores = 10 if arguments.data in IMAGES else 1
    kinds = [None] * (not arguments.without)
    kinds += [] if arguments.only else [*arguments.step_sizes]
    for step_size in kinds:
        kind = "with" if step_size is None else f"step size {step_size:g}, without"
        for epsilon in arguments.epsilon:
            made = algorithm(epsilon, x.shape, scores, step_size)
            found, times = [], []
            for seed in range(arguments.seeds):
                begin = time.perf_counter()
                weights = np.asarray(dpjax.solve(made, (x, y), seed=seed).params)
                times.append(time.perf_counter() - begin)
                scored = test_x @ weights.reshape(scores, -1).T
                label = np.argmax(scored, axis=1) if scores > 1 else np.sign(scored[:, 0])
                found.append(100 * np.mean(label == test_y))
            print(
                f"epsilon {epsilon:g} (spent {made.epsilon(DELTA):.4f}), "
                f"{kind} the covariance: {np.mean(found):.2f} % "
                f"({', '.join(f'{each:.2f}' for each in found)}); at most {max(times):.0f} s a "
                "seed",
                flush=True,
            )


if __name__ == "__main__":
    try:
        main()
    except FileNotFoundError as error:
        sys.exit(str(error))
