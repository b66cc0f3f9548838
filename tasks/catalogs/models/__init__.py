"""The catalog "models": whole networks, trained and seeded, and the user's own."""
