"""The culprit of a failing model: between a process that searches and the backend's, and what is printed of it."""
