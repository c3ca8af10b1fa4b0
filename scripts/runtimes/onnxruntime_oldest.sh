# The oldest ONNX Runtime whose wheel has the library by itself, for the tests of the version floor.
onnxruntime_oldest_version=1.19.0
onnxruntime_oldest_size="13 MB to load, 17 MB to keep"
onnxruntime_oldest_licence="MIT, with notices of third parties"

fetch_onnxruntime_oldest() {
  local directory=$1 version=$onnxruntime_oldest_version wheel otherwise="Only tests use it."
  local library=libonnxruntime.so.$version
  local sum=c733e628f2ca33c722861bc1de11366034b47fa1232298d487840f44c733bf52
  only_on_x86_64 "old ONNX Runtime" "$otherwise"
  if has_sum "$sum" "$directory/$library"; then
    step "ONNX Runtime $version is there"
  else
    step "fetching ONNX Runtime $version (13 MB)"
    wheel=$(fetch_wheel "onnxruntime==$version" 6f379d1f050cfb55ce015d53727b78ee362febc065c38eed81512b22b757da73 "$otherwise" 13)
    unpack "$wheel" onnxruntime/LICENSE "" "$directory/LICENSE"
    unpack "$wheel" onnxruntime/ThirdPartyNotices.txt "" "$directory/ThirdPartyNotices.txt"
    unpack "$wheel" "onnxruntime/capi/$library" "$sum" "$directory/$library"
    rm -f "$wheel"
    step "ONNX Runtime $version is in $directory"
  fi
  echo "$directory/$library"
}
