"""Commands: arguments and exit codes, one file each; nothing imports them but the doors."""
