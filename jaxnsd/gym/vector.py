"""A batch of environments, for gymnasium."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..programs.given import shown, whole
from . import picture, task
from .env import camera, drawn, given, gymnasium, metadata, needed, spaces


class VectorEnv(gymnasium.vector.VectorEnv if gymnasium else object):
    """``num_envs`` environments as one, whose steps are a batch. The rest is as in `Env`.

    Of arrays the first axis is that of the members: observations (num_envs, n_o), rewards (num_envs,), and so on. A member whose episode
    has ended starts the next one by itself with its next step, in which its action is not looked at and its reward is 0 (gymnasium's
    ``AutoresetMode.NEXT_STEP``). ``reset(seed=7)`` gives the member i the seed 7 + i; a list of seeds gives each its own. A member does
    what an `Env` with its seed does. Pictures are those of all members, one after the other.
    """

    def __init__(
        self,
        num_envs: int,
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
        needed("gym.VectorEnv")
        self.num_envs = n = whole("gym.VectorEnv: num_envs", num_envs, 1)
        self._task = task.task(
            "gym.VectorEnv", system, scheme, dt, steps, reward, terminated, observe, reset, act, max_episode_steps, solver
        )
        self.single_action_space, self.single_observation_space = spaces("gym.VectorEnv", self._task, action_space, observation_space)
        batch = gymnasium.vector.utils.batch_space
        self.action_space, self.observation_space = (batch(s, n) for s in (self.single_action_space, self.single_observation_space))
        self.metadata = metadata(dt, steps) | {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
        self.render_mode, self._camera = render_mode, camera("gym.VectorEnv", system, render_mode, picture)
        self._begin, self._advance = jax.jit(self._begun), jax.jit(self._advanced)
        self._generators, self._state = None, None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """``(observations, infos)`` at the start of episodes of all members; there are no options."""
        n = self.num_envs
        seeds = [None] * n if seed is None else [seed + i for i in range(n)] if isinstance(seed, int | np.integer) else list(seed)
        if len(seeds) != n:
            raise ValueError(f"gym.VectorEnv: seed must be one number, or one for each of the {n} members, got {shown(seed)}")
        super().reset(seed=seeds[0])
        if self._generators is None:
            self._generators = [None] * n
        for i, own in enumerate(seeds):
            if own is not None or self._generators[i] is None:
                self._generators[i], _ = gymnasium.utils.seeding.np_random(own)
        self._state, said = self._begin(self._drawn(np.ones(n, bool)))
        self._start, self._done = self._state, np.zeros(n, bool)
        observation, *_, outcome, t = jax.device_get(said)
        return np.array(observation), self._infos(outcome, t)

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """``(observations, rewards, terminations, truncations, infos)`` after the steps with these actions."""
        if self._state is None:
            raise RuntimeError("gym.VectorEnv: step must come after reset(), which starts episodes")
        actions = given("gym.VectorEnv", actions, self.action_space)
        seeds = self._drawn(self._done)
        self._state, self._start, said = self._advance(self._state, self._start, actions, seeds, self._done)
        observation, reward, terminated, truncated, outcome, t = map(np.array, jax.device_get(said))
        self._done = terminated | truncated
        return observation, reward, terminated.copy(), truncated.copy(), self._infos(outcome, t)

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Pictures of all members; None without a ``render_mode``."""
        if self._camera is None:
            return None
        if self._state is None:
            raise RuntimeError("gym.VectorEnv: render must come after reset(), which starts episodes")
        members = (jax.tree.map(lambda x, i=i: x[i], (self._start, self._state)) for i in range(self.num_envs))
        return tuple(picture.of(self._task, *member, **self._camera) for member in members)

    def _begun(self, seeds):
        states = jax.vmap(self._task.begin)(seeds)
        return states, jax.vmap(self._task.said)(states)

    def _advanced(self, states, starts, actions, seeds, done):
        """As `Task.advance`, where members that are done start anew."""
        after, said = jax.vmap(self._task.advance)(states, actions)
        # Where no member is done none is asked for its start.
        begun, first = lax.cond(jnp.any(done), self._begun, lambda seeds: (states, jax.tree.map(jnp.zeros_like, said)), seeds)

        def chosen(new, old):
            return jax.tree.map(lambda a, b: jnp.where(jnp.expand_dims(done, tuple(range(1, a.ndim))), a, b), new, old)

        first = first._replace(terminated=jnp.zeros_like(said.terminated))
        return chosen(begun, after), chosen(begun, starts), chosen(first, said)

    def _drawn(self, which):
        """Numbers for keys of `jax.random`, of the members that need one; of the others zeros."""
        return np.array([drawn(own) if asks else 0 for own, asks in zip(self._generators, which, strict=True)], np.uint32)

    def _infos(self, outcome, t):
        there = np.ones(self.num_envs, bool)
        return {"outcome": np.array(outcome), "_outcome": there, "time": np.array(t, float), "_time": there.copy()}
