// Calls of every export of the server with nulls in place of what it needs.

#pragma once

#include <string>

#include "triton/core/tritonbackend.h"

// Three rounds over all exports, on live objects of a running execution: everything null; live handles, and null for all else; null
// handles, and good values for all else. No call may end the process. Returns a line per call without a live handle that reported
// success all the same.
std::string CallWithNulls(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request);
