"""Rows of the variants, from which their contract tests and audits are derived."""

from typing import Any

from benchmarks.papers.variants.convex import frank_wolfe
from benchmarks.papers.variants.exact_anchor import exact_anchor
from benchmarks.papers.variants.spiders import fixed_batch_spider, gauss_psgd, spider_boost
from dpjax.algorithms import Entry, Example, Scenario
from dpjax.objectives import L1Ball

_FIXED_BATCHES = Example(settings={"batch_size": 9, "difference_size": 9})


def _one_pass(**settings: Any) -> Scenario:
    """Four segments of 10 + 3 x 5 records, with batches of fixed size.

    Steps have length 1 and differences five records, at which the canary, whose gradient turns
    around at every step, may move as much as in a gradient of ten.
    """
    shared = {
        "batch_size": 10,
        "step_size": 1.0,
        "steps": 16,
        "clip_norm": 1e-3,
        "smoothness": 0.495 * 1e-3,
        "hessian_lipschitz": 1.0,
        "initial_gap": 1.0,
    }
    return Scenario(loss="alternating", settings=shared | settings, data_size=100)


VARIANTS: dict[str, Entry] = {
    "spider-fixed": Entry(
        name="spider-fixed",
        factory=fixed_batch_spider,
        asks="as `spider`, with fixed batches and independent noise, renewed by drift",
        example=_FIXED_BATCHES,
        # Its drift refreshes it at every third step.
        scenario=_one_pass(difference_size=5, drift_threshold=6e-7, kick=0.0, candidates=0),
    ),
    "spider-boost": Entry(
        name="spider-boost",
        factory=spider_boost,
        asks="as `spider-fixed`, renewed every so many steps",
        example=_FIXED_BATCHES,
        scenario=_one_pass(difference_size=5, period=4, candidates=0),
    ),
    "gauss-psgd": Entry(
        name="gauss-psgd",
        factory=gauss_psgd,
        asks="as `spider`, with noise at every step near a saddle; it stops where it stays",
        example=Example(settings={"batch_size": 9, "escape_steps": 50}),
        # Always near a saddle, and without perturbations.
        scenario=_one_pass(horizon=4, drift_threshold=1e6, kick=0.0, escape_steps=100),
    ),
    "svrg-exact": Entry(
        name="svrg-exact",
        factory=exact_anchor,
        asks="a batch, for how its gradient changed from the anchor, with the exact gradient there",
        example=Example(
            objective="logistic-l2", settings={"batch_size": 32, "epoch_length": 3}
        ),
        # 5 epochs of 20 steps around a secret gradient. The canary's gradient turns at the first
        # step from an anchor. Its part of the exact gradient is then opposite to its contribution
        # when it is drawn, while the accounting assumes that both are parallel. A large budget and
        # few draws make that loss of power small.
        scenario=Scenario(
            loss="departing",
            settings={
                "batch_size": 1,
                "epochs": 5,
                "epoch_length": 20,
                "step_size": 1.0,
                "clip_norm": 1e-3,
                "smoothness": 0.01,
            },
            data_size=200,
            epsilon=10.0,
        ),
    ),
    "frank-wolfe": Entry(
        name="frank-wolfe",
        factory=frank_wolfe,
        asks="every record, for a vertex of the l1 ball",
        example=Example(required={"domain": L1Ball(50.0)}),
        # The canary lowers the score of one vertex and raises that of its opposite.
        scenario=Scenario(
            loss="dirac",
            settings={"domain": L1Ball(5.0), "clip_norm": 1.0, "steps": 20},
            dimension=1,
        ),
    ),
}  # fmt: skip
"""The variants, by name."""
