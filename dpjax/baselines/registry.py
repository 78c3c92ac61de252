"""The registry of baselines, and of all algorithms: one row makes one usable, tested and listed."""

from dpjax.algorithms import registry
from dpjax.algorithms.entry import Entry, Example, Power, Scenario
from dpjax.algorithms.registry import (
    BOTH_CLIPS,
    CLIP,
    FIFTHS,
    HALF,
    NO_RENYI,
)
from dpjax.baselines.gradient_descent_selected import dp_gradient_descent_with_selection
from dpjax.baselines.newton import dp_newton
from dpjax.baselines.objective_perturbation import objective_perturbation
from dpjax.baselines.perturbation import output_perturbation
from dpjax.baselines.stochastic_gradient import dp_sgd

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="dp-gd-selected",
        factory=dp_gradient_descent_with_selection,
        asks="as `dp-gd`; at the end which of some iterates is a second-order stationary point, by "
        "the exponential mechanism",
        # The start is not among what is selected from.
        example=Example(
            settings={"candidates": 3},
            plain=BOTH_CLIPS | {"step_size": 0.3, "hessian_lipschitz": 1.0},
        ),
        # All iterates are candidates.
        scenario=Scenario(
            loss="seesaw",
            settings={
                "steps": 20,
                "step_size": 1.0,
                "alpha": 1.0,
                "selection_epsilon": 2.0,
                "candidates": 20,
                "clip_norm": 1e-3,
                "hessian_clip_norm": 1.0,
                "hessian_lipschitz": 1.0,
            },
            full=Power(100_000, 0.85),
            kills="key reused across steps",
        ),
    ),
    Entry(
        name="dp-newton",
        factory=dp_newton,
        asks="every record, for a gradient and then for its Newton direction",
        example=Example(
            plain=BOTH_CLIPS | {"floor": 1.0},
            refuses={("replace_one", "paper"): "composes by zCDP"},
        ),
        # In one parameter the canary's curvature, the only one, lies along every gradient.
        scenario=Scenario(
            loss="bowl",
            settings={"steps": 10, "floor": 0.25, "clip_norm": 1.0, "hessian_clip_norm": 1e-3},
            dimension=1,
            kills="a Newton direction booked by its floor alone",
        ),
    ),
    Entry(
        name="dp-sgd",
        factory=dp_sgd,
        asks="a batch, for a gradient; regularizers by their proximal operators",
        example=Example(
            settings={"batch_size": HALF},
            plain=CLIP | {"step_size": 0.1},
            refuses=NO_RENYI | {("replace_one", "paper"): "moments accountant"},
        ),
        scenario=Scenario(
            settings=FIFTHS | {"steps": 5, "step_size": 1.0, "clip_norm": 1.0},
            data_size=10,
            full=Power(200_000, 0.80),
            quick=Power(40_000, 0.75),
            kills="no clipping",
        ),
        grid={"step_size": (4.0, 16.0, 64.0)},
    ),
    Entry(
        name="objective-perturbation",
        factory=objective_perturbation,
        asks="every record, once, for the minimum of a strongly convex loss, with the noise in the "
        "objective",
        example=Example(objective="logistic-l2"),
        scenario=Scenario(
            loss="falling",
            dimension=1,
            full=Power(200_000, 0.90),
            quick=Power(50_000, 0.80),
            kills="half the noise in the objective",
        ),
        one_release=True,
    ),
    Entry(
        name="output-perturbation",
        factory=output_perturbation,
        asks="every record, once, for the minimum of a strongly convex loss, with noise on it",
        example=Example(objective="logistic-l2"),
        scenario=Scenario(
            loss="falling",
            dimension=1,
            full=Power(200_000, 0.90),
            quick=Power(50_000, 0.80),
            kills="a minimum that moves by half of G / (n mu)",
        ),
        one_release=True,
    ),
)
"""All baselines, those that release once at the end."""

EVERY: dict[str, Entry] = {entry.name: entry for entry in (*registry.ENTRIES, *ENTRIES)}
"""Every algorithm by name: dpjax's own, then the baselines."""
