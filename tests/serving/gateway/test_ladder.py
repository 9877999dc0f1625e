from serving.access import AdmissionConfig
from serving.gateway.ladder import Ladder, Rung


def test_rungs_are_reached_at_once_and_left_only_well_below_and_each_change_is_told() -> None:
    told: list[Rung] = []
    ladder = Ladder(AdmissionConfig(shed_batch_at=0.5, cap_output_at=0.75), told.append)
    loads = [0.1, 0.5, 0.45, 0.36, 0.34, 0.8, 0.6, 1.5, 0.8, 0.69, 0.5, 0.0]
    rungs = [ladder.see(load) for load in loads]
    normal, shed, cap, refuse = Rung
    assert rungs == [normal, shed, shed, shed, normal, cap, cap, refuse, refuse, cap, shed, normal]
    assert told == [shed, normal, cap, refuse, cap, shed, normal]
