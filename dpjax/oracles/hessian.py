"""The Hessian oracle, and the joint one that answers gradient and Hessian as one release."""

import dataclasses
from typing import NamedTuple

import jax

from dpjax._typing import Array, Params, Relation
from dpjax.accounting import Event, Release, records_moved
from dpjax.derivatives import clipped_hessian, joint_clipped
from dpjax.mechanisms import add_gaussian, add_symmetric_gaussian, derive
from dpjax.objectives import Objective
from dpjax.oracles.base import Records, static


class SecondOrderAnswer(NamedTuple):
    """Noisy data terms at one point: gradient (p,) and symmetric Hessian (p, p)."""

    gradient: Array
    hessian: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HessianQuery:
    """Asks for (sum of Frobenius-clipped Hessians) / data_size + symmetric Gaussian noise.

    Args:
      noise_multiplier: standard deviation of a diagonal entry over the Frobenius sensitivity.
      clip_norm: C_H, the bound on the Frobenius norm of one record's Hessian.
      objective: whose ``loss`` is differentiated.
      data_size: the declared public n, the divisor.
      relation: fixes the sensitivity, C_H / n or 2 C_H / n.
      isometric: the form of the noise, see ``add_symmetric_gaussian``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier`` in either form.
    """

    noise_multiplier: Array | float
    clip_norm: Array | float
    objective: Objective = static()
    data_size: int = static()
    relation: Relation = static()
    isometric: bool = static(default=True)

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        return "hessian"

    @property
    def sensitivity(self) -> Array | float:
        """Frobenius sensitivity of the mean Hessian."""
        return records_moved(self.relation) * self.clip_norm / float(self.data_size)

    @property
    def stddev(self) -> Array | float:
        """Standard deviation of the noise on a diagonal entry of the mean Hessian."""
        return self.noise_multiplier * self.sensitivity

    def answer(self, key: Array, records: Records, params: Params) -> Array:
        """Returns the noisy mean Hessian of the flattened parameters, (p, p)."""
        total = clipped_hessian(self.objective, clip_norm=self.clip_norm)(params, records)
        return add_symmetric_gaussian(
            key, total / float(self.data_size), self.stddev, self.isometric
        )

    def event(self, count: int) -> Event:
        """Returns what ``count`` answers release."""
        release = Release(
            self.name,
            count,
            noise_multiplier=float(self.noise_multiplier),
            sensitivity=float(self.sensitivity),
            components=(("hessian", float(self.stddev)),),
        )
        return Event((release,), self.relation)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class JointQuery:
    """Asks for gradient and Hessian as one vector (g / gradient_weight, svec(H) / hessian_weight).

    One record's vector is clipped to norm 1, so one release pays for both parts.

    Args:
      noise_multiplier: standard deviation over the sensitivity of the weighted mean vector.
      gradient_weight: w_g; the gradient's noise is w_g times that of the weighted vector.
      hessian_weight: w_h; the Hessian's noise is w_h times it, in the isometric form.
      objective: whose ``loss`` is differentiated.
      data_size: the declared public n, the divisor.
      relation: fixes the sensitivity, 1 / n or 2 / n.

    Privacy: one Gaussian mechanism of multiplier ``noise_multiplier``. Gradient and Hessian from
      one sample are one event; there is no way to book them as two.
    """

    noise_multiplier: Array | float
    gradient_weight: Array | float
    hessian_weight: Array | float
    objective: Objective = static()
    data_size: int = static()
    relation: Relation = static()

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        return "gradient_and_hessian"

    @property
    def sensitivity(self) -> Array | float:
        """L2 sensitivity of the mean weighted vector, in the gradient's units."""
        return records_moved(self.relation) * self.gradient_weight / float(self.data_size)

    @property
    def stddev(self) -> Array | float:
        """Standard deviation of the noise on each coordinate of the mean gradient."""
        return self.noise_multiplier * self.sensitivity

    @property
    def hessian_stddev(self) -> Array | float:
        """Standard deviation of the noise on a diagonal entry of the mean Hessian."""
        moved = records_moved(self.relation) * self.hessian_weight / float(self.data_size)
        return self.noise_multiplier * moved

    def answer(self, key: Array, records: Records, params: Params) -> SecondOrderAnswer:
        """Returns the noisy mean gradient (p,) and Hessian (p, p) of the flattened parameters."""
        total = joint_clipped(
            self.objective,
            gradient_weight=self.gradient_weight,
            hessian_weight=self.hessian_weight,
        )(params, records)
        gradient_key, hessian_key = derive(key, "gradient", 0), derive(key, "hessian", 0)
        return SecondOrderAnswer(
            add_gaussian(gradient_key, total.gradient / float(self.data_size), self.stddev),
            add_symmetric_gaussian(
                hessian_key, total.hessian / float(self.data_size), self.hessian_stddev
            ),
        )

    def event(self, count: int) -> Event:
        """Returns what ``count`` answers release: one joint Gaussian each."""
        release = Release(
            self.name,
            count,
            noise_multiplier=float(self.noise_multiplier),
            sensitivity=float(self.sensitivity),
            components=(
                ("gradient", float(self.stddev)),
                ("hessian", float(self.hessian_stddev)),
            ),
        )
        return Event((release,), self.relation)
