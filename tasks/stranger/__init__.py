"""The process that a kernel nobody vouches for runs in: the judge's remote backend sends it forms and inputs over a connection and gets back bytes.

What judges stays in the child: expected outputs, limits, policy, clock and rows. `proxy` is the judge's side: a
`Backend` whose programs are requests; `serve` answers them in the stranger, which `nursery` forks and `confine` shuts
in; `wire` is what they say to each other. docs/isolation.md says what this boundary keeps and what it does not.
"""
