import subprocess
import sys

import jax.numpy as jnp
import pytest

import environments
from environments import registry, toys
from environments.wrappers import time_limit
from jaxrl.errors import MissingExtraError, UsageError

SCRIPT = """
import sys
import environments
assert not {'brax', 'gymnax', 'gymnasium', 'mujoco', 'mujoco_playground'} & set(sys.modules), 'imported too early'
assert 'brax:ant' in environments.list_environments('brax')
environments.make('toy:chain')
assert not {'brax', 'gymnax', 'gymnasium', 'mujoco', 'mujoco_playground'} & set(sys.modules), 'imported for a toy'
assert 'gymnax:CartPole-v1' in environments.list_environments()
assert 'brax' not in sys.modules, 'imported for its names'
"""


def test_names_are_listed_without_importing_what_they_name():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)


def test_every_scheme_is_listed():
    names = environments.list_environments()
    for name in ("brax:ant", "gymnax:CartPole-v1", "toy:chain", "gymnasium:CartPole-v1"):
        assert name in names
    assert len(names) == len(set(names))
    assert environments.list_environments("toy") == [f"toy:{name}" for name in sorted(toys.names())]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ant", "brax:ant"),
        ("brax:antt", "brax:ant"),
        ("brx:ant", "brax:ant"),
        ("halfchetah", "brax:halfcheetah"),
        ("CartPole-v1", "gymnax:CartPole-v1"),
        ("toy:chian", "toy:chain"),
        ("gymnax:Pendulum", "gymnax:Pendulum-v1"),
        ("gymnasium:CartPole-v2", "gymnasium:CartPole-v[01]"),
    ],
)
def test_a_misspelt_name_gets_the_nearest(name, hint):
    with pytest.raises(UsageError, match=f"unknown environment '{name}'; did you mean '{hint}'"):
        environments.make(name)


def test_a_name_like_nothing_gets_the_schemes():
    with pytest.raises(UsageError, match=r"scheme:name, .* with the schemes brax, gymnax, playground, toy, gymnasium"):
        environments.make("§§§")
    with pytest.raises(UsageError, match="named by a text"):
        environments.make(3)
    with pytest.raises(UsageError, match="unknown scheme 'braks'; did you mean 'brax'"):
        environments.list_environments("braks")


def test_an_argument_of_another_scheme_is_refused():
    with pytest.raises(UsageError, match="takes no 'backend'; it takes n, max_steps"):
        environments.make("toy:chain", backend="mjx")
    with pytest.raises(UsageError, match="takes no 'num_envs'"):
        environments.make("gymnax:CartPole-v1", num_envs=8)


@pytest.fixture
def own_scheme(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


def test_a_scheme_of_one_s_own(own_scheme):
    environments.register("mine", ["short", "long"], lambda name, stride=1: toys.endless())
    assert environments.list_environments("mine") == ["mine:long", "mine:short"]
    assert environments.make("mine:short").max_steps is None
    assert environments.make("mine:short", max_steps=7).max_steps == 7
    with pytest.raises(UsageError, match="unknown environment 'mine:shrt'; did you mean 'mine:short'"):
        environments.make("mine:shrt")
    with pytest.raises(UsageError, match="mine environments take no 'speed'; they take max_steps, stride"):
        environments.make("mine:short", speed=2)


def test_a_scheme_that_keeps_its_own_limit(own_scheme):
    def make(name, max_steps=3):
        return time_limit(toys.endless(), max_steps)

    environments.register("limited", lambda: ["one"], make)
    assert environments.make("limited:one").max_steps == 3
    assert environments.make("limited:one", max_steps=9).max_steps == 9


@pytest.mark.parametrize("scheme", ["toy", "", "a:b", 3])
def test_a_scheme_that_cannot_be_is_refused(own_scheme, scheme):
    with pytest.raises(UsageError):
        environments.register(scheme, ["x"], lambda name: toys.endless())


def test_a_missing_package_is_left_out_of_the_list_and_named_when_asked_for(own_scheme):
    def names():
        raise MissingExtraError("elsewhere environments", "elsewhere")

    environments.register("elsewhere", names, lambda name: toys.endless())
    assert not any(name.startswith("elsewhere") for name in environments.list_environments())
    with pytest.raises(MissingExtraError, match=r"pip install 'jaxrl\[elsewhere\]'"):
        environments.list_environments("elsewhere")
    with pytest.raises(MissingExtraError, match="elsewhere"):
        environments.make("elsewhere:x")


def test_a_limit_given_by_name_holds():
    env = environments.vectorise(environments.make("toy:counter", max_steps=2), 1)
    assert env.max_steps == 2 and env.name == "toy:counter"
    assert env.observation_space.dtype == jnp.float32


@pytest.mark.parametrize("scheme", ["gymnax", "gymnasium", "playground"])
def test_absent_package_is_named_with_its_extra(scheme, monkeypatch):
    package = {"playground": "mujoco_playground"}.get(scheme, scheme)
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"--extra {scheme}\)"):
        environments.make(f"{scheme}:CartPole-v1")
