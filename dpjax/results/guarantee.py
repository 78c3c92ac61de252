"""The privacy guarantee as text to publish."""

import importlib.metadata
import math
import textwrap
from collections.abc import Iterable, Sequence

import jax

from dpjax._typing import Relation
from dpjax.accounting import Event, epsilon
from dpjax.accounting.noise_draws import charge
from dpjax.accounting.wording import LOSSES, LawWords, ceil
from dpjax.algorithms import Algorithm
from dpjax.datasets.labels import Classes, null_labels
from dpjax.display import cards
from dpjax.objectives.units import UnitLoss
from dpjax.oracles import Query
from dpjax.results.remarks import remarks

_NEIGHBOURS: dict[Relation, str] = {
    "zero_out": (
        "one {unit} is replaced by a null record, which adds 0 to every sum; n and all divisors "
        "are unchanged (n is public)"
    ),
    "add_or_remove_one": (
        "one {unit} is added or removed (n is private; sums are divided by declared numbers)"
    ),
    "replace_one": "one {unit} is replaced by any other (n is public)",
}
_ACCOUNTANTS = {
    "pld": "exact composition of Gaussian mechanisms, in closed form",
    "rdp": "Renyi accounting (dp-accounting {dp_accounting})",
}
_SAMPLED_ACCOUNTANTS = {
    **_ACCOUNTANTS,
    "pld": LOSSES,
}
_REPRODUCIBLE = (
    "NOT FOR RELEASE: reproducible noise. Its key comes, or may come, from a seed, and anyone who\n"
    "guesses the seed can subtract the noise. For a release, pass key=dpjax.random_key().\n"
)
_CLAIM = "-differentially private."
_ORDER = (
    "Assumptions: a record's contribution is {same} in every row, as adding a record "
    "shifts later ones; no sum has more rows than rounding error is charged for, {rows}{most}."
)
_COMPOSED = LawWords(
    accounting=LOSSES,
    profile=(
        "all releases composed, accounted as below; in dpjax, algorithm.epsilon(delta) gives "
        "epsilon at any other delta."
    ),
)
_PART = (
    "Part: the training read the part {part!r} of the data of a ledger. That no {unit} is in two "
    "of its parts, so that runs on other parts add nothing, is the user's declaration."
)
_COVERED = "Covered: {covered}, and all that is computed from these alone."
_NOT_COVERED = (
    "Not covered: {tuning}, preprocessing with statistics of the data, fixed parts of a model that "
    "were computed from them, metrics computed without noise, timing and other side channels, and "
    "other runs on the same data, which must be composed with this one."
)
_PROOF = (
    "Epsilon and delta account for the rounding of sums and scores{drawn}, and for what a line "
    "named 'Included in delta' lists. Otherwise the proof assumes that noise of another kind, or "
    "added up over answers, has its exact law (docs/privacy.md); that the key is random, secret "
    f"and used for no other run; and that Threefry's output (jax {jax.__version__}) cannot be told "
    "from random bits."
)
_DRAWN = (
    ", for drawing {draws:,} numbers of Gaussian noise, which adds {charge} to epsilon (each cell "
    "of their grid has its probability to a factor of e^(2^-39), up to 9.9 standard deviations)"
)


class Guarantee(str):
    """A guarantee in words: a ``str`` that prints with its line breaks, and as a box in a notebook.

    Privacy: holds public numbers only.

    >>> Guarantee("printed as it is")
    printed as it is
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        warning, text = split_warning(self)
        return cards.text_to_html("Guarantee", text, warning)


def split_warning(text: str) -> tuple[str, str]:
    r"""Returns why a guarantee may not be relied on, or nothing, and what it claims.

    >>> split_warning("NOT FOR RELEASE: seeded.\nDP-GD is (1, 0)-differentially private.")
    ('NOT FOR RELEASE: seeded.', 'DP-GD is (1, 0)-differentially private.')
    """
    lines = text.splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if _CLAIM in line), 0)
    return "".join(lines[:at]).strip(), "".join(lines[at:])


def _shifts(queries: Sequence[Query]) -> str:
    """What is assumed where a record that is added shifts others."""
    exact = all(query.in_any_row for query in queries)
    rows = {f"{query.charged_rows:,}": query.name.replace("_", " ") for query in queries}
    named = (f"{count} for the {name}" * (len(rows) > 1) or count for count, name in rows.items())
    # Of more records a batch has more slots, and may round otherwise without the one that is added.
    drawn = not exact and any(not query.sampler.reads_all for query in queries)
    return _ORDER.format(
        same="bitwise the same" if exact else "the same to 2^-22 of the bound, which is charged,",
        rows=", ".join(named),
        most=f"; there are at most the declared {queries[0].data_size:,} records" * drawn,
    )


def statement(
    algorithm: Algorithm,
    unit: str,
    reproducible: bool = False,
    classes: Classes | None = None,
    label_bounds: tuple[float, float] | None = None,
    part: str | None = None,
) -> Guarantee:
    """Returns what the training guarantees, what it rests on, and what it does not cover.

    ``unit`` is what one record stands for, ``reproducible`` whether the noise came from a seed, or
    from a key that may come from one; ``part`` is the part of a ledger's data that is read.

    Privacy: holds public numbers only.
    """
    event = algorithm.event
    delta = float(algorithm.declared.delta)
    accountant = algorithm.accountant
    spent = epsilon(event, delta, algorithm.relation, accountant)
    drawn = ""
    if event.noise_draws:
        exact = epsilon(event.with_exact_noise, delta, algorithm.relation, accountant)
        least = charge(event.noise_draws).epsilon
        drawn = _DRAWN.format(draws=event.noise_draws, charge=ceil(max(spent - exact, least)))
    described = (line for release in event.releases for line in release.describe().splitlines())
    releases = "\n".join(map(_item, described))
    neighbours = _NEIGHBOURS[algorithm.relation].format(unit=unit)
    accountants = _ACCOUNTANTS if event.is_gaussian else _SAMPLED_ACCOUNTANTS
    if (law := _law(event)) is not None:
        accountants = {"pld": law.accounting}
    accountant = accountants[algorithm.accountant].format(
        dp_accounting=importlib.metadata.version("dp-accounting")
    )
    words = law or _COMPOSED
    group = "mu is k times as large" if event.is_gaussian else words.group
    warning = _REPRODUCIBLE * reproducible
    notes = "".join("\n" + _filled(f"Note: {remark}") for remark in remarks(algorithm))
    if isinstance(algorithm.objective.loss, UnitLoss):
        whole, group = f"{unit} with all its records", f"For a group of k of them, {group}."
    else:
        whole, group = unit, f"For a group of k records, such as all those of one person, {group}."
    accepted = null_labels(algorithm.objective.labels, classes, label_bounds)
    accepted = f"{_filled(accepted)}\n" if accepted else ""
    if part is not None:
        accepted += f"{_filled(_PART.format(part=part, unit=unit))}\n"
    order = ""
    if algorithm.relation == "add_or_remove_one":
        order = f"{_filled(_shifts(algorithm.queries))}\n"
    title = algorithm.title[:1].upper() + algorithm.title[1:]
    return Guarantee(f"""\
{warning}{title} is ({ceil(spent)}, {ceil(delta)})-differentially private.
{profile(event)}{_meaning(event, delta, algorithm.queries[0].data_size)}\
{notes}
{_filled(f"Neighbours ({algorithm.relation}):", f"{neighbours}.")}
{_filled(f"Unit of privacy: one {whole}, called a record here.", group)}
{accepted}{sampling(event, algorithm.queries[0].data_size)}
{_filled("Released:", f"{_noise(event)}.")}
{releases}
{_filled(_COVERED.format(covered=words.covered), _end(event))}
{_filled(_NOT_COVERED.format(tuning=words.tuning))}
{_filled("Accounting:", accountant + ";", f"dpjax {importlib.metadata.version('dpjax')}.")}
{order}{_filled("Arithmetic:", _arithmetic(event), _PROOF.format(drawn=drawn))}""")


def _filled(*sentences: str) -> str:
    return textwrap.fill(" ".join(sentences), 100, break_on_hyphens=False)


def _item(words: str) -> str:
    return textwrap.fill(
        words, 100, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
    )


def _end(event: Event) -> str:
    if any(release.ends_early for release in event.releases):
        return (
            "The run ends when fewer records are left than the next batch needs, when a rule on "
            "released values stops it, or after a fixed number of steps; an earlier end does not "
            "lower the stated epsilon."
        )
    return (
        "The number of steps is fixed beforehand; a decision on released values alone may stop the "
        "run earlier, which does not lower the stated epsilon."
    )


def profile(event: Event) -> str:
    """Returns the lines about the other deltas at which the guarantee can be read."""
    if event.is_gaussian:
        mu = f"mu = {ceil(event.gaussian_mu)}, from which epsilon follows for every delta"
        mu += " (what drawing the noise adds, see Arithmetic)." if event.noise_draws else "."
        return _filled("Privacy profile: Gaussian differential privacy (mu-GDP) with", mu)
    curve = _filled("Privacy profile:", (_law(event) or _COMPOSED).profile)
    charges = _charges(event)
    return f"{curve}\n{_filled('Included in delta:', charges)}" if charges else curve


def _charges(event: Event) -> str:
    """What of delta is charged for computers that draw and select other than in theory."""
    growing = math.fsum(release.growing_charge for release in event.releases)
    constant = math.fsum(release.constant_charge for release in event.releases)
    parts = []
    if growing:
        causes = _distinct(r.draw_error for r in event.releases if r.growing_charge)
        # Where no loss is composed, delta is charged what it is at epsilon 0, whatever the epsilon.
        lossless = all(release.is_lossless(event.relation) for release in event.releases)
        charged = ceil(2 * growing) if lossless else f"{ceil(growing)} (1 + e^epsilon)"
        parts.append(f"{charged} for differences from exact sampling ({'; '.join(causes)})")
    if constant:
        causes = _distinct(r.draw_error for r in event.releases if r.constant_charge)
        parts.append(f"{ceil(constant)} for {'; '.join(causes)}")
    return " and ".join(parts) + "." * bool(parts)


def _law(event: Event) -> LawWords | None:
    laws = (release.law_words(event.releases) for release in event.releases)
    return next((law for law in laws if law is not None), None)


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, words)))


def _meaning(event: Event, delta: float, n: int) -> str:
    meanings = _distinct(release.meaning(delta, n) for release in event.releases)
    return "".join(f"\n{_filled(meaning)}" for meaning in meanings)


def _arithmetic(event: Event) -> str:
    """How sums and noise are rounded, and what of it is charged."""
    sums = " ".join(_distinct(r.words.sums_under(event.relation) for r in event.releases))
    return f"{sums} {(_law(event) or _COMPOSED).drawn}"


def _noise(event: Event) -> str:
    parts = (part for release in event.releases for part in release.parts())
    return "; ".join(_distinct(part.words.noise for part in parts))


def sampling(event: Event, data_size: int) -> str:
    """Returns the lines about which records are used, and what sums are divided by."""
    lines = {
        release.name.replace("_", " "): release.sampling_words(data_size, event.relation)
        for release in event.releases
    }
    if len(set(lines.values())) == 1:
        return _filled(f"Sampling: {next(iter(lines.values()))}.")
    return "\n".join(
        [
            "Sampling, by release:",
            *sorted(_item(f"{name}: {line}.") for name, line in lines.items()),
        ]
    )
