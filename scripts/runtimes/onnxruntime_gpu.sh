# ONNX Runtime with the execution providers CUDA and TensorRT, for models of the onnxruntime backend on GPUs. NVIDIA's own libraries are not
# part of it: CUDA 13 and cuDNN 9, and TensorRT 10 for that provider, which the loader has to find.
onnxruntime_gpu_version=1.31.1
onnxruntime_gpu_size="256 MB to load, 315 MB to keep"
onnxruntime_gpu_licence="MIT, with notices of third parties"

fetch_onnxruntime_gpu() {
  local directory=$1 version=$onnxruntime_gpu_version wheel name sum
  local library=libonnxruntime.so.$version
  local otherwise="Models on CPUs need it not."
  only_on_x86_64 "ONNX Runtime for GPUs" "$otherwise"
  local files="5104254339ecadae808da771bd0b63b240f0dbd466514234905e54372435c303 $library
d5290158115fa5569a3fe8f1f4037ee9b0e86658a96e52f852bbb7039aa88137 libonnxruntime_providers_cuda.so
086ec1d5388f64153d9c63470d126693db9a182c8ce236d3a1119068471b8a0d libonnxruntime_providers_shared.so
1882ee49fdb0e6fc2d272b00cfaf9a3310bf8580a34385c0eec4d82014ea172e libonnxruntime_providers_tensorrt.so"
  while read -r sum name; do
    has_sum "$sum" "$directory/$name" && continue
    if [ -z "${wheel:-}" ]; then
      step "fetching ONNX Runtime $version for GPUs ($onnxruntime_gpu_size)"
      wheel=$(fetch_wheel "onnxruntime-gpu==$version" e26c475fe361b2015f45b4b824bd13f0bb20204e59b62814e6f0acd5f3d491a6 "$otherwise" 256)
      unpack "$wheel" onnxruntime/LICENSE "" "$directory/LICENSE"
      unpack "$wheel" onnxruntime/ThirdPartyNotices.txt "" "$directory/ThirdPartyNotices.txt"
    fi
    unpack "$wheel" "onnxruntime/capi/$name" "$sum" "$directory/$name"
  done <<<"$files"
  if [ -z "${wheel:-}" ]; then
    step "ONNX Runtime $version for GPUs is there"
  else
    rm -f "$wheel"
    step "ONNX Runtime $version for GPUs is in $directory"
  fi
  echo "$directory/$library"
}
