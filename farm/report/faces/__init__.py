"""Tables to people: written and drawn for the terminal, as Markdown, CSV, one HTML page, a site of many runs, a plot."""
