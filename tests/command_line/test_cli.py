"""The command line: what it prints and writes, its exit status, and one clear line for every bad argument."""

import importlib.util
import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd.command_line import cli, demo, given
from jaxnsd.models import MODELS, BouncingBall, RotatingBall
from jaxnsd.simulation.parts import PartedRun


def call(capsys, *arguments):
    """``(exit status, stdout, stderr)`` of the command line, in this process."""
    try:
        status = cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def test_help_names_every_command(capsys):
    status, out, _ = call(capsys, "--help")
    assert status == 0
    for word in ("list", "run", "compare", "orbit", "ensemble", "demo", "--cache", "JAX_COMPILATION_CACHE_DIR"):
        assert word in out


def test_list_names_every_model_scheme_and_parameter(capsys):
    status, out, _ = call(capsys, "list")
    assert status == 0
    for name in (*MODELS, *given.SCHEMES, "e_N_beak=0.5", "omega=0.0", "order 2"):
        assert name in out
    assert set(given.SCHEMES) >= {"Moreau", "SymmetricMoreau", "VariationalMoreau"}


def test_speed_is_that_of_the_steps_alone():
    """Of a short run the checks of its input take longer: a hopper of 500 steps was said to run at a tenth of its speed."""

    def make():
        time.sleep(0.5)
        return PartedRun(BouncingBall(), jaxnsd.Moreau(), np.ones(1), np.zeros(1), 0.1, 1e-3)

    run, stop, _, step = cli._computed(make, False)
    assert stop is None and run.steps == 100 and 0 < 100 * step < 0.25


@pytest.mark.slow
def test_run_writes_what_simulate_returns(capsys, tmp_path):
    settings = ["--set", "e_N=0", "--set", "omega=50", "--dt", "1e-2", "--t1", "1", "--save-every", "2", "--scheme", "SymmetricMoreau"]
    status, out, err = call(capsys, "run", "RotatingBall", *settings, "--out", tmp_path / "a.npz", "--plot", tmp_path / "a.png")
    assert (status, err) == (0, "")
    assert "steps       100" in out
    assert "success     yes" in out
    system = RotatingBall(e_N=0.0)
    expected = jaxnsd.simulate(system, jaxnsd.SymmetricMoreau(), *system.initial_state(omega=50.0), 1.0, 1e-2, save_every=2)
    with np.load(tmp_path / "a.npz") as file:
        for name in ("t", "q", "u", "P_N", "P_F", "outcome"):
            assert_allclose(file[name], getattr(expected, name), rtol=1e-12, atol=1e-14, err_msg=name)
        assert json.loads(str(file["settings"]))["model"] == "RotatingBall"
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_settings_of_other_types(capsys):
    status, out, _ = call(capsys, "run", "BeadColumn", "--set", "n=2", "--set", "mass=0.1,0.2", "--t1", "0.1", "--dt", "1e-2")
    assert status == 0
    assert "success     yes" in out
    status, _, err = call(capsys, "run", "BeadColumn", "--set", "n=2.5")
    assert (status, err) == (2, "jaxnsd run: n must be a whole number, got '2.5'\n")
    assert call(capsys, "run", "SpringPendulum", "--set", "gap_is_distance=true", "--t1", "0.1", "--dt", "1e-2")[0] == 0


@pytest.mark.slow
def test_a_failed_simulation_is_written_and_said(capsys, tmp_path):
    files = [tmp_path / "a.npz", tmp_path / "a.png"]
    with pytest.warns(UserWarning, match="too long a step"):
        status, out, err = call(capsys, "run", "SpringPendulum", "--dt", "1", "--t1", "100", "--out", files[0], "--plot", files[1])
    assert status == 1
    assert "success     no" in out
    assert err.startswith("jaxnsd run: DIVERGED in step")
    assert err.count("\n") == 1
    assert all(file.exists() for file in files)


@pytest.mark.slow
def test_a_scheme_may_be_made_of_a_scheme(capsys):
    status, out, _ = call(
        capsys, "run", "BouncingBall", "--scheme", "LocatedImpacts(MoreauJean(theta=0.55), 1)", "--t1", "1", "--dt", "1e-2"
    )
    assert status == 0 and "LocatedImpacts" in out


@pytest.mark.slow
def test_a_scheme_may_be_a_call_with_numbers(capsys):
    status, out, _ = call(capsys, "run", "elastic_bar", "--set", "n=5", "--scheme", "HHT(alpha=0.1)", "--t1", "1e-4", "--dt", "2e-6")
    assert status == 0
    assert "elastic_bar, HHT(alpha=0.1), dt = 2e-06 s" in out


@pytest.mark.slow
def test_compare_prints_the_table_to_choose_by(capsys):
    schemes = ["--scheme", "MoreauJean", "--scheme", "MoreauJean(theta=1)", "--scheme", "KrenkHogsberg"]
    status, out, err = call(capsys, "compare", "BouncingBall", *schemes, "--set", "e_N=0", "--dt", "1e-2")
    assert status == 0
    assert err.splitlines() == [
        f"{i} of 3: {name} is compiled and run, with dt, dt/2 and dt/4" for i, name in ((1, "MoreauJean()"), (2, "MoreauJean(theta=1.0)"))
    ]
    lines = out.splitlines()
    for column in ("seen", "drift", "created", "J/impact"):
        assert re.search(rf"^  {column} +\w", out, re.MULTILINE)
    assert lines[2].split() == ["scheme", "order", "seen", "drift", "created", "impacts", "J/impact", "penetration", "m", "us/step"]
    rows = {line.split()[0]: line.split()[1:] for line in lines if "()" in line or "=" in line[:20]}
    half, one = rows["MoreauJean()"], rows["MoreauJean(theta=1.0)"]
    assert (half[0], one[0]) == ("2", "1")
    # theta = 1/2 integrates free fall exactly; the plastic impact takes the energy of the fall, 0.981 J.
    assert abs(float(half[2])) < 1e-12 and half[4] == "1"
    assert abs(float(half[5]) - 0.981) < 0.03
    # The ball comes in a little after the plane that was predicted, within a step.
    assert float(half[6]) < 0.5 * 1e-2 * 4.43
    assert "not taken: KrenkHogsberg: it weighs K q and the other forces differently" in out


@pytest.mark.slow
def test_as_a_module_in_single_precision():
    # In a process of its own, since precision is a setting of the process.
    command = [sys.executable, "-m", "jaxnsd", "run", "BouncingBall", "--float32", "--dt", "1e-2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "float32" in done.stdout


def test_identification_windows_hold_one_impact_each_and_share_no_start():
    u = np.zeros((400, 3))
    u[:, 1] = -1.0
    u[100:, 1] = 1.0
    u[250:, 1] = -1.0 + 2.0 * (np.arange(150) >= 50)
    starts, length = demo.windows(u)
    assert len(np.unique(starts)) == len(starts) == 20
    jumps = np.array([99, 299])
    assert np.all(np.sum((starts[:, None] <= jumps) & (jumps < starts[:, None] + length), axis=1) == 1)


@pytest.mark.long
def test_demo(capsys, tmp_path):
    status, out, _ = call(capsys, "demo", "--quick", "--out", tmp_path / "new" / "directory")
    assert status == 0
    directory = tmp_path / "new" / "directory"
    assert {file.name for file in directory.iterdir()} == {"limit_cycle.png", "ensemble.png", "identification.png", "demo.npz"}
    with np.load(directory / "demo.npz") as file:
        assert_allclose(file["limit_cycle_period"], demo.PERIOD, rtol=5e-3)
        assert 0.05 < np.mean(file["ensemble_falls"]) < 0.3
        assert np.all(file["ensemble_success"])
        errors = np.sqrt(np.diag(file["identification_covariance"]))
        assert np.all(np.abs(file["identification_best"] - list(demo.TRUTH.values())) < 3 * errors)
        assert np.all(errors < [0.01, 0.002])
    assert "published: 0.146 s" in out


# ------------------------------------------------------------------------------------------------------ files of models
LIFT = """<mujoco><worldbody>
  <body name="cart"><joint name="rail" type="slide" axis="0 0 1"/><geom size="0.1" contype="0" conaffinity="0"/><site name="a"/></body>
  <site name="b" pos="0 0 1"/><geom name="post" size="0.05" pos="1 0 0" contype="0" conaffinity="0"/></worldbody>
  <tendon><spatial name="rope" stiffness="1"><site site="a"/><geom geom="post"/><site site="b"/></spatial></tendon></mujoco>"""


@pytest.mark.slow
def test_a_file_of_mjcf_is_run_and_drawn(capsys, tmp_path):
    """A body that falls for half a second: the arrays are those of free fall, the picture is a strobe, what is left out is said."""
    pytest.importorskip("mujoco")
    path = tmp_path / "lift.xml"
    path.write_text(LIFT)
    files = ["--out", tmp_path / "a.npz", "--plot", tmp_path / "a.png"]
    status, out, err = call(capsys, "run", path, "--dt", "1e-2", "--t1", "0.5", "--scheme", "SymmetricMoreau", *files)
    assert status == 0, err
    assert "from_mjcf: not taken: the tendon 'rope'" in err
    assert "success     yes" in out
    with np.load(tmp_path / "a.npz") as file:
        assert_allclose(file["q"][:, 0], -0.5 * 9.81 * file["t"] ** 2, atol=1e-12)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


MIMIC = """<robot name="gripper"><link name="palm"/>
  <link name="left"><inertial><mass value="0.1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="right"><inertial><mass value="0.1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="l" type="prismatic"><parent link="palm"/><child link="left"/><axis xyz="1 0 0"/>
    <limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
  <joint name="r" type="prismatic"><parent link="palm"/><child link="right"/><axis xyz="1 0 0"/>
    <limit lower="-1" upper="1" effort="1" velocity="1"/><mimic joint="l" multiplier="-1" offset="0.02"/></joint></robot>"""


@pytest.mark.slow
def test_a_file_whose_loops_are_open_is_closed_first(capsys, tmp_path):
    """A gripper whose second finger is 0.02 m off at the reference; nothing acts on it, and it stays where it was closed."""
    pytest.importorskip("mujoco")
    path = tmp_path / "gripper.urdf"
    path.write_text(MIMIC)
    status, _, err = call(
        capsys, "run", path, "--dt", "1e-2", "--t1", "0.02", "--out", tmp_path / "a.npz", "--set", "limit_restitution=0.5"
    )
    assert status == 0, err
    assert "loops of gripper.urdf are open by 0.02" in err
    with np.load(tmp_path / "a.npz") as file:
        assert_allclose(file["q"][:, 0] + file["q"][:, 1], 0.02, atol=1e-12)


def test_wrong_files_are_refused(capsys, tmp_path, monkeypatch):
    status, _, err = call(capsys, "run", "nowhere.xml")
    assert (status, err) == (2, "jaxnsd run: there is no file 'nowhere.xml'\n")
    path = tmp_path / "a.xml"
    path.write_text("<mujoco><worldbody>")
    status, _, err = call(capsys, "run", path, "--set", "mass=3")
    assert status == 2 and "a.xml has no parameter 'mass'; it has e_N, e_F" in err and err.count("\n") == 1
    if importlib.util.find_spec("mujoco"):
        status, _, err = call(capsys, "run", path)
        assert status == 2 and err.startswith("jaxnsd run: from_mjcf: MuJoCo refuses the model") and err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "mujoco", None)
    status, _, err = call(capsys, "run", "falling_box")
    assert status == 2 and "pip install mujoco" in err and err.count("\n") == 1


ENSEMBLE = ["ensemble", "BouncingBall", "--n", 300, "--sample", "e_N=uniform(0.4,0.9)", "--dt", "2e-2", "--t1", "0.8"]


def test_ensemble_prints_statistics_and_goes_on_from_its_store(capsys, tmp_path):
    pytest.importorskip("zarr")
    store = ["--observe", "e_N", "--observe", "q[0]", "--observe", "max(q[0])", "--observe", "impacts", "--store", tmp_path / "a.zarr"]
    status, out, err = call(capsys, *ENSEMBLE, *store)
    assert (status, err) == (0, "")
    assert "300 of 300 members" in out and re.search(r"^computed    300 in", out, re.MULTILINE)
    rows = {line.split()[0]: line for line in out.splitlines() if line and line.split()[0] in ("e_N", "q[0]", "max(q[0])", "impacts")}
    assert len(rows) == 4
    mean, low, high = (float(x) for x in re.findall(r"[\d.]+", rows["e_N"].removeprefix("e_N"))[:3])
    assert low < mean < high and abs(mean - 0.65) < 0.04 and 0.02 < high - low < 0.05
    assert float(rows["max(q[0])"].split()[1]) == 1.0 == float(rows["impacts"].split()[1])
    status, again, err = call(capsys, *ENSEMBLE, *store, "--resume")
    assert (status, err) == (0, "") and "300 were in the store" in again
    assert again.splitlines()[4:] == out.splitlines()[4:]
    status, _, err = call(capsys, *ENSEMBLE, *store, "--seed", 1)
    assert status == 2 and "another key" in err and err.count("\n") == 1


@pytest.mark.long
def test_the_limit_cycle_of_a_woodpecker(capsys, tmp_path):
    """Its period and multiplier beside an integration from event to event, of first order as long as openings are not located."""
    status, out, err = call(
        capsys,
        "orbit",
        "Woodpecker",
        "--follow",
        "mu",
        "--to",
        0.31,
        "--points",
        6,
        "--out",
        tmp_path / "branch.npz",
        "--plot",
        tmp_path / "orbit.png",
    )
    assert (status, err) == (0, "") and "CONVERGED" in out and "stable      yes" in out
    period = float(re.search(r"period = ([0-9.]+) s", out)[1])
    assert abs(period - 0.1459760651437518) < 5e-7
    sizes = [float(text) for text in re.findall(r"absolute value ([0-9.]+)", out)]
    # Of six multipliers four are exactly zero: the contact that sticks forgets all but one direction and the shift in time.
    assert len(sizes) == 6 and abs(sizes[0] - 1) < 5e-3 and abs(sizes[1] - 0.83915565304759) < 5e-3 and sizes[2:] == [0.0] * 4
    assert (tmp_path / "orbit.png").read_bytes()[:4] == b"\x89PNG"
    branch = jaxnsd.orbits.Branch.load(tmp_path / "branch.npz")
    # A contact that opens on the way is no near miss.
    assert len(branch) == 6 and not branch.special and branch.stable.all() and (np.diff(branch.values) > 0).all()


@pytest.mark.long
def test_where_the_woodpecker_doubles_its_period_in_two_parameters(capsys, tmp_path):
    """The curve starts at the known friction, and a multiplier is -1 all along."""
    options = ["--follow", "mu", "--to", 0.2895, "--curve", "mass_woodpecker", "--curve-to", 0.0046, "--points", 26]
    scheme = ["--scheme", "LocatedImpacts(Lobatto(3), slowest=1e-3)", "--steps", 1000]
    files = ["--out", tmp_path / "curve.npz", "--plot", tmp_path / "curve.png"]
    status, out, err = call(capsys, "orbit", "Woodpecker", *options, *scheme, *files)
    assert (status, err) == (0, "") and "period doubling at 0.290128" in out and "curve       Curve(period doubling" in out
    curve = jaxnsd.orbits.Curve.load(tmp_path / "curve.npz")
    assert curve.parameters == ("mu", "mass_woodpecker") and abs(curve.values[0, 0] - 0.29012853) < 1e-7
    assert np.all(np.min(np.abs(curve.multipliers + 1), axis=1) < 1e-6) and np.all(np.diff(curve.values[:, 1]) > 0)
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
