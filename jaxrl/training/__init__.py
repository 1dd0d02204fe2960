"""Training: loops, programs, plans, evaluation, records and checkpoints.

>>> loop = on_policy(agent, OnPolicy(num_envs=64))                            # doctest: +SKIP
>>> program = compile_program(loop, agent, vectorise(env, 64), env, seeds=[0])  # doctest: +SKIP
>>> schedule, notes = make_schedule(100_000, program.steps_per_iteration)     # doctest: +SKIP
>>> outcome = run(program, schedule)                                          # doctest: +SKIP
"""

from jaxrl.training.evaluation import Episodes, evaluate, record
from jaxrl.training.loop import Loop, LoopState, off_policy, on_policy
from jaxrl.training.plan import Plan, Schedule, make_plan, make_schedule
from jaxrl.training.program import Program, compile_program, member
from jaxrl.training.run import NotFiniteError, Outcome, run
from jaxrl.training.settings import OffPolicy, OnPolicy

__all__ = [
    "Episodes",
    "Loop",
    "LoopState",
    "NotFiniteError",
    "OffPolicy",
    "OnPolicy",
    "Outcome",
    "Plan",
    "Program",
    "Schedule",
    "compile_program",
    "evaluate",
    "make_plan",
    "make_schedule",
    "member",
    "off_policy",
    "on_policy",
    "record",
    "run",
]
