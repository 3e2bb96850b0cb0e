"""What tests of the service share: a study, people who answer, and its run done by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import sqlalchemy as sa

from blindstep.private.schedule import Kind
from blindstep.run.query import points_at
from blindstep.serve import closing, schema, voting
from blindstep.serve.accounts import votes_name
from blindstep.serve.database import Database
from blindstep.serve.design import Design
from blindstep.serve.keys import Address, Secrets, number_of
from blindstep.serve.service import Settings
from blindstep.serve.spec import StudySpec
from blindstep.serve.studies import Studies
from blindstep.serve.voting import Status, Vote

SECRETS = Secrets(bytes(range(32)))
SPEC = {
    "name": "colours",
    "parameters": [
        {"name": "red", "low": -1, "high": 1},
        {"name": "size", "low": 0, "high": 10, "start": 3},
    ],
    "people": 16 * 6,
    "epsilon": 1,
    "despite_noise": True,
}
HOLDER = "a worker"


def spec(**changed):
    return StudySpec.model_validate(SPEC | changed)


class Bench:
    """A worker's studies, with the steps of a run written as short as possible."""

    def __init__(self, database: Database) -> None:
        self.database, self.studies = database, Studies(database, SECRETS)
        self.salts: dict[
            tuple[str, int], bytes
        ] = {}  # of released steps: the database forgets them

    def create(self, **changed) -> tuple[str, int]:
        study = self.studies.create(spec(**changed))
        return study, self.studies.number(study)

    def serve(self, number, people=(), votes=()):
        return voting.serve(self.database, number, people, votes)

    def person(self, number, name):
        return SECRETS.person(self.studies.row(number)["id"], name)

    def ask(self, study, *names):
        people = [SECRETS.person(study, name) for name in names]
        return self.serve(self.studies.number(study), people).seats

    def votes(self, number, release, answers):
        """Votes of {(name, part): loss}."""
        found = []
        for (name, part), loss in answers.items():
            address = Address(number, release, self.person(number, name), part)
            found.append(Vote(address, SECRETS.seal(address, loss)))
        return found

    def answer(self, number, release, answers):
        """Store {(name, part): loss}; gives the statuses."""
        return self.serve(number, votes=self.votes(number, release, answers)).votes

    def past_deadline(self, number):
        chosen = schema.studies.c.number == number
        with self.database.begin() as connection:
            connection.execute(sa.update(schema.studies).where(chosen).values(deadline=0.0))

    def freeze(self, number, holder=HOLDER):
        return closing.freeze(self.studies, number, holder)

    def release(self, number, holder=HOLDER):
        return closing.release(self.studies, number, holder)

    def close_step(self, number):
        self.past_deadline(number)
        assert self.freeze(number)
        row = self.studies.row(number)
        self.salts[row["id"], row["release"]] = bytes(row["salt"])
        assert self.release(number)

    def count(self, table) -> int:
        with self.database.read() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()

    def answers_for(self, step: int, people: int = 6, silent: float = 0.2):
        """The answers that simulated people give in a step: always the same ones."""
        chance = np.random.default_rng([7, step])
        return {
            (f"{step}-{person}", part): float(chance.random() < 0.5)
            for person in range(people)
            for part in (0, 1)
            if chance.random() > silent
        }

    def run_step(self, study, number, people: int = 6):
        """So many people asked, some answers, the end of the window, the release."""
        release = self.studies.row(study)["release"]
        seats = self.ask(study, *(f"{release}-{person}" for person in range(people)))
        assert [seat.status for seat in seats] == [Status.ASKED] * people
        answers = self.answers_for(release, people)
        assert set(self.answer(number, release, answers)) == {Status.ACCEPTED}
        self.close_step(number)
        return answers

    def run(self, study, number):
        while self.studies.row(study)["status"] == "running":
            self.run_step(study, number)

    def table(self, study, answers):
        """The votes {(name, part): loss} as the gate gets them."""
        design, release = self.studies.design(study), self.studies.row(study)["release"]
        named = {(SECRETS.person(study, n), p): loss for (n, p), loss in answers.items()}
        return table_of(named, lambda person: design.role(person, release))


def table_of(answers: dict[tuple[bytes, int], float], role=lambda person: 0) -> np.ndarray:
    """A row of a number, a role and two losses for each person, in the order of their hashes."""
    people = sorted({person for person, _ in answers})
    rows = [
        [number_of(each), role(each), *(answers.get((each, part), np.nan) for part in (0, 1))]
        for each in people
    ]
    return np.asarray(rows, float).reshape(-1, 4)


def shares(design: Design, state: str | None, votes: np.ndarray) -> np.ndarray:
    """How far each person's votes move a step's release: in NumPy, from where they were asked."""
    query = design._machine.ask(design.state(state), Kind.GRAD, design.public)
    numbers = np.resize(votes[:, 0], -(-max(len(votes), 1) // 32) * 32).astype(np.int64)
    with jax.enable_x64(True):
        sets = [
            points_at(design._machine.estimator, query, jnp.asarray(some))
            for some in numbers.reshape(-1, 32)
        ]
    points = np.concatenate([np.asarray(each)[:, :, 0] for each in sets])[: len(votes)]
    apart = points[:, 0] - points[:, 1]
    role, losses = votes[:, 1], votes[:, 2:]
    slopes = design.plan.dim * (losses[:, 0] - losses[:, 1]) / np.sum(apart**2, axis=1)
    found = np.where(role[:, None] == 0, slopes[:, None] * apart, 0.0)
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    clip, weight = design.plan.clips[0] / design.watch.longer, design.watch.weight
    found *= np.where(lengths > clip, clip / np.maximum(lengths, 1e-300), 1.0)
    content = 2.0 * losses - 1.0
    half = np.sqrt((1.0 + weight**2) / 2.0)
    first_is_now = np.where((role == 1)[:, None], content[:, ::-1], content)
    beside = np.column_stack(
        [
            np.where(role == 0, weight * content.mean(axis=1), 0.0),
            np.where((role == 0)[:, None], 0.0, half * first_is_now),
            np.full(len(votes), weight),
        ]
    )
    whole = np.column_stack([found, clip * beside])
    return np.where(np.isnan(losses).any(axis=1)[:, None], 0.0, whole) / design.planned


class NoPort:
    """A port that lets everything pass."""

    def charge(self, first, count, answers):
        pass


def made_again(
    design: Design, secrets: Secrets, release: int, salt: bytes, state, votes, history=()
):
    """A release of these votes, as an undisturbed worker makes it."""
    name = votes_name(secrets, design.study, release, salt, votes.ravel())
    noise = secrets.noise(design.study, design.attempt, release, salt, name)
    gate = design.gate(noise, NoPort(), release)
    return design.release(gate, design.state(state), votes, history)


def fresh_settings(folder) -> Settings:
    """Settings of a service in a folder: a key file, an SQLite database with its tables, no limits."""
    key = folder / "key"
    key.write_text("11" * 32)
    key.chmod(0o600)
    url = f"sqlite:///{folder}/votes.db"
    database = Database(url)
    database.migrate()
    database.close()
    return Settings(
        database=url,
        key_file=str(key),
        anonymous_per_second=1e6,
        requests_per_second=1e6,
        tick_seconds=0.0,
    )
