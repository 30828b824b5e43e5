"""Programs made of parts: where the data come from × what the model is × what trains it. Each is a script by itself.

A part is a few lines of a program. All data have rows of 16 numbers and all models take those, so that any parts go
together: `DATA` makes ``data`` (the arguments of `fit`), `MODELS` makes ``model`` and ``loss``, `OPTIMIZERS` and
`CALLBACKS` are expressions, `TRAINING` puts them together.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

BEGINNING = """
import flor_keras as flor
import random
import keras, numpy as np, tensorflow as tf
from keras import callbacks, layers, ops
from audit import finish, note, observed

"""

ROWS = """
x = np.random.normal(size=(48, 16)).astype("float32")
y = (x[:, :4].sum(1, keepdims=True) + np.random.normal(size=(48, 1))).astype("float32")
slices = lambda: tf.data.Dataset.from_tensor_slices((x, y))

"""

DATA = {
    "arrays": "data = dict(x=x, y=y, batch_size=8)",
    "arrays in order": "data = dict(x=x, y=y, batch_size=8, shuffle=False)",
    "arrays by batch": "data = dict(x=x, y=y, batch_size=8, shuffle='batch')",
    "arrays split": "data = dict(x=x, y=y, batch_size=8, validation_split=0.25)",
    "arrays validated": "data = dict(x=x, y=y, batch_size=8, validation_data=(x[:16], y[:16]))",
    "arrays odd": "data = dict(x=x[:44], y=y[:44], batch_size=8)",
    "class weights": "y = (y > 0).astype('int32')\ndata = dict(x=x, y=y, batch_size=8, class_weight={0: 1.0, 1: 3.0})",
    "sample weights": "data = dict(x=x, y=y, batch_size=8, sample_weight=np.random.rand(48))",
    "tensors": "data = dict(x=tf.constant(x), y=tf.constant(y), batch_size=8)",
    "random split": """
        order = np.random.permutation(48)
        data = dict(x=x[order[:40]], y=y[order[:40]], batch_size=8, validation_data=(x[order[40:]], y[order[40:]]))
    """,
    "dataset": "data = dict(x=slices().shuffle(48).batch(8))",
    "dataset in order": "data = dict(x=slices().batch(8), validation_data=slices().batch(12))",
    "dataset seeded": "data = dict(x=slices().shuffle(20, seed=5).batch(8))",
    "dataset fixed order": "data = dict(x=slices().shuffle(48, reshuffle_each_iteration=False).batch(8))",
    "dataset repeated": "data = dict(x=slices().shuffle(48).batch(8).repeat(), steps_per_epoch=6)",
    "dataset cut": "data = dict(x=slices().shuffle(48).repeat().batch(8), steps_per_epoch=4)",
    "dataset cached": "data = dict(x=slices().map(lambda a, b: (a * 2, b)).cache().shuffle(48).batch(8).prefetch(2))",
    "dataset interleaved": """
        def part(at):
            return slices().shard(4, at)
        parts = tf.data.Dataset.range(4).shuffle(4)
        data = dict(x=parts.interleave(part, cycle_length=2, block_length=3, num_parallel_calls=2).batch(8))
    """,
    "dataset mapped in parallel": """
        def scaled(a, b):
            return a * 0.5 + tf.sin(a), b
        data = dict(x=slices().shuffle(48).map(scaled, tf.data.AUTOTUNE).batch(8).prefetch(tf.data.AUTOTUNE))
    """,
    "dataset with random map": """
        def noisy(a, b):
            return a + tf.random.normal((16,), seed=3), b
        data = dict(x=slices().shuffle(48).map(noisy).batch(8))
    """,
    "dataset with stateless random map": """
        def noisy(at, row):
            a, b = row
            return a + tf.random.stateless_normal((16,), tf.stack([at, 7])), b
        data = dict(x=slices().shuffle(48).enumerate().map(noisy).batch(8))
    """,
    "dataset from generator": """
        def rows():
            for at in range(48):
                yield x[at], y[at]
        kinds = tf.TensorSpec((16,)), tf.TensorSpec((1,))
        data = dict(x=tf.data.Dataset.from_generator(rows, output_signature=kinds).shuffle(30).batch(8))
    """,
    "dataset with py_function": """
        def doubled(a, b):
            a = tf.py_function(lambda t: t * 2, [a], tf.float32)
            a.set_shape((16,))
            return a, b
        data = dict(x=slices().shuffle(48).map(doubled, 2).batch(8))
    """,
    "dataset sampled": """
        two = [slices().shuffle(48, seed=1).repeat(), slices().map(lambda a, b: (-a, -b)).repeat()]
        data = dict(x=tf.data.Dataset.sample_from_datasets(two, seed=2).batch(8), steps_per_epoch=6)
    """,
    "sequence": """
        class Rows(keras.utils.PyDataset):
            def __init__(self, **arguments):
                super().__init__(**arguments)
                self.order = np.arange(48)
            def __len__(self):
                return 6
            def __getitem__(self, at):
                rows = self.order[at * 8 : at * 8 + 8]
                return x[rows], y[rows]
            def on_epoch_end(self):
                np.random.shuffle(self.order)
        data = dict(x=Rows())
    """,
    "sequence with workers": """
        class Rows(keras.utils.PyDataset):
            def __init__(self, **arguments):
                super().__init__(**arguments)
                self.order = np.arange(48)
                self.generator = np.random.default_rng(3)
            def __len__(self):
                return 6
            def __getitem__(self, at):
                rows = self.order[at * 8 : at * 8 + 8]
                return x[rows], y[rows]
            def on_epoch_end(self):
                self.order = self.generator.permutation(48)
        data = dict(x=Rows(workers=2, max_queue_size=4))
    """,
    "sequence shuffled by Keras": """
        class Rows(keras.utils.PyDataset):
            def __len__(self):
                return 6
            def __getitem__(self, at):
                return x[at * 8 : at * 8 + 8], y[at * 8 : at * 8 + 8]
        data = dict(x=Rows(), shuffle=True)
    """,
    "dataset from drawing generator": """
        def rows():
            for at in np.random.permutation(48):
                yield x[at], y[at]
        kinds = tf.TensorSpec((16,)), tf.TensorSpec((1,))
        data = dict(x=tf.data.Dataset.from_generator(rows, output_signature=kinds).batch(8))
    """,
    "sequence that draws": """
        class Rows(keras.utils.PyDataset):
            def __len__(self):
                return 6
            def __getitem__(self, at):
                return x[at * 8 : at * 8 + 8] + np.random.normal(size=(8, 16)), y[at * 8 : at * 8 + 8]
        data = dict(x=Rows(), shuffle=False)
    """,
    "generator": """
        def batches():
            generator = np.random.default_rng(1)
            while True:
                rows = generator.permutation(48)[:8]
                yield x[rows], y[rows]
        data = dict(x=batches(), steps_per_epoch=6)
    """,
    "generator drawing from numpy": """
        def batches():
            while True:
                rows = np.random.permutation(48)[:8]
                yield x[rows], y[rows]
        data = dict(x=batches(), steps_per_epoch=6)
    """,
}

_ENDS = "loss = 'mse'\n"
MODELS = {
    "dense": "model = keras.Sequential([layers.Dense(8, activation='relu'), layers.Dense(1)])",
    "dropout": """
        model = keras.Sequential([keras.Input((16,)), layers.Dense(8, activation='relu'), layers.Dropout(0.4), layers.Dense(1)])
    """,
    "augmentation": """
        parts = layers.Reshape((4, 4, 1)), layers.RandomFlip(), layers.RandomRotation(0.2), layers.RandomZoom(0.2)
        more = layers.RandomTranslation(0.1, 0.1), layers.Conv2D(3, 3, activation='relu'), layers.Flatten(), layers.Dense(1)
        model = keras.Sequential([keras.Input((16,)), *parts, *more])
    """,
    "seeded flip": """
        parts = layers.Reshape((4, 4, 1)), layers.RandomFlip(seed=42), layers.RandomFlip(seed=42), layers.Flatten()
        model = keras.Sequential([keras.Input((16,)), *parts, layers.Dropout(0.3, seed=1), layers.Dense(1)])
    """,
    "batch normalization": """
        parts = layers.Dense(8), layers.BatchNormalization(), layers.Activation('relu'), layers.Dense(1)
        model = keras.Sequential([keras.Input((16,)), *parts])
    """,
    "noise": """
        parts = layers.GaussianNoise(0.1), layers.Dense(8), layers.GaussianDropout(0.1), layers.AlphaDropout(0.1), layers.Dense(1)
        model = keras.Sequential(list(parts))
    """,
    "seed generator": """
        class Jitter(layers.Layer):
            def __init__(self):
                super().__init__()
                self.seeds = keras.random.SeedGenerator(5)
            def call(self, inputs, training=False):
                return inputs + keras.random.normal(ops.shape(inputs), seed=self.seeds) if training else inputs
        model = keras.Sequential([Jitter(), layers.Dense(1)])
    """,
    "unseeded keras.random": """
        class Jitter(layers.Layer):
            def call(self, inputs, training=False):
                return inputs + keras.random.normal(ops.shape(inputs)) if training else inputs
        model = keras.Sequential([Jitter(), layers.Dense(1)])
    """,
    "raw variable": """
        class Counting(layers.Layer):
            def __init__(self):
                super().__init__()
                self.calls = tf.Variable(0.0, trainable=False)
                self.means = {'fast': tf.Variable(0.0, trainable=False)}
            def call(self, inputs, training=False):
                if training:
                    self.calls.assign_add(1.0)
                    self.means['fast'].assign(0.9 * self.means['fast'] + 0.1 * tf.reduce_mean(inputs))
                return inputs / (1.0 + 0.01 * self.calls) - self.means['fast']
        model = keras.Sequential([Counting(), layers.Dense(1)])
    """,
    "sublayers in containers": """
        class Block(layers.Layer):
            def __init__(self):
                super().__init__()
                self.parts = [layers.Dense(8), layers.BatchNormalization()]
                self.by_name = {'out': layers.Dropout(0.2), 'deep': [layers.Dense(8)]}
            def call(self, inputs, training=False):
                for part in (*self.parts, *self.by_name['deep']):
                    inputs = part(inputs)
                return self.by_name['out'](inputs, training=training)
        model = keras.Sequential([Block(), layers.Dense(1)])
    """,
    "mixed precision": """
        keras.mixed_precision.set_global_policy('mixed_float16')
        parts = layers.Dense(8, activation='relu'), layers.Dropout(0.2), layers.Dense(1, dtype='float32')
        model = keras.Sequential([keras.Input((16,)), *parts])
    """,
    "stateful recurrence": """
        inputs = keras.Input(batch_shape=(8, 16))
        hidden = layers.LSTM(4, stateful=True)(layers.Reshape((4, 4))(inputs))
        model = keras.Model(inputs, layers.Dense(1)(hidden))
    """,
    "recurrent dropout": """
        parts = layers.Reshape((4, 4)), layers.GRU(4, dropout=0.2, recurrent_dropout=0.2), layers.Dense(1)
        model = keras.Sequential([keras.Input((16,)), *parts])
    """,
    "attention": """
        inputs = keras.Input((16,))
        rows = layers.Reshape((4, 4))(inputs)
        rows = layers.LayerNormalization()(rows + layers.MultiHeadAttention(2, 2, dropout=0.2)(rows, rows))
        model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.SpatialDropout1D(0.1)(rows))))
    """,
    "lora": """
        model = keras.Sequential([keras.Input((16,)), layers.Dense(8, activation='relu'), layers.Dense(1)])
        model.layers[0].enable_lora(2)
    """,
    "frozen": """
        model = keras.Sequential([keras.Input((16,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(1)])
        model.layers[0].trainable = False
        model.layers[1].trainable = False
    """,
    "discretized": """
        bins = layers.Discretization(num_bins=6)
        bins.adapt(x)
        parts = bins, layers.Embedding(6, 3), layers.Flatten(), layers.Dense(1)
        model = keras.Sequential([keras.Input((16,)), *parts])
    """,
    "lookup": """
        numbers = layers.IntegerLookup(num_oov_indices=1)
        numbers.adapt(np.round(x[:20] * 2).astype('int64'))
        inputs = keras.Input((16,))
        found = numbers(ops.cast(ops.round(inputs * 2), 'int64'))
        model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Embedding(40, 3)(found))))
    """,
    "words": """
        words = np.array(['bad', 'good', 'fine', 'poor'])[np.clip(np.round(np.abs(x)), 0, 3).astype(int)]
        lookup = layers.StringLookup()
        lookup.adapt(words[:5])
        inputs = keras.Input((16,), dtype='string')
        model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Embedding(8, 3)(lookup(inputs)))))
        data['x'] = tf.constant(words)
    """,
    "normalized": """
        scale = layers.Normalization()
        scale.adapt(x)
        model = keras.Sequential([keras.Input((16,)), scale, layers.Dense(8), layers.UnitNormalization(), layers.Dense(1)])
    """,
    "spectral normalization": """
        parts = layers.SpectralNormalization(layers.Dense(8)), layers.Dense(1)
        model = keras.Sequential([keras.Input((16,)), *parts])
    """,
    "subclass": """
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.blocks = [layers.Dense(8, activation='relu') for _ in range(2)]
                self.drop, self.unused, self.last = layers.Dropout(0.2), layers.Dense(3), layers.Dense(1)
            def call(self, inputs, training=False):
                for block in self.blocks:
                    inputs = block(inputs)
                return self.last(self.drop(inputs, training=training))
        model = Own()
    """,
    "own metric": """
        class Largest(keras.metrics.Metric):
            def __init__(self):
                super().__init__(name='largest')
                self.value = self.add_variable((), 'zeros', name='value')
            def update_state(self, y_true, y_pred, sample_weight=None):
                self.value.assign(ops.maximum(self.value, ops.max(y_pred)))
            def result(self):
                return self.value
        model = keras.Sequential([layers.Dense(4), layers.Dense(1)])
        compiling = dict(metrics=['mae', Largest()])
    """,
    "two outputs": """
        inputs = keras.Input((16,))
        hidden = layers.Dropout(0.2)(layers.Dense(8, activation='relu')(inputs))
        model = keras.Model(inputs, {'size': layers.Dense(1, name='size')(hidden), 'sign': layers.Dense(1, activation='sigmoid', name='sign')(hidden)})
        data['y'] = {'size': y, 'sign': (y > 0).astype('float32')}
        loss = {'size': 'mse', 'sign': 'binary_crossentropy'}
        compiling = dict(loss_weights={'size': 1.0, 'sign': 0.5}, metrics={'size': ['mae'], 'sign': ['accuracy']})
    """,
    "own train_step": """
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.inner = keras.Sequential([layers.Dense(8), layers.Dropout(0.3), layers.Dense(1)])
                self.seen = keras.metrics.Mean(name='seen')
                self.seeds = keras.random.SeedGenerator(1)
                self.steps = tf.Variable(0, trainable=False)
            def call(self, inputs, training=False):
                return self.inner(inputs, training=training)
            def train_step(self, batch):
                inputs, targets = batch
                inputs += 0.1 * keras.random.normal(ops.shape(inputs), seed=self.seeds)
                with tf.GradientTape() as tape:
                    error = self.compute_loss(inputs, targets, self(inputs, training=True))
                self.optimizer.apply(tape.gradient(error, self.trainable_variables), self.trainable_variables)
                self.seen.update_state(error)
                self.steps.assign_add(1)
                return {'loss': error, 'seen': self.seen.result()}
        model = Own()
    """,
    "tf.random in train_step": """
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.inner = layers.Dense(1)
            def call(self, inputs):
                return self.inner(inputs)
            def train_step(self, batch):
                inputs, targets = batch
                return super().train_step((inputs + tf.random.normal(tf.shape(inputs)), targets))
        model = Own()
    """,
    "gan": """
        class Gan(keras.Model):
            def __init__(self):
                super().__init__()
                self.makes = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation='relu'), layers.Dense(16)])
                self.judges = keras.Sequential([keras.Input((16,)), layers.Dense(8, activation='relu'), layers.Dropout(0.2), layers.Dense(1)])
                self.seeds = keras.random.SeedGenerator(9)
                self.made, self.judged = keras.metrics.Mean(name='made'), keras.metrics.Mean(name='judged')
            def compile(self, optimizer, loss, **arguments):
                super().compile(loss=loss)
                self.first, self.second = optimizer, keras.optimizers.RMSprop(0.01)
                self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)
            def train_step(self, batch):
                real, _ = batch
                with tf.GradientTape() as tape:
                    fake = self.makes(keras.random.normal((8, 4), seed=self.seeds))
                    votes = self.judges(tf.concat([real, fake], 0), training=True)
                    error = self.entropy(tf.concat([tf.ones((8, 1)), tf.zeros((8, 1))], 0), votes)
                self.first.apply(tape.gradient(error, self.judges.trainable_variables), self.judges.trainable_variables)
                self.judged.update_state(error)
                with tf.GradientTape() as tape:
                    votes = self.judges(self.makes(keras.random.normal((8, 4), seed=self.seeds)), training=True)
                    error = self.entropy(tf.ones((8, 1)), votes)
                self.second.apply(tape.gradient(error, self.makes.trainable_variables), self.makes.trainable_variables)
                self.made.update_state(error)
                return {'judged': self.judged.result(), 'made': self.made.result()}
        model = Gan()
    """,
    "autoencoder": """
        class Sampling(layers.Layer):
            def __init__(self):
                super().__init__()
                self.seeds = keras.random.SeedGenerator(2)
            def call(self, inputs):
                mean, spread = inputs
                self.add_loss(-0.5 * ops.mean(1 + spread - ops.square(mean) - ops.exp(spread)))
                return mean + ops.exp(0.5 * spread) * keras.random.normal(ops.shape(mean), seed=self.seeds)
        inputs = keras.Input((16,))
        hidden = layers.Dense(8, activation='relu')(inputs)
        drawn = Sampling()([layers.Dense(2)(hidden), layers.Dense(2)(hidden)])
        model = keras.Model(inputs, layers.Dense(1)(drawn))
    """,
    "nested": """
        base = keras.Sequential([keras.Input((16,)), layers.Dense(8), layers.BatchNormalization()], name='base')
        base.trainable = False
        inputs = keras.Input((16,))
        model = keras.Model(inputs, layers.Dense(1)(layers.Dropout(0.2)(base(inputs))))
    """,
}

OPTIMIZERS = {
    "sgd": "keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True)",
    "adam": "keras.optimizers.Adam(0.01)",
    "amsgrad": "keras.optimizers.Adam(0.01, amsgrad=True, clipnorm=1.0)",
    "adamw": "keras.optimizers.AdamW(0.01, weight_decay=0.02)",
    "rmsprop": "keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True)",
    "adagrad": "keras.optimizers.Adagrad(0.1)",
    "adadelta": "keras.optimizers.Adadelta(1.0)",
    "adafactor": "keras.optimizers.Adafactor(0.01)",
    "adamax": "keras.optimizers.Adamax(0.01)",
    "lion": "keras.optimizers.Lion(0.003)",
    "ftrl": "keras.optimizers.Ftrl(0.05)",
    "nadam": "keras.optimizers.Nadam(0.01)",
    "ema": "keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4)",
    "ema to swap": "keras.optimizers.SGD(0.02, use_ema=True, ema_momentum=0.8)",
    "accumulating": "keras.optimizers.Adam(0.01, gradient_accumulation_steps=4)",
    "loss scaling": "keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01, momentum=0.9), initial_scale=64, dynamic_growth_steps=5)",
    "exponential decay": "keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.9))",
    "cosine restarts": "keras.optimizers.SGD(keras.optimizers.schedules.CosineDecayRestarts(0.02, 7))",
    "own schedule": "keras.optimizers.Adam(Warmup())",
}

OWN_SCHEDULE = """
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.02 * ops.minimum(1.0, (ops.cast(step, 'float32') + 1.0) / 12.0)

"""

CALLBACKS = {
    "early stopping": "callbacks.EarlyStopping('loss', patience=1, min_delta=0.3, restore_best_weights=True)",
    "patient stopping": "callbacks.EarlyStopping('loss', patience=4, baseline=0.0, restore_best_weights=True, start_from_epoch=1)",
    "plateau": "callbacks.ReduceLROnPlateau('loss', factor=0.5, patience=0, min_delta=0.5, cooldown=1)",
    "scheduler": "callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)",
    "best file": "callbacks.ModelCheckpoint('best.weights.h5', 'loss', save_best_only=True, save_weights_only=True)",
    "every file": "callbacks.ModelCheckpoint('{epoch:02d}.keras')",
    "csv": "callbacks.CSVLogger('log.csv')",
    "nan": "callbacks.TerminateOnNaN()",
    "lambda": "callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: counts.append(epoch))",
    "swap": "callbacks.SwapEMAWeights(swap_on_epoch=True)",
    "counter": "Counter()",
    "batch rate": "BatchRate()",
    "drawing": "Drawing()",
    "weights": "WeightNoise()",
    "referring": "Referring(chosen[0])",
}

OWN_CALLBACKS = """
counts = []

class Counter(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.best, self.seen, self.by_epoch = 0, None, np.zeros(400), {}
    def on_train_batch_end(self, batch, logs=None):
        self.seen[self.batches] = batch
        self.batches += 1
    def on_epoch_end(self, epoch, logs=None):
        self.by_epoch[epoch] = logs['loss']
        self.best = min(self.by_epoch.values())

class BatchRate(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.count, self.rates = 0, []
    def on_train_batch_begin(self, batch, logs=None):
        self.count += 1
        self.model.optimizer.learning_rate = 0.02 / (1 + 0.1 * self.count)
        self.rates.append(float(self.model.optimizer.learning_rate))

class Drawing(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.generator, self.drawn = np.random.default_rng(4), []
    def on_epoch_begin(self, epoch, logs=None):
        self.drawn.append([np.random.rand(), random.random(), float(self.generator.random())])
        self.model.optimizer.learning_rate = 0.02 * sum(self.drawn[-1])

class WeightNoise(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        for weight in self.model.trainable_variables:
            weight.assign_add(np.random.normal(size=weight.shape).astype('float32') * 0.001)

class Referring(keras.callbacks.Callback):
    def __init__(self, other):
        super().__init__()
        self.others, self.models, self.heard = [other], {}, []
    def set_model(self, model):
        super().set_model(model)
        self.models['fitted'] = model
    def on_epoch_end(self, epoch, logs=None):
        self.heard.append(self.others[0].batches)
        self.models['fitted'].layers[-1].bias.assign_add([0.01])

"""

COMPILE = """
model.compile(optimizer, loss, **{compile}, **globals().get('compiling', {{}}))
"""

TRAINING = {
    "fit": """
        history = model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=observed(*chosen))
        note(model, history, counts)
    """,
    "two phases": """
        model.layers[0].trainable = False
        model.compile(optimizer, loss)
        history = model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=observed(*chosen))
        note(model, history)
        model.layers[0].trainable = True
        model.compile(keras.optimizers.Adam(0.001), loss)
        history = model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=observed())
        note(model, history)
    """,
    "folds": """
        rows = np.random.permutation(48).reshape(3, 16)
        for fold in range(3):
            model = keras.models.clone_model(model)
            model.compile(type(optimizer).from_config(optimizer.get_config()), loss)
            train = rows[[at for at in range(3) if at != fold]].reshape(-1)
            arrays = dict(x=x[train], y=y[train], validation_data=(x[rows[fold]], y[rows[fold]]))
            history = model.fit(**arrays, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=observed(Counter()))
            note(model, history)
    """,
    "one epoch at a time": """
        for epoch in range(EPOCHS):
            history = model.fit(**data, epochs=1, verbose=0, callbacks=observed(*chosen))
            note(model, history)
    """,
    "goes on": """
        history = model.fit(**data, epochs=2, verbose=0, callbacks=observed(*chosen))
        note(model, history)
        history = model.fit(**data, initial_epoch=2, epochs=EPOCHS + 2, verbose=0, callbacks=observed(*chosen))
        note(model, history)
    """,
    "many models": """
        for width in (4, 6, 8):
            keras.backend.clear_session()
            model = keras.Sequential([layers.Dense(width, activation='relu'), layers.Dropout(0.2), layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.01 * width), loss)
            history = model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=observed(Counter()))
            note(model, history, float(model.evaluate(x, y, verbose=0)), float(np.random.rand()))
    """,
    "freezes inside": """
        class Freeze(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 1:
                    self.model.layers[0].trainable = False
                    self.model.make_train_function(force=True)
        history = model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=observed(Freeze(), *chosen))
        note(model, history, [layer.trainable for layer in model.layers])
    """,
    "thaws and freezes inside": """
        class Thaw(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                for layer in self.model.layers:
                    layer.trainable = epoch % 2 == 0 or layer is self.model.layers[-1]
                self.model.make_train_function(force=True)
        history = model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=observed(Thaw(), *chosen))
        note(model, history)
    """,
}

SEEDS = {
    "all": "keras.utils.set_random_seed(7)\n",
    "none": "",
    "numpy": "np.random.seed(3)\nrandom.seed(3)\n",
    "flor": "flor.seed(11)\n",
    "flor, drawn": "flor.seed()\n",
}


@dataclass(frozen=True)
class Case:
    """One program, and what is done with it.

    Attributes:
      data, model, optimizer, callbacks, training, seed: names of parts.
      compile: further arguments of `compile`.
      epochs: how many epochs a `fit` call makes.
      loop: which loop is replayed and killed in; the last one if several are made.
      cause: what the product must give as the reason where it cannot be exact; None: it must be exact.
      unordered: a random state that a thread of TensorFlow draws from ahead of training, by a number of batches that
        is another in each run; it is left out of what is compared.
    """

    data: str = "arrays"
    model: str = "dropout"
    optimizer: str = "adam"
    callbacks: tuple[str, ...] = ()
    training: str = "fit"
    seed: str = "all"
    compile: str = "dict()"
    epochs: int = 4
    loop: int = 0
    cause: str | None = None
    unordered: str = ""

    @property
    def name(self) -> str:
        """Return what tells it from the other programs."""
        told = [self.data, self.model, self.optimizer, *self.callbacks]
        told += [self.training] if self.training != "fit" else []
        told += [self.compile.removeprefix("dict(").removesuffix(")")] if self.compile != "dict()" else []
        told += {"all": [], "none": ["no seed"], "numpy": ["NumPy's seed"]}.get(self.seed, [self.seed])
        return " · ".join(told)

    @property
    def is_repeatable(self) -> bool:
        """Whether two runs of it give the same numbers."""
        return self.seed in ("all", "flor")

    @property
    def text(self) -> str:
        """Return the program."""
        chosen = "".join(f"chosen.append({CALLBACKS[name]})\n" for name in self.callbacks)
        parts = [
            BEGINNING,
            SEEDS[self.seed],
            ROWS,
            OWN_CALLBACKS,
            OWN_SCHEDULE if self.optimizer == "own schedule" else "",
            DATA[self.data] + "\n",
            "loss = 'mse'\n",
            MODELS[self.model] + "\n",
            f"optimizer = {OPTIMIZERS[self.optimizer]}\n",
            COMPILE.format(compile=self.compile),
            f"chosen = []\n{chosen}EPOCHS = {self.epochs}\n",
            TRAINING[self.training],
            "finish()\n",
        ]
        return "".join(textwrap.dedent(part) for part in parts)


CASES = [
    # every kind of data
    Case("arrays", "dropout", "adam", ("early stopping",)),
    Case("arrays", "batch normalization", "sgd", seed="none"),
    Case("arrays in order", "noise", "rmsprop", ("counter",)),
    Case("arrays by batch", "dropout", "adagrad", ("plateau",)),
    Case("arrays by batch", "dropout", "adam", seed="none"),
    Case("arrays split", "dropout", "adamw", ("best file", "early stopping"), seed="none"),
    Case("arrays validated", "batch normalization", "nadam", ("plateau", "csv")),
    Case("arrays odd", "dropout", "adam", ("batch rate",), compile="dict(steps_per_execution=2)"),
    Case("class weights", "dropout", "adadelta", ("counter", "nan")),
    Case("sample weights", "noise", "lion", ("scheduler",), compile="dict(weighted_metrics=['mae'])"),
    Case("tensors", "dropout", "adamax", ("lambda",)),
    Case("random split", "dropout", "adam", ("drawing",), seed="none"),
    Case("random split", "dense", "ftrl", ("patient stopping",), seed="numpy"),
    Case("dataset", "dropout", "adam", ("early stopping",)),
    Case("dataset", "dropout", "adam", ("counter",), seed="none"),
    Case("dataset in order", "augmentation", "adam", ("plateau",)),
    Case("dataset seeded", "batch normalization", "sgd", ("drawing",), seed="none"),
    Case("dataset fixed order", "dropout", "adam", seed="none"),
    Case("dataset repeated", "dropout", "adam", ("batch rate",)),
    Case("dataset cut", "dropout", "rmsprop", ("counter",)),
    Case("dataset cut", "dense", "adam", ("counter",), seed="none", cause="repeats an unseeded shuffle"),
    Case("dataset cached", "dropout", "adam"),
    Case("dataset interleaved", "noise", "adam", seed="none"),
    Case("dataset mapped in parallel", "batch normalization", "adamw", ("plateau",)),
    Case("dataset with random map", "dense", "adam"),
    Case("dataset with stateless random map", "dropout", "adam"),
    Case("dataset from generator", "dropout", "adam"),
    Case("dataset with py_function", "dropout", "adam", seed="none"),
    Case("dataset sampled", "dense", "sgd"),
    Case("sequence", "dropout", "adam", ("drawing",)),
    Case("sequence", "batch normalization", "sgd", seed="none"),
    Case("sequence with workers", "dropout", "adam", ("plateau",)),
    Case("sequence shuffled by Keras", "dense", "adam", seed="numpy"),
    Case("generator", "dropout", "adam", ("counter",)),
    Case(
        *("generator drawing from numpy", "dense", "adam"),
        unordered="random/numpy",
        cause="draws from the random state of NumPy",  # between steps
    ),
    Case("dataset from drawing generator", "dropout", "adam", ("counter",)),
    Case("sequence that draws", "dropout", "adam", ("counter",), seed="none"),
    # every kind of model
    Case("arrays", "augmentation", "adam", ("every file",)),
    Case("arrays", "augmentation", "sgd", seed="none"),
    Case("arrays", "seeded flip", "adam"),
    Case("dataset", "seed generator", "adam"),
    Case("arrays", "unseeded keras.random", "adam", seed="none"),
    Case("arrays", "raw variable", "adam"),
    Case("dataset", "sublayers in containers", "adam", ("patient stopping",)),
    Case("arrays", "mixed precision", "adam"),
    Case("arrays", "dropout", "loss scaling", ("plateau",)),
    Case("arrays in order", "stateful recurrence", "adam"),
    Case("arrays", "recurrent dropout", "adam"),
    Case("dataset", "attention", "adamw", seed="none"),
    Case("arrays", "lora", "adam", ("early stopping",)),
    Case("arrays", "frozen", "adafactor"),
    Case("arrays", "discretized", "adam", seed="none"),
    Case("dataset", "lookup", "adam"),
    Case("arrays", "words", "adam"),
    Case("arrays", "normalized", "adam", seed="none"),
    Case("arrays", "spectral normalization", "adam"),
    Case("arrays", "subclass", "amsgrad", ("counter",)),
    Case("dataset", "own metric", "adam", ("counter",)),
    Case("arrays", "two outputs", "adam", ("early stopping",)),
    Case("dataset", "own train_step", "adam", ("plateau",)),
    Case("arrays", "own train_step", "rmsprop", seed="none"),
    Case("arrays", "tf.random in train_step", "adam", cause="RandomStandardNormal"),
    Case("arrays", "tf.random in train_step", "adam", seed="flor"),
    Case("dataset", "tf.random in train_step", "adam", ("counter",), seed="flor, drawn"),
    Case("dataset cut", "dropout", "adam", ("counter",), seed="flor, drawn"),
    Case("dataset with random map", "augmentation", "adam", seed="flor"),
    Case("sequence that draws", "unseeded keras.random", "sgd", ("drawing",), seed="flor"),
    Case("arrays", "gan", "adam"),
    Case("arrays", "autoencoder", "adam", seed="none"),
    Case("arrays", "nested", "adam"),
    # every kind of optimizer and schedule that is not above
    Case("arrays", "dropout", "ema"),
    Case("dataset", "dropout", "ema to swap", ("swap",)),
    Case("arrays", "dropout", "accumulating"),
    Case("arrays", "dropout", "exponential decay", ("weights",)),
    Case("dataset", "dropout", "cosine restarts"),
    Case("arrays", "dropout", "own schedule", ("counter", "referring")),
    Case("dataset", "dropout", "sgd", ("counter", "referring")),
    # how steps are made
    Case("arrays", "dropout", "adam", ("counter",), compile="dict(steps_per_execution=4)"),
    Case(
        "dataset repeated",
        "dropout",
        "adam",
        compile="dict(steps_per_execution=2)",
        seed="none",
        cause="repeats an unseeded shuffle",
    ),
    Case("arrays", "dropout", "adam", compile="dict(jit_compile=True)"),
    Case("dataset", "own train_step", "adam", compile="dict(run_eagerly=True)", epochs=3),
    # several loops
    Case("arrays", "batch normalization", "adam", ("plateau",), training="two phases", loop=1),
    Case("dataset", "dropout", "sgd", ("counter",), training="two phases", loop=0, seed="none"),
    Case("arrays", "dropout", "adam", training="folds", epochs=3, loop=1),
    Case("arrays", "dropout", "adam", ("counter",), training="one epoch at a time", loop=2),
    Case("dataset", "dropout", "adam", training="goes on", loop=1),
    Case("arrays", "dropout", "adam", training="many models", epochs=3, loop=1, seed="none"),
    Case("arrays", "dropout", "adam", training="thaws and freezes inside"),
    Case("dataset", "dropout", "adam", training="freezes inside", epochs=5),
]
