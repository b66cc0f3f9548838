"""The parser of each command, with its options and arguments, apart from its work: `-h`, and what a parser refuses, cost no import of pandas or of a runtime."""
