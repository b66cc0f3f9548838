"""The process that a kernel nobody vouches for runs in, and the judge's side of it: a remote backend and remote programs (`RemoteProgram`), whose forms, arrays, times and errors cross a connection as records and bytes.

What judges stays in the child: expected outputs, limits, policy, clock and rows. `proxy` is the judge's side: a
`Backend` whose programs are requests; `serve` answers them in the stranger, which `nursery` forks and `confine` shuts
in; `wire` is what they say to each other. docs/isolation.md says what this boundary keeps and what it does not.
"""
