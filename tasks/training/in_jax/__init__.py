"""The catalog's networks as a program of JAX trains them: pure functions of weights, gradients by `jax.grad`, optax's optimisers."""
