"""The `casts` catalog: conversions from every dtype to every other, and between numbers and what they are quantised to."""
