"""What is done with a `Solution`: members of a batch, tables with names, files."""

import json
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxnsd
from jaxnsd import Event, Moreau, Outcome, Solution, SymmetricMoreau, simulate
from jaxnsd.models import BouncingBall, Woodpecker

HEIGHTS = jnp.array([[0.5, 1.0, 2.0], [3.0, 4.0, 5.0]])


@jaxnsd.system
class Block(jaxnsd.System):
    """A block that is thrown along a floor; it touches with two feet."""

    e_N: float = 0.5
    mu: float = 0.3
    coordinate_names = ("x in m", "y in m")
    contact_names = ("foot and floor", "foot and floor")

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def gap(self, t, q):
        return jnp.stack([q[1], q[1] + 0.1])

    def tangential_velocity(self, t, q, u):
        return jnp.stack([u[:1], u[:1]])


def fall(height, scheme=None, **options):
    """A ball from a height: after n steps of Moreau's scheme it is at h - n^2 g dt^2 / 2, to round-off, while it falls."""
    return simulate(BouncingBall(), scheme or SymmetricMoreau(), jnp.reshape(height, 1), jnp.zeros(1), 0.2, 0.02, **options)


@pytest.fixture(scope="module")
def batch():
    return jax.jit(jax.vmap(jax.vmap(fall)))(HEIGHTS)


@pytest.fixture(scope="module")
def block():
    """It lands after 0.1 s."""
    return simulate(Block(), Moreau(), jnp.array([0.0, 0.04905]), jnp.array([1.0, 0.0]), 0.2, 0.01)


def height(h, t):
    return h - 0.5 * 9.81 * t**2


@pytest.mark.slow
def test_arrays_and_slices_of_members(batch):
    for index in ((slice(None), slice(None, None, 2)), (..., 1), jnp.array([1, 0, 1]), np.array(HEIGHTS > 1.5), None):
        some = batch[index]
        assert_array_equal(some.q[..., 0, 0], HEIGHTS[index])
        assert all(x.shape[: some.q.ndim - 2] == HEIGHTS[index].shape for x in jax.tree.leaves(some))


def test_members_of_a_batch(batch):
    assert batch.batch_shape == (2, 3) and batch[1].batch_shape == (3,) and batch[1, 2].batch_shape == ()
    one, t = batch[1, -1], np.arange(11) * 0.02
    np.testing.assert_allclose(one.q[:, 0], height(5.0, t), rtol=1e-12)
    assert one.raise_if_failed() is one and one.scheme == SymmetricMoreau() and one.final.q.shape == (1,)
    assert_array_equal(batch[1:].q[:, :, 0, 0], HEIGHTS[1:])
    assert [float(sol.q[0, 0, 0]) for sol in batch] == [0.5, 3.0]
    assert (len(batch), len(batch[0]), len(batch[:, :0][0])) == (2, 3, 0) and batch[0, 0] and batch[:, :0]
    assert_array_equal(jax.jit(lambda i: batch[1, i].q[0, 0])(2), 5.0)


def test_indices_that_are_none(batch):
    for index in (2, -3, (0, 3), (0, 0, 0), np.ones(3, bool)):
        with pytest.raises(IndexError):
            batch[index]
    with pytest.raises(TypeError, match="one motion has no members to index: its arrays have nodes"):
        batch[0, 0][0]
    for ask in (lambda sol: next(iter(sol)), len):
        with pytest.raises(TypeError, match="one motion has no members"):
            ask(batch[0, 0])


def test_axes_and_names_in_xarray(batch, block):
    data = block.to_xarray()
    assert_array_equal(data.q.sel(coordinate="x in m"), block.q[:, 0])
    assert_array_equal(data.P_N.sel(contact_index="foot and floor 2"), block.P_N[:, 1])
    assert "velocity" not in data.coords and data.P_F.dims == ("step", "contact_index", "direction")
    assert data.attrs == {"system": "Block", "scheme": "Moreau()", "save_every": 1, "jaxnsd_version": jaxnsd.__version__}
    assert data.t.units == "s" and data.P_N.units == "N s"
    assert data.events.flag_meanings.split()[data.events.flag_masks.index(Event.GRAZING)] == "GRAZING"
    assert data.outcome.flag_meanings.split()[data.outcome.flag_values.index(Outcome.DRIFTED)] == "DRIFTED"
    many = batch.to_xarray()
    assert many.q.dims == ("member_0", "member_1", "node", "coordinate") and many.t.dims == ("node",)
    assert_array_equal(many.q.isel(member_0=1, member_1=2, coordinate=0), batch.q[1, 2, :, 0])
    assert batch[0].to_xarray().P_N.dims == ("member", "step", "contact_index")
    with pytest.raises(TypeError, match=r"Solution.to_xarray\(\) needs values"):
        jax.jit(lambda: fall(1.0).to_xarray())()


def test_times_of_their_own_have_the_axis_of_the_members():
    def run(t1):
        return simulate(BouncingBall(), SymmetricMoreau(), jnp.ones(1), jnp.zeros(1), t1, n_steps=10)

    data = jax.vmap(run)(jnp.array([0.1, 0.2])).to_xarray()
    assert data.t.dims == ("member", "node") and data.t_step.dims == ("member", "step")
    np.testing.assert_allclose(data.t[:, -1], [0.1, 0.2])


def test_rows_of_pandas(batch, block):
    """A row for each node; what happened in an interval is in the row of its end."""
    frame = block.to_dataframe()
    assert len(frame) == 21 and frame.attrs["system"] == "Block"
    assert_array_equal(frame["q[y in m]"], block.q[:, 1])
    assert_array_equal(frame["P_N[foot and floor]"], [0, *block.P_N[:, 0]])
    assert_array_equal(frame["P_F[foot and floor 2, 0]"], [0, *block.P_F[:, 1, 0]])
    landed = frame[frame["events"] & int(Event.IMPACT) > 0]
    assert len(landed) == 1 and abs(landed["t"].item() - 0.1) < 0.011
    rows = batch.to_dataframe()
    assert len(rows) == 6 * 11
    one = rows[(rows["member_0"] == 1) & (rows["member_1"] == 0)]
    np.testing.assert_allclose(one["q[q in m]"], height(3.0, one["t"]), rtol=1e-12)
    assert "u[dot q in m/s]" in rows
    # What acts at the first node, one half of it of this scheme, is in its row.
    thrown = simulate(BouncingBall(), SymmetricMoreau(), jnp.zeros(1), -jnp.ones(1), 0.02, 0.01)
    assert thrown.to_dataframe()["P_N[0]"][0] == thrown.initial.P_N[0] > 0


def test_parquet(batch, tmp_path):
    pytest.importorskip("pyarrow")
    import pandas

    frame = batch.to_dataframe()
    frame.to_parquet(tmp_path / "a.parquet")
    again = pandas.read_parquet(tmp_path / "a.parquet")
    pandas.testing.assert_frame_equal(frame, again)
    assert again.attrs["scheme"] == "SymmetricMoreau()"


@pytest.mark.parametrize(
    "scheme",
    [
        SymmetricMoreau(),
        pytest.param(Moreau(), marks=pytest.mark.slow),
        pytest.param(jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3), 3), marks=pytest.mark.slow),
        pytest.param(jaxnsd.GeneralizedAlpha(0.8), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_a_file_holds_all_of_it(scheme, tmp_path):
    """To the bit, with what a run goes on from, of a batch, too; with infinite numbers and such as are none."""
    sol = fall(0.1, scheme)
    many = jax.tree.map(lambda x: jnp.stack([x, x]), sol)
    strange = jax.tree.map(lambda x: x, many)
    object.__setattr__(strange, "q", strange.q.at[0, 0].set(jnp.nan).at[1, 0].set(-jnp.inf).at[1, 1].set(-0.0))
    for k, of in enumerate((sol, many, strange)):
        of.save(tmp_path / f"{k}.npz")
        again = Solution.load(tmp_path / f"{k}.npz")
        assert jax.tree.structure(again) == jax.tree.structure(of)
        for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(of), strict=True):
            assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert again.labels.system == "BouncingBall" and again.labels.coordinates == BouncingBall.coordinate_names
    read = Solution.load(tmp_path / "0.npz")
    on = [simulate(BouncingBall(), scheme, None, None, 0.4, 0.02, start=x) for x in (sol, read)]
    assert_array_equal(on[0].q, on[1].q)
    with np.load(tmp_path / "0.npz") as file:  # by anybody who has NumPy
        assert_array_equal(file["q"], sol.q)
        assert json.loads(file["about"].tobytes())["scheme"] == repr(scheme)
    assert {path.name for path in tmp_path.iterdir()} == {"0.npz", "1.npz", "2.npz"}


def test_files_that_are_none(batch, tmp_path):
    file = tmp_path / "a.npz"
    batch.save(file)
    whole = file.read_bytes()
    np.savez(tmp_path / "other.npz", q=np.ones(3))
    for name, content in {"short.npz": whole[: len(whole) // 2], "empty.npz": b"", "text.npz": b"q, u"}.items():
        (tmp_path / name).write_bytes(content)
    for name in ("short.npz", "empty.npz", "text.npz", "other.npz"):
        with pytest.raises(ValueError, match=f"{name}' is no file that Solution.save has written, or a damaged one"):
            Solution.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Solution.load(tmp_path / "nothing.npz")
    with pytest.raises(FileNotFoundError, match=r"Solution.save: the directory .* does not exist"):
        batch.save(tmp_path / "nowhere" / "a.npz")
    with pytest.raises(IsADirectoryError, match=r"Solution.save: .* is a directory"):
        batch.save(tmp_path)
    with pytest.raises(TypeError, match=r"Solution.save\(\) needs values"):
        jax.jit(lambda: fall(1.0).save(file))()
    with jax.enable_x64(False), pytest.raises(ValueError, match="holds float64, of which JAX would leave half"):
        Solution.load(file)


@pytest.mark.parametrize("name", ["jaxnsd.schemes.base:Lost", "os:system", "jaxnsd.schemes.moreau:Gone"])
def test_what_a_file_names_and_is_not_there(name, batch, tmp_path):
    """Arrays are read all the same; no class of another library is looked for."""
    file, changed = tmp_path / "a.npz", tmp_path / "b.npz"
    batch.save(file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed, "w") as new:
        for member in old.namelist():
            new.writestr(member, old.read(member))
    with np.load(file) as old:
        arrays = {key: old[key] for key in old.files}
    words = json.loads(arrays.pop("about").tobytes())
    words["fields"]["scheme"]["class"] = name
    np.savez(changed, **arrays, about=np.frombuffer(json.dumps(words).encode(), np.uint8))
    with pytest.warns(UserWarning, match=r"scheme of .*b.npz', written by jaxnsd .* is of .*, which is not there: it is None"):
        read = Solution.load(changed)
    assert read.scheme is None
    assert_array_equal(read.q, batch.q)


def test_names_of_contacts():
    """They are those of the system, one for each gap."""

    @jaxnsd.system
    class Wrong(Block):
        contact_names = ("foot and floor",)

    with pytest.raises(ValueError, match=r"Wrong.contact_names must be a tuple of 2 strings, one for each entry of the gap, got"):
        simulate(Wrong(), Moreau(), jnp.ones(2), jnp.ones(2), 0.1, 0.01)
    assert len(Woodpecker.contact_names) == len(Woodpecker().gap(0.0, Woodpecker().initial_state()[0]))


@pytest.mark.slow
def test_names_of_contacts_of_bodies():
    bodies = pytest.importorskip("jaxnsd.bodies")
    box = bodies.assemble(
        [bodies.Body("box", 1.0, shapes=bodies.Box((0.1, 0.2, 0.3), name="hull"), joints=bodies.Free())], bodies.Plane(name="floor")
    )
    q0, u0 = box.initial_state()
    sol = simulate(box, Moreau(), q0.at[2].set(1.0), u0, 0.01, 0.01)
    names = sol.to_xarray().contact_index.values.tolist()
    assert names[:2] == ["floor and hull", "floor and hull 2"] and len(set(names)) == len(names) == sol.P_N.shape[1]
    assert sol.to_xarray().coordinate.values.tolist() == list(box.coordinate_names)
