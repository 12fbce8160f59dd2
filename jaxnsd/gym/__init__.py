"""Environments for reinforcement learning, with the interface of gymnasium (the extra ``[gym]``).

    env = gym.Env(robot, jaxnsd.Moreau(), dt=1e-3, steps=20, reward=lambda sol, action: sol.q[-1, 0] - sol.q[0, 0])
    envs = gym.VectorEnv(256, robot, jaxnsd.Moreau(), dt=1e-3, steps=20, reward=...)

An action is the control of the motors, held for ``steps`` steps of the scheme. They are one compiled program, `VectorEnv` a batch of them.
"""

from .env import Env
from .vector import VectorEnv

__all__ = ["Env", "VectorEnv"]
