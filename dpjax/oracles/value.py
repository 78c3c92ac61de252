"""``ValueQuery``: a question whose exact value is that of a mean, and no sum."""

from typing import Any

from dpjax._typing import Array, Params, PyTree
from dpjax.derivatives import flatten
from dpjax.oracles.query import Query


class ValueQuery(Query):
    """A question whose ``exact`` is on the scale of a mean: nothing is divided after the noise."""

    def _check_dimension(self, params: Params) -> None:
        # The rounding of eigenvalues, or the length of a tilt, is charged for so many parameters.
        size, declared = flatten(params)[0].size, self.dimension  # pyright: ignore
        if size > declared:
            raise ValueError(
                f"{type(self).__name__} declares dimension={declared}, by which rounding and noise "
                f"are charged, and there are {size} parameters: make it with dimension={size}."
            )

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        return (self.stddev,)

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> PyTree:
        return noisy[0]

    def noisy_parts(self, answer: PyTree) -> tuple[Array, ...]:
        return (answer,)

    def evidence(self, answer: PyTree, params: Params, **public: Any) -> list[tuple[Any, Any]]:
        return []
