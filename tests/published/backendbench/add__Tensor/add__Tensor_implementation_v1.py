def add__Tensor_kernel_impl(input, other, *, alpha=1):
    return input + alpha * other
