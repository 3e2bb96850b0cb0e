"""From loss values to a record's vector: directions, probe points, coefficients, and their speed.

Privacy does not rest on this folder. The gate (`private`) clips every vector that comes out of it, so
a mistake here costs accuracy or time.
"""
