"""Run folders as the trainer leaves them, made up."""

import json


def write_run(
    path,
    values,
    *,
    env="toy:a",
    agent="ppo",
    seed=0,
    settings=None,
    planned=None,
    finished=True,
    interrupted=0,
    every=100,
    config=True,
    extra=None,
    members=None,
    version="1.0",
):
    """One run (``values`` of eval/return at 0, every, 2 every, …), or a population (``members``: swept values and seed)."""
    path.mkdir(parents=True)
    planned = planned if planned is not None else every * (len(values) - 1)
    if config:
        content = {
            "command": f"uv run python -m experiments.train --agent {agent} --env {env} --seed {seed}",
            "agent": agent,
            "config": {
                "agent": {"learning_rate": 0.001, "hidden_sizes": [8, 8], **(settings or {})},
                "loop": {"num_envs": 4},
                "env": env,
                "steps": planned,
                "env_options": {},
                "seed": seed,
                "seeds": 1,
                "sweep": [],
                "evaluate": {"every": every},
                "log": {"every": every},
            },
            "versions": {"jax": version},
            "device": "cpu",
        }
        (path / "config.json").write_text(json.dumps(content))
    with (path / "metrics.jsonl").open("w") as file:
        for index, value in enumerate(values):
            for member, label in enumerate(members or [{}]):
                row = {"step": index * every, "iteration": index, "member": member, "seed": seed, **label}
                row |= {"eval/return": value, **(extra or {}), "time/seconds": 2.0 * index}
                file.write(json.dumps(row) + "\n")
    if finished or interrupted:
        (path / "result.json").write_text(json.dumps({"return": 0.0, "step": 0, "interrupted": interrupted}))
    return path


def write_study(root, methods, seeds=6, env="toy:a", points=11):
    """Runs that rise in a line to a level, ``methods`` by agent. Seed s of the first ends at level + s, others in disorder.

    The interquartile mean of six seeds is the level + 2.5 in any of the first three methods.
    """
    for index, (agent, level) in enumerate(methods.items()):
        for seed in range(seeds):
            values = [(level + seed * (index + 1) % 7) * i / (points - 1) for i in range(points)]
            write_run(root / f"{agent}_{env.replace(':', '_')}_{seed}", values, env=env, agent=agent, seed=seed)
    return root
