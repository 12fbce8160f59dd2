"""A woodpecker, a rotating ball and a ball of parts, their gradients, and a batch, with the JAX at hand: ``make test-versions``."""

import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

import jaxnsd  # noqa: E402
from jaxnsd import bodies, models  # noqa: E402

#: What JAX 0.6.1 and 0.10.2 lead to.
EXPECTED = {
    "Woodpecker": (0.004384798925, 1.264260056, 0.2020255417, 0.5140003875),
    "RotatingBall": (0.01, 0.0, 0.0, 0.770114895),
    "ball of parts": (1.042932834223, 2.395528102913, 0.07978087376953),
}


def numbers(system, scheme, dt, push=0.0):
    """The square of the last position, its gradient by the start, and that of a batch of three that is not pushed: sums of sizes."""
    q0, u0 = (jnp.asarray(x, float) for x in system.initial_state())
    u0 = u0 + push * (jnp.arange(u0.size) == 0)

    def end(q0, u0):
        return jnp.sum(jaxnsd.simulate(system, scheme, q0, u0, n_steps=200, dt=dt).q[-1] ** 2)

    by_start = jax.jit(jax.grad(end, argnums=(0, 1)))(q0, u0)
    if push:
        return [float(jax.jit(end)(q0, u0)), *(float(jnp.sum(jnp.abs(x))) for x in by_start)]
    of_batch = jax.jit(jax.vmap(jax.grad(end, argnums=1), (None, 0)))(q0, u0 + jnp.arange(3.0)[:, None] * 1e-3)
    return [float(jax.jit(end)(q0, u0)), *(float(jnp.sum(jnp.abs(x))) for x in (*by_start, of_batch))]


ball = bodies.Body("ball", mass=0.6, shapes=bodies.Sphere(0.1), position=(0, 0, 0.11))
cases = {
    "Woodpecker": (models.Woodpecker(), jaxnsd.Moreau(), 1e-3),
    "RotatingBall": (models.RotatingBall(), jaxnsd.Lobatto(2), 1e-2),
    "ball of parts": (bodies.assemble([ball], bodies.Plane(name="floor"), mu=0.1, e_N=0.5), jaxnsd.Moreau(), 1e-3, 1.0),
}
for name, case in cases.items():
    found = numbers(*case)
    right = all(abs(a - b) <= 1e-8 * (1 + abs(b)) for a, b in zip(found, EXPECTED[name], strict=True))
    print(f"JAX {jax.__version__}, Python {sys.version.split()[0]}, {name}: {'right' if right else f'wrong: {found}'}")
    if not right:
        sys.exit(1)
