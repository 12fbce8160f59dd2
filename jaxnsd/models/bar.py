"""Elastic bar that hits a rigid wall: linear finite elements, Acary (2014)."""

import jax
import jax.numpy as jnp
import numpy as np

from ..mechanics.linear_system import LinearSystem
from ..mechanics.system import Parameter, system
from ..native.jax_internals import known_array
from ..numerics.tridiagonal import Tridiagonal
from ..programs.given import whole


@system
class ElasticBar(LinearSystem):
    """A `LinearSystem` with the initial state of the benchmark; made by `elastic_bar`."""

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """The displacements, from the wall."""
        return tuple(f"$q_{{{i}}}$ in m" for i in range(self.mass.shape[0]))

    @property
    def velocity_names(self) -> tuple[str, ...]:
        """Their rates."""
        return tuple(rf"$\dot q_{{{i}}}$ in m/s" for i in range(self.mass.shape[0]))

    def initial_state(self, gap: Parameter = 5e-5, speed: Parameter = 0.1) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: undeformed, ``gap`` (m) before the wall, moving towards it with ``speed`` (m/s)."""
        n, dtype = self.mass.shape[0], self.mass.dtype
        return jnp.full((n,), gap, dtype), jnp.full((n,), -speed, dtype)


def elastic_bar(
    n: int = 100,
    length: Parameter = 1.0,
    section: Parameter = 3.14e-4,
    modulus: Parameter = 210e9,
    density: Parameter = 7800.0,
    damping: Parameter = 0.0,
    e_N: Parameter = 0.0,
) -> ElasticBar:
    """Elastic bar of n nodes before a rigid wall: q = displacements of the nodes in m, gap = q[0].

    The end nodes are free but for the wall. Consistent mass matrix and stiffness matrix of n - 1 two-node elements of length
    ``length / n``, both `Tridiagonal`; ``damping`` (s) adds ``C = damping K``. Waves run with ``c = sqrt(modulus / density)``: a
    continuous bar that arrives undeformed with speed v stays on the wall for ``2 length / c``, with the contact force
    ``section sqrt(modulus density) v``, and leaves it undeformed with speed v.

    Units: length m, section m^2, modulus Pa, density kg/m^3. Returns an `ElasticBar`. Raises ValueError for fewer than two nodes.
    """
    if whole("elastic_bar: n", n) < 2:
        raise ValueError(f"elastic_bar: at least 2 nodes are needed, got n = {n}")
    element = length / n
    ends = np.ones(n)
    ends[[0, -1]] = 0.5
    mass = [density * section * element * x for x in (2 / 3 * ends, np.full(n - 1, 1 / 6))]
    K = [modulus * section / element * x for x in (2 * ends, -np.ones(n - 1))]
    C = [damping * x for x in K]
    return ElasticBar(Tridiagonal(*mass), Tridiagonal(*K), C=Tridiagonal(*C), G=known_array(np.eye(n, 1)), e_N=e_N)
