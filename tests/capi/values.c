// The numbers and names of the API, and what the server says of a model in numbers.
//
//   values LIBRARY REPOSITORY BACKENDS
//
// REPOSITORY has `caller` (of caller.c), `identity`, `decoupled`, and `levels` (batches of up to 4, priority levels 1 to 5, of which 2 is
// the default).

#include "inference.h"

static void expect_word(const char* word, const char* expected) {
  if (strcmp(word, expected) != 0) FAIL("%s instead of %s", word, expected);
}

static void names(void) {
  static const struct {
    const char* name;
    uint32_t bytes;
  } types[] = {{"<invalid>", 0}, {"BOOL", 1},  {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8}, {"INT8", 1}, {"INT16", 2},
               {"INT32", 4},     {"INT64", 8}, {"FP16", 2},  {"FP32", 4},   {"FP64", 8},   {"BYTES", 0},  {"BF16", 2}};
  for (uint32_t type = 0; type < sizeof types / sizeof *types; type++) {
    expect_word(TS(DataTypeString)(type), types[type].name);
    EXPECT(TS(DataTypeByteSize)(type) == types[type].bytes && TS(StringToDataType)(types[type].name) == type);
  }
  expect_word(TS(DataTypeString)(99), "<invalid>");
  EXPECT(TS(DataTypeByteSize)(99) == 0 && TS(StringToDataType)("FP8") == TRITONSERVER_TYPE_INVALID);
  EXPECT(TS(StringToDataType)("fp32") == TRITONSERVER_TYPE_INVALID && TS(StringToDataType)("FP3") == TRITONSERVER_TYPE_INVALID);
  static const char* const memory[] = {"CPU", "CPU_PINNED", "GPU", "<invalid>"};
  for (uint32_t type = 0; type < 4; type++) expect_word(TS(MemoryTypeString)(type), memory[type]);
  static const char* const parameters[] = {"STRING", "INT", "BOOL", "DOUBLE", "BYTES", "<invalid>"};
  for (uint32_t type = 0; type < 6; type++) expect_word(TS(ParameterTypeString)(type), parameters[type]);
  static const char* const groups[] = {"AUTO", "CPU", "GPU", "MODEL", "<invalid>"};
  for (uint32_t kind = 0; kind < 5; kind++) expect_word(TS(InstanceGroupKindString)(kind), groups[kind]);
  static const char* const levels[] = {"DISABLED", "MIN", "MAX", "<unknown>", "TIMESTAMPS", "<unknown>", "<unknown>", "<unknown>", "TENSORS"};
  for (uint32_t level = 0; level < 9; level++) expect_word(TS(InferenceTraceLevelString)(level), levels[level]);
  static const char* const activities[] = {
      "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
      "REQUEST_END",   "TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_INPUT", "TENSOR_BACKEND_OUTPUT", "CUSTOM_ACTIVITY", "<unknown>"};
  for (uint32_t activity = 0; activity < 12; activity++) expect_word(TS(InferenceTraceActivityString)(activity), activities[activity]);
  static const char* const codes[] = {"Unknown",     "Internal",    "Not found", "Invalid argument",
                                      "Unavailable", "Unsupported", "Already exists", "Cancelled"};
  for (uint32_t code = 0; code < 8; code++) {
    TRITONSERVER_Error* error = TS(ErrorNew)(code, "text");
    EXPECT(TS(ErrorCode)(error) == code);
    expect_word(TS(ErrorCodeString)(error), codes[code]);
    expect_word(TS(ErrorMessage)(error), "text");
    TS(ErrorDelete)(error);
  }
  uint32_t major, minor;
  OK(TS(ApiVersion)(&major, &minor));
  EXPECT(major == TRITONSERVER_API_VERSION_MAJOR && minor == TRITONSERVER_API_VERSION_MINOR && major == 1 && minor == 34);
}

// What is set is read again.
static void attributes(void) {
  TRITONSERVER_BufferAttributes* made;
  OK(TS(BufferAttributesNew)(&made));
  TRITONSERVER_MemoryType type;
  int64_t id;
  size_t bytes;
  void* ipc;
  char handle[64];
  memset(handle, 'h', sizeof handle);
  OK(TS(BufferAttributesSetMemoryType)(made, TRITONSERVER_MEMORY_GPU));
  OK(TS(BufferAttributesSetMemoryTypeId)(made, 6));
  OK(TS(BufferAttributesSetByteSize)(made, (size_t)1 << 40));
  OK(TS(BufferAttributesCudaIpcHandle)(made, &ipc));
  EXPECT(ipc == NULL);
  // The handle itself, and not where it lies.
  OK(TS(BufferAttributesSetCudaIpcHandle)(made, handle));
  handle[63] = 'x';
  OK(TS(BufferAttributesMemoryType)(made, &type));
  OK(TS(BufferAttributesMemoryTypeId)(made, &id));
  OK(TS(BufferAttributesByteSize)(made, &bytes));
  OK(TS(BufferAttributesCudaIpcHandle)(made, &ipc));
  EXPECT(type == TRITONSERVER_MEMORY_GPU && id == 6 && bytes == (size_t)1 << 40);
  EXPECT(ipc != NULL && ipc != (void*)handle && memcmp(ipc, handle, 63) == 0 && ((const char*)ipc)[63] == 'h');
  OK(TS(BufferAttributesDelete)(made));
}

static void priorities(TRITONSERVER_Server* server) {
  TRITONSERVER_InferenceRequest* request;
  OK(TS(InferenceRequestNew)(&request, server, "levels", -1));
  uint32_t small;
  uint64_t wide;
  // None, and none that there is: the default.
  static const uint64_t rows[][2] = {{0, 2}, {1, 1}, {5, 5}, {6, 2}, {UINT64_MAX, 2}};
  for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
    OK(TS(InferenceRequestSetPriorityUInt64)(request, rows[row][0]));
    OK(TS(InferenceRequestPriorityUInt64)(request, &wide));
    OK(TS(InferenceRequestPriority)(request, &small));
    EXPECT(wide == rows[row][1] && small == rows[row][1]);
  }
  OK(TS(InferenceRequestSetPriority)(request, 4));
  OK(TS(InferenceRequestPriorityUInt64)(request, &wide));
  EXPECT(wide == 4);
  OK(TS(InferenceRequestDelete)(request));
}

static void properties(TRITONSERVER_Server* server) {
  uint32_t flags;
  void* more = &flags;
  OK(TS(ServerModelBatchProperties)(server, "levels", -1, &flags, &more));
  EXPECT(flags == TRITONSERVER_BATCH_FIRST_DIM && more == NULL);
  OK(TS(ServerModelBatchProperties)(server, "identity", 1, &flags, NULL));
  EXPECT(flags == TRITONSERVER_BATCH_UNKNOWN);
  REFUSED(TS(ServerModelBatchProperties)(server, "none", 1, &flags, NULL), TRITONSERVER_ERROR_NOT_FOUND, "Request for unknown model: 'none'");
  more = &flags;
  OK(TS(ServerModelTransactionProperties)(server, "levels", -1, &flags, &more));
  EXPECT(flags == TRITONSERVER_TXN_ONE_TO_ONE && more == NULL);
  OK(TS(ServerModelTransactionProperties)(server, "decoupled", -1, &flags, NULL));
  EXPECT(flags == TRITONSERVER_TXN_DECOUPLED);
  // What the model and its instances report of their memory (caller.c).
  TRITONSERVER_Message* message;
  OK(TS(ServerModelStatistics)(server, "caller", -1, &message));
  expect_text(message, "\"memory_usage\":[{\"type\":\"CPU\",\"id\":0,\"byte_size\":1024}]");
}

static void unloads(TRITONSERVER_Server* server) {
  bool is_ready;
  OK(TS(ServerUnloadModelAndDependents)(server, "identity"));
  OK(TS(ServerModelIsReady)(server, "identity", 1, &is_ready));
  EXPECT(!is_ready);
  OK(TS(ServerModelIsReady)(server, "levels", 1, &is_ready));
  EXPECT(is_ready);
}

int main(int count, char** words) {
  EXPECT(count == 4);
  api_open(words[1]);
  names();
  attributes();
  TRITONSERVER_ServerOptions* options = NULL;
  OK(TS(ServerOptionsNew)(&options));
  OK(TS(ServerOptionsSetModelRepositoryPath)(options, words[2]));
  OK(TS(ServerOptionsSetBackendDirectory)(options, words[3]));
  OK(TS(ServerOptionsSetLogInfo)(options, false));
  OK(TS(ServerOptionsSetModelControlMode)(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
  OK(TS(ServerOptionsSetStartupModel)(options, "*"));
  TRITONSERVER_Server* server = NULL;
  OK(TS(ServerNew)(&server, options));
  OK(TS(ServerOptionsDelete)(options));
  priorities(server);
  properties(server);
  unloads(server);
  OK(TS(ServerDelete)(server));
  puts("ok");
  return 0;
}
