"""The registry of all algorithms: one row makes one usable, tested, audited and listed."""

import dataclasses
from collections.abc import Callable
from typing import Any

import optax

from dpjax._typing import Relation
from dpjax.algorithms.base import Algorithm
from dpjax.algorithms.feature_covariance import dp_feature_covariance
from dpjax.algorithms.gradient_descent import dp_gradient_descent
from dpjax.algorithms.gradient_descent_selected import dp_gradient_descent_with_selection
from dpjax.algorithms.mirror_descent import dp_accelerated_mirror_descent
from dpjax.algorithms.newton import dp_newton
from dpjax.algorithms.newton_inference import noisy_newton
from dpjax.algorithms.perturbed_descent import perturbed_gradient_descent
from dpjax.algorithms.perturbed_minimum import objective_perturbation, output_perturbation
from dpjax.algorithms.spider import stochastic_spider
from dpjax.algorithms.stagewise import dpagem
from dpjax.algorithms.stochastic_gradient import dp_adam, dp_optimizer, dp_sgd
from dpjax.algorithms.stochastic_trust_region import dp_stochastic_trust_region
from dpjax.algorithms.subspace_trust_region import dp_subspace_trust_region
from dpjax.algorithms.svrg import dp_svrg, dp_svrg_plus_plus
from dpjax.algorithms.trust_region import dp_trust_region
from dpjax.objectives import L1Ball


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """A small configuration, for the contract suite and for whoever wants to try the algorithm."""

    objective: str = "logistic-nonconvex"
    """Name of an objective that the algorithm takes, of ``dpjax.objectives.OBJECTIVES``."""
    required: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments without a default."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments for 64 records, 4 features and 6 steps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """The attack on a full run, as data; ``dpjax.auditing`` carries it out.

    The attacker chooses the loss, under which one record of ``data_size`` contributes the full clip
    norm and the others nothing. Epsilon, delta and relation are those of the budget.
    """

    loss: str = "winding"
    """A name in ``dpjax.auditing.canaries.LOSSES``."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Further arguments of the factory."""
    data_size: int = 2
    dimension: int = 2
    epsilon: float = 4.0
    delta: float = 1e-5
    relation: Relation = "zero_out"
    max_records: int = 1
    """Of a person, where the canary is one and ``data_size`` counts persons."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One algorithm: command line, contract suite, audits and the docs' tables are derived from it.

    ``name`` is that on the command line, in the contract suite, and of its audit.
    """

    name: str
    factory: Callable[..., Algorithm]
    """``(objective, budget, *, data_size, dimension, ...) -> Algorithm``."""
    asks: str
    """What a step asks of the data, in one sentence without a capital or a full stop."""
    scenario: Scenario
    example: Example = Example()
    grid: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    """Arguments and the values that a private search draws them from by default, for rows of norm
    1; empty where no default is sensible."""
    strongly_convex: bool = False
    """Whether theory needs a strongly convex objective, so that an intercept is penalised too."""
    unpenalized: bool = False
    """Whether no penalty is its default: it is of many features, and few steps keep weights small.
    """
    one_release: bool = False
    """Whether it releases once and takes no planned steps, so that neither the command line nor the
    contract suite can run it."""


_HALF = Example(settings={"batch_size": 32})  # of its 64 records
_RIDGE = Example(objective="logistic-l2")
# What a private search draws from, for the weights of linear models on rows of norm 1.
_RADII: dict[str, tuple[float, ...]] = {"radius": (3.0, 12.0, 48.0), "damping": (0.25, 1.0)}
# Audits with 1 record in 5, or in 2, in a batch; and a pass in segments of 10 + 3 x 5 records each:
# steps have length 1 and differences of five records, at which the canary, whose gradient turns
# around at every step, may move as much as in a gradient of ten.
_FIFTHS: dict[str, Any] = {"batch_size": 2, "clip_norm": 1.0}
_HALVES: dict[str, Any] = {"batch_size": 5, "clip_norm": 1.0}
_CLIPS = {"clip_norm": 1.0, "hessian_clip_norm": 3.0}
# Steps that are 1e-3 long at most.
_SHORT: dict[str, Any] = {"step_size": 1.0, "clip_norm": 1e-3}
_SEGMENTS = _SHORT | {"batch_size": 10, "smoothness": 0.495 * 1e-3, "initial_gap": 1.0}
_FALLING = Scenario(loss="falling", dimension=1)


def _anchored(epochs: int, epoch_length: int) -> Scenario:
    # Far from the anchor, whose gradient has turned, the canary moves by all that is allowed.
    of_epochs = {"epochs": epochs, "epoch_length": epoch_length}
    settings = _FIFTHS | {"step_size": 2.0, "smoothness": 0.01} | of_epochs
    return Scenario(settings=settings, data_size=10, dimension=5)


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="dp-gd",
        factory=dp_gradient_descent,
        asks="every record or a batch, for a gradient; penalties and sets by their proximal "
        "operators",
        scenario=Scenario(loss="alternating", settings=_SHORT | {"steps": 20}),
        grid={"step_size": (4.0, 16.0, 64.0), "steps": (50, 200)},
    ),
    Entry(
        name="dp-tr",
        factory=dp_trust_region,
        asks="every record, for gradient and Hessian as one release",
        scenario=Scenario(settings=_CLIPS | {"steps": 20}, dimension=5, epsilon=3.341),
        grid=_RADII,
    ),
    Entry(
        name="dp-str",
        factory=dp_stochastic_trust_region,
        asks="a batch, for gradient and Hessian as one release, or one for each; batches may grow",
        example=_HALF,
        scenario=Scenario(settings=_FIFTHS | _CLIPS | {"steps": 10}, data_size=10),
        grid=_RADII,
    ),
    Entry(
        name="dp-adam",
        factory=dp_adam,
        asks="a batch, for a gradient",
        example=_HALF,
        scenario=Scenario(
            loss="alternating",
            settings=_FIFTHS | _SHORT | {"steps": 20, "final_step_size": 1.0},
        ),
        grid={"step_size": (0.5, 1.0, 2.0, 4.0)},
    ),
    Entry(
        name="dp-subspace-tr",
        factory=dp_subspace_trust_region,
        asks="every record, for gradient and Hessian along k public random directions; for "
        "networks",
        scenario=Scenario(
            settings=_CLIPS | {"subspace_dimension": 3, "steps": 10},
            dimension=8,
            epsilon=3.341,
        ),
    ),
    Entry(
        name="dp-svrg",
        factory=dp_svrg,
        asks="every record at the anchor of each epoch, a batch at each step for how its gradient "
        "changed from there",
        strongly_convex=True,
        example=Example(objective="logistic-l2", settings={"batch_size": 32, "epoch_length": 3}),
        scenario=_anchored(3, 10),
    ),
    Entry(
        name="dp-svrg++",
        factory=dp_svrg_plus_plus,
        asks="as `dp-svrg`, in epochs that double; for convex losses, strongly convex or not",
        example=Example(objective="logistic-l2", settings={"batch_size": 32, "epoch_length": 1}),
        scenario=_anchored(3, 3),
    ),
    Entry(
        name="dp-accmd",
        factory=dp_accelerated_mirror_descent,
        asks="every record, for a gradient, inside an l2 or an l1 ball; convex losses, also for p "
        "above n",
        example=Example(required={"domain": L1Ball(50.0)}),
        scenario=Scenario(
            settings={"domain": L1Ball(5.0), "steps": 20, "smoothness": 1.0, "clip_norm": 1.0},
            dimension=4,
        ),
    ),
    Entry(
        name="prgd",
        factory=perturbed_gradient_descent,
        asks="a batch, for a gradient with noise uniform in a ball: the guarantee is (0, delta), "
        "and the noise 10^4 times a Gaussian's; a baseline",
        example=_HALF,
        scenario=Scenario(
            settings=_HALVES | {"steps": 5, "step_size": 1.0, "acknowledge_weak_delta": True},
            data_size=10,
            # Ball noise leaks only with probability delta; a smaller one would not show in an
            # attack.
            delta=0.3,
        ),
    ),
    Entry(
        name="spider",
        factory=stochastic_spider,
        asks="each record at most once: a gradient, then gradient differences, on batches that "
        "follow the step's length; noise correlated over a segment; random kicks at saddles; "
        "the output chosen and certified on held-out records",
        example=Example(settings={"batch_size": 9}),
        scenario=Scenario(
            loss="seesaw",
            # Two segments; twelve records are kept for the scores of both candidates.
            settings=_SEGMENTS
            | {"steps": 8, "horizon": 4, "drift_threshold": 1e6, "kick": 0.0}
            | {"candidates": 2, "kept": 0.2, "hessian_clip_norm": 1.0, "hessian_lipschitz": 1.0},
            data_size=62,
        ),
    ),
    Entry(
        name="dpagem",
        factory=dpagem,
        asks="a batch, for a gradient; from stage to stage the step halves and the stage doubles, "
        "with momentum in the first part of each; the paper's other methods are settings of it",
        example=_HALF,
        scenario=Scenario(
            loss="network",
            settings=_HALVES | {"first_steps": 2, "stages": 3, "step_size": 0.5},
            data_size=10,
            dimension=7,
        ),
    ),
    Entry(
        name="dp-optimizer",
        factory=dp_optimizer,
        asks="a batch, for a gradient that is passed to any optax optimizer; `fit` trains networks "
        "with it",
        example=_HALF,
        scenario=Scenario(settings=_FIFTHS | {"optimizer": optax.sgd(1.0), "steps": 20}),
    ),
    Entry(
        name="dp-gd-selected",
        factory=dp_gradient_descent_with_selection,
        asks="as `dp-gd`; at the end the exponential mechanism selects, of some iterates, one near "
        "a second-order stationary point",
        # The start is not among what is selected from.
        example=Example(settings={"candidates": 3}),
        # All iterates are candidates.
        scenario=Scenario(
            loss="seesaw",
            settings=_SHORT
            | {"steps": 20, "alpha": 1.0, "selection_epsilon": 2.0, "candidates": 20}
            | {"hessian_clip_norm": 1.0, "hessian_lipschitz": 1.0},
        ),
    ),
    Entry(
        name="dp-newton",
        factory=dp_newton,
        asks="every record, for a gradient and then for its Newton direction",
        # In one parameter the canary's curvature, the only one, lies along every gradient.
        scenario=Scenario(
            loss="bowl",
            settings={"steps": 10, "floor": 0.25, "clip_norm": 1.0, "hessian_clip_norm": 1e-3},
            dimension=1,
        ),
    ),
    Entry(
        name="noisy-newton",
        factory=noisy_newton,
        asks="every record, for gradient and Hessian as one release (robust losses: until the last "
        "step the Hessian of reweighted least squares in its place); at the end for the covariance "
        "of gradients: the parameters have standard errors for a population",
        example=_RIDGE,
        scenario=Scenario(settings=_CLIPS | {"steps": 2}, dimension=5, epsilon=3.341),
    ),
    Entry(
        name="dp-sgd",
        factory=dp_sgd,
        asks="a batch, for a gradient; regularizers by their proximal operators",
        example=_HALF,
        scenario=Scenario(settings=_FIFTHS | {"steps": 5, "step_size": 1.0}, data_size=10),
        grid={"step_size": (4.0, 16.0, 64.0)},
    ),
    Entry(
        name="dp-fc",
        factory=dp_feature_covariance,
        asks="every record, once for the features' second moment, which whitens them, then for a "
        "gradient",
        unpenalized=True,
        example=Example(settings={"clip_norm": 1.0}),
        scenario=Scenario(loss="falling", settings={"steps": 10}, dimension=1),
    ),
    Entry(
        name="objective-perturbation",
        factory=objective_perturbation,
        asks="every record, once, for the minimum of a strongly convex loss, with the noise in the "
        "objective",
        example=_RIDGE,
        scenario=_FALLING,
        one_release=True,
    ),
    Entry(
        name="output-perturbation",
        factory=output_perturbation,
        asks="every record, once, for the minimum of a strongly convex loss, with noise on it",
        example=_RIDGE,
        scenario=_FALLING,
        one_release=True,
    ),
)
"""All algorithms, those that release once at the end."""

ALL: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}
"""Every algorithm's row, by its name."""

ALGORITHMS = {name: entry.factory for name, entry in ALL.items() if not entry.one_release}
"""Name on the command line -> factory, of all that take planned steps."""

ONE_RELEASE = {name: entry.factory for name, entry in ALL.items() if entry.one_release}
"""Name -> factory of those that release once, for strongly convex losses of the margin."""
