"""Environments for gymnasium: their motion is that of `simulate`, a batch is its members, what fails is said and ends the episode."""

import dataclasses
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxnsd
from jaxnsd import Moreau, MoreauJean, Outcome, SymmetricMoreau, bodies, gym, models
from jaxnsd.bodies import Body, Motor, Prismatic, Revolute

DT, STEPS = 2e-3, 5


def cart_pole(**options):
    """A cart between two buffers, and a pole on it."""
    cart = Body("cart", mass=1.0, inertia=(0.1,) * 3, joints=Prismatic(axis=(1, 0, 0), name="rail", limits=(-0.06, 0.06)))
    pole = Body("pole", parent="cart", mass=0.2, inertia=(3e-3, 3e-3, 1e-5), center=(0, 0, 0.25), joints=Revolute(axis=(0, 1, 0)))
    motor = Motor("rail", gain=10.0, control_limits=(-1.0, 0.5), name="push")
    return bodies.assemble([cart, pole], motors=[motor], limit_restitution=0.5, **options)


def near_upright(key):
    return jnp.array([0.015, 0.1]) * jax.random.normal(key, (2,)), jnp.zeros(2)


CALLS = []


def upright(sol, action):
    CALLS.append("traced")
    return jnp.cos(sol.q[-1, 1]) - 0.1 * jnp.sum(action**2)


TASK = {
    "dt": DT,
    "steps": STEPS,
    "reward": upright,
    "terminated": lambda t, q, u: jnp.abs(q[1]) > 0.4,
    "reset": near_upright,
    "max_episode_steps": 30,
}


def test_jaxnsd_takes_no_gymnasium():
    code = "import jaxnsd, sys; jaxnsd.bodies, jaxnsd.models; assert 'gymnasium' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_gymnasium():
    code = "import sys; sys.modules['gymnasium'] = None\nfrom jaxnsd import gym\nfor make in (gym.Env, gym.VectorEnv):\n  try: make({})\n"
    code += "  except ImportError as error: print(error)\n"
    done = subprocess.run(
        [sys.executable, "-c", code.format("*(1,) * (3 if make is gym.VectorEnv else 2), dt=1, reward=None")],
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout.splitlines()
    assert [line.split(" needs ")[0] for line in told] == ["gym.Env", "gym.VectorEnv"], done.stderr
    assert all("pip install gymnasium" in line for line in told)


gymnasium = pytest.importorskip("gymnasium")
env_checker = pytest.importorskip("gymnasium.utils.env_checker")


@pytest.fixture(scope="module")
def env():
    return gym.Env(cart_pole(), MoreauJean(), **TASK)


@pytest.fixture(scope="module")
def three():
    return gym.VectorEnv(3, cart_pole(), MoreauJean(), **TASK)


def controls(n, *shape):
    return np.random.default_rng(1).uniform(-1.0, 0.5, (n, *shape))


def of_simulate(system, scheme, q0, u0, actions, dt=DT, steps=STEPS):
    """``(states at the ends of actions, impacts)`` of runs that go on from each other, each with its constant control."""
    sol, states, impacts, start = None, [np.hstack([q0, u0])], 0, {"q0": q0, "u0": u0}
    for action in actions:
        held = dataclasses.replace(system, control=jnp.asarray(action))
        start = start if sol is None else {"q0": None, "u0": None, "start": sol}
        sol = jaxnsd.simulate(held, scheme, dt=dt, n_steps=steps, **start).raise_if_failed()
        states.append(np.hstack([sol.q[-1], sol.u[-1]]))
        impacts += int(sol.count(jaxnsd.Event.IMPACT) + sol.count(jaxnsd.Event.GRAZING))
    return states, impacts


def test_spaces(env, three):
    assert env.action_space == gymnasium.spaces.Box(np.array([-1.0]), np.array([0.5]), dtype=np.float64)
    assert env.observation_space.shape == (4,) and env.observation_space.dtype == np.float64
    assert three.single_action_space == env.action_space and three.action_space.shape == (3, 1)
    assert three.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.NEXT_STEP
    assert env.metadata["render_fps"] == three.metadata["render_fps"] == 100


def test_the_checker_of_gymnasium(env):
    with warnings.catch_warnings():
        # Of a robot nothing bounds the velocities; `make` is not what has made it.
        warnings.filterwarnings("ignore", ".*(Box observation space|recommend using a symmetric|alternative render modes)")
        env_checker.check_env(env)


def test_the_motion_is_that_of_simulate(env):
    """Through impacts on the buffers, in one program."""
    start, info = env.reset(seed=4)
    assert info == {"outcome": Outcome.SUCCESS, "time": 0.0}
    env.step(env.action_space.sample())
    before = len(CALLS)
    start, _ = env.reset(seed=4)
    actions, seen, rewards = controls(25, 1), [start], []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append(observation)
        rewards.append(reward)
        if terminated or truncated:
            break
    assert terminated and not truncated and info["outcome"] == 0 and len(seen) > 10
    own, impacts = of_simulate(cart_pole(), MoreauJean(), jnp.asarray(start[:2]), jnp.asarray(start[2:]), actions[: len(rewards)])
    assert impacts
    assert_allclose(seen, own, rtol=0, atol=1e-11)
    assert_allclose(rewards, np.cos(seen)[1:, 1] - 0.1 * actions[: len(rewards), 0] ** 2, atol=1e-12)
    assert_allclose(info["time"], len(rewards) * STEPS * DT, rtol=1e-12)
    # Nothing was traced, or compiled, anew.
    assert len(CALLS) == before and env._advance._cache_size() == 1


def test_seeds(env):
    """Of an episode, and of those after it; not of the first alone."""

    def episodes(seed):
        env.reset(seed=seed)
        return [env.reset()[0] for _ in range(3)]

    assert_array_equal(episodes(7), episodes(7))
    assert np.all(np.array(episodes(7))[:, :2] != np.array(episodes(8))[:, :2])
    assert len({float(start[0]) for start in (*episodes(7), *episodes(8))}) == 6


def test_a_batch_is_its_members(env, three):
    """With episodes that end at different times, and those that begin by themselves."""
    actions = controls(60, 3, 1)
    batch = [three.reset(seed=11)[0]]
    rest = []
    for action in actions:
        observation, *more, _ = three.step(action)
        batch.append(observation)
        rest.append(more)
    ends = 0
    for member in range(3):
        single, done = [env.reset(seed=11 + member)[0]], False
        for k, action in enumerate(actions[:, member]):
            if done:
                observation, reward, ended = env.reset()[0], 0.0, (False, False)
            else:
                observation, reward, *ended, _ = env.step(action)
            single.append(observation)
            assert_allclose(rest[k][0][member], reward, atol=1e-9)
            assert [x[member] for x in rest[k][1:]] == list(ended)
            done = any(ended)
            ends += done
        assert_allclose(np.array(batch)[:, member], single, rtol=0, atol=1e-9)
    assert ends > 4 and three._advance._cache_size() == 1
    assert_array_equal(three.reset(seed=[13, 12, 11])[0], three.reset(seed=11)[0][::-1])


def test_actions_of_single_precision_drive_a_system_of_double():
    """The dtype of a `Box` that says none."""
    space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    assert space.dtype == np.float32
    single, double = (gym.Env(cart_pole(), MoreauJean(), **TASK | {"action_space": s}) for s in (space, None))
    (_, _), (_, _) = single.reset(seed=0), double.reset(seed=0)
    assert_array_equal(single.step(np.array([0.5], np.float32))[0], double.step(np.array([0.5]))[0])


def test_what_fails_ends_the_episode():
    """A motor that is stronger than a float: it is said, and no number is none."""
    strong = cart_pole().replace({"motor push.gain": 1e200, "motor push.control_limits": (-1e200, 1e200)})
    system, space = strong, gymnasium.spaces.Box(-1e300, 1e300, (1,), np.float64)
    one = gym.Env(system, Moreau(), **TASK | {"action_space": space})
    start, _ = one.reset(seed=0)
    good = one.step(np.zeros(1))
    assert good[3] is False and good[4]["outcome"] == Outcome.SUCCESS
    observation, reward, terminated, truncated, info = one.step(np.array([1e200]))
    assert (terminated, truncated, info["outcome"]) == (False, True, Outcome.NON_FINITE)
    assert_array_equal(observation, good[0])
    assert reward == 0.0 and np.any(start != good[0])
    # A number that is none is one more action of which no step is made.
    assert one.step(np.array([np.nan]))[4]["outcome"] == Outcome.NON_FINITE
    assert one.reset()[1]["outcome"] == Outcome.SUCCESS and not one.step(np.zeros(1))[3]


@jaxnsd.system
class Ball(jaxnsd.System):
    mass: float = 1.0
    push: float = 0.0
    e_N: float = 0.5

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def force(self, t, q, u):
        return self.push - 9.81 * self.mass * jnp.ones(1)

    def gap(self, t, q):
        return q


def test_systems_of_their_own():
    """A system that is not made of bodies, whose mass is drawn for each episode; what is observed is said."""

    def drawn(key):
        return Ball(mass=jax.random.uniform(key, minval=1.0, maxval=2.0)), jnp.array([0.1]), jnp.zeros(1)

    ball = gym.Env(
        Ball(),
        SymmetricMoreau(),
        dt=1e-2,
        steps=20,
        reward=lambda sol, action: sol.P_N.sum(),
        observe=lambda t, q, u: jnp.concatenate([q, t[None]]),
        reset=drawn,
        act=lambda system, action: dataclasses.replace(system, push=action[0]),
        action_space=gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64),
    )
    masses = set()
    for _ in range(3):
        start, _ = ball.reset()
        mass = ball._state.system.mass
        masses.add(float(mass))
        struck = []
        for push in (0.5, -0.5):
            observation, reward, *_ = ball.step(np.array([push]))
            struck.append(reward)
        # The scheme acts in the middle of steps, and before the first one: with the first action.
        first = jaxnsd.simulate(Ball(mass, jnp.array(0.5)), SymmetricMoreau(), jnp.array([0.1]), jnp.zeros(1), dt=1e-2, n_steps=20)
        second = jaxnsd.simulate(Ball(mass, jnp.array(-0.5)), SymmetricMoreau(), None, None, dt=1e-2, n_steps=20, start=first)
        assert_allclose(struck, [first.P_N.sum(), second.P_N.sum()], atol=1e-10)
        assert_allclose(observation, [second.q[-1, 0], 0.4], atol=1e-12)
        assert struck[0] > 0 and start.shape == (2,)
    assert len(masses) == 3 and min(masses) > 1


def test_pictures():
    options = {"render_mode": "rgb_array", "picture": {"size": (96, 64), "follow": "cart"}}
    one = gym.Env(cart_pole(), MoreauJean(), **TASK | options)
    one.reset(seed=0)
    first = one.render()
    assert first.shape == (64, 96, 3) and first.dtype == np.uint8 and np.ptp(first) > 50
    for _ in range(5):
        one.step(np.array([0.5]))
    assert np.any(one.render() != first)


LIMITED = cart_pole()
WRONG = {
    "no motors": ("act.* must be given", lambda: gym.Env(models.BouncingBall(), Moreau(), **TASK)),
    "no limits": (
        "control of the motor 'push' has no limits",
        lambda: gym.Env(LIMITED.replace({"motor push.control_limits": (-np.inf, np.inf)}), Moreau(), **TASK),
    ),
    "no system": ("must be an instance", lambda: gym.Env(None, Moreau(), **TASK)),
    "no scheme": ("must be a scheme", lambda: gym.Env(LIMITED, Moreau, **TASK)),
    "steps": ("steps must be a whole number", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"steps": 0})),
    "dt": ("dt must be", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"dt": "a"})),
    "reward of one argument": (r"reward must take \(sol, action\)", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"reward": lambda sol: 0})),
    "reward of two numbers": ("one number", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"reward": lambda sol, action: sol.q[-1]})),
    "terminated by numbers": ("one boolean", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"terminated": lambda t, q, u: q > 0})),
    "observe a number": ("one vector", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"observe": lambda t, q, u: q[0]})),
    "reset gives an array": ("must return", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"reset": lambda key: jnp.zeros(4)})),
    "reset beyond a limit": ("limit", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"reset": lambda key: (jnp.ones(2), jnp.zeros(2))})),
    "render_mode": ("render_mode must be", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"render_mode": "human"})),
    "picture": ("picture must be", lambda: gym.Env(LIMITED, Moreau(), **TASK | {"render_mode": "rgb_array", "picture": {"zoom": 2}})),
    "observation space": (
        "observation_space must be",
        lambda: gym.Env(LIMITED, Moreau(), **TASK | {"observation_space": gymnasium.spaces.Box(-1, 1, (3,))}),
    ),
    "num_envs": ("num_envs", lambda: gym.VectorEnv(0, LIMITED, Moreau(), **TASK)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs(case):
    words, call = WRONG[case]
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_wrong_calls(env, three):
    for action in (np.zeros(2), None, "left"):
        with pytest.raises(ValueError, match=r"action must be numbers of shape \(1,\)"):
            env.step(action)
    with pytest.raises(ValueError, match="seed must be one number, or one for each of the 3 members"):
        three.reset(seed=[1, 2])
    with pytest.raises(RuntimeError, match="step must come after reset"):
        gym.Env(LIMITED, MoreauJean(), **TASK).step(np.zeros(1))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Moreau(), SymmetricMoreau(), jaxnsd.GeneralizedAlpha(rho_inf=0.8)], ids=lambda s: s.name)
def test_a_hopper(scheme):
    """The leg of the scenes, whose servos say no limits of their controls: one batch, and `simulate`."""
    leg = bodies.from_mjcf(models.SCENES["leg"])
    lift = leg.coordinate_names.index("up in m")
    options = {
        "dt": 1e-3,
        "steps": 20,
        "reward": lambda sol, action: sol.q[-1, 0] - sol.q[0, 0],
        "terminated": lambda t, q, u: q[lift] < -0.5,
        "action_space": gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64),
    }
    one, two = gym.Env(leg, scheme, **options), gym.VectorEnv(2, leg, scheme, **options)
    start, _ = one.reset()
    two.reset()
    actions = 0.3 * np.random.default_rng(0).uniform(-1, 1, (20, 2))
    seen = [start]
    for action in actions:
        observation, _, _, truncated, info = one.step(action)
        many, *_ = two.step(np.stack([action, -action]))
        assert not truncated and info["outcome"] == 0
        assert_allclose(many[0], observation, atol=1e-7)
        seen.append(observation)
    own, impacts = of_simulate(leg, scheme, *leg.initial_state(), actions, 1e-3, 20)
    assert impacts
    assert_allclose(seen, own, atol=1e-7)
    assert one._advance._cache_size() == 1


@pytest.mark.slow
def test_wrappers_of_gymnasium():
    """A limit of time and normalized actions around one; statistics of episodes around a batch."""
    one = gymnasium.wrappers.RescaleAction(gymnasium.wrappers.TimeLimit(gym.Env(cart_pole(), MoreauJean(), **TASK), 3), -1.0, 1.0)
    one.reset(seed=0)
    assert [one.step(np.ones(1))[3] for _ in range(3)] == [False, False, True]
    batch = gymnasium.wrappers.vector.RecordEpisodeStatistics(gym.VectorEnv(8, cart_pole(), MoreauJean(), **TASK))
    observations, _ = batch.reset(seed=0)
    lengths = []
    for _ in range(80):
        observations, *_, infos = batch.step(0.4 * np.sign(observations[:, 1:2]))
        lengths += list(infos["episode"]["l"][infos["_episode"]]) if "episode" in infos else []
    assert len(lengths) >= 16 and max(lengths) <= 30
