"""Exit codes of the commands."""

#: All judged and nothing wrong beyond the known failures; something wrong; bad config or command line; incomplete.
OK, FOUND, BAD_INPUT, INCOMPLETE = 0, 1, 2, 3
