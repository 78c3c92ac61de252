"""Describes one release in words: its name, sensitivity and noise."""

from dpjax.accounting import Release

_CLIPPED = "enforced by clipping"
_HOW = {
    "minimizer": (
        "rows are scaled to norm at most 1; the loss's derivative is truncated at its Lipschitz "
        "constant"
    ),
    "perturbed_minimizer": (
        "of the objective's gradient: rows are scaled to norm at most 1; the loss's derivative is "
        "truncated at its Lipschitz constant"
    ),
    "accuracy": "each record counts as 0 or 1",
    "distance_from_minimum": "twice the bound on the solver's distance to the exact minimizer",
}


def describe(release: Release) -> str:
    """Returns one line about one kind of release."""
    if release.mechanism == "exponential":
        return (
            f"{release.name}: {_times(release.count)}, the index of one candidate, chosen by the "
            f"exponential mechanism with pure epsilon {ceil(release.pure_epsilon)}; one record "
            f"changes a score by at most {release.sensitivity:.4g} (enforced by clipping); the "
            f"Gumbel noise has std {release.stddev:.4g}"
        )
    if release.sampling == "single_pass":
        return _pass(release)
    units = " for the joint vector in the gradient's units" if len(release.components) > 1 else ""
    parts = ", ".join(f"{name} std {stddev:.4g}" for name, stddev in release.components)
    what = "sensitivity" if release.sampling == "none" else "per-record bound"
    return (
        f"{release.name.replace('_', ' ')}: {_times(release.count)}, {what} "
        f"{release.sensitivity:.4g} ({_HOW.get(release.name, _CLIPPED)}){units}, noise multiplier "
        f"{release.noise_multiplier:.5g} ({parts})"
    ) + (_nearer(release) + _tilt(release) + _idle(release) + _ball(release))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ball(release: Release) -> str:
    if release.mechanism != "ball":
        return ""
    return (
        f"; the noise is uniform in a ball of radius {release.radius:.4g} in "
        f"{release.dimension:,} dimensions"
    )


_PASSES = {
    "independent draws": "; the noise on each sum is a linear combination of these draws",
    "gradient": (
        "; a gradient difference has a sensitivity of its own, and noise in proportion to it"
    ),
    "gradient norm": "; the sensitivity is in units of the clip norms",
}


def _pass(release: Release) -> str:
    parts = release.disjoint_parts or (release,)
    lines = []
    for part in parts:
        stds = ", ".join(f"{name} std {stddev:.4g}" for name, stddev in part.components)
        lines.append(
            f"{part.name}: for any one record, all answers together are one Gaussian mechanism "
            f"with sensitivity {part.sensitivity:.4g} (enforced by clipping) and noise multiplier "
            f"{part.noise_multiplier:.5g} ({stds})" + _PASSES.get(part.components[0][0], "")
        )
    return "\n  - ".join(lines) + (
        f"; {' and '.join(part.name for part in parts)} use disjoint records, so the largest loss "
        "applies (parallel composition)"
    ) * (len(parts) > 1)


def _nearer(release: Release) -> str:
    if release.name != "difference":
        return ""
    return (
        "; the bound and the std are maxima: near the anchor both shrink in proportion to the "
        "distance from it"
    )


def _tilt(release: Release) -> str:
    if release.mechanism != "objective":
        return ""
    return "; the tilt is a random linear term in the objective"


def _idle(release: Release) -> str:
    shift = getattr(release, "undrawn_shift", 0.0)
    if not shift:
        return ""
    return (
        f"; a record that is not sampled still changes a release by up to "
        f"{shift * release.sensitivity:.4g}, through an exact sum over all records, which "
        "is secret state: kept in memory only and never released"
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
