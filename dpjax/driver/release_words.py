"""One release in words: what it is, how far a record moves it, and the noise on it."""

from dpjax.accounting import Release

_CLIPPED = "enforced by clipping"
_HOW = {
    "minimizer": "rows are cut to length 1, slopes to the constant of the loss",
    "perturbed_minimizer": (
        "of the gradient: rows are cut to length 1, slopes to the constant of the loss"
    ),
    "accuracy": "a record counts 0 or 1",
    "distance_from_minimum": "twice what the solver may be from the exact minimum",
}


def describe(release: Release) -> str:
    """Returns one line about one kind of release."""
    if release.mechanism == "exponential":
        return (
            f"{release.name}: {release.count} times, one candidate's place by the exponential "
            f"mechanism, pure epsilon {ceil(release.pure_epsilon)}; one record moves a score by "
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
        f"{release.sensitivity:.4g} ({_HOW.get(release.name, _CLIPPED)}){units}, noise multiplier "
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
    parts = release.disjoint_parts or (release,)
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
    shift = getattr(release, "undrawn_shift", 0.0)
    if not shift:
        return ""
    return (
        f"; one that is not drawn moves it by {shift * release.sensitivity:.4g}, through an "
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
