"""MuJoCo's C code, for the benchmarks beside it."""

import time

import numpy as np


def model_of(scene, dt):
    """The model of a file, or of a string of MJCF, with this step and elliptic cones."""
    import mujoco

    load = mujoco.MjModel.from_xml_string if isinstance(scene, str) else mujoco.MjModel.from_xml_path
    model = load(str(scene))
    model.opt.timestep, model.opt.cone = dt, int(mujoco.mjtCone.mjCONE_ELLIPTIC)
    return model


def run(model, q0, u0, steps, repeat):
    """``(least CPU seconds of so many steps, coordinates (steps, n_q), velocities (steps, n_u))``, without control."""
    import mujoco

    data, least = mujoco.MjData(model), np.inf
    q, u = np.empty((steps, model.nq)), np.empty((steps, model.nv))
    for _ in range(repeat):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = np.asarray(q0), np.asarray(u0)
        begin = time.process_time()
        for k in range(steps):
            mujoco.mj_step(model, data)
            q[k], u[k] = data.qpos, data.qvel
        least = min(least, time.process_time() - begin)
    return least, q, u
