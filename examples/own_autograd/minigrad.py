"""An autograd library in sixty lines of NumPy: every operation leaves a closure that adds to its inputs' gradients."""

import numpy as np


class Tensor:
    def __init__(self, data, requires_grad=False, parents=()):
        self.data = np.asarray(data)
        self.requires_grad = requires_grad or any(p.requires_grad for p in parents)
        self.grad = np.zeros_like(self.data)
        self._parents, self._backward = parents, lambda: None

    @staticmethod
    def unbroadcast(gradient, shape):
        """Sum a gradient over the axes along which an input of this shape was repeated."""
        gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
        return gradient.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)

    def _made(self, data, parents, *gradients):
        """The result of an operation. gradients: per parent, its gradient as a function of the result's."""
        out = type(self)(data, parents=parents)

        def backward():
            for parent, gradient in zip(parents, gradients):
                parent.grad = parent.grad + self.unbroadcast(gradient(out.grad), parent.data.shape)

        out._backward = backward
        return out

    def __add__(self, other):
        return self._made(self.data + other.data, (self, other), lambda g: g, lambda g: g)

    def __mul__(self, other):
        a, b = self.data, other.data
        return self._made(a * b, (self, other), lambda g: g * b, lambda g: g * a)

    def __matmul__(self, other):
        a, b = self.data, other.data
        return self._made(a @ b, (self, other), lambda g: g @ b.T, lambda g: a.T @ g)

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
                for parent in tensor._parents:
                    visit(parent)
                order.append(tensor)

        visit(self)
        self.grad = np.ones_like(self.data)
        for tensor in reversed(order):
            tensor._backward()
