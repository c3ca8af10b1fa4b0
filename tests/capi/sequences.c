// Sequences within the process, while their model is loaded anew: they go on, also by a request object that is older than the load.
//     sequences LIBRARY REPOSITORY BACKENDS     with a model `identity` that batches sequences, on two instances of one slot
#include "inference.h"

static const char missing[] = "must specify the START flag on the first request of the sequence";

static TRITONSERVER_Server* server;
static TRITONSERVER_ResponseAllocator* allocator;

// Sends a request of sequence `text`, or `number` if that is null; `refusal` is what it is to be told, or null.
static void send_again(TRITONSERVER_InferenceRequest* request, struct Notes* notes, struct Wait* wait, const char* text, uint64_t number,
                       uint32_t flags, const char* refusal) {
  if (text != NULL) {
    OK(TS(InferenceRequestSetCorrelationIdString)(request, text));
  } else {
    OK(TS(InferenceRequestSetCorrelationId)(request, number));
  }
  OK(TS(InferenceRequestSetFlags)(request, flags));
  memset(notes, 0, sizeof *notes);
  TRITONSERVER_InferenceResponse* response = run(server, request, wait, NULL);
  if (refusal == NULL) {
    expect_four(response, notes);
  } else {
    TRITONSERVER_Error* error = TS(InferenceResponseError)(response);
    if (error == NULL || strstr(TS(ErrorMessage)(error), refusal) == NULL) FAIL("no refusal with '%s'", refusal);
    TS(ErrorDelete)(error);
  }
  OK(TS(InferenceResponseDelete)(response));
}

static void send(const char* text, uint64_t number, uint32_t flags, const char* refusal) {
  struct Notes notes;
  struct Wait wait;
  TRITONSERVER_InferenceRequest* request = make_request(server, "identity", allocator, &notes, &wait);
  send_again(request, &notes, &wait, text, number, flags, refusal);
  OK(TS(InferenceRequestDelete)(request));
}

static void reload(const char* repository, int number) {
  char path[512];
  snprintf(path, sizeof path, "%s/identity/1/file-%d", repository, number);
  FILE* file = fopen(path, "w");
  EXPECT(file != NULL && fclose(file) == 0);
  OK(TS(ServerLoadModel)(server, "identity"));
}

int main(int count, char** words) {
  EXPECT(count == 4);
  api_open(words[1]);
  server = api_start("sequences", words[2], words[3], TRITONSERVER_MODEL_CONTROL_EXPLICIT);
  allocator = make_allocator();
  OK(TS(ServerLoadModel)(server, "identity"));
  struct Notes notes;
  struct Wait wait;
  TRITONSERVER_InferenceRequest* old = make_request(server, "identity", allocator, &notes, &wait);
  send(NULL, 7, TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, NULL);
  send("seven", 0, TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, NULL);
  reload(words[2], 1);
  send(NULL, 7, 0, NULL);
  send("seven", 0, 0, NULL);
  send_again(old, &notes, &wait, NULL, 7, 0, NULL);
  send_again(old, &notes, &wait, "eight", 0, TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, NULL);
  reload(words[2], 2);
  send_again(old, &notes, &wait, "seven", 0, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, NULL);
  send_again(old, &notes, &wait, "eight", 0, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, NULL);
  send(NULL, 7, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, NULL);
  send(NULL, 7, 0, missing);
  send("seven", 0, 0, missing);
  send_again(old, &notes, &wait, "eight", 0, 0, missing);
  // One that is under way does not hold up the end.
  send(NULL, 9, TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, NULL);
  reload(words[2], 3);
  OK(TS(InferenceRequestDelete)(old));
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  puts("ok");
  return 0;
}
