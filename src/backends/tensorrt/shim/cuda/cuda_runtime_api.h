/* Stands in for the header of the CUDA toolkit, of which TensorRT's headers name two types. */
#pragma once

typedef struct CUevent_st *cudaEvent_t;
typedef struct CUstream_st *cudaStream_t;
