"""A program that writes in every way TensorFlow, Keras and h5py offer; started by `test_guard_tensorflow`.

It runs its checks three times in one process: guarded before TensorFlow is imported, then free (this leaves
the files of a recorded run behind), then guarded again over those files. Prints one JSON object.
"""

import csv
import glob
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import traceback


def _model():
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("adam", keras.losses.MeanSquaredError())
    return model


def _same(left, right):
    import numpy as np

    for a, b in zip(left.get_weights(), right.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def _has_tensorboard():
    return importlib.util.find_spec("tensorboard") is not None


def keras_saves_a_model_and_loads_it_back():
    import keras

    model = _model()
    for path in ("final.keras", "final.h5"):
        model.save(path)
        _same(keras.models.load_model(path), model)
    keras.saving.save_model(model, pathlib.Path("deep") / "other.keras")
    _same(keras.saving.load_model("deep/other.keras"), model)


def keras_saves_weights_and_loads_them_back():
    model, other = _model(), _model()
    model.layers[0].kernel.assign_add(model.layers[0].kernel + 1)
    model.save_weights("final.weights.h5")
    other.load_weights("final.weights.h5")
    _same(model, other)


def keras_exports_a_saved_model():
    import numpy as np
    import tensorflow as tf

    model = _model()
    model.export("exported", verbose=False)
    x = np.ones((2, 4), "float32")
    loaded = tf.saved_model.load("exported")
    np.testing.assert_allclose(loaded.serve(x), model(x), rtol=1e-5)


def fit_with_all_callbacks_that_write():
    import keras
    import numpy as np

    callbacks = [
        keras.callbacks.ModelCheckpoint("checkpoints/{epoch}.keras"),
        keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True, save_best_only=True),
        keras.callbacks.CSVLogger("history.csv", append=True),
        keras.callbacks.BackupAndRestore("backup"),
    ]
    if _has_tensorboard():
        callbacks.append(keras.callbacks.TensorBoard("board", histogram_freq=1, profile_batch=(1, 2)))
    model = _model()
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    model.fit(x, y, epochs=2, batch_size=4, validation_data=(x, y), verbose=0, callbacks=callbacks)
    assert sorted(os.listdir("checkpoints")) == ["1.keras", "2.keras"]
    _same(keras.models.load_model("checkpoints/2.keras"), model)
    with open("history.csv") as file:
        assert len(list(csv.DictReader(file))) in (2, 4, 5)  # appended to what was there
    if _has_tensorboard():
        assert glob.glob("board/train/*tfevents*")
        assert glob.glob("board/**/*.xplane.pb", recursive=True)
    assert not os.path.exists("backup")


def checkpoints_are_saved_restored_and_rotated():
    import tensorflow as tf

    value = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(value=value)
    manager = tf.train.CheckpointManager(checkpoint, "tf_checkpoints", max_to_keep=2)
    for number in range(3):
        value.assign(float(number))
        manager.save(checkpoint_number=number)
    assert [os.path.basename(path) for path in manager.checkpoints] == ["ckpt-1", "ckpt-2"]
    assert sorted(os.path.basename(path) for path in glob.glob("tf_checkpoints/*.index")) == [
        "ckpt-1.index",
        "ckpt-2.index",
    ]
    value.assign(9.0)
    checkpoint.restore(tf.train.latest_checkpoint("tf_checkpoints")).assert_consumed()
    assert value.numpy() == 2.0
    checkpoint.read(checkpoint.write("written")).assert_consumed()
    assert tf.train.load_checkpoint("written").has_tensor("value/.ATTRIBUTES/VARIABLE_VALUE")


def saved_models_are_written_over_an_older_one():
    import tensorflow as tf

    module = tf.Module()
    module.value = tf.Variable(5.0)
    for number in range(2):
        module.value.assign(float(number))
        tf.saved_model.save(module, "module")
        assert tf.saved_model.load("module").value.numpy() == number


def gfile_changes_and_lists_files():
    import tensorflow as tf

    gfile = tf.io.gfile
    gfile.makedirs("g/a")
    with gfile.GFile("g/a/x.txt", "w") as file:
        file.write("x")
    with gfile.GFile("g/a/x.txt", "a") as file:
        file.write("y")
    assert gfile.GFile("g/a/x.txt").read() == "xy"
    assert gfile.stat("g/a/x.txt").length == 2
    gfile.copy("input.txt", "g/copy.txt", overwrite=True)
    gfile.rename("g/copy.txt", "g/moved.txt", overwrite=True)
    assert sorted(gfile.listdir("g")) == ["a", "moved.txt"]
    assert gfile.glob("g/*/*.txt") == ["g/a/x.txt"]
    assert gfile.glob(os.path.abspath("input.t*")) == [os.path.abspath("input.txt")]
    try:
        gfile.copy("input.txt", "g/moved.txt")
    except tf.errors.AlreadyExistsError:
        gfile.remove("g/moved.txt")
    assert not gfile.exists("g/moved.txt")
    try:
        gfile.remove("g/moved.txt")
    except tf.errors.NotFoundError:
        gfile.rmtree("g")
    assert not gfile.isdir("g")
    gfile.remove("gfile_deletes.txt")
    assert not os.path.exists("gfile_deletes.txt")


def operations_write_and_read_files():
    import tensorflow as tf

    tf.io.write_file("op/a.txt", "eager")
    assert tf.io.read_file("op/a.txt") == b"eager"
    assert tf.raw_ops.ReadFile(filename=tf.constant("op/a.txt")) == b"eager"
    tf.raw_ops.WriteFile(filename=tf.constant("op/b.txt"), contents="raw")

    @tf.function
    def write(name):
        tf.io.write_file("op/c.txt", "constant")
        written = tf.io.write_file(tf.strings.join(["op/", name]), "symbolic")
        with tf.control_dependencies([written]):
            return tf.io.read_file(tf.strings.join(["op/", name]))

    assert write(tf.constant("d.txt")) == b"symbolic"
    assert tf.io.matching_files("op/*.txt").numpy().tolist() == [
        b"op/a.txt",
        b"op/b.txt",
        b"op/c.txt",
        b"op/d.txt",
    ]
    tf.io.write_graph(tf.Graph(), "op", "graph.pbtxt")
    assert os.path.exists("op/graph.pbtxt")
    tf.print("printed", output_stream=f"file://{os.path.abspath('op/print.log')}")
    with open("op/print.log") as file:
        assert "printed" in file.read()


def records_and_summaries_are_written():
    import tensorflow as tf

    with tf.io.TFRecordWriter("part-0.tfrecord") as writer:
        writer.write(b"one")
    assert [r.numpy() for r in tf.data.TFRecordDataset("part-0.tfrecord")] == [b"one"]
    names = tf.data.Dataset.list_files("part-*.tfrecord")
    assert [r.numpy() for r in names.interleave(tf.data.TFRecordDataset)] == [b"one"]
    assert list(tf.compat.v1.io.tf_record_iterator("part-0.tfrecord")) == [b"one"]
    with tf.summary.create_file_writer("summaries").as_default():
        tf.summary.write("a", 1.0, step=0)
        tf.summary.flush()
    assert len(glob.glob("summaries/*tfevents*")) >= 1
    with tf.Graph().as_default():
        tf.compat.v1.summary.FileWriter("summaries_v1", filename_suffix=".one").close()
    assert glob.glob("summaries_v1/*.one")


def datasets_are_saved_cached_and_snapshotted():
    import tensorflow as tf

    dataset = tf.data.Dataset.range(4)
    dataset.save("dataset")
    assert sorted(int(x) for x in tf.data.Dataset.load("dataset")) == [0, 1, 2, 3]
    cached = dataset.cache("cached")
    for _ in range(2):
        assert [int(x) for x in cached] == [0, 1, 2, 3]
    assert os.path.exists("cached.index")
    assert [int(x) for x in dataset.snapshot("snapshots")] == [0, 1, 2, 3]


def vocabularies_are_read_back_after_writing():
    import keras
    import tensorflow as tf

    with open("words.txt", "w") as file:
        file.write("a\nb\n")
    places = tf.lookup.TextFileIndex
    words = tf.lookup.TextFileInitializer(
        "words.txt", tf.string, places.WHOLE_LINE, tf.int64, places.LINE_NUMBER
    )
    table = tf.lookup.StaticHashTable(words, -1)
    assert table.lookup(tf.constant("b")).numpy() == 1
    layer = keras.layers.StringLookup(vocabulary="words.txt")
    assert layer(tf.constant(["b"])).numpy().tolist() == [2]


def the_debugger_dumps_into_a_folder():
    import tensorflow as tf

    tf.debugging.experimental.enable_dump_debug_info("dump", tensor_debug_mode="FULL_HEALTH")
    try:
        tf.function(lambda x: x + 1)(tf.constant(1.0))
    finally:
        tf.debugging.experimental.disable_dump_debug_info()
    assert glob.glob("dump/*execution*")


def h5py_writes_appends_and_reads():
    import h5py

    with h5py.File("a.h5", "w") as file:
        file["x"] = [1, 2]
    with h5py.File(b"a.h5", "a") as file:
        file["y"] = [3]
    with h5py.File(pathlib.Path("a.h5")) as file:
        assert list(file["x"]) == [1, 2]
        assert list(file["y"]) == [3]
    with h5py.File("input.h5", "r+") as file:
        file.attrs["more"] = 1
    for mode in ("x", "w-"):
        try:
            h5py.File("input.h5", mode).close()
        except FileExistsError:
            continue
        raise AssertionError("created a file that is there")
    h5py.File("memory.h5", "w", driver="core", backing_store=False).close()
    assert not os.path.exists("memory.h5")


def plain_python_writes_beside_it():
    import matplotlib.pyplot as plt
    import pandas as pd

    with open("rows.csv", "w", newline="") as file:
        csv.writer(file).writerow(["a", "b"])
    pd.DataFrame({"a": [1]}).to_csv("frame.csv")
    assert pd.read_csv("frame.csv").a[0] == 1
    with open("log.txt", "a") as file:
        file.write("another line\n")
    os.rename("rows.csv", "renamed.csv")
    os.remove("input.txt")
    assert not os.path.exists("input.txt")
    shutil.rmtree("inputs")
    plt.plot([1, 2])
    plt.savefig("plot.png")
    plt.show()


CHECKS = [
    value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


def _prepare(home):
    """Make the files a run starts from."""
    for name in ("input.txt", "gfile_deletes.txt"):
        (home / name).write_text(name)
    (home / "log.txt").touch()
    for name in ("inputs", "deep"):
        (home / name).mkdir(exist_ok=True)
    (home / "inputs" / "a.txt").write_text("a")


def _snapshot(home):
    found = {}
    for path in sorted(home.rglob("*")):
        status = path.lstat()
        found[str(path)] = [
            status.st_mode,
            status.st_mtime_ns,
            "" if path.is_dir() else path.read_bytes().hex(),
        ]
    return found


def _run_checks():
    failures = {}
    for check in CHECKS:
        try:
            check()
        except BaseException:
            failures[check.__name__] = traceback.format_exc()
    return failures


def _run_guarded(home, scratch):
    from flor_keras.replay.guard import diverting

    before = _snapshot(home)
    with diverting(scratch, []) as guard:
        failures = _run_checks()
    after = _snapshot(home)
    touched = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return {"failures": failures, "touched": touched, "diverted": guard.diverted, "refused": guard.refused}


def main(home, scratch):
    from flor_keras.replay.guard import quiet_program

    quiet_program()
    os.chdir(home)
    _prepare(home)
    is_imported_early = "tensorflow" in sys.modules
    first = _run_guarded(home, scratch / "first")
    free = _run_checks()
    _prepare(home)
    second = _run_guarded(home, scratch / "second")
    print(json.dumps({"early": is_imported_early, "first": first, "free": free, "second": second}))


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
