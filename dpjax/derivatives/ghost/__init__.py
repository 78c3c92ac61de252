"""Ghost clipping and book-keeping: clipped sums without materialising per-example gradients.

Clipping needs the norm of each record's gradient, then the sum of the gradients times their clip
factors (Abadi et al. 2016, algorithm 1); neither needs the gradients themselves. In one record, a
layer with inputs A and output cotangents G has the gradient A' G, and one pass forward and backward
yields A and G of all records. The squared norm is |A|^2 |G|^2 where the weight is used at one
position, and <A A', G G'> over pairs of positions otherwise: the "ghost norm". Book-keeping (Bu,
Wang, Zha and Karypis 2023, "Differentially private optimization on large foundation models at small
cost") computes the clipped sum from the same A and G, as one matrix product for the whole batch.
Only a gradient that is smaller than A and G, or a parameter used in another way, is materialised.

A parameter that is used several times, such as an embedding that is also the last layer, has the
positions of all its uses. The layers in a loop (``scan``) are one layer with an axis of steps, and
in rematerialised parts A and G are kept while all else is computed again.

Read in this order:

1. ``layers``: finds the layers of a network in its traced loss.
2. ``layer_rules``: A and G of a matrix product, a look-up, a shift or a scale.
3. ``patches``: A and G of a convolution, and its transpose, fast on a CPU.
4. ``parts``: one parameter's norms and weighted sum, at one position or materialised; loops.
5. ``ghost_norm``: the same over pairs of positions, of one use or several, and for embeddings.
6. ``bookkeeping``: the clipped sum, each parameter by the cheapest way.
"""
