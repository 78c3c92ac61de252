"""``dpjax tune``: settings chosen by a private random search, one epsilon for all of it."""

import argparse
import time
from typing import Any

import dpjax
from dpjax.cli import outputs, problem, report
from dpjax.driver import check_data, root_key, starting_point
from dpjax.results import guarantee
from dpjax.tuning.score import ACCURACY


def command(arguments: argparse.Namespace) -> int:
    """Searches and returns 0; whatever is wrong raises before anything is spent."""
    outputs.check(arguments)
    problem.objective(arguments)  # which it notes where none is named
    data = problem.load(arguments)
    name, budget, size = problem.declared(arguments, data.size)
    settings = problem.grid(arguments.grid, name)
    chosen = dpjax.tuning.plan(
        problem.maker(arguments, data, name, size),
        settings,
        budget,
        trials=arguments.trials,
        cap=arguments.cap,
        shape=arguments.shape,
        score=_score(arguments, data),
    )
    algorithm = chosen.algorithm()
    check_data(algorithm, data, starting_point(algorithm, None))
    report.warn(algorithm)
    problem.say_labels(arguments, algorithm.objective, data)
    print("\n".join(chosen.advice()), flush=True)
    scale = data.preprocessing
    declared = (None, None) if scale is None else (scale.classes or (), scale.label_bounds)
    if arguments.dry_run:
        if arguments.seed is not None:
            root_key(None, arguments.seed)
        if arguments.ledger:
            dpjax.Ledger.read(arguments.ledger).of(arguments.part).check(chosen.event)
        print(guarantee.statement(algorithm, data.unit, False, *declared, arguments.part))
        print("dry run: nothing was spent.")
        return problem.flag_quotes(arguments.data, arguments.schema)
    begin = time.perf_counter()
    tuned = dpjax.tuning.run_plan(
        chosen,
        data,
        key=dpjax.random_key() if arguments.seed is None else None,
        seed=arguments.seed,
        ledger=arguments.ledger,
        part=arguments.part,
    )
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
        return outputs.write(
            (arguments.save, lambda path: dpjax.save(path, tuned)),
            (arguments.json, lambda path: report.write_json(path, content)),
        )
    finally:  # what is spent is said, whether or not it could be written
        print()
        print(tuned.guarantee())


def _score(arguments: argparse.Namespace, data: dpjax.Dataset) -> Any:
    """Returns the score that the arguments declare."""
    if arguments.public is None:
        return ACCURACY
    own = argparse.Namespace(**vars(arguments))
    own.data = arguments.public
    public = problem.load(own)
    scaled, scales = public.preprocessing, data.preprocessing
    if scaled is not None and scales is not None and not scales.scales_as(scaled):
        raise ValueError(
            f"--public {arguments.public} has other columns than {arguments.data}: give it the "
            "same columns, with the same --bounds."
        )
    return dpjax.tuning.PublicAccuracy.of(problem.objective(own), public)


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
    setting = problem.Setting(
        algorithm, budget, name, arguments.objective, size, algorithm.dimension
    )
    private_n = budget.relation == "add_or_remove_one"
    return {
        **report.header(arguments, setting),
        "unit": data.unit,
        "accountant": algorithm.accountant,
        "epsilon": tuned.epsilon(),
        "releasable": tuned.releasable,
        "settings": chosen.settings,
        "chosen": tuned.settings,
        "score": tuned.score,
        "noise": [release.to_json() for release in algorithm.event.releases],
        "noise_ratio": chosen.noise_ratio,
        "composition_ratio": chosen.composition_ratio,
        "steps": int(tuned.solution.steps),
        "max_steps": algorithm.max_steps,
        "seconds": None if private_n else seconds,
    }
