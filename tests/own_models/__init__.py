"""Models of one's own as people write them, in files, and what is true of each; `python -m tests.own_models` runs them.

A file is a family of models that take the same inputs, which its ``get_inputs()`` draws. Nothing in them is seeded.
`truth` has what is to be found, `running` asks the farm.
"""
