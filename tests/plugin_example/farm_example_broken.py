"""A plugin that raises at import."""

raise OSError("libexample.so: cannot open shared object file")
