/* An operator for TensorFlow, ConchTestsHalve, in a library as models name it in op_library_filename. Its functions of TensorFlow are
 * those of the C headers, declared here so that none is needed; TensorFlow itself is there when the library is opened. */
#include <stddef.h>
#include <stdint.h>

enum { FLOAT = 1, DIMS_MAX = 8 };

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;

TF_Status *TF_NewStatus(void);
void TF_DeleteStatus(TF_Status *);
int TF_GetCode(const TF_Status *);
int TF_NumDims(const TF_Tensor *);
int64_t TF_Dim(const TF_Tensor *, int);
size_t TF_TensorByteSize(const TF_Tensor *);
void *TF_TensorData(const TF_Tensor *);
void TF_DeleteTensor(TF_Tensor *);
TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *name);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *, const char *);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *, const char *);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder *, void (*)(TF_ShapeInferenceContext *, TF_Status *));
TF_ShapeHandle *TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle *);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext *, int, TF_ShapeHandle *, TF_Status *);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext *, int, TF_ShapeHandle *, TF_Status *);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *, TF_Status *);
TF_KernelBuilder *TF_NewKernelBuilder(const char *operator, const char *device, void *(*create)(TF_OpKernelConstruction *),
                                      void (*compute)(void *, TF_OpKernelContext *), void (*delete)(void *));
void TF_RegisterKernelBuilder(const char *name, TF_KernelBuilder *, TF_Status *);
void TF_GetInput(TF_OpKernelContext *, int, TF_Tensor **, TF_Status *);
TF_Tensor *TF_AllocateOutput(TF_OpKernelContext *, int, int type, const int64_t *dims, int dim_count, size_t bytes, TF_Status *);
void TF_OpKernelContext_Failure(TF_OpKernelContext *, TF_Status *);

/* The output is as the input. */
static void infer_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
  TF_ShapeHandle *shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  if (TF_GetCode(status) == 0) TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  TF_DeleteShapeHandle(shape);
}

static void compute(void *kernel, TF_OpKernelContext *context) {
  TF_Status *status = TF_NewStatus();
  TF_Tensor *input = NULL, *output = NULL;
  int64_t dims[DIMS_MAX];
  (void)kernel;
  TF_GetInput(context, 0, &input, status);
  if (TF_GetCode(status) == 0) {
    int dim_count = TF_NumDims(input) < DIMS_MAX ? TF_NumDims(input) : DIMS_MAX;
    for (int index = 0; index < dim_count; index++) dims[index] = TF_Dim(input, index);
    output = TF_AllocateOutput(context, 0, FLOAT, dims, dim_count, TF_TensorByteSize(input), status);
  }
  if (TF_GetCode(status) == 0) {
    const float *source = TF_TensorData(input);
    float *target = TF_TensorData(output);
    for (size_t index = 0; index < TF_TensorByteSize(input) / sizeof(float); index++) target[index] = source[index] / 2;
  } else {
    TF_OpKernelContext_Failure(context, status);
  }
  if (output != NULL) TF_DeleteTensor(output);
  if (input != NULL) TF_DeleteTensor(input);
  TF_DeleteStatus(status);
}

__attribute__((constructor)) static void register_operator(void) {
  TF_Status *status = TF_NewStatus();
  TF_OpDefinitionBuilder *operator = TF_NewOpDefinitionBuilder("ConchTestsHalve");
  TF_OpDefinitionBuilderAddInput(operator, "x: float");
  TF_OpDefinitionBuilderAddOutput(operator, "y: float");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(operator, infer_shape);
  TF_RegisterOpDefinition(operator, status);
  TF_RegisterKernelBuilder("ConchTestsHalve", TF_NewKernelBuilder("ConchTestsHalve", "CPU", NULL, compute, NULL), status);
  TF_DeleteStatus(status);
}
