"""Test accuracy of a linear model on features, with their covariance and without.

Run ``python -m benchmarks.features mnist`` (or ``cifar10``, a fifth of it, by a public projection
to 4,096 features): of scattering features, delta 1e-5, zero-out neighbours, the last iterate.
``covtype`` and ``ijcnn1`` are tables, of whose rows every fifth tests. Both take 300 full-batch
steps with momentum and spend the same epsilon. Accuracies are exact and NOT PRIVATE. Settings are
the library's defaults, and all ``--step-sizes`` are tried without the covariance, with it
``--whitened-step-sizes``: one chosen on the test rows has an advantage that a default does not
have. ``--network`` trains ``dpjax.models.CNN`` on the images in their place, at each rate and
number of epochs: batches of 2,048, momentum, the rate falling by a cosine.
"""

import argparse
import dataclasses
import itertools
import sys
import time

import numpy as np
import optax

import dpjax
from benchmarks.mnist import train
from dpjax.features import projection, scattering

DELTA, STEPS, CLIP_NORM, MOMENTUM, STEP_SIZES = 1e-5, 300, 0.1, 0.9, (2.0, 8.0, 32.0)
IMAGES = ("mnist", "cifar10")


def features(name, size):
    """Rows of both splits, and the seconds that they took."""
    data = dpjax.datasets.load(name)
    begin = time.perf_counter()
    if name not in IMAGES:
        x, y, tests = np.asarray(data.x), np.asarray(data.y), np.arange(len(data.x)) % 5 == 0
        return x[~tests], x[tests], y[~tests], y[tests], time.perf_counter() - begin
    rows = [projection(scattering(np.asarray(x)), size) for x in (data.x, data.test_x)]
    return *rows, np.asarray(data.y), np.asarray(data.test_y), time.perf_counter() - begin


def algorithm(epsilon, shape, scores, covariance, step_size):
    """The training, calibrated, with the covariance or without; None is the library's step size."""
    objectives = dpjax.objectives
    objective = objectives.logistic() if scores == 1 else objectives.softmax(scores, 0.0)
    problem = objective, dpjax.PrivacyBudget(epsilon, DELTA)
    size = {"data_size": shape[0], "dimension": scores * shape[1], "steps": STEPS}
    if covariance:
        own = {"step_size": step_size, "momentum": MOMENTUM, "clip_norm": CLIP_NORM}
        return dpjax.dp_feature_covariance(*problem, **size, **own)
    optimizer = optax.sgd(step_size, momentum=MOMENTUM)
    more = {"clip_norm": CLIP_NORM, "batch_size": shape[0]}
    return dpjax.dp_optimizer(*problem, optimizer=optimizer, **size, **more)


def networks(name, epsilons, seeds, rates, epochs):
    """Prints the accuracy of the network's private SGD at each setting."""
    data = dpjax.datasets.load(name)
    if name == "cifar10":
        # Colours of order 1, by round numbers that no record decides.
        x, tests = ((np.asarray(images) - 0.5) / 0.25 for images in (data.x, data.test_x))
        data = dataclasses.replace(data, x=x, test_x=tests)
    for epsilon, rate, count in itertools.product(epsilons, rates, epochs):
        runs = [train(data, epsilon, seed, count, rate) for seed in range(seeds)]
        found, times, spent = np.array(runs).T
        words = f"epsilon {epsilon:g} (spent {spent[0]:.4f}), CNN, rate {rate:g}, {count} epochs"
        report(words, found, times)


def report(words, found, times):
    each = ", ".join(f"{100 * accuracy:.2f}" for accuracy in found)
    mean = 100 * np.mean(found)
    print(f"{words}: {mean:.2f} % ({each}); at most {max(times):.0f} s a seed", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=[*IMAGES, "covtype", "ijcnn1"])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--step-sizes", type=float, nargs="+", default=STEP_SIZES)
    parser.add_argument("--whitened-step-sizes", type=float, nargs="+", default=[None])
    parser.add_argument("--without", action="store_true", help="only without the covariance")
    parser.add_argument("--with", dest="only", action="store_true", help="only with it")
    parser.add_argument("--size", type=int, default=4096, help="of the projection")
    parser.add_argument("--network", action="store_true", help="only private SGD of a CNN")
    parser.add_argument("--rates", type=float, nargs="+", default=[4.0, 8.0, 16.0])
    parser.add_argument("--epochs", type=int, nargs="+", default=[20, 40])
    arguments = parser.parse_args()
    if arguments.network:
        runs = arguments.epsilon, arguments.seeds, arguments.rates, arguments.epochs
        return networks(arguments.data, *runs)
    x, test_x, y, test_y, seconds = features(arguments.data, arguments.size)
    print(f"{x.shape[1]:,} features of {len(x):,} rows in {seconds:.0f} s", flush=True)
    scores = 10 if arguments.data in IMAGES else 1
    kinds = [(True, size) for size in arguments.whitened_step_sizes] * (not arguments.without)
    kinds += [(False, size) for size in arguments.step_sizes] * (not arguments.only)
    for covariance, step_size in kinds:
        kind = f"{step_size or 'default'} step size, with{'' if covariance else 'out'}"
        for epsilon in arguments.epsilon:
            made = algorithm(epsilon, x.shape, scores, covariance, step_size)
            found, times = [], []
            for seed in range(arguments.seeds):
                begin = time.perf_counter()
                weights = np.asarray(dpjax.solve(made, (x, y), seed=seed).params)
                times.append(time.perf_counter() - begin)
                scored = test_x @ weights.reshape(scores, -1).T
                label = np.argmax(scored, axis=1) if scores > 1 else np.sign(scored[:, 0])
                found.append(np.mean(label == test_y))
            spent = f"epsilon {epsilon:g} (spent {made.epsilon(DELTA):.4f})"
            report(f"{spent}, {kind} the covariance", found, times)


if __name__ == "__main__":
    try:
        main()
    except FileNotFoundError as error:
        sys.exit(str(error))
