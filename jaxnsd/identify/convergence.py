"""Whether chains agree, and how many independent draws they are worth (Vehtari et al., Bayesian Analysis 16 (2021) 667).

Of samples (chains, draws, n); each chain is cut into halves, which have to agree as well. What does not vary has NaN.
"""

import numpy as np


def r_hat(samples):
    """R-hat (n,), the larger of that of the ranks and that of the ranks of distances from the median; 1 where chains agree."""
    halves = _halves(samples)
    far = np.abs(halves - np.median(halves, axis=(0, 1)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.maximum(*(np.sqrt(_pooled(x) / _within(x)) for x in map(_normal, (halves, far))))


def effective(samples):
    """Independent draws (n,) that those of the bulk are worth."""
    return _effective(_normal(_halves(samples)))


def effective_tail(samples):
    """Independent draws (n,) that the quantiles at 5 and 95 % come from, the fewer of both."""
    halves = _halves(samples)
    ends = np.quantile(halves, [0.05, 0.95], axis=(0, 1))
    return np.minimum(*(_effective((halves <= end).astype(float)) for end in ends))


def _halves(samples):
    n = samples.shape[1] // 2
    return np.concatenate([samples[:, :n], samples[:, -n:]])


def _normal(x):
    """Normal scores of the ranks among all draws."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    ranks = rankdata(x.reshape(-1, x.shape[2]), axis=0)
    return ndtri((ranks - 0.375) / (len(ranks) + 0.25)).reshape(x.shape)


def _within(x):
    return x.var(1, ddof=1).mean(0)


def _pooled(x):
    n = x.shape[1]
    return _within(x) * (n - 1) / n + x.mean(1).var(0, ddof=1)


def _effective(x):
    m, n, _ = x.shape
    spectrum = np.fft.rfft(x - x.mean(1, keepdims=True), 2 * n, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :n].mean(0) / n
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = 1 - (_within(x) - covariance) / _pooled(x)
    correlation[0] = 1
    # Sums of pairs are positive and fall: beyond the first that is not there is noise alone (Geyer, Statistical Science 7 (1992) 473).
    pairs = correlation[: n // 2 * 2].reshape(-1, 2, x.shape[2]).sum(1)
    pairs = np.where(np.cumsum(pairs <= 0, axis=0) > 0, 0, np.minimum.accumulate(pairs))
    return m * n / np.maximum(2 * pairs.sum(0) - 1, 1 / np.log10(m * n))
