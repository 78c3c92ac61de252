"""NOT PRIVATE: the DPageEM paper (Zhang et al. 2021): its networks, methods and step sizes."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import ALGORITHMS, Algorithm
from dpjax.models import CNN, ResNet20
from dpjax.objectives import Objective, cross_entropy
from dpjax.reproduce import dpagem_claims, images
from dpjax.reproduce.study import Curve, Figure, Problem

TITLE = "Private Stochastic Non-convex Optimization with Improved Utility Rates"
REFERENCE = "Zhang, Ma, Lou and Xiong, 2021, figures 1 and 2 and section 4.2"
DELTA = 1e-5
CLIP_NORM = 1.0
# Of the smallest step size in a grid, where nothing is tuned: ten times as many parameters take
# noise of more than three times the norm.
UNTUNED = 0.25
# In place of no clipping: far above the norm of any record's gradient.
UNCLIPPED = 1_000.0
MOMENTUM = 0.9

SGD_STAGE = "nonpri-SGD-stage"
STAGE, EARLY = "DPageS", "DPageEM"
CONST, LINEAR, ROOT = "DP-SGD-const", "DP-SGD-c/t", "DP-SGD-c/sqrt(t)"
MOMENTUM_CONST, EARLY_CONST = "DP-SGDM-const", "DP-SGDEM-const"

# What a user would pick today, chosen beforehand on these data by exact accuracies (NOT PRIVATE):
# by label, the factory and what it is given beside objective, budget, sizes, clip norm and rates.
RECIPES: dict[str, dict[str, Any]] = {
    "dp_adam, large batches": {"algorithm": "dp-adam", "batch_size": 1_024, "steps": 300},
}
_RATES = (1e-3, 2e-3, 4e-3)
# Of a recipe's learning rate, which falls to this share of it.
_FINAL_RATE = 0.25

CONVENTIONS = (
    "Neighbours are replace_one, as in the paper, and delta = 1e-5. The noise is what an exact "
    "accountant needs for Poisson batches under that relation: the paper draws batches of fixed "
    "size and leaves the constant c2 of its noise open; what c2 = 2 would really give is below. "
    "Epsilon 8 on MNIST and 10 on CIFAR-10 are those of the paper's figures. "
    "ALL ACCURACIES ARE EXACT VALUES AND NOT PRIVATE: every column whose name begins with "
    "exact, both pictures and all verdicts. A verdict without more words is beyond the spread of "
    "the seeds by Welch's t-test at 5 %, comparison by comparison."
)
SETTINGS = (
    "Networks with ELU as in the paper: two convolutions on MNIST, ResNet-20 with group "
    f"normalisation on CIFAR-10. {SGD_STAGE} is the same step without noise, its gradients held "
    f"at {UNCLIPPED:,.0f}, far above any: NOT PRIVATE at all. The others clip each record's "
    f"gradient at {CLIP_NORM:g}. Momentum is {MOMENTUM:g}, early momentum is on for the first half "
    "of a stage; four stages, each twice as long as the one before, with half its step size. The "
    "paper gives neither steps nor step sizes (they are in a supplement), so epochs are few. Step "
    "sizes: on MNIST each method has the best of its own grid, by the exact accuracy on the "
    "training records looked at, of one training with a seed of its own at the paper's epsilon: "
    "NOT PRIVATE, and not charged. Where the best is at its edge, the grid goes on, by three. "
    "On CIFAR-10 they are a quarter of the smallest of the grid, untuned. The recipe dp_adam "
    "is not of the paper: it is what a user would pick today, its learning rate chosen alike."
)


@dataclasses.dataclass(frozen=True)
class Network(Problem):
    """A network and the images it is trained on.

    Args:
      network: ``"CNN"`` or ``"ResNet20"``.
      first_steps: T0, steps of the first of four stages.
      looks: how often accuracy is measured, evenly; 15 is at least once a stage.
      looked_at: records of the training and of the test set that it is measured on, at most.
      runs: seeds at most.
      tuned: whether step sizes are chosen from the grids.
    """

    network: str = "CNN"
    first_steps: int = 70
    looks: int = 15
    looked_at: int = 10_000
    runs: int = 100
    tuned: bool = True

    @property
    def steps(self) -> int:
        """T of the paper's methods."""
        return 15 * self.first_steps

    @property
    def paper_epsilon(self) -> float:
        """The epsilon of the paper's figure, where step sizes are chosen too."""
        return max(self.epsilons)

    @property
    def loss(self) -> Objective:
        """The cross-entropy of the network with ELU."""
        return _objective(self.network, "elu")

    @property
    def title(self) -> str:
        """Data and network, for people."""
        return f"{self.where}, {self.network}"

    @property
    def substitute(self) -> str:
        """The data where they stand in for others, with a verb, for people."""
        return "made images stand in" if self.data == images.MADE else super().substitute


@functools.cache
def module(network: str, activation: str) -> Any:
    """Returns the flax module; the same object each time, so that nothing compiles twice.

    >>> module("CNN", "elu") is module("CNN", "elu")
    True
    """
    return ResNet20() if network == "ResNet20" else CNN(activation=activation)


@functools.cache
def _objective(network: str, activation: str) -> Objective:
    return cross_entropy(module(network, activation).apply)


@dataclasses.dataclass(frozen=True)
class Method(Curve):
    """A method of the paper, or a recipe beside them.

    Args:
      settings: what the factory is given beside objective, budget, sizes and step size.
      grid: step sizes to choose from, growing; of a recipe, learning rates.
      recipe: whether it stands beside the paper's methods, on the CNN alone.
      private: whether it has noise and clips.
    """

    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: tuple[float, ...] = ()
    recipe: bool = False
    private: bool = True

    def trainings(self, problem: Problem, seeds: int) -> int:
        """Returns how many trainings one epsilon takes, those for the step size left out."""
        return min(seeds, problem.runs) if isinstance(problem, Network) else seeds

    def drawn(self, problem: Problem) -> bool:
        """Returns whether there are results of it on ``problem``; recipes are for the CNN."""
        return super().drawn(problem) and not (self.recipe and problem.data == "cifar10")

    def rates(self, step_size: float) -> dict[str, float]:
        """Returns the factory's arguments that a step size of the grid stands for."""
        if self.recipe:
            final = _FINAL_RATE * step_size
            return {"step_size": step_size, "final_step_size": final}
        return {"step_size": step_size}

    def chosen(self, problem: Problem, size: int) -> dict[str, Any]:
        """Returns the factory's arguments, step size left out."""
        if not isinstance(problem, Network):
            raise ValueError(f"problem must be a Network, got {problem!r}.")
        most = max(size // 7, 1)
        if self.recipe:
            own = {name: value for name, value in self.settings.items() if name != "algorithm"}
            batch, steps = own["batch_size"], own["steps"]
            return own | {"batch_size": min(batch, most), "steps": min(steps, problem.steps)}
        batch = {"batch_size": min(problem.batch, most)}
        own = dict(self.settings)
        # One stage of all steps is a constant step size, in the program that has stages too.
        if "schedule" in own:
            return batch | own | {"steps": problem.steps}
        if own.pop("stages", 4) == 1:
            return batch | own | {"first_steps": problem.steps, "stages": 1}
        return batch | own | {"first_steps": problem.first_steps, "stages": 4}


_OFF: dict[str, Any] = {"momentum_when": "never"}
_ONE: dict[str, Any] = {"stages": 1}


def _method(label: str, grid: tuple[float, ...], private: bool = True, **settings: Any) -> Method:
    own = {"momentum": MOMENTUM, **settings}
    return Method(label, label, "dpagem", settings=own, grid=grid, private=private)


CURVES = (
    _method(SGD_STAGE, (0.2, 0.4, 0.8), private=False, **_OFF),
    _method(STAGE, (2.0, 4.0, 8.0), **_OFF),
    _method(EARLY, (0.4, 0.8, 1.6)),
    _method(CONST, (1.0, 2.0, 4.0), **_OFF, **_ONE),
    _method(LINEAR, (10.0, 30.0, 100.0), schedule="inverse", **_OFF),
    _method(ROOT, (10.0, 20.0, 40.0), schedule="inverse_sqrt", **_OFF),
    _method(MOMENTUM_CONST, (0.05, 0.1, 0.2), momentum_when="always", **_ONE),
    _method(EARLY_CONST, (0.1, 0.2, 0.4), momentum_when="early", **_ONE),
    *(
        Method(label, label, one["algorithm"], settings=one, grid=_RATES, recipe=True)
        for label, one in RECIPES.items()
    ),
)


def curves() -> tuple[Method, ...]:
    """Returns what is compared."""
    return CURVES


def build(
    problem: Network, method: Method, size: int, dimension: int, epsilon: float, step_size: float
) -> Algorithm:
    """Returns the algorithm of one point.

    Args:
      problem: which one.
      method: which one.
      size: n.
      dimension: p.
      epsilon: of the budget.
      step_size: of its grid.

    Privacy: a method that is not private has neither noise nor clipping, and must not be released.
    """
    more = method.chosen(problem, size) | method.rates(step_size)
    algorithm = ALGORITHMS[method.algorithm](
        problem.loss,
        PrivacyBudget(epsilon, DELTA, problem.relation),
        data_size=size,
        dimension=dimension,
        **({"clip_norm": CLIP_NORM} | more),
    )
    if method.private:
        return algorithm
    query = dataclasses.replace(algorithm.query, noise_multiplier=0.0, clip_norm=UNCLIPPED)
    return dataclasses.replace(algorithm, query=query)


_SHARED = {"objective": "cross-entropy", "traced": False}
_MNIST = Network("mnist", batch=256, epsilons=(8.0,), **_SHARED)
_CIFAR = Network(
    "cifar10",
    batch=128,
    epsilons=(10.0,),
    network="ResNet20",
    first_steps=9,
    looks=5,
    looked_at=2_000,
    runs=1,
    tuned=False,
    **_SHARED,
)
FIGURES = {
    "fig1": Figure("accuracy", (_MNIST,), "Accuracy of the CNN on MNIST against iterations."),
    "fig2": Figure("accuracy", (_CIFAR,), "Accuracy of ResNet-20 on CIFAR-10 against iterations."),
    "gap": Figure("gap", (_MNIST, _CIFAR), "How far private training is behind, on both."),
}
# What the quick run of all keeps.
QUICK = (("mnist", "cross-entropy"),)
_QUICK_METHODS = (SGD_STAGE, STAGE, EARLY, MOMENTUM_CONST, *RECIPES)


def quick(problem: Problem) -> Problem:
    """Returns a small version of ``problem``; on made images where MNIST is not here.

    >>> quick(FIGURES["fig1"].problems[0]).rows
    600
    """
    small = dataclasses.replace(
        problem, epsilons=problem.epsilons[-1:], methods=_QUICK_METHODS, rows=600, settings=2
    )
    if isinstance(small, Network):
        first, looks = (2, 5) if small.network == "CNN" else (1, 1)
        small = dataclasses.replace(small, batch=32, first_steps=first, looks=looks, looked_at=200)
    if problem.data == "mnist" and not images.here("mnist"):
        return dataclasses.replace(small, data=images.MADE, stands_for="mnist")
    return small


claims = dpagem_claims.claims
