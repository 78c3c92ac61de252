"""The registry of dpjax's own algorithms: one row makes one usable, tested, audited and listed."""

from typing import Any

import optax

from dpjax.algorithms.adam import dp_adam
from dpjax.algorithms.entry import Entry, Example, Power, Scenario
from dpjax.algorithms.gradient_descent import dp_gradient_descent
from dpjax.algorithms.mirror_descent import dp_accelerated_mirror_descent
from dpjax.algorithms.optimizer import dp_optimizer
from dpjax.algorithms.perturbed import perturbed_gradient_descent
from dpjax.algorithms.spider import stochastic_spider
from dpjax.algorithms.stagewise import dpagem
from dpjax.algorithms.stochastic_trust_region import dp_stochastic_trust_region
from dpjax.algorithms.subspace_trust_region import dp_subspace_trust_region
from dpjax.algorithms.svrg import dp_svrg, dp_svrg_plus_plus
from dpjax.algorithms.trust_region import dp_trust_region
from dpjax.objectives import L1Ball

HALF = 32
"""Half of the records of an example."""
CLIP: dict[str, Any] = {"clip_norm": 1.0}
BOTH_CLIPS = CLIP | {"hessian_clip_norm": 1.0}
# What a private search draws from, for the weights of linear models on rows of norm 1.
RADII: dict[str, tuple[float, ...]] = {"radius": (3.0, 12.0, 48.0), "damping": (0.25, 1.0)}
# What a pass over the records takes, in examples of plain losses.
PASS = CLIP | {"smoothness": 1.0, "hessian_lipschitz": 1.0, "initial_gap": 1.0, "step_size": 0.3}
NO_RENYI = {("replace_one", "rdp"): "no Renyi bound is known"}
# A record that is absent would move all that are read after it.
NO_ABSENCE = {
    ("add_or_remove_one", accountant): "reads each record at most once"
    for accountant in ("pld", "rdp")
}
# An audit with 1 record in 2, or in 5, in a batch; and a pass of four segments, of 10 + 3 x 5
# records each: steps have length 1 and differences of five records, at which the canary, whose
# gradient turns around at every step, may move as much as in a gradient of ten.
HALVES: dict[str, Any] = {"batch_size": 5}
FIFTHS: dict[str, Any] = {"batch_size": 2}
SEGMENTS: dict[str, Any] = {
    "batch_size": 10,
    "step_size": 1.0,
    "steps": 16,
    "clip_norm": 1e-3,
    "smoothness": 0.495 * 1e-3,
    "hessian_lipschitz": 1.0,
    "initial_gap": 1.0,
}


def _anchored(epochs: int, epoch_length: int) -> Scenario:
    """Far from the anchor, whose gradient has turned, the canary moves by all that is allowed."""
    of_epochs = {"epochs": epochs, "epoch_length": epoch_length}
    return Scenario(
        settings=FIFTHS | {"step_size": 2.0, "clip_norm": 1.0, "smoothness": 0.01} | of_epochs,
        data_size=10,
        dimension=5,
        full=Power(100_000, 0.85),
        quick=Power(10_000, 0.65),
    )


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="dp-gd",
        factory=dp_gradient_descent,
        asks="every record or a batch, for a gradient; penalties and sets by their proximal "
        "operators",
        example=Example(plain=CLIP | {"step_size": 0.3}),
        scenario=Scenario(
            loss="alternating",
            settings={"steps": 20, "step_size": 1.0, "clip_norm": 1e-3},
            kills="key reused across steps",
        ),
        grid={"step_size": (4.0, 16.0, 64.0), "steps": (50, 200)},
    ),
    Entry(
        name="dp-tr",
        factory=dp_trust_region,
        asks="every record, for gradient and Hessian as one release",
        example=Example(plain=BOTH_CLIPS),
        scenario=Scenario(
            settings={"steps": 20, "clip_norm": 1.0, "hessian_clip_norm": 3.0},
            dimension=5,
            epsilon=3.341,
            full=Power(40_000, 0.80),
            kills="no clipping",
        ),
        grid=RADII,
    ),
    Entry(
        name="dp-str",
        factory=dp_stochastic_trust_region,
        asks="a batch, for gradient and Hessian as one release; batches may grow",
        example=Example(settings={"batch_size": HALF}, plain=BOTH_CLIPS, refuses=NO_RENYI),
        scenario=Scenario(
            settings=FIFTHS | {"steps": 10, "clip_norm": 1.0, "hessian_clip_norm": 3.0},
            data_size=10,
            full=Power(200_000, 0.80),
            quick=Power(40_000, 0.75),
            kills="all steps booked as one",
        ),
        grid=RADII,
    ),
    Entry(
        name="dp-adam",
        factory=dp_adam,
        asks="a batch, for a gradient",
        example=Example(
            settings={"batch_size": HALF},
            plain=CLIP | {"step_size": 0.1},
            refuses=NO_RENYI | {("replace_one", "paper"): "no paper states"},
        ),
        scenario=Scenario(
            loss="alternating",
            settings={
                "batch_size": 2,
                "steps": 20,
                "step_size": 1.0,
                "final_step_size": 1.0,
                "clip_norm": 1e-3,
            },
        ),
        grid={"step_size": (0.5, 1.0, 2.0, 4.0)},
    ),
    Entry(
        name="dp-subspace-tr",
        factory=dp_subspace_trust_region,
        asks="every record, for gradient and Hessian along k public random directions; for "
        "networks",
        example=Example(plain=BOTH_CLIPS, refuses={("replace_one", "paper"): "no paper has"}),
        scenario=Scenario(
            settings={
                "subspace_dimension": 3,
                "steps": 10,
                "clip_norm": 1.0,
                "hessian_clip_norm": 3.0,
            },
            dimension=8,
            epsilon=3.341,
            full=Power(40_000, 0.80),
            kills="no clipping",
        ),
    ),
    Entry(
        name="dp-svrg",
        factory=dp_svrg,
        asks="every record at the anchor of each epoch, a batch at each step for how its gradient "
        "changed from there",
        example=Example(
            objective="logistic-l2",
            settings={"batch_size": HALF, "epoch_length": 3},
            plain=CLIP | {"smoothness": 1.0, "step_size": 0.08},
            refuses=NO_RENYI | {("replace_one", "paper"): "no proven constant"},
        ),
        scenario=_anchored(5, 20),
    ),
    Entry(
        name="dp-svrg++",
        factory=dp_svrg_plus_plus,
        asks="as `dp-svrg`, in epochs that double, for losses that are convex and no more",
        example=Example(
            objective="logistic-l2",
            settings={"batch_size": HALF, "epoch_length": 1},
            plain=CLIP | {"smoothness": 1.0, "step_size": 0.08},
            refuses=NO_RENYI | {("replace_one", "paper"): "no proven constant"},
        ),
        scenario=_anchored(3, 3),
    ),
    Entry(
        name="dp-accmd",
        factory=dp_accelerated_mirror_descent,
        asks="every record, for a gradient, inside an l2 or an l1 ball; convex losses, also for p "
        "above n",
        example=Example(required={"domain": L1Ball(50.0)}, plain=CLIP | {"smoothness": 4.0}),
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
        example=Example(
            settings={"batch_size": HALF},
            plain=CLIP | {"step_size": 0.1},
            refuses={
                ("zero_out", "rdp"): "no Renyi divergence",
                ("replace_one", "rdp"): "no Renyi divergence",
                ("add_or_remove_one", "rdp"): "no Renyi divergence",
                ("replace_one", "paper"): "fixes the radius at 1",
            },
            delta_only=True,
        ),
        scenario=Scenario(
            settings=HALVES
            | {"steps": 5, "step_size": 1.0, "clip_norm": 1.0, "acknowledge_weak_delta": True},
            data_size=10,
            delta=0.3,
            full=Power(100_000, 0.92),
            quick=Power(20_000, 0.80),
            kills="no clipping",
        ),
    ),
    Entry(
        name="spider",
        factory=stochastic_spider,
        asks="each record once: for a gradient, then for how it changed, on batches as long as the "
        "step; noise correlated over a segment; kicks at saddles; the output chosen and certified "
        "on records kept for it",
        example=Example(
            settings={"batch_size": 9}, plain=PASS, refuses=NO_ABSENCE, single_pass=True
        ),
        scenario=Scenario(
            loss="seesaw",
            # Two segments; twelve records are kept for the scores of both candidates.
            settings=SEGMENTS
            | {"steps": 8, "horizon": 4, "drift_threshold": 1e6, "kick": 0.0}
            | {"candidates": 2, "kept": 0.2, "hessian_clip_norm": 1.0},
            data_size=62,
            full=Power(200_000, 0.90),
            quick=Power(20_000, 0.70),
            kills="prefix noise x0.5",
        ),
    ),
    Entry(
        name="dpagem",
        factory=dpagem,
        asks="a batch, for a gradient; from stage to stage the step halves and the stage doubles, "
        "with momentum in the first part of each; the paper's other methods are settings of it",
        example=Example(
            settings={"batch_size": HALF},
            plain=CLIP | {"step_size": 0.1},
            refuses=NO_RENYI | {("replace_one", "paper"): "leaves its constant c2 open"},
        ),
        scenario=Scenario(
            loss="network",
            settings=HALVES | {"first_steps": 2, "stages": 3, "step_size": 0.5, "clip_norm": 1.0},
            data_size=10,
            dimension=7,
            kills="momentum of raw gradients, before the noise",
        ),
    ),
    Entry(
        name="dp-optimizer",
        factory=dp_optimizer,
        asks="a batch, for a gradient that any optax optimizer is fed; what `fit` trains networks "
        "by",
        example=Example(
            settings={"batch_size": HALF},
            plain=CLIP,
            refuses=NO_RENYI | {("replace_one", "paper"): "moments accountant"},
        ),
        scenario=Scenario(
            settings={"optimizer": optax.sgd(1.0), "batch_size": 2, "steps": 20, "clip_norm": 1.0}
        ),
    ),
)
"""All of dpjax's own algorithms."""
