"""The hunt: rounds of generated cases (fuzzing), failing cases made small, what is kept of them and their issue's text, and culprits as they are shown."""
