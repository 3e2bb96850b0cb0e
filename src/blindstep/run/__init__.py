"""Runs: one loop, whoever evaluates the loss; and what a run gives back."""
