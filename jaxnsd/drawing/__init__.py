"""Motions to look at: films, and pages that turn.

`film` writes an .mp4 or a .gif, `page` one .html file. Both draw systems of `jaxnsd.bodies` as they are, and any other system that says
what it looks like, by a method ``draw(t, q)`` that returns a dict of what there is by name, in m, in the plane or in space:

    =============================  ==================================================================================================
    ``(d,)``                       a point; d = 2 in the plane, 3 in space
    ``(k, d)``                     a line through k points; an area, where it ends where it begins and has at least three corners
    ``(m, k, d)``                  m such lines
    ``(centre (d,), radius)``      a disc or a ball; in the plane with an angle in rad as third number a spoke shows how it turns. With
                                   centres (m, d) and radii (m,) there are m of them
    ``(point (d,), normal (d,))``  the ground, or a wall: its surface goes through the point, and the normal points away from it
    ``"contacts"``                 under this name ``(points, normals)`` or ``(points, normals, tangents)`` of the contacts, (n_N, d) each,
                                   for arrows: P_N acts along the normals, P_F along the tangents, two of which in space are (n_N, 2, 3)
    =============================  ==================================================================================================

    def draw(self, t, q):  # a pendulum
        tip = self.length * jnp.stack([jnp.sin(q[0]), -jnp.cos(q[0])])
        return {"rod": jnp.stack([jnp.zeros(2), tip]), "bob": (tip, 0.1)}

The functions of the module `plots` draw bodies, joints and contacts by their names against time. All moving things have colours, what
stands still is grey.
"""

from . import plots
from .films import Film, film
from .pages import Page, check, page

__all__ = ["Film", "Page", "check", "film", "page", "plots"]
