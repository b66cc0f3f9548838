"""Kernels that tests have judged, in modules that import what a kernel needs: a child process imports the module of a kernel, and would
import all that a file of tests does."""
