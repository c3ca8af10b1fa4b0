// A complete backend in C++: splits the text TEXT (STRING, one element) into its words, WORDS. A decoupled model sends each word as
// a response of its own, from a thread of this backend, after Execute has returned; any other sends all words in one response.
// Request parameter `pause_ms`: how long to wait before each word of a stream. docs/BACKENDS.md tells about it.

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "triton/core/tritonbackend.h"

namespace {

// The oldest server that has all functions used here.
constexpr uint32_t kNeededApiVersionMinor = 16;

// A server's error as an exception.
class Failure : public std::runtime_error {
 public:
  Failure(TRITONSERVER_Error_Code code, const std::string& message) : std::runtime_error(message), code(code) {}
  const TRITONSERVER_Error_Code code;
};

// Throws the error that a function of the server returned, if any.
void Check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  Failure failure(TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  throw failure;
}

// Runs the body of an entry point. No exception may leave one: the server may be written in another language.
template <typename Body>
TRITONSERVER_Error* Guard(Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Failure& failure) {
    return TRITONSERVER_ErrorNew(failure.code, failure.what());
  } catch (const std::exception& exception) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, exception.what());
  }
}

void Log(const std::string& message) {
  TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, message.c_str()));
}

// Runs what has nobody to report an error to.
template <typename Body>
void LogFailure(Body body) noexcept {
  TRITONSERVER_Error* error = Guard(body);
  if (error == nullptr) return;
  Log(TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

// Owns handles until they are sent or given back.
struct Deleter {
  void operator()(TRITONBACKEND_ResponseFactory* factory) const { TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseFactoryDelete(factory)); }
  void operator()(TRITONBACKEND_Response* response) const { TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseDelete(response)); }
  void operator()(TRITONSERVER_Message* message) const { TRITONSERVER_ErrorDelete(TRITONSERVER_MessageDelete(message)); }
  void operator()(TRITONSERVER_Error* error) const { TRITONSERVER_ErrorDelete(error); }
};
template <typename Handle>
using Owned = std::unique_ptr<Handle, Deleter>;

uint64_t NowNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// What belongs to a model version.
struct Model {
  bool is_decoupled;
};

std::unique_ptr<Model> MakeModel(TRITONBACKEND_Model* handle) {
  TRITONSERVER_Message* raw = nullptr;
  Check(TRITONBACKEND_ModelConfig(handle, 1, &raw));
  const Owned<TRITONSERVER_Message> message(raw);
  const char* json = nullptr;
  size_t byte_size = 0;
  Check(TRITONSERVER_MessageSerializeToJson(message.get(), &json, &byte_size));
  // Looking for text is enough for two facts of a document that the server wrote; read more than that with a JSON library.
  const std::string config(json, byte_size);
  if (config.find("\"max_batch_size\":0") == std::string::npos) {
    throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, "the backend 'words' does not batch: set max_batch_size to 0");
  }
  return std::unique_ptr<Model>(new Model{config.find("\"decoupled\":true") != std::string::npos});
}

// What the words of a request become.
struct Job {
  Owned<TRITONBACKEND_ResponseFactory> factory;
  std::vector<std::string> words;
  std::chrono::milliseconds pause;
};

// The one element of TEXT: four bytes of length, then the characters. The bytes may come in several pieces.
std::vector<std::string> ReadWords(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Input* input = nullptr;
  Check(TRITONBACKEND_RequestInput(request, "TEXT", &input));
  TRITONSERVER_DataType type = TRITONSERVER_TYPE_INVALID;
  uint64_t byte_size = 0;
  uint32_t buffer_count = 0;
  Check(TRITONBACKEND_InputProperties(input, nullptr, &type, nullptr, nullptr, &byte_size, &buffer_count));
  std::string bytes;
  for (uint32_t index = 0; index < buffer_count; ++index) {
    const void* piece = nullptr;
    uint64_t piece_bytes = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    Check(TRITONBACKEND_InputBuffer(input, index, &piece, &piece_bytes, &memory, &memory_id));
    if (memory == TRITONSERVER_MEMORY_GPU) throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, "the input lies on a GPU");
    bytes.append(static_cast<const char*>(piece), piece_bytes);
  }
  uint32_t length = 0;
  if (bytes.size() >= sizeof length) std::memcpy(&length, bytes.data(), sizeof length);
  if (type != TRITONSERVER_TYPE_BYTES || bytes.size() != sizeof length + length) {
    throw Failure(TRITONSERVER_ERROR_INVALID_ARG, "input TEXT must hold one string");
  }
  std::istringstream text(bytes.substr(sizeof length));
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

std::chrono::milliseconds ReadPause(TRITONBACKEND_Request* request) {
  uint32_t count = 0;
  Check(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* name = nullptr;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_INT;
    const void* value = nullptr;
    Check(TRITONBACKEND_RequestParameter(request, index, &name, &type, &value));
    if (std::strcmp(name, "pause_ms") != 0) continue;
    if (type != TRITONSERVER_PARAMETER_INT) throw Failure(TRITONSERVER_ERROR_INVALID_ARG, "pause_ms must be an integer");
    return std::chrono::milliseconds(*static_cast<const int64_t*>(value));
  }
  return std::chrono::milliseconds(0);
}

// Gives a response its output.
void AddWords(TRITONBACKEND_Response* response, const std::string* words, size_t count) {
  const int64_t shape[] = {static_cast<int64_t>(count)};
  uint64_t byte_size = 0;
  for (size_t index = 0; index < count; ++index) byte_size += sizeof(uint32_t) + words[index].size();
  TRITONBACKEND_Output* output = nullptr;
  Check(TRITONBACKEND_ResponseOutput(response, &output, "WORDS", TRITONSERVER_TYPE_BYTES, shape, 1));
  void* buffer = nullptr;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  Check(TRITONBACKEND_OutputBuffer(output, &buffer, byte_size, &memory, &memory_id));
  if (memory == TRITONSERVER_MEMORY_GPU) throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, "the output lies on a GPU");
  char* target = static_cast<char*>(buffer);
  for (size_t index = 0; index < count; ++index) {
    const uint32_t length = static_cast<uint32_t>(words[index].size());
    std::memcpy(target, &length, sizeof length);
    std::memcpy(target + sizeof length, words[index].data(), length);
    target += sizeof length + length;
  }
}

// Sends an error in place of a response, as the last one of its request.
void SendFailure(Owned<TRITONBACKEND_Response> response, const Failure& failure) {
  const Owned<TRITONSERVER_Error> error(TRITONSERVER_ErrorNew(failure.code, failure.what()));
  Check(TRITONBACKEND_ResponseSend(response.release(), TRITONSERVER_RESPONSE_COMPLETE_FINAL, error.get()));
}

// What belongs to an instance: a thread that sends the words of its streams, one request after the other.
class Instance {
 public:
  explicit Instance(const Model* model) : model_(model) {
    if (model->is_decoupled) sender_ = std::thread([this] { Run(); });
  }

  // Sends what is left. The server ends an instance only when its requests are answered, so there is nothing as a rule.
  ~Instance() {
    {
      const std::lock_guard<std::mutex> held(lock_);
      is_ending_ = true;
    }
    changed_.notify_one();
    if (sender_.joinable()) sender_.join();
  }

  // Takes a request, which is this backend's, and answers it, now or later. Returns whether that went well so far.
  bool Take(TRITONBACKEND_Request* request) {
    if (model_->is_decoupled) {
      TRITONBACKEND_ResponseFactory* factory = nullptr;
      Check(TRITONBACKEND_ResponseFactoryNew(&factory, request));
      // What the sender needs of the request is copied: the request, and its inputs with it, is released before the answers.
      Job job{Owned<TRITONBACKEND_ResponseFactory>(factory), {}, {}};
      try {
        job.words = ReadWords(request);
        job.pause = ReadPause(request);
      } catch (const Failure& failure) {
        SendFailure(NewResponse(job), failure);
        return false;
      }
      const std::lock_guard<std::mutex> held(lock_);
      jobs_.push_back(std::move(job));
      changed_.notify_one();
      return true;
    }
    TRITONBACKEND_Response* raw = nullptr;
    Check(TRITONBACKEND_ResponseNew(&raw, request));
    Owned<TRITONBACKEND_Response> response(raw);
    try {
      const std::vector<std::string> words = ReadWords(request);
      AddWords(response.get(), words.data(), words.size());
    } catch (const Failure& failure) {
      SendFailure(std::move(response), failure);
      return false;
    }
    Check(TRITONBACKEND_ResponseSend(response.release(), TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr));
    return true;
  }

 private:
  static Owned<TRITONBACKEND_Response> NewResponse(const Job& job) {
    TRITONBACKEND_Response* response = nullptr;
    Check(TRITONBACKEND_ResponseNewFromFactory(&response, job.factory.get()));
    return Owned<TRITONBACKEND_Response>(response);
  }

  static void Send(const Job& job) {
    for (const std::string& word : job.words) {
      std::this_thread::sleep_for(job.pause);
      bool is_cancelled = false;
      Check(TRITONBACKEND_ResponseFactoryIsCancelled(job.factory.get(), &is_cancelled));
      // Nobody listens any more. The request still needs an end.
      if (is_cancelled) return SendFailure(NewResponse(job), Failure(TRITONSERVER_ERROR_CANCELLED, "cancelled between two words"));
      Owned<TRITONBACKEND_Response> response = NewResponse(job);
      AddWords(response.get(), &word, 1);
      Check(TRITONBACKEND_ResponseSend(response.release(), 0, nullptr));
    }
    Check(TRITONBACKEND_ResponseFactorySendFlags(job.factory.get(), TRITONSERVER_RESPONSE_COMPLETE_FINAL));
  }

  void Run() {
    std::unique_lock<std::mutex> held(lock_);
    for (;;) {
      changed_.wait(held, [this] { return is_ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const Job job = std::move(jobs_.front());
      jobs_.pop_front();
      held.unlock();
      LogFailure([&job] { Send(job); });
      held.lock();
    }
  }

  const Model* const model_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool is_ending_ = false;
  std::thread sender_;
};

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend*) {
  return Guard([] {
    uint32_t major = 0, minor = 0;
    Check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != TRITONBACKEND_API_VERSION_MAJOR || minor < kNeededApiVersionMinor) {
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, "the server's backend API does not fit the backend 'words'");
    }
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* handle) {
  return Guard([handle] {
    std::unique_ptr<Model> model = MakeModel(handle);
    Check(TRITONBACKEND_ModelSetState(handle, model.get()));
    model.release();
  });
}

// Called after a failed ModelInitialize as well, when there is no state.
TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* handle) {
  return Guard([handle] {
    void* state = nullptr;
    Check(TRITONBACKEND_ModelState(handle, &state));
    delete static_cast<Model*>(state);
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* handle) {
  return Guard([handle] {
    TRITONBACKEND_Model* model = nullptr;
    void* state = nullptr;
    Check(TRITONBACKEND_ModelInstanceModel(handle, &model));
    Check(TRITONBACKEND_ModelState(model, &state));
    std::unique_ptr<Instance> instance(new Instance(static_cast<const Model*>(state)));
    Check(TRITONBACKEND_ModelInstanceSetState(handle, instance.get()));
    instance.release();
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* handle) {
  return Guard([handle] {
    void* state = nullptr;
    Check(TRITONBACKEND_ModelInstanceState(handle, &state));
    delete static_cast<Instance*>(state);
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* handle, TRITONBACKEND_Request** requests, const uint32_t request_count) {
  const uint64_t start_ns = NowNs();
  // An error from here leaves all requests to the server. After that each is answered and released by itself.
  void* state = nullptr;
  TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceState(handle, &state);
  if (error != nullptr) return error;
  Instance* instance = static_cast<Instance*>(state);
  for (uint32_t index = 0; index < request_count; ++index) {
    bool is_success = false;
    // If even making a response failed, the server answers the request when it is released.
    LogFailure([&] { is_success = instance->Take(requests[index]); });
    LogFailure([&] {
      const uint64_t end_ns = NowNs();
      Check(TRITONBACKEND_ModelInstanceReportStatistics(handle, requests[index], is_success, start_ns, start_ns, end_ns, end_ns));
    });
    LogFailure([&] { Check(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL)); });
  }
  LogFailure([&] {
    const uint64_t end_ns = NowNs();
    Check(TRITONBACKEND_ModelInstanceReportBatchStatistics(handle, request_count, start_ns, start_ns, end_ns, end_ns));
  });
  return nullptr;
}

}  // extern "C"
