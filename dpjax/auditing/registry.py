"""The registry of audits, ``audit`` and ``audit_many``; NOT PRIVATE, synthetic records only."""

import dataclasses
import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate, oracles
from dpjax._typing import Array, Relation
from dpjax.algorithms import ALL
from dpjax.auditing import estimators, games, scenarios
from dpjax.auditing.counts import clopper_pearson_delta
from dpjax.auditing.games import Game
from dpjax.auditing.recorder import Answers, differences
from dpjax.auditing.scenarios import DELTA

# A process with a compiled audit takes about 1 GB.
_MOST_WORKERS = 4
# Factor of the runs when an attack below its gate is repeated: it halves the error of the ratio.
_MORE_RUNS = 4


class Row(NamedTuple):
    """One audit: its game, and how many runs a full and a quick one make in all."""

    make: Callable[[], Game]
    runs: int = 100_000
    gate: float = 0.90
    """Least ratio of audited to claimed epsilon (of ball noise: delta) at ``runs``; below it the
    attack has lost its power and proves nothing."""
    quick_runs: int = 20_000
    quick_gate: float = 0.75


_CLIP, _WEIGHTS = {"clip_norm": 1.0}, {"gradient_weight": 0.5, "hessian_weight": 2.0}
# Numbers of runs and gates that several have, in the order of a row.
_SAMPLED = (1_000_000, 0.90, 200_000, 0.80)
_SYMMETRIC = (1_000_000, 0.94, 200_000, 0.88)
_ANSWER = (1_000_000, 0.94, 100_000, 0.85)
_HISTOGRAM = (200_000, 0.92, 40_000, 0.80)
_BALL = (1_000_000, 0.97, 200_000, 0.94)
_MECHANISMS: dict[str, Row] = {
    "gaussian": Row(games.gaussian, 1_000_000, 0.96, 1_000_000, 0.96),
    "subsampled-gaussian": Row(games.sampled_gaussian, 2_000_000, 0.90, 2_000_000, 0.90),
    "subsampled-gaussian-composed": Row(
        lambda: games.sampled_gaussian(noise_multiplier=0.8, sampling_probability=0.05, count=50),
        *_SAMPLED,
    )._replace(runs=2_000_000),
    "subsampled-query": Row(
        lambda: scenarios.sampled_derivative(oracles.GradientQuery, **_CLIP), *_SAMPLED
    ),
    "subsampled-joint": Row(
        lambda: scenarios.sampled_derivative(oracles.JointQuery, **_WEIGHTS), *_SAMPLED
    )._replace(quick_runs=500_000),
    "symmetric-diagonal": Row(lambda: games.symmetric("diagonal"), *_SYMMETRIC),
    "symmetric-off-diagonal": Row(lambda: games.symmetric("off_diagonal"), *_SYMMETRIC),
    "symmetric-identity": Row(lambda: games.symmetric("identity"), *_SYMMETRIC),
    "hessian": Row(lambda: scenarios.derivative(oracles.HessianQuery, 6, **_CLIP), *_ANSWER),
    "joint": Row(lambda: scenarios.derivative(oracles.JointQuery, 4, **_WEIGHTS), *_ANSWER),
    "covariance": Row(lambda: scenarios.derivative(oracles.CovarianceQuery, 6, **_CLIP), *_ANSWER),
    "norms": Row(lambda: scenarios.derivative(oracles.NormsQuery, 6, **_CLIP), *_ANSWER),
    "accuracy": Row(lambda: scenarios.fraction(oracles.AccuracyQuery), *_ANSWER),
    "accuracy-person": Row(lambda: scenarios.fraction(oracles.AccuracyQuery, 3), *_ANSWER),
    "count": Row(lambda: scenarios.fraction(oracles.CountQuery), *_ANSWER),
    "histogram": Row(scenarios.histogram, *_HISTOGRAM),
    "histogram-person": Row(lambda: scenarios.histogram(4), *_HISTOGRAM),
    "ball-2": Row(lambda: games.ball(2), *_BALL),
    "ball-10": Row(lambda: games.ball(10), *_BALL),
    "ball-100": Row(lambda: games.ball(100), *_BALL),
    "selection": Row(scenarios.selection, 200_000, 0.90, 50_000, 0.80),
    "optax-chain": Row(scenarios.optax_chain, 400_000, 0.90, 40_000, 0.70),
    "tree": Row(scenarios.prefix_sums, 500_000, 0.95, 200_000, 0.90),
    "search": Row(lambda: scenarios.search(accuracy=False), 400_000, 0.85, 100_000, 0.80),
    "search-accuracy": Row(lambda: scenarios.search(accuracy=True), 400_000, 0.48, 100_000, 0.42),
}
"""Audits of mechanisms, queries and chains; those of algorithms are in their own rows."""

# The powers of attacks on full runs that need other numbers of runs, or prove less, than most.
_POWERS: dict[tuple[Any, ...], str] = {
    (40_000, 0.80, 20_000, 0.75): "dp-tr dp-tr-certified dp-tr-person dp-subspace-tr noisy-newton "
    "dp-tr-separate",
    (200_000, 0.80, 40_000, 0.75): "dp-str dp-sgd",
    (1_000_000, 0.90, 40_000, 0.75): "dp-sgd-step dp-sgd-person",
    (100_000, 0.85, 10_000, 0.65): "dp-svrg dp-svrg++",
    (200_000, 0.90, 20_000, 0.70): "spider refresh-and-difference spider-own-batches "
    "dp-str-separate",
    (200_000, 0.90, 50_000, 0.80): "objective-perturbation output-perturbation",
    (100_000, 0.92, 20_000, 0.80): "prgd",
    (100_000, 0.85, 20_000, 0.75): "dp-gd-selected",
    (400_000, 0.90, 100_000, 0.70): "book-keeping",
    (400_000, 0.80, 20_000, 0.70): "dpagem-subsets dp-str-subsets",
    (200_000, 0.75, 20_000, 0.65): "spider-tree",
}
_POWER_OF = {name: power for power, names in _POWERS.items() for name in names.split()}
_RUNS = {entry.name: (entry, entry.scenario) for entry in ALL.values()} | scenarios.VARIANTS
AUDITS: dict[str, Row] = _MECHANISMS | {
    name: Row(functools.partial(scenarios.full_run, *run), *_POWER_OF.get(name, ()))
    for name, run in _RUNS.items()
}
"""All audits by name."""


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of one audit. Lower bounds (``cp_``, ``fdp_``) hold at 99.9 % confidence each.

    The ``cp_`` ones assume nothing of the mechanism, the ``fdp_`` ones that it is in the claimed
    family of trade-off curves. Those on delta at epsilon 0 are None unless that is claimed.
    """

    name: str
    relation: Relation
    epsilon: float
    """The claimed epsilon at ``delta``; 0 for ball noise."""
    delta: float
    """Of the claim; for ball noise the claimed delta at epsilon 0."""
    runs: int
    cp_epsilon: float
    fdp_epsilon: float
    refuted: bool
    """Whether the claimed curve is contradicted at confidence 1 - ``level``."""
    level: float
    """0.001 divided by the number of audits."""
    gate: float | None
    """Least ratio, or None if too few runs were made to ask for one."""
    seconds: float
    cp_delta: float | None
    fdp_delta: float | None
    attacked: Answers
    """The most answers of a run that were scored; empty of a mechanism attacked by itself."""
    differences: tuple[str, ...]
    """Releases that are counted and no run makes, or of which runs make more."""
    tradeoff: np.ndarray = dataclasses.field(repr=False, compare=False)
    """Rows (false positive rate, false negative rate, claimed least false negative rate)."""

    @property
    def measure(self) -> str:
        """The audited quantity: ``"epsilon"`` at delta, or ``"delta(0)"``, delta at epsilon 0."""
        return "epsilon" if self.fdp_delta is None else "delta(0)"

    @property
    def claimed(self) -> float:
        """The claimed value of ``measure``."""
        return self.epsilon if self.fdp_delta is None else self.delta

    @property
    def audited(self) -> float:
        """Lower bound on ``measure`` by the trade-off curve."""
        return self.fdp_epsilon if self.fdp_delta is None else self.fdp_delta

    @property
    def assumption_free(self) -> float:
        """Lower bound on ``measure`` that assumes nothing."""
        return self.cp_epsilon if self.cp_delta is None else self.cp_delta

    @property
    def ratio(self) -> float:
        """Audited over claimed ``measure``, by the trade-off curve."""
        return self.audited / self.claimed

    @property
    def outcome(self) -> str:
        """``"refuted"``, ``"inconclusive"``, ``"too weak"`` or ``"stands"``.

        The two bounds hold at 99.9 % confidence, one by one. They may be above a claim that is not
        refuted, at the stricter level of all audits together: then nothing is decided.
        """
        if self.refuted:
            return "refuted"
        if self.differences or max(self.audited, self.assumption_free) > self.claimed:
            return "inconclusive"
        return "stands" if self.gate is None or self.ratio >= self.gate else "too weak"

    @property
    def passed(self) -> bool:
        """Whether the claim stands and the attack passed its gate."""
        return self.outcome == "stands"

    @property
    def verdict(self) -> str:
        """The result as one line of text."""
        is_delta = self.fdp_delta is not None
        measure = "delta at epsilon 0" if is_delta else f"epsilon at delta {self.delta:g}"
        if self.refuted:
            return (
                f"{self.name}: CLAIM REFUTED: {measure} is not {self.claimed:.4g} but at least "
                f"{self.audited:.4g} ({self.relation}). Release nothing with this mechanism."
            )
        if self.differences:
            return f"{self.name}: INCONCLUSIVE: {'; '.join(self.differences)}."
        if self.outcome == "inconclusive":
            return (
                f"{self.name}: INCONCLUSIVE: at 99.9 % confidence {measure} is at least "
                f"{max(self.audited, self.assumption_free):.4g}, above the claimed "
                f"{self.claimed:.4g}, which is not refuted at {1 - self.level:.4%}. Repeat the "
                "audit with more runs."
            )
        if not self.passed:
            return (
                f"{self.name}: the attack proves only {self.ratio:.3f} of the claim, under its "
                f"gate of {self.gate:g}: it has lost power, or the noise is larger than claimed."
            )
        return f"{self.name}: the claim stands."

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return {
            **dataclasses.asdict(self),
            "measure": self.measure,
            "ratio": self.ratio,
            "outcome": self.outcome,
            "passed": self.passed,
            "tradeoff": self.tradeoff.tolist(),
        }


def audit(
    name: str,
    *,
    key: Array,
    runs: int | None = None,
    quick: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Audit:
    """Returns the result of the attack on one mechanism of dpjax.

    A sound attack may fall below its gate, or a bound lie above the claim, by chance. It is then
    repeated with four times the runs, and the second result is returned.

    Args:
      name: one of ``AUDITS``.
      key: required; ``dpjax.random_key()`` for a fresh attack, a fixed one for tests.
      runs: total number of runs; by default the audit's own.
      quick: whether to take the smaller number of runs, and its gate.
      progress: called with the number of runs done since the last call.

    Raises:
      ValueError: for an unknown name, or fewer than 4 runs.

    >>> import jax
    >>> audit("gaussian", key=jax.random.key(0), runs=20_000).refuted
    False
    """
    runs, gate = plan(name, runs, quick)
    result = attack(AUDITS[name].make(), name=name, key=key, gates=(runs, gate), progress=progress)
    # A refutation is final: repeating it until it passes would choose the result.
    if result.passed or result.refuted:
        return result
    # With a fresh key, so that no run counts in both results.
    _, again = jax.random.split(key)
    more = (_MORE_RUNS * runs, gate)
    return attack(AUDITS[name].make(), name=name, key=again, gates=more, progress=progress)


def plan(name: str, runs: int | None = None, quick: bool = False) -> tuple[int, float | None]:
    """Returns the number of runs of an audit, and its gate at that number.

    >>> plan("dp-tr"), plan("gaussian", runs=1_000)
    ((40000, 0.8), (1000, None))
    """
    row = AUDITS[_validate.choice("audit", name, AUDITS)]
    if runs is None:
        return (row.quick_runs, row.quick_gate) if quick else (row.runs, row.gate)
    if _validate.positive_int("runs", runs) < 4:
        raise ValueError(f"runs must be at least 4, two on each data set, got {runs}.")
    # More runs do not weaken an attack, so that the gate for fewer still applies.
    if runs >= row.runs:
        return runs, row.gate
    return runs, row.quick_gate if runs >= row.quick_runs else None


def attack(
    game: Game,
    *,
    name: str,
    key: Array,
    gates: tuple[int, float | None],
    delta: float = DELTA,
    progress: Callable[[int], None] | None = None,
) -> Audit:
    """Returns the result of an attack, also for mechanisms that are not in ``AUDITS``.

    Args:
      game: from ``dpjax.auditing.games``.
      name: of the audit, as printed.
      key: required.
      gates: number of runs, and the least ratio to ask for, or None.
      delta: at which epsilon is bounded; for ball noise its delta at epsilon 0 is bounded instead.
      progress: called with the number of runs done since the last call.

    >>> import jax
    >>> result = attack(games.gaussian(), name="mine", key=jax.random.key(0), gates=(20_000, 0.7))
    >>> result.passed
    True
    """
    begin = time.perf_counter()
    runs, gate = gates
    answers: list[Answers] = []
    on_d, on_other = games.play(game, key, runs, progress, answers.append)
    attacked = jax.tree.map(lambda *most: max(most), *answers)
    # ``audit`` may repeat an audit; the level of all audits together is LEVEL.
    claim, level = game.claim, estimators.LEVEL / (2 * len(AUDITS))
    delta = claim.delta() if claim.is_certain else delta
    estimate = estimators.estimate(on_d, on_other, claim, delta)
    rates = np.stack([estimate.false_positive_rates, estimate.false_negative_rates])
    return Audit(
        name=name,
        relation=claim.relation,
        epsilon=claim.epsilon(delta),
        delta=delta,
        runs=runs,
        cp_epsilon=estimate.epsilon_clopper_pearson,
        fdp_epsilon=estimate.epsilon_curve,
        # At the level of all audits together; the two bounds above are at 99.9 % each.
        refuted=estimators.rejects(estimate.counts, claim, level),
        level=level,
        gate=gate,
        seconds=time.perf_counter() - begin,
        cp_delta=(
            clopper_pearson_delta(estimate.counts, estimators.LEVEL) if claim.is_certain else None
        ),
        fdp_delta=claim.delta(estimate.scale) if claim.is_certain else None,
        attacked=attacked,
        differences=differences(game.queries, claim.event, attacked) if game.queries else (),
        tradeoff=np.stack([*rates, claim.curve()(rates[0])], axis=1),
    )


def audit_many(
    names: Sequence[str], *, key: Array, runs: int | None = None, quick: bool = False
) -> Iterator[tuple[Audit, ...]]:
    """Runs several audits and yields the results of finished ones, about once a second.

    On a CPU they run in processes, one per core and at most four: the steps of an audit are too
    small for more than one core, and its compilation takes one. On an accelerator, whose memory
    processes cannot share, they run one after the other.

    ``names`` are of ``AUDITS``; the audit at index i takes ``key`` folded with i. The other
    arguments are those of ``audit``.

    Raises:
      ValueError: as ``audit``.
      BrokenProcessPool: if a process is killed, as when memory runs out.

    >>> import jax
    >>> batches = audit_many(["gaussian"], key=jax.random.key(0), runs=20_000)
    >>> [result.name for batch in batches for result in batch]
    ['gaussian']
    """
    keys = [jax.random.fold_in(key, i) for i in range(len(names))]
    kind = str(jax.random.key_impl(key))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    workers = min(_MOST_WORKERS, len(cores) or os.cpu_count() or 1, len(names))
    if workers == 1 or jax.default_backend() != "cpu":
        for name, audit_key in zip(names, keys, strict=True):
            yield (audit(name, key=audit_key, runs=runs, quick=quick),)
        return
    before = set(multiprocessing.active_children())
    # A fork would inherit the locks of XLA's threads.
    context = multiprocessing.get_context("spawn")
    core_sets = context.SimpleQueue()
    for i in range(workers):
        core_sets.put(cores[i::workers])
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(core_sets,))
    try:
        pending = {
            pool.submit(_audit, name, np.asarray(jax.random.key_data(audit_key)), kind, runs, quick)
            for name, audit_key in zip(names, keys, strict=True)
        }
        while pending:
            done, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
            yield tuple(future.result() for future in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()


def _begin(core_sets: Any) -> None:
    # Only the parent process handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores := core_sets.get():
        # XLA's threads spin while they wait, which slows busy ones: with both cores for each of two
        # processes, all audits took 282 s.
        os.sched_setaffinity(0, cores)


def _audit(name: str, words: np.ndarray, kind: str, runs: int | None, quick: bool) -> Audit:
    key = jax.random.wrap_key_data(jnp.asarray(words), impl=kind)
    return audit(name, key=key, runs=runs, quick=quick)
