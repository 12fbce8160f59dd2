"""Sites and sensors of a compiled model."""

import numpy as np

from . import parts
from .compiled import GEOMS, in_frame, shape, there
from .rotations import IDENTITY
from .sensors import KINDS, VOLUMES


def read(importer, motors):
    """``(sites, sensors, (name, kind) of those that are not read)``; a geom, a camera or axes of inertia with a sensor have a site."""
    m, sites, found, left_out = importer.m, _sites(importer), [], []
    for i, name in enumerate(importer.names("sensor", range(m.nsensor))):
        kind = importer.mujoco.mjtSensor(int(m.sensor_type[i])).name.removeprefix("mjSENS_").lower()
        of, frame = (_measured(importer, kind, *place, sites, motors) for place in _objects(importer, i))
        late = np.any([there(m, f"sensor_{what}")[i].any() for what in ("delay", "interval")])
        if kind not in KINDS or of is None or frame is None or late:
            left_out.append((name, f"{kind} with a delay" if late else kind))
        else:
            found.append(parts.Sensor(kind, of, frame or None, name, float(m.sensor_cutoff[i])))
    return tuple(sites.values()), found, tuple(left_out)


def _sites(importer):
    """Sites, by what there is at each of them in the model."""
    m, names, found = importer.m, importer.names("site", range(importer.m.nsite)), {}
    for k, name in enumerate(names):
        b, kind = m.site_bodyid[k], GEOMS[m.site_type[k]]
        own = np.zeros(3), np.array(IDENTITY), *importer.frame_of_inertia(b)
        frame = in_frame(m.site_sameframe[k], m.site_pos[k], m.site_quat[k], own)
        volume = shape(kind, m.site_size[k]) if kind in VOLUMES else None
        found["site", k] = parts.Site(name, importer.body_names[b], *map(tuple, frame), volume)
    return found


def _objects(importer, i):
    """``(kind, number)`` of what a sensor is of, and of what it is relative to; the number is -1 where there is none."""
    m = importer.m
    for kind, k in ((m.sensor_objtype[i], m.sensor_objid[i]), (m.sensor_reftype[i], m.sensor_refid[i])):
        yield importer.mujoco.mjtObj(int(kind)).name.removeprefix("mjOBJ_").lower(), int(k)


def _measured(importer, sensor, kind, k, sites, motors):
    """Name of what a sensor is of; "" of nothing, None of what is not here. A site is made where there is none."""
    m = importer.m
    if k < 0:
        return ""
    if kind == "joint":
        return importer.joint_names[k]
    if kind == "tendon":
        return importer.tendons[k].name if k in importer.tendons else None
    if kind == "actuator":
        return next((motor.name for motor in motors if motor.name == importer.name(kind, k)), None)
    if kind == "xbody" or (kind == "body" and sensor in ("subtreecom", "subtreelinvel")):
        return f"body {importer.body_names[k]}"
    if (kind == "camera" and m.cam_mode[k]) or kind not in ("site", "body", "geom", "camera"):
        return None
    if (kind, k) not in sites:
        names, body, frame = {
            "body": lambda: (importer.body_names, k, importer.frame_of_inertia(k)),
            "geom": lambda: (importer.geom_names, m.geom_bodyid[k], importer.frame_of_shape(k)),
            "camera": lambda: ({k: importer.name(kind, k)}, m.cam_bodyid[k], (m.cam_pos[k], m.cam_quat[k])),
        }[kind]()
        word = "inertia" if kind == "body" else kind
        sites[kind, k] = parts.Site(f"{word} {names[k]}", importer.body_names[body], *map(tuple, frame))
    site = sites[kind, k]
    return None if sensor == "touch" and site.volume is None else site.name
