def sin_kernel_impl(input):
    """The first terms of its series."""
    return input - input**3 / 6
