"""From the loss to a record's vector: directions, probe points, coefficients, gradients, their speed.

Privacy does not rest on this folder. The gate (`private`) clips every vector that comes out of it, so
a mistake here costs accuracy or time.
"""
