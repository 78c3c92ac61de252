"""What a private search over 32 settings gains or costs, at a total epsilon of 1.

Run ``python benchmarks/private_search.py [ALGORITHM ...] [--seeds N] [--quick] [--json FILE]``. For
each algorithm and data set, accuracy on records held out, mean and standard error over the seeds:
of the default settings with the whole budget; of ``dpjax.tune``, 10 expected trainings of at most
40; and of the best of all 32 by plain composition, each with its part of the budget. NOT PRIVATE:
the accuracy is exact. Other options: ``--share S`` for the score's part of a training's epsilon;
``--prices`` prints the noise of a search over that of one training alone, by expected trainings and
epsilon, and trains nothing.
"""

import argparse
import functools
import json
import math
from pathlib import Path

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.accounting import (
    Event,
    NumberOfTrials,
    Release,
    SearchRelease,
    calibrate,
    epsilon,
    gaussian_multiplier,
)
from dpjax.accounting.best_of import default_cap
from dpjax.tuning import trials
from dpjax.tuning.planning import SCORE_SHARE

EPSILON, TRIALS, CAP = 1.0, 10.0, 40
PENALTIES = [1e-5, 1e-4, 1e-3, 1e-2]
GRIDS = {
    "dp-tr": {"radius": [3.0, 12.0, 48.0, 96.0], "damping": [0.25, 1.0]},
    "dp-adam": {"step_size": [0.5, 1.0, 2.0, 4.0], "clip_norm": [0.3, 1.0]},
}
DATA = ("randhie", "ijcnn1", "covtype")
MOST = 30_000  # records of covtype that are trained on


def split(name):
    """Records to train on and to test on; a fifth where the data come without a test set."""
    data = dpjax.datasets.load(name)
    if data.test_x is not None:
        return (data.x, data.y), (data.test_x, data.test_y)
    order = np.random.default_rng(0).permutation(data.size)
    count = min(MOST, data.size - data.size // 5)
    x, y = np.asarray(data.x), np.asarray(data.y)
    train, test = order[:count], order[count : count + 100_000]
    return (x[train], y[train]), (x[test], y[test])


def maker(algorithm, count, features):
    def make(budget, regularization=1e-3, **settings):
        objective = dpjax.objectives.logistic_nonconvex(regularization)
        factory = dpjax.ALGORITHMS[algorithm]
        return factory(objective, budget, data_size=count, dimension=features, **settings)

    return make


def accuracies(params, test):
    x, y = map(jnp.asarray, test)
    return np.array([float(jnp.mean(jnp.where(x @ w >= 0, 1, -1) == y)) for w in params])


def of_default(make, budget, train, seeds):
    algorithm = make(budget)
    keys = jax.random.split(jax.random.key(1), seeds)
    return jax.vmap(lambda key: dpjax.solve(algorithm, train, key=key).params)(keys)


def of_search(plan, train, seeds):
    found = [dpjax.tuning.run_plan(plan, train, seed=seed) for seed in range(seeds)]
    return [tuned.params for tuned in found], [tuned.settings for tuned in found]


def of_all(make, settings, budget, train, seeds, share):
    """Every setting trained and scored once, all of it released, and the best score taken."""
    part = 1 / (gaussian_multiplier(budget, 1) * math.sqrt(len(settings)))
    one = Event((Release("one", 1, noise_multiplier=1 / part),), budget.relation)
    each = dpjax.PrivacyBudget(epsilon(one, budget.delta, budget.relation), budget.delta)
    algorithms = [
        dpjax.with_accuracy(functools.partial(make, **setting), each, epsilon=share * each.epsilon)
        for setting in settings
    ]
    stacked, start = trials.stack(algorithms), jnp.zeros(train[0].shape[1])
    records = tuple(map(jnp.asarray, train))
    places = jnp.arange(len(settings))

    @jax.jit
    def best(key):
        drawn = trials.Draw(jax.random.split(key, len(settings)), places, places >= 0)
        carries = trials.begin(stacked, drawn, records, start)
        rounds = trials.rounds_of(algorithms)
        carries = trials.advance(stacked, drawn, carries, records, start, rounds)
        return trials.choose(stacked, drawn, carries, records, start, None, None, "row", True)

    return [best(jax.random.key(seed)).solution.params for seed in range(seeds)]


def prices(delta=1e-6):
    """Noise of a training in a search over that of one alone: the search itself, score apart."""

    def scale(make_event, budget, accountant="pld"):
        return calibrate(
            lambda noise: Event(make_event(noise), budget.relation), budget, accountant
        )

    print("| expected trainings, cap | epsilon | search | by Rényi DP | theorem | 32 composed |")
    print("|---|---|---|---|---|---|")
    for mean in (5.0, 10.0, 32.0):
        for at in (0.5, 1.0, 3.0):
            budget = dpjax.PrivacyBudget(at, delta)
            number = NumberOfTrials(mean, default_cap(mean))

            def search(noise, number=number):
                return (SearchRelease.of([(Release("one", 1, noise),)], number, settings=32),)

            one = scale(lambda noise: (Release("one", 1, noise),), budget)
            exact, renyi = (scale(search, budget, how) / one for how in ("pld", "rdp"))
            theorem = dp_accounting.calibrate_dp_mechanism(
                dp_accounting.rdp.RdpAccountant,
                lambda noise, mean=mean: dp_accounting.dp_event.RepeatAndSelectDpEvent(
                    dp_accounting.GaussianDpEvent(float(noise)), mean, 1.0
                ),
                at,
                delta,
                dp_accounting.LowerEndpointAndGuess(one, 2 * one),
            )
            print(
                f"| {mean:.0f}, {number.cap} | {at:g} | {exact:.2f} | {renyi:.2f} | "
                f"{theorem / one:.2f} | {math.sqrt(32):.2f} |"
            )


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("algorithms", nargs="*", default=list(GRIDS), help=", ".join(GRIDS))
    words.add_argument("--seeds", type=int, default=20)
    words.add_argument("--share", type=float, default=SCORE_SHARE)
    words.add_argument("--data", nargs="+", default=list(DATA))
    words.add_argument("--quick", action="store_true", help="3 seeds, no composition")
    words.add_argument("--json", metavar="FILE", help="write the figures")
    words.add_argument("--prices", action="store_true", help="print prices, train nothing")
    arguments = words.parse_args()
    if arguments.prices:
        prices()
        return
    seeds, found = 3 if arguments.quick else arguments.seeds, []
    print("| algorithm | data | n | default | search | all 32, composed | noise of a training |")
    print("|---|---|---|---|---|---|---|")
    for algorithm in arguments.algorithms or GRIDS:
        settings = dpjax.tuning.expand(GRIDS[algorithm] | {"regularization": PENALTIES})
        for name in arguments.data:
            train, test = split(name)
            count, features = train[0].shape
            budget = dpjax.PrivacyBudget(EPSILON, 1 / (10 * count))
            make = maker(algorithm, count, features)
            plan = dpjax.tuning.plan(
                make, settings, budget, trials=TRIALS, cap=CAP, score_share=arguments.share
            )
            params, chosen = of_search(plan, train, seeds)
            rows = {
                "default": of_default(make, budget, train, seeds),
                "search": params,
            }
            if not arguments.quick and plan.release.trainings[0][0].is_gaussian:
                rows["composed"] = of_all(make, settings, budget, train, seeds, arguments.share)
            one = {
                "algorithm": algorithm,
                "data": name,
                "n": count,
                "noise_ratio": plan.noise_ratio,
            }
            one["composition_ratio"] = plan.composition_ratio
            cells = []
            for kind in ("default", "search", "composed"):
                if kind not in rows:
                    cells.append("-")
                    continue
                values = accuracies(rows[kind], test)
                mean, error = values.mean(), values.std(ddof=1) / math.sqrt(seeds)
                one |= {kind: mean, f"{kind}_error": error}
                cells.append(f"{mean:.4f} ({error:.4f})")
            print(
                f"| {algorithm} | {name} | {count:,} | {' | '.join(cells)} | "
                f"{plan.noise_ratio:.2f}x, composed {plan.composition_ratio:.2f}x |",
                flush=True,
            )
            found.append(one | {"chosen": chosen})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
