"""How the tests make any algorithm: what its factory needs beside a budget and sizes."""

import dpjax

FACTORIES = dpjax.ALGORITHMS | dpjax.baselines.BASELINES
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
# What has no default.
NEEDED = {"dp-accmd": {"domain": dpjax.objectives.L1Ball(50.0)}}
# Those that ask at an anchor, and the regularizer they take, which has a proximal operator.
ANCHORED = ("dp-svrg", "dp-svrg++")
PROXIMAL = dpjax.objectives.logistic_l2()
# Those that read each record once, in order: no accounting where a record may leave.
SPIDERS = ("spider", "spider-fixed", "spider-boost", "gauss-psgd")
# Those whose guarantee is at epsilon 0, with all of delta spent: ball noise has no other epsilon.
DELTA_ONLY = ("prgd",)


def make(name, budget=BUDGET, objective=None, **more):
    """The algorithm of that name, on its usual objective unless another is given."""
    if objective is None:
        objective = PROXIMAL if name in ANCHORED else dpjax.objectives.logistic_nonconvex()
    return FACTORIES[name](objective, budget, **(NEEDED.get(name, {}) | more))


def spent(name, epsilon):
    """The epsilon that the algorithm of that name has spent of a budget of ``epsilon``."""
    return 0.0 if name in DELTA_ONLY else epsilon
