"""The examples run at a small size, find what they should, and take bad arguments with one line."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from repository import load


def call(capsys, name, *arguments):
    """``(exit status, stdout, stderr)`` of an example, in this process."""
    try:
        status = load(name).main([str(argument) for argument in arguments])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize("name", ["monte_carlo", "identify", "identify_cube", "elastic_bar", "lobatto_figures", "gallery"])
def test_help(capsys, name):
    status, out, _ = call(capsys, name, "--help")
    assert status == 0
    assert "--out" in out and "default" in out


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("monte_carlo", ["--members", "0"], "positive whole number"),
        ("monte_carlo", ["--mu", "-0.1"], "median must be positive"),
        ("monte_carlo", ["--e-N", "1.5"], "mean must lie in (0, 1)"),
        ("monte_carlo", ["--members", "1", "--dt", "0.7"], "dt"),
        ("monte_carlo", ["--out", "nowhere/picture.png"], "nowhere"),
        ("identify", ["--mu", "3"], "--mu must lie between"),
        ("identify", ["--noise", "0"], "--noise"),
        ("identify", ["--dt", "3e-3"], "--dt must divide"),
        ("identify", ["--unknown"], "--unknown"),
        ("elastic_bar", ["--nodes", "1"], "at least 2 nodes"),
        ("elastic_bar", ["--out", "picture.docx"], ".png"),
        ("lobatto_figures", ["--out", __file__], "cannot make the directory"),
        ("lobatto_figures", ["--fast"], "--fast"),
        ("gallery", ["--only", "all"], "'conveyor', 'wheel'"),
        ("identify", ["--out", "picture.docx"], ".png"),
        ("identify_cube", ["nothing.npz"], "no file or folder"),
    ],
)
def test_bad_arguments_get_one_line_and_status_2(capsys, name, arguments, words):
    status, out, err = call(capsys, name, *arguments)
    lines = [line for line in err.replace("\r", "\n").splitlines() if line.startswith(f"{name}.py: ")]
    assert (status, out, len(lines)) == (2, "", 1)
    assert words in lines[0]


@pytest.mark.long
def test_monte_carlo_reports_every_member(capsys, tmp_path):
    picture = tmp_path / "a.png"
    # 40 members in chunks of 16: the last chunk is not full.
    status, out, _ = call(capsys, "monte_carlo", "--members", 40, "--chunk", 16, "--t1", 0.8, "--dt", "4e-4", "--out", picture)
    assert status == 0
    assert picture.stat().st_size > 10_000
    counts = [int(n) for n in re.findall(r"^  [A-Z_]+ +(\d+)", out, re.MULTILINE)]
    assert sum(counts) == 40
    shares = [float(x) for x in re.findall(r"^(?:walk|slide down the pole|come to a stop) +([\d.]+) %", out, re.MULTILINE)]
    assert len(shares) == 3 and abs(sum(shares) - 100) < 0.05
    assert 70 < float(re.search(r"mean ([\d.]+)", out)[1]) < 300
    assert "peak memory" in out


def test_monte_carlo_tells_who_walks():
    example = load("monte_carlo")
    seen = {"speed": np.array([0.1, 1e-4, 0.12, 1.0]), "knocks": np.array([5, 5, 5, 0])}
    stops, walks, slides = (example.becomes(which, seen).tolist() for which in range(3))
    assert walks == [True, False, True, False]
    assert stops == [False, True, False, False] and slides == [False, False, False, True]


@pytest.mark.long
def test_elastic_bar_compares_schemes(capsys, tmp_path):
    picture = tmp_path / "a.png"
    status, out, _ = call(capsys, "elastic_bar", "--nodes", 30, "--dt", "4e-6", "--out", picture)
    assert status == 0
    assert picture.stat().st_size > 10_000
    rows = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in out.splitlines() if re.match(r"\w+(\(.*\))? +\d", line)}
    assert len(rows) == 7
    for contact, rebound, kept, by_scheme, _, _ in rows.values():
        assert abs(contact - 372) < 15  # us: 2 L / c of 29 elements
        assert 0.08 < rebound < 0.1
        assert kept < 1 and by_scheme <= 0
    assert rows["MoreauJean(0.5)"][3] == 0 and rows["MoreauJean(1)"][2] < rows["GeneralizedAlpha(0.5)"][2]


@pytest.mark.long
def test_identify_tells_the_kinds_of_derivative_apart(capsys, tmp_path):
    picture = tmp_path / "a.png"
    # With the default step the error of the motion, which discrete and saltation share, limits both fits to two percent.
    status, out, _ = call(capsys, "identify", "--iterations", 15, "--dt", "1e-3", "--out", picture)
    assert status == 0
    assert picture.stat().st_size > 10_000
    number = r"([\d.]+(?:e[+-]\d+)?)"
    clean = {kind: [float(x) for x in row] for kind, *row in re.findall(rf"^(\w+) +{number} +{number} mm +{number}$", out, re.MULTILINE)}
    # Largest errors of the Jacobian, of the motion in mm and of the parameters.
    jacobian, motion, end = clean["saltation"]
    assert jacobian < 0.05 and end < 1e-2
    assert clean["discrete"][0] > 1 and clean["discrete"][2] > 5 * end
    assert motion == clean["discrete"][1] > 1
    jacobian, motion, end = clean["located"]
    assert jacobian < 1e-13 and motion < 1e-9 and end < 1e-13

    noisy = {
        line.split()[0]: [float(x) for x in line.split(" residual")[0].replace("±", " ").split()[1:]]
        for line in out.splitlines()
        if "±" in line
    }
    assert list(noisy) == list(clean)
    value, error, off = np.array(noisy["located"]).reshape(4, 3).T
    np.testing.assert_allclose(value, [1.0, 2.0, 0.1, 0.6], rtol=5e-3)
    assert np.all(error < 5e-3 * value) and np.all(off < 4)
    assert max(noisy["discrete"][2::3]) > 5
    left = {kind: float(x) for kind, x in re.findall(r"^(\w+) .*residual / noise ([\d.]+)$", out, re.MULTILINE)}
    assert abs(left["located"] - 1) < 0.15 and left["discrete"] > 4 * left["saltation"]


def test_identify_compares_with_a_path_that_bounces_as_it_should():
    """The closed form of the example, at the peaks of its parabolas and where it lands."""
    example = load("identify")
    h, vx, mu, e = 1.0, 2.0, 0.1, 0.6
    fall = np.sqrt(2 * h / 9.81)
    up = e * fall
    speeds = vx - mu * (1 + e) * 9.81 * fall * np.array([0, 1, 1 + e])
    times = np.array([0.0, fall, fall + up, fall + 2 * up, fall + 2 * up + e * up])
    x = np.cumsum(np.diff(times, prepend=0) * [0, *speeds[[0, 1, 1, 2]]])
    path = example.exact(jnp.array([h, vx, mu, e]), jnp.asarray(times))
    np.testing.assert_allclose(path, np.stack([x, [h, 0, e**2 * h, 0, e**4 * h]], axis=1), atol=1e-12)


@pytest.mark.long
def test_lobatto_figures(capsys, tmp_path):
    """No penetration, no opening of joints, orders 2 and 4 without and about one with an impact."""
    status, out, _ = call(capsys, "lobatto_figures", "--quick", "--out", tmp_path / "figures")
    assert status == 0
    for name in ("slider_crank", "slope", "slope_convergence"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 20_000
    assert all(float(x) < 1e-12 for x in re.findall(r"largest penetration ([\d.e+-]+) m", out))
    assert float(re.search(r"opening of a joint ([\d.e+-]+) m", out)[1]) < 1e-12
    for case, expected, tolerance in ((1, {2: 2.0, 3: 4.0}, 0.1), (2, {2: 1.0, 3: 1.0}, 0.5)):
        for line in re.findall(rf"case {case}, (?:positions|velocities): (.*)", out):
            orders = {int(s): float(order) for s, order in re.findall(r"s = (\d) ([\d.]+)", line)}
            assert orders == pytest.approx(expected, abs=tolerance)


@pytest.mark.slow
def test_gallery(capsys, tmp_path):
    status, out, _ = call(capsys, "gallery", "--out", tmp_path, "--only", "woodpecker")
    assert status == 0 and "film" in out
    assert {path.suffix for path in tmp_path.iterdir()} > {".html"}
