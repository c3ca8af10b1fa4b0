// A backend that does what a test asks for, right or wrong. It is linked against a stub libtritonserver.so, as real ones are.
//
// Which step fails is in the names: of the backend (the file's name), the model, the instance. What Execute does with a request is in
// the request's parameter "act". Every entry point leaves a line in a journal that the test reads.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "plugin/nulls.h"
#include "triton/core/tritonbackend.h"

using E = TRITONSERVER_Error*;

namespace {

constexpr uint32_t kFinal = TRITONSERVER_RESPONSE_COMPLETE_FINAL;

std::mutex lock;
std::string journal;
std::vector<std::thread> threads;
uint64_t finalize_time = 0;

void Note(const std::string& line) {
  std::lock_guard<std::mutex> held(lock);
  journal += line + "\n";
}

// Journals an error that a test expects to see, and deletes it.
void Expect(const char* call, E error) {
  Note(std::string(call) + ": " + (error == nullptr ? "success" : TRITONSERVER_ErrorMessage(error)));
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
}

// Throws for errors that no test expects.
void Must(E error) {
  if (error == nullptr) return;
  std::string message = TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  throw std::logic_error("unexpected: " + message);
}

// What a step named `name` does if the name asks for it.
E Step(const std::string& name, const std::string& step) {
  if (name == "fail_" + step) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, (step + " failed").c_str());
  if (name == "throw_" + step) throw std::runtime_error(step + " threw");
  return nullptr;
}

std::string Name(TRITONBACKEND_Backend* backend) {
  const char* name;
  Must(TRITONBACKEND_BackendName(backend, &name));
  return name;
}

std::string Text(TRITONSERVER_Message* message) {
  const char* base;
  size_t size;
  Must(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  return std::string(base, size);
}

std::string Act(TRITONBACKEND_Request* request) {
  uint32_t count;
  Must(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* key;
    TRITONSERVER_ParameterType type;
    const void* value;
    Must(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    if (std::strcmp(key, "act") == 0 && type == TRITONSERVER_PARAMETER_STRING) return static_cast<const char*>(value);
  }
  return "echo";
}

std::string Content(TRITONBACKEND_Input* input) {
  uint32_t buffers;
  Must(TRITONBACKEND_InputProperties(input, nullptr, nullptr, nullptr, nullptr, nullptr, &buffers));
  std::string content;
  for (uint32_t index = 0; index < buffers; ++index) {
    const void* base;
    uint64_t size;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
    int64_t id = 7;
    Must(TRITONBACKEND_InputBuffer(input, index, &base, &size, &type, &id));
    if (type != TRITONSERVER_MEMORY_CPU || id != 0) throw std::logic_error("not in host memory");
    content.append(static_cast<const char*>(base), size);
  }
  return content;
}

void Fill(TRITONBACKEND_Response* response, const std::string& content) {
  TRITONBACKEND_Output* output;
  const int64_t shape = static_cast<int64_t>(content.size());
  Must(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_UINT8, &shape, 1));
  void* buffer;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
  int64_t id = 3;
  Must(TRITONBACKEND_OutputBuffer(output, &buffer, content.size(), &type, &id));
  if (type != TRITONSERVER_MEMORY_CPU || id != 0) throw std::logic_error("not in host memory");
  std::memcpy(buffer, content.data(), content.size());
}

TRITONBACKEND_Response* Echo(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Input* input;
  Must(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRITONBACKEND_Response* response;
  Must(TRITONBACKEND_ResponseNew(&response, request));
  Fill(response, Content(input));
  return response;
}

std::string Inspect(TRITONBACKEND_Request* request) {
  std::string report;
  const char* text;
  Must(TRITONBACKEND_RequestId(request, &text));
  report += std::string("id=") + text;
  E error = TRITONBACKEND_RequestCorrelationIdString(request, &text);
  report += std::string(" correlation=") + (error == nullptr ? text : TRITONSERVER_ErrorMessage(error));
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
  uint32_t number;
  Must(TRITONBACKEND_RequestFlags(request, &number));
  report += " flags=" + std::to_string(number);
  uint64_t timeout;
  Must(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout));
  report += " timeout=" + std::to_string(timeout);
  bool is_cancelled;
  Must(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
  report += is_cancelled ? " cancelled" : " wanted";
  Must(TRITONBACKEND_RequestParameterCount(request, &number));
  for (uint32_t index = 0; index < number; ++index) {
    const char* key;
    TRITONSERVER_ParameterType type;
    const void* value;
    Must(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    report += std::string(" ") + key + "=";
    if (type == TRITONSERVER_PARAMETER_STRING) report += static_cast<const char*>(value);
    if (type == TRITONSERVER_PARAMETER_INT) report += std::to_string(*static_cast<const int64_t*>(value));
    if (type == TRITONSERVER_PARAMETER_BOOL) report += *static_cast<const bool*>(value) ? "true" : "false";
    if (type == TRITONSERVER_PARAMETER_DOUBLE) report += std::to_string(*static_cast<const double*>(value));
  }
  Must(TRITONBACKEND_RequestInputCount(request, &number));
  for (uint32_t index = 0; index < number; ++index) {
    TRITONBACKEND_Input* input;
    Must(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    const char* name;
    TRITONSERVER_DataType type;
    uint32_t dims, buffers;
    const int64_t* shape;
    uint64_t size;
    Must(TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &size, &buffers));
    report += std::string(" ") + name + ":" + std::to_string(type) + "[";
    for (uint32_t dim = 0; dim < dims; ++dim) report += (dim > 0 ? "," : "") + std::to_string(shape[dim]);
    report += "]x" + std::to_string(size) + "/" + std::to_string(buffers);
    TRITONSERVER_BufferAttributes* attributes;
    const void* base;
    size_t last;
    Must(TRITONBACKEND_InputBufferAttributes(input, buffers - 1, &base, &attributes));
    Must(TRITONSERVER_BufferAttributesByteSize(attributes, &last));
    report += "(" + std::to_string(last) + ")";
  }
  Must(TRITONBACKEND_RequestOutputCount(request, &number));
  for (uint32_t index = 0; index < number; ++index) {
    Must(TRITONBACKEND_RequestOutputName(request, index, &text));
    report += std::string(" >") + text;
  }
  Expect("unknown input", [&] {
    TRITONBACKEND_Input* input;
    return TRITONBACKEND_RequestInput(request, "NONE", &input);
  }());
  Expect("output out of bounds", TRITONBACKEND_RequestOutputName(request, 99, &text));
  Expect("state", [&] {
    TRITONBACKEND_State* state;
    return TRITONBACKEND_StateNew(&state, request, "S", TRITONSERVER_TYPE_UINT8, nullptr, 0);
  }());
  Expect("reschedule", TRITONBACKEND_RequestRelease(request, 2));
  Expect("null", TRITONBACKEND_RequestId(nullptr, &text));
  return report;
}

// What a response holds before it is sent.
void ReadBack(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  size_t size = 3;
  TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_GPU;
  int64_t id = 7;
  Must(TRITONBACKEND_RequestOutputBufferProperties(request, "OUT", &size, &place, &id));
  Note("buffers of OUT lie in " + std::to_string(place) + "/" + std::to_string(id) + ", " + std::to_string(size) + " bytes");
  Must(TRITONBACKEND_RequestOutputBufferProperties(request, nullptr, nullptr, &place, &id));
  TRITONSERVER_DataType type;
  const char* name;
  const int64_t* shape;
  uint64_t dims;
  Must(TRITONBACKEND_InferenceResponseOutput(response, 0, &name, &type, &shape, &dims));
  Note(std::string("first ") + name + ":" + std::to_string(type) + " rank " + std::to_string(dims) + " of " +
       std::to_string(shape[0]));
  Must(TRITONBACKEND_InferenceResponseOutputByName(response, "OUT", &type, &shape, &dims));
  Note("by name :" + std::to_string(type) + " rank " + std::to_string(dims) + " of " + std::to_string(shape[0]));
  Expect("by another name", TRITONBACKEND_InferenceResponseOutputByName(response, "NONE", &type, &shape, &dims));
  Expect("beyond", TRITONBACKEND_InferenceResponseOutput(response, 9, &name, &type, &shape, &dims));
}

// Objects of one kind in place of another. The kinds are told apart, so nothing happens to the objects.
void WrongHandles(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  const char* text;
  void* state;
  uint64_t size;
  TRITONBACKEND_Input* input;
  Must(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRITONSERVER_Message* message;
  Must(TRITONSERVER_MessageNewFromSerializedJson(&message, "{}", 2));
  Expect("response as request", TRITONBACKEND_RequestId(reinterpret_cast<TRITONBACKEND_Request*>(response), &text));
  Expect("request as response", TRITONBACKEND_ResponseSend(reinterpret_cast<TRITONBACKEND_Response*>(request), kFinal, nullptr));
  Expect("instance as request", TRITONBACKEND_RequestRelease(reinterpret_cast<TRITONBACKEND_Request*>(instance), 1));
  Expect("request as instance", TRITONBACKEND_ModelInstanceState(reinterpret_cast<TRITONBACKEND_ModelInstance*>(request), &state));
  Expect("input as output", TRITONBACKEND_OutputBuffer(reinterpret_cast<TRITONBACKEND_Output*>(input), &state, 1, nullptr, nullptr));
  Expect("message as factory", TRITONBACKEND_ResponseFactoryDelete(reinterpret_cast<TRITONBACKEND_ResponseFactory*>(message)));
  Expect("message as model", TRITONBACKEND_ModelVersion(reinterpret_cast<TRITONBACKEND_Model*>(message), &size));
  Expect("input as message", TRITONSERVER_MessageDelete(reinterpret_cast<TRITONSERVER_Message*>(input)));
  TRITONSERVER_ErrorDelete(reinterpret_cast<E>(message));
  Must(TRITONSERVER_MessageDelete(message));
}

uint64_t Now() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void Perform(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, const std::string& act) {
  TRITONBACKEND_Response* response;
  TRITONBACKEND_ResponseFactory* factory;
  const auto release = [&] { Must(TRITONBACKEND_RequestRelease(request, 1)); };
  if (act == "echo") {
    const uint64_t start = Now();
    response = Echo(request);
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    Must(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, start, start, Now(), Now()));
    release();
  } else if (act == "inspect") {
    const std::string report = Inspect(request);
    Must(TRITONBACKEND_ResponseNew(&response, request));
    Must(TRITONBACKEND_ResponseSetStringParameter(response, "report", report.c_str()));
    Must(TRITONBACKEND_ResponseSetIntParameter(response, "number", -5));
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    release();
  } else if (act == "error") {
    Must(TRITONBACKEND_ResponseNew(&response, request));
    E error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "no luck");
    Must(TRITONBACKEND_ResponseSend(response, kFinal, error));
    TRITONSERVER_ErrorDelete(error);
    release();
  } else if (act == "read_back") {
    response = Echo(request);
    ReadBack(request, response);
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    release();
  } else if (act == "silent") {
    release();
  } else if (act == "twice") {
    Must(TRITONBACKEND_ResponseSend(Echo(request), kFinal, nullptr));
    Expect("second final", TRITONBACKEND_ResponseSend(Echo(request), kFinal, nullptr));
    release();
  } else if (act == "after_sending") {
    // The memory of what was sent is kept for the next response: nothing of it answers to its old handles.
    response = Echo(request);
    TRITONBACKEND_Output* output;
    const int64_t shape = 1;
    Must(TRITONBACKEND_ResponseOutput(response, &output, "LARGE", TRITONSERVER_TYPE_UINT8, &shape, 1));
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    Expect("sent again", TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    Expect("deleted", TRITONBACKEND_ResponseDelete(response));
    Expect("named", TRITONBACKEND_ResponseSetIntParameter(response, "late", 1));
    Expect("given an output", TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_UINT8, &shape, 1));
    release();
  } else if (act == "fill_after_sending") {
    Must(TRITONBACKEND_ResponseNew(&response, request));
    TRITONBACKEND_Output* output;
    const int64_t shape = 0;
    Must(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_UINT8, &shape, 1));
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    void* buffer;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    Expect("filled", TRITONBACKEND_OutputBuffer(output, &buffer, 1, &type, &id));
    release();
  } else if (act == "two") {
    Must(TRITONBACKEND_ResponseSend(Echo(request), 0, nullptr));
    Must(TRITONBACKEND_ResponseSend(Echo(request), kFinal, nullptr));
    release();
  } else if (act == "then_flags") {
    Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    Must(TRITONBACKEND_ResponseSend(Echo(request), 0, nullptr));
    Must(TRITONBACKEND_ResponseFactorySendFlags(factory, kFinal));
    Must(TRITONBACKEND_ResponseFactoryDelete(factory));
    release();
  } else if (act == "flags") {
    Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    Must(TRITONBACKEND_ResponseFactorySendFlags(factory, kFinal));
    Must(TRITONBACKEND_ResponseFactoryDelete(factory));
    release();
  } else if (act == "release_first") {
    response = Echo(request);
    release();
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
  } else if (act == "drop_response") {
    response = Echo(request);
    release();
    Must(TRITONBACKEND_ResponseDelete(response));
  } else if (act == "double_release") {
    Must(TRITONBACKEND_ResponseSend(Echo(request), kFinal, nullptr));
    release();
    Expect("second release", TRITONBACKEND_RequestRelease(request, 1));
    uint32_t flags;
    Expect("flags after release", TRITONBACKEND_RequestFlags(request, &flags));
  } else if (act == "second_buffer") {
    Must(TRITONBACKEND_ResponseNew(&response, request));
    TRITONBACKEND_Output* output;
    const int64_t shape = 1;
    Must(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_UINT8, &shape, 1));
    void* buffer;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    Must(TRITONBACKEND_OutputBuffer(output, &buffer, 1, &type, &id));
    std::memcpy(buffer, "x", 1);
    Expect("second buffer", TRITONBACKEND_OutputBuffer(output, &buffer, 1, &type, &id));
    TRITONBACKEND_Output* large;
    Must(TRITONBACKEND_ResponseOutput(response, &large, "LARGE", TRITONSERVER_TYPE_BYTES, &shape, 1));
    Expect("large buffer", TRITONBACKEND_OutputBuffer(large, &buffer, uint64_t{1} << 60, &type, &id));
    Expect("no data type", TRITONBACKEND_ResponseOutput(response, &large, "ODD", static_cast<TRITONSERVER_DataType>(77), &shape, 1));
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    release();
  } else if (act == "late") {
    // Everything happens on another thread, mostly after Execute returned.
    std::lock_guard<std::mutex> held(lock);
    threads.emplace_back([request] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Must(TRITONBACKEND_ResponseSend(Echo(request), kFinal, nullptr));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Must(TRITONBACKEND_RequestRelease(request, 1));
    });
  } else if (act == "late_release") {
    Must(TRITONBACKEND_ResponseSend(Echo(request), kFinal, nullptr));
    std::lock_guard<std::mutex> held(lock);
    threads.emplace_back([request] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Must(TRITONBACKEND_RequestRelease(request, 1));
    });
  } else if (act == "nulls") {
    Note(CallWithNulls(instance, request));
    release();
  } else if (act == "wrong_handles") {
    response = Echo(request);
    WrongHandles(instance, request, response);
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    release();
  } else if (act == "final_twice") {
    Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    release();
    Must(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    Fill(response, "end");
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    Expect("flags after the end", TRITONBACKEND_ResponseFactorySendFlags(factory, kFinal));
    Must(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    Fill(response, "late");
    Expect("response after the end", TRITONBACKEND_ResponseSend(response, 0, nullptr));
    Must(TRITONBACKEND_ResponseFactoryDelete(factory));
  } else if (act == "release_again_later") {
    Must(TRITONBACKEND_ResponseSend(Echo(request), kFinal, nullptr));
    release();
    std::lock_guard<std::mutex> held(lock);
    threads.emplace_back([request] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Expect("much later", TRITONBACKEND_RequestRelease(request, 1));
    });
  } else if (act == "keep") {
    // Never comes back.
  } else if (act == "stream") {
    Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    release();
    for (const char* part : {"a", "b", "c"}) {
      Must(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
      Fill(response, part);
      Must(TRITONBACKEND_ResponseSend(response, 0, nullptr));
    }
    Must(TRITONBACKEND_ResponseFactorySendFlags(factory, kFinal));
    Must(TRITONBACKEND_ResponseFactoryDelete(factory));
  } else if (act == "backwards") {
    // Made in one order here, sent in another one from two threads, one after the other, long after the request is gone.
    Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    release();
    std::vector<TRITONBACKEND_Response*> made;
    for (const char* part : {"a", "b", "c", "d"}) {
      Must(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
      Fill(response, part);
      made.push_back(response);
    }
    std::lock_guard<std::mutex> held(lock);
    threads.emplace_back([made, factory] {
      std::thread other([made] {
        Must(TRITONBACKEND_ResponseSend(made[3], 0, nullptr));
        Must(TRITONBACKEND_ResponseSend(made[1], 0, nullptr));
      });
      other.join();
      Must(TRITONBACKEND_ResponseSend(made[2], 0, nullptr));
      // The factory goes first; the last response has the flag.
      Must(TRITONBACKEND_ResponseFactoryDelete(factory));
      Must(TRITONBACKEND_ResponseSend(made[0], kFinal, nullptr));
    });
  } else {
    throw std::logic_error("unknown act " + act);
  }
}

}  // namespace

extern "C" {

// For the test: takes the journal, after the threads that this file started have ended.
const char* plugin_journal() {
  std::vector<std::thread> ending;
  {
    std::lock_guard<std::mutex> held(lock);
    ending.swap(threads);
  }
  for (std::thread& thread : ending) thread.join();
  std::lock_guard<std::mutex> held(lock);
  static std::string taken;
  taken.swap(journal);
  journal.clear();
  return taken.c_str();
}

uint64_t plugin_finalize_time() { return finalize_time; }

E TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  const std::string name = Name(backend);
  Note("Initialize " + name);
  TRITONSERVER_Message* config;
  Must(TRITONBACKEND_BackendConfig(backend, &config));
  Note("config " + Text(config));
  TRITONBACKEND_MemoryManager* manager;
  Must(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  void* memory;
  Must(TRITONBACKEND_MemoryManagerAllocate(manager, &memory, TRITONSERVER_MEMORY_CPU, 0, 100));
  std::memset(memory, 1, 100);
  Must(TRITONBACKEND_MemoryManagerFree(manager, memory, TRITONSERVER_MEMORY_CPU, 0));
  Expect("gpu memory", TRITONBACKEND_MemoryManagerAllocate(manager, &memory, TRITONSERVER_MEMORY_GPU, 0, 100));
  Must(TRITONBACKEND_BackendSetState(backend, new std::string(name)));
  if (name == "device") Must(TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_DEVICE_BLOCKING));
  return Step(name, "initialize");
}

E TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  void* state;
  Must(TRITONBACKEND_BackendState(backend, &state));
  Note("Finalize " + (state == nullptr ? std::string("nothing") : *static_cast<std::string*>(state)));
  delete static_cast<std::string*>(state);
  finalize_time = Now();
  return Step(Name(backend), "finalize");
}

E TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes) {
  Note("GetBackendAttribute");
  const uint64_t ids[] = {0, 1};
  Must(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, TRITONSERVER_INSTANCEGROUPKIND_GPU, 2, ids, 2));
  Must(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, TRITONSERVER_INSTANCEGROUPKIND_AUTO, 1, nullptr, 0));
  Must(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true));
  return Step(Name(backend), "attribute");
}

E TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const char* name;
  Must(TRITONBACKEND_ModelName(model, &name));
  uint64_t version;
  Must(TRITONBACKEND_ModelVersion(model, &version));
  TRITONBACKEND_ArtifactType artifact;
  const char* path;
  Must(TRITONBACKEND_ModelRepository(model, &artifact, &path));
  Note(std::string("ModelInitialize ") + name + " " + std::to_string(version) + " " + path);
  TRITONSERVER_Message* message;
  Expect("config version 2", TRITONBACKEND_ModelConfig(model, 2, &message));
  Must(TRITONBACKEND_ModelConfig(model, 1, &message));
  const std::string config = Text(message);
  Must(TRITONSERVER_MessageDelete(message));
  Note(config.find("\"max_batch_size\":4") == std::string::npos ? "another batch size" : "batches up to 4");
  TRITONSERVER_Server* server;
  Must(TRITONBACKEND_ModelServer(model, &server));
  Must(TRITONSERVER_ServerMetadata(server, &message));
  Note("server " + Text(message).substr(0, 16));
  Must(TRITONSERVER_MessageDelete(message));
  bool may_complete;
  Must(TRITONBACKEND_ModelAutoCompleteConfig(model, &may_complete));
  if (may_complete) {
    const std::string json = R"({"max_batch_size":8,"input":[{"name":"IN","data_type":"TYPE_UINT8","dims":[2]}],)"
                             R"("output":[{"name":"OUT","data_type":"TYPE_UINT8","dims":[3]}]})";
    Must(TRITONSERVER_MessageNewFromSerializedJson(&message, json.data(), json.size()));
    Must(TRITONBACKEND_ModelSetConfig(model, 1, message));
    Must(TRITONSERVER_MessageDelete(message));
    const std::string broken = "{";
    Must(TRITONSERVER_MessageNewFromSerializedJson(&message, broken.data(), broken.size()));
    E error = TRITONBACKEND_ModelSetConfig(model, 1, message);
    Note(error == nullptr ? "broken config taken" : "broken config refused");
    TRITONSERVER_ErrorDelete(error);
    Must(TRITONSERVER_MessageDelete(message));
  }
  return Step(name, "model");
}

E TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  const char* name;
  Must(TRITONBACKEND_ModelName(model, &name));
  Note(std::string("ModelFinalize ") + name);
  return Step(name, "model_finalize");
}

E TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  const char* name;
  Must(TRITONBACKEND_ModelInstanceName(instance, &name));
  TRITONSERVER_InstanceGroupKind kind;
  Must(TRITONBACKEND_ModelInstanceKind(instance, &kind));
  TRITONSERVER_Message* policy;
  Must(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
  Note(std::string("InstanceInitialize ") + name + " kind " + std::to_string(kind) + " policy " + Text(policy));
  bool is_passive;
  Must(TRITONBACKEND_ModelInstanceIsPassive(instance, &is_passive));
  uint32_t profiles, devices;
  Must(TRITONBACKEND_ModelInstanceProfileCount(instance, &profiles));
  Must(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &devices));
  std::string facts = is_passive ? "passive" : "active";
  const char* text;
  for (uint32_t index = 0; index < profiles; ++index) {
    Must(TRITONBACKEND_ModelInstanceProfileName(instance, index, &text));
    facts += std::string(" profile ") + text;
  }
  int64_t device;
  for (uint32_t index = 0; index < devices; ++index) {
    Must(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, index, &text, &device));
    facts += std::string(" device ") + text + " " + std::to_string(device);
  }
  Note(facts);
  Expect("profile beyond", TRITONBACKEND_ModelInstanceProfileName(instance, profiles, &text));
  TRITONBACKEND_Model* model;
  Must(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRITONSERVER_Message* message;
  Must(TRITONSERVER_MessageNewFromSerializedJson(&message, "{}", 2));
  Expect("late config", TRITONBACKEND_ModelSetConfig(model, 1, message));
  Must(TRITONSERVER_MessageDelete(message));
  return Step(name, "instance");
}

E TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  const char* name;
  Must(TRITONBACKEND_ModelInstanceName(instance, &name));
  Note(std::string("InstanceFinalize ") + name);
  return Step(name, "instance_finalize");
}

E TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  const char* name;
  Must(TRITONBACKEND_ModelInstanceName(instance, &name));
  return Step(name, "ready");
}

E TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count) {
  const uint64_t start = Now();
  for (uint32_t index = 0; index < count; ++index) {
    const std::string act = Act(requests[index]);
    if (act == "fail") return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "execute failed");
    if (act == "throw") throw std::runtime_error("thrown in execute");
    if (act == "throw_number") throw 42;
    Perform(instance, requests[index], act);
  }
  Must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start, start, Now(), Now()));
  return nullptr;
}
}
