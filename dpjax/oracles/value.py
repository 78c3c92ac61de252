"""``ValueQuery``: a question whose exact value is that of a mean, and no sum."""

from typing import Any

from dpjax._typing import Array, Params, PyTree
from dpjax.oracles.query import Query


class ValueQuery(Query):
    """A question whose ``exact`` is on the scale of a mean: nothing is divided after the noise."""

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        del params, public
        return (self.stddev,)

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> PyTree:
        del params
        return noisy[0]

    def noisy_parts(self, answer: PyTree) -> tuple[Array, ...]:
        return (answer,)

    def evidence(self, answer: PyTree, params: Params, **public: Any) -> list[tuple[Any, Any]]:
        del answer, params, public
        return []
