"""Films and pages of a few motions: three bodies that fall, a woodpecker ten times slower, tossed cubes as ghosts of each other.

    python examples/gallery.py --out out/gallery

writes for each of them a page (.html) and a film, .mp4 with imageio-ffmpeg, else .gif.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxnsd
from jaxnsd import bodies, drawing, models
from jaxnsd.bodies import Body


def fall():
    """A box, a ball and a capsule fall on a floor."""
    parts = [
        Body("box", 1.0, shapes=bodies.Box((0.3, 0.2, 0.15)), position=(0, 0, 0.5), orientation=(0.9, 0.3, 0.2, 0.1)),
        Body("ball", 0.5, shapes=bodies.Sphere(0.1), position=(0.2, 0.5, 0.7)),
        Body("capsule", 0.5, shapes=bodies.Capsule(0.05, 0.3), position=(-0.3, 0.2, 0.6), orientation=(0.7, 0.7, 0, 0)),
    ]
    system = bodies.assemble(parts, bodies.Plane(name="floor"), mu=0.3, e_N=0.3, contacts="world")
    q0, u0 = system.initial_state()
    sol = jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u0.at[0].set(0.6).at[4].set(3.0), 1.5, 1e-3)
    return system, sol, {}


def woodpecker():
    """The woodpecker walks down its pole."""
    system = models.Woodpecker()
    sol = jaxnsd.simulate(system, jaxnsd.Moreau(), *system.initial_state(), 0.45, 1e-4)
    return system, sol, {"speed": 0.1, "follow": "woodpecker"}


def cubes():
    """A tossed cube, and three more with other velocities and spins."""
    system = models.Cube()
    q0, u0 = system.initial_state()
    starts = u0 + jnp.asarray([0.0, 0.25, 0.5, 0.75])[:, None] * (jnp.eye(6)[1] + 4 * jnp.eye(6)[4])
    sol = jax.jit(jax.vmap(lambda u: jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u, 0.8, 1e-3)))(starts)
    return system, sol, {"speed": 0.5, "members": [0, 1, 2, 3]}


def main(argv=None):
    """Make them all; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gallery.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/gallery"), metavar="DIR", help="where to (default: %(default)s)")
    parser.add_argument("--only", choices=("fall", "woodpecker", "cubes"), help="one of them (default: all)")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot make the directory {str(args.out)!r}: {error.strerror}")
    ending = "mp4" if importlib.util.find_spec("imageio_ffmpeg") else "gif"
    for make in (fall, woodpecker, cubes):
        if args.only in (None, make.__name__):
            system, sol, options = make()
            began = time.perf_counter()
            film = drawing.film(system, sol, args.out / f"{make.__name__}.{ending}", **options)
            between = time.perf_counter()
            page = drawing.page(system, sol, args.out / f"{make.__name__}.html", **options)
            print(f"{film}, made in {between - began:.1f} s\n{page}, made in {time.perf_counter() - between:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
