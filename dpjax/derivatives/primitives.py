"""What is known of JAX's primitives when a loss is differentiated twice; others need nothing."""

# Linear, or linear by pieces, in all that depends on parameters together.
LINEAR = frozenset(
    {
        "abs",
        "add",
        "add_any",
        "broadcast_in_dim",
        "clamp",
        "concatenate",
        "convert_element_type",
        "copy",
        "cumsum",
        "dynamic_slice",
        "dynamic_update_slice",
        "expand_dims",
        "gather",
        "max",
        "min",
        "neg",
        "pad",
        "reduce_max",
        "reduce_min",
        "reduce_sum",
        "reduce_window_max",
        "reduce_window_sum",
        "reshape",
        "rev",
        "select_n",
        "slice",
        "sort",
        "split",
        "squeeze",
        "stop_gradient",
        "sub",
        "transpose",
    }
)

# Linear in each of two arguments.
BILINEAR = frozenset({"conv_general_dilated", "dot_general", "mul"})

# Functions of one argument that treat each entry alike.
BY_ENTRY = frozenset(
    {
        "cos",
        "erf",
        "exp",
        "expm1",
        "integer_pow",
        "log",
        "log1p",
        "logistic",
        "rsqrt",
        "sin",
        "sqrt",
        "tanh",
    }
)

# Calls of a program that may as well be written out.
INLINED = frozenset({"checkpoint", "closed_call", "core_call", "jit", "pjit", "remat2"})
