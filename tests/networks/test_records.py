"""Records of any kind become tensors of one shape, each by itself."""

from collections import UserDict

import numpy as np
import pytest
import torch

from blindstep.errors import InvalidArgument
from blindstep.losses.people import People
from blindstep.torch.records import Records, of_people

CPU = torch.device("cpu")


class Reviews(torch.utils.data.Dataset):
    """A data set of texts, as a user has it."""

    texts = ("good", "not so good", "bad", "")

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, number):
        return {"text": self.texts[number], "stars": float(number)}


def collate(reviews, length=8):
    padded = [[ord(c) for c in each["text"]][:length] for each in reviews]
    ids = torch.tensor([each + [0] * (length - len(each)) for each in padded])
    return UserDict(ids=ids, stars=torch.tensor([each["stars"] for each in reviews]))


def test_mappings_tuples_and_tensors_are_taken_as_they_are():
    numbers = np.arange(12.0).reshape(6, 2)
    for data in ({"x": numbers, "y": torch.arange(6)}, (torch.arange(6), numbers), torch.arange(6)):
        records = Records(data)
        assert records.number == 6
    rows = Records({"x": numbers, "y": torch.arange(6)}).batch(np.array([4, 1]), CPU).rows
    assert rows["x"].tolist() == [[8, 9], [2, 3]]
    assert rows["y"].tolist() == [4, 1]


def test_a_data_set_is_collated_record_by_record():
    seen = []

    def watched(reviews):
        seen.append(len(reviews))
        return collate(reviews)

    records = Records(Reviews(), watched)
    assert seen == [1, 1, 1, 1]
    batch = records.batch(np.array([1, 2]), CPU).rows
    assert batch["ids"][0].tolist() == [ord(c) for c in "not so g"]
    assert batch["stars"].tolist() == [1.0, 2.0]
    pairs = torch.utils.data.TensorDataset(torch.randn(5, 2), torch.arange(5))
    assert Records(pairs).batch(np.array([3]), CPU).rows[1].tolist() == [3]


def test_a_batch_padded_to_its_longest_text_is_refused():
    def to_the_longest(reviews):
        return collate(reviews, max(len(each["text"]) for each in reviews))

    with pytest.raises(InvalidArgument, match=r"different shapes.*max_length"):
        Records(Reviews(), to_the_longest)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"x": torch.zeros(3), "y": torch.zeros(4)}, "disagree"),
        ({"x": np.array(["a", "b"])}, "tokenizes text"),
        (Reviews(), "tokenizes text"),
        ({"x": torch.zeros(0, 2)}, "empty"),
        (iter([1, 2]), "with a length"),
        ({"x": torch.tensor(1.0)}, "disagree"),
    ],
)
def test_what_cannot_be_records_is_refused(data, word):
    with pytest.raises(InvalidArgument, match=word):
        Records(data)


def test_a_person_counts_with_the_mean_of_the_rows_that_are_used():
    people = np.array([5, 5, 9, 5, 7])
    records = Records({"x": torch.arange(5.0)}, people=People(people, rows=2))
    assert records.number == 3
    assert "at most 2" in records.unit
    batch = records.batch(np.array([0, 1, 2]), CPU)
    values = of_people(batch.rows["x"][None], batch.used)[0]
    assert values[1] == 4.0  # person 7
    assert values[2] == 2.0  # person 9
    assert float(values[0]) in {(0 + 1) / 2, (0 + 3) / 2, (1 + 3) / 2}
    # What stands in a slot that does not count changes nothing, even if it is no number.
    odd = batch.rows["x"].clone().view(3, 2)
    odd[1:, 1] = np.nan
    assert torch.equal(of_people(odd.view(1, -1), batch.used)[0], values)


def test_made_up_records_hold_nothing_of_the_data():
    secret = {"x": torch.full((6, 3), 17.0, dtype=torch.bfloat16), "y": np.full(6, 17)}
    made = Records(secret).made_up(5, CPU, (0, 1, 2, 3)).rows
    assert made["x"].shape == (5, 3)
    assert made["x"].dtype == torch.bfloat16
    assert not torch.any(made["x"] == 17.0)
    assert set(made["y"].tolist()) <= {0, 1}


def test_a_record_that_collate_fails_for_is_void_and_its_words_are_not_heard(capsys):
    def failing(reviews):
        print(reviews)
        if reviews[0]["stars"] == 2.0:
            raise ValueError(reviews)
        return collate(reviews)

    records = Records(Reviews(), failing)
    assert records.number == 4
    assert records.void.tolist() == [False, False, True, False]
    assert capsys.readouterr().out == ""


def test_columns_go_by_name_and_types_must_agree():
    class Mixed(Reviews):
        def __getitem__(self, number):
            x, z = torch.tensor(1.0), torch.tensor(2.0)
            return {"z": z, "x": x} if number == 1 else {"x": x, "z": z}

    rows = Records(Mixed()).batch(np.arange(4), CPU).rows
    assert rows["x"].tolist() == [1.0] * 4
    assert rows["z"].tolist() == [2.0] * 4

    class Odd(Reviews):
        def __getitem__(self, number):
            return {"y": 1.5 if number == 2 else 1}

    with pytest.raises(InvalidArgument, match="types"):
        Records(Odd())
    with pytest.raises(InvalidArgument, match="tuple of columns"):
        Records([torch.zeros(3), torch.zeros(3)])
