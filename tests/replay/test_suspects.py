"""A replay that is not exact names what of the machine is not as it was."""

from __future__ import annotations

from types import SimpleNamespace

from flor_keras.environment import read_environment
from flor_keras.replay.replayer import Replayer
from flor_keras.store.database import Store


def suspects(tmp_path, run_record, environment):
    with Store.open(tmp_path, create=True) as store:
        store.begin_run(run_record("aaa", environment=environment))
    plan = SimpleNamespace(store=str(tmp_path), run="aaa", names=[], is_changed=False)
    replayer = Replayer(plan, 1, lambda event: None)
    replayer.suspect_environment()
    return replayer.causes


def test_a_machine_with_fewer_cpus_is_a_suspect(tmp_path, run_record):
    now = read_environment()
    machine = now["machine"] | {"num_cpus": now["machine"]["num_cpus"] + 2}
    (cause,) = suspects(tmp_path, run_record, now | {"machine": machine})
    assert "divides its sums by threads" in cause


def test_another_version_is_a_suspect(tmp_path, run_record):
    now = read_environment()
    (cause,) = suspects(tmp_path, run_record, now | {"versions": now["versions"] | {"numpy": "1.0"}})
    assert "recorded with numpy 1.0" in cause


def test_the_same_machine_is_none(tmp_path, run_record):
    assert suspects(tmp_path, run_record, read_environment()) == []


def test_variables_of_terraform_are_not_taken_for_those_of_tensorflow(monkeypatch):
    for name in ("TF_CLI_ARGS", "TF_VAR_password", "TF_TOKEN_example_org", "TF_DETERMINISTIC_OPS"):
        monkeypatch.setenv(name, "1")
    kept = [name for name in read_environment()["variables"] if name.startswith("TF_")]
    assert {"TF_DETERMINISTIC_OPS"} <= set(kept) <= {"TF_DETERMINISTIC_OPS", "TF_CPP_MIN_LOG_LEVEL"}
