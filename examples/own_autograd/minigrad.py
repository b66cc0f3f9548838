"""An autograd library in sixty lines of NumPy: every operation leaves a closure that adds to its inputs' gradients."""

import numpy as np


def reduce_to(gradient, shape):
    """Sum a gradient over the axes along which an input of this shape was broadcast."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    stretched = tuple(axis for axis, n in enumerate(shape) if n == 1)
    return gradient.sum(axis=stretched, keepdims=True)


class Tensor:
    def __init__(self, data, requires_grad=False, parents=()):
        self.data = np.asarray(data)
        self.requires_grad = requires_grad or any(p.requires_grad for p in parents)
        self.grad = np.zeros_like(self.data)
        self.parents, self._backward = parents, lambda: None

    def _made(self, data, parents, *local):
        """The result of an operation. local: for each parent, its gradient as a function of the result's."""
        out = Tensor(data, parents=parents)

        def backward():
            for parent, gradient in zip(parents, local):
                parent.grad = parent.grad + reduce_to(gradient(out.grad), parent.data.shape)

        out._backward = backward
        return out

    def __add__(self, other):
        return self._made(self.data + other.data, (self, other), lambda g: g, lambda g: g)

    def __mul__(self, other):
        a, b = self.data, other.data
        return self._made(a * b, (self, other), lambda g: g * b, lambda g: g * a)

    def exp(self):
        y = np.exp(self.data)
        return self._made(y, (self,), lambda g: g * y)

    def sum(self):
        return self._made(self.data.sum(), (self,), lambda g: g * np.ones_like(self.data))

    def softmax(self):
        e = np.exp(self.data - self.data.max(axis=-1, keepdims=True))
        y = e / e.sum(axis=-1, keepdims=True)
        return self._made(y, (self,), lambda g: y * (g - (g * y).sum(axis=-1, keepdims=True)))

    def backward(self):
        order, seen = [], set()

        def visit(tensor):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                for parent in tensor.parents:
                    visit(parent)
                order.append(tensor)

        visit(self)
        self.grad = np.ones_like(self.data)
        for tensor in reversed(order):
            tensor._backward()
