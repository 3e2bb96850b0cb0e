"""Simulated visitors: each asks through the site's token and votes twice; satisfaction is watched.

BLINDSTEP_TOKEN=... python examples/vote_page/people.py --study ID --people 10000
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


def visit(client: Client, study: str, person: int, world: World) -> bool:
    """One visitor: asked if there is room, votes on both; says whether there was room."""
    chance = np.random.default_rng([2, person])
    question = client.ask(study, f"visitor {person}")
    if question["status"] in ("full", "closing"):
        return False
    while question is not None and question["token"] is not None:
        vote = world.vote(vector(question["parameters"]), chance)
        question = client.answer(question["token"], vote)["next"]
    return True


def run(
    address: str, token: str, study: str, people: int, told: StepInfo, threads: int = 8
) -> dict[str, float]:
    """Send all visitors; gives satisfaction before, after, and at the hidden taste itself."""
    world, client = World(), Client(address, token)
    state = client.study(study)
    last = threading.Lock()
    seen = {"steps": -1}

    def watch() -> None:
        """Tell how satisfied people would be with each newly released set of parameters."""
        with last:
            found = client.call("GET", f"/v1/studies/{study}/parameters")
            if found["steps_released"] > seen["steps"]:
                seen["steps"] = found["steps_released"]
                told(seen["steps"], world.satisfaction(vector(found["parameters"])))

    before = world.satisfaction(vector(state["parameters"]))
    watch()

    def crowd(first: int) -> None:
        own = Client(address, token)
        for person in range(first, people, threads):
            while not visit(own, study, person, world):
                time.sleep(0.02)  # this step is full: come back in the next one
        own.close()

    crowds = [threading.Thread(target=crowd, args=(first,)) for first in range(threads)]
    for each in crowds:
        each.start()
    while any(each.is_alive() for each in crowds):
        time.sleep(0.25)
        watch()
    until = time.monotonic() + 30
    while client.study(study)["status"] != "finished" and time.monotonic() < until:
        time.sleep(0.1)
    watch()
    after = world.satisfaction(vector(client.parameters(study)))
    client.close()
    return {"before": before, "after": after, "best": world.satisfaction(world.taste)}


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

    found = run(given.service, token, given.study, given.people, told)
    print(f"before {found['before']:.3f}, after {found['after']:.3f}, best {found['best']:.3f}")


if __name__ == "__main__":
    main()
