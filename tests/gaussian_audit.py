"""A white-box lower bound on mu: likelihood-ratio score, fixed threshold, Clopper-Pearson."""

import numpy as np
from scipy import stats


def mu_lower_bound(scores, neighbour_scores, threshold=0.0, confidence=0.999):
    """Mu that must hold, with this confidence, given scores from two neighbouring data sets.

    An attack with true positive rate a and false positive rate b proves mu >= Phi^-1(a) - Phi^-1(b);
    each rate is bounded by Clopper-Pearson at half of the allowed failure probability.
    """
    miss = (1 - confidence) / 2
    caught = int(np.sum(neighbour_scores > threshold))
    false = int(np.sum(scores > threshold))
    positives = stats.beta.ppf(miss, caught, len(neighbour_scores) - caught + 1)
    negatives = stats.beta.ppf(1 - miss, false + 1, len(scores) - false)
    return stats.norm.ppf(positives) - stats.norm.ppf(negatives)


def likelihood_ratio_scores(released, mean, neighbour_mean, noise_matrix):
    """Scores of transcripts (n, T, d): the projection on the shift, whitened by B, centred."""
    white = np.linalg.solve(
        noise_matrix,
        np.moveaxis(released - (mean + neighbour_mean) / 2, 1, 0).reshape(len(noise_matrix), -1),
    )
    shift = np.linalg.solve(noise_matrix, (neighbour_mean - mean))
    white = white.reshape(len(noise_matrix), *released.shape[::2]).transpose(1, 0, 2)
    return np.einsum("ntd,td->n", white, shift)
