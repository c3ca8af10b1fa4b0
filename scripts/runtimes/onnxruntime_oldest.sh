# The oldest ONNX Runtime whose wheel has the library by itself, for the tests of the version floor.
onnxruntime_oldest_version=1.19.0
onnxruntime_oldest_size="13 MB to load, 17 MB to keep"
onnxruntime_oldest_licence="MIT, with notices of third parties"

fetch_onnxruntime_oldest() {
  local version=$onnxruntime_oldest_version
  fetch_files "$1" "ONNX Runtime $version" "onnxruntime==$version" 6f379d1f050cfb55ce015d53727b78ee362febc065c38eed81512b22b757da73 13 \
    "Only tests use it." <<FILES
- onnxruntime/LICENSE
- onnxruntime/ThirdPartyNotices.txt
c733e628f2ca33c722861bc1de11366034b47fa1232298d487840f44c733bf52 onnxruntime/capi/libonnxruntime.so.$version
FILES
}
