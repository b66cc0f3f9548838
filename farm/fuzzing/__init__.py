"""The hunt with generated cases: what to run next, for how long, and what was found."""
