"""``Books``: how a ledger adds up runs of which each may be chosen after seeing those before.

A ledger has two books, each a privacy filter, and admits a run where one of them holds all runs:

- the first run's *own*. After unsampled Gaussians it holds those alone, of any noise, by Gaussian
  DP; else steps of the first run alone, in any number and order. Their losses compose as if
  planned: a transcript is computed from independent draws of one fixed list of dominating pairs;
  which is drawn next, and where drawing ends, follows from earlier draws.
- that of *Renyi* DP at one order, for all runs.

Both together are sound. The first run is chosen before anything is released, so what it fixes
depends on no record. Costs only grow, so a book that does not hold the runs so far holds none of
those that follow. Let M be all runs, M1 (M2) the same until a run that the own (Renyi) book does
not hold, and ' mark those of a neighbour, in either direction of the relation, the same for all
runs. Transcripts E are E1, which the own book holds, and E2, the others, which the Renyi book
holds; M gives E1 the probability that M1 gives it, and E2 that of M2. With delta / 2 for each

  P(M in E) = P(M1 in E1) + P(M2 in E2) <= e^eps (P(M1' in E1) + P(M2' in E2)) + delta,

where the sum in brackets is P(M' in E). If one book alone holds the first run, no later one opens
the other: M is one filter, which has all of delta. Adding up epsilons would not be sound. Runs may
interleave: each is booked whole before its first step, and a step is one mechanism, whose pair
bounds it whatever was released before, so the steps of all runs are one adaptive composition.

Where disjoint parts of the data are declared, each has two books of its own, which hold the runs
that read it. Neighbours differ in a record of one part. The other runs have one distribution for
both, given what was released before, so they are as public, also where they decide on the first run
that reads the part and with it on what its books hold. A replaced record could change two parts.

Reference: Smith and Thakurta (2022), filters of Gaussian DP; Feldman and Zrnic (2021), of Renyi DP;
Zhu, Dong and Wang (2022), composition of dominating pairs; Vadhan and Zhang (2023), interleaved
mechanisms; the conversion from Renyi DP is proposition 12 of Canonne, Kamath and Steinke (2020).
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax._lazy import dp_accounting
from dpjax.accounting.budget import PrivacyBudget
from dpjax.accounting.events import Event, Release, epsilon, renyi, renyi_divergences
from dpjax.accounting.noise_draws import LOG_BETA, TAIL, charge, tails
from dpjax.accounting.release import mu_squared
from dpjax.accounting.search import accounting_key

Cost = tuple[float, float]
"""What fraction of the own and of the Renyi book a run takes; infinite where it has no place."""

# The root finders stop within 1e-12 on either side.
_SLACK = 4e-12
# Part of delta that a Renyi filter reserves for overflowing batches, which no divergence covers. It
# is fixed: a filter that moved delta between its two parts as runs go by would not be sound.
_OVERFLOW_SHARE = 0.01
# Multiples of a first run are searched up to this, and to one part in so many.
_MULTIPLES = 1000
# Part of delta that a ledger sets aside for the tails of its draws, and at most of its epsilon.
_SHARE = 2.0**-10
# Noise, relative to a run's own, beyond which advising it is of no use; what is called nothing.
_MOST_NOISE, _LITTLE = 2.0**20, 1e-4
_OTHER = "give it a ledger of its own, whose budget adds to this one"


class Limits(NamedTuple):
    """What a first run fixes: the largest sum in each book, 0 in one that is closed."""

    own: float
    """Of mu^2, or of multiples of the first run."""
    steps: dict[str, int] | None = None
    """How often the first run takes each of its steps; None for Gaussian DP."""
    renyi: float = 0.0
    """Of rho at the order."""
    overflow: float = 0.0
    """Of probabilities that a batch overflows, in the Renyi book."""
    order: float | None = None

    def fraction(self, own: float, rho: float, overflow: float) -> Cost:
        """Returns what fraction of each book is taken by a run of these costs."""
        most = max(self.overflow, 5e-324)  # which may underflow
        taken = max(rho / self.renyi, overflow / most) if self.renyi else math.inf
        return own / self.own if self.own else math.inf, taken


ALL = float(np.nextafter(1.0, 2.0))
"""What a first run takes of each book that needs the whole budget: nothing is left beside it."""


def most_draws(budget: PrivacyBudget) -> int:
    """Returns how many noise draws a ledger is charged for: 2^40, or fewer that cost little."""
    for power in range(40, 0, -1):
        if charge(2**power).epsilon <= _SHARE * budget.epsilon:
            return 2**power
    return 1


def _left(budget: PrivacyBudget, draws: int) -> tuple[float, float]:
    """The epsilon and delta that exact noise may spend, where this many numbers of it are drawn."""
    if not draws:
        return budget.epsilon, budget.delta
    cost, beta, share = charge(draws), math.exp(-LOG_BETA), _SHARE * budget.delta
    epsilon = min(budget.epsilon, math.log(max(share / beta, 1.0)))
    delta = cost.shrunk * (budget.delta - share - (1 + math.exp(epsilon)) * beta)
    return epsilon - cost.epsilon, min(delta, epsilon - cost.epsilon)


def used(costs: Iterable[Cost]) -> Cost:
    """Returns what fraction of each book is used; runs are admitted while one is at most 1."""
    own, rho = (math.fsum(book) for book in zip((0.0, 0.0), *costs, strict=True))
    return own, rho


class Books:
    """The books of a ledger: ``both``, which a first run opens, or one of them.

    ``order`` is that of Renyi DP. None: where most runs like the first fit; of one book, Gaussian
    DP. What ``draws`` numbers of noise cost, those of all runs, is taken off the declared budget.
    """

    def __init__(
        self, budget: PrivacyBudget, order: float | None = None, both: bool = False, draws: int = 0
    ):
        self.declared, self.order, self.both, self.draws = budget, order, both, draws
        # Of exact noise, in whose terms runs add up.
        left = _left(budget, draws)
        if min(left) <= 0:
            raise ValueError(
                f"epsilon={budget.epsilon:g}, delta={budget.delta:g} leave nothing beside what "
                "drawing noise costs; raise them."
            )
        self.budget = budget = PrivacyBudget(*left, budget.relation)
        self._half = dataclasses.replace(budget, delta=budget.delta / 2)
        renyi_alone = both or order is not None
        self.single = self._renyi(budget) if renyi_alone else Limits(_gaussian_limit(budget))
        """The limits where there is one book for all runs, which has all of delta."""
        if both:
            self._renyi(self._half)  # raises before there is a first run

    def _renyi(self, budget: PrivacyBudget, first: Event | None = None) -> Limits:
        held = dataclasses.replace(budget, delta=(1 - _OVERFLOW_SHARE) * budget.delta)
        order = best_order(held, first) if self.order is None else self.order
        overflow = _OVERFLOW_SHARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
        return Limits(0.0, None, _renyi_limit(held, order), overflow, order)

    def limits(self, first: Event) -> Limits:
        """Returns what a first run fixes; those of a run that does not fit do not hold it."""
        if not self.both:
            return self.single
        first = first.with_exact_noise
        taken = None if first.is_gaussian else steps(first)
        shared = self._renyi(self._half, first)
        if self.cost(first, shared)[1] > 1:
            alone = Limits(_own_limit(first, self.budget), taken)
            return alone if taken is None or alone.own >= 1 else self._renyi(self.budget, first)
        own = _own_limit(first, self._half) if taken != {} else 0.0
        # A book that holds little more than the first run is not worth half of delta.
        if taken is not None and own < 2:
            return self._renyi(self.budget, first)
        return shared._replace(own=own, steps=taken)

    def cost(self, event: Event, limits: Limits, is_first: bool = False) -> Cost:
        """Returns what a run takes; raises for one that no ledger books, or the only book."""
        if event.relation != self.budget.relation:
            raise ValueError(
                f"the ledger's budget is under {self.budget.relation!r}, and this run is calibrated"
                f" under {event.relation!r}. Build it with a budget of the ledger's relation."
            )
        for release in event.releases:
            if release.ledger_objection:
                raise ValueError(release.ledger_objection)
        own, rho = 1.0 if is_first else math.inf, math.inf
        if limits.steps is not None:
            taken = steps(event)
            if taken and set(taken) <= set(limits.steps):
                own = max(taken[step] / limits.steps[step] for step in taken)
        elif event.is_gaussian:
            own = mu_squared(event.releases)
        elif not (self.both or limits.renyi):
            raise ValueError(
                "this ledger admits unsampled Gaussian releases only, and this run samples or "
                "selects; declare its budget by dpjax ledger create, without --unsampled."
            )
        if limits.order is not None:
            with contextlib.suppress(*[ValueError] * self.both):  # none is known
                rho = renyi(event, limits.order)
        return limits.fraction(own, rho, event.failure_probability)

    def tails(self, event: Event) -> float:
        """Returns how many tails of noise a run adds, for which a part of delta is set aside."""
        return tails(event.noise_numbers, self.declared.epsilon)

    def read(self, intents: list[dict[str, Any]]) -> tuple[Limits, list[Cost]]:
        """Returns limits and costs of lines; one book has numbers in its unit."""
        limits = Limits(*intents[0]["limits"]) if self.both and intents else self.single
        amounts = [limits.own, limits.renyi, limits.overflow, limits.order or 0.0]
        amounts += (count - 1 for count in (limits.steps or {}).values())
        costs: list[Cost] = []
        for line in intents:
            cost = line["cost"] if self.both else [line["cost"]] * 2
            own, rho = (math.inf if part is None else part for part in cost)
            amounts += own, rho, line["overflow"]
            costs.append((own, rho) if self.both else limits.fraction(own, rho, line["overflow"]))
        if not min(amounts) >= 0:
            raise ValueError(f"costs and limits must be at least 0, got {amounts}.")
        return limits, costs

    def written(self, cost: Cost) -> list[float | None] | float:
        """Returns a cost for the file, as ``read``."""
        if not self.both:
            return cost[0] * self.single.own if self.single.own else cost[1] * self.single.renyi
        return [None if math.isinf(part) else part for part in cost]

    def further_epsilon(self, limits: Limits, costs: list[Cost]) -> float:
        """Returns the epsilon, rounded down, that one unsampled release may have after these."""
        if not costs:
            return self.declared.epsilon  # it has all of delta, and its own draws alone
        own, rho = (max(0.0, 1 - part) for part in used(costs))
        own *= limits.own if limits.steps is None else 0.0
        squares = max(own, 2 * rho * limits.renyi / (limits.order or 1.0))
        if squares <= 0:
            return 0.0
        return max(0.0, _gaussian_epsilon(math.sqrt(squares), self.declared.delta) - _SLACK)

    def advice(self, limits: Limits, costs: list[Cost]) -> str:
        """Returns what is left after ``costs``, in words; the run that they name fits."""
        left, words = max(0.0, 1 - min(used(costs))), "one further unsampled release may have"
        if left < _LITTLE:
            return "nothing; the budget is spent"
        further, more = rounded_down(self.further_epsilon(limits, costs)), ""
        if self.both and not costs:
            words = "the first run may have"
            more = "; one that uses most of it may leave none for runs with another accounting"
        elif limits.steps is not None and further <= 2 * self.budget.delta:
            return f"{100 * left:.3g} %; for steps like those of the first run alone"
        words += f" epsilon {further:g} at delta {self.declared.delta:g}"
        return f"{100 * left:.3g} %; {words}{more}"

    def _holds_alone(self, run: Event) -> bool:
        """Whether a run with all that it draws stays within the declared budget by itself."""
        with contextlib.suppress(ValueError):  # of one that is accounted by Renyi DP alone
            return epsilon(run, self.declared.delta, run.relation) <= self.declared.epsilon
        return False

    def price(
        self, event: Event, limits: Limits, before: list[Cost], booked: tuple[int, float]
    ) -> Cost:
        """Returns what a run takes, if it fits beside those before, of ``booked`` draws and tails.

        Otherwise it raises as ``cost``, or with the way to a run that fits.
        """

        def noisier(factor: float) -> Event:
            return event.each(lambda release: release.scaled(factor))

        def holds(event: Event) -> bool:
            fixed = limits if before or not self.both else self.limits(event)
            return min(used([*before, self.cost(event, fixed, not before)])) <= 1

        whole, event = event, event.with_exact_noise
        cost = self.cost(event, limits, not before)
        fits = min(used([*before, cost])) <= 1
        draws, out = booked[0] + whole.noise_draws, booked[1] + self.tails(whole)
        too_many = draws > self.draws or TAIL * out > _SHARE * self.declared.delta
        if fits and not too_many:
            return cost
        # A run that needs the whole budget is one that would exceed it with a little less noise.
        alone = not before and self._holds_alone(whole)
        if alone and not (fits and self._holds_alone(whole.each(lambda one: one.scaled(0.9)))):
            return ALL, ALL
        if fits:
            raise ValueError(
                f"this run draws {whole.noise_draws:,} numbers of noise, beside {booked[0]:,} of "
                f"other runs, more than this ledger is charged for: {_OTHER}, or say how many "
                "an update has, where that is not 2**24 (dimension=); with more noise in each step "
                "their tails cost less."
            )
        if holds(event.each(lambda release: release.without_failures())):
            raise ValueError(
                "batches of this run exceed their maximum size with probability "
                f"{event.failure_probability:.3g}, which is too much; raise the "
                "sampler's max_batch_size."
            )
        low, high = 1.0, _MOST_NOISE
        for _ in range(40 if (before or not self.both) and holds(noisier(high)) else 0):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if holds(noisier(middle)) else (middle, high)
        most = 0.0
        with contextlib.suppress(ValueError):  # of a search beside other releases
            most = epsilon(noisier(high), self.declared.delta, event.relation)
            # Grids of sampled losses move an epsilon by 1e-6 of it; noise of two parts by 5e-5.
            first = self.both and not before
            most = self.declared.epsilon if first else rounded_down(most * (1 - 1e-4))
        words = f"this run would exceed the budget. Left: {self.advice(limits, before)}."
        if noisier(2.0) == event:
            words += f" It is spent already: {_OTHER}."
        elif most > 2 * self.budget.delta:
            words += f" Calibrate the run to epsilon {most:g} at delta {self.declared.delta:g}."
        elif before and high == _MOST_NOISE:
            words += f" No noise makes it fit: plan such a run before the first one, or {_OTHER}."
        raise ValueError(words)


def steps(event: Event) -> dict[str, int]:
    """Returns how often an event has each of its releases, named by what their accounting reads.

    Nothing for one with a release whose class does not state ``fields_determine_loss``.
    """
    return _by_step(event, lambda release: release.count)


def drawn(event: Event) -> dict[str, int]:
    """Returns how many numbers of noise an event draws for each of its ``steps``."""
    return _by_step(event, lambda release: release.count * release.noise_draws)


def _by_step(event: Event, amount: Callable[[Release], int]) -> dict[str, int]:
    found = collections.Counter[str]()
    for release in event.releases:
        if not _fields_determine_loss(release):
            return {}
        one = repr(accounting_key((dataclasses.replace(release, count=1, noise_draws=0),)))
        found[hashlib.sha256(one.encode()).hexdigest()] += amount(release)
    return dict(found)


def _fields_determine_loss(release: Release) -> bool:
    inner = [part for parts in getattr(release, "trainings", (release.parts(),)) for part in parts]
    # Read off the class itself, so that no other class's statement is taken for its own.
    stated = type(release).__dict__.get("fields_determine_loss", False)
    return stated and all(part is release or _fields_determine_loss(part) for part in inner)


def _own_limit(first: Event, budget: PrivacyBudget) -> float:
    if first.is_gaussian:
        return _gaussian_limit(budget)
    limit, whole = budget.epsilon, max(release.count for release in first.releases)

    def fits(steps: int) -> bool:
        with contextlib.suppress(ValueError):  # made once, or a delta below what is charged
            multiple = first.each(
                lambda one: dataclasses.replace(one, count=-(-one.count * steps // whole))
            )
            return epsilon(multiple, budget.delta, first.relation) <= limit
        return False

    low, high = 0, whole
    while high <= _MULTIPLES * whole and fits(high):
        low, high = high, 2 * high
    while low and high - low > max(1, low // _MULTIPLES):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low / whole if steps(first) else min(1.0, low / whole)


def rounded_down(value: float) -> float:
    """Returns a number of six digits, as {:g} prints them, that is at most ``value``."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    # The hair is below what rounding a multiplier up leaves.
    return float(f"{math.floor(value * (1 + 1e-10) / unit) * unit:.6g}")


@functools.lru_cache(maxsize=64)
def best_order(budget: PrivacyBudget, event: Event | None = None) -> float:
    """Returns the Renyi order that admits most runs of an event, or of Gaussians without one."""
    # 1 + 2 log(1/delta) / epsilon is best by the oldest conversion to epsilon, and too high.
    oldest = 2 * math.log(1 / budget.delta) / budget.epsilon
    orders = np.round(1.02 + oldest * np.geomspace(0.02, 5, 999), 2)
    best = orders[np.argmax(_renyi_limits(budget, orders) / orders)]
    if event is not None and not event.is_gaussian:
        orders = np.maximum(np.round(1 + (best - 1) * np.linspace(0.4, 1.1, 29), 2), 1.02)
        with contextlib.suppress(ValueError):  # none is known, or none is finite
            rho = renyi_divergences(event.releases, event.relation, orders)
            best = orders[np.argmax(_renyi_limits(budget, orders) / rho)]
    return float(best)


def _renyi_limits(budget: PrivacyBudget, orders: np.ndarray) -> np.ndarray:
    log = math.log(1 / budget.delta)
    return budget.epsilon - np.log1p(-1 / orders) - (log - np.log(orders)) / (orders - 1)


def _renyi_limit(held: PrivacyBudget, renyi_order: float) -> float:
    order = _validate.positive("renyi_order", renyi_order)
    # dp_accounting does not convert at lower orders.
    if order > 1.01:
        rho = float(_renyi_limits(held, np.array(order)))
        convert = dp_accounting.rdp.compute_epsilon
        while rho > 0 and convert([order], [rho], held.delta)[0] > held.epsilon:
            rho *= 1 - 1e-12
        if rho > 0:
            return rho
    raise ValueError(
        f"renyi_order={renyi_order:g} admits nothing at epsilon={held.epsilon:g}, "
        f"delta={held.delta / (1 - _OVERFLOW_SHARE):g}; leave it out, for "
        f"{best_order(held):g}, which admits most."
    )


@functools.lru_cache(maxsize=64)
def _gaussian_limit(budget: PrivacyBudget) -> float:
    low, high = 0.0, 1.0
    while _gaussian_epsilon(high, budget.delta) <= budget.epsilon:
        low, high = high, 2 * high
    while np.nextafter(low, high) < high:
        middle = (low + high) / 2
        fits = _gaussian_epsilon(middle, budget.delta) <= budget.epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low**2


def _gaussian_epsilon(mu: float, delta: float) -> float:
    event = Event((Release("gaussian", 1, noise_multiplier=1 / mu),), "zero_out")
    return epsilon(event, delta, "zero_out")
