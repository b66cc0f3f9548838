"""Tables to people: terminal, Markdown, CSV, one HTML page, a plot."""
