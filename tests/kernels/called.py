"""Functions that Python calls <lambda>, and their module otherwise."""

twice = lambda x: 2 * x  # noqa: E731
made_by_a_call = (lambda factor: lambda x: factor * x)(2)
