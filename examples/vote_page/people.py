"""Simulated visitors: each asks through the site's token and votes twice; satisfaction is watched.

A simulated day is over when a sixteenth of them has come; an admin's token ends its window then.

BLINDSTEP_TOKEN=ADMIN_TOKEN python examples/vote_page/people.py --study ID --people 10000
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable

import numpy as np
from taste import World, vector

from blindstep.serve import Client

StepInfo = Callable[[int, float], None]


def visit(client: Client, study: str, person: int, world: World) -> None:
    """One visitor, who votes on both of their questions."""
    chance = np.random.default_rng([2, person])
    while (question := client.ask(study, f"visitor {person}"))["status"] == "paused":
        time.sleep(0.02)  # between two windows
    while question is not None and question["token"] is not None:
        vote = world.vote(vector(question["parameters"]), chance)
        question = client.answer(question["token"], vote)["next"]


def run(
    address: str,
    token: str,
    admin: Client,
    study: str,
    people: int,
    told: StepInfo,
    threads: int = 8,
) -> dict[str, float]:
    """Send all visitors; gives satisfaction before, after, and at the hidden taste itself.

    Visitors come with the `token` of the site; `admin` ends their windows.
    """
    world, steps = World(), admin.study(study)["steps"]

    def satisfaction() -> float:
        return world.satisfaction(vector(admin.parameters(study)))

    def crowd(some: range) -> None:
        with Client(address, token) as own:
            for person in some:
                visit(own, study, person, world)

    before = satisfaction()
    told(0, before)
    for step in range(1, steps + 1):
        day = range((step - 1) * people // steps, step * people // steps)
        crowds = [
            threading.Thread(target=crowd, args=(day[first::threads],)) for first in range(threads)
        ]
        for each in crowds:
            each.start()
        for each in crowds:
            each.join()
        admin.end_window(study, step)
        while admin.study(study)["steps_released"] < step:
            time.sleep(0.05)
        told(step, satisfaction())
    return {"before": before, "after": satisfaction(), "best": world.satisfaction(world.taste)}


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service", default="http://127.0.0.1:8000")
    parser.add_argument("--study", required=True)
    parser.add_argument("--people", type=int, default=10_000)
    given = parser.parse_args()
    token = os.environ["BLINDSTEP_TOKEN"]

    def told(step: int, satisfaction: float) -> None:
        print(f"after step {step:>2}: satisfaction {satisfaction:.3f}", flush=True)

    with Client(given.service, token) as admin:
        found = run(given.service, token, admin, given.study, given.people, told)
    print(f"before {found['before']:.3f}, after {found['after']:.3f}, best {found['best']:.3f}")


if __name__ == "__main__":
    main()
