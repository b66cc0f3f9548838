"""Commands: what `farm run`, `farm report`, … ask, do and print, and their exit codes, one file each; nothing imports them but the doors."""
