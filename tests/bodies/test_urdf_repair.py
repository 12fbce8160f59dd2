"""URDF files that MuJoCo refuses: what ``repair=True`` makes of them is what one would write into the file by hand."""

import itertools
import re
import warnings

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxnsd
from jaxnsd import bodies

pytest.importorskip("mujoco")

from jaxnsd.bodies import repair
from jaxnsd.drawing import meshes

BASE = '<link name="base"><collision><geometry><box size="0.4 0.4 0.4"/></geometry></collision></link>'
#: The lightest link: 0.4 kg, 0.004 kg m^2 at the mean of its moments.
SOUND = (0.4, (0.005, 0.004, 0.003, 0.0002, 0, 0))
#: Its moments about the principal axes 0.01, 0.02 and 0.06, the largest about an axis between y and z.
BAD = (1.0, (0.01, 0.04, 0.04, 0, 0, 0.02))
#: By hand: a third of 0.03 to each of the small ones, and as much from the large one.
MENDED = (1.0, (0.02, 0.04, 0.04, 0, 0, 0.01))
NOTHING = (0.0, (0,) * 6)
LEAST = (0.4e-3, (4e-6, 4e-6, 4e-6, 0, 0, 0))


def link(name, numbers, shape=""):
    """A link with mass and ``(ixx, iyy, izz, ixy, ixz, iyz)``, in a frame that is turned; None: without <inertial>."""
    if numbers is None:
        return f'<link name="{name}">{shape}</link>'
    inertia = " ".join(f'{key}="{float(x)!r}"' for key, x in zip(("ixx", "iyy", "izz", "ixy", "ixz", "iyz"), numbers[1], strict=True))
    origin = '<origin xyz="0 0.02 -0.1" rpy="0.3 0.2 0.1"/>' if numbers[0] and len(set(numbers[1])) > 2 else ""
    return f'<link name="{name}"><inertial>{origin}<mass value="{numbers[0]!r}"/><inertia {inertia}/></inertial>{shape}</link>'


def robot(**numbers):
    """Base and links, one below the other on hinges about y, x, y, ..."""
    names = ["base", *numbers]
    joints = "".join(
        f'<joint name="{b}" type="continuous"><parent link="{a}"/><child link="{b}"/><origin xyz="0.1 0 -0.2"/>'
        f'<axis xyz="{k % 2} {1 - k % 2} 0"/></joint>'
        for k, (a, b) in enumerate(itertools.pairwise(names))
    )
    return f'<robot name="r">{BASE}{"".join(link(name, of) for name, of in numbers.items())}{joints}</robot>'


def repaired(text, **options):
    """System, and the one warning."""
    with pytest.warns(UserWarning, match="repaired") as caught:
        system = bodies.from_urdf(text, repair=True, **options)
    (warning,) = caught
    assert len(str(warning.message)) < 600 and warning.filename == __file__
    return system, str(warning.message)


@pytest.mark.parametrize(
    ("broken", "by_hand", "said"),
    [
        pytest.param(
            {"upper": BAD, "lower": SOUND},
            {"upper": MENDED, "lower": SOUND},
            r"1 inertia that no body can have, changed the least \(by up to 17 %\): 'upper'",
            id="inertia",
        ),
        pytest.param(
            {"yoke": NOTHING, "arm": SOUND, "tip": None},
            {"yoke": LEAST, "arm": SOUND, "tip": LEAST},
            r"2 links that moved without mass, now 0.0004 kg: 'yoke', 'tip'",
            id="mass",
        ),
        pytest.param(
            {"yoke": None, "upper": BAD, "lower": SOUND},
            {"yoke": LEAST, "upper": MENDED, "lower": SOUND},
            r"1 inertia .* 'upper'; 1 link that moved without mass, now 0.0004 kg: 'yoke'",
            id="both",
        ),
        pytest.param(
            {"arm": SOUND, "bob": (0.5, (0,) * 6)},
            {"arm": SOUND, "bob": (0.5, LEAST[1])},
            r"1 link that moved without a moment of inertia, now 4e-06 kg m\^2: 'bob'",
            id="point mass",
        ),
    ],
)
def test_as_mended_by_hand(broken, by_hand, said):
    with pytest.raises(ValueError, match=r"from_urdf: MuJoCo refuses the model: .*; .*, or have it mended with repair=True$"):
        bodies.from_urdf(robot(**broken))
    system, text = repaired(robot(**broken))
    assert re.search(f"^from_urdf: repaired: {said}$", text), text
    wanted = bodies.from_urdf(robot(**by_hand))
    assert jax.tree.structure(system) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(system), jax.tree.leaves(wanted), strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    q0, u0 = system.initial_state()
    fallen, other = (jaxnsd.simulate(s, jaxnsd.MoreauJean(), q0, u0, t1=0.2, dt=1e-3).raise_if_failed() for s in (system, wanted))
    assert_allclose(fallen.q, other.q, atol=1e-7)
    assert np.abs(fallen.q[-1]).max() > 0.1


def test_what_needs_no_repair_is_left_alone():
    """Also what a fixed link lacks, and what one that moves has from the links fixed to it."""
    text = robot(arm=SOUND).replace(
        "</robot>",
        f"""{link("camera", None)}{link("yoke", None)}{link("tool", SOUND)}
        <joint name="a" type="fixed"><parent link="arm"/><child link="camera"/></joint>
        <joint name="b" type="continuous"><parent link="arm"/><child link="yoke"/></joint>
        <joint name="c" type="fixed"><parent link="yoke"/><child link="tool"/></joint></robot>""",
    )
    as_it_is = bodies.from_urdf(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = bodies.from_urdf(text, repair=True)
    for a, b in zip(jax.tree.leaves(as_it_is), jax.tree.leaves(same), strict=True):
        assert_array_equal(a, b)
    # With a defect elsewhere they are left alone as well.
    system, said = repaired(text.replace("</robot>", robot(more=BAD).split(BASE)[1]))
    assert "'more'" in said and "yoke" not in said and "camera" not in said
    assert_allclose(system.mass[system.where("yoke", "body")], SOUND[0], rtol=1e-12)


def test_a_root_that_floats_without_mass():
    system, said = repaired(robot(arm=SOUND).replace(BASE, '<link name="base"/>'), floating=True)
    assert "moved without mass, now 0.0004 kg: 'base'" in said
    assert_allclose(system.mass, [0.4e-3, 0.4])


def test_nothing_is_sound():
    """1 g of a radius of gyration of 1 cm. Of many long names a few are shown."""
    names = [f"a_frame_of_the_robot_between_two_of_its_many_joints_number_{k}" for k in range(12)]
    system, said = repaired(robot(**dict.fromkeys(names)))
    assert_allclose(system.mass, 1e-3)
    assert_allclose(system.inertia, np.broadcast_to(1e-7 * np.eye(3), (12, 3, 3)))
    assert "12 links" in said and "and 11 more" in said


def test_what_is_no_number_of_a_body_stays_refused():
    with pytest.raises(ValueError, match=r"from_urdf: .*mass of the link 'arm' must be a number that is not negative, got -1\.0"):
        bodies.from_urdf(robot(arm=(-1.0, SOUND[1])), repair=True)
    with pytest.raises(TypeError, match="from_urdf: repair must be True or False, got 'yes'"):
        bodies.from_urdf(robot(arm=SOUND), repair="yes")


def test_nearest_moments():
    """Of those that bodies can have: sums of rods with positive weights, the nearest by least squares."""
    optimize = pytest.importorskip("scipy.optimize")
    draws = np.random.default_rng(0)
    rods = 1.0 - np.eye(3)
    for moments in draws.normal(0.5, 1.0, (200, 3)):
        near, wanted = repair.nearest(moments), rods @ optimize.nnls(rods, moments)[0]
        assert_allclose(near, wanted, atol=1e-10)
        # MuJoCo asks for it to the bit.
        low, middle, high = np.sort(near)
        assert low + middle >= high


def test_a_film_shows_what_was_repaired():
    assert list(meshes.of_file(robot(arm=BAD), ("arm",))) == ["world"]


def test_links_that_a_joint_connects_do_not_touch():
    """The base is none of the world: it does not touch the first link that moves, as the first does not touch the second."""
    ball = '<collision><geometry><sphere radius="0.2"/></geometry></collision>'
    text = robot(upper=SOUND, lower=SOUND, hand=SOUND).replace("</inertial>", f"</inertial>{ball}")
    # What is fixed to the base is of it.
    text = text.replace(
        "</robot>",
        f'{link("pole", SOUND, ball)}<joint name="more" type="fixed"><parent link="base"/><child link="pole"/></joint></robot>',
    )

    def touching(**options):
        system = bodies.from_urdf(text, **options)
        names = [re.sub(r"_(box|sphere)_\d+", "", str(contact)) for contact in system.contacts]
        return {frozenset(name.split(" and ")) for name in names}

    def pairs(*texts):
        return {frozenset(text.split()) for text in texts}

    of_arm = pairs("upper hand")
    with_world = pairs("world lower", "world hand")
    floor = pairs("floor upper", "floor lower", "floor hand")
    assert touching() == of_arm | with_world
    assert touching(contacts="world", floor=True) == with_world | floor
    text = text.replace(
        BASE,
        BASE.replace('"base">', '"base"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'),
    )
    afloat = touching(floating=True, floor=True)
    assert afloat == of_arm | pairs("base lower", "base hand", "floor base") | floor
