"""What a person should know of a budget that is allowed and yet hardly sensible."""

from dpjax import accounting
from dpjax.algorithms import Algorithm


def remarks(algorithm: Algorithm) -> list[str]:
    """Returns one sentence or two for each oddity of an algorithm's budget; see ``accounting``.

    Privacy: reads declared numbers only.
    """
    # Ball noise promises no epsilon, and its guarantee says what its delta is met by.
    if all(release.mechanism == "ball" for release in algorithm.event.releases):
        return []
    epsilon, delta = map(float, algorithm.declared)
    return accounting.remarks(epsilon, delta, algorithm.queries[0].data_size)
