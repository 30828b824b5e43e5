"""Programs that train a model of each kind for some epochs, record it, and keep what it gave at each epoch's end."""

HEAD = """
import sys
import keras, numpy as np, tensorflow as tf
from keras import layers
import flor_keras as flor

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x = rng.random((24, 6), np.float32)
y = rng.random((24, 2), np.float32)
words = np.array([["cat"], ["dog"], ["bird"], ["fish"]] * 6, dtype=object)
inputs = x

class Live(keras.callbacks.Callback):
    \"\"\"Keeps what the model gives at the end of each epoch.\"\"\"
    def on_epoch_end(self, epoch, logs=None):
        outputs = keras.tree.flatten(self.model.predict(inputs, batch_size=24, verbose=0))
        np.savez(f"live-{epoch}.npz", *[np.asarray(o, "float32") for o in outputs])
"""
TAIL = """
if not model.compiled:
    model.compile("adam", "mse")
given = inputs if isinstance(inputs, np.ndarray) and inputs.dtype != object else inputs
given = tf.constant(words.astype(str)) if inputs is words else inputs
inputs = given
model.fit(given, y, epochs=3, batch_size=8, verbose=0, callbacks=[Live(), flor.FlorKeras()])
"""

KINDS = {
    "sequential": """
model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(2)])
""",
    "unbuilt_sequential": """
model = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(2)])
""",
    "functional": """
i = keras.Input((6,), name="features")
shared = layers.Dense(6, "tanh")
h = layers.Add()([shared(shared(i)), layers.Dense(6, kernel_regularizer="l2")(i)])
model = keras.Model(i, layers.Dense(2, name="answer")(h))
""",
    "subclassed": """
class Blocks(layers.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(8), layers.Dense(8)
        self.scale = tf.Variable(1.5, trainable=False)
    def call(self, x):
        return (self.second(x) + self.first(x)) * self.scale
class Model(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = {"b": Blocks(), "a": [layers.Dense(4), layers.BatchNormalization()]}
        self.head = layers.Dense(2)
    def call(self, x, training=False):
        x = self.parts["b"](x)
        for part in self.parts["a"]:
            x = part(x, training=training) if isinstance(part, layers.BatchNormalization) else part(x)
        return self.head(x)
model = Model()
""",
    "multi": """
a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
h = layers.Concatenate()([layers.Dense(4)(a), layers.Dense(3)(b)])
model = keras.Model({"a": a, "b": b}, {"one": layers.Dense(2, name="one")(h), "two": layers.Dense(2, name="two")(h)})
inputs = {"a": x, "b": x[::-1].copy()}
y = {"one": y, "two": y * 2}
""",
    "string_lookup": """
lookup = layers.StringLookup()
lookup.adapt(words)
model = keras.Sequential([keras.Input((1,), dtype="string"), lookup, layers.Embedding(8, 4), layers.Flatten(), layers.Dense(2)])
inputs = words
""",
    "text_vectorization": """
vectorize = layers.TextVectorization(16, output_sequence_length=3)
vectorize.adapt(words.ravel().astype(str))
model = keras.Sequential([keras.Input((1,), dtype="string"), vectorize, layers.Embedding(16, 4), layers.GlobalAveragePooling1D(), layers.Dense(2)])
inputs = words
""",
    "normalization": """
normalize = layers.Normalization()
normalize.adapt(x)
model = keras.Sequential([keras.Input((6,)), normalize, layers.Dense(2)])
""",
    "rnn": """
model = keras.Sequential([keras.Input((6, 1)), layers.Bidirectional(layers.LSTM(4, return_sequences=True)), layers.GRU(3), layers.Dense(2)])
inputs = x[..., None]
""",
    "mixed_precision": """
keras.mixed_precision.set_global_policy("mixed_bfloat16")
model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(2, dtype="float32")])
""",
    "lora": """
first = layers.Dense(8, "relu")
model = keras.Sequential([keras.Input((6,)), first, layers.Dense(2)])
first.enable_lora(2)
""",
    "lambda": """
model = keras.Sequential([keras.Input((6,)), layers.Lambda(lambda t: t * 2, output_shape=(6,)), layers.Dense(2)])
""",
    "dynamic": """
class Model(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.head = layers.Dense(2)
    def call(self, x):
        return self.head(x) if float(tf.reduce_sum(x)) > 0 else self.head(-x)
model = Model()
model.compile("adam", "mse", run_eagerly=True)
""",
    "own_saving": """
@keras.saving.register_keras_serializable("tests")
class Own(layers.Dense):
    def save_own_variables(self, store):
        store["kernel"] = np.asarray(self.kernel) * 2
model = keras.Sequential([keras.Input((6,)), Own(2)])
""",
    "no_config": """
class Model(keras.Model):
    def __init__(self, head):
        super().__init__()
        self.head = head
        self.kind = object()
    def call(self, x):
        return self.head(x)
    def get_config(self):
        raise NotImplementedError("this model has no configuration")
model = Model(layers.Dense(2))
""",
}


def program(kind: str, epochs: int = 3) -> str:
    """Return the training program of a kind of model."""
    return HEAD + KINDS[kind] + TAIL.replace("epochs=3", f"epochs={epochs}")
