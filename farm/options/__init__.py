"""The command line of each command, apart from its work: `-h`, and what a parser refuses, cost no import of pandas or of a runtime."""
