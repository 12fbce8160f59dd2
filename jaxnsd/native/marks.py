"""Names of functions by which native code knows what to do with them; to JAX they are functions under `jax.jit`."""

import jax


def _marked(name, function):
    def marked(*args):
        return function(*args)

    marked.__name__ = name
    return jax.jit(marked)


def when_needed(function):
    """``function``, which native code compiles when it is first called (see `native.build.Later`)."""
    return _marked("when_needed", function)


def in_memory(function):
    """``function``, of which native code makes loops over memory where it would write out all entries of arrays of a hundred."""
    return _marked("in_memory", function)


def written_out(function):
    """``function``, which native code writes out where it is called by one that is `in_memory`: what takes the time of that one."""
    return _marked("written_out", function)


def once(function):
    """``function``, which a run calls once: native code of it is a function of its own, which is compiled fast rather than to be fast."""
    return _marked("once", function)


def shared(function):
    """``function``, of which native code makes one function for all places that call it, where it is long; else it is a part of each."""
    return _marked("shared", function)
