"""The guarantee in words that a person can publish."""

import importlib.metadata

import jax

from dpjax._typing import Relation
from dpjax.accounting import Event, Release, epsilon
from dpjax.accounting import remarks as remarks_on
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import recount_accountant

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
_REPRODUCIBLE = "NOT FOR RELEASE: reproducible, whoever guesses the seed can remove the noise.\n"
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


def remarks(algorithm: Algorithm) -> list[str]:
    """Returns what a person should know of a budget that is allowed and yet hardly sensible.

    Privacy: reads declared numbers only.
    """
    # Of ball noise no epsilon is promised, and ``_meaning`` says what its delta is.
    if only_balls(algorithm.event):
        return []
    epsilon, delta = map(float, algorithm.declared)
    return remarks_on(epsilon, delta, algorithm.queries[0].data_size)


def statement(algorithm: Algorithm, unit: str, reproducible: bool = False) -> str:
    """Returns what the training guarantees, what it rests on, and what it does not cover.

    Args:
      algorithm: configured, on the host.
      unit: what one record stands for.
      reproducible: whether the noise came from a seed.

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
{sampling(event, algorithm.queries[0].data_size)}
Released, {_noise(event)}:
{releases}
Covered: every iterate, noisy answer, multiplier and certificate. {_end(event)}
Not covered: tuning on the same data, preprocessing by data-dependent statistics, exact metrics,
timing and other side channels, and other runs on the same data, which add up.
Accounting: {accountant}; dpjax {importlib.metadata.version("dpjax")}.
{_ORDER * (algorithm.relation == "add_or_remove_one")}\
Arithmetic: clipped sums are added in float32 over 128 rows and in float64 above; the worst case of
that rounding is in the sensitivity. {_drawn(event)}, added in float64,
and rounded with the sum to a grid of 2^-12 sigma or finer before the cast. The proof is otherwise
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
    causes = ["above the capacity of a batch"] * any(r.drawn for r in event.releases)
    causes += ["by rounding in a selection"] * selects(event)
    lines = ["Whole profile: that of the privacy losses of the releases; epsilon(delta) reads it."]
    if only_balls(event):
        lines = [
            "Whole profile: delta is the same at every epsilon; below it no epsilon is enough."
        ]
    if causes:
        lines.append(
            f"Of delta, draws that differ from those accounted for, as {' or '.join(causes)}, "
            f"cost {ceil(event.overflow)} (1 + e^epsilon)."
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


def _drawn(event: Event) -> str:
    if only_balls(event):
        return "Noise is drawn as direction times length"
    return "Noise is drawn with tails exact to 9 sigma"


def only_balls(event: Event) -> bool:
    """Returns whether all noise is uniform in a ball."""
    return all(release.mechanism == "ball" for release in event.releases)


def selects(event: Event) -> bool:
    """Returns whether a release is the place of the best of some scores."""
    return any(release.mechanism == "exponential" for release in event.releases)


def perturbs(event: Event) -> bool:
    """Returns whether a release is a minimum with noise in its objective."""
    return any(release.mechanism == "objective" for release in event.releases)


def _noise(event: Event) -> str:
    gaussian = "Gaussian noise on means of clipped contributions"
    if any(release.name in _MINIMA for release in event.releases):
        gaussian = "Gaussian noise on a minimum or in its objective, rows cut to length 1"
    if any(release.mechanism == "ball" for release in event.releases):
        ball = "noise uniform in a ball on means of clipped contributions"
        gaussian = ball if only_balls(event) else f"{gaussian}; {ball}"
    if any(release.parts for release in event.releases):
        gaussian += ", on norms and eigenvalues of means"
    return gaussian + "; Gumbel noise on scores" * selects(event)


def sampling(event: Event, data_size: int) -> str:
    """Returns the lines about who is read, and what sums are divided by."""
    kinds = {
        "none": f"every pass reads all records; sums are divided by the declared n = {data_size:,}",
        "poisson": (
            "{drawn} is drawn with probability {r.sampling_probability:.6g}, by 64 random bits; at "
            "most {r.capacity:,} are read{more}; sums are divided by the declared expectation"
        ),
        "fixed_size": (
            "a uniformly random {r.capacity:,} of the declared {r.data_size:,} records; sums are "
            "divided by {r.capacity:,}"
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


def describe(release: Release) -> str:
    """Returns one line about one kind of release."""
    if release.mechanism == "exponential":
        return (
            f"{release.name}: {release.count} times, one candidate's place by the exponential "
            f"mechanism, pure epsilon {ceil(release.log_range)}; one record moves a score by "
            f"{release.sensitivity:.4g} (enforced by clipping), Gumbel noise of std "
            f"{release.stddev:.4g}"
        )
    if release.sampling == "single_pass":
        return _pass(release)
    units = " in the gradient's units" if len(release.components) > 1 else ""
    parts = ", ".join(f"{name} std {stddev:.4g}" for name, stddev in release.components)
    what = "sensitivity" if release.sampling == "none" else "one record's bound"
    return (
        f"{release.name.replace('_', ' ')}: {release.count} times, {what} "
        f"{release.sensitivity:.4g} (enforced by clipping){units}, noise multiplier "
        f"{release.noise_multiplier:.5g} ({parts})"
    ) + (_nearer(release) + _idle(release) + _ball(release))


def _ball(release: Release) -> str:
    if release.mechanism != "ball":
        return ""
    return f", uniform in a ball of radius {release.radius:.4g} in {release.dimension:,} dimensions"


_PASSES = {
    "independent draws": ", of which the noise on each sum is made",
    "gradient": "; a difference by what it can move, its noise in proportion",
    "gradient norm": ", the sensitivity in clip norms",
}


def _pass(release: Release) -> str:
    parts = release.parts or (release,)
    lines = []
    for part in parts:
        stds = ", ".join(f"{name} std {stddev:.4g}" for name, stddev in part.components)
        lines.append(
            f"{part.name}: to one record one Gaussian mechanism in all, sensitivity "
            f"{part.sensitivity:.4g} (enforced by clipping), noise multiplier "
            f"{part.noise_multiplier:.5g} ({stds})" + _PASSES.get(part.components[0][0], "")
        )
    return "\n  - ".join(lines) + (
        "; of disjoint records, so the loudest counts" * (len(parts) > 1)
    )


def _nearer(release: Release) -> str:
    if release.name != "difference":
        return ""
    return "; both at most, and near an anchor less, in proportion to the distance"


def _idle(release: Release) -> str:
    if not release.idle:
        return ""
    return (
        f"; one that is not drawn moves it by {release.idle * release.sensitivity:.4g}, through an "
        "exact part of all records: secret state, kept in memory alone and never released"
    )


def ceil(value: float, digits: int = 4) -> str:
    """Returns ``value`` in decimal, rounded up but for one part in 10^7, which float32 cannot tell.

    >>> ceil(0.99991), ceil(1.0)
    ('1', '1')
    """
    text = f"{value:.{digits}g}"
    if float(text) < value * (1 - 1e-7):
        unit = 10.0 ** (float(f"{value:e}".split("e")[1]) - digits + 1)
        text = f"{float(text) + unit:.{digits}g}"
    return text
