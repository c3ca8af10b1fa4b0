// A response cache that does what a test asks for, right or wrong: its configuration is the name of an act. The C API is found in the
// test's own executable.

#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "triton/core/tritoncache.h"

using E = TRITONSERVER_Error*;

namespace {

struct Cache {
  std::string act;
  std::mutex lock;
  std::map<std::string, std::vector<char>> entries;
};

std::string journal;

E Refuse(const char* message) { return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, message); }

E Step(const std::string& act, const std::string& step) {
  if (act == "fail_" + step) return Refuse((step + " failed").c_str());
  if (act == "throw_" + step) throw std::runtime_error(step + " threw");
  if (act == "throw_number_" + step) throw 7;
  return nullptr;
}

// Notes what a wrong call is told.
void Note(E error) {
  journal += error == nullptr ? "success" : TRITONSERVER_ErrorMessage(error);
  journal += "\n";
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
}

struct Attributes {
  TRITONSERVER_BufferAttributes* handle = nullptr;
  Attributes(size_t size, TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU) {
    TRITONSERVER_BufferAttributesNew(&handle);
    TRITONSERVER_BufferAttributesSetByteSize(handle, size);
    TRITONSERVER_BufferAttributesSetMemoryType(handle, type);
  }
  ~Attributes() { TRITONSERVER_BufferAttributesDelete(handle); }
};

void CallWithNulls(TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
  size_t count = 0;
  void* base = &count;
  Attributes some(8), none(0), gpu(8, TRITONSERVER_MEMORY_GPU);
  Note(TRITONCACHE_CacheEntryBufferCount(nullptr, &count));
  Note(TRITONCACHE_CacheEntryBufferCount(entry, nullptr));
  Note(TRITONCACHE_CacheEntryAddBuffer(nullptr, base, some.handle));
  Note(TRITONCACHE_CacheEntryAddBuffer(entry, nullptr, some.handle));
  Note(TRITONCACHE_CacheEntryAddBuffer(entry, base, nullptr));
  Note(TRITONCACHE_CacheEntryAddBuffer(entry, base, none.handle));
  Note(TRITONCACHE_CacheEntryAddBuffer(entry, base, gpu.handle));
  Note(TRITONCACHE_CacheEntryGetBuffer(entry, 5, &base, some.handle));
  Note(TRITONCACHE_CacheEntryGetBuffer(entry, 0, nullptr, some.handle));
  Note(TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, nullptr));
  Note(TRITONCACHE_CacheEntrySetBuffer(nullptr, 0, base, nullptr));
  Note(TRITONCACHE_CacheEntrySetBuffer(entry, 5, base, nullptr));
  Note(TRITONCACHE_CacheEntrySetBuffer(entry, 0, base, gpu.handle));
  Note(TRITONCACHE_Copy(nullptr, entry));
  Note(TRITONCACHE_Copy(allocator, nullptr));
  // Each in the other's place: told apart.
  Note(TRITONCACHE_Copy(reinterpret_cast<TRITONCACHE_Allocator*>(entry), entry));
}

}  // namespace

extern "C" {

const char* cache_journal() {
  static std::string shown;
  shown.swap(journal);
  journal.clear();
  return shown.c_str();
}

#ifndef WITHOUT_INITIALIZE
E TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config) {
  std::string act = config;
  if (E error = Step(act, "initialize")) return error;
  if (act == "null_initialize") return nullptr;
  uint32_t major = 9, minor = 9;
  TRITONCACHE_ApiVersion(&major, &minor);
  journal += "version " + std::to_string(major) + "." + std::to_string(minor) + "\n";
  auto made = new Cache;
  made->act = act;
  *cache = reinterpret_cast<TRITONCACHE_Cache*>(made);
  return nullptr;
}
#endif

E TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* handle) {
  auto cache = reinterpret_cast<Cache*>(handle);
  std::string act = cache->act;
  delete cache;
  journal += "finalized\n";
  return Step(act, "finalize");
}

E TRITONCACHE_CacheLookup(TRITONCACHE_Cache* handle, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
  auto cache = reinterpret_cast<Cache*>(handle);
  std::lock_guard<std::mutex> held(cache->lock);
  const std::string& act = cache->act;
  if (E error = Step(act, "lookup")) return error;
  if (act == "nulls") CallWithNulls(entry, allocator);
  auto found = act == "mix_up" && !cache->entries.empty() ? cache->entries.begin() : cache->entries.find(key);
  if (found == cache->entries.end()) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "no such key");
  std::vector<char>& bytes = found->second;
  if (act == "no_copy") return nullptr;
  if (act == "change") bytes.back() ^= 1;
  if (act == "cut") bytes.pop_back();
  Attributes attributes(bytes.size(), act == "gpu" ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU_PINNED);
  int count = act == "no_buffer" ? 0 : act == "two_buffers" ? 2 : 1;
  for (int index = 0; index < count; ++index) {
    if (E error = TRITONCACHE_CacheEntryAddBuffer(entry, bytes.data(), attributes.handle)) return error;
  }
  if (E error = TRITONCACHE_Copy(allocator, entry)) return error;
  // What the plug-in does with its memory afterwards is its own affair.
  if (act == "overwrite") std::memset(bytes.data(), 0xee, bytes.size());
  return nullptr;
}

E TRITONCACHE_CacheInsert(TRITONCACHE_Cache* handle, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
  auto cache = reinterpret_cast<Cache*>(handle);
  std::lock_guard<std::mutex> held(cache->lock);
  const std::string& act = cache->act;
  if (E error = Step(act, "insert")) return error;
  if (cache->entries.count(key)) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_ALREADY_EXISTS, "there already");
  size_t count = 0, size = 0;
  if (E error = TRITONCACHE_CacheEntryBufferCount(entry, &count)) return error;
  if (count != 1) return Refuse("expected one buffer");
  void* base = &count;
  Attributes attributes(0);
  if (E error = TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, attributes.handle)) return error;
  if (base != nullptr) return Refuse("expected no address yet");
  TRITONSERVER_BufferAttributesByteSize(attributes.handle, &size);
  std::vector<char> bytes(size);
  Attributes shorter(size - 1);
  auto given = act == "short_insert" ? shorter.handle : nullptr;
  if (act != "unset_insert") {
    if (E error = TRITONCACHE_CacheEntrySetBuffer(entry, 0, bytes.data(), given)) return error;
  }
  if (E error = TRITONCACHE_Copy(allocator, entry)) return error;
  cache->entries[key] = std::move(bytes);
  return nullptr;
}

}  // extern "C"
