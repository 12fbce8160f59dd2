"""What is drawn is what was computed: the data of lines and bands equal the arrays."""

import types

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxnsd
from jaxnsd import bodies, plotting
from jaxnsd.bodies.rotations import about
from jaxnsd.drawing import plots
from jaxnsd.models import MODELS, BeadColumn, BouncingBall, RotatingBall


def simulate(system, t1=1.0, dt=1e-2, **options):
    return jaxnsd.simulate(system, jaxnsd.Moreau(), *system.initial_state(), t1, dt, **options)


@pytest.fixture(scope="module")
def ball():
    return BouncingBall()


@pytest.fixture(scope="module")
def sol(ball):
    return simulate(ball)


def test_impacts_of_a_ball_are_where_its_velocity_reverses(sol):
    up = np.asarray(sol.u[1:, 0] > sol.u[:-1, 0])
    assert_array_equal(plotting.impacts(sol)[:, 0], up)
    assert up.sum() == 1


def test_a_contact_that_stays_closed_counts_once():
    sol = simulate(BouncingBall(e_N=0.0))
    assert (sol.P_N > 0).sum() > 10
    assert plotting.impacts(sol).sum() == 1


def test_a_contact_closed_at_the_first_node_is_no_impact():
    sol = jaxnsd.simulate(BouncingBall(e_N=0.0), jaxnsd.SymmetricMoreau(), jnp.array([-1e-9]), jnp.array([0.0]), 0.1, 1e-2)
    assert np.all(sol.initial.P_N > 0)
    assert plotting.impacts(sol).sum() == 0
    for scheme in (jaxnsd.Moreau(), jaxnsd.Lobatto(2), jaxnsd.LocatedImpacts(jaxnsd.MoreauJean())):
        for speed, impacts in ((0.0, 0), (-0.5, 1)):
            sol = jaxnsd.simulate(BouncingBall(e_N=0.0), scheme, jnp.zeros(1), jnp.array([speed]), 0.1, 1e-2)
            assert sol.P_N[0, 0] > 0 and plotting.impacts(sol).sum() == impacts


def test_what_rests_is_no_impact_where_another_has_one_in_the_first_interval():
    """Beads side by side, one at rest, one that lands and one that is thrown down at once, in the first stored interval."""
    system = Beads()
    q0, u0 = jnp.array([0.0, 0.02, 0.0]), jnp.array([0.0, -1.0, -1.0])
    for every, scheme in ((5, jaxnsd.Moreau()), (5, jaxnsd.Lobatto(2)), (10, jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()))):
        sol = jaxnsd.simulate(system, scheme, q0, u0, 0.1, 1e-2, save_every=every)
        assert np.all(sol.P_N[0] > 0)
        assert_array_equal(plotting.impacts(sol, system).sum(axis=0), [0, 1, 1])
        assert_array_equal([len(line.get_xdata()) for line in plotting.gaps(system, sol).lines[1:6:2]], [0, 1, 1])
        assert_array_equal([len(line.get_xdata()) for line in plotting.percussions(sol, system=system).lines[1:6:2]], [0, 1, 1])


@jaxnsd.system
class Beads(jaxnsd.System):
    """Three beads, each on a table of its own."""

    def mass_matrix(self, t, q):
        return jnp.eye(3)

    def potential_energy(self, t, q):
        return 9.81 * jnp.sum(q)

    def gap(self, t, q):
        return q


def test_trajectory(sol):
    ax = plotting.trajectory(sol, labels=["height in m"])
    assert_array_equal(ax.lines[0].get_xydata(), np.stack([sol.t, sol.q[:, 0]], axis=1))
    assert ax.get_xlabel() == "time $t$ in s"
    assert ax.get_ylabel() == "height in m"


def test_trajectory_of_chosen_coordinates():
    sol = simulate(RotatingBall(), 0.1)
    ax = plotting.trajectory(sol, [1, 2])
    assert_array_equal(np.stack([line.get_ydata() for line in ax.lines], axis=1), sol.q[:, 1:])
    with pytest.raises(ValueError, match="coordinate 3 of a system with 3"):
        plotting.trajectory(sol, 3)
    with pytest.raises(ValueError, match="1 labels for 3 coordinates"):
        plotting.trajectory(sol, labels=["x"])


def test_every_model_names_its_coordinates_and_velocities_with_units():
    for name, make in MODELS.items():
        system = make()
        q0, u0 = system.initial_state()
        assert (len(system.coordinate_names), len(system.velocity_names)) == (len(q0), len(u0)), name
        # A quaternion has no unit.
        with_unit = [text for text in system.coordinate_names if not text.startswith("$p_")]
        assert all(text.rpartition(" in ")[2] in ("m", "rad") for text in with_unit) and len(with_unit) in (len(q0), len(q0) - 4), name
        assert all(text.rpartition(" in ")[2] in ("m/s", "rad/s") for text in system.velocity_names), name


def test_coordinates_are_named_by_the_system_and_drawn_by_unit(tmp_path):
    system = RotatingBall()
    sol = simulate(system, 0.1)
    ax = plotting.trajectory(sol, [0, 2], system=system)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["$x$ in m", r"$\varphi$ in rad"]
    ax = plotting.phase_portrait(sol, 2, system=system)
    assert (ax.get_xlabel(), ax.get_ylabel()) == (r"$\varphi$ in rad", r"$\dot\varphi$ in rad/s")
    fig = plotting.overview(system, sol)
    assert [ax.get_ylabel() for ax in fig.axes[:2]] == ["coordinates in m", r"$\varphi$ in rad"]
    assert [len(ax.lines) for ax in fig.axes[:2]] == [2, 1]
    assert len(fig.axes) == 5
    plotting.save(fig, tmp_path / "a.svg")  # the mathematics in the names can be read


def test_phase_portrait(sol):
    ax = plotting.phase_portrait(sol, 0, color="black")
    assert_array_equal(ax.lines[0].get_xydata(), np.concatenate([sol.q, sol.u], axis=1))
    assert ax.lines[0].get_color() == "black"
    with pytest.raises(ValueError, match="coordinate 1 of a system with 1"):
        plotting.phase_portrait(sol, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaps", "percussions"])
def test_gaps_and_percussions_with_impacts_marked(name):
    system = BeadColumn(n=3)
    sol = simulate(system, 0.5, 5e-3)
    ax = plotting.gaps(system, sol) if name == "gaps" else plotting.percussions(sol)
    gap = np.stack([sol.q[:, 0] - 0.05, sol.q[:, 1] - sol.q[:, 0] - 0.1, sol.q[:, 2] - sol.q[:, 1] - 0.1], axis=1)
    for i in range(3):
        line, dots = ax.lines[2 * i], ax.lines[2 * i + 1]
        closing = 1 + np.flatnonzero(plotting.impacts(sol)[:, i])
        assert len(closing) > 1
        if name == "gaps":
            t, values, marked = sol.t, gap[:, i], gap[closing, i]
        else:
            t, values, marked = sol.t[1:], sol.P_N[:, i], sol.P_N[closing - 1, i]
        assert_allclose(line.get_xydata(), np.stack([t, values], axis=1), atol=1e-15)
        assert_allclose(dots.get_xydata(), np.stack([sol.t[closing], marked], axis=1), atol=1e-15)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["contact 0", "contact 1", "contact 2"]


def test_energy(ball, sol):
    ax = plotting.energy(ball, sol)
    kinetic = 0.5 * 0.1 * np.asarray(sol.u[:, 0]) ** 2
    potential = 0.1 * 9.81 * np.asarray(sol.q[:, 0])
    for line, values in zip(ax.lines, (kinetic, potential, kinetic + potential), strict=True):
        assert_allclose(line.get_ydata(), values, rtol=1e-14, atol=1e-15)


def test_ensemble_bands():
    t, values = np.linspace(0, 1, 5), np.random.default_rng(0).normal(size=(200, 5))
    ax = plotting.ensemble_bands(t, values, (0.1, 0.5, 0.9))
    assert_allclose(ax.lines[0].get_ydata(), np.median(values, axis=0))
    band = ax.collections[0].get_paths()[0].vertices
    for k in range(5):
        ends = band[np.isclose(band[:, 0], t[k]), 1]
        assert_allclose([ends.min(), ends.max()], np.quantile(values[:, k], [0.1, 0.9]))
    with pytest.raises(ValueError, match=r"values \(members, N\)"):
        plotting.ensemble_bands(t, values.T)
    with pytest.raises(ValueError, match="odd number"):
        plotting.ensemble_bands(t, values, (0.1, 0.9))


def test_convergence():
    dts = np.array([0.1, 0.05, 0.025])
    ax = plotting.convergence(dts, [3 * dts**2, dts], labels=["a", "b"], orders=(2,))
    assert_allclose(ax.lines[0].get_xydata(), np.stack([dts, 3 * dts**2], axis=1))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a, order 2.00", "b, order 1.00", "slope 2"]
    assert_allclose(ax.lines[2].get_ydata(), 3 * np.array([0.025, 0.1]) ** 2)
    with pytest.raises(ValueError, match="must be positive"):
        plotting.convergence(dts, [0.1, 0.0, 0.1])
    with pytest.raises(ValueError, match=r"got \(3,\) and \(1, 2\)"):
        plotting.convergence(dts, [0.1, 0.1])
    # The last error is at round-off: drawn, not fitted.
    ax = plotting.convergence(dts, [0.1, 0.025, 0.024], fitted=[True, True, False])
    assert len(ax.lines[0].get_xdata()) == 3
    assert ax.get_legend().get_texts()[0].get_text() == "order 2.00"
    with pytest.raises(ValueError, match="at least two points"):
        plotting.convergence(dts, 3 * dts, fitted=[True, False, False])


def test_overview_has_contacts_where_the_system_has(ball, sol):
    assert len(plotting.overview(ball, sol, "title").axes) == 4

    @jaxnsd.system
    class Free(jaxnsd.System):
        def mass_matrix(self, t, q):
            return jnp.eye(1)

        def kinetic_energy(self, t, q, u):
            return 0.5 * u @ u

    free = Free()
    assert len(plotting.overview(free, jaxnsd.simulate(free, jaxnsd.Moreau(), jnp.zeros(1), jnp.ones(1), 0.1, 0.1)).axes) == 2


@pytest.mark.parametrize("name", ["trajectory", "phase_portrait", "gaps", "percussions", "energy", "impacts", "overview"])
def test_a_batch_is_refused(ball, sol, name):
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), sol)
    function = getattr(plotting, name)
    with pytest.raises(ValueError, match=rf"{name} draws one motion, got a batch of shape \(2,\)"):
        function(ball, batch) if name in ("gaps", "energy", "overview") else function(batch)


def test_given_axes_are_used_and_settings_left_alone(sol, tmp_path):
    before = dict(matplotlib.rcParams)
    fig, axes = plotting.figure(1, 2)
    assert plotting.trajectory(sol, ax=axes[1]) is axes[1]
    assert not axes[0].lines
    plotting.save(fig, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert dict(matplotlib.rcParams) == before


# ----------------------------------------------------------------------------------------------------------------------- bodies
def falling(joints, plane):
    """A box and what else there is to draw, falling without contact, and its motion without a simulation."""
    shapes = [
        bodies.Box((0.4, 0.2, 0.6)),
        bodies.Capsule(0.05, 0.3),
        bodies.Cylinder(0.1, 0.2),
        bodies.Ellipsoid((0.1, 0.2, 0.3)),
        bodies.Points(((0.0, 0, 0), (0.1, 0, 0), (0, 0, 0.2))),
    ]
    parts = [bodies.Body("box", 1.0, joints=joints, shapes=shapes), bodies.Body("rod", 0.1, (1.0, 1, 1), (0, 0, 0.1), (), "box")]
    system = bodies.assemble(parts, bodies.Plane(), contacts=(), plane=plane)
    q0, u0 = system.initial_state()
    t = jnp.linspace(0.0, 1.0, 11)
    q = jnp.tile(q0, (11, 1)).at[:, 2 if plane is None else 0].set(1 - 0.5 * t**2)
    return system, types.SimpleNamespace(t=t, q=q, u=jnp.tile(u0, (11, 1)))


def test_strobe_in_a_plane_and_in_space():
    """Lines are where the corners of the box are at the chosen times; paths are those of the centres of mass."""
    system, sol = falling(bodies.planar(normal=(0, 1.0, 0)), "xz")
    ax = plotting.strobe(system, sol, [0.0, 0.4, 1.0])
    assert ax.get_xlabel() == "$x$ in m" and ax.get_ylabel() == "$z$ in m"
    z = np.concatenate([line.get_ydata() for line in ax.lines])
    # The first coordinate is along z.
    for height in (1.0, 0.92, 0.5):
        assert np.isclose(z, height + 0.3).any()
    assert np.isclose(z, 0.92 - 0.3).any()
    path = next(line for line in ax.lines if line.get_linestyle() == ":")
    assert_allclose(np.ptp(path.get_ydata()), 0.5, atol=1e-12)

    system, sol = falling(bodies.Free(), None)
    ax = plotting.strobe(system, sol, 2, view=(0.0, 0.0))
    # Seen along x: y to the right, z upwards.
    y, z = (np.concatenate([getattr(line, f"get_{axis}data")() for line in ax.lines]) for axis in "xy")
    assert np.isclose(np.abs(y), 0.1).any() and np.isclose(z, 1.3).any()


def robot():
    """A trunk on a free joint with an arm, over a floor that its two feet reach, and what is drawn of a motion."""
    parts = [
        bodies.Body("trunk", 1.0, shapes=[bodies.Sphere(0.1, position=(x, 0, 0), name=name) for x, name in ((-1, "left"), (1, "right"))]),
        bodies.Body("arm", 0.1, (0.1, 0.1, 0.1), (0, 0, 1.0), bodies.Revolute((0, 1.0, 0), name="elbow"), "trunk"),
    ]
    system = bodies.assemble(parts, bodies.Plane(name="floor"), mu=0.5)
    q0, u0 = system.initial_state()
    t = jnp.linspace(0.0, 1.0, 11)
    q = jnp.tile(q0, (11, 1)).at[:, 0].set(t).at[:, 1].set(1e-15 * t).at[:, 7].set(t)
    q = q.at[:, 3].set(jnp.cos(t)).at[:, 6].set(jnp.sin(t))
    P_N, P_F = np.zeros((10, 2)), np.zeros((10, 2, 2))
    P_N[4, 1], P_F[4, 1], P_F[5, 1] = 2.0, (0.3, 0.4), (0.0, 0.0)
    events = np.zeros(10, int)
    events[4] = int(jaxnsd.Event.IMPACT)
    return system, types.SimpleNamespace(t=t, q=q, u=jnp.tile(u0, (11, 1)), P_N=P_N, P_F=P_F, events=events, scheme=None)


def curves(ax):
    return {line.get_label(): line for line in ax.lines if line.get_label()[0] != "_"}


def test_bodies_joints_and_contacts_by_name():
    system, sol = robot()
    t = np.asarray(sol.t)
    drawn = curves(plots.positions(system, sol))
    # Round-off along y and z is no motion.
    assert list(drawn) == ["trunk x"]
    assert_allclose(drawn["trunk x"].get_ydata(), t)
    arm = curves(plots.positions(system, sol, ["arm"]))
    assert_allclose(arm["arm z"].get_ydata(), np.cos(t), atol=1e-12)
    ax = plots.joints(system, sol)
    assert ax.get_ylabel() == "elbow" or "degrees" in ax.get_ylabel()
    assert_allclose(curves(ax)["elbow"].get_ydata(), np.degrees(t))
    turned = curves(plots.angles(system, sol))
    assert_allclose(turned["trunk yaw"].get_ydata(), np.degrees(2 * t), atol=1e-9)
    assert_allclose(turned["trunk roll"].get_ydata(), 0, atol=1e-9)
    # The other foot never touches.
    assert plots.closing(system, sol) == {"floor and right": [1]}
    assert list(curves(plots.gaps(system, sol))) == ["floor and right"]
    drawn = curves(plots.percussions(system, sol))
    assert_array_equal(drawn["floor and right"].get_ydata(), sol.P_N[:, 1])
    assert_array_equal(drawn["impact"].get_xdata(), t[5:6])
    used = curves(plots.friction(system, sol))["floor and right"].get_ydata()
    assert_allclose(used[4], 0.5)
    assert np.isnan(np.delete(used, 4)).all()
    assert len(plotting.overview(system, sol, "robot").axes) == 7
    for call, error, match in (
        (lambda: plots.joints(system, sol, ["trunk"]), ValueError, "hinges, or sliders, that are not prescribed, got free"),
        (lambda: plots.positions(system, sol, ["leg"]), KeyError, "leg"),
        (lambda: plots.gaps(system, sol, ["floor and left"]), KeyError, "does not close; these do: 'floor and right'"),
        (lambda: plots.angles(BouncingBall(), sol), TypeError, "got BouncingBall; try plotting.overview"),
    ):
        with pytest.raises(error, match=match):
            call()


def test_what_stands_still_fills_no_axes():
    system, sol = robot()
    sol.q = jnp.tile(sol.q[:1], (11, 1)) + 1e-15 * jnp.arange(11.0)[:, None]
    for draw in (plots.positions, plots.joints, plots.angles):
        low, high = draw(system, sol).get_ylim()
        assert high - low > 1e-7


def test_roll_pitch_and_yaw():
    roll, pitch, yaw = 0.3, -0.4, 2.0
    R = np.eye(3)
    for axis, angle in ((2, yaw), (1, pitch), (0, roll)):
        R = R @ np.asarray(about(jnp.eye(3)[axis], jnp.asarray(angle)))
    assert_allclose(plots.rolled(R), [roll, pitch, yaw])


def test_a_figure_shows_itself_in_a_notebook(ball, sol):
    assert plotting.overview(ball, sol)._repr_png_()[:4] == b"\x89PNG"


def test_strobe_refuses_what_it_cannot_draw():
    system, sol = falling(bodies.Free(), None)
    with pytest.raises(TypeError, match="got BouncingBall"):
        plotting.strobe(BouncingBall(), sol)
    with pytest.raises(ValueError, match="times between 0 and 1 s"):
        plotting.strobe(system, sol, [2.0])
