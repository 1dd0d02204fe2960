"""Tasks of MuJoCo Playground: the control suite, locomotion and manipulation, all on MJX.

Playground's own training wrappers are not used (they overwrite the last observation of an episode). Its tasks set
``done`` for deaths alone; the limit is the task's ``episode_length``, applied by
:func:`environments.wrappers.time_limit`.

The control suite comes with the package. Locomotion and manipulation need robot models (MuJoCo Menagerie) that
Playground clones from GitHub when such a task is loaded; here that never happens on its own: a task whose models are
not there is refused.

Playground takes ten seconds to import, so nothing here imports it before a task is made.
"""

import importlib.metadata
import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from environments.adapters.brax import reset_state, step_state, to_step
from environments.base import Environment
from environments.wrappers.limits import time_limit
from jaxrl.checks import positive_int
from jaxrl.errors import MissingExtraError, UsageError, unknown
from jaxrl.spaces import Box
from jaxrl.types import Array, Key, PyTree, Step, check_key

CONTROL_SUITE = (
    "AcrobotSwingup",
    "AcrobotSwingupSparse",
    "BallInCup",
    "CartpoleBalance",
    "CartpoleBalanceSparse",
    "CartpoleSwingup",
    "CartpoleSwingupSparse",
    "CheetahRun",
    "FingerSpin",
    "FingerTurnEasy",
    "FingerTurnHard",
    "FishSwim",
    "HopperHop",
    "HopperStand",
    "HumanoidRun",
    "HumanoidStand",
    "HumanoidWalk",
    "PendulumSwingup",
    "PointMass",
    "ReacherEasy",
    "ReacherHard",
    "SwimmerSwimmer6",
    "WalkerRun",
    "WalkerStand",
    "WalkerWalk",
)

# These need the robot models.
LOCOMOTION = (
    "ApolloJoystickFlatTerrain",
    "BarkourJoystick",
    "BerkeleyHumanoidJoystickFlatTerrain",
    "BerkeleyHumanoidJoystickRoughTerrain",
    "G1JoystickFlatTerrain",
    "G1JoystickRoughTerrain",
    "Go1Footstand",
    "Go1Getup",
    "Go1Handstand",
    "Go1JoystickFlatTerrain",
    "Go1JoystickRoughTerrain",
    "H1InplaceGaitTracking",
    "H1JoystickGaitTracking",
    "Op3Joystick",
    "SpotFlatTerrainJoystick",
    "SpotGetup",
    "SpotJoystickGaitTracking",
    "T1JoystickFlatTerrain",
    "T1JoystickRoughTerrain",
)

MANIPULATION = (
    "AeroCubeRotateZAxis",
    "AlohaHandOver",
    "AlohaSinglePegInsertion",
    "LeapCubeReorient",
    "LeapCubeRotateZAxis",
    "PandaOpenCabinet",
    "PandaPickCube",
    "PandaPickCubeCartesian",
    "PandaPickCubeOrientation",
    "PandaRobotiqPushCube",
)


def names() -> tuple[str, ...]:
    """Every task, those that need robot models included.

    Raises:
        MissingExtraError: where Playground is not installed.
    """
    _package()
    return CONTROL_SUITE + LOCOMOTION + MANIPULATION


def make(
    name: str,
    max_steps: int | None = None,
    observation: str | None = "state",
    impl: str = "jax",
    **config: Any,
) -> Environment:
    """One Playground task, without automatic reset.

    Args:
        name: one of :func:`names`.
        max_steps: a time limit in place of the task's ``episode_length``.
        observation: which entry the agent sees where a task observes a dict; None gives the whole dict. A dict without
            an entry "state" is given whole unless another entry is named.
        impl: the physics, "jax" (anywhere) or "warp" (needs an NVIDIA GPU).
        **config: overrides of the task's configuration, such as ``sim_dt=0.005``; nested ones as
            ``**{"reward_config.scales.torques": 0.0}``. With ``action_repeat=n`` an action is held for n steps of the
            task, unless it dies before, and their rewards are added.

    Returns:
        A single environment whose state is Playground's ``State`` and whose metrics are Playground's, named ``env/…``.

    Raises:
        UsageError: for an unknown name, option or entry, and for a task that does not load here.
        MissingExtraError: where Playground is not installed.
    """
    if name not in names():
        raise unknown("playground task", name, names())
    if name not in CONTROL_SUITE and not _models_path().exists():
        raise UsageError(
            f"playground task '{name}' needs robot models that are not in {_models_path()}: clone "
            f"github.com/google-deepmind/mujoco_menagerie there, or take a control-suite task such as 'CartpoleBalance'"
        )
    task, settings = _load(name, impl, config)
    repeat = positive_int(settings.get("action_repeat", 1), "action_repeat")
    limit = -(-settings.episode_length // repeat) if max_steps is None else max_steps
    start = jax.eval_shape(task.reset, jax.eval_shape(jax.random.PRNGKey, 0))
    entry = _entry(name, observation, start.obs)
    bare = Environment(
        name=f"playground:{name}",
        reset=partial(_reset, task, entry),
        step=partial(_step, task, entry, repeat),
        observation_space=jax.tree.map(lambda x: Box(-jnp.inf, jnp.inf, x.shape, x.dtype), _pick(entry, start.obs)),
        action_space=_action_space(name, task),
        reset_is_dear=True,
        rendering={"kind": "mujoco", "system": task.mj_model, "state_of": data_of, "dt": float(task.dt) * repeat},
    )
    return time_limit(bare, limit)


def data_of(state: Any) -> Any:
    """The physics in a Playground state: ``xpos`` [bodies, 3] in metres, ``xquat`` [bodies, 4], the world first."""
    return state.data


def _package() -> Path:
    """Where Playground is installed, found without importing it."""
    spec = importlib.util.find_spec("mujoco_playground")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("MuJoCo Playground", "playground")
    return Path(next(iter(spec.submodule_search_locations)))


def _models_path() -> Path:
    """Where Playground keeps the robot models it downloads."""
    return _package() / "external_deps" / "mujoco_menagerie"


def _load(name: str, impl: str, overrides: dict[str, Any]) -> tuple[Any, Any]:
    """The task and its configuration, with the overrides in it."""
    from mujoco_playground import registry

    settings = registry.get_default_config(name)
    known = _flat_keys(settings)
    for key in overrides:
        if key not in known:
            raise unknown(f"option of playground task '{name}'", key, known)
    if "impl" in settings:
        overrides = {"impl": impl, **overrides}
    try:
        return registry.load(name, config=settings, config_overrides=overrides), settings
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        versions = ", ".join(f"{part} {importlib.metadata.version(part)}" for part in ("playground", "mujoco"))
        raise UsageError(
            f"playground task '{name}' does not load with {versions}, options {overrides}: {error}"
        ) from error


def _flat_keys(settings: Any, prefix: str = "") -> set[str]:
    """The names of all options, "a.b" for those of a nested group."""
    keys = set()
    for key, value in settings.items():
        keys.add(prefix + key)
        if hasattr(value, "items"):
            keys |= _flat_keys(value, f"{prefix}{key}.")
    return keys


def _entry(name: str, wanted: str | None, observation: PyTree) -> str | None:
    """Which entry of the observation to show; None where it is shown whole."""
    if wanted is None:
        return None
    entries = list(observation) if hasattr(observation, "items") else ["state"]
    if wanted not in entries and wanted != "state":
        raise unknown(f"observation of playground task '{name}'", wanted, entries)
    return wanted if hasattr(observation, "items") and wanted in entries else None


def _pick(entry: str | None, observation: PyTree) -> PyTree:
    """The entry, or everything (as a plain dict if it is one)."""
    if entry is not None:
        return observation[entry]
    return dict(observation) if hasattr(observation, "items") else observation


def _action_space(name: str, task: Any) -> Box:
    """The control suite hands actions to the actuators as they are; the other tasks scale them from [-1, 1]."""
    if name not in CONTROL_SUITE:
        return Box(-1.0, 1.0, (task.action_size,))
    model = task.mj_model
    limited = model.actuator_ctrllimited.astype(bool)
    low, high = model.actuator_ctrlrange.T
    return Box(jnp.where(limited, low, -jnp.inf), jnp.where(limited, high, jnp.inf))


def _raw_key(key: Key) -> Array:
    """A legacy key for Playground, some of whose tasks use one key twice, which typed keys are checked against."""
    legacy = jax.eval_shape(jax.random.PRNGKey, 0)
    return jax.random.bits(key, legacy.shape, legacy.dtype)


def _reset(task: Any, entry: str | None, key: Key) -> tuple[PyTree, Step]:
    check_key(key)
    state = reset_state(task, _raw_key(key))
    return state, _shown(entry, to_step(state))


def _step(task: Any, entry: str | None, repeat: int, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
    check_key(key)
    state = step_state(task, state, action)
    for _ in range(repeat - 1):
        state = _step_again(task, state, action)
    return state, _shown(entry, to_step(state))


def _step_again(task: Any, state: Any, action: Array) -> Any:
    """One step more with the same action and the rewards added, unless the task has died."""
    after = step_state(task, state, action)
    after = after.replace(reward=state.reward + after.reward)
    dead = state.done > 0.5
    return jax.tree.map(lambda old, new: jnp.where(dead, old, new), state, after)


def _shown(entry: str | None, step: Step) -> Step:
    return step._replace(
        observation=_pick(entry, step.observation), next_observation=_pick(entry, step.next_observation)
    )
