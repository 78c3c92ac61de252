"""The two books of a ledger: how many runs they admit, and that what they admit stays in budget."""

import contextlib
import dataclasses
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from factories import in_threads, mostly_ci

import dpjax
from dpjax.accounting import (
    Event,
    Ledger,
    PoissonRelease,
    PrivacyBudget,
    Release,
    SearchRelease,
    SelectionRelease,
    SubsetRelease,
    calibrate,
    compose,
    epsilon,
    filters,
    hash_chain,
    renyi,
)
from dpjax.accounting.events import deltas
from dpjax.accounting.search import accounting_key
from dpjax.cli import main

BUDGET = PrivacyBudget(3.0, 1e-6)
N = 1000


def event(part, steps, noise, relation="zero_out"):
    """A run of so many steps, each on a part of the data; None for all of it."""
    if part is None:
        return Event((Release("gradient", steps, noise),), relation)
    drawn = {"sampling_probability": part, "max_batch_size": round(part * N), "data_size": N}
    kind = SubsetRelease if relation == "replace_one" else PoissonRelease
    return Event((kind("gradient", steps, noise, **drawn),), relation)


def run(part, steps, epsilon, relation="zero_out"):
    budget = PrivacyBudget(epsilon, BUDGET.delta, relation)
    return event(
        part, steps, calibrate(lambda n: event(part, steps, n, relation), budget), relation
    )


def admit(ledger, *events):
    """How many of these events are admitted, one after the other."""
    for number, each in enumerate(events):
        name = f"{len(ledger.entries)}"
        try:
            ledger.reserve(run_id=name, event=each, label="made up", config_hash="0")
        except ValueError:
            return number
    return len(events)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


# How many.


@pytest.mark.parametrize(
    ("part", "steps", "share"),
    [(0.005, 200, 3), (0.025, 40, 3), (0.1, 10, 3), (0.1, 100, 7), (None, 40, 3), (None, 40, 7)],
)
def test_a_ledger_without_settings_admits_six_of_seven_runs_that_compose(part, steps, share, path):
    """At the order of the docs, 16, the first run of 2.5 % and a third of epsilon was refused."""
    one = run(part, steps, BUDGET.epsilon / share)
    with Ledger.create(path, BUDGET) as ledger:
        admitted = admit(ledger, *[one] * 100)
    more = (compose([one] * number) for number in itertools.count(admitted))
    fits = (epsilon(runs, BUDGET.delta, "zero_out") <= BUDGET.epsilon for runs in more)
    exact = admitted - 1 + sum(itertools.takewhile(bool, fits))
    assert 6 / 7 * exact <= admitted <= exact
    with Ledger.create(path.with_name("planned"), BUDGET) as ledger:
        with pytest.raises(ValueError, match="exceed the budget"):
            ledger.plan([one] * (exact + 1), label="made up")
        ledger.plan([one] * exact, label="made up")
        assert admit(ledger, *[one] * 100) == exact
        assert {entry.plan for entry in ledger.entries[1:]} == {ledger.entries[0].run_id}


def test_the_order_is_the_one_that_admits_most():
    """The advice of a formula, 10.2, admits fewer; and low noise on few records asks for less."""
    best = filters.best_order(BUDGET)
    limits = {order: filters.Books(BUDGET, order).single.renyi for order in (best, 8.5, 9.4, 10.2)}
    assert best == pytest.approx(8.9, abs=0.1)
    assert max(limits, key=lambda order: limits[order] / order) == best
    heavy = run(0.005, 200, 1.0)
    own = filters.best_order(BUDGET, heavy)
    assert own < 7.5 and 15 * renyi(heavy, own) / filters.Books(BUDGET, own).single.renyi < 1
    assert renyi(heavy, best) > filters.Books(BUDGET, best).single.renyi


KINDS = [run(0.1, 10, 0.5), run(None, 40, 0.5), run(0.025, 40, 0.4), run(None, 3, 0.3)]
SEARCH = SearchRelease(
    "search",
    1,
    1.0,
    trials=2.0,
    cap=8,
    shape=1.0,
    settings=4,
    trainings=((Release("gradient", 1, 40.0),),),
)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_a_mixed_history_composes_to_the_budget_at_most(order, path):
    kinds = [KINDS[number] for number in order]
    with Ledger.create(path, BUDGET) as ledger:
        admitted = []
        for each in itertools.islice(itertools.cycle(kinds), 40):
            admitted += [each] * admit(ledger, each)
        spent = epsilon(compose(admitted), BUDGET.delta, "zero_out")
    assert 0.8 * BUDGET.epsilon < spent <= BUDGET.epsilon


@pytest.mark.parametrize(("part", "noise"), [(0.025, 2.0), (0.1, 4.0), (0.1, 1.5)])
def test_a_book_chosen_after_a_look_at_the_first_answer_stays_within_delta(part, noise):
    """Going on by whichever book is worse for what was seen spends more than either alone."""
    first = run(None, 1, 1.0)
    limits = filters.Books(BUDGET, None, True).limits(first)
    left = limits.renyi - renyi(first, limits.order)
    step = renyi(event(part, 1, noise), limits.order)
    mu = first.gaussian_mu
    rest = event(None, 1, 1 / math.sqrt(limits.own - mu**2)), event(part, int(left / step), noise)
    x = np.linspace(-8, 8, 801)
    weight = np.exp(-(x**2) / 2) / np.exp(-(x**2) / 2).sum()
    found = [deltas(each, BUDGET.epsilon - mu * (x + mu / 2)) for each in rest]
    alone, chosen = [weight @ each for each in found], weight @ np.maximum(*found)
    assert 0.49 * BUDGET.delta < max(alone) <= 0.5 * BUDGET.delta * (1 + 1e-6)
    assert max(alone) <= chosen <= BUDGET.delta


# What the first run fixes.


@pytest.mark.parametrize("relation", dpjax.accounting.RELATIONS)
@pytest.mark.parametrize("part", [None, 0.1])
def test_a_first_run_may_take_the_whole_budget(relation, part, path):
    budget = PrivacyBudget(3.0, 1e-6, relation)
    with Ledger.create(path, budget) as ledger:
        assert ledger.remaining_epsilon == 3.0
        assert admit(ledger, *[run(part, 10, 3.0, relation)] * 2) == 1
        assert "nothing; the budget is spent" in ledger.advice


def test_a_first_run_of_low_noise_leaves_room_for_other_kinds(path):
    with Ledger.create(path, BUDGET) as ledger:
        assert admit(ledger, run(0.005, 200, 1.0), run(0.1, 10, 0.5), run(None, 4, 0.5)) == 3


@pytest.mark.parametrize(
    "first",
    [
        Event((SEARCH,), "zero_out"),
        Event((Release("gradient", 4, 20.0), SEARCH), "zero_out"),
        Event((Release("gradient", 4, 20.0), SelectionRelease("best", 2, 20.0)), "zero_out"),
    ],
)
def test_runs_of_every_kind_can_come_first_and_again(first, path):
    with Ledger.create(path, BUDGET) as ledger:
        assert admit(ledger, *[first] * 3) == 3


def test_fewer_and_more_of_the_same_steps_are_booked_exactly(path):
    one = run(0.025, 40, 1.0)
    (release,) = one.releases
    shorter, longer = (
        Event((dataclasses.replace(release, count=count, name="other"),), "zero_out")
        for count in (10, 120)
    )
    with Ledger.create(path, BUDGET) as ledger:
        assert admit(ledger, one, shorter, longer) == 3
        costs = [entry.cost for entry in ledger.entries]
        assert costs[1] == pytest.approx(costs[0] / 4) and costs[2] == pytest.approx(3 * costs[0])


LOW = [
    (1.0, 1e-5, 0.02, 50),
    (0.5, 0.49, 0.1, 10),
    (600.0, 0.49, None, 2),
    (1000.0, 0.3, None, 3),
    (1000.0, 0.49, None, 1),
]


@pytest.mark.parametrize(("epsilon", "delta", "part", "steps"), LOW)
def test_a_first_run_of_the_whole_budget_is_admitted_at_any_budget(
    epsilon, delta, part, steps, path
):
    """The best order for all of delta may admit nothing at half of it, which raised."""
    budget = PrivacyBudget(epsilon, delta)
    one = event(part, steps, calibrate(lambda noise: event(part, steps, noise), budget))
    with Ledger.create(path, budget) as ledger:
        assert admit(ledger, one) == 1


@pytest.mark.parametrize("noise", [0.5, 0.7, 1.0, 8.0])
@pytest.mark.parametrize(("epsilon", "delta"), [case[:2] for case in LOW])
def test_the_order_of_a_book_admits_something(epsilon, delta, noise):
    books = filters.Books(PrivacyBudget(epsilon, delta), None, True)
    limits = books._renyi(books._half, event(0.02, 50, noise))
    assert limits.renyi > 0 and limits.order > 1.01


# What is the same step.


def own_kind(weight):
    """Returns classes of one name, which differ in what they cost."""

    @dataclasses.dataclass(frozen=True)
    class Weighted(Release):
        mechanism = "weighted"
        is_gaussian = False

        def renyi(self, orders, relation):
            return weight * orders

        def privacy_loss(self, relation):
            raise NotImplementedError

    return Weighted


def test_classes_of_one_name_are_no_same_step(path):
    """Both had one key, and the second was booked at the cost of the first."""
    light, heavy = (Event((own_kind(weight)("g", 1, 4.0),), "zero_out") for weight in (1e-4, 1e-3))
    nested = [
        dataclasses.replace(SEARCH, trainings=((each.releases[0],),)) for each in (light, heavy)
    ]
    assert not any(map(filters.steps, [light, heavy, *(Event((s,), "zero_out") for s in nested)]))
    with Ledger.create(path, BUDGET) as ledger:
        assert admit(ledger, light, heavy) == 2
        costs = [entry.cost for entry in ledger.entries]
        assert costs[1] == pytest.approx(10 * costs[0])
        ledger.plan([light], label="made up")
        assert ledger.check(light) == pytest.approx(costs[0])


def test_a_search_is_named_by_what_its_trainings_hide_in_print():
    """A field with repr=False was left out of the name of the search."""

    def search(part):
        one = dataclasses.replace(event(0.1, 1, 4.0).releases[0], sampling_probability=part)
        return Event((dataclasses.replace(SEARCH, trainings=((one,),)),), "zero_out")

    (key,) = accounting_key(search(0.1).releases)
    trainings = accounting_key(search(0.1).releases[0].trainings[0])
    assert (trainings,) in key
    assert filters.steps(search(0.1)) != filters.steps(search(0.09))


# Plans.


def test_events_made_elsewhere_are_no_plan(path):
    """A list was kept as a plan that nobody had used, and its runs could be made again."""
    one = run(None, 40, 1.0)
    with Ledger.create(path, BUDGET) as ledger:
        with pytest.raises(ValueError, match="compose"):
            ledger.reserve(run_id="a", event=[one, one], label="made up", config_hash="0")
        ledger.reserve(run_id="a", event=compose([one, one]), label="made up", config_hash="0")
        assert ledger.check(one) > 0


def test_a_plan_pays_for_its_very_runs_once(path):
    planned, other = run(0.025, 40, 1.0), run(None, 40, 0.9)
    with Ledger.create(path, BUDGET) as ledger:
        with pytest.raises(ValueError, match="none at all"):
            ledger.plan([], label="made up")
        ledger.plan([planned, other, planned], label="made up")
        left = ledger.remaining
        assert admit(ledger, other, planned, planned) == 3
        assert ledger.remaining == left and ledger.check(run(None, 1, 0.1)) > 0
        admit(ledger, planned)
        assert ledger.remaining < left and ledger.entries[-1].plan is None
    whole, *_ = entries = Ledger.read(path).entries
    assert [e.plan for e in entries] == [None, *[whole.run_id] * 3, None] and whole.finished


# What another program spent.

RELATIONS = {
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "add_or_remove_one": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}


def normal(noise, count=1):
    return dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise), count)


def drawn(part, noise, count=1):
    batch = dp_event.PoissonSampledDpEvent(part, dp_event.GaussianDpEvent(noise))
    return dp_event.SelfComposedDpEvent(batch, count)


def subset(noise):
    return dp_event.SampledWithoutReplacementDpEvent(N, 25, dp_event.GaussianDpEvent(noise))


def several(*events):
    return dp_event.ComposedDpEvent(list(events))


def by_rdp(event, relation, order):
    accountant = dp_accounting.rdp.RdpAccountant([order], RELATIONS[relation])
    return accountant.compose(event).rdp[0]


BOTH = ("zero_out", "add_or_remove_one")
OUTSIDE = [
    *[(drawn(0.025, 2.0, 40), None, relation) for relation in BOTH],
    *[(several(drawn(0.1, 4.0), dp_event.LaplaceDpEvent(5.0)), None, each) for each in BOTH],
    *[(dp_event.ZCDpEvent(0.02, 0.1), None, relation) for relation in RELATIONS],
    (dp_event.SingleEpochTreeAggregationDpEvent(9.0, [4, 8]), None, "zero_out"),
    (dp_event.RandomizedResponseDpEvent(0.9, 4), None, "replace_one"),
    # Defined over the bound of one record, and read over the sensitivity, which is twice that.
    (subset(8.0), subset(4.0), "replace_one"),
    (
        several(dp_event.LaplaceDpEvent(9.0), normal(20.0)),
        several(dp_event.LaplaceDpEvent(4.5), normal(10.0)),
        "replace_one",
    ),
    # dp_accounting reads an integer in a batch as all of its noise: 3e-5 in place of 13 at order 9.
    (
        dp_event.PoissonSampledDpEvent(0.01, several(normal(40), normal(5))),
        dp_event.PoissonSampledDpEvent(0.01, several(normal(40.0), normal(5.0))),
        "zero_out",
    ),
]


@pytest.mark.parametrize(("spent", "meant", "relation"), OUTSIDE)
@pytest.mark.parametrize("first", [False, True])
def test_a_spend_from_outside_costs_its_renyi_divergence(spent, meant, relation, first, path):
    with Ledger.create(path, dataclasses.replace(BUDGET, relation=relation)) as ledger:
        if not first:
            admit(ledger, event(None, 4, 20.0, relation))
        ledger.spend(spent, label="made up")
        limits, costs = ledger._booked()
        rho = by_rdp(spent if meant is None else meant, relation, limits.order)
        assert costs[-1] == (math.inf, pytest.approx(rho / limits.renyi))
        entry = ledger.entries[-1]
        assert (entry.outside, entry.config_hash) == (repr(spent), "outside")
        assert entry.finished and not entry.plan
        assert limits.own == 0 if first else limits.own > 0


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("unsampled", [False, True])
def test_gaussian_noise_from_outside_stays_in_the_gaussian_book(relation, unsampled, path):
    budget = dataclasses.replace(BUDGET, relation=relation)
    over = 2 if relation == "replace_one" else 1
    with Ledger.create(path, budget, unsampled=unsampled) as ledger:
        admit(ledger, event(None, 4, 20.0, relation))
        ledger.spend(several(normal(over * 20, 3), normal(over * 20.0)), label="made up")
        run, spent = ledger.entries
        assert spent.cost == pytest.approx(run.cost, rel=1e-12)
        if unsampled:
            with pytest.raises(ValueError, match="without --unsampled"):
                ledger.spend(dp_event.ZCDpEvent(0.01), label="made up")
        assert len(ledger.entries) == 2


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (dp_event.NoOpDpEvent(), "at order 2 is 0"),
        (dp_event.NonPrivateDpEvent(), "at order 2 is inf"),
        (several(drawn(0.1, 2.0), dp_event.NonPrivateDpEvent()), "at order 2 is inf"),
        (dp_event.GaussianDpEvent(math.nan), "noise_multiplier must be"),
        (dp_event.ZCDpEvent(math.nan), "at order 2 is nan"),
        (dp_event.LaplaceDpEvent(0.0), "noise_multiplier must be"),
        (dp_event.PoissonSampledDpEvent(0.1, several()), "negative power"),
        (dp_event.GaussianDpEvent("2"), "noise_multiplier must be a number"),
        (dp_event.GaussianDpEvent(None), "noise_multiplier must be a number"),
        (dp_event.UnsupportedDpEvent(), "Unsupported event"),
        (dp_event.DpEvent(), "Unsupported event"),
        (subset(4.0), "must be `REPLACE_ONE`"),
        (drawn(1.5, 2.0), "Sampling rate"),
        (normal(2.0, 0.5), "count must be a whole number"),
        (normal(2.0, -1), "count must be"),
        (several(normal(2.0), dp_event.ZCDpEvent(-0.1)), "rho must be"),
        (run(None, 1, 1.0), "a DpEvent of dp_accounting, got an object of type Event"),
        (normal(0.1), "spent already: give it a ledger of its own"),
        (
            drawn(0.5, 0.1),
            "spent already: give it a ledger of its own",
        ),
    ],
)
def test_a_spend_that_cannot_be_booked_says_what_to_do(bad, words, path):
    with Ledger.create(path, BUDGET) as ledger:
        before = path.read_bytes()
        with pytest.raises(ValueError) as error:
            ledger.spend(bad, label="made up")
        assert words in str(error.value)
        known = ("dp_accounting.ZCDpEvent(rho)", "run(ledger=)", "ledger of its own")
        assert any(way in str(error.value) for way in known)
        assert path.read_bytes() == before


def test_a_spend_whose_end_is_not_written_stays_spent(path, monkeypatch):
    with Ledger.create(path, BUDGET) as ledger:
        append, lines = hash_chain.HashChainFile.append, []

        def crash(file, decide):
            lines.append(append(file, decide) if not lines else 1 / 0)

        monkeypatch.setattr(hash_chain.HashChainFile, "append", crash)
        with pytest.raises(ZeroDivisionError):
            ledger.spend(drawn(0.025, 2.0, 40), label="made up")
    (entry,) = Ledger.read(path).entries
    assert entry.cost > 0 and entry.outside and not entry.finished


def exact(spent, delta, relation="zero_out"):
    """The epsilon of runs and of spends from outside, by dp_accounting."""
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    for each in spent:
        accountant.compose(each.dp_event if isinstance(each, Event) else each)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("seed", mostly_ci(range(3), [0]))
def test_a_random_history_with_spends_from_outside_stays_within_epsilon(seed, path):
    random = np.random.default_rng(seed)
    kinds = [*KINDS, normal(9.0), drawn(0.1, 2.0, 3), drawn(0.025, 1.0, 4), normal(30.0, 4)]
    with Ledger.create(path, BUDGET) as ledger:
        spent = []
        for number in random.integers(len(kinds), size=40):
            with contextlib.suppress(ValueError):
                if isinstance(kinds[number], Event):
                    ledger.reserve(
                        run_id=f"{len(spent)}", event=kinds[number], label="l", config_hash="0"
                    )
                else:
                    ledger.spend(kinds[number], label="made up")
                spent.append(kinds[number])
        assert len(ledger.entries) == len(spent) > 3
    assert 0.7 * BUDGET.epsilon < exact(spent, BUDGET.delta) <= BUDGET.epsilon


# Disjoint parts.

PARTS = ("north", "south", "west")


def reading(part, entries):
    """What was spent of a part: runs that paid by themselves, and read it or all of the data."""
    return [spent for spent, entry in entries if not entry.plan and entry.part in (None, part)]


@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize("unsampled", [False, True])
def test_parts_spend_side_by_side(unsampled, relation, path, capsys):
    budget = dataclasses.replace(BUDGET, relation=relation)
    whole = run(None, 10, 3.0, relation)
    with Ledger.create(path, budget, parts=PARTS, unsampled=unsampled) as ledger:
        assert ledger.of("north").check(whole) == pytest.approx(1, abs=1e-6)
        assert admit(ledger.of("north"), whole, whole) == 1
        assert admit(ledger.of("south"), *[run(None, 10, 0.7, relation)] * 2) == 2
        assert ledger.of("west").remaining_epsilon == pytest.approx(3.0)
        assert ledger.of("west").remaining == 1 > ledger.of("south").remaining > ledger.remaining
        assert ledger.remaining_epsilon < 1e-3 and "the budget is spent" in ledger.advice
        with pytest.raises(ValueError, match=r"part 'north': .* Left: nothing") as error:
            ledger.check(run(None, 10, 1.0, relation))
        assert "'west'" not in str(error.value)
    shown = Ledger.read(path)
    assert [entry.part for entry in shown.entries] == ["north", "south", "south"]
    assert shown.entries[0].cost == pytest.approx(1, abs=1e-6)
    assert main(["ledger", "show", str(path)]) == 0
    said = capsys.readouterr().out
    assert "on 'made up', part 'south'" in said
    assert "remaining of part 'north': nothing;" in said
    assert "remaining of part 'west': 100 %;" in said


def test_a_run_on_all_of_the_data_is_booked_by_what_each_part_holds(path):
    """Each part has books of its own, which its first run fixes, also where others came before."""
    small, large = run(0.1, 10, 0.5), run(None, 40, 0.5)
    with Ledger.create(path, BUDGET, parts=("north", "south")) as ledger:
        admit(ledger.of("north"), small)
        admit(ledger, large)
        alone = [Ledger.create(path.with_name(name), BUDGET) for name in ("n", "s")]
        admit(alone[0], small, large)
        admit(alone[1], large)
        for part, other in zip(("north", "south"), alone, strict=True):
            assert ledger._booked(part) == other._booked()
            assert ledger.of(part).advice == other.advice
            other.close()
        named = float(ledger.advice.split("epsilon ")[1].split(" at")[0])
        assert admit(ledger, run(None, 3, named)) == 1


@pytest.mark.parametrize("seed", mostly_ci(range(4), [0]))
def test_a_random_history_on_parts_stays_within_epsilon_in_each(seed, path):
    random = np.random.default_rng(seed)
    kinds = [*KINDS, normal(9.0), drawn(0.1, 2.0, 3), run(None, 10, 1.2), run(0.025, 40, 1.0)]
    with Ledger.create(path, BUDGET, parts=PARTS) as ledger:
        spent, planned = [], []
        for number, place in random.integers(len(kinds) * 4, size=(60, 2)):
            kind, book = kinds[number % len(kinds)], ledger.of([None, *PARTS][place % 4])
            with contextlib.suppress(ValueError):
                if not isinstance(kind, Event):
                    book.spend(kind, label="made up")
                elif number < 4 and not planned:
                    book.plan(planned := [kind, KINDS[0]], label="made up")
                    kind = compose(planned)
                else:
                    assert admit(book, kind) or book.check(kind)  # raises
                spent.append(kind)
        entries = list(zip(spent, ledger.entries, strict=True))
        assert len({entry.part for _, entry in entries}) == 4
        for part in PARTS:
            assert 0.5 < exact(reading(part, entries), BUDGET.delta) <= BUDGET.epsilon
        together = exact([kind for kind, entry in entries if not entry.plan], BUDGET.delta)
        assert together > 1.2 * BUDGET.epsilon


def test_a_plan_pays_for_runs_on_its_own_part_alone(path):
    one = run(0.025, 40, 1.0)
    with Ledger.create(path, BUDGET, parts=PARTS) as ledger:
        ledger.of("north").plan([one, one], label="made up")
        for part, pays in (("south", None), (None, None), ("north", True), ("north", True)):
            assert bool(ledger.of(part).check(one)) != bool(pays)
            admit(ledger.of(part), one)
            assert bool(ledger.entries[-1].plan) == bool(pays)
        ledger.plan([one], label="made up")
        assert ledger.of("south").check(one) > 0 == ledger.check(one)


@pytest.mark.parametrize(
    ("parts", "relation", "words"),
    [
        (("north", "south"), "replace_one", "may move to another"),
        (("north", "north"), "zero_out", "two or more different names"),
        (("north",), "zero_out", "two or more different names"),
        ("north", "zero_out", "two or more different names"),
        (7, "zero_out", "two or more different names"),
        ([[1], [2]], "zero_out", "parts must be a non-empty string"),
        (("north", ""), "zero_out", "parts must be a non-empty string"),
        (("north", 3), "zero_out", "parts must be a non-empty string"),
    ],
)
def test_parts_that_are_none(parts, relation, words, path):
    with pytest.raises(ValueError, match=words):
        Ledger.create(path, dataclasses.replace(BUDGET, relation=relation), parts=parts)
    assert not path.exists()


@pytest.mark.parametrize(
    ("parts", "words"), [((), "must be None, as without"), (PARTS, "'north' or 'south' or")]
)
def test_a_part_that_was_not_declared(parts, words, path):
    with Ledger.create(path, BUDGET, parts=parts) as ledger:
        with pytest.raises(ValueError, match=words):
            ledger.of("east")
        assert ledger.of(None).check(KINDS[0]) > 0
        for part in parts[:1]:
            with pytest.raises(ValueError, match="part must be 'north', of "):
                ledger.of(part).of("south")


def test_a_resumed_run_cannot_move_to_another_part(path):
    with Ledger.create(path, BUDGET, parts=PARTS) as ledger:
        admit(ledger.of("north"), KINDS[0])
        again = {"run_id": "0", "event": KINDS[0], "label": "made up", "config_hash": "0"}
        ledger.of("north").reserve(**again, resumed=True)
        for part in ("south", None):
            with pytest.raises(ValueError, match="with another part: 'north'"):
                ledger.of(part).reserve(**again, resumed=True)
        assert len(ledger.entries) == 1


@pytest.mark.parametrize(("parts", "admitted"), [(PARTS, 3), (("north",) * 3, 1)])
def test_of_many_threads_one_is_admitted_in_each_part(parts, admitted, path):
    with Ledger.create(path, BUDGET, parts=PARTS) as ledger:
        whole = run(None, 10, 2.9)
        results = in_threads(
            *[
                lambda part=part, i=i: ledger.of(part).reserve(
                    run_id=f"{i}", event=whole, label="made up", config_hash="0"
                )
                for i, part in enumerate(parts)
            ]
        )
        assert sum(result is None for result in results) == admitted
    assert len(Ledger.read(path).entries) == admitted


@pytest.mark.parametrize(
    "shares",
    [
        None,
        {},
        {"north": {}},
        {"north": {"cost": [0.1, 0.1]}},
        {"north": {"limits": [2.0]}},
        "abc",
        3,
    ],
)
def test_crafted_shares_of_parts_are_damage(shares, path):
    with Ledger.create(path, BUDGET, parts=PARTS) as ledger:
        admit(ledger.of("north"), KINDS[0])
    first, line = hash_chain.read(path).lines
    for crafted in (line["shares"], shares):
        lines = hash_chain.line({k: v for k, v in first.items() if k != "previous"}, "0" * 64)
        more = {k: v for k, v in line.items() if k != "previous"} | {"shares": crafted}
        path.write_bytes(lines + hash_chain.line(more, hash_chain.parse(lines).head))
        if crafted != {}:
            assert crafted is shares or len(Ledger.read(path).entries) == 1
    for ask in (lambda one: one.entries, lambda one: one.of("north").check(KINDS[0])):
        with pytest.raises(hash_chain.LedgerError, match="damaged"):
            ask(Ledger.read(path))


# Ways out.


@pytest.mark.parametrize("first", [run(None, 40, 2.0), run(0.1, 10, 1.5), run(0.005, 200, 2.0)])
@pytest.mark.parametrize(("part", "steps"), [(None, 9), (0.025, 40), (0.1, 10)])
def test_the_epsilon_that_a_refusal_names_fits(first, part, steps, path):
    with Ledger.create(path, BUDGET) as ledger:
        admit(ledger, first)
        with pytest.raises(ValueError, match="exceed the budget") as error:
            ledger.check(run(part, steps, 2.9))
        words = str(error.value)
        if "Calibrate" not in words:
            assert "plan such a run before the first one, or give it a ledger of its own" in words
            assert "for steps like those of the first run alone" in words
            return
        named = float(words.split("Calibrate the run to epsilon ")[1].split(" at")[0])
        assert 0.3 < named < 2.5
        assert admit(ledger, run(part, steps, named)) == 1


def batches(relation="zero_out", overflow=0.0):
    (release,) = event(0.1, 10, 4.0).releases
    return Event((dataclasses.replace(release, failure_probability=overflow),), relation)


def checked(one, **options):
    """Asks a new ledger whether it admits an event."""

    def ask(folder):
        with Ledger.create(folder / str(len(list(folder.iterdir()))), BUDGET, **options) as ledger:
            return ledger.check(one)

    return ask


GRADIENT = Release("gradient", 4, 20.0)
WAYS = {
    "batches above their capacity": (
        checked(batches(overflow=1e-3)),
        "raise the sampler's max_batch_size",
        [checked(batches(overflow=1e-12))],
    ),
    "another relation": (
        checked(batches("add_or_remove_one")),
        "with a budget of the ledger's relation",
        [checked(batches())],
    ),
    "a search at a ledger of unsampled runs": (
        checked(Event((SEARCH,), "zero_out"), unsampled=True),
        "without --unsampled",
        [checked(Event((SEARCH,), "zero_out"))],
    ),
    "an order that admits nothing": (
        checked(batches(), renyi_order=2.0),
        "leave it out, for 8.95, which admits most",
        [checked(batches()), checked(batches(), renyi_order=8.95)],
    ),
    "a search beside other releases": (
        lambda _: epsilon(Event((SEARCH, GRADIENT), "zero_out"), 1e-6, "zero_out"),
        "by accountant='rdp', or by a ledger",
        [
            lambda _: epsilon(Event((SEARCH, GRADIENT), "zero_out"), 1e-6, "zero_out", "rdp"),
            checked(Event((SEARCH, GRADIENT), "zero_out")),
            lambda _: epsilon(Event((SEARCH,), "zero_out"), 1e-6, "zero_out"),
        ],
    ),
    "Poisson batches under replace_one": (
        lambda _: epsilon(batches("replace_one"), 1e-6, "replace_one", "rdp"),
        "accountant='pld', relation='zero_out', or batches of fixed size",
        [
            lambda _: epsilon(batches("replace_one"), 1e-6, "replace_one"),
            lambda _: epsilon(batches(), 1e-6, "zero_out", "rdp"),
            lambda _: epsilon(event(0.1, 9, 4.0, "replace_one"), 1e-6, "replace_one", "rdp"),
        ],
    ),
    "no mu": (
        lambda _: batches().gaussian_mu,
        "call epsilon",
        [lambda _: epsilon(batches(), 1e-6, "zero_out")],
    ),
    "a delta below what is charged": (
        lambda _: epsilon(batches(overflow=1e-7), 1e-6, "zero_out"),
        "raise max_batch_size of the sampler, or delta",
        [
            lambda _: epsilon(batches(overflow=1e-9), 1e-6, "zero_out"),
            lambda _: epsilon(batches(overflow=1e-7), 1e-4, "zero_out"),
        ],
    ),
}


@pytest.mark.parametrize("case", WAYS)
def test_every_way_out_that_an_accountant_names_works(case, tmp_path):
    ask, words, ways = WAYS[case]
    with pytest.raises(ValueError) as error:
        ask(tmp_path)
    assert words in str(error.value)
    for way in ways:
        assert 0 < way(tmp_path) < math.inf


@pytest.mark.parametrize(("epsilon", "part"), [("3", None), ("3", 0.025), ("1e-6", None)])
def test_what_a_new_ledger_says_fits_does(epsilon, part, path, capsys):
    """One of a tiny epsilon spoke of the first run, before there was one."""
    create = ["ledger", "create", str(path), "--epsilon", epsilon, "--delta", "1e-6"]
    assert main(create) == 0
    said = capsys.readouterr().out
    named = f"{float(epsilon):g} at delta 1e-06"
    assert f"remaining: 100 %; the first run may have epsilon {named}" in said
    assert "may leave none for runs with another accounting" in said
    with Ledger.open(path) as ledger:
        assert admit(ledger, run(part, 10, float(epsilon))) == 1
    assert main(["ledger", "show", str(path)]) == 0
    said = capsys.readouterr().out
    assert "% of the budget, started" in said and "inf" not in said


# Crafted files.

FIXED = [2.0, None, 0.5, 1e-9, 8.0]


@pytest.mark.parametrize(
    ("change", "single"),
    [
        *[({"cost": cost}, False) for cost in (0.1, None, [0.1], [-1, 0.1], ["1", 0], "ab", {})],
        ({"overflow": "1"}, False),
        *[({"limits": limits}, False) for limits in (None, [1.0] * 6, [-1.0, *FIXED[1:]])],
        *[({"limits": [2.0, steps, 0.0, 0.0, None]}, False) for steps in ([1], {"a": 0}, "ab")],
        ({"limits": [*FIXED[:3], None, 8.0]}, False),
        *[({"cost": cost}, True) for cost in ([0.1, 0.1], "0.1", -0.1, {})],
    ],
)
def test_a_crafted_cost_or_limit_is_damage(change, single, path):
    first = {"kind": "declaration", "format": "dpjax-ledger-3", "id": "0", "epsilon": 3.0}
    first |= {"delta": 1e-6, "relation": "zero_out", "renyi_order": None, "at": "then"}
    first |= {"unsampled": single, "noise_draws": 2**40, "parts": []}
    booked = {"kind": "intent", "run": "old", "parent": None, "label": "l", "config": "c"}
    booked |= {
        "relation": "zero_out",
        "releases": [{"mechanism": "gaussian"}],
        "overflow": 0.0,
        "draws": 1,
        "tails": 2.0,
        "at": "then",
    }
    booked |= {"cost": 0.1} if single else {"cost": [0.1, 0.1], "limits": FIXED}
    for more in ({}, change):
        lines = hash_chain.line(first, "0" * 64)
        path.write_bytes(lines + hash_chain.line(booked | more, hash_chain.parse(lines).head))
        if not more:
            assert 0 < Ledger.read(path).remaining < 1
    for ask in (lambda one: one.remaining, lambda one: one.check(run(None, 40, 1.0))):
        with pytest.raises(hash_chain.LedgerError, match="damaged"):
            ask(Ledger.read(path))


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        *[(0, "parts", value) for value in (3, "ab", [3, 4], {"a": 1})],
        *[(0, field, None) for field in ("epsilon", "delta", "relation")],
        *[(0, "unsampled", 0), (0, "kind", None), (0, "renyi_order", "x"), (0, "epsilon", -1)],
        *[(1, field, ["a"]) for field in ("run", "label", "config", "parent", "at", "part")],
        *[(1, "releases", value) for value in (None, [], [3], {"a": 1}, "")],
        *[(1, "part", "east"), (1, "plan", 3), (1, "draws", "1"), (2, "run", {}), (2, "at", 0)],
        *[(2, "planned", 3), (2, "planned", [3])],
    ],
)
def test_a_crafted_field_is_damage_and_said_in_one_way(number, field, value, path):
    with Ledger.create(path, BUDGET, parts=PARTS) as ledger:
        ledger.spend(dp_accounting.GaussianDpEvent(20.0), label="l")
    lines, previous, content = list(hash_chain.read(path).lines), "0" * 64, b""
    lines[number] = lines[number] | {field: value}
    for one in lines:
        written = hash_chain.line({k: v for k, v in one.items() if k != "previous"}, previous)
        content, previous = content + written, hash_chain.parse(content + written).head
    path.write_bytes(content)
    with pytest.raises(hash_chain.LedgerError, match="is damaged: it holds what no ledger"):
        Ledger.read(path)
