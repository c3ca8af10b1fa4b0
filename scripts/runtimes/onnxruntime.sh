# ONNX Runtime for the onnxruntime backend: one library out of its wheel.
onnxruntime_version=1.31.1
onnxruntime_size="24 MB to load, 30 MB to keep"
onnxruntime_licence="MIT, with notices of third parties"

fetch_onnxruntime() {
  local version=$onnxruntime_version
  fetch_files "$1" "ONNX Runtime $version" "onnxruntime==$version" 5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f 24 \
    "Or get libonnxruntime.so 1.17 or later from elsewhere and name it in CONCH_ONNXRUNTIME_LIBRARY." <<FILES
- onnxruntime/LICENSE
- onnxruntime/ThirdPartyNotices.txt
fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3 onnxruntime/capi/libonnxruntime.so.$version
FILES
}
