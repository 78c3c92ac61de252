"""``Release``: one kind of release, sampled or not."""

import dataclasses
import math
from typing import Any

from dpjax import _validate
from dpjax.accounting.ball import ball_delta
from dpjax.accounting.gumbel import GUMBEL

SAMPLINGS = ("none", "poisson", "fixed_size", "single_pass")
MECHANISMS = ("gaussian", "exponential", "objective", "ball")
_LARGEST = 1e100


@dataclasses.dataclass(frozen=True)
class Release:
    """One kind of release, made ``count`` times, each on its own draw of the records.

    A sampled release is made by the sampler that draws (``dpjax.sampling``), never by hand: its
    numbers are then those of the draw. All that one draw is asked is one release, of one joint
    vector: there is no way to write that two releases share a draw.

    Args:
      name: what is released, for people.
      count: number of releases, at least 1.
      noise_multiplier: without sampling, standard deviation over the l2 sensitivity for the
        relation of the event; sampled, standard deviation over C, the bound on *one* record's part.
      sensitivity: what the multiplier is relative to, in the units of the released mean.
      components: standard deviation of each part of the release, in that part's own units.
      sampling: ``"none"`` (every record is read), ``"poisson"`` (each record is drawn by its own
        coin), ``"fixed_size"`` (a uniformly random subset of ``capacity`` records) or
        ``"single_pass"`` (each record is read by one question at most, in an order that no record
        decides: however many there are, to one record they are one Gaussian mechanism).
      sampling_probability: of a record being drawn, exact; None unless drawn.
      capacity: the most records a batch holds; None unless drawn.
      data_size: the declared n that is drawn from; None without sampling.
      overflow: bound on the total variation between one draw as made and as accounted, such as the
        probability that more than ``capacity`` records were drawn; of a selection, between its
        noise in floating point and the real one.
      unsafe_fast_noise: whether the noise is plain float32, whose guarantee is void.
      mechanism: ``"gaussian"`` (a vector plus noise) or ``"exponential"`` (of scores plus Gumbel
        noise only the place of the largest is released; the multiplier is then the standard
        deviation of that noise over the sensitivity of every score), or ``"objective"`` (a minimum
        with noise in its objective's gradient, see ``accounting.perturbed``), or ``"ball"`` (a
        vector plus noise uniform in a ball; ``sensitivity`` is then how far one record moves it,
        sampled or not, where it is drawn). The two in the middle are not sampled.
      log_shift: of an objective perturbation, log(1 + M / (n mu)), what its Hessian tells.
      idle: from 0 to 1, how far a record that is not drawn moves the release, over the bound on one
        that is: where each release also holds an exact part of all records, such as the gradient at
        an anchor. For ``sampling="poisson"``.
      dimension: d of a ball, whose radius is sqrt(d + 2) standard deviations of a coordinate; None
        for other noise.
      parts: of a single pass, what disjoint sets of its records release, made by ``parallel``.

    Raises:
      ValueError: for a number out of range, or sampling fields that do not fit ``sampling``.

    >>> Release("gradient", 10, noise_multiplier=5.0, sensitivity=0.1).stddev
    0.5
    """

    name: str
    count: int
    noise_multiplier: float
    sensitivity: float = 1.0
    components: tuple[tuple[str, float], ...] = ()
    sampling: str = "none"
    sampling_probability: float | None = None
    capacity: int | None = None
    data_size: int | None = None
    overflow: float = 0.0
    unsafe_fast_noise: bool = False
    mechanism: str = "gaussian"
    log_shift: float = 0.0
    idle: float = 0.0
    dimension: int | None = None
    parts: tuple["Release", ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "count", _validate.positive_int("count", self.count))
        for field in ("noise_multiplier", "sensitivity"):
            # float(): dp_accounting takes another path for int and np.float32 multipliers.
            object.__setattr__(self, field, _validate.positive(field, getattr(self, field)))
        if not 1 / _LARGEST <= self.noise_multiplier <= _LARGEST:
            raise ValueError(
                f"noise_multiplier must be from {1 / _LARGEST:g} to {_LARGEST:g}, whose squares "
                f"float64 holds, got {self.noise_multiplier!r}."
            )
        _validate.choice("sampling", self.sampling, SAMPLINGS)
        overflow = _validate.non_negative("overflow", self.overflow)
        object.__setattr__(self, "overflow", overflow)
        drawn = (self.sampling_probability, self.capacity, self.data_size)
        _validate.choice("mechanism", self.mechanism, MECHANISMS)
        shift = _validate.non_negative("log_shift", self.log_shift)
        object.__setattr__(self, "log_shift", shift)
        if self.mechanism == "objective" and self.sampling != "none":
            raise ValueError(f"an objective perturbation is not sampled, got {self.sampling!r}.")
        selects = self.mechanism == "exponential"
        if selects and self.sampling != "none":
            raise ValueError(
                f"a selection must use all records, got sampling={self.sampling!r}: a selection "
                "on sampled records has no accounting."
            )
        object.__setattr__(self, "idle", _validate.non_negative("idle", self.idle))
        self._check_ball()
        if self.idle > 1 or (self.idle and self.sampling != "poisson"):
            raise ValueError(
                "idle must be from 0 to 1, and 0 unless sampling='poisson': no accounting is "
                "proven for other sampling combined with an exact term over all records; got "
                f"{self.idle!r} with sampling={self.sampling!r}."
            )
        if self.parts and self.sampling != "single_pass":
            raise ValueError(f"only a single pass has parts, got sampling={self.sampling!r}.")
        if self.sampling == "none":
            if drawn != (None, None, None) or (overflow and not selects):
                raise ValueError(
                    "a release without sampling has no sampling_probability, capacity, data_size "
                    f"or overflow, got {(*drawn, overflow)}; let the sampler make the release."
                )
            return
        if self.sampling == "single_pass":
            self._check_single_pass()
            return
        for field in ("capacity", "data_size"):
            object.__setattr__(self, field, _validate.positive_int(field, getattr(self, field)))
        probability = _validate.open_unit("sampling_probability", self.sampling_probability)
        object.__setattr__(self, "sampling_probability", probability)
        if self.sampling == "fixed_size" and probability != self.capacity / self.data_size:  # pyright: ignore
            raise ValueError(
                f"a subset of {self.capacity} of {self.data_size} records is drawn with "
                f"probability {self.capacity}/{self.data_size}, got {probability!r}."
            )

    def _check_ball(self) -> None:
        if self.mechanism != "ball":
            if self.dimension is not None:
                raise ValueError(f"only ball noise has a dimension, got {self.dimension!r}.")
            return
        dimension = _validate.positive_int("dimension", self.dimension)
        object.__setattr__(self, "dimension", dimension)
        if self.idle:
            raise ValueError(
                "ball noise combined with an exact term over all records has no accounting; "
                "leave idle at 0."
            )
        ball_delta(self.sensitivity, self.radius, dimension)  # raises where they do not overlap

    @property
    def radius(self) -> float:
        """Radius of the ball that the noise on the mean is uniform in.

        Raises:
          ValueError: for other noise.

        >>> round(Release("gradient", 1, 5.0, mechanism="ball", dimension=2).radius, 6)
        10.0
        """
        if self.dimension is None:
            raise ValueError(f"{self.name!r} has no ball noise, so it has no radius.")
        return self.stddev * math.sqrt(self.dimension + 2)

    @property
    def total_variation(self) -> float:
        """What one release of ball noise tells neighbours apart by: q I_{(D / 2R)^2}(...).

        Whatever else is drawn beside a record, by convexity of the total variation. A mechanism of
        total variation t is dominated by the pair that has loss 0 with probability 1 - t and
        infinite loss else, in both directions, so this is all that accounting needs.

        Raises:
          ValueError: for other noise.

        >>> release = Release("gradient", 1, 5.0, mechanism="ball", dimension=1)
        >>> round(release.total_variation, 6) == round(1 / (2 * release.radius), 6)
        True
        """
        own = ball_delta(self.sensitivity, self.radius, self.dimension or 0)
        return own * (1.0 if self.sampling_probability is None else self.sampling_probability)

    def _check_single_pass(self) -> None:
        object.__setattr__(self, "data_size", _validate.positive_int("data_size", self.data_size))
        if (self.sampling_probability, self.capacity, self.overflow) != (None, None, 0.0):
            raise ValueError("a single pass has no sampling_probability, capacity or overflow.")
        if self.count != 1 or self.mechanism != "gaussian":
            raise ValueError(
                "a single pass is one Gaussian mechanism for each record, count=1, however many "
                f"queries there are; got count={self.count}, mechanism={self.mechanism!r}."
            )
        for part in self.parts:
            if self.noise_multiplier > part.noise_multiplier:
                raise ValueError(
                    f"{self.name!r} claims more noise than its part {part.name!r} has; build it "
                    "with parallel(name, parts)."
                )
            if part.sampling != "single_pass" or part.data_size != self.data_size:
                raise ValueError(
                    f"the part {part.name!r} must be a single pass over the same {self.data_size} "
                    "records."
                )

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "Release":
        """Returns the release whose ``dataclasses.asdict`` went through JSON.

        >>> Release.from_fields(dataclasses.asdict(Release("gradient", 1, 2.0))).noise_multiplier
        2.0
        """
        components = tuple(map(tuple, fields["components"]))
        parts = tuple(map(cls.from_fields, fields.get("parts", ())))
        return cls(**{**fields, "components": components, "parts": parts})

    @property
    def drawn(self) -> bool:
        """Whether chance decides which records a question reads, and so hides them."""
        return self.sampling in ("poisson", "fixed_size")

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise on the mean, in the units of ``sensitivity``."""
        return self.noise_multiplier * self.sensitivity

    @property
    def log_range(self) -> float:
        """How far the log-likelihood ratios of one selection are spread: its pure epsilon.

        Two neighbours move every score by the sensitivity at most, so the log-ratios of all
        outcomes lie within 2 sensitivity / scale of each other, rounded up.

        Raises:
          ValueError: for a Gaussian release, whose log-ratio has no bound.

        >>> from dpjax.accounting import gumbel_multiplier
        >>> multiplier = gumbel_multiplier(0.5)
        >>> round(Release("selection", 1, multiplier, mechanism="exponential").log_range, 9)
        0.5
        """
        if self.mechanism != "exponential":
            raise ValueError(
                f"{self.name!r} has Gaussian noise, whose log-likelihood ratios are unbounded."
            )
        return 2 * GUMBEL / self.noise_multiplier * (1 + 1e-15)

    def to_json(self) -> dict[str, Any]:
        """The release as the command line prints it.

        ``multiplier`` is ``stddev / sensitivity``: where ``sampling`` is ``"none"`` over the
        sensitivity for the relation, else over the bound on one record's part of the mean. Of a
        selection it is the noise on the scores that is described.
        """
        return {
            "name": self.name,
            "count": self.count,
            "mechanism": self.mechanism,
            "std_of": "score" if self.mechanism == "exponential" else "mean",
            "stddev": self.stddev,
            "sensitivity": self.sensitivity,
            "multiplier": self.noise_multiplier,
            "sampling_probability": self.sampling_probability,
            "sampling": self.sampling,
            "capacity": self.capacity,
            "overflow": self.overflow,
            "idle": self.idle,
            "unsafe_fast_noise": self.unsafe_fast_noise,
            "components": dict(self.components),
            "radius": self.radius if self.mechanism == "ball" else None,
            "parts": [part.to_json() for part in self.parts],
        }


def parallel(name: str, parts: tuple[Release, ...]) -> Release:
    """Returns the release of one pass whose questions are put to disjoint sets of records.

    A record is in one set, chosen by no record, so what it loses is what is released of that set:
    the whole is as loud as the loudest part.

    Args:
      name: of the whole, for people.
      parts: releases of ``sampling="single_pass"``, on the same data; at least one.

    Raises:
      ValueError: for other releases.

    Privacy: the caller answers for the sets being disjoint: a release does not say which it reads.

    Reference: McSherry (2009), theorem 4, for Gaussian differential privacy.

    >>> def part(name, multiplier):
    ...     return Release(name, 1, multiplier, sampling="single_pass", data_size=100)
    >>> parallel("all", (part("first", 3.0), part("last", 2.0))).noise_multiplier
    2.0
    """
    if not parts:
        raise ValueError("parallel needs at least one release.")
    loudest = min(parts, key=lambda part: part.noise_multiplier)
    return dataclasses.replace(
        loudest,
        name=name,
        components=tuple(component for part in parts for component in part.components),
        unsafe_fast_noise=any(part.unsafe_fast_noise for part in parts),
        parts=parts,
    )
