"""Whose loss and whose data: JAX, any Python callable, tables, people. Hostile as they may be."""
