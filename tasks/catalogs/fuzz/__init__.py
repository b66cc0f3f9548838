"""The catalog "fuzz": cases that are generated, each from a seed or from the choices that made it."""

#: The catalog's name.
GENERATED = "fuzz"
