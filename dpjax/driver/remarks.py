"""Warnings about an algorithm's budget that is valid but gives little protection or utility."""

from dpjax import accounting
from dpjax.algorithms import Algorithm


def remarks(algorithm: Algorithm) -> list[str]:
    """Returns one or two sentences for each weakness of an algorithm's budget; see ``accounting``.

    Privacy: reads declared numbers only.
    """
    epsilon, delta = map(float, algorithm.declared)
    n = algorithm.queries[0].data_size
    # Ball noise promises no epsilon, and its guarantee says which release meets its delta.
    if all(release.meaning(delta, n) for release in algorithm.event.releases):
        return []
    return accounting.remarks(epsilon, delta, n)
