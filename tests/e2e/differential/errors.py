"""The requests of test_errors, which says in words what conch answers: here the real Triton is asked as well."""

import test_errors
from . import entry

# Rows by the names of requests there; a name is looked up with and without what is behind its last words.
HIT = """
unknown_path transport/unknown-path
root transport/unknown-path
trailing_slash transport/unknown-path
versioned_trace_path transport/versioned-trace-path
wrong_verb_on_health transport/wrong-verb http-live/ready
wrong_verb_on_infer transport/wrong-verb
wrong_verb_on_index transport/wrong-verb
wrong_verb_on_load transport/wrong-verb
too_many_chunks transport/too-many-chunks http-chunked-in
unknown_model lookup/unknown-model
unknown_version lookup/unknown-version
version_not_a_number lookup/version-not-a-number
version_negative lookup/version-negative
version_not_ready lookup/version-not-ready
no_version_ready lookup/no-version-ready
ready_of_unknown_model lookup/ready-of-unknown-model http-model-ready grpc-modelready
metadata_of_unknown_model lookup/unknown-model http-model-meta
config_of_unknown_model lookup/unknown-model http-config grpc-config
statistics_of_unknown_model lookup/statistics-of-unknown-model http-stats
statistics_of_unknown_version lookup/statistics-of-unready-version http-stats
decoupled_model lookup/decoupled-model-on-unary-call http-single-response grpc-unary
inference_header http-infer/inference-header-length
unknown_content_encoding http-infer/unknown-content-encoding http-gzip-in
invalid_json http-infer/invalid-json
json_of_bad_utf8 http-infer/invalid-json
inputs_missing http-infer/inputs-missing
negative_dimension http-infer/dimension-not-unsigned validation/unknown-dimension
dimension_is_text http-infer/dimension-not-unsigned
dimension_above_range http-infer/dimension-out-of-range
element_count_overflow http-infer/element-count-overflow
byte_size_overflow http-infer/byte-size-overflow
json_tensor_too_large http-infer/json-tensor-too-large http-max-input
too_many_values http-infer/too-many-values
too_few_values http-infer/too-few-values
nesting_too_deep http-infer/nesting http-json-depth
text_for http-infer/value-of-wrong-type
number_for http-infer/value-of-wrong-type
negative_for http-infer/value-of-wrong-type
fp16_as_json http-infer/half-precision-as-json http-json-fp16
bf16_as_json http-infer/half-precision-as-json http-json-fp16
fp16_output_as_json http-infer/half-precision-output-as-json http-json-fp16
unknown_data_type http-infer/unknown-data-type
no_data http-infer/sources-of-data grpc-infer/no-data
data_twice http-infer/sources-of-data
member http-infer/member-of-wrong-type
binary_without_header_length http-infer/binary-without-header-length
binary_too_short http-infer/binary-too-short http-bin-in
binary_too_long http-infer/binary-left-over http-bin-in
reserved_parameter http-infer/reserved-parameter grpc-infer/reserved-parameter http-params
parameter_of_type http-infer/parameter-of-wrong-type http-params
duplicate_input validation/duplicate-tensor
duplicate_output validation/duplicate-tensor
unknown_input validation/unknown-tensor
unknown_output validation/unknown-tensor
missing_input validation/input-count
no_input validation/input-count
no_batch_dimension validation/no-batch-dimension
batch_mismatch validation/batch-mismatch
batch_too_large validation/batch-too-large
data_type_mismatch validation/data-type
shape_mismatch validation/shape
byte_size_mismatch validation/byte-size
string validation/strings http-json-bytes
too_many_strings validation/strings
too_few_strings validation/strings
correlation_id_too_long validation/correlation-id-too-long
raw validation/raw-request http-raw
load_without_explicit_mode repository/mode http-repo
unload_without_explicit_mode repository/mode http-repo
load_from_one_repository repository/repository-name http-repo
unload_from_one_repository repository/repository-name http-repo
load_of repository/mode
load_parameter_unknown repository/unknown-parameter
load_parameters_sound repository/mode
load_parameter repository/parameter-kind
load_config_kind repository/parameter-kind
load_file_kind repository/parameter-kind
unload_dependents repository/unload-dependents-kind
index_ready_not_a_flag repository/index-ready-kind http-repo
index_of_bad_json http-infer/invalid-json http-repo
index_of_one_repository repository/repository-name grpc-index
sequence_id_kind grpc-infer/parameter-kind grpc-param-type
sequence_start_kind grpc-infer/parameter-kind
sequence_end_kind grpc-infer/parameter-kind
priority_kind grpc-infer/parameter-kind
timeout_kind grpc-infer/parameter-kind
custom_parameter_kind grpc-infer/parameter-kind
priority_negative grpc-infer/negative-priority
empty_final_flag_kind grpc-infer/empty-final-flag
too_many_inputs_beside_optional_ones validation/input-count-with-optional
optional_input_only validation/input-count-with-optional
backend_says scheduling/backend-error
backend_fails_to_execute scheduling/backend-error
contents_and_raw grpc-infer/contents-and-raw grpc-raw
two_content_arrays grpc-infer/two-contents grpc-contents
contents_of_wrong_type grpc-infer/contents-of-wrong-type grpc-contents
"""
KNOWN = {name: " ".join(rows) for name, *rows in (line.split() for line in HIT.split("\n") if line)}


def rows_of(name):
    """The rows of the longest known name that this one begins with."""
    words = name.split("_")
    for count in range(len(words), 0, -1):
        if (rows := KNOWN.get("_".join(words[:count]))) is not None:
            return rows
    raise KeyError(f"which rows does the request {name} of test_errors hit?")


ENTRIES = [entry.entry("plain", f"error_http_{row.name}", rows_of(row.name), entry.raw(row.raw)) for row in test_errors.HTTP]
ENTRIES += [entry.entry("plain", f"error_grpc_{name}", rows_of(name), entry.call(method, message))
            for name, method, message, *_ in test_errors.GRPC]
