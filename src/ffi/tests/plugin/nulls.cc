#include "nulls.h"

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "triton/core/tritoncache.h"
#include "triton/core/tritonrepoagent.h"

namespace {

enum class Round { kAllNull, kLiveHandles, kNullHandles };

// How a call without a handle is told of.
const char* Prefix(Round round) { return round == Round::kAllNull ? "null " : "good "; }

// The live object of each type of handle, if there is one.
template <typename Object>
Object* live = nullptr;

// Room that every output fits in, and that reads as an empty string and as zero.
alignas(16) char scratch[4096];

template <typename Type>
constexpr bool IsHandle() {
  return std::is_pointer<Type>::value && std::is_class<std::remove_cv_t<std::remove_pointer_t<Type>>>::value;
}

template <typename Type>
Type Argument(Round round) {
  if constexpr (IsHandle<Type>()) {
    return round == Round::kLiveHandles ? live<std::remove_cv_t<std::remove_pointer_t<Type>>> : nullptr;
  } else if constexpr (std::is_pointer<Type>::value && !std::is_function<std::remove_pointer_t<Type>>::value) {
    return round == Round::kNullHandles ? reinterpret_cast<Type>(scratch) : nullptr;
  } else {
    return Type{};
  }
}

bool Contains(const std::string& name, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (name.find(word) != std::string::npos) return true;
  }
  return false;
}

// Calls that do what they are for, and should not: to the process's log, to objects that are still needed, to things that nobody
// would delete.
bool IsLeftOut(const std::string& name, Round round) {
  if (Contains(name, {"ServerOptionsSetLog"})) return true;
  if (round == Round::kLiveHandles) return Contains(name, {"Delete", "Release", "Send", "Stop", "SetState"});
  return round == Round::kNullHandles && Contains(name, {"New"});
}

template <typename Result, typename... Types>
void Call(const std::string& name, Result (*function)(Types...), Round round, std::string* successes) {
  if (IsLeftOut(name, round)) return;
  if constexpr (std::is_same<Result, TRITONSERVER_Error*>::value) {
    TRITONSERVER_Error* error = function(Argument<Types>(round)...);
    if (error == nullptr && round != Round::kLiveHandles) *successes += Prefix(round) + name + "\n";
    if (error != nullptr && *TRITONSERVER_ErrorMessage(error) == '\0' && name != "TRITONSERVER_ErrorNew") {
      throw std::logic_error(name + ": an error without a message");
    }
    TRITONSERVER_ErrorDelete(error);
  } else if constexpr (IsHandle<Result>()) {
    if (function(Argument<Types>(round)...) != nullptr) throw std::logic_error(name + ": made something of nothing");
  } else {
    function(Argument<Types>(round)...);
  }
}

void CallAll(Round round, std::string* successes) {
#define EXPORT(name) Call(#name, &name, round, successes);
#include "exports.inc"
#undef EXPORT
}

void Must(TRITONSERVER_Error* error) {
  if (error != nullptr) throw std::logic_error(TRITONSERVER_ErrorMessage(error));
}

}  // namespace

std::string CallWithNulls(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
  live<TRITONBACKEND_ModelInstance> = instance;
  live<TRITONBACKEND_Request> = request;
  Must(TRITONBACKEND_ModelInstanceModel(instance, &live<TRITONBACKEND_Model>));
  Must(TRITONBACKEND_ModelBackend(live<TRITONBACKEND_Model>, &live<TRITONBACKEND_Backend>));
  Must(TRITONBACKEND_ModelServer(live<TRITONBACKEND_Model>, &live<TRITONSERVER_Server>));
  Must(TRITONBACKEND_BackendMemoryManager(live<TRITONBACKEND_Backend>, &live<TRITONBACKEND_MemoryManager>));
  Must(TRITONBACKEND_RequestInputByIndex(request, 0, &live<TRITONBACKEND_Input>));
  Must(TRITONBACKEND_ResponseNew(&live<TRITONBACKEND_Response>, request));
  const int64_t shape = 1;
  Must(TRITONBACKEND_ResponseOutput(live<TRITONBACKEND_Response>, &live<TRITONBACKEND_Output>, "OUT", TRITONSERVER_TYPE_UINT8, &shape, 1));
  Must(TRITONBACKEND_ResponseFactoryNew(&live<TRITONBACKEND_ResponseFactory>, request));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&live<TRITONBACKEND_ModelInstanceResponseStatistics>));
  Must(TRITONSERVER_MessageNewFromSerializedJson(&live<TRITONSERVER_Message>, "{}", 2));
  Must(TRITONSERVER_BufferAttributesNew(&live<TRITONSERVER_BufferAttributes>));
  Must(TRITONSERVER_MetricArgsNew(&live<TRITONSERVER_MetricArgs>));
  Must(TRITONSERVER_MetricFamilyNew(&live<TRITONSERVER_MetricFamily>, TRITONSERVER_METRIC_KIND_COUNTER, "called_with_nulls", "a test"));
  Must(TRITONSERVER_MetricNew(&live<TRITONSERVER_Metric>, live<TRITONSERVER_MetricFamily>, nullptr, 0));
  Must(TRITONSERVER_ServerOptionsNew(&live<TRITONSERVER_ServerOptions>));
  live<TRITONSERVER_Error> = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "live");
  live<TRITONSERVER_Parameter> = TRITONSERVER_ParameterNew("name", TRITONSERVER_PARAMETER_STRING, "value");

  std::string successes;
  for (Round round : {Round::kAllNull, Round::kLiveHandles, Round::kNullHandles}) CallAll(round, &successes);

  Must(TRITONBACKEND_ResponseDelete(live<TRITONBACKEND_Response>));
  Must(TRITONBACKEND_ResponseFactoryDelete(live<TRITONBACKEND_ResponseFactory>));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(live<TRITONBACKEND_ModelInstanceResponseStatistics>));
  Must(TRITONSERVER_MessageDelete(live<TRITONSERVER_Message>));
  Must(TRITONSERVER_BufferAttributesDelete(live<TRITONSERVER_BufferAttributes>));
  Must(TRITONSERVER_MetricArgsDelete(live<TRITONSERVER_MetricArgs>));
  Must(TRITONSERVER_MetricDelete(live<TRITONSERVER_Metric>));
  Must(TRITONSERVER_MetricFamilyDelete(live<TRITONSERVER_MetricFamily>));
  Must(TRITONSERVER_ServerOptionsDelete(live<TRITONSERVER_ServerOptions>));
  TRITONSERVER_ErrorDelete(live<TRITONSERVER_Error>);
  TRITONSERVER_ParameterDelete(live<TRITONSERVER_Parameter>);
  return successes;
}
