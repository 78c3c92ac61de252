"""Test accuracy of the MNIST network at a few epsilons, by what a user would write today.

Run ``python benchmarks/mnist.py``: delta 1e-5, zero-out neighbours, the last iterate, three seeds
each. Accuracies are exact and NOT PRIVATE, and the settings were chosen by looking at them.
"""

import argparse
import sys
import time

import numpy as np
import optax

import dpjax

DELTA = 1e-5
# By epsilon: epochs and learning rate of batches of 2,048, and the accuracy that is asked for.
SETTINGS = {1.0: (12, 8.0, 0.955), 3.0: (20, 12.0, 0.975), 8.0: (40, 16.0, 0.982)}
BATCH, CLIP_NORM, MOMENTUM = 2_048, 0.1, 0.9


def train(data, epsilon, seed, epochs, rate):
    """Accuracy on the test set, seconds, and the epsilon spent."""
    steps = round(epochs * data.size / BATCH)
    schedule = optax.cosine_decay_schedule(rate, steps, alpha=0.02)
    begin = time.perf_counter()
    trained = dpjax.fit(
        dpjax.models.CNN(),
        "cross_entropy",
        data,
        dpjax.PrivacyBudget(epsilon, DELTA),
        optax.sgd(schedule, momentum=MOMENTUM),
        seed=seed,
        batch_size=BATCH,
        epochs=epochs,
        clip_norm=CLIP_NORM,
        held_out=(data.test_x, data.test_y),
        evaluate_every=epochs,
    )
    seconds = time.perf_counter() - begin
    return trained.exact_held_out["accuracy"][-1], seconds, trained.epsilon(DELTA)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--epsilon", type=float, nargs="+", default=list(SETTINGS), choices=SETTINGS
    )
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    data = dpjax.datasets.load("mnist")
    for epsilon in arguments.epsilon:
        *setting, goal = SETTINGS[epsilon]
        found = [train(data, epsilon, seed, *setting) for seed in range(arguments.seeds)]
        accuracy, seconds, spent = np.array(found).T
        each = ", ".join(f"{100 * a:.2f}" for a in accuracy)
        print(
            f"epsilon {epsilon:g} (spent {spent[0]:.4f}): {100 * accuracy.mean():.2f} % "
            f"({each}) [{100 * goal:g}]; at most {seconds.max():.0f} s a seed",
            flush=True,
        )


if __name__ == "__main__":
    try:
        main()
    except FileNotFoundError as error:
        sys.exit(str(error))
