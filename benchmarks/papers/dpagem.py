"""NOT PRIVATE: the DPageEM paper (Zhang et al. 2021): its networks, methods and step sizes."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.papers import page
from benchmarks.papers.claims import Compared, Verdict, decided, number, welch
from benchmarks.papers.figures import Lines, Picture
from benchmarks.papers.results import Difference, Results, difference, per_problem
from benchmarks.papers.spec import (
    SEED,
    Array,
    Experiment,
    Figure,
    Method,
    Params,
    Problem,
    Relation,
    Settings,
    Tuning,
)
from dpjax import algorithms, datasets
from dpjax.accounting import Event, PrivacyBudget, epsilon
from dpjax.datasets import Dataset
from dpjax.models import CNN, ResNet20
from dpjax.objectives import Objective, cross_entropy, logistic_l2
from dpjax.sampling import poisson, without_replacement

DELTA, CLIP_NORM = 1e-5, 1.0
# In place of no clipping: far above the norm of any record's gradient.
UNCLIPPED = 1_000.0
MOMENTUM = 0.9
# Of the smallest step size of a grid, where nothing is tuned: ten times as many parameters take
# noise of more than three times the norm.
UNTUNED = 0.25
NOISELESS = "nonpri-SGD-stage"
STAGE, EARLY = "DPageS", "DPageEM"
CONST, LINEAR, ROOT = "DP-SGD-const", "DP-SGD-c/t", "DP-SGD-c/sqrt(t)"
MOMENTUM_CONST, EARLY_CONST = "DP-SGDM-const", "DP-SGDEM-const"
RECIPE = "dp_adam, large batches"
_PRIVATE = (STAGE, EARLY, CONST, LINEAR, ROOT, MOMENTUM_CONST, EARLY_CONST)
_FIELDS = ("train", "test")
# What the paper says of its privacy with the constant at which it is usually read, and the length
# of 60 epochs of MNIST.
PAPER_CONSTANT, PAPER_STEPS = 2.0, 14_063
MADE = "made-images"


# Networks and images.


@functools.cache
def network(name: str) -> tuple[Any, Objective]:
    """Returns how a network is drawn, and its loss; the same objects each time: one program."""
    module: Any = ResNet20() if name == "ResNet20" else CNN(activation="elu")
    return jax.jit(module.init), cross_entropy(module.apply)


def start(name: str, seed: int, data: Dataset) -> Params:
    """Returns the network's first parameters, drawn anew for each seed; public."""
    key = jax.random.fold_in(jax.random.key(SEED), seed + 1)
    return network(name)[0](key, jnp.asarray(data.x[0]) * 0)


def keys(root: Array, seeds: int, tuning: bool | None) -> Array:
    """Returns the keys of batches and noise."""
    del root
    own = jax.random.key(SEED + 1)
    return jnp.stack([jax.random.fold_in(own, 0 if tuning else seed + 1) for seed in range(seeds)])


def colours() -> Dataset:
    """Returns CIFAR-10 with colours of order 1: round numbers that no record decides."""
    data = datasets.load("cifar10")
    parts = {name: (np.asarray(getattr(data, name)) - 0.5) / 0.25 for name in ("x", "test_x")}
    return dataclasses.replace(data, **{n: v.astype(np.float32) for n, v in parts.items()})


def made(rows: int = 600) -> Dataset:
    """Returns images drawn from a published seed: ten blurred patterns under noise."""
    random = np.random.default_rng(2021)
    # Patterns of 7 x 7 blocks, so that a convolution has something to find.
    patterns = np.kron(random.random((10, 7, 7)), np.ones((4, 4)))

    def drawn() -> tuple[np.ndarray, np.ndarray]:
        y = random.integers(10, size=rows)
        x = patterns[y] + 0.2 * random.normal(size=(rows, 28, 28))
        return x.clip(0, 1).astype(np.float32), y.astype(np.float32)

    return Dataset(*drawn(), *drawn(), MADE, "image")


_CIFAR10 = "CIFAR-10 (Krizhevsky, 2009)."
_SOURCES = {
    "mnist": "The MNIST database of handwritten digits (LeCun, Cortes and Burges). Commonly stated "
    "as CC BY-SA 3.0. Bytes divided by 255. Test set of 10,000.",
    "cifar10": f"{_CIFAR10} A FIFTH of CIFAR-10: the first 1,000 training and 200 test images of "
    "each class. Results do not compare with published ones. Bytes divided by 255.",
    "cifar10, whole": f"{_CIFAR10} No terms stated. An archive of the whole set, made from the "
    "publisher's files.",
}


def _note(name: str, counted: int, n: int) -> str:
    source = _SOURCES["cifar10, whole" if name == "cifar10" and n == 50_000 else name]
    return f"{source} Accuracy is of {counted:,} training and test images at most."


# Methods.


def without_noise(objective: Objective, budget: PrivacyBudget, **more: Any) -> Any:
    """Returns DPageEM's step with neither noise nor clipping. NOT PRIVATE: never release it."""
    algorithm = algorithms.dpagem(objective, budget, **more)
    query = dataclasses.replace(algorithm.query, noise_multiplier=0.0, clip_norm=UNCLIPPED)
    return dataclasses.replace(algorithm, query=query)


def recipe(objective: Objective, budget: PrivacyBudget, *, step_size: float, **more: Any) -> Any:
    """Returns what a user would pick today: Adam, its step size falling to a quarter."""
    final = {"step_size": step_size, "final_step_size": step_size / 4}
    return algorithms.dp_adam(objective, budget, **final, **more)


def _grids(*grid: float) -> dict[str, tuple[dict[str, float], ...]]:
    untuned = ({"step_size": UNTUNED * min(grid)},)
    return {"cifar10": untuned, "": tuple({"step_size": step} for step in grid)}


# What a method takes of ``_settings``. One stage of all steps is a constant step size, in the
# program that has stages too.
_STAGES = {"batch_size": "batch_size", "first_steps": "first_steps"}
_ONE_STAGE = {"batch_size": "batch_size", "first_steps": "steps"}
_STEPS = {"batch_size": "batch_size", "steps": "steps"}
_RECIPE = {"batch_size": "recipe_batch_size", "steps": "recipe_steps"}
_MOMENTUM = {"momentum": MOMENTUM, "clip_norm": CLIP_NORM}
METHODS = (
    Method(NOISELESS, without_noise, _MOMENTUM | {"momentum_when": "never", "stages": 4}, _STAGES,
           _grids(0.2, 0.4, 0.8), private=False),
    *(Method(label, "dpagem", _MOMENTUM | settings, takes, _grids(*grid))
      for label, settings, takes, grid in (
        (STAGE, {"momentum_when": "never", "stages": 4}, _STAGES, (2.0, 4.0, 8.0)),
        (EARLY, {"stages": 4}, _STAGES, (0.4, 0.8, 1.6)),
        (CONST, {"stages": 1, "momentum_when": "never"}, _ONE_STAGE, (1.0, 2.0, 4.0)),
        (LINEAR, {"schedule": "inverse", "momentum_when": "never"}, _STEPS, (10.0, 30.0, 100.0)),
        (ROOT, {"schedule": "inverse_sqrt", "momentum_when": "never"}, _STEPS, (10.0, 20.0, 40.0)),
        (MOMENTUM_CONST, {"momentum_when": "always", "stages": 1}, _ONE_STAGE, (0.05, 0.1, 0.2)),
        (EARLY_CONST, {"momentum_when": "early", "stages": 1}, _ONE_STAGE, (0.1, 0.2, 0.4)),
    )),
    Method(RECIPE, recipe, {"clip_norm": CLIP_NORM}, _RECIPE, _grids(1e-3, 2e-3, 4e-3),
           {"cifar10": "a recipe for the CNN alone"}),
)  # fmt: skip
_QUICK = (NOISELESS, STAGE, EARLY, MOMENTUM_CONST, RECIPE)


def _settings(first: int, batch: int) -> dict[str, int]:
    steps = 15 * first
    return {"batch_size": batch, "first_steps": first, "steps": steps,
            "recipe_batch_size": 1_024, "recipe_steps": min(300, steps)}  # fmt: skip


def _problem(data: str, name: str, first: int, batch: int, quick: tuple[int, int], **more: Any):
    exact = tuple(f"exact_{field}_accuracy" for field in _FIELDS)
    return Problem(
        data, network(name)[1], f"{{data}}, {name}", delta=DELTA, relation="replace_one",
        settings=_settings(first, batch), keys=(data,), start=functools.partial(start, name),
        metrics=(*exact, "steps", "batch_size", "noise_multiplier", "epsilon_of_the_noise"),
        path_metrics=exact, spacing="even", note=functools.partial(_note, data, more["counted"]),
        quick={"rows": 600, "methods": _QUICK, "tries": 2, "counted": 200,
               "settings": _settings(quick[0], 32), "checkpoints": quick[1]}, **more,
    )  # fmt: skip


_MADE = {"data": MADE, "records": made, "note": lambda n: "Drawn from a published seed."}
_MNIST = _problem("mnist", "CNN", 70, 256, (2, 5), epsilons=(8.0,), checkpoints=15, counted=10_000,
                  stand_in=_MADE)  # fmt: skip
_CIFAR = _problem("cifar10", "ResNet20", 9, 128, (1, 1), epsilons=(10.0,), checkpoints=5,
                  counted=2_000, records=colours, most_seeds=1, stand_in={})  # fmt: skip


TUNING = Tuning("exact_train_accuracy", seeds=1, largest=True, further=3)

# Tables.


def _published(n: int, batch: float, steps: int, asked: float) -> dict[str, str]:
    """The noise of the paper's equation 4 with c2 = 2, L = 1, and its exact epsilons."""
    noise = PAPER_CONSTANT * batch / n * math.sqrt(steps * math.log(1 / DELTA)) / asked
    cells = {"the paper's, c2 = 2": f"{noise:.4f}"}
    # The budget is for the sampler alone: what is spent is computed. A failure of the draw, which
    # costs e^epsilon times its probability, is left out.
    budget, subsets = PrivacyBudget(10.0, DELTA), without_replacement(int(batch), n)
    batches = poisson(int(batch), n, budget=budget, count=steps, max_batch_size=n)
    draws: tuple[tuple[Relation, str, Any], ...] = (
        ("replace_one", "its epsilon at most, as the paper draws: replace_one, without "
         "replacement", subsets), ("replace_one", "replace_one, Poisson", batches),
        ("zero_out", "zero_out, Poisson", batches),
    )  # fmt: skip
    for relation, head, sampler in draws:
        one = sampler.release("gradient", steps, noise_multiplier=noise, relation=relation)
        one = dataclasses.replace(one, failure_probability=0.0)
        cells[head] = number(epsilon(Event((one,), relation), DELTA, relation))
    return cells


def _final(found: Results, method: str, field: str) -> np.ndarray:
    return found.values(f"exact_{field}_accuracy", method=method)


def _last(field: str) -> page.Cell:
    def cell(found: Results) -> str:
        last = found.values(f"exact_{field}_accuracy")
        spread = f" +- {100 * last.std(ddof=1):.2f}" if len(last) > 1 else ""
        return f"{100 * last.mean():.2f}{spread} %"

    return cell


def _step(words: str) -> float:
    return float(words.split("step_size ")[1].split(",")[0])


def _chosen(found: Results) -> float:
    return _step(found.taken("steps"))


def _privacy(found: Results) -> str:
    spent = found.mean("epsilon_of_the_noise")
    return f"epsilon {spent:.4g}" if math.isfinite(spent) else "NOT PRIVATE, no epsilon"


_ACCURACIES = page.Grid(
    "Exact accuracy of the last iterate, mean of the seeds, +- their standard deviation: NOT "
    "PRIVATE. All methods of the paper take as many iterations; a recipe with another batch ends "
    "at another one.",
    _last("test"), corner="test accuracy",
    more=(("training accuracy", _last("train")),
          ("iterations", page.mean("steps", "{:,.0f}".format)),
          ("batch", page.mean("batch_size", "{:g}".format)),
          ("step size", lambda own: f"{_chosen(own):g}"), ("privacy", _privacy)),
)  # fmt: skip


@per_problem
def _tried(found: Results, problem: Problem) -> list[str]:
    tried, edges = [], []
    for label in found.each("method"):
        own = found.where(method=label)
        steps = {_step(words): value for words, value in own.tried(TUNING.metric).items()}
        tried += [f"{label} {step:g}: {steps[step]:.2%}" for step in sorted(steps)]
        edges += [label] if steps and _chosen(own) in (min(steps), max(steps)) else []
    best = f" At an edge, and perhaps better beyond it: {', '.join(edges)}." if edges else ""
    words = "Step sizes tried with a seed of their own, and the exact training accuracy reached"
    return [f"{words} (NOT PRIVATE): {'; '.join(tried)}.{best}", ""] if tried else []


@per_problem
def _noise(found: Results, problem: Problem) -> list[str]:
    (n, _), asked, own = found.shape, found.each("epsilon")[-1], found.where(method=STAGE)
    steps, batch, ours = (own.mean(m) for m in ("steps", "batch_size", "noise_multiplier"))
    whole = problem.data == "mnist" and problem.rows is None
    rows = [
        {"epsilon asked for": f"{asked:g}", "steps": f"{count:,}",
         "our noise multiplier": f"{ours:.4f}" if count == steps else ""}
        | _published(n, batch, count, asked)
        for count in [int(steps)] + [PAPER_STEPS] * whole
    ]  # fmt: skip
    return page.table(
        rows,
        "The noise, as standard deviation over the clip norm on the sum of a batch, and what the "
        f"paper's own accounting would really give at delta = {DELTA:g}: the noise of its equation "
        "4 with c2 = 2, by an accountant that is exact for Poisson batches of the same expected "
        "size, and bounds batches without replacement from above.",
    )


def _behind(found: Results, method: str, field: str) -> Difference:
    return difference(_final(found, NOISELESS, field), _final(found, method, field))


def _gaps(results: Results, problems: Sequence[Problem]) -> Iterator[str]:
    yield (
        f"Points of exact accuracy (NOT PRIVATE) by which each method is behind {NOISELESS} at the "
        "paper's epsilon, last iterates, +- the standard error of the difference:"
    )
    yield ""
    for problem in problems:
        found = results.where(problem=problem.name)
        corner, rows = f"{problem.name}, epsilon {found.each('epsilon')[-1]:g}", []
        for label in (one for one in found.each("method") if one != NOISELESS):
            gaps = {field: _behind(found, label, field) for field in _FIELDS}
            words = {f: f"{100 * d.value:.2f} +- {100 * d.error:.2f}" for f, d in gaps.items()}
            rows.append({corner: label} | {f: w.replace(" +- nan", "") for f, w in words.items()})
        yield from page.table(rows) if rows else ()


def stability_bound(made: Settings, n: int, batch: int, c4: float, beta: float, mu: float) -> float:
    """Returns log10 of theorem 3.3's alpha at theta = L = 1, of ``algorithms.paper_stages``.

    >>> made = {"first_steps": 2, "first_on_steps": 0, "stages": 1, "momentum": 0.0}
    >>> round(stability_bound(made, 1_000, 1, 1.0, 1.0, 1.0), 3)
    -2.155
    """
    steps, on = (made[name] << made["stages"] - 1 for name in ("first_steps", "first_on_steps"))
    rho, grown = made["momentum"], (1 - 1 / n) * beta / (c4 * mu) * math.log(steps)
    terms = [math.log(2 / ((n - 1) * beta)) + grown, math.log((steps + 1) * batch / n)]
    if rho * on > 0:  # else the first term has no value
        factor = math.log1p(1 / (2 * rho)) - math.log1p(1 / (rho * on)) / 2
        terms.append(math.log(2 / (c4 * mu * n) * factor) + grown + 2 * rho * (on - 1))
    return float(np.logaddexp.reduce(terms)) / math.log(10)


def _theory(results: Results, problems: Sequence[Problem]) -> list[str]:
    rows, n, budget = [], 35_000, PrivacyBudget(1.0, DELTA, "replace_one")
    for mu, c4, rho in itertools.product((0.1, 1e-3), (0.125, 1.9), (0.0, MOMENTUM)):
        known = {"mu": mu, "c4": c4, "momentum": rho}
        made = algorithms.paper_stages(logistic_l2(mu), budget, data_size=n, dimension=22,
                                       theta=1.0, on_fraction=0.5 * (rho > 0), **known)  # fmt: skip
        (first, count), eta = (made[name] for name in ("first_steps", "stages")), made["step_size"]
        alpha = stability_bound(made, n, 256, c4, 0.25 + mu, mu)
        rows.append(known | {"eta0": number(eta), "T0": f"{first:,}", "K": count, "all steps":
                    f"{first * (2**count - 1):,}", "alpha of 3.3": f"10^{alpha:,.1f}"})  # fmt: skip
    return page.table(rows, "Not trained: the logistic loss with l2 of strength mu, theta = L = 1, "
                      f"n = {n:,}, d = 22, epsilon 1, delta = {DELTA:g}, batches of 256. As losses "
                      "differ by 2 at most, an alpha above 2 says nothing.")  # fmt: skip


# Claims: what is said, and the pairs of which the first is above the second.
_SAID = (
    ("DPageS has the best training and test accuracy of the paper's private methods.",
     tuple((STAGE, other) for other in _PRIVATE if other != STAGE)),
    ("DPageEM is more accurate than DP-SGDM-const and DP-SGDEM-const.",
     ((EARLY, MOMENTUM_CONST), (EARLY, EARLY_CONST))),
    ("DP-SGDM-const is the worst of the methods with momentum.",
     ((EARLY, MOMENTUM_CONST), (EARLY_CONST, MOMENTUM_CONST))),
    ("Early momentum is less accurate than none: DPageEM than DPageS, DP-SGDEM-const than "
     "DP-SGD-const.", ((STAGE, EARLY), (CONST, EARLY_CONST))),
)  # fmt: skip


@per_problem
def _order(found: Results, problem: Problem) -> Iterator[Verdict]:
    there, said = found.each("method"), [(f": {text}", pairs) for text, pairs in _SAID]
    private = [m for m in there if m in _PRIVATE]
    if private:
        best = max(private, key=lambda m: _final(found, m, "test").mean())
        said.append((f", not said by the paper: the recipe {RECIPE} is more accurate than the best "
                     "of its private methods, by test accuracy.", ((RECIPE, best),)))  # fmt: skip
    for text, pairs in said:
        compared = []
        for field, pair in itertools.product(_FIELDS, pairs):
            if {*pair} <= {*there}:
                a, b = (_final(found, method, field) for method in pair)
                words = f"{pair[0]} {100 * a.mean():.2f} %, {pair[1]} {100 * b.mean():.2f} %"
                compared.append(Compared(f"{field}: {words}", a.mean() > b.mean(), welch(a, b)))
        if compared:
            yield decided(f"Epsilon {found.each('epsilon')[-1]:g}{text}", compared)


def _distance(results: Results, problems: Sequence[Problem]) -> Iterator[Verdict]:
    if len(problems) < 2:
        return
    small, large = (results.where(problem=problem.name) for problem in problems)
    (near, far), compared = [problem.where for problem in problems], []
    shared = [m for m in _PRIVATE if m in small.each("method") and m in large.each("method")]
    for field, method in itertools.product(_FIELDS, shared):
        gaps = [100 * _behind(rows, method, field).value for rows in (small, large)]
        words = f"{gaps[0]:.2f} points behind on {near}, {gaps[1]:.2f} on {far}"
        pairs = itertools.product((large, small), (NOISELESS, method))
        p = welch(*(_final(*one, field) for one in pairs))
        compared.append(Compared(f"{field}, {method}: {words}", gaps[0] < gaps[1], p))
    if compared:
        yield decided(
            f"Private training is less far behind {NOISELESS} on {problems[0].name}, than on "
            f"{problems[1].name}, each at the epsilon of the paper's figure.", compared,
        )  # fmt: skip


# Pictures.


def _accuracy(field: str, words: str) -> Lines:
    return Lines(f"exact_{field}_accuracy", f"{words} accuracy, epsilon {{epsilons}}", "iterations",
                 f"exact {words.lower()} accuracy", x="step", xscale="linear", yscale="error",
                 least=1e-4)  # fmt: skip


_ACCURACY = Picture(
    "Accuracy of the network on {problem} as it trains: higher is better; n = {n:,}, delta = "
    "{delta:g}, {relation}; {exact}\nmean of {seeds}, bars: their range at the end; dashed grey: "
    "without noise, NOT PRIVATE",
    (_accuracy("train", "Training"), _accuracy("test", "Test")),
    size=(6.4, 4.4),
    legend="none",
)


EXPERIMENT = Experiment(
    "dpagem",
    "Private Stochastic Non-convex Optimization with Improved Utility Rates",
    METHODS,
    {
        "fig1": Figure("Accuracy of the CNN on MNIST against iterations.", (_MNIST,), _ACCURACY,
                       (_ACCURACIES, _tried, _noise), (_order,)),
        "fig2": Figure("Accuracy of ResNet-20 on CIFAR-10 against iterations.", (_CIFAR,),
                       _ACCURACY, (_ACCURACIES, _tried, _noise), (_order,)),
        "gap": Figure("How far private training is behind, on both.", (_MNIST, _CIFAR), None,
                      (_gaps,), (_distance,)),
        "theory": Figure("Theorem 3.2's stages and theorem 3.3's bound.", (), None, (_theory,)),
    },
    "Zhang, Ma, Lou and Xiong, 2021, figures 1 and 2 and section 4.2",
    "Neighbours are replace_one, as in the paper, and delta = 1e-5. The noise is what an exact "
    "accountant needs for Poisson batches under that relation: the paper draws batches of fixed "
    "size and leaves the constant c2 of its noise open; what c2 = 2 would really give is below. "
    "Epsilon 8 on MNIST and 10 on CIFAR-10 are those of the paper's figures. "
    "ALL ACCURACIES ARE EXACT VALUES AND NOT PRIVATE: every metric whose name begins with exact, "
    "the pictures and all verdicts.",
    "Networks with ELU as in the paper: two convolutions on MNIST, ResNet-20 with group "
    f"normalisation on CIFAR-10. {NOISELESS} is the same step without noise, its gradients held at "
    f"{UNCLIPPED:,.0f}, far above any: NOT PRIVATE at all. The others clip each record's gradient "
    f"at {CLIP_NORM:g}. Momentum is {MOMENTUM:g}, early momentum is on for the first half of a "
    "stage; four stages, each twice as long as the one before, with half its step size. The paper "
    "gives neither steps nor step sizes (they are in a supplement), so epochs are few. Step sizes: "
    "on MNIST each method has the best of its own grid, by the exact accuracy on the training "
    "records looked at, of one training with a seed of its own at the paper's epsilon: NOT "
    "PRIVATE, and not charged. Where the best is at its edge, the grid goes on, by three. On "
    "CIFAR-10 they are a quarter of the smallest of the grid, untuned. The recipe dp_adam is not "
    "of the paper: it is what a user would pick today, its learning rate chosen alike.",
    "every training starts at a network drawn anew, and all but those called "
    f"{NOISELESS} are private at their epsilon by an exact accountant",
    seeds=3,
    tuning=TUNING,
    keys=keys,
    quick=(_MNIST.name,),
)  # fmt: skip
