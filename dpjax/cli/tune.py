"""``dpjax tune``: settings chosen by a private random search, one epsilon for all of it."""

import argparse
import time
from typing import Any

import dpjax
from dpjax.cli import options, problem
from dpjax.cli.run import costs
from dpjax.driver import check_data, holds_run, starting_point
from dpjax.tuning.score import ACCURACY

HELP = """
Train with settings drawn at random, and release the training of the highest noisy accuracy. The
budget covers the whole search: what is released, and that nothing else is. Prints what the search
costs against one training and against all settings trained once.

dpjax tune --dry-run
dpjax tune dp-gd --grid learning_rate=4,16,64 regularization=1e-4,1e-3
dpjax tune dp-adam --trials 5 --grid learning_rate=1,2,4 --save model --report page.html
"""
_OPTIONS: options.Options = {
    "--grid": {
        "nargs": "+",
        "metavar": "NAME=VALUES",
        "help": "settings to draw from, such as learning_rate=0.1,0.3,1 clip_norm=0.5,1, by the "
        "names of the options or of the factory's arguments; regularization too (default: a grid "
        "of the algorithm's)",
    },
    "--trials": {
        "type": float,
        "default": 10.0,
        "help": "expected number of trainings (default: 10)",
    },
    "--cap": {
        "type": int,
        "help": "largest number of trainings; so many are always made (default: four times "
        "--trials)",
    },
    "--shape": {
        "type": float,
        "default": 1.0,
        "help": "of the distribution of their number: 1 is geometric, 0 logarithmic (default: 1)",
    },
    "--public": {
        "type": options.Input,
        "help": "score each training by its accuracy on these public records, which costs no "
        "privacy, in place of a noisy accuracy on the training records",
    },
}
OPTIONS = (*options.PROBLEM, _OPTIONS, options.TRAINING, options.CHECKPOINT, options.REPORT)
LISTED = options.listed(dpjax.ALGORITHMS)


def command(arguments: argparse.Namespace) -> int:
    """Searches and returns 0; whatever is wrong raises before anything is spent."""
    options.check(arguments)
    problem.objective(arguments)  # which it notes where none is named
    data = problem.load(arguments)
    name, budget, size = problem.declared(arguments, data.size)
    settings = problem.grid(arguments.grid, name)
    make, score = problem.maker(arguments, data, name, size), _score(arguments, data)
    how = {name: getattr(arguments, name) for name in ("trials", "cap", "shape")}
    chosen = dpjax.tuning.plan(make, settings, budget, score=score, **how)
    # One setting stands for all in what follows: labels and parameters are the same for each.
    algorithm = chosen.algorithm()
    check_data(algorithm, data, starting_point(algorithm, None))
    problem.warn(algorithm)
    problem.say_labels(arguments, algorithm.objective, data)
    print("\n".join(chosen.advice()), flush=True)
    cap = chosen.release.number.cap
    if arguments.dry_run:
        problem.check_spending(arguments, chosen.event)
        return problem.dry_run(arguments, algorithm, data, costs(algorithm, data, cap))
    # Before anything is compiled, for who waits without a bar.
    print(
        f"{cap} trainings of {int(algorithm.steps)} steps follow, whatever their secret "
        "number is; --dry-run says how long that takes",
        flush=True,
    )
    begin = time.perf_counter()
    folder = arguments.checkpoint
    # One of three: a seed says that the result is for research, a checkpoint has its own.
    own = arguments.seed is not None or (folder and holds_run(folder))
    key = None if own else dpjax.random_key()
    booked = {name: getattr(arguments, name) for name in ("seed", "checkpoint", "ledger", "part")}
    tuned = dpjax.tuning.run_plan(chosen, data, key=key, **booked)
    chosen_words = ", ".join(f"{name} {value}" for name, value in tuned.settings.items())
    print(f"chosen: {chosen_words}")
    whose = "the noisy accuracy on the training records"
    if arguments.public:
        whose = f"the accuracy on {arguments.public}"
    print(f"its score: {tuned.score:.4f}, {whose}; as the largest of several it is optimistic")
    for remark in tuned.solution.remarks:
        print(f"warning: {remark}")
    if not tuned.releasable:
        print("releasable: false (a research run: seeded)")
    content = result(arguments, chosen, data, tuned, time.perf_counter() - begin)
    try:
        return options.write_training(arguments, tuned, content)
    finally:  # what is spent is said, whether or not it could be written
        print()
        print(tuned.guarantee())


def _score(arguments: argparse.Namespace, data: dpjax.Dataset) -> Any:
    """Returns the score that the arguments declare."""
    if arguments.public is None:
        return ACCURACY
    # The same declarations scale both tables.
    public_arguments = argparse.Namespace(**vars(arguments))
    public_arguments.data = arguments.public
    public = problem.load(public_arguments)
    scaled, scales = public.preprocessing, data.preprocessing
    # Scores on rows of another scale would choose by chance.
    if scaled is not None and scales is not None and scales.differences(scaled):
        raise ValueError(
            f"--public {arguments.public} has other columns than {arguments.data}: give it the "
            "same columns, with the same --bounds."
        )
    return dpjax.tuning.PublicAccuracy.of(problem.objective(public_arguments), public)


def result(
    arguments: argparse.Namespace,
    chosen: dpjax.tuning.SearchPlan,
    data: dpjax.Dataset,
    tuned: dpjax.Tuned,
    seconds: float,
) -> dict:
    """Returns what ``--json`` writes."""
    name, budget, size = problem.declared(arguments, data.size)
    algorithm = tuned.solution.algorithm
    setting = problem.Setting(algorithm, budget, name, size)
    # Time grows with the true number of records, which this relation keeps private.
    private_n = budget.relation == "add_or_remove_one"
    return {
        **problem.header(arguments, setting),
        "unit": data.unit,
        "accountant": algorithm.accountant,
        "epsilon": tuned.epsilon(),
        "releasable": tuned.releasable,
        "settings": chosen.settings,
        "chosen": tuned.settings,
        "score": tuned.score,
        "noise_ratio": chosen.noise_ratio,
        "composition_ratio": chosen.composition_ratio,
        "steps": int(tuned.solution.steps),
        "seconds": None if private_n else seconds,
    }
