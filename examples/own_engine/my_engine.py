"""An engine of one's own with a fault: padding counts as tokens at position 0. docs/serving.md, "Your own engine", has the methods."""

from tasks.engines.plain import PlainEngine


class MyEngine(PlainEngine):
    """A real one is written from nothing, or wraps a serving stack; this one changes what a right one masks."""

    def _mask(self, places, at):
        return super()._mask(places, at.clamp_min(0))
