"""The progress bar of long runs: tqdm, fed from inside the compiled loop."""

import jax

#: How often a run reports, at the most: seldom enough to cost nothing.
UPDATES = 100


def require():
    """Raise ImportError, with the cure, where tqdm is missing."""
    try:
        import tqdm  # noqa: F401
    except ImportError as error:
        raise ImportError('progress=True needs tqdm: pip install "jaxnsd[progress]", or leave progress=False') from error


def reporter(total):
    """Function ``report(done)`` for use inside a traced loop: it moves a bar of ``total`` units, which closes when it is full.

    The bar opens with the first report of a run, so that a compiled function can run many times. Under `vmap` it counts the
    steps of the whole batch once, since the count is the same for all.
    """
    bars = []

    def show(done):
        from tqdm.auto import tqdm

        done = int(done)
        if not bars or done <= bars[0].n:
            if bars:
                bars.pop().close()
            bars.append(tqdm(total=total, unit="steps", unit_scale=True, dynamic_ncols=True))
        bars[0].update(done - bars[0].n)
        if done >= total:
            bars.pop().close()

    return lambda done: jax.debug.callback(show, done)
