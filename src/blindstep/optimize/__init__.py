"""Post-processing of released gradients: learners, conversion, planning. Cannot weaken privacy."""
