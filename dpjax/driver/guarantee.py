"""The guarantee in words that a person can publish."""

import importlib.metadata

import jax

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
_LOSSES = "privacy loss distributions, on a grid that rounds epsilon up"
_ACCOUNTANTS = {
    "pld": "exact Gaussian composition (closed form, the limit of privacy loss distributions)",
    "rdp": "Renyi accounting (dp-accounting {dp_accounting})",
    "paper": "noise from the paper's formula, epsilon recomputed by exact Gaussian composition",
}
_SAMPLED_ACCOUNTANTS = {
    **_ACCOUNTANTS,
    "pld": _LOSSES,
    "paper": f"noise from the paper's formula, epsilon recomputed by {_LOSSES}",
}
_MINIMA = {"minimizer", "perturbed_minimizer"}
_REPRODUCIBLE = (
    "NOT FOR RELEASE: reproducible, by a seed or a key that may come from one; whoever guesses\n"
    "the seed can remove the noise. For a release pass key=dpjax.random_key().\n"
)
UNSAFE = "NOT FOR RELEASE: unsafe_fast_noise"
_UNSAFE = (
    f"{UNSAFE} adds plain float32 noise, whose low bits give data away;\n"
    "what follows holds for exact Gaussian noise only.\n"
)
_ORDER = (
    "Assumed, as rows shift when one is added: the others contribute the same to the last bit.\n"
    "Rounding is charged for sums of twice the rows declared, and of 262,144 at least.\n"
)


def unsafe(algorithm: Algorithm) -> bool:
    """Returns whether any noise is plain float32."""
    return any(query.unsafe_fast_noise for query in algorithm.queries)


def statement(
    algorithm: Algorithm, unit: str, reproducible: bool = False, classes: Classes | None = None
) -> str:
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
        accountants = {"pld": "a bound on the privacy loss of objective perturbation, closed form"}
    if only_balls(event):
        accountants = {"pld": "the total variation between balls, composed in closed form"}
    accountant = accountants[algorithm.accountant].format(
        dp_accounting=importlib.metadata.version("dp-accounting")
    )
    group = "k times that mu" if event.is_gaussian else "(k epsilon, k e^((k-1) epsilon) delta)"
    if only_balls(event):
        group = "k times that delta"
    warning = _REPRODUCIBLE * reproducible + _UNSAFE * unsafe(algorithm)
    notes = "".join(f"\nNote: {remark}" for remark in remarks(algorithm))
    verb = "would, with safe noise, be" if unsafe(algorithm) else "is"
    return f"""\
{warning}{algorithm.title} {verb} ({ceil(spent)}, {ceil(delta)})-differentially private.
{profile(event)}{_meaning(event, delta, algorithm.queries[0].data_size)}\
{notes}
Neighbours ({algorithm.relation}): {neighbours}.
Unit of privacy: one {unit}. A person with k of them is protected with {group}.
{null_labels(algorithm.objective.labels, classes)}{sampling(event, algorithm.queries[0].data_size)}
Released, {_noise(event)}:
{releases}
Covered: every iterate, noisy answer, multiplier and certificate. {_end(event)}
Not covered: tuning on the same data, preprocessing by data-dependent statistics, exact metrics,
timing and other side channels, and other runs on the same data, which add up.
Accounting: {accountant}; dpjax {importlib.metadata.version("dpjax")}.
{_ORDER * (algorithm.relation == "add_or_remove_one")}\
Arithmetic: {_arithmetic(event)} The proof is otherwise
for real numbers, a secret key, and a threefry generator (jax {jax.__version__}) like chance."""


def _end(event: Event) -> str:
    if any(release.sampling == "single_pass" for release in event.releases):
        return (
            "The run ends where the\nrecords do, or before by released values, which does not "
            "lower the epsilon stated."
        )
    return "The horizon is fixed: stopping\nearly is allowed and does not lower the epsilon stated."


def profile(event: Event) -> str:
    """Returns the lines about the other deltas at which the guarantee can be read."""
    if event.is_gaussian:
        return (
            f"Whole profile: it is mu-GDP with mu = {ceil(event.gaussian_mu)}; this bounds epsilon "
            "at every delta."
        )
    if perturbs(event):
        return (
            "Whole profile: that of an objective perturbation, by a bound on its privacy loss; "
            "epsilon(delta) reads it."
        )
    causes = ["above the capacity of a batch"] * any(r.is_subsampled for r in event.releases)
    causes += ["by rounding in a selection"] * selects(event)
    lines = ["Whole profile: that of the privacy losses of the releases; epsilon(delta) reads it."]
    if only_balls(event):
        lines = [
            "Whole profile: delta is the same at every epsilon; below it no epsilon is enough."
        ]
    if causes:
        lines.append(
            f"Of delta, draws that differ from those accounted for, as {' or '.join(causes)}, "
            f"cost {ceil(event.failure_probability)} (1 + e^epsilon)."
        )
    return "\n".join(lines)


def _meaning(event: Event, delta: float, n: int) -> str:
    """What ball noise leaves open: a delta that is met by publishing records."""
    if not any(release.mechanism == "ball" for release in event.releases):
        return ""
    shown = delta * n
    met = (
        f"publishing {ceil(shown)} random records in full"
        if shown > 1
        else f"publishing one random record in full with probability {ceil(shown)}"
    )
    return (
        "\nWhat that means: with probability up to delta an answer shows for certain that a record "
        f"is\nthere. The same delta, of {n:,} declared records, is met by {met}."
    )


def _arithmetic(event: Event) -> str:
    """How sums and noise are rounded, and what of it is charged."""
    sums = (
        "clipped sums are added in float32 over 128 rows and in float64 above; the worst case of\n"
        "that rounding is in the sensitivity."
    )
    if _minimises(event):
        sums = (
            "sums of slopes are added in float64; their rounding is in the bound on how far the\n"
            "minimum found is from the exact one."
        )
    if only_balls(event):
        drawn = "Noise is drawn as direction times length"
    elif perturbs(event):
        drawn = (
            "The tilt, noise in the objective, is drawn in float64 with tails exact\n"
            "to 9 sigma and is not rounded to a grid: its proof is for real numbers. Noise on the "
            "minimum is\ndrawn alike"
        )
    else:
        drawn = "Noise is drawn with tails exact to 9 sigma"
    return (
        f"{sums} {drawn}, added in float64,\n"
        "and rounded with the sum to a grid of 2^-12 sigma or finer before the cast."
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
        gaussian = "Gaussian noise on a minimum or in its objective, rows cut to length 1"
    if any(release.mechanism == "ball" for release in event.releases):
        ball = "noise uniform in a ball on means of clipped contributions"
        gaussian = ball if only_balls(event) else f"{gaussian}; {ball}"
    if any(getattr(release, "disjoint_parts", ()) for release in event.releases):
        gaussian += ", on norms and eigenvalues of means"
    return gaussian + "; Gumbel noise on scores" * selects(event)


def sampling(event: Event, data_size: int) -> str:
    """Returns the lines about who is read, and what sums are divided by."""
    kinds = {
        "none": f"every pass reads all records; sums are divided by the declared n = {data_size:,}",
        "poisson": (
            "{drawn} is drawn with probability {r.sampling_probability:.6g}, by 64 random bits; at "
            "most {r.max_batch_size:,} are read{more}; sums are divided by the declared expectation"
        ),
        "fixed_size": (
            "a uniformly random {r.max_batch_size:,} of the declared {r.data_size:,} records; "
            "sums are divided by {r.max_batch_size:,}"
        ),
    }
    if any(release.sampling == "single_pass" for release in event.releases):
        return (
            f"Sampling: one pass, each of {data_size:,} records (declared) is read by one question "
            "at most, in a\nrandom order that no record decides; a sum is divided by the number of "
            "records it asks, which is chosen\nfrom released values alone."
        )
    if all(release.sampling == "none" for release in event.releases):
        return f"Sampling: none, {kinds['none']}."
    words = {"drawn": f"each of {data_size:,} records (declared)", "more": ""}
    if event.relation == "add_or_remove_one":
        words = {
            "drawn": "each record",
            "more": f" for every {data_size:,} present (declared; there may be more)",
        }
    lines = {
        f"  - {r.name.replace('_', ' ')}: {r.sampling.replace('_', ' ')}, "
        f"{kinds[r.sampling].format(r=r, **words)}; one draw per release"
        for r in event.releases
    }
    return "\n".join(["Sampling, per kind of release:", *sorted(lines)])
