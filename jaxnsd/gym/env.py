"""One environment, for gymnasium."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..programs.given import numbers, shown
from . import picture, task

try:
    import gymnasium
except ImportError:
    gymnasium = None


def needed(caller: str) -> None:
    """Raise ImportError where there is no gymnasium."""
    if gymnasium is None:
        raise ImportError(f"{caller} needs the package gymnasium: pip install gymnasium")


class Env(gymnasium.Env if gymnasium else object):
    """An environment of gymnasium: a system whose motors an agent drives. An action is held for ``steps`` steps of the scheme.

    system, scheme:    see `simulate`; a system of `jaxnsd.bodies` with motors, or any other with ``act``
    dt, steps:         step in s, and how many of them an action is held
    reward:            ``reward(sol, action)``, one number: ``sol`` is the `Solution` of these steps, from where the action begins
    terminated:        ``terminated(t, q, u)``, one boolean, asked at the end of the steps; None: never
    observe:           ``observe(t, q, u)``, (n_o,) numbers; None: q and u, one after the other
    reset:             ``reset(key)``, with a key of `jax.random`, gives the start ``(q0, u0)`` of an episode at t = 0, or, with a system of
                       its own that differs in its numbers alone, ``(system, q0, u0)``; None: the system's ``initial_state()``
    act:               ``act(system, action)`` gives the system on which the action acts; None: the action is the control of the motors
    action_space, observation_space: None: a Box of the limits of the motors' controls, and one without bounds
    max_episode_steps: after so many actions the episode is truncated; None: never
    solver:            see `simulate`
    render_mode:       "rgb_array": `render` returns a picture, (height, width, 3) of uint8. None: there are none
    picture:           options of pictures: ``follow``, ``view``, ``size``, ``geometry``, ``title`` of `jaxnsd.drawing.film`

    All functions are traced by JAX, into one program that the first step compiles. ``info`` has "outcome", a code of `jaxnsd.Outcome`, and
    "time" in s. **Where a step fails the episode is truncated** with the code of the first step that failed: the observation is that of the
    state before the action, the reward is 0.

    The motion is that of runs of `simulate`, one after the other, each with its constant control. Seeds are gymnasium's: with
    ``reset(seed=...)`` episodes are the same again.

    Raises ImportError without the package ``gymnasium``; TypeError or ValueError for what makes no run, as `simulate` does, and for motors
    without limits where there is no action_space.
    """

    def __init__(
        self,
        system: Any,
        scheme: Any,
        *,
        dt: float,
        steps: int = 1,
        reward: Callable[..., Any],
        terminated: Callable[..., Any] | None = None,
        observe: Callable[..., Any] | None = None,
        reset: Callable[..., Any] | None = None,
        act: Callable[..., Any] | None = None,
        action_space: Any = None,
        observation_space: Any = None,
        max_episode_steps: int | None = None,
        solver: Any = None,
        render_mode: str | None = None,
        picture: dict[str, Any] | None = None,
    ) -> None:
        needed("gym.Env")
        self._task = task.task("gym.Env", system, scheme, dt, steps, reward, terminated, observe, reset, act, max_episode_steps, solver)
        self.action_space, self.observation_space = spaces("gym.Env", self._task, action_space, observation_space)
        self.metadata = metadata(dt, steps)
        self.render_mode, self._camera = render_mode, camera("gym.Env", system, render_mode, picture)
        self._begin, self._advance = jax.jit(self._begun), jax.jit(self._task.advance)
        self._state = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """``(observation, info)`` at the start of an episode; there are no options."""
        super().reset(seed=seed)
        self._state, said = self._begin(drawn(self.np_random))
        self._start = self._state
        observation, *_, outcome, t = jax.device_get(said)
        return observation.copy(), {"outcome": int(outcome), "time": float(t)}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """``(observation, reward, terminated, truncated, info)`` after the steps with this action."""
        if self._state is None:
            raise RuntimeError("gym.Env: step must come after reset(), which starts an episode")
        action = given("gym.Env", action, self.action_space)
        self._state, said = self._advance(self._state, action)
        observation, reward, terminated, truncated, outcome, t = jax.device_get(said)
        info = {"outcome": int(outcome), "time": float(t)}
        return observation.copy(), float(reward), bool(terminated), bool(truncated), info

    def render(self) -> np.ndarray | None:
        """The picture of the system as it is, with all of where it started and is in sight; None without a ``render_mode``."""
        if self._camera is None:
            return None
        if self._state is None:
            raise RuntimeError("gym.Env: render must come after reset(), which starts an episode")
        return picture.of(self._task, self._start, self._state, **self._camera)

    def _begun(self, seed):
        state = self._task.begin(seed)
        return state, self._task.said(state)


def drawn(generator):
    """A number for a key of `jax.random`."""
    return np.uint32(generator.integers(1 << 32))


def given(caller, action, space):
    """An action, or those of a batch, as the space has them."""
    array = numbers(action)
    if array is None or np.shape(array) != space.shape:
        raise ValueError(f"{caller}: the action must be numbers of shape {space.shape}, got {shown(action)}")
    return np.asarray(array, space.dtype)


def spaces(caller, of, action_space, observation_space):
    """``(action space, observation space)`` of a `Task`, which is checked."""
    if action_space is None:
        low, high = task.limits(caller, of.system)
        dtype = np.dtype(of.system.mass.dtype)
        action_space = gymnasium.spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    if not isinstance(action_space, gymnasium.spaces.Space) or action_space.shape is None:
        raise TypeError(f"{caller}: action_space must be a space of gymnasium whose members are arrays, got {shown(action_space)}")
    said, dtype = of.checked(np.zeros(action_space.shape, action_space.dtype))
    if observation_space is None:
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, said.observation.shape, np.dtype(said.observation.dtype))
    wanted = said.observation.shape, said.observation.dtype
    if (getattr(observation_space, "shape", None), getattr(observation_space, "dtype", None)) != wanted:
        raise ValueError(
            f"{caller}: observation_space must be of the shape and dtype of what is observed, {wanted[0]} of {wanted[1]}, got "
            f"{shown(observation_space)}"
        )
    return action_space, observation_space


def metadata(dt, steps):
    """What gymnasium asks for: the modes of `render`, and its frames a second in real time."""
    return {"render_modes": ["rgb_array"], "render_fps": max(1, round(1 / (dt * steps)))}


def camera(caller, system, render_mode, options):
    """Options of pictures, or None where there are none."""
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f'{caller}: render_mode must be None or "rgb_array", got {shown(render_mode)}')
    return None if render_mode is None else picture.checked(caller, system, options)
