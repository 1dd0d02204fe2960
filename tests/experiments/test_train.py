"""The command, as a user meets it: what it leaves, what it refuses, what it resumes."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest
from rich.console import Console

from experiments import cli, defaults, evaluate, train
from experiments.configs import differing_flags, load_config
from experiments.setup import annealed, build, latest_return, make_sampler
from jaxrl.errors import UsageError
from jaxrl.training.checkpoint import restore
from jaxrl.training.records import read_rows
from tests.training import toy

TINY = {
    "ppo": (
        "--agent ppo --env gymnax:CartPole-v1 --steps 512 --loop.num-envs 4 --loop.unroll 16 --agent.minibatches 2 "
        "--agent.hidden-sizes 8 --evaluate.episodes 4 --evaluate.max-steps 20 --anneal False"
    ).split(),
    "sac": (
        "--agent sac --env toy:point_mass --steps 64 --loop.num-envs 2 --loop.batch-size 8 --loop.warmup 16 "
        "--loop.updates 1 --agent.hidden-sizes 8 --evaluate.episodes 4"
    ).split(),
}


def call(main, arguments):
    console = Console(width=200, record=True, quiet=False, force_terminal=False, highlight=False)
    with console.capture() as captured:
        status = main(arguments, console)
    return status, captured.get()


def without_time(rows):
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


def test_a_run_leaves_what_the_readme_says_and_can_be_evaluated(tmp_path):
    folder = tmp_path / "run"
    status, text = call(train.main, [*TINY["ppo"], "--run-dir", str(folder)])
    assert not status
    for name in ("config.json", "metrics.jsonl", "metrics.csv", "curve.png", "curve.svg", "result.json"):
        assert (folder / name).stat().st_size > 0
    for words in ("steps", "updates", "parameters", "memory", "experiments.evaluate", "--seeds 64"):
        assert words in text
    assert read_rows(folder / "metrics.jsonl")[-1]["step"] == 512
    _, said = call(evaluate.main, [str(folder), "--episodes", "8", "--rollout", "False"])
    assert "over 8 episodes" in said
    result = json.loads((folder / "evaluation.json").read_text())
    assert result["members"][0]["low"] <= result["members"][0]["return"] <= result["members"][0]["high"]


@pytest.mark.parametrize("agent, extra", [("ppo", []), ("sac", []), ("sac", ["--seeds", "2"])])
def test_resumed_for_more_steps_equals_the_long_run(tmp_path, agent, extra):
    """The same bits in the checkpoint and the same rows, but for the time they took."""
    every = ["--log.every", "8" if agent == "sac" else "128", "--evaluate.every", "32" if agent == "sac" else "256"]
    arguments = [*TINY[agent], *extra, *every]
    steps = int(arguments[arguments.index("--steps") + 1])
    half = [str(steps // 2) if i == arguments.index("--steps") + 1 else word for i, word in enumerate(arguments)]
    if agent == "sac":
        half, arguments = [*half, "--loop.capacity", "32"], [*arguments, "--loop.capacity", "32"]
    call(train.main, [*arguments, "--run-dir", str(tmp_path / "long")])
    call(train.main, [*half, "--run-dir", str(tmp_path / "short")])
    status, _ = call(train.main, ["--resume", str(tmp_path / "short"), "--steps", str(steps)])
    assert not status
    long, short = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("long", "short"))
    assert without_time(long) == without_time(short)
    command = json.loads((tmp_path / "short" / "config.json").read_text())["command"].split()
    assert command.count("--steps") == 1 and command[command.index("--steps") + 1] == str(steps)
    states = []
    for name in ("long", "short"):
        built = build(load_config(tmp_path / name))
        states.append(restore(tmp_path / name / "checkpoints", built.program.template())[0])
    toy.assert_same_bits(*states)


REFUSED = [
    (["--env", "brax:antt"], "did you mean 'brax:ant'"),
    (["--env", "ant"], "brax:ant"),
    (["--agent", "ppoo"], "did you mean 'ppo'"),
    (["--agent", "sac", "--env", "gymnax:CartPole-v1"], "continuous"),
    (["--agent", "dqn", "--env", "toy:point_mass"], "discrete"),
    (["--env", "gymnax:CartPole-v1", "--steps", "0"], "steps 0"),
    (["--env", "gymnax:CartPole-v1", "--steps", "-10"], "steps -10"),
    (["--env", "gymnax:CartPole-v1", "--seeds", "0"], "seeds 0"),
    (["--env", "gymnax:CartPole-v1", "--agent.minibatches", "7"], "nearest"),
    (["--env", "gymnax:CartPole-v1", "--agent.minibatches", "100000"], "minibatches"),
    (["--agent", "sac", "--env", "toy:point_mass", "--loop.batch-size", "5000"], "batch_size 5000"),
    (["--env", "gymnax:CartPole-v1", "--sweep", "depth=1,2"], "cannot be swept"),
    (["--env", "gymnax:CartPole-v1", "--sweep", "discount"], "cannot read the sweep"),
    (["--env", "gymnax:CartPole-v1", "--loop.num-envs", "0"], "num_envs 0"),
    (["--env", "gymnax:CartPole-v1", "--sweep", "learning_rate=-1,1e-3"], "learning_rate -1"),
    (["--env", "gymnax:CartPole-v1", "--evaluate.every", "-1"], "0 is never"),
    (["--env", "gymnax:CartPole-v1", "--checkpoint.keep", "0"], "keep 0"),
    (["--agent", "sac", "--env", "toy:point_mass", "--sampler", "truncated_geometrc"], "truncated_geometric"),
    (["--agent", "sac", "--env", "toy:point_mass", "--sampler", "window(share=2)"], "(0, 1]"),
    (["--agent", "sac", "--env", "toy:point_mass", "--anneal", "True"], "no annealing"),
    (["--env", "toy:chain", "--steps", "99999999999999999999"], "iterations are counted to 2^31 - 1"),
    (["--env", "toy:chain", "--sweep", "hidden_sizes=32,64"], "hidden_sizes is no number"),
    (["--env", "toy:chain", "--sweep", "learning_rate=1e-3", "learning-rate=3e-4"], "swept twice"),
    (["--env", "toy:chain", "--agent.learning-rate", "inf"], "learning_rate inf cannot work"),
    (["--env", "toy:chain", "--agent.entropy-coefficient", "nan"], "must be finite"),
    (["--env", "toy:chain", "--agent.value-coefficient", "-1"], "value_coefficient -1"),
    (["--agent", "sac", "--env", "toy:point_mass", "--sampler", "truncated_geometric(beta=nan)"], "nan is no number"),
    (["--agent", "--env", "toy:chain"], "--agent needs a value"),
    (["--resume", "nowhere"], "not a run folder"),
]


@pytest.mark.parametrize("arguments, words", REFUSED)
def test_what_cannot_work_is_refused_in_one_line_before_anything_is_written(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        call(train.main, arguments)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_existing_run_folder_is_not_touched(tmp_path):
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        call(train.main, [*TINY["ppo"], "--run-dir", str(tmp_path)])
    assert (tmp_path / "config.json").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_return_is_that_of_the_last_evaluation_however_long_ago():
    rows = [
        {"step": 8, "eval/return": 1.0},
        {"step": 8, "eval/return": 3.0},
        {"step": 16, "episode/return": 9.0},
        {"step": 24},
    ]
    assert latest_return(rows) == (2.0, 8) and latest_return(rows[2:])[0] == 9.0
    assert math.isnan(latest_return(rows[3:])[0])


def test_a_member_that_diverges_is_left_out_and_told_of(tmp_path):
    folder = tmp_path / "run"
    sweep = ["--sweep", "learning_rate=1e-3,3e38", "--on-nan", "drop", "--log.every", "64", "--evaluate.every", "128"]
    status, text = call(train.main, [*TINY["ppo"], *sweep, "--run-dir", str(folder)])
    assert status == 0 and "member 1 (seed 0, learning_rate 3e+38) is left out from step 64 on" in text
    result = json.loads((folder / "result.json").read_text())
    (gone,) = result["dropped"]
    assert gone["member"] == 1 and gone["step"] == 64 and len(gone["what"]) == 3 and gone["more"] > 0
    rows = read_rows(folder / "metrics.jsonl")
    assert {i: max(row["step"] for row in rows if row["member"] == i) for i in (0, 1)} == {0: 512, 1: 0}
    assert result["return"] == rows[-1]["eval/return"]


def test_exit_status_and_one_line_of_error_from_the_shell():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.train", "--agent", "nonsense"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == cli.EXIT_USAGE
    assert done.stderr.strip().startswith("error: unknown agent 'nonsense'") and len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_printed_command_reproduces_the_config():
    arguments = [*TINY["sac"], "--seeds", "3", "--sweep", "discount=0.9,0.99", "--checkpoint.replay", "False"]
    config, _, command = train.read_command(arguments)
    words = command.split()[5:]
    again, _, command_again = train.read_command(words)
    assert again == config and command_again == command


def test_flags_name_only_what_differs():
    usual = defaults.for_run("ppo", "gymnax:CartPole-v1")
    assert differing_flags(usual, usual) == []


def test_annealing_falls_over_the_run_that_is_planned():
    config, _, _ = train.read_command([*TINY["ppo"], "--anneal", "True", "--steps", "1024"])
    built = build(config)
    assert built.plan.schedule.iterations == 16
    learning = build(dataclasses.replace(config, steps=2048)).plan.schedule.iterations
    assert learning == 32 and annealed(config, learning).anneal_updates == 32


@pytest.mark.parametrize("steps", ["1", "10", "33"])
def test_any_number_of_steps_is_rounded_and_runs_even_if_it_is_too_short_to_learn(steps):
    built = build(
        train.read_command(["--agent", "dqn", "--env", "toy:chain", "--steps", steps, "--loop.unroll", "16"])[0]
    )
    assert built.plan.steps == max(1, round(int(steps) / 16)) * 16
    assert "before the first update" in built.plan.notes[-1]


def test_samplers_are_chosen_by_name():
    chosen = make_sampler("truncated_geometric(beta=2.5)", 3)
    assert chosen.length == 3
    config, _, _ = train.read_command([*TINY["sac"], "--sampler", "proportional(exponent=0.7)"])
    built = build(config)
    state, chunk = built.program.advance(built.program.init(), 0, 16)
    assert float(state.replay.largest) != 1.0 and chunk.counts["critic/loss"] > 0
