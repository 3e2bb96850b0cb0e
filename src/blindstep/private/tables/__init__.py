"""Behind the noise and the mechanisms: the cipher, the sampler's table, parameters of BLT."""
