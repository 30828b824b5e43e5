"""Training with FlorKeras gives the numbers it gives without, to the last bit."""

from __future__ import annotations

import json

import pytest
from training import BASE

pytestmark = pytest.mark.slow

HISTORIES = """
is_recording = os.environ["RECORD"] == "1"
histories = {}

def fit(key, model, *arguments, others=(), at=None, **more):
    keras.utils.set_random_seed(7)
    chosen = list(others)
    if is_recording:
        chosen.insert(len(chosen) if at is None else at, flor.FlorKeras())
    history = model.fit(*arguments, callbacks=chosen, verbose=0, **more)
    histories[key] = {name: [float(v).hex() for v in values] for name, values in history.history.items()}
    histories[key + " weights"] = weights(model)
    drawn = np.random.rand(), tf.random.uniform([]), keras.random.uniform([])
    histories[key + " random"] = [float(number) for number in drawn]
"""


@pytest.fixture
def both(project):
    """Run a program with and without FlorKeras and return the histories of each."""

    def run(*parts: str):
        script = project.write("train.py", BASE, HISTORIES, *parts, "print(json.dumps(histories))\n")
        return [
            json.loads(project.succeed(script, env={"RECORD": which}).stdout.splitlines()[-1])
            for which in "01"
        ]

    return run


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_every_kind_of_data_gives_the_same_history_weights_and_random_numbers(both, steps_per_execution):
    without, recorded = both(f"""
        class Rows(keras.utils.PyDataset):
            def __len__(self):
                return 4
            def __getitem__(self, at):
                return x[at * 16 : at * 16 + 16], y[at * 16 : at * 16 + 16]

        def endless():
            while True:
                for at in range(0, 64, 16):
                    yield x[at : at + 16], y[at : at + 16]

        def dataset(**seed):
            return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, **seed).batch(16)

        def make():
            keras.utils.set_random_seed(2)
            return build(steps_per_execution={steps_per_execution})

        fit("arrays", make(), x, y, epochs=3)
        fit("arrays unshuffled", make(), x, y, epochs=3, shuffle=False, batch_size=24)
        fit("dataset", make(), dataset(), epochs=3)
        fit("seeded dataset", make(), dataset(seed=3), epochs=3)
        fit("endless dataset", make(), dataset().repeat(), epochs=3, steps_per_epoch=3)
        fit("generator", make(), endless(), epochs=3, steps_per_epoch=4)
        fit("sequence", make(), Rows(), epochs=3)
        fit("validation split", make(), x, y, epochs=3, validation_split=0.25)
        fit("validation dataset", make(), x, y, epochs=3, validation_data=dataset())
    """)
    assert recorded == without
    assert len(recorded) == 27


def test_callbacks_that_change_training_do_so_alike_before_and_after_ours(both):
    without, recorded = both("""
        for at, patience in ((0, 2), (1, 1), (2, 2), (2, 1)):
            keras.utils.set_random_seed(3)
            chosen = [
                callbacks.EarlyStopping("val_loss", patience=patience, restore_best_weights=True),
                callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.1),
            ]
            model = build(optimizer=keras.optimizers.Adam(0.5))
            fit(f"{at} {patience}", model, x, y, others=chosen, at=at, epochs=8, validation_split=0.25)
        keras.utils.set_random_seed(3)
        model = build(optimizer=keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9))
        fit("swap", model, x, y, others=[callbacks.SwapEMAWeights(swap_on_epoch=True)], at=0, epochs=3)
        at_the_end = callbacks.SwapEMAWeights(swap_on_epoch=False)
        fit("swap at the end", model, x, y, others=[at_the_end], at=1, epochs=3)
    """)
    assert recorded == without


def test_models_with_training_steps_of_their_own_give_the_same(both):
    without, recorded = both("""
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.inner = build()
                self.seed = keras.random.SeedGenerator(3)
                self.steps = tf.Variable(0)
            def call(self, inputs, training=False):
                return self.inner(inputs, training=training)
            def train_step(self, batch):
                inputs, targets = batch
                inputs += keras.random.normal((8,), seed=self.seed) + tf.random.normal((8,))
                self.steps.assign_add(1)
                return super().train_step((inputs, targets))

        model = Own()
        model.compile("adam", "mse")
        fit("graph", model, x, y, epochs=3)
        keras.utils.set_random_seed(3)
        model = Own()
        model.compile("adam", "mse", run_eagerly=True)
        fit("eager", model, x, y, epochs=2)
        keras.utils.set_random_seed(3)
        fit("compiled by XLA", build(jit_compile=True), x, y, epochs=2)
        fit("goes on", model, x, y, epochs=4, initial_epoch=2)
        fit("class weights", build(), x, (y > 4).astype("int32"), epochs=2, class_weight={0: 1.0, 1: 2.0})
    """)
    assert recorded == without
