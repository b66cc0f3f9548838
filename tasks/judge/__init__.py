"""The judge: from outputs to errors, metrics, the worst element and broken promises, by class and definition of an op; from metrics and a policy's limits to a status."""
