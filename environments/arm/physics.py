"""The arm of the suite: two links in a plane, a motor at both joints, and a puck that its tip can push.

Both links are 0.5 m long, without mass but for 1 kg at the elbow and 1 kg at the tip. Angles ``q`` are of the first link
from the x axis and of the second from the first. With ``c = cos q_2`` and ``h = 0.25 sin q_2`` the equations of motion are

    [0.75 + 0.5 c   0.25 + 0.25 c]  q''  +  [-h (2 q_1' q_2' + q_2'²)]  +  damping q'  +  gravity(q)  =  torque
    [0.25 + 0.25 c  0.25         ]          [ h q_1'²                ]

(the textbook's double pendulum; derived here for these masses). The motors follow a commanded speed as far as their
largest torque allows: ``torque = clip(gain (command - q'), -largest, largest)``. A control step of 0.05 s is two semi-implicit Euler steps.
The arm does not feel the puck, which slides with viscous friction and takes over what the tip has in the direction of
their contact.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxrl.types import Array

LINK = 0.5  # m
CONTROL = 0.05  # s
SUBSTEPS = 2
TORQUE = (3.0, 1.5)  # N m, largest at each joint
GAIN = (3.0, 1.0)  # N m s
COMMAND = 3.0  # rad/s, largest speed that can be commanded
DAMPING = 0.5  # N m s
FASTEST = 10.0  # rad/s, of each joint
TIP = 0.04  # m, radius
PUCK = 0.08  # m, radius
_DT = CONTROL / SUBSTEPS


class Arm(NamedTuple):
    q: Array  # [2] rad
    speed: Array  # [2] rad/s


class Puck(NamedTuple):
    position: Array  # [2] m
    velocity: Array  # [2] m/s


def elbow(q: Array) -> Array:
    """[2] m."""
    return LINK * jnp.stack([jnp.cos(q[0]), jnp.sin(q[0])])


def tip(q: Array) -> Array:
    """[2] m."""
    along = q[0] + q[1]
    return elbow(q) + LINK * jnp.stack([jnp.cos(along), jnp.sin(along)])


def tip_velocity(arm: Arm) -> Array:
    """[2] m/s."""
    first, along = arm.q[0], arm.q[0] + arm.q[1]
    turn, total = arm.speed[0], arm.speed[0] + arm.speed[1]
    x = -LINK * (jnp.sin(first) * turn + jnp.sin(along) * total)
    return jnp.stack([x, LINK * (jnp.cos(first) * turn + jnp.cos(along) * total)])


def acceleration(arm: Arm, torque: Array, gravity: Array) -> Array:
    """[2] rad/s². ``gravity`` [] in m/s² along -y."""
    cosine, h = jnp.cos(arm.q[1]), 0.25 * jnp.sin(arm.q[1])
    u, w = arm.speed
    weight_tip = LINK * gravity * jnp.cos(arm.q[0] + arm.q[1])
    weight_elbow = 2 * LINK * gravity * jnp.cos(arm.q[0])
    first = torque[0] + h * (2 * u * w + w * w) - DAMPING * u - weight_elbow - weight_tip
    second = torque[1] - h * u * u - DAMPING * w - weight_tip
    a, b, d = 0.75 + 0.5 * cosine, 0.25 + 0.25 * cosine, 0.25
    return jnp.stack([d * first - b * second, a * second - b * first]) / (a * d - b * b)


def move(arm: Arm, action: Array, gravity: Array) -> Arm:
    """One Euler step: speeds first, then angles with the new speeds.

    Args:
        action: [2], the commanded speeds as a share of the largest.
        gravity: [] m/s².
    """
    largest = jnp.asarray(TORQUE)
    torque = jnp.clip(jnp.asarray(GAIN) * (COMMAND * action - arm.speed), -largest, largest)
    speed = jnp.clip(arm.speed + _DT * acceleration(arm, torque, gravity), -FASTEST, FASTEST)
    return Arm(arm.q + _DT * speed, speed)


def slide(puck: Puck, arm: Arm, friction: Array, bounce: Array, grip: Array) -> Puck:
    """One Euler step of the puck, and its contact with the tip where the arm is now.

    In contact it is put to the rim, the speed at which it comes nearer is turned round, ``bounce`` times as large, and it
    takes over a share ``grip`` of the tip's speed sideways.

    Args:
        friction: [] 1/s, of the puck on the table.
        bounce: [] in [0, 1].
        grip: [] in [0, 1].
    """
    velocity = puck.velocity * jnp.maximum(1 - friction * _DT, 0.0)
    position = puck.position + _DT * velocity
    apart = position - tip(arm.q)
    distance = jnp.sqrt(jnp.sum(apart**2) + 1e-12)
    normal = apart / distance
    touching = distance < TIP + PUCK
    relative = tip_velocity(arm) - velocity
    nearing = jnp.sum(relative * normal)
    taken = (1 + bounce) * jnp.maximum(nearing, 0.0) * normal + grip * (relative - nearing * normal)
    velocity = velocity + jnp.where(touching, taken, 0.0)
    position = position + jnp.where(touching, TIP + PUCK - distance, 0.0) * normal
    return Puck(position, velocity)


def on_rail(puck: Puck, centre: Array, radius: Array) -> Puck:
    """The puck put back on a circle, its velocity along it."""
    out = puck.position - centre
    normal = out / jnp.sqrt(jnp.sum(out**2) + 1e-12)
    along = puck.velocity - jnp.sum(puck.velocity * normal) * normal
    return Puck(centre + radius * normal, along)
