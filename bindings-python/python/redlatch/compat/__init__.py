"""Locks with the interface of other libraries, to be had by changing an import."""
