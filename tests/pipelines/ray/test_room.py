"""How many processes a cluster is asked for."""

import pytest

from pipelines.ray.room import processes_wanted, room_of


@pytest.mark.parametrize(
    ("nodes", "need", "room"),
    [
        ([], {"CPU": 1}, 0),
        ([{"CPU": 4.0}, {"CPU": 3.0}], {"CPU": 1, "memory": 0}, 7),
        ([{"CPU": 4.0}, {"CPU": 3.0}], {"CPU": 2}, 3),
        ([{"CPU": 4.0, "memory": 5e9}], {"CPU": 0.5, "memory": 2e9}, 2),
        ([{"CPU": 4.0}, {"CPU": 4.0, "fast": 2.0}], {"CPU": 1, "fast": 1}, 2),
    ],
)
def test_the_room_of_nodes_counts_whole_processes_on_each(nodes, need, room):
    assert room_of(nodes, need) == room


def test_processes_follow_the_nodes_unless_their_number_is_given():
    assert processes_wanted(room=8, left=100, most=None) == 8
    assert processes_wanted(room=0, left=100, most=None) == 1, "an autoscaler must see a demand"
    assert processes_wanted(room=8, left=3, most=None) == 3
    assert processes_wanted(room=8, left=100, most=20) == 20
    assert processes_wanted(room=8, left=5, most=20) == 5
