"""What becomes of a state and an action, as functions of JAX that know nothing of gymnasium."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..bodies import Multibody
from ..contact import SemismoothNewton
from ..mechanics.results import Outcome
from ..mechanics.system import System
from ..programs.given import calling, numbers, shown, takes, whole
from ..simulation import checks
from ..simulation.simulate import check, simulate
from ..simulation.solution import Solution


class State(NamedTuple):
    """Of an episode."""

    system: Any  # that of this episode, where `reset` gives one; else None
    q: Any  # (n_q,)
    u: Any  # (n_u,) as the scheme stores it
    final: Any  # state of the scheme, from which it goes on; zeros before the first action
    actions: Any  # how many there were


class Said(NamedTuple):
    """What an action led to."""

    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    outcome: Any  # code of the first step that failed, else SUCCESS
    t: Any  # s


@dataclass(frozen=True, eq=False)
class Task:
    """A system, what an action does to it, and what is asked of it; see `Env`."""

    system: Any
    scheme: Any
    dt: float
    steps: int
    reward: Callable[..., Any]
    terminated: Callable[..., Any] | None
    observe: Callable[..., Any] | None
    reset: Callable[..., Any] | None
    act: Callable[..., Any] | None
    max_episode_steps: int | None
    solver: Any

    # ------------------------------------------------------------------------------------------------------------ functions
    def begin(self, seed):
        """`State` at the start of an episode."""
        with calling("gym: reset"):
            start = self.system.initial_state() if self.reset is None else self.reset(jax.random.key(seed))
        if not isinstance(start, tuple) or len(start) not in (2, 3):
            raise TypeError(f"gym: reset(key) must return (q0, u0) or (system, q0, u0), got {shown(start)}")
        system, q, u = start if len(start) == 3 else (None, *start)
        q, u = jnp.asarray(q), jnp.asarray(u)
        shapes = jax.eval_shape(lambda: self._first(self._of(system), jnp.zeros((), q.dtype), q, u)[0])
        final = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return State(system, q, u, final, jnp.zeros((), jnp.int32))

    def advance(self, state, action):
        """``(State, Said)`` after the steps with this action.

        Where a step fails the state stays as it was, and the episode is cut off: no number that is none comes out.
        """
        with calling("gym: act"):
            system = self._acting(state, action)
        t = self.time(state)

        def first():
            return self._first(system, t, state.q, state.u)

        final, solved = lax.cond(state.actions == 0, first, lambda: (state.final, jnp.ones((), bool)))
        start = Solution(t[None], *[None] * 14, final=final)
        sol = simulate(system, self.scheme, None, None, dt=self.dt, n_steps=self.steps, start=start, solver=self.solver)
        code = jnp.where(sol.success, Outcome.SUCCESS, sol.outcome[jnp.argmax(sol.outcome != 0)])
        code = jnp.where(sol.success & ~solved, Outcome.NOT_CONVERGED, code).astype(jnp.int32)
        succeeded = code == Outcome.SUCCESS
        after = state._replace(q=sol.q[-1], u=sol.u[-1], final=sol.final)
        after = jax.tree.map(lambda new, old: jnp.where(succeeded, new, old), after, state)._replace(actions=state.actions + 1)
        with calling("gym: reward"):
            reward = jnp.asarray(self.reward(sol, action), state.q.dtype)
        said = self.said(after)
        truncated = ~succeeded
        if self.max_episode_steps is not None:
            truncated |= after.actions >= self.max_episode_steps
        return after, said._replace(
            reward=jnp.where(succeeded, reward, 0), terminated=said.terminated & succeeded, truncated=truncated, outcome=code
        )

    def said(self, state):
        """`Said` of a state that no action led to."""
        t, of = self.time(state), (state.q, state.u)
        with calling("gym: observe"):
            observation = jnp.concatenate(of) if self.observe is None else jnp.asarray(self.observe(t, *of))
        with calling("gym: terminated"):
            terminated = jnp.zeros((), bool) if self.terminated is None else jnp.asarray(self.terminated(t, *of))
        zero = jnp.zeros((), jnp.int32)
        return Said(observation, jnp.zeros((), state.q.dtype), terminated, jnp.zeros((), bool), zero, t)

    def time(self, state):
        """Time in s."""
        return state.actions.astype(state.q.dtype) * (self.steps * self.dt)

    def _of(self, system):
        """The system of an episode."""
        return self.system if system is None else system

    def _acting(self, state, action):
        """The system with this action."""
        system = self._of(state.system)
        if self.act is not None:
            return self.act(system, action)
        # Boxes of gymnasium are of float32, if nothing is said.
        return dataclasses.replace(system, control=jnp.asarray(action, state.q.dtype))

    def _first(self, system, t, q, u):
        """``(state of the scheme, whether it was solved for)`` at the node where an episode starts."""
        prepared = self.scheme.prepare(system, self.dt)
        state, info = self.scheme.init(prepared, t, self.dt, q, u, self.solver)
        return state, jnp.asarray(info.converged)

    # --------------------------------------------------------------------------------------------------------------- checks
    def checked(self, action):
        """Shapes of what `advance` says; raises TypeError or ValueError for what does not make a run, with words that name the cure.

        action: one of those that are allowed
        """
        state = self.begin(np.uint32(0))
        dtype = state.q.dtype
        system = self._acting(state, action)
        check(system, self.scheme, state.q, state.u, dt=self.dt, n_steps=self.steps, solver=self.solver)
        after, said = jax.eval_shape(self.advance, state, action)
        if jax.tree.map(jnp.shape, after) != jax.tree.map(jnp.shape, state):
            raise ValueError("gym: reset must give a state of the system, arrays of the shapes that its steps have")
        if jnp.ndim(said.observation) != 1 or not jnp.issubdtype(said.observation.dtype, jnp.floating):
            raise ValueError(f"gym: observe(t, q, u) must give one vector of numbers, got {shown(said.observation)}")
        if said.reward.shape:
            raise ValueError(f"gym: reward(sol, action) must give one number, got shape {said.reward.shape}")
        if said.terminated.shape or said.terminated.dtype != bool:
            raise ValueError(f"gym: terminated(t, q, u) must give one boolean, got {shown(said.terminated)}; join conditions with & and |")
        return said, dtype


def task(caller, system, scheme, dt, steps, reward, terminated, observe, reset, act, max_episode_steps, solver):
    """The `Task` of these arguments, its functions checked to be functions."""
    for name, function, arguments in (
        ("reward", reward, "sol, action"),
        ("terminated", terminated, "t, q, u"),
        ("observe", observe, "t, q, u"),
        ("reset", reset, "key"),
        ("act", act, "system, action"),
    ):
        if function is not None or name == "reward":
            takes(f"{caller}: {name}", function, arguments)
    steps = whole(f"{caller}: steps", steps, 1)
    if max_episode_steps is not None:
        max_episode_steps = whole(f"{caller}: max_episode_steps", max_episode_steps, 1)
    if not isinstance(system, System):
        raise TypeError(f"{caller}: system must be an instance of a subclass of jaxnsd.System, got {shown(system)}")
    if reset is None and not hasattr(system, "initial_state"):
        raise TypeError(f"{caller}: reset must be given, a function of a key that returns (q0, u0), where a system has no initial_state()")
    solver = SemismoothNewton() if solver is None else solver
    checks.options(scheme, solver, 1, "saltation", None)
    return Task(system, scheme, dt, steps, reward, terminated, observe, reset, act, max_episode_steps, solver)


def limits(caller, system):
    """``(lower, upper)`` of the controls of the motors, (n_m,) each."""
    if not isinstance(system, Multibody) or not system.motor_names:
        raise ValueError(
            f"{caller}: act(system, action) and action_space must be given for a system that is not made of bodies, or has no motors"
        )
    low, high = np.asarray(numbers(system.motors.control_limits), float).T
    free = [name for name, a, b in zip(system.motor_names, low, high, strict=True) if not np.isfinite(b - a)]
    if free:
        raise ValueError(
            f"{caller}: the control of the motor {free[0]!r} has no limits, so that an action has none: give it control_limits (in MJCF "
            "ctrlrange), or give action_space"
        )
    return low, high
