# ONNX Runtime with the execution providers CUDA and TensorRT, for models of the onnxruntime backend on GPUs. NVIDIA's own libraries are not
# part of it: CUDA 13 and cuDNN 9, and TensorRT 10 for that provider, which the loader has to find.
onnxruntime_gpu_version=1.31.1
onnxruntime_gpu_size="256 MB to load, 315 MB to keep"
onnxruntime_gpu_licence="MIT, with notices of third parties"

fetch_onnxruntime_gpu() {
  local version=$onnxruntime_gpu_version
  fetch_files "$1" "ONNX Runtime $version for GPUs" "onnxruntime-gpu==$version" \
    e26c475fe361b2015f45b4b824bd13f0bb20204e59b62814e6f0acd5f3d491a6 256 "Models on CPUs need it not." <<FILES
- onnxruntime/LICENSE
- onnxruntime/ThirdPartyNotices.txt
5104254339ecadae808da771bd0b63b240f0dbd466514234905e54372435c303 onnxruntime/capi/libonnxruntime.so.$version
d5290158115fa5569a3fe8f1f4037ee9b0e86658a96e52f852bbb7039aa88137 onnxruntime/capi/libonnxruntime_providers_cuda.so
086ec1d5388f64153d9c63470d126693db9a182c8ce236d3a1119068471b8a0d onnxruntime/capi/libonnxruntime_providers_shared.so
1882ee49fdb0e6fc2d272b00cfaf9a3310bf8580a34385c0eec4d82014ea172e onnxruntime/capi/libonnxruntime_providers_tensorrt.so
FILES
}
