"""Dividing a plan among workers, and how many there are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor_keras.cli.plans import print_plan
from flor_keras.errors import UsageError
from flor_keras.instrument.carried import carried_between_epochs
from flor_keras.instrument.scopes import FunctionId
from flor_keras.records import LoopRecord, Verdict
from flor_keras.replay.cost import Costs, costs_of
from flor_keras.replay.launch import deal_devices
from flor_keras.replay.merge import merge_reports
from flor_keras.replay.plan import Plan
from flor_keras.replay.prospect import Prospect
from flor_keras.replay.segments import divide, places
from flor_keras.replay.workers import Machine, choose_workers
from flor_keras.store.database import Store

PLAN = Plan(
    **dict.fromkeys(("store", "run", "script", "root", "cwd"), "x"),
    **dict.fromkeys(("run_name", "module", "steps")),
    **dict.fromkeys(("is_in_every_loop", "is_in_graph", "is_changed", "allow_writes"), False),
    argv=[],
    args={},
    variables={},
    names=["norm"],
    level="step",
    levels={"norm": "step", "end": "after"},
    epochs={"0": list(range(8)), "1": [0, 1]},
    num_loops=2,
    reaching=[],
    callbacks="needed",
)
COSTS = Costs(5.0, 1.0, 10.0, {}, {}, 1.0, worker_bytes=10**9)


@given(st.integers(1, 12), st.lists(st.floats(0.01, 100), min_size=10, max_size=10))
def test_every_place_is_in_exactly_one_segment_and_no_segment_is_much_too_large(num_workers, secs):
    cost = dict(zip(places(PLAN), secs, strict=True)).__getitem__
    segments = divide(PLAN, num_workers, cost, lambda place: 0.0)
    assert [place for segment in segments for place in places(segment)] == places(PLAN)
    assert len(segments) <= num_workers
    largest = max(sum(map(cost, places(segment))) for segment in segments)
    assert largest <= sum(secs) / num_workers + max(secs) + 1e-6


def test_only_the_last_segment_keeps_what_belongs_to_no_epoch_and_runs_to_the_end():
    segments = divide(replace(PLAN, is_in_every_loop=True), 3, lambda place: 1.0, lambda place: 0.0)
    assert [segment.is_outside_kept for segment in segments] == [False, False, True]
    assert [segment.is_to_the_end for segment in segments] == [False, False, True]
    assert [segment.is_in_every_loop for segment in segments] == [False, False, True]


def test_segments_begin_where_a_checkpoint_makes_that_cheap():
    lead_ins = {(0, epoch): 100.0 for epoch in range(8)} | {(0, 0): 0.0, (0, 3): 0.0, (1, 0): 0.0}
    segments = divide(PLAN, 2, lambda place: 1.0, lambda place: lead_ins.get(place, 100.0))
    assert [places(segment)[0] for segment in segments] == [(0, 0), (1, 0)]


def test_the_lead_in_of_a_place_is_what_a_worker_that_begins_there_redoes_more_than_one_on_its_way():
    costs = replace(
        COSTS, visit_secs=1.0, scale=0.5, on_way_secs={(0, 4): 2.0}, alone_secs={(0, 4): 8.0, (0, 5): 4.0}
    )
    assert [costs.of_place((0, epoch)) for epoch in (3, 4, 5)] == [1.0, 2.0, 1.0]
    assert [costs.of_lead_in((0, epoch)) for epoch in (3, 4, 5)] == [0.0, 3.0, 2.0]


def test_a_start_takes_what_it_took_when_the_run_was_recorded(tmp_path, run_record):
    record = run_record(environment={"age_secs": 4.0})
    loop = {"kind": "fit", "name": None, "initial_epoch": 0, "epochs": 8, "steps": 2}
    with Store.open(tmp_path, create=True) as store:
        store.begin_run(record)
        store.begin_loop(LoopRecord(run=record.id, loop=0, started_at=record.started_at + 1.5, **loop))
        costs = costs_of(store, replace(PLAN, run=record.id))
    assert costs.startup_secs == pytest.approx(5.5)


def test_what_other_probes_took_counts_unless_this_one_goes_over_data(tmp_path, run_record):
    def plan(name: str) -> Plan:
        probe = {"kind": "built_in", "name": name}
        return replace(PLAN, run="run-1", names=[name], level="epoch", levels={name: "epoch"}, probes=[probe])

    with Store.open(tmp_path, create=True) as store:
        store.begin_run(run_record())

        def replayed(name: str, secs: float) -> None:
            number = store.begin_replay("run-1", "epoch", [name], [], plan(name).to_json())
            report = {"workers": [{"visit_secs": secs}]}
            store.finish_replay(number, "finished", 1.0, Verdict.EXACT, 0.0, report)

        replayed("weight_norm", 0.001)
        assert costs_of(store, plan("learning_rate")).visit_secs == 0.001
        assert costs_of(store, plan("confusion_matrix")).visit_secs > 0.01
        replayed("confusion_matrix", 2.0)
        assert costs_of(store, plan("confusion_matrix")).visit_secs == 2.0


@pytest.mark.parametrize(
    ("asked", "machine", "expected"),
    [
        ("auto", Machine(4, 0, 64 * 10**9), 4),
        ("auto", Machine(64, 0, 640 * 10**9), 10),
        ("auto", Machine(4, 2, 64 * 10**9), 2),
        ("auto", Machine(4, 0, 3 * 10**9), 3),
        ("auto", Machine(1, 0, 64 * 10**9), 1),
        ("3", Machine(1, 0, None), 1),
        ("3", Machine(2, 0, 64 * 10**9), 3),
        ("3", Machine(2, 0, 2 * 10**9), 2),
        ("3", Machine(2, 0, 10), 1),
    ],
)
def test_workers_are_as_many_as_asked_for_and_there_is_room_for(asked, machine, expected):
    assert choose_workers(asked, PLAN, COSTS, machine)[0] == expected


def test_what_is_done_in_seconds_gets_one_worker():
    assert choose_workers("auto", PLAN, replace(COSTS, visit_secs=0.1), Machine(8, 0, 10**12)) == (1, None)


CARRIED = {"carried": "train.py:3: self.seen += 1"}
FROM_START = {"from_start": {"0": "its steps change what cannot be told"}}


@pytest.mark.parametrize("changes", [CARRIED, FROM_START])
def test_what_cannot_be_divided_gets_one_worker_and_says_why_where_it_could_have_had_more(changes):
    plan, machine = replace(PLAN, **changes), Machine(8, 0, 10**12)
    number, why = choose_workers("auto", plan, COSTS, machine)
    assert number == 1
    assert why is not None
    assert choose_workers("auto", plan, COSTS, Machine(1, 0, 10**12)) == (1, None)
    assert choose_workers("auto", replace(plan, epochs={"0": [1]}), COSTS, machine) == (1, None)
    assert choose_workers("auto", plan, replace(COSTS, visit_secs=0.1), machine) == (1, None)
    assert choose_workers("2", plan, COSTS, machine) == (2, None)


@pytest.mark.parametrize(
    ("fewer", "told"),
    [
        ({"num_workers": 1, "segments": [PLAN]}, "        one worker only: memory is left for few\n"),
        ({"num_workers": 2, "segments": [PLAN, PLAN]}, "        2 workers only: memory is left for few\n"),
    ],
)
def test_that_workers_are_fewer_reads_as_such(fewer, told, capsys):
    print_plan(Prospect(PLAN, why="memory is left for few", costs=COSTS, expected_secs=1.0, **fewer))
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("asked", ["0", "-1", "many", ""])
def test_a_number_of_workers_that_is_none_is_refused(asked):
    with pytest.raises(UsageError, match="expected a number from 1 up, or auto"):
        choose_workers(asked, PLAN, COSTS, Machine(8, 0, 10**12))


def test_gpus_are_dealt_out_so_that_each_worker_has_its_own():
    def devices(*given):
        return [share.get("CUDA_VISIBLE_DEVICES") for share in deal_devices(*given)]

    assert devices(2, None, 4) == ["0,2", "1,3"]
    assert devices(2, "5,7", 8) == ["5", "7"]
    assert devices(3, "5,7", 8) == ["5", "7", "5"]
    assert devices(2, None, 0) == devices(2, "-1", 4) == devices(2, "", 4) == [None, None]
    assert "TF_FORCE_GPU_ALLOW_GROWTH" in deal_devices(3, None, 2)[0]
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in deal_devices(2, None, 2)[0]


def test_merged_reports_say_what_one_worker_would_have_said():
    exact = {
        "error": None,
        "num_entries": 2,
        "num_compared": 5,
        "verified": "exact",
        "max_abs_diff": 0.0,
        "held_back": ["A"],
    }
    late = {"name": "loss", "position": [0, 5, None]}
    early = {"name": "loss", "position": [0, 2, 3]}
    other = {
        **exact,
        "verified": "approximate",
        "max_abs_diff": 0.5,
        "first_difference": late,
        "held_back": ["A", "B"],
    }
    third = {**other, "max_abs_diff": 0.25, "first_difference": early}
    merged = merge_reports([exact, other, third])
    assert (merged["num_entries"], merged["num_compared"]) == (6, 15)
    assert (merged["verified"], merged["max_abs_diff"]) == (Verdict.APPROXIMATE, 0.5)
    assert merged["first_difference"] == early
    assert merged["held_back"] == ["A", "B"]
    assert merge_reports([exact, {"error": None}])["verified"] == "exact"
    assert merge_reports([{"error": None}])["verified"] == "unchecked"


CALLBACK = """
class Look(Callback):
    def __init__(self):
        self.seen = []
    def on_train_begin(self, logs):
        self.start = 0
    def on_epoch_end(self, epoch, logs):
        {line}
        flor.log("norm", 1)
"""
PLAIN = """
def plain(model, seen):
    {line}
    flor.log("norm", 1)
"""
LOOK = [FunctionId("train.py", 7, "Look.on_epoch_end")]


NOT_CARRIED = [
    *("x = 1", "x = []; x.append(epoch)", "print(epoch)", "logs = dict(logs)"),
    # changed, and never read but to change it, or set before it is read
    *("self.steps += 1", "self.steps = getattr(self, 'steps', 0) + 1", "self.seen.append(epoch)"),
    *("self.last = 1; print(self.last)", "self.last = epoch; self.last += 1; print(self.last)"),
    "self.by[epoch] = 1",
]


@pytest.mark.parametrize("line", NOT_CARRIED)
def test_what_stays_inside_of_an_epoch_is_not_carried(line):
    source = {"train.py": CALLBACK.format(line=line)}
    assert carried_between_epochs(source, LOOK) is None
    if "self" not in line:
        functions = [FunctionId("train.py", 2, "plain")]
        assert carried_between_epochs({"train.py": PLAIN.format(line=line)}, functions) is None


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("self.last = 1", "print(self.last)"),
        ("self.total += 1", "print(self.total)"),
        ("self.total += 1", "print(getattr(self, 'total'))"),
        ("self.total += 1", "print(vars(self))"),
        ("self.total += 1", "print(self.__dict__)"),
        ("self.seen.append(epoch)", "self.last = self.seen[-1]"),
        ("self.by[epoch] = 1", "print(self.by)"),
    ],
)
def test_attributes_that_change_and_are_read_are_carried(line, read):
    source = {"train.py": CALLBACK.format(line=f"{read}\n        {line}")}
    carried = carried_between_epochs(source, LOOK)
    assert carried is not None
    method = f"class Other:\n    def look(self, look):\n        {read.replace('self', 'look')}\n"
    source = {"train.py": CALLBACK.format(line=line), "other.py": method}
    if "vars" not in read and "__dict__" not in read:
        assert carried_between_epochs(source, LOOK) == f"train.py:8: {line}"


def test_what_a_callback_sets_up_for_itself_is_not_carried():
    source = """
class Look(Callback):
    def __init__(self, others):
        others.append(self)
        registry[0] = self
        log(0)
def log(value):
    flor.log("norm", value)
"""
    functions = [FunctionId("train.py", 3, "Look.__init__"), FunctionId("train.py", 7, "log")]
    assert carried_between_epochs({"train.py": source}, functions) is None


def test_what_compiling_a_model_sets_is_not_carried():
    source = """
class Distiller(Model):
    def compile(self, student_loss_fn):
        self.student_loss_fn = student_loss_fn
    def compute_loss(self, x):
        loss = self.student_loss_fn(x)
        flor.log("norm", loss)
        return loss
"""
    functions = [FunctionId("train.py", 5, "Distiller.compute_loss")]
    assert carried_between_epochs({"train.py": source}, functions) is None


@pytest.mark.parametrize("line", ["global total", "outside.append(1)", "outside[1] = 2", "outside.last = 3"])
def test_outside_names_that_change_are_carried(line):
    source = {"train.py": PLAIN.format(line=line)}
    assert carried_between_epochs(source, [FunctionId("train.py", 2, "plain")]) is not None
