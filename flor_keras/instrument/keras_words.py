"""Names of Keras classes and methods that matter when reading source. Keras itself is not imported."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Split a text into its words, to keep long tables readable."""
    return frozenset(text.split())


CALLBACK_CLASSES = words(
    """Callback BackupAndRestore CSVLogger CallbackList EarlyStopping History LambdaCallback
    LearningRateScheduler ModelCheckpoint OrbaxCheckpoint ProgbarLogger ReduceLROnPlateau
    RemoteMonitor SwapEMAWeights TensorBoard TerminateOnNaN FlorKeras"""
)

OBJECT_CLASSES = words(
    """Layer Model Sequential Functional Loss Metric Optimizer LearningRateSchedule Regularizer Constraint
    Initializer Wrapper RNN Module"""
)
OBJECT_PACKAGES = words(
    "layers losses metrics optimizers models regularizers constraints initializers schedules applications"
)
DATASET_CLASSES = words("PyDataset Sequence")

# Methods Keras runs inside a step, and calls whose function arguments run inside a step.
STEP_METHODS = sorted(
    words(
        """train_step compute_* call build __call__ update_state update_step result reset_* apply
        apply_gradients add_loss get_metrics_result make_train_function"""
    )
)
STEP_TAKERS = sorted(
    words(
        """map filter flat_map interleave scan take_while from_generator py_function numpy_function Lambda
        MeanMetricWrapper LossFunctionWrapper add_loss"""
    )
)

# Public attributes of Layer, Model, Loss, Metric, Optimizer, PyDataset, LearningRateSchedule in Keras 3.15:
# a method of one of these names overrides something, so adding it changes training.
OVERRIDES = words(
    """add_loss add_metric add_optimizer_variables add_variable add_variable_from_reference add_weight
    apply apply_gradients assign assign_add assign_sub build build_from_config call compile
    compile_from_config compiled_loss compiled_metrics compute_dtype compute_loss compute_mask
    compute_metrics compute_output_shape compute_output_spec count_params
    distribute_reduction_method distribute_strategy dtype dtype_policy evaluate
    exclude_from_weight_decay export finalize_variable_values fit from_config get_build_config
    get_compile_config get_config get_layer get_metrics_result get_quantization_layer_structure
    get_state_tree get_weights input input_dtype input_spec iterations jit_compile layers
    learning_rate load_own_variables load_weights loss losses make_predict_function
    make_test_function make_train_function max_queue_size metrics metrics_names metrics_variables
    non_trainable_variables non_trainable_weights num_batches on_epoch_begin on_epoch_end output
    path predict predict_on_batch predict_step quantization_mode quantize quantized_build
    quantized_call rematerialized_call reset_metrics reset_state result run_eagerly save
    save_own_variables save_weights scale_loss set_state_tree set_weights stateless_apply
    stateless_call stateless_compute_loss stateless_reset_state stateless_result
    stateless_update_state summary supports_masking symbolic_call test_on_batch test_step to_json
    train_on_batch train_step trainable trainable_variables trainable_weights update_state
    update_step use_multiprocessing variable_dtype variables weights workers"""
)

# Keywords only Keras's own `fit` takes: they tell it from, say, scikit-learn's.
FIT_KEYWORDS = words(
    """epochs batch_size callbacks validation_data validation_split initial_epoch steps_per_epoch
    validation_steps validation_freq validation_batch_size shuffle class_weight verbose"""
)
