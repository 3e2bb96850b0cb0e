"""Who evaluates the loss: the compiled driver for JAX-traceable losses."""
