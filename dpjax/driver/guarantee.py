"""The privacy guarantee as text to publish."""

import importlib.metadata
import textwrap

import jax

from dpjax import _cards
from dpjax._typing import Relation
from dpjax.accounting import Event, epsilon
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import recount_accountant
from dpjax.datasets.labels import Classes, null_labels
from dpjax.driver.release_words import ceil, describe
from dpjax.driver.remarks import remarks

_NEIGHBOURS: dict[Relation, str] = {
    "zero_out": "one {unit} is replaced by a null record that contributes nothing (n is public)",
    "add_or_remove_one": "one {unit} is added or removed (n is private; the divisor is declared)",
    "replace_one": "one {unit} is replaced by any other (n is public)",
}
_BALLS = "total variation distance between neighbouring noise balls, composed in closed form"
_LOSSES = "privacy loss distributions, discretised so that epsilon is rounded up"
_ACCOUNTANTS = {
    "pld": (
        "exact Gaussian composition in closed form (the limit of accounting by privacy loss "
        "distributions)"
    ),
    "rdp": "Renyi accounting (dp-accounting {dp_accounting})",
    "paper": "noise from the paper's formula; epsilon recomputed by exact Gaussian composition",
}
_SAMPLED_ACCOUNTANTS = {
    **_ACCOUNTANTS,
    "pld": _LOSSES,
    "paper": f"noise from the paper's formula; epsilon recomputed by {_LOSSES}",
}
_MINIMA = {"minimizer", "perturbed_minimizer"}
_REPRODUCIBLE = (
    "NOT FOR RELEASE: reproducible noise. Its key comes, or may come, from a seed, and anyone who\n"
    "guesses the seed can subtract the noise. For a release, pass key=dpjax.random_key().\n"
)
_CLAIM = "-differentially private."
UNSAFE = "NOT FOR RELEASE: unsafe_fast_noise"
_UNSAFE = (
    f"{UNSAFE} adds plain float32 noise, whose low-order bits leak the data.\n"
    "The statements below would hold only for exact noise.\n"
)
_ORDER = (
    "Assumption: adding a record shifts later rows; their contributions are bitwise unchanged by "
    "that. Rounding error is charged for sums of up to N rows, where N is the larger of 262,144 "
    "and twice the declared number."
)
_COVERED = (
    "Covered: every iterate and noisy answer, and all that is computed from them alone, such as "
    "trust-region multipliers and certificates."
)
_NOT_COVERED = (
    "Not covered: hyperparameter tuning on the same data, preprocessing with statistics of the "
    "data, exact metrics, timing and other side channels, and other runs on the same data, whose "
    "privacy losses add up."
)
_PROOF = (
    "Apart from this, the proof assumes real arithmetic, a secret key, and Threefry output "
    f"(jax {jax.__version__}) indistinguishable from random."
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
        return _cards.text_to_html("Guarantee", text, warning)


def split_warning(text: str) -> tuple[str, str]:
    r"""Returns why a guarantee may not be relied on, or nothing, and what it claims.

    >>> split_warning("NOT FOR RELEASE: unsafe.\nDP-GD is (1, 0)-differentially private.")
    ('NOT FOR RELEASE: unsafe.', 'DP-GD is (1, 0)-differentially private.')
    """
    lines = text.splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if _CLAIM in line), 0)
    return "".join(lines[:at]).strip(), "".join(lines[at:])


def unsafe(algorithm: Algorithm) -> bool:
    """Returns whether any noise is plain float32."""
    return any(query.unsafe_fast_noise for query in algorithm.queries)


def statement(
    algorithm: Algorithm, unit: str, reproducible: bool = False, classes: Classes | None = None
) -> Guarantee:
    """Returns what the training guarantees, what it rests on, and what it does not cover.

    Args:
      algorithm: configured, on the host.
      unit: what one record stands for.
      reproducible: whether the noise came from a seed, or from a key that may come from one.
      classes: the labels that were declared for the data, or None.

    Privacy: holds public numbers only.
    """
    event = algorithm.event
    delta = float(algorithm.declared.delta)
    spent = epsilon(event, delta, algorithm.relation, recount_accountant(algorithm.accountant))
    releases = "\n".join(f"  - {describe(release)}" for release in event.releases)
    neighbours = _NEIGHBOURS[algorithm.relation].format(unit=unit)
    accountants = _ACCOUNTANTS if event.is_gaussian else _SAMPLED_ACCOUNTANTS
    if perturbs(event):
        accountants = {"pld": "a closed-form bound on the privacy loss of objective perturbation"}
    if only_balls(event):
        accountants = {"pld": _BALLS}
    accountant = accountants[algorithm.accountant].format(
        dp_accounting=importlib.metadata.version("dp-accounting")
    )
    group = "the guarantee is (k epsilon, k e^((k-1) epsilon) delta)"
    if event.is_gaussian:
        group = "mu is k times as large"
    if only_balls(event):
        group = "delta is k times as large"
    warning = _REPRODUCIBLE * reproducible + _UNSAFE * unsafe(algorithm)
    notes = "".join(f"\nNote: {remark}" for remark in remarks(algorithm))
    order = f"{_filled(_ORDER)}\n" * (algorithm.relation == "add_or_remove_one")
    title = algorithm.title[:1].upper() + algorithm.title[1:]
    verb = "would, with safe noise, be" if unsafe(algorithm) else "is"
    return Guarantee(f"""\
{warning}{title} {verb} ({ceil(spent)}, {ceil(delta)})-differentially private.
{profile(event)}{_meaning(event, delta, algorithm.queries[0].data_size)}\
{notes}
Neighbours ({algorithm.relation}): {neighbours}.
Unit of privacy: one {unit}. For k of them together (for example, all that belong to one
person), {group}.
{null_labels(algorithm.objective.labels, classes)}{sampling(event, algorithm.queries[0].data_size)}
Released, with {_noise(event)}:
{releases}
{_filled(_COVERED, _end(event))}
{_filled(_NOT_COVERED)}
{_filled("Accounting:", accountant + ";", f"dpjax {importlib.metadata.version('dpjax')}.")}
{order}{_filled("Arithmetic:", _arithmetic(event), _PROOF)}""")


def _filled(*sentences: str) -> str:
    return textwrap.fill(" ".join(sentences), 100, break_on_hyphens=False)


def _end(event: Event) -> str:
    if any(release.sampling == "single_pass" for release in event.releases):
        return (
            "The run ends when the records are used up or released values stop it, whichever is "
            "first; an earlier end does not lower the stated epsilon."
        )
    return (
        "The number of steps is fixed beforehand; stopping early is allowed and does not lower the "
        "stated epsilon."
    )


def profile(event: Event) -> str:
    """Returns the lines about the other deltas at which the guarantee can be read."""
    if event.is_gaussian:
        return (
            f"Privacy profile: mu-GDP with mu = {ceil(event.gaussian_mu)}, which bounds epsilon at "
            "every delta."
        )
    if perturbs(event):
        return _filled(
            "Privacy profile: from a bound on the privacy loss of objective perturbation; "
            "epsilon(delta) evaluates it at any delta."
        )
    curve = (
        "Privacy profile: composed from the privacy losses of the releases; epsilon(delta) "
        "evaluates it at any delta."
    )
    if only_balls(event):
        curve = (
            "Privacy profile: delta is the same at every epsilon, and no epsilon is large enough "
            "for a smaller delta."
        )
    causes = _deviations(event)
    if not causes:
        return _filled(curve)
    charge = (
        f"Included in delta: {ceil(event.failure_probability)} (1 + e^epsilon) for the difference "
        f"between actual and ideal draws ({'; '.join(causes)})."
    )
    return f"{_filled(curve)}\n{_filled(charge)}"


def _deviations(event: Event) -> list[str]:
    """Returns how draws may differ from the ideal ones that the accounting assumes."""
    kinds = {release.sampling for release in event.releases}
    causes = {
        "Poisson batches above their maximum size, 2^-64 discretisation": ("poisson" in kinds),
        "subsets drawn from 64-bit integers in a fixed number of trials": ("fixed_size" in kinds),
        "selection on rounded scores": selects(event),
    }
    return [cause for cause, present in causes.items() if present]


def _meaning(event: Event, delta: float, n: int) -> str:
    """What ball noise leaves open: a delta that is met by publishing records."""
    if not any(release.mechanism == "ball" for release in event.releases):
        return ""
    shown = delta * n
    met = (
        f"{ceil(shown)} random records in full"
        if shown > 1
        else f"one random record in full with probability {ceil(shown)}"
    )
    meaning = _filled(
        "Meaning: with probability up to delta, an answer proves that a given record is present.",
        f"For comparison: with {n:,} declared records, publishing {met} meets the same delta.",
    )
    return f"\n{meaning}"


def _arithmetic(event: Event) -> str:
    """How sums and noise are rounded, and what of it is charged."""
    sums = (
        "clipped contributions are added in float32 over at most 128 rows and in float64 across "
        "such blocks; the worst-case rounding error is included in the sensitivity."
    )
    if _minimises(event):
        sums = (
            "sums of the loss's derivatives are computed in float64; their rounding error is "
            "included in the bound on the distance from the computed to the exact minimizer."
        )
    drawn = "Noise is drawn with tails exact up to 9 sigma,"
    if only_balls(event):
        drawn = "Noise is drawn as direction times length,"
    elif perturbs(event):
        drawn = (
            "The tilt is drawn in float64 with tails exact up to 9 sigma and is not rounded to a "
            "grid: its proof assumes real arithmetic. Noise on the minimizer is drawn in the same "
            "way,"
        )
    return (
        f"{sums} {drawn} added in float64, and rounded together with the sum to a grid of spacing "
        "2^-12 sigma or finer before the cast to the output type."
    )


def only_balls(event: Event) -> bool:
    """Returns whether all noise is uniform in a ball."""
    return all(release.mechanism == "ball" for release in event.releases)


def selects(event: Event) -> bool:
    """Returns whether a release is the place of the best of some scores."""
    return any(release.mechanism == "exponential" for release in event.releases)


def perturbs(event: Event) -> bool:
    """Returns whether a release is a minimum with noise in its objective."""
    return any(release.mechanism == "objective" for release in event.releases)


def _minimises(event: Event) -> bool:
    return any(release.name in _MINIMA for release in event.releases)


def _noise(event: Event) -> str:
    gaussian = "Gaussian noise on means of clipped contributions"
    if _minimises(event):
        where = "in the objective and on its minimizer" if perturbs(event) else "on the minimizer"
        gaussian = f"Gaussian noise {where} (rows are scaled to norm at most 1)"
    if any(release.mechanism == "ball" for release in event.releases):
        ball = "noise uniform in a ball, on means of clipped contributions"
        gaussian = ball if only_balls(event) else f"{gaussian}; {ball}"
    if any(getattr(release, "disjoint_parts", ()) for release in event.releases):
        gaussian += ", and on norms and eigenvalues of means"
    return gaussian + "; Gumbel noise on scores, which are not released" * selects(event)


def sampling(event: Event, data_size: int) -> str:
    """Returns the lines about which records are used, and what sums are divided by."""
    kinds = {
        "none": (
            f"each release uses all records. Sums are divided by the declared n = {data_size:,}"
        ),
        "poisson": (
            "Poisson sampling, anew for each release; each {record} is included "
            "independently with probability {r.sampling_probability:.6g}, using 64 random "
            "bits; a batch holds at most {r.max_batch_size:,}{more}. Sums are divided by the "
            "declared expected batch size"
        ),
        "fixed_size": (
            "sampling without replacement, anew for each release; a uniformly random "
            "{r.max_batch_size:,} of the declared {r.data_size:,} records. Sums are divided by "
            "{r.max_batch_size:,}"
        ),
    }
    if any(release.sampling == "single_pass" for release in event.releases):
        return (
            f"Sampling: one pass over the {data_size:,} declared records, in a random order that "
            "does not depend on the\ndata. Each record is used by at most one query. Each sum is "
            "divided by its batch size, which is chosen\nfrom released values alone."
        )
    if all(release.sampling == "none" for release in event.releases):
        return f"Sampling: none; {kinds['none']}."
    words = {"record": f"of the {data_size:,} declared records", "more": " records"}
    if event.relation == "add_or_remove_one":
        words = {
            "record": "record",
            "more": f" records for every {data_size:,} present (the declared number; more may be "
            "present)",
        }
    lines = {
        f"  - {r.name.replace('_', ' ')}: {'no sampling; ' * (r.sampling == 'none')}"
        f"{kinds[r.sampling].format(r=r, **words)}."
        for r in event.releases
    }
    return "\n".join(["Sampling, by release:", *sorted(lines)])
