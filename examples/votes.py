"""Tune a recommender from two votes of each user, at epsilon 1.

    python examples/votes.py
    python examples/votes.py --checkpoint votes/   # kill it, and start it again

A recommender ranks items by 20 weights. Nobody can differentiate a person: what there is, is a vote,
up or down, on what the ranking showed. So each user gets two rankings, on either side of the weights
that are tried, and votes on each: two votes in a lifetime. `Optimizer` says whom to ask what, and is
told the votes; whatever it ever publishes is private for every user.

The users here are simulated (`Crowd`). Each sees the best of 10 random items, as ranked by the
weights they were given, and votes up with probability sigmoid(2 utility); the taste they share is
hidden. `blindstep demo` runs the same at several epsilons.
"""

from __future__ import annotations

import argparse

from demo.votes import WEIGHTS, Crowd, start

import blindstep as bs


def run(
    users: int = 200_000,
    epsilon: float = 1.0,
    seed: int | None = None,
    checkpoint: str | None = None,
) -> dict[str, float]:
    """Tune the weights; gives satisfaction before, after, and at the best possible weights."""
    crowd = Crowd(seed=0)
    plan = bs.plan(
        bs.Tight(
            radius=3.0,
            oracle="naive",
            bounds=bs.Bounds(range=(0, 1)),
            directions=1,
            sharing="record",
            horizon=10,
            first_batch=2_000,
            smoothing=1.0,
            reach=0.2,
        ),
        records=users,
        dim=WEIGHTS,
        privacy=bs.Privacy(epsilon=epsilon, delta=1e-7),
    )
    with bs.Optimizer(plan, start(), seed=seed, checkpoint=checkpoint) as opt:
        while not opt.done:
            query = opt.ask()
            opt.tell(query, crowd.votes_down(query.points, query.record))
        result = opt.result()
    print(result.privacy)
    return {
        "before": crowd.satisfaction(start()),
        "after": crowd.satisfaction(result.params),
        "best possible": crowd.satisfaction(crowd.taste),
    }


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="Tune a recommender from private votes.")
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--checkpoint", help="a directory for the run: it goes on after a crash")
    given = parser.parse_args()
    said = run(given.users, given.epsilon, checkpoint=given.checkpoint)
    for when, value in said.items():
        print(f"satisfaction {when:<14} {value:.3f}")


if __name__ == "__main__":
    main()
