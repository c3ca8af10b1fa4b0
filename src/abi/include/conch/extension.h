/* What conch offers plug-ins beyond Triton's C API. Triton has none of these functions: a plug-in
 * that both are to load looks them up with dlsym(RTLD_DEFAULT, name) and does without. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "triton/core/tritonbackend.h"
#include "triton/core/tritonserver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the server's memory limit (--memory-limit-bytes) that a plug-in holds for itself. */
struct CONCH_MemoryCharge;

/* Writes a new charge of 0 bytes, which outlives the model; the caller deletes it. */
struct TRITONSERVER_Error* CONCH_MemoryChargeNew(
    struct CONCH_MemoryCharge** charge, struct TRITONBACKEND_Model* model);

/* Makes it a charge of so many bytes. TRITONSERVER_ERROR_UNAVAILABLE, and no change, if the limit
 * has no room for them. One thread at a time. */
struct TRITONSERVER_Error* CONCH_MemoryChargeSet(struct CONCH_MemoryCharge* charge, uint64_t byte_size);

/* Gives everything back. */
struct TRITONSERVER_Error* CONCH_MemoryChargeDelete(struct CONCH_MemoryCharge* charge);

/* Has an output lie in host memory of the plug-in, instead of a buffer of TRITONBACKEND_OutputBuffer.
 * The server only sends the bytes; should they change meanwhile, those that lie there at that
 * moment. It calls `release` with `userp` once, on any thread, when it does not need them any more;
 * `release` is quick, and the plug-in's library stays loaded until it returned. On an error nothing
 * happened and `release` is not called: TRITONSERVER_ERROR_UNSUPPORTED if this output is to lie in a
 * buffer of the server, as small ones are, and those that the server reads itself. */
struct TRITONSERVER_Error* CONCH_OutputLend(
    struct TRITONBACKEND_Output* output, const void* base, uint64_t byte_size,
    void (*release)(void* userp), void* userp);

/* A backend may export the following pair. The server then may call Begin instead of
 * TRITONBACKEND_ModelInstanceExecute, from any thread, one at a time. It is the same but for its time:
 * it blocks for `wait_ns` at most, and computes only shortly. What takes longer it leaves open: it
 * returns success with `*is_open` true, and the backend keeps the requests. End is the next call for
 * the instance then, on its own thread; it goes on to the end of the execution, and may return an
 * error as TRITONBACKEND_ModelInstanceExecute may. */
struct TRITONSERVER_Error* CONCH_ModelInstanceExecuteBegin(
    struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Request** requests,
    uint32_t request_count, uint64_t wait_ns, bool* is_open);
struct TRITONSERVER_Error* CONCH_ModelInstanceExecuteEnd(struct TRITONBACKEND_ModelInstance* instance);

/* A backend whose instances keep several batches in flight may export the following three beside
 * TRITONBACKEND_ModelInstanceExecute, which other servers call. The server then calls them instead of
 * Execute, one at a time per instance. None of them waits for a device: the thread that calls also
 * drives other models. It is not the one that initialized the instance, and may change between calls.
 *
 * Enqueue is as Execute, but returns once the work of the batch is enqueued. On success the requests
 * are the backend's; an error gives all of them back, as with Execute. At most so many batches are in
 * flight as DepthMax wrote. */
struct TRITONSERVER_Error* CONCH_ModelInstanceEnqueue(
    struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Request** requests,
    uint32_t request_count);

/* Answers and releases the requests of the batches that are done, in the order in which they were
 * enqueued, and writes how many batches are in flight after that. A batch that is done but behind one
 * that is not counts. After an error the server takes it that no batch was finished, and polls
 * again. */
struct TRITONSERVER_Error* CONCH_ModelInstancePoll(
    struct TRITONBACKEND_ModelInstance* instance, uint32_t* in_flight_count);

/* Writes how many batches may be in flight at once; 0 for an instance that blocks, for which the server
 * calls Execute. Called once, after the instance was initialized. */
struct TRITONSERVER_Error* CONCH_ModelInstanceDepthMax(
    struct TRITONBACKEND_ModelInstance* instance, uint32_t* depth_max);

#ifdef __cplusplus
}
#endif
