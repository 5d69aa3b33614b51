"""What asking a draft model takes, and how far ahead it is asked."""

from headrace.policy.ask_cost import AskCost


def test_nothing_is_known_at_first_so_that_it_is_tried() -> None:
    assert AskCost().seconds(8) == 0.0


def test_it_is_told_for_each_token_ahead_and_between_neighbours() -> None:
    cost = AskCost()
    for _ in range(16):
        cost.observe(1, 4, 4e-3)
        cost.observe(9, 2, 6e-3)
    assert (cost.seconds(1), cost.seconds(5), cost.seconds(99)) == (1e-3, 2e-3, 3e-3)


def test_a_stall_drops_out_and_is_forgotten_when_nobody_is_asked_for_long() -> None:
    cost = AskCost()
    cost.observe(4, 1, 1.0)
    assert cost.seconds(4) == 1.0
    for _ in range(64):
        cost.refuse()
    assert cost.seconds(4) == 0.0
    for seconds in (1e-3, 1e-3, 1.0) * 8:
        cost.observe(4, 1, seconds)
    assert cost.seconds(4) == 1e-3
