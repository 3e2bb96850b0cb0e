"""What tests of the service share: a study, people who answer, and an Optimizer to compare with."""

from __future__ import annotations

import numpy as np
import sqlalchemy as sa

import blindstep as bs
from blindstep.ledger import session
from blindstep.private.noise import Keys
from blindstep.serve import closing, schema, voting
from blindstep.serve.accounts import votes_name
from blindstep.serve.database import Database
from blindstep.serve.keys import Address, Secrets
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
}


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
        length = self.studies.design(number).plan.schedule.releases_per_pass
        return voting.serve(self.database, number, length, people, votes)

    def ask(self, study, *names):
        people = [SECRETS.person(study, name) for name in names]
        return self.serve(self.studies.number(study), people).seats

    def answer(self, number, release, answers):
        """Store {(slot, part): loss}; gives the statuses."""
        return self.serve(number, votes=votes(number, release, answers)).votes

    def past_deadline(self, number):
        chosen = schema.studies.c.number == number
        with self.database.begin() as connection:
            connection.execute(sa.update(schema.studies).where(chosen).values(deadline=0.0))

    def close_step(self, number):
        self.past_deadline(number)
        assert closing.freeze(self.studies, number)
        row = self.studies.row(number)
        self.salts[row["id"], row["release"]] = bytes(row["salt"])
        assert closing.release(self.studies, number)

    def count(self, table) -> int:
        with self.database.read() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()

    def answers_for(self, step: int, slots: int, silent: float = 0.2):
        """The answers that simulated people give in a step: always the same ones."""
        chance = np.random.default_rng([7, step])
        return {
            (slot, part): float(chance.random() < 0.5)
            for slot in range(slots)
            for part in (0, 1)
            if chance.random() > silent
        }

    def run_step(self, study, number):
        """Everybody of a step asked, some answers, the deadline, the release."""
        row = self.studies.row(study)
        release, slots = row["release"], row["slots"]
        seats = self.ask(study, *(f"{release}-{place}" for place in range(slots)))
        assert [seat.status for seat in seats] == [Status.ASKED] * slots
        answers = self.answers_for(release, slots)
        assert set(self.answer(number, release, answers)) == {Status.ACCEPTED}
        self.close_step(number)
        return answers

    def run(self, study, number):
        while self.studies.row(study)["status"] == "running":
            self.run_step(study, number)


def votes(number, release, answers):
    found = []
    for (slot, part), loss in answers.items():
        address = Address(number, release, slot, part)
        found.append(Vote(address, SECRETS.seal(address, loss)))
    return found


def optimizer_of(studies: Studies, study: str, monkeypatch) -> bs.Optimizer:
    """An Optimizer with a study's plan, units and public key."""
    design = studies.design(studies.number(study))
    keys = Keys(SECRETS.run_name(study, design.attempt), design.public, seeded=False)
    monkeypatch.setattr(session, "fresh_keys", lambda seed=None, about="": keys)
    scales = design.spec.scales()
    return bs.Optimizer(design.plan, np.asarray(scales.origin), scales=scales)


def tell(
    optimizer: bs.Optimizer,
    study: str,
    attempt: str,
    release: int,
    salt: bytes,
    answers,
    slots: int,
) -> None:
    """Tell an Optimizer the answers of a step, under the noise key that the study has for them."""
    values = np.full(2 * slots, np.nan)
    for (slot, part), loss in answers.items():
        values[2 * slot + part] = loss
    name = votes_name(SECRETS, study, release, salt, values)
    optimizer._gate._key = SECRETS.noise(study, attempt, release, salt, name)
    optimizer.tell(optimizer.ask(), values)


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
        database=url, key_file=str(key), anonymous_per_second=1e6, requests_per_second=1e6
    )
