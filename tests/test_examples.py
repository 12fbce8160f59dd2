"""The examples run at a small size, find what they should, and take bad arguments with one line."""

import importlib.util
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(capsys, name, *arguments):
    """``(exit status, stdout, stderr)`` of an example, in this process."""
    try:
        status = load(name).main([str(argument) for argument in arguments])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize("name", ["monte_carlo", "identify", "elastic_bar", "lobatto_figures"])
def test_help(capsys, name):
    status, out, _ = call(capsys, name, "--help")
    assert status == 0
    assert "--out" in out and "default" in out


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("monte_carlo", ["--members", "0"], "positive whole number"),
        ("monte_carlo", ["--mu", "-0.1"], "--mu"),
        ("monte_carlo", ["--e-N", "1.5"], "--e-N"),
        ("monte_carlo", ["--members", "1", "--dt", "0.7"], "dt"),
        ("monte_carlo", ["--out", "nowhere/picture.png"], "nowhere"),
        ("identify", ["--mu", "3"], "--mu must lie between"),
        ("identify", ["--noise", "0"], "--noise"),
        ("identify", ["--unknown"], "--unknown"),
        ("elastic_bar", ["--nodes", "1"], "at least 2 nodes"),
        ("elastic_bar", ["--out", "picture.docx"], ".png"),
        ("lobatto_figures", ["--out", __file__], "cannot make the directory"),
        ("lobatto_figures", ["--fast"], "--fast"),
        ("identify", ["--out", "picture.docx"], ".png"),
    ],
)
def test_bad_arguments_get_one_line_and_status_2(capsys, name, arguments, words):
    status, out, err = call(capsys, name, *arguments)
    lines = [line for line in err.replace("\r", "\n").splitlines() if line.startswith(f"{name}.py: ")]
    assert (status, out, len(lines)) == (2, "", 1)
    assert words in lines[0]


def test_monte_carlo_reports_every_member(capsys, tmp_path):
    picture = tmp_path / "a.png"
    # 40 members in chunks of 16: the last chunk is not full.
    status, out, _ = call(capsys, "monte_carlo", "--members", 40, "--chunk", 16, "--t1", 0.8, "--dt", "4e-4", "--out", picture)
    assert status == 0
    assert picture.stat().st_size > 10_000
    counts = [int(n) for n in re.findall(r"^  [A-Z_]+ +(\d+)", out, re.MULTILINE)]
    assert sum(counts) == 40
    shares = [float(x) for x in re.findall(r"([\d.]+) % (?:walk|slide|come)", out)]
    assert len(shares) == 3 and abs(sum(shares) - 100) < 0.05
    assert 70 < float(re.search(r"mean ([\d.]+)", out)[1]) < 300
    assert "peak memory" in out


def test_monte_carlo_leaves_out_what_failed(capsys):
    example = load("monte_carlo")
    args = example._parser().parse_args(["--members", "4"])
    results = {"speed": np.array([0.1, np.nan, 0.12, 1.0]), "knocks": np.array([5, 5, 5, 0]), "outcome": np.array([0, 3, 0, 0])}
    walks = example.report(results, np.full(4, 0.3), args, 1.0, 0.0)
    out = capsys.readouterr().out
    assert walks.tolist() == [True, False, True, False]
    assert re.search(r"NON_FINITE +1   left out", out)
    assert "66.67 % walk" in out and "mean 110.00" in out


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


def test_identify_recovers_the_parameters_within_their_errors(capsys, tmp_path):
    picture = tmp_path / "a.png"
    status, out, _ = call(capsys, "identify", "--starts", 2, "--iterations", 120, "--out", picture)
    assert status == 0
    assert picture.stat().st_size > 10_000
    rows = re.findall(r"^(stiffness|damping|mu) +([\d.]+) +([\d.]+) +([\d.]+)", out, re.MULTILINE)
    assert len(rows) == 3
    for name, value, error, truth in rows:
        assert abs(float(value) - float(truth)) < 4 * float(error), name
        assert float(error) < 0.1 * float(truth), name
    assert "\n0 reversals of sliding" in out


def test_identify_has_the_derivatives_of_the_exact_motion():
    example = load("identify")
    truth = jnp.array([200.0, 1.5, 0.25])

    def position(parameters, dt):
        return example.motion(parameters, dt).q[:, 0]

    # Ten times finer, and a difference so wide that sticking begins and ends in other steps at its two ends.
    discrete = np.asarray(jax.jacfwd(position)(truth, example.DT))
    for i, width in enumerate((0.5, 0.02, 5e-4)):
        shift = jnp.zeros(3).at[i].set(width)
        exact = np.asarray(position(truth + shift, example.DT / 10) - position(truth - shift, example.DT / 10)) / (2 * width)
        assert np.max(np.abs(discrete[:, i] - exact)) < 0.015 * np.max(np.abs(exact)), example.NAMES[i]


@pytest.mark.slow
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
