"""The rules of the doctor, as a table: what is found, why it matters, what to type instead."""

from __future__ import annotations

from flor_keras.instrument.doctor import callbacks
from flor_keras.instrument.doctor import randomness as random
from flor_keras.instrument.doctor import surroundings as around
from flor_keras.instrument.doctor.rule import NOT_EXACT, Part, Rule

NO_LOOP = "no-loop"
_SEED = "call flor.seed() at the top of the program"

RULES = (
    Rule(
        NO_LOOP,
        Part.WEIGHTS,
        NOT_EXACT,
        "a program without `fit`, a loop that trains, `flor.loop` or `@flor.record`",
        "there is no loop to record{}",
        "train with model.fit(..., callbacks=[flor.FlorKeras()]), or mark a loop of your own with flor.loop",
        around.no_loops,
    ),
    Rule(
        "variable-outside-model",
        Part.WEIGHTS,
        NOT_EXACT,
        "a variable of the file that a step assigns and no layer, model or optimizer holds",
        "{} is not reached from the model, so no checkpoint holds it",
        "make it an attribute of the layer or model that uses it",
        around.variables_outside_the_model,
    ),
    Rule(
        "clock-logged",
        Part.METRICS,
        NOT_EXACT,
        "`flor.log` of a value that follows from the clock",
        "the value is another one each time, and the replay compares it",
        "leave the line out; flor-keras show tells how long a run took",
        around.clocks_logged,
    ),
    Rule(
        "log-under-xla",
        Part.METRICS,
        "exact if XLA and TensorFlow round alike",
        "`flor.log` in a step compiled with `jit_compile=True`",
        "no value can leave a step that XLA compiled; the replay computes it without XLA",
        "compile the model with jit_compile=False, or log in a callback",
        around.logs_under_xla,
    ),
    Rule(
        "seed-of-chance",
        Part.SEEDS,
        NOT_EXACT,
        "a seed taken from the clock or the system; `np.random.seed()` without a value takes one",
        "{} gets another seed each time",
        "leave the seed out, or write flor.seed(), which draws one and records it",
        random.seeds_of_chance,
    ),
    Rule(
        "unseeded-default-rng",
        Part.SEEDS,
        "exact if flor.seed() is called before",
        "`np.random.default_rng()` without a seed",
        "{} takes its seed from the system",
        f"{_SEED}, or give it a seed",
        random.unseeded_default_rngs,
    ),
    Rule(
        "unseeded-generator",
        Part.SEEDS,
        NOT_EXACT,
        "`np.random.RandomState()` or `random.Random()` without a seed; `default_rng()` by its bare name",
        "{} takes its seed from the system, and flor.seed cannot give it one",
        "give it a seed, or write np.random.default_rng() and call flor.seed() before",
        random.other_unseeded_generators,
    ),
    Rule(
        "generator-outside-model",
        Part.SEEDS,
        NOT_EXACT,
        "a `tf.random.Generator` or `SeedGenerator` of the file that a step draws from",
        "{} is not reached from the model, so no checkpoint holds its state",
        "make it an attribute of the layer or model that uses it",
        random.generators_outside_the_model,
    ),
    Rule(
        "repeated-shuffle",
        Part.DATA,
        "exact if its buffer is below 16 MB, the first epoch excepted",
        "`shuffle(…)` without a seed below `repeat()`",
        "its order is drawn inside TensorFlow when the first element is",
        f"{_SEED}, or shuffle(..., seed=1)",
        around.repeated_shuffles,
    ),
    Rule(
        "unordered-pipeline",
        Part.DATA,
        NOT_EXACT,
        "`deterministic=False` in a data pipeline",
        "{} gives elements in the order they become ready",
        "leave it out",
        around.unordered_pipelines,
    ),
    Rule(
        "outside-in-generator",
        Part.DATA,
        NOT_EXACT,
        "a generator of data whose elements follow from the clock, threads or the network",
        "{} gives something else each time",
        "save what it gives to a file first, and read the file",
        around.outside_in_generators,
    ),
    Rule(
        "parallel-dataset",
        Part.DATA,
        NOT_EXACT,
        "a PyDataset with several workers that draws random numbers in `__getitem__`",
        "the workers draw from {} in no fixed order",
        "draw from np.random.default_rng([seed, index]) in __getitem__, or leave workers at 1",
        random.parallel_datasets,
    ),
    Rule(
        "unsorted-listing",
        Part.DATA,
        "exact if the folder is not copied or changed",
        "a listing of a folder that data are made of, without `sorted`",
        "{} gives names in the order of the disk",
        "write sorted({}(...))",
        around.unsorted_listings,
    ),
    Rule(
        "text-set",
        Part.DATA,
        "exact if PYTHONHASHSEED is set before recording",
        "data in the order of a set of text, or made with `hash` of text",
        "texts hash otherwise in every process, and {} follows from that",
        "write sorted(...) around it, or export PYTHONHASHSEED=0",
        around.text_sets,
    ),
    Rule(
        "draw-before-import",
        Part.BEFORE,
        NOT_EXACT,
        "a draw from `random` or `np.random` before flor_keras is imported, without a seed",
        "the random states are read at the import; what {} drew before cannot be drawn again",
        "move import flor_keras above it",
        random.draws_before_import,
    ),
    Rule(
        "eager-draw",
        Part.BEFORE,
        "exact if TensorFlow has a seed",
        "data drawn by `tf.random`, without a seed",
        "{} takes its seed from the system",
        f"{_SEED}, or tf.random.set_seed(1)",
        random.eager_draws,
    ),
    Rule(
        "unpicklable-attribute",
        Part.CALLBACKS,
        "exact if training does not depend on it",
        "an attribute of a callback that holds an open file, a lock, a thread or a connection",
        "{} cannot be pickled, so no checkpoint holds it",
        "open it where it is used, and keep plain values in attributes",
        callbacks.unpicklable_attributes,
    ),
    Rule(
        "state-outside-callback",
        Part.CALLBACKS,
        "exact if training does not depend on it",
        "a list or dict of the file that a callback fills and reads",
        "{} is no attribute of a callback, so no checkpoint holds it",
        "make {} an attribute of the callback",
        callbacks.state_outside_callbacks,
    ),
    Rule(
        "own-callback-calls",
        Part.CALLBACKS,
        NOT_EXACT,
        "a program that calls the hooks of its callbacks itself",
        "there is no fit that a replay could go on with",
        "train with model.fit, or a custom train_step",
        callbacks.own_callback_calls,
    ),
    Rule(
        "op-in-step",
        Part.OPS,
        "exact if flor.seed() is called",
        "`tf.random.…`, `tf.nn.dropout` or `tf.image.random_…` in code that a training step traces",
        "{} keeps its count inside TensorFlow, where it cannot be put back",
        f"{_SEED}, or draw with keras.random and a SeedGenerator",
        random.ops_in_steps,
    ),
    Rule(
        "other-op-in-step",
        Part.OPS,
        NOT_EXACT,
        "`tf.random.gamma`, `tf.random.poisson` or a sampled loss in code that a training step traces",
        "{} keeps its count inside TensorFlow, where it cannot be put back",
        "draw with keras.random and a SeedGenerator, or from a tf.random.Generator that the model holds",
        random.other_ops_in_steps,
    ),
    Rule(
        "op-in-pipeline",
        Part.OPS,
        "exact if TensorFlow has a seed",
        "the same ops in `Dataset.map` and the like, without a seed",
        "{} takes its seed from the system",
        f"{_SEED}, or give {{}} a seed",
        random.ops_in_pipelines,
    ),
    Rule(
        "op-in-parallel-pipeline",
        Part.OPS,
        NOT_EXACT,
        "the same ops in `Dataset.map(…, num_parallel_calls=…)`, with or without a seed",
        "several calls draw from {} in no fixed order",
        "leave num_parallel_calls out, or draw with tf.random.stateless_... from a seed that is in the data",
        random.draws_in_parallel_pipelines,
    ),
    Rule(
        "undetermined-gpu",
        Part.ENVIRONMENT,
        "exact if the kernels of the GPU are told to be",
        "a GPU, and neither `enable_op_determinism()` nor TF_DETERMINISTIC_OPS",
        "a GPU may add in any order",
        "call tf.config.experimental.enable_op_determinism(), or export TF_DETERMINISTIC_OPS=1",
        around.undetermined_gpus,
    ),
)

# What to say of a part where no rule finds anything.
FINE = {
    Part.WEIGHTS: "every checkpoint holds them, each with its hash",
    Part.METRICS: "their variables are in every checkpoint; recorded logs are compared",
    Part.SEEDS: "no seed is set, and none is needed: orders come from recorded seeds, random states are kept",
    Part.DATA: "where training stands in its data is in every checkpoint",
    Part.BEFORE: "Python's and NumPy's are read at the import of flor_keras, and put back there",
    Part.CALLBACKS: "their attributes are in every checkpoint",
    Part.OPS: "none that keeps a state inside TensorFlow",
    Part.ENVIRONMENT: "versions, threads, CPU features and variables are recorded, and compared at a replay",
}
OWN_LOOPS = (
    f"{FINE[Part.WEIGHTS]}; flor-keras record finds these loops, a plain run needs @flor.record or flor.loop"
)
FLOR_SEED = "flor.seed records one seed that everything follows from"
PROGRAM_SEED = (
    "with the program's own seed fit shuffles arrays alike each epoch; with flor.seed() it would not, "
    "and random ops are covered too"
)
