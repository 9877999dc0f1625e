from serving.access import AdmissionConfig
from serving.gateway.ladder import Ladder, Rung


def test_rungs_are_reached_at_once_and_left_only_well_below_and_each_change_is_told() -> None:
    told: list[Rung] = []
    ladder = Ladder(AdmissionConfig(shed_batch_at=0.5, cap_output_at=0.75), told.append)
    loads = [0.1, 0.5, 0.45, 0.36, 0.34, 0.8, 0.6, 1.5, 0.8, 0.69, 0.5, 0.0]
    rungs = [ladder.see(load) for load in loads]
    normal, shed, cap, _, refuse = Rung
    assert rungs == [normal, shed, shed, shed, normal, cap, cap, refuse, refuse, cap, shed, normal]
    assert told == [shed, normal, cap, refuse, cap, shed, normal]


def test_a_model_that_another_stands_in_for_gives_its_requests_away_before_it_refuses_them() -> None:
    config = AdmissionConfig(shed_batch_at=0.5, cap_output_at=0.75, fallback_at=0.9)
    ladder = Ladder(config, lambda _: None, can_fall_back=True)
    rungs = [ladder.see(load) for load in (0.8, 0.95, 0.7, 1.0, 0.69, 0.62, 0.0)]
    normal, _, cap, fallback, refuse = Rung
    assert rungs == [cap, fallback, fallback, refuse, fallback, cap, normal]
