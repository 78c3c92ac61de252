"""``stochastic_spider``, the factory of Stochastic Spider."""

from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.spider import Spider
from dpjax.algorithms.spider_configuration import configure
from dpjax.algorithms.spider_settings import KEPT, Norms, Selection, Settings
from dpjax.objectives import Objective


def stochastic_spider(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    alpha: float | None = None,
    batch_size: int | None = None,
    drift_threshold: float | None = None,
    step_size: float | None = None,
    horizon: int | None = None,
    noise: str | None = None,
    kick: float | None = None,
    kick_threshold: float | None = None,
    frozen_steps: int | None = None,
    steps: int | None = None,
    candidates: int | None = None,
    kept: float = KEPT,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    smoothness: float | None = None,
    hessian_lipschitz: float | None = None,
    initial_gap: float | None = None,
    accountant: str = "pld",
    beta: float = 0.05,
    unsafe_fast_noise: bool = False,
) -> Spider:
    """Returns Stochastic Spider, which reads each record once and leaves saddles by kicks.

    An estimate of the gradient is renewed where the iterate has drifted, and else updated by how
    the gradient changed on a batch as large as the step was long, so that one noise hides both.

    Args:
      objective: what to minimise.
      budget: what a whole run may spend; ``"zero_out"`` or ``"replace_one"``.
      data_size: the declared public number of records n.
      dimension: number of parameters p.
      alpha: target, |gradient| <= alpha and lambda_min >= -sqrt(rho alpha); by default the least
        that theory promises for n.
      batch_size: b, records of a renewed gradient; by default an eighth of the records, or from
        alpha where that is given (lemma 3.8). A difference takes b_t = b min(2, M |step| / C),
        rounded up.
      drift_threshold: kappa, the sum of M |step| at which the estimate is renewed; by default half
        of what theorem 3.11 takes for alpha.
      step_size: eta; by default 1 / smoothness of the whole objective.
      horizon: K, the most increments of a segment; by default 512.
      noise: ``"square_root"`` (the default while K p is at most 2^22), ``"tree"`` as in the
        paper, or ``"independent"``.
      kick: zeta, root mean square length of the noise added to the gradient at a possible saddle;
        by default that of the noise which an estimate has anyway.
      kick_threshold: gradient norm at which a saddle is possible; by default twice what an estimate
        is off by, through noise and batch.
      frozen_steps: Gamma, steps without another kick; by default M / sqrt(rho alpha), times 4.
      steps: cap on the steps; by default 4,096. The run ends where the records do.
      candidates: how many iterates the output is chosen from, with a private certificate: the last
        that looks like an alpha-SOSP, else the nearest to one. A run that ``steps`` ends on a slope
        may so return a saddle it came from, if that is an alpha-SOSP. 0 for the last iterate, the
        default above 512 parameters, else 8.
      kept: share of the records that nothing but the choice reads.
      clip_norm: C, bound on one record's gradient; by default the Lipschitz constant.
      hessian_clip_norm: bound on one record's Hessian, for the choice; by default the smoothness.
      smoothness: M, to which a record's difference is clipped; by default the objective's.
      hessian_lipschitz: rho; by default the objective's.
      initial_gap: B, public bound on F(w0) - min F; by default phi(0) of a margin loss.
      accountant: ``"pld"``, ``"rdp"``, or ``"paper"`` for the tree with the noise of theorem 2.2
        (replace-one); the epsilon is recomputed.
      beta: probability that the certificate fails.
      unsafe_fast_noise: noise rounded to float32, see ``mechanisms.perturb``; NOT for a release.

    Returns:
      A frozen pytree for ``solve``; its status tells where the records ran out.

    Raises:
      ValueError: for an argument out of range, an alpha that n cannot reach, fewer records than the
        first batch, or a relation without public n.

    Privacy: to each record all questions together are one Gaussian mechanism, because it enters one
      of them at most, in an order and by batch sizes, restarts and an end that depend on released
      values alone.

    Reference: Liu and Talwar (2024), algorithms 1 to 3, with a fresh mechanism for each segment,
      the sensitivity and noise corrected, and the output chosen.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-6)
    >>> algorithm = stochastic_spider(
    ...     objectives.sigmoid_l2(), budget, data_size=35_000, dimension=22)
    >>> [part.name for part in algorithm.event.releases[0].disjoint_parts]
    ['estimate', 'scores']
    """
    settings = Settings(
        batch_size=batch_size,
        drift_threshold=drift_threshold,
        step_size=step_size,
        horizon=horizon,
        noise=noise,
        kick=kick,
        kick_threshold=kick_threshold,
        frozen_steps=frozen_steps,
        steps=steps,
    )
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    return configure(
        problem,
        "Stochastic Spider",
        settings,
        Selection(candidates, kept, beta),
        Norms(clip_norm, hessian_clip_norm, smoothness, hessian_lipschitz, initial_gap),
        alpha,
        unsafe_fast_noise,
    )
